"""fp8: weights rounded while they are read, checkpoints that hold them, and an fp8 pool, all on the plain kernels."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quire_kernels.linear.rows import WeightRows
from quire_worker.cuda.build import build_runner
from quire_worker.cuda.fp8_weight import Fp8Weight
from quire_worker.cuda.model import Loaded
from quire_worker.cuda.placement import DevicePlacement
from quire_worker.cuda.plain import PlainKernels
from quire_worker.loading.dummy import open_dummy
from quire_worker.loading.fp8 import Fp8Rows, RowsForFp8, kv_scales, rounded_to_fp8, with_quantization
from quire_worker.loading.open import open_model
from quire_worker.models.decoder import load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.slots import SlotLimits

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 304,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
LIMITS = SlotLimits(max_num_seqs=6, max_model_len=256, block_size=16, num_blocks=100)
CPU = torch.device("cpu")
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized"}


class Blocking:
    """A DeviceRunner behind the interface of ModelRunner."""

    def __init__(self, built):
        self.built = built

    def execute(self, plan):
        return self.built.runner.finish(self.built.runner.launch(plan))

    def reset(self):
        self.built.runner.reset()


def runner(files, **options):
    spec = spec_from_config(files.config, "LlamaForCausalLM")
    place = DevicePlacement(CPU, torch.float32)
    weights = load_weights(spec, files.source, place, lambda done, total: None)
    loaded = Loaded(spec, weights, PlainKernels(), CPU, torch.float32, **options)
    return Blocking(build_runner(loaded, LIMITS, 512, 16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with nothing but a config."""
    path = tmp_path_factory.mktemp("fp8")
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def checkpoint(path, *, per_row, input_scale=None, extra=None, method=None):
    """An fp8 checkpoint of random weights; returns what its matrices stand for."""
    (path / "config.json").write_text(json.dumps(CONFIG))
    source = open_dummy(str(path), is_lazy=False).source
    (path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": method or COMPRESSED}))
    tensors, wide = {}, {}
    for name in source.names():
        if "norm" in name:
            tensors[name] = torch.from_numpy(source.vector(name))
            continue
        values = torch.from_numpy(source.matrix(name).to_float32())
        wide[name] = values
        if ".layers." not in name:
            tensors[name] = values
            continue
        scale = values.abs().amax(1, keepdim=True) / 448 if per_row else values.abs().max()[None] / 448
        tensors[name] = (values / scale).to(torch.float8_e4m3fn)
        tensors[name + "_scale"] = scale
        wide[name] = tensors[name].float() * scale
        if input_scale is not None:
            tensors[name.removesuffix("weight") + "input_scale"] = torch.tensor([input_scale])
    save_file(tensors | (extra or {}), path / "model.safetensors")
    return wide


def prompt(length, salt=1):
    return [(7 * i * salt + 13 * salt) % 300 for i in range(length)]


def test_rounding_keeps_each_row_within_a_sixteenth():
    """Each row's largest value is exact, and no value is off by more than half a step of three bits."""
    values = torch.randn(5, 64) * 2.0 ** torch.arange(-8, 2, 2)[:, None]
    rounded, scale = rounded_to_fp8(values)
    back = rounded.float() * scale[:, None]
    assert torch.allclose(back.abs().amax(1), values.abs().amax(1))
    assert ((back - values).abs() <= values.abs() / 15 + scale[:, None] * 2**-9).all()
    assert not rounded_to_fp8(torch.zeros(2, 16))[0].float().any()


def test_rounded_weights_give_the_tokens_of_the_expanded_ones(folder, planner, job):
    """What is kept in fp8 computes as the same values in float32 do, and not as the weights before rounding."""
    tokens = []
    for keep in (True, False):
        files = with_quantization(open_dummy(str(folder), is_lazy=True), "fp8", keep=keep)
        ours = runner(files)
        kind = Fp8Weight if keep else torch.Tensor
        weights = ours.built.runner._model.loaded.weights
        assert isinstance(weights.layers[1].down, kind)
        assert isinstance(weights.head, torch.Tensor)
        tokens.append(planner(ours).run(job(prompt(70), 12), job(prompt(9, 3), 12)))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("per_row", [True, False])
def test_a_checkpoint_in_fp8_is_read_with_its_scales(tmp_path, planner, job, per_row):
    """Scales of a tensor and of its rows; the head and the embedding stay wide."""
    wide = checkpoint(tmp_path, per_row=per_row, input_scale=0.125)
    files = with_quantization(open_model(str(tmp_path)), "auto", keep=True)
    name = "model.layers.0.mlp.down_proj.weight"
    rows = files.source.matrix(name)
    assert isinstance(rows, Fp8Rows)
    assert rows.input_scale == 0.125
    np.testing.assert_allclose(rows.to_float32(), wide[name].numpy(), rtol=1e-6)
    expanded = with_quantization(open_model(str(tmp_path)), "none", keep=True)
    assert type(expanded.source.matrix(name)) is WeightRows
    runs = [planner(runner(each)).run(job(prompt(70), 12)) for each in (files, expanded)]
    assert runs[0] == runs[1]


def test_a_fused_matrix_takes_the_widest_static_scale(tmp_path):
    """Query, key and value projections see the same activations."""
    checkpoint(tmp_path, per_row=False)
    source = with_quantization(open_model(str(tmp_path)), "auto", keep=True).source
    parts = [source.matrix(f"model.layers.0.self_attn.{name}_proj.weight") for name in "qkv"]
    parts = [
        Fp8Rows(part.data, part.scale, fixed) for part, fixed in zip(parts, (0.1, 0.4, 0.2), strict=True)
    ]
    weight = DevicePlacement(CPU, torch.float32).fused(parts)
    assert weight.input_scale.item() == pytest.approx(0.4)
    assert len(weight) == len(weight.scale) == 128
    assert DevicePlacement(CPU, torch.float32).fused([parts[0], RowsForFp8(parts[1])]).input_scale is None


def test_what_is_not_read_is_refused_by_name(tmp_path):
    """Another method, scales of blocks, and a matrix without a scale."""
    checkpoint(tmp_path, per_row=True, method={"quant_method": "awq"})
    with pytest.raises(ValueError, match="'awq' is not supported, only compressed-tensors, fp8"):
        with_quantization(open_model(str(tmp_path)), "auto", keep=True)
    checkpoint(tmp_path, per_row=True)
    source = with_quantization(open_model(str(tmp_path)), "auto", keep=True).source
    name = "model.layers.0.mlp.down_proj"
    source._all.discard(name + ".weight_scale")
    with pytest.raises(ValueError, match="no model.layers.0.mlp.down_proj.weight_scale"):
        source.matrix(name + ".weight")
    with pytest.raises(ValueError, match="multiples of 16"):
        DevicePlacement(CPU, torch.float32).fused(
            [RowsForFp8(WeightRows("f32", 8, np.ones((16, 8), np.float32)))]
        )


def test_scales_of_blocks_are_expanded_or_refused(tmp_path):
    """They can't be kept; quantization none gives the values that they stand for."""
    name = "model.layers.0.mlp.down_proj"
    scale = torch.rand(2, 4) + 0.5
    checkpoint(tmp_path, per_row=True, extra={name + ".weight_scale_inv": scale})
    for keep in (True, False):
        source = with_quantization(open_model(str(tmp_path)), "auto", keep=keep).source
        bits = source._source.matrix(name + ".weight")
        source._all.discard(name + ".weight_scale")
        if keep:
            with pytest.raises(ValueError, match="scales of blocks"):
                source.matrix(name + ".weight")
            continue
        expected = bits.to_float32() * np.kron(scale.numpy(), np.ones((32, 32), np.float32))
        np.testing.assert_allclose(source.matrix(name + ".weight").to_float32(), expected, rtol=1e-6)


def test_an_fp8_pool_gives_nearly_the_attention_of_a_wide_one(tmp_path, planner, job):
    """Blocks take a quarter of float32's bytes, the checkpoint's scales are used, and copies of blocks are exact."""
    layers = range(CONFIG["num_hidden_layers"])
    extra = {
        f"model.layers.{i}.self_attn.{kind}_scale": torch.tensor([2.0**-6]) for i in layers for kind in "kv"
    }
    checkpoint(tmp_path, per_row=True, extra=extra)
    files = with_quantization(open_model(str(tmp_path)), "auto", keep=True)
    scales = kv_scales(files, 2)
    assert scales == ((2.0**-6, 2.0**-6),) * 2
    narrow = runner(files, kv_dtype=torch.float8_e4m3fn, kv_scales=scales)
    wide = runner(files)
    assert narrow.built.pool.nbytes * 4 == wide.built.pool.nbytes
    plan, source = planner(narrow), job(prompt(20), 4)
    expected = plan.run(source)[0]
    held = narrow.built.pool.float() * 2.0**-6
    planner(wide).run(job(prompt(20), 1))
    theirs = wide.built.pool[:, 1:3]
    written = theirs != 0
    assert ((held[:, 1:3] - theirs).abs() <= theirs.abs() / 12 + 2e-3)[written].float().mean() > 0.95
    target = plan.take_blocks(32)
    again = job(prompt(20), 3, cached=19, block_ids=[*target])
    narrow.built.pool.view(torch.uint8)[:, target] = narrow.built.pool.view(torch.uint8)[:, source.block_ids]
    assert plan.run(again)[0] == expected[:3]
