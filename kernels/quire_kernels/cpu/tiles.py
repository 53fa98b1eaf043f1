"""Register tiles: the inner loops of matrix products, written as LLVM vectors so that no compiler has to guess.

`make_tile(...)` returns an intrinsic computing, for a few rows of activations against one tile of packed weights,

    out[r, c] (+)= sum over k of x[r, k] * w[k, c]

with one fused multiply-add per element. The order of the sum never depends on the number of rows, so that a row's
result is the same bits whatever batch it is in. `make_panel(...)` expands one tile of compact weights to float32
with the same conversion, for batches that use each weight many times.

Legend: R rows, C columns of a tile (num_vectors * lanes), K inner dimension. Weight kinds and their layout in a tile:
    f32         [K][C] float32
    f16, bf16   [K][C] 16 bit
    q8_0        per 32 of K: [C] half scale, [32][C] int8;                w = scale * q
    q4_1        per 32 of K: [C] half scale, [C] half minimum, [16][C] uint8, low nibble k = 2i, high k = 2i + 1;
                w = scale * q + minimum
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from quire_kernels.cpu.layout import QUANT_BLOCK, tile_bytes
from quire_kernels.cpu.target import TARGET

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()

Values = list[Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a tile in vectors."""

    lanes: int
    num_vectors: int

    @property
    def columns(self) -> int:
        """Output columns of a tile."""
        return self.lanes * self.num_vectors

    def vector(self, element: Any = _FLOAT) -> Any:
        """The type of one vector."""
        return ir.VectorType(element, self.lanes)


