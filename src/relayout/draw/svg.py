"""Pictures of layouts as SVG text, with the standard library alone.

Three pictures answer three questions about a layout. They use the same colours, so that the eye can follow a block from one to the next:

====================  ===========================================================================================
picture               question
====================  ===========================================================================================
:func:`logical`       the tensor as a program indexes it: *where does each element lie?* Cells hold offsets.
:func:`memory`        the memory from its first to its last element: *who lies here?* Cells hold indices.
:func:`digits`        the numbers in between: *how does an index become an offset?*
====================  ===========================================================================================

Cells are coloured by one *digit*, written as everywhere in Relayout: ``"c//8"`` (which block of channels), ``"c%8"`` (which place in the block),
``"h"``. Padding, room that belongs to the layout and holds zeros, is hatched in the colour of the block that it completes. Holes, places between
elements that belong to somebody else, are left empty with a dashed border.

>>> import relayout as rl
>>> picture = memory(rl.Layout((1, 17, 2, 2), "nChw8c"))
>>> picture.startswith("<svg ") and "<title>nChw8c:1x17x2x2 in memory</title>" in picture
True

What is too large to be seen is cut out: the first rows and the last, with dots in between. Every cell carries what it says as ``data-offset`` and
``data-index`` as well, so that a program (or a test) can read the picture back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from relayout.draw.canvas import FILLS, HOLE, INK, MUTED, RULE, STROKES, Canvas, fill_of, text_width
from relayout.errors import LayoutError
from relayout.layout.format import Format, spell_digit
from relayout.layout.layout import Layout, LayoutDigit, spell_dims

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["digits", "logical", "memory"]

WIDEST_ROW = 40  # cells side by side, beyond which a row is cut out
CELL_HEIGHT = 26
GAP = 10

_COLOUR = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*(?://\s*(\d+))?\s*(?:%\s*(\d+))?\s*")


# -- memory -----------------------------------------------------------------------------------------------------


def memory(
    layout: Layout | MemoryDesc,
    *,
    colour: str | None = None,
    columns: int | None = None,
    rows: int = 24,
    label: Callable[[tuple[int, ...]], str] | None = None,
    title: str | None = None,
) -> str:
    """Draw memory as rows of cells in physical order, each labelled with the logical index of its element.

    Parameters
    ----------
    layout : Layout or MemoryDesc
        What to draw.
    colour : str, optional
        The digit that colours the cells, such as ``"c//8"`` or ``"h"``. Without it: the blocks of a blocked axis, else the channels.
    columns : int, optional
        Elements in a row. Without it: the innermost block, or the innermost axes up to 32 elements.
    rows : int
        Rows at most; the middle of a longer memory is cut out.
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
        ``colour`` names no axis of the layout, or ``columns`` or ``rows`` are less than 1.

    Examples
    --------
    >>> import relayout as rl
    >>> picture = memory(rl.Layout((1, 3, 2, 2), "nhwc"))
    >>> picture.count("<g data-offset="), 'data-offset="4" data-index="0,1,0,1"' in picture
    (12, True)
    """
    known = _layout(layout)
    _check_positive(columns=columns, rows=rows)
    places = _Places(known)
    paint = _Paint(known, colour)
    low, high = known.bounds()
    count = high - low + 1
    width = min(columns or _row_length(known), max(count, 1))
    shown_rows = _shown(-(-count // width), rows)
    shown_columns = _shown(width, WIDEST_ROW)
    axes = [a for a, size in enumerate(known.dims) if size > 1] or list(range(known.rank))
    write = label or (lambda index: ",".join(str(index[a]) for a in axes))
    canvas = Canvas()
    head = _heading(canvas, title if title is not None else f"{known} in memory")
    cells = {
        low + r * width + c: places.at(low + r * width + c)
        for r in shown_rows
        if r is not None
        for c in shown_columns
        if c is not None and r * width + c < count
    }
    words = {k: write(cell.index) if cell.index is not None else "" for k, cell in cells.items()}
    cell_width = max([22.0, *(text_width(text, 11) + 8 for text in words.values())])
    margin = text_width(str(high), 11) + 12
    notes = _Notes(known, width)
    y = head + 4
    canvas.words(margin - 10, y + 10, "offset", size=10, anchor="end", fill=MUTED, mono=False)
    for position, c in enumerate(shown_columns):
        if c is not None and len(shown_columns) > 1:
            canvas.words(margin + (position + 0.5) * cell_width, y + 10, f"+{c}", size=10, fill=MUTED)
    y += 16
    before: tuple[int, ...] | None = None
    for r in shown_rows:
        if r is None:
            canvas.words(margin + cell_width / 2, y + 14, "⋮", size=16, fill=MUTED)
            hidden = -(-count // width) - len(shown_rows) + 1
            canvas.words(margin + cell_width * 1.2, y + 14, f"{hidden} more rows", size=11, anchor="start", fill=MUTED, mono=False)
            y, before = y + CELL_HEIGHT, None
            continue
        start = low + r * width
        values = notes.of(cells[k] for k in range(start, start + width) if k in cells)
        if before is not None and values and notes.begins_group(before, values):
            y += GAP / 2
        before = values or before
        canvas.words(margin - 10, y + 17, str(start), size=11, anchor="end", fill=MUTED)
        for position, c in enumerate(shown_columns):
            if c is None:
                canvas.words(margin + (position + 0.5) * cell_width, y + 17, "…", fill=MUTED)
            elif start + c in cells:
                x = margin + position * cell_width
                _cell(canvas, cells[start + c], x, y, cell_width, words[start + c], paint)
        if values:
            x = margin + len(shown_columns) * cell_width + 10
            canvas.words(x, y + 17, notes.text(values), size=11, anchor="start", fill=MUTED)
        y += CELL_HEIGHT
    names = ",".join(known.axis_names()[a] for a in axes)
    said = [f"cell: {names}" if label is None and axes else "", *(() if count else ("no elements",))]
    _legend(canvas, y + 10, margin, paint, [w for w in said if w], cells.values())
    return canvas.document(
        title if title is not None else f"{known} in memory",
        f"Memory of {known}: {count} elements from offset {low}, {width} in a row, coloured by {paint.name or 'nothing'}.",
    )


# -- the logical tensor -----------------------------------------------------------------------------------------


def logical(
    layout: Layout | MemoryDesc,
    *,
    colour: str | None = None,
    panels: int | None = None,
    most: int = 16,
    path: bool = False,
    title: str | None = None,
) -> str:
    """Draw the tensor as a program indexes it, each cell labelled with the offset of its element.

    The last two axes with more than one element make a panel; the axes before them make rows of panels. Padding is drawn behind the elements of
    its axis, hatched, with the offset that is reserved for it.

    Parameters
    ----------
    layout : Layout or MemoryDesc
        What to draw.
    colour : str, optional
        The digit that colours the cells; see :func:`memory`.
    panels : int, optional
        Panels in a row. Without it: the block of the axis that counts them, or 8.
    most : int
        Rows and columns of a panel, and panels of an axis, at most; the middle of longer axes is cut out.
    path : bool
        Draw the walk through memory, from the lowest to the highest offset, instead of the offsets.
    title : str, optional
        What to write above. Without it: the layout.

    Returns
    -------
    str
        A SVG document.

    Raises
    ------
    LayoutError
        ``colour`` names no axis of the layout, or a count is less than 1.

    Examples
    --------
    >>> import relayout as rl
    >>> picture = logical(rl.Layout((1, 17, 2, 2), "nChw8c"))
    >>> 'data-offset="33" data-index="0,9,0,0"' in picture, picture.count("<g data-offset=")  # 24 channels have room
    (True, 96)
    """
    known = _layout(layout)
    _check_positive(panels=panels, most=most)
    places = _Places(known)
    paint = _Paint(known, colour)
    own = all(len(term) == 1 for term in known.terms)
    room = known.padded_dims if own else known.dims
    room = tuple(max(r, 0) for r in room)
    axes = [a for a, size in enumerate(room) if size != 1]
    names = known.axis_names()
    inner = axes[-2:]
    outer = axes[:-2]
    row_axis = inner[0] if len(inner) == 2 else None
    column_axis = inner[-1] if inner else None
    shown_rows = _shown(room[row_axis], most) if row_axis is not None else [0]
    shown_columns = _shown(room[column_axis], most) if column_axis is not None else [0]
    stacks = list(product(*(_shown(room[a], most) for a in outer)))
    shown_stacks = [stacks[k] if k is not None else (None,) for k in _shown(len(stacks), most * most)]
    canvas = Canvas()
    heading = title if title is not None else f"{known}, logical"
    top = _heading(canvas, heading) + 4
    widest = text_width(str(known.bounds()[1]), 11) + 10
    cell_width = CELL_HEIGHT if path else max(float(CELL_HEIGHT), widest)
    row_names = row_axis is not None and len(shown_rows) > 1
    left = text_width(f"{names[row_axis]}={max(room[row_axis] - 1, 0)}", 10) + 8 if row_axis is not None and row_names else 0.0
    panel_width = left + len(shown_columns) * cell_width
    panel_height = len(shown_rows) * CELL_HEIGHT + 16 + (14 if outer else 0)
    a_row = panels or _panels_in_row(known, outer, panel_width)
    drawn: list[_Cell] = []
    bottom = top
    for position, stack in enumerate(shown_stacks):
        x = position % a_row * (panel_width + GAP * 1.6)
        y = top + position // a_row * (panel_height + GAP)
        if None in stack:
            canvas.words(x + panel_width / 2, y + panel_height / 2, "…", size=16, fill=MUTED)
            continue
        if outer:
            said = " ".join(f"{names[a]}={i}" for a, i in zip(outer, stack, strict=True))
            canvas.words(x + left + len(shown_columns) * cell_width / 2, y + 9, said, size=11, bold=True)
            y += 14
        for j, c in enumerate(shown_columns):
            if c is not None and column_axis is not None and len(shown_columns) > 1:
                canvas.words(x + left + (j + 0.5) * cell_width, y + 10, f"{names[column_axis]}={c}" if not j else str(c), size=10, fill=MUTED)
        y += 14
        walk: list[tuple[int, float, float]] = []
        for i, r in enumerate(shown_rows):
            if row_names and r is not None and row_axis is not None:
                canvas.words(x + left - 5, y + i * CELL_HEIGHT + 17, f"{names[row_axis]}={r}" if not i else str(r), size=10, anchor="end", fill=MUTED)
            for j, c in enumerate(shown_columns):
                cx, cy = x + left + j * cell_width, y + i * CELL_HEIGHT
                if r is None or c is None:
                    canvas.words(cx + cell_width / 2, cy + 17, "…", fill=MUTED)
                    continue
                index = [0] * known.rank
                for a, value in zip(outer, stack, strict=True):
                    index[a] = value if value is not None else 0
                if row_axis is not None:
                    index[row_axis] = r
                if column_axis is not None:
                    index[column_axis] = c
                cell = places.of(tuple(index))
                if cell is None:
                    continue
                drawn.append(cell)
                _cell(canvas, cell, cx, cy, cell_width, "" if path else str(cell.offset), paint)
                if cell.index is not None:
                    walk.append((cell.offset, cx + cell_width / 2, cy + CELL_HEIGHT / 2))
        if path and walk:
            walk.sort()
            canvas.line([(px, py) for _, px, py in walk], thickness=1.6, arrow=True)
            canvas.dot(walk[0][1], walk[0][2], 3.5)
        bottom = max(bottom, y + len(shown_rows) * CELL_HEIGHT)
    if not drawn:
        canvas.words(0, top + 14, "no elements", anchor="start", fill=MUTED, mono=False)
        bottom = top + 20
    said = "line: the order in memory" if path else "cell: offset"
    _legend(canvas, bottom + 12, 0, paint, [said], drawn)
    return canvas.document(
        heading, f"The tensor {spell_dims(known.dims)} by logical index, coloured by {paint.name or 'nothing'}; cells hold offsets of {known}."
    )


# -- digits -----------------------------------------------------------------------------------------------------


def digits(
    layout: Layout | MemoryDesc | Format | str, *, index: Sequence[int] | None = None, title: str | None = None
) -> str:
    """Draw how axes are cut into digits, and in which order the digits stand in memory.

    Above are the logical axes, each with its digits, most significant first. Below are the same digits in memory order, outermost first, with
    extents and strides (in elements). With an ``index`` the picture is a worked example: the value of each digit, and the sum that is the offset.

    Parameters
    ----------
    layout : Layout, MemoryDesc, Format or str
        What to draw. A format has no sizes yet: its open digits have no extents, and there are no strides.
    index : sequence of int, optional
        A logical index to follow; needs a layout.
    title : str, optional
        What to write above. Without it: the layout or format.

    Returns
    -------
    str
        A SVG document.

    Raises
    ------
    LayoutError
        The format waits for a rank or data type, the index is out of bounds, or there is an index but no sizes.

    Examples
    --------
    >>> import relayout as rl
    >>> picture = digits(rl.Layout((2, 17, 5, 4), "nChw8c"), index=(1, 9, 0, 2))
    >>> "1·480 + 1·160 + 0·32 + 2·8 + 1·1 = 657" in picture
    True
    >>> "c//16" in digits("nChw16c")
    True
    """
    if isinstance(layout, (str, Format)):
        if index is not None:
            raise LayoutError(f"index {tuple(index)} can't be followed through {layout}, which has no sizes; pass a Layout")
        diagram = _diagram_of_format(Format(layout))
    else:
        diagram = _diagram_of_layout(_layout(layout), index)
    box, gap = _box_width(diagram), 8.0
    canvas = Canvas()
    heading = title if title is not None else diagram.name
    y = _heading(canvas, heading) + 6
    canvas.words(0, y + 8, "logical axes, cut into digits", size=11, anchor="start", fill=MUTED, mono=False)
    y += 16
    total = len(diagram.memory)
    spare = gap * 2 if len(diagram.axes) > 1 else 0.0
    places: dict[tuple[int, int], float] = {}
    x = 0.0
    with_values = index is not None
    for t, axis in enumerate(diagram.axes):
        wide = len(axis.digits) * box + (len(axis.digits) - 1) * gap / 2
        wide = max(wide, text_width(axis.text, 12) + 12)
        canvas.box(x, y, wide, 26, fill=fill_of(t), round=3)
        canvas.words(x + wide / 2, y + 17, axis.text, bold=True)
        step = (wide + gap / 2) / len(axis.digits)
        for level, digit in enumerate(axis.digits):
            left, inside = x + level * step, step - gap / 2
            canvas.box(left, y + 29, inside, 40 if with_values else 26, fill=fill_of(t), opacity=0.45, round=3)
            canvas.words(left + inside / 2, y + 46, digit.text)
            if with_values:
                canvas.words(left + inside / 2, y + 62, f"= {digit.value}", bold=True)
            places[t, level] = left + inside / 2
        x += wide + spare
    y += 69 if with_values else 55
    upper = x - spare
    lower = total * box + (total - 1) * gap
    shift = max(0.0, (upper - lower) / 2)
    if lower > upper:  # centre the upper row by moving the lower one as little as the other way round
        shift = -(lower - upper) / 2
    wires = 64.0
    for k, (t, level) in enumerate(diagram.memory):
        canvas.wire(places[t, level], y, shift + k * (box + gap) + box / 2, y + wires, stroke=STROKES[t % len(STROKES)])
    y += wires
    for k, (t, level) in enumerate(diagram.memory):
        digit = diagram.axes[t].digits[level]
        left = shift + k * (box + gap)
        lines = [text for text in (digit.extent, digit.stride) if text]
        canvas.box(left, y, box, 26 + 15 * len(lines), fill=fill_of(t), round=3)
        canvas.words(left + box / 2, y + 17, digit.text, bold=True)
        for row, text in enumerate(lines):
            canvas.words(left + box / 2, y + 33 + row * 15, text, size=11)
    y += 26 + 15 * (2 if diagram.has_strides else 1)
    canvas.words(shift, y + 18, "outermost: slowest", size=11, anchor="start", fill=MUTED, mono=False)
    canvas.words(shift + lower, y + 18, "innermost: fastest", size=11, anchor="end", fill=MUTED, mono=False)
    if lower > 300:
        canvas.line([(shift + 112, y + 14.5), (shift + lower - 112, y + 14.5)], stroke=RULE, arrow=True)
    if with_values:
        y += 34
        for line in _sum_lines(diagram, lower):
            canvas.words(shift, y + 14, line, size=13, anchor="start", bold=True)
            y += 20
    return canvas.document(heading, f"The digits of {diagram.name}, from logical axes to memory order.")


@dataclass(frozen=True)
class _DiagramDigit:
    text: str
    extent: str
    stride: str = ""
    value: int = 0
    step: int = 0


@dataclass(frozen=True)
class _DiagramAxis:
    text: str
    digits: tuple[_DiagramDigit, ...]


@dataclass(frozen=True)
class _Diagram:
    name: str
    axes: tuple[_DiagramAxis, ...]
    memory: tuple[tuple[int, int], ...]
    """Places ``(axis, level)`` in memory order, outermost first."""
    has_strides: bool
    offset0: int = 0
    offset: int = 0


def _diagram_of_format(format: Format) -> _Diagram:
    names = format.axis_names()
    axes = []
    for term, radices in zip(format.terms, format.radices, strict=True):
        own = tuple(names[a] for a in term)
        weights = [prod(radices[level:]) for level in range(len(radices) + 1)]
        made = tuple(
            _DiagramDigit(spell_digit(own, weight, extent), f"extent {extent}" if extent else "open")
            for weight, extent in zip(weights, (None, *radices), strict=True)
        )
        axes.append(_DiagramAxis(" ".join(own), made))
    return _Diagram(str(format), tuple(axes), format.order, has_strides=False)


def _diagram_of_layout(layout: Layout, index: Sequence[int] | None) -> _Diagram:
    names = layout.axis_names()
    offset = layout.offset(*index) if index is not None else 0
    numbers = layout._fuse(tuple(index)) if index is not None else (0,) * len(layout.terms)
    axes = []
    for t, (term, ladder) in enumerate(zip(layout.terms, layout.ladders, strict=True)):
        own = tuple(names[a] for a in term)
        made = []
        for level, (weight, extent, stride) in enumerate(ladder):
            text = spell_digit(own, weight, extent if level else None)
            value = numbers[t] // weight % (extent or 1)
            made.append(_DiagramDigit(text, f"extent {extent}", f"stride {stride}", value, stride))
        size, room = layout.term_size(t), layout.padded[t]
        text = f"{' '.join(own)} = {numbers[t]} of {size}" if index is not None else f"{' '.join(own)}: {size}"
        axes.append(_DiagramAxis(text + (f" (room {room})" if room != size else ""), tuple(made)))
    order = sorted(layout.order, key=lambda place: -abs(layout.ladders[place[0]][place[1]].stride))
    return _Diagram(str(layout), tuple(axes), tuple(order), True, layout.offset0, offset)


def _box_width(diagram: _Diagram) -> float:
    texts = [text for axis in diagram.axes for d in axis.digits for text in (d.text, d.extent, d.stride)]
    return max(64.0, *(text_width(text, 11.5) + 10 for text in texts))


def _sum_lines(diagram: _Diagram, width: float) -> list[str]:
    parts = [str(diagram.offset0)] if diagram.offset0 else []
    for t, level in diagram.memory:
        digit = diagram.axes[t].digits[level]
        parts.append(f"{digit.value}·{digit.step}")
    lines, line = [], "offset = "
    for k, part in enumerate(parts):
        piece = part if not k else f" + {part}"
        if text_width(line + piece, 13) > max(width, 380):
            lines.append(line)
            line, piece = "    ", piece.lstrip()
        line += piece
    lines.append(f"{line} = {diagram.offset}" if parts else f"offset = {diagram.offset}")
    return lines


# -- what a place holds -----------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """A place in memory: the numbers of its terms (None: a hole) and the index of its element (None: padding)."""

    offset: int
    numbers: tuple[int, ...] | None
    index: tuple[int, ...] | None


class _Places:
    """What lies where, padding and holes told apart."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sizes = tuple(layout.term_size(t) for t in range(len(layout.terms)))

    def at(self, offset: int) -> _Cell:
        """The cell of an offset. Where elements share a place, the first of them."""
        found: tuple[int, ...] | None = None
        for numbers in self.layout._numbers_at(offset):
            if all(n < size for n, size in zip(numbers, self.sizes, strict=True)):
                return _Cell(offset, numbers, self.layout._unfuse(numbers))
            if found is None and all(n < room for n, room in zip(numbers, self.layout.padded, strict=True)):
                found = numbers
        return _Cell(offset, found, None)

    def of(self, index: tuple[int, ...]) -> _Cell | None:
        """The cell of an index, which may lie in the padding of its axes; None if it lies in no room at all."""
        layout = self.layout
        if all(i < size for i, size in zip(index, layout.dims, strict=True)):
            return _Cell(layout.offset(*index), layout._fuse(index), index)
        numbers = tuple(index[term[0]] for term in layout.terms)
        if any(n >= room for n, room in zip(numbers, layout.padded, strict=True)):
            return None
        offset = layout.offset0 + sum(
            n // d.weight % d.extent * d.stride for n, ladder in zip(numbers, layout.ladders, strict=True) for d in ladder
        )
        return _Cell(offset, numbers, None)


