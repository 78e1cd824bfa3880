"""``relayout diff``: do two formats place the same bytes, and which elements lie elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DTYPE, examples
from relayout.cli.described import Described, described, meaning_option, sizes_in
from relayout.cli.options import Exit, Output, axes_option, heard_or_not, output_options
from relayout.cli.pictures import Pictures, picture_options

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.loops.difference import Difference

__all__ = ["diff"]

LISTED = 8  # elements, if not told otherwise


@click.command(
    short_help="Compare two formats: same bytes, or what moves.",
    epilog=examples(
        "relayout diff nChw8c nhwc 2,8,5,4         the same bytes",
        "relayout diff nchw nChw8c 1,17,2,2        where elements lie in either",
        "relayout diff OIhw16i16o os_is_yx_isv16_osv16 64,64,3,3",
        "relayout diff f32::blocked:acdb::f0 f32:p:blocked:aBcd8b::f0 1,17,2,2",
        "relayout diff nchw nChw16c 1,32,8,8 --svg moves.svg --png moves.png",
        "relayout diff -q nchw nhwc 1,1,5,5 && echo nothing to convert",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="FORMAT FORMAT DIMS")
@click.option("--dtype", type=DTYPE, help="Data type, for sizes in bytes. [default: f32]")
@click.option(
    "--limit",
    type=click.IntRange(min=0, max=100_000),
    default=LISTED,
    show_default=True,
    help="How many of the elements that lie elsewhere are listed.",
)
@axes_option
@meaning_option
@picture_options
@output_options
def diff(
    words: tuple[str, ...],
    dtype: str | None,
    limit: int,
    axes: str,
    meaning: str | None,
    pictures: Pictures,
    output: Output,
) -> int:
    """Compare two formats for a tensor of the sizes DIMS.

    The exit code is 0 if they place the same bytes, elements and padding alike, and 1 if they differ. Then
    the first elements that lie elsewhere are listed: index, offset in the first format, offset in the second,
    in elements.

    Where both formats say what their axes mean, axes are matched by meaning, as in a conversion: DIMS and
    indices are in the order of the first format's axes. Otherwise axis k is axis k.

    --svg, --png and --html write a picture instead: memory in both formats, cache line by cache line, each
    element in the colour of the line of the first format that it comes from.
    """
    from relayout.loops.difference import difference

    if len(words) < 2:
        raise click.UsageError("give FORMAT FORMAT DIMS", click.get_current_context())
    pictures.claim(output)
    one, two = _both(words, dtype, meaning, axes)
    found = difference(one.desc.layout, two.desc.layout, limit)
    same = found.same_bytes and one.desc.dtype == two.desc.dtype
    with heard_or_not():
        if output.wants_json:
            output.json(_as_json(found, one.desc, two.desc, same))
        if pictures.wanted:
            _draw(one, two, pictures, output)
        elif output.talks:
            _tell(found, one, two, output)
    return Exit.DONE if same else Exit.NO


def _both(
    words: tuple[str, ...], dtype: str | None, meaning: str | None, axes: str
) -> tuple[Described, Described]:
    """The two tensors, both indexed as the first is; sizes that one descriptor says hold for both."""
    from relayout.errors import Unsupported
    from relayout.layout.layout import spell_dims
    from relayout.layout.roles import correspondence
    from relayout.reorder.axes import indexed_alike

    first, second, *sizes = words
    if not sizes:
        said = next((s for s in map(sizes_in, (first, second)) if s is not None), None)
        sizes = [] if said is None else [spell_dims(said)]

    def told(text: str, *given: str) -> Described:
        found = described(
            (text, *(given if sizes_in(text) is None or words[2:] else ())), dtype, None, meaning
        )
        if found.rest:
            raise click.UsageError(
                f"give FORMAT FORMAT DIMS; got {' '.join(words)}", click.get_current_context()
            )
        if found.appended:
            raise Unsupported(
                f"{text} is more than a layout: oneDNN appends sums to the elements or scales them "
                f"({found.appended}); name {found.title.split()[0]} to compare where the elements lie"
            )
        return found

    one, two = told(first, *sizes), told(second, *sizes)
    if axes == "position":
        return one, two
    places = correspondence(one.desc.layout.roles, two.desc.layout.roles, ("first", "second"))
    if places is not None and sizes_in(second) is None:  # the sizes are in the order of the first
        two = told(second, spell_dims([one.desc.dims[places.index(k)] for k in range(len(places))]))
    elif places is not None and sizes_in(first) is None:
        one = told(first, spell_dims([two.desc.dims[k] for k in places]))
    return one, two._replace(desc=indexed_alike(one.desc, two.desc), roles=one.roles)


def _draw(one: Described, two: Described, pictures: Pictures, output: Output) -> None:
    from relayout.draw.beside import beside
    from relayout.draw.page import both

    axes, titles = one.roles or two.roles, (one.title, two.title)
    pictures.write(
        output,
        lambda: beside(one.desc, two.desc, axes=axes, vector=pictures.vector, names=titles),
        lambda: both(one.desc, two.desc, axes=axes, vector=pictures.vector, names=titles),
    )


def _how(one: MemoryDesc, two: MemoryDesc, found: Difference) -> str:
    """How a conversion goes, once both are indexed alike."""
    from relayout.errors import LayoutError
    from relayout.reorder.conversion import Conversion
    from relayout.reorder.explanation import explained

    if found.same_bytes and one.dtype == two.dtype:
        return "none is needed"
    try:
        lines = explained(Conversion(one, two, axes="position")).splitlines()
    except LayoutError as error:  # elements that share a place can't be written, for one
        return f"refused: {error}"
    engine = next(line.partition(" ")[2].strip() for line in lines if line.startswith("engine"))
    return f"{one.nbytes:,} bytes read, {two.nbytes:,} written; {engine}"


def _tell(found: Difference, one: Described, two: Described, output: Output) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = output.console()
    sides = (one.desc, two.desc)
    dims = "x".join(map(str, one.desc.dims)) or "scalar"
    heading = Text(f"{one.title} and {two.title}", "bold")
    kinds = dict.fromkeys(str(desc.dtype) for desc in sides)
    heading.append(f"   {dims}   {' and '.join(kinds)}", "not bold")
    console.print(heading)
    console.print()
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    told = "no" if not found.same_bytes else "yes" if len(kinds) == 1 else "no, other data types"
    rows.add_row("same bytes", told)
    rows.add_row("elements", _moves(found))
    rows.add_row("padding", " and ".join(f"{padding:,}" for padding in found.padding) + " elements")
    rows.add_row("bytes", " and ".join(f"{desc.required_bytes:,}" for desc in sides))
    rows.add_row("conversion", _how(one.desc, two.desc, found))
    console.print(Padding.indent(rows, 2))
    if not found.first:
        return
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    axes = one.roles or two.roles or one.desc.layout.axis_names()
    table.add_column(",".join(axes), no_wrap=True)
    for side in (one, two):
        table.add_column(f"offset in {side.title}", justify="right")
    for moved in found.first:
        table.add_row(",".join(map(str, moved.index)), str(moved.a), str(moved.b))
    console.print(Padding.indent(table, 2))
    if found.moved is None or found.moved > len(found.first):
        left = "more" if found.moved is None else f"{found.moved - len(found.first):,} more"
        console.print(f"  and {left} (--limit)")


def _moves(found: Difference) -> str:
    if found.moved is None:
        return f"{found.elements:,}; some of them lie elsewhere (too irregular to count)"
    if found.moved == 0:
        return f"all {found.elements:,} at the same offset" + (
            "" if found.same_bytes else ", but not the padding"
        )
    stay = found.elements - found.moved
    share = 100 * stay / found.elements
    return f"{found.moved:,} of {found.elements:,} lie elsewhere, {stay:,} stay ({share:.3g} %)"


def _as_json(found: Difference, one: MemoryDesc, two: MemoryDesc, same: bool) -> dict[str, Any]:
    return {
        "a": str(one),
        "b": str(two),
        "same_bytes": same,
        "elements": found.elements,
        "moved": found.moved,
        "stay": None if found.moved is None else found.elements - found.moved,
        "padding": list(found.padding),
        "bytes": [one.required_bytes, two.required_bytes],
        "conversion": _how(one, two, found),
        "first": [{"index": list(m.index), "offset_a": m.a, "offset_b": m.b} for m in found.first],
    }
