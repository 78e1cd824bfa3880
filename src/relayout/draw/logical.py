"""The picture of the logical tensor: panels of cells by index, labelled with offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

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
from relayout.errors import LayoutError
from relayout.layout.layout import Layout, layout_of, spell_dims

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["Drawn", "Frame", "draw_panels", "logical"]

PANEL_GAP = 14
BAND_GAP = 14  # between slices of one band that differ in more than the last axis, in pixels
SLIM = 12  # a row or column that stands for those left out, in pixels
GAP_LINE, GAP_COLUMN = 24, 16  # room for the sign that panels are left out, in pixels


def logical(
    layout: Layout | MemoryDesc,
    *,
    axes: Sequence[str] | None = None,
    colour: str | None = None,
    mark: Sequence[int] | None = None,
    panels: int | None = None,
    plane: Sequence[str] | None = None,
    most: int = 16,
    path: bool = False,
    title: str | None = None,
) -> str:
    """Draw the tensor as a program indexes it, each cell labelled with the offset of its element.

    Two axes make a panel, the others make rows of panels: slices of the tensor side by side. What is left
    out of a large tensor is said below the drawing. Padding is drawn behind the elements of its axis,
    hatched, with the offset that is reserved for it.

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
    plane : sequence of str, optional
        The axes that count the rows and the columns of a panel. Without it: the two blocked axes of a format
        that blocks two, else the last two axes with more than one element.
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
    names = names_of(known, axes)
    frame = Frame(known, names, most, mark, plane)
    paint = Paint(known, names, colour)
    marked = known.offset(*mark) if mark is not None else None
    canvas = Canvas()
    caption = title if title is not None else f"{known}, logical"
    top = heading(canvas, caption) + 4
    drawn = draw_panels(canvas, top, frame, paint, panels=panels, marked=marked, path=path)
    said = ["line: the order in memory" if path else "cell: offset"]
    end = legend(canvas, drawn.bottom + 12, frame.margin, paint, said, drawn.cells)
    if frame.left_out:
        text = f"left out: {'; '.join(frame.left_out)}"
        canvas.words(frame.margin, end + 11, text, size=11, anchor="start", fill=MUTED)
    return canvas.document(
        caption,
        f"The tensor {spell_dims(known.dims)} by logical index, coloured by {paint.name or 'nothing'}; "
        f"{'a line follows' if path else 'cells hold'} the offsets of {known}."
        + (f" Left out: {'; '.join(frame.left_out)}." if frame.left_out else ""),
    )


class Drawn(NamedTuple):
    """What a part of a picture has drawn: its cells, and where it ends, in pixels."""

    cells: list[Cell]
    bottom: float


