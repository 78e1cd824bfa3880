"""Tables and drawings of layouts for the terminal.

Three views of the same thing, from the formula to the single place in memory. For ``nChw8c`` and 17 channels:

the *digits*: what is counted, and how far one step of each moves. This is the layout; the rest is its
consequence ::

    digit   reads as                  weight  extent  stride
    n       image                          1       1      96
    c//8    block of 8 channels            8       3      32
    h       row                            1       2      16
    w       column                         1       2       8
    c%8     channel within its block       1       8       1

the *grid*: memory as rows of the innermost digits, with the index of what lies there; padding is a dot ::

    offset | c//8 h w | 0  1  2  3  4  5  6  7      c%8
         0 |    0 0 0 | 0  1  2  3  4  5  6  7      c
        64 |    2 0 0 | 16 .  .  .  .  .  .  .

the *listing*: place for place, on the left the logical index, on the right the digits, as OpenVINO's page on
formats does ::

    i = 32      => [n=0; c=8; h=0; w=0] == [n=0; c//8=1; h=0; w=0; c%8=0]

All functions return things that :mod:`rich` prints. They look at the places that they draw and at no others,
so they are quick for tensors of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from math import prod
from typing import Final, NamedTuple

from rich.table import Table
from rich.text import Text

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format, spell_digit
from relayout.layout.layout import Layout, LayoutDigit, plain, spell_dims
from relayout.notation import dialect, dialects

__all__ = [
    "Marks",
    "Place",
    "digits_table",
    "facts",
    "formula",
    "grid",
    "labels",
    "listing",
    "listing_lines",
    "names_of",
    "places",
]

COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
FADED: Final = "bright_black"
MOST_SORTED: Final = 1 << 16  # places of a layout whose strides interleave, which must be sorted
ENOUGH, WIDEST_ROW = 4, 16  # a grid's row of fewer cells takes in a further digit; up to so many

_WORDS: Final = {
    "n": ("image", "images"),
    "c": ("channel", "channels"),
    "d": ("depth", "depths"),
    "h": ("row", "rows"),
    "w": ("column", "columns"),
    "g": ("group", "groups"),
    "o": ("output channel", "output channels"),
    "i": ("input channel", "input channels"),
    "t": ("time step", "time steps"),
    "l": ("layer", "layers"),
    "dir": ("direction", "directions"),
    "gate": ("gate", "gates"),
}


class Marks(NamedTuple):
    """The signs of a drawing; terminals that know nothing but ASCII get other ones."""

    padding: str = "·"
    more: str = "…"
    line: str = "│"
    times: str = "×"

    @classmethod
    def fit_for(cls, ascii_only: bool) -> Marks:
        """The signs that a terminal can show."""
        return cls(".", "...", "|", "x") if ascii_only else cls()


class Place(NamedTuple):
    """A place in memory that the layout owns."""

    offset: int
    digits: tuple[int, ...]
    """The value of each digit, in memory order."""
    element: tuple[int, ...]
    """The logical index; for padding, the one that would lie here if the axes were longer."""
    is_padding: bool


# -- names ------------------------------------------------------------------------------------------------


def memory_order(layout: Layout) -> tuple[LayoutDigit, ...]:
    """The digits from the outermost to the innermost: as the format is written, or else by falling stride."""
    digits = layout.digits
    return digits if layout.format is not None else tuple(sorted(digits, key=lambda d: -abs(d.stride)))


def labels(layout: Layout) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the axes and the digits of a layout are called, in the words of the dialect that its format was
    written in.

    Examples
    --------
    >>> labels(Layout((2, 17, 5, 4), "nChw8c"))
    (('n', 'c', 'h', 'w'), ('n', 'c//8', 'h', 'w', 'c%8'))
    >>> labels(Layout((2, 17, 5, 4), "b_fs_yx_fsv16"))
    (('b', 'f', 'y', 'x'), ('b', 'fs', 'y', 'x', 'fsv'))
    """
    axes = layout.axis_names()
    spelled = _spelled_digits(layout, axes)
    format = layout.format
    if format is None or format.dialect != "openvino" or format.text is None or format.roles is None:
        return axes, spelled
    letters = Format("".join("abcdefghijkl"[: layout.rank])).with_roles(format.roles).name("openvino")
    if letters is None or len(letters) != layout.rank:
        return axes, spelled
    return tuple(letters), _cldnn_digits(layout, format.text, letters) or _spelled_digits(
        layout, tuple(letters)
    )


def _spelled_digits(layout: Layout, axes: tuple[str, ...]) -> tuple[str, ...]:
    top = {(t, ladder[0].weight) for t, ladder in enumerate(layout.ladders)}
    return tuple(
        spell_digit(
            tuple(axes[a] for a in layout.terms[d.term]),
            d.weight,
            None if (d.term, d.weight) in top else d.extent,
        )
        for d in memory_order(layout)
    )


