"""Embeddings, scores, reranking and classes through a whole gateway over fakes."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from gateway_fakes import BOS, EOS, FakeScheduler, FakeTokenizer

from quire.inference.v1 import embed_pb2, inference_service_pb2_grpc, tokens_pb2
from quire.model.v1 import model_pb2
from quire.pooling.v1 import pooling_pb2
from quire_gateway.main import Gateway
from quire_gateway.settings import GatewaySettings
from quire_servicekit.errors import InvalidRequest, QueueFull
from quire_servicekit.metrics import Metrics

EMBEDS = [model_pb2.MODEL_TASK_EMBED, model_pb2.MODEL_TASK_SCORE]
CROSS = [model_pb2.MODEL_TASK_SCORE]
CLASSIFIES = [model_pb2.MODEL_TASK_CLASSIFY]


def _unit(submit: Any) -> list[float]:
    """A vector of length 1 that tells texts apart by their last token."""
    return [0.6, 0.8] if submit.prompt_token_ids[-1] % 2 else [1.0, 0.0]


def _embedder(**options: Any) -> FakeScheduler:
    return FakeScheduler(
        **({"tasks": EMBEDS, "embedding_size": 2, "vector_of": _unit, "max_model_len": 8} | options)
    )


@pytest.fixture
async def embedder(make_suite: Callable[..., Any]) -> Any:
    """A gateway whose only model makes embeddings of 2 values, of at most 8 tokens."""
    return await make_suite([_embedder()])


async def test_embeddings(embedder: Any) -> None:
    """One vector per input in order, tokens counted; what crosses to the engine is the wish, and no sampling."""
    answer = await embedder.client.post("Embeddings", {"input": ["ab", "bc"], "dimensions": 1, "user": "me"})
    assert answer.status == 200
    assert [(item["index"], item["object"]) for item in answer.json["data"]] == [
        (0, "embedding"), (1, "embedding"),
    ]  # fmt: skip
    assert answer.json["data"][0]["embedding"] == [1.0, 0.0]
    assert answer.json["data"][1]["embedding"] == pytest.approx([0.6, 0.8])
    assert answer.json["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    submit = embedder.scheduler.submits[0]
    assert list(submit.prompt_token_ids) == [BOS, *b"ab"]
    assert submit.pooling == pooling_pb2.PoolingParams(task=pooling_pb2.POOLING_TASK_EMBED, num_dimensions=1)
    assert not submit.HasField("sampling")


async def test_base64(embedder: Any) -> None:
    """The values as float32, little endian."""
    answer = await embedder.client.post("Embeddings", {"input": "c", "encoding_format": "base64"})
    data = base64.b64decode(answer.json["data"][0]["embedding"])
    assert struct.unpack("<2f", data) == pytest.approx((0.6, 0.8))


async def test_token_ids_and_messages(embedder: Any) -> None:
    """A list of numbers is one input, a list of lists several; messages go through the chat template."""
    post = embedder.client.post
    await post("Embeddings", {"input": [1, 2]})
    await post("Embeddings", {"input": [[3], [4, 5]], "truncate_prompt_tokens": 1})
    await post("Embeddings", {"messages": [{"role": "user", "content": ""}], "truncate_prompt_tokens": -1})
    prompts = [list(submit.prompt_token_ids) for submit in embedder.scheduler.submits]
    assert prompts == [[1, 2], [3], [4], list(b"user: \n")]


@pytest.mark.parametrize(
    ("body", "parameter", "words"),
    [
        ({}, "input", "exactly one of input and messages"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ["a", ""]}, "input[1]", "must not be empty"),
        ({"input": [[1], []]}, "input[1]", "must not be empty"),
        ({"input": "a", "dimensions": 3}, "dimensions", "from 1 to 2, got 3"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float"),
        ({"input": [1, 258]}, "input", "0 to 257, got 258"),
        ({"input": ["a", "too long a text"]}, "input[1]", "maximum context length is 8 tokens, got 16"),
        ({"input": "too long a text"}, "input", "maximum context length is 8 tokens, got 16"),
        ({"input": ["a", "x" * 10_001]}, "input", "10000 characters"),
        ({"input": "a", "truncate_prompt_tokens": 9}, "truncate_prompt_tokens", "from 0 to 8, got 9"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048 inputs, got 2049"),
        ({"input": "a", "normalize": True, "use_activation": False}, "use_activation", "True"),
        ({"input": "a", "priority": 2**31}, "priority", "32-bit"),
        ({"input": "a", "temperature": 1}, "temperature", "Unrecognized"),
        ({"input": "a", "activation": True}, "activation", "not supported"),
    ],
)
async def test_refusals_name_the_parameter(
    embedder: Any, body: dict[str, Any], parameter: str, words: str
) -> None:
    """What is missing, malformed, out of range or unknown is a 400 that says which; nothing reaches an engine."""
    answer = await embedder.client.post("Embeddings", body)
    assert answer.status == 400
    error = answer.json["error"]
    assert error["param"].startswith(parameter)
    assert words in error["message"]
    assert embedder.scheduler.submits == []


async def test_a_refusal_of_the_engine_names_the_input(make_suite: Callable[..., Any]) -> None:
    """One failing input fails the request, with its index; the others are aborted or done."""
    scheduler = _embedder(reject_with=InvalidRequest("prompt_token_ids", "good", "bad"))
    suite = await make_suite([scheduler])
    answer = await suite.client.post("Embeddings", {"input": ["a", "b"]})
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0]")
    scheduler.reject_with = QueueFull(2.0)
    answer = await suite.client.post("Embeddings", {"input": ["a", "b"]})
    assert (answer.status, answer.headers["retry-after"]) == (429, "2")
    assert suite.gateway.pool.num_requests == 0


async def test_large_calls_go_in_windows(make_suite: Callable[..., Any]) -> None:
    """A call with many inputs never has more than a window of them at the engines."""
    scheduler = _embedder(is_paused=True)
    suite = await make_suite([scheduler])
    call = asyncio.create_task(suite.client.post("Embeddings", {"input": ["a"] * 700}))
    while len(scheduler.submits) < 256:
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(scheduler.submits) == 256
    scheduler.is_paused = False
    assert len((await call).json["data"]) == 700
    assert suite.gateway.admission.num_in_flight == suite.gateway.pool.num_requests == 0


async def test_a_client_that_goes_away_aborts(make_suite: Callable[..., Any]) -> None:
    """Cancelling the call aborts every input at the engine."""
    scheduler = _embedder(is_paused=True)
    suite = await make_suite([scheduler])
    call = suite.client.start("Embeddings", {"input": ["a", "b", "c"]})
    while len(scheduler.submits) < 3:
        await asyncio.sleep(0.005)
    call.cancel()
    while len(scheduler.aborts) < 3:
        await asyncio.sleep(0.005)
    assert suite.gateway.pool.num_requests == 0


async def test_another_engine_takes_over(make_suite: Callable[..., Any]) -> None:
    """An engine that is lost with inputs on it: they are computed by the other one."""
    first, second = _embedder(is_paused=True), _embedder(is_paused=True)
    suite = await make_suite([first, second])
    call = asyncio.create_task(suite.client.post("Embeddings", {"input": ["a", "b", "c", "d"]}))
    while len(first.submits) + len(second.submits) < 4:
        await asyncio.sleep(0.005)
    assert first.submits
    second.is_paused = False
    first.break_after = 0
    answer = await call
    assert (answer.status, len(answer.json["data"])) == (200, 4)
    assert len(second.submits) == 4


async def test_a_deadline_ends_the_call(make_suite: Callable[..., Any]) -> None:
    """A call whose deadline passes at the engine fails as a whole."""
    suite = await make_suite([_embedder(is_paused=True)])
    request = embed_pb2.EmbedRequest(inputs=[embed_pb2.PoolingInput(text="a")])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await suite.client.inference.Embed(request, timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    while not suite.scheduler.submits or not suite.scheduler.aborts:
        await asyncio.sleep(0.005)
    assert suite.scheduler.submits[0].HasField("timeout")


@pytest.mark.parametrize(
    ("tasks", "method", "body", "able"),
    [
        ([], "Embeddings", {"input": "a"}, "generate"),
        ([], "Score", {"text_1": "a", "text_2": "b"}, "generate"),
        (EMBEDS, "ChatCompletions", {"messages": [{"role": "user", "content": "a"}]}, "embed, score"),
        (EMBEDS, "Completions", {"prompt": "a"}, "embed, score"),
        (EMBEDS, "Classify", {"input": "a"}, "embed, score"),
        (CLASSIFIES, "Rerank", {"query": "a", "documents": ["b"]}, "classify"),
        (CROSS, "Embeddings", {"input": "a"}, "score"),
        (CROSS, "Pooling", {"input": "a", "task": "token_embed"}, "score"),
    ],
)
async def test_what_the_model_cannot_do(
    make_suite: Callable[..., Any], tasks: list[int], method: str, body: dict[str, Any], able: str
) -> None:
    """A 400 that names the model, the task and what the model can do."""
    suite = await make_suite([FakeScheduler(tasks=tasks, embedding_size=2)])
    answer = await suite.client.post(method, body)
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_task")
    assert answer.json["error"]["message"].startswith("The model `fake` does not support the task")
    assert answer.json["error"]["message"].endswith(f"it supports: {able}")


async def test_no_name_finds_the_model_that_can(make_suite: Callable[..., Any]) -> None:
    """Without a model's name each endpoint takes the only model that can; none or several are refused."""
    suite = await make_suite([FakeScheduler(), _embedder(model_id="embedder")])
    assert (await suite.client.post("Embeddings", {"input": "a"})).json["model"] == "embedder"
    assert (await suite.client.chat("a")).json["model"] == "fake"
    answer = await suite.client.post("Classify", {"input": "a"})
    assert "none of the served ones supports the task classify" in answer.json["error"]["message"]


