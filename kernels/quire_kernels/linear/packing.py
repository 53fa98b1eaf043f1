"""Weights in the layout that the linear kernels read. Knows array formats, not files or models.

Rows are a matrix's outputs. Kinds (see quire_kernels.cpu.tiles): f32, f16, bf16 as [n, k] arrays; q8_0 and q4_1 as
GGUF's raw bytes, [n, k / 32 * block_bytes] uint8. Nothing is rounded: a kind is only another way to store the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.tiles import KINDS, QUANT_BLOCK, tile_bytes

_BLOCK_BYTES = {"q8_0": 34, "q4_1": 20}
_PLAIN_DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.uint16), "bf16": np.dtype(np.uint16)}


@dataclass(frozen=True, slots=True)
class WeightRows:
    """Rows of a matrix as a file has them. data: see the module; f16 and bf16 as their bits in uint16."""

    kind: str
    num_inputs: int
    data: NDArray[Any]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"weight kind must be one of {KINDS}, got {self.kind!r}")
        if self.kind in _BLOCK_BYTES:
            if self.num_inputs % QUANT_BLOCK:
                raise ValueError(f"{self.kind} needs a multiple of {QUANT_BLOCK} inputs, got {self.num_inputs}")
            expected = (np.dtype(np.uint8), self.num_inputs // QUANT_BLOCK * _BLOCK_BYTES[self.kind])
        else:
            expected = (_PLAIN_DTYPES[self.kind], self.num_inputs)
        if (self.data.dtype, self.data.shape[1]) != expected:
            raise ValueError(
                f"{self.kind} rows of {self.num_inputs} inputs are {expected[0]} [n, {expected[1]}], "
                f"got {self.data.dtype} {list(self.data.shape)}"
            )

    @property
    def num_outputs(self) -> int:
        """Rows."""
        return int(self.data.shape[0])

    def to_float32(self) -> NDArray[np.float32]:
        """The matrix [n, k] in float32; the reference of what the kernels compute with."""
        n, k = self.num_outputs, self.num_inputs
        if self.kind == "f32":
            return self.data
        if self.kind == "f16":
            return self.data.view(np.float16).astype(np.float32)
        if self.kind == "bf16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        blocks = self.data.reshape(n, k // QUANT_BLOCK, -1)
        scale = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16).astype(np.float32)
        if self.kind == "q8_0":
            return (blocks[:, :, 2:].view(np.int8).astype(np.float32) * scale).reshape(n, k)
        minimum = np.ascontiguousarray(blocks[:, :, 2:4]).view(np.float16).astype(np.float32)
        quants = blocks[:, :, 4:]
        numbers = np.concatenate([quants & 15, quants >> 4], axis=2).astype(np.float32)
        return (numbers * scale + minimum).reshape(n, k)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix in tiles. data: uint8 [num_tiles * tile bytes]; outputs are padded with zeros to whole tiles.

    gated: each tile holds as many gate columns as up columns, side by side; num_outputs counts the pairs.
    """

    kind: str
    num_outputs: int
    num_inputs: int
    num_tiles: int
    data: NDArray[np.uint8]
    gated: bool = False

    @property
    def tile_bytes(self) -> int:
        """Bytes from one tile to the next."""
        return tile_bytes(self.kind, self.num_inputs, TARGET.tile_columns)

    @property
    def padded_outputs(self) -> int:
        """Columns that a product writes."""
        return self.num_tiles * TARGET.tile_columns // (2 if self.gated else 1)


def pack(parts: Sequence[WeightRows]) -> PackedLinear:
    """Pack matrices, one above the other, into tiles. They must agree in inputs; differing kinds become f32."""
    parts = _same_kind(parts)
    num_outputs = sum(part.num_outputs for part in parts)
    return _pack(parts, np.arange(num_outputs), num_outputs, gated=False)


def pack_gated(gate: WeightRows, up: WeightRows) -> PackedLinear:
    """Pack a gate and an up projection so that a tile yields both halves of its outputs."""
    if gate.num_outputs != up.num_outputs:
        raise ValueError(f"gate has {gate.num_outputs} outputs, up {up.num_outputs}; they must be equal")
    n, lanes = gate.num_outputs, TARGET.lanes
    order = np.full((-(-n // lanes), 2, lanes), -1)
    index = np.arange(n)
    order[index // lanes, 0, index % lanes] = index
    order[index // lanes, 1, index % lanes] = n + index
    return _pack(_same_kind([gate, up]), order.reshape(-1), n, gated=True)


def _same_kind(parts: Sequence[WeightRows]) -> list[WeightRows]:
    if len({part.num_inputs for part in parts}) != 1:
        raise ValueError(f"matrices to fuse need equal inputs, got {[part.num_inputs for part in parts]}")
    if len({part.kind for part in parts}) == 1:
        return list(parts)
    return [WeightRows("f32", part.num_inputs, part.to_float32()) for part in parts]


def _pack(parts: list[WeightRows], order: NDArray[np.int64], num_outputs: int, *, gated: bool) -> PackedLinear:
    """order: for each packed column the row it comes from, -1 for padding."""
    kind, k, columns = parts[0].kind, parts[0].num_inputs, TARGET.tile_columns
    num_tiles = -(-len(order) // columns)
    source = np.concatenate([part.data for part in parts]) if len(parts) > 1 else parts[0].data
    rows = np.zeros((num_tiles * columns, source.shape[1]), dtype=source.dtype)
    kept = order >= 0
    rows[: len(order)][kept] = source[order[kept]]
    tiles = _tile(kind, rows.reshape(num_tiles, columns, -1))
    data = zeros(num_tiles * tile_bytes(kind, k, columns), np.uint8)
    data.reshape(num_tiles, -1)[:] = tiles
    return PackedLinear(kind, num_outputs, k, num_tiles, data, gated)


def _tile(kind: str, rows: NDArray[Any]) -> NDArray[np.uint8]:
    """rows: [tiles, columns, row data] -> bytes [tiles, tile bytes] in the layout of the kind."""
    num_tiles, columns, _ = rows.shape
    if kind in _PLAIN_DTYPES:
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint8).reshape(num_tiles, -1)
    blocks = rows.reshape(num_tiles, columns, -1, _BLOCK_BYTES[kind]).transpose(0, 2, 1, 3)
    quants = blocks[..., 2:] if kind == "q8_0" else _pair_nibbles(blocks[..., 4:])
    heads = [blocks[..., :2]] if kind == "q8_0" else [blocks[..., :2], blocks[..., 2:4]]
    flat = [np.ascontiguousarray(head).reshape(num_tiles, blocks.shape[1], -1) for head in heads]
    flat.append(np.ascontiguousarray(quants.transpose(0, 1, 3, 2)).reshape(num_tiles, blocks.shape[1], -1))
    return np.concatenate(flat, axis=2).reshape(num_tiles, -1)


def _pair_nibbles(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """From GGUF's bytes (low nibbles 0..15, high nibbles 16..31) to bytes that hold elements 2i and 2i + 1."""
    even, odd = quants[..., 0::2], quants[..., 1::2]
    first = (even & 15) | (odd << 4)
    second = (even >> 4) | (odd & 0xF0)
    return np.concatenate([first, second], axis=-1)
