"""Runs conversations: from what a client asks to a stream of events.

One job: plan a ChatCall for the served model, run it, and leave nothing behind. Every chat dialect stands on it; it
knows none, nor gRPC.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from quire_gateway.chat.call import ChatCall, validate_tools
from quire_gateway.chat.formats import ModelFormats
from quire_gateway.chat.plan import ChatPlan, ReasoningTokens
from quire_gateway.chat.stream import ChatStream
from quire_gateway.generation import Generator
from quire_gateway.parsing.registry import FormatSettings
from quire_gateway.prompts import encode_prompts
from quire_gateway.requests import CallInfo, GenerationRequest
from quire_gateway.tokenizer_client import TokenizerInfo
from quire_servicekit.errors import Unavailable


class ChatRunner:
    """Runs calls on a Generator."""

    def __init__(self, generator: Generator, settings: FormatSettings | None = None) -> None:
        """settings: which formats the model writes; unset: chosen by its chat template."""
        self.generator = generator
        self._settings = settings or FormatSettings()
        self._known: tuple[TokenizerInfo, ModelFormats] | None = None
        self._tokens: dict[ModelFormats, ReasoningTokens] = {}

    @asynccontextmanager
    async def run(
        self, call: ChatCall, info: CallInfo, *, route: str, names: Mapping[str, str] | None = None
    ) -> AsyncIterator[ChatStream]:
        """One client call, from admission to the release of everything.

        names: what the dialect calls our fields. Raises QuireErrors; cancelling aborts at the engine.
        """
        called = dict(names or {})
        with self.generator.reading(route, info):
            plan = await self._plan(call, called)
            request = plan.request()
        called |= plan.constraint_name()
        async with self.generator.run([request], info, route=route, names=called) as generation:
            make_parser = None
            if not plan.is_plain:
                prompt_text = generation.requests[0].prompt_text or ""
                make_parser = plan.choice_parsers(prompt_text, self._info().vocabulary)
            yield ChatStream(generation, make_parser, wants_tokens=call.wants_tokens)

    async def count_tokens(self, call: ChatCall, *, names: Mapping[str, str] | None = None) -> int:
        """Tokens of the prompt that the call would have; nothing runs. Raises as `run` does."""
        self.generator.engines.model(call.request.model)
        request = await self.request(call, names=names)
        prompts = await encode_prompts(self.generator.tokenizer, [request.prompt], names or {})
        return len(prompts[0].token_ids)

    async def request(self, call: ChatCall, *, names: Mapping[str, str] | None = None) -> GenerationRequest:
        """What the engine would be asked for. Raises for tools and options that the model's formats don't have."""
        return (await self._plan(call, names or {})).request()

    async def _plan(self, call: ChatCall, names: Mapping[str, str]) -> ChatPlan:
        validate_tools(call, names)
        formats = self._formats()
        return ChatPlan(call, formats, await self._reasoning_tokens(formats), names)

    def _info(self) -> TokenizerInfo:
        info = self.generator.tokenizer.info
        if info is None:
            raise Unavailable("tokenizer")
        return info

    def _formats(self) -> ModelFormats:
        info = self._info()
        if self._known is None or self._known[0] is not info:
            self._known = (info, ModelFormats(self._settings, info))
        return self._known[1]

    async def _reasoning_tokens(self, formats: ModelFormats) -> ReasoningTokens | None:
        """The tokens of the model's reasoning marks, looked up once; None if it has none."""
        reasoning = formats.reasoning
        if reasoning is None:
            return None
        if formats not in self._tokens:
            self._tokens[formats] = ReasoningTokens(
                opens=await formats.token_ids_of(reasoning.start, self._encode),
                closes=await formats.token_ids_of(reasoning.end, self._encode),
            )
        return self._tokens[formats]

    async def _encode(self, text: str) -> Sequence[int]:
        return (await self.generator.tokenizer.encode([text], add_special_tokens=False))[0]
