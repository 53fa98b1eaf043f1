"""What a client asked for, free of any dialect.

One job: the data that the OpenAI and the typed API both translate into. Knows neither JSON nor protobuf.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire_gateway.reasoning_marks import ReasoningMarks
from quire_gateway.sampling import Sampling
from quire_gateway.sequences import WakeOn
from quire_servicekit.errors import InvalidRequest

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_SEQUENCES = 128
MAX_CACHE_SALT_CHARS = 1024
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARS = 256
MAX_SESSION_ID_CHARS = 256
MAX_STREAM_INTERVAL = 1024
#: It stands in every line about the request.
MAX_REQUEST_ID_CHARS = 256


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Plain text."""

    text: str
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, taken as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation; messages and tools are JSON objects in the OpenAI form, keys in the order they were written."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: A template instead of the model's own; empty: the model's.
    chat_template: str = ""
    #: Texts that the template may quote, as JSON objects.
    documents: tuple[Mapping[str, Any], ...] = ()


Prompt = TextPrompt | TokenPrompt | ChatPrompt


class TruncationSide(enum.Enum):
    """Which end of a prompt is cut off."""

    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Cuts prompts that are too long. max_tokens: None is as many as fit beside the output's limit."""

    max_tokens: int | None = None
    side: TruncationSide = TruncationSide.LEFT


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """The n most probable continuations instead of n drawn ones. n is also how many beams are followed.

    length_penalty: exponent of the length by which a continuation's log-probability is divided.
    """

    length_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """What the call's metadata says."""

    #: The client's correlation id; empty if it gave none.
    client_request_id: str = ""
    tenant: str = ""
    traceparent: str = ""
    #: Seconds that the client still waits; None: for ever.
    timeout_s: float | None = None
    #: The edge turned an HTTP request into this call.
    is_transcoded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One prompt to continue, n times."""

    prompt: Prompt
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    include_stop_text: bool = False
    n: int = 1
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    detokenize: bool = True
    wake_on: WakeOn = WakeOn.TEXT
    #: Texts that must not occur in the output.
    bad_words: tuple[str, ...] = ()
    truncation: Truncation | None = None
    beam_search: BeamSearch | None = None
    #: Calls of one session prefer one engine.
    session_id: str = ""
    skip_reading_prefix_cache: bool = False
    stream_interval: int = 1
    #: How the model marks its reasoning, where stop texts and spans have to know.
    reasoning: ReasoningMarks | None = None


def validate_request(request: GenerationRequest, names: Mapping[str, str] | None = None) -> None:
    """Raise InvalidRequest for the first field, other than sampling, that is out of its limit.

    names: what the client's dialect calls a field, where that differs from ours.
    """
    stop_name = (names or {}).get("stop", "stop")
    if not 1 <= request.n <= MAX_SEQUENCES:
        raise InvalidRequest("n", f"from 1 to {MAX_SEQUENCES}", request.n)
    if len(request.stop) > MAX_STOPS:
        raise InvalidRequest(stop_name, f"at most {MAX_STOPS} texts", len(request.stop))
    for stop in request.stop:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(stop_name, f"texts of 1 to {MAX_STOP_CHARS} characters", len(stop))
    if request.stop and not request.detokenize:
        # Without text nobody could find a stop text: ignoring it would be worse than refusing.
        raise InvalidRequest("stop", message="stop cannot be combined with detokenize: false")
    if len(request.cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequest(
            "cache_salt", f"at most {MAX_CACHE_SALT_CHARS} characters", len(request.cache_salt)
        )
    if not -(2**31) <= request.priority < 2**31:
        raise InvalidRequest("priority", "a 32-bit integer", request.priority)
    if isinstance(request.prompt, ChatPrompt) and not request.prompt.messages:
        raise InvalidRequest("messages", "at least one message", 0)
    if len(request.session_id) > MAX_SESSION_ID_CHARS:
        raise InvalidRequest(
            "session_id", f"at most {MAX_SESSION_ID_CHARS} characters", len(request.session_id)
        )
    if not 1 <= request.stream_interval <= MAX_STREAM_INTERVAL:
        raise InvalidRequest("stream_interval", f"from 1 to {MAX_STREAM_INTERVAL}", request.stream_interval)
    if len(request.bad_words) > MAX_BAD_WORDS:
        raise InvalidRequest("bad_words", f"at most {MAX_BAD_WORDS} texts", len(request.bad_words))
    for word in request.bad_words:
        if not (word.strip() and len(word) <= MAX_BAD_WORD_CHARS):
            raise InvalidRequest(
                "bad_words", f"texts of 1 to {MAX_BAD_WORD_CHARS} characters, not blank", len(word)
            )
    length = request.truncation.max_tokens if request.truncation is not None else None
    if length is not None and length < 1:
        raise InvalidRequest("truncate_prompt_tokens", "at least 1", length)
