"""Runs conversations: from what a client asks to a stream of events.

One job: turn a ChatCall into what the engine runs, choose the parsers of its output, and leave nothing behind. Every
chat dialect stands on it; it knows none, nor gRPC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from quire_gateway.chat.call import ChatCall, validate_tools
from quire_gateway.chat.stream import ChatStream
from quire_gateway.generation import Generator
from quire_gateway.requests import CallInfo


class ChatRunner:
    """Runs calls on a Generator."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    @asynccontextmanager
    async def run(
        self, call: ChatCall, info: CallInfo, *, route: str, names: Mapping[str, str] | None = None
    ) -> AsyncIterator[ChatStream]:
        """One client call, from admission to the release of everything.

        names: what the dialect calls our fields. Raises QuireErrors; cancelling aborts at the engine.
        """
        validate_tools(call, names)
        prompt = dataclasses.replace(
            call.prompt, tools=tuple(tool.definition() for tool in call.offered_tools)
        )
        request = dataclasses.replace(call.request, prompt=prompt)
        async with self.generator.run([request], info, route=route, names=names) as generation:
            yield ChatStream(generation, None, wants_tokens=call.wants_tokens)
