"""The OpenAI dialect, as a client: request bodies out, and what a streamed or whole answer says, with times, back.

It turns bytes into one `RequestRecord` a request. It opens no sockets and makes no statistics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from quire_bench.sse import SseParser
from quire_bench.workloads import GenerationRequest


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """How to ask: which endpoint, and the fields that every request carries."""

    model: str
    endpoint: str = "completions"  # or "chat"
    stream: bool = True
    ignore_eos: bool = True  # an extension of vLLM, llama.cpp and Quire; OpenAI's own servers refuse it
    include_usage: bool = True
    continuous_usage: bool = False  # a running count in every chunk, where the server can (vLLM's field)
    extra: dict[str, Any] = field(default_factory=dict)  # merged into each body

    @property
    def path(self) -> str:
        """Path of the endpoint, below the /v1 prefix."""
        return "/chat/completions" if self.endpoint == "chat" else "/completions"


@dataclass(frozen=True, slots=True)
class ExtensionChunk:
    """A chunk that carried the extension field: when it came, what it said, the running token count if it had one."""

    arrived: float
    value: dict[str, Any]
    num_tokens_so_far: int | None


@dataclass(slots=True)
class RequestRecord:
    """What happened to one request. Times are time.perf_counter() seconds; `chunk_times` are of chunks with text."""

    num_prompt_tokens: int
    max_tokens: int
    scheduled: float = 0.0  # when the load said it should start (open loop: queueing in the client counts)
    sent: float = 0.0
    finished: float = 0.0
    chunk_times: list[float] = field(default_factory=list)
    num_output_tokens: int = 0
    count_source: str = ""  # usage | fixed-length | chunks
    finish_reason: str | None = None
    error: str | None = None
    text_parts: list[str] = field(default_factory=list)
    extension_chunks: list[ExtensionChunk] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when the answer came whole."""
        return self.error is None


def request_body(request: GenerationRequest, options: ApiOptions) -> bytes:
    """JSON body of one request. ValueError when a chat request has a prompt of token ids."""
    body: dict[str, Any] = {
        "model": options.model,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": options.stream,
    }
    if options.endpoint == "chat":
        if isinstance(request.prompt, str):
            body["messages"] = [{"role": "user", "content": request.prompt}]
        elif request.prompt and isinstance(request.prompt[0], dict):
            body["messages"] = request.prompt
        else:
            raise ValueError("prompt: the chat endpoint takes text or messages, not token ids (use words)")
    else:
        body["prompt"] = request.prompt
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.stream and options.include_usage:
        body["stream_options"] = {"include_usage": True}
        if options.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    body.update(options.extra)
    return orjson.dumps(body)


class AnswerReader:
    """Reads one answer into a RequestRecord. `extension` names a chunk field to keep, with its time.

    While the answer comes its bytes are only kept, each with its time, and they are parsed at its end: parsing at once
    would delay the other streams' times, which are taken by the same processor (0.3 ms at 32 streams).
    """

    def __init__(
        self,
        record: RequestRecord,
        options: ApiOptions,
        *,
        keep_text: bool = False,
        extension: str | None = None,
    ) -> None:
        self.record = record
        self._options = options
        self._keep_text = keep_text
        self._extension = extension
        self._sse = SseParser()
        self._arrived: list[tuple[bytes, float]] = []
        self._body = b""  # of an answer that is not a stream (errors too)
        self._is_stream = options.stream
        self._saw_done = False
        self._usage_tokens: int | None = None

    def on_body(self, data: bytes, now: float) -> None:
        """Body bytes with the time of their arrival."""
        self._arrived.append((data, now))

    def _parse(self, data: bytes, now: float) -> None:
        if not self._is_stream:
            self._body += data
            return
        if not self.record.chunk_times and not self._saw_done:
            self._body += data  # kept until the first text, in case this is a JSON error and not a stream
        for payload in self._sse.feed(data):
            if payload == b"[DONE]":
                self._saw_done = True
            else:
                self._chunk(orjson.loads(payload), now)

    def finish(self, status: int, now: float) -> None:
        """The response is complete: parse it, settle the token count, and the error if there is one."""
        record = self.record
        record.finished = now
        for data, arrived in self._arrived:
            self._parse(data, arrived)
        self._arrived.clear()
        if status != 200:
            record.error = record.error or f"HTTP {status}: {error_message(self._body)}"
            return
        if not self._is_stream:
            self._whole(orjson.loads(self._body), now)
        elif record.error is None and (record.finish_reason is None or not self._saw_done):
            record.error = "the stream ended without " + (
                "[DONE]" if record.finish_reason else "a finish_reason"
            )
        self._settle_count()

    def _chunk(self, chunk: dict[str, Any], now: float) -> None:
        record = self.record
        if "error" in chunk:
            error = chunk["error"]
            record.error = (
                f"in the stream: {error.get('message', error) if isinstance(error, dict) else error}"
            )
            return
        usage = chunk.get("usage")
        if usage:
            self._usage_tokens = usage.get("completion_tokens", self._usage_tokens)
        if self._extension is not None and self._extension in chunk:
            running = usage.get("completion_tokens") if usage else None
            record.extension_chunks.append(ExtensionChunk(now, chunk[self._extension], running))
        has_text = False
        for choice in chunk.get("choices", ()):
            delta = choice.get("delta")
            text = choice.get("text") if delta is None else delta.get("content")
            if text:
                has_text = True
                if self._keep_text:
                    record.text_parts.append(text)
            if choice.get("finish_reason"):
                record.finish_reason = choice["finish_reason"]
        if has_text:
            record.chunk_times.append(now)

    def _whole(self, answer: dict[str, Any], now: float) -> None:
        record = self.record
        choice = answer["choices"][0]
        record.finish_reason = choice.get("finish_reason")
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        if self._keep_text:
            record.text_parts.append(text or "")
        record.chunk_times.append(now)
        self._usage_tokens = (answer.get("usage") or {}).get("completion_tokens")

    def _settle_count(self) -> None:
        record = self.record
        if self._usage_tokens is not None:
            record.num_output_tokens, record.count_source = self._usage_tokens, "usage"
        elif self._options.ignore_eos and record.finish_reason == "length":
            record.num_output_tokens, record.count_source = record.max_tokens, "fixed-length"
        else:  # a server that coalesces tokens is under-counted here, which is why the source is reported
            record.num_output_tokens, record.count_source = len(record.chunk_times), "chunks"


def error_message(body: bytes) -> str:
    """The message in an error body, or its beginning."""
    try:
        error = orjson.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace").strip() or "(empty body)"
