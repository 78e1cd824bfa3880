"""``relayout show``: what lies where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DIMS, DTYPE, examples
from relayout.cli.console import marks_of, reading_width
from relayout.cli.described import described, meaning_option
from relayout.cli.options import Output, output_options
from relayout.cli.pictures import Pictures, picture_options
from relayout.cli.show_store import show_store, store_among

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.layout.descriptor import MemoryDesc

__all__ = ["show"]

SHORT = 32  # lines of a listing that is shown without being asked for
ROWS = 16  # of a grid or listing
MOST_ROWS = 1000  # of a picture
PICTURED = 20  # rows of a picture, if not told otherwise


@click.command(
    short_help="Show what lies where in a format.",
    epilog=examples(
        "relayout show nChw8c 1,17,2,2                17 channels in blocks of 8",
        "relayout show b_fs_yx_fsv16 2,2,2,2          the listing of OpenVINO's page",
        "relayout show OIhw4i16o4i 64,64,3,3 --grid --limit 40",
        "relayout show 4,5 --strides 8,1              rows of 5, padded to 8",
        "relayout show nChw16c 1,64,56,56 --dtype bf16 --json",
        "relayout show nChw8c 1,17,4,4 --svg padding.svg --png padding.png",
        "relayout show os_is_yx_osv32_isv4_swizzled_by_2 64,32,1,1 --html a.html",
        "relayout show big.zarr nchw --svg chunks.svg    the chunks of a store",
        "relayout show src:f32:p:blocked:aBcd8b::f0 1,17,2,2   from a log of oneDNN",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="FORMAT DIMS")
@click.option("--dtype", type=DTYPE, help="Data type, for sizes in bytes. [default: f32]")
@click.option("--strides", type=DIMS, help="Strides between (outermost blocks of) each axis, in elements.")
@click.option("--listing", is_flag=True, help="List place by place: logical index == digits.")
@click.option("--grid", is_flag=True, help="Draw memory as rows of the innermost digits.")
@click.option(
    "--limit",
    type=click.IntRange(0, 10**9),
    help=f"Lines of listing or grid (0: all), or rows of a picture. [default: {ROWS}, {PICTURED}]",
)
@meaning_option
@click.option("--name", help="The array in a store of several.")
@click.option("--colour", metavar="DIGIT", help="Colour the picture by a digit: c//8, c%8, h.")
@picture_options
@output_options
def show(
    words: tuple[str, ...],
    dtype: str | None,
    strides: tuple[int, ...] | None,
    listing: bool,
    grid: bool,
    limit: int | None,
    meaning: str | None,
    name: str | None,
    colour: str | None,
    pictures: Pictures,
    output: Output,
) -> None:
    """Show what lies where: the digits of a format, its sizes, its names elsewhere, and the places in memory.

    FORMAT is written in any notation (see relayout formats), or is a descriptor as Relayout prints it
    (f32:nChw8c:1x17x2x2) or oneDNN logs it. DIMS are the logical sizes in the order of the format's axes: n,
    c, h, w for nhwc too.

    Instead, give a STORE (a Zarr store, or a folder of npy files), and its format where it can't say it:
    what stands in the names of chunks, and what in the chunks.

    --svg, --png and --html write a picture instead: the tensor in slices, its memory cache line by cache
    line, what padding costs, and how many cache lines 16 channels of a pixel take (of AXIS, with --vector).
    """
    pictures.needs("--colour", colour)
    pictures.claim(output)
    if store_among(words):
        show_store(words, name, pictures, output)
        return
    if name is not None:
        raise click.UsageError("--name is that of an array in a store", click.get_current_context())
    told = described(words, dtype, strides, meaning)
    if told.rest:
        raise click.UsageError(f"give FORMAT DIMS; got {' '.join(words)}", click.get_current_context())
    desc, roles = told.desc, told.roles
    if output.wants_json:
        output.json(_as_json(desc, roles))
    if pictures.wanted and (listing or grid):
        raise click.UsageError(
            "--listing and --grid are no pictures; give them without --svg, --png and --html",
            click.get_current_context(),
        )
    if pictures.wanted and limit is not None and not 0 < limit <= MOST_ROWS:
        raise click.UsageError(
            f"--limit {limit}: a picture has 1 to {MOST_ROWS:,} rows of memory", click.get_current_context()
        )
    if pictures.wanted:
        own = [f"strides {'x'.join(map(str, strides))}"] if strides is not None else []
        _draw(
            " with ".join([*filter(None, [told.title]), *own]),
            desc,
            roles,
            colour,
            limit or PICTURED,
            pictures,
            output,
        )
        if told.appended:
            output.echo(f"oneDNN keeps more behind these elements ({told.appended}), which is not drawn")
        return
    if not output.talks:
        return
    console = output.console()
    if not (listing or grid):
        given = [] if strides is None else [f"strides {'x'.join(map(str, strides))}"]
        _summary(console, " with ".join([*filter(None, [told.title]), *given]), desc, roles)
        if told.appended:
            console.print(
                f"\n  oneDNN keeps more behind these elements ({told.appended}), which is not shown"
            )
    _places(console, desc, roles, listing, grid, limit)


def _draw(
    title: str,
    desc: MemoryDesc,
    roles: tuple[str, ...] | None,
    colour: str | None,
    rows: int,
    pictures: Pictures,
    output: Output,
) -> None:
    from relayout.draw.page import page
    from relayout.draw.sheet import sheet
    from relayout.layout.layout import spell_dims

    name, vector = f"{title}   {spell_dims(desc.dims) or 'scalar'}   {desc.dtype}", pictures.vector
    pictures.write(
        output,
        lambda: sheet(desc, axes=roles, colour=colour, vector=vector, rows=rows, title=name),
        lambda: page(desc, axes=roles, colour=colour, vector=vector, rows=rows, title=name),
    )


def _summary(console: Console, name: str, desc: MemoryDesc, roles: tuple[str, ...] | None) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from relayout.draw import text as draw

    layout = desc.layout
    heading = Text(name, "bold")
    heading.append(f"   {'x'.join(map(str, desc.dims)) or 'scalar'}   {desc.dtype}", "not bold")
    console.print(heading)
    console.print()
    console.print(Padding.indent(Text("offset = ").append_text(draw.formula(layout, roles)), 2))
    console.print()
    console.print(Padding.indent(draw.digits_table(desc, roles), 2))
    console.print()
    rows = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for what, words in draw.facts(desc, roles):
        rows.add_row(what, words)
    format = desc.format
    if format is not None and layout.rank:
        rows.add_row("names", draw.names_text(format))
        guessed = draw.names_text(format, attested=False)
        if guessed:
            note = " (by grammar only: no such format exists there)"
            rows.add_row("spellings", guessed.append(note, draw.FADED))
    console.print(Padding.indent(rows, 2))


def _places(
    console: Console,
    desc: MemoryDesc,
    roles: tuple[str, ...] | None,
    listing: bool,
    grid: bool,
    limit: int | None,
) -> None:
    from relayout.draw import text as draw

    layout, marks, width = desc.layout, marks_of(console), reading_width(console)
    asked = listing or grid
    if not asked:
        if not draw.drawable(layout):
            return  # too big to be sorted; the table has said what can be said
        listing = _is_short(desc) or not draw.nested(draw.memory_order(layout))
        grid = not listing
        limit = SHORT if listing and limit is None else limit
        console.print()
    lines = ROWS if limit is None else limit
    drawn = []
    if listing:
        drawn += draw.listing(layout, lines, width - 2 if console.is_terminal else None, marks, roles)
    if grid:
        drawn += draw.grid(layout, lines, width - 2, marks, roles)
    for line in drawn:
        console.print("  ", line, sep="", no_wrap=True, overflow="ellipsis", crop=True)


def _is_short(desc: MemoryDesc) -> bool:
    from itertools import islice

    from relayout.draw.text import listing_lines

    return sum(1 for _ in islice(listing_lines(desc.layout), SHORT + 1)) <= SHORT


def _as_json(desc: MemoryDesc, roles: tuple[str, ...] | None) -> dict[str, Any]:
    from relayout.draw import text as draw
    from relayout.files.arrays import physical_shape
    from relayout.files.descriptor import descriptor_to_json

    layout, format = desc.layout, desc.format
    spelled = {} if format is None else draw.names_of(format)
    axes, names = draw.labels(layout, roles)
    shape = physical_shape(desc)
    return {
        "format": None if format is None else str(format),
        "dtype": desc.dtype.name,
        "dims": list(desc.dims),
        "axes": list(axes),
        "padded_dims": list(desc.padded_dims),
        "digits": [
            {
                "name": name,
                "axes": [axes[a] for a in layout.terms[d.term]],
                "weight": d.weight,
                "extent": d.extent,
                "stride": d.stride,
            }
            for d, name in zip(draw.memory_order(layout), names, strict=True)
        ],
        "offset0": layout.offset0,
        "elements": layout.size,
        "span": layout.span,
        "bytes": -(-layout.span * desc.dtype.bits // 8),
        "density": layout.density,
        "physical_shape": None if shape is None else list(shape),
        "names": spelled,
        "by_grammar_only": draw.by_grammar_only(spelled),
        "descriptor": descriptor_to_json(desc),
    }
