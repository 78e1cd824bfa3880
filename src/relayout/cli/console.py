"""The terminal: how wide it is, whether it has colours, and which signs it can show."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from relayout.draw.text import Marks

__all__ = ["console_for", "marks_of", "reading_width"]

PIPED_WIDTH = 100  # columns of drawings that go to a file
UNBROKEN = 10_000
WRAPPED = 24  # columns that a long word may take where a column wraps


class _Trimmed:
    """A stream without blanks at the ends of lines, with which tables fill their columns."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write lines; a table is written as a whole."""
        return self.stream.write(re.sub(r" +(?=\n)", "", text))


def console_for(no_colour: bool = False) -> Console:
    """The console for standard output. Into a pipe or a file lines go unbroken."""
    from rich.console import Console
    from rich.table import Table

    class Ours(Console):
        def print(self, *objects: Any, **how: Any) -> None:
            left = [head for each in objects if isinstance(each, Table) for head in _shed(each, self.width)]
            super().print(*objects, **how)
            if left:
                super().print(f"omitted for lack of space: {', '.join(left)}", style="bright_black")

        def on_broken_pipe(self) -> None:
            raise  # instead of ending the process with exit code 1: a reader that left is no error

    if sys.stdout.isatty():
        return Ours(highlight=False, markup=False, emoji=False, no_color=no_colour or None)
    stream = cast(TextIO, _Trimmed(sys.stdout))
    return Ours(file=stream, highlight=False, markup=False, emoji=False, width=UNBROKEN)


def _shed(table: Table, width: int) -> list[str]:
    """Take the last columns from a table until the others can be read; return what they are called.

    Tables are written with what matters most on the left. A column that may not wrap needs its longest cell,
    another one its longest word.
    """
    from rich.cells import cell_len

    needed = []
    for column in table.columns:
        texts = [str(cell) for cell in (column.header, *column.cells)]
        pieces = texts if column.no_wrap else [word for text in texts for word in text.split()]
        longest = max(map(cell_len, pieces), default=0)
        needed.append(longest if column.no_wrap else min(longest, WRAPPED))
    around = 3 if table.box is not None else 2  # blanks and lines between two columns
    left: list[str] = []
    while len(needed) > 2 and sum(needed) + around * len(needed) > width:
        needed.pop()
        left.insert(0, str(table.columns.pop().header))
    return left


def reading_width(console: Console) -> int:
    """How many columns a drawing may take."""
    return console.width if console.is_terminal else PIPED_WIDTH


def marks_of(console: Console) -> Marks:
    """The signs that the console can show."""
    from relayout.draw.text import Marks

    return Marks.fit_for(console.options.ascii_only)
