"""The second step of a linear resampling in f32, along rows whose neighbours are pixels: with AVX2.

Columns of a row of results are f32 in the L1 cache, one after the other (:mod:`~.linear`). Each result lies
between two of them, in a place of its own. Eight results that are neighbours are between eight columns or
fewer, as long as a row does not become shorter, so that one permutation of a register brings the first of the
two for all of them, and another the second (:class:`Permuted`) ::

    columns                 a b c d e f g h ...
    first, twice the size   a a b b c c d d ...        one load and vpermps, as the table says
    second                  a b b c c d d e ...        the same, from where these begin
    weights                 tables, one for each

bf16 are rounded as words of two, so that results of even number come first and then those of odd number
(:class:`~relayout.ir.lanes.Lanes`). A table puts them so for nothing where rows become at least twice as
long: eight of even number are between eight columns, too, if each of the two neighbours has its own register.
Where rows become shorter, each half of eight results, or each quarter, has registers of its own: *parts*.

Of rows just twice as long weights are constants, and results around eight columns are eight in front of their
middles and eight behind them (:class:`Doubled`): no permutation, and none for bf16 at all.

Trap: a register is loaded from where the first place is, and may reach behind the columns: there is room.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.ir.builder import Function, Operand
from relayout.ir.types import FLOAT, I32, Value, vector
from relayout.ir.vectors import join
from relayout.kernels.reduce.linear_pairs import LANES, Pairs
from relayout.kernels.reduce.steps import Step, Turns, in_steps, starts
from relayout.loops.nest import Nest

if TYPE_CHECKING:
    from relayout.kernels.reduce.linear import Between, Linear

__all__ = ["Doubled", "Permuted", "steps"]

TURNS = Turns(1, 1, 16)
MOST_REGISTERS = 256  # of f32 of a row of results, and 32 KiB of tables
PERMUTED = "llvm.x86.avx2.permps"
F32S, WORDS = vector(LANES, FLOAT), vector(LANES, I32)


def steps(columns: Sequence[Between], each: int, size: int, pairs: bool, parts: int = 1) -> list[Step]:
    """The steps of a row; none where a part of eight results is made of more than eight columns.

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
    parts : int
        Of eight results: 1, 2 or 4, each of which has two registers of columns to be picked from.

    >>> twice = [(max(0, (k - 1) // 2), 0.25, min(15, (k + 1) // 2), 0.75) for k in range(32)]
    >>> [(step.first, step.bases) for step in steps(twice, 1, 2, True)]
    [(0, (0, 0, 0, 4)), (32, (28, 32, 32, 36))]
    >>> steps(twice[::2], 1, 2, True)
    []
    >>> half = [(2 * k, 0.5, 2 * k + 1, 0.5) for k in range(16)]
    >>> len(steps(half, 1, 2, False)), len(steps(half, 1, 2, False, 2))
    (0, 1)
    """
    out = len(columns) * each
    if out > MOST_REGISTERS * LANES:
        return []
    found = []
    results = LANES * (2 if size > 1 else 4)  # of a step: bytes are packed four registers at a time
    for first in starts(out, results, TURNS):
        numbers = [min(first + k, out - 1) for k in range(results)]
        order = [*numbers[::2], *numbers[1::2]] if pairs else numbers
        bases: list[int] = []
        data = b""
        for at in range(0, results, LANES):
            register = order[at : at + LANES]
            between = [(columns[k // each], k % each) for k in register]
            for side in (0, 2):
                places = [int(pixel[side]) * each + channel for pixel, channel in between]
                for part in range(parts):
                    mine = range(part * LANES // parts, (part + 1) * LANES // parts)
                    base = min(places[k] for k in mine)
                    if any(places[k] - base >= LANES for k in mine):
                        return []
                    bases.append(4 * base)
                    picks = (places[k] - base if k in mine else 0 for k in range(LANES))
                    data += struct.pack(f"<{LANES}i", *picks)
            for side in (1, 3):
                data += struct.pack(f"<{LANES}f", *(pixel[side] for pixel, _ in between))
        found.append(Step(first * size, min(results, out - first), tuple(bases), data))
    return found


class Permuted(Pairs):
    """Writes the loops of one block: results are picked out of columns as a table says.

    Parameters
    ----------
    b, made, block
        Those of :class:`~.linear_pairs.Pairs`.
    columns : str
        The name of the table of steps.
    steps : list of Step
        Those of a row.
    pairs : bool
        Whether results of even number come first.
    parts : int
        Of eight results.
    """

    def __init__(
        self, b: Function, made: Linear, block: Nest, columns: str, steps: list[Step], pairs: bool, parts: int
    ) -> None:
        super().__init__(b, made, block, False, pairs)
        self.columns, self.steps = columns, steps
        self.parts = parts

    def along(self, dst: Value, columns: Value) -> None:
        """A row of results."""
        b = self.b

        def make(entry: Value, bases: Sequence[Operand]) -> Value:
            return self._made(columns, entry, bases)

        def use(skip: Operand, found: list[Value], starts: list[int], many: int) -> None:
            for y, start in zip(found, starts, strict=True):
                self.out.store(b.gep(b.gep(dst, skip), start), y, many)

        in_steps(b, self.columns, self.steps, TURNS, make, use)

    def _made(self, columns: Value, entry: Value, bases: Sequence[Operand]) -> Value:
        """The results of a step, in the order of the table."""
        b, found, size = self.b, [], 32 * (2 * self.parts + 2)
        for register in range(len(bases) // (2 * self.parts)):
            at, mine = b.gep(entry, size * register), bases[2 * self.parts * register :]
            sides = [
                self._picked(columns, b.gep(at, 32 * first), mine[first : first + self.parts])
                for first in (0, self.parts)
            ]
            by = b.gep(at, 64 * self.parts)
            one, two = (b.load(F32S, b.gep(by, 32 * side), 32) for side in (0, 1))
            found.append(b.fmuladd(sides[1], two, b.fmul(sides[0], one)))
        return self.finished(join(b, found))

    def _picked(self, columns: Value, picks: Value, bases: Sequence[Operand]) -> Value:
        """Columns for eight results: as many lanes of each of some registers."""
        b, some, whole = self.b, LANES // self.parts, None
        for part, base in enumerate(bases):
            which = b.load(WORDS, b.gep(picks, 32 * part), 32)
            x = b.call_value(F32S, PERMUTED, b.load(F32S, b.gep(columns, base), 4), which)
            mine = range(part * some, (part + 1) * some)
            whole = (
                x if whole is None else b.shuffle(whole, [k + LANES * (k in mine) for k in range(LANES)], x)
            )
        assert whole is not None
        return whole


class Doubled(Pairs):
    """Writes the loops of one block whose rows become twice as long: of one, two or four channels.

    Parameters are those of :class:`~.linear_pairs.Pairs`. Eight columns make eight results in front of their
    middles and eight behind them, which is even and odd ones if a pixel is one column.
    """

    def __init__(self, b: Function, made: Linear, block: Nest) -> None:
        super().__init__(b, made, block, False, block.length == 1 and made.dst.name == "bf16")

    def along(self, dst: Value, columns: Value) -> None:
        """A row of results."""
        b, each, size = self.b, self.each, self.made.dst.bits // 8
        order = [
            LANES * half + first + k
            for first in range(0, LANES, each)
            for half in (0, 1)
            for k in range(each)
        ]

        def some(at: Operand) -> None:
            y = join(b, self.doubled(columns, at, LANES))
            self.out.store(b.gep(dst, at, 2 * size), y if self.out.pairs else b.shuffle(y, order))

        self.in_vectors(LANES, some)
