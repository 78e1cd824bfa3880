"""The terminal: how wide it is, whether it has colours, and which signs it can show."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.draw.text import Marks

__all__ = ["console_for", "marks_of", "reading_width"]

PIPED_WIDTH = 100  # columns of drawings that go to a file
UNBROKEN = 10_000


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

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise  # instead of ending the process with exit code 1: a reader that left is no error

    if sys.stdout.isatty():
        return Ours(highlight=False, markup=False, emoji=False, no_color=no_colour or None)
    stream = cast(TextIO, _Trimmed(sys.stdout))
    return Ours(file=stream, highlight=False, markup=False, emoji=False, width=UNBROKEN)


def reading_width(console: Console) -> int:
    """How many columns a drawing may take."""
    return console.width if console.is_terminal else PIPED_WIDTH


def marks_of(console: Console) -> Marks:
    """The signs that the console can show."""
    from relayout.draw.text import Marks

    return Marks.fit_for(console.options.ascii_only)
