"""The picture of memory: rows of cells in physical order, each labelled with the index of its element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from relayout.draw.canvas import MUTED, Canvas, text_width
from relayout.draw.cells import (
    BASE,
    CELL_HEIGHT,
    GAP,
    Cell,
    Paint,
    Places,
    check_positive,
    draw_cell,
    heading,
    legend,
    names_of,
    shown,
)
from relayout.draw.places import labels, memory_order
from relayout.layout.format import spell_digit
from relayout.layout.layout import Layout, LayoutDigit, layout_of

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["memory"]

WIDEST_ROW = 40  # cells side by side, beyond which a row is cut out


def memory(
    layout: Layout | MemoryDesc,
    *,
    axes: Sequence[str] | None = None,
    colour: str | None = None,
    mark: Sequence[int] | None = None,
    columns: int | None = None,
    rows: int = 24,
    separator: str = ",",
    label: Callable[[tuple[int, ...]], str] | None = None,
    title: str | None = None,
) -> str:
    """Draw memory as rows of cells in physical order, each labelled with the logical index of its element.

    Parameters
    ----------
    layout : Layout or MemoryDesc
        What to draw.
    axes : sequence of str, optional
        What the axes are called, one name an axis. Without it: the words of the format's own dialect, else
        ``a, b, c, ...``.
    colour : str, optional
        The digit that colours the cells, such as ``"c//8"`` or ``"h"``. Without it: the blocks of a blocked
        axis, else the channels.
    mark : sequence of int, optional
        The index of an element to be framed. Its row is drawn whatever else is left out.
    columns : int, optional
        Elements in a row. Without it: the innermost block, or the innermost axes up to 32 elements.
    rows : int
        Rows at most; the middle of a longer memory is left out.
    separator : str
        What stands between the numbers of an index; ``""`` makes narrow cells, where no size is over 10.
    label : callable, optional
        What to write in the cell of an index. Without it: the index, without axes of size 1.
    title : str, optional
        What to write above. Without it: the layout.

    Returns
    -------
    str
        A SVG document.

    Raises
    ------
    LayoutError
        ``colour`` names no axis of the layout, ``mark`` is out of bounds, or a count is less than 1.

    Examples
    --------
    >>> import relayout as rl
    >>> picture = memory(rl.Layout((1, 3, 2, 2), "nhwc"))
    >>> picture.count("<g data-offset="), 'data-offset="4" data-index="0,1,0,1"' in picture
    (12, True)
    """
    known = layout_of(layout)
    check_positive(columns=columns, rows=rows)
    low, high = known.bounds()
    names = names_of(known, axes)
    marked = known.offset(*mark) if mark is not None else None
    table = _Table(known, columns or _row_length(known), rows, marked)
    paint = Paint(known, names, colour)
    counted = [a for a, size in enumerate(known.dims) if size > 1] or list(range(known.rank))
    write = label or (lambda index: separator.join(str(index[a]) for a in counted))
    texts = {k: write(cell.element) if cell.element is not None else "" for k, cell in table.cells.items()}
    cell_width = max([22.0, *(text_width(text, 11) + 8 for text in texts.values())])
    margin = max(text_width(str(high), 11), text_width("offset", 10)) + 12

    canvas = Canvas()
    caption = title if title is not None else f"{known} in memory"
    y = heading(canvas, caption) + 4
    canvas.words(margin - 10, y + 10, "offset", size=10, anchor="end", fill=MUTED, mono=False)
    for position, column in enumerate(table.columns):
        if column is not None and len(table.columns) > 1:
            canvas.words(margin + (position + 0.5) * cell_width, y + 10, f"+{column}", size=10, fill=MUTED)
    y += 16
    notes = _Notes(known, names if axes is not None else None, table.width)
    before: tuple[int, ...] = ()
    for position, row in enumerate(table.rows):
        if row is None:
            more = f"⋮  {table.left_out(position)} more rows"
            canvas.words(margin + 6, y + BASE, more, size=11, anchor="start", fill=MUTED)
            y, before = y + CELL_HEIGHT, ()
            continue
        start = table.base + row * table.width
        values = notes.of(table.row(row))
        if before and values and notes.begins_group(before, values):
            y += GAP / 2
        before = values or before
        canvas.words(margin - 10, y + BASE, str(start), size=11, anchor="end", fill=MUTED)
        for place, column in enumerate(table.columns):
            x = margin + place * cell_width
            if column is None:
                canvas.words(x + cell_width / 2, y + BASE, "…", fill=MUTED)
            elif start + column in table.cells:
                cell = table.cells[start + column]
                draw_cell(canvas, cell, x, y, cell_width, texts[cell.offset], paint, marked)
        x = margin + len(table.columns) * cell_width + 10
        if values:
            canvas.words(x, y + BASE, notes.text(values), size=11, anchor="start", fill=MUTED)
        y += CELL_HEIGHT
    said = []
    if label is None and counted:
        said.append("cell: " + separator.join(names[a] for a in counted))
    if not table.count:
        said.append("no elements")
    legend(canvas, y + 10, margin, paint, said, table.cells.values())
    return canvas.document(
        caption,
        f"Memory of {known}: {table.count} elements from offset {low}, {table.width} in a row, "
        f"coloured by {paint.name or 'nothing'}.",
    )


class _Table:
    """The rows and columns that are shown, and what lies there.

    Rows begin at multiples of their length, so that the number above a column is the place within the row of
    the whole tensor even where only a part of it is drawn.
    """

    def __init__(self, layout: Layout, width: int, most: int, marked: int | None) -> None:
        low, high = layout.bounds()
        self.count = high - low + 1
        self.width = min(width, max(self.count, 1))
        self.base = low - low % self.width
        self.row_count = -(-(high + 1 - self.base) // self.width)
        row, column = divmod(marked - self.base, self.width) if marked is not None else (None, None)
        self.rows = shown(self.row_count, most, row)
        self.columns = shown(self.width, WIDEST_ROW, column)
        places = Places(layout)
        wanted = (
            self.base + row * self.width + column
            for row in self.rows
            if row is not None
            for column in self.columns
            if column is not None
        )
        self.cells = {offset: places.at(offset) for offset in wanted if low <= offset <= high}

    def row(self, row: int) -> Iterator[Cell]:
        """The cells of a row that are shown."""
        start = self.base + row * self.width
        return (self.cells[k] for k in range(start, start + self.width) if k in self.cells)

    def left_out(self, position: int) -> int:
        """How many rows the None at this position of ``rows`` stands for."""
        before = self.rows[position - 1]
        after = self.rows[position + 1] if position + 1 < len(self.rows) else self.row_count
        return (after or 0) - (before or 0) - 1


class _Notes:
    """What is written beside a row of memory: the digits that are the same all along it."""

    def __init__(self, layout: Layout, names: tuple[str, ...] | None, width: int) -> None:
        outer = [d for d in layout.digits if d.extent > 1 and abs(d.stride) >= width]
        self.digits: list[LayoutDigit] = sorted(outer, key=lambda d: -abs(d.stride))
        if names is None:  # in the words of the format's dialect: fs, not f//16
            spelled = dict(zip(memory_order(layout), labels(layout)[1], strict=True))
            self.names = [spelled[digit] for digit in self.digits]
        else:
            self.names = [self._spelled(layout, names, digit) for digit in self.digits]
        nested = all(abs(d.stride) % width == 0 for d in self.digits)
        self.usable = nested and bool(self.digits)

    @staticmethod
    def _spelled(layout: Layout, names: tuple[str, ...], digit: LayoutDigit) -> str:
        first = digit.weight == layout.ladders[digit.term][0].weight
        axes = tuple(names[a] for a in layout.terms[digit.term])
        return spell_digit(axes, digit.weight, None if first else digit.extent)

    def of(self, cells: Iterable[Cell]) -> tuple[int, ...]:
        """The values of the outer digits in a row, empty where they are not the same all along it."""
        if not self.usable:
            return ()
        found = {
            tuple(cell.numbers[d.term] // d.weight % d.extent for d in self.digits)
            for cell in cells
            if cell.numbers is not None
        }
        return found.pop() if len(found) == 1 else ()

    def begins_group(self, before: tuple[int, ...], values: tuple[int, ...]) -> bool:
        """Whether the outermost digit has changed, where it is not the only one."""
        return len(self.digits) > 1 and before[0] != values[0]

    def text(self, values: tuple[int, ...]) -> str:
        """The values as they are written beside the row."""
        return ", ".join(f"{name}={value}" for name, value in zip(self.names, values, strict=True))


def _row_length(layout: Layout) -> int:
    """Elements in a row: the innermost block, or as many innermost axes as make 6 to 32 elements."""
    steps = sorted(
        {abs(d.stride) for d in layout.digits if d.extent > 1 and d.stride} | {max(layout.span, 1)}
    )
    runs = [
        step for k, step in enumerate(steps) if step > 1 and all(step % below == 0 for below in steps[:k])
    ]
    blocks = [d.extent for ladder in layout.ladders for d in ladder[1:] if abs(d.stride) == 1]
    if blocks and 6 <= blocks[0] <= 32:
        return blocks[0]
    within = next((run for run in runs if 6 <= run <= 32), None)
    if within is not None:
        return within
    run = max((run for run in runs if run <= 16), default=1)
    following = next((r for r in runs if r > run), 16)
    return next((n for n in range(16, 0, -1) if n % run == 0 and following % n == 0), run)
