"""The JSON of answers and chunks: what chat completions and completions have in common, and where they differ.

One job: write it. A stream's chunks repeat almost every byte, so each stream builds their fixed parts once and a
chunk is its text between two byte strings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from quire_gateway.generation import Generation
from quire_gateway.openai.logprobs import chat_logprobs, completion_logprobs
from quire_gateway.openai.options import CommonRequest
from quire_gateway.sequences import SequenceState, Update, Vocabulary

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the two endpoints differ."""

    id_prefix: str
    object: str
    chunk_object: str
    is_chat: bool


CHAT = Shape("chatcmpl-", "chat.completion", "chat.completion.chunk", True)
COMPLETION = Shape("cmpl-", "text_completion", "text_completion", False)


def usage_of(generation: Generation) -> dict[str, Any]:
    """The usage object, as of now."""
    prompt, output = generation.num_prompt_tokens, generation.num_output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }


@dataclass(slots=True)
class Answer:
    """Writes the chunks and the whole answer of one call."""

    shape: Shape
    generation: Generation
    request: CommonRequest
    created: int
    vocabulary: Vocabulary = ()
    has_logprobs: bool = False
    #: Per choice: text that stands before the output (echo).
    echoes: list[str] = field(default_factory=list)
    _prefix: bytes = b""
    _start: bytes = b""
    _plain_end: bytes = b""
    _end: bytes = b""
    _is_plain: bool = True
    _offsets: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = self.request.options
        head = orjson.dumps(self._envelope(self.shape.chunk_object))
        self._prefix = b"data: " + head[:-1] + b',"choices":['
        self._end = b"]" + (b',"usage":null' if options.include_usage else b"")
        self._start = b'{"index":%d,"delta":{"content":' if self.shape.is_chat else b'{"index":%d,"text":'
        plain = b',"logprobs":null,"finish_reason":null}' + self._end + b"}\n\n"
        self._plain_end = b"}" + plain if self.shape.is_chat else plain
        self._is_plain = not (
            self.has_logprobs
            or self.request.return_token_ids
            or options.include_timing
            or options.continuous_usage_stats
        )

    # ---- Chunks ------------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """The chunks before any output: chat's roles, or completions' echoed prompts."""
        if self.shape.is_chat:
            delta = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            return b"".join(
                self._prefix + b'{"index":%d' % sequence.choice_index + delta + self._end + b"}\n\n"
                for sequence in self.generation.sequences
            )
        return b"".join(self._text(index, echo) for index, echo in enumerate(self.echoes) if echo)

    def delta(self, index: int, update: Update) -> bytes:
        """The chunk of a choice's new output; nothing if it brings nothing the client asked for."""
        if self._is_plain:
            return self._text(index, update.text) if update.text else b""
        if not (update.text or update.logprobs or (update.token_ids and self.request.return_token_ids)):
            return b""
        choice: dict[str, Any] = {"index": index, **self._body(update.text)}
        choice["logprobs"] = self._logprobs(index, update)
        choice["finish_reason"] = None
        if self.request.return_token_ids:
            choice["token_ids"] = update.token_ids
        return self._prefix + orjson.dumps(choice) + self._extras(update)

    def finish(self, sequence: SequenceState, update: Update) -> bytes:
        """The chunk that ends a choice."""
        choice: dict[str, Any] = {
            "index": sequence.choice_index,
            **({"delta": {}} if self.shape.is_chat else {"text": ""}),
        }
        choice |= {"logprobs": None, **_end_of(sequence)}
        return self._prefix + orjson.dumps(choice) + self._extras(update)

    def closing(self) -> bytes:
        """The usage chunk, if it is wanted, and the end of the stream."""
        if not self.request.options.include_usage:
            return DONE
        chunk = self._envelope(self.shape.chunk_object) | {"choices": [], "usage": usage_of(self.generation)}
        return b"data: " + orjson.dumps(chunk) + b"\n\n" + DONE

    def _text(self, index: int, text: str) -> bytes:
        return self._prefix + self._start % index + orjson.dumps(text) + self._plain_end

    def _extras(self, update: Update) -> bytes:
        """The end of a chunk, with what only some streams carry."""
        options = self.request.options
        end = self._end
        if options.continuous_usage_stats:
            end = b'],"usage":' + orjson.dumps(usage_of(self.generation))
        if options.include_timing:
            end += b',"quire":{"sampled_at_unix_us":%d}' % update.sampled_at_unix_us
        return end + b"}\n\n"

    # ---- The whole answer --------------------------------------------------------------------------------------

    def whole(self, outputs: list[Update]) -> bytes:
        """The answer of a call that is not streamed. outputs: everything of each choice, by choice index."""
        choices = [
            self._choice(sequence, outputs[sequence.choice_index]) for sequence in self.generation.sequences
        ]
        body = self._envelope(self.shape.object) | {"choices": choices, "usage": usage_of(self.generation)}
        return orjson.dumps(body)

    def _choice(self, sequence: SequenceState, output: Update) -> dict[str, Any]:
        index = sequence.choice_index
        choice: dict[str, Any] = {"index": index}
        if self.shape.is_chat:
            choice["message"] = {"role": "assistant", "content": output.text, "refusal": None}
        else:
            choice["text"] = (self.echoes[index] if self.echoes else "") + output.text
        choice["logprobs"] = self._logprobs(index, output)
        choice |= _end_of(sequence)
        if self.request.return_token_ids:
            choice["token_ids"] = output.token_ids
            choice["prompt_token_ids"] = self.generation.requests[
                index // self.request.n
            ].spec.prompt_token_ids
        return choice

    def _envelope(self, kind: str) -> dict[str, Any]:
        model = self.generation.model
        return {
            "id": self.shape.id_prefix + self.generation.id,
            "object": kind,
            "created": self.created,
            "model": model.id,
            "system_fingerprint": model.system_fingerprint,
        }

    def _body(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self.shape.is_chat else {"text": text}

    def _logprobs(self, index: int, update: Update) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        if self.shape.is_chat:
            return chat_logprobs(update.logprobs, self.vocabulary)
        found, self._offsets[index] = completion_logprobs(
            update.logprobs, self.vocabulary, self._offsets.get(index, 0)
        )
        return found


def _end_of(sequence: SequenceState) -> dict[str, Any]:
    """finish_reason, and what matched: a stop text, a stop token id, or null for the model's own end."""
    finish = sequence.finish
    assert finish is not None, "only a finished sequence has an end"
    stop_reason = finish.stop_text if finish.stop_text is not None else finish.stop_token_id
    return {"finish_reason": finish.reason.value, "stop_reason": stop_reason}
