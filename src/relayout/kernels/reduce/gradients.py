"""Gradients of what is done with rows: normalisations, softmax and its logarithm.

Two passes over a row, which stays in a cache in between: sums, and then every element with them. ``g`` is
what comes in, times the scale where each element of a row has its own ::

    normalisation    s = sum(g)    t = sum(g (x - m)) r^2       ((g - s / n) - (x - m) t / n) r
    softmax          s = sum(g y)                               y (g - s)
    its logarithm    s = sum(g)                                 g - exp(y) s

where ``r = 1 / sqrt(v + epsilon)``, mean and variance are given, and y is what the forward pass wrote. Where
lanes come from is said in :mod:`relayout.kernels.reduce.rows`.

The rows of batch normalisation are its channels: their scale is one factor for a row, and both sums are
results, too. That pays where a row stays in the L2 cache; others are :mod:`relayout.kernels.reduce.sums`.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.dtypes import DType, dtype
from relayout.ir import builder
from relayout.ir import math as functions
from relayout.ir.kernel import operands, streaming
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import Value
from relayout.kernels.reduce.rows import LEVEL, Rows, rows
from relayout.kernels.reduce.rows_text import Lines, Values, Visit, lines
from relayout.kernels.reduce.space import contiguous
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.records import dataclass, replace
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Gradient", "GradientPlan", "module", "planned"]

ENTRY = "gradient"
UNROLL = 4  # vectors of one turn
F32, U8 = dtype("f32"), dtype("u8")


@dataclass(frozen=True)
class Gradient:
    """What is computed: a gradient without formats."""

    kind: str
    """``normalization``, ``softmax`` or ``log_softmax``."""
    epsilon: float = 0.0
    mean: bool = False
    """Whether there is a mean to subtract; RMS normalisation has none."""
    scale: bool = False
    """Whether elements of a row have factors of their own."""
    workspace: bool = False
    """Whether elements of u8 say what came through."""
    factor: bool = False
    """Whether a row has a factor."""
    sums: bool = False
    """Whether both sums are results: of g, and of g (x - m) r."""


@dataclass(frozen=True)
class GradientPlan:
    """A gradient and the loops that it goes through.

    Operands are the source (or what a softmax wrote), what comes in, workspace and scale, then with one
    element for a row mean, variance, factor and both sums, as far as there are any of these; and the
    destination.
    """

    what: Gradient
    src: DType
    diff_dst: DType
    dst: DType
    rows: Rows
    stream: bool = False
    """Whether the result is written around the caches."""

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        return self.rows.lanes(lanes_of(machine, self.src))


def planned(
    what: Gradient,
    src: MemoryDesc,
    diff_dst: MemoryDesc,
    dst: MemoryDesc,
    axes: Sequence[int],
    tables: Sequence[tuple[Layout, int]] = (),
    of_rows: Sequence[Layout] = (),
) -> GradientPlan | None:
    """The gradient along some axes; None where there are no nests, or something would have to be gathered.

    Parameters
    ----------
    what : Gradient
    src, diff_dst, dst : MemoryDesc
        Of equal dims.
    axes : sequence of int
        Those of a row.
    tables : sequence of (Layout, int)
        Workspace and scale, with the bytes of an element.
    of_rows : sequence of Layout
        Mean, variance, factor and sums, in f32: with the dims of the source, and strides of 0 along ``axes``.
    """
    middle = [(diff_dst.layout, diff_dst.dtype.bits // 8), *tables]
    layouts = [src.layout, *(one for one, _ in middle), *of_rows, dst.layout]
    widths = [
        src.dtype.bits // 8,
        *(width for _, width in middle),
        *(4 for _ in of_rows),
        dst.dtype.bits // 8,
    ]
    found = rows(layouts, widths, set(axes), len(of_rows))
    if found is None:
        return None
    for nest in (*found.pieces, *found.blocks):
        run = contiguous(nest)
        if run is not None and run.steps[1] != widths[1]:
            return None  # what comes in has other neighbours
    runs = [contiguous(piece) for piece in found.pieces]
    for k, (_, width) in enumerate(middle, 1):
        if any(run.steps[k] not in (0, width) for run in runs if run):
            return None
    return GradientPlan(what, src.dtype, diff_dst.dtype, dst.dtype, found)


def module(made: GradientPlan, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`; its list has all but source and destination."""
    what, lanes = made.what, lanes_of(machine, made.src)
    count = 1 + what.workspace + what.scale + made.rows.single
    together = max(1, UNROLL // -(-made.rows.longest // lanes))
    levels = made.rows.in_levels(LEVEL, LEVEL * UNROLL * lanes)

    def write(f: builder.Function, past: bool) -> None:
        pointers = [f["src"], *operands(f, count), f["dst"]]
        for found in lines(f, levels, pointers, lanes, UNROLL, together, 2 * UNROLL):
            found.tasks(_Passes(f, replace(made, stream=past), found).write)

    return streaming(ENTRY, machine, made.stream, write)


class _Passes:
    """Both passes over the rows of a task."""

    def __init__(self, f: builder.Function, made: GradientPlan, found: Lines) -> None:
        self.b, self.made, self.what, self.lines = f, made, made.what, found
        self.size = made.rows.size
        self.v, self.coming = Lanes(f, made.src, made.dst), Lanes(f, made.diff_dst, F32)
        self.table, self.mask = Lanes(f, F32, F32), Lanes(f, U8, F32)

    def write(self, at: Values) -> None:
        """A task."""
        if self.what.kind == "normalization":
            self._normalization(at)
        else:
            self._softmax(at)

    # -- what is loaded -------------------------------------------------------------------------------------

    def _source(self, visit: Visit) -> Value:
        return self.v.load(visit.at[0], self.lines.count, visit.valid, 0.0)

    def _coming(self, visit: Visit) -> Value:
        """What comes in, as far as it passed, times the scale."""
        b, n, operand = self.b, self.lines.count, 2
        g = self.coming.load(visit.at[1], n, visit.valid, 0.0)
        if self.what.workspace:
            passed = self.mask.load(visit.at[operand], n, visit.valid, 0.0)
            g = b.select(b.fcmp("une", passed, 0.0), g, 0.0)
            operand += 1
        return b.fmul(g, self.lines.table(self.table, visit, operand, 0.0)) if self.what.scale else g

    # -- sums -----------------------------------------------------------------------------------------------

    def _normalization(self, at: Values) -> None:
        b, what, found = self.b, self.what, self.lines
        operand = 2 * what.sums + what.factor + 1
        means = found.single(at, operand + 1) if what.mean else None
        roots = [
            b.fdiv(1.0, functions.sqrt(b, b.fadd(variance, what.epsilon)))
            for variance in found.single(at, operand)
        ]
        factors = roots
        if what.factor:
            given = found.single(at, operand - 1)
            factors = [b.fmul(root, factor) for root, factor in zip(roots, given, strict=True)]

        def centred(visit: Visit) -> Value:
            x = self._source(visit)
            return x if means is None else b.fsub(x, means[visit.row])

        def added(visit: Visit, given: Values) -> Values:
            g, d = self._coming(visit), centred(visit)
            squares = b.fmuladd(g, d, given[-1])
            return [squares] if means is None else [b.fadd(given[0], g), squares]

        sums = found.totals(at, 1 + what.mean, added)
        if what.sums:
            found.store(at, [one[0] for one in sums], 2)
            found.store(at, [b.fmul(one[-1], root) for one, root in zip(sums, roots, strict=True)], 1)
        each = [b.fmul(one[0], 1 / self.size) for one in sums]
        slopes = [
            b.fmul(b.fmul(b.fmul(one[-1], root), root), 1 / self.size)
            for one, root in zip(sums, roots, strict=True)
        ]

        def last(visit: Visit) -> None:
            g = self._coming(visit)
            if means is not None:
                g = b.fsub(g, each[visit.row])
            g = b.fsub(g, b.fmul(centred(visit), slopes[visit.row]))
            self.v.store(visit.at[-1], b.fmul(g, factors[visit.row]), visit.valid, self.made.stream)

        found.revisit(at, last)

    def _softmax(self, at: Values) -> None:
        b, found, log = self.b, self.lines, self.what.kind == "log_softmax"

        def added(visit: Visit, given: Values) -> Values:
            g = self._coming(visit)
            return [b.fadd(given[0], g) if log else b.fmuladd(g, self._source(visit), given[0])]

        sums = found.totals(at, 1, added)

        def last(visit: Visit) -> None:
            g, y, [s] = self._coming(visit), self._source(visit), sums[visit.row]
            z = b.fsub(g, b.fmul(functions.exp(b, y), s)) if log else b.fmul(y, b.fsub(g, s))
            self.v.store(visit.at[-1], z, visit.valid, self.made.stream)

        found.revisit(at, last)
