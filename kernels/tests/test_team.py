"""The thread team: programs run all their tasks, in order, on all threads."""

import gc

import numpy as np
import pytest

from quire_kernels.argmax import cpu as argmax
from quire_kernels.cpu.memory import zeros
from quire_kernels.cpu.team import Program, bound
from quire_kernels.rms_norm import cpu as rms_norm


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_tasks_see_what_earlier_tasks_wrote(num_threads):
    """A chain of norms over many rows gives the same on any number of threads, run after run."""
    x = np.random.default_rng(0).standard_normal((301, 64)).astype(np.float32)
    weight = np.full(64, 2.0, dtype=np.float32)
    rows = np.array([301])
    buffers = [x.copy()] + [np.zeros_like(x) for _ in range(20)]
    steps = [rms_norm.bind(buffers[i], weight, 0.0, buffers[i + 1], rows) for i in range(20)]
    program = Program(steps, num_threads)
    for _ in range(20):
        buffers[-1][:] = 0
        program.run()
        np.testing.assert_allclose((buffers[-1] ** 2).mean(axis=1), 4.0, rtol=1e-4)


def test_counts_are_read_at_every_run():
    """The number of rows is a parameter by address: changing it changes the next run."""
    x, out, rows = np.eye(4, dtype=np.float32), np.full(4, -1, dtype=np.int32), np.array([2])
    program = Program([argmax.bind(x, 4, out, rows)], 2)
    program.run()
    assert out.tolist() == [0, 1, -1, -1]
    rows[0] = 4
    program.run()
    assert out.tolist() == [0, 1, 2, 3]


def test_a_program_keeps_its_arrays_alive():
    """Arrays that nobody else holds stay in place as long as the program does."""
    out, rows = np.zeros(1, dtype=np.int32), np.array([1])
    program = Program([argmax.bind(np.array([[0.0, 5.0]], dtype=np.float32), 2, out, rows)], 1)
    gc.collect()
    rubbish = [np.full((1, 2), 9.0, dtype=np.float32) for _ in range(100)]
    program.run()
    assert out[0] == 1 and len(rubbish) == 100


def test_strided_arrays_are_refused():
    """A view with gaps has no address a kernel could compute with."""
    with pytest.raises(ValueError, match="C-contiguous"):
        bound(argmax.argmax_task, np.zeros((4, 4))[:, :2])


def test_memory_is_zeroed_and_aligned():
    """Buffers start at a cache line and hold zeros."""
    block = zeros((3, 5), np.float32)
    assert block.ctypes.data % 64 == 0 and not block.any() and block.shape == (3, 5)
