"""EncoderSpec: everything that distinguishes one bidirectional encoder from another. Plain data; knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire_worker.pooling.vectors import Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """A head that turns the first token's hidden state into values of classes.

    dense, output: names of its two projections, with a tanh between them. labels: names of the classes by index.
    activation: what makes probabilities of the values unless a request says otherwise.
    """

    dense: str
    output: str
    labels: tuple[str, ...]
    activation: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A post-norm encoder with learned positions: embedding, norm, layers of (attention, norm, MLP, norm).

    prefix: what the tensors' names may begin with. position_offset: row of the position table for the first token.
    max_model_len: longest text, tokens. num_token_types: rows of the token type table. classifier: None for embeddings.
    """

    architecture: str
    prefix: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    max_positions: int
    position_offset: int
    max_model_len: int
    num_token_types: int
    norm_eps: float
    activation: Literal["gelu", "gelu_new", "relu", "silu"] = "gelu"
    classifier: ClassifierSpec | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "intermediate_size",
            "vocab_size",
            "num_heads",
            "max_model_len",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{self.architecture}: {name} must be at least 1, got {getattr(self, name)}")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"{self.architecture}: hidden_size {self.hidden_size} is no multiple of num_heads {self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        """Values of one head."""
        return self.hidden_size // self.num_heads
