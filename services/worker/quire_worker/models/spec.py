"""DecoderSpec: everything that distinguishes one dense decoder from another. Plain data; knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding over the whole head, halves paired.

    kind: default; linear (positions divided by factor); llama3 (low frequencies divided, with a ramp between);
    factors (each frequency divided by its own number, as GGUF files store llama3 and longrope).
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A dense decoder: embedding, layers of (norm, attention, norm, gated MLP) with residuals, norm, output.

    windows: per layer how many tokens a token sees, itself included; 0 is all (layer pattern of full and sliding).
    norm_offset: the norm multiplies by (offset + weight). head_dim need not be hidden_size / num_heads.
    Fields below the line name what other decoders do; the decoder refuses a value it does not implement, by name.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    norm_eps: float
    rope: RopeSpec = field(default_factory=RopeSpec)
    windows: tuple[int, ...] = ()
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    # ----
    norm: Literal["rms", "layer"] = "rms"
    norm_place: Literal["pre", "post", "sandwich"] = "pre"
    norm_offset: float = 0.0
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False
    parallel_residual: bool = False
    attention_soft_cap: float = 0.0
    logit_soft_cap: float = 0.0
    attention_sinks: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_scale: float = 0.0

    def __post_init__(self) -> None:
        sizes = ("num_layers", "hidden_size", "intermediate_size", "vocab_size", "max_model_len")
        for name in (*sizes, "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.architecture}: {name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.architecture}: num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(f"{self.architecture}: {len(self.windows)} windows for {self.num_layers} layers")
        self._refuse_unimplemented()

    def _refuse_unimplemented(self) -> None:
        implemented = {
            "norm": "rms", "norm_place": "pre", "norm_offset": 0.0, "activation": "silu", "gated_mlp": True,
            "mlp_bias": False, "parallel_residual": False, "attention_soft_cap": 0.0, "logit_soft_cap": 0.0,
            "attention_sinks": False, "embedding_scale": 1.0, "residual_scale": 1.0, "logit_scale": 1.0,
            "attention_scale": 0.0,
        }  # fmt: skip
        for name, value in implemented.items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{self.architecture}: {name} = {getattr(self, name)!r} is not supported, only {value!r}"
                )

    def window(self, layer: int) -> int:
        """Window of a layer; 0 is all."""
        return self.windows[layer] if self.windows else 0

    @property
    def qkv_size(self) -> int:
        """Outputs of the fused query, key and value projection."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def scale(self) -> float:
        """What attention scores are multiplied by."""
        return float(self.head_dim**-0.5)

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * element_bytes
