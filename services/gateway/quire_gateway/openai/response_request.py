"""The body of POST /v1/responses, and what it asks for in domain words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from quire_gateway.chat.call import ChatCall, ReasoningOptions, Tool
from quire_gateway.openai.response_input import Item
from quire_gateway.openai.response_tools import FunctionTool, McpTool, choose, read_tools
from quire_gateway.request_body import Names, StrictModel
from quire_gateway.requests import ChatPrompt, GenerationRequest
from quire_gateway.sampling import MAX_SEED, Sampling
from quire_gateway.sequences import WakeOn
from quire_gateway.structured import Constraint, ConstraintKind, json_schema
from quire_servicekit.errors import InvalidRequest, Unsupported

MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512
LOGPROBS, ENCRYPTED_REASONING = "message.output_text.logprobs", "reasoning.encrypted_content"

NAMES = Names(
    harmless=frozenset({"safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"}),
    neutral={"service_tier": ("auto", "default"), "background_options": ({"completion_window": "soonest"},)},
    unsupported=frozenset(
        {"access_programs", "context_management", "conversation", "image", "moderation", "prompt", "service_tier"}
    ),
)  # fmt: skip

#: What this dialect calls the domain's fields.
DOMAIN_NAMES = {
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "num_logprobs": "top_logprobs",
    "constraint": "text.format",
    "reasoning_effort": "reasoning.effort",
    "template_kwargs": "chat_template_kwargs",
}


def check_metadata(metadata: dict[str, str]) -> None:
    """Raise InvalidRequest unless the labels are few and short."""
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest("metadata", f"at most {MAX_METADATA} pairs", len(metadata))
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            limit = f"keys of {MAX_METADATA_KEY} and values of {MAX_METADATA_VALUE} characters at most"
            raise InvalidRequest("metadata", limit, key)


class TextFormat(StrictModel):
    """What the text of the answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    description: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    #: The output always matches, strict or not.
    strict: bool = False


class TextOptions(StrictModel):
    """How the answer's text is to be."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None

    def constraint(self) -> Constraint | None:
        """What has to be matched; None: nothing."""
        if self.format is None or self.format.type == "text":
            return None
        if self.format.type == "json_object":
            return Constraint(kind=ConstraintKind.JSON_OBJECT)
        if self.format.schema_ is None:
            raise InvalidRequest(
                "text.format.schema",
                message="Missing required parameter: text.format.schema",
                code="missing_required_parameter",
            )
        return json_schema(self.format.schema_, "text.format.schema")


class Reasoning(StrictModel):
    """Whether the model thinks, and how much."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    #: Thoughts are told as they are; "auto" leaves it to the server.
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class StreamOptions(StrictModel):
    """Accepted and ignored: padding against traffic analysis is the edge's business here."""

    include_obfuscation: bool = False


class ResponseRequest(StrictModel):
    """A response to create."""

    input: str | list[dict[str, Any]]
    model: str = ""
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: Reasoning = Field(default_factory=Reasoning)
    previous_response_id: str | None = None
    background: bool = False
    store: bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    include: list[str] = Field(default_factory=list)
    metadata: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    # Extensions, under the names that chat completions have for them.
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] = Field(default_factory=list)
    priority: int = 0
    cache_salt: str = ""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    def check(self) -> None:
        """Raise for the first field that is out of its limit, or of no use here."""
        check_metadata(self.metadata)
        for name in self.include:
            if name not in (LOGPROBS, ENCRYPTED_REASONING):
                raise Unsupported("include", message=f"include: {name!r} is not supported")
        if self.top_logprobs and LOGPROBS not in self.include:
            raise InvalidRequest(
                "top_logprobs", message=f"top_logprobs is only allowed when include has {LOGPROBS}"
            )
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options", message="stream_options is only allowed when stream is true"
            )
        if self.max_tool_calls is not None and self.max_tool_calls < 1:
            raise InvalidRequest("max_tool_calls", "at least 1", self.max_tool_calls)
        if self.background and self.store is False:
            raise InvalidRequest("background", message="background is only allowed when store is true")

    @property
    def has_logprobs(self) -> bool:
        """Whether log-probabilities come with the text."""
        return LOGPROBS in self.include

    def own_tools(self) -> tuple[list[FunctionTool], list[tuple[int, McpTool]]]:
        """The functions of the client, and the servers of others with their index."""
        return read_tools(self.tools)

    def to_call(self, messages: list[dict[str, Any]], tools: list[Tool], labels: dict[str, str]) -> ChatCall:
        """One turn of it. messages: the whole conversation; labels: by tool of a server, the server's label."""
        offered, choice = choose(self.tool_choice, tools, labels)
        return ChatCall(
            request=self._generation(messages),
            tools=offered,
            tool_choice=choice,
            has_parallel_calls=self.parallel_tool_calls,
            reasoning=ReasoningOptions(effort=self.reasoning.effort),
            wants_tokens=self.has_logprobs,
        )

    def _generation(self, messages: list[dict[str, Any]]) -> GenerationRequest:
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        sampling = Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed & MAX_SEED if self.seed is not None and -(2**63) <= self.seed < 0 else self.seed,
            num_logprobs=(self.top_logprobs or 0) if self.has_logprobs else None,
            max_tokens=self.max_output_tokens,
            constraint=self.text.constraint(),
        )
        return GenerationRequest(
            prompt=ChatPrompt(tuple(system + messages), template_kwargs=self.chat_template_kwargs),
            model=self.model,
            sampling=sampling,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            priority=self.priority,
            cache_salt=self.cache_salt,
            # Whoever follows a background response reads it as it comes.
            wake_on=WakeOn.TEXT if self.stream or self.background else WakeOn.END,
        )

    def response(self, response_id: str, created_at: int, model: str, *, is_stored: bool) -> Item:
        """The response object, as far as the request decides it."""
        text_format = self.text.format or TextFormat(type="text")
        return {
            "id": response_id,
            "object": "response",
            "created_at": created_at,
            "completed_at": None,
            "background": self.background,
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata,
            "model": model,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": is_stored,
            "temperature": self.temperature,
            "text": {"format": text_format.model_dump(by_alias=True, exclude_unset=True)},
            "tool_choice": self.tool_choice,
            "tools": [_shown(tool) for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": self.truncation,
            "user": self.user,
        }


def _shown(tool: Item) -> Item:
    """A tool as the response shows it: without what is secret."""
    shown = {name: value for name, value in tool.items() if name not in ("headers", "authorization")}
    return {"strict": None, "parameters": None} | shown if tool.get("type") == "function" else shown
