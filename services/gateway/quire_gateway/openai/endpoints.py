"""The endpoints: bytes of a request in, an async iterator of a head and the bytes of its answer out.

One job: the order of things. Nothing here knows gRPC, so any HTTP server could serve these functions. An error before
the head is an answer of its own with the right status; after the head it is an event in the stream.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence

import orjson

from quire_gateway.chat.runner import ChatRunner
from quire_gateway.chat.stream import ChatStream
from quire_gateway.generation import Generation, Generator
from quire_gateway.models import ServedModel
from quire_gateway.openai.answers import EVENT_STREAM, JSON, Head, error_body, error_head, error_pieces
from quire_gateway.openai.chat_answer import ChatAnswer
from quire_gateway.openai.chat_request import ChatRequest
from quire_gateway.openai.completion_request import CompletionRequest
from quire_gateway.openai.dialect import CHAT, COMPLETION, Answer
from quire_gateway.openai.options import named_call
from quire_gateway.openai.parameters import parse
from quire_gateway.requests import CallInfo
from quire_gateway.sequences import Update
from quire_servicekit.errors import UnknownModel

#: What an endpoint yields: one Head, then the pieces of the body.
Pieces = AsyncIterator[Head | bytes]


class OpenAIEndpoints:
    """Serves the dialect on a Generator."""

    def __init__(
        self,
        generator: Generator,
        runner: ChatRunner | None = None,
        *,
        accept_grace_s: float = 0.2,
        has_reasoning_alias: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """accept_grace_s: how long a stream's head waits for the engine to take or refuse the request.

        The status cannot change once the head is out. An idle engine answers within a step and a full queue at once;
        a request that only waits its turn gets its head after this time. has_reasoning_alias: reasoning is given
        under its old name too.
        """
        self._generator, self._accept_grace_s, self._clock = generator, accept_grace_s, clock
        self._runner = runner or ChatRunner(generator)
        self._reasoning_names = ("reasoning", "reasoning_content") if has_reasoning_alias else ("reasoning",)

    async def chat_completions(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/chat/completions."""
        has_head = False
        try:
            with self._generator.reading("chat", call):
                request = parse(body, ChatRequest)
                chat, call = request.to_call(), named_call(request, call)
            async with self._runner.run(chat, call, route="chat", names=request.names) as stream:
                answer = Answer(
                    CHAT, stream.generation, request, int(self._clock()), self._vocabulary(), request.logprobs,
                    prompt_texts=await self._prompt_texts(stream.generation, request.return_prompt_text),
                    count_reasoning=stream.count_reasoning,
                )  # fmt: skip
                # Answers that are text alone are written from the generation itself, as completions are.
                pieces = (
                    self._answer(answer, stream.generation)
                    if stream.is_plain
                    else self._parsed(answer, stream)
                )
                async for piece in pieces:
                    has_head = True
                    yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in error_pieces(error, has_head):
                yield piece

    async def completions(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/completions."""
        has_head = False
        try:
            with self._generator.reading("completions", call):
                request = parse(body, CompletionRequest)
                prompts, call = request.to_generations(), named_call(request, call)
            async with self._generator.run(
                prompts, call, route="completions", names=request.names
            ) as generation:
                answer = Answer(
                    COMPLETION, generation, request, int(self._clock()), self._vocabulary(), request.has_logprobs,
                    is_echo_scored=request.is_echo_scored, is_prompt_only=request.is_prompt_only,
                    prompt_texts=await self._prompt_texts(generation, request.return_prompt_text),
                )  # fmt: skip
                if request.echo:
                    texts = await self._echoes(generation)
                    answer.echoes = [text for text in texts for _ in range(request.n)]
                async for piece in self._answer(answer, generation):
                    has_head = True
                    yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in error_pieces(error, has_head):
                yield piece

    def list_models(self) -> tuple[Head, bytes]:
        """GET /v1/models."""
        data = [_model_object(model) for model in self._generator.engines.models()]
        return Head(), orjson.dumps({"object": "list", "data": data})

    def get_model(self, name: str) -> tuple[Head, bytes]:
        """GET /v1/models/{model}."""
        for model in self._generator.engines.models():
            if model.id == name:
                return Head(), orjson.dumps(_model_object(model))
        error = UnknownModel(name)
        return error_head(error), error_body(error)

    # ---- Answers -----------------------------------------------------------------------------------------------

    def _answer(self, answer: Answer, generation: Generation) -> Pieces:
        return self._stream(answer, generation) if answer.request.stream else self._whole(answer, generation)

    async def _stream(self, answer: Answer, generation: Generation) -> Pieces:
        """Events, written as output comes: everything that is there goes into one piece."""
        await generation.wait_accepted(self._accept_grace_s)
        yield Head(200, EVENT_STREAM)
        opening = answer.opening()
        if opening:
            yield opening
        num_running = len(generation.sequences)
        while num_running:
            parts = []
            for sequence in await generation.news():
                update = sequence.take()
                parts.append(answer.delta(sequence.choice_index, update))
                if sequence.finish is not None:
                    parts.append(answer.finish(sequence, update))
                    num_running -= 1
            if not num_running:
                parts.append(answer.closing())
            piece = b"".join(parts)
            if piece:
                yield piece

    async def _parsed(self, answer: Answer, stream: ChatStream) -> Pieces:
        """An answer that can hold reasoning and calls."""
        writer = ChatAnswer(answer, self._reasoning_names)
        if not answer.request.stream:
            body = writer.whole(await stream.collect())
            yield Head(200, JSON)
            yield body
            return
        await stream.wait_accepted(self._accept_grace_s)
        yield Head(200, EVENT_STREAM)
        yield answer.opening()
        async for events in stream.events():
            piece = writer.chunks(events) + (answer.closing() if stream.is_complete else b"")
            if piece:
                yield piece

    async def _whole(self, answer: Answer, generation: Generation) -> Pieces:
        outputs = [Update("", [], [], 0)] * len(generation.sequences)
        num_running = len(outputs)
        while num_running:
            for sequence in await generation.news():
                outputs[sequence.choice_index] = sequence.take()
                num_running -= 1
        body = answer.whole(outputs)
        yield Head(200, JSON)
        yield body

    async def _prompt_texts(self, generation: Generation, is_wanted: bool) -> list[str]:
        """Per prompt its text, if that is wanted."""
        if not is_wanted:
            return []
        return [await self._generator.prompt_text(active) for active in generation.requests]

    async def _echoes(self, generation: Generation) -> list[str]:
        """Per prompt the text that a completion begins with: without special tokens that the client did not write."""
        decode = self._generator.tokenizer.decode
        return [
            active.prompt_text
            if active.prompt_text is not None
            else await decode(active.spec.prompt_token_ids)
            for active in generation.requests
        ]

    def _vocabulary(self) -> Sequence[bytes]:
        info = self._generator.tokenizer.info
        return info.vocabulary if info is not None else ()


def _model_object(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_unix_s,
        "owned_by": "quire",
        "root": model.id,
        "parent": None,
        "max_model_len": model.max_model_len,
        # Ours: what it can be asked for.
        "tasks": sorted(task.value for task in model.tasks),
    }