def draw_panels(
    canvas: Canvas, top: float, frame: Frame, paint: Paint, *, panels: int | None = None,
    marked: int | None = None, path: bool = False, width: float = 700, vector: frozenset[int] = frozenset(),
    text: Callable[[Cell], str] | None = None, hint: Callable[[Cell], str] | None = None, says: bool = True,
) -> Drawn:  # fmt: skip
    """Draw slices of a tensor side by side, from ``top`` downwards.

    Cells show ``text``, else their offsets; those at the offsets of a ``vector`` are light on dark. With
    ``says=False`` the caller says what is left out (:attr:`Frame.left_out`), not the drawing.
    """
    known = frame.layout
    write = text or (lambda cell: str(cell.offset))
    cell_width = float(CELL_HEIGHT)
    if not path:
        longest = (str(known.bounds()[1]),) if text is None else map(write, frame.all_cells())
        cell_width = max([cell_width, *(text_width(one, 11) + 8 for one in longest)])
    margin = frame.margin
    lefts, panel_width = _places(frame.columns, cell_width)
    tops, panel_height = _places(frame.rows, CELL_HEIGHT)
    a_row = panels or frame.panels_in_row(panel_width + PANEL_GAP, width - margin)
    bottom = y = top + 14 * (len(frame.columns) > 1)
    drawn: list[Cell] = []
    numbered = False
    long = bool(frame.outer) and text_width(frame.panel_name((0,) * len(frame.outer)), 11) > panel_width + 8
    lines = (line for line in frame.lines(a_row) if says or not isinstance(line, str))
    for band in _bands(lines, panel_width, width - margin, joined=panels is None):
        if isinstance(band, str):
            canvas.words(margin + 6, y + 14, f"⋮  {band}", size=11, anchor="start", fill=MUTED)
            y += GAP_LINE
            bottom = max(bottom, y)
            continue
        over_head = 14 if not numbered and len(frame.columns) > 1 else 0
        y += 16 * bool(frame.outer) + 16 * long
        x = margin
        for k, line in enumerate(band):
            known_position = next((position for position in line if position is not None), None)
            if long and known_position is not None:
                outer = frame.panel_name(known_position[:-1])
                canvas.words(x, y - 20 - over_head, outer, size=11, anchor="start", bold=True)
            for across, position in enumerate(line):
                if position is None:
                    canvas.words(x + GAP_COLUMN / 2, y + panel_height / 2 + 4, "…", size=16, fill=MUTED)
                    x += GAP_COLUMN + PANEL_GAP
                    continue
                if frame.outer:
                    name = frame.panel_name(position, last=long)
                    canvas.words(x + panel_width / 2, y - 4 - over_head, name, size=11, bold=True)
                if not numbered:
                    frame.head(canvas, [x + left for left in lefts], y - 5, cell_width)
                if across == 0 and k == 0:
                    frame.side(canvas, x - 6, [y + low for low in tops])
                cells = [(cell, x + lefts[j], y + tops[i]) for cell, i, j in frame.cells(position)]
                drawn += [cell for cell, _, _ in cells]
                for cell, cx, cy in cells:
                    draw_cell(
                        canvas, cell, cx, cy, cell_width, "" if path else write(cell), paint, marked,
                        vector=cell.offset in vector and cell.element is not None,
                        hint=hint(cell) if hint is not None else "",
                    )  # fmt: skip
                if path:
                    half = CELL_HEIGHT / 2
                    stops = [(c.offset, cx + half, cy + half) for c, cx, cy in cells if c.element is not None]
                    _walk(canvas, sorted(stops))
                x += panel_width + PANEL_GAP
            x += BAND_GAP
        numbered = True
        bottom = max(bottom, y + panel_height)
        y += panel_height + GAP
    if not drawn:
        canvas.words(0, bottom + 14, "no elements", anchor="start", fill=MUTED, mono=False)
        bottom += 20
    return Drawn(drawn, bottom)


Line = list[tuple[int, ...] | None]


def _bands(
    lines: Iterable[Line | str], panel_width: float, width: float, joined: bool
) -> Iterator[list[Line] | str]:
    """Lines of panels, short ones ``joined`` side by side where they fit the width."""
    band: list[Line] = []
    taken = 0.0
    for line in lines:
        if isinstance(line, str):
            yield from [band] * bool(band)
            band, taken = [], 0.0
            yield line
            continue
        wide = BAND_GAP + sum(
            PANEL_GAP + (GAP_COLUMN if position is None else panel_width) for position in line
        )
        if band and (not joined or taken + wide > width + PANEL_GAP + BAND_GAP):
            yield band
            band, taken = [], 0.0
        band.append(line)
        taken += wide
    yield from [band] * bool(band)


def _places(numbers: Sequence[int | None], size: float) -> tuple[list[float], float]:
    """Where rows or columns begin, those that are left out in a slim one, and where the last ends."""
    places, at = [], 0.0
    for number in numbers:
        places.append(at)
        at += SLIM if number is None else size
    return places, at


def _blocked(layout: Layout) -> list[int]:
    """The axes that a format cuts into blocks, where it does so with two of them."""
    found = sorted(
        term[0]
        for term, ladder, room in zip(layout.terms, layout.ladders, layout.padded, strict=True)
        if len(term) == 1 and len(ladder) > 1 and room > 1
    )
    return found if len(found) == 2 else []