async def test_score_by_cosine(embedder: Any) -> None:
    """Each text is embedded once; one first text goes with all second ones."""
    body = {"text_1": "b", "text_2": ["d", "c"]}
    answer = await embedder.client.post("Score", body)
    assert [item["score"] for item in answer.json["data"]] == pytest.approx([1.0, 0.6])
    assert answer.json["usage"]["total_tokens"] == 6
    assert len(embedder.scheduler.submits) == 3
    assert all(submit.pooling.normalize for submit in embedder.scheduler.submits)


async def test_score_by_a_cross_encoder(make_suite: Callable[..., Any]) -> None:
    """Both texts in one sequence, with the place of the second; the value of the only class is the score."""
    scheduler = FakeScheduler(tasks=CROSS, labels=["LABEL_0"])
    suite = await make_suite([scheduler])
    body = {"queries": ["q", "qq"], "documents": ["d", "dd"], "use_activation": False}
    answer = await suite.client.post("Score", body)
    assert [item["score"] for item in answer.json["data"]] == [4.0, 6.0]
    first = scheduler.submits[0]
    assert list(first.prompt_token_ids) == [BOS, *b"q", EOS, *b"d"]
    assert first.pooling == pooling_pb2.PoolingParams(
        task=pooling_pb2.POOLING_TASK_CLASSIFY, normalize=False, second_text_start=3
    )


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"text_1": "a"}, "text_2"),
        ({"text_1": "a", "queries": "a", "text_2": "b"}, "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": "a", "text_2": ["b", "much too long"]}, "text_2[1]"),
    ],
)
async def test_refused_scores(embedder: Any, body: dict[str, Any], parameter: str) -> None:
    """Lists that don't match, and the text that is too long, by their names."""
    answer = await embedder.client.post("Score", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, parameter)


