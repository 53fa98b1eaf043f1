"""A thread team and the programs it runs: a program is a list of tasks with a barrier after each.

A task is a numba cfunc `task(record, counter, thread, num_threads)`: record is the address of its int64 parameters,
counter the address of an int64 that is 0 at its start and from which threads draw their next piece of work. One call
runs a whole program, so a forward pass costs one crossing from Python, and threads meet only at the barriers.

The threads are those of torch's own OpenMP pool where it can be reached: a second pool would fight it for the cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import cfunc, njit, types
from numpy.typing import NDArray

from quire_kernels.cpu.intrinsics import atomic_add, atomic_load, call_task, int64_at, spin_hint, usleep

# Counters stand a cache line apart, so that drawing work from one does not disturb another.
_LINE_WORDS = 8
# Header words: threads, tasks, address of the task table, then, a line each, arrivals and the barrier.
_THREADS, _TASKS, _TABLE = 0, 1, 2
_ARRIVED, _BARRIER, _COUNTERS = _LINE_WORDS, 2 * _LINE_WORDS, 3 * _LINE_WORDS
# Spins before a waiting thread sleeps (tens of microseconds), and for how long it then sleeps at a time. Sleeping, not
# yielding: the core falls idle, so a member that waits for one elsewhere can move to it, and the sleeper is preferred
# when it wakes. With yields two members on busy cores took turns at waiting a whole time slice at every barrier.
_SPINS = 1000
_SLEEP_US = np.uint32(20)

TASK_SIGNATURE = types.void(types.int64, types.int64, types.int64, types.int64)


def task(function: Any) -> Any:
    """Decorator: compile a task (cached on disk). Floating-point sums may be reordered, never assumed finite."""
    return cfunc(
        TASK_SIGNATURE,
        nopython=True,
        cache=True,
        error_model="numpy",
        fastmath={"reassoc", "contract", "nsz"},
    )(function)


@njit(inline="always")
def _wait(barrier, goal):
    spins = 0
    while atomic_load(barrier) < goal:
        spin_hint()
        spins += 1
        if spins == _SPINS:
            usleep(_SLEEP_US)
            spins = _SPINS - 1


@cfunc(types.void(types.int64), nopython=True, cache=True, error_model="numpy")
def _member(header):
    """What every thread of the team runs: all tasks in order, meeting at a barrier after each."""
    words = int64_at(header)
    num_threads = words[_THREADS]
    thread = atomic_add(header + 8 * _ARRIVED, 1)
    table = int64_at(words[_TABLE])
    for index in range(words[_TASKS]):
        counter = header + 8 * (_COUNTERS + index * _LINE_WORDS)
        call_task(table[2 * index], table[2 * index + 1], counter, thread, num_threads)
        if num_threads > 1:
            atomic_add(header + 8 * _BARRIER, 1)
            _wait(header + 8 * _BARRIER, (index + 1) * num_threads)


@dataclass(frozen=True, slots=True)
class BoundTask:
    """A task with its parameters. arrays: whatever the record points into, kept alive with it."""

    function: Any
    record: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]


def bound(function: Any, *values: int | float | NDArray[Any] | None) -> BoundTask:
    """Bind a task: arrays become their addresses (None: 0), floats the bits of a float64, ints stay.

    ValueError if an array is not C-contiguous, because kernels compute addresses from shapes.
    """
    words = np.zeros(len(values), dtype=np.int64)
    arrays: list[NDArray[Any]] = []
    for index, value in enumerate(values):
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ValueError(f"parameter {index} of a kernel needs a C-contiguous array")
            arrays.append(value)
            words[index] = value.ctypes.data
        elif isinstance(value, float):
            words[index] = np.float64(value).view(np.int64)
        elif value is not None:
            words[index] = value
    return BoundTask(function, words, tuple(arrays))


class Program:
    """Bound tasks in order. Built once, run any number of times, by one caller at a time."""

    def __init__(self, steps: Sequence[BoundTask], num_threads: int) -> None:
        self._steps = tuple(steps)
        self._table = np.array(
            [[step.function.address, step.record.ctypes.data] for step in steps], dtype=np.int64
        ).reshape(-1, 2)
        storage = np.zeros(_COUNTERS + _LINE_WORDS * (len(steps) + 1), dtype=np.int64)
        self._header = storage
        self._header[_TASKS] = len(steps)
        self._header[_TABLE] = self._table.ctypes.data
        self._run_region = parallel_region()
        self._num_threads = num_threads if self._run_region is not None else 1
        self._header[_THREADS] = self._num_threads
        self._member_address = ctypes.c_void_p(_member.address)
        self._header_address = ctypes.c_void_p(self._header.ctypes.data)

    def run(self) -> None:
        """Run every task to its end. The interpreter lock is released meanwhile."""
        self._header[_ARRIVED:] = 0
        if self._num_threads == 1:
            _member.ctypes(self._header_address.value)
        else:
            self._run_region(self._member_address, self._header_address, self._num_threads, 0)


@cache
def parallel_region() -> Any | None:
    """GOMP_parallel of the OpenMP library that torch has loaded, or None where torch uses another."""
    import torch

    library = Path(torch.__file__).parent / "lib"
    for path in sorted(
        [*library.glob("libgomp*.so*"), *library.parent.parent.glob("torch.libs/libgomp*.so*")]
    ):
        handle = ctypes.CDLL(str(path))
        function = getattr(handle, "GOMP_parallel", None)
        if function is not None:
            function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            function.restype = None
            return function
    return None


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_once(step: BoundTask, num_threads: int | None = None) -> None:
    """Run a single bound task, for callers that have no program to put it in."""
    Program([step], num_threads or available_cores()).run()
