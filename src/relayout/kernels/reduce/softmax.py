"""Softmax: the kernel.

Three passes over the elements along an axis, which stay in the L1 cache::

    m = max(x)      s = sum(exp(x - m))      exp(x - m) / s       or, for the logarithm, x - m - log(s)

The second pass stores its exponentials where the destination is f32 and the third only multiplies; other data
types, which would be rounded twice, are computed anew.

Lanes are neighbours along the axis, combined in the end (``nhwc`` along channels), or else neighbours along
other axes, each with an axis of its own (``nchw`` along channels). What comes of padding and of the last
elements is never loaded: such lanes hold -inf, which adds nothing.

How it stays within a few units in the last place of f32, however long the axis is and however far apart the
elements are: what ``x - m`` is rounded by is computed, too, and multiplied into the exponential. Sums of many
terms are compensated, and the logarithm gets what the sum was rounded by: in a row of 0 and -20, where the
sum rounds to 1, log(s) is still 2e-9.

Special values need no code: an infinite maximum makes NaN of ``x - m``, and a NaN anywhere makes the sum NaN.
So a row of -inf alone is NaN, as in PyTorch; -inf among numbers is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from relayout.dtypes import DType, dtype
from relayout.ir import math as functions
from relayout.ir.builder import Function
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import Value
from relayout.ir.vectors import halves, reduce
from relayout.kernels.reduce.space import spaces
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop, Nest, split
from relayout.loops.refine import refine
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "SoftmaxPlan", "module", "planned"]

ENTRY = "softmax"
UNROLL = 4  # vectors of one turn
ROWS = 4  # short rows that are interleaved: a single one would wait for its own sums
SHORT_ROW = 32  # elements of the longest row that is called short
UNCOMPENSATED_TERMS = 16  # terms of the longest sum that needs no compensation for rounding
NOTHING_BELOW = -104.0  # the exponential rounds to zero


@dataclass(frozen=True)
class SoftmaxPlan:
    """What is computed: a softmax without formats."""

    log: bool
    src: DType
    dst: DType
    blocks: tuple[Nest, ...]
    """What is around the axis: source and destination, in bytes."""
    pieces: tuple[Nest, ...]
    """The axis, in the order of its indices: the loops that are reduced."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of an element on either side."""
        return self.src.bits // 8, self.dst.bits // 8

    @property
    def longest(self) -> int:
        """Neighbours along the axis, at most."""
        return max(piece.length for piece in self.pieces)

    @property
    def around(self) -> int:
        """Neighbours along other axes, in the block of most elements."""
        return max((block.size, block.length) for block in self.blocks)[1]

    def is_along(self, lanes: int) -> bool:
        """Whether lanes are neighbours along the axis."""
        return self.around == 1 or self.longest >= min(lanes, max(2, self.around))

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        lanes = lanes_of(machine, self.src)
        return min(lanes, self.longest if self.is_along(lanes) else self.around)


def planned(src: MemoryDesc, dst: MemoryDesc, axis: int, log: bool) -> SoftmaxPlan | None:
    """The softmax along an axis; None where that is fused with others, or there are no nests.

    >>> made = planned(MemoryDesc((2, 20), "f32", "ab"), MemoryDesc((2, 20), "f32", "ab"), 1, False)
    >>> print(*made.blocks, *made.pieces, sep=", ")
    0->0: 2x(80,80), 0->0: 20x(4,4)
    """
    sizes = src.dtype.bits // 8, dst.dtype.bits // 8
    groups = refine(src.layout, dst.layout)
    along = [group for group in groups if axis in group.axes]
    blocks = spaces([g for g in groups if g not in along], (src.offset0, dst.offset0), sizes)
    pieces = spaces(along, (0, 0), sizes)
    if blocks is None or pieces is None or len(along[0].axes) > 1:
        return None
    return SoftmaxPlan(log, src.dtype, dst.dtype, blocks, pieces)


