"""Matrix tiles of x86 (AMX): the instructions as intrinsics, and whether this process may use them.

A tile register holds 16 rows of 64 bytes. One product step multiplies a tile of activations, [rows][32] bfloat16, by
a tile of weights, [16 pairs of k][16 columns][2] bfloat16, and adds to [rows][16] float32: 32 of K at once, just the
length of a quantised block. Numbering of the registers here: 0 and 1 sums, 2 and 3 weights, 4 to 6 activations.

Legend: C columns of a weight tile as packed (32), a block is 32 of K. Addresses are int64, as everywhere in cpu/.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any, Final

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from quire_kernels.cpu.layout import QUANT_BLOCK, tile_bytes
from quire_kernels.cpu.target import TARGET
from quire_kernels.cpu.tiles import Emitter, Shape

# Rows that one product step takes.
MAX_ROWS: Final = 16
# Each float32 activation is the sum of so many bfloat16 (see split_bfloat16).
PARTS: Final = 3
_TILE_BYTES: Final = 16 * 64
# Activations of one block: a tile for each part. Weights of one block: a tile for each half of the columns.
ROW_BLOCK_BYTES: Final = PARTS * _TILE_BYTES
QUANTS_BLOCK_BYTES: Final = 2 * _TILE_BYTES
SUMS_BYTES: Final = 2 * _TILE_BYTES
CONFIG_BYTES: Final = 64

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_POINTER = _I8.as_pointer()
_SUM, _WEIGHT, _ROWS = (0, 1), (2, 3), (4, 5, 6)


@cache
def has_amx() -> bool:
    """Whether kernels may use the tiles: the processor has them, numba compiles for it, the kernel lets us.

    The first call asks the operating system for the tiles' registers, for all threads of this process.
    """
    if platform.machine() != "x86_64" or platform.system() != "Linux" or TARGET.lanes != 16:
        return False
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is None:
        found = llvm.get_host_cpu_features()
        able = all(found.get(name) for name in ("amx-tile", "amx-bf16", "avx512bw"))
    else:
        able = {"+amx-tile", "+amx-bf16", "+avx512bw"} <= set(chosen.split(","))
    if not able:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0


def _call(builder: Any, name: str, *args: Any) -> None:
    """Call an instruction that returns nothing. args: register numbers as int, or values."""
    values = [ir.Constant(_I8, arg) if isinstance(arg, int) else arg for arg in args]
    kind = ir.FunctionType(ir.VoidType(), [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def _pointer(builder: Any, address: Any, offset: int = 0) -> Any:
    return builder.inttoptr(builder.add(address, ir.Constant(_I64, offset)), _POINTER)


@intrinsic
def configure(typing_context: Any, config: Any, rows: Any) -> Any:
    """Set the tiles up for `rows` (1 to 16) rows of activations. config: address of 64 bytes to write it to."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        config, rows = args
        byte = builder.trunc(rows, _I8)
        emit = Emitter(builder, Shape(16, 1))
        emit.store(ir.Constant(ir.VectorType(_I64, 8), [0] * 8), config)
        emit.store(ir.Constant(_I8, 1), config)
        for tile in (*_SUM, *_WEIGHT, *_ROWS):
            emit.store(ir.Constant(_I16, 64), builder.add(config, ir.Constant(_I64, 16 + 2 * tile)))
            height = ir.Constant(_I8, 16) if tile in _WEIGHT else byte
            emit.store(height, builder.add(config, ir.Constant(_I64, 48 + tile)))
        _call(builder, "ldtilecfg", _pointer(builder, config))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def release(typing_context: Any) -> Any:
    """Give the tiles up, so that the operating system need not save them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def multiply_block(typing_context: Any, rows: Any, quants: Any, sums: Any) -> Any:
    """sums [2][rows][16] float32 = rows (a block of PARTS tiles) times quants (a block of two tiles).

    The smallest parts of the activations are added first.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, quants, sums = args
        stride = ir.Constant(_I64, 64)
        for half in (0, 1):
            address = _pointer(builder, quants, half * _TILE_BYTES)
            _call(builder, "tileloadd64", _WEIGHT[half], address, stride)
            _call(builder, "tilezero", _SUM[half])
        for part in reversed(range(PARTS)):
            address = _pointer(builder, rows, part * _TILE_BYTES)
            _call(builder, "tileloadd64", _ROWS[part], address, stride)
            for half in (0, 1):
                _call(builder, "tdpbf16ps", _SUM[half], _ROWS[part], _WEIGHT[half])
        for half in (0, 1):
            _call(builder, "tilestored64", _SUM[half], _pointer(builder, sums, half * _TILE_BYTES), stride)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate


