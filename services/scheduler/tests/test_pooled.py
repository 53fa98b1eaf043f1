"""Requests whose answer is a vector: through queue, budget, chunks, abort, deadline and the loss of a worker."""

import pytest

from quire_scheduler.config import SchedulerConfig
from quire_scheduler.errors import InvalidRequest, UnexpectedResult
from quire_scheduler.request import FinishReason, Request, SamplingParams
from quire_scheduler.scheduler import SchedulerCore
from quire_scheduler.step import StepResult

OWNER = "gateway"


def _core(num_blocks=33, **config):
    sizes = {
        "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 16, "max_model_len": 64, "watermark": 0.0,
    }  # fmt: skip
    core = SchedulerCore(SchedulerConfig(**(sizes | config)))
    core.worker_ready(num_blocks)
    return core


def _encoder(**config):
    """An engine whose model keeps no keys and values: its pool is the null block."""
    return _core(1, has_blocks=False, max_model_len=16, **config)


def _submit(core, handle, num_tokens, **changes):
    request = Request(
        OWNER,
        handle,
        list(range(100, 100 + num_tokens)),
        is_pooled=True,
        skip_reading_prefix_cache=True,
        **changes,
    )
    core.submit(request, 0.0)
    return request


def _answer(core, plan, now_s=0.0):
    """Apply a result with a vector for each pooled slot and token 7 for each row that samples."""
    slots = plan.sampling_rows.slots
    vectors = [b"%04d" % slot for slot in plan.pooled_slots]
    result = StepResult(
        plan.step_id, list(slots), [7] * len(slots), pooled_slots=list(plan.pooled_slots), pooled=vectors
    )
    return core.apply(result, now_s).get(OWNER)


def test_a_vector_ends_its_request():
    """One step, one vector, one row with STOP and no token; then nothing is left, and the blocks are free."""
    core = _core()
    _submit(core, 5, 10)
    plan = core.plan(0.0)
    assert (plan.num_new_tokens, plan.sampling_rows.slots, len(plan.pooled_slots)) == ([10], [], 1)
    assert core.plan(0.0) is None
    deltas = _answer(core, plan)
    assert deltas.pooled == [(5, b"%04d" % plan.pooled_slots[0])]
    assert (deltas.handles, deltas.num_tokens, deltas.finish_reasons) == ([5], [0], [FinishReason.STOP])
    assert deltas.started_handles == [5]
    assert core.num_requests == core.num_running == 0
    assert core.load(0.0).num_free_blocks == 32


def test_long_texts_go_in_chunks_where_there_are_blocks():
    """The vector comes with the last chunk; a text may be as long as the context."""
    core = _core()
    _submit(core, 1, 64)
    plans = []
    while plan := core.plan(0.0):
        plans.append(plan)
        deltas = _answer(core, plan)
    assert [plan.num_new_tokens for plan in plans] == [[16]] * 4
    assert [len(plan.pooled_slots) for plan in plans] == [0, 0, 0, 1]
    assert deltas.pooled[0][0] == 1


def test_generation_beside_it_is_undisturbed():
    """Rows that sample and vectors come in one step, for one owner, each under its handle."""
    core = _core()
    core.submit(Request(OWNER, 1, [1, 2, 3], SamplingParams(max_tokens=3)), 0.0)
    _submit(core, 2, 5)
    deltas = _answer(core, core.plan(0.0))
    assert (deltas.handles, deltas.num_tokens, deltas.token_ids) == ([1, 2], [1, 0], [7])
    assert deltas.finish_reasons == [0, FinishReason.STOP]
    assert [handle for handle, _ in deltas.pooled] == [2]
    while plan := core.plan(0.0):
        deltas = _answer(core, plan)
    assert (deltas.handles, deltas.finish_reasons) == ([1], [FinishReason.LENGTH])


