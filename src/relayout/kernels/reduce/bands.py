"""Spatial axes as sparse matrices: the kernel of resampling, and of the gradients of pooling and resampling.

Each element of the destination is a sum over some of the source, and along each axis these, with their
weights, are a row of a matrix that has few numbers in it ::

    diff_src of an average over 3, stride 2, front 1          linear, 2 elements become 4

        o0  o1  o2                                                i0   i1
    p0  1/3                                                   o0  1
    p1  1/3 1/3                                               o1  3/4  1/4
    p2      1/3                                               o2  1/4  3/4
    p3      1/3 1/3                                           o3       1
    p4          1/3

For maxima the numbers are those of taps in place of weights, and an element of the source counts where the
workspace has just that tap: all three axes together say which one it would be.

So whatever borders, dilation, overlap and ratios of sizes do is in a table, made when the kernel is planned,
and the code is the same for all: a loop over the row of each axis, inside each other. Every element of the
destination is written once, by one thread, and its sum has one order.

Lanes are channels, or images, where these are neighbours on both sides (``nhwc``, ``nChw16c``). Where pixels
are (``nchw``), rows repeat themselves: p1 and p2 above are p3 and p4, one element further. Of ``period`` rows
each is a vector of what lies so many pixels apart, its taps are neighbours in the source, and the vectors are
interleaved when they are stored. Such rows are written out; only those at both ends use the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType
from relayout.errors import LayoutError
from relayout.ir.builder import Function as Text
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import FLOAT, I32, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import join, load_pieces, pieces_of
from relayout.kernels.reduce.space import Cover, cover, spaces
from relayout.kernels.reduce.window import step_of
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop, Nest
from relayout.loops.refine import refine
from relayout.ops.functions import Function
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Band", "Bands", "Inner", "Row", "module", "planned"]

ENTRY = "bands"
MOST_PERIOD = 4  # rows that are written out, of which others are repetitions
MOST_TERMS = 32  # terms of these together
HELD = {64: 8, 32: 4, 16: 4}  # vectors that are added up at a time, by the bytes of a register

Row = tuple[tuple[int, float], ...]
"""Which elements of the source one of the destination is made of, with their weights or taps."""


class Inner(NamedTuple):
    """The rows of an axis that are repetitions of some: each ``len(rows)`` further is one element further."""

    first: int
    """Of the destination."""
    turns: int
    rows: tuple[Row, ...]
    """The first of them, places counted from the source's element 0."""

    @property
    def end(self) -> int:
        """The first row behind them."""
        return self.first + self.turns * len(self.rows)


class Band(NamedTuple):
    """An axis: what code depends on. The rest is in the table."""

    out: int
    """Elements of the destination."""
    single: bool
    """Whether there is one element on both sides, which is taken as it is."""
    weighted: bool
    """Whether there are other weights than 1."""
    inner: Inner | None
    table: int = 0
    """Where its part of the table begins: ``out + 1`` numbers that say where rows begin, in words."""
    src: int = 0
    aside: int = 0
    dst: int = 0
    """Bytes from one element to the next, in source, workspace and destination."""


