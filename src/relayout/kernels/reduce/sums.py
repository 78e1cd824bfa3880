"""Sums over long rows, in parts: the statistics of batch normalisation, and the sums of its gradient.

The rows of batch normalisation are its channels, each with all pixels of all images: too long to stay in a
cache, and in ``nhwc`` all of them lie in each other's way. So they are cut into parts, whose order is that of
memory, and each part is a task ::

    statistics of a part     mean and variance of the elements, in one pass (see normalization)
    sums of a gradient       g and g (x - mean), where g is what comes in

A second kernel puts parts together, in their order. Statistics are merged as Chan, Golub and LeVeque do, with
differences from the mean of the first part, so that no digits are lost where the mean is large ::

    d[k] = mean[k] - mean[0]        e = sum of n[k] d[k] / n        mean = mean[0] + e
    variance = (sum of n[k] variance[k] + sum of n[k] (d[k] - e)^2) / n

How many parts there are follows from the tensor alone, never from the number of threads: so do results, to
the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from relayout.dtypes import DType, dtype
from relayout.ir import builder
from relayout.ir import math as functions
from relayout.ir.kernel import kernel, operands
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import Value
from relayout.kernels.reduce.normalization import NormalizationPlan, Normalized, Passes
from relayout.kernels.reduce.rows import LEVEL, Rows, rows
from relayout.kernels.reduce.rows_text import Lines, Values, Visit, lines
from relayout.kernels.reduce.space import contiguous
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, Nest, split
from relayout.records import dataclass, replace
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "MERGE", "Merged", "SumsPlan", "merge", "module", "planned"]

ENTRY, MERGE = "sums", "merge"
TASKS = 64  # that all parts together are about, for threads to share
LEAST = 1 << 14  # bytes of the source in a part, at least
VECTORS = 8  # of neighbouring rows that one task adds up: sums, means and what is loaded fit into registers
UNROLL = 8  # vectors of one turn
F32 = dtype("f32")


@dataclass(frozen=True)
class SumsPlan:
    """What is added up, and the loops that it goes through.

    Operands are the source, then the workspace, mean and factor as far as there are any, then both results
    (f32, for each part and row), and last what comes in. Of statistics that is the source again.
    """

    src: DType
    last: DType
    statistics: bool
    """Whether results are mean and variance; else the sums of a gradient."""
    workspace: bool
    """Whether an element of u8 says what came through."""
    mean: bool
    """Whether there is a mean to subtract."""
    factor: bool
    """Whether differences are multiplied by a factor."""
    groups: tuple[Rows, ...]
    """The parts: those of equal length together."""
    parts: tuple[tuple[int, int], ...]
    """Their numbers, group by group, and the elements of each."""

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something."""
        most = max(self.groups, key=lambda one: one.size)
        return most.lanes(lanes_of(machine, self.src))

    @property
    def count(self) -> int:
        """All parts."""
        return sum(times for times, _ in self.parts)


