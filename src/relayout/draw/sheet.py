"""The picture of a tensor in a format, on one sheet: ``relayout show --svg``, and what a notebook shows.

From top to bottom:

1. the formula, and what other systems call the format;
2. the tensor as a program indexes it, in slices side by side; cells hold offsets;
3. where an axis is swizzled: its numbers in order, and as memory has them;
4. memory, cache line by cache line; cells hold indices;
5. what padding costs, and how many cache lines a vector takes.

One colour has one meaning on the whole sheet: the value of one digit. A *vector* (16 channels of the first
pixel, see :mod:`relayout.draw.vector`) is light on dark in both drawings: one row of memory in ``nChw16c``,
a cell in each of 16 rows in ``nchw``. Whatever is left out of a large tensor is said.

>>> import relayout as rl
>>> picture = sheet(rl.MemoryDesc((1, 17, 4, 4), "f32", "nChw8c"))
>>> "16 channels of h=0 w=0: in 2 cache lines of 64 bytes" in picture
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from relayout.draw.canvas import Canvas, text_width
from relayout.draw.cells import CELL_HEIGHT, Cell, Paint, check_positive, legend, names_of
from relayout.draw.colours import HOLE, INK, MUTED, PAPER, PLAIN, RULE
from relayout.draw.lines import Lines
from relayout.draw.logical import PANEL_GAP, SLIM, Frame, draw_panels
from relayout.draw.names import LONGEST_NAME, by_grammar_only
from relayout.draw.names import names_of as spellings
from relayout.draw.orders import draw_order, swizzled
from relayout.draw.places import summands
from relayout.draw.shares import percent
from relayout.draw.vector import Vector, line_of, vector_of
from relayout.layout.layout import Layout, layout_of, spell_dims
from relayout.notation import dialect

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["WIDTH", "described", "headline", "hints", "name_of", "sheet", "type_of", "wrapped"]

WIDTH: Final = 860.0
"""Pixels that a sheet is wide, about."""

LONGEST: Final = 96  # characters of a line of words
TALLEST: Final = 420.0  # pixels of slices
NAMES: Final = 4  # of other systems
F32: Final = 32  # bits of an element whose type is not known


def sheet(
    desc: MemoryDesc | Layout,
    *,
    axes: Sequence[str] | None = None,
    colour: str | None = None,
    vector: str | None = None,
    mark: Sequence[int] | None = None,
    rows: int = 20,
    most: int = 18,
    values: Callable[[tuple[int, ...]], str] | None = None,
    pointed: bool = True,
    title: str | None = None,
) -> str:
    """Draw a tensor in a format: slices, memory by cache lines, padding and the lines that a vector takes.

    Parameters
    ----------
    desc : MemoryDesc or Layout
        What to draw. The elements of a layout are taken to be f32.
    axes : sequence of str, optional
        What the axes are called, one name an axis. Without it: the words of the format's own dialect.
    colour : str, optional
        The digit that colours the cells, such as ``"c//8"`` or ``"h"``. Without it: the blocks of a blocked
        axis, else the channels.
    vector : str, optional
        The axis along which the vector runs. Without it: channels, else output channels, else the last axis
        with more than one element.
    mark : sequence of int, optional
        The index of an element to be framed in both drawings.
    rows : int
        Rows of memory at most.
    most : int
        Rows and columns of a slice at most.
    values : callable, optional
        What the cells of the slices say, by index. Without it: the offset.
    pointed : bool
        Cells tell who points at them their index, offset, byte and cache line, where a page holds the picture
        as it is. Without this the picture is smaller by a third.
    title : str, optional
        What to write above. Without it: the format, the sizes and the data type.

    Returns
    -------
    str
        A SVG document, about 860 pixels wide. It follows the reader's wish for light or dark pages.

    Raises
    ------
    LayoutError
        ``colour`` or ``vector`` names no axis of the layout, ``mark`` is out of bounds, or a count is less
        than 1.
    """
    layout = layout_of(desc)
    check_positive(rows=rows, most=most)
    bits, dtype = type_of(desc)
    names = names_of(layout, axes)
    paint = Paint(layout, names, colour)
    lanes = vector_of(layout, bits, vector, axes)
    offsets = frozenset(lanes.offsets if lanes is not None else ())
    marked = layout.offset(*mark) if mark is not None else None
    canvas = Canvas()
    caption = (
        title if title is not None else f"{name_of(layout)}   {spell_dims(layout.dims) or 'scalar'}   {dtype}"
    )
    y = described(canvas, caption, layout, axes)
    hint = hints(layout, bits, names) if pointed else None

    what = "values" if values is not None else "offsets"
    y = headline(canvas, y, f"the tensor by index, in slices; cells hold {what}")
    frame = _framed(layout, names, most, mark)

    def text(cell: Cell) -> str:
        if cell.element is None:
            return ""
        return str(cell.offset) if values is None else values(cell.element)

    drawn = draw_panels(
        canvas, y, frame, paint, marked=marked, width=WIDTH, vector=offsets, text=text, hint=hint, says=False
    )
    y = drawn.bottom
    if frame.left_out:
        y = wrapped(canvas, y + 8, f"not drawn: {'; '.join(frame.left_out)}", frame.margin)
    told: list[int] = []  # values of the painted digit in the orders
    for order in swizzled(layout):
        mine = paint.name and paint.axis == order.axis
        digit = (paint.weight, paint.extent, paint.count) if mine else None
        told += [_digit(digit, number) for number in order.numbers] if digit is not None else []
        y = draw_order(canvas, y + 16, order, names[order.axis], digit)

    first = [marked] if marked is not None else []
    corners = [_first_padding(frame), _next_block(frame, paint)]
    wanted = [*first, *corners, *(lanes.offsets if lanes is not None else ())]
    known = (offset for offset in wanted if offset is not None)
    lines = Lines(layout, bits, names, wanted=known, rows=rows, width=WIDTH)
    per = "" if lines.row == lines.line else f", in rows of {lines.row} elements"
    y = headline(
        canvas, y + 18, f"memory, cache line by cache line{per}; cells hold {lines.labels or 'nothing'}"
    )
    y = lines.draw(canvas, y, paint, vector=offsets, marked=marked, hint=hint)
    y = legend(
        canvas, y + 12, 0, paint, [], [*drawn.cells, *lines.cells.values()], also=told,
        vector=lanes.words if lanes is not None else "",
    )  # fmt: skip
    y = _costs(canvas, y + 10, layout, bits, lanes)
    if lines.left_out:
        total = lines.left_out + len(lines.lines)
        wrapped(canvas, y, f"drawn: {len(lines.lines)} of {total:,} cache lines", 0)
    said = lanes.said + ". " if lanes is not None else ""
    return canvas.document(
        caption,
        f"{layout} by index and in memory, coloured by {paint.name or 'nothing'}. {said}"
        f"{_padding_in_words(layout, bits)}"
        + (f" Not drawn: {'; '.join(frame.left_out)}." if frame.left_out else ""),
    )


def type_of(desc: MemoryDesc | Layout) -> tuple[int, str]:
    """Bits and name of the data type; a layout has none, and is drawn as f32."""
    dtype = getattr(desc, "dtype", None)
    return (F32, "as f32") if dtype is None else (dtype.bits, str(dtype))


def name_of(layout: Layout) -> str:
    """The format, or the strides."""
    return str(layout.format) if layout.format is not None else f"strides {spell_dims(layout.strides)}"


def hints(layout: Layout, bits: int, names: tuple[str, ...]) -> Callable[[Cell], str]:
    """What a cell tells who points at it: ``n=0 c=9 h=1 w=0: offset 33, byte 132, cache line 2``."""

    def hint(cell: Cell) -> str:
        if cell.element is not None:
            what = (
                " ".join(f"{name}={i}" for name, i in zip(names, cell.element, strict=True)) or "the element"
            )
        else:
            what = "padding" if cell.numbers is not None else "other data"
        byte = f"{cell.offset * bits / 8:g}" if bits < 8 else str(cell.offset * bits // 8)
        return f"{what}: offset {cell.offset}, byte {byte}, cache line {line_of(cell.offset, bits)}"

    return hint


def described(canvas: Canvas, caption: str, layout: Layout, axes: Sequence[str] | None) -> float:
    """Write the title, the formula and the names elsewhere; return where the drawings begin."""
    canvas.words(0, 13, caption, size=15, anchor="start", bold=True)
    y = 22.0
    if layout.rank:
        roles = tuple(axes) if axes is not None else None
        y = wrapped(
            canvas, y, f"offset = {''.join(text for text, _ in summands(layout, roles))}", 0, fill=INK
        )
    elsewhere = _elsewhere(layout)
    if elsewhere:
        y = wrapped(canvas, y, elsewhere, 0)
    return y + 8


def _elsewhere(layout: Layout) -> str:
    """What other systems call the format, where they have it: ``OpenVINO: b_fs_yx_fsv16``."""
    if layout.format is None or not layout.rank:
        return ""
    found = spellings(layout.format)
    left = {"digits", "benchdnn", *by_grammar_only(found)}
    kept = [
        f"{dialect(name).TITLE.partition(' (')[0]}: {spelled}"
        for name, spelled in found.items()
        if name not in left and spelled != str(layout.format) and len(spelled) <= LONGEST_NAME
    ]
    return "; ".join(kept[:NAMES]) + (f"; {len(kept) - NAMES} more names" if len(kept) > NAMES else "")


def headline(canvas: Canvas, y: float, text: str, x: float = 0) -> float:
    """Write what a part is; return where it begins."""
    canvas.words(x, y + 12, text, size=12, anchor="start", fill=MUTED, mono=False, bold=True)
    return y + 22


def wrapped(canvas: Canvas, y: float, text: str, x: float, fill: str = MUTED) -> float:
    """Write words in as many lines as they need."""
    line = ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > LONGEST:
            canvas.words(x, y + 12, line, size=11.5, anchor="start", fill=fill)
            y, line = y + 16, "  " + word
        else:
            line = f"{line} {word}" if line else word
    canvas.words(x, y + 12, line, size=11.5, anchor="start", fill=fill)
    return y + 16


def _digit(digit: tuple[int, int | None, int], number: int) -> int:
    weight, extent, _ = digit
    return number // weight % extent if extent is not None else number // weight


def _framed(layout: Layout, names: tuple[str, ...], most: int, mark: Sequence[int] | None) -> Frame:
    """The slices that fit the sheet: all of them, or fewer of large slices, or small ones of many."""
    whole = Frame(layout, names, most, mark)
    if _height(whole) <= TALLEST and whole.drawn_panels == prod(layout.padded_dims[a] for a in whole.outer):
        return whole
    if _shows_blocks(whole):  # one slice says what the format is about, if it is large enough
        return Frame(layout, names, most, mark, stacked=(1, 1), panels=1)
    for before in (3, 2, 1):
        for size in (8, 6, 5, 4):
            frame = Frame(layout, names, min(size, most), mark)
            fit = max(2, int((WIDTH - frame.margin) // _width(frame)))
            frame = Frame(layout, names, min(size, most), mark, stacked=(before, fit), panels=2 * fit)
            if fit >= 4 and _height(frame) <= TALLEST:
                return frame
    return frame


def _width(frame: Frame) -> float:
    """How wide a panel is, in pixels."""
    widest = max(CELL_HEIGHT, text_width(str(frame.layout.bounds()[1]), 11) + 8)
    return PANEL_GAP + sum(SLIM if column is None else widest for column in frame.columns)


def _height(frame: Frame) -> float:
    """How tall all panels are, in pixels."""
    rows = -(-frame.drawn_panels // max(1, int((WIDTH - frame.margin) // _width(frame))))
    return rows * (26 + sum(SLIM if row is None else CELL_HEIGHT for row in frame.rows))


def _shows_blocks(frame: Frame) -> bool:
    """Whether a panel is large enough for the blocks of both its axes."""
    inner = {frame.row_axis, frame.column_axis}
    cut = {
        t[0] for t, ladder in zip(frame.layout.terms, frame.layout.ladders, strict=True) if len(ladder) > 1
    }
    return inner <= cut and min(len(frame.rows), len(frame.columns)) > 8


def _first_padding(frame: Frame) -> int | None:
    """The offset of the first place behind the end of an axis."""
    layout = frame.layout
    for axis, (size, room) in enumerate(zip(layout.dims, layout.padded_dims, strict=True)):
        if 0 < size < room:
            cell = frame.places.of(tuple(size if a == axis else 0 for a in range(layout.rank)))
            if cell is not None:
                return cell.offset
    return None


def _next_block(frame: Frame, paint: Paint) -> int | None:
    """The offset of the first element that has another colour than element (0, ..., 0)."""
    layout = frame.layout
    if not paint.name or not layout.size or paint.weight >= layout.dims[paint.axis]:
        return None
    return layout.offset(*(paint.weight if a == paint.axis else 0 for a in range(layout.rank)))


def _padding_in_words(layout: Layout, bits: int) -> str:
    owned = prod(layout.padded)
    total = -(-layout.span * bits // 8)
    if not layout.size:
        return "No elements, no bytes."
    if layout.density > 1:
        return f"{total:,} bytes, shared by {layout.size:,} elements."
    parts = [f"{total:,} bytes"]
    if owned > layout.size:
        share = percent(owned - layout.size, layout.span)
        parts.append(f"{(owned - layout.size) * bits // 8:,} of them padding ({share})")
    else:
        parts.append("no padding")
    if layout.span > owned:
        parts.append(f"{(layout.span - owned) * bits // 8:,} of other data in between")
    return ", ".join(parts) + "."


def _costs(canvas: Canvas, y: float, layout: Layout, bits: int, lanes: Vector | None) -> float:
    """A bar of all bytes, in proportion: elements, padding, other data; and what a vector takes."""
    owned = prod(layout.padded)
    if layout.span > layout.size and layout.density <= 1:
        width, x = min(WIDTH - 80, max(canvas.right, 320.0)), 0.0
        for what, count in (
            ("elements", layout.size), ("padding", owned - layout.size), ("other data", layout.span - owned)
        ):  # fmt: skip
            wide = width * count / layout.span
            if not count:
                continue
            if what == "elements":
                canvas.box(x, y, wide, 18, fill=MUTED, stroke="none")
            elif what == "padding":
                canvas.hatch(x, y, wide, 18, fill=PLAIN)
            else:
                canvas.box(x, y, wide, 18, fill=HOLE, stroke=RULE, dashed=True)
            said = f"{what} {percent(count, layout.span)}"
            plate = text_width(said, 11) + 8
            if plate < wide - 8:
                if what == "padding":
                    canvas.box(x + (wide - plate) / 2, y + 2, plate, 14, fill=PAPER, stroke="none", round=2)
                ink = PAPER if what == "elements" else INK
                canvas.words(x + wide / 2, y + 13, said, size=11, fill=ink)
            x += wide
        y += 22
    y = wrapped(canvas, y, _padding_in_words(layout, bits), 0, fill=INK)
    if lanes is not None:
        y = wrapped(canvas, y, lanes.said + ".", 0, fill=INK)
    return y
