"""The same tensor in two formats: which bytes move, and from where. ``relayout diff --svg`` draws it.

Memory in the first format, cache line by cache line, each line in a colour of its own; then memory in the
second, each element in the colour of the line that it comes from. A line of many colours is gathered from
many lines; a line of one colour is copied. Elements that stay where they are have no colour.

>>> import relayout as rl
>>> a, b = (rl.MemoryDesc((1, 16, 4, 4), "f32", format) for format in ("nchw", "nChw16c"))
>>> picture = beside(a, b)
>>> "from 16 lines" in picture, "from 1 line<" in picture
(True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relayout.draw.canvas import Canvas, text_width
from relayout.draw.cells import Cell, Paint, check_positive, names_of
from relayout.draw.colours import HOLE, INK, PAPER, PLAIN, RULE, shade, steps_of
from relayout.draw.lines import Lines
from relayout.draw.shares import percent
from relayout.draw.sheet import WIDTH, headline, hints, name_of, type_of, wrapped
from relayout.draw.vector import LINE, vector_of
from relayout.errors import LayoutError
from relayout.layout.layout import Layout, layout_of, spell_dims
from relayout.loops.difference import difference

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["beside"]

APART = 40.0  # pixels between the two memories, side by side
WIDEST = 1100.0  # pixels, beyond which they stand one above the other


def beside(
    a: MemoryDesc | Layout, b: MemoryDesc | Layout, *, axes: Sequence[str] | None = None,
    vector: str | None = None, rows: int = 20, pointed: bool = True, names: tuple[str, str] | None = None,
) -> str:  # fmt: skip
    """Draw the same tensor in two formats, and which bytes move.

    Parameters
    ----------
    a, b : MemoryDesc or Layout
        The tensor before and after, indexed alike: axis k of one is axis k of the other. The elements of a
        layout are taken to be f32.
    axes : sequence of str, optional
        What the axes are called, one name an axis. Without it: the words of the first format's dialect.
    vector : str, optional
        The axis along which the vector runs whose cache lines are counted; see :func:`~relayout.draw.sheet`.
    rows : int
        Rows of either memory at most.
    pointed : bool
        Cells tell who points at them where they are; see :func:`~relayout.draw.sheet.sheet`.
    names : tuple of str, optional
        What the two formats are called. Without it: the formats.

    Returns
    -------
    str
        A SVG document.

    Raises
    ------
    LayoutError
        The sizes differ, ``vector`` names no axis, or ``rows`` is less than 1.
    """
    one, two = layout_of(a), layout_of(b)
    check_positive(rows=rows)
    if one.dims != two.dims:
        raise LayoutError(
            f"{one} and {two} are no two formats of one tensor: the sizes {spell_dims(one.dims)} and "
            f"{spell_dims(two.dims)} differ"
        )
    (bits, dtype), (new_bits, new_dtype) = type_of(a), type_of(b)
    called = names_of(one, axes)
    titles = names or (name_of(one), name_of(two))
    meant = axes if axes is not None else called if one.roles is not None else None
    lanes = [vector_of(one, bits, vector, meant), vector_of(two, new_bits, vector, meant)]

    after = Lines(two, new_bits, called, rows=rows, wanted=lanes[1].offsets[:1] if lanes[1] else ())
    elements = [cell.element for cell in after.cells.values() if cell.element is not None]
    before = Lines(one, bits, called, rows=rows, wanted=(one.offset(*element) for element in elements))
    source = _Source(one, two, bits, new_bits, before)

    canvas = Canvas()
    sizes = spell_dims(one.dims) or "scalar"
    types = dtype if dtype == new_dtype else f"{dtype} to {new_dtype}"
    caption = f"{titles[0]} to {titles[1]}   {sizes}   {types}"
    canvas.words(0, 13, caption, size=15, anchor="start", bold=True)
    y = wrapped(canvas, 20, _summary(one, two, bits, new_bits), 0, fill=INK)
    words = [
        f"{lane.words}: in {lane.lines} cache line{'s' * (lane.lines != 1)} of {LINE} bytes in {title}"
        for lane, title in zip(lanes, titles, strict=True)
        if lane is not None
    ]
    for line in words:
        y = wrapped(canvas, y, line, 0, fill=INK)

    aside = _width(before) + APART + _width(after) + text_width("from 16 lines", 11) <= WIDEST
    left, top = 0.0, y + 6
    bottoms = []
    for lines, title, origin in ((before, titles[0], False), (after, titles[1], True)):
        held = lines.labels or "nothing"
        y = headline(canvas, top, f"{title}, cache line by cache line; cells hold {held}", left)
        y = lines.draw(
            canvas, y, source.of_new if origin else source.of_old, left=left,
            hint=hints(lines.layout, lines.bits, called) if pointed else None,
            note=source.note if origin else None,
        )  # fmt: skip
        if lines.left_out:
            total = lines.left_out + len(lines.lines)
            y = wrapped(canvas, y, f"drawn: {len(lines.lines)} of {total:,} cache lines", left)
        bottoms.append(y)
        if aside:
            left = max(canvas.right + APART, left)
        else:
            top = y + 8
    source.legend(canvas, max(bottoms) + 12, titles[0], after)
    return canvas.document(
        caption, f"{one} and {two}: memory of both, coloured by the cache line of the first. "
        f"{_summary(one, two, bits, new_bits)} {'; '.join(words)}.",
    )  # fmt: skip


def _width(lines: Lines) -> float:
    beside = max([0.0, *(text_width(lines.note(start), 11) for start in lines.starts())])
    return lines.margin + lines.row * lines.cell_width + beside + 12


def _summary(one: Layout, two: Layout, bits: int, new_bits: int) -> str:
    """How many elements move, in words."""
    found = difference(one, two, 0)
    padding = [count * size // 8 for count, size in zip(found.padding, (bits, new_bits), strict=True)]
    padded = f" Padding: {padding[0]:,} and {padding[1]:,} bytes." if any(padding) else ""
    if bits != new_bits:
        return f"Elements of {bits} and {new_bits} bits: every byte is written anew.{padded}"
    if found.same_bytes:
        return f"The same bytes: nothing moves.{padded}"
    if found.moved is None:
        return f"Of {found.elements:,} elements some move (too irregular to count).{padded}"
    stay = found.elements - found.moved
    share = f" ({percent(stay, found.elements)})" if found.elements else ""
    return f"{found.moved:,} of {found.elements:,} elements move, {stay:,} stay{share}.{padded}"


class _Source:
    """From which cache line of the old memory an element comes: what gives the colours."""

    def __init__(self, old: Layout, new: Layout, bits: int, new_bits: int, drawn: Lines) -> None:
        self.old, self.new, self.bits, self.new_bits = old, new, bits, new_bits
        self.drawn = drawn
        self.numbers = {number: k for k, number in enumerate(drawn.lines)}
        self.of_old = _By(self, len(self.numbers))
        self.of_new = _By(self, len(self.numbers))

    def line(self, element: tuple[int, ...]) -> int:
        """The cache line of an element in the old memory."""
        return self.drawn.line_number(self.old.offset(*element))

    def stays(self, element: tuple[int, ...]) -> bool:
        """Whether the bytes of an element are where they were."""
        return self.old.offset(*element) * self.bits == self.new.offset(*element) * self.new_bits

    def note(self, row: list[Cell]) -> str:
        """How many old lines a row of the new memory is gathered from."""
        count = len({self.line(cell.element) for cell in row if cell.element is not None})
        return f"from {count} line{'s' * (count != 1)}" if count else ""

    def legend(self, canvas: Canvas, y: float, title: str, after: Lines) -> None:
        """Say what the colours mean; only what occurs."""
        cells = [*self.drawn.cells.values(), *after.cells.values()]
        elements = [cell.element for cell in cells if cell.element is not None]
        moving = [element for element in elements if not self.stays(element)]
        used = {self.numbers[k] for k in map(self.line, moving) if k in self.numbers}
        items: list[tuple[str, str]] = []
        for first, last in steps_of(len(self.numbers)):
            if any(first <= k <= last for k in used):
                ends = [self.drawn.lines[k] * self.drawn.line for k in (first, last)]
                said = f"{ends[0]}" if first == last else f"{ends[0]}..{ends[1]}"
                items.append((said, shade(first, len(self.numbers))))
        if items:
            items[0] = (f"line of {title} at offset {items[0][0]}", items[0][1])
        if any(self.line(element) not in self.numbers for element in moving):
            items.append((f"line of {title} that is not drawn", PAPER))
        if len(moving) < len(elements):
            items.append(("stays where it is", PLAIN))
        if any(cell.element is None and cell.numbers is not None for cell in cells):
            items.append(("padding (zeros)", "hatch"))
        if any(cell.numbers is None for cell in cells):
            items.append(("other data", HOLE))
        x, limit = 0.0, max(canvas.right, WIDTH / 2)
        for text, fill in items:
            wide = text_width(text, 11) + 34
            if x and x + wide > limit + 14:
                x, y = 0.0, y + 20
            if fill == "hatch":
                canvas.hatch(x, y, 14, 14, fill=PLAIN)
            else:
                canvas.box(x, y, 14, 14, fill=fill, stroke=RULE, thickness=0.8)
            canvas.words(x + 20, y + 11, text, size=11, anchor="start", fill=INK)
            x += wide


class _By(Paint):
    """Colours of cells by where they come from."""

    def __init__(self, source: _Source, count: int) -> None:
        self.source, self.count, self.name = source, count, "line"

    def value(self, cell: Cell) -> int | None:
        """The number of the line among those that are drawn."""
        if cell.element is None or self.source.stays(cell.element):
            return None
        return self.source.numbers.get(self.source.line(cell.element))

    def fill(self, cell: Cell) -> str:
        """The colour of a line; none for what stays, or comes from a line that is not drawn."""
        value = self.value(cell)
        if value is not None:
            return shade(value, self.count)
        return PLAIN if cell.element is None or self.source.stays(cell.element) else PAPER
