"""SmolLM2's greedy tokens are the reference's, however the work is cut into steps."""

import pytest


@pytest.fixture(scope="module")
def runner(smollm2):
    return smollm2.runner(num_blocks=700)


def _jobs(items, job):
    return [job(item["prompt_ids"], len(item["output_ids"])) for item in items]


def _expected(items):
    return [item["output_ids"] for item in items]


def test_each_alone(runner, golden, job, planner):
    """Every item by itself gives the golden tokens."""
    alone = planner(runner)
    assert [alone.run(one)[0] for one in _jobs(golden, job)] == _expected(golden)


def test_all_at_once(runner, golden, job, planner):
    """All items in one batch give the golden tokens."""
    assert planner(runner).run(*_jobs(golden, job)) == _expected(golden)


def test_prefills_in_chunks(runner, golden, job, planner):
    """Prompts computed in chunks that are no multiple of a block give the golden tokens."""
    assert planner(runner).run(*_jobs(golden, job), chunk=37) == _expected(golden)


def test_from_warm_prefix_blocks(runner, golden, job, planner):
    """A second run that finds its full prompt blocks computed gives the golden tokens."""
    plan, first = planner(runner), _jobs(golden, job)
    plan.run(*first)
    second = _jobs(golden, job)
    for warm, cold in zip(second, first, strict=True):
        full = (len(warm.prompt) - 1) // 16
        warm.cached = full * 16
        fresh = plan.take_blocks(len(warm.prompt) + warm.num_tokens - warm.cached)
        warm.block_ids = [*cold.block_ids[:full], *fresh]
    assert plan.run(*second) == _expected(golden)


def test_after_a_preemption(runner, golden, job, planner):
    """A sequence that is computed again with its output so far goes on with the golden tokens."""
    jobs = _jobs(golden, job)
    for one, item in zip(jobs, golden, strict=True):
        half = len(item["output_ids"]) // 2
        one.known = item["output_ids"][:half]
        one.num_tokens -= half
    outputs = planner(runner).run(*jobs)
    assert [[*one.known, *rest] for one, rest in zip(jobs, outputs, strict=True)] == _expected(golden)


def test_logprobs(runner, golden, job, planner, greedy):
    """Log-probabilities of tokens and of the five best are the reference's to 1e-3."""
    item = golden[0]
    one = job(item["prompt_ids"], len(item["output_ids"]), greedy(num_logprobs=5))
    planner(runner).run(one)
    columns = [outcome.logprobs for outcome in one.outcomes]
    assert [column.logprobs[0] for column in columns] == pytest.approx(item["logprobs"], abs=1e-3)
    assert all(column.ranks == [1] and column.num_top == [5] for column in columns)
    best = [
        {int(token): value for token, value in zip(c.top_token_ids, c.top_logprobs, strict=True)}
        for c in columns
    ]
    for found, expected in zip(best, item["top5"], strict=True):
        pairs = expected.items() if isinstance(expected, dict) else expected
        assert found == pytest.approx({int(token): value for token, value in pairs}, abs=1e-3)
