"""``relayout offset``: where one element lies, and which element lies at a place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DIMS, DTYPE, WHOLE, examples
from relayout.cli.described import described, indices
from relayout.cli.options import STANDARD, Output, output_options

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.layout.layout import Layout

__all__ = ["offset"]

LONGEST_LINE = 1 << 16  # letters of standard input that are kept at a time


@click.command(
    short_help="Print where an element lies, or what lies at an offset.",
    epilog=examples(
        "relayout offset nChw8c 2,17,5,4 1,9,0,2",
        "relayout offset OIhw4i16o4i 32,16,3,3 17 5 0 2 --dtype s8",
        "relayout offset nChw8c 2,17,5,4 --inverse 657",
        "relayout offset 4,5 3,2 --strides 8,1",
        "relayout offset nChw8c 2,17,5,4 -      reads indices from standard input",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="FORMAT DIMS [INDEX]...")
@click.option(
    "--inverse", "place", type=WHOLE, metavar="OFFSET", help="The other way round: what lies at this offset?"
)
@click.option("--dtype", type=DTYPE, help="Data type; the explanation then has bytes, too.")
@click.option("--strides", type=DIMS, help="Strides between (outermost blocks of) each axis, in elements.")
@click.option(
    "--explain/--no-explain",
    default=None,
    help="Whether to show the digits behind the answer. [default: in a terminal]",
)
@output_options
def offset(
    words: tuple[str, ...],
    place: int | None,
    dtype: str | None,
    strides: tuple[int, ...] | None,
    explain: bool | None,
    output: Output,
) -> None:
    """Print the offset of an element, in elements. The first line is the bare number.

    An INDEX is 17,5,0,2 or 17 5 0 2. There may be several; with - they come from standard input, one on each
    line, and are answered as they arrive. With --inverse OFFSET print what lies there: a logical index, or
    the word padding or hole.
    """
    from relayout.errors import LayoutError

    told = described(words, dtype, strides)
    desc, layout, roles = told.desc, told.desc.layout, told.roles
    in_bytes = dtype is not None or told.typed
    if not told.rest and place is None:
        raise click.UsageError(
            "give FORMAT DIMS INDEX, or FORMAT DIMS --inverse OFFSET", click.get_current_context()
        )
    if place is not None and told.rest:
        raise click.UsageError("give an INDEX or --inverse OFFSET, not both", click.get_current_context())
    explained = output.talks and (sys.stdout.isatty() if explain is None else explain)
    if place is None:
        elements = []

        def answer(index: tuple[int, ...], where: int) -> None:
            output.answer(str(where))
            if explained:
                _explain(desc, index, where, roles, in_bytes, output)

        piped = told.rest == (STANDARD,)
        found = _from_standard_input(layout) if piped else _typed(told.rest, layout)
        for index, where in found:
            answer(index, where)
            if output.wants_json:
                elements.append(_element(index, where))
        output.json({"descriptor": str(desc), "elements": elements})
        return
    low, high = layout.bounds()
    if not low <= place <= high:
        raise LayoutError(f"offset {place} lies outside of {layout}, which takes the places {low} to {high}")
    element = layout.index(place)
    what = "element" if element is not None else "padding" if layout.is_padding(place) else "hole"
    output.json({"descriptor": str(desc), "what": what, **_element(element, place)})
    output.answer(what if element is None else ",".join(map(str, element)))
    if explained and element is not None:
        _explain(desc, element, place, roles, in_bytes, output)
    elif explained:
        _explain_nothing(desc, place, roles)


def _typed(words: Sequence[str], layout: Layout) -> list[tuple[tuple[int, ...], int]]:
    """Indices and their offsets: all of them, before anything is printed."""
    return [(index, layout.offset(*index)) for index in indices(words, layout.rank)]


def _from_standard_input(layout: Layout) -> Iterator[tuple[tuple[int, ...], int]]:
    """The same for each line of standard input as it arrives; the input may be endless.

    Raises
    ------
    click.UsageError, LayoutError
        As for indices that are typed; the message has the number of the line.
    """
    from relayout.errors import LayoutError

    for number in count(1):
        line = sys.stdin.readline(LONGEST_LINE)
        if not line:
            return
        try:
            if len(line) == LONGEST_LINE:
                raise click.UsageError(f"the line is longer than {LONGEST_LINE - 1} letters")
            yield from _typed(line.split(), layout) if line.strip() else ()
        except click.UsageError as error:
            raise click.UsageError(
                f"standard input, line {number}: {error.message}", click.get_current_context()
            ) from error
        except LayoutError as error:
            raise type(error)(f"standard input, line {number}: {error}") from error


def _element(index: tuple[int, ...] | None, offset: int) -> dict[str, Any]:
    return {"index": None if index is None else list(index), "offset": offset}


def _explain(
    desc: MemoryDesc,
    index: tuple[int, ...],
    where: int,
    roles: tuple[str, ...] | None,
    in_bytes: bool,
    output: Output,
) -> None:
    """The sum behind an offset, a digit to a line."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from relayout.draw import text as draw

    layout = desc.layout
    axes, names = draw.labels(layout, roles)
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    for _ in range(5):
        table.add_column(justify="right", no_wrap=True)
    numbers = layout._fuse(index) if len(layout.terms) != layout.rank else index
    for digit, name in zip(draw.memory_order(layout), names, strict=True):
        value = numbers[digit.term] // digit.weight % max(1, digit.extent)
        colour = draw.colour(digit.term)
        table.add_row(Text(name, colour), str(value), "*", str(digit.stride), "=", str(value * digit.stride))
    if layout.offset0:
        table.add_row("offset0", "", "", "", "=", str(layout.offset0))
    console = output.console()
    element = ", ".join(f"{name}={i}" for name, i in zip(axes, index, strict=True))
    console.print(Padding.indent(Text(f"{element} of {layout}"), 2))
    console.print(Padding.indent(table, 4))
    if in_bytes:
        bits = where * desc.dtype.bits
        half = f", {'high' if bits % 8 else 'low'} half" if desc.dtype.bits < 8 else ""
        console.print(Padding.indent(Text(f"byte {bits // 8}{half} as {desc.dtype}"), 2))


def _explain_nothing(desc: MemoryDesc, place: int, roles: tuple[str, ...] | None) -> None:
    from relayout.draw import text as draw

    layout = desc.layout
    axes = draw.labels(layout, roles)[0]
    if not layout.is_padding(place):
        click.echo(f"  offset {place} lies between the elements of {layout} and holds other data")
        return
    for numbers in layout._numbers_at(place):
        beyond = [t for t, number in enumerate(numbers) if number >= layout.term_size(t)]
        if beyond and all(number < room for number, room in zip(numbers, layout.padded, strict=True)):
            term = beyond[0]
            name = " ".join(axes[a] for a in layout.terms[term])
            click.echo(
                f"  it would be {name}={numbers[term]}, but {name} ends at {layout.term_size(term) - 1}; it "
                "holds zero"
            )
            return
