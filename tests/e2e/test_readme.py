"""What the README tells strangers to type, typed: its first requests against a running suite."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

README = Path(__file__).resolve().parents[2] / "README.md"
SECTION = README.read_text(encoding="utf-8").split("## First request", 1)[1].split("\n## ", 1)[0]
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", SECTION, flags=re.DOTALL)


def test_readme_shows_every_way_to_ask():
    """The section has a request by curl in both dialects, by the openai package and by gRPC."""
    assert [kind for kind, _ in BLOCKS].count("python") == 2
    assert [kind for kind, _ in BLOCKS].count("sh") >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_of_the_readme_works(smollm2_suite, number):
    """The block runs as it is printed (on this suite's port) and shows the answer."""
    kind, code = BLOCKS[number]
    command = [sys.executable, "-c"] if kind == "python" else ["bash", "-euc"]
    code = code.replace("127.0.0.1:8080", smollm2_suite.target)
    done = subprocess.run([*command, code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # A typed stream has the answer in pieces.
    pieces = re.findall(r'"text":\s?"([^"]*)"', done.stdout)
    assert "The capital of France is Paris" in done.stdout or "The capital of France is Paris" in "".join(
        pieces
    )


def test_grpc_client_of_the_readme_is_short():
    """The native client is 15 lines at most."""
    (code,) = [code for kind, code in BLOCKS if "import grpc" in code]
    assert len(code.strip().splitlines()) <= 15
