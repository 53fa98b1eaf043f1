"""A tokenizer and a scheduler that keep their contracts and do what a test tells them to.

The tokenizer's tokens are bytes (ids 0 to 255), with two special ones. The scheduler's output is a text of the test's
choosing, one token a step, the same for a resumed sequence as for one that was never interrupted.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from gateway_fake_scores import add_logprobs, add_prompt_scores
from google.rpc import code_pb2, status_pb2

from quire.model.v1 import model_pb2
from quire.sampling.v1 import sampling_pb2
from quire.scheduler.v1 import load_pb2, scheduler_service_pb2_grpc, serve_pb2
from quire.tokenizer.v1 import detokenize_pb2, encode_pb2, tokenizer_service_pb2_grpc, vocabulary_pb2
from quire_servicekit.error_details import status_of
from quire_servicekit.errors import InvalidRequest, QuireError
from quire_servicekit.interceptors import ServiceInterceptor

EOS = 256
BOS = 257
VOCAB_SIZE = 258
VOCABULARY = [bytes([value]) for value in range(256)] + [b"<eos>", b"<bos>"]


class FakeTokenizer(tokenizer_service_pb2_grpc.TokenizerServicer):
    """Bytes as tokens."""

    def __init__(
        self, *, fingerprint: str = "f" * 64, vocab_size: int = VOCAB_SIZE, is_text_bytes: bool = False
    ) -> None:
        """is_text_bytes: tell gateways that they may join text themselves."""
        self.fingerprint, self.vocab_size = fingerprint, vocab_size
        self.text_scheme = (
            vocabulary_pb2.TEXT_SCHEME_BYTES if is_text_bytes else vocabulary_pb2.TEXT_SCHEME_UNSPECIFIED
        )
        self.has_chat_template = True
        #: Sources that tell how the model writes calls and reasoning; rendering ignores them.
        self.chat_templates: list[str] = []
        self.num_streams = 0
        self.num_batches = 0
        self.num_described = 0
        self.rendered: list[Any] = []
        #: Seconds that a batch takes.
        self.delay_s = 0.0
        #: Ends the detokenise call after so many batches, once.
        self.break_after: int | None = None
        #: Reason for which the next stream fails.
        self.fail_streams = ""

    async def Encode(self, request: encode_pb2.EncodeRequest, context: Any) -> encode_pb2.EncodeResponse:
        """Each byte is a token; BOS in front if special tokens are wanted."""
        if any(len(text) > 10_000 for text in request.texts):
            raise InvalidRequest("texts", "at most 10000 characters", "more")
        encoded = [
            ([BOS] if request.add_special_tokens else []) + list(text.encode()) for text in request.texts
        ]
        starts = [len(ids) + 1 for ids in encoded] if request.second_texts else []
        for ids, second in zip(encoded, request.second_texts, strict=False):
            ids += [EOS, *second.encode()]
        if request.HasField("max_tokens"):
            encoded = [ids[: request.max_tokens] for ids in encoded]
        return encode_pb2.EncodeResponse(
            token_ids=[i for ids in encoded for i in ids],
            num_tokens=[len(ids) for ids in encoded],
            second_text_starts=starts,
        )

    async def RenderChat(
        self, request: encode_pb2.RenderChatRequest, context: Any
    ) -> encode_pb2.RenderChatResponse:
        """role: content, a line each."""
        if "messages" in json.loads(request.template_kwargs_json or "{}"):
            raise InvalidRequest("template_kwargs", "free of the template's own variables", "messages")
        messages = [json.loads(message) for message in request.messages_json]
        self.rendered.append((messages, request))
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return encode_pb2.RenderChatResponse(text=text, token_ids=list(text.encode()))

    async def Decode(self, request: encode_pb2.DecodeRequest, context: Any) -> encode_pb2.DecodeResponse:
        """Bytes to text."""
        return encode_pb2.DecodeResponse(
            text=bytes(i for i in request.token_ids if i < 256).decode(errors="replace")
        )

    async def GetTokenizer(
        self, request: vocabulary_pb2.GetTokenizerRequest, context: Any
    ) -> vocabulary_pb2.GetTokenizerResponse:
        """The constants above."""
        self.num_described += 1
        return vocabulary_pb2.GetTokenizerResponse(
            fingerprint=self.fingerprint,
            vocab_size=self.vocab_size,
            eos_token_ids=[EOS],
            special_token_ids=[EOS, BOS],
            vocabulary=VOCABULARY if request.with_vocabulary else [],
            has_chat_template=self.has_chat_template,
            max_text_chars=10_000,
            text_scheme=self.text_scheme,
            chat_templates=self.chat_templates,
        )

    async def DetokenizeStream(
        self, requests: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: Any
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        """Incremental UTF-8, a stream per handle."""
        streams: dict[int, Any] = {}
        async for request in requests:
            self.num_batches += 1
            if self.break_after is not None and self.num_batches > self.break_after:
                self.break_after = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "told to break")
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            yield self._apply(streams, request)
            self.num_streams = len(streams)

    def _apply(
        self, streams: dict[int, Any], request: detokenize_pb2.DetokenizeStreamRequest
    ) -> detokenize_pb2.DetokenizeStreamResponse:
        for opened in request.open:
            assert opened.handle not in streams, "opened twice"
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            decoder.decode(bytes(i for i in opened.context_token_ids if i < 256))
            streams[opened.handle] = decoder
        response = detokenize_pb2.DetokenizeStreamResponse(batch_id=request.batch_id)
        token_ids, start = list(request.token_ids), 0
        assert len(set(request.handles)) == len(request.handles), "a handle twice in one batch"
        for handle, count, is_last in zip(request.handles, request.num_tokens, request.is_last, strict=True):
            data = bytes(i for i in token_ids[start : start + count] if i < 256)
            start += count
            if self.fail_streams or handle not in streams:
                response.texts.append("")
                response.failed_handles.append(handle)
                response.failures.append(self.fail_streams or "not open")
                continue
            response.texts.append(streams[handle].decode(data, bool(is_last)))
            if is_last:
                del streams[handle]
        for handle in request.close:
            streams.pop(handle, None)
        return response


@dataclass
class _Running:
    """A sequence on the fake engine."""

    submit: serve_pb2.Submit
    index: int
    output: list[int]


@dataclass
class FakeScheduler(scheduler_service_pb2_grpc.SchedulerServicer):
    """One token a step for every sequence, taken from `text_of(submit, sequence_index)`; EOS behind it."""

    text_of: Callable[[serve_pb2.Submit, int], bytes] = lambda submit, index: b"Hello, world"
    step_s: float = 0.0005
    model_id: str = "fake"
    max_model_len: int = 1024
    vocab_size: int = VOCAB_SIZE
    #: Answers each submit with this error instead of running it.
    reject_with: QuireError | None = None
    #: Breaks the stream after so many frames, once.
    break_after: int | None = None
    #: Ends sequences with this reason at their third token.
    end_with: int | None = None
    #: Does not step while set.
    is_paused: bool = False
    tokens_per_step: int = 1
    num_cached_tokens: int = 0
    default_sampling: sampling_pb2.SamplingParams = field(default_factory=sampling_pb2.SamplingParams)
    hellos: list[serve_pb2.Hello] = field(default_factory=list)
    submits: list[serve_pb2.Submit] = field(default_factory=list)
    aborts: list[int] = field(default_factory=list)
    #: (handle, sequence index) of aborts of one sequence.
    sequence_aborts: list[tuple[int, int]] = field(default_factory=list)
    #: The most probable next tokens after the prompt's and the output's, with their log-probabilities.
    next_tokens: Callable[[list[int]], list[tuple[int, float]]] | None = None
    #: Prompt log-probabilities that one frame brings.
    prompt_chunk: int = 4
    scored: dict[int, int] = field(default_factory=dict)
    running: dict[tuple[int, int], _Running] = field(default_factory=dict)
    num_frames: int = 0
    tasks: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    embedding_size: int = 0
    #: The vector of a pooled request.
    vector_of: Callable[[serve_pb2.Submit], list[float]] = lambda submit: [
        float(len(submit.prompt_token_ids))
    ]
    pooled: list[serve_pb2.Submit] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    async def Serve(
        self, requests: AsyncIterator[serve_pb2.ServeRequest], context: Any
    ) -> AsyncIterator[Any]:
        """Hello, ready, then frames."""
        first = await anext(aiter(requests))
        assert first.WhichOneof("message") == "hello"
        self.hellos.append(first.hello)
        yield serve_pb2.ServeResponse(ready=self._ready())
        rejections: list[serve_pb2.Rejection] = []
        started: list[int] = []
        reader = asyncio.create_task(self._read(requests, rejections, started))
        try:
            while True:
                await asyncio.sleep(self.step_s)
                if self.break_after is not None and self.num_frames >= self.break_after:
                    self.break_after = None
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "told to break")
                if not self.is_paused and (self.running or rejections or self.pooled):
                    yield serve_pb2.ServeResponse(step_frame=self._step(rejections, started))
        finally:
            reader.cancel()
            self.running.clear()
            self.pooled.clear()

    def _ready(self) -> serve_pb2.Ready:
        model = model_pb2.ModelInfo(
            id=self.model_id,
            max_model_len=4096,
            vocab_size=self.vocab_size,
            eos_token_ids=[EOS],
            default_sampling=self.default_sampling,
            created_unix_s=1_700_000_000,
            fingerprint="0123456789abcdef",
            tasks=self.tasks,  # type: ignore[arg-type]
            labels=self.labels,
            embedding_size=self.embedding_size,
        )
        return serve_pb2.Ready(
            scheduler_id="s", model=model, block_size=16, max_model_len=self.max_model_len, load=self._load()
        )

    async def _read(
        self, requests: AsyncIterator[Any], rejections: list[serve_pb2.Rejection], started: list[int]
    ) -> None:
        async for request in requests:
            if request.WhichOneof("message") == "abort":
                if request.abort.HasField("sequence_index"):
                    key = request.abort.handle, request.abort.sequence_index
                    self.sequence_aborts.append(key)
                    self.running.pop(key, None)
                    continue
                self.aborts.append(request.abort.handle)
                for key in [key for key in self.running if key[0] == request.abort.handle]:
                    del self.running[key]
                continue
            submit = request.submit
            self.submits.append(submit)
            if self.reject_with is not None:
                rejections.append(
                    serve_pb2.Rejection(handle=submit.handle, status=status_of(self.reject_with))
                )
                continue
            started.append(submit.handle)
            if submit.sampling.HasField("num_prompt_logprobs"):
                self.scored[submit.handle] = 0
            if submit.HasField("pooling"):
                self.pooled.append(submit)
                continue
            resumed = {s.sequence_index: list(s.output_token_ids) for s in submit.resumed}
            for index in resumed or range(max(1, submit.n)):
                self.running[submit.handle, index] = _Running(submit, index, resumed.get(index, []))

    def _step(self, rejections: list[serve_pb2.Rejection], started: list[int]) -> serve_pb2.StepFrame:
        self.num_frames += 1
        frame = serve_pb2.StepFrame(step_id=self.num_frames, sampled_at_unix_us=1_000 + self.num_frames)
        frame.rejections.extend(rejections)
        frame.started_handles.extend(started)
        frame.num_cached_tokens.extend([self.num_cached_tokens] * len(started))
        rejections.clear()
        started.clear()
        reasons = []
        add_prompt_scores(
            frame, self.scored, {h: s.submit for (h, _), s in self.running.items()}, self.prompt_chunk
        )
        ready = [(key, sequence) for key, sequence in self.running.items() if key[0] not in self.scored]
        for row, ((handle, index), sequence) in enumerate(ready):
            tokens, reason = self._advance(sequence)
            frame.handles.append(handle)
            frame.sequence_indices.append(index)
            frame.num_tokens.append(len(tokens))
            frame.token_ids.extend(tokens)
            reasons.append(reason)
            if reason:
                del self.running[handle, index]
            sampling = sequence.submit.sampling
            if sampling.HasField("num_logprobs") or sampling.logprob_token_ids:
                before = [*sequence.submit.prompt_token_ids, *sequence.output[: -len(tokens)]]
                likely = self.next_tokens(before) if self.next_tokens is not None else None
                add_logprobs(frame, row, tokens, sampling, likely)
        reasons += self._pool(frame)
        if any(reasons):
            frame.finish_reasons.extend(reasons)
        frame.load.CopyFrom(self._load())
        return frame

    def _pool(self, frame: serve_pb2.StepFrame) -> list[int]:
        """A vector for every pooled request, each with the end of its only sequence."""
        pooled, self.pooled[:] = list(self.pooled), []
        for submit in pooled:
            frame.handles.append(submit.handle)
            frame.sequence_indices.append(0)
            frame.num_tokens.append(0)
            vector = self.vector_of(submit)
            frame.pooled_handles.append(submit.handle)
            frame.pooled.num_values.append(len(vector))
            frame.pooled.values += struct.pack(f"<{len(vector)}f", *vector)
        return [sampling_pb2.FINISH_REASON_STOP] * len(pooled)

    def _advance(self, sequence: _Running) -> tuple[list[int], int]:
        text = [*self.text_of(sequence.submit, sequence.index), EOS]
        sampling, tokens = sequence.submit.sampling, []
        for _ in range(self.tokens_per_step):
            token = text[min(len(sequence.output), len(text) - 1)]
            tokens.append(token)
            sequence.output.append(token)
            if token in sampling.stop_token_ids or (token == EOS and not sampling.ignore_eos):
                return tokens, sampling_pb2.FINISH_REASON_STOP
            if len(sequence.output) >= sampling.max_tokens:
                return tokens, sampling_pb2.FINISH_REASON_LENGTH
            if self.end_with is not None and len(sequence.output) >= 3:
                return tokens, self.end_with
        return tokens, 0

    def _load(self) -> load_pb2.Load:
        return load_pb2.Load(num_running=len(self.running), num_total_blocks=100, num_free_blocks=100)


def bare_status(code: int, message: str = "") -> status_pb2.Status:
    """A status without our details, as another implementation might send it."""
    assert code in code_pb2.Code.values()
    return status_pb2.Status(code=code, message=message)


class FakeServer:
    """A grpc.aio server for one fake, on a port that survives its restarts."""

    def __init__(self, servicer: Any, port: int = 0) -> None:
        self.servicer, self.port = servicer, port
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> FakeServer:
        """Listen; the first time on any free port."""
        self._server = grpc.aio.server(
            interceptors=[ServiceInterceptor()], options=[("grpc.so_reuseport", 0)]
        )
        if isinstance(self.servicer, FakeTokenizer):
            tokenizer_service_pb2_grpc.add_TokenizerServicer_to_server(self.servicer, self._server)
        else:
            scheduler_service_pb2_grpc.add_SchedulerServicer_to_server(self.servicer, self._server)
        self.port = self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def kill(self) -> None:
        """Stop at once; streams break."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None
