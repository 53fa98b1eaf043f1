"""The repository as a whole: its projects, its contracts' namespace, its commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({ROOT / name for name in shown if name and (ROOT / name).is_file()})


def test_the_contracts_namespace_has_no_init():
    """`quire` stays a namespace: one __init__.py there would hide every other domain."""
    assert not [path for path in tracked("protos/*") if path.name == "__init__.py"]


def test_every_project_has_the_same_floor():
    """All projects are built for the same Python and have the same licence."""
    projects = [path for path in tracked("*pyproject.toml") if path.parent != ROOT]
    assert len(projects) >= 8
    for path in projects:
        text = path.read_text()
        assert 'requires-python = ">=3.11"' in text, path
        assert 'license = "Apache-2.0"' in text, path


def test_make_help_lists_every_command():
    """A target for people has a line in `make help`."""
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"\.PHONY:((?:.|\\\n)*?)\n\n", makefile).group(1).replace("\\", " ").split()
    shown = subprocess.run(
        ["make", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    assert set(phony) == {line.split()[0] for line in shown.splitlines() if line.startswith("  ")}
