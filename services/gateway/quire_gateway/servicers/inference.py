"""quire.inference.v1.Inference: the typed public API, by translation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

from quire.inference.v1 import (
    chat_completion_pb2,
    embed_pb2,
    generate_pb2,
    inference_service_pb2,
    inference_service_pb2_grpc,
    models_pb2,
    tokens_pb2,
)
from quire.model.v1 import model_pb2
from quire_gateway.chat.events import TokensSampled
from quire_gateway.chat.runner import ChatRunner
from quire_gateway.generation import Generation, Generator
from quire_gateway.models import ServedModel
from quire_gateway.native_requests import chat_prompt, field_names, generation_request
from quire_gateway.prompts import Tokenizer
from quire_gateway.requests import CallInfo
from quire_gateway.sequences import SequenceState, Update, Vocabulary
from quire_gateway.servicers.calls import call_info
from quire_gateway.servicers.chat import answer_chat
from quire_gateway.servicers.generation_events import delta_event, prompt_logprobs_event, started_event
from quire_gateway.servicers.pooling import PoolingServicer
from quire_gateway.wire import FINISH_REASON_CODES
from quire_servicekit.error_details import status_of
from quire_servicekit.errors import InternalError, InvalidRequest, QuireError, Unavailable, UnknownModel
from quire_servicekit.logging import get_logger

SERVICE_NAME: str = inference_service_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

log = get_logger("inference")

Response = generate_pb2.GenerateResponse


class ModelInfos(Protocol):
    """Where the served models' messages come from."""

    def model_infos(self) -> list[model_pb2.ModelInfo]:
        """The served models by name."""