def _cldnn_digits(layout: Layout, name: str, letters: str) -> tuple[str, ...] | None:
    """The digits as a clDNN name lists them: ``b_fs_yx_fsv16`` is b, fs, y, x, fsv. None where it does not list each."""
    found: list[str] = []
    for part in name.split("_"):
        bare = part.rstrip("0123456789")
        found.extend([bare] if "s" in bare else bare)
    axes = ["".join(letters[a] for a in layout.terms[d.term]) for d in memory_order(layout)]
    listed = [label.partition("s")[0] for label in found]
    return tuple(found) if listed == axes else None


def names_of(format: Format) -> dict[str, str]:
    """The spelling of a format in every dialect that has one, by the name of the dialect (without the digits
    themselves).

    Examples
    --------
    >>> names_of(Format("nChw16c"))["openvino"]
    'b_fs_yx_fsv16'
    """
    found = {}
    for name in dialects():
        try:
            spelled = format.name(name) if name != "digits" else None
        except LayoutError:
            spelled = None
        if spelled is not None:
            found[name] = spelled
    return found


def colour(term: int) -> str:
    """The colour of an axis, the same in every drawing."""
    return COLOURS[term % len(COLOURS)]


# -- the digits -------------------------------------------------------------------------------------------


def formula(layout: Layout) -> Text:
    """Where an element lies, as one sum.

    Examples
    --------
    >>> print(formula(Layout((2, 17, 5, 4), "nChw8c")))
    n*480 + c//8*160 + h*32 + w*8 + c%8
    """
    _, names = labels(layout)
    made = Text()
    for digit, name in zip(memory_order(layout), names, strict=True):
        if digit.stride == 0 and layout.size:
            continue
        made.append(" + " if made else "")
        made.append(name, colour(digit.term))
        made.append(f"*{digit.stride}" if digit.stride != 1 else "")
    if layout.offset0 or not made:
        made.append(f"{' + ' if made else ''}{layout.offset0}")
    return made


