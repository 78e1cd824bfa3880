"""Normalisation of rows: the kernel of layer and group normalisation.

Two passes over a row, which stays in a cache in between ::

    m = mean(x)    v = mean((x - m)^2)        (x - m) / sqrt(v + epsilon) scale + shift

The first pass finds both statistics. To subtract the square of the mean from the mean of squares would lose
all digits where the mean is large, and to find the mean first would take another pass. So both are taken of
``d = x - p``, where the pivot p is an element of the row, its first one ::

    e = mean(d)    m = p + e    v = mean(d^2) - e^2

That loses digits only where p is far from the mean, seen from the deviation. Where ``e^2 > 16 v``, four
deviations away, the pass is done again with ``p + e`` as the pivot: seldom, and then it is what two passes
would have been. Welford's recurrence needs no second pass either, but every step of it waits for the one
before and takes three more operations.

The second pass computes ``((x - p) - e)``, which is exact where ``x - m`` would be rounded with the mean: a
row of 1e6 and small differences from it is normalised as precisely as one around zero.

With AVX2 vectors of bf16 are taken apart into elements of even and of odd number, results, scale and shift as
well, where there are many rows (:func:`_in_pairs`); nothing else changes by that.

Long sums are taken level by level, so that rounding errors do not grow with their length. Where lanes come
from is said in :mod:`relayout.kernels.reduce.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.dtypes import DType, dtype
from relayout.ir import builder
from relayout.ir import math as functions
from relayout.ir.conversions import flushed
from relayout.ir.kernel import operands, streaming
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import I8, I64, Value
from relayout.kernels.reduce.rows import LEVEL, Rows, rows
from relayout.kernels.reduce.rows_text import Lines, Values, Visit, lines
from relayout.kernels.reduce.space import contiguous
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.loops.nest import Nest
from relayout.ops.functions import Function
from relayout.records import dataclass, replace
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "NormalizationPlan", "Normalized", "Passes", "module", "planned"]

ENTRY = "normalization"
UNROLL = {64: 8, 32: 4, 16: 4}  # vectors of one turn, by the bytes of a register
WIDE = 4  # times as many where rows don't stay in the L1 cache
MANY_ROWS = 16  # for which a table is put in another order first
MOST_IN_PAIRS = 1 << 12  # elements of such a table: 16 KiB of the stack
FAR = 16.0  # squared deviations between a pivot and the mean, from which on a better pivot is taken
F32, BF16, U8 = map(dtype, ("f32", "bf16", "u8"))


@dataclass(frozen=True)
class Normalized:
    """What is computed: a normalisation without formats."""

    rms: bool
    """Divide by the root of the mean square; nothing is subtracted."""
    epsilon: float
    scale: bool
    shift: bool
    mean: bool
    """Whether the mean of each row is a result, too."""
    variance: bool
    """The same for the variance, or the mean square."""
    post_ops: tuple[Function, ...] = ()
    mask: bool = False
    """Whether bytes that say where results are positive are written, too."""


@dataclass(frozen=True)
class NormalizationPlan:
    """A normalisation and the loops that it goes through.

    Operands are the source, then scale, shift, mask, mean and variance as far as there are any, the
    destination.
    """

    what: Normalized
    src: DType
    dst: DType
    rows: Rows
    stream: bool = False
    """Whether results are written around the caches."""

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        return self.rows.lanes(lanes_of(machine, self.src))


def planned(
    what: Normalized,
    src: MemoryDesc,
    dst: MemoryDesc,
    axes: Sequence[int],
    tables: Sequence[Layout],
    statistics: Sequence[Layout],
    mask: Layout | None = None,
) -> NormalizationPlan | None:
    """The normalisation along some axes; None where there are no nests, or tables would have to be gathered.

    Parameters
    ----------
    what : Normalized
    src, dst : MemoryDesc
        Of equal dims.
    axes : sequence of int
        Those of a row.
    tables, statistics : sequence of Layout
        Scale and shift, mean and variance, in f32: with the dims of the source, and strides of 0 along axes
        that they do not have.
    mask : Layout, optional
        Of bytes, of equal dims.
    """
    masks = [mask] if mask is not None else []
    layouts = [src.layout, *tables, *masks, *statistics, dst.layout]
    middle = [*(4 for _ in tables), *(1 for _ in masks), *(4 for _ in statistics)]
    widths = [src.dtype.bits // 8, *middle, dst.dtype.bits // 8]
    found = rows(layouts, widths, set(axes), len(statistics))
    if found is None:
        return None
    runs = [contiguous(piece) for piece in found.pieces]
    if any(step not in (0, 4) for run in runs if run for step in run.steps[1 : 1 + len(tables)]):
        return None
    if masks and not all(_alike(nest, 1 + len(tables)) for nest in (*found.pieces, *found.blocks)):
        return None
    return NormalizationPlan(what, src.dtype, dst.dtype, found)


def _alike(nest: Nest, operand: int) -> bool:
    """Whether what is contiguous in source and destination is so in another operand."""
    run = contiguous(nest)
    return run is None or run.steps[operand] == nest.widths[operand]


def module(made: NormalizationPlan, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`; further operands are a list of addresses."""
    what, (lanes, unroll, together) = made.what, _vectors(made, machine)
    count = what.scale + what.shift + what.mask + what.mean + what.variance
    levels = made.rows.in_levels(LEVEL, LEVEL * unroll * lanes)

    def write(f: builder.Function, past: bool) -> None:
        pointers = [f["src"], *operands(f, count), f["dst"]]
        pairs = _in_pairs(made, levels, machine, lanes)
        if pairs:
            for k in range(1, 1 + what.scale + what.shift):
                pointers[k] = _even_first(f, pointers[k], levels.size, lanes)
        for found in lines(f, levels, pointers, lanes, unroll, together, WIDE * unroll):
            found.tasks(Passes(f, replace(made, stream=past), found, pairs).write)

    return streaming(ENTRY, machine, made.stream, write)


