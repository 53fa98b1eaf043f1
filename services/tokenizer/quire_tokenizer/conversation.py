"""A conversation in the OpenAI dialect to the text of a prompt.

Checks the messages, brings them into the form the model's template takes, renders, and cuts the text where a message
is to be continued. Which tokens the text becomes is encode's business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jinja2

from quire_servicekit.errors import InvalidRequest, Unsupported
from quire_tokenizer.chat_template import ChatTemplate
from quire_tokenizer.errors import ModelFormatError
from quire_tokenizer.source import DEFAULT_TEMPLATE, TOOL_TEMPLATE
from quire_tokenizer.vocabulary import Vocabulary

# Follows the last message's text when that is to be continued. The space at its end shows whether the template
# strips what follows a message.
CONTINUE_MARK: Final = "QUIRE-CONTINUES-HERE "
RESERVED_VARIABLES: Final = frozenset({"messages", "tools", "add_generation_prompt"})
CONTENT_FIELD: Final = "messages[{}].content"


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """`max_chars` bounds the conversation's JSON text and the rendered prompt, each; `max_render_s` one rendering."""

    max_chars: int
    max_render_s: float = 2.0
    allow_request_templates: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a client asks to have rendered. Unset `add_generation_prompt`: yes, unless a message is continued."""

    messages_json: Sequence[str]
    tools_json: Sequence[str] = ()
    template_kwargs_json: str = ""
    chat_template: str = ""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    num_chars: int = field(init=False)

    def __post_init__(self) -> None:
        texts = (*self.messages_json, *self.tools_json, self.template_kwargs_json, self.chat_template)
        object.__setattr__(self, "num_chars", sum(map(len, texts)))


class ConversationRenderer:
    """Renders conversations for one model."""

    def __init__(self, templates: Mapping[str, str], vocabulary: Vocabulary, limits: ChatLimits) -> None:
        """Raises ModelFormatError when one of the model's templates doesn't compile."""
        self._limits = limits
        self._templates: dict[str, ChatTemplate] = {}
        for name, source in templates.items():
            try:
                self._templates[name] = self._compile(source)
            except jinja2.TemplateSyntaxError as error:
                raise ModelFormatError(
                    f"the model's chat template {name!r}, line {error.lineno}: {error.message}"
                ) from error
        special = vocabulary.special
        self._special_tokens = {
            "bos_token": vocabulary.token(special.bos_id),
            "eos_token": vocabulary.token(special.eos_ids[0] if special.eos_ids else None),
            "unk_token": vocabulary.token(special.unk_id),
            "pad_token": vocabulary.token(special.pad_id),
        }

    @property
    def has_template(self) -> bool:
        """Whether the model can render conversations at all."""
        return DEFAULT_TEMPLATE in self._templates

    def render(self, conversation: Conversation) -> str:
        """Return the prompt's text. Raises InvalidRequest or Unsupported, naming the field."""
        continued = conversation.continue_final_message
        add_prompt = conversation.add_generation_prompt
        if continued and add_prompt:
            raise InvalidRequest(
                "add_generation_prompt", "false where continue_final_message is true", "true"
            )
        if conversation.num_chars > self._limits.max_chars:
            raise InvalidRequest(
                "messages", f"at most {self._limits.max_chars} characters", conversation.num_chars
            )
        tools = _objects("tools", conversation.tools_json) or None
        template = self._template(conversation.chat_template, with_tools=tools is not None)
        messages = _messages(conversation.messages_json, keep_parts=template.takes_content_parts)
        if continued:
            _mark_final(messages)
        text = template.render(
            {
                **self._special_tokens,
                **_template_kwargs(conversation.template_kwargs_json),
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": not continued if add_prompt is None else add_prompt,
            }
        )
        _check_unicode(text)
        return _cut_at_mark(text) if continued else text

    def _compile(self, source: str) -> ChatTemplate:
        return ChatTemplate(
            source, max_output_chars=self._limits.max_chars, max_render_s=self._limits.max_render_s
        )

    def _template(self, source: str, *, with_tools: bool) -> ChatTemplate:
        if source:
            if not self._limits.allow_request_templates:
                raise Unsupported("chat_template", message="chat_template in a request is not allowed here")
            try:
                return self._compile(source)
            except jinja2.TemplateSyntaxError as error:
                message = f"chat_template, line {error.lineno}: {error.message}"
                raise InvalidRequest("chat_template", message=message) from error
        if not self.has_template:
            raise InvalidRequest(
                "messages", message="the model has no chat template, so it takes no messages"
            )
        if with_tools and TOOL_TEMPLATE in self._templates:
            return self._templates[TOOL_TEMPLATE]
        return self._templates[DEFAULT_TEMPLATE]


def _objects(name: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    return [_object(f"{name}[{index}]", text) for index, text in enumerate(texts)]


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, "the JSON text of one object", text) from error
    if not isinstance(value, dict):
        raise InvalidRequest(name, "the JSON text of one object", text)
    return value


def _template_kwargs(text: str) -> dict[str, Any]:
    values = _object("template_kwargs", text) if text else {}
    if taken := RESERVED_VARIABLES & values.keys():
        raise InvalidRequest("template_kwargs", "free of the template's own variables", sorted(taken)[0])
    return values


def _messages(texts: Sequence[str], *, keep_parts: bool) -> list[dict[str, Any]]:
    if not texts:
        raise InvalidRequest("messages", "at least one message", "none")
    messages = []
    for index, message in enumerate(_objects("messages", texts)):
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise InvalidRequest(f"messages[{index}].role", "a role such as user", role)
        # Clients send null for what a message doesn't have; templates ask whether the key is there.
        plain = {key: value for key, value in message.items() if value is not None}
        content = plain.get("content", "")
        if not isinstance(content, str | list):
            raise InvalidRequest(CONTENT_FIELD.format(index), "text, or a list of parts", content)
        if isinstance(content, list) and not keep_parts:
            plain["content"] = _joined_parts(CONTENT_FIELD.format(index), content)
        messages.append(plain)
    return messages


def _joined_parts(name: str, parts: list[Any]) -> str:
    """Text parts as one text, for a template that takes no list."""
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            raise InvalidRequest(name, "text, or a list of text parts", part)
        texts.append(text)
    return "\n".join(texts)


def _mark_final(messages: list[dict[str, Any]]) -> None:
    content = messages[-1].get("content")
    if isinstance(content, str):
        messages[-1]["content"] = content + CONTINUE_MARK
        return
    for part in reversed(content or []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            part["text"] += CONTINUE_MARK
            return
    raise InvalidRequest(
        CONTENT_FIELD.format(len(messages) - 1), "a text where continue_final_message is true", content
    )


def _check_unicode(text: str) -> None:
    """JSON can escape half of a surrogate pair, which is no character and can't be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("messages", "free of lone surrogates", ascii(text[error.start])) from error


def _cut_at_mark(text: str) -> str:
    position = text.rfind(CONTINUE_MARK.strip())
    if position < 0:
        raise InvalidRequest(
            "continue_final_message",
            message="the chat template does not write the final message, so it can't be continued",
        )
    if text.startswith(CONTINUE_MARK, position):
        return text[:position]
    # The template strips what it writes, so the space before the mark would not be in the prompt either.
    return text[:position].rstrip()