@intrinsic
def add_scaled(typing_context: Any, num_rows: Any, sums: Any, scales: Any, out: Any) -> Any:
    """out [num_rows][C] float32 += sums, as `multiply_block` wrote them, times scales [C] float16."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        num_rows, sums, scales, out = args
        emit = Emitter(builder, Shape(16, 2))
        factors = emit.half_vectors(scales)

        def row(index: Any, carried: list[Any]) -> list[Any]:
            for half in (0, 1):
                source = builder.add(emit.at(sums, index, 64), emit.const(half * _TILE_BYTES))
                place = builder.add(emit.at(out, index, 128), emit.const(64 * half))
                total = emit.load(place, emit.shape.vector())
                emit.store(emit.fma(emit.load(source, emit.shape.vector()), factors[half], total), place)
            return carried

        emit.loop(num_rows, [], row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


def _expand_q8_0(emit: Emitter, weights: Any, out: Any) -> None:
    """One block: int8 q[k][C] to bfloat16, pairs of k side by side."""
    builder, wide = emit.builder, emit.shape.vector(_I32)
    sixteen = ir.Constant(wide, [16] * 16)
    upper = ir.Constant(wide, [0xFFFF0000] * 16)

    def row(index: Any, carried: list[Any]) -> list[Any]:
        for half in (0, 1):
            bits = []
            for parity in (0, 1):
                offset = 2 * 32 + 32 * parity + 16 * half
                address = builder.add(emit.at(weights, index, 64), emit.const(offset))
                number = builder.sext(emit.load(address, emit.shape.vector(_I8)), wide)
                bits.append(builder.bitcast(builder.sitofp(number, emit.shape.vector()), wide))
            pair = builder.or_(builder.lshr(bits[0], sixteen), builder.and_(bits[1], upper))
            emit.store(pair, builder.add(emit.at(out, index, 64), emit.const(half * _TILE_BYTES)))
        return carried

    emit.loop(emit.const(QUANT_BLOCK // 2), [], row)


def _expand_q4_1(emit: Emitter, weights: Any, out: Any) -> None:
    """One block: nibbles q[k][C] to q - 8 in bfloat16, pairs of k side by side, by a table look-up of 16-bit words."""
    builder, wide, words = emit.builder, emit.shape.vector(_I32), ir.VectorType(_I16, 32)
    table = ir.Constant(words, [_bfloat16_bits(nibble - 8) for nibble in range(16)] * 2)
    twelve = ir.Constant(wide, [12] * 16)
    look_up = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(words, [words, words]), "llvm.x86.avx512.permvar.hi.512"
    )

    def row(index: Any, carried: list[Any]) -> list[Any]:
        for half in (0, 1):
            address = builder.add(emit.at(weights, index, 32), emit.const(4 * 32 + 16 * half))
            both = builder.zext(emit.load(address, emit.shape.vector(_I8)), wide)
            # The look-up reads five bits of a word and the table repeats after four: low nibble, high nibble.
            choice = builder.bitcast(builder.or_(both, builder.shl(both, twelve)), words)
            pair = builder.call(look_up, [table, choice])
            emit.store(pair, builder.add(emit.at(out, index, 64), emit.const(half * _TILE_BYTES)))
        return carried

    emit.loop(emit.const(QUANT_BLOCK // 2), [], row)


def _bfloat16_bits(value: int) -> int:
    """The upper half of a small integer's float32 bits; exact up to 256."""
    return int.from_bytes(bytes(ctypes.c_float(value)), "little") >> 16


def _expander(kind: str, emit_block: Any) -> Any:
    @intrinsic
    def expand(typing_context: Any, weights: Any, num_blocks: Any, out: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            weights, num_blocks, out = args
            emit = Emitter(builder, Shape(16, 2))

            def block(index: Any, carried: list[Any]) -> list[Any]:
                source = emit.at(weights, index, tile_bytes(kind, QUANT_BLOCK, 32))
                emit_block(emit, source, emit.at(out, index, QUANTS_BLOCK_BYTES))
                return carried

            emit.loop(num_blocks, [], block)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), generate

    return expand


# expand(weights, num_blocks, out): the integers of num_blocks >= 1 blocks of a packed tile, as weight tiles.
expand_q8_0 = _expander("q8_0", _expand_q8_0)
expand_q4_1 = _expander("q4_1", _expand_q4_1)


@intrinsic
def expand_minima_q4_1(typing_context: Any, weights: Any, num_blocks: Any, out: Any) -> Any:
    """out [num_blocks][C] float32 = minimum + 8 scale of each block: what is left when q - 8 takes the place of q."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        weights, num_blocks, out = args
        emit = Emitter(builder, Shape(16, 2))
        eight = ir.Constant(emit.shape.vector(), [8.0] * 16)

        def block(index: Any, carried: list[Any]) -> list[Any]:
            source = emit.at(weights, index, tile_bytes("q4_1", QUANT_BLOCK, 32))
            scales = emit.half_vectors(source)
            minima = emit.half_vectors(builder.add(source, emit.const(2 * 32)))
            for half in (0, 1):
                place = builder.add(emit.at(out, index, 128), emit.const(64 * half))
                emit.store(emit.fma(scales[half], eight, minima[half]), place)
            return carried

        emit.loop(num_blocks, [], block)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), generate
