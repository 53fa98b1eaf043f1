"""Serve: tokens, ends, aborts and limits, through real scheduler and simulated worker."""

import grpc
import pytest
from google.rpc import error_details_pb2

from quire.admin.v1 import admin_service_pb2
from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import load_pb2, serve_pb2

PROMPT = list(range(100, 140))


def details_of(status, kind):
    """The status's detail of that kind."""
    for detail in status.details:
        message = kind()
        if detail.Unpack(message):
            return message
    raise AssertionError(f"no {kind.DESCRIPTOR.name} in {status}")


async def test_tokens_arrive_in_order_and_end_with_a_reason(running):
    """A request brings exactly max_tokens tokens, one finish reason, and frames whose steps rise."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=20)
    await gateway.until_finished(1)
    assert len(gateway.tokens[1, 0]) == 20
    assert gateway.finished[1, 0] == sampling_pb2.FINISH_REASON_LENGTH
    steps = [frame.step_id for frame in gateway.frames]
    assert steps == sorted(steps)
    assert gateway.frames[-1].sampled_at_unix_us > 0


async def test_ready_describes_the_engine(running):
    """The first message down names the model, the block size and the longest sequence."""
    gateway = await running.gateway()
    assert gateway.ready.model.id == "simulated"
    assert gateway.ready.block_size == 16
    assert gateway.ready.max_model_len == 512
    assert gateway.ready.load.num_total_blocks == 511


async def test_same_tokens_alone_and_in_a_crowd(running):
    """What runs beside a request changes nothing of its tokens, chunked prefill included."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=30)
    await gateway.until_finished(1)
    for handle in range(2, 26):
        await gateway.submit(handle, range(handle, handle + 50 + handle), seed=1 if handle == 9 else handle)
    await gateway.submit(30, PROMPT, max_tokens=30, seed=1)
    await gateway.until_finished(*range(2, 26), 30)
    assert gateway.tokens[30, 0] == gateway.tokens[1, 0]


async def test_n_sequences_share_the_prompt(running):
    """n = 3 gives three different continuations, and the prompt's full blocks are held once."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=200, n=3)
    await gateway.until(lambda: all(len(gateway.tokens.get((1, index), [])) > 2 for index in range(3)))
    load = await running.load()
    # Two full blocks shared, then at most (200 + 8) / 16 + 1 of each one's own.
    assert load.num_used_blocks <= 2 + 3 * 14
    for index in range(3):
        await gateway.until_finished(1, index=index)
    assert len({tuple(gateway.tokens[1, index]) for index in range(3)}) == 3


async def test_prefix_is_found_by_the_second_request(running):
    """A prompt that was computed before reports its full blocks as cached; another salt finds nothing."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT)
    await gateway.until_finished(1)
    await gateway.submit(2, PROMPT)
    await gateway.submit(3, PROMPT, cache_salt="other")
    await gateway.until_finished(2, 3)
    assert gateway.cached == {1: 0, 2: 32, 3: 0}


async def test_resumed_request_goes_on_as_it_would_have(running):
    """Submitted with its first tokens, a request brings the rest, the same as undisturbed."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=12)
    await gateway.until_finished(1)
    whole = gateway.tokens[1, 0]
    await gateway.submit(2, PROMPT, max_tokens=12, seed=1, resumed=whole[:5])
    await gateway.until_finished(2)
    assert gateway.tokens[2, 0] == whole[5:]


async def test_logprobs_only_for_the_rows_that_asked(running):
    """Log-probability columns name the asking request's row and bring one entry per token."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT, max_tokens=6)
    await gateway.submit(2, PROMPT, max_tokens=6, num_logprobs=3)
    await gateway.until_finished(1, 2)
    entries = []
    for frame in gateway.frames:
        for entry, row in enumerate(frame.logprobs.rows):
            assert frame.handles[row] == 2
            assert frame.logprobs.num_top[entry] == 3
            entries.append(row)
    assert len(entries) == 6


async def test_eos_ends_a_sequence(pipeline):
    """The model's end-of-sequence token is among the tokens and ends the sequence with STOP."""
    await pipeline.start_worker(eos_after_tokens=5)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=50, eos_token_ids=[2])
    await gateway.until_finished(1)
    assert gateway.tokens[1, 0][-1] == 2
    assert len(gateway.tokens[1, 0]) == 5
    assert gateway.finished[1, 0] == sampling_pb2.FINISH_REASON_STOP


