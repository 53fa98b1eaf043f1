"""The decoder: one forward pass for every model a DecoderSpec describes, and the names of its weights.

Written in the operations of layers/base.py; knows neither devices nor memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire_worker.layers.base import Operations, Placement, Value, Vector, Weight
from quire_worker.loading.source import TensorSource
from quire_worker.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Biases and head norms are None where the spec has none."""

    attention_norm: Vector
    qkv: Weight
    qkv_bias: Vector | None
    q_norm: Vector | None
    k_norm: Vector | None
    output: Weight
    output_bias: Vector | None
    mlp_norm: Vector
    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights. head is the embedding itself where the spec ties them."""

    embedding: Weight
    layers: tuple[LayerWeights, ...]
    final_norm: Vector
    head: Weight


def forward(spec: DecoderSpec, weights: DecoderWeights, ops: Operations) -> Value:
    """Hidden states of the step's tokens after the last layer, before the final norm."""
    x = ops.embed(weights.embedding)
    for index, layer in enumerate(weights.layers):
        hidden = ops.norm(x, layer.attention_norm)
        qkv = ops.linear(hidden, layer.qkv, layer.qkv_bias)
        attended = ops.attention(index, qkv, layer.q_norm, layer.k_norm)
        x = ops.add_linear(x, attended, layer.output, layer.output_bias)
        hidden = ops.norm(x, layer.mlp_norm)
        x = ops.add_linear(x, ops.gated_mlp(hidden, layer.gate_up), layer.down)
    return x


def load_weights(
    spec: DecoderSpec, source: TensorSource, place: Placement, report: Callable[[int, int], None]
) -> DecoderWeights:
    """Read every weight into its place. report(bytes done, bytes in all) is called after each tensor.

    ValueError names a tensor that is missing, or one that the spec leaves no place for.
    """
    reader = _Reader(source, place, report)
    embedding = reader.fused("model.embed_tokens")
    layers = tuple(_layer(spec, reader, f"model.layers.{index}.") for index in range(spec.num_layers))
    final_norm = reader.vector("model.norm.weight")
    if spec.tied_embeddings:
        reader.skip("lm_head.weight")
        head = embedding
    else:
        head = reader.fused("lm_head")
    reader.finish()
    return DecoderWeights(embedding, layers, final_norm, head)


def _layer(spec: DecoderSpec, reader: _Reader, prefix: str) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    projections = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
    return LayerWeights(
        attention_norm=reader.vector(prefix + "input_layernorm.weight"),
        qkv=reader.fused(*projections),
        qkv_bias=reader.bias(*projections) if spec.qkv_bias else None,
        q_norm=reader.vector(attention + "q_norm.weight") if spec.qk_norm else None,
        k_norm=reader.vector(attention + "k_norm.weight") if spec.qk_norm else None,
        output=reader.fused(attention + "o_proj"),
        output_bias=reader.bias(attention + "o_proj") if spec.output_bias else None,
        mlp_norm=reader.vector(prefix + "post_attention_layernorm.weight"),
        gate_up=reader.gated(mlp + "gate_proj", mlp + "up_proj"),
        down=reader.fused(mlp + "down_proj"),
    )


class _Reader:
    """Reads tensors by name, keeps count of the bytes, and knows at the end what nobody asked for."""

    def __init__(self, source: TensorSource, place: Placement, report: Callable[[int, int], None]) -> None:
        self._source = source
        self._place = place
        self._report = report
        # Buffers that some checkpoints carry beside the weights.
        self._left = {name for name in source.names() if not name.endswith("rotary_emb.inv_freq")}
        self._done = 0

    def fused(self, *modules: str) -> Weight:
        names = [module + ".weight" for module in modules]
        self._check(names)
        weight = self._place.fused([self._source.matrix(name) for name in names])
        self._count(names)
        return weight

    def gated(self, gate: str, up: str) -> Weight:
        names = [gate + ".weight", up + ".weight"]
        self._check(names)
        weight = self._place.gated(*(self._source.matrix(name) for name in names))
        self._count(names)
        return weight

    def vector(self, *names: str) -> Vector:
        self._check(names)
        weight = self._place.vector(np.concatenate([self._source.vector(name) for name in names]))
        self._count(names)
        return weight

    def bias(self, *modules: str) -> Vector:
        return self.vector(*(module + ".bias" for module in modules))

    def skip(self, name: str) -> None:
        """A tensor that may be in the files and is not needed."""
        self._left.discard(name)

    def finish(self) -> None:
        """ValueError if tensors were left that the spec has no place for."""
        if self._left:
            some = sorted(self._left)[:5]
            raise ValueError(f"{len(self._left)} tensors have no place in the decoder, for example {some}")

    def _check(self, names: list[str] | tuple[str, ...]) -> None:
        for name in names:
            if name not in self._left:
                raise ValueError(f"the model's files lack the tensor {name}")

    def _count(self, names: list[str] | tuple[str, ...]) -> None:
        self._left.difference_update(names)
        self._done += sum(self._source.num_bytes(name) for name in names)
        self._report(self._done, self._source.total_bytes)
