"""``relayout translate`` and ``relayout formats``: how a format is called elsewhere, and what there is."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import click

from relayout.cli.arguments import DIALECT, DTYPE, FORMAT, colour_option, examples
from relayout.cli.console import console_for

if TYPE_CHECKING:
    from relayout.layout.format import Format

__all__ = ["formats", "translate"]


@click.command(
    short_help="Write a format in the notation of another system.",
    epilog=examples(
        "relayout translate nChw16c                          in all of them",
        "relayout translate b_fs_yx_fsv16 --to onednn",
        "relayout translate NCHW44@weights --from megengine",
        "relayout translate aBx16b --rank 5 --to onednn",
    ),
)
@click.argument("text", type=FORMAT, metavar="FORMAT")
@click.option("--to", "target", type=DIALECT, help="The notation to write it in. Without it: a table of all.")
@click.option(
    "--from", "source", type=DIALECT, help="The notation it is written in, if several could be meant."
)
@click.option(
    "--rank", type=click.IntRange(0, 12), help="The number of axes, for texts that fit several (aBx16b)."
)
@click.option(
    "--dtype", type=DTYPE, help="The data type, for names that mean another layout for 4-bit elements."
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@colour_option
def translate(
    text: str,
    target: str | None,
    source: str | None,
    rank: int | None,
    dtype: str | None,
    as_json: bool,
    no_colour: bool,
) -> None:
    """Translate a format between the notations of oneDNN, OpenVINO, MegEngine, PyTorch, TVM and others."""
    from relayout.draw.text import names_of
    from relayout.dtypes import dtype as as_dtype
    from relayout.errors import LayoutError
    from relayout.layout.format import Format
    from relayout.notation import dialect

    format = Format(text, source)
    if rank is not None or dtype is not None or format.rank is None:
        kind = None if dtype is None else as_dtype(dtype).name
        try:
            format = format.resolve(rank if rank is not None else format.rank, kind)
        except LayoutError as error:
            raise type(error)(f"{error} (--rank)" if rank is None else str(error)) from None
    if target is not None:
        name = format.name(target)
        if name is None:
            raise LayoutError(
                f"{text} has no name in {dialect(target).TITLE}; its digits are {format.digits_text()}"
            )
        click.echo(name)
        return
    names = names_of(format)
    if as_json:
        click.echo(json.dumps({"digits": format.digits_text(), "names": names}, indent=2))
        return
    _table_of_names(format, names, no_colour)


def _table_of_names(format: Format, names: dict[str, str], no_colour: bool) -> None:
    from rich.table import Table

    from relayout.notation import dialect, dialects

    console = console_for(no_colour)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("dialect", "system", "name"):
        table.add_column(head, no_wrap=head == "dialect")
    table.add_row("digits", "the digits themselves", format.digits_text())
    for name, spelled in names.items():
        table.add_row(name, dialect(name).TITLE, spelled)
    console.print(table)
    silent = [name for name in dialects() if name not in names and name != "digits"]
    if silent:
        console.print(f"no name in: {', '.join(silent)}", style="bright_black")


@click.command(
    short_help="List notations, and the formats in them.",
    epilog=examples(
        "relayout formats",
        "relayout formats openvino --search fsv16",
        "relayout formats --search channels_last",
        "relayout formats onednn --grammar",
    ),
)
@click.argument("name", required=False, type=DIALECT, metavar="[DIALECT]")
@click.option("--search", metavar="TEXT", help="Only what has this text in its name or its digits.")
@click.option("--grammar", is_flag=True, help="How names are built in the dialect.")
@colour_option
def formats(name: str | None, search: str | None, grammar: bool, no_colour: bool) -> None:
    """List the notations that can be read and written, or the formats of one of them."""
    from relayout.notation import dialect, dialects

    if grammar:
        if name is None:
            raise click.UsageError("--grammar needs a DIALECT", click.get_current_context())
        click.echo(inspect.getdoc(dialect(name)) or "")
    elif name is not None or search is not None:
        _table_of_formats([name] if name is not None else list(dialects()), search, no_colour)
    else:
        _table_of_dialects(no_colour)


def _table_of_dialects(no_colour: bool) -> None:
    from itertools import islice

    from rich.table import Table

    from relayout.notation import dialect, dialects

    console = console_for(no_colour)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("dialect", no_wrap=True)
    table.add_column("system")
    table.add_column("for example")
    for name in dialects():
        module = dialect(name)
        listed = list(module.names())
        table.add_row(name, module.TITLE, ", ".join(islice(_spread(listed), 3)))
    console.print(table)
    console.print(
        "relayout formats DIALECT lists the names of one, with --grammar how they are built",
        style="bright_black",
    )


def _spread(names: list[str]) -> list[str]:
    """Short names from all over a list."""
    step = max(1, len(names) // 7)
    return sorted({name for name in names[::step] if len(name) <= 24} or set(names[:2]), key=names.index)


def _table_of_formats(names: list[str], search: str | None, no_colour: bool) -> None:
    from rich.table import Table

    from relayout.errors import LayoutError
    from relayout.layout.format import Format
    from relayout.notation import dialect

    console = console_for(no_colour)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("format", no_wrap=True)
    if len(names) > 1:
        table.add_column("dialect", no_wrap=True)
    table.add_column("digits")
    wanted = (search or "").lower()
    for name in names:
        for text in dialect(name).names():
            try:
                format = Format(text, name)
                digits = format.digits_text() if format.rank is not None else "depends on the number of axes"
            except LayoutError as error:
                digits = str(error)
            if wanted in text.lower() or wanted in digits.lower():
                table.add_row(text, *([name] if len(names) > 1 else []), digits)
    if not table.row_count:
        raise LayoutError(
            f"no format has {search!r} in its name or its digits; 'relayout formats' lists the notations"
        )
    console.print(table)