async def test_rerank(embedder: Any) -> None:
    """Documents by descending score, equal ones in order, the first top_n, with their texts where asked for."""
    body = {"query": "b", "documents": ["c", {"text": "d"}, "f"], "top_n": 2, "return_documents": True}
    answer = await embedder.client.post("Rerank", body)
    results = answer.json["results"]
    assert [(item["index"], item["document"]["text"]) for item in results] == [(1, "d"), (2, "f")]
    assert results[0]["relevance_score"] == pytest.approx(1.0)
    plain = await embedder.client.post("Rerank", {"query": "b", "documents": ["c"]})
    assert "document" not in plain.json["results"][0]
    bad = await embedder.client.post("Rerank", {"query": "b", "documents": ["c"], "top_n": 0})
    assert (bad.status, bad.json["error"]["param"]) == (400, "top_n")


async def test_classify(make_suite: Callable[..., Any]) -> None:
    """The most probable class by name, and all probabilities."""
    scheduler = FakeScheduler(tasks=CLASSIFIES, labels=["no", "yes"], vector_of=lambda submit: [0.25, 0.75])
    suite = await make_suite([scheduler])
    (item,) = (await suite.client.post("Classify", {"input": "a"})).json["data"]
    assert (item["label"], item["probs"], item["num_classes"]) == ("yes", [0.25, 0.75], 2)
    typed = await suite.client.inference.Classify(
        embed_pb2.ClassifyRequest(inputs=[embed_pb2.PoolingInput(text="a")])
    )
    assert (typed.classifications[0].label, list(typed.labels)) == ("yes", ["no", "yes"])