class Frame:
    """How axes become rows, columns and panels, and which of them are shown."""

    def __init__(
        self, layout: Layout, names: tuple[str, ...], most: int, mark: Sequence[int] | None = None,
        plane: Sequence[str] | None = None, stacked: tuple[int, int] = (4, 4), panels: int = 64,
    ) -> None:  # fmt: skip
        self.layout = layout
        self.places = Places(layout)
        self.names = names
        # Where axes are fused, padding is behind their common number and on none of them.
        self.room = layout.padded_dims
        counted = [a for a, size in enumerate(self.room) if size != 1]
        inner = (_blocked(layout) or counted[-2:]) if plane is None else self._named(plane)
        self.outer = [a for a in counted if a not in inner]
        self.row_axis = inner[-2] if len(inner) > 1 else None
        self.column_axis = inner[-1] if inner else None
        # Of a padded axis the last element is drawn, and not only the last place of the padding.
        ends = (
            size - 1 if 0 < size < room else None for size, room in zip(layout.dims, self.room, strict=True)
        )
        kept = tuple(mark) if mark is not None else tuple(ends)
        self.rows, self.columns = (
            shown(self.room[axis], most, kept[axis]) if axis is not None else [0]
            for axis in (self.row_axis, self.column_axis)
        )
        few = prod(self.room[a] for a in self.outer) > panels
        before, last = stacked if few else (64, 64)
        self.stacks = [
            shown(self.room[a], last if a == self.outer[-1] else before, kept[a]) for a in self.outer
        ]

    def _named(self, plane: Sequence[str]) -> list[int]:
        unknown = [name for name in plane if name not in self.names]
        if unknown or len(plane) != 2 or len(set(plane)) != 2:
            raise LayoutError(
                f"plane {list(plane)} must be two different axes of {self.layout}: {', '.join(self.names)}"
            )
        return [self.names.index(name) for name in plane]

    @property
    def left_out(self) -> list[str]:
        """What is not drawn, axis by axis: ``h = 14..54``."""
        axes = [*self.outer, self.row_axis, self.column_axis]
        runs = zip(axes, [*self.stacks, self.rows, self.columns], strict=True)
        return [text for axis, numbers in runs if axis is not None for text in self._runs(axis, numbers)]

    def _runs(self, axis: int, numbers: Sequence[int | None]) -> Iterator[str]:
        for k, number in enumerate(numbers):
            if number is None:
                first = (numbers[k - 1] or 0) + 1 if k else 0
                last = ((numbers[k + 1] or 0) if k + 1 < len(numbers) else self.room[axis]) - 1
                yield f"{self.names[axis]} = {first}" + (f"..{last}" if last > first else "")

    @property
    def drawn_panels(self) -> int:
        """How many panels are drawn."""
        return prod(sum(number is not None for number in stack) for stack in self.stacks)

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

    def panel_name(self, position: tuple[int, ...], last: bool = False) -> str:
        """What distinguishes a panel, ``n=0 c=9``; of the ``last`` axis alone if the others are told."""
        named = [f"{self.names[a]}={i}" for a, i in zip(self.outer, position, strict=False)]
        return named[-1] if last else " ".join(named)

    def cells(self, position: tuple[int, ...]) -> Iterator[tuple[Cell, int, int]]:
        """The cells of a panel, each with its row and its column among those that are shown."""
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
                    yield cell, i, j

    def all_cells(self) -> Iterator[Cell]:
        """The cells of all panels."""
        for position in product(*([v for v in stack if v is not None] for stack in self.stacks)):
            yield from (cell for cell, _, _ in self.cells(position))

    def head(self, canvas: Canvas, lefts: Sequence[float], y: float, cell_width: float) -> None:
        """Number the columns."""
        for j, (left, column) in enumerate(zip(lefts, self.columns, strict=True)):
            if len(self.columns) < 2 or self.column_axis is None:
                return
            text = f"{self.names[self.column_axis]}={column}" if not j else str(column)
            if column is None:
                canvas.words(left + SLIM / 2, y, "…", size=10, fill=MUTED)
            else:
                canvas.words(left + cell_width / 2, y, text, size=10, fill=MUTED)

    def side(self, canvas: Canvas, x: float, tops: Sequence[float]) -> None:
        """Number the rows."""
        for i, (top, row) in enumerate(zip(tops, self.rows, strict=True)):
            if len(self.rows) < 2 or self.row_axis is None:
                return
            text = f"{self.names[self.row_axis]}={row}" if not i else str(row)
            if row is None:
                canvas.words(x, top + SLIM - 2, "⋮", size=10, anchor="end", fill=MUTED)
            else:
                canvas.words(x, top + BASE, text, size=10, anchor="end", fill=MUTED)


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
