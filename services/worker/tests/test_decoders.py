"""Tiny random models of every architecture: our logits and greedy tokens are transformers'."""

import subprocess
import sys

import pytest
import torch
import transformers

_SIZES = {
    "vocab_size": 160, "hidden_size": 96, "intermediate_size": 144, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256,
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 5000.0,
}  # fmt: skip
_MODELS = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama with biases": ("Llama", {"attention_bias": True}),
    "llama3 rope": ("Llama", {"rope_parameters": _LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "qwen2": ("Qwen2", {}),
    "qwen2 with a window in its last layers": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral with a window": ("Mistral", {"sliding_window": 20}),
}  # fmt: skip


def _save(folder, family, changes, dtype=torch.float32):
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**(_SIZES | changes))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # transformers starts biases at 0 and norms at 1: a test must notice when they are left out.
            if name.endswith(("bias", "norm.weight")):
                parameter += torch.randn_like(parameter) * 0.3
    model.to(dtype).save_pretrained(folder)
    return model.float()


def _reference(model, prompt, count):
    """Greedy tokens and the logits they were taken from."""
    tokens, rows = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            rows.append(model(torch.tensor([tokens])).logits[0, -1])
            tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(rows)


@pytest.mark.parametrize("attention", ["cpu", "torch"])
@pytest.mark.parametrize("name", _MODELS)
def test_equals_transformers(tmp_path, load_path, planner, job, name, attention):
    """Logits agree within 1e-4 and greedy tokens are equal, on the CPU kernels and in plain torch."""
    model = _save(tmp_path, *_MODELS[name])
    prompt = [(7 * i + 3) % 160 for i in range(41)]
    expected, logits = _reference(model, prompt, 12)
    runner = load_path(tmp_path, attention=attention).runner(num_blocks=20)
    rows, forward, run = [], runner.forward_for_tests, runner.forward_for_tests.run

    def recording_run():
        run()
        rows.extend(torch.from_numpy(forward.logits().copy()))

    forward.run = recording_run
    assert planner(runner).run(job(prompt, 12), chunk=17)[0] == expected
    torch.testing.assert_close(torch.stack(rows), logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_stay_exact(tmp_path, load_path, planner, job, dtype):
    """Weights stored in 16 bits are computed with as they are, in float32."""
    model = _save(tmp_path, "Llama", {}, dtype)
    prompt = list(range(30))
    assert (
        planner(load_path(tmp_path).runner(num_blocks=20)).run(job(prompt, 10))[0]
        == _reference(model, prompt, 10)[0]
    )


def test_sharded_files(tmp_path, load_path, planner, job):
    """A model in several safetensors files, listed in an index, is read like one in a single file."""
    model = _save(tmp_path, "Qwen3", {})
    prompt = list(range(20))
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert (
        planner(load_path(tmp_path).runner(num_blocks=20)).run(job(prompt, 6))[0]
        == _reference(model, prompt, 6)[0]
    )


def test_batched_equals_alone_to_the_bit(tmp_path, load_path, planner, job):
    """On the CPU kernels a sequence's log-probabilities do not change by a bit with what runs beside it."""
    _save(tmp_path, "Llama", {})
    loaded = load_path(tmp_path)
    prompts = [[(5 * i + k) % 160 for i in range(10 + 13 * k)] for k in range(6)]

    def logits_of(*indices, chunk=10**9):
        runner, seen = loaded.runner(num_blocks=60), {}
        forward, run, batch = runner.forward_for_tests, runner.forward_for_tests.run, runner._batch

        def recording_run():
            run()
            for slot, row in zip(batch.sample_slots.tolist(), forward.logits(), strict=True):
                seen.setdefault(indices[slot], []).append(row.copy())

        forward.run = recording_run
        planner(runner).run(*(job(prompts[index], 5) for index in indices), chunk=chunk)
        return seen

    together = logits_of(*range(6), chunk=11)
    for index in range(6):
        for row, alone in zip(together[index], logits_of(index)[index], strict=True):
            assert (row == alone).all()


def test_runs_without_the_compiler(tmp_path):
    """Where numba can't be imported the same executor loads, warms up and runs in plain torch."""
    _save(tmp_path, "Llama", {})
    script = (
        "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"
        "from quire_worker.executor import ModelSource, PoolRequest\n"
        "from quire_worker.model_executor import ModelExecutor, ModelExecutorSettings\n"
        "executor = ModelExecutor(ModelExecutorSettings())\n"
        f"print(executor.load(ModelSource({str(tmp_path)!r}), lambda progress: None).num_parameters)\n"
        "print(executor.allocate(PoolRequest()).block_size)\n"
        "executor.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split()[1:] == ["16"], done.stderr