def test_encoders_take_whole_texts_and_no_blocks():
    """A text that does not fit into what is left of a step waits for the next; nothing is chunked or allocated."""
    core = _encoder(long_prefill_token_threshold=3)
    for handle, num_tokens in ((1, 9), (2, 9), (3, 16)):
        _submit(core, handle, num_tokens)
    plans = [core.plan(0.0), core.plan(0.0)]
    assert [plan.num_new_tokens for plan in plans] == [[9], [9]]
    assert [plan.new_sequences[0].block_ids for plan in plans] == [[], []]
    assert core.plan(0.0) is None  # two steps are in flight
    _answer(core, plans[0])
    last = core.plan(0.0)
    assert last.num_new_tokens == [16]
    _answer(core, plans[1])
    assert [handle for handle, _ in _answer(core, last).pooled] == [3]
    assert core.num_requests == 0


def test_encoders_batch_short_texts():
    """As many as fit into the step's tokens and the slots."""
    core = _encoder(max_num_seqs=3)
    for handle in range(5):
        _submit(core, handle, 4)
    assert core.plan(0.0).num_new_tokens == [4, 4, 4]


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"num_tokens": 17}, "prompt_token_ids"), ({"num_tokens": 0}, "prompt_token_ids"), ({"n": 2}, "n")],
)
def test_refuses_what_can_never_run(changes, field):
    """Too long for a step, empty, or several continuations: refused by the field's name."""
    core = _encoder()
    with pytest.raises(InvalidRequest) as caught:
        _submit(core, 1, **({"num_tokens": 4} | changes))
    assert caught.value.field == field


def test_an_engine_without_blocks_generates_nothing():
    """A request to generate is refused there."""
    with pytest.raises(InvalidRequest, match="vectors only"):
        _encoder().submit(Request(OWNER, 1, [1, 2]), 0.0)


def test_an_abort_in_flight_wastes_the_vector():
    """Nothing is emitted for a request that was aborted while its step ran, and its slot is released."""
    core = _core()
    _submit(core, 1, 10)
    plan = core.plan(0.0)
    core.abort(OWNER, 1, 0.0)
    assert _answer(core, plan) is None
    assert core.load(0.0).num_free_blocks == 32
    _submit(core, 2, 3)
    assert core.plan(0.0).released_slots == plan.pooled_slots


def test_a_deadline_ends_it():
    """A request whose deadline passes while its step runs ends with DEADLINE and gets no vector."""
    core = _core()
    _submit(core, 1, 10, deadline_s=5.0)
    plan = core.plan(0.0)
    assert core.expire(6.0) == 1
    deltas = _answer(core, plan, 6.0)
    assert (deltas.finish_reasons, deltas.pooled) == ([FinishReason.DEADLINE], [])


def test_another_worker_computes_it_again():
    """Lost with its worker in flight, it waits and runs whole on the next one."""
    core = _core()
    _submit(core, 1, 20)
    core.plan(0.0)
    core.plan(0.0)
    core.worker_lost()
    core.worker_ready(33)
    first, second = core.plan(0.0), core.plan(0.0)
    assert (first.num_new_tokens, second.num_new_tokens) == ([16], [4])
    assert first.new_sequences[0].num_computed_tokens == 0
    _answer(core, first)
    assert [handle for handle, _ in _answer(core, second).pooled] == [1]


def test_priorities_order_them():
    """Under the priority policy a smaller number runs first."""
    core = _encoder(policy="priority", max_num_seqs=1)
    _submit(core, 1, 4, priority=5)
    _submit(core, 2, 4, priority=-5)
    assert core.plan(0.0).new_sequences[0].request.handle == 2


def test_a_result_without_its_vector_breaks_the_contract():
    """Vectors of other slots than the plan's are an error, with nothing changed."""
    core = _core()
    _submit(core, 1, 4)
    plan = core.plan(0.0)
    with pytest.raises(UnexpectedResult, match="vectors of slots"):
        core.apply(StepResult(plan.step_id, [], []), 0.0)
    assert core.num_steps_in_flight == 1
