"""Embeddings of a generative model: transformers' hidden states, whatever the chunks and whatever runs beside them."""

import numpy as np
import pytest
import torch
import transformers

from quire_worker.pooling.collector import PoolingCollector
from quire_worker.pooling.params import PoolingDefaults, PoolingMethod, PoolingParams, PoolingTask
from quire_worker.step import NewSequence, SamplingParams, StepPlan

_PROMPT = [(7 * i + 3) % 160 for i in range(41)]


def _save(folder):
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=160, hidden_size=96, intermediate_size=144, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter += torch.randn_like(parameter) * 0.3
    model.save_pretrained(folder)
    return model


def _runner(loaded, method):
    runner = loaded.runner(num_blocks=40)
    runner._collector = PoolingCollector(PoolingDefaults(method))
    return runner


def _pooled(slot, params, first_block):
    blocks = list(range(first_block, first_block + 3))
    return NewSequence(slot, _PROMPT, len(_PROMPT), 0, blocks, SamplingParams(), pooling=params)


@pytest.mark.parametrize("attention", ["cpu", "torch"])
@pytest.mark.parametrize("method", list(PoolingMethod))
def test_equals_transformers_in_chunks(tmp_path, load_path, method, attention):
    """Mean, first and last token in three chunks beside a sequence that generates, which goes on undisturbed."""
    model = _save(tmp_path)
    with torch.no_grad():
        hidden = model.model(torch.tensor([_PROMPT]))[0][0]
        greedy = int(model(torch.tensor([_PROMPT])).logits[0, -1].argmax())
    row = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[method.value]
    expected = torch.nn.functional.normalize(row, dim=0).numpy()
    runner = _runner(load_path(tmp_path, attention=attention), method)
    generating = NewSequence(1, _PROMPT, len(_PROMPT), 0, [4, 5, 6], SamplingParams(temperature=0.0))
    new = [_pooled(0, PoolingParams(PoolingTask.EMBED), 1), generating]
    outcomes = [
        runner.execute(StepPlan(1, [0, 1], [17, 41], new_sequences=new)),
        runner.execute(StepPlan(2, [0, 1], [17, 1])),
        runner.execute(StepPlan(3, [0, 1], [7, 1])),
    ]
    assert [outcome.slots for outcome in outcomes] == [[1], [1], [1]]
    assert outcomes[0].token_ids == [greedy]
    assert [outcome.pooled is None for outcome in outcomes] == [True, True, False]
    assert outcomes[2].pooled.slots == [0]
    assert np.abs(outcomes[2].pooled.vectors[0] - expected).max() < 2e-5
    # The slot is free again for a sequence that samples.
    again = NewSequence(0, _PROMPT, len(_PROMPT), 0, [1, 2, 3], SamplingParams(temperature=0.0))
    outcome = runner.execute(StepPlan(4, [0, 1], [41, 1], released_slots=[0], new_sequences=[again]))
    assert outcome.token_ids[0] == greedy
    assert outcome.pooled is None


def test_embeddings_of_tokens_in_chunks(tmp_path, load_path):
    """One vector per token, gathered over the chunks."""
    model = _save(tmp_path)
    with torch.no_grad():
        hidden = model.model(torch.tensor([_PROMPT]))[0][0]
    runner = _runner(load_path(tmp_path), PoolingMethod.LAST)
    params = PoolingParams(PoolingTask.TOKEN_EMBED, normalize=False)
    runner.execute(StepPlan(1, [0], [30], new_sequences=[_pooled(0, params, 1)]))
    (vector,) = runner.execute(StepPlan(2, [0], [11])).pooled.vectors
    assert np.abs(vector.reshape(41, 96) - hidden.numpy()).max() < 2e-4


def test_refuses_what_it_is_not_served_for(tmp_path, load_path):
    """A vector of a model without pooling, and classes of one without any, are errors of the plan."""
    _save(tmp_path)
    loaded = load_path(tmp_path)
    for runner, task in (
        (loaded.runner(num_blocks=40), PoolingTask.EMBED),
        (_runner(loaded, PoolingMethod.LAST), PoolingTask.CLASSIFY),
    ):
        with pytest.raises(ValueError, match=task.name):
            runner.execute(StepPlan(1, [0], [41], new_sequences=[_pooled(0, PoolingParams(task), 1)]))