class _Paint:
    """Which colour a cell gets: the value of one digit of it."""

    def __init__(self, layout: Layout, colour: str | None) -> None:
        self.layout = layout
        self.names = layout.axis_names()
        self.name = colour.strip() if colour is not None else self._usual()
        self.axis = self.weight = 0
        self.extent: int | None = None
        self.count = 1
        if not self.name:
            return
        match = _COLOUR.fullmatch(self.name)
        if match is None or match[1] not in self.names:
            raise LayoutError(
                f"colour {colour!r} is no digit of {layout}; write an axis ({', '.join(self.names)}), cut where you like: 'c//8', 'c%8'"
            )
        self.axis, self.weight = self.names.index(match[1]), int(match[2] or 1)
        self.extent = int(match[3]) if match[3] else None
        if self.weight < 1 or self.extent is not None and self.extent < 1:
            raise LayoutError(f"colour {colour!r}: weight and extent of a digit must be 1 or more")
        self.count = -(-layout.padded_dims[self.axis] // self.weight)
        if self.extent is not None:
            self.count = min(self.count, self.extent)

    def _usual(self) -> str:
        """The number of the block on the first blocked axis, else the channels, else the first axis that counts."""
        for term, ladder in zip(self.layout.terms, self.layout.ladders, strict=True):
            inner = [d for d in ladder if d.extent > 1]
            if len(ladder) > 1 and len(term) == 1 and inner:
                first = ladder[0] if ladder[0].extent > 1 else inner[min(1, len(inner) - 1)]
                name = self.names[term[0]]
                extent = None if first is ladder[0] else first.extent
                if first.extent > 1:
                    return spell_digit((name,), first.weight, extent)
        if "c" in self.names and self.layout.dims[self.names.index("c")] > 1:
            return "c"
        return next((name for name, size in zip(self.names, self.layout.dims, strict=True) if size > 1), "")

    def value(self, cell: _Cell) -> int | None:
        """The value of the digit in a cell; None where it has none."""
        number = cell.index[self.axis] if cell.index is not None and self.name else None
        if number is None and cell.numbers is not None and self.name:
            t = next((t for t, term in enumerate(self.layout.terms) if term == (self.axis,)), None)
            number = cell.numbers[t] if t is not None else None
        if number is None:
            return None
        number //= self.weight
        return number % self.extent if self.extent is not None else number


class _Notes:
    """What is written beside a row of memory: the digits that are the same all along it."""

    def __init__(self, layout: Layout, width: int) -> None:
        names = layout.axis_names()
        outer = [d for d in layout.digits if d.extent > 1 and abs(d.stride) >= width]
        self.digits: list[LayoutDigit] = sorted(outer, key=lambda d: -abs(d.stride))
        self.names = []
        for digit in self.digits:
            first = digit.weight == layout.ladders[digit.term][0].weight
            axes = tuple(names[a] for a in layout.terms[digit.term])
            self.names.append(spell_digit(axes, digit.weight, None if first else digit.extent))
        nested = all(abs(d.stride) % width == 0 for d in self.digits)
        self.usable = nested and bool(self.digits)

    def of(self, cells: Iterable[_Cell]) -> tuple[int, ...]:
        """The values of the outer digits in a row, empty where they are not the same all along it."""
        if not self.usable:
            return ()
        found = {
            tuple(cell.numbers[d.term] // d.weight % d.extent for d in self.digits) for cell in cells if cell.numbers is not None
        }
        return found.pop() if len(found) == 1 else ()

    def begins_group(self, before: tuple[int, ...], values: tuple[int, ...]) -> bool:
        """Whether the outermost digit has changed, where it is not the only one."""
        return len(self.digits) > 1 and before[0] != values[0]

    def text(self, values: tuple[int, ...]) -> str:
        return "  ".join(f"{name}={value}" for name, value in zip(self.names, values, strict=True))


# -- parts of pictures ------------------------------------------------------------------------------------------


def _heading(canvas: Canvas, text: str) -> float:
    """Write the title; return where the rest begins."""
    if not text:
        return 0.0
    canvas.words(0, 13, text, size=14, anchor="start", bold=True)
    return 26.0


def _cell(canvas: Canvas, cell: _Cell, x: float, y: float, width: float, text: str, paint: _Paint) -> None:
    value = paint.value(cell)
    fill = fill_of(value) if value is not None else FILLS[-1] if cell.numbers is None else "#e4e2dc"
    where = ",".join(map(str, cell.index)) if cell.index is not None else "padding" if cell.numbers is not None else "hole"
    with canvas.group(offset=cell.offset, index=where):
        if cell.numbers is None:
            canvas.box(x, y, width, CELL_HEIGHT, fill=HOLE, stroke=RULE, dashed=True)
        elif cell.index is None:
            canvas.hatch(x, y, width, CELL_HEIGHT, fill=fill)
            if text:
                canvas.words(x + width / 2, y + 17, text, size=11, fill=MUTED)
        else:
            canvas.box(x, y, width, CELL_HEIGHT, fill=fill, thickness=0.8)
            if text:
                canvas.words(x + width / 2, y + 17, text, size=11)


def _legend(canvas: Canvas, y: float, x: float, paint: _Paint, words: Sequence[str], cells: Iterable[_Cell]) -> None:
    """Say what cells, colours, hatching and empty places mean; only what occurs."""
    kinds = list(cells)
    items: list[tuple[str, str, int]] = [("", text, 0) for text in words]
    if paint.name and paint.count > 1:
        values = sorted({v for v in map(paint.value, kinds) if v is not None})[: len(FILLS)]
        items += [("colour", f"{paint.name} = {v}" if not k else str(v), v) for k, v in enumerate(values)]
        if paint.count > len(values):
            items.append(("", "…", 0))
    if any(c.index is None and c.numbers is not None for c in kinds):
        items.append(("padding", "padding (zeros)", 0))
    if any(c.numbers is None for c in kinds):
        items.append(("hole", "not of this tensor", 0))
    limit = max(canvas.right, 330.0)
    at = x
    for kind, text, value in items:
        wide = text_width(text, 11) + (20 if kind else 0) + 14
        if at + wide > limit + 14 and at > x:
            at, y = x, y + 20
        if kind == "colour":
            canvas.box(at, y, 14, 14, fill=fill_of(value), thickness=0.8)
        elif kind == "padding":
            canvas.hatch(at, y, 14, 14, fill="#e4e2dc")
        elif kind == "hole":
            canvas.box(at, y, 14, 14, fill=HOLE, stroke=RULE, dashed=True)
        canvas.words(at + (20 if kind else 0), y + 11, text, size=11, anchor="start", fill=INK if kind else MUTED)
        at += wide


def _shown(count: int, most: int) -> list[int | None]:
    """The numbers below ``count``; the middle of more than ``most`` of them is None.

    >>> _shown(3, 4), _shown(9, 4)
    ([0, 1, 2], [0, 1, None, 8])
    """
    if count <= most:
        return list(range(count))
    return [*range(max(most - 2, 1)), None, *([count - 1] if most > 2 else [])]


def _row_length(layout: Layout) -> int:
    """Elements in a row: the innermost block, or as many innermost axes as make 6 to 32 elements."""
    steps = sorted({abs(d.stride) for d in layout.digits if d.extent > 1 and d.stride} | {max(layout.span, 1)})
    runs = [step for k, step in enumerate(steps) if step > 1 and all(step % below == 0 for below in steps[:k])]
    blocks = [d.extent for ladder in layout.ladders for d in ladder[1:] if abs(d.stride) == 1]
    if blocks and 4 <= blocks[0] <= 32:
        return blocks[0]
    return next((run for run in runs if 6 <= run <= 32), max((run for run in runs if run <= 16), default=16))


def _panels_in_row(layout: Layout, outer: Sequence[int], panel_width: float) -> int:
    fitting = max(1, int(680 // (panel_width + GAP * 1.6)))
    if not outer:
        return 1
    last = outer[-1]
    for term, ladder in zip(layout.terms, layout.ladders, strict=True):
        if term == (last,) and len(ladder) > 1 and 1 < ladder[0].weight <= fitting:
            return ladder[0].weight
    size = layout.padded_dims[last]
    return size if size <= fitting else min(fitting, 8)


def _layout(given: Layout | MemoryDesc) -> Layout:
    layout = given if isinstance(given, Layout) else getattr(given, "layout", None)
    if not isinstance(layout, Layout):
        raise LayoutError(f"{given!r} has no layout to draw")
    return layout


def _check_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise LayoutError(f"{name} must be 1 or more, got {count}")


def _iter_terms(layout: Layout) -> Iterator[tuple[int, ...]]:
    yield from layout.terms
