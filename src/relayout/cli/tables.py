"""Tables that fit the terminal: columns that matter least are left out first, and named below.

A table whose every cell is cut to three characters says nothing. So each column has a rank, and where the
columns are wider than the terminal together, those of the highest rank go. Into a pipe or a file all are
written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Column", "fitting", "print_table"]

GAP = 2  # blanks between columns


class Column(NamedTuple):
    """A column of a table."""

    head: str
    rank: int = 0
    """0: never left out; otherwise columns of the highest rank go first."""
    right: bool = False
    """Whether its cells stand to the right, as numbers do."""


def fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """The places of the columns that fit into ``room`` characters, in order.

    >>> columns = [Column("layer"), Column("formats", 2), Column("us"), Column("kernel", 3)]
    >>> fitting(columns, [10, 20, 5, 40], 40)
    [0, 1, 2]
    >>> fitting(columns, [10, 20, 5, 40], 30)
    [0, 2]
    """
    kept = list(range(len(columns)))
    while sum(widths[k] for k in kept) + GAP * (len(kept) - 1) > room:
        least = max(kept, key=lambda k: (columns[k].rank, k))
        if columns[least].rank == 0:
            break
        kept.remove(least)
    return kept


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str | None] | None = None,
) -> None:
    """Print rows of text under the heads of their columns, as many as fit."""
    from rich.cells import cell_len
    from rich.table import Table

    widths = [
        max(cell_len(text) for text in (column.head, *cells)) for column, cells in _across(columns, rows)
    ]
    kept = fitting(columns, widths, console.width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for k in kept:
        column = columns[k]
        table.add_column(column.head, no_wrap=True, justify="right" if column.right else "left")
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*(row[k] for k in kept), style=style)
    console.print(table)
    left = [column.head for k, column in enumerate(columns) if k not in kept]
    if left:
        console.print(f"omitted for lack of space: {', '.join(left)}; --json has them", style="bright_black")


def _across(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[tuple[Column, tuple[str, ...]]]:
    """Each column with its cells."""
    return [(column, tuple(row[k] for row in rows)) for k, column in enumerate(columns)]
