"""Resampling by the nearest element: bytes of a row of the source, moved to all rows that are made of it.

Nothing is computed, so this is a copy, and should take as long as one. Which pixels of a row are repeated is
the same in all rows. Neighbouring rows of results that are made of one row are written together: what is
loaded and picked for one of them is stored to all ::

    twice the size, nchw        a b c d ...           one row of the source
    lanes of 16 bytes           a a b b c c d d ...   two loads, one shuffle, for 32 bytes
                                ->  two stores        to two rows

Where pixels are small (``nchw``; a few channels of ``nhwc``; 8 channels of bytes), a lane of 16 bytes of
results is made of 16 bytes at most of the source, wherever these begin. With AVX2 a register has two of them,
and one ``vpshufb`` puts bytes in order, whatever the size of a pixel and the factor: the picks are a table.
Larger pixels are moved as they are, each from the place that the table names.

Rows that registers don't hold are written one after the other: what goes to memory is one stream then, and
several short ones take twice as long.

Rows that are shorter than a register are taken together, where a whole picture is one piece of memory.

Traps: a lane is loaded from 16 bytes before the end of a row at most, so that nothing behind the source is
read; a row shorter than that has no lanes. Where a picture becomes smaller, 16 bytes of results are more than
16 of the source: single elements beside each other are left to :mod:`~.bands` then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from relayout.ir.builder import Function, Operand, table
from relayout.ir.kernel import kernel
from relayout.ir.types import I8, I64, PTR, Value, constant, vector
from relayout.ir.vectors import join_lanes, picked_in_lanes, pieces_of, store_pieces
from relayout.kernels.reduce.axis import Axis
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.space import cover, last_axes
from relayout.kernels.reduce.steps import Step, Turns, in_steps, starts, steps_table
from relayout.layout.descriptor import MemoryDesc
from relayout.loops.nest import Nest
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "Nearest", "module", "moves", "planned", "suits"]

ENTRY = "nearest"
LINES, STEPS = "lines", "steps"  # the names of tables
LANE = 16  # bytes
REGISTER = 2 * LANE  # bytes, with AVX2
MOST_STEPS = 1024  # of a row, in registers
MOST_LINES = 1 << 11  # rows of the source, and pixels of a row, which are entries of tables
MOST_BLOCKS = 4  # each of which has code of its own
HELD = 8  # registers that are stored to all rows
LANES = Turns(HELD, HELD // 2, 16)
LEAST_PIXEL = 8  # bytes of a pixel that is worth being moved by itself
ENOUGH = 1 << 12  # bytes of a task: to find where it begins takes as long as to copy some hundred
FEW_ROWS = 4  # made of one row, which are written out


@dataclass(frozen=True)
class Nearest:
    """What is moved: the numbers without formats."""

    size: int
    """Bytes of an element."""
    axes: tuple[Axis, Axis, Axis]
    """Depth, height and width."""
    places: tuple[tuple[int, ...], ...]
    """For each of these, for each result which element it is."""
    blocks: tuple[Nest, ...]
    """Images and channels: source and destination, in bytes."""

    def pixel(self, block: Nest) -> int:
        """Bytes of a pixel in a block."""
        return block.length * self.size


class _Line(NamedTuple):
    """Rows of results that are made of one row of the source."""

    src: int
    dst: int
    """Where these begin, in bytes."""
    many: int


class _Row(NamedTuple):
    """A row of all lines."""

    size: int
    """Pixels of the source."""
    places: tuple[int, ...]
    """For each pixel of results which one it is."""
    lines: tuple[_Line, ...]


def moves(src: MemoryDesc, dst: MemoryDesc, rows: Sequence[Sequence[Sequence[tuple[int, float]]]]) -> bool:
    """Whether every element of the destination is one of the source, bit for bit."""
    return src.dtype is dst.dtype and all(
        len(row) == 1 and row[0][1] == 1 for several in rows for row in several
    )


def planned(
    src: MemoryDesc, dst: MemoryDesc, rows: Sequence[Sequence[Sequence[tuple[int, float]]]]
) -> Nearest | None:
    """The numbers of two descriptors, and of the rows of a matrix for each of the last axes.

    None where an element is not just one of the source, or a spatial axis is cut into digits or fused with
    others.

    >>> image, larger = (MemoryDesc((1, 8, n, n), "u8", "nChw8c") for n in (2, 4))
    >>> twice = [((k // 2, 1.0),) for k in range(4)]
    >>> planned(image, larger, [twice, twice]).places
    ((0,), (0, 0, 1, 1), (0, 0, 1, 1))
    """
    found = last_axes((src, dst), len(rows)) if moves(src, dst, rows) else None
    if found is None:
        return None
    steps, blocks = found
    several = [tuple(row[0][0] for row in one) for one in rows]
    places = [(0,)] * (3 - len(rows)) + several
    axes = [Axis(1, 1)] * (3 - len(rows)) + [
        Axis(size, len(one), src=step[0], dst=step[1])
        for size, one, step in zip(src.dims[-len(rows) :], several, steps, strict=True)
    ]
    return Nearest(src.dtype.bits // 8, (axes[0], axes[1], axes[2]), tuple(places), blocks)


def suits(made: Nearest, machine: Machine) -> bool:
    """Whether the rows of most elements are moved in lanes, or pixel by pixel where others do that, too."""
    if not 0 < len(made.blocks) <= MOST_BLOCKS or not all(made.places):
        return False
    most = max(made.blocks, key=lambda block: block.size)
    pixel, x = made.pixel(most), made.axes[2]
    whole = pixel >= LEAST_PIXEL or (most.length > 1 and (x.src, x.dst) == (pixel, pixel))
    if not whole and not _lanes(made, most, _row(made, most), machine):
        return False
    rows = [_row(made, block) for block in made.blocks]
    return all(len(row.lines) <= MOST_LINES and len(row.places) <= MOST_STEPS * REGISTER for row in rows)


def _row(made: Nearest, block: Nest) -> _Row:
    """The rows of a block; a picture is one, where its rows are short and follow each other."""
    (d, h, w), (planes, rows, columns) = made.axes, made.places
    each = made.pixel(block)
    follows = (w.src, w.dst, h.src, h.dst) == (each, each, w.size * each, w.out * each)
    if follows and (w.out * each < REGISTER or w.size * each < LANE):
        places = tuple(row * w.size + place for row in rows for place in columns)
        lines = [_Line(place * d.src, z * d.dst, 1) for z, place in enumerate(planes)]
        return _Row(h.size * w.size, places, tuple(lines))
    lines, y = [], 0
    together = [(place, len(list(some))) for place, some in groupby(rows)]
    for place, many in together:
        lines += [
            _Line(plane * d.src + place * h.src, z * d.dst + y * h.dst, many)
            for z, plane in enumerate(planes)
        ]
        y += many
    return _Row(w.size, columns, tuple(sorted(lines, key=lambda line: line.dst)))


def _lanes(made: Nearest, block: Nest, row: _Row, machine: Machine) -> list[Step]:
    """The steps of a row in lanes; none where there are no such instructions, or places lie too far apart."""
    each, w = made.pixel(block), made.axes[2]
    size, out = row.size * each, len(row.places) * each
    if not machine.is_avx2 or (w.src, w.dst) != (each, each) or each >= LANE or size < LANE:
        return []
    if out > MOST_STEPS * REGISTER:
        return []
    found = []
    for first in starts(out, REGISTER, LANES):
        bases, picks = [], []
        for start in (first, first + LANE):
            places = [row.places[k // each] * each + k % each for k in range(start, min(start + LANE, out))]
            base = max(0, min(min(places, default=0), size - LANE))
            if any(place - base >= LANE for place in places):
                return []
            bases.append(base)
            picks += [place - base for place in places] + [0] * (LANE - len(places))
        found.append(Step(first, min(REGISTER, out - first), tuple(bases), bytes(picks)))
    return found


def _pixels(made: Nearest, block: Nest, row: _Row, turns: Turns) -> list[Step]:
    """The steps of a row pixel by pixel."""
    w, each = made.axes[2], made.pixel(block)
    order = starts(len(row.places), 1, turns)
    return [Step(k * w.dst, each, (row.places[k] * w.src,), b"") for k in order]


def module(made: Nearest, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    f, texts = kernel(ENTRY, machine), []
    for k, block in enumerate(made.blocks):
        part = _Block(f, made, block, str(k))
        texts += part.tables
        part.write()
    return "".join([*texts, f.text()])


class _Block:
    """Writes the loops of one block."""

    def __init__(self, b: Function, made: Nearest, block: Nest, name: str) -> None:
        self.b, self.made, self.block, self.name = b, made, block, name
        self.row = _row(made, block)
        self.run = cover(made.pixel(block), b.machine.vector, HELD)
        rows = {line.many for line in self.row.lines}
        self.known = min(rows) if len(rows) == 1 and min(rows) <= FEW_ROWS else 0
        """How many rows are made of one, where these are few and everywhere as many."""
        self.turns = LANES
        self.steps = _lanes(made, block, self.row, b.machine)
        self.in_lanes = bool(self.steps)
        if not self.in_lanes:
            several = max(1, HELD // len(self.run.offsets))
            self.turns = Turns(several, min(several, len(self.row.places)))
            self.steps = _pixels(made, block, self.row, self.turns)
        self.tables = [
            table(f"{LINES}{name}", [number for line in self.row.lines for number in line]),
            steps_table(f"{STEPS}{name}", self.steps),
        ]

    def write(self) -> None:
        """All tasks: some lines each."""
        b, block, lines = self.b, self.block, self.row.lines
        rows = sum(line.many for line in lines) * len(self.row.places) * self.made.pixel(block)
        group = max(1, min(len(lines), ENOUGH * len(lines) // rows))

        def task(src: Value, dst: Value, mine: Value) -> None:
            first = b.mul(mine, group)
            b.loop(first, b.smin(b.add(first, group), len(lines)), 1, lambda k: self._line(src, dst, k))

        in_tasks(b, block.starts, block.around, task, -(-len(lines) // group))

    def _line(self, src: Value, dst: Value, number: Value) -> None:
        """All rows of results that are made of one row."""
        b, run = self.b, self.run
        entry = b.gep(Value(f"@{LINES}{self.name}", PTR), number, 24)
        at, to = (b.gep(side, b.load(I64, b.gep(entry, 8 * k))) for k, side in enumerate((src, dst)))
        many = b.load(I64, b.gep(entry, 16))
        if self.in_lanes or run.times == 1:
            self._steps(at, to, many)
            return

        def chunk(k: Value) -> None:
            skip = b.smin(b.mul(k, run.chunk), self.made.pixel(self.block) - run.chunk)
            self._steps(b.gep(at, skip), b.gep(to, skip), many)

        b.loop(0, run.times, 1, chunk)

    def _steps(self, src: Value, dst: Value, many: Value) -> None:
        """The same, of a part of large pixels."""
        if self.in_lanes and len(self.steps) > self.turns.held:  # one row after the other
            self.b.loop(0, many, 1, lambda k: self._rows(src, self.b.gep(dst, k, self.made.axes[1].dst), 1))
            return
        self._rows(src, dst, self.known or many)

    def _rows(self, src: Value, dst: Value, many: Value | int) -> None:
        """So many rows, which are made of one."""
        b = self.b

        def use(first: Operand, found: list[list[Value]], begin: list[int], size: int) -> None:
            at, step = b.gep(dst, first), self.made.axes[1].dst

            def row(k: Value) -> None:
                to = b.gep(at, k, step)
                for some, start in zip(found, begin, strict=True):
                    self._store(b.gep(to, start), some, size)

            if isinstance(many, Value):
                b.loop(0, many, 1, row)
                return
            for k in range(many):
                row(constant(I64, k))

        make = self._shuffled if self.in_lanes else self._moved
        in_steps(
            b, f"{STEPS}{self.name}", self.steps, self.turns, lambda at, bases: make(src, at, bases), use
        )

    def _shuffled(self, src: Value, entry: Value, bases: Sequence[Operand]) -> list[Value]:
        """A register of results."""
        b = self.b
        lanes = [b.load(vector(LANE, I8), b.gep(src, base), 1) for base in bases]
        return [picked_in_lanes(b, join_lanes(b, lanes), b.load(vector(REGISTER, I8), entry, REGISTER))]

    def _moved(self, src: Value, entry: Value, bases: Sequence[Operand]) -> list[Value]:
        """A pixel, or a part of it."""
        b, run = self.b, self.run
        at = b.gep(src, bases[0])
        return [b.load(vector(run.lanes, I8), b.gep(at, offset), 1) for offset in run.offsets]

    def _store(self, to: Value, found: list[Value], size: int) -> None:
        """What is kept of a step."""
        if self.in_lanes:
            store_pieces(self.b, found[0], to, pieces_of(0, size, 0, 1), 1)
            return
        for value, offset in zip(found, self.run.offsets, strict=True):
            self.b.store(value, self.b.gep(to, offset), 1)
