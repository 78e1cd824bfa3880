"""The kernel that multiplies limbs of the source by weights in blocks.

``void product(ptr scratch, ptr dst, ptr ops, i64 part, i64 parts)`` does a share of the registers of outputs,
each with all rows; ``ops`` lists the addresses of weights, scales, zero points and bias, as far as there are
any. So whichever thread computes an output, it is computed in the same order: the bits don't depend on the
number of threads.

A tile is two registers of outputs by two rows; with one row it is one register. The sums of a tile are those
of all limbs, and weights that have been taken apart serve both rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.builder import Function
from relayout.ir.conversions import from_f32
from relayout.ir.kernel import kernel, tasks
from relayout.ir.types import FLOAT, I8, I32, I64, PTR, Value, constant, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.blockwise.dots import declared, dot
from relayout.kernels.blockwise.plan import Plan

__all__ = ["PRODUCT", "product_text"]

PRODUCT = "product"
ROWS = 2  # of a tile
AHEAD = 12 << 10  # bytes: so far in front of what is read weights are asked for, three pages further
NEAR = 2
"""The cache that they are asked into, as LLVM counts: the second. The first has too few misses at a time."""
LOWER = 0x0F0F0F0F


def product_text(plan: Plan) -> str:
    """The text of the kernel."""
    return _Writer(plan).text()


class _Places(NamedTuple):
    """Where what belongs to a register of outputs begins."""

    weights: Value
    scales: Value
    zeros: Value | None
    bias: Value | None
    first: Value
    """Its first output."""


class _Writer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.b: Function = kernel(PRODUCT, plan.machine)
        self.sum, self.whole = vector(plan.lanes, FLOAT), vector(plan.lanes, I32)

    def text(self) -> str:
        b, plan = self.b, self.plan
        given = [b.load(PTR, b.gep(b["ops"], 8 * k), 8) for k in range(2 + plan.zeros + plan.bias)]
        weights, scales, *rest = given
        zeros = rest.pop(0) if plan.zeros else None
        bias = rest.pop(0) if plan.bias else None

        def places(group: Value) -> _Places:
            lanes = plan.lanes
            return _Places(
                b.gep(weights, group, plan.words * plan.machine.vector),
                b.gep(scales, group, plan.blocks * 4 * lanes),
                None if zeros is None else b.gep(zeros, group, plan.blocks * lanes),
                None if bias is None else b.gep(bias, group, 4 * lanes),
                b.mul(group, lanes),
            )

        def task(number: Value) -> None:
            together = plan.together
            group = b.mul(number, together)
            several = [places(b.add(group, k)) for k in range(together)]
            if together == 1:
                return self.rows(several)
            full = b.icmp("sle", group, plan.groups - together)
            if plan.groups >= together:
                b.when(full, lambda: self.rows(several))
            if plan.groups % together:
                b.when(b.not_(full), lambda: self.rows(several[:1]))
            return None

        tasks(b, plan.tasks, task)
        return declared(plan.machine) + b.text()

    def rows(self, several: Sequence[_Places]) -> None:
        """Some registers of outputs of all rows."""
        rows = self.plan.rows
        tile = min(ROWS, rows)
        self.b.loop(0, rows // tile * tile, tile, lambda row: self.tile(several, row, tile))
        if rows % tile:
            self.tile(several, constant(I64, rows // tile * tile), rows % tile)

    def tile(self, several: Sequence[_Places], row: Value, rows: int) -> None:
        """Some registers of outputs of some rows."""
        b, plan = self.b, self.plan
        room = plan.chunks * plan.record
        sources = [b.gep(b.gep(b["src"], row, room), k * room) for k in range(rows)]
        sums = []
        for at in several:
            first = constant(self.sum, 0) if at.bias is None else b.load(self.sum, at.bias, 4)
            sums += [first] * rows
        whole, last = divmod(plan.inputs, plan.chunk)

        def turn(c: Value, sums: list[Value]) -> list[Value]:
            return self.chunk(several, [b.gep(x, c, plan.record) for x in sources], c, plan.chunk, sums)

        sums = b.repeat(0, whole, 1, sums, turn)
        if last:
            ends = [b.gep(x, whole * plan.record) for x in sources]
            sums = self.chunk(several, ends, constant(I64, whole), last, sums)
        start, step = plan.dst_at
        made = iter(sums)
        for at in several:
            for k in range(rows):
                to = b.gep(b.gep(b["dst"], start), b.add(row, k), step)
                self.stored(next(made), b.gep(to, at.first, dtype(plan.dst).bits // 8), at)

    def stored(self, x: Value, to: Value, at: _Places) -> None:
        """Write a register of results; of the last one those that there are."""
        b, plan, kind = self.b, self.plan, dtype(self.plan.dst)
        made, size = from_f32(b, x, kind), kind.bits // 8
        rest = plan.outputs % plan.lanes
        whole, part = (
            partial(store_pieces, b, made, to, pieces_of(0, n, 0, size)) for n in (plan.lanes, rest)
        )
        if not rest:
            whole()
        elif plan.groups == 1:
            part()
        else:
            inside = b.icmp("slt", at.first, plan.outputs - rest)
            b.when(inside, whole)
            b.when(b.not_(inside), part)

    def chunk(
        self, several: Sequence[_Places], sources: Sequence[Value], c: Value, inputs: int, sums: list[Value]
    ) -> list[Value]:
        """The sums with the products of a chunk added."""
        b, plan = self.b, self.plan
        limbs, width = range(plan.limbs), plan.machine.vector
        block = b.udiv(c, plan.each)
        weights = [b.gep(at.weights, c, plan.chunk // plan.word * width) for at in several]
        ends = [b.gep(x, plan.limbs * plan.chunk) for x in sources]
        begin = [[self.everywhere(b.gep(end, 4 + 4 * k)) for k in limbs] for end in ends]
        found: list[list[list[Value]]] = []  # of each register, of each row, of each limb
        for at in several:
            if at.zeros is None:
                found.append([list(each) for each in begin])
                continue
            zeros = b.load(vector(plan.lanes, I8), b.gep(at.zeros, block, plan.lanes), 1)
            points = b.zext(zeros, I32)
            found.append([[b.mul(points, x) for x in each] for each in begin])
        for number in range(-(-inputs // plan.word)):
            words = [b.load(self.whole, b.gep(x, number * width), 4) for x in weights]
            for x in weights:
                b.prefetch(b.gep(x, number * width + AHEAD), NEAR)
            halves = [words]
            if plan.bits == 4:
                halves = [
                    [b.and_(x, LOWER) for x in words],
                    [b.and_(b.lshr(x, 4), LOWER) for x in words],
                ]
            for half, codes in enumerate(halves):
                place = number * plan.word + 4 * half
                for row, source in enumerate(sources):
                    for limb in limbs:
                        x = self.everywhere(b.gep(source, limb * plan.chunk + place))
                        for made, each in zip(found, codes, strict=True):
                            made[row][limb] = dot(b, made[row][limb], each, x, plan.bits)
        factors = [b.splat(b.load(FLOAT, end, 4), plan.lanes) for end in ends]
        out, before = [], iter(sums)
        for at, made in zip(several, found, strict=True):
            scales = b.gep(at.scales, block, 4 * plan.lanes)
            b.prefetch(b.gep(scales, self.ahead), NEAR)
            scale = b.load(self.sum, scales, 4)
            for factor, one in zip(factors, made, strict=True):
                out.append(b.fmuladd(b.fmul(self.joined(one), factor), scale, next(before)))
        return out

    @property
    def ahead(self) -> int:
        """Bytes in front of which scales are asked for: as many blocks as weights are."""
        weights = max(1, self.plan.block // self.plan.word) * self.plan.machine.vector
        return max(1, AHEAD // weights) * 4 * self.plan.lanes

    def joined(self, limbs: Sequence[Value]) -> Value:
        """The sums of all limbs as one, in f32."""
        b = self.b
        x = b.sitofp(limbs[-1], FLOAT)
        for one in reversed(limbs[:-1]):
            x = b.fmuladd(x, constant(self.sum, 256.0), b.sitofp(one, FLOAT))
        return x

    def everywhere(self, pointer: Value) -> Value:
        """A word in all lanes."""
        return self.b.splat(self.b.load(I32, pointer, 4), self.plan.lanes)
