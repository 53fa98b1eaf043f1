"""An encoder's weights: their names in Hugging Face files, and where they go. Knows no arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quire_worker.encoders.spec import EncoderSpec
from quire_worker.loading.source import TensorSource


@dataclass(frozen=True, slots=True)
class Linear:
    """A projection. weight: [outputs, inputs], bias: [outputs]."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm. weight, bias: [hidden_size]."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class EncoderLayer:
    """One layer; qkv is one projection of three, one above the other."""

    qkv: Linear
    output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    mlp_norm: Norm


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """All weights. token_types is None where the model has none; classifier is (dense, output)."""

    words: torch.Tensor
    positions: torch.Tensor
    token_types: torch.Tensor | None
    embedding_norm: Norm
    layers: tuple[EncoderLayer, ...]
    classifier: tuple[Linear, Linear] | None


def load_encoder(
    spec: EncoderSpec,
    source: TensorSource,
    device: torch.device,
    dtype: torch.dtype,
    report: Callable[[int, int], None],
) -> EncoderWeights:
    """Read every weight onto the device. report(bytes done, bytes in all) is called after each tensor.

    ValueError names a tensor that is missing. Heads that the spec has no use for stay unread.
    """
    read = _Reader(spec, source, device, dtype, report)
    classifier = None
    if spec.classifier is not None:
        classifier = (read.linear(spec.classifier.dense), read.linear(spec.classifier.output))
    return EncoderWeights(
        words=read.tensor("embeddings.word_embeddings.weight"),
        positions=read.tensor("embeddings.position_embeddings.weight"),
        token_types=read.tensor("embeddings.token_type_embeddings.weight") if spec.num_token_types else None,
        embedding_norm=read.norm("embeddings.LayerNorm"),
        layers=tuple(_layer(read, f"encoder.layer.{index}.") for index in range(spec.num_layers)),
        classifier=classifier,
    )


def _layer(read: _Reader, prefix: str) -> EncoderLayer:
    attention = prefix + "attention."
    return EncoderLayer(
        qkv=read.linear(*(f"{attention}self.{name}" for name in ("query", "key", "value"))),
        output=read.linear(attention + "output.dense"),
        attention_norm=read.norm(attention + "output.LayerNorm"),
        up=read.linear(prefix + "intermediate.dense"),
        down=read.linear(prefix + "output.dense"),
        mlp_norm=read.norm(prefix + "output.LayerNorm"),
    )


class _Reader:
    """Reads tensors by name, with or without the spec's prefix, and tells how far it is."""

    def __init__(
        self,
        spec: EncoderSpec,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        report: Callable[[int, int], None],
    ) -> None:
        self._names = frozenset(source.names())
        self._prefix = spec.prefix
        self._source, self._device, self._dtype, self._report = source, device, dtype, report
        self._done = 0

    def linear(self, *modules: str) -> Linear:
        weights = [self.tensor(f"{module}.weight") for module in modules]
        biases = [self.tensor(f"{module}.bias") for module in modules]
        return Linear(torch.cat(weights), torch.cat(biases))

    def norm(self, module: str) -> Norm:
        # Checkpoints converted from TensorFlow call a norm's weight and bias gamma and beta.
        if f"{self._prefix}{module}.gamma" in self._names or f"{module}.gamma" in self._names:
            return Norm(self.tensor(f"{module}.gamma"), self.tensor(f"{module}.beta"))
        return Norm(self.tensor(f"{module}.weight"), self.tensor(f"{module}.bias"))

    def tensor(self, name: str) -> torch.Tensor:
        full = next((found for found in (name, self._prefix + name) if found in self._names), None)
        if full is None:
            raise ValueError(f"the model's files lack the tensor {name}")
        is_vector = name.endswith((".bias", ".beta", ".gamma", "LayerNorm.weight"))
        values = self._source.vector(full) if is_vector else self._source.matrix(full).to_float32()
        self._done += self._source.num_bytes(full)
        self._report(self._done, self._source.total_bytes)
        return torch.from_numpy(values.copy()).to(self._device, self._dtype)
