"""Tables and drawings of layouts for the terminal.

Three views of the same thing, from the formula to the single place in memory. For ``nChw8c`` and 17 channels:

the *digits*: what is counted, and how far one step of each moves. This is the layout; the rest is its
consequence ::

    digit   reads as                  weight  extent  stride
    n       batch index                    1       1      96
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

from math import prod

from rich.table import Table
from rich.text import Text

from relayout.draw.grid import grid
from relayout.draw.listing import listing, listing_lines
from relayout.draw.names import LONGEST_NAME, by_grammar_only, names_of
from relayout.draw.places import WORDS, Place, drawable, labels, memory_order, nested, places, summands
from relayout.draw.signs import FADED, Marks, colour
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, LayoutDigit, spell_dims
from relayout.notation import dialect

__all__ = [
    "FADED",
    "Marks",
    "Place",
    "by_grammar_only",
    "colour",
    "digits_table",
    "drawable",
    "facts",
    "formula",
    "grid",
    "labels",
    "listing",
    "listing_lines",
    "memory_order",
    "names_of",
    "names_text",
    "nested",
    "places",
]


def formula(layout: Layout, roles: tuple[str, ...] | None = None) -> Text:
    """Where an element lies, as one sum. For ``roles`` see :func:`labels`.

    Examples
    --------
    >>> print(formula(Layout((2, 17, 5, 4), "nChw8c")))
    n*480 + c//8*160 + h*32 + w*8 + c%8
    """
    made = Text()
    for text, term in summands(layout, roles):
        made.append(text, None if term is None else colour(term))
    return made


def digits_table(desc: MemoryDesc, roles: tuple[str, ...] | None = None) -> Table:
    """One line for each digit: what it counts, weight, extent, and stride in elements and bytes."""
    layout = desc.layout
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("digit", no_wrap=True)
    table.add_column("reads as")
    for name in ("weight", "extent", "stride", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    _, names = labels(layout, roles)
    for digit, name in zip(memory_order(layout), names, strict=True):
        numbers = (digit.weight, digit.extent, digit.stride)
        table.add_row(
            Text(name, colour(digit.term)),
            _reading(layout, digit, roles),
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


def _words(layout: Layout, term: int, roles: tuple[str, ...] | None) -> tuple[str, str]:
    axes = layout.terms[term]
    if len(axes) == 1:
        known = layout.format.roles if roles is None and layout.format is not None else roles
        name = layout.axis_names()[axes[0]] if known is None else known[axes[0]]
        plainly = (f"index of {name}", f"indices of {name}")
        return plainly if known is None else WORDS.get(name, plainly)  # a mere letter has no meaning
    spelled = " ".join(labels(layout, roles)[0][a] for a in axes)
    return f"place of ({spelled})", f"places of ({spelled})"


def _reading(layout: Layout, digit: LayoutDigit, roles: tuple[str, ...] | None) -> str:
    """What a digit counts, in words."""
    one, many = _words(layout, digit.term, roles)
    ladder = layout.ladders[digit.term]
    level = next(k for k, d in enumerate(ladder) if d.weight == digit.weight and d.extent == digit.extent)
    if level == 0:
        return one if digit.weight == 1 else f"block of {digit.weight} {many}"
    around = "block" if level == 1 else f"group of {ladder[level - 1].weight}"
    return (
        f"{one} within its {around}" if digit.weight == 1 else f"group of {digit.weight} within its {around}"
    )


def facts(desc: MemoryDesc, roles: tuple[str, ...] | None = None) -> list[tuple[str, str]]:
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
            names = labels(layout, roles)[0]
            name = " ".join(names[a] for a in layout.terms[term])
            blocks = -(-size // block)
            left = f": the last {room - size} of {room} are padding" if room > size else ", no padding"
            many = _words(layout, term, roles)[1]
            found.append(
                (f"axis {name}", f"{size} {many} in {blocks} block{'s' * (blocks != 1)} of {block}{left}")
            )
    holes = layout.span - owned
    if holes > 0:
        found.append(("holes", f"{holes:,} places in between hold other data and are not touched"))
    if not layout.is_injective():
        found.append(("shared", "some elements share a place (broadcast, or overlapping strides)"))
    found.append(("bytes", _bytes(desc)))
    if layout.offset0:
        found.append(
            (
                "offset0",
                f"{layout.offset0}: element (0, ..., 0) lies {layout.offset0} elements into the buffer",
            )
        )
    return found


def _bytes(desc: MemoryDesc) -> str:
    layout = desc.layout
    needed = f"{-(-layout.span * desc.dtype.bits // 8):,} as {desc.dtype}"
    if not layout.span:
        return needed
    if layout.density > 1:
        return f"{needed}, shared by {layout.size:,} elements"
    return f"{needed}; elements take up {100 * layout.density:.4g} %"


def names_text(format: Format, attested: bool = True) -> Text:
    """The spellings of a format in the dialects in which it has a short one, side by side.

    Those that the systems themselves have; with ``attested=False`` those that only follow their grammar. The
    spelling in which the format was written comes first, however long it is.
    """
    names = names_of(format)
    guessed = by_grammar_only(names)
    own = [format.dialect] if format.dialect in names else []
    made = Text()
    for name in dict.fromkeys([*own, *names]):
        spelled = names[name]
        if (name in guessed) == attested:
            continue
        if name not in own and (" " in spelled or len(spelled) > LONGEST_NAME):
            continue
        made.append(", " if made else "")
        made.append(dialect(name).TITLE.partition(" (")[0] + " ", FADED)
        made.append(spelled)
    return made
