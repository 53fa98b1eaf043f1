"""The encoder's forward pass: one for every model an EncoderSpec describes, in plain torch on any device.

Texts of a step lie one behind the other, without padding; each attends to itself alone. Legend: T tokens of the step,
H hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from quire_worker.encoders.spec import EncoderSpec
from quire_worker.encoders.weights import EncoderLayer, EncoderWeights, Linear, Norm

_ACTIVATIONS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class Encoder:
    """A loaded encoder."""

    def __init__(self, spec: EncoderSpec, weights: EncoderWeights) -> None:
        self.spec = spec
        self._weights = weights
        self._activation = _ACTIVATIONS[spec.activation]

    @torch.inference_mode()
    def hidden(
        self, token_ids: torch.Tensor, token_types: torch.Tensor, lengths: Sequence[int]
    ) -> torch.Tensor:
        """Hidden states of the last layer, [T, H], of texts with these lengths. token_ids, token_types: [T] int64."""
        weights, spec = self._weights, self.spec
        positions = torch.cat([torch.arange(length) for length in lengths]) + spec.position_offset
        x = weights.words[token_ids] + weights.positions[positions.to(token_ids.device)]
        if weights.token_types is not None:
            x = x + weights.token_types[token_types]
        x = self._norm(x, weights.embedding_norm)
        for layer in weights.layers:
            x = self._layer(x, layer, lengths)
        return x

    @torch.inference_mode()
    def class_logits(self, first: torch.Tensor) -> torch.Tensor:
        """Values of the classes, [num_texts, num_labels], of the texts' first hidden states [num_texts, H]."""
        assert self._weights.classifier is not None
        dense, output = self._weights.classifier
        return _linear(torch.tanh(_linear(first, dense)), output)

    def _layer(self, x: torch.Tensor, layer: EncoderLayer, lengths: Sequence[int]) -> torch.Tensor:
        attended = self._attend(_linear(x, layer.qkv), lengths)
        x = self._norm(x + _linear(attended, layer.output), layer.attention_norm)
        inner = self._activation(_linear(x, layer.up))
        return self._norm(x + _linear(inner, layer.down), layer.mlp_norm)

    def _attend(self, qkv: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Attention of each text to itself; runs of equal lengths go in one call."""
        spec = self.spec
        parts = qkv.view(len(qkv), 3, spec.num_heads, spec.head_dim)
        outputs, start = [], 0
        for length, count in _runs(lengths):
            end = start + length * count
            # [count, length, 3, heads, head_dim] -> three of [count, heads, length, head_dim]
            block = (
                parts[start:end].view(count, length, 3, spec.num_heads, spec.head_dim).permute(2, 0, 3, 1, 4)
            )
            attended = functional.scaled_dot_product_attention(block[0], block[1], block[2])
            outputs.append(attended.transpose(1, 2).reshape(length * count, spec.hidden_size))
            start = end
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _norm(self, x: torch.Tensor, norm: Norm) -> torch.Tensor:
        return functional.layer_norm(x, (self.spec.hidden_size,), norm.weight, norm.bias, self.spec.norm_eps)


def _linear(x: torch.Tensor, linear: Linear) -> torch.Tensor:
    return functional.linear(x, linear.weight, linear.bias)


def _runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(length, how often it stands in a row)."""
    runs: list[tuple[int, int]] = []
    for length in lengths:
        if runs and runs[-1][0] == length:
            runs[-1] = (length, runs[-1][1] + 1)
        else:
            runs.append((length, 1))
    return runs
