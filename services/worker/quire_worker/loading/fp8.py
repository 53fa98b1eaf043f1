"""Weights in fp8 (e4m3): as checkpoints have them, or made of wider ones while they are read.

Knows the names and shapes of scales in compressed-tensors' and Hugging Face's fp8 files; no devices, no kernels. Only
the layers' matrices are in fp8: embedding and head stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from quire_kernels.linear.rows import WeightRows
from quire_worker.loading.source import ModelFiles, TensorSource

FP8_MAX: Final = 448.0
# A checkpoint's `quantization_config.quant_method` whose tensors are read here.
METHODS: Final = ("compressed-tensors", "fp8", "fbgemm_fp8")
_SCALE, _BLOCK_SCALE, _INPUT_SCALE = ".weight_scale", ".weight_scale_inv", ".input_scale"
_KV_SCALES: Final = {
    "k": ("k_scale", "attn.k_scale", "k_proj.output_scale", "k_proj.k_scale"),
    "v": ("v_scale", "attn.v_scale", "v_proj.output_scale", "v_proj.v_scale"),
}  # fmt: skip
_HIDDEN: Final = (
    _SCALE, _BLOCK_SCALE, _INPUT_SCALE, ".input_scale_ub", ".q_scale", ".prob_scale", ".k_scale", ".v_scale",
    ".output_scale",
)  # fmt: skip


class Fp8Rows(WeightRows):
    """Rows in fp8. data: uint8 [n, k], their bits; scale: float32 [n], what each row is multiplied by; input_scale: the
    static scale of the activations that meet them, None where each row of activations is to have its own."""

    __slots__ = ("input_scale", "scale")
    scale: NDArray[np.float32]
    input_scale: float | None

    def __init__(
        self, data: NDArray[np.uint8], scale: NDArray[np.float32], input_scale: float | None = None
    ) -> None:
        values = {
            "kind": "fp8", "num_inputs": data.shape[1], "data": data, "scale": scale, "input_scale": input_scale,
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def to_float32(self) -> NDArray[np.float32]:
        """The matrix that the bits and the scales stand for."""
        bits = torch.from_numpy(np.array(self.data)).view(torch.float8_e4m3fn)
        return bits.float().numpy() * self.scale[:, None]


class RowsForFp8(WeightRows):
    """Rows that are to be rounded to fp8 where they are placed; `rows` are as the file has them."""

    __slots__ = ("rows",)
    rows: WeightRows

    def __init__(self, rows: WeightRows) -> None:
        for name, value in (
            ("kind", rows.kind), ("num_inputs", rows.num_inputs), ("data", rows.data), ("rows", rows),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    def to_float32(self) -> NDArray[np.float32]:
        """The matrix after rounding."""
        values, scale = rounded_to_fp8(torch.from_numpy(np.array(self.rows.to_float32())))
        return (values.float() * scale[:, None]).numpy()


def rounded_to_fp8(wide: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [n, k], float32 [n]) of a matrix: each row's largest magnitude becomes 448."""
    values = wide.float()
    scale = values.abs().amax(1).clamp_min(1e-10) / FP8_MAX
    return (values / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def with_quantization(files: ModelFiles, quantization: str, *, keep: bool) -> ModelFiles:
    """The files as `quantization` wants them: auto as the checkpoint has them, none expands fp8, fp8 rounds wider ones.

    keep: matrices stay Fp8Rows or RowsForFp8 for a placement that knows them; otherwise they come out in float32 with
    the same values. ValueError: a quantisation method that is not read here.
    """
    method = _method(files.config)
    if method is None and quantization != "fp8":
        return files
    if method is not None and method not in METHODS:
        raise ValueError(
            f"{files.path}: quantization_config.quant_method {method!r} is not supported, only {', '.join(METHODS)}"
        )
    source = Fp8Source(
        files.source, rounds=quantization == "fp8" and method is None, keep=keep and quantization != "none"
    )
    config = {name: value for name, value in files.config.items() if name != "quantization_config"}
    return replace(files, config=config, source=source)


def kv_scales(files: ModelFiles, num_layers: int) -> tuple[tuple[float, float], ...]:
    """By layer, the scales of keys and values in an fp8 pool that the checkpoint names; empty if it names none."""
    source = files.source
    if not isinstance(source, Fp8Source):
        return ()
    found = [source.kv_scales(layer) for layer in range(num_layers)]
    return tuple((1.0, 1.0) if scales is None else scales for scales in found) if any(found) else ()


def _method(config: Mapping[str, Any]) -> str | None:
    settings = config.get("quantization_config")
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise ValueError(f"quantization_config must be an object, got {type(settings).__name__}")
    return str(settings.get("quant_method", "compressed-tensors"))


class Fp8Source:
    """A TensorSource over another: joins fp8 matrices with their scales, which it hides."""

    def __init__(self, source: TensorSource, *, rounds: bool, keep: bool) -> None:
        """rounds: the layers' matrices are to become fp8. keep: see with_quantization."""
        self._source = source
        self._all = set(source.names())
        self._rounds = rounds
        self._keep = keep

    @property
    def total_bytes(self) -> int:
        """See TensorSource."""
        return self._source.total_bytes

    def names(self) -> Iterable[str]:
        """See TensorSource."""
        return [name for name in self._all if not name.endswith(_HIDDEN)]

    def num_bytes(self, name: str) -> int:
        """See TensorSource."""
        return self._source.num_bytes(name)

    def vector(self, name: str) -> NDArray[np.float32]:
        """See TensorSource."""
        return self._source.vector(name)

    def matrix(self, name: str) -> WeightRows:
        """See TensorSource. ValueError: an fp8 matrix without a scale, or with scales of blocks that are to be kept."""
        rows = self._source.matrix(name)
        if rows.kind == "fp8":
            rows = self._scaled(name.removesuffix(".weight"), rows)
        elif self._rounds and ".layers." in name:
            rows = RowsForFp8(rows)
        is_fp8 = isinstance(rows, Fp8Rows | RowsForFp8)
        return WeightRows("f32", rows.num_inputs, rows.to_float32()) if is_fp8 and not self._keep else rows

    def kv_scales(self, layer: int) -> tuple[float, float] | None:
        """Scales of a layer's keys and values in an fp8 pool, where the checkpoint has both."""
        found = []
        for names in _KV_SCALES.values():
            prefix = f"model.layers.{layer}.self_attn."
            there = [prefix + name for name in names if prefix + name in self._all]
            if there:
                found.append(float(self._source.vector(there[0]).reshape(-1)[0]))
        return (found[0], found[1]) if len(found) == 2 else None

    def _scaled(self, module: str, rows: WeightRows) -> WeightRows:
        if module + _SCALE in self._all:
            scale = self._source.vector(module + _SCALE).reshape(-1).astype(np.float32)
            if len(scale) not in (1, rows.num_outputs):
                raise ValueError(
                    f"{module}{_SCALE} has {len(scale)} values for {rows.num_outputs} rows: scales of a tensor or of "
                    "its rows are read"
                )
            fixed = self._source.vector(module + _INPUT_SCALE) if module + _INPUT_SCALE in self._all else None
            return Fp8Rows(
                rows.data,
                np.ascontiguousarray(np.broadcast_to(scale, rows.num_outputs)),
                None if fixed is None else float(np.max(fixed)),
            )
        if module + _BLOCK_SCALE not in self._all:
            raise ValueError(f"{module}.weight is fp8, but there is no {module}{_SCALE}")
        if self._keep:
            raise ValueError(
                f"{module}.weight has scales of blocks ({_BLOCK_SCALE[1:]}), which are not kept in fp8; quantization "
                "'none' expands them"
            )
        return self._expanded(module, rows)

    def _expanded(self, module: str, rows: WeightRows) -> WeightRows:
        """A matrix with a scale for each of its blocks, in float32."""
        scale = self._source.matrix(module + _BLOCK_SCALE).to_float32()
        values = torch.from_numpy(np.array(rows.data)).view(torch.float8_e4m3fn).float().numpy()
        high, wide = (-(-size // parts) for size, parts in zip(values.shape, scale.shape, strict=True))
        spread = np.repeat(np.repeat(scale, high, axis=0), wide, axis=1)
        return WeightRows("f32", rows.num_inputs, values * spread[: values.shape[0], : values.shape[1]])
