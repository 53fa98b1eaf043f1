"""Vectors over gRPC, by translation: the OpenAI service's RPCs that take bodies, and the typed ones."""

from __future__ import annotations

from typing import Any

import grpc

from quire.inference.v1 import embed_pb2, generate_pb2
from quire_gateway.models import ModelTask
from quire_gateway.native_requests import chat_prompt
from quire_gateway.openai.pooling_endpoints import PoolingEndpoints
from quire_gateway.pooling.call import PoolingCall, PoolingInput
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.pooling.runner import PoolingRunner
from quire_gateway.pooling.scoring import ScoreCall, ranked, score
from quire_gateway.requests import TextPrompt, TokenPrompt
from quire_gateway.servicers.calls import call_info
from quire_gateway.servicers.dialect import add_handlers, body_handler
from quire_gateway.servicers.openai import SERVICE_NAME
from quire_servicekit.errors import InvalidRequest


def add_pooling(server: grpc.aio.Server, endpoints: PoolingEndpoints) -> None:
    """Register the OpenAI service's RPCs that are made of vectors."""
    handlers = {
        "Embeddings": body_handler(endpoints.embeddings),
        "Score": body_handler(endpoints.score),
        "Rerank": body_handler(endpoints.rerank),
        "Classify": body_handler(endpoints.classify),
        "Pooling": body_handler(endpoints.pooling),
    }
    add_handlers(server, SERVICE_NAME, handlers)


class PoolingServicer:
    """The RPCs of quire.inference.v1.Inference that answer vectors and what is made of them."""

    def __init__(self, runner: PoolingRunner) -> None:
        self._runner = runner

    async def embed(self, request: embed_pb2.EmbedRequest, context: Any) -> embed_pb2.EmbedResponse:
        """See the contract."""
        with self._runner.accounting(call_info(context), "embed") as account:
            task = PoolingTask.TOKEN_EMBED if request.per_token else PoolingTask.EMBED
            call = _pooling_call(request, ModelTask.EMBED, task, _optional(request, "num_dimensions"))
            result = await self._runner.run(call, account)
            return embed_pb2.EmbedResponse(
                model=result.model.id,
                embeddings=[
                    embed_pb2.Embedding(values=vector, num_tokens=num_tokens)
                    for vector, num_tokens in zip(result.vectors, result.num_tokens, strict=True)
                ],
                usage=generate_pb2.Usage(num_prompt_tokens=result.num_prompt_tokens),
            )

    async def classify(self, request: embed_pb2.ClassifyRequest, context: Any) -> embed_pb2.ClassifyResponse:
        """See the contract."""
        with self._runner.accounting(call_info(context), "classify") as account:
            call = _pooling_call(request, ModelTask.CLASSIFY, PoolingTask.CLASSIFY)
            result = await self._runner.run(call, account)
            labels = result.model.labels
            return embed_pb2.ClassifyResponse(
                model=result.model.id,
                labels=labels,
                classifications=[
                    embed_pb2.Classification(label=labels[int(vector.argmax())], values=vector)
                    for vector in result.vectors
                ],
                usage=generate_pb2.Usage(num_prompt_tokens=result.num_prompt_tokens),
            )

    async def score(self, request: embed_pb2.ScoreRequest, context: Any) -> embed_pb2.ScoreResponse:
        """See the contract."""
        with self._runner.accounting(call_info(context), "score") as account:
            call = _score_call(
                request, request.first_texts, request.second_texts, "first_texts", "second_texts"
            )
            scores = await score(self._runner, call, account)
            return embed_pb2.ScoreResponse(
                model=scores.model.id,
                scores=scores.values,
                usage=generate_pb2.Usage(num_prompt_tokens=scores.num_prompt_tokens),
            )

    async def rerank(self, request: embed_pb2.RerankRequest, context: Any) -> embed_pb2.RerankResponse:
        """See the contract."""
        with self._runner.accounting(call_info(context), "rerank") as account:
            top_n = _optional(request, "top_n")
            if top_n == 0:
                raise InvalidRequest("top_n", "at least 1", 0)
            call = _score_call(request, [request.query], request.documents, "query", "documents")
            scores = await score(self._runner, call, account)
            return embed_pb2.RerankResponse(
                model=scores.model.id,
                results=[
                    embed_pb2.RankedDocument(
                        index=index,
                        relevance_score=scores.values[index],
                        document=request.documents[index] if request.return_documents else "",
                    )
                    for index in ranked(scores.values, top_n)
                ],
                usage=generate_pb2.Usage(num_prompt_tokens=scores.num_prompt_tokens),
            )


def _pooling_call(
    request: Any, wants: ModelTask, task: PoolingTask, num_dimensions: int | None = None
) -> PoolingCall:
    options = request.options
    return PoolingCall(
        inputs=tuple(_input_of(index, item) for index, item in enumerate(request.inputs)),
        wants=wants,
        name_of=lambda index: f"inputs[{index}]",
        model=request.model,
        task=task,
        num_dimensions=num_dimensions,
        dimensions_name="num_dimensions",
        normalize=_optional(options, "normalize"),
        truncate_tokens=_optional(options, "truncate_tokens"),
        truncate_name="options.truncate_tokens",
        priority=options.priority,
    )


def _score_call(request: Any, firsts: Any, seconds: Any, first_name: str, second_name: str) -> ScoreCall:
    options = request.options
    return ScoreCall(
        firsts=tuple(firsts),
        seconds=tuple(seconds),
        first_name=first_name,
        second_name=second_name,
        model=request.model,
        normalize=_optional(options, "normalize"),
        truncate_tokens=_optional(options, "truncate_tokens"),
        truncate_name="options.truncate_tokens",
        priority=options.priority,
    )


def _input_of(index: int, item: embed_pb2.PoolingInput) -> PoolingInput:
    kind = item.WhichOneof("input")
    if kind == "text":
        return TextPrompt(item.text)
    if kind == "token_ids":
        return TokenPrompt(tuple(item.token_ids.ids))
    if kind == "chat":
        return chat_prompt(item.chat)
    raise InvalidRequest(
        f"inputs[{index}]", message=f"inputs[{index}] is missing: set one of text, token_ids and chat"
    )


def _optional(message: Any, name: str) -> Any:
    """An optional field's value; None where it is not set."""
    return getattr(message, name) if message.HasField(name) else None
