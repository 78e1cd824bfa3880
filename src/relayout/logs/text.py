"""An explanation as text: what was read, a table, a sentence for each row of it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from relayout.errors import spelled_seconds
from relayout.logs.events import Log
from relayout.logs.judging import RoundTrip, Row
from relayout.logs.values import cells, summary

__all__ = ["RIGHT", "below", "clean", "head", "in_text", "sentences"]

RIGHT = frozenset(("#", "times", "time", "each", "share", "bytes", "memcpy", "Relayout"))
"""The columns of numbers."""
WIDTH = 100


def head(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip]) -> list[str]:
    """What stands above the table."""
    first, *others = summary(log, rows, trips)
    lines = [f"{clean(log.title)}: {first}", *(["; ".join(others)] if others else [])]
    return [*lines, *(f"INCOMPLETE: {clean(problem)}" for problem in log.problems)]


def sentences(rows: Sequence[Row]) -> list[str]:
    """The advice on some rows; what is said of several rows is said once."""
    said: dict[str, list[int]] = {}
    for k, row in enumerate(rows):
        said.setdefault(clean(row.advice), []).append(k + 1)
    found = []
    for sentence, numbers in said.items():
        mark = ", ".join(_ranges(numbers))
        found += wrap(sentence, WIDTH, initial_indent=f"{mark}: ", subsequent_indent="   ")
    return found


def _ranges(numbers: Sequence[int]) -> list[str]:
    """Numbers in rising order with runs cut short.

    >>> _ranges([1, 2, 3, 5])
    ['1-3', '5']
    """
    found: list[list[int]] = []
    for one in numbers:
        if found and found[-1][1] == one - 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return [str(a) if a == b else f"{a}-{b}" for a, b in found]


def below(log: Log, rows: Sequence[Row], top: int | None) -> list[str]:
    """What stands below the table: what was left out of it, and what the log does not say."""
    left = rows[top:] if top is not None else ()
    spent = sum(row.seconds for row in left)
    lines = [f"{len(left)} more rows: {spelled_seconds(spent)}"] if left else []
    return [*lines, *(f"note: {clean(note)}" for note in log.notes)]


def in_text(log: Log, rows: Sequence[Row], trips: Sequence[RoundTrip], top: int | None) -> str:
    """The whole explanation."""
    shown = rows[:top]
    lines = head(log, rows, trips)
    if shown:
        heads, table = cells(shown)
        shown_cells = [[clean(cell) for cell in line] for line in table]
        widths = [max(map(len, column)) for column in zip(heads, *shown_cells, strict=True)]
        lines.append("")
        for line in (heads, *shown_cells):
            placed = [
                cell.rjust(width) if name in RIGHT else cell.ljust(width)
                for cell, width, name in zip(line, widths, heads, strict=True)
            ]
            lines.append("  ".join(placed).rstrip())
        lines += ["", *sentences(shown)]
    rest = below(log, rows, top)
    return "\n".join([*lines, *([""] if rest else []), *rest])


def clean(text: str) -> str:
    """Text of a log on one line, without signs that steer a terminal."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)
