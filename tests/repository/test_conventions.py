"""The repository's own rules that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
#: A jitted loop cannot always be cut without costing time.
MAX_KERNEL_LINES = 90


def tracked(*patterns: str) -> list[Path]:
    """Files under version control, or new and not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return sorted({ROOT / name for name in shown if name and (ROOT / name).is_file()})


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def is_test(path: Path) -> bool:
    return "tests" in path.relative_to(ROOT).parts


def max_function_lines(path: Path) -> int:
    return MAX_KERNEL_LINES if path.relative_to(ROOT).parts[0] == "kernels" else MAX_FUNCTION_LINES


def named(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


@pytest.fixture(scope="module")
def sources() -> list[Path]:
    """Every Python file of the repository."""
    return tracked("*.py")


def test_files_are_short(sources):
    """No source file is longer than a reader can hold in mind."""
    long = [named(path, len(path.read_text().splitlines())) for path in sources]
    assert not [name for name in long if int(name.rpartition(":")[2]) > MAX_FILE_LINES]


def test_functions_are_short(sources):
    """No function outside tests is longer than a screen."""
    long = [
        f"{named(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in sources
        if not is_test(path)
        for node in functions(path)
        if node.end_lineno - node.lineno + 1 > max_function_lines(path)
    ]
    assert not long


def test_every_test_says_what_it_shows(sources):
    """Every test function has a docstring, the sentence that names the behaviour."""
    silent = [
        f"{named(path, node.lineno)} {node.name}"
        for path in sources
        if is_test(path) and path.name.startswith("test_")
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert not silent


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
