"""Files on disk that clients upload and jobs write.

One job: keep them by id, each whole or not at all, and tell a tenant its own. Knows neither HTTP nor what is in them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from quire_servicekit.errors import InvalidRequest, UnknownRequest

_CHUNK_BYTES = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """What is known of a file without reading it."""

    id: str
    tenant: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int


def new_file_id() -> str:
    """An id for a file that is still to be written."""
    return f"file-{uuid.uuid4().hex}"


class FileStore:
    """A folder: `<id>.data` and, written after it, `<id>.json`. One process at a time."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """max_bytes: of all files together."""
        self._folder, self._max_bytes = folder, max_bytes
        self._files: dict[str, FileInfo] = {}

    def load(self) -> None:
        """Find the files of earlier; what was not whole is removed. Raises OSError for a folder that cannot be used."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.json"):
            info = FileInfo(**json.loads(path.read_text(encoding="utf-8")))
            self._files[info.id] = info
        for path in self._folder.iterdir():
            if path.suffix == ".new" or (path.suffix == ".data" and path.stem not in self._files):
                path.unlink()

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(info.num_bytes for info in self._files.values())

    def add(self, pieces: Iterable[bytes], info: FileInfo, *, is_ours: bool = False) -> FileInfo:
        """Write a file; one of the same id is replaced. Raises InvalidRequest when there is no room for it.

        is_ours: an answer, which is kept whatever there is room for. Blocks: call it from a thread, never two at once
        for the same id.
        """
        data = self._folder / f"{info.id}.data"
        num_bytes = 0
        with data.with_suffix(".data.new").open("wb") as file:
            for piece in pieces:
                num_bytes += file.write(piece)
        if not is_ours and num_bytes + self.num_bytes > self._max_bytes:
            data.with_suffix(".data.new").unlink()
            free = max(0, self._max_bytes - self.num_bytes)
            raise InvalidRequest(
                "file", f"at most {free} bytes (what the server still has room for)", num_bytes
            )
        data.with_suffix(".data.new").replace(data)
        whole = FileInfo(**asdict(info) | {"num_bytes": num_bytes})
        write_json(self._folder / f"{info.id}.json", asdict(whole))
        self._files[info.id] = whole
        return whole

    def get(self, file_id: str, tenant: str) -> FileInfo:
        """Raises UnknownRequest, also for another tenant's."""
        info = self._files.get(file_id)
        if info is None or info.tenant != tenant:
            raise UnknownRequest(file_id, message=f"No such File object: {file_id}")
        return info

    def list(self, tenant: str) -> list[FileInfo]:
        """The tenant's files, the oldest first."""
        mine = [info for info in self._files.values() if info.tenant == tenant]
        return sorted(mine, key=lambda info: (info.created_at, info.id))

    def remove(self, file_id: str, tenant: str) -> None:
        """Raises as `get` does."""
        self.get(file_id, tenant)
        # The description first: a file without one is no file.
        (self._folder / f"{file_id}.json").unlink(missing_ok=True)
        (self._folder / f"{file_id}.data").unlink(missing_ok=True)
        del self._files[file_id]

    def path(self, file_id: str) -> Path:
        """Where its bytes are."""
        return self._folder / f"{file_id}.data"

    def chunks(self, file_id: str) -> Iterator[bytes]:
        """Its bytes. Reads stay whole if it is removed meanwhile."""
        with self.path(file_id).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


def write_json(path: Path, document: object) -> None:
    """Replace a file at once: readers see the old one or the new one, also after a crash."""
    partial = path.with_suffix(path.suffix + ".new")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
