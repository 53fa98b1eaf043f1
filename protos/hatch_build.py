"""Build hook of the quire-protos wheel: generates the stubs before they are packed or linked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateStubs(BuildHookInterface[Any]):
    """Runs generate.py for wheels and editable installs alike."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate gen/ (version is hatchling's build kind, "standard" or "editable")."""
        sys.path.insert(0, str(Path(self.root)))
        try:
            from generate import generate
        finally:
            sys.path.pop(0)
        generate(Path(self.root))
