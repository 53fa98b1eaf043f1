"""Reads the key/value section of a GGUF file, and nothing behind it.

The file is mapped, so a model of many gigabytes costs the few megabytes that its vocabulary takes. This module knows
the container format only: what a key means is gguf_vocab's business, and tensors are the worker's.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final

from quire_tokenizer.errors import ModelFormatError

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
TYPE_BOOL: Final = 7
TYPE_STRING: Final = 8
TYPE_ARRAY: Final = 9
# GGUF value type -> struct code. Everything is little endian.
SCALAR_CODES: Final[dict[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", TYPE_BOOL: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
# A nested array is legal but no known writer makes one; the bound keeps a crafted file from exhausting the stack.
MAX_ARRAY_DEPTH: Final = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ARRAY_HEAD = struct.Struct("<IQ")


def read_metadata(path: Path, prefixes: tuple[str, ...]) -> dict[str, Any]:
    """Return every key that starts with one of `prefixes`, as plain Python values.

    Arrays become lists. Raises ModelFormatError, naming the file and the offset, when it is no readable GGUF file.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ModelFormatError(f"{path} is too short to be a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _read_section(path, mapped, prefixes)


def _read_section(path: Path, mapped: mmap.mmap, prefixes: tuple[str, ...]) -> dict[str, Any]:
    if mapped[:4] != MAGIC:
        raise ModelFormatError(f"{path} does not start with {MAGIC.decode()!r}: it is not a GGUF file")
    version = _U32.unpack_from(mapped, 4)[0]
    if version not in SUPPORTED_VERSIONS:
        # A big-endian file shows here too: its version reads as a huge number.
        raise ModelFormatError(f"{path} has GGUF version {version}; versions {SUPPORTED_VERSIONS} are read")
    num_keys = _U64.unpack_from(mapped, 16)[0]
    cursor = _Cursor(mapped, 24)
    values: dict[str, Any] = {}
    try:
        for _ in range(num_keys):
            key = cursor.string()
            value_type = cursor.u32()
            wanted = key.startswith(prefixes)
            value = cursor.value(value_type, keep=wanted, depth=0)
            if wanted:
                values[key] = value
    except (struct.error, IndexError) as error:
        raise ModelFormatError(f"{path} ends inside its key/value section at byte {cursor.offset}") from error
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path} has a string that is not UTF-8 after byte {cursor.offset}") from error
    return values


class _Cursor:
    """A read position in the mapped file. Every method moves it past what it read."""

    def __init__(self, mapped: mmap.mmap, offset: int) -> None:
        self._mapped = mapped
        self._size = len(mapped)
        self.offset = offset

    def u32(self) -> int:
        value: int = _U32.unpack_from(self._mapped, self.offset)[0]
        self.offset += 4
        return value

    def string(self) -> str:
        return self._strings(1)[0]

    def value(self, value_type: int, *, keep: bool, depth: int) -> Any:
        if value_type == TYPE_STRING:
            return self._many_strings(1, keep=keep)[0]
        if value_type == TYPE_ARRAY:
            return self._array(keep=keep, depth=depth)
        code = SCALAR_CODES.get(value_type)
        if code is None:
            raise ModelFormatError(f"unknown GGUF value type {value_type} at byte {self.offset}")
        return self._scalars(code, 1, keep=True)[0]

    def _array(self, *, keep: bool, depth: int) -> list[Any] | None:
        element_type, count = _ARRAY_HEAD.unpack_from(self._mapped, self.offset)
        self.offset += _ARRAY_HEAD.size
        if element_type == TYPE_STRING:
            return self._many_strings(count, keep=keep)
        if element_type == TYPE_ARRAY:
            if depth >= MAX_ARRAY_DEPTH:
                raise ModelFormatError(
                    f"arrays are nested deeper than {MAX_ARRAY_DEPTH} at byte {self.offset}"
                )
            return [self._array(keep=keep, depth=depth + 1) for _ in range(self._bounded(count, 12))]
        code = SCALAR_CODES.get(element_type)
        if code is None:
            raise ModelFormatError(f"unknown GGUF array element type {element_type} at byte {self.offset}")
        return self._scalars(code, count, keep=keep)

    def _bounded(self, count: int, element_bytes: int) -> int:
        """Refuse a count that the rest of the file cannot hold, before anything is allocated for it."""
        if count * element_bytes > self._size - self.offset:
            raise IndexError(f"{count} elements do not fit into the file")
        return count

    def _scalars(self, code: str, count: int, *, keep: bool) -> list[Any]:
        layout = struct.Struct(f"<{self._bounded(count, struct.calcsize('<' + code))}{code}")
        values = list(layout.unpack_from(self._mapped, self.offset)) if keep else []
        self.offset += layout.size
        return values

    def _strings(self, count: int) -> list[str]:
        # A vocabulary has some hundred thousand strings, so the loop keeps everything in locals.
        mapped, offset, size, unpack = self._mapped, self.offset, self._size, _U64.unpack_from
        strings = []
        for _ in range(self._bounded(count, 8)):
            start = offset + 8
            end = start + unpack(mapped, offset)[0]
            if end > size:
                raise IndexError("a string runs past the end of the file")
            strings.append(mapped[start:end].decode())
            offset = end
        self.offset = offset
        return strings

    def _many_strings(self, count: int, *, keep: bool) -> list[Any]:
        if keep:
            return self._strings(count)
        for _ in range(self._bounded(count, 8)):
            self.offset += 8 + _U64.unpack_from(self._mapped, self.offset)[0]
        return [None]
