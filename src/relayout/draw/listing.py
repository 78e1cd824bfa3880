"""The listing: memory place for place, the logical index on the left and the digits on the right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from rich.text import Text

from relayout.draw.places import Place, labels, memory_order, places
from relayout.draw.signs import FADED, Marks
from relayout.layout.layout import Layout

__all__ = ["listing", "listing_lines"]


class Line(NamedTuple):
    """One line of a listing: an element, or a run of padding or of holes."""

    first: Place
    last: Place
    kind: str


def listing_lines(layout: Layout) -> Iterator[Line]:
    """Elements one by one; neighbouring places of padding, and holes, are one line."""
    run: Line | None = None
    end = None
    for place in places(layout):
        if run is not None and (not place.is_padding or place.offset != run.last.offset + 1):
            yield run
            run = None
        if end is not None and place.offset > end + 1:
            gap = Place(end + 1, (), (), False)
            yield Line(gap, gap._replace(offset=place.offset - 1), "hole")
        end = place.offset
        if place.is_padding:
            run = Line(place, place, "padding") if run is None else run._replace(last=place)
        else:
            yield Line(place, place, "element")
    if run is not None:
        yield run


def listing(
    layout: Layout,
    limit: int,
    width: int | None = None,
    marks: Marks | None = None,
    roles: tuple[str, ...] | None = None,
) -> list[Text]:
    """The listing ``i = [logical index] == [digits]``, as OpenVINO's page on formats has it.

    Parameters
    ----------
    layout : Layout
        What to list.
    limit : int
        How many lines at most; 0: all.
    width : int, optional
        Columns of the terminal. If the lines don't fit they are written without the names.
    marks : Marks, optional
        The signs to draw with.
    roles : tuple of str, optional
        What the axes are called, for a layout that has no format.

    Examples
    --------
    >>> for line in listing(Layout((1, 3, 1, 1), "b_fs_yx_fsv4"), 0):
    ...     print(line)
    i = [b, f, y, x] == [b, fs, y, x, fsv]
    i = 0 => [b=0; f=0; y=0; x=0] == [b=0; fs=0; y=0; x=0; fsv=0]
    i = 1 => [b=0; f=1; y=0; x=0] == [b=0; fs=0; y=0; x=0; fsv=1]
    i = 2 => [b=0; f=2; y=0; x=0] == [b=0; fs=0; y=0; x=0; fsv=2]
    i = 3 => padding              == [b=0; fs=0; y=0; x=0; fsv=3]
    """
    marks = marks or Marks()
    axes, names = labels(layout, roles)
    lines = list(islice(listing_lines(layout), limit or None))
    if not lines:
        return [Text("no elements, no places")]
    wide = _Writer(layout, axes, names, lines, named=True)
    writer = (
        wide if width is None or wide.width <= width else _Writer(layout, axes, names, lines, named=False)
    )
    made = [Text(f"i = [{', '.join(axes)}] == [{', '.join(names)}]", "bold")]
    made += [writer.write(line) for line in lines]
    left = layout.bounds()[1] - lines[-1].last.offset
    if left > 0:
        made.append(Text(f"{marks.more} {left:,} more places, to {layout.bounds()[1]:,}", FADED))
    return made


class _Writer:
    """Writes the lines of a listing in columns."""

    def __init__(
        self, layout: Layout, axes: tuple[str, ...], names: tuple[str, ...], lines: list[Line], named: bool
    ) -> None:
        self.layout, self.named = layout, named
        self.axes, self.names = axes, names
        self.digits = memory_order(layout)
        self.runs = max(len(self._range(line)) for line in lines)
        elements = [line.first.element for line in lines if line.kind == "element"] or [layout.dims]
        self.index_widths = [max(len(str(index[a])) for index in elements) for a in range(layout.rank)]
        self.digit_widths = [len(str(max(0, d.extent - 1))) for d in self.digits]
        blank = self.write(Line(lines[0].first, lines[0].first, "element"))
        self.width = max(len(blank), *(len(self.write(line)) for line in lines))

    def _range(self, line: Line) -> str:
        one, two = line.first.offset, line.last.offset
        return str(one) if one == two else f"{one} .. {two}"

    def _items(self, names: tuple[str, ...], values: list[str], widths: list[int]) -> str:
        end = len(names) - 1
        if not self.named:
            return "[" + ", ".join(value.rjust(w) for value, w in zip(values, widths, strict=True)) + "]"
        texts = [f"{name}={value}" for name, value in zip(names, values, strict=True)]
        room = [len(name) + 1 + w for name, w in zip(names, widths, strict=True)]
        return (
            "["
            + " ".join(
                text + ("]" if k == end else ";") + " " * max(0, r - len(text))
                for k, (text, r) in enumerate(zip(texts, room, strict=True))
            )
            if texts
            else "[]"
        )

    def write(self, line: Line) -> Text:
        """One line."""
        place = line.first
        index = self._items(self.axes, [str(n) for n in place.element or self.layout.dims], self.index_widths)
        made = Text("i = " if self.named else "")
        made.append(self._range(line).ljust(self.runs) if self.named else self._range(line).rjust(self.runs))
        made.append(" => " if self.named else " = ")
        made.append(index if line.kind == "element" else line.kind.ljust(len(index)))
        if line.kind != "hole":
            ends = zip(place.digits, line.last.digits, strict=True)
            moving = sum(a != b for a, b in zip(place.digits, line.last.digits, strict=True))
            if moving <= 1:
                values = [str(a) if a == b else f"{a}..{b}" for a, b in ends]
                made.append(" == " + self._items(self.names, values, self.digit_widths))
        made.rstrip()
        if line.kind != "element":
            made.stylize(FADED)
        return made
