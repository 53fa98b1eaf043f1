"""Streams through the real binary: flushing, the head, large bodies, slow and vanished clients."""

import json
import signal
import socket
import subprocess
import time

import grpc
import httpx
import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


def test_every_event_is_flushed_by_itself(edge):
    """Events sent apart in time arrive as that many separate pieces, in order, with the stream's content type."""
    order = {"mode": "sse", "events": 10, "gap_s": 0.02}
    with edge.http.stream("POST", CHAT, json=order) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        pieces = [piece for piece in answer.iter_raw() if piece]
    # The last event and [DONE] are sent with no time between them and may share a piece.
    assert len(pieces) >= 10
    text = b"".join(pieces).decode()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert [json.loads(event)["index"] for event in events[:-1]] == list(range(10))
    assert events[-1] == "[DONE]"


def test_head_arrives_with_an_empty_first_message(edge, gateway):
    """An empty first message opens the stream: the client has the status before any event exists."""
    order = {"mode": "hold", "id": "head", "stream": True}
    with edge.http.stream("POST", CHAT, json=order) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        gateway.wait_for("started", "head")
    gateway.wait_for("ended", "head")


def test_stream_may_be_quiet_for_longer_than_default_timeouts(running_edge, gateway):
    """Neither route nor stream has a time limit: the values that would cut a quiet stream are zero."""
    with running_edge(gateways=(gateway.address,)) as edge:
        admin = httpx.get(f"http://{edge.settings.admin}/config_dump", trust_env=False).text
    assert '"stream_idle_timeout": "0s"' in admin
    config = json.loads(admin)
    text = json.dumps(config)
    assert text.count('"timeout": "0s"') >= 8
    assert "max_stream_duration" not in text


@pytest.mark.parametrize("stream", [True, False])
def test_gateway_learns_that_the_client_has_gone(edge, gateway, stream):
    """Closing the connection cancels the call at the gateway, for a stream and for a plain answer alike."""
    body = json.dumps({"mode": "hold", "id": f"gone-{stream}", "stream": stream}).encode()
    host, _, port = edge.target.partition(":")
    client = socket.create_connection((host, int(port)))
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    gateway.wait_for("started", f"gone-{stream}")
    client.close()
    gateway.wait_for("ended", f"gone-{stream}")


def test_gateway_learns_of_a_native_cancel(channel, gateway):
    """Cancelling a native gRPC stream cancels the gateway's call."""
    call = inference_service_pb2_grpc.InferenceStub(channel).Generate(
        generate_pb2.GenerateRequest(text="hold")
    )
    assert next(call).HasField("started")
    call.cancel()
    gateway.wait_for("ended", "native")


def test_native_stream_passes_untouched(channel):
    """A native gRPC stream brings every message."""
    stub = inference_service_pb2_grpc.InferenceStub(channel)
    events = list(stub.Generate(generate_pb2.GenerateRequest(text="go")))
    assert [event.WhichOneof("event") for event in events] == ["started", "delta", "delta", "completed"]


def test_typed_stream_is_server_sent_events(edge):
    """A typed stream over REST is one `data:` event per message, names as in the contract."""
    answer = edge.http.post("/quire/v1/generate", json={"text": "go"})
    assert answer.headers["content-type"] == "text/event-stream"
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert events[0]["started"]["num_prompt_tokens"] == 3
    # An explicit zero index is shown, ids are numbers, text is UTF-8.
    assert events[1]["delta"] == {
        "sequence_index": 0, "text": "é", "token_ids": [7], "logprobs": [], "sampled_at_unix_us": "0",
    }  # fmt: skip
    assert "completed" in events[-1]