class Emitter:
    """Builder helpers shared by tiles, panels and what else is written in vectors."""

    def __init__(self, builder: Any, shape: Shape) -> None:
        self.builder = builder
        self.shape = shape

    def const(self, value: int) -> Any:
        """An int64."""
        return ir.Constant(_I64, value)

    def load(self, address: Any, kind: Any) -> Any:
        """A value of a type from an address of any alignment."""
        pointer = self.builder.inttoptr(address, kind.as_pointer())
        return self.builder.load(pointer, align=1)

    def store(self, value: Any, address: Any) -> None:
        """A value to an address of any alignment."""
        pointer = self.builder.inttoptr(address, value.type.as_pointer())
        self.builder.store(value, pointer, align=1)

    def at(self, base: Any, index: Any, scale: int) -> Any:
        """base + index * scale."""
        return self.builder.add(base, self.builder.mul(index, self.const(scale)))

    def splat(self, scalar: Any) -> Any:
        """A vector of one scalar."""
        kind = ir.VectorType(scalar.type, self.shape.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        zeros = ir.Constant(ir.VectorType(_I32, self.shape.lanes), [0] * self.shape.lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c with one rounding, in vectors of float32."""
        kind = self.shape.vector()
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{self.shape.lanes}f32"
        )
        return self.builder.call(function, [a, b, c])

    def zero(self) -> Any:
        """A vector of float32 zeros."""
        return ir.Constant(self.shape.vector(), [0.0] * self.shape.lanes)

    def loop(self, count: Any, carried: Values, body: Callable[[Any, Values], Values]) -> Values:
        """Run body(index, carried) `count` >= 1 times; returns the carried values at the end."""
        builder = self.builder
        entry, head, done = (
            builder.block,
            builder.append_basic_block("loop"),
            builder.append_basic_block("done"),
        )
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(_I64)
        phis = [builder.phi(value.type) for value in carried]
        results = body(index, list(phis))
        following = builder.add(index, self.const(1))
        index.add_incoming(self.const(0), entry)
        index.add_incoming(following, builder.block)
        for phi, start, result in zip(phis, carried, results, strict=True):
            phi.add_incoming(start, entry)
            phi.add_incoming(result, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, count), head, done)
        builder.position_at_end(done)
        return results

    # Weights: each method visits all of K in ascending order and calls use(k, vectors, carried) -> carried.

    def walk_weights(
        self, kind: str, weights: Any, row_stride: Any, k: Any, carried: Values, use: Any
    ) -> Values:
        """Visit the rows of a tile of any kind, converted to float32."""
        if kind == "q4_1":
            return self._walk_q4_1(weights, k, carried, use)
        if kind == "q8_0":
            return self._walk_q8_0(weights, k, carried, use)
        return self._walk_plain(kind, weights, row_stride, k, carried, use)

    def _walk_plain(
        self, kind: str, weights: Any, row_stride: Any, k: Any, carried: Values, use: Any
    ) -> Values:
        builder, shape = self.builder, self.shape
        size = 4 if kind == "f32" else 2
        row_bytes = builder.mul(row_stride, self.const(size))

        def body(index: Any, values: Values) -> Values:
            row = builder.add(weights, builder.mul(index, row_bytes))
            vectors = [
                self._plain_vector(kind, builder.add(row, self.const(j * shape.lanes * size)))
                for j in range(shape.num_vectors)
            ]
            return use(index, vectors, values)

        return self.loop(k, carried, body)

    def walk_in_chains(
        self, kind: str, weights: Any, row_stride: Any, k: Any, carried: Values, use: Any, chains: int
    ) -> Values:
        """As `walk_weights` for plain kinds, in `chains` independent sums that are added at the end."""
        builder, shape = self.builder, self.shape
        size = 4 if kind == "f32" else 2
        row_bytes = builder.mul(row_stride, self.const(size))
        width = len(carried)
        sums = list(carried) + [self.zero()] * (width * (chains - 1))

        def body(index: Any, values: Values) -> Values:
            result: Values = []
            for chain in range(chains):
                step = builder.add(builder.mul(index, self.const(chains)), self.const(chain))
                row = builder.add(weights, builder.mul(step, row_bytes))
                vectors = [
                    self._plain_vector(kind, builder.add(row, self.const(j * shape.lanes * size)))
                    for j in range(shape.num_vectors)
                ]
                result += use(step, vectors, values[chain * width : (chain + 1) * width])
            return result

        sums = self.loop(builder.udiv(k, self.const(chains)), sums, body)
        total = sums[:width]
        for chain in range(1, chains):
            total = [builder.fadd(a, b) for a, b in zip(total, sums[chain * width :], strict=False)]
        return total

    def _plain_vector(self, kind: str, address: Any) -> Any:
        builder, shape = self.builder, self.shape
        if kind == "f32":
            return self.load(address, shape.vector())
        if kind == "f16":
            return builder.fpext(self.load(address, shape.vector(ir.HalfType())), shape.vector())
        wide = builder.zext(self.load(address, shape.vector(_I16)), shape.vector(_I32))
        sixteen = ir.Constant(shape.vector(_I32), [16] * shape.lanes)
        return builder.bitcast(builder.shl(wide, sixteen), shape.vector())

    def half_vectors(self, address: Any) -> Values:
        """The float16 numbers of a tile's columns as float32 vectors."""
        shape = self.shape
        return [
            self.builder.fpext(
                self.load(
                    self.builder.add(address, self.const(2 * j * shape.lanes)), shape.vector(ir.HalfType())
                ),
                shape.vector(),
            )
            for j in range(shape.num_vectors)
        ]

    def _walk_q8_0(self, weights: Any, k: Any, carried: Values, use: Any) -> Values:
        builder, shape = self.builder, self.shape
        columns = shape.columns
        block_bytes = tile_bytes("q8_0", QUANT_BLOCK, columns)

        def block(block_index: Any, outer: Values) -> Values:
            base = self.at(weights, block_index, block_bytes)
            scales = self.half_vectors(base)
            quants = builder.add(base, self.const(2 * columns))

            def body(index: Any, values: Values) -> Values:
                row = self.at(quants, index, columns)
                vectors = []
                for j in range(shape.num_vectors):
                    raw = self.load(builder.add(row, self.const(j * shape.lanes)), shape.vector(_I8))
                    number = builder.sitofp(builder.sext(raw, shape.vector(_I32)), shape.vector())
                    vectors.append(builder.fmul(number, scales[j]))
                return use(self.at(index, block_index, QUANT_BLOCK), vectors, values)

            return self.loop(self.const(QUANT_BLOCK), outer, body)

        return self.loop(builder.udiv(k, self.const(QUANT_BLOCK)), carried, block)

    def _walk_q4_1(self, weights: Any, k: Any, carried: Values, use: Any) -> Values:
        builder, shape = self.builder, self.shape
        columns = shape.columns
        block_bytes = tile_bytes("q4_1", QUANT_BLOCK, columns)
        wide = shape.vector(_I32)
        fifteen = ir.Constant(wide, [15] * shape.lanes)
        four = ir.Constant(wide, [4] * shape.lanes)

        def block(block_index: Any, outer: Values) -> Values:
            base = self.at(weights, block_index, block_bytes)
            scales = self.half_vectors(base)
            minima = self.half_vectors(builder.add(base, self.const(2 * columns)))
            quants = builder.add(base, self.const(4 * columns))

            def body(index: Any, values: Values) -> Values:
                row = self.at(quants, index, columns)
                low, high = [], []
                for j in range(shape.num_vectors):
                    raw = self.load(builder.add(row, self.const(j * shape.lanes)), shape.vector(_I8))
                    both = builder.zext(raw, wide)
                    for nibble, into in (
                        (builder.and_(both, fifteen), low),
                        (builder.lshr(both, four), high),
                    ):
                        number = builder.uitofp(nibble, shape.vector())
                        into.append(self.fma(number, scales[j], minima[j]))
                first = self.at(builder.mul(index, self.const(2)), block_index, QUANT_BLOCK)
                values = use(first, low, values)
                return use(builder.add(first, self.const(1)), high, values)

            return self.loop(self.const(QUANT_BLOCK // 2), outer, body)

        return self.loop(builder.udiv(k, self.const(QUANT_BLOCK)), carried, block)


def _emit_tile(emit: Emitter, kind: str, rows: int, accumulate: bool, chains: int, args: Values) -> None:
    """One tile of a fixed kind and height. chains: sums run over k = 0, chains, ... and so on, then are added."""
    weights, row_stride, x, x_stride, k, out, out_stride = args
    builder, shape = emit.builder, emit.shape
    lanes, num_vectors = shape.lanes, shape.num_vectors
    x_rows = [emit.at(x, builder.mul(x_stride, emit.const(r)), 4) for r in range(rows)]
    out_rows = [emit.at(out, builder.mul(out_stride, emit.const(r)), 4) for r in range(rows)]
    places = [builder.add(row, emit.const(4 * j * lanes)) for row in out_rows for j in range(num_vectors)]
    start = [emit.load(place, shape.vector()) if accumulate else emit.zero() for place in places]

    def multiply(index: Any, vectors: Values, sums: Values) -> Values:
        result = []
        for r in range(rows):
            x_rk = emit.splat(emit.load(emit.at(x_rows[r], index, 4), _FLOAT))
            result += [emit.fma(x_rk, vectors[j], sums[r * num_vectors + j]) for j in range(num_vectors)]
        return result

    if chains == 1:
        sums = emit.walk_weights(kind, weights, row_stride, k, start, multiply)
    else:
        sums = emit.walk_in_chains(kind, weights, row_stride, k, start, multiply, chains)
    for value, place in zip(sums, places, strict=True):
        emit.store(value, place)


def make_tile(
    kinds: tuple[str, ...],
    row_steps: tuple[int, ...],
    num_vectors: int,
    *,
    accumulate: bool = False,
    chains: int = 1,
    lanes: int = TARGET.lanes,
) -> Any:
    """Intrinsic tile(kind, rows, weights, row_stride, x, x_stride, k, out, out_stride), all int64.

    kind: index into `kinds`; rows: one of `row_steps`; any other pair does nothing.
    weights: address of the tile; row_stride: elements from one k to the next (plain kinds only).
    x: address of float32 [rows, k], x_stride elements apart; out: float32 [rows, C], out_stride elements apart.
    k: at least 1; a multiple of 32 for quantised kinds, of `chains` for plain ones.
    accumulate: out is added to, starting from its value.
    """
    shape = Shape(lanes, num_vectors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        selector = builder.add(builder.mul(args[0], ir.Constant(_I64, 256)), args[1])
        end = builder.append_basic_block("end")
        switch = builder.switch(selector, end)
        for index, kind in enumerate(kinds):
            for rows in row_steps:
                block = builder.append_basic_block(f"{kind}_{rows}")
                switch.add_case(ir.Constant(_I64, index * 256 + rows), block)
                builder.position_at_end(block)
                _emit_tile(Emitter(builder, shape), kind, rows, accumulate, chains, args[2:])
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def compute(
        typing_context: Any, kind: Any, rows: Any, weights: Any, row_stride: Any, x: Any, x_stride: Any, k: Any,
        out: Any, out_stride: Any,
    ) -> Any:  # fmt: skip
        return types.void(*[types.int64] * 9), generate

    return compute


def make_panel(kinds: tuple[str, ...], num_vectors: int, *, lanes: int = TARGET.lanes) -> Any:
    """Intrinsic panel(kind, weights, k, out): expand one tile of compact weights to float32 [k, C] at `out`."""
    shape = Shape(lanes, num_vectors)

    def emit_panel(emit: Emitter, kind: str, weights: Any, k: Any, out: Any) -> None:
        def write(index: Any, vectors: Values, carried: Values) -> Values:
            row = emit.at(out, index, 4 * shape.columns)
            for j, vector in enumerate(vectors):
                emit.store(vector, emit.builder.add(row, emit.const(4 * j * lanes)))
            return carried

        emit.walk_weights(kind, weights, emit.const(shape.columns), k, [], write)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        end = builder.append_basic_block("end")
        switch = builder.switch(args[0], end)
        for index, kind in enumerate(kinds):
            block = builder.append_basic_block(kind)
            switch.add_case(ir.Constant(_I64, index), block)
            builder.position_at_end(block)
            emit_panel(Emitter(builder, shape), kind, *args[1:])
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    @intrinsic
    def expand(typing_context: Any, kind: Any, weights: Any, k: Any, out: Any) -> Any:
        return types.void(*[types.int64] * 4), generate

    return expand