class InferenceServicer(inference_service_pb2_grpc.InferenceServicer):
    """Serves a Generator."""

    def __init__(
        self,
        generator: Generator,
        models: ModelInfos,
        runner: ChatRunner | None = None,
        vectors: PoolingServicer | None = None,
        *,
        tokenizer_of: Callable[[ServedModel], Tokenizer] | None = None,
        accept_grace_s: float = 0.2,
    ) -> None:
        """accept_grace_s: how long `started` waits for the engine to take or refuse the request. vectors: None where
        none are served. tokenizer_of: the tokenizer of a model; None: all have the generator's."""
        self._generator, self._models, self._accept_grace_s = generator, models, accept_grace_s
        self._runner = runner or ChatRunner(generator)
        self._vectors = vectors
        self._tokenizer_of = tokenizer_of or (lambda model: generator.tokenizer)

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        """See the contract."""
        call = call_info(context)
        async for response in _with_error_event(self._generate(request, call), call, _generate_error):
            yield response

    async def Chat(
        self, request: chat_completion_pb2.ChatRequest, context: Any
    ) -> AsyncIterator[chat_completion_pb2.ChatResponse]:
        """See the contract."""
        call = call_info(context)
        responses = answer_chat(
            self._runner,
            request,
            call,
            accept_grace_s=self._accept_grace_s,
            write_tokens=self._tokens,
        )
        async for response in _with_error_event(responses, call, _chat_error):
            yield response

    async def _generate(
        self, message: generate_pb2.GenerateRequest, call: CallInfo
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        with self._generator.reading("generate", call):
            request = generation_request(message)
        async with self._generator.run(
            [request], call, route="generate", names=field_names(message)
        ) as generation:
            await generation.wait_accepted(self._accept_grace_s)
            yield Response(started=await started_event(self._generator, message, generation))
            vocabulary = self._vocabulary()
            wants_scores = message.sampling.HasField("num_prompt_logprobs")
            num_running = len(generation.sequences)
            while num_running:
                # All is taken before anything is written: during a write a sequence may gain its last token, and must
                # not count as finished before that is taken, nor be counted twice.
                responses = []
                touched = await generation.news()
                if wants_scores:
                    # They are complete before any output.
                    wants_scores = False
                    responses.append(Response(prompt_logprobs=prompt_logprobs_event(generation, vocabulary)))
                for sequence in touched:
                    update = sequence.take()
                    if update.text or update.token_ids:
                        responses.append(Response(delta=delta_event(sequence.index, update, vocabulary)))
                    if sequence.finish is not None:
                        num_running -= 1
                        responses.append(Response(sequence_finished=_finished(sequence)))
                for response in responses:
                    yield response
            yield Response(completed=generate_pb2.Completed(usage=_usage(generation)))

    async def Tokenize(
        self, request: tokens_pb2.TokenizeRequest, context: Any
    ) -> tokens_pb2.TokenizeResponse:
        """See the contract."""
        model = self._generator.engines.model(request.model, None)
        tokenizer = self._tokenizer_of(model)
        kind = request.WhichOneof("input")
        if kind is None:
            raise InvalidRequest("input", message="input is missing: set one of text and chat")
        text = ""
        if kind == "chat":
            text, token_ids = await tokenizer.render_chat(chat_prompt(request.chat))
        else:
            special = request.add_special_tokens if request.HasField("add_special_tokens") else True
            token_ids = (await tokenizer.encode([request.text], add_special_tokens=special))[0]
        return tokens_pb2.TokenizeResponse(
            token_ids=token_ids, rendered_text=text, max_model_len=model.max_model_len
        )

    async def Detokenize(
        self, request: tokens_pb2.DetokenizeRequest, context: Any
    ) -> tokens_pb2.DetokenizeResponse:
        """See the contract."""
        tokenizer = self._tokenizer_of(self._generator.engines.model(request.model, None))
        skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
        text = await tokenizer.decode(list(request.token_ids), skip_special_tokens=skip)
        return tokens_pb2.DetokenizeResponse(text=text)

    async def Embed(self, request: embed_pb2.EmbedRequest, context: Any) -> embed_pb2.EmbedResponse:
        """See the contract."""
        return await self._pooling.embed(request, context)

    async def Score(self, request: embed_pb2.ScoreRequest, context: Any) -> embed_pb2.ScoreResponse:
        """See the contract."""
        return await self._pooling.score(request, context)

    async def Rerank(self, request: embed_pb2.RerankRequest, context: Any) -> embed_pb2.RerankResponse:
        """See the contract."""
        return await self._pooling.rerank(request, context)

    async def Classify(self, request: embed_pb2.ClassifyRequest, context: Any) -> embed_pb2.ClassifyResponse:
        """See the contract."""
        return await self._pooling.classify(request, context)

    async def ListModels(
        self, request: models_pb2.ListModelsRequest, context: Any
    ) -> models_pb2.ListModelsResponse:
        """See the contract."""
        return models_pb2.ListModelsResponse(models=self._models.model_infos())

    async def GetModel(
        self, request: models_pb2.GetModelRequest, context: Any
    ) -> models_pb2.GetModelResponse:
        """See the contract."""
        for info in self._models.model_infos():
            if info.id == request.model:
                return models_pb2.GetModelResponse(model=info)
        raise UnknownModel(request.model)

    @property
    def _pooling(self) -> PoolingServicer:
        if self._vectors is None:
            raise Unavailable("engine", message="no model that makes vectors is served here")
        return self._vectors

    def _tokens(self, event: TokensSampled) -> generate_pb2.Delta:
        update = Update("", event.token_ids, event.logprobs, event.sampled_at_unix_us)
        return delta_event(event.choice_index, update, self._vocabulary())

    def _vocabulary(self) -> Vocabulary:
        info = self._generator.tokenizer.info
        return info.vocabulary if info is not None else ()


R = TypeVar("R")


async def _with_error_event(
    responses: AsyncIterator[R], call: CallInfo, event_of: Callable[[QuireError], R]
) -> AsyncIterator[R]:
    """The responses. A REST client cannot see a status any more after the first: it gets the error as an event."""
    has_begun = False
    try:
        async with aclosing(responses) as messages:  # type: ignore[type-var]
            async for response in messages:
                has_begun = True
                yield response
    except Exception as error:
        if not (has_begun and call.is_transcoded):
            raise
        if not isinstance(error, QuireError):
            log.exception("request failed", reason=type(error).__name__)
            error = InternalError()
        yield event_of(error)


def _generate_error(error: QuireError) -> Response:
    return Response(error=status_of(error))


def _chat_error(error: QuireError) -> chat_completion_pb2.ChatResponse:
    return chat_completion_pb2.ChatResponse(error=status_of(error))


def _finished(sequence: SequenceState) -> generate_pb2.SequenceFinished:
    finish = sequence.finish
    assert finish is not None, "only a finished sequence is reported as one"
    return generate_pb2.SequenceFinished(
        sequence_index=sequence.index,
        finish_reason=FINISH_REASON_CODES[finish.reason],
        stop_text=finish.stop_text,
        stop_token_id=finish.stop_token_id,
        num_output_tokens=sequence.num_output_tokens,
    )


def _usage(generation: Generation) -> generate_pb2.Usage:
    return generate_pb2.Usage(
        num_prompt_tokens=generation.num_prompt_tokens,
        num_output_tokens=generation.num_output_tokens,
        num_cached_tokens=generation.num_cached_tokens,
    )
