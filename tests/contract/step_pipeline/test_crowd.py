"""Many requests in too small a pool: the worker checks every plan, the tokens show that nothing got mixed up."""

import random

import pytest

PREFIX = list(range(500, 548))


def requests(rng, count):
    """Prompts that share prefixes, of all lengths around the block size."""
    for handle in range(count):
        shared = PREFIX[: rng.choice([0, 16, 31, 32, 33, 48])]
        own = [1000 + handle * 50 + i for i in range(rng.randint(1, 40))]
        yield (
            handle,
            {
                "prompt": shared + own,
                "max_tokens": rng.choice([1, 2, 15, 16, 17, 60]),
                "n": rng.choice([1, 1, 1, 2, 3]),
            },
        )


async def outputs(pipeline, cases, *, at_once, aborted=()):
    """Tokens per (handle, sequence index) of all requests that were not aborted."""
    gateway = await pipeline.gateway()
    for handle, fields in cases:
        await gateway.submit(handle, **fields)
        if handle in aborted:
            await gateway.abort(handle)
        elif not at_once:
            for index in range(fields["n"]):
                await gateway.until_finished(handle, index=index)
    wanted = [
        (handle, index) for handle, fields in cases for index in range(fields["n"]) if handle not in aborted
    ]
    await gateway.until(lambda: all(key in gateway.finished for key in wanted), timeout_s=60)
    assert gateway.rejections == {}
    await gateway.close()
    return {key: gateway.tokens[key] for key in wanted}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_crowded_pool_changes_no_token(pipeline, seed):
    """With preemption, chunks, forks, prefix hits and aborts every sequence brings what it brings alone."""
    await pipeline.start_worker(num_blocks=20, max_model_len=256)
    await pipeline.start_scheduler(max_num_batched_tokens=48)
    rng = random.Random(seed)
    cases = list(requests(rng, 40))
    alone = await outputs(pipeline, cases, at_once=False)
    crowd = await outputs(pipeline, cases, at_once=True, aborted=set(rng.sample(range(40), 8)))
    assert crowd == {key: alone[key] for key in crowd}
    stats = pipeline.scheduler.engine.core.stats
    assert stats.num_preemptions > 0
    assert stats.num_prefix_hit_tokens > 0
    # One epoch: the worker found nothing wrong in any plan.
    assert stats.num_worker_losses == 0
    await pipeline.until_load(lambda load: load.num_used_blocks == 0)