async def test_abort_reaches_the_worker_within_two_steps(pipeline):
    """At most the two steps in flight still have an aborted sequence; its blocks return; nothing more is sent."""
    await pipeline.start_worker(step_base_ms=2)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=400)
    await gateway.submit(2, range(200, 230), max_tokens=400)
    await gateway.until(lambda: len(gateway.tokens.get((2, 0), [])) > 5)
    slots = {tuple(new.token_ids): new.slot for plan in pipeline.executor.plans for new in plan.new_sequences}
    slot = slots[tuple(PROMPT)]
    num_waiting_frames = len(gateway.frames)
    await gateway.abort(1)
    # The scheduler has it for certain when it has answered something that was sent later.
    await pipeline.load()
    num_plans = len(pipeline.executor.plans)
    await gateway.until(lambda: len(gateway.frames) > num_waiting_frames + 10)
    with_slot = [plan for plan in pipeline.executor.plans[num_plans:] if slot in plan.slots]
    released = [plan for plan in pipeline.executor.plans if slot in plan.released_slots]
    assert len(with_slot) <= 2
    assert len(released) == 1
    tokens = len(gateway.tokens[1, 0])
    await gateway.abort(2)
    await pipeline.until_load(lambda load: load.num_used_blocks == 0)
    assert len(gateway.tokens[1, 0]) == tokens
    assert gateway.finished == {}


async def test_abort_is_idempotent(running):
    """Aborting an unknown or finished handle does no harm to the stream."""
    gateway = await running.gateway()
    await gateway.abort(77)
    await gateway.submit(1, PROMPT)
    await gateway.until_finished(1)
    await gateway.abort(1)
    await gateway.submit(2, PROMPT)
    await gateway.until_finished(2)


async def test_gateway_that_goes_frees_its_blocks(pipeline):
    """When a stream ends its requests are aborted and blocks return; another gateway's go on."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    leaving, staying = await pipeline.gateway(), await pipeline.gateway()
    for handle in range(3):
        await leaving.submit(handle, range(60), max_tokens=400)
    await staying.submit(1, PROMPT, max_tokens=100)
    await leaving.until(lambda: all((handle, 0) in leaving.tokens for handle in range(3)))
    await leaving.close()
    await pipeline.until_load(lambda load: load.num_running == 1)
    await staying.until_finished(1)
    await pipeline.until_load(lambda load: load.num_used_blocks == 0)


async def test_full_queue_is_answered_in_a_frame(pipeline):
    """Beyond the queue's limit a request is rejected with RESOURCE_EXHAUSTED and a retry delay; the stream lives."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler(max_num_seqs=1, max_waiting_sequences=2)
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=300)
    await gateway.until(lambda: (1, 0) in gateway.tokens)
    for handle in (2, 3, 4):
        await gateway.submit(handle, PROMPT, max_tokens=2)
    await gateway.until(lambda: gateway.rejections)
    assert list(gateway.rejections) == [4]
    status = gateway.rejections[4]
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert details_of(status, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds() >= 1
    await gateway.abort(1)
    await gateway.until_finished(2, 3)


@pytest.mark.parametrize(
    ("field", "submit"),
    [
        ("prompt_token_ids", {"prompt": range(600)}),
        ("prompt_token_ids", {"prompt": []}),
        ("n", {"n": 200}),
        ("max_tokens", {"max_tokens": 0}),
    ],
)
async def test_bad_requests_are_rejected_by_field(running, field, submit):
    """A request that can never run is answered with INVALID_ARGUMENT naming the field, and nothing else suffers."""
    gateway = await running.gateway()
    await gateway.submit(1, **submit)
    await gateway.submit(2, PROMPT)
    await gateway.until_finished(2)
    status = gateway.rejections[1]
    assert status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert details_of(status, error_details_pb2.BadRequest).field_violations[0].field == field


async def test_deadline_ends_a_request_in_time(pipeline):
    """A request whose time is over ends with DEADLINE, running or waiting."""
    await pipeline.start_worker(step_base_ms=5)
    await pipeline.start_scheduler(max_num_seqs=1)
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=400, timeout_ms=120)
    await gateway.submit(2, PROMPT, max_tokens=400, timeout_ms=60)
    await gateway.until_finished(1, 2)
    assert set(gateway.finished.values()) == {sampling_pb2.FINISH_REASON_DEADLINE}
    assert 0 < len(gateway.tokens[1, 0]) < 400
    await pipeline.until_load(lambda load: load.num_used_blocks == 0)


async def test_slow_gateway_delays_nobody(running):
    """While one gateway does not read at all, another's requests end; what was unread arrives merged, all of it."""
    slow, fast = await running.gateway(reading=False), await running.gateway()
    for handle in range(4):
        # Log-probabilities make the frames large, so that the transport's own buffers fill.
        await slow.submit(handle, PROMPT, max_tokens=400, seed=handle, num_logprobs=20)
    await fast.submit(1, PROMPT, max_tokens=400, seed=1)
    await fast.until_finished(1)
    await running.until_load(lambda load: load.num_running == 0)
    slow.start_reading()
    await slow.until_finished(*range(4))
    assert [len(slow.tokens[handle, 0]) for handle in range(4)] == [400] * 4
    assert slow.tokens[1, 0] == fast.tokens[1, 0]
    assert sum(len(frame.logprobs.rows) for frame in slow.frames) == 1600
    assert len(slow.frames) < 400 < slow.frames[-1].step_id


