"""Weights in the layout that the linear kernels read: tiles of columns (see quire_kernels.cpu.tiles)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire_kernels.cpu.layout import tile_bytes
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.target import TARGET
from quire_kernels.linear.rows import BLOCK_BYTES, PLAIN_DTYPES, WeightRows


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


def _pack(
    parts: list[WeightRows], order: NDArray[np.int64], num_outputs: int, *, gated: bool
) -> PackedLinear:
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
    if kind in PLAIN_DTYPES:
        return np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint8).reshape(num_tiles, -1)
    blocks = rows.reshape(num_tiles, columns, -1, BLOCK_BYTES[kind]).transpose(0, 2, 1, 3)
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