@dataclass(frozen=True)
class Bands:
    """What is computed: the numbers without formats."""

    src: DType
    aside: DType | None
    """The workspace, which says what counts; None where everything does."""
    dst: DType
    axes: tuple[Band, Band, Band]
    """Depth, height and width."""
    blocks: tuple[Nest, ...]
    """Images and channels: source, workspace if there is one, destination, in bytes."""
    post_ops: tuple[Function, ...] = ()

    def in_pixels(self, block: Nest) -> bool:
        """Whether the lanes of a block are pixels of a row."""
        w = self.axes[2]
        sizes = self.src.bits // 8, self.aside.bits // 8 if self.aside else 0, self.dst.bits // 8
        return block.length == 1 and w.inner is not None and (w.src, w.aside, w.dst) == sizes

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something, in the block of most elements."""
        inner, most = self.axes[2].inner, lanes_of(machine, self.src)
        found = [
            (block.size, min(most, inner.turns if inner and self.in_pixels(block) else block.length))
            for block in self.blocks
        ]
        return max(found)[1]


def planned(
    src: MemoryDesc,
    aside: MemoryDesc | None,
    dst: MemoryDesc,
    rows: Sequence[Sequence[Row]],
    post_ops: tuple[Function, ...] = (),
) -> tuple[Bands, NDArray[np.int32]] | None:
    """The bands of some descriptors, and their table.

    None where a spatial axis is cut into digits or fused with others, or images and channels have no blocks
    that are contiguous alike.

    Parameters
    ----------
    src, dst : MemoryDesc
        What is read and written.
    aside : MemoryDesc or None
        The workspace, with the dims of the source.
    rows : sequence
        For each of the last axes, for each element of the destination its row. Numbers are weights, or taps
        where there is a workspace.
    """
    descs = [desc for desc in (src, aside, dst) if desc is not None]
    sizes = [desc.dtype.bits // 8 for desc in descs]
    around = [desc.layout for desc in descs]
    first, found = len(src.dims) - len(rows), []
    for k in reversed(range(first, len(src.dims))):
        steps = [step_of(desc.layout, k) for desc in descs]
        if any(step is None for step in steps):
            return None
        found.append([(step or 0) * size for step, size in zip(steps, sizes, strict=True)])
        try:
            around = [views.select(layout, k, 0) for layout in around]
        except LayoutError:
            return None
    blocks = spaces(refine(*around), [layout.offset0 for layout in around], tuple(sizes))
    if blocks is None or any(_apart(block) for block in blocks):
        return None
    bands, words, total = [], [], 0
    whole = [((((0, 0.0 if aside else 1.0),),), [0] * len(descs))] * (3 - len(rows))
    for several, bytes_ in (*whole, *zip(rows, reversed(found), strict=True)):
        band, data = _band(several, aside is not None)
        source, *between, target = bytes_
        bands.append(band._replace(table=total, src=source, aside=sum(between), dst=target))
        words.append(data)
        total += data.size
    d, h, w = bands
    made = Bands(src.dtype, aside.dtype if aside else None, dst.dtype, (d, h, w), blocks, post_ops)
    return made, np.concatenate(words)


def _apart(block: Nest) -> bool:
    """Whether what is contiguous in source and destination is not in the workspace."""
    return any(
        (loop.steps[0], loop.steps[-1]) == (block.widths[0], block.widths[-1]) and loop is not block.run
        for loop in block.loops
    )


def _band(rows: Sequence[Row], taps: bool) -> tuple[Band, NDArray[np.int32]]:
    """An axis, and its part of the table."""
    starts = np.cumsum([0, *map(len, rows)], dtype=np.int32)
    entries = np.zeros((int(starts[-1]), 2), np.int32)
    flat = [one for row in rows for one in row]
    entries[:, 0] = [place for place, _ in flat]
    numbers = np.array([number for _, number in flat], np.int32 if taps else np.float32)
    entries[:, 1] = numbers.view(np.int32)
    neutral = 0 if taps else 1
    single = [list(row) for row in rows] == [[(0, neutral)]]
    weighted = not taps and bool((numbers != 1).any())
    band = Band(len(rows), single, weighted, _inner(rows))
    return band, np.concatenate([starts, entries.ravel()])


def _inner(rows: Sequence[Row]) -> Inner | None:
    """The longest stretch of repetitions, if it is most of the axis.

    >>> _inner([((0, 1.0),), ((0, 2.0),), ((1, 1.0),), ((1, 2.0),), ((2, 1.0),)])
    Inner(first=0, turns=2, rows=(((0, 1.0),), ((0, 2.0),)))
    """
    best: Inner | None = None
    for period in range(1, MOST_PERIOD + 1):
        start = 0
        while start + period < len(rows):
            at = start
            while at + period < len(rows) and rows[at + period] == _further(rows[at]):
                at += 1
            turns = (at + period - start) // period
            found = Inner(start, turns, tuple(rows[start : start + period]))
            if turns > 1 and (best is None or found.end - start > best.end - best.first):
                best = found
            start = at + 1
    if best is None or 2 * (best.end - best.first) < len(rows):
        return None
    return best if sum(map(len, best.rows)) <= MOST_TERMS else None


def _further(row: Row) -> Row:
    return tuple((place + 1, number) for place, number in row)


def module(made: Bands, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`; its operands are the table and the workspace."""
    f = kernel(ENTRY, machine)
    table, aside = (f.load(PTR, f.gep(f.arguments[2], 8 * k), 8) for k in (0, int(made.aside is not None)))
    for block in made.blocks:
        _Block(f, made, block, table, aside).write()
    return f.text()


class _At(NamedTuple):
    """Addresses in the source and the workspace."""

    src: Value
    aside: Value


Turn = Callable[[_At, "Value | None", list[Value]], list[Value]]
"""What is done with the elements that a row names: where they are, a weight or tap, the sums so far."""


