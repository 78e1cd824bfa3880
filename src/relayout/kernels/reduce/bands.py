"""Spatial axes as sparse matrices: resampling, gradients of pooling and resampling, maxima with their places.

Each element of the destination is a sum over some of the source, or the largest of them. Along each axis
these, with their weights, are a row of a matrix that has few numbers in it ::

    diff_src of an average over 3, stride 2, front 1          linear, 2 elements become 4

        o0  o1  o2                                                i0   i1
    p0  1/3                                                   o0  1
    p1  1/3 1/3                                               o1  3/4  1/4
    p2      1/3                                               o2  1/4  3/4
    p3      1/3 1/3                                           o3       1
    p4          1/3

For maxima the numbers are those of taps in place of weights; all three axes together say which one it is. A
pooling that keeps a workspace writes there the tap of the element that it took, and its gradient counts an
element of the source where the workspace has just the tap that leads there.

So whatever borders, dilation, overlap and ratios of sizes do is in a table, made when the kernel is planned,
and the code is the same for all: a loop over the row of each axis, inside each other. Every element of the
destination is written once, by one thread, and its sum has one order.

Lanes are channels, or images, where these are neighbours on both sides (``nhwc``, ``nChw16c``). Where pixels
are (``nchw``), rows repeat themselves: p1 and p2 above are p3 and p4, one element further. Of ``period`` rows
each is a vector of what lies so many pixels apart, its taps are neighbours in the source (or every other
element), and the vectors are interleaved when they are stored. Such rows are written out; only those at both
ends use the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import DType
from relayout.ir.builder import Function as Text
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.lanes import Lanes, lanes_of
from relayout.ir.types import FLOAT, I32, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import join, load_pieces, pieces_of, store_pieces
from relayout.kernels.reduce.space import Cover, cover, last_axes
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Loop, Nest
from relayout.ops.functions import Function
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Band", "Bands", "Inner", "Row", "module", "planned"]

ENTRY = "bands"
MOST_PERIOD = 4  # rows that are written out, of which others are repetitions
SHIFTS = 1, 2  # elements of the source from one repetition to the next
MOST_TERMS = 32  # terms of these together
HELD = {64: 8, 32: 4, 16: 4}  # vectors that are added up at a time, by the bytes of a register

Row = tuple[tuple[int, float], ...]
"""Which elements of the source one of the destination is made of, with their weights or taps."""


class Inner(NamedTuple):
    """The rows of an axis that repeat some: so many further on, all places are ``shift`` elements further."""

    first: int
    """Of the destination."""
    turns: int
    shift: int
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
    picks: bool = False
    """Whether each element of the destination is one of the source."""


@dataclass(frozen=True)
class Bands:
    """What is computed: the numbers without formats."""

    src: DType
    aside: DType | None
    """The workspace, which says what counts, or what was the largest; None where there is none."""
    dst: DType
    axes: tuple[Band, Band, Band]
    """Depth, height and width."""
    blocks: tuple[Nest, ...]
    """Images and channels: source, workspace if there is one, destination, in bytes."""
    largest: bool = False
    """Whether the largest element is looked for, and the workspace is written."""
    post_ops: tuple[Function, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether integers stay integers."""
        return self.moves or (
            self.largest and not self.src.is_float and self.src is self.dst and not self.post_ops
        )

    @property
    def moves(self) -> bool:
        """Whether elements are moved as they are, and nothing is computed."""
        plain = self.aside is None and self.src is self.dst and not self.post_ops
        return plain and all(axis.picks for axis in self.axes)

    def in_pixels(self, block: Nest) -> bool:
        """Whether the lanes of a block are pixels of a row."""
        w = self.axes[2]
        sizes = self.src.bits // 8, self.aside.bits // 8 if self.aside else 0, self.dst.bits // 8
        return block.length == 1 and w.inner is not None and (w.src, w.aside, w.dst) == sizes

    def lanes(self, machine: Machine) -> int:
        """How many lanes do something, in the block of most elements."""
        inner, most = self.axes[2].inner, lanes_of(machine, self.src, self.whole)
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
    largest: bool = False,
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
        The workspace, with the dims of the source, or with those of the destination where it is written.
    rows : sequence
        For each of the last axes, for each element of the destination its row. Numbers are weights, or taps
        where there is a workspace.
    largest : bool
        Whether the largest element is looked for, not the sum.
    """
    descs = [desc for desc in (src, aside, dst) if desc is not None]
    found = last_axes(descs, len(rows))
    if found is None or any(_apart(block) for block in found[1]):
        return None
    steps, blocks = found
    bands, words, total = [], [], 0
    whole = [((((0, 0.0 if aside else 1.0),),), [0] * len(descs))] * (3 - len(rows))
    for several, bytes_ in (*whole, *zip(rows, steps, strict=True)):
        band, data = _band(several, aside is not None)
        source, *between, target = bytes_
        bands.append(band._replace(table=total, src=source, aside=sum(between), dst=target))
        words.append(data)
        total += data.size
    d, h, w = bands
    made = Bands(src.dtype, aside.dtype if aside else None, dst.dtype, (d, h, w), blocks, largest, post_ops)
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
    picks = not taps and all(len(row) == 1 and row[0][1] == 1 for row in rows)
    band = Band(len(rows), single, weighted, _inner(rows), picks=picks)
    return band, np.concatenate([starts, entries.ravel()])


def _inner(rows: Sequence[Row]) -> Inner | None:
    """The longest stretch of repetitions, if it is most of the axis.

    >>> _inner([((0, 1.0),), ((0, 2.0),), ((1, 1.0),), ((1, 2.0),), ((2, 1.0),)])
    Inner(first=0, turns=2, shift=1, rows=(((0, 1.0),), ((0, 2.0),)))
    """
    best: Inner | None = None
    for period, shift in product(range(1, MOST_PERIOD + 1), SHIFTS):
        start = 0
        while start + period < len(rows):
            at = start
            while at + period < len(rows) and rows[at + period] == _further(rows[at], shift):
                at += 1
            turns = (at + period - start) // period
            found = Inner(start, turns, shift, tuple(rows[start : start + period]))
            if turns > 1 and (best is None or found.end - start > best.end - best.first):
                best = found
            start = at + 1
    if best is None or 2 * (best.end - best.first) < len(rows):
        return None
    return best if sum(map(len, best.rows)) <= MOST_TERMS else None


def _further(row: Row, shift: int) -> Row:
    return tuple((place + shift, number) for place, number in row)


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
        self.v = Lanes(f, made.src, made.dst, made.whole)
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
        besides = [*(self._step(loop.steps) for loop in block.around), *self._asides(self.d, self.h)]
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
            for loop, step, index in zip(around, besides, indices, strict=True):
                dst, src = b.gep(dst, index, loop.dst), b.gep(src, index, loop.src)
                aside = b.gep(aside, index, step)
            z, y = indices[-2:]
            self._row(_At(src, aside), dst, z, y, run)

        tasks(b, total, task)

    def _step(self, numbers: Sequence[int]) -> int:
        """That of the workspace."""
        return numbers[1] if self.a and len(numbers) > 2 else 0

    def _asides(self, *axes: Band) -> list[int]:
        """By how much a workspace that is written moves with the destination; one that is read does not."""
        return [axis.aside if self.made.largest else 0 for axis in axes]

    def _further(self, at: _At, index: Value, elements: int = 1) -> _At:
        """The same for elements further on, of source and workspace both."""
        return self._moved(at, index, (elements * self.e, self.a))

    def _row(self, at: _At, dst: Value, z: Value, y: Value, run: Cover) -> None:
        """A row: pixel by pixel; where rows repeat themselves, in vectors of several."""
        b, inner = self.b, self.w.inner
        (aside,) = self._asides(self.w)

        def pixel(x: Value, given: list[Value]) -> list[Value]:
            to, here = b.gep(dst, x, self.w.dst), _At(at.src, b.gep(at.aside, x, aside))

            def chunk(k: Value, given: list[Value]) -> list[Value]:
                skip = constant(I64, 0)
                if run.times > 1:
                    skip = b.smin(b.mul(k, run.chunk), self.block.length - run.chunk)
                mine = self._further(here, skip)
                first = self._first(self.w, x)
                found = self._found(mine, z, y, first, run.lanes, len(run.offsets), self._along(x, run))
                for offset, value, tap in zip(run.offsets, *found, strict=True):
                    self._store(b.gep(b.gep(to, skip, self.f), offset * self.f), value)
                    self._keep(b.gep(mine.aside, offset * self.a), tap)
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
            pixel = b.add(b.mul(first, period), inner.first)
            to, aside = b.gep(dst, pixel, self.f), b.gep(at.aside, pixel, *self._asides(self.w))
            here = self._further(at, first, inner.shift)
            if self.made.largest:
                here = here._replace(aside=aside)
            many = len(turns.offsets) * period
            along = self._written_out(inner, turns)
            firsts = [row[0][1] for row in inner.rows if row]
            values, taps = self._found(here, z, y, firsts, turns.lanes, many, along)
            for j, offset in enumerate(turns.offsets):
                mine = slice(j * period, (j + 1) * period)
                for p, value in enumerate(self._interleaved(values[mine])):
                    self._store(b.gep(to, (offset * period + p * turns.lanes) * self.f), value)
                for p, tap in enumerate(self._interleaved(taps[mine]) if self.made.largest else ()):
                    self._keep(b.gep(aside, (offset * period + p * turns.lanes) * self.a), tap)
            return given

        b.repeat(0, turns.times, 1, [], chunk)

    def _interleaved(self, parts: Sequence[Value | None]) -> list[Value]:
        """Element by element of some vectors in turn, as many vectors again."""
        vectors = [part for part in parts if part is not None]
        period, lanes = len(vectors), vectors[0].type.count
        if period == 1:
            return vectors
        room = 1 << (period - 1).bit_length()
        whole = join(self.b, [*vectors, *vectors[: room - period]])
        places = [k % period * lanes + k // period for k in range(period * lanes)]
        return [self.b.shuffle(whole, places[p * lanes : (p + 1) * lanes]) for p in range(period)]

    # -- sums, or the largest -------------------------------------------------------------------------------

    def _found(
        self,
        at: _At,
        z: Value,
        y: Value,
        first: Value | Sequence[float] | None,
        lanes: int,
        many: int,
        along: Turn,
    ) -> tuple[list[Value], list[Value | None]]:
        """What ``along`` finds in a row, over planes and rows; and the taps of the largest.

        A maximum begins with the lowest number, as if the first tap had it: where nothing is larger, the
        first one has won.
        """
        start = [self.v.constant(0.0, lanes)] * many
        if self.made.largest:
            low = self.v.constant(self.v.nearest(-inf), lanes)
            before = self._joint(self._first(self.d, z), self._first(self.h, y)) or constant(I32, 0)
            each = [constant(I32, int(n)) for n in first] if isinstance(first, list) else [first]
            taps = [self._spread(self._joint(before, one), lanes) for one in each]  # type: ignore[arg-type]
            start = [*[low] * many, *(taps[k % len(taps)] for k in range(many))]

        def line(here: _At, number: Value | None, given: list[Value]) -> list[Value]:
            return self._over(self.h, y, here, number, given, along, start)

        found = self._over(self.d, z, at, None, start, line, start)
        return found[:many], [*found[many:], *[None] * (2 * many - len(found))]

    def _first(self, axis: Band, index: Value) -> Value | None:
        """The tap that comes first in a row; None where it is 0 anyway."""
        if axis.single or not self.made.largest:
            return None
        b = self.b
        head = b.gep(b.gep(self.table, 4 * axis.table), index, 4)
        entry = b.gep(self._entries_of(axis), b.resize(b.load(I32, head), 64), 8)
        return b.load(I32, b.gep(entry, 4))

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

    def _entries_of(self, axis: Band) -> Value:
        """Where the places and numbers of an axis begin."""
        return self.b.gep(self.table, 4 * (axis.table + axis.out + 1))

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
        entries = self._entries_of(axis)
        steps = axis.src, 0 if self.made.largest else axis.aside

        def turn(i: Value, given: list[Value]) -> list[Value]:
            entry = b.gep(entries, i, 8)
            place = b.resize(b.load(I32, entry), 64)
            number = b.load(I32 if self.a else FLOAT, b.gep(entry, 4))
            return body(self._moved(at, place, steps), number, given)

        return b.repeat(first, end, 1, given, turn)

    def _joint(self, one: Value | None, two: Value | None) -> Value | None:
        """The number of a tap from those of two axes."""
        return one if two is None else two if one is None else self.b.add(one, two)

    def _along(self, x: Value, run: Cover) -> Turn:
        """What is found in a row for one pixel, in vectors of the run."""

        def along(at: _At, number: Value | None, given: list[Value]) -> list[Value]:
            def turn(here: _At, value: Value, given: list[Value]) -> list[Value]:
                if not self.w.weighted:
                    tap = self._joint(number, value) if self.a else None
                    return self._with(
                        given, [self._loaded(here, k, run.lanes, tap) for k in run.offsets], tap
                    )
                loaded = [self._loaded(here, k, run.lanes, None) for k in run.offsets]
                weights = self.b.splat(value, run.lanes)
                return [self.b.fmuladd(one, weights, s) for s, one in zip(given, loaded, strict=True)]

            if self.w.single:
                loaded = [self._loaded(at, k, run.lanes, number) for k in run.offsets]
                return self._with(given, loaded, number)
            return self._entries(self.w, x, at, given, turn)

        return along

    def _written_out(self, inner: Inner, turns: Cover) -> Turn:
        """What is found in a row for pixels whose rows repeat themselves."""
        b, lanes, period = self.b, turns.lanes, len(inner.rows)

        def along(at: _At, number: Value | None, given: list[Value]) -> list[Value]:
            loaded: dict[int, Value] = {}
            many, out = len(turns.offsets) * period, list(given)
            for k, (offset, row) in enumerate(product(turns.offsets, inner.rows)):
                for place, value in row:
                    where = offset * inner.shift + place
                    tap = self._joint(number, constant(I32, int(value))) if self.a else None
                    if where not in loaded or (self.a and not self.made.largest):
                        loaded[where] = self._loaded(at, where, lanes, tap, inner.shift)
                    if self.a or value == 1:
                        out[k::many] = self._with(out[k::many], [loaded[where]], tap)
                        continue
                    weights = self.v.constant(float(np.float32(value)), lanes)
                    out[k] = b.fmuladd(loaded[where], weights, out[k])
            return out

        return along

    def _with(self, given: list[Value], loaded: list[Value], tap: Value | None) -> list[Value]:
        """Sums with further elements; or the largest so far and their taps, with one of a further tap."""
        b = self.b
        if self.made.moves:
            return loaded
        if not self.made.largest:
            return [b.fadd(s, one) for s, one in zip(given, loaded, strict=True)]
        values, taps = [], []
        for best, old, one in zip(given[: len(loaded)], given[len(loaded) :], loaded, strict=True):
            if self.v.whole:
                better = b.icmp("sgt" if self.made.src.is_signed else "ugt", one, best)
            else:  # a NaN is more than numbers, and the first one stays
                better = b.and_(b.fcmp("ugt", one, best), b.fcmp("ord", best, best))
            values.append(b.select(better, one, best))
            taps.append(b.select(better, self._spread(tap, one.type.count), old))
        return [*values, *taps]

    # -- elements -------------------------------------------------------------------------------------------

    def _moved(self, at: _At, index: Value, steps: tuple[int, int]) -> _At:
        b = self.b
        return _At(b.gep(at.src, index, steps[0]), b.gep(at.aside, index, steps[1]) if self.a else at.aside)

    def _loaded(self, at: _At, element: int, count: int, tap: Value | None, shift: int = 1) -> Value:
        """Elements ``shift`` apart; zeros where a workspace that is read has another tap than this."""
        found = self._spaced(at.src, element, count, shift, self.e, self.v.load)
        if not self.a or self.made.largest:
            return found
        b, kind = self.b, integer(8 * self.a)

        def load(pointer: Value, count: int) -> Value:
            return load_pieces(b, vector(count, kind), pointer, pieces_of(0, count, 0, self.a))

        taps = self._spaced(at.aside, element, count, shift, self.a, load)
        return b.select(b.icmp("eq", taps, self._spread(tap, count)), found, 0.0)

    def _spaced(
        self,
        pointer: Value,
        element: int,
        count: int,
        shift: int,
        size: int,
        load: Callable[[Value, int], Value],
    ) -> Value:
        """Neighbouring elements, or every other one of two vectors; nothing behind the last is read."""
        low = load(self.b.gep(pointer, element * size), count)
        if shift == 1 or count == 1:
            return low
        high = load(self.b.gep(pointer, (element + count - 1) * size), count)
        return self.b.shuffle(low, [k if k < count else k + 1 for k in range(0, 2 * count, 2)], high)

    def _spread(self, tap: Value | None, count: int) -> Value:
        """The number of a tap in all lanes, as the workspace has it."""
        return self.b.splat(self.b.resize(constant(I32, 0) if tap is None else tap, 8 * self.a), count)

    def _store(self, pointer: Value, value: Value) -> None:
        for function in self.made.post_ops:
            value = function.emit(self.b, value)
        self.v.store(pointer, value)

    def _keep(self, pointer: Value, tap: Value | None) -> None:
        """Write taps to the workspace, if that is what is wanted."""
        if tap is not None and self.made.largest:
            store_pieces(self.b, tap, pointer, pieces_of(0, tap.type.count, 0, self.a))
