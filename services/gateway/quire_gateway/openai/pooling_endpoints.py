"""The endpoints whose answer is made of vectors: bytes of a request in, a head and the bytes of its answer out.

One job: the order of things, and the shape of each answer. Knows no gRPC.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson

from quire_gateway.http_answer import JSON, Head, Pieces
from quire_gateway.models import ModelTask
from quire_gateway.openai.answers import error_pieces
from quire_gateway.openai.pooling_requests import (
    ClassifyRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
    parse,
)
from quire_gateway.pooling.call import PoolingResult, Vector
from quire_gateway.pooling.params import PoolingTask
from quire_gateway.pooling.runner import Account, PoolingRunner
from quire_gateway.pooling.scoring import ranked, score
from quire_gateway.requests import CallInfo

Document = dict[str, Any]


class PoolingEndpoints:
    """Serves them on a PoolingRunner."""

    def __init__(self, runner: PoolingRunner, *, clock: Callable[[], float] = time.time) -> None:
        self._runner, self._clock = runner, clock

    def embeddings(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/embeddings."""
        return self._answer(self._embeddings, body, call, "embeddings")

    def score(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/score."""
        return self._answer(self._score, body, call, "score")

    def rerank(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /v1/rerank."""
        return self._answer(self._rerank, body, call, "rerank")

    def classify(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /classify."""
        return self._answer(self._classify, body, call, "classify")

    def pooling(self, body: bytes, call: CallInfo) -> Pieces:
        """POST /pooling."""
        return self._answer(self._pooling, body, call, "pooling")

    async def _answer(
        self,
        endpoint: Callable[[bytes, Account], Awaitable[Document]],
        body: bytes,
        call: CallInfo,
        route: str,
    ) -> Pieces:
        try:
            with self._runner.accounting(call, route) as account:
                answer = orjson.dumps(await endpoint(body, account), option=orjson.OPT_SERIALIZE_NUMPY)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer in its dialect
            for piece in error_pieces(error):
                yield piece
        else:
            yield Head(200, JSON)
            yield answer

    async def _embeddings(self, body: bytes, account: Account) -> Document:
        request = parse(body, EmbeddingRequest)
        pooling = request.call(ModelTask.EMBED, PoolingTask.EMBED, request.dimensions)
        result = await self._runner.run(pooling, account)
        data = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, request.encoding_format)}
            for index, vector in enumerate(result.vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": result.model.id,
            "usage": _usage(result.num_prompt_tokens),
        }

    async def _score(self, body: bytes, account: Account) -> Document:
        scores = await score(self._runner, parse(body, ScoreRequest).call(), account)
        data = [
            {"index": index, "object": "score", "score": value} for index, value in enumerate(scores.values)
        ]
        return self._list(account, "score", scores.model.id, data, scores.num_prompt_tokens)

    async def _rerank(self, body: bytes, account: Account) -> Document:
        request = parse(body, RerankRequest)
        scores = await score(self._runner, request.call(), account)
        texts, results = request.texts, []
        for index in ranked(scores.values, request.top_n):
            result: Document = {"index": index, "relevance_score": scores.values[index]}
            if request.return_documents:
                result["document"] = {"text": texts[index]}
            results.append(result)
        return {
            "id": f"rerank-{account.id}",
            "model": scores.model.id,
            "usage": _usage(scores.num_prompt_tokens),
            "results": results,
        }

    async def _classify(self, body: bytes, account: Account) -> Document:
        request = parse(body, ClassifyRequest)
        result = await self._runner.run(request.call(ModelTask.CLASSIFY, PoolingTask.CLASSIFY), account)
        data = [
            {
                "index": index,
                "label": _label(result, vector),
                "probs": vector,
                "num_classes": len(vector),
            }
            for index, vector in enumerate(result.vectors)
        ]
        return self._list(account, "classify", result.model.id, data, result.num_prompt_tokens)

    async def _pooling(self, body: bytes, account: Account) -> Document:
        request = parse(body, PoolingRequest)
        wants, task = request.task_of(self._runner.engines.model(request.model, request.wants))
        result = await self._runner.run(request.call(wants, task, request.dimensions), account)
        data = []
        for index, (vector, num_tokens) in enumerate(zip(result.vectors, result.num_tokens, strict=True)):
            is_rows = task is PoolingTask.TOKEN_EMBED and request.encoding_format == "float"
            shaped = vector.reshape(num_tokens, -1) if is_rows else vector
            data.append(
                {"index": index, "object": "pooling", "data": _encoded(shaped, request.encoding_format)}
            )
        return self._list(account, "pool", result.model.id, data, result.num_prompt_tokens)

    def _list(
        self, account: Account, kind: str, model: str, data: list[Document], num_tokens: int
    ) -> Document:
        return {
            "id": f"{kind}-{account.id}",
            "object": "list",
            "created": int(self._clock()),
            "model": model,
            "data": data,
            "usage": _usage(num_tokens),
        }


def _encoded(vector: Vector, encoding_format: str) -> Vector | str:
    """The values as numbers, or the base64 of their float32, little endian."""
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()
    return np.ascontiguousarray(vector)


def _label(result: PoolingResult, vector: Vector) -> str:
    labels, best = result.model.labels, int(vector.argmax())
    return labels[best] if best < len(labels) else f"LABEL_{best}"


def _usage(num_tokens: int) -> Document:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
