"""Process settings that must be made before torch or numba is imported. Imports neither.

Call `prepare_process()` first thing in a process that will run CPU kernels.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from pathlib import Path
from typing import Final

# Below quire_kernels: the kernel language, the tasks, and the constants that tasks share with their references.
_COMPILED_SOURCES: Final = ("cpu/*.py", "*/cpu.py", "*/amx.py", "gumbel_argmax/random.py")


def kernel_cache_dir() -> Path:
    """Folder in which compiled kernels are kept between starts (follows XDG_CACHE_HOME).

    Named for the content of the sources that CPU tasks are built from: numba looks only at the file of the compiled
    function, so a change in what that uses would otherwise go unseen.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for pattern in _COMPILED_SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(path.read_bytes())
    return Path(base) / "quire" / "kernels" / digest.hexdigest()[:16]


def prepare_process() -> None:
    """Choose where compiled kernels are kept and how the thread team waits. What the user has set stays.

    Threads of the team sleep between steps: a step is one parallel region, so waking them costs little, and
    spinning would take the core that the other services need just then.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    folder = kernel_cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # No writable cache: numba then compiles at every start, which is slow but right.
        return
    os.environ["NUMBA_CACHE_DIR"] = str(folder)


def has_compiler() -> bool:
    """Whether the CPU kernels can be compiled here; without it, operations run their plain torch reference."""
    return importlib.util.find_spec("numba") is not None
