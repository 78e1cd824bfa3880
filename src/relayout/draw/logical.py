"""The picture of the logical tensor: panels of cells by index, labelled with offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING

from relayout.draw.canvas import MUTED, Canvas, text_width
from relayout.draw.cells import (
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
from relayout.layout.layout import Layout, layout_of, spell_dims

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["logical"]

PANEL_GAP = 14
GAP_LINE, GAP_COLUMN = 24, 16  # room for the sign that panels are left out, in pixels


def logical(
    layout: Layout | MemoryDesc,
    *,
    axes: Sequence[str] | None = None,
    colour: str | None = None,
    mark: Sequence[int] | None = None,
    panels: int | None = None,
    most: int = 16,
    path: bool = False,
    title: str | None = None,
) -> str:
    """Draw the tensor as a program indexes it, each cell labelled with the offset of its element.

    The last two axes with more than one element make a panel; the axes before them make rows of panels.
    Padding is drawn behind the elements of its axis, hatched, with the offset that is reserved for it.

    Parameters
    ----------
    layout : Layout or MemoryDesc
        What to draw.
    axes : sequence of str, optional
        What the axes are called, one name an axis. Without it: the words of the format's own dialect, else
        ``a, b, c, ...``.
    colour : str, optional
        The digit that colours the cells; see :func:`memory`.
    mark : sequence of int, optional
        The index of an element to be framed. It is drawn whatever else is left out.
    panels : int, optional
        Panels in a row. Without it: the block of the axis that counts them, or what fits 700 pixels.
    most : int
        Rows and columns of a panel at most; the middle of longer axes is left out. Of more than 64 panels
        only a few along each axis are drawn.
    path : bool
        Draw the walk through memory, from the lowest to the highest offset, instead of the offsets.
        Thick: to a neighbour; thin: further away.
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
    >>> picture = logical(rl.Layout((1, 17, 2, 2), "nChw8c"))
    >>> 'data-offset="33" data-index="0,9,0,0"' in picture
    True
    >>> picture.count("<g data-offset=")  # 4 x 24: there is room for 24 channels
    96
    """
    known = layout_of(layout)
    check_positive(panels=panels, most=most)
    frame = _Frame(known, names_of(known, axes), most, mark)
    paint = Paint(known, frame.names, colour)
    marked = known.offset(*mark) if mark is not None else None
    canvas = Canvas()
    caption = title if title is not None else f"{known}, logical"
    bottom = top = heading(canvas, caption) + 4
    cell_width = float(CELL_HEIGHT) if path else max(CELL_HEIGHT, text_width(str(known.bounds()[1]), 11) + 10)
    margin = frame.margin
    panel_width = len(frame.columns) * cell_width
    panel_height = len(frame.rows) * CELL_HEIGHT
    a_row = panels or frame.panels_in_row(panel_width + PANEL_GAP, 700 - margin)
    if len(frame.columns) > 1:
        top += 14
    drawn: list[Cell] = []
    y, numbered = top, False
    for line in frame.lines(a_row):
        if isinstance(line, str):
            canvas.words(margin + 6, y + 14, f"⋮  {line}", size=11, anchor="start", fill=MUTED)
            y += GAP_LINE
            continue
        y += 16 * bool(frame.outer)
        x = margin
        for across, position in enumerate(line):
            if position is None:
                canvas.words(x + GAP_COLUMN / 2, y + panel_height / 2 + 4, "…", size=16, fill=MUTED)
                x += GAP_COLUMN + PANEL_GAP
                continue
            if frame.outer:
                over_head = 14 if not numbered and len(frame.columns) > 1 else 0
                name = frame.panel_name(position)
                canvas.words(x + panel_width / 2, y - 4 - over_head, name, size=11, bold=True)
            if not numbered:
                frame.head(canvas, x, y - 5, cell_width)
            if across == 0:
                frame.side(canvas, x - 6, y)
            cells = list(frame.cells(position, x, y, cell_width))
            drawn += [cell for cell, _, _ in cells]
            for cell, cx, cy in cells:
                draw_cell(canvas, cell, cx, cy, cell_width, "" if path else str(cell.offset), paint, marked)
            for _, cx, cy in frame.dots(x, y, cell_width):
                canvas.words(cx, cy, "…", fill=MUTED)
            if path:
                half = CELL_HEIGHT / 2
                stops = [
                    (cell.offset, cx + half, cy + half) for cell, cx, cy in cells if cell.element is not None
                ]
                _walk(canvas, sorted(stops))
            x += panel_width + PANEL_GAP
        numbered = True
        bottom = max(bottom, y + panel_height)
        y += panel_height + GAP
    if not drawn:
        canvas.words(0, top + 14, "no elements", anchor="start", fill=MUTED, mono=False)
        bottom = top + 20
    said = ["line: the order in memory" if path else "cell: offset"]
    legend(canvas, bottom + 12, margin, paint, said, drawn)
    return canvas.document(
        caption,
        f"The tensor {spell_dims(known.dims)} by logical index, coloured by {paint.name or 'nothing'}; "
        f"{'a line follows' if path else 'cells hold'} the offsets of {known}.",
    )


class _Frame:
    """How axes become rows, columns and panels, and which of them are shown."""

    def __init__(self, layout: Layout, names: tuple[str, ...], most: int, mark: Sequence[int] | None) -> None:
        self.layout = layout
        self.places = Places(layout)
        self.names = names
        # Where axes are fused, padding is behind their common number and on none of them.
        self.room = layout.padded_dims
        counted = [a for a, size in enumerate(self.room) if size != 1]
        self.outer = counted[:-2]
        self.row_axis = counted[-2] if len(counted) > 1 else None
        self.column_axis = counted[-1] if counted else None
        kept = tuple(mark) if mark is not None else (None,) * layout.rank
        self.rows, self.columns = (
            shown(self.room[axis], most, kept[axis]) if axis is not None else [0]
            for axis in (self.row_axis, self.column_axis)
        )
        few = prod(self.room[a] for a in self.outer) > 64
        self.stacks = [shown(self.room[a], 4 if few else 64, kept[a]) for a in self.outer]

    @property
    def margin(self) -> float:
        """Room for the names of rows, in pixels."""
        if self.row_axis is None or len(self.rows) < 2:
            return 0.0
        return text_width(f"{self.names[self.row_axis]}={self.room[self.row_axis] - 1}", 10) + 8

    def panels_in_row(self, panel_width: float, width: float) -> int:
        """The block of the last axis of panels if it fits, else all of that axis, else what fits."""
        fitting = max(1, int(width // panel_width))
        if not self.outer:
            return 1
        last = self.outer[-1]
        for term, ladder in zip(self.layout.terms, self.layout.ladders, strict=True):
            if (
                term == (last,)
                and len(ladder) > 1
                and 1 < ladder[0].weight <= fitting
                and None not in self.stacks[-1]
            ):
                return ladder[0].weight
        return min(len(self.stacks[-1]), fitting)

    def lines(self, a_row: int) -> Iterator[list[tuple[int, ...] | None] | str]:
        """Lines of panels, each as its index on the outer axes; None, or a text, where some are left out.

        What is left out gets no room of its own: a narrow column within a line, a low line between lines.
        """
        if not self.outer:
            yield [()]
            return
        told = False  # whether the line before says that something is left out
        for before in product(*self.stacks[:-1]):
            known = tuple(v for v in before if v is not None)
            if len(known) < len(before):
                if not told:
                    yield "further panels are left out"
                told = True
                continue
            line: list[tuple[int, ...] | None] = []
            for k, last in enumerate(self.stacks[-1]):
                if last is None and not line:
                    yield self._left_out(k)
                    continue
                line.append((*known, last) if last is not None else None)
                panels = sum(position is not None for position in line)
                following = self.stacks[-1][k + 1 : k + 2]
                if panels == a_row and (following != [None] or a_row == 1):
                    yield line
                    line = []
            if line:
                yield line
            told = False

    def _left_out(self, k: int) -> str:
        """What the None at place ``k`` of the last stack stands for: ``c=3..62``."""
        stack, axis = self.stacks[-1], self.outer[-1]
        following = stack[k + 1] if k + 1 < len(stack) else self.room[axis]
        return f"{self.names[axis]}={(stack[k - 1] or 0) + 1}..{(following or 0) - 1}"

    def panel_name(self, position: tuple[int, ...]) -> str:
        """What distinguishes a panel: ``n=0 c=9``."""
        return " ".join(f"{self.names[a]}={i}" for a, i in zip(self.outer, position, strict=True))

    def cells(
        self, position: tuple[int, ...], x: float, y: float, cell_width: float
    ) -> Iterator[tuple[Cell, float, float]]:
        """The cells of a panel, with their upper left corners."""
        index = [0] * self.layout.rank
        for a, i in zip(self.outer, position, strict=True):
            index[a] = i
        for i, row in enumerate(self.rows):
            for j, column in enumerate(self.columns):
                if row is None or column is None:
                    continue
                if self.row_axis is not None:
                    index[self.row_axis] = row
                if self.column_axis is not None:
                    index[self.column_axis] = column
                cell = self.places.of(tuple(index))
                if cell is not None:
                    yield cell, x + j * cell_width, y + i * CELL_HEIGHT

    def dots(self, x: float, y: float, cell_width: float) -> Iterator[tuple[str, float, float]]:
        """Where rows or columns are left out."""
        for i, row in enumerate(self.rows):
            for j, column in enumerate(self.columns):
                if row is None or column is None:
                    yield "…", x + (j + 0.5) * cell_width, y + i * CELL_HEIGHT + 17

    def head(self, canvas: Canvas, x: float, y: float, cell_width: float) -> None:
        """Number the columns."""
        for j, column in enumerate(self.columns if len(self.columns) > 1 else ()):
            if column is not None and self.column_axis is not None:
                text = f"{self.names[self.column_axis]}={column}" if not j else str(column)
                canvas.words(x + (j + 0.5) * cell_width, y, text, size=10, fill=MUTED)

    def side(self, canvas: Canvas, x: float, y: float) -> None:
        """Number the rows."""
        for i, row in enumerate(self.rows if len(self.rows) > 1 else ()):
            if row is not None and self.row_axis is not None:
                text = f"{self.names[self.row_axis]}={row}" if not i else str(row)
                canvas.words(x, y + i * CELL_HEIGHT + 17, text, size=10, anchor="end", fill=MUTED)


def _walk(canvas: Canvas, stops: Sequence[tuple[int, float, float]]) -> None:
    """Draw a line through places: thick to a neighbour, thin where it jumps."""
    if not stops:
        return
    points = [(x, y) for _, x, y in stops]
    canvas.line(points, stroke=MUTED, thickness=0.9, arrow=True)
    run = points[:1]
    for before, here in pairwise(points):
        if abs(before[0] - here[0]) + abs(before[1] - here[1]) <= CELL_HEIGHT + 0.5:
            run.append(here)
            continue
        if len(run) > 1:
            canvas.line(run, thickness=2.6)
        run = [here]
    if len(run) > 1:
        canvas.line(run, thickness=2.6)
    canvas.dot(*points[0], 4)
