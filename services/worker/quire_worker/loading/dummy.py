"""A model without weights: random ones of the shape that its config.json names, for measuring speed and for tests.

Knows names and shapes, which it takes from the spec; nothing is made before it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows
from quire_worker.loading.source import ModelFiles
from quire_worker.models.registry import spec_from_config
from quire_worker.models.spec import DecoderSpec

STANDARD_DEVIATION = 0.02


class RandomRows(WeightRows):
    """Rows that nobody has drawn yet. `data` is a view of one zero; `to_float32` draws, always the same numbers.

    A placement that knows this class may draw on its own device instead, from `seed`; then the numbers are others.
    """

    __slots__ = ("seed",)
    seed: int

    def __init__(self, num_outputs: int, num_inputs: int, seed: int) -> None:
        nothing = np.broadcast_to(np.zeros(1, dtype=np.float32), (num_outputs, num_inputs))
        super().__init__("f32", num_inputs, nothing)
        object.__setattr__(self, "seed", seed)

    def to_float32(self) -> NDArray[np.float32]:
        """The matrix, drawn."""
        generator = np.random.default_rng(self.seed)
        drawn = generator.standard_normal(self.data.shape, dtype=np.float32)
        return np.multiply(drawn, np.float32(STANDARD_DEVIATION), out=drawn)


class DummySource:
    """A TensorSource of random weights: matrices normal with 0.02, norms near one, biases small.

    is_lazy: matrices are RandomRows; otherwise they are drawn at once, for placements that read `data`.
    """

    def __init__(self, spec: DecoderSpec, *, is_lazy: bool) -> None:
        self._shapes = tensor_shapes(spec)
        self._seeds = {name: seed for seed, name in enumerate(self._shapes)}
        self._is_lazy = is_lazy
        self.total_bytes = sum(self.num_bytes(name) for name in self._shapes)

    def names(self) -> Iterable[str]:
        """See TensorSource."""
        return self._shapes

    def num_bytes(self, name: str) -> int:
        """See TensorSource; as if in 16 bits."""
        return 2 * int(np.prod(self._shapes[name], dtype=np.int64))

    def matrix(self, name: str) -> WeightRows:
        """See TensorSource."""
        rows, columns = self._shapes[name]
        drawn = RandomRows(rows, columns, self._seeds[name])
        return drawn if self._is_lazy else WeightRows("f32", columns, drawn.to_float32())

    def vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        generator = np.random.default_rng(self._seeds[name])
        drawn = generator.standard_normal(self._shapes[name][0], dtype=np.float32) * np.float32(0.1)
        return drawn if name.endswith(".bias") else drawn + np.float32(1.0)


def tensor_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes of a decoder's tensors."""
    hidden, inner, head = spec.hidden_size, spec.intermediate_size, spec.head_dim
    queries, keys = spec.num_heads * head, spec.num_kv_heads * head
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    for layer in range(spec.num_layers):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"{attention}{name}.weight"] = (rows, hidden)
            if spec.qkv_bias:
                shapes[f"{attention}{name}.bias"] = (rows,)
        shapes[attention + "o_proj.weight"] = (hidden, queries)
        if spec.output_bias:
            shapes[attention + "o_proj.bias"] = (hidden,)
        if spec.qk_norm:
            shapes[attention + "q_norm.weight"] = (head,)
            shapes[attention + "k_norm.weight"] = (head,)
        for name in ("gate_proj", "up_proj"):
            shapes[f"{prefix}mlp.{name}.weight"] = (inner, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes


def open_dummy(path: str, *, is_lazy: bool) -> ModelFiles:
    """A folder of which only config.json is read. FileNotFoundError: it has none."""
    config = _read_config(Path(path).expanduser())
    names = config.get("architectures") or []
    if len(names) != 1:
        raise ValueError(f"{path}: config.json must name one architecture, has {names}")
    spec = spec_from_config(config, str(names[0]))
    return ModelFiles(
        path=path,
        config=config,
        generation_config={},
        source=DummySource(spec, is_lazy=is_lazy),
        identity=(("dummy", spec.num_layers),),
    )


def _read_config(folder: Path) -> dict[str, Any]:
    place = folder / "config.json"
    if not place.is_file():
        raise FileNotFoundError(f"no config.json in {folder}")
    config = json.loads(place.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{place} holds {type(config).__name__}, not an object")
    return config
