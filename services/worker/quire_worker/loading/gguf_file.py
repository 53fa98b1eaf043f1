"""The GGUF container: metadata, tensor table and mapped tensor bytes. Knows no architecture."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SCALARS: Final[dict[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32
# Arrays longer than this are vocabularies: the tokenizer's business, skipped here.
_MAX_KEPT_ARRAY = 4096

# GGML type -> (name, elements of a block, bytes of a block).
GGML_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 30: ("BF16", 1, 2),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of the file. shape: rows first, as numpy has it. data: raw bytes [rows, bytes of a row]."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return int(self.data.nbytes)


class GgufFile:
    """An opened file; tensors are views of the mapping, which lives as long as they do.

    ValueError names what can't be read: another version, an unknown tensor type, a cut-off file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at = 24
        with path.open("rb") as file:
            if path.stat().st_size < self._at:
                raise ValueError(f"{path} is too short to be a GGUF file")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._bytes[:4] != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        version, num_tensors, num_keys = struct.unpack_from("<IQQ", self._bytes, 4)
        if version not in (2, 3):
            raise ValueError(f"{path} has GGUF version {version}; 2 and 3 are read")
        try:
            self.metadata = self._read_metadata(num_keys)
            self.tensors = self._read_tensors(num_tensors)
        except (struct.error, IndexError) as error:
            raise ValueError(f"{path} is cut off at byte {self._at}") from error

    def _unpack(self, layout: str) -> Any:
        (value,) = struct.unpack_from("<" + layout, self._bytes, self._at)
        self._at += struct.calcsize("<" + layout)
        return value

    def _string(self) -> str:
        length = self._unpack("Q")
        if self._at + length > len(self._bytes):
            raise IndexError("a string runs past the end")
        value = self._bytes[self._at : self._at + length].decode("utf-8", "replace")
        self._at += length
        return value

    def _read_metadata(self, num_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            value = self._value(self._unpack("I"))
            if value is not None:
                metadata[key] = value
        return metadata

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"{self.path} has a value of unknown type {kind} at byte {self._at}")
        return self._unpack(_SCALARS[kind])

    def _array(self) -> list[Any] | None:
        kind, count = self._unpack("I"), self._unpack("Q")
        if count <= _MAX_KEPT_ARRAY:
            return [self._value(kind) for _ in range(count)]
        if kind == _STRING:
            data, at, unpack = self._bytes, self._at, struct.Struct("<Q").unpack_from
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
            self._at = at
        elif kind in _SCALARS:
            self._at += count * struct.calcsize(_SCALARS[kind])
        else:
            raise ValueError(f"{self.path} has an array of unknown type {kind} at byte {self._at}")
        return None

    def _read_tensors(self, num_tensors: int) -> dict[str, GgufTensor]:
        table = []
        for _ in range(num_tensors):
            name = self._string()
            extents = [self._unpack("Q") for _ in range(self._unpack("I"))]
            table.append((name, tuple(reversed(extents)), self._unpack("I"), self._unpack("Q")))
        alignment = int(self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
        start = -(-self._at // alignment) * alignment
        return {name: self._tensor(name, shape, kind, start + at) for name, shape, kind, at in table}

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, at: int) -> GgufTensor:
        if kind not in GGML_TYPES:
            raise ValueError(f"{self.path}: tensor {name} has type {kind}, known are {sorted(GGML_TYPES)}")
        type_name, block, block_bytes = GGML_TYPES[kind]
        row_bytes = shape[-1] // block * block_bytes
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        if shape[-1] % block or at + rows * row_bytes > len(self._bytes):
            raise ValueError(
                f"{self.path}: tensor {name} {list(shape)} of type {type_name} does not fit the file"
            )
        data = np.frombuffer(self._bytes, np.uint8, rows * row_bytes, at).reshape(rows, row_bytes)
        return GgufTensor(name, type_name, shape, data)
