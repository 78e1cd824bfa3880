"""Memory, cache line by cache line: a part of the pictures in :mod:`relayout.draw.sheet` and ``beside``.

A row is a cache line of 64 bytes, or a half, a quarter, ... of one where a line has too many elements to fit.
The rows that matter are always drawn: those of a vector, those of a marked element, and the last. What lies
between is left out, and said. A cell holds the part of the index that changes along a row; beside the row
stands what is the same all along it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from relayout.draw.canvas import Canvas, text_width
from relayout.draw.cells import BASE, CELL_HEIGHT, Cell, Paint, Places, draw_cell
from relayout.draw.colours import MUTED
from relayout.draw.vector import LINE
from relayout.layout.layout import Layout

__all__ = ["Lines"]

SKIP: Final = 18  # pixels for the words that lines are left out
APART: Final = 6  # pixels between lines that have several rows
NARROWEST: Final = 22.0
SIZES: Final = (11.0, 9.0)  # of letters, the larger ones first
FILLED: Final = 60  # per cent of the rows that are drawn where few of them are wanted


class Lines:
    """Memory by cache lines: which are drawn, how wide, and what their cells say.

    Parameters
    ----------
    layout : Layout
        Whose memory.
    bits : int
        Bits of an element.
    names : tuple of str
        What the axes are called.
    wanted : iterable of int
        Offsets whose lines are drawn, the most important ones first.
    rows : int
        Rows at most.
    width : float
        Pixels that the rows and the words beside them may take.
    text : callable, optional
        What a cell says. Without it: the part of the index that changes along a row.
    """

    def __init__(
        self, layout: Layout, bits: int, names: tuple[str, ...], *, wanted: Iterable[int] = (), rows: int =
        20, width: float = 860, text: Callable[[Cell], str] | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.bits, self.names = layout, bits, names
        self.low, self.high = layout.bounds()
        self.line = 8 * LINE // bits
        self.counted = [a for a, size in enumerate(layout.dims) if size > 1] or list(range(layout.rank))
        self._places = Places(layout)
        self._known: dict[int, Cell] = {}
        self.margin = max(text_width(f"{self.high}", 11), text_width("offset", 10)) + 12
        keep = list(dict.fromkeys(self.line_number(offset) for offset in wanted))
        self.row = self.line  # elements
        while True:
            self.lines = self._chosen(keep, rows)
            self.cells = {cell.offset: cell for cell in self._found()}
            self.labelled = self._varying()
            self._text = text or self._index
            if any(self._fits(size, width) for size in SIZES) or self.row <= 4:
                break
            self.row //= 2

    def _fits(self, size: float, width: float) -> bool:
        """Whether the rows fit with letters of this size, which is then taken."""
        self.size = size
        longest = max((len(self.write(cell)) for cell in self.cells.values()), default=0)
        self.cell_width = max(NARROWEST, text_width("0" * longest, size) + 7)
        beside = max([0.0, *(text_width(self.note(k), 11) for k in self.starts())])
        taken = self.margin + min(self.row, self._count) * self.cell_width + 12 + beside
        return taken <= width and self.row <= 32

    @property
    def _count(self) -> int:
        return self.high - self.low + 1

    def line_number(self, offset: int) -> int:
        """The cache line of an offset."""
        return offset // self.line

    def _chosen(self, keep: list[int], rows: int) -> list[int]:
        """The lines that are drawn: the first, those to keep, the last, then those that follow the first."""
        each = self.line // self.row
        most, few = max(2, -(-rows // min(each, 2))), max(2, rows * FILLED // (100 * each))
        if self.high < self.low:
            return []
        first, last = self.line_number(self.low), self.line_number(self.high)
        if last - first < (most if each == 1 else few):
            return list(range(first, last + 1))
        chosen = dict.fromkeys([first, *keep[: most - 2], last])
        for number in range(first + 1, last):
            if len(chosen) >= few:
                break
            chosen[number] = None
        return sorted(chosen)

    def starts(self) -> Iterator[int]:
        """The offsets at which the rows begin that are drawn."""
        for number in self.lines:
            for start in range(number * self.line, (number + 1) * self.line, self.row):
                if start + self.row > self.low and start <= self.high:
                    yield start

    def _found(self) -> Iterator[Cell]:
        for start in self.starts():
            for offset in range(max(start, self.low), min(start + self.row, self.high + 1)):
                if offset not in self._known:
                    self._known[offset] = self._places.at(offset)
                yield self._known[offset]

    def _row(self, start: int) -> list[Cell]:
        return [self.cells[k] for k in range(start, start + self.row) if k in self.cells]

    def _varying(self) -> list[int]:
        """The axes whose index changes along some row."""
        found: set[int] = set()
        for start in self.starts():
            elements = [cell.element for cell in self._row(start) if cell.element is not None]
            for axis in self.counted:
                if axis not in found and len({element[axis] for element in elements}) > 1:
                    found.add(axis)
        return [axis for axis in self.counted if axis in found] or self.counted[-1:]

    def _index(self, cell: Cell) -> str:
        return ",".join(str(cell.element[a]) for a in self.labelled) if cell.element is not None else ""

    def write(self, cell: Cell) -> str:
        """What a cell says."""
        return self._text(cell) if cell.element is not None else ""

    def note(self, start: int) -> str:
        """What is the same all along a row: ``n=0 h=1 w=0``."""
        element = next((cell.element for cell in self._row(start) if cell.element is not None), None)
        if element is None:
            return ""
        return " ".join(f"{self.names[a]}={element[a]}" for a in self.counted if a not in self.labelled)

    @property
    def labels(self) -> str:
        """The axes whose index a cell holds: ``h,w``."""
        return ",".join(self.names[a] for a in self.labelled)

    @property
    def left_out(self) -> int:
        """How many lines are not drawn."""
        if self.high < self.low:
            return 0
        return self.line_number(self.high) - self.line_number(self.low) + 1 - len(self.lines)

    def draw(
        self, canvas: Canvas, top: float, paint: Paint, *, left: float = 0, vector: Collection[int] = (),
        marked: int | None = None, hint: Callable[[Cell], str] | None = None,
        note: Callable[[list[Cell]], str] | None = None,
    ) -> float:  # fmt: skip
        """Draw the rows from ``top`` downwards; return where they end.

        Cells at the offsets of a ``vector`` are light on dark. ``note`` writes the words beside a row.
        """
        x0 = left + self.margin
        canvas.words(x0 - 10, top + 10, "offset", size=10, anchor="end", fill=MUTED, mono=False)
        y, before = top + 15, None
        for number in self.lines:
            if before is not None and number > before + 1:
                count = number - before - 1
                y = self._skipped(canvas, x0, y, count)
            elif before is not None and self.row < self.line:
                y += APART
            before = number
            for start in self.starts():
                if self.line_number(start) != number:
                    continue
                canvas.words(x0 - 10, y + BASE, str(start), size=11, anchor="end", fill=MUTED)
                row = self._row(start)
                for cell in row:
                    draw_cell(
                        canvas, cell, x0 + (cell.offset - start) * self.cell_width, y, self.cell_width,
                        self.write(cell), paint, marked,
                        vector=cell.offset in vector and cell.element is not None,
                        hint=hint(cell) if hint is not None else "", size=self.size,
                    )  # fmt: skip
                words = self.note(start) if note is None else note(row)
                if words:
                    x = x0 + min(self.row, self._count) * self.cell_width + 10
                    canvas.words(x, y + BASE, words, size=11, anchor="start", fill=MUTED)
                y += CELL_HEIGHT
        return y

    def _skipped(self, canvas: Canvas, x: float, y: float, count: int) -> float:
        said = f"…  {count:,} more cache line{'s' * (count != 1)}, {count * LINE:,} bytes"
        canvas.words(x + 6, y + SKIP - 5, said, size=10, anchor="start", fill=MUTED)
        return y + SKIP
