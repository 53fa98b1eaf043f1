"""Loading: what files say, what is refused and how progress is reported."""

import json
from dataclasses import replace

import numpy as np
import pytest

from quire_worker.executor import PoolRequest, PoolTooLarge
from quire_worker.loading.gguf_file import GgufFile
from quire_worker.loading.open import default_sampling, eos_token_ids, fingerprint, open_model, served_name
from quire_worker.loading.source import ModelFiles
from quire_worker.models.decoder import load_weights
from quire_worker.models.registry import spec_from_config
from quire_worker.models.rope import rope_tables
from quire_worker.models.spec import DecoderSpec, RopeSpec
from quire_worker.sizing import free_host_bytes, plan_pool

_CONFIG = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128,
    "num_attention_heads": 2, "vocab_size": 100, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip


def _spec(**changes):
    return spec_from_config(_CONFIG | changes, changes.pop("architecture", "LlamaForCausalLM"))


def test_gguf_metadata_becomes_a_config(smollm2_path):
    """SmolLM2's GGUF metadata gives the spec of its Hugging Face config."""
    files = open_model(str(smollm2_path))
    spec = spec_from_config(files.config, "LlamaForCausalLM")
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert (spec.vocab_size, spec.max_model_len, spec.rope.theta, spec.tied_embeddings) == (
        49152,
        8192,
        1e5,
        True,
    )
    assert eos_token_ids(files) == [2]
    assert served_name(files) == "SmolLM2-135M-Instruct.Q4_1"


def test_progress_counts_every_byte(smollm2_path):
    """Progress rises with each tensor and ends at the total."""
    files = open_model(str(smollm2_path))
    seen = []

    class Nowhere:
        fused = gated = vector = staticmethod(lambda *parts: None)

    load_weights(
        spec_from_config(files.config, "LlamaForCausalLM"),
        files.source,
        Nowhere(),
        lambda *step: seen.append(step),
    )
    done = [step[0] for step in seen]
    assert done == sorted(done) and seen[-1] == (files.source.total_bytes, files.source.total_bytes)


def test_query_rows_are_put_back(smollm2_path):
    """GGUF interleaves rotary pairs: row 1 of a head comes back as row head_dim / 2."""
    files = open_model(str(smollm2_path))
    name = "model.layers.0.self_attn.q_proj.weight"
    raw = GgufFile(smollm2_path).tensors["blk.0.attn_q.weight"].data
    ours = files.source.matrix(name).data
    np.testing.assert_array_equal(ours[[0, 1, 32, 33, 64]], raw[[0, 2, 1, 3, 64]])


@pytest.mark.parametrize("cut", [3, 20, 1000, 2_000_000, 50_000_000])
def test_cut_off_gguf_is_refused(smollm2_path, tmp_path, cut):
    """A file that ends anywhere too early is a ValueError that names it."""
    broken = tmp_path / "broken.gguf"
    with smollm2_path.open("rb") as whole:
        broken.write_bytes(whole.read(cut))
    with pytest.raises(ValueError, match=r"broken\.gguf"):
        GgufFile(broken)


