"""Linear resampling in f32 in two steps: down the columns, then along the rows.

Between four neighbours there are four weights, but rows are interpolated once for all pixels that share
them::

    twice the size        a result reads 4 elements           2 columns, and half a column is made for it
                          4 conversions, 6 products           1 conversion, 3 products

The columns of one row of results stay in the caches as f32, at most 64 KiB of them. Then each pixel is
between two of them; its channels are neighbours, as those of ``nhwc`` are, and the lanes of vectors. With
AVX2 rows of results are made pair by pair (:mod:`~.linear_pairs`), and where pixels are neighbours, what a
vector of results lies between is permuted (:mod:`~.linear_pixels`).

Where an element is taken as it is, it is added to itself with weights of a half: that is exact, but for the
last bit of subnormal numbers, and what is infinite stays so. Bytes whose weights are integers are resampled
by :mod:`relayout.kernels.reduce.separable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from relayout.dtypes import DType, dtype
from relayout.ir.builder import Function as Text
from relayout.ir.kernel import digits, kernel, tasks
from relayout.ir.lanes import Lanes
from relayout.ir.types import FLOAT, Value, constant
from relayout.kernels.reduce import linear_pixels
from relayout.kernels.reduce.axis import Axis
from relayout.kernels.reduce.linear_channels import Channels, between_of
from relayout.kernels.reduce.linear_pairs import LANES, Pairs, between, doubled, together
from relayout.kernels.reduce.steps import Step, steps_table
from relayout.kernels.reduce.window import Window
from relayout.loops.nest import Loop, Nest
from relayout.ops.functions import Function
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "Linear", "module", "planned"]

ENTRY = "linear"
ROWS, COLUMNS = "rows", "columns"  # the names of tables
ENTRIES = "{ i64, i64, float, float }"
MOST_COLUMNS = 1 << 14  # of a row: 64 KiB of the stack
MOST_RESULTS = 1 << 11  # rows or pixels of results, each of which is an entry of a table
LEAST_CHANNELS = 8  # that are neighbours
MOST_BLOCKS = 4  # each of which has columns of its own in the stack
PARTS = 1, 2, 4  # of eight results along a row
REGISTERS = 4  # of f32 in a vector: bytes are packed four registers at a time
F32 = dtype("f32")

Between = tuple[int, float, int, float]
"""Two places and their weights."""


class _Pixels(NamedTuple):
    """A way along rows whose neighbours are pixels."""

    steps: list[Step]
    """None: rows become twice as long."""
    pairs: bool
    """Whether results of even number come first."""
    parts: int
    """Of eight results, each of which has columns of its own."""


@dataclass(frozen=True)
class Linear:
    """What is computed: the numbers without formats."""

    src: DType
    dst: DType
    height: Axis
    width: Axis
    blocks: tuple[Nest, ...]
    """Images and channels: source and destination, in bytes."""
    rows: tuple[Between, ...]
    columns: tuple[Between, ...]
    post_ops: tuple[Function, ...] = ()

    @property
    def stays_near(self) -> bool:
        """Whether results are known to be small numbers: those of bytes with weights of no more than 1."""
        small = all(
            abs(weight) <= 1
            for several in (self.rows, self.columns)
            for row in several
            for weight in row[1::2]
        )
        return small and self.src.bits == 8 and not (self.src.is_float or self.post_ops)


def planned(
    window: Window,
    rows: Sequence[Sequence[tuple[int, float]]],
    columns: Sequence[Sequence[tuple[int, float]]],
    machine: Machine,
) -> Linear | None:
    """The two steps of a resampling; None where they don't pay, or rows are not contiguous.

    They pay where columns are shared: where a row of results has twice as many elements, or half as many of
    a narrow type, which would be converted for each of them.

    Parameters
    ----------
    window : Window
        Sizes and places of both axes, blocks and data types.
    rows, columns : sequence
        For each result along an axis the places of one or two elements, and their weights.
    machine : Machine
        For whom: see :mod:`~.linear_pixels`.
    """
    depth, height, width = window.axes
    if depth.size * depth.out != 1 or not (rows and columns and 0 < len(window.blocks) <= MOST_BLOCKS):
        return None
    if max(len(rows), len(columns)) > MOST_RESULTS:
        return None
    size = window.src.bits // 8
    down, along = (tuple(_between(one) for one in several) for several in (rows, columns))
    made = Linear(window.src, window.dst, height, width, window.blocks, down, along, window.post_ops)
    for block in window.blocks:
        each = block.length
        if width.src != each * size or width.size * each > MOST_COLUMNS:
            return None
        if each < LEAST_CHANNELS:
            if not (machine.is_avx2 and _in_pixels(made, block)):
                return None
        elif not _shares(made, machine):
            return None
    return made


def _shares(made: Linear, machine: Machine) -> bool:
    """Whether columns of channels are shared by enough results."""
    size, out = made.width.size, made.width.out
    if made.src.bits < F32.bits:
        return 2 * out >= size
    return out >= size * (1 if machine.is_avx2 else 2)


def _in_pixels(made: Linear, block: Nest) -> _Pixels | None:
    """How results along a row are made whose neighbours are pixels; None where there is no way."""
    each, size, columns, x = block.length, made.dst.bits // 8, made.columns, made.width
    halves = each == 1 and made.src is F32 and 2 * x.out == x.size  # as fast by bands, and faster in memory
    if x.dst != each * size or halves:
        return None
    if each in (1, 2, 4) and x.size * each >= LANES and columns == doubled(x.size):
        return _Pixels([], False, 1)
    ways = [(True, 1)] if made.dst.name == "bf16" else []
    for pairs, parts in (*ways, *((False, parts) for parts in PARTS)):
        steps = linear_pixels.steps(columns, each, size, pairs, parts)
        if steps:
            return _Pixels(steps, pairs, parts)
    return None


def _between(row: Sequence[tuple[int, float]]) -> Between:
    """One or two neighbours as two.

    >>> _between([(3, 1.0)]), _between([(3, 0.25), (4, 0.75)])
    ((3, 0.5, 3, 0.5), (3, 0.25, 4, 0.75))
    """
    if len(row) == 1:
        [(place, weight)] = row
        return place, weight / 2, place, weight / 2
    (one, first), (two, second) = row
    return one, first, two, second


def module(made: Linear, machine: Machine) -> str:
    """The text of the kernel: the function :data:`ENTRY`, and its tables."""
    if not machine.is_avx2:
        return _text(made, machine)
    text, entries = between(ROWS, made.rows, made.height.src, together(made))
    texts, f = [text], kernel(ENTRY, machine)
    for k, block in enumerate(made.blocks):
        columns = f"{COLUMNS}{k}"
        found = _in_pixels(made, block) if block.length < LEAST_CHANNELS else None
        if found is None:
            texts.append(_table(columns, made.columns, block.length * F32.bits // 8))
            pairs: Pairs = Channels(f, made, block, columns)
        elif found.steps:
            texts.append(steps_table(columns, found.steps))
            pairs = linear_pixels.Permuted(f, made, block, columns, *found)
        else:
            pairs = linear_pixels.Doubled(f, made, block)
        pairs.write(ROWS, entries)
    return "".join([*texts, f.text()])


def _text(made: Linear, machine: Machine) -> str:
    """The same row by row, for all processors."""
    texts, f = [_table(ROWS, made.rows, made.height.src)], kernel(ENTRY, machine)
    for k, block in enumerate(made.blocks):
        columns = f"{COLUMNS}{k}"
        texts.append(_table(columns, made.columns, block.length * F32.bits // 8))
        _Block(f, made, block, columns).write()
    return "".join([*texts, f.text()])


def _table(name: str, several: Sequence[Between], step: int) -> str:
    """The text of a table: for each result two places in bytes, and two weights."""
    entries = []
    for one, first, two, second in several:
        places = f"i64 {one * step}, i64 {two * step}"
        weights = f"float {constant(FLOAT, first)}, float {constant(FLOAT, second)}"
        entries.append(f"{ENTRIES} {{ {places}, {weights} }}")
    whole = f"[{len(several)} x {ENTRIES}] [{', '.join(entries)}]"
    return f"@{name} = internal constant {whole}, align 8\n"


class _Block:
    """Writes the loops of one block."""

    def __init__(self, b: Text, made: Linear, block: Nest, columns: str) -> None:
        self.b, self.made, self.block, self.columns = b, made, block, columns
        self.into, self.out = Lanes(b, made.src, F32), Lanes(b, F32, made.dst)
        self.each = block.length
        self.size = made.width.size * self.each
        self.most = REGISTERS * self.into.most
        self.room = b.alloca(4 * self.size, LINE)

    def write(self) -> None:
        """All tasks: rows of results."""
        b, made, block = self.b, self.made, self.block
        around = [*block.around, Loop(len(made.rows), (0, made.height.dst))]
        order = sorted(range(len(around)), key=lambda k: -abs(around[k].dst))

        def task(number: Value) -> None:
            found = digits(b, number, [around[k].extent for k in order])
            src, dst = (b.gep(at, start) for at, start in zip(b.arguments[:2], block.starts, strict=True))
            for loop, k in zip((around[k] for k in order), found, strict=True):
                src, dst = b.gep(src, k, loop.src), b.gep(dst, k, loop.dst)
            self._down(src, found[order.index(len(around) - 1)])
            self._along(dst)

        tasks(b, prod(loop.extent for loop in around), task)

    def _down(self, src: Value, row: Value) -> None:
        """The columns of a row of results."""
        places, weights = between_of(self.b, ROWS, row)
        one, two = (self.b.gep(src, place) for place in places)
        self._between(self.into, one, two, weights, self.room, self.size, self.made.src.bits // 8, 4, ())

    def _along(self, dst: Value) -> None:
        """A row of results."""
        b, made = self.b, self.made

        def pixel(k: Value) -> None:
            places, weights = between_of(b, self.columns, k)
            one, two = (b.gep(self.room, place) for place in places)
            to = b.gep(dst, k, made.width.dst)
            self._between(self.out, one, two, weights, to, self.each, 4, made.dst.bits // 8, made.post_ops)

        b.loop(0, made.width.out, 1, pixel)

    def _between(
        self,
        v: Lanes,
        one: Value,
        two: Value,
        weights: Sequence[Value],
        to: Value,
        size: int,
        read: int,
        written: int,
        post_ops: Sequence[Function],
    ) -> None:
        """So many sums of two neighbours; ``read`` and ``written`` are bytes of an element."""
        b, lanes = self.b, min(self.most, 1 << (size - 1).bit_length())

        def turn(i: Value | int, valid: int) -> None:
            low, high = (v.load(b.gep(at, i, read), lanes, valid) for at in (one, two))
            first, second = (b.splat(weight, lanes) for weight in weights)
            y = b.fmuladd(high, second, b.fmul(low, first))
            for function in post_ops:
                y = function.emit(b, y)
            v.store(b.gep(to, i, written), y, valid)

        whole = size // lanes * lanes
        if whole:
            b.loop(0, whole, lanes, lambda i: turn(i, lanes))
        if size > whole:
            turn(whole, size - whole)
