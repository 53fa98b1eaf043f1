"""Clients that go away, and more work than fits: on a simulated model with slow steps, so that steps can be counted."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import openai
import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

pytestmark = pytest.mark.e2e

STEP_MS = 100
MAX_RUNNING, MAX_WAITING = 4, 4


@pytest.fixture(scope="module")
def suite(running_suite):
    """A suite with steps of 100 ms, four running sequences and room for four waiting."""
    scheduler = {"max_num_seqs": MAX_RUNNING, "max_waiting_sequences": MAX_WAITING}
    with running_suite("--simulate", "--step-ms", str(STEP_MS), scheduler=scheduler) as running:
        yield running


def body(**values):
    """A completion that would go on for minutes."""
    return {"prompt": [5] * 40, "max_tokens": 4000, **values}


def send(suite, path, order):
    """A connection on which the order was sent and whose answer nobody reads."""
    data = json.dumps(order).encode()
    client = socket.create_connection(("127.0.0.1", suite.port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    return client


@pytest.fixture
def idle(suite):
    """The suite with nothing to do and all blocks free."""
    return suite.wait_idle()


def steps_until_idle(suite, go):
    """Steps that end between the client's going and an idle scheduler with all blocks back."""
    before = suite.load().num_steps
    go()
    return suite.wait_idle(10).num_steps - before


# The two in flight when the client goes, and the two that the abort may take.
MAX_STEPS = 4


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_closed_connection_ends_the_request(suite, idle, wait_until, stream, path):
    """A closed HTTP connection ends the request within two steps beyond those in flight, streamed or not."""
    order = body(stream=stream)
    if "chat" in path:
        order = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4000, "stream": stream}
    client = send(suite, path, order)
    wait_until(lambda: suite.load().load.num_running == 1)
    assert steps_until_idle(suite, client.close) <= MAX_STEPS


def test_native_cancel_ends_the_request(suite, idle):
    """Cancelling a gRPC stream ends the request within two steps beyond those in flight."""
    request = generate_pb2.GenerateRequest()
    request.token_ids.ids.extend([5] * 40)
    request.sampling.max_tokens = 4000
    call = inference_service_pb2_grpc.InferenceStub(suite.channel).Generate(request)
    for event in call:
        if event.HasField("delta"):
            break
    assert steps_until_idle(suite, call.cancel) <= MAX_STEPS


def test_waiting_request_can_be_cancelled(suite, idle, wait_until):
    """A request that still waits in the queue ends when its client goes, and the ones that run are not touched."""
    with ThreadPoolExecutor(MAX_RUNNING + 1) as pool:
        order = body(max_tokens=30, ignore_eos=True)
        running = [pool.submit(post, suite, order) for _ in range(MAX_RUNNING)]
        wait_until(lambda: suite.load().load.num_running == MAX_RUNNING)
        waiting = send(suite, "/v1/completions", body())
        wait_until(lambda: suite.load().load.num_waiting == 1)
        waiting.close()
        wait_until(lambda: suite.load().load.num_waiting == 0)
        assert suite.load().load.num_running == MAX_RUNNING
        assert [answer.result().json()["usage"]["completion_tokens"] for answer in running] == [
            30
        ] * MAX_RUNNING


def test_storm_of_cancels_leaves_nothing_behind(suite, idle):
    """Forty clients that go at different moments leave neither requests nor blocks nor permits behind."""

    def come_and_go(index):
        with send(suite, "/v1/completions", body(stream=bool(index % 2))):
            time.sleep(0.05 * (index % 8))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(40)))
    suite.wait_idle(10)
    # All permits are there: as many as the queue takes at once are answered.
    assert [answer.status_code for answer in flood(suite, MAX_WAITING)] == [200] * MAX_WAITING


def test_load_at_the_gateway_after_a_cancel(suite, idle, wait_until):
    """GET /load says that nothing runs and no block is used once a cancelled request, the only one, has gone."""

    def told():
        (engine,) = httpx.get(f"{suite.url}/load").json()["engines"]
        return engine["load"]["num_running"], engine["load"]["num_used_blocks"]

    client = send(suite, "/v1/completions", body(stream=True))
    wait_until(lambda: told()[0] == 1)
    client.close()
    wait_until(lambda: told() == (0, 0))


def post(suite, order):
    """The answer to a completion."""
    return httpx.post(f"{suite.url}/v1/completions", json=order, timeout=60)


def flood(suite, count):
    """Answers to `count` short completions sent at once."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda _: post(suite, body(max_tokens=3)), range(count)))


def test_full_queue_is_429_with_retry_after(suite, idle):
    """Requests beyond the queue's bound are 429 with Retry-After; those that fit are answered."""
    answers = flood(suite, 24)
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    # Room in the batch is given at the next step, so at first only the queue's places count.
    assert statuses.count(200) >= MAX_WAITING
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["message"]


def test_full_queue_is_the_clients_own_error(suite, idle, wait_until):
    """The real client raises RateLimitError; a gRPC client gets RESOURCE_EXHAUSTED with a retry delay."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    count = MAX_RUNNING + MAX_WAITING
    with ThreadPoolExecutor(count) as pool:
        answers = [pool.submit(post, suite, body(max_tokens=20)) for _ in range(MAX_RUNNING)]
        wait_until(lambda: suite.load().load.num_running == MAX_RUNNING)
        answers += [pool.submit(post, suite, body(max_tokens=20)) for _ in range(MAX_WAITING)]
        wait_until(lambda: suite.load().load.num_waiting == MAX_WAITING)
        with suite.openai() as client, pytest.raises(openai.RateLimitError):
            client.completions.create(model="smollm2-135m-instruct", prompt="x", max_tokens=3)
        request = generate_pb2.GenerateRequest()
        request.token_ids.ids.append(5)
        with pytest.raises(grpc.RpcError) as exhausted:
            list(inference_service_pb2_grpc.InferenceStub(suite.channel).Generate(request))
        assert exhausted.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        details = rpc_status.from_call(exhausted.value).details
        delay = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(delay) for detail in details)
        assert [answer.result().status_code for answer in answers] == [200] * count


def test_deadline_of_a_native_call_frees_the_request(suite, idle):
    """A call whose deadline passes ends with DEADLINE_EXCEEDED and leaves nothing behind."""
    request = generate_pb2.GenerateRequest()
    request.token_ids.ids.extend([5] * 40)
    request.sampling.max_tokens = 4000
    with pytest.raises(grpc.RpcError) as late:
        list(inference_service_pb2_grpc.InferenceStub(suite.channel).Generate(request, timeout=0.7))
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    suite.wait_idle(10)
