"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and what they ask for in domain words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from quire_gateway.anthropic.conversation import Message, openai_messages, system_text
from quire_gateway.chat.call import ChatCall, ReasoningOptions, Tool, ToolChoice, ToolMode
from quire_gateway.request_body import StrictModel, read_part
from quire_gateway.requests import ChatPrompt, GenerationRequest
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import WakeOn
from quire_gateway.structured import Constraint, json_schema
from quire_servicekit.errors import InvalidRequest, Unsupported

#: What this dialect calls the domain's fields.
DOMAIN_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "constraint": "output_config.format",
    "reasoning": "thinking",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}


class ToolParam(StrictModel):
    """A tool of the client's own."""

    name: str
    input_schema: dict[str, Any]
    description: str = ""
    strict: bool = False
    type: Literal["custom"] = "custom"
    cache_control: dict[str, Any] | None = None
    #: Pieces of arguments are sent as soon as they are certain in any case.
    eager_input_streaming: bool | None = None
    defer_loading: Literal[False] = False
    allowed_callers: list[Literal["direct"]] = Field(default_factory=list)


class ToolChoiceParam(StrictModel):
    """Whether tools are called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingParam(StrictModel):
    """Whether the model thinks first, and for how long."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    """The output is JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    """How the answer is to be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(StrictModel):
    """What decides how many input tokens a message has."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: str | list[dict[str, Any]] = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: ToolChoiceParam | None = None
    thinking: ThinkingParam | None = None
    output_config: OutputConfig | None = None

    def to_call(self) -> ChatCall:
        """The conversation in domain words."""
        return self._call(GenerationRequest(prompt=self._prompt(), model=self.model))

    def _call(self, request: GenerationRequest) -> ChatCall:
        choice = self.tool_choice or ToolChoiceParam(type="auto")
        return ChatCall(
            request=request,
            tools=tuple(_tool(value, index) for index, value in enumerate(self.tools)),
            tool_choice=_tool_choice(choice),
            has_parallel_calls=not choice.disable_parallel_tool_use,
            reasoning=self._reasoning(),
        )

    def _prompt(self) -> ChatPrompt:
        messages = openai_messages(system_text(self.system), self.messages)
        # The answer goes on where a last assistant turn ends: the model is told its first words.
        goes_on = self.messages[-1].role == "assistant" and "tool_calls" not in messages[-1]
        return ChatPrompt(
            tuple(messages),
            add_generation_prompt=False if goes_on else None,
            continue_final_message=True if goes_on else None,
        )

    def _reasoning(self) -> ReasoningOptions:
        thinking, effort = self.thinking, self.output_config.effort if self.output_config else None
        if thinking is None or thinking.type == "disabled":
            # A model that thinks whatever it is told keeps its thoughts to itself.
            return ReasoningOptions(effort="none", is_included=False)
        if thinking.type == "enabled" and thinking.budget_tokens is None:
            raise InvalidRequest(
                "thinking.budget_tokens",
                message="thinking.budget_tokens is required when thinking is enabled",
            )
        if thinking.budget_tokens is not None and thinking.budget_tokens < 1:
            raise InvalidRequest("thinking.budget_tokens", "at least 1", thinking.budget_tokens)
        return ReasoningOptions(
            effort=effort, is_included=thinking.display != "omitted", max_tokens=thinking.budget_tokens
        )

    def _constraint(self) -> Constraint | None:
        found = self.output_config.format if self.output_config else None
        return json_schema(found.schema_, "output_config.format.schema") if found is not None else None


class MessagesRequest(CountRequest):
    """A message to create."""

    max_tokens: int
    stream: bool = False
    stop_sequences: list[str] = Field(default_factory=list)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Extensions of ours, under the names that the OpenAI endpoints have for them.
    seed: int | None = None
    priority: int = 0
    cache_salt: str = ""

    def to_call(self) -> ChatCall:
        """The request in domain words. Raises InvalidRequest or Unsupported for what is not allowed in this dialect."""
        if self.temperature is not None and not 0 <= self.temperature <= 1:
            raise InvalidRequest("temperature", "from 0 to 1", self.temperature)
        budget = self.thinking.budget_tokens if self.thinking else None
        if budget is not None and budget >= self.max_tokens:
            raise InvalidRequest("thinking.budget_tokens", f"below max_tokens ({self.max_tokens})", budget)
        sampling = Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=self.seed,
            max_tokens=self.max_tokens,
            constraint=self._constraint(),
        )
        return self._call(
            GenerationRequest(
                prompt=self._prompt(),
                model=self.model,
                sampling=sampling,
                stop=tuple(self.stop_sequences),
                priority=self.priority,
                cache_salt=self.cache_salt,
                wake_on=WakeOn.TEXT if self.stream else WakeOn.END,
            )
        )


def _tool(value: dict[str, Any], index: int) -> Tool:
    kind = value.get("type") or "custom"
    if kind != "custom":
        field = f"tools[{index}].type"
        raise Unsupported(field, message=f"{field}: {kind!r} is not supported; only custom tools are")
    found = read_part(value, ToolParam, "tools", index)
    return Tool(
        name=found.name,
        description=found.description,
        parameters=found.input_schema,
        is_strict=found.strict,
    )


def _tool_choice(choice: ToolChoiceParam) -> ToolChoice:
    if choice.type == "tool":
        if not choice.name:
            raise InvalidRequest("tool_choice.name", message="tool_choice.name is required for type tool")
        return ToolChoice(ToolMode.NAMED, choice.name)
    modes = {"auto": ToolMode.AUTO, "any": ToolMode.REQUIRED, "none": ToolMode.NONE}
    return ToolChoice(modes[choice.type])
