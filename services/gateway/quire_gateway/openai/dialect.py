"""The JSON of answers and chunks: what chat completions and completions have in common, and where they differ.

One job: write it. A stream's chunks repeat almost every byte, so each stream builds their fixed parts once and a
chunk is its text between two byte strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from quire_gateway.active_request import ActiveRequest
from quire_gateway.generation import Generation
from quire_gateway.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
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


def usage_of(generation: Generation, *, is_prompt_only: bool = False) -> dict[str, Any]:
    """The usage object, as of now. is_prompt_only: what had to be generated is not told."""
    prompt, output = generation.num_prompt_tokens, 0 if is_prompt_only else generation.num_output_tokens
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
    #: The echoed prompt has log-probabilities too.
    is_echo_scored: bool = False
    #: Nothing but the prompt is wanted back.
    is_prompt_only: bool = False
    #: Per prompt its text, where the client wants it.
    prompt_texts: list[str] = field(default_factory=list)
    #: Output tokens in which the model was thinking, where it can.
    count_reasoning: Callable[[], int] | None = None
    _prefix: bytes = b""
    _start: bytes = b""
    _plain_end: bytes = b""
    _end: bytes = b""
    _is_plain: bool = True
    _offsets: dict[int, int] = field(default_factory=dict)
    #: Choices whose scored echo has gone out.
    _echoed: set[int] = field(default_factory=set)

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
            or self.is_prompt_only
        )

    @property
    def tells_tokens(self) -> bool:
        """Chunks carry what tokens they come from."""
        return self.has_logprobs or self.request.return_token_ids

    # ---- Chunks ------------------------------------------------------------------------------------------------

    def opening(self) -> bytes:
        """The chunks before any output: chat's roles, or completions' echoed prompts."""
        if self.shape.is_chat:
            if self._wants_prompt:
                return b"".join(self._chat_opening(sequence) for sequence in self.generation.sequences)
            delta = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
            return b"".join(
                self._prefix + b'{"index":%d' % sequence.choice_index + delta + self._end + b"}\n\n"
                for sequence in self.generation.sequences
            )
        if self._wants_prompt:
            return b"".join(self._completion_opening(sequence) for sequence in self.generation.sequences)
        if self.is_echo_scored:
            # The scores come with the first output, or before it.
            return b""
        return b"".join(self._text(index, echo) for index, echo in enumerate(self.echoes) if echo)

    def delta(self, index: int, update: Update) -> bytes:
        """The chunk of a choice's new output; nothing if it brings nothing the client asked for."""
        if self._is_plain:
            return self._text(index, update.text) if update.text else b""
        if self.is_echo_scored and index not in self._echoed:
            self._echoed.add(index)
            return self._scored_echo(index) + self.delta(index, update)
        if self.is_prompt_only:
            return b""
        if not (update.text or update.logprobs or (update.token_ids and self.request.return_token_ids)):
            return b""
        return self.chunk(index, self._body(update.text), update)

    def chunk(self, index: int, body: dict[str, Any], update: Update) -> bytes:
        """The chunk of a choice with any body; of the update only the tokens count."""
        choice: dict[str, Any] = {"index": index, **body}
        choice["logprobs"] = self._logprobs(index, update)
        choice["finish_reason"] = None
        if self.request.return_token_ids:
            choice["token_ids"] = update.token_ids
        return self._prefix + orjson.dumps(choice) + self._extras(update)

    def finish(self, sequence: SequenceState, update: Update) -> bytes:
        """The chunk that ends a choice."""
        return self.end(sequence.choice_index, _end_of(sequence), update)

    def end(self, index: int, end: dict[str, Any], update: Update) -> bytes:
        """The chunk that ends a choice, with why."""
        body: dict[str, Any] = {"delta": {}} if self.shape.is_chat else {"text": ""}
        choice = {"index": index, **body, "logprobs": None, **end}
        return self._prefix + orjson.dumps(choice) + self._extras(update)

    def closing(self) -> bytes:
        """The usage chunk, if it is wanted, and the end of the stream."""
        if not self.request.options.include_usage:
            return DONE
        chunk = self._envelope(self.shape.chunk_object) | {"choices": [], "usage": self._usage()}
        return b"data: " + orjson.dumps(chunk) + b"\n\n" + DONE

    def _text(self, index: int, text: str) -> bytes:
        return self._prefix + self._start % index + orjson.dumps(text) + self._plain_end

    def _extras(self, update: Update) -> bytes:
        """The end of a chunk, with what only some streams carry."""
        options = self.request.options
        end = self._end
        if options.continuous_usage_stats:
            end = b'],"usage":' + orjson.dumps(self._usage())
        if options.include_timing:
            end += b',"quire":{"sampled_at_unix_us":%d}' % update.sampled_at_unix_us
        return end + b"}\n\n"

    # ---- The whole answer --------------------------------------------------------------------------------------

    def whole(self, outputs: list[Update], parsed: Sequence[dict[str, Any]] = ()) -> bytes:
        """The answer of a call that is not streamed. outputs: everything of each choice, by choice index.

        parsed: per choice the parts that are not just its text: its message, and why it ended.
        """
        choices = [
            self._choice(sequence, outputs[sequence.choice_index], *parsed[index : index + 1])
            for index, sequence in enumerate(self.generation.sequences)
        ]
        body = self._envelope(self.shape.object) | {"choices": choices, "usage": self._usage()}
        if self.shape.is_chat:
            body |= self._prompt(self.generation.requests[0])
        return orjson.dumps(body)

    def _choice(
        self, sequence: SequenceState, output: Update, parsed: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        index = sequence.choice_index
        if self.is_prompt_only:
            output = Update("", [], [], output.sampled_at_unix_us)
        choice: dict[str, Any] = {"index": index}
        if parsed is not None:
            choice["message"] = parsed["message"]
        elif self.shape.is_chat:
            choice["message"] = {"role": "assistant", "content": output.text, "refusal": None}
        else:
            choice["text"] = (self.echoes[index] if self.echoes else "") + output.text
        choice["logprobs"] = self._logprobs(index, output)
        choice |= parsed or _end_of(sequence)
        if self.request.return_token_ids:
            choice["token_ids"] = output.token_ids
        if not self.shape.is_chat:
            choice |= self._prompt(self._request_of(index))
        return choice

    # ---- What is told of prompts -------------------------------------------------------------------------------

    @property
    def _wants_prompt(self) -> bool:
        """A stream's first chunk tells of the prompt."""
        return self.request.return_token_ids or self.request.return_prompt_text

    def _request_of(self, index: int) -> ActiveRequest:
        return self.generation.requests[index // self.request.n]

    def _prompt(self, active: ActiveRequest) -> dict[str, Any]:
        """What the client wants to know of a prompt: of the answer in chat, of each choice in completions."""
        found: dict[str, Any] = {}
        if self.request.return_token_ids:
            found["prompt_token_ids"] = active.spec.prompt_token_ids
        if self.request.return_prompt_text:
            found["prompt_text"] = self.prompt_texts[self.generation.requests.index(active)]
        if self.request.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(
                active.prompt_logprobs, self.vocabulary, as_ids=self.request.return_tokens_as_token_ids
            )
        return found

    def _chat_opening(self, sequence: SequenceState) -> bytes:
        choice = {
            "index": sequence.choice_index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        prompt = orjson.dumps(self._prompt(self.generation.requests[0]))[1:-1]
        return self._prefix + orjson.dumps(choice) + self._end + b"," + prompt + b"}\n\n"

    def _completion_opening(self, sequence: SequenceState) -> bytes:
        index = sequence.choice_index
        choice: dict[str, Any] = {
            "index": index,
            "text": self.echoes[index] if self.echoes and not self.is_echo_scored else "",
            "logprobs": None,
            "finish_reason": None,
        }
        choice |= self._prompt(self._request_of(index))
        return self._prefix + orjson.dumps(choice) + self._end + b"}\n\n"

    def _scored_echo(self, index: int) -> bytes:
        choice = {
            "index": index,
            "text": self.echoes[index],
            "logprobs": self._logprobs(index, Update("", [], [], 0)),
            "finish_reason": None,
        }
        return self._prefix + orjson.dumps(choice) + self._end + b"}\n\n"

    def _usage(self) -> dict[str, Any]:
        usage = usage_of(self.generation, is_prompt_only=self.is_prompt_only)
        if self.count_reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.count_reasoning()}
        return usage

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
        as_ids = self.request.return_tokens_as_token_ids
        if self.shape.is_chat:
            return chat_logprobs(update.logprobs, self.vocabulary, as_ids=as_ids)
        scored, first, is_hidden = update.logprobs, None, False
        if self.is_echo_scored and index not in self._offsets:
            active = self._request_of(index)
            first = active.spec.prompt_token_ids[0]
            scored = [*active.prompt_logprobs, *scored]
            text = self.vocabulary[first].decode("utf-8", "replace") if first < len(self.vocabulary) else ""
            is_hidden = not self.echoes[index].startswith(text)
        found, self._offsets[index] = completion_logprobs(
            scored,
            self.vocabulary,
            self._offsets.get(index, 0),
            as_ids=as_ids,
            first_token_id=first,
            is_first_hidden=is_hidden,
        )
        return found


def _end_of(sequence: SequenceState) -> dict[str, Any]:
    """finish_reason, and what matched: a stop text, a stop token id, or null for the model's own end."""
    finish = sequence.finish
    assert finish is not None, "only a finished sequence has an end"
    stop_reason = finish.stop_text if finish.stop_text is not None else finish.stop_token_id
    return {"finish_reason": finish.reason.value, "stop_reason": stop_reason}
