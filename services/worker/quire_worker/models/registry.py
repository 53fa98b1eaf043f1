"""Architecture name -> how its Hugging Face config becomes a DecoderSpec. About as many lines as the config has quirks.

More architectures come from other packages through the entry-point group `quire.architectures`: each entry is named
as the architecture and loads a function from (config, architecture name) to a DecoderSpec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from quire_worker.models.spec import DecoderSpec, RopeSpec

Config = Mapping[str, Any]
SpecFunction = Callable[[Config, str], DecoderSpec]

ENTRY_POINT_GROUP: Final = "quire.architectures"


def spec_from_config(config: Config, architecture: str) -> DecoderSpec:
    """The spec of a model. ValueError names the architecture or the setting that is not supported."""
    function = _BUILT_IN.get(architecture)
    if function is None:
        plugins = {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
        if architecture not in plugins:
            known = sorted({*_BUILT_IN, *plugins})
            raise ValueError(f"architecture {architecture!r} is not supported; supported are {known}")
        function = plugins[architecture].load()
    spec: DecoderSpec = function(config, architecture)
    return spec


def _llama(config: Config, architecture: str) -> DecoderSpec:
    return _dense(
        config,
        architecture,
        qkv_bias=bool(config.get("attention_bias", False)),
        output_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
    )


def _mistral(config: Config, architecture: str) -> DecoderSpec:
    return _dense(config, architecture, windows=_windows(config, every_layer=True))


def _qwen2(config: Config, architecture: str) -> DecoderSpec:
    return _dense(config, architecture, qkv_bias=True, windows=_windows(config, every_layer=False))


def _qwen3(config: Config, architecture: str) -> DecoderSpec:
    bias = bool(config.get("attention_bias", False))
    return _dense(
        config,
        architecture,
        qk_norm=True,
        qkv_bias=bias,
        output_bias=bias,
        windows=_windows(config, every_layer=False),
    )


_BUILT_IN: Final[dict[str, SpecFunction]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}


def _dense(config: Config, architecture: str, **quirks: Any) -> DecoderSpec:
    """What these families share; anything in the config that would change the arithmetic is read or refused."""
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    if float(config.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError(
            f"{architecture}: partial_rotary_factor {config['partial_rotary_factor']} is not supported"
        )
    for name in ("num_experts", "num_local_experts", "quantization_config"):
        if config.get(name):
            raise ValueError(f"{architecture}: {name} is not supported")
    return DecoderSpec(
        architecture=architecture,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        max_model_len=int(config["max_position_embeddings"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, architecture),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        activation=config.get("hidden_act", "silu"),
        **quirks,
    )


def _rope(config: Config, architecture: str) -> RopeSpec:
    """Reads both spellings: rope_theta with rope_scaling, and rope_parameters (transformers 5)."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=float(scaling["factor"]))
    if kind == "factors":
        return RopeSpec(theta=theta, kind="factors", factors=tuple(scaling["factors"]))
    if kind == "llama3":
        return RopeSpec(
            theta=theta,
            kind="llama3",
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_position=int(scaling["original_max_position_embeddings"]),
        )
    raise ValueError(f"{architecture}: rope type {kind!r} is not supported")


def _windows(config: Config, *, every_layer: bool) -> tuple[int, ...]:
    """Sliding windows by layer: from layer_types where the config has them, else from the family's older keys."""
    window = config.get("sliding_window")
    num_layers = int(config["num_hidden_layers"])
    if not window or (not every_layer and not config.get("use_sliding_window", False)):
        return ()
    kinds = config.get("layer_types")
    if kinds:
        return tuple(int(window) if kind == "sliding_attention" else 0 for kind in kinds)
    first = 0 if every_layer else int(config.get("max_window_layers", 0))
    return tuple(int(window) if layer >= first else 0 for layer in range(num_layers))