def test_missing_and_unknown_files(tmp_path):
    """A path that is not there is FileNotFoundError; one that is no model is a ValueError."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_model(str(tmp_path / "nowhere"))
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ValueError, match="neither"):
        open_model(str(tmp_path / "model.bin"))
    (tmp_path / "config.json").write_text(json.dumps(_CONFIG))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architecture": "MambaForCausalLM"}, "MambaForCausalLM"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ({"num_key_value_heads": 3, "num_attention_heads": 4}, "num_kv_heads"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused_by_name(config, named):
    """A setting that would change the arithmetic is never ignored."""
    with pytest.raises(ValueError, match=named):
        _spec(**config)


@pytest.mark.parametrize(
    "change",
    [
        {"norm_place": "post"},
        {"logit_soft_cap": 30.0},
        {"attention_sinks": True},
        {"parallel_residual": True},
    ],
)
def test_spec_refuses_what_is_not_implemented(change):
    """The spec has words for what other decoders do, and says so when one is used."""
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(_spec(), **change)


def test_tensors_without_a_place_are_refused():
    """A file with more tensors than the decoder has, or fewer, is not run."""

    class Source:
        total_bytes = 0
        names = staticmethod(lambda: ["model.embed_tokens.weight", "surprise"])
        matrix = vector = staticmethod(lambda name: None)
        num_bytes = staticmethod(lambda name: 0)

    class Nowhere:
        fused = gated = vector = staticmethod(lambda *parts: None)

    with pytest.raises(ValueError, match=r"model\.layers\.0\.input_layernorm"):
        load_weights(_spec(), Source(), Nowhere(), lambda *step: None)


def test_generation_config_gives_defaults_and_every_eos():
    """Sampling defaults and all end-of-sequence ids come from generation_config, then from config."""
    generation = {"temperature": 0.6, "top_k": 20, "max_length": 10, "eos_token_id": [5, 6]}
    files = ModelFiles("folder", _CONFIG | {"eos_token_id": 6}, generation, source=None)
    assert default_sampling(files) == {"temperature": 0.6, "top_k": 20}
    assert eos_token_ids(files) == [5, 6]


def test_fingerprint_depends_on_files_not_on_their_order():
    """Two workers of one model agree; another size or vocabulary differs."""
    files = ModelFiles("a", {}, {}, None, (("x", 1), ("y", 2)))
    same = ModelFiles("b", {}, {}, None, (("y", 2), ("x", 1)))
    other = ModelFiles("a", {}, {}, None, (("x", 1), ("y", 3)))
    assert fingerprint(files, 10) == fingerprint(same, 10)
    assert len({fingerprint(files, 10), fingerprint(files, 11), fingerprint(other, 10)}) == 3


def test_rope_factors_divide_frequencies():
    """Factors stored in a file divide each frequency."""
    plain = rope_tables(RopeSpec(), 8, 5)
    halved = rope_tables(RopeSpec(kind="factors", factors=(2.0,) * 4), 8, 9)
    np.testing.assert_allclose(halved[0][::2], plain[0], atol=1e-6)


def _plan(request=None, **memory):
    spec = DecoderSpec(
        architecture="x", num_layers=4, hidden_size=64, intermediate_size=64, vocab_size=10, num_heads=2,
        num_kv_heads=1, head_dim=32, max_model_len=1024, norm_eps=1e-5,
    )  # fmt: skip
    # A block of 16 tokens: 2 * 4 layers * 32 * 4 bytes * 16 = 16 KiB; a sequence of 1024 tokens takes 64 of them.
    return plan_pool(spec, request or PoolRequest(), element_bytes=4, **({"free_bytes": 1 << 30} | memory))


def test_pool_fills_its_budget():
    """As many blocks as the budget holds, and not more than every slot could use."""
    assert _plan(budget_bytes=10 << 20).num_blocks == 640
    assert _plan(PoolRequest(max_num_seqs=2, max_tokens_per_step=64)).num_blocks == 1 + 2 * 64


def test_pool_refusal_names_the_numbers():
    """A budget below one longest sequence is refused with what is needed and what there is."""
    with pytest.raises(PoolTooLarge, match=r"1024 tokens needs 65 blocks.*16384 bytes.*1 MiB = 64 blocks"):
        _plan(budget_bytes=1 << 20)
    with pytest.raises(PoolTooLarge, match="1000000 blocks need"):
        _plan(PoolRequest(num_blocks=1000000))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (PoolRequest(max_model_len=2048), "max_model_len 2048"),
        (PoolRequest(block_size=20), "block_size"),
        (PoolRequest(max_num_seqs=64, max_tokens_per_step=32), "max_tokens_per_step 32"),
    ],
)
def test_impossible_sizes_are_refused(request_, named):
    """Sizes that contradict the model or each other are a ValueError."""
    with pytest.raises(ValueError, match=named):
        _plan(request_)


def test_free_memory_is_read():
    """The machine's free memory is a sensible number of bytes."""
    assert 10 << 20 < free_host_bytes() < 1 << 50