class _Block:
    """Writes the loops of one block."""

    def __init__(self, f: Text, made: Bands, block: Nest, table: Value, aside: Value) -> None:
        self.b, self.made, self.block = f, made, block
        self.table, self.aside = table, aside
        self.v = Lanes(f, made.src, made.dst)
        self.e, self.f = made.src.bits // 8, made.dst.bits // 8
        self.a = made.aside.bits // 8 if made.aside else 0
        self.most = HELD[f.machine.vector]
        self.pixels = made.in_pixels(block)
        d, h, w = made.axes
        if not self.pixels and d.single and h.single:
            h, w = w, h  # one row: its pixels are shared
        self.d, self.h, self.w = d, h, w

    def write(self) -> None:
        """All tasks: rows of the destination."""
        b, block = self.b, self.block
        around = [*block.around, Loop(self.d.out, (0, self.d.dst)), Loop(self.h.out, (0, self.h.dst))]
        order = sorted(range(len(around)), key=lambda k: -abs(around[k].dst))
        total = 1
        for loop in around:
            total *= loop.extent
        run = cover(block.length, self.v.most, self.most)

        def task(number: Value) -> None:
            found = digits(b, number, [around[k].extent for k in order])
            indices = [found[order.index(k)] for k in range(len(around))]
            dst = b.gep(b.arguments[1], block.dst)
            src, aside = b.gep(b.arguments[0], block.src), b.gep(self.aside, self._step(block.starts))
            for loop, index in zip(around, indices, strict=True):
                dst, src = b.gep(dst, index, loop.dst), b.gep(src, index, loop.src)
                aside = b.gep(aside, index, self._step(loop.steps))
            z, y = indices[-2:]
            self._row(_At(src, aside), dst, z, y, run)

        tasks(b, total, task)

    def _step(self, numbers: Sequence[int]) -> int:
        """That of the workspace."""
        return numbers[1] if self.a and len(numbers) > 2 else 0

    def _row(self, at: _At, dst: Value, z: Value, y: Value, run: Cover) -> None:
        """A row: pixel by pixel; where rows repeat themselves, in vectors of several."""
        b, inner = self.b, self.w.inner

        def pixel(x: Value, given: list[Value]) -> list[Value]:
            to = b.gep(dst, x, self.w.dst)

            def chunk(k: Value, given: list[Value]) -> list[Value]:
                skip = constant(I64, 0)
                if run.times > 1:
                    skip = b.smin(b.mul(k, run.chunk), self.block.length - run.chunk)
                here = self._moved(at, skip, (self.e, self.a))
                sums = self._sums(here, z, y, run.lanes, len(run.offsets), self._along(x, run))
                for offset, value in zip(run.offsets, sums, strict=True):
                    self._store(b.gep(b.gep(to, skip, self.f), offset * self.f), value)
                return given

            return b.repeat(0, run.times, 1, given, chunk)

        if not self.pixels or inner is None:
            b.repeat(0, self.w.out, 1, [], pixel)
            return
        b.repeat(0, inner.first, 1, [], pixel)
        self._several(at, dst, z, y, inner)
        b.repeat(inner.end, self.w.out, 1, [], pixel)

    def _several(self, at: _At, dst: Value, z: Value, y: Value, inner: Inner) -> None:
        """Vectors of pixels ``period`` apart, interleaved."""
        b, period = self.b, len(inner.rows)
        turns = cover(inner.turns, self.v.most, max(1, self.most // period))

        def chunk(k: Value, given: list[Value]) -> list[Value]:
            first = constant(I64, 0)
            if turns.times > 1:
                first = b.smin(b.mul(k, turns.chunk), inner.turns - turns.chunk)
            here = self._moved(at, first, (self.e, self.a))
            to = b.gep(dst, b.add(b.mul(first, period), inner.first), self.f)
            many = len(turns.offsets) * period
            sums = self._sums(here, z, y, turns.lanes, many, self._written_out(inner, turns))
            for j, offset in enumerate(turns.offsets):
                parts = sums[j * period : (j + 1) * period]
                for p, value in enumerate(self._interleaved(parts)):
                    self._store(b.gep(to, (offset * period + p * turns.lanes) * self.f), value)
            return given

        b.repeat(0, turns.times, 1, [], chunk)

    def _interleaved(self, parts: Sequence[Value]) -> list[Value]:
        """Element by element of some vectors in turn, as many vectors again."""
        period, lanes = len(parts), parts[0].type.count
        if period == 1:
            return list(parts)
        room = 1 << (period - 1).bit_length()
        whole = join(self.b, [*parts, *parts[: room - period]])
        places = [k % period * lanes + k // period for k in range(period * lanes)]
        return [self.b.shuffle(whole, places[p * lanes : (p + 1) * lanes]) for p in range(period)]

    # -- sums -----------------------------------------------------------------------------------------------

    def _sums(self, at: _At, z: Value, y: Value, lanes: int, many: int, along: Turn) -> list[Value]:
        """Sums over planes and rows of what ``along`` adds up of a row."""
        start = [self.v.constant(0.0, lanes)] * many

        def line(here: _At, number: Value | None, given: list[Value]) -> list[Value]:
            return self._over(self.h, y, here, number, given, along, start)

        return self._over(self.d, z, at, None, start, line, start)

    def _over(
        self,
        axis: Band,
        index: Value,
        at: _At,
        before: Value | None,
        given: list[Value],
        body: Turn,
        start: list[Value],
    ) -> list[Value]:
        """Hand sums on over the elements that a row of an axis names."""
        if axis.single:
            return body(at, before, given)

        def turn(here: _At, number: Value, given: list[Value]) -> list[Value]:
            if not axis.weighted:
                tap = number if self.a else None
                return body(here, self._joint(before, tap), given)
            inside = body(here, None, start)
            weights = self.b.splat(number, start[0].type.count)
            return [self.b.fmuladd(x, weights, s) for x, s in zip(inside, given, strict=True)]

        return self._entries(axis, index, at, given, turn)

    def _entries(
        self,
        axis: Band,
        index: Value,
        at: _At,
        given: list[Value],
        body: Callable[[_At, Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """The row of an axis, from the table."""
        b = self.b
        head = b.gep(b.gep(self.table, 4 * axis.table), index, 4)
        first, end = (b.resize(b.load(I32, b.gep(head, 4 * k)), 64) for k in (0, 1))
        entries = b.gep(self.table, 4 * (axis.table + axis.out + 1))

        def turn(i: Value, given: list[Value]) -> list[Value]:
            entry = b.gep(entries, i, 8)
            place = b.resize(b.load(I32, entry), 64)
            number = b.load(I32 if self.a else FLOAT, b.gep(entry, 4))
            return body(self._moved(at, place, (axis.src, axis.aside)), number, given)

        return b.repeat(first, end, 1, given, turn)

    def _joint(self, one: Value | None, two: Value | None) -> Value | None:
        """The number of a tap from those of two axes."""
        return one if two is None else two if one is None else self.b.add(one, two)

    def _along(self, x: Value, run: Cover) -> Turn:
        """What is added up of a row for one pixel, in vectors of the run."""

        def along(at: _At, number: Value | None, given: list[Value]) -> list[Value]:
            def turn(here: _At, value: Value, given: list[Value]) -> list[Value]:
                loaded = [self._loaded(here, k, run.lanes, self._joint(number, value)) for k in run.offsets]
                if not self.w.weighted:
                    return [self.b.fadd(s, one) for s, one in zip(given, loaded, strict=True)]
                weights = self.b.splat(value, run.lanes)
                return [self.b.fmuladd(one, weights, s) for s, one in zip(given, loaded, strict=True)]

            if self.w.single:
                loaded = [self._loaded(at, k, run.lanes, number) for k in run.offsets]
                return [self.b.fadd(s, one) for s, one in zip(given, loaded, strict=True)]
            return self._entries(self.w, x, at, given, turn)

        return along

    def _written_out(self, inner: Inner, turns: Cover) -> Turn:
        """What is added up of a row for pixels whose rows repeat themselves."""
        b, lanes = self.b, turns.lanes

        def along(at: _At, number: Value | None, given: list[Value]) -> list[Value]:
            found, sums = {}, iter(given)
            out = []
            for offset in turns.offsets:
                for row in inner.rows:
                    total = next(sums)
                    for place, value in row:
                        where = offset + place
                        if self.a:
                            tap = self._joint(number, constant(I32, int(value)))
                            total = b.fadd(total, self._loaded(at, where, lanes, tap))
                            continue
                        if where not in found:
                            found[where] = self._loaded(at, where, lanes, None)
                        one = found[where]
                        weights = self.v.constant(float(np.float32(value)), lanes)
                        total = b.fadd(total, one) if value == 1 else b.fmuladd(one, weights, total)
                    out.append(total)
            return out

        return along

    # -- elements -------------------------------------------------------------------------------------------

    def _moved(self, at: _At, index: Value, steps: tuple[int, int]) -> _At:
        b = self.b
        return _At(b.gep(at.src, index, steps[0]), b.gep(at.aside, index, steps[1]) if self.a else at.aside)

    def _loaded(self, at: _At, element: int, count: int, tap: Value | None) -> Value:
        """Neighbouring elements; zeros where the workspace has another tap than this."""
        b = self.b
        found = self.v.load(b.gep(at.src, element * self.e), count)
        if not self.a:
            return found
        kind = vector(count, integer(8 * self.a))
        pieces = pieces_of(0, count, 0, self.a)
        taps = load_pieces(b, kind, b.gep(at.aside, element * self.a), pieces)
        number = b.resize(tap if tap is not None else constant(I32, 0), 8 * self.a)
        return b.select(b.icmp("eq", taps, b.splat(number, count)), found, 0.0)

    def _store(self, pointer: Value, value: Value) -> None:
        for function in self.made.post_ops:
            value = function.emit(self.b, value)
        self.v.store(pointer, value)