async def test_pooling(make_suite: Callable[..., Any]) -> None:
    """Rows of token vectors, or whatever the model makes where no task is named."""
    suite = await make_suite([_embedder(vector_of=lambda s: [1.0, 2.0] * len(s.prompt_token_ids))])
    rows = await suite.client.post("Pooling", {"input": "a", "task": "token_embed"})
    assert rows.json["data"][0]["data"] == [[1.0, 2.0], [1.0, 2.0]]
    cross = await make_suite([FakeScheduler(tasks=CROSS, labels=["LABEL_0"])])
    assert (await cross.client.post("Pooling", {"input": "a"})).json["data"][0]["data"] == [2.0]


async def test_typed_calls(embedder: Any) -> None:
    """Embed, Score and Rerank in the contract's words; refusals name its fields."""
    stub = embedder.client.inference
    inputs = [
        embed_pb2.PoolingInput(text="b"), embed_pb2.PoolingInput(token_ids={"ids": [1]}),
    ]  # fmt: skip
    answer = await stub.Embed(embed_pb2.EmbedRequest(inputs=inputs))
    assert [list(item.values) for item in answer.embeddings] == [[1.0, 0.0], pytest.approx([0.6, 0.8])]
    assert [item.num_tokens for item in answer.embeddings] == [2, 1]
    score = await stub.Score(embed_pb2.ScoreRequest(first_texts=["b"], second_texts=["d", "c"]))
    assert list(score.scores) == pytest.approx([1.0, 0.6])
    ranking = await stub.Rerank(
        embed_pb2.RerankRequest(query="b", documents=["c", "d"], return_documents=True)
    )
    assert [(item.index, item.document) for item in ranking.results] == [(1, "d"), (0, "c")]
    for request, words in (
        (embed_pb2.EmbedRequest(inputs=inputs, num_dimensions=3), "num_dimensions must be from 1 to 2"),
        (embed_pb2.EmbedRequest(inputs=[embed_pb2.PoolingInput()]), r"inputs\[0\] is missing"),
        (embed_pb2.EmbedRequest(), "inputs must be 1 to 2048"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await stub.Embed(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_engine_with_a_tokenizer_of_its_own(started: Callable[..., Any]) -> None:
    """Each engine is checked against its own tokenizer, and its texts are encoded by it; readiness wants both."""
    shared, own = await started(FakeTokenizer()), await started(FakeTokenizer(fingerprint="e" * 64))
    chat, embedder = await started(FakeScheduler()), await started(_embedder(model_id="embedder"))
    settings = GatewaySettings(
        listen="127.0.0.1:0",
        tokenizers=shared.address,
        schedulers=f"{chat.address},{embedder.address}",
        engine_tokenizers=f"{embedder.address}={own.address}",
        resume_timeout_s=0.2,
    )
    gateway = Gateway(settings, Metrics("gateway"))
    await gateway.start()
    try:
        while not gateway.server.health.ready:
            await asyncio.sleep(0.005)
        assert len(gateway.pool.ready_addresses) == 2
        assert chat.servicer.hellos[0].tokenizer_fingerprint == "f" * 64
        assert embedder.servicer.hellos[0].tokenizer_fingerprint == "e" * 64
        await shared.kill()
        async with grpc.aio.insecure_channel(gateway.server.address) as channel:
            stub = inference_service_pb2_grpc.InferenceStub(channel)
            inputs = [embed_pb2.PoolingInput(text="a")]
            assert (await stub.Embed(embed_pb2.EmbedRequest(inputs=inputs))).model == "embedder"
            answer = await stub.Tokenize(tokens_pb2.TokenizeRequest(model="embedder", text="a"))
            assert list(answer.token_ids) == [BOS, 97]
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.Tokenize(tokens_pb2.TokenizeRequest(model="fake", text="a"))
    finally:
        await gateway.close()


async def test_a_scheduler_that_is_not_there_has_no_tokenizer() -> None:
    """A pair that names none of the schedulers, or is none, is refused at the start."""
    for pair in ("127.0.0.1:1=127.0.0.1:2", "127.0.0.1:8083"):
        with pytest.raises(ValueError, match="127.0.0.1"):
            GatewaySettings(engine_tokenizers=pair)
