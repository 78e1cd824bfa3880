"""The second step of a linear resampling in f32, along rows whose neighbours are pixels: with AVX2.

Columns of a row of results are f32 in the L1 cache, one after the other (:mod:`~.linear`). Each result lies
between two of them, in a place of its own. Eight results that are neighbours are between eight columns or
fewer, as long as a row does not become shorter, so that one permutation of a register brings the first of the
two for all of them, and another the second ::

    columns                 a b c d e f g h ...
    first, twice the size   a a b b c c d d ...        one load and vpermps, as the table says
    second                  a b b c c d d e ...        the same, from where these begin
    weights                 tables, one for each

bf16 are rounded as words of two, so that results of even number come first and then those of odd number
(:class:`~relayout.ir.lanes.Lanes`). A table puts them so for nothing where rows become at least twice as
long: eight of even number are between eight columns, too, if each of the two neighbours has its own register.

Trap: a register is loaded from where the first place is, and may reach behind the columns: there is room.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.dtypes import dtype
from relayout.ir.builder import Function, Operand
from relayout.ir.lanes import Lanes
from relayout.ir.types import FLOAT, I32, I64, PTR, Value, vector
from relayout.ir.vectors import join
from relayout.kernels.reduce.blocks import in_tasks
from relayout.kernels.reduce.steps import Step, Turns, in_steps, starts
from relayout.loops.nest import Nest
from relayout.targets.machine import LINE

if TYPE_CHECKING:
    from relayout.kernels.reduce.linear import Between, Linear

__all__ = ["Rows", "steps"]

LANES = 8  # f32 of a register
RESULTS = 2 * LANES  # of a step
BEHIND = LANES  # f32 behind the columns that may be read
TURNS = Turns(1, 1, 8)
TOGETHER = 4  # rows of results, whose columns are made first
ENTRY = 24  # bytes of an entry of the table of rows: two places and two weights
F32 = dtype("f32")
MOST_STEPS = 128  # of a row: 32 KiB of tables
PERMUTED = "llvm.x86.avx2.permps"
F32S, WORDS = vector(LANES, FLOAT), vector(LANES, I32)


def steps(columns: Sequence[Between], each: int, size: int, pairs: bool) -> list[Step]:
    """The steps of a row; none where eight results are made of more than eight columns.

    Parameters
    ----------
    columns : sequence
        For each pixel of results two of columns, and their weights.
    each : int
        Channels of a pixel.
    size : int
        Bytes of a result.
    pairs : bool
        Whether those of even number come first.

    >>> twice = [(max(0, (k - 1) // 2), 0.25, min(15, (k + 1) // 2), 0.75) for k in range(32)]
    >>> [(step.first, step.bases) for step in steps(twice, 1, 2, True)]
    [(0, (0, 0, 0, 4)), (32, (28, 32, 32, 36))]
    >>> steps(twice[::2], 1, 2, True)
    []
    """
    out = len(columns) * each
    if out > MOST_STEPS * RESULTS:
        return []
    found = []
    for first in starts(out, RESULTS, TURNS):
        numbers = [min(first + k, out - 1) for k in range(RESULTS)]
        order = [*numbers[::2], *numbers[1::2]] if pairs else numbers
        bases: list[int] = []
        data = b""
        for register in (order[:LANES], order[LANES:]):
            between = [(columns[k // each], k % each) for k in register]
            for side in (0, 2):
                places = [int(pixel[side]) * each + channel for pixel, channel in between]
                base = min(places)
                if max(places) - base >= LANES:
                    return []
                bases.append(4 * base)
                data += struct.pack(f"<{LANES}i", *(place - base for place in places))
            for side in (1, 3):
                data += struct.pack(f"<{LANES}f", *(pixel[side] for pixel, _ in between))
        found.append(Step(first * size, min(RESULTS, out - first), tuple(bases), data))
    return found


class Rows:
    """Writes the loops of one block: pictures, and some rows of results at a time: first their columns.

    Parameters
    ----------
    b : Function
        What is being written.
    made : Linear
        What is computed.
    block : Nest
        Images and channels.
    columns : str
        The name of the table of steps.
    steps : list of Step
        Those of a row.
    pairs : bool
        Whether results of even number come first.
    """

    def __init__(
        self, b: Function, made: Linear, block: Nest, columns: str, steps: list[Step], pairs: bool
    ) -> None:
        self.b, self.made, self.block, self.columns, self.steps = b, made, block, columns, steps
        self.into, self.out = Lanes(b, made.src, F32), Lanes(b, F32, made.dst, pairs=pairs)
        self.size = made.width.size * block.length
        self.many = min(len(made.rows), TOGETHER)
        self.room = b.alloca(4 * (self.size + BEHIND) * self.many, LINE)

    def write(self, rows: str) -> None:
        """All tasks; ``rows`` is the name of the table of rows."""
        b, made, block = self.b, self.made, self.block

        def task(src: Value, dst: Value, group: Value) -> None:
            first = b.smin(b.mul(group, self.many), len(made.rows) - self.many)
            each = 4 * (self.size + BEHIND)

            def down(row: Value) -> None:
                entry = b.gep(Value(f"@{rows}", PTR), b.add(first, row), ENTRY)
                self._down(src, entry, b.gep(self.room, row, each))

            def along(row: Value) -> None:
                to = b.gep(dst, b.add(first, row), made.height.dst)
                self._along(to, b.gep(self.room, row, each))

            b.loop(0, self.many, 1, down)
            b.loop(0, self.many, 1, along)

        in_tasks(b, block.starts, block.around, task, -(-len(made.rows) // self.many))

    def _down(self, src: Value, entry: Value, room: Value) -> None:
        """The columns of a row of results, which an entry of a table says."""
        b, size = self.b, self.made.src.bits // 8
        rows = [b.gep(src, b.load(I64, b.gep(entry, 8 * k))) for k in (0, 1)]
        lanes = min(RESULTS, 1 << (self.size.bit_length() - 1))
        first, second = (b.splat(b.load(FLOAT, b.gep(entry, 16 + 4 * k)), lanes) for k in (0, 1))

        def some(k: Value) -> None:
            at = b.smin(k, self.size - lanes)
            low, high = (self.into.load(b.gep(row, at, size), lanes) for row in rows)
            b.store(b.fmuladd(high, second, b.fmul(low, first)), b.gep(room, at, 4), 4)

        b.loop(0, self.size, lanes, some)

    def _along(self, dst: Value, room: Value) -> None:
        """A row of results."""
        b = self.b

        def make(entry: Value, bases: Sequence[Operand]) -> Value:
            return self._made(room, entry, bases)

        def use(skip: Operand, found: list[Value], starts: list[int], many: int) -> None:
            for y, start in zip(found, starts, strict=True):
                self.out.store(b.gep(b.gep(dst, skip), start), y, many)

        in_steps(b, self.columns, self.steps, TURNS, make, use)

    def _made(self, room: Value, entry: Value, bases: Sequence[Operand]) -> Value:
        """The results of a step, in the order of the table."""
        b, found = self.b, []
        for register in (0, 1):
            at = b.gep(entry, 128 * register)
            picks = [b.load(WORDS, b.gep(at, 32 * side), 32) for side in (0, 1)]
            first, second = (b.load(F32S, b.gep(at, 64 + 32 * side), 32) for side in (0, 1))
            low, high = (
                b.call_value(F32S, PERMUTED, b.load(F32S, b.gep(room, base), 4), pick)
                for base, pick in zip(bases[2 * register : 2 * register + 2], picks, strict=True)
            )
            found.append(b.fmuladd(high, second, b.fmul(low, first)))
        return self._ended(join(b, found))

    def _ended(self, y: Value) -> Value:
        for function in self.made.post_ops:
            y = function.emit(self.b, y)
        return y
