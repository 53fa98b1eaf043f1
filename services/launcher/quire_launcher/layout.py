"""Where one suite of this machine lives: its ports, its state folder, its lock.

One job: names and places. Everything follows from the port that clients use, so that several suites run side by side
and every command finds the right one by that number alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

DEFAULT_PORT = 8080
SERVICES = ("gateway", "tokenizer", "scheduler", "worker")
#: The second engine of a suite with an embedding model.
EMBED_SERVICES = ("embed-tokenizer", "embed-scheduler", "embed-worker")

#: Offsets from the clients' port.
_PORT_OFFSETS = {
    "envoy": 0, "gateway": 1, "tokenizer": 2, "scheduler": 3, "worker": 4, "envoy admin": 5,
    "embed-tokenizer": 6, "embed-scheduler": 7, "embed-worker": 8,
}  # fmt: skip
_METRICS_OFFSET = 10
_LAST_OFFSET = _METRICS_OFFSET + max(_PORT_OFFSETS.values())


@dataclass(frozen=True)
class Ports:
    """The ports of one suite, all on loopback but the clients' own."""

    base: int

    def __post_init__(self) -> None:
        if not 0 < self.base <= 65535 - _LAST_OFFSET:
            raise ValueError(f"port must be 1 to {65535 - _LAST_OFFSET}, got {self.base}")

    def of(self, name: str) -> int:
        """The port of "envoy", "envoy admin" or a service."""
        return self.base + _PORT_OFFSETS[name]

    def address(self, name: str) -> str:
        """host:port of the same."""
        return f"127.0.0.1:{self.of(name)}"

    def metrics_address(self, service: str) -> str:
        """host:port of a service's metrics page."""
        return f"127.0.0.1:{self.of(service) + _METRICS_OFFSET}"

    def all(self, *, with_embedding: bool = True) -> Iterator[tuple[str, int]]:
        """Every name and port that must be free. with_embedding: those of the second engine too."""
        second = EMBED_SERVICES if with_embedding else ()
        for name in ("envoy", *SERVICES, "envoy admin", *second):
            yield name, self.of(name)
        for service in (*SERVICES, *second):
            yield f"{service} metrics", self.of(service) + _METRICS_OFFSET


def state_roots() -> list[Path]:
    """Folders that may hold suites' state, the preferred one first.

    A service manager's runtime folder, else the user's cache, else the temporary folder: an empty HOME must not stop
    anything. Commands look in all of them, since `up` and `down` may run under different environments.
    """
    roots = []
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        roots.append(Path(runtime) / "quire")
    if home := os.environ.get("HOME"):
        roots.append(Path(home) / ".cache" / "quire")
    roots.append(Path(tempfile.gettempdir()) / f"quire-{os.getuid()}")
    return roots


class StateFolder:
    """One suite's folder: `suite.json` (who runs), `lock` (held while it runs), `logs/`, generated settings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, port: int) -> StateFolder:
        """The folder for `port`, made in the first root that can be written. Raises OSError when none can."""
        failures = []
        for root in state_roots():
            path = root / str(port)
            try:
                (path / "logs").mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                failures.append(str(error))
            else:
                return cls(path)
        raise OSError(f"no folder for state can be made: {'; '.join(failures)}")

    @classmethod
    def find(cls, port: int) -> StateFolder | None:
        """The folder of the suite that runs on `port`; else the first that exists; None when there is none."""
        folders = [cls(root / str(port)) for root in state_roots() if (root / str(port)).is_dir()]
        return next((folder for folder in folders if folder.is_running()), folders[0] if folders else None)

    @property
    def logs(self) -> Path:
        """The folder of log files, one a process."""
        return self.path / "logs"

    def try_lock(self) -> bool:
        """Take the suite's lock for as long as this process lives; False when another process has it."""
        lock = (self.path / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_running(self) -> bool:
        """Whether a launcher holds the lock. A state file left by a crash does not count."""
        try:
            with (self.path / "lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def write(self, state: dict[str, Any]) -> None:
        """Replace suite.json."""
        partial = self.path / "suite.json.new"
        partial.write_text(json.dumps(state, indent=1) + "\n")
        partial.replace(self.path / "suite.json")

    def read(self) -> dict[str, Any]:
        """suite.json; empty when there is none that can be read."""
        try:
            state = json.loads((self.path / "suite.json").read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def clear(self) -> None:
        """Forget who ran; logs stay for whoever asks what happened."""
        (self.path / "suite.json").unlink(missing_ok=True)
