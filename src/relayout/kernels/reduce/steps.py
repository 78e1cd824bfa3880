"""Rows of results in steps: as many results as some registers hold, made of what lies near one another.

What a row is made of is the same in all rows of a tensor, so that it is data: a table says for each step
where in a row of the source its registers begin (*bases*), and how lanes are picked and weighted (*data*,
whole registers). A row of a few steps is written out, with its bases as constants. Of a longer one some steps
at a time are done in a loop ::

    steps         0   1   2   3   4                 5 steps, in two's
    turns         0 . 1 . 2 . 3 .
                              3 . 4 .               the last turn steps back: no tail, nothing behind a row

A turn keeps in registers what it has made of its part of the source, for all rows of results that are made
of the same: two neighbours in height of twice the size, all rows between two others that are interpolated. So
the loop over these rows is inside the one over steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from relayout.ir.builder import Function, Operand, numbers_of, table
from relayout.ir.types import I64, PTR, Value, constant

__all__ = ["Step", "Turns", "in_steps", "starts", "steps_table"]

T = TypeVar("T")


class Step(NamedTuple):
    """Neighbouring results."""

    first: int
    """Byte of a row of results."""
    many: int
    """How many bytes of them there are."""
    bases: tuple[int, ...]
    """Bytes of a row of the source, from which on registers, or lanes of them, have all that is needed."""
    data: bytes
    """What the table has of this step: whole registers."""


class Turns(NamedTuple):
    """How a row is gone through."""

    held: int
    """Steps of a row at most that are done as one."""
    several: int
    """Steps at a time of longer ones."""
    written_out: int = 0
    """Steps of a row at most whose turns are no loop."""


def starts(total: int, unit: int, turns: Turns) -> list[int]:
    """Where steps of so many results begin; the last ones step back.

    >>> few = Turns(2, 2)
    >>> starts(20, 32, few), starts(50, 32, few), starts(130, 32, few)
    ([0], [0, 18], [0, 32, 64, 96, 66, 98])
    >>> starts(130, 32, Turns(2, 2, 5))
    [0, 32, 64, 96, 98]
    """
    count, several = -(-total // unit), turns.several
    if count <= max(turns.held, turns.written_out):
        return [max(0, min(k * unit, total - unit)) for k in range(count)]
    chunk = several * unit
    first = [min(k * chunk, total - chunk) for k in range(-(-total // chunk))]
    return [start + k * unit for start in first for k in range(several)]


def steps_table(name: str, steps: Sequence[Step]) -> str:
    """The text of a table: the data of all steps, and behind them all bases."""
    data = numbers_of(b"".join(step.data for step in steps))
    return table(name, [*data, *(base for step in steps for base in step.bases)])


def in_steps(
    b: Function,
    name: str,
    steps: Sequence[Step],
    turns: Turns,
    make: Callable[[Value, Sequence[Operand]], T],
    use: Callable[[Operand, list[T], list[int], int], None],
) -> None:
    """Go through a row.

    Parameters
    ----------
    b : Function
        What is being written.
    name : str
        Of the table.
    steps : sequence of Step
        Those of a row; between neighbours of a turn there are as many bytes everywhere.
    turns : Turns
        How many of them at a time.
    make : callable
        What is kept of a step, of the address of its data in the table, and its bases.
    use : callable
        Makes results of what is kept of some steps: at which byte of a row they begin, counted from where
        each step begins, and how many bytes a step has.
    """
    at, several = Value(f"@{name}", PTR), turns.several
    size, groups = len(steps[0].data), len(steps[0].bases)
    if len(steps) <= max(turns.held, turns.written_out):
        together = len(steps) if len(steps) <= turns.held else several
        for first in range(0, len(steps), together):
            some = steps[first : first + together]
            found = [make(b.gep(at, size * (first + k)), step.bases) for k, step in enumerate(some)]
            use(constant(I64, 0), found, [step.first for step in some], some[0].many)
        return
    apart = steps[1].first - steps[0].first
    bases = b.gep(at, size * len(steps))

    def turn(k: Value) -> None:
        found = []
        for ahead in range(several):
            number = b.add(k, ahead)
            mine = b.gep(bases, number, 8 * groups)
            each = [b.load(I64, b.gep(mine, 8 * group)) for group in range(groups)]
            found.append(make(b.gep(at, number, size), each))
        first = b.smin(b.mul(k, apart), steps[-several].first)
        use(first, found, [ahead * apart for ahead in range(several)], steps[0].many)

    b.loop(0, len(steps), several, turn)