def _vectors(made: NormalizationPlan, machine: Machine) -> tuple[int, int, int]:
    """Elements of a vector, vectors of a turn, and rows that are interleaved.

    Two registers are a vector where an instruction rounds both to bf16, after one look for subnormal numbers,
    or where one comparison looks both through for NaN.
    Rows of narrow numbers are so short that to wait for their sums is much of their time: two wait together.
    """
    lanes, unroll, rows = lanes_of(machine, made.src), UNROLL[machine.vector], made.rows
    packed = any(rows.packing(block, k * lanes) for block in rows.blocks for k in (1, 2))
    rounds = flushed(machine, lanes) or machine.is_avx2
    if made.dst is BF16 and not packed and rows.longest >= 2 * lanes and rounds:
        lanes, unroll = 2 * lanes, unroll // 2
    together = max(1, unroll // -(-rows.longest // lanes))
    if together == 1 and made.dst.bits < F32.bits and not packed:
        together, unroll = 2, unroll // 2
    return lanes, unroll, together


def _in_pairs(made: NormalizationPlan, rows: Rows, machine: Machine, lanes: int) -> bool:
    """Whether vectors of bf16 are two registers of f32, one of elements of even number and one of the others.

    With AVX2 two instructions widen such vectors and eight round them, in place of six and twelve. Scale and
    shift of all rows have to lie like that, too, which pays where there are many rows for which that is done.
    """
    what, number = made.what, sum(block.size for block in rows.blocks)
    if not (machine.is_avx2 and made.src is BF16 is made.dst) or what.mask or 2 * lanes != machine.vector:
        return False
    tables = range(1, 1 + what.scale + what.shift)
    if tables and (number < MANY_ROWS or rows.size > MOST_IN_PAIRS):
        return False
    runs = [(piece, contiguous(piece)) for piece in rows.pieces]
    whole = all(run is not None and run.extent % lanes == 0 for _, run in runs)
    once = all(
        block.starts[k] == 0 and all(loop.steps[k] == 0 for loop in block.loops)
        for block in rows.blocks
        for k in tables
    )
    along = all(
        run is not None and run.steps[k] == 4 and piece.starts[k] // 4 % lanes == 0
        for piece, run in runs
        for k in tables
    )
    packed = any(rows.packing(block, lanes) for block in rows.blocks)
    return whole and once and along and not packed and rows.dense


def _even_first(f: builder.Function, table: Value, size: int, lanes: int) -> Value:
    """A copy of a table, in each vector elements of even number first."""
    room = f.alloca(4 * size, LINE)
    v = Lanes(f, F32, F32)
    order = [*range(0, lanes, 2), *range(1, lanes, 2)]

    def turn(k: Value) -> None:
        v.store(f.gep(room, k, 4), f.shuffle(v.load(f.gep(table, k, 4), lanes), order))

    f.loop(0, size, lanes, turn)
    return room


class Passes:
    """The passes over the rows of a task; in pairs, vectors have elements of even number first."""

    def __init__(
        self, f: builder.Function, made: NormalizationPlan, found: Lines, pairs: bool = False
    ) -> None:
        self.b, self.what, self.lines, self.size = f, made.what, found, made.rows.size
        self.v, self.table = Lanes(f, made.src, made.dst, pairs=pairs), Lanes(f, F32, F32)
        whole = made.rows.longest == made.rows.size and made.rows.size % found.count == 0
        pairs = made.src is BF16 and found.along and whole
        self.sums = Lanes(f, made.src, made.dst, pairs=pairs)  # to which it does not matter whose a lane is
        self.mask = Lanes(f, U8, U8, whole=True)
        self.stream = made.stream

    def write(self, at: Values) -> None:
        """A task."""
        pivots, found = (None, self._statistics(at, None)) if self.what.rms else self._centred(at)
        self._apply(at, pivots, found)
        self._write(at, pivots, found)

    def only_statistics(self, at: Values) -> None:
        """A task of which nothing but the statistics is wanted."""
        self._write(at, *self._centred(at))

    # -- statistics -----------------------------------------------------------------------------------------

    def _centred(self, at: Values) -> tuple[Values, list[Values]]:
        """The pivot of each row, and what :meth:`_statistics` found with it."""
        b, many = self.b, self.lines.rows
        pivots = self.lines.first(at, self.v.load)
        found = self._statistics(at, pivots)
        far = None
        for e, v, *_ in found:
            one = b.fcmp("ogt", b.fmul(e, e), b.fmul(v, FAR))
            far = one if far is None else b.or_(far, one)
        assert far is not None

        def again(_: Value, given: Values) -> Values:
            better = [b.fadd(p, e) for p, e in zip(given[:many], given[many::4], strict=True)]
            return [*better, *(x for of in self._statistics(at, better) for x in of)]

        values = [*pivots, *(x for of in found for x in of)]
        values = b.repeat(0, b.zext(self._in_any(far), I64), 1, values, again)
        return values[:many], [values[many + 4 * k : many + 4 * k + 4] for k in range(many)]

    def _in_any(self, lanes: Value) -> Value:
        return self.b.extract(lanes, 0) if lanes.type.count == 1 else self.b.any(lanes)

    def _statistics(self, at: Values, pivots: Values | None) -> list[Values]:
        """For each row: e, v, 1 / sqrt(v + epsilon) and -e / sqrt(v + epsilon); e is 0 without a pivot."""
        b, v, n = self.b, self.v, self.lines.count

        def added(visit: Visit, given: Values) -> Values:
            d = self._difference(self.sums, visit, pivots)
            if visit.valid < n:
                d = b.shuffle(d, [k if k < visit.valid else n for k in range(n)], 0.0)
            squares = b.fmuladd(d, d, given[-1])
            return [squares] if pivots is None else [b.fadd(given[0], d), squares]

        def finished(sums: Values) -> Values:
            square = b.fmul(sums[-1], 1 / self.size)
            e = v.constant(0.0, square.type.count)
            if pivots is not None:
                e = b.fmul(sums[0], 1 / self.size)
                square = b.pick("uge", b.fsub(square, b.fmul(e, e)), 0.0)
            factor = b.fdiv(1.0, functions.sqrt(b, b.fadd(square, self.what.epsilon)))
            return [e, square, factor, b.fneg(b.fmul(e, factor))]

        return self.lines.totals(at, 1 if pivots is None else 2, added, finished)

    def _difference(self, v: Lanes, visit: Visit, pivots: Values | None) -> Value:
        x = v.load(visit.at[0], self.lines.count, visit.valid)
        return x if pivots is None else self.b.fsub(x, pivots[visit.row])

    # -- results --------------------------------------------------------------------------------------------

    def _apply(self, at: Values, pivots: Values | None, found: list[Values]) -> None:
        b, what = self.b, self.what

        def last(visit: Visit) -> None:
            _, _, factor, rest = found[visit.row]
            y = self._difference(self.v, visit, pivots)
            y = b.fmul(y, factor) if pivots is None else b.fmuladd(y, factor, rest)
            tables = [self.lines.table(self.table, visit, k) for k in range(1, 1 + what.scale + what.shift)]
            if what.scale and what.shift:
                y = b.fmuladd(y, *tables)
            elif tables:
                y = (b.fmul if what.scale else b.fadd)(y, tables[0])
            for function in what.post_ops:
                y = function.emit(b, y)
            if what.mask:
                passed = b.zext(b.fcmp("ogt", y, 0.0), I8)
                self.mask.store(visit.at[1 + what.scale + what.shift], passed, visit.valid)
            self.v.store(visit.at[-1], y, visit.valid, self.stream)

        self.lines.revisit(at, last)

    def _write(self, at: Values, pivots: Values | None, found: list[Values]) -> None:
        """The statistics that are wanted."""
        if self.what.mean and pivots is not None:
            means = [self.b.fadd(pivot, given[0]) for pivot, given in zip(pivots, found, strict=True)]
            self.lines.store(at, means, 1 + self.what.variance)
        if self.what.variance:
            self.lines.store(at, [given[1] for given in found], 1)
