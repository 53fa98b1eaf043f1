"""Small pieces numba lacks: raw addresses, atomics, bit casts, a spin hint. Each is a few LLVM instructions.

Addresses are int64; whoever passes one guarantees that it is valid for what is read or written there.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INT32 = ir.IntType(32)
_INT64 = ir.IntType(64)
_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()
_IS_X86 = platform.machine().lower() in {"x86_64", "amd64", "i686"}


def _pointer(element: types.Type) -> Any:
    """An intrinsic that turns an address into a pointer that numba can index."""

    @intrinsic
    def as_pointer(typing_context: Any, address: Any) -> Any:
        signature = types.CPointer(element)(types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return signature, generate

    return as_pointer


float32_at = _pointer(types.float32)
int32_at = _pointer(types.int32)
int64_at = _pointer(types.int64)
uint8_at = _pointer(types.uint8)
int8_at = _pointer(types.int8)
uint16_at = _pointer(types.uint16)


@intrinsic
def float64_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float64 whose bits an int64 holds (how records of int64 carry real parameters)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _DOUBLE)

    return types.float64(types.int64), generate


@intrinsic
def float32_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 whose bits an int32 holds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float32(typing_context: Any, value: Any) -> Any:
    """The bits of a float32 as an int32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _INT32)

    return types.int32(types.float32), generate


@intrinsic
def float32_of_half(typing_context: Any, bits: Any) -> Any:
    """The float32 equal to the half-precision number whose bits a uint16 holds."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _FLOAT)

    return types.float32(types.uint16), generate


@intrinsic
def atomic_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address, sequentially consistent; returns the value before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def atomic_load(typing_context: Any, address: Any) -> Any:
    """Read the int64 at an address with acquire ordering."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def spin_hint(typing_context: Any) -> Any:
    """Tell the core that this is a spin loop (x86 `pause`; nothing elsewhere)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _IS_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def call_task(
    typing_context: Any, function: Any, record: Any, counter: Any, thread: Any, num_threads: Any
) -> Any:
    """Call the task at an address: task(record, counter, thread, num_threads), all int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_INT64] * 4)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
