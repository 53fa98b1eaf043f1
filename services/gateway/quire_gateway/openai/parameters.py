"""Which parameters of the OpenAI API are served, and how the others are refused.

One job: nothing a client sends is ignored in silence. A name is either served, or harmless (it cannot change the
output), or accepted with the one value that means "off", or refused: known names as not supported, others as unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from quire_servicekit.errors import InvalidRequest, Unsupported

#: Labels for the caller's own use: they change nothing.
HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})

#: Not served, but with these values nothing is asked for.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "suffix": ("",),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "spaces_between_special_tokens": (True,),
    "include_reasoning": (True,),
    "bad_words": ([],),
    "documents": ([],),
    "return_tokens_as_token_ids": (False,),
    "return_prompt_text": (False,),
}

#: Known to OpenAI or to other servers of its dialect, and not served yet.
UNSUPPORTED = frozenset(NEUTRAL) | {
    "audio", "prediction", "reasoning_effort", "web_search_options", "moderation",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "guided_decoding_backend", "guided_whitespace_pattern", "prompt_logprobs", "logprob_token_ids",
    "truncate_prompt_tokens", "truncation_side", "chat_template", "thinking_token_budget", "logits_processors",
    "mm_processor_kwargs", "media_io_kwargs", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "session_id",
    "repetition_detection", "stream_interval", "prompt_embeds", "response_role", "echo", "add_special_tokens",
    "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "max_completion_tokens",
    "top_logprobs", "messages", "prompt",
}  # fmt: skip


class StrictModel(BaseModel):
    """A JSON object of the dialect: types are not converted, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _leave_nulls_out(cls, value: object) -> object:
        """null means unset: clients send back whole messages that they got, with every key that was not used."""
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if item is not None}


M = TypeVar("M", bound=StrictModel)


def parse(body: bytes, model: type[M]) -> M:
    """The request in `body`. Raises InvalidRequest or Unsupported, naming the first parameter that is wrong."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            "body", message=f"the body is not valid JSON: {error}", code="invalid_json"
        ) from error
    if not isinstance(document, dict):
        raise InvalidRequest("body", message="the body must be a JSON object", code="invalid_json")
    try:
        return model.model_validate(_select(document, model.model_fields))
    except ValidationError as error:
        raise _explain(error) from error


def _select(document: Mapping[str, Any], served: Collection[str]) -> dict[str, Any]:
    """The served parameters that are set; null means unset. Raises for those that are neither served nor neutral."""
    selected = {}
    for name, value in document.items():
        if value is None or name in HARMLESS:
            continue
        if name in served:
            selected[name] = value
        elif name in NEUTRAL and any(_is_same(value, neutral) for neutral in NEUTRAL[name]):
            continue
        elif name in UNSUPPORTED:
            wanted = f" with this value; it may be {_words(NEUTRAL[name])}" if name in NEUTRAL else " here"
            raise Unsupported(name, message=f"{name} is not supported{wanted}")
        else:
            raise InvalidRequest(
                name, message=f"Unrecognized request argument: {name}", code="unknown_parameter"
            )
    return selected


def _is_same(value: object, neutral: object) -> bool:
    # 1 == True in Python, and best_of: true is not best_of: 1.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _words(values: tuple[Any, ...]) -> str:
    return " or ".join(orjson.dumps(value).decode() for value in values)


def _explain(error: ValidationError) -> InvalidRequest:
    """The first thing that is wrong, in the dialect's words."""
    # Of a union's branches the one that got furthest is the one that was meant.
    detail = max(error.errors(include_url=False, include_context=False), key=lambda found: len(found["loc"]))
    name = _name_of(detail["loc"])
    if detail["type"] == "extra_forbidden":
        # The last part is the client's own word, whatever it looks like.
        name = f"{_name_of(detail['loc'][:-1])}.{detail['loc'][-1]}"
        return InvalidRequest(
            name, message=f"Unrecognized request argument: {name}", code="unknown_parameter"
        )
    if detail["type"] == "missing":
        return InvalidRequest(
            name, message=f"Missing required parameter: {name}", code="missing_required_parameter"
        )
    problem = detail["msg"].removeprefix("Value error, ")
    return InvalidRequest(name, problem, detail["input"], message=f"{name}: {problem}", code="invalid_type")


def _name_of(location: tuple[int | str, ...]) -> str:
    """messages[0].content for ("messages", 0, "content"); pydantic's names of union branches are left out."""
    name = ""
    for part in location:
        if isinstance(part, int):
            name += f"[{part}]"
        elif not name:
            name = part
        elif part.isidentifier() and part not in ("str", "int", "float", "bool", "list", "dict"):
            name += f".{part}"
    return name or "body"
