"""Making one response: turns of the conversation, with calls of servers' tools between them.

One job: the order of things. Items and events are TurnWriter's, servers are McpToolbox's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from quire_gateway.chat.call import ChatCall, ToolChoice, ToolMode
from quire_gateway.chat.events import ChatFinish
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.chat.stream import ChatStream
from quire_gateway.openai.response_input import Item, messages_of
from quire_gateway.openai.response_items import TurnWriter
from quire_gateway.openai.response_mcp import McpToolbox
from quire_gateway.openai.response_request import DOMAIN_NAMES, ENCRYPTED_REASONING, ResponseRequest
from quire_gateway.openai.response_state import Event, ResponseState
from quire_gateway.requests import CallInfo
from quire_servicekit.errors import QuireError
from quire_servicekit.logging import get_logger

log = get_logger("responses")

#: Turns of one response at most, if the request sets no limit of calls: a model may call tools for ever.
MAX_TURNS = 32


class ResponseRun:
    """One response in the making."""

    def __init__(
        self,
        runner: ChatRunner,
        request: ResponseRequest,
        call: CallInfo,
        state: ResponseState,
        context: list[Item],
        toolbox: McpToolbox,
        *,
        accept_grace_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """context: the conversation so far, the request's items included."""
        self._runner, self._request, self._call, self._state = runner, request, call, state
        self._context, self._toolbox = context, toolbox
        self._accept_grace_s, self._clock = accept_grace_s, clock
        self._functions = [tool.to_tool() for tool in request.own_tools()[0]]
        self._is_open = False
        self._num_output_tokens = 0
        #: What ended it, if it failed.
        self.error: Exception | None = None

    async def events(self) -> AsyncIterator[list[Event]]:
        """The events, as lists. Raises what goes wrong before the first; later it is an event."""
        try:
            async with self._toolbox, aclosing(self._steps()) as steps:  # type: ignore[type-var]
                async for events in steps:
                    if events:
                        yield events
        except Exception as error:
            if not self._is_open:
                raise
            if not isinstance(error, QuireError):
                log.exception("response failed", reason=type(error).__name__)
            self.error = error
            yield [self._state.fail(error)]

    async def _steps(self) -> AsyncIterator[list[Event]]:
        if self._toolbox.is_used:
            # Servers take their time: the client is told that it goes on.
            yield self._open()
            async for events in self._toolbox.list_tools(self._state, self._context):
                yield events
            async for events in self._toolbox.answer_approvals(self._state, self._context):
                yield events
        is_last = False
        for number in range(MAX_TURNS):
            writer: TurnWriter | None = None
            async for made, events in self._turn(number, is_last=is_last):
                writer = made
                yield events
            assert writer is not None, "a turn has a writer"
            self._context += writer.items
            for index, item in writer.server_calls:
                async for events in self._toolbox.answer(self._state, index, item):
                    yield events
            is_last = self._toolbox.num_calls >= (self._request.max_tool_calls or MAX_TURNS)
            if not writer.server_calls or _waits_for_client(writer.items):
                break
        yield [self._state.complete(self._clock(), self._incomplete_reason(writer))]

    def _incomplete_reason(self, writer: TurnWriter | None) -> str | None:
        is_cut = writer is not None and writer.finish is ChatFinish.LENGTH
        return "max_output_tokens" if is_cut else None

    def _open(self, *, is_queued: bool = False) -> list[Event]:
        self._is_open = True
        return self._state.opening(is_queued=is_queued)

    async def _turn(self, number: int, *, is_last: bool) -> AsyncIterator[tuple[TurnWriter, list[Event]]]:
        call = await self._plan(number, is_last=is_last)
        async with self._runner.run(call, self._call, route="responses", names=DOMAIN_NAMES) as stream:
            writer = self._writer(stream)
            self._tell_sampling(stream)
            if not self._is_open:
                await stream.wait_accepted(self._accept_grace_s)
                yield writer, self._open(is_queued=self._request.background)
            async for events in stream.events():
                yield writer, [out for event in events for out in writer.write(event)]
            self._state.add_usage(stream.usage)
            self._num_output_tokens += stream.usage.num_output_tokens

    def _writer(self, stream: ChatStream) -> TurnWriter:
        info = self._runner.generator.tokenizer.info
        return TurnWriter(
            self._state,
            vocabulary=info.vocabulary if info is not None else (),
            servers=self._toolbox.known,
            has_logprobs=self._request.has_logprobs,
            has_encrypted_reasoning=ENCRYPTED_REASONING in self._request.include,
        )

    def _tell_sampling(self, stream: ChatStream) -> None:
        """The defaults that the model gave, where the request left them open."""
        sampling = stream.generation.requests[0].spec.sampling
        response = self._state.response
        response["model"] = stream.model.id
        for name in ("temperature", "top_p"):
            value = getattr(sampling, name)
            response[name] = 1.0 if value is None else value

    # ---- The conversation --------------------------------------------------------------------------------------

    async def _plan(self, number: int, *, is_last: bool) -> ChatCall:
        tools = self._functions + self._toolbox.tools
        request = self._request
        if self._toolbox.has_failed:
            # It cannot be forced to call what is not there: the list of tools says why.
            request = request.model_copy(update={"tool_choice": "auto"})
        call = request.to_call(messages_of(self._context), tools, self._toolbox.labels)
        if is_last:
            call = dataclasses.replace(call, tool_choice=ToolChoice(ToolMode.NONE))
        elif number and call.tool_choice.is_forced:
            # It was forced to call, and has called.
            call = dataclasses.replace(call, tool_choice=ToolChoice())
        limit = self._request.max_output_tokens
        if number and limit is not None:
            sampling = dataclasses.replace(
                call.request.sampling, max_tokens=max(1, limit - self._num_output_tokens)
            )
            call = dataclasses.replace(call, request=dataclasses.replace(call.request, sampling=sampling))
        return await self._fit(call) if self._request.truncation == "auto" else call

    async def _fit(self, call: ChatCall) -> ChatCall:
        """The call without as many of its oldest messages as do not fit the model."""
        model = self._runner.generator.engines.model(call.request.model)
        room = model.max_model_len - (call.request.sampling.max_tokens or 1)
        first = 1 if self._request.instructions else 0
        low, high = 0, len(call.prompt.messages) - first - 1
        while low < high:
            middle = (low + high) // 2
            shorter = _without(call, first, middle)
            num_tokens = await self._runner.count_tokens(shorter, names=DOMAIN_NAMES)
            low, high = (low, middle) if num_tokens <= room else (middle + 1, high)
        return _without(call, first, low)


def _without(call: ChatCall, first: int, num_dropped: int) -> ChatCall:
    """The call without `num_dropped` messages behind the first ones, nor results whose calls are gone."""
    messages = call.prompt.messages
    rest = list(messages[first + num_dropped :])
    while num_dropped and len(rest) > 1 and rest[0]["role"] == "tool":
        rest.pop(0)
    prompt = dataclasses.replace(call.prompt, messages=(*messages[:first], *rest))
    return dataclasses.replace(call, request=dataclasses.replace(call.request, prompt=prompt))


def _waits_for_client(items: list[Item]) -> bool:
    return any(item["type"] in ("function_call", "mcp_approval_request") for item in items)
