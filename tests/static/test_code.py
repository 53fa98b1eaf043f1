"""Rules that the whole code base keeps: sizes, sentences, imports. Nothing is started but Python itself."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = ("services", "kernels", "deploy", "protos", "benchmarks", "tests", "examples")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60
# Compiled kernels are one loop nest each: a call in their inner loops costs speed or is not allowed.
MAX_KERNEL_LINES = 120

# Path: why it may be longer. A new entry is for the review to question.
LONG_FILES: dict[str, str] = {}
# path::function: why it may be longer.
LONG_FUNCTIONS: dict[str, str] = {}

# Import name: what it must never bring along. Their images stay small and start in a second.
FORBIDDEN = ("torch", "transformers", "numba", "triton")
LIGHT = (
    "quire_servicekit",
    "quire_gateway",
    "quire_scheduler",
    "quire_tokenizer",
    "quire_launcher",
    "quire_envoy",
)


def sources():
    """Every Python file of ours; generated stubs and environments are not."""
    for project in PROJECTS:
        for path in sorted((ROOT / project).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if "gen" not in parts and not any(part.startswith((".", "build")) for part in parts):
                yield path


def name_of(path):
    """The path as the lists above write it."""
    return path.relative_to(ROOT).as_posix()


def functions(path):
    """Every function of a file with its dotted name."""

    def walk(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child
                yield from walk(child, f"{name}.")
            else:
                yield from walk(child, prefix)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), "")


def test_files_are_short():
    """No file is longer than 400 lines unless it is listed with a reason."""
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {name: n for name, n in lengths.items() if n > MAX_FILE_LINES and name not in LONG_FILES} == {}
    assert [name for name in LONG_FILES if lengths.get(name, 0) <= MAX_FILE_LINES] == []


def is_compiled(function):
    """Whether a compiler of kernels decorates the function."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def test_functions_are_short():
    """No function is longer than 60 lines, no compiled kernel longer than 120, unless it is listed with a reason."""
    lengths = {
        f"{name_of(path)}::{name}": node.end_lineno - node.lineno + 1
        for path in sources()
        for name, node in functions(path)
        if not (is_compiled(node) and node.end_lineno - node.lineno + 1 <= MAX_KERNEL_LINES)
    }
    assert {
        name: n for name, n in lengths.items() if n > MAX_FUNCTION_LINES and name not in LONG_FUNCTIONS
    } == {}
    assert [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= MAX_FUNCTION_LINES] == []


def test_every_test_says_what_it_shows():
    """Every test function has a docstring of one sentence or more."""
    silent = [
        f"{name_of(path)}::{name}"
        for path in sources()
        if path.name.startswith("test_")
        for name, node in functions(path)
        if name.rpartition(".")[2].startswith("test_") and not (ast.get_docstring(node) or "").strip()
    ]
    assert silent == []


def test_every_module_says_its_job():
    """Every module begins with a docstring."""
    silent = [
        name_of(path)
        for path in sources()
        if path.read_text(encoding="utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_nothing_is_left_to_do():
    """No marker of unfinished work is in the code."""
    markers = ("TO" + "DO", "FIX" + "ME", "XX" + "X:")
    found = [
        f"{name_of(path)}:{number}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(marker in line for marker in markers)
    ]
    assert found == []


def test_only_settings_read_the_environment():
    """Settings come from one place: no other module of a service reads the environment."""
    # The launcher passes its environment on to what it starts, and finds the user's folders by it; servicekit is the
    # place itself. The worker sets the threads of libraries before they load.
    allowed = ("services/launcher/", "services/servicekit/quire_servicekit/settings.py")
    found = [
        name_of(path)
        for path in sources()
        if path.is_relative_to(ROOT / "services") and "tests" not in path.parts
        if not name_of(path).startswith(allowed)
        if any(word in path.read_text(encoding="utf-8") for word in ("os.environ", "os.getenv", "getenv("))
    ]
    assert found == []


def modules_of(package):
    """Every importable module of a package, found without importing it."""
    import importlib.util

    spec = importlib.util.find_spec(package)
    names = [package]
    for place in spec.submodule_search_locations:
        names += [found.name for found in pkgutil.walk_packages([place], prefix=f"{package}.")]
    return [name for name in names if not name.endswith("__main__")]


@pytest.mark.parametrize("package", LIGHT)
def test_light_services_load_no_torch(package):
    """All modules of a light service together load neither torch nor what depends on it."""
    code = (
        f"import importlib, sys\nfor name in {modules_of(package)!r}: importlib.import_module(name)\n"
        f"print([name for name in {FORBIDDEN!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


def test_import_rules():
    """Services know each other by contract alone, and the layers hold (import-linter's contracts)."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
