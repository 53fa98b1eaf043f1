"""From what a client asks of a conversation to what the engine runs, for one model.

One job: the prompt's messages and template variables, the constraint of forced calls, the span of reasoning, and the
parsers of the output. Knows neither gRPC nor any dialect's JSON.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire_gateway.chat.call import ChatCall, Tool, ToolMode
from quire_gateway.chat.choice import ParsedChoice, Parsers
from quire_gateway.chat.formats import ModelFormats
from quire_gateway.chat.span_counter import SpanCounter
from quire_gateway.chat.tool_prompt import plain_messages
from quire_gateway.parsing.reasoning.base import ReasoningFormat
from quire_gateway.parsing.tools.base import ToolFormat
from quire_gateway.parsing.tools.hermes import HermesFormat
from quire_gateway.reasoning_marks import ReasoningMarks
from quire_gateway.requests import GenerationRequest
from quire_gateway.sequences import Vocabulary
from quire_gateway.structured import JSON_KINDS, Constraint, ConstraintKind, ReasoningSpan, parse_json
from quire_servicekit.errors import Unsupported

#: The word that turns thinking off.
NO_EFFORT = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningTokens:
    """Token ids of a model's marks."""

    opens: tuple[int, ...]
    closes: tuple[int, ...]


class ChatPlan:
    """What one call comes to."""

    def __init__(
        self, call: ChatCall, formats: ModelFormats, tokens: ReasoningTokens | None, names: Mapping[str, str]
    ) -> None:
        """tokens: of the model's reasoning marks, if it has any. names: what the dialect calls our fields."""
        self._call, self._formats, self._tokens, self._names = call, formats, tokens, names
        self._reasoning = formats.reasoning
        self._tools: ToolFormat | None = None
        if call.offered_tools:
            self._tools = formats.tools
            if self._tools is None:
                raise Unsupported(
                    "tools", message=f"{self._called('tools')} are not supported by this server"
                )
        self._refuse_reasoning_options()
        self._refuse_constraint()

    @property
    def is_plain(self) -> bool:
        """All output is text: nothing is parsed."""
        return self._tools is None and self._reasoning is None

    def request(self) -> GenerationRequest:
        """What the engine runs."""
        request = self._call.request
        if self.is_plain and not self._has_history_of_calls:
            return request
        prompt = dataclasses.replace(
            self._call.prompt,
            messages=tuple(self._messages()),
            tools=self._template_tools(),
            template_kwargs=self._template_kwargs(),
        )
        sampling = dataclasses.replace(
            request.sampling, constraint=self._constraint(), reasoning=self._span(request)
        )
        return dataclasses.replace(
            request,
            prompt=prompt,
            sampling=sampling,
            skip_special_tokens=request.skip_special_tokens and not self._keeps_special_tokens,
            reasoning=_marks_of(self._reasoning) if self._reasoning is not None else None,
        )

    def constraint_name(self) -> dict[str, str]:
        """What the dialect calls the constraint: the tools, where they are what constrains."""
        if not self._binds_calls:
            return {}
        return {"constraint": self._called("tools"), "constraint.grammar": self._called("tools")}

    def choice_parsers(self, prompt_text: str, vocabulary: Vocabulary) -> Callable[[int], ParsedChoice]:
        """Makes the parsers of a choice. prompt_text: the rendered conversation."""
        reasoning, tools, call = self._reasoning, self._tools, self._call
        starts_open = reasoning is not None and reasoning.starts_open(prompt_text)
        special = self._formats.special_texts if self._keeps_special_tokens else None

        def make(index: int) -> ParsedChoice:
            counter = None
            if reasoning is not None and self._tokens is not None:
                counter = SpanCounter(
                    self._tokens.opens,
                    self._tokens.closes,
                    vocabulary,
                    starts_open=starts_open,
                    may_repeat=reasoning.may_repeat,
                )
            parsers = Parsers(
                new_call_id=tools.new_call_id if tools is not None else _no_call_id,
                tools=tools.parser(call.tools) if tools is not None else None,
                reasoning=reasoning.parser(starts_open=starts_open) if reasoning is not None else None,
                counter=counter,
                special=special if call.request.skip_special_tokens else None,
                is_reasoning_included=call.reasoning.is_included,
                has_parallel_calls=call.has_parallel_calls,
            )
            return ParsedChoice(index, parsers)

        return make

    # ---- The prompt --------------------------------------------------------------------------------------------

    @property
    def _has_history_of_calls(self) -> bool:
        return any(
            message.get("role") == "tool" or message.get("tool_calls")
            for message in self._call.prompt.messages
        )

    @property
    def _is_told_plainly(self) -> bool:
        """The template knows no tools, so that they have to stand in the messages' text."""
        return not self._formats.is_tool_aware and isinstance(self._formats.tools, HermesFormat | None)

    def _messages(self) -> Sequence[Mapping[str, Any]]:
        format_of_calls = self._formats.tools
        wants_text = format_of_calls is not None and format_of_calls.has_text_arguments
        messages = [_with_arguments(message, wants_text) for message in self._call.prompt.messages]
        if self._is_told_plainly and (self._call.offered_tools or self._has_history_of_calls):
            return plain_messages(messages, self._call.offered_tools)
        return messages

    def _template_tools(self) -> tuple[Mapping[str, Any], ...]:
        if self._is_told_plainly:
            return ()
        return tuple(tool.definition() for tool in self._call.offered_tools)

    def _template_kwargs(self) -> Mapping[str, Any]:
        """What the client gave counts before what follows from its effort."""
        effort = self._call.reasoning.effort
        if effort is None:
            return self._call.prompt.template_kwargs
        return {
            "reasoning_effort": effort,
            "enable_thinking": effort != NO_EFFORT,
            **self._call.prompt.template_kwargs,
        }

    # ---- The output --------------------------------------------------------------------------------------------

    @property
    def _keeps_special_tokens(self) -> bool:
        formats = [found for found in (self._tools, self._reasoning) if found is not None]
        return any(self._formats.needs_special_tokens(found.markers) for found in formats)

    @property
    def _binds_calls(self) -> bool:
        if self._tools is None:
            return False
        constraint = self._call.request.sampling.constraint
        # A structural tag says itself where calls may stand.
        is_or = constraint is not None and constraint.kind is not ConstraintKind.STRUCTURAL_TAG
        is_strict = constraint is None and any(tool.is_strict for tool in self._call.offered_tools)
        return self._call.tool_choice.is_forced or is_strict or is_or

    def _constraint(self) -> Constraint | None:
        choice = self._call.tool_choice
        if self._tools is None or not self._binds_calls:
            return self._call.request.sampling.constraint
        tools: Sequence[Tool] = self._call.offered_tools
        if choice.mode is ToolMode.NAMED:
            tools = [tool for tool in tools if tool.name == choice.name]
        grammar, special = self._tools.grammar(tools, self._formats.template), self._formats.special_tokens
        is_parallel = self._call.has_parallel_calls and choice.mode is not ToolMode.NAMED
        constraint = self._call.request.sampling.constraint
        if choice.is_forced:
            # No text but calls: what the text had to match is never asked.
            text = grammar.forced(special, is_parallel=is_parallel)
        elif constraint is None:
            text = grammar.free(special, is_parallel=is_parallel)
        else:
            text = grammar.or_json(_schema_of(constraint), special, is_parallel=is_parallel)
        return Constraint(kind=ConstraintKind.GRAMMAR, text=text)

    def _span(self, request: GenerationRequest) -> ReasoningSpan | None:
        """The span of reasoning, where something depends on it."""
        budget = self._call.reasoning.max_tokens
        needs_span = self._binds_calls or request.sampling.constraint is not None or budget is not None
        if self._tokens is None or not needs_span:
            return request.sampling.reasoning
        return ReasoningSpan(
            start_token_ids=self._tokens.opens, end_token_ids=self._tokens.closes, max_tokens=budget
        )

    def _refuse_reasoning_options(self) -> None:
        if self._reasoning is not None:
            return
        options = self._call.reasoning
        if options.effort not in (None, NO_EFFORT):
            raise self._no_reasoning("reasoning_effort")
        if options.max_tokens is not None:
            raise self._no_reasoning("thinking_token_budget")

    def _refuse_constraint(self) -> None:
        constraint = self._call.request.sampling.constraint
        if self._tools is None or self._call.tool_choice.is_forced or constraint is None:
            return
        if constraint.kind not in JSON_KINDS:
            called = self._called("tools")
            raise Unsupported(
                called, message=f"{called} are not supported together with a {constraint.kind} constraint"
            )

    def _no_reasoning(self, name: str) -> Unsupported:
        called = self._called(name)
        return Unsupported(called, message=f"{called} is not supported: this model has no reasoning to limit")

    def _called(self, name: str) -> str:
        return self._names.get(name, name)


def _schema_of(constraint: Constraint) -> dict[str, Any]:
    """What a text that is no call has to match."""
    if constraint.kind is ConstraintKind.JSON_OBJECT:
        return {"type": "object"}
    return parse_json(constraint.text, "response_format")


def _marks_of(reasoning: ReasoningFormat) -> ReasoningMarks:
    return ReasoningMarks(
        opens=reasoning.start, closes=reasoning.content_start, is_open_after=reasoning.starts_open
    )


def _with_arguments(message: Mapping[str, Any], wants_text: bool) -> Mapping[str, Any]:
    """The message with its calls' arguments as the template prints them: objects, or JSON text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_rewritten(call, wants_text) for call in calls]}


def _rewritten(call: Mapping[str, Any], wants_text: bool) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if wants_text and isinstance(arguments, Mapping):
        return {**call, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}
    if wants_text or not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        # A call that was cut short; the model sees it as it was.
        return call
    return {**call, "function": {**function, "arguments": value}} if isinstance(value, dict) else call


def _no_call_id() -> str:
    raise AssertionError("without a tool parser there are no calls")
