"""What lies where, in the order of memory, and what axes and digits are called.

A layout is asked in the order in which a drawing needs the answers: by rising offset, a place at a time.
Nearly all strides *nest*: each steps over all that lies within, so counting the digits like an odometer is
walking through memory, and the first lines of a drawing cost the same for a tensor of a thousand elements and
of a billion. The others are sorted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final, NamedTuple

from relayout.errors import LayoutError
from relayout.layout.format import Format, spell_digit
from relayout.layout.layout import Layout, LayoutDigit, every_index

__all__ = [
    "WORDS",
    "Place",
    "drawable",
    "labels",
    "memory_order",
    "nested",
    "place_at",
    "places",
    "plural_of",
    "summands",
    "words_of",
]

MOST_SORTED: Final = 1 << 16  # places of a layout whose strides interleave, which must be sorted


WORDS: Final = {
    "n": ("batch index", "batch indices"),
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
"""What the roles of axes mean, one and several."""


class Place(NamedTuple):
    """A place in memory that the layout owns."""

    offset: int
    digits: tuple[int, ...]
    """The value of each digit, in memory order."""
    element: tuple[int, ...]
    """The logical index; for padding, the one that would lie here if the axes were longer."""
    is_padding: bool


def memory_order(layout: Layout) -> tuple[LayoutDigit, ...]:
    """The digits from the outermost to the innermost: as the format is written, or else by falling stride."""
    digits = layout.digits
    return digits if layout.format is not None else tuple(sorted(digits, key=lambda d: -abs(d.stride)))


def labels(layout: Layout, roles: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the axes and the digits of a layout are called, in the words of the dialect that its format was
    written in. A layout with strides of its own has no format, so its ``roles`` are said here.

    Examples
    --------
    >>> labels(Layout((2, 17, 5, 4), "nChw8c"))
    (('n', 'c', 'h', 'w'), ('n', 'c//8', 'h', 'w', 'c%8'))
    >>> labels(Layout((2, 17, 5, 4), "b_fs_yx_fsv16"))
    (('b', 'f', 'y', 'x'), ('b', 'fs', 'y', 'x', 'fsv'))
    >>> labels(Layout((1, 3, 4, 5), strides=(100, 30, 6, 1)), ("n", "c", "h", "w"))[1]
    ('n', 'c', 'h', 'w')
    """
    axes = layout.axis_names() if roles is None else roles
    format = layout.format
    if format is None or roles is not None or format.dialect != "openvino" or format.text is None:
        return axes, _spelled_digits(layout, axes)
    words = words_of(format)
    return words, _cldnn_digits(layout, format.text, "".join(words)) or _spelled_digits(layout, words)


def plural_of(role: str | None, name: str) -> str:
    """What the indices of an axis are: channels, rows, indices of k. None: its role is not known.

    >>> plural_of("c", "f"), plural_of(None, "c")
    ('channels', 'indices of c')
    """
    plainly = f"indices of {name}"
    return plainly if role is None else WORDS.get(role, ("", plainly))[1]


def summands(layout: Layout, roles: tuple[str, ...] | None = None) -> Iterator[tuple[str, int | None]]:
    """Where an element lies, as one sum in pieces of text; each digit's with its term.

    >>> "".join(text for text, _ in summands(Layout((2, 17, 5, 4), "nChw8c")))
    'n*480 + c//8*160 + h*32 + w*8 + c%8'
    """
    _, names = labels(layout, roles)
    empty = True
    for digit, name in zip(memory_order(layout), names, strict=True):
        if digit.stride == 0 and layout.size:
            continue
        if not empty:
            yield " + ", None
        empty = False
        yield name, digit.term
        if digit.stride != 1:
            yield f"*{digit.stride}", None
    if layout.offset0 or empty:
        yield f"{'' if empty else ' + '}{layout.offset0}", None


def words_of(format: Format) -> tuple[str, ...]:
    """What the axes of a format are called in the dialect in which it was written.

    clDNN has letters of its own; all other dialects share the names of the roles.

    >>> words_of(Format("b_fs_yx_fsv16")), words_of(Format("nChw16c")), words_of(Format("aBcd16b"))
    (('b', 'f', 'y', 'x'), ('n', 'c', 'h', 'w'), ('a', 'b', 'c', 'd'))
    """
    names = format.axis_names()
    if format.dialect != "openvino" or format.roles is None:
        return names
    plain = Format("".join("abcdefghijkl"[: len(names)])).with_roles(format.roles)
    letters = plain.name("openvino")
    return tuple(letters) if letters is not None and len(letters) == len(names) else names


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
    """The digits as a clDNN name lists them: ``b_fs_yx_fsv16`` is b, fs, y, x, fsv. None: it does not."""
    found: list[str] = []
    for part in name.split("_"):
        bare = part.rstrip("0123456789")
        found.extend([bare] if "s" in bare else bare)
    axes = ["".join(letters[a] for a in layout.terms[d.term]) for d in memory_order(layout)]
    listed = [label.partition("s")[0] for label in found]
    return tuple(found) if listed == axes else None


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
    if nested(digits):
        yield from filter(
            None, (place_at(layout, digits, values) for values in every_index([*map(len, counted)]))
        )
        return
    if prod(map(len, counted)) > MOST_SORTED:
        raise LayoutError(
            f"the strides of {layout} interleave, so its places have no simple order to draw; ask for single "
            "ones with "
            "offset and index"
        )
    found = [place for values in product(*counted) if (place := place_at(layout, digits, values))]
    yield from sorted(found, key=lambda place: place.offset)


def nested(digits: tuple[LayoutDigit, ...]) -> bool:
    """Whether counting the digits in order means going upwards in memory."""
    covered = 1
    for digit in reversed(digits):
        if digit.extent > 1 and digit.stride:
            if digit.stride < covered:
                return False
            covered += (digit.extent - 1) * digit.stride
    return True


def place_at(layout: Layout, digits: tuple[LayoutDigit, ...], values: tuple[int, ...]) -> Place | None:
    """What the digits of these values lead to; None: a number that the layout has no room for."""
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


def drawable(layout: Layout) -> bool:
    """Whether the places have an order to draw (see :func:`places`)."""
    digits = memory_order(layout)
    return nested(digits) or prod(max(1, d.extent) for d in digits) <= MOST_SORTED