def digits_table(desc: MemoryDesc) -> Table:
    """One line for each digit: what it counts, its weight, its extent, and its stride in elements and bytes."""
    layout = desc.layout
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("digit", no_wrap=True)
    table.add_column("reads as")
    for name in ("weight", "extent", "stride", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    _, names = labels(layout)
    for digit, name in zip(memory_order(layout), names, strict=True):
        numbers = (digit.weight, digit.extent, digit.stride)
        table.add_row(
            Text(name, colour(digit.term)),
            _reading(layout, digit),
            *map(str, numbers),
            _in_bytes(digit.stride, desc),
        )
    return table


def _in_bytes(elements: int, desc: MemoryDesc) -> str:
    return (
        f"{elements * desc.dtype.bits / 8:g}"
        if desc.dtype.bits < 8
        else str(elements * (desc.dtype.bits // 8))
    )


def _words(layout: Layout, term: int) -> tuple[str, str]:
    axes = layout.terms[term]
    if len(axes) == 1:
        name = layout.axis_names()[axes[0]]
        return _WORDS.get(name, (f"index of {name}", f"indices of {name}"))
    spelled = " ".join(labels(layout)[0][a] for a in axes)
    return f"place of ({spelled})", f"places of ({spelled})"


def _reading(layout: Layout, digit: LayoutDigit) -> str:
    """What a digit counts, in words."""
    one, many = _words(layout, digit.term)
    ladder = layout.ladders[digit.term]
    level = next(k for k, d in enumerate(ladder) if d.weight == digit.weight and d.extent == digit.extent)
    if level == 0:
        return one if digit.weight == 1 else f"block of {digit.weight} {many}"
    around = "block" if level == 1 else f"group of {ladder[level - 1].weight}"
    return (
        f"{one} within its {around}" if digit.weight == 1 else f"group of {digit.weight} within its {around}"
    )


def facts(desc: MemoryDesc) -> list[tuple[str, str]]:
    """What is worth knowing about the sizes: ``(what, in words)``."""
    layout = desc.layout
    found = [("elements", f"{layout.size:,} = {spell_dims(layout.dims)}" if layout.rank else "1, a scalar")]
    owned = prod(layout.padded)
    if layout.has_padding:
        product = f" = {spell_dims(layout.padded)}" if len(layout.padded) > 1 else ""
        text = f"{owned:,}{product}; {owned - layout.size:,} of them padding, which holds zeros"
        found.append(("places", text))
    for term, (room, ladder) in enumerate(zip(layout.padded, layout.ladders, strict=True)):
        size, block = layout.term_size(term), ladder[0].weight
        if block > 1 and size:
            names = labels(layout)[0]
            name = " ".join(names[a] for a in layout.terms[term])
            blocks = -(-size // block)
            left = f": the last {room - size} of {room} are padding" if room > size else ", without a rest"
            many = _words(layout, term)[1]
            found.append(
                (f"axis {name}", f"{size} {many} in {blocks} block{'s' * (blocks != 1)} of {block}{left}")
            )
    holes = layout.span - owned
    if holes > 0:
        found.append(("holes", f"{holes:,} places in between belong to somebody else and are not touched"))
    if not layout.is_injective():
        found.append(("shared", "some elements share a place (broadcast, or overlapping strides)"))
    needed = -(-layout.span * desc.dtype.bits // 8)
    found.append(("bytes", f"{needed:,} as {desc.dtype}, {100 * layout.density:.4g} % of them elements"))
    if layout.offset0:
        found.append(
            (
                "offset0",
                f"{layout.offset0}: element (0, ..., 0) lies {layout.offset0} elements into the buffer",
            )
        )
    return found


def names_text(format: Format) -> Text:
    """The spellings of a format in all dialects, side by side."""
    made = Text()
    for name, spelled in names_of(format).items():
        made.append("   " if made else "")
        made.append(f"{_short_title(name)} ", FADED)
        made.append(spelled.replace(" ", "\N{NO-BREAK SPACE}"))
    return made


def _short_title(name: str) -> str:
    return dialect(name).TITLE.partition(" (")[0].replace(" ", "\N{NO-BREAK SPACE}")


# -- place by place ---------------------------------------------------------------------------------------


def places(layout: Layout) -> Iterator[Place]:
    """The places that a layout owns, by rising offset.

    Raises
    ------
    LayoutError
        Strides interleave and the layout is too big to be sorted.

    Examples
    --------
    >>> [(p.offset, p.element, p.is_padding) for p in places(Layout((1, 3, 1, 1), "nChw4c"))][2:]
    [(2, (0, 2, 0, 0), False), (3, (0, 3, 0, 0), True)]
    """
    digits = memory_order(layout)
    counted = [range(1 if d.stride == 0 and d.extent else d.extent) for d in digits]
    if _nested(digits):
        yield from filter(None, (_place(layout, digits, values) for values in product(*counted)))
        return
    if prod(map(len, counted)) > MOST_SORTED:
        raise LayoutError(
            f"the strides of {layout} interleave, so its places have no simple order to draw; ask for single "
            "ones with "
            "offset and index"
        )
    found = [place for values in product(*counted) if (place := _place(layout, digits, values))]
    yield from sorted(found, key=lambda place: place.offset)


def _nested(digits: tuple[LayoutDigit, ...]) -> bool:
    """Whether counting the digits in order means going upwards in memory."""
    covered = 1
    for digit in reversed(digits):
        if digit.extent > 1 and digit.stride:
            if digit.stride < covered:
                return False
            covered += (digit.extent - 1) * digit.stride
    return True


def _place(layout: Layout, digits: tuple[LayoutDigit, ...], values: tuple[int, ...]) -> Place | None:
    numbers = [0] * len(layout.terms)
    offset = layout.offset0
    for digit, value in zip(digits, values, strict=True):
        numbers[digit.term] += value * digit.weight
        offset += value * digit.stride
    if any(number >= room for number, room in zip(numbers, layout.padded, strict=True)):
        return None
    padding = any(number >= layout.term_size(t) for t, number in enumerate(numbers))
    index = [0] * layout.rank
    for term, number in zip(layout.terms, numbers, strict=True):
        for axis in reversed(term[1:]):
            number, index[axis] = divmod(number, layout.dims[axis])
        index[term[0]] = number
    return Place(offset, values, tuple(index), padding)


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


def listing(layout: Layout, limit: int, width: int | None = None, marks: Marks | None = None) -> list[Text]:
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
    axes, names = labels(layout)
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


# -- the grid ---------------------------------------------------------------------------------------------


def grid(layout: Layout, limit: int, width: int = 80, marks: Marks | None = None) -> list[Text]:
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
    if not _nested(digits):
        raise LayoutError(
            f"the strides of {layout} interleave, so it can't be drawn as rows; list its places instead"
        )
    return _Grid(layout, digits, width, marks).draw(limit)


class _Grid:
    def __init__(self, layout: Layout, digits: tuple[LayoutDigit, ...], width: int, marks: Marks) -> None:
        self.layout, self.marks = layout, marks
        self.axes, names = labels(layout)
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
        if self.cells > fitting:
            self.shown = max(1, fitting - 1)
        else:
            self.shown = self.cells

    def _choose_split(self, counting: list[tuple[LayoutDigit, str]], width: int) -> int:
        """Rows are one digit long; short ones are filled up with the next, as long as strides go on without a hole."""
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
        for values in product(*(range(d.extent) for d, _ in self.down)):
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
        term = self.across[-1][0].term if self.across else 0
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
        for across in islice(product(*(range(d.extent) for d in moving)), self.shown):
            known = {**fixed, **dict(zip(moving, across, strict=True))}
            place = _place(self.layout, self.all_digits, tuple(known.get(d, 0) for d in self.all_digits))
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


def layout_name(desc: MemoryDesc) -> str:
    """How a layout is called in headings: its format, or its strides."""
    layout = desc.layout
    if layout.format is not None:
        return str(layout.format)
    format = desc.format
    known = f" ({format})" if format is not None and format != plain(desc.rank) else ""
    return f"strides {spell_dims(layout.strides)}{known}" if layout.is_plain else "digits"
