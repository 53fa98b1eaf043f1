"""The answers of a job, one line each, in the order they came.

One job: a line is there whole or not at all, and each number once. The line's end is the commit: what a crash left
without one is cut off, and done again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import orjson


class Place(NamedTuple):
    """Where an answer stands in the file."""

    offset: int
    num_bytes: int
    is_ok: bool


class Journal:
    """An append-only file of `{"line": number, "ok": whether, "record": answer}`."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file. Raises OSError; ValueError for one that is no journal."""
        self._file: BinaryIO = path.open("a+b")
        #: By number of the input's line.
        self.places: dict[int, Place] = {}
        #: Answers that went well.
        self.num_ok = 0
        self._end = 0
        self._load()

    def append(self, line: int, record: dict[str, Any], *, is_ok: bool) -> None:
        """Keep an answer. A second one for the same line is a bug."""
        assert line not in self.places, "an answer is kept once"
        data = orjson.dumps({"line": line, "ok": is_ok, "record": record}) + b"\n"
        self._file.write(data)
        # To the kernel: from there on the process may die.
        self._file.flush()
        self.places[line] = Place(self._end, len(data), is_ok)
        self._end += len(data)
        self.num_ok += is_ok

    def records(self, *, is_ok: bool) -> Iterator[bytes]:
        """The answers that went well, or the others, as JSON lines in the order of the input."""
        for line in sorted(self.places):
            place = self.places[line]
            if place.is_ok == is_ok:
                self._file.seek(place.offset)
                entry = orjson.loads(self._file.read(place.num_bytes))
                yield orjson.dumps(entry["record"]) + b"\n"

    def _load(self) -> None:
        self._file.seek(0)
        for data in self._file:
            if not data.endswith(b"\n"):
                break
            entry = orjson.loads(data)
            self.places[entry["line"]] = Place(self._end, len(data), entry["ok"])
            self._end += len(data)
            self.num_ok += entry["ok"]
        self._file.truncate(self._end)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
