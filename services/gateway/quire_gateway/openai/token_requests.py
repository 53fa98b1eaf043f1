"""Bodies of the endpoints that only turn text into tokens and back: tokenize and detokenize, in vLLM's shape.

One job: their fields, and how they become domain data.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import Field, model_validator

from quire_gateway.chat.call import ChatCall
from quire_gateway.openai.chat_request import Message
from quire_gateway.openai.tools import ToolDefinition
from quire_gateway.request_body import Names, StrictModel, parse_body
from quire_gateway.requests import ChatPrompt, GenerationRequest
from quire_servicekit.errors import InvalidRequest

NAMES: Final = Names(
    harmless=frozenset({"user", "metadata", "request_id"}),
    neutral={"mm_processor_kwargs": ({},), "media_io_kwargs": ({},)},
    unsupported=frozenset({"mm_processor_kwargs", "media_io_kwargs"}),
)

#: What this dialect calls the domain's fields, where a conversation is the prompt.
CHAT_NAMES: Final = {"prompt": "messages", "template_kwargs": "chat_template_kwargs"}

M = TypeVar("M", bound=StrictModel)


def parse(body: bytes, model: type[M]) -> M:
    """The request in `body`. Raises InvalidRequest or Unsupported, naming the first parameter that is wrong."""
    return parse_body(body, model, NAMES)


class TokenizeRequest(StrictModel):
    """A prompt, or messages and how the chat template writes them."""

    model: str = ""
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    #: Unset: with a prompt yes; with messages no, as the template writes its own.
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    # The rest is about messages.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str = ""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    tools: list[ToolDefinition] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("prompt", message="exactly one of prompt and messages is needed")
        if self.messages is None:
            for name in _CHAT_FIELDS:
                if getattr(self, name):
                    raise InvalidRequest(name, message=f"{name} is only allowed with messages")
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message", message="continue_final_message excludes add_generation_prompt"
            )
        return self

    def to_call(self) -> ChatCall:
        """The conversation, with its tools beside it. Raises InvalidRequest naming the message that has no text."""
        prompt = ChatPrompt(
            tuple(message.render(index) for index, message in enumerate(self.messages or ())),
            add_generation_prompt=False if self.continue_final_message else self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_kwargs=self.chat_template_kwargs,
            chat_template=self.chat_template,
        )
        tools = tuple(definition.tool() for definition in self.tools)
        return ChatCall(request=GenerationRequest(prompt=prompt, model=self.model), tools=tools)


_CHAT_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
)


class DetokenizeRequest(StrictModel):
    """Token ids to text."""

    model: str = ""
    tokens: list[int]
