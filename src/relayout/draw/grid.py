"""The grid: memory as rows of the innermost digits."""

from __future__ import annotations

from itertools import islice
from math import prod
from typing import Final

from rich.text import Text

from relayout.draw.places import labels, memory_order, nested, place_at
from relayout.draw.signs import FADED, Marks, colour
from relayout.errors import LayoutError
from relayout.layout.layout import Layout, LayoutDigit, every_index

__all__ = ["grid"]

ENOUGH: Final = 4  # cells of a row; one that has fewer takes in a further digit,
WIDEST_ROW: Final = 16  # up to so many


def grid(
    layout: Layout,
    limit: int,
    width: int = 80,
    marks: Marks | None = None,
    roles: tuple[str, ...] | None = None,
) -> list[Text]:
    """Memory as rows: the innermost digits run across, the others down; the cells hold the logical index.

    Of the index only that is written which changes along a row. Padding is a dot.

    Parameters
    ----------
    layout : Layout
        What to draw.
    limit : int
        How many rows at most; 0: all.
    width : int
        Columns of the terminal.
    marks : Marks, optional
        The signs to draw with.
    roles : tuple of str, optional
        What the axes are called, for a layout that has no format.

    Examples
    --------
    >>> for line in grid(Layout((1, 3, 1, 2), "nChw4c"), 0, marks=Marks.fit_for(ascii_only=True)):
    ...     print(line)
    offset | w | c%4: 0 1 2 3
         0 | 0 |   c= 0 1 2 .
         4 | 1 |   c= 0 1 2 .
    """
    marks = marks or Marks()
    digits = memory_order(layout)
    if 0 in layout.dims:
        return [Text("no elements, no places")]
    if all(d.extent == 1 or not d.stride for d in digits):
        return [Text(f"one place, at offset {layout.offset0}")]
    if not nested(digits):
        raise LayoutError(
            f"the strides of {layout} interleave, so it can't be drawn as rows; list its places instead"
        )
    return _Grid(layout, digits, width, marks, roles).draw(limit)


class _Grid:
    def __init__(
        self,
        layout: Layout,
        digits: tuple[LayoutDigit, ...],
        width: int,
        marks: Marks,
        roles: tuple[str, ...] | None,
    ) -> None:
        self.layout, self.marks = layout, marks
        self.axes, names = labels(layout, roles)
        counting = [(d, name) for d, name in zip(digits, names, strict=True) if d.extent > 1 and d.stride]
        self.all_digits = digits
        self.split = self._choose_split(counting, width)
        self.down, self.across = counting[: self.split], counting[self.split :]
        self.shown_axes = sorted({a for d, _ in self.across for a in layout.terms[d.term]})
        self.offset_width = max(len("offset"), len(str(layout.bounds()[1])))
        self.down_widths = [max(len(name), len(str(d.extent - 1))) for d, name in self.down]
        self.captions = (
            " ".join(name for _, name in self.across) + ":",
            ",".join(self.axes[a] for a in self.shown_axes) + "=",
        )
        self.caption_width = max(map(len, self.captions))
        self.cell = max(self._cell_width(), len(str(prod(d.extent for d, _ in self.across) - 1)))
        before = self.offset_width + sum(w + 1 for w in self.down_widths) + 5 + self.caption_width
        fitting = max(1, (width - before) // (self.cell + 1))
        self.cells = prod(d.extent for d, _ in self.across)
        self.shown = self.cells if self.cells <= fitting else max(1, fitting - 1)

    def _choose_split(self, counting: list[tuple[LayoutDigit, str]], width: int) -> int:
        """Rows are one digit long; short ones take in the next digit, if no hole lies in between."""
        split = max(0, len(counting) - 1)
        while split > 0:
            inner = counting[split:]
            reach = sum((d.extent - 1) * d.stride for d, _ in inner) + inner[-1][0].stride
            cells = prod(d.extent for d, _ in inner) * counting[split - 1][0].extent
            adjoining = counting[split - 1][0].stride == reach
            if (
                prod(d.extent for d, _ in inner) >= ENOUGH
                or cells > WIDEST_ROW
                or not adjoining
                or cells * 8 > width
            ):
                break
            split -= 1
        return split

    def _cell_width(self) -> int:
        return sum(
            len(str(max(0, size - 1))) for size in (self.layout.dims[a] for a in self.shown_axes)
        ) + max(0, len(self.shown_axes) - 1)

    def draw(self, limit: int) -> list[Text]:
        """All lines."""
        rows = prod(d.extent for d, _ in self.down)
        made = [self._head()]
        drawn = 0
        for values in every_index([d.extent for d, _ in self.down]):
            if limit and drawn == limit:
                break
            made.append(self._row(values))
            drawn += 1
        if drawn < rows:
            made.append(Text(f"{self.marks.more} {rows - drawn:,} more rows", FADED))
        return made

    def _head(self) -> Text:
        head = Text("offset".rjust(self.offset_width) + f" {self.marks.line} ", "bold")
        for (digit, name), w in zip(self.down, self.down_widths, strict=True):
            head.append(name.rjust(w) + " ", f"bold {colour(digit.term)}")
        if self.down:
            head.append(f"{self.marks.line} ")
        term = self.across[-1][0].term
        cells = [str(k).rjust(self.cell) for k in range(self.shown)]
        head.append(" ".join([self.captions[0].rjust(self.caption_width), *cells]), f"bold {colour(term)}")
        if self.shown < self.cells:
            head.append(f" {self.marks.more}")
        return head

    def _row(self, values: tuple[int, ...]) -> Text:
        fixed = dict(zip([d for d, _ in self.down], values, strict=True))
        offset = self.layout.offset0 + sum(d.stride * v for d, v in fixed.items())
        row = Text(str(offset).rjust(self.offset_width) + f" {self.marks.line} ")
        for (digit, _), value, w in zip(self.down, values, self.down_widths, strict=True):
            row.append(str(value).rjust(w) + " ", colour(digit.term))
        if self.down:
            row.append(f"{self.marks.line} ")
        row.append(self.captions[1].rjust(self.caption_width), FADED)
        moving = [d for d, _ in self.across]
        for across in islice(every_index([d.extent for d in moving]), self.shown):
            known = {**fixed, **dict(zip(moving, across, strict=True))}
            place = place_at(self.layout, self.all_digits, tuple(known.get(d, 0) for d in self.all_digits))
            if place is None:
                row.append(" " * (self.cell + 1))
            elif place.is_padding:
                row.append(" " + self.marks.padding.rjust(self.cell), FADED)
            else:
                row.append(" " + ",".join(str(place.element[a]) for a in self.shown_axes).rjust(self.cell))
        if self.shown < self.cells:
            row.append(f" {self.marks.more}", FADED)
        row.rstrip()
        return row
