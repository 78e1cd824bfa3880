"""Cells: what lies at a place, which colour it gets, and what all pictures of cells have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relayout.draw.canvas import Canvas, text_width
from relayout.draw.colours import HOLE, INK, MUTED, PAPER, PLAIN, RULE, shade, steps_of
from relayout.draw.places import labels
from relayout.errors import LayoutError, counted, whole
from relayout.layout.digits import digit_sum
from relayout.layout.format import spell_digit
from relayout.layout.layout import Layout

__all__ = [
    "BASE",
    "CELL_HEIGHT",
    "GAP",
    "SEAM",
    "Cell",
    "Paint",
    "Places",
    "check_positive",
    "draw_cell",
    "heading",
    "legend",
    "names_of",
    "shown",
]

CELL_HEIGHT, GAP = 22, 10
SEAM = 0.5  # pixels of paper on each side of a cell
BASE = 15  # of a label, below the upper edge of its cell

_COLOUR = re.compile(r"\s*(.+?)\s*(?://\s*(\d+))?\s*(?:%\s*(\d+))?\s*")


class Cell(NamedTuple):
    """A place in memory: the numbers of its terms (None: a hole), its element's index (None: padding)."""

    offset: int
    numbers: tuple[int, ...] | None
    element: tuple[int, ...] | None


