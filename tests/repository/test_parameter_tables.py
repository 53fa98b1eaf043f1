"""docs/compatibility.md and the code that it describes."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_parameter_tables_are_those_of_the_code():
    """The committed tables of parameters are what the code would write now."""
    command = [sys.executable, ROOT / "scripts" / "parameter_tables.py", "--check"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