def planned(
    src: MemoryDesc,
    last: MemoryDesc,
    axes: Sequence[int],
    lanes: int,
    *,
    workspace: MemoryDesc | None = None,
    mean: Layout | None = None,
    factor: Layout | None = None,
    statistics: bool = False,
) -> SumsPlan | None:
    """The sums along some axes; None where there are no nests, or something would have to be gathered.

    Parameters
    ----------
    src, last : MemoryDesc
        Of equal dims: the source, and what comes in; of statistics the source again.
    axes : sequence of int
        Those that are added up.
    lanes : int
        Of the processor.
    workspace : MemoryDesc, optional
        u8, of equal dims.
    mean, factor : Layout, optional
        f32, of equal dims, with strides of 0 where they do not change.
    statistics : bool
        Whether mean and variance are wanted.
    """
    kept, stride = [0] * len(src.dims), 1
    for axis in reversed(range(len(src.dims))):
        if axis not in axes:
            kept[axis], stride = stride, stride * src.dims[axis]
    of_rows = Layout(src.dims, strides=kept)
    middle = [(workspace.layout, 1)] if workspace is not None else []
    middle += [(one, 4) for one in (mean, factor) if one is not None] + [(of_rows, 4)] * 2
    layouts = [src.layout, *(layout for layout, _ in middle), last.layout]
    widths = [src.dtype.bits // 8, *(width for _, width in middle), last.dtype.bits // 8]
    found = rows(layouts, widths, set(axes), 2)
    if found is None or _gathers(found, len(middle) - 2):
        return None
    groups: list[Rows] = []
    parts: list[tuple[int, int]] = []
    for piece in found.pieces:
        for loops, one in _cut(found, piece, lanes):
            times, steps = prod(loop.extent for loop in loops), 4 * stride
            over = []
            for loop in reversed(loops):
                over.append(_storing(loop, steps))
                steps *= loop.extent
            begin = 4 * stride * sum(times for times, _ in parts)
            blocks = tuple(
                replace(
                    block,
                    starts=_added(block.starts, begin),
                    loops=(*over[::-1], *block.loops),
                )
                for block in found.blocks
            )
            groups.append(Rows(blocks, (one,), 2))
            parts.append((times, one.size))
    return SumsPlan(
        src.dtype, last.dtype, statistics, workspace is not None, mean is not None, factor is not None,
        tuple(groups), tuple(parts),
    )  # fmt: skip


def _gathers(found: Rows, tables: int) -> bool:
    """Whether neighbours of the source are none of a table."""
    runs = [contiguous(piece) for piece in found.pieces]
    return any(
        step not in (0, width)
        for run in runs
        if run
        for step, width in zip(run.steps[1 : 1 + tables], found.pieces[0].widths[1:], strict=False)
    )


def _storing(loop: Loop, step: int) -> Loop:
    """A loop in which both results move."""
    first, last = loop.steps[:-3], loop.steps[-1:]
    return Loop(loop.extent, (*first, step, step, *last))


def _added(starts: tuple[int, ...], more: int) -> tuple[int, ...]:
    """Starts, those of both results further on."""
    *first, one, two, last = starts
    return (*first, one + more, two + more, last)


def _cut(found: Rows, piece: Nest, lanes: int) -> list[tuple[tuple[Loop, ...], Nest]]:
    """A piece in parts of about equal length: loops from part to part, and one part."""
    width = piece.widths[0]
    tasks = 0
    for block in found.blocks:
        packing = found.packing(block, lanes)
        each, turns = (packing[0], packing[1].extent) if packing else (1, 1)
        tasks += block.size // turns * (-(-each * turns // (VECTORS * lanes)) if packing else 1)
    together = sum(block.size for block in found.blocks)
    wanted = min(-(-TASKS // tasks), max(1, piece.size * together * width // LEAST))
    outer: list[Loop] = []
    loops = list(piece.loops)
    while loops and wanted > 1:
        loop = loops[0]
        if loop.extent <= wanted:
            outer.append(loop)
            loops.pop(0)
            wanted = -(-wanted // loop.extent)
            continue
        each = -(-loop.extent // wanted)
        times = loop.extent // each
        whole, rest = split(replace(piece, loops=tuple(loops)), loop, times * each)
        chunks = Loop(times, tuple(each * step for step in loop.steps))
        inner = (loop.taking(each), *loops[1:])
        made = [((*outer, chunks), replace(whole, loops=inner))]
        return [*made, (tuple(outer), rest)] if rest.size else made
    return [(tuple(outer), replace(piece, loops=tuple(loops)))]


# -- sums ---------------------------------------------------------------------------------------------------


def module(made: SumsPlan, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`.

    Its operands are all others but the source and what comes in, in their order.
    """
    f, lanes = kernel(ENTRY, machine), lanes_of(machine, made.src)
    count = made.workspace + made.mean + made.factor + 2
    pointers = [f["src"], *operands(f, count), f["dst"]]
    for part in made.groups:
        together = max(1, UNROLL // 2 // -(-part.longest // lanes))
        levels = part.in_levels(LEVEL, LEVEL * UNROLL * lanes)
        for found in lines(f, levels, pointers, lanes, UNROLL, together, VECTORS):
            if made.statistics:
                what = Normalized(False, 0.0, False, False, True, True)
                plan = NormalizationPlan(what, made.src, made.src, part)
                found.tasks(Passes(f, plan, found).only_statistics)
            else:
                found.tasks(_Sums(f, made, found).write)
    return f.text()


class _Sums:
    """The sums of a gradient, for the rows of a task."""

    def __init__(self, f: builder.Function, made: SumsPlan, found: Lines) -> None:
        self.b, self.made, self.lines = f, made, found
        self.v, self.table = Lanes(f, made.src, made.src), Lanes(f, F32, F32)
        self.last, self.mask = Lanes(f, made.last, made.last), Lanes(f, dtype("u8"), F32)

    def write(self, at: Values) -> None:
        """A task."""
        b, found = self.b, self.lines

        def added(visit: Visit, given: Values) -> Values:
            g, y = self._loaded(visit)
            return [b.fadd(given[0], g), b.fmuladd(g, y, given[1])]

        sums = found.totals(at, 2, added)
        for k in range(2):
            found.store(at, [one[k] for one in sums], 2 - k)

    def _loaded(self, visit: Visit) -> tuple[Value, Value]:
        """What comes in, and the source as far as it is to be centred and scaled; 0 in lanes without any."""
        b, n, made, operand = self.b, self.lines.count, self.made, 1
        x = self.v.load(visit.at[0], n, visit.valid, 0.0)
        g = self.last.load(visit.at[-1], n, visit.valid, 0.0)
        if made.workspace:
            passed = self.mask.load(visit.at[1], n, visit.valid, 0.0)
            g = b.select(b.fcmp("une", passed, 0.0), g, 0.0)
            operand += 1
        if made.mean:
            x = b.fsub(x, self.lines.table(self.table, visit, operand, 0.0))
            operand += 1
        if made.factor:
            x = b.fmul(x, self.lines.table(self.table, visit, operand, 0.0))
        return g, x


# -- parts together -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Merged:
    """Parts of so many rows put together.

    Operands are the two results of all parts, then of a gradient that is told the ``epsilon`` of batch
    normalisation the variance and the scale if there is one, then what is written:

    * of statistics mean and variance;
    * of a gradient both sums, the second one divided by the deviation where an epsilon is given; and
      with ``coefficients`` three factors for each row, by which elements become the result: the first sum by
      the number of elements, the second one so, divided by the variance, and the scale by the deviation.
    """

    rows: int
    parts: tuple[tuple[int, int], ...]
    statistics: bool
    epsilon: float | None = None
    scale: bool = False
    coefficients: bool = False

    @property
    def size(self) -> int:
        """Elements of a row."""
        return sum(times * size for times, size in self.parts)


def merge(made: Merged, machine: Machine) -> str:
    """The text of the kernel: the function :data:`MERGE`; all operands are in its list."""
    f, n = kernel(MERGE, machine), machine.vector // 4
    inputs = 2 + (made.epsilon is not None) + made.scale
    count = inputs + 2 + 3 * made.coefficients
    at = operands(f, count)
    whole = made.rows // n

    def write(places: Values, valid: int) -> None:
        found = (_statistics if made.statistics else _sums)(f, made, places, valid, n)
        v = Lanes(f, F32, F32)
        for place, value in zip(places[inputs:], found, strict=True):
            v.store(place, value, valid)

    def turn(k: Value) -> None:
        write([f.gep(x, k, 4 * n) for x in at], n)

    first = f.icmp("eq", f.arguments[3], 0)  # no work to share: the first part does it

    def all_rows() -> None:
        if whole:
            f.loop(0, whole, 1, turn)
        if made.rows % n:
            write([f.gep(x, whole * 4 * n) for x in at], made.rows % n)

    f.when(first, all_rows)
    return f.text()


Part = Callable[[Values, int, Values], Values]


def _over(f: builder.Function, made: Merged, given: Values, body: Part, places: Sequence[Value]) -> Values:
    """Values handed on from part to part; the body is given the places of a part and its size."""
    begin = list(places)
    for times, size in made.parts:

        def turn(k: Value, values: Values, begin: Values = begin, size: int = size) -> Values:
            return body([f.gep(x, k, 4 * made.rows) for x in begin], size, values)

        given = f.repeat(0, times, 1, given, turn)
        begin = [f.gep(x, times * 4 * made.rows) for x in begin]
    return given


def _statistics(f: builder.Function, made: Merged, at: Values, valid: int, n: int) -> Values:
    """Mean and variance of a vector of rows."""
    v, size = Lanes(f, F32, F32), made.size
    first = v.load(at[0], n, valid)
    if made.parts == ((1, size),):
        return [first, v.load(at[1], n, valid)]
    zero = v.constant(0.0, n)

    def mean(places: Values, each: int, given: Values) -> Values:
        d = f.fsub(v.load(places[0], n, valid), first)
        return [f.fmuladd(d, v.constant(each / size, n), given[0])]

    [e] = _over(f, made, [zero], mean, at[:2])

    def squares(places: Values, each: int, given: Values) -> Values:
        d = f.fsub(f.fsub(v.load(places[0], n, valid), first), e)
        inside = f.fmuladd(d, d, v.load(places[1], n, valid))
        return [f.fmuladd(inside, v.constant(each / size, n), given[0])]

    [variance] = _over(f, made, [zero], squares, at[:2])
    return [f.fadd(first, e), variance]


def _sums(f: builder.Function, made: Merged, at: Values, valid: int, n: int) -> Values:
    """Both sums of a vector of rows, and what follows from them."""
    v, zero = Lanes(f, F32, F32), Lanes(f, F32, F32).constant(0.0, n)

    def added(places: Values, _: int, given: Values) -> Values:
        return [f.fadd(x, v.load(place, n, valid)) for x, place in zip(given, places, strict=True)]

    one, two = _over(f, made, [zero, zero], added, at[:2])
    if made.epsilon is None:
        return [one, two]
    root = f.fdiv(1.0, functions.sqrt(f, f.fadd(v.load(at[2], n, valid), made.epsilon)))
    two = f.fmul(two, root)
    if not made.coefficients:
        return [one, two]
    factor = f.fmul(root, v.load(at[3], n, valid)) if made.scale else root
    return [one, two, f.fmul(one, 1 / made.size), f.fmul(f.fmul(two, root), 1 / made.size), factor]