def module(made: SoftmaxPlan, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`."""
    f, lanes = kernel(ENTRY, machine), lanes_of(machine, made.src)
    for block in made.blocks:
        if made.is_along(lanes):
            for rows, others in _grouped(block, ROWS if made.longest <= SHORT_ROW else 1):
                _Along(f, made, rows, others).write()
        else:
            for part in _chunks(block, UNROLL * lanes):
                _Across(f, made, part).write()
    return f.text()


def _chunks(block: Nest, most: int) -> list[Nest]:
    """A block with a run of at most so many elements: whole ones in a loop, and what is left over."""
    run = block.run
    if run is None:
        return [block]
    times, rest = divmod(run.extent, most)
    out = []
    if times:
        chunks = Loop(times, tuple(most * step for step in run.steps))
        out.append(replace(block, loops=(*block.around, chunks, run.taking(most))))
    if rest:
        out.append(split(block, run, times * most)[1])
    return out


def _grouped(block: Nest, many: int) -> list[tuple[Nest, tuple[Loop, ...]]]:
    """A block, and the rows that a task has besides its first: groups of many, and the rest."""
    if many == 1 or not block.loops:
        return [(block, ())]
    *outer, inner = block.loops
    times, rest = divmod(inner.extent, many)
    out: list[tuple[Nest, tuple[Loop, ...]]] = []
    if times:
        groups = Loop(times, tuple(many * step for step in inner.steps))
        rows = tuple(Loop(1, tuple(k * step for step in inner.steps)) for k in range(1, many))
        out.append((replace(block, loops=(*outer, groups)), rows))
    if rest:
        out.append((split(block, inner, times * many)[1], ()))
    return out


class _Visit(NamedTuple):
    """A vector of elements: their addresses, how many they are, and which accumulator is theirs."""

    src: Value
    dst: Value
    valid: int
    slot: int


Values = list[Value]
Body = Callable[[_Visit, Values], Values]


class _Passes:
    """The three passes, over vectors that subclasses visit."""

    count: int
    """Elements of a vector."""
    slots: int
    """How many vectors have accumulators of their own."""
    terms: int
    """How many terms each accumulator adds up."""

    def __init__(self, f: Function, made: SoftmaxPlan, block: Nest, loops: tuple[Loop, ...]) -> None:
        self.b, self.made, self.block, self.loops = f, made, block, loops
        self.v = Lanes(f, made.src, made.dst)
        self.stores = made.dst is dtype("f32") and not made.log

    def write(self) -> None:
        """All tasks: one for each turn of the loops around."""
        f, loops = self.b, self.loops
        extents = [loop.extent for loop in loops]

        def task(number: Value) -> None:
            src, dst = (f.gep(x, start) for x, start in zip(f.arguments, self.block.starts, strict=False))
            for loop, index in zip(loops, digits(f, number, extents), strict=True):
                src, dst = f.gep(src, index, loop.src), f.gep(dst, index, loop.dst)
            self._task(src, dst)

        tasks(f, prod(extents), task)

    def _task(self, src: Value, dst: Value) -> None:
        b, v, n = self.b, self.v, self.count

        def largest(at: _Visit, given: Values) -> Values:
            return [v.larger(self._loaded(at), given[0])]

        first = [[v.constant(float("-inf"), n)] for _ in range(self.slots)]
        most = self._greatest([given[0] for given in self._visit(src, dst, first, largest)])

        def added(at: _Visit, given: Values) -> Values:
            e = self._exponential(self._loaded(at), most[at.slot])
            if self.stores:
                v.store(at.dst, e, at.valid)
            return self._compensated(e, *given) if self.careful else [b.fadd(given[0], e)]

        first = [[v.constant(0, n)] * (2 if self.careful else 1) for _ in range(self.slots)]
        factors = self._factors(self._visit(src, dst, first, added))

        def last(at: _Visit, given: Values) -> Values:
            if self.stores:
                y = b.fmul(v.reload(at.dst, n, at.valid), factors[at.slot])
            elif self.made.log:
                y = b.fsub(b.fsub(self._loaded(at), most[at.slot]), factors[at.slot])
            else:
                y = b.fmul(self._exponential(self._loaded(at), most[at.slot]), factors[at.slot])
            v.store(at.dst, y, at.valid)
            return given

        self._visit(src, dst, [[] for _ in range(self.slots)], last)

    @property
    def careful(self) -> bool:
        """Whether sums are compensated."""
        return self.made.log or self.terms > UNCOMPENSATED_TERMS

    # -- what subclasses know -------------------------------------------------------------------------------

    def _visit(self, src: Value, dst: Value, given: list[Values], body: Body) -> list[Values]:
        """Call the body for all elements along the axis; values are handed on, apart for each slot."""
        values = [value for of in given for value in of]
        for piece in self.made.pieces:
            values = self._nest(
                piece, 0, self.b.gep(src, piece.src), self.b.gep(dst, piece.dst), values, body
            )
        return self._apart(values)

    def _nest(self, piece: Nest, depth: int, src: Value, dst: Value, values: Values, body: Body) -> Values:
        """The loops of a piece of the axis."""
        if depth == len(piece.around):
            return self._run(piece, src, dst, values, body)
        loop = piece.around[depth]

        def turn(i: Value, given: Values) -> Values:
            at, to = self.b.gep(src, i, loop.src), self.b.gep(dst, i, loop.dst)
            return self._nest(piece, depth + 1, at, to, given, body)

        return self.b.repeat(0, loop.extent, 1, values, turn)

    def _run(self, piece: Nest, src: Value, dst: Value, values: Values, body: Body) -> Values:
        """The run of a piece."""
        raise NotImplementedError

    def _greatest(self, found: Values) -> Values:
        """The maximum in all lanes that it is for, for each slot."""
        raise NotImplementedError

    def _factors(self, sums: list[Values]) -> Values:
        """1 / sum, or log(sum), for each slot, from sums and perhaps what they were rounded by."""
        raise NotImplementedError

    # -- arithmetic -----------------------------------------------------------------------------------------

    def _apart(self, values: Values) -> list[Values]:
        """Values of each slot."""
        each = len(values) // self.slots
        return [values[k * each : (k + 1) * each] for k in range(self.slots)]

    def _called(self, body: Body, visits: list[_Visit], values: Values) -> Values:
        """The body for some vectors."""
        apart = self._apart(values)
        for at in visits:
            apart[at.slot] = body(at, apart[at.slot])
        return [value for of in apart for value in of]

    def _loaded(self, at: _Visit) -> Value:
        return self.v.load(at.src, self.count, at.valid, float("-inf"))

    def _exponential(self, x: Value, most: Value) -> Value:
        """exp(x - most), in which what the difference was rounded by is put right.

        Where nothing is left, of -inf for instance, exp(0) is computed and dropped: on its way to zero it
        would become subnormal, which takes processors a hundred times as long.
        """
        b = self.b
        d, error = self._exact(b.fsub, x, most)
        gone = b.fcmp("ole", d, NOTHING_BELOW)
        d, error = b.select(gone, 0.0, d), b.select(gone, 0.0, error)
        e = functions.exp(b, d)
        return b.select(gone, 0.0, b.fadd(e, b.fmul(e, error)))

    def _exact(self, combine: Callable[[Value, Value], Value], x: Value, y: Value) -> tuple[Value, Value]:
        """A sum or a difference, and what it was rounded by (Knuth), whichever of the two is larger."""
        b = self.b
        z = combine(x, y)
        of_y = b.fsub(z, x)
        of_x = b.fsub(z, of_y)
        back = b.fadd if combine == b.fsub else b.fsub
        return z, combine(b.fsub(x, of_x), back(y, of_y))

    def _compensated(self, e: Value, total: Value, rest: Value) -> Values:
        """A sum with one more term, and what all terms together were rounded by."""
        total, lost = self._exact(self.b.fadd, total, e)
        return [total, self.b.fadd(rest, lost)]

    def _whole(self, given: Values) -> Value:
        """A sum, with what it was rounded by."""
        return self.b.fadd(*given) if self.careful else given[0]

    def _logarithm(self, total: Value, rest: Value) -> Value:
        """log(total + rest) = log(total) + rest / total."""
        return self.b.fadd(functions.log(self.b, total), self.b.fdiv(rest, total))


class _Along(_Passes):
    """Lanes along the axis: a task is one row or a group of rows, a vector belongs to one of them."""

    def __init__(self, f: Function, made: SoftmaxPlan, block: Nest, rows: tuple[Loop, ...]) -> None:
        super().__init__(f, made, block, block.loops)
        self.rows = (Loop(1, (0, 0)), *rows)
        self.count = min(self.v.most, 1 << (made.longest - 1).bit_length())
        self.vectors = min(UNROLL, -(-made.longest // self.count))
        self.slots = self.vectors * len(self.rows)
        self.terms = -(-sum(piece.size for piece in made.pieces) // (self.count * self.vectors))

    def _run(self, piece: Nest, src: Value, dst: Value, values: Values, body: Body) -> Values:
        b, n, many = self.b, self.count, self.vectors
        e, f = self.made.sizes
        whole, rest = divmod(piece.length, n)
        turns = whole // many

        def visits(at: Value, to: Value, sizes: list[int]) -> list[_Visit]:
            return [
                _Visit(
                    b.gep(at, row.src + k * n * e), b.gep(to, row.dst + k * n * f), size, r * many + k % many
                )
                for r, row in enumerate(self.rows)
                for k, size in enumerate(sizes)
            ]

        def turn(i: Value, given: Values) -> Values:
            at, to = b.gep(src, i, e), b.gep(dst, i, f)
            return self._called(body, visits(at, to, [n] * many), given)

        step = many * n
        values = b.repeat(0, turns * step, step, values, turn)
        left = [n] * (whole - turns * many) + [rest] * (rest > 0)
        at, to = b.gep(src, turns * step * e), b.gep(dst, turns * step * f)
        return self._called(body, visits(at, to, left), values)

    def _of_rows(self, found: list[Values], combine: Callable[[list[Values]], Value]) -> Values:
        """One value for each row, in all lanes, for each of its slots."""
        many, out = self.vectors, []
        for first in range(0, self.slots, many):
            out += [self.b.splat(combine(found[first : first + many]), self.count)] * many
        return out

    def _greatest(self, found: Values) -> Values:
        def most(of: list[Values]) -> Value:
            value, *others = [given[0] for given in of]
            for other in others:
                value = self.v.larger(value, other)
            return reduce(self.b, value, self.v.larger)

        return self._of_rows([[value] for value in found], most)

    def _factors(self, sums: list[Values]) -> Values:
        b = self.b

        def plain(of: list[Values]) -> Value:
            total, *others = map(self._whole, of)
            for other in others:
                total = b.fadd(total, other)
            return b.fdiv(1.0, reduce(b, total, b.fadd))

        def logarithm(of: list[Values]) -> Value:
            total, rest = of[0]
            for one, other in of[1:]:
                total, rest = self._together(total, rest, one, other)
            while total.type.count > 1:
                (total, one), (rest, other) = halves(b, total), halves(b, rest)
                total, rest = self._together(total, rest, one, other)
            return self._logarithm(total, rest)

        return self._of_rows(sums, logarithm if self.made.log else plain)

    def _together(self, total: Value, rest: Value, one: Value, other: Value) -> tuple[Value, Value]:
        """Two sums, each with what it was rounded by, as one."""
        total, lost = self._exact(self.b.fadd, total, one)
        return total, self.b.fadd(self.b.fadd(rest, other), lost)


class _Across(_Passes):
    """Lanes along other axes: a task is as many rows as a run has elements."""

    def __init__(self, f: Function, made: SoftmaxPlan, block: Nest) -> None:
        super().__init__(f, made, block, block.around)
        self.count = min(self.v.most, 1 << (block.length - 1).bit_length())
        self.slots = -(-block.length // self.count)
        self.terms = sum(piece.size for piece in made.pieces)

    def _run(self, piece: Nest, src: Value, dst: Value, values: Values, body: Body) -> Values:
        b, n, run = self.b, self.count, self.block.length
        e, f = self.made.sizes

        def turn(i: Value, given: Values) -> Values:
            at, to = b.gep(src, i, e), b.gep(dst, i, f)
            visits = [
                _Visit(b.gep(at, k * n * e), b.gep(to, k * n * f), min(n, run - k * n), k)
                for k in range(self.slots)
            ]
            return self._called(body, visits, given)

        return b.repeat(0, piece.length, 1, values, turn)

    def _greatest(self, found: Values) -> Values:
        return found

    def _factors(self, sums: list[Values]) -> Values:
        if self.made.log:
            return [self._logarithm(total, rest) for total, rest in sums]
        return [self.b.fdiv(1.0, self._whole(given)) for given in sums]
