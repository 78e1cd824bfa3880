"""The kernel that multiplies limbs of the source by weights in blocks.

``void product(ptr scratch, ptr dst, ptr ops, i64 part, i64 parts)`` does a share of the registers of outputs,
each with all rows; ``ops`` lists the addresses of weights, scales, zero points and bias, as far as there are
any. So whichever thread computes an output, it is computed in the same order: the bits don't depend on the
number of threads.

A tile (:attr:`.plan.Plan.tile`) is some registers of outputs by some rows. Its sums are those of all limbs; a
word of the source serves all of its registers, and weights that have been taken apart all of its
rows. The sums of three limbs become one f32 with two roundings, or with one::

    2**16 sum2 + (sum0 + 2**8 sum1)        in brackets: whole numbers below 2**31
    (2**16 sum2 + sum0 + 2**8 sum1)        where all of it is (:attr:`.plan.Plan.fits`): 4 bits, short chunks

Where sums take so many registers that weights of all outputs beside them don't fit, registers of outputs take
turns: what the source has is read again for each (a product reads memory as fast as a register), and a
barrier keeps LLVM from keeping it. Else sums would be spilled, in the innermost loop.

**One row is read as a stream.** Weights are loaded in the order of their addresses, between the products: a
piece of assembly that may write to memory keeps LLVM from loading those of a whole chunk first, which took up
to 1.4 times as long. Processors follow a stream up to the end of its page; so each turn asks for a line two
pages on. To ask for all lines takes up to 1.7 times as long, since they take the place of what is
read (docs/lessons/narrow-products.md). With AVX2 (Zen 3) it is the other way round: a line here and there
takes 1.6 times as long as none, and all of them, a page ahead, 0.8 to 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.ir.builder import L1, L2, Function
from relayout.ir.conversions import from_f32, to_f32
from relayout.ir.kernel import kernel, tasks
from relayout.ir.types import FLOAT, I8, I32, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import pieces_of, store_pieces
from relayout.kernels.blockwise.dots import (
    MOST_IN_S16,
    added_bytes,
    by_zero,
    declared,
    dot,
    has_bytes,
    widened,
)
from relayout.kernels.blockwise.plan import Plan
from relayout.targets.machine import LINE, Machine

__all__ = ["PRODUCT", "product_text"]

PRODUCT = "product"
LOWER = 0x0F0F0F0F
UNROLLED = 48  # dot products of a turn of the loop over the words of a chunk, at most
BARRIER = 'call void asm sideeffect "", "~{memory}"()'


class Ahead(NamedTuple):
    """What a processor is asked for in advance where one row is read as a stream; bytes in front of it."""

    weights: int = 8 << 10
    all_weights: bool = False
    """Whether for all lines; else for one in each turn over words."""
    scales: int = 512
    all_scales: bool = False
    """Whether for those of all registers, else of the first, in each chunk."""
    into: int = L2


ZEN3 = Ahead(4 << 10, all_weights=True)
"""A line here and there takes 1.6 times as long as none, all of them, a page ahead, 0.8 to 0.9."""
ZEN5 = Ahead(8 << 10, True, 2 << 10, True, L1)
"""A line here and there makes no difference, all of them take 0.7 to 0.8 of the time."""
BY_NAME = {"znver5": ZEN5}


def ahead_of(machine: Machine) -> Ahead:
    """How that was fastest on each processor it was tried on.

    On Zen 4 to ask for all lines took up to 1.7 times as long, since they take the place of what is read
    (docs/lessons/narrow-products.md). Others are taken to be like it.

    >>> from relayout.targets.machine import machine
    >>> [ahead_of(machine(cpu)).all_weights for cpu in ("znver3", "znver4", "znver5")]
    [True, False, True]
    """
    return ZEN3 if machine.is_avx2 else BY_NAME.get(machine.cpu, Ahead())


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
        self.plan, self.ahead = plan, ahead_of(plan.machine)
        self.b: Function = kernel(PRODUCT, plan.machine)
        self.sum, self.whole = vector(plan.lanes, FLOAT), vector(plan.lanes, I32)
        self.pairs: dict[int, Value] = {}  # sums in s16 that are yet to be added, by the number of their sum

    def text(self) -> str:
        b, plan = self.b, self.plan
        given = [b.load(PTR, b.gep(b["ops"], 8 * k), 8) for k in range(2 + plan.zeros + plan.bias)]
        weights, scales, *rest = given
        zeros = rest.pop(0) if plan.zeros else None
        bias = rest.pop(0) if plan.bias else None
        outputs = plan.lanes * plan.side

        def places(group: Value, register: int) -> _Places:
            """Those of a register of a group."""
            at = register * plan.lanes

            def inside(table: Value, blocks: int, size: int) -> Value:
                return b.gep(b.gep(table, group, blocks * outputs * size), at * size)

            return _Places(
                inside(weights, plan.words, 4),
                inside(scales, plan.blocks, dtype(plan.scale).bits // 8),
                None if zeros is None else inside(zeros, plan.blocks, 1),
                None if bias is None else inside(bias, 1, 4),
                b.add(b.mul(group, outputs), at),
            )

        def task(group: Value) -> None:
            together, _ = plan.tile
            for first in range(0, plan.side, together):
                self.rows([places(group, first + k) for k in range(together)])

        tasks(b, plan.groups, task)
        return declared(plan.machine) + b.text()

    def rows(self, several: Sequence[_Places]) -> None:
        """Some registers of outputs of all rows."""
        rows, (_, tile) = self.plan.rows, self.plan.tile
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
        """Write a register of results, those that there are."""
        b, plan, kind = self.b, self.plan, dtype(self.plan.dst)
        made, size = from_f32(b, x, kind), kind.bits // 8
        rest = plan.outputs % plan.lanes
        whole, part = (
            partial(store_pieces, b, made, to, pieces_of(0, n, 0, size)) for n in (plan.lanes, rest)
        )
        if plan.groups * plan.side * plan.lanes == plan.outputs:
            return whole()
        b.when(b.icmp("sle", at.first, plan.outputs - plan.lanes), whole)
        if rest:
            b.when(b.icmp("eq", at.first, plan.outputs - rest), part)
        return None

    def chunk(
        self, several: Sequence[_Places], sources: Sequence[Value], c: Value, inputs: int, sums: list[Value]
    ) -> list[Value]:
        """The sums with the products of a chunk added."""
        b, plan = self.b, self.plan
        block = b.udiv(c, plan.each)
        weights = [b.gep(at.weights, c, plan.chunk // plan.word * plan.line) for at in several]
        ends = [b.gep(x, plan.limbs * plan.chunk) for x in sources]
        nothing = constant(self.whole, 0)
        begin = [
            nothing if k and plan.fits else self.everywhere(b.gep(end, 4 + 4 * k))
            for end in ends
            for k in range(plan.limbs)
        ]
        found: list[Value] = []  # of each register, of each row, of each limb
        for at in several:
            if at.zeros is None:
                found += begin
                continue
            zeros = b.load(vector(plan.lanes, I8), b.gep(at.zeros, block, plan.lanes * plan.side), 1)
            points = b.zext(zeros, I32)
            found += [by_zero(b, points, x) for x in begin]
        number = -(-inputs // plan.word)
        some = max(1, UNROLLED // (len(found) * (2 if plan.bits == 4 else 1)))
        while number % some:
            some -= 1

        def turn(first: Value, found: list[Value]) -> list[Value]:
            here = [b.gep(x, first, plan.line) for x in weights]
            places = [b.gep(x, first, plan.word) for x in sources]
            return self.words(here, places, some, found)

        found = b.repeat(0, number, some, found, turn, True)
        factors = [b.splat(b.load(FLOAT, end, 4), plan.lanes) for end in ends]
        out, before, made = [], iter(sums), iter(found)
        for at in several:
            size = dtype(plan.scale).bits // 8
            scales = b.gep(at.scales, block, size * plan.lanes * plan.side)
            kind = dtype(plan.scale)
            if self.streams and (self.ahead.all_scales or at is several[0]):
                b.prefetch(b.gep(scales, self.ahead.scales), self.ahead.into)
            scale = to_f32(b, b.load(vector(plan.lanes, integer(kind.bits)), scales, size), kind)
            for factor in factors:
                one = self.joined([next(made) for _ in range(plan.limbs)])
                out.append(b.fmuladd(b.fmul(one, factor), scale, next(before)))
        return out

    def words(
        self, weights: Sequence[Value], sources: Sequence[Value], count: int, found: list[Value]
    ) -> list[Value]:
        """The sums with some words of weights, and what they meet, added."""
        b, plan = self.b, self.plan
        found = list(found)
        taken = len(found) + (2 if plan.bits == 4 else 1) * len(weights) + 2  # sums, weights, a word, a mask
        several = 1 if taken > plan.machine.registers else len(weights)
        for number in range(count):
            for first in range(0, len(weights), several):
                here = weights[first : first + several]
                if self.streams or several < len(weights):
                    b.line(BARRIER)
                words = [b.load(self.whole, b.gep(x, number * plan.line), 4) for x in here]
                if self.streams and not first:
                    self.prefetch(weights[0], number, len(weights))
                self.word(words, first, sources, number * plan.word, found)
            if self.pairs and (2 * number % MOST_IN_S16 == MOST_IN_S16 - 2 or number == count - 1):
                for at, pairs in self.pairs.items():
                    found[at] = widened(b, found[at], pairs)
                self.pairs.clear()
        return found

    def prefetch(self, weights: Value, number: int, registers: int) -> None:
        """Ask for what is read later: for a line in each turn, or for all lines of each word."""
        b, plan, ahead = self.b, self.plan, self.ahead
        if ahead.all_weights:
            for line in range(0, registers * plan.machine.vector, LINE):
                b.prefetch(b.gep(weights, number * plan.line + line + ahead.weights), ahead.into)
        elif not number:
            b.prefetch(b.gep(weights, ahead.weights), ahead.into)

    def word(
        self, words: Sequence[Value], first: int, sources: Sequence[Value], place: int, found: list[Value]
    ) -> None:
        """Add what a word of some registers, counted from ``first``, meets in all rows."""
        b, plan = self.b, self.plan
        halves = [words]
        if plan.bits == 4:
            halves = [
                [b.and_(x, LOWER) for x in words],
                [b.and_(b.lshr(x, 4), LOWER) for x in words],
            ]
        narrow = has_bytes(plan.machine, plan.bits)
        for half, codes in enumerate(halves):
            for k, (source, limb) in enumerate((x, n) for x in sources for n in range(plan.limbs)):
                x = self.everywhere(b.gep(source, limb * plan.chunk + place + 4 * half))
                for register, each in enumerate(codes, first):
                    at = register * len(sources) * plan.limbs + k
                    if narrow:
                        self.pairs[at] = added_bytes(b, self.pairs.get(at), each, x)
                    else:
                        found[at] = dot(b, found[at], each, x, plan.bits)

    @property
    def streams(self) -> bool:
        """Whether weights are read once, as fast as memory gives them."""
        return self.plan.rows <= self.plan.tile[1]

    def joined(self, limbs: Sequence[Value]) -> Value:
        """The sums of all limbs as one, in f32."""
        b = self.b
        if len(limbs) == 1:
            return b.sitofp(limbs[0], FLOAT)
        low, middle, high = limbs
        low = b.add(low, b.shl(middle, 8))
        if self.plan.fits:
            return b.sitofp(b.add(low, b.shl(high, 16)), FLOAT)
        return b.fmuladd(b.sitofp(high, FLOAT), constant(self.sum, 65536.0), b.sitofp(low, FLOAT))

    def everywhere(self, pointer: Value) -> Value:
        """A word in all lanes."""
        return self.b.splat(self.b.load(I32, pointer, 4), self.plan.lanes)
