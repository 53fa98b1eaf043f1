"""The body of POST /v1/chat/completions, and what it asks for in domain words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from quire_gateway.chat.call import ChatCall, ReasoningOptions
from quire_gateway.openai.options import CommonRequest, common_options
from quire_gateway.openai.parameters import StrictModel
from quire_gateway.openai.tools import MadeCall, ToolChoiceValue, ToolDefinition, choice_of
from quire_gateway.requests import ChatPrompt, GenerationRequest
from quire_gateway.sequences import WakeOn
from quire_servicekit.errors import InvalidRequest, Unsupported


class ContentPart(StrictModel):
    """One part of a message's content; only text is served."""

    type: str
    text: str | None = None
    image_url: Any = None
    input_audio: Any = None
    video_url: Any = None
    audio_url: Any = None
    file: Any = None
    refusal: Any = None


class Message(StrictModel):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    #: Answers that clients send back have it under one of these names.
    reasoning: str | None = None
    reasoning_content: str | None = None

    def render(self, index: int) -> dict[str, Any]:
        """The message as templates expect it. Raises naming the part that is not text."""
        if self.content is None and not self.tool_calls:
            raise InvalidRequest(f"messages[{index}].content", message=f"messages[{index}] needs content")
        # Templates know system; developer is the newer name of the same role.
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role}
        message["content"] = self._text(index)
        for name in ("name", "tool_call_id"):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if self.tool_calls:
            message["tool_calls"] = [call.render() for call in self.tool_calls]
        if reasoning := self.reasoning or self.reasoning_content:
            # The name that templates know.
            message["reasoning_content"] = reasoning
        return message

    def _text(self, index: int) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts = []
        for number, part in enumerate(self.content):
            where = f"messages[{index}].content[{number}]"
            if part.type != "text":
                raise Unsupported(
                    f"{where}.type", message=f"{where}: content of type {part.type} is not supported"
                )
            if part.text is None:
                raise InvalidRequest(f"{where}.text", message=f"Missing required parameter: {where}.text")
            texts.append(part.text)
        return "\n".join(texts)


class ChatRequest(CommonRequest):
    """Chat completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    chat_template: str = ""
    documents: list[dict[str, Any]] = Field(default_factory=list)
    tools: list[ToolDefinition] = Field(default_factory=list)
    tool_choice: ToolChoiceValue | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool = True
    #: -1: no limit.
    thinking_token_budget: int | None = Field(None, ge=-1)

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs", message="top_logprobs is only allowed when logprobs is true")
        if self.logprob_token_ids and not self.logprobs:
            raise InvalidRequest(
                "logprob_token_ids", message="logprob_token_ids is only allowed when logprobs is true"
            )
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", message="continue_final_message excludes add_generation_prompt"
            )
        return self

    @property
    def names(self) -> dict[str, str]:
        """What this dialect calls the domain's fields."""
        limit = "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"
        return {
            "prompt": "messages",
            "template_kwargs": "chat_template_kwargs",
            "num_logprobs": "top_logprobs",
            "num_prompt_logprobs": "prompt_logprobs",
            "max_tokens": limit,
            **self.constraint_names,
        }

    def to_call(self) -> ChatCall:
        """The request in domain words."""
        tools, choice = choice_of(self.tool_choice, self.tools)
        budget = self.thinking_token_budget
        return ChatCall(
            request=self.to_generation(),
            tools=tools,
            tool_choice=choice,
            has_parallel_calls=self.parallel_tool_calls,
            reasoning=ReasoningOptions(
                effort=self.reasoning_effort,
                is_included=self.include_reasoning,
                max_tokens=None if budget == -1 else budget,
            ),
            wants_tokens=self.logprobs or self.return_token_ids or self.options.include_timing,
        )

    def to_generation(self) -> GenerationRequest:
        """The conversation and how it is continued, in domain words."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        num_logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return GenerationRequest(
            prompt=ChatPrompt(
                tuple(message.render(index) for index, message in enumerate(self.messages)),
                add_generation_prompt=False if self.continue_final_message else self.add_generation_prompt,
                continue_final_message=self.continue_final_message,
                template_kwargs=self.chat_template_kwargs,
                chat_template=self.chat_template,
                documents=tuple(self.documents),
            ),
            sampling=self.sampling(num_logprobs=num_logprobs, max_tokens=limit),
            wake_on=WakeOn.TEXT if self.stream else WakeOn.END,
            **common_options(self),
        )