async def test_gateway_that_leaves_too_much_unread_is_given_up(pipeline):
    """Beyond the limit of unread tokens the stream ends with RESOURCE_EXHAUSTED and its requests are aborted."""
    await pipeline.start_worker(num_blocks=4096)
    await pipeline.start_scheduler(max_unread_tokens=200, max_num_seqs=16)
    gateway = await pipeline.gateway(reading=False)
    for handle in range(16):
        await gateway.submit(handle, PROMPT, max_tokens=450, num_logprobs=20)
    await pipeline.until_load(lambda load: load.num_running == 16)
    await pipeline.until_load(lambda load: load.num_running + load.num_waiting == 0)
    gateway.start_reading()
    await gateway.until(lambda: gateway.status is not None)
    assert gateway.status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_first_message_must_be_hello(running):
    """A submit before hello is FAILED_PRECONDITION."""
    call = running.stub.Serve()
    await call.write(serve_pb2.ServeRequest(abort=serve_pb2.Abort(handle=1)))
    with pytest.raises(grpc.aio.AioRpcError, match="must be `hello`") as refused:
        await call.read()
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_gateways_with_different_tokenizers_are_refused(running):
    """A second gateway with another tokenizer fingerprint can't connect; one with the same, or none, can."""
    await running.gateway(fingerprint="a")
    await running.gateway(fingerprint="a")
    await running.gateway()
    with pytest.raises(grpc.aio.AioRpcError, match="FAILED_PRECONDITION"):
        await running.gateway(fingerprint="b")


async def test_drain_finishes_what_runs_and_refuses_the_rest(pipeline):
    """While draining: NOT_SERVING, new requests UNAVAILABLE, new streams too; running ones end; Resume undoes it."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=60)
    await gateway.until(lambda: (1, 0) in gateway.tokens)
    draining = pipeline.admin.Drain(admin_service_pb2.DrainRequest())
    await pipeline.until_healthy(False)
    await gateway.submit(2, PROMPT)
    await gateway.until(lambda: 2 in gateway.rejections)
    assert gateway.rejections[2].code == grpc.StatusCode.UNAVAILABLE.value[0]
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await pipeline.gateway()
    assert (await draining).num_in_flight == 0
    assert len(gateway.tokens[1, 0]) == 60
    await pipeline.admin.Resume(admin_service_pb2.ResumeRequest())
    await pipeline.until_healthy()
    await gateway.submit(3, PROMPT)
    await gateway.until_finished(3)


async def test_drain_gives_up_after_its_timeout(pipeline):
    """Drain with a timeout answers how many requests still run, and they go on."""
    await pipeline.start_worker(step_base_ms=1)
    await pipeline.start_scheduler()
    gateway = await pipeline.gateway()
    await gateway.submit(1, PROMPT, max_tokens=200)
    await gateway.until(lambda: (1, 0) in gateway.tokens)
    request = admin_service_pb2.DrainRequest()
    request.timeout.FromMilliseconds(20)
    assert (await pipeline.admin.Drain(request)).num_in_flight == 1
    await gateway.until_finished(1)


async def test_pause_holds_steps_until_resume(running):
    """While paused no step is planned and the state says so; after Resume the request goes on."""
    gateway = await running.gateway()
    await running.admin.Pause(admin_service_pb2.PauseRequest())
    await gateway.submit(1, PROMPT)
    await running.until_load(lambda load: load.num_waiting == 1)
    status = await running.admin.GetStatus(admin_service_pb2.GetStatusRequest())
    assert status.state == admin_service_pb2.SERVICE_STATE_PAUSED
    assert status.num_in_flight == 1
    assert gateway.frames == []
    await running.admin.Resume(admin_service_pb2.ResumeRequest())
    await gateway.until_finished(1)


async def test_load_and_cache_reset(running):
    """After a request its blocks are free and cached; ResetPrefixCache forgets them."""
    gateway = await running.gateway()
    await gateway.submit(1, PROMPT)
    await gateway.until_finished(1)
    await running.until_load(lambda load: load.num_used_blocks == 0)
    assert (await running.load()).num_cached_blocks == 2
    answer = await running.stub.ResetPrefixCache(load_pb2.ResetPrefixCacheRequest())
    assert (answer.num_blocks, answer.num_blocks_in_use) == (2, 0)
    await gateway.submit(2, PROMPT)
    await gateway.until_finished(2)
    assert gateway.cached[2] == 0
    answer = await running.stub.GetLoad(load_pb2.GetLoadRequest())
    assert answer.has_worker
    assert answer.num_steps >= 16
