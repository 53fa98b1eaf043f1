"""Parameters that chat completions and completions share.

One job: their types, and how they become domain data. Ranges are checked once, by the domain (sampling.py,
requests.py), with the names this dialect uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from quire_gateway.openai.parameters import StrictModel
from quire_gateway.openai.response_format import (
    ResponseFormat,
    StructuredOutputs,
    constraint_names,
    constraint_of,
)
from quire_gateway.requests import (
    MAX_REQUEST_ID_CHARS,
    BeamSearch,
    CallInfo,
    Truncation,
    TruncationSide,
)
from quire_gateway.sampling import MAX_SEED, Sampling
from quire_servicekit.errors import InvalidRequest, Unsupported

#: Whole numbers are numbers too.
Number = float


class StreamOptions(StrictModel):
    """What a stream tells beside its text."""

    include_usage: bool = False
    #: Accepted and ignored: it pads chunks against traffic analysis, which is the edge's business here.
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False
    #: Our extension: each chunk carries the worker's clock of its newest token.
    include_timing: bool = False


class CommonRequest(StrictModel):
    """Fields of both endpoints."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    stop: str | list[str] = Field(default_factory=list)
    max_tokens: int | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    seed: int | None = None
    logit_bias: dict[str, Number] = Field(default_factory=dict)
    # Extras that other servers of the dialect have too.
    top_k: int | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] = Field(default_factory=list)
    allowed_token_ids: list[int] = Field(default_factory=list, min_length=1)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    bad_words: list[str] = Field(default_factory=list)
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] = Field(default_factory=list)
    use_beam_search: bool = False
    length_penalty: Number = 1.0
    #: -1: as many as fit.
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    return_prompt_text: bool = False
    stream_interval: int = 1
    session_id: str = ""
    skip_reading_prefix_cache: bool = False
    cache_salt: str = ""
    priority: int = 0
    request_id: str = ""

    @model_validator(mode="after")
    def _check_stream_options(self) -> CommonRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options", message="stream_options is only allowed when stream is true"
            )
        return self

    @model_validator(mode="after")
    def _check_extras(self) -> CommonRequest:
        for name in ("prompt_logprobs", "use_beam_search"):
            if self.stream and getattr(self, name) not in (None, False):
                raise Unsupported(name, message=f"{name} is not supported when stream is true")
        if self.length_penalty != 1.0 and not self.use_beam_search:
            raise InvalidRequest(
                "length_penalty", message="length_penalty is only allowed when use_beam_search is true"
            )
        length = self.truncate_prompt_tokens
        if length is not None and length < 1 and length != -1:
            raise InvalidRequest("truncate_prompt_tokens", "at least 1, or -1 for as many as fit", length)
        return self

    @property
    def truncation(self) -> Truncation | None:
        """How the prompt is cut."""
        length = self.truncate_prompt_tokens
        if length is None:
            return None
        return Truncation(
            max_tokens=None if length == -1 else length, side=TruncationSide(self.truncation_side)
        )

    @property
    def options(self) -> StreamOptions:
        """The stream options, set or not."""
        return self.stream_options or StreamOptions()

    def stops(self) -> tuple[str, ...]:
        """The stop texts as a tuple."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def sampling(
        self, *, num_logprobs: int | None, max_tokens: int | None, num_prompt_logprobs: int | None = None
    ) -> Sampling:
        """The sampling parameters, unset ones as None. num_prompt_logprobs: where prompt_logprobs is unset."""
        if self.logprob_token_ids and num_logprobs:
            raise InvalidRequest(
                "logprob_token_ids", message="logprob_token_ids replaces the most probable tokens: ask for 0"
            )
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            # -1 is "off" to some clients, as 0 is.
            top_k=0 if self.top_k == -1 else self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            # OpenAI's seed is a signed 64-bit number; ours is the same bits unsigned.
            seed=self.seed & MAX_SEED if self.seed is not None and -(2**63) <= self.seed < 0 else self.seed,
            logit_bias={_token_id(key): value for key, value in self.logit_bias.items()},
            num_logprobs=None if self.logprob_token_ids else num_logprobs,
            num_prompt_logprobs=num_prompt_logprobs if self.prompt_logprobs is None else self.prompt_logprobs,
            logprob_token_ids=tuple(self.logprob_token_ids),
            min_tokens=self.min_tokens,
            max_tokens=max_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            allowed_token_ids=tuple(self.allowed_token_ids),
            constraint=constraint_of(self.response_format, self.structured_outputs),
        )

    @property
    def constraint_names(self) -> Mapping[str, str]:
        """What this dialect calls the fields of a constraint."""
        return constraint_names(self.structured_outputs is not None)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit()):
        raise InvalidRequest("logit_bias", "keyed by token ids", key)
    return int(key)


def named_call(request: CommonRequest, call: CallInfo) -> CallInfo:
    """The call under the correlation id of its body, which counts before the metadata's. Raises for a long one."""
    if len(request.request_id) > MAX_REQUEST_ID_CHARS:
        raise InvalidRequest(
            "request_id", f"at most {MAX_REQUEST_ID_CHARS} characters", len(request.request_id)
        )
    return dataclasses.replace(call, client_request_id=request.request_id) if request.request_id else call


def common_options(request: CommonRequest) -> dict[str, Any]:
    """The fields of a GenerationRequest that both endpoints fill alike."""
    return {
        "model": request.model,
        "stop": request.stops(),
        "include_stop_text": request.include_stop_str_in_output,
        "n": request.n,
        "skip_special_tokens": request.skip_special_tokens,
        "priority": request.priority,
        "cache_salt": request.cache_salt,
        "bad_words": tuple(request.bad_words),
        "truncation": request.truncation,
        "beam_search": BeamSearch(length_penalty=request.length_penalty) if request.use_beam_search else None,
        "session_id": request.session_id,
        "skip_reading_prefix_cache": request.skip_reading_prefix_cache,
        "stream_interval": request.stream_interval if request.stream else 1,
    }
