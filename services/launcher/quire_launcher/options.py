"""What `quire up` was asked for, checked: flags and the one YAML file with a section per process.

One job; it starts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from quire_launcher.layout import EMBED_SERVICES, SERVICES, Ports

#: Sections of the YAML file, each with the settings of that process.
SECTIONS = (*SERVICES, *EMBED_SERVICES, "envoy")


@dataclass(frozen=True)
class UpOptions:
    """One suite to start."""

    model: str = "smollm2"
    served_model_name: str | None = None
    #: A second engine for it; None: there is none.
    embedding_model: str | None = None
    port: int = 8080
    host: str = "127.0.0.1"
    simulate: bool = False
    step_ms: float = 0.0
    device: str | None = None
    log_level: str | None = None
    start_timeout_s: float = 600.0
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def ports(self) -> Ports:
        """The suite's ports."""
        return Ports(self.port)


def read_sections(path: Path | None) -> dict[str, dict[str, Any]]:
    """The sections of a suite's YAML file; every process's own settings are checked by that process.

    Raises ValueError naming the file and the section that does not exist or is no mapping.
    """
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"config: cannot read {path}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"config: {path} must hold sections, got a {type(content).__name__}")
    for name, section in content.items():
        if name not in SECTIONS:
            raise ValueError(
                f"config: {path} has an unknown section {name!r}; sections are {', '.join(SECTIONS)}"
            )
        if not isinstance(section, dict):
            raise ValueError(f"config: section {name} of {path} must hold settings, got {section!r}")
    return content
