"""Services killed under load on a simulated model: no request fails, and every stream says what it would have said."""

import itertools
import json
import os
import signal
import threading
import time

import grpc
import httpx
import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

NUM_STREAMS, NUM_TOKENS = 12, 400


@pytest.fixture(scope="module")
def suite(running_suite):
    """A suite of its own, since it is torn; steps of 5 ms, so that streams last about two seconds."""
    with running_suite("--simulate", "--step-ms", "5") as running:
        yield running


class Streams:
    """Streams with seeds of their own, each on a thread: native ones, and every third as server-sent events."""

    def __init__(self, suite):
        self.url = suite.url
        self.stub = inference_service_pb2_grpc.InferenceStub(suite.channel)
        self.ids = [[] for _ in range(NUM_STREAMS)]
        self.texts = [""] * NUM_STREAMS
        self.errors = []
        self.threads = [
            threading.Thread(target=self._run_events if index % 3 == 2 else self._run, args=(index,))
            for index in range(NUM_STREAMS)
        ]

    def start(self):
        """Start all and return once each has some tokens."""
        for thread in self.threads:
            thread.start()
        while not self.errors and not all(len(text) > 60 for text in self.texts):
            time.sleep(0.005)
        return self

    def kill(self, pid):
        """Kill a process while every stream is under way."""
        os.kill(pid, signal.SIGKILL)
        assert [thread for thread in self.threads if not thread.is_alive()] == []

    def finish(self):
        """Wait for all; their ids and texts. Fails when any stream failed."""
        for thread in self.threads:
            thread.join(120)
        assert self.errors == []
        return self.ids, self.texts

    def _run_events(self, index):
        order = {"prompt": list(range(100, 150 + index)), "seed": 1000 + index, "max_tokens": NUM_TOKENS}
        order |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        try:
            with httpx.stream("POST", f"{self.url}/v1/completions", json=order, timeout=110) as answer:
                events = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
                for event in map(json.loads, itertools.takewhile(lambda event: event != "[DONE]", events)):
                    if "error" in event:
                        self.errors.append(f"stream {index}: {event['error']}")
                    for choice in event.get("choices", ()):
                        self.texts[index] += choice["text"]
                    if usage := event.get("usage"):
                        self.ids[index] = [usage["completion_tokens"]]
        except httpx.TransportError as error:
            self.errors.append(f"stream {index} after {len(self.texts[index])} characters: {error!r}")

    def _run(self, index):
        request = generate_pb2.GenerateRequest()
        request.token_ids.ids.extend(range(100, 150 + index))
        request.sampling.seed = 1000 + index
        request.sampling.max_tokens = NUM_TOKENS
        request.sampling.ignore_eos = True
        try:
            for event in self.stub.Generate(request, timeout=110):
                self.ids[index] += event.delta.token_ids
                self.texts[index] += event.delta.text
        except grpc.RpcError as error:
            self.errors.append(
                f"stream {index} after {len(self.ids[index])} tokens: {error.code()} {error.details()}"
            )


@pytest.fixture(scope="module")
def undisturbed(suite):
    """What the streams say when nothing is killed."""
    ids, texts = Streams(suite).start().finish()
    for index, each in enumerate(ids):
        assert each == [NUM_TOKENS] if index % 3 == 2 else len(each) == NUM_TOKENS
    return ids, texts


@pytest.mark.parametrize("service", ["worker", "scheduler", "tokenizer"])
def test_killed_service_fails_no_stream(suite, undisturbed, service):
    """With a service killed in mid-stream every stream ends whole, with the tokens and text of an undisturbed run."""
    pid = suite.pid_of(service)
    streams = Streams(suite).start()
    streams.kill(pid)
    assert streams.finish() == undisturbed
    suite.wait_restarted(service, pid)
    suite.wait_idle()


def test_requests_that_come_while_the_worker_is_away_are_answered(suite, undisturbed):
    """New requests sent right after the worker's death wait for the next worker and are answered."""
    pid = suite.pid_of("worker")
    os.kill(pid, signal.SIGKILL)
    answers = [
        httpx.post(f"{suite.url}/v1/completions", json={"prompt": [7, 8, 9], "max_tokens": 5}, timeout=60)
        for _ in range(3)
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    suite.wait_restarted("worker", pid)


def test_killed_gateway_frees_its_requests(suite, undisturbed):
    """When the gateway dies its streams break visibly, the scheduler drops its requests, and a new one serves."""
    pid = suite.pid_of("gateway")
    streams = Streams(suite).start()
    streams.kill(pid)
    for thread in streams.threads:
        thread.join(60)
    assert len(streams.errors) == NUM_STREAMS
    suite.wait_idle()
    suite.wait_restarted("gateway", pid)
    assert Streams(suite).start().finish() == undisturbed


def test_killed_edge_comes_back(suite, undisturbed, wait_until):
    """When Envoy dies it is started again and serves."""
    pid = suite.pid_of("envoy")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: httpx.get(f"{suite.url}/health").status_code == 200, 30)
    assert suite.pid_of("envoy") != pid
