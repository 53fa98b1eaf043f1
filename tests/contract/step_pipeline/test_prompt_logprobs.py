"""Prompt log-probabilities and the end of one sequence, through real scheduler and simulated worker."""

import pytest

from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import serve_pb2

PROMPT = list(range(100, 400))


def positions_of(gateway, handle):
    """The positions told so far, in order, and that none came after the request's first token."""
    found, has_output = [], False
    for frame in gateway.frames:
        scores = frame.prompt_logprobs
        told = [p for h, p in zip(scores.handles, scores.positions, strict=True) if h == handle]
        assert not (told and has_output), "scores after the output began"
        found += told
        counts = zip(frame.handles, frame.num_tokens, strict=True)
        has_output = has_output or any(h == handle and count for h, count in counts)
        assert len(scores.logprobs.logprobs) == len(scores.handles) == len(scores.logprobs.num_top)
    return found


@pytest.mark.parametrize("n", [1, 3])
async def test_each_position_once_with_chunked_prefill(running, n):
    """A prompt of several chunks is scored chunk by chunk, before its first token, once for all sequences."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, n=n, num_prompt_logprobs=2)
    await gateway.submit(2, PROMPT[:50])
    for index in range(n):
        await gateway.until_finished(1, index=index)
    assert positions_of(gateway, 1) == list(range(1, 300))
    assert sum(bool(frame.prompt_logprobs.handles) for frame in gateway.frames) > 1
    first = next(frame.prompt_logprobs for frame in gateway.frames if frame.prompt_logprobs.handles)
    assert list(first.logprobs.top_token_ids[:2]) and first.logprobs.num_top[0] == 2


async def test_a_cached_prompt_is_computed_for_its_scores(running):
    """The whole prompt is scored although it is cached; the next request finds it again."""
    gateway = await running.gateway()
    for handle, options in ((1, {}), (2, {"num_prompt_logprobs": 0}), (3, {})):
        await gateway.submit(handle, PROMPT, **options)
        await gateway.until_finished(handle)
    assert gateway.cached == {1: 0, 2: 0, 3: 288}
    assert positions_of(gateway, 2) == list(range(1, 300))


async def test_skipping_the_cache_computes_the_prompt(running):
    """skip_reading_prefix_cache finds nothing cached, and leaves its blocks to others."""
    gateway = await running.gateway()
    for handle, skips in ((1, False), (2, True), (3, False)):
        await gateway.submit(handle, PROMPT, skip_reading_prefix_cache=skips)
        await gateway.until_finished(handle)
    assert gateway.cached == {1: 0, 2: 0, 3: 288}


async def test_a_killed_worker_repeats_no_position(pipeline):
    """A worker that dies amid the prompt: its successor scores it again, the gateway is told each position once."""
    await pipeline.start_worker(step_base_ms=15)
    await pipeline.start_scheduler(max_num_batched_tokens=32)
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, num_prompt_logprobs=0)
    await gateway.until(lambda: len(positions_of(gateway, 1)) > 60)
    await pipeline.stop_worker()
    told = len(positions_of(gateway, 1))
    await pipeline.start_worker()
    await gateway.until_finished(1)
    assert told < 299 and positions_of(gateway, 1) == list(range(1, 300))


async def test_preempted_prompts_are_scored_once(pipeline):
    """With too few blocks for all, sequences are preempted and come back; no position is told twice."""
    await pipeline.start_worker(num_blocks=34)
    await pipeline.start_scheduler(max_num_batched_tokens=64)
    gateway = await pipeline.gateway()
    for handle in range(1, 6):
        prompt = range(handle * 1000, handle * 1000 + 100)
        await gateway.submit(handle, prompt, max_tokens=150, num_prompt_logprobs=1, n=2 if handle == 3 else 1)
    await gateway.until_finished(*range(1, 6))
    assert pipeline.scheduler.engine.core.stats.num_preemptions
    for handle in range(1, 6):
        assert positions_of(gateway, handle) == list(range(1, 100))


async def test_chosen_token_ids_in_place_of_the_likeliest(running):
    """logprob_token_ids comes back in its own order, for every sampled token."""
    gateway = await running.gateway()
    submit = serve_pb2.Submit(handle=1, request_id="r", prompt_token_ids=[1, 2, 3])
    submit.sampling.CopyFrom(sampling_pb2.SamplingParams(seed=1, max_tokens=3, logprob_token_ids=[7, 5]))
    await gateway.call.write(serve_pb2.ServeRequest(submit=submit))
    await gateway.until_finished(1)
    tops = [token for frame in gateway.frames for token in frame.logprobs.top_token_ids]
    assert tops == [7, 5] * 3


async def test_aborting_one_sequence_frees_its_blocks_while_the_others_go_on(running):
    """The sequence's own blocks return within two steps; siblings end by themselves, the aborted one says nothing."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT[:40], n=3, max_tokens=400)
    await gateway.until(lambda: all(len(gateway.tokens.get((1, index), [])) > 64 for index in range(3)))
    abort = serve_pb2.Abort(handle=1, sequence_index=1)
    await gateway.call.write(serve_pb2.ServeRequest(abort=abort))
    await gateway.call.write(serve_pb2.ServeRequest(abort=abort))
    await running.until_load(lambda load: load.num_running <= 2)
    for index in (0, 2):
        await gateway.until_finished(1, index=index)
        assert len(gateway.tokens[1, index]) == 400
    assert (1, 1) not in gateway.finished and len(gateway.tokens[1, 1]) < 400
    await running.until_load(lambda load: load.num_used_blocks == 0)