def test_late_typed_error_is_an_event(edge):
    """What fails after the first message of a typed REST stream is its last event, since a status would be lost."""
    answer = edge.http.post("/quire/v1/generate", json={"text": "fail later"})
    last = json.loads(answer.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == 14
    assert last["error"]["message"] == "the engine is gone"


@pytest.mark.parametrize("flag", ["--http1.1", "--http2-prior-knowledge"])
def test_bodies_of_several_mebibytes_pass_both_ways(edge, flag, tmp_path):
    """A 5 MiB request and a 20 MiB answer pass, over HTTP/1.1 and HTTP/2."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"mode": "json", "answer_bytes": 20 * MIB, "fill": "y" * 5 * MIB}))
    arguments = ["curl", "-sS", flag, "-H", "content-type: application/json", "--data-binary", f"@{body}"]
    done = subprocess.run([*arguments, edge.url + CHAT], capture_output=True, check=True, timeout=60)
    answer = json.loads(done.stdout)
    assert answer["received"] == body.stat().st_size
    assert len(answer["padding"]) == 20 * MIB


def send_too_much(edge, path, tmp_path, *flags):
    """What curl prints for a body over the limit: the answer, and its status in the last line."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"text": "y" * 9 * MIB}))
    arguments = ["curl", "-s", *flags, "-H", "content-type: application/json", "-H", "expect:"]
    arguments += ["--data-binary", f"@{body}", "-w", "\n%{http_code}", edge.url + path]
    return subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.mark.parametrize("path", [CHAT, "/quire/v1/tokenize"])
@pytest.mark.parametrize("length", ["announced", "chunked"])
def test_too_large_bodies_are_413(edge, path, length, tmp_path):
    """A body over the limit is 413 in OpenAI's shape: HttpBody and typed, announced or chunked."""
    chunked = ["-H", "transfer-encoding: chunked"] if length == "chunked" else []
    text, _, status = send_too_much(edge, path, tmp_path, "--http1.1", *chunked).rpartition("\n")
    assert status == "413"
    assert json.loads(text)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("path", [CHAT, "/quire/v1/tokenize"])
def test_too_large_bodies_are_refused_over_http2(edge, path, tmp_path, wait_until):
    """Over HTTP/2 the limit holds as well; a client that is still sending may see the reset before the 413."""
    query = f"?too-large-h2-{path.count('t')}"
    status = send_too_much(edge, path + query, tmp_path, "--http2-prior-knowledge").rpartition("\n")[2]
    assert status in ("413", "000")
    log = edge.settings.access_log
    wait_until(lambda: query in log.read_text())
    (line,) = [line for line in log.read_text().splitlines() if query in line]
    assert '"status":413' in line
    assert '"protocol":"HTTP/2"' in line


def test_many_streams_at_once(edge):
    """Thirty streams on one edge all end whole."""
    from concurrent.futures import ThreadPoolExecutor

    def one(_):
        answer = edge.http.post(CHAT, json={"mode": "sse", "events": 20, "gap_s": 0.005})
        return answer.text.count("data: ")

    with ThreadPoolExecutor(30) as pool:
        assert list(pool.map(one, range(30))) == [21] * 30


def test_slow_reader_holds_the_gateway_back(edge):
    """An unread stream stops the gateway after a few megabytes, instead of filling the edge's memory."""
    order = {"mode": "sse", "events": 100_000, "padding_lines": 800}
    stats = f"http://{edge.settings.admin}/stats?filter=cluster.gateway.upstream_cx_rx_bytes_total"

    def received():
        return int(httpx.get(stats, trust_env=False).text.rpartition(":")[2])

    before = received()
    with edge.http.stream("POST", CHAT, json=order):
        last, now = -1, received()
        while now != last:
            last = now
            time.sleep(0.5)
            now = received()
    assert now - before < 8 * MIB


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_gateway_cuts_the_stream_visibly(running_edge, gateway_process, free_ports, signal_number):
    """When the gateway dies or freezes in mid-stream the client sees a broken body, not a clean end."""
    (port,) = free_ports(1)
    process = gateway_process(port)
    order = {"mode": "hold", "id": "killed", "stream": True}
    address = f"127.0.0.1:{port}"
    with (
        running_edge(gateways=(address,), ping_interval_s=1.0, ping_timeout_s=0.5) as edge,
        edge.http.stream("POST", CHAT, json=order) as answer,
    ):
        assert answer.status_code == 200
        process.send_signal(signal_number)
        with pytest.raises(httpx.RemoteProtocolError):
            answer.read()


def test_quiet_stream_survives_keepalive_pings(running_edge, gateway):
    """Pings every second on a silent connection end neither the stream nor the connection."""
    with (
        running_edge(gateways=(gateway.address,), ping_interval_s=1.0) as edge,
        grpc.insecure_channel(edge.target) as channel,
    ):
        stub = inference_service_pb2_grpc.InferenceStub(channel)
        call = stub.Generate(generate_pb2.GenerateRequest(text="hold"))
        assert next(call).HasField("started")
        # A default server gives up at the third ping without data in between.
        time.sleep(5)
        assert call.is_active()
        call.cancel()
