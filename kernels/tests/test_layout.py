"""Every operation has the same parts."""

from pathlib import Path

import pytest

import quire_kernels

_ROOT = Path(quire_kernels.__file__).parent
_OPERATIONS = sorted({path.parent.name for name in ("cpu", "op") for path in _ROOT.glob(f"*/{name}.py")})


def test_operations_are_found():
    """The search below looks at something."""
    assert {"linear", "paged_attention", "rms_norm"} <= set(_OPERATIONS)


@pytest.mark.parametrize("operation", _OPERATIONS)
def test_operation_is_complete(operation):
    """An operation has a public function, a reference, cases, a test and a benchmark."""
    kernels = _ROOT.parent
    parts = [_ROOT / operation / name for name in ("op.py", "reference.py", "cases.py")]
    parts += [kernels / "tests" / f"test_{operation}.py", kernels / "benchmarks" / f"bench_{operation}.py"]
    assert [str(part) for part in parts if not part.exists()] == []