class Places:
    """What lies where, padding and holes told apart."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.sizes = tuple(layout.term_size(t) for t in range(len(layout.terms)))

    def at(self, offset: int) -> Cell:
        """The cell of an offset. Where elements share a place, the first of them."""
        found: tuple[int, ...] | None = None
        for numbers in self.layout._numbers_at(offset):
            if all(n < size for n, size in zip(numbers, self.sizes, strict=True)):
                return Cell(offset, numbers, self.layout._unfuse(numbers))
            if found is None and all(n < room for n, room in zip(numbers, self.layout.padded, strict=True)):
                found = numbers
        return Cell(offset, found, None)

    def of(self, index: tuple[int, ...]) -> Cell | None:
        """The cell of an index, which may lie in the padding of its axes; None if there is no room for it."""
        layout = self.layout
        if all(i < size for i, size in zip(index, layout.dims, strict=True)):
            return Cell(layout.offset(*index), layout._fuse(index), index)
        numbers = tuple(index[term[0]] for term in layout.terms)
        if any(n >= room for n, room in zip(numbers, layout.padded, strict=True)):
            return None
        offset = layout.offset0 + sum(
            digit_sum(ladder, n) for n, ladder in zip(numbers, layout.ladders, strict=True)
        )
        return Cell(offset, numbers, None)


class Paint:
    """Which colour a cell gets: the value of one digit of it."""

    def __init__(self, layout: Layout, names: tuple[str, ...], colour: str | None) -> None:
        self.layout = layout
        self.names = names
        self.name = colour.strip() if colour is not None else self._usual()
        self.axis = self.weight = 0
        self.extent: int | None = None
        self.count = 1
        if not self.name:
            return
        match = _COLOUR.fullmatch(self.name)
        # A format of clDNN is drawn in clDNN's letters; those of the roles name the same axes.
        known = self.names if match is None or match[1] in self.names else layout.axis_names()
        if match is None or match[1] not in known:
            raise LayoutError(
                f"colour {colour!r} is no digit of {layout}; write an axis ({', '.join(self.names)}), "
                "cut where you like: 'c//8', 'c%8'"
            )
        self.axis, self.weight = known.index(match[1]), int(match[2] or 1)
        self.extent = int(match[3]) if match[3] else None
        if self.weight < 1 or (self.extent is not None and self.extent < 1):
            raise LayoutError(f"colour {colour!r}: weight and extent of a digit must be 1 or more")
        self.count = -(-layout.padded_dims[self.axis] // self.weight)
        if self.extent is not None:
            self.count = min(self.count, self.extent)

    def _usual(self) -> str:
        """The block on the first blocked axis, else the channels, else the first axis that counts."""
        for term, ladder in zip(self.layout.terms, self.layout.ladders, strict=True):
            inner = [d for d in ladder if d.extent > 1]
            if len(ladder) > 1 and len(term) == 1 and inner:
                first = ladder[0] if ladder[0].extent > 1 else inner[min(1, len(inner) - 1)]
                name = self.names[term[0]]
                extent = None if first is ladder[0] else first.extent
                if first.extent > 1:
                    return spell_digit((name,), first.weight, extent)
        roles = self.layout.axis_names()
        if "c" in roles and self.layout.dims[roles.index("c")] > 1:
            return self.names[roles.index("c")]
        return next((name for name, size in zip(self.names, self.layout.dims, strict=True) if size > 1), "")

    plainly = ""
    """What elements without a colour are, if there are any."""

    def fill(self, cell: Cell) -> str:
        """The colour of a cell."""
        value = self.value(cell)
        return PLAIN if value is None else shade(value, self.count)

    def value(self, cell: Cell) -> int | None:
        """The value of the digit in a cell; None where it has none."""
        number = cell.element[self.axis] if cell.element is not None and self.name else None
        if number is None and cell.numbers is not None and self.name:
            t = next((t for t, term in enumerate(self.layout.terms) if term == (self.axis,)), None)
            number = cell.numbers[t] if t is not None else None
        if number is None:
            return None
        number //= self.weight
        return number % self.extent if self.extent is not None else number


def heading(canvas: Canvas, text: str) -> float:
    """Write the title; return where the rest begins."""
    if not text:
        return 0.0
    canvas.words(0, 13, text, size=14, anchor="start", bold=True)
    return 26.0


def draw_cell(
    canvas: Canvas, cell: Cell, x: float, y: float, width: float, text: str, paint: Paint,
    marked: int | None = None, *, vector: bool = False, hint: str = "", size: float = 11,
) -> None:  # fmt: skip
    """Draw one cell: an element, padding or a hole.

    The one at the offset ``marked`` gets a frame, those of a ``vector`` are light on dark. The ``hint`` is
    shown to who points at the cell, in pictures that a page holds as they are.
    """
    fill = paint.fill(cell)
    if cell.element is not None:
        where = ",".join(map(str, cell.element))
    else:
        where = "padding" if cell.numbers is not None else "hole"
    with canvas.group(offset=cell.offset, index=where):
        if hint:
            canvas.hint(hint)
        if cell.numbers is None:
            canvas.box(x, y, width, CELL_HEIGHT, fill=HOLE, stroke=RULE, dashed=True)
        elif cell.element is None:
            canvas.hatch(x + SEAM, y + SEAM, width - 2 * SEAM, CELL_HEIGHT - 2 * SEAM, fill=fill)
            if text:  # on a plate of its own: hatching would strike the number through
                plate = min(text_width(text, 11) + 4, width - 2)
                canvas.box(x + (width - plate) / 2, y + 4, plate, 14, fill=PAPER, stroke="none", round=2)
                canvas.words(x + width / 2, y + BASE, text, size=11, fill=MUTED)
        else:
            framed = cell.offset == marked
            canvas.box(
                x + SEAM, y + SEAM, width - 2 * SEAM, CELL_HEIGHT - 2 * SEAM, stroke="none",
                fill=INK if vector else fill,
            )  # fmt: skip
            if text:
                ink = PAPER if vector else INK
                canvas.words(x + width / 2, y + BASE, text, size=size, bold=framed or vector, fill=ink)
            if framed:
                canvas.box(x + 1.5, y + 1.5, width - 3, CELL_HEIGHT - 3, thickness=3)


def legend(
    canvas: Canvas, y: float, x: float, paint: Paint, words: Sequence[str], cells: Iterable[Cell],
    vector: str = "", also: Iterable[int] = (),
) -> float:  # fmt: skip
    """Say what cells, colours, hatching and empty places mean; only what occurs. Return where it ends.

    ``also`` are values of the digit of the colours that are drawn elsewhere.
    """
    kinds = list(cells)
    items: list[tuple[str, str, str]] = [("", text, "") for text in words]
    if vector:
        items.append(("colour", vector, INK))
    used = {*also} | {
        value for cell in kinds if cell.element is not None and (value := paint.value(cell)) is not None
    }
    if paint.name and paint.count > 1 and used:
        spelled = []
        for first, last in steps_of(paint.count):
            if any(first <= value <= last for value in used):
                spelled.append(
                    ("colour", str(first) if first == last else f"{first}..{last}", shade(first, paint.count))
                )
        said = f"{paint.name} = {spelled[0][1]}"
        items += [("colour", said, spelled[0][2]), *spelled[1:]]
        if len(spelled) < len(steps_of(paint.count)):
            items.append(("", "…", ""))
    if paint.plainly and any(cell.element is not None and paint.value(cell) is None for cell in kinds):
        items.append(("colour", paint.plainly, PLAIN))
    if any(c.element is None and c.numbers is not None for c in kinds):
        items.append(("padding", "padding (zeros)", ""))
    if any(c.numbers is None for c in kinds):
        items.append(("hole", "other data", ""))
    limit = max(canvas.right, 210.0)
    at = x
    for kind, text, fill in items:
        wide = text_width(text, 11) + (20 if kind else 0) + 14
        if at + wide > limit + 14 and at > x:
            at, y = x, y + 20
        if kind == "colour":
            canvas.box(at, y, 14, 14, fill=fill, stroke=RULE, thickness=0.8)
        elif kind == "padding":
            canvas.hatch(at, y, 14, 14, fill=PLAIN)
        elif kind == "hole":
            canvas.box(at, y, 14, 14, fill=HOLE, stroke=RULE, dashed=True)
        canvas.words(
            at + (20 if kind else 0), y + 11, text, size=11, anchor="start", fill=INK if kind else MUTED
        )
        at += wide
    return y + 20


def shown(count: int, most: int, keep: int | None = None) -> list[int | None]:
    """The numbers below ``count`` that are drawn; None stands for a run that is left out.

    At most ``most`` entries, the middle left out. ``keep`` is always among them.

    >>> shown(3, 4), shown(9, 4)
    ([0, 1, 2], [0, 1, None, 8])
    >>> shown(90, 6, keep=40), shown(90, 6, keep=1)
    ([0, 1, None, 40, None, 89], [0, 1, 2, 3, None, 89])
    """
    if count <= most:
        return list(range(count))
    drawn = {*range(max(most - 2, 1)), *([count - 1] if most > 2 else [])}
    if keep is not None and keep not in drawn:
        drawn = {*range(max(most - 4, 1)), keep, *([count - 1] if most > 2 else [])}
    numbers: list[int | None] = []
    after = 0
    for number in sorted(drawn):
        if number == after + 1:
            numbers.append(after)  # a single one takes no more room than the sign that it is left out
        elif number > after:
            numbers.append(None)
        numbers.append(number)
        after = number + 1
    return [*numbers, None] if after < count else numbers


def names_of(layout: Layout, axes: Sequence[str] | None) -> tuple[str, ...]:
    """What the axes are called in the picture: ``axes``, else the words of the format's dialect."""
    names = tuple(axes) if axes is not None else labels(layout)[0]
    if len(names) != layout.rank:
        raise LayoutError(
            f"{layout} has {counted(layout.rank, 'axis')}, got {counted(len(names), 'name')}: {list(names)}"
        )
    return names


def check_positive(**counts: int | None) -> None:
    """Refuse counts below 1, by name."""
    for name, count in counts.items():
        if count is not None and whole(count, name) < 1:
            raise LayoutError(f"{name} must be 1 or more, got {count}")
