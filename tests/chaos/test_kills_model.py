"""The worker killed while the real model answers: the reference's tokens all the same."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from quire.inference.v1 import generate_pb2, inference_service_pb2_grpc

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/smollm2.json").read_text(encoding="utf-8"))
# Those whose every token is clearly the best, and that go on for a while: a tie would prove nothing.
ITEMS = [item for item in GOLDEN["items"] if item["min_margin"] > 0.03 and len(item["output_ids"]) > 30]


def test_killed_worker_changes_no_token(smollm2_suite, wait_until):
    """Streams that lose their worker in the middle go on after it was loaded again, with the reference's ids."""
    assert len(ITEMS) >= 3
    stub = inference_service_pb2_grpc.InferenceStub(smollm2_suite.channel)
    outputs = [[] for _ in ITEMS]

    def stream(index):
        request = generate_pb2.GenerateRequest()
        request.token_ids.ids.extend(ITEMS[index]["prompt_ids"])
        request.sampling.temperature = 0
        request.sampling.max_tokens = ITEMS[index]["max_tokens"]
        for event in stub.Generate(request, timeout=150):
            outputs[index] += event.delta.token_ids

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(len(ITEMS))]
    pid = smollm2_suite.pid_of("worker")
    for thread in threads:
        thread.start()
    wait_until(lambda: all(len(output) >= 5 for output in outputs), 60)
    os.kill(pid, signal.SIGKILL)
    assert any(len(output) < 30 for output in outputs)
    for thread in threads:
        thread.join(170)
    assert outputs == [item["output_ids"] for item in ITEMS]
    smollm2_suite.wait_restarted("worker", pid)
    smollm2_suite.wait_idle()
