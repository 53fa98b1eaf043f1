"""Launches of compiled Triton kernels without Triton's own look-up, which costs more than a small kernel runs.

Triton works out at every launch, argument by argument in Python, which compiled kernel it needs. Here that is done once
per kind of arguments; the kind is the tensors' types and alignment, whether numbers are 1 or multiples of 16 (what
Triton compiles differently for), and every constant. Whatever is not known yet goes Triton's way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from triton import knobs
from triton.runtime import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

F = TypeVar("F")

_LARGEST_INT32 = (1 << 31) - 1


def fast(function: F) -> F:
    """Decorator of a kernel that the host launches; in Triton's interpreter it changes nothing."""
    return FastKernel(function) if isinstance(function, JITFunction) else function  # type: ignore[return-value]


class FastKernel:
    """`kernel[grid](*arguments, **constants)` as of the jitted function. Positional are exactly the arguments that are
    not constants; the first is a tensor; a constant has no default."""

    def __init__(self, function: JITFunction[Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self._names = [parameter.name for parameter in function.params]
        self._found: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        device = arguments[0].get_device()
        kind: list[Any] = [device, *constants, *constants.values()]
        raw: list[Any] = []
        for argument in arguments:
            of = type(argument)
            if of is torch.Tensor:
                address = argument.data_ptr()
                raw.append(address)
                kind.append(argument.dtype if address & 15 == 0 else str(argument.dtype))
            elif of is int:
                raw.append(argument)
                kind.append(_kind_of_number(argument))
            elif of is TensorDescriptor:
                raw.append(argument)
                kind.append((argument.base.dtype, *argument.block_shape))
            else:
                # Floats and whatever else is one kind each; a kind that is none of these never matches another.
                raw.append(argument)
                kind.append(of if of is float else argument)
        key = tuple(kind)
        found = self._found.get(key)
        if found is None or _is_observed():
            self._launch_first(key, grid, arguments, constants)
            return
        run, function, metadata, tail = found
        width, height, depth = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        run(width, height, depth, stream, function, metadata, None, None, None, *raw, *tail)

    def _launch_first(
        self,
        key: tuple[Any, ...],
        grid: tuple[int, ...],
        arguments: tuple[Any, ...],
        constants: dict[str, Any],
    ) -> None:
        """Triton's own launch; keep what it found or compiled."""
        compiled = self.function[grid](*arguments, **constants)
        names = self._names[len(arguments) :]
        if hasattr(compiled, "packed_metadata") and all(name in constants for name in names):
            tail = tuple(constants[name] for name in names)
            self._found[key] = (compiled.run, compiled.function, compiled.packed_metadata, tail)


def _kind_of_number(number: int) -> int:
    if number == 1:
        return 1
    return (16 if number & 15 == 0 else 2) + (64 if abs(number) > _LARGEST_INT32 else 0)


def _is_observed() -> bool:
    """Whether somebody wants to be told of launches (Triton's own profiler); CUPTI needs no telling."""
    hook = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))
