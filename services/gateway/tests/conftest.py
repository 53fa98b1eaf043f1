"""A whole gateway over fakes, and a client that speaks to it as the edge does."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2

from quire.inference.v1 import inference_service_pb2_grpc
from quire.openai.v1 import openai_service_pb2, openai_service_pb2_grpc
from quire_servicekit.metrics import Metrics


def _load(name: str) -> Any:
    # pytest's importlib mode puts no test folder on the path.
    spec = importlib.util.spec_from_file_location(f"gateway_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"gateway_{name}"] = module
    spec.loader.exec_module(module)
    return module


_load("fake_scores")
fakes = _load("fakes")
chats = _load("chats")

from quire_gateway.main import Gateway  # noqa: E402
from quire_gateway.settings import GatewaySettings  # noqa: E402

#: No test waits longer for an answer: a hang is a failure that says where.
_TIMEOUT_S = 15


@dataclass
class Answer:
    """One HTTP answer as the edge would send it."""

    status: int
    headers: dict[str, str]
    content_type: str
    pieces: list[bytes]

    @property
    def body(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)

    @property
    def json(self) -> Any:
        """The body of an answer that is one JSON object."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of each server-sent event; `[DONE]` as a string."""
        text = self.body.decode()
        assert text.endswith("\n\n")
        data = [event.removeprefix("data: ") for event in text.split("\n\n")[:-1]]
        return [event if event == "[DONE]" else json.loads(event) for event in data]

    @property
    def chunks(self) -> list[Any]:
        """The events without [DONE], which has to be the last."""
        assert self.events[-1] == "[DONE]"
        return self.events[:-1]

    def text(self, index: int = 0) -> str:
        """The concatenated content of one choice of a stream."""
        choices = [c for event in self.chunks for c in event["choices"] if c["index"] == index]
        return "".join(c["delta"].get("content", "") if "delta" in c else c["text"] for c in choices)


class Client:
    """Calls a gateway's RPCs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.openai = openai_service_pb2_grpc.OpenAIStub(channel)
        self.inference = inference_service_pb2_grpc.InferenceStub(channel)
        self.channel = channel

    def start(self, method: str, body: dict[str, Any] | bytes, **metadata: str) -> Any:
        """The call of one OpenAI RPC, not read yet."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        pairs = [(key.replace("_", "-"), value) for key, value in metadata.items()]
        return getattr(self.openai, method)(httpbody_pb2.HttpBody(data=data), metadata=pairs)

    async def post(self, method: str, body: dict[str, Any] | bytes, **metadata: str) -> Answer:
        """A whole answer."""
        call = self.start(method, body, **metadata)
        async with asyncio.timeout(_TIMEOUT_S):
            messages = [message async for message in call]
        headers = dict(await call.initial_metadata())
        status = int(headers.get("x-http-status", "200"))
        assert all(not message.content_type for message in messages[1:])
        return Answer(status, headers, messages[0].content_type, [message.data for message in messages])

    async def chat(self, text: str = "hi", **options: Any) -> Answer:
        """A chat completion."""
        return await self.post(
            "ChatCompletions", {"messages": [{"role": "user", "content": text}], **options}
        )

    async def complete(self, prompt: Any = "hi", **options: Any) -> Answer:
        """A completion."""
        return await self.post("Completions", {"prompt": prompt, **options})

    async def get_model(self, name: str) -> Answer:
        """GET /v1/models/{name}."""
        call = self.openai.GetModel(openai_service_pb2.GetModelRequest(model=name))
        message = await call
        headers = dict(await call.initial_metadata())
        return Answer(int(headers.get("x-http-status", "200")), headers, message.content_type, [message.data])


@dataclass
class Suite:
    """A gateway, its fakes, and a client."""

    gateway: Gateway
    client: Client
    tokenizers: list[Any] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)

    @property
    def tokenizer(self) -> Any:
        """The first tokenizer's fake."""
        return self.tokenizers[0].servicer

    @property
    def scheduler(self) -> Any:
        """The first scheduler's fake."""
        return self.schedulers[0].servicer


async def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Return when `condition` holds; fails the test if it does not come to hold."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
async def make_suite() -> AsyncIterator[Callable[..., Any]]:
    """Starts suites: `await make_suite(schedulers=[...], tokenizers=[...], **settings)`."""
    undo: list[Callable[[], Any]] = []

    async def make(
        schedulers: list[Any] | None = None,
        tokenizers: list[Any] | None = None,
        *,
        wait: bool = True,
        **settings: Any,
    ) -> Suite:
        tokenizer_servers = [await fakes.FakeServer(t).start() for t in tokenizers or [fakes.FakeTokenizer()]]
        scheduler_servers = [await fakes.FakeServer(s).start() for s in schedulers or [fakes.FakeScheduler()]]
        configuration = GatewaySettings(
            listen="127.0.0.1:0",
            tokenizers=",".join(server.address for server in tokenizer_servers),
            schedulers=",".join(server.address for server in scheduler_servers),
            **{"resume_timeout_s": 5.0, **settings},
        )
        gateway = Gateway(configuration, Metrics("gateway"))
        await gateway.start()
        channel = grpc.aio.insecure_channel(gateway.server.address)
        undo.append(channel.close)
        undo.append(gateway.close)
        undo.extend(server.kill for server in tokenizer_servers + scheduler_servers)
        if wait:
            await eventually(
                lambda: (
                    gateway.server.health.ready
                    and all(c.is_ready for c in gateway.pool._connections.values())
                    and all(r.is_usable for r in gateway.tokenizer._replicas)
                )
            )
        return Suite(gateway, Client(channel), tokenizer_servers, scheduler_servers)

    yield make
    for action in undo:
        await action()


@pytest.fixture
def serve(make_suite: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a suite whose model writes a text: `await serve(text, template, **settings)`."""
    return chats.serving(make_suite)


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., Any]]:
    """Starts a server for a fake: `await started(FakeTokenizer())`."""
    servers: list[Any] = []

    async def start(servicer: Any) -> Any:
        servers.append(await fakes.FakeServer(servicer).start())
        return servers[-1]

    yield start
    for server in servers:
        await server.kill()


@pytest.fixture
async def suite(make_suite: Callable[..., Any]) -> Suite:
    """One fake of each kind."""
    return await make_suite()
