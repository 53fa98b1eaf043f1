"""The quire-gateway command as a process: settings, health, and an end in order."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateway_fakes import FakeScheduler, FakeTokenizer
from google.api import httpbody_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.openai.v1 import openai_service_pb2_grpc
from quire_gateway.settings import GatewaySettings


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_settings_are_these() -> None:
    """Adding a setting shows in review."""
    own = set(GatewaySettings.model_fields) - set(GatewaySettings.__mro__[1].model_fields)
    assert own == {
        "tokenizers", "schedulers", "gateway_id", "max_in_flight", "max_in_flight_per_tenant", "accept_grace_s",
        "resume_timeout_s", "tokenize_timeout_s", "unready_after_s", "detokenize", "coalesce_duty",
        "tool_parser", "reasoning_parser", "reasoning_content_alias",
        "coalesce_max_wait_ms",
        "max_stored_responses", "max_stored_response_bytes", "mcp_servers", "mcp_allowed_urls", "mcp_connect_timeout_s",
        "mcp_call_timeout_s", "mcp_max_result_bytes", "batch_folder", "batch_concurrency", "batch_priority",
        "max_file_bytes",
        "engine_tokenizers", "max_logprobs", "generation_config", "default_sampling",
        "trust_request_chat_template", "management_clients",
    }  # fmt: skip


async def test_sigterm_finishes_what_runs(tmp_path: Path, started: Any) -> None:
    """SERVING when engine and tokenizer are there; SIGTERM turns it off, ends the running stream well, and exits 0."""
    tokenizer = await started(FakeTokenizer())
    scheduler = await started(FakeScheduler(text_of=lambda s, i: b"x" * 60, step_s=0.005))
    address = f"127.0.0.1:{_free_port()}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire_gateway.main", "--listen", address,
        "--tokenizers", tokenizer.address, "--schedulers", scheduler.address, "--log-format", "json",
        stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    async with grpc.aio.insecure_channel(address) as channel:
        await _wait_serving(channel)
        stub = openai_service_pb2_grpc.OpenAIStub(channel)
        body = httpbody_pb2.HttpBody(
            data=b'{"prompt": "secret words", "stream": true, "max_tokens": 60, "request_id": "mine"}'
        )
        call = stub.Completions(body)
        first = await call.read()
        assert first.content_type == "text/event-stream"
        process.send_signal(signal.SIGTERM)
        last = first
        while (message := await call.read()) is not grpc.aio.EOF:
            last = message
        assert last.data.endswith(b"data: [DONE]\n\n")
    _, errors = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 0
    log = errors.decode()
    assert '"event": "request finished"' in log and '"route": "completions"' in log
    assert '"client_request_id": "mine"' in log
    assert "secret words" not in log


async def _wait_serving(channel: Any) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest(service="quire.openai.v1.OpenAI")
    async with asyncio.timeout(20):
        while True:
            try:
                answer = await stub.Check(request, wait_for_ready=True)
            except grpc.aio.AioRpcError as failure:
                assert failure.code() is grpc.StatusCode.UNAVAILABLE, failure
            else:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
            await asyncio.sleep(0.02)


async def test_a_bad_setting_fails_the_start() -> None:
    """An unknown flag ends the process with a reason, before it listens."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire_gateway.main", "--max-in-flight", "0", stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 15)
    assert process.returncode == 2
    assert b"max_in_flight" in errors


@pytest.mark.parametrize("name", ["quire_gateway.openai.endpoints", "quire_gateway.openai.dialect"])
def test_the_dialect_is_free_of_grpc(name: str) -> None:
    """The OpenAI layer can be served by any HTTP server: its own modules import no gRPC."""
    source = Path(sys.modules[name].__file__ or "").read_text(encoding="utf-8")
    assert "grpc" not in source.replace("gRPC", "")
