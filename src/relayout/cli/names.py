"""``relayout translate`` and ``relayout formats``: how a format is called elsewhere, and what there is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DIALECT, DTYPE, FORMAT, examples
from relayout.cli.described import meaning_option, with_meaning
from relayout.cli.options import NothingFound, Output, output_options

if TYPE_CHECKING:
    from relayout.layout.format import Format

__all__ = ["formats", "translate"]

WIDTHS = ("f32", "f16", "s8", "s4")  # a data type of each width


@click.command(
    short_help="Write a format in the notation of another system.",
    epilog=examples(
        "relayout translate nChw16c                          in all of them",
        "relayout translate b_fs_yx_fsv16 --to onednn",
        "relayout translate NCHW44@weights --from megengine",
        "relayout translate aBx16b --rank 5 --to onednn",
        "relayout translate aBcd16b --as activations --to openvino",
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
@meaning_option
@output_options
def translate(
    text: str,
    target: str | None,
    source: str | None,
    rank: int | None,
    dtype: str | None,
    meaning: str | None,
    output: Output,
) -> None:
    """Translate a format between the notations of oneDNN, OpenVINO, MegEngine, PyTorch, TVM and others."""
    from relayout.draw.text import by_grammar_only, names_of
    from relayout.dtypes import dtype as as_dtype
    from relayout.errors import Unsupported
    from relayout.layout.format import Format
    from relayout.notation import dialect

    format = Format(text, source)
    if rank is None and format.rank is None:
        raise click.UsageError(
            f"{text} fits several numbers of axes; say how many the tensor has: --rank",
            click.get_current_context(),
        )
    if rank is not None or dtype is not None:
        kind = None if dtype is None else as_dtype(dtype).name
        format = format.resolve(rank if rank is not None else format.rank, kind)
    others = {} if dtype is not None else _by_type(format)
    if others and output.talks:  # not on standard output, where scripts take the name
        here = format.digits_text()
        alike = [kind for kind, digits in others.items() if digits == here]
        told = "".join(f"; for {kind} it is {digits}" for kind, digits in others.items() if digits != here)
        click.echo(
            f"{text} waits for the data type: this is for {', '.join(alike)}{told} (--dtype)", err=True
        )
    awaited: dict[str, Any] = {"by_dtype": others} if others else {}
    format = with_meaning(format, meaning)
    if target is not None:
        name = format.name(target)
        if name is None:
            raise Unsupported(
                f"{text} has no name in {dialect(target).TITLE}; its digits are {format.digits_text()}"
            )
        guessed = by_grammar_only({target: name})
        output.json(
            {"digits": format.digits_text(), "names": {target: name}, "by_grammar_only": guessed, **awaited}
        )
        output.answer(name)
        if guessed and output.talks:  # not on standard output, where scripts take the name
            click.echo(f"by grammar only: {dialect(target).TITLE} has no such format", err=True)
        return
    names = names_of(format)
    guessed = by_grammar_only(names)
    output.json({"digits": format.digits_text(), "names": names, "by_grammar_only": guessed, **awaited})
    if output.quiet:
        for dialect_name, spelled in names.items():
            output.answer(f"{dialect_name}\t{spelled}")
    else:
        _table_of_names(format, names, output)


def _by_type(format: Format) -> dict[str, str]:
    """The digits for data types of each width, where the name means another layout for some of them."""
    if "dtype" not in format.waits_for:
        return {}
    found = {kind: format.resolve(format.rank, kind).digits_text() for kind in WIDTHS}
    return found if len(set(found.values())) > 1 else {}


def _table_of_names(format: Format, names: dict[str, str], output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    from relayout.draw.text import FADED, by_grammar_only
    from relayout.notation import dialect, dialects

    guessed = by_grammar_only(names)
    console = output.console()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("dialect", "system", "name"):
        table.add_column(head, no_wrap=head == "dialect")
    table.add_row("digits", "the digits themselves", format.digits_text())
    for name, spelled in names.items():
        mark = ("  (by grammar only)", FADED) if name in guessed else ""
        table.add_row(name, dialect(name).TITLE, Text.assemble(spelled, mark))
    console.print(table)
    if guessed:
        console.print("by grammar only: the system itself has no such format", style=FADED)
    silent = [name for name in dialects() if name not in names and name != "digits"]
    if silent:
        console.print(f"no name in: {', '.join(silent)}", style=FADED)


@click.command(
    short_help="List notations, and the formats in them.",
    epilog=examples(
        "relayout formats",
        "relayout formats openvino --search fsv16",
        "relayout formats --search channels_last",
        "relayout formats onednn --grammar",
        "relayout formats --operators --search Conv",
    ),
)
@click.argument("name", required=False, type=DIALECT, metavar="[DIALECT]")
@click.option("--search", metavar="TEXT", help="Only what has this text in its name or its digits.")
@click.option("--grammar", is_flag=True, help="How names are built in the dialect.")
@click.option(
    "--operators", is_flag=True, help="The operators of networks that are known, and their kernels."
)
@output_options
def formats(name: str | None, search: str | None, grammar: bool, operators: bool, output: Output) -> None:
    """List the notations that can be read and written, or the formats of one of them."""
    from relayout.notation import dialect, dialects

    if operators:
        from relayout.cli.operators import list_operators

        if name is not None or grammar:
            raise click.UsageError("--operators lists no formats", click.get_current_context())
        list_operators(search, output)
        return
    if grammar:
        if name is None:
            raise click.UsageError("--grammar needs a DIALECT", click.get_current_context())
        told = inspect.getdoc(dialect(name)) or ""
        output.json({"dialect": name, "grammar": told})
        output.answer(told)
    elif name is not None or search is not None:
        found = _formats_of([name] if name is not None else list(dialects()), search)
        if not found:
            raise NothingFound(
                f"no format has {search!r} in its name or its digits; 'relayout formats' lists the "
                "notations, and 'relayout translate' reads whole names that are not in a list"
            )
        output.json({"formats": found})
        if output.quiet:
            for one in found:
                output.answer(one["format"])
        else:
            _table_of_formats(found, name is None, output)
    else:
        output.json({"dialects": [{"dialect": d, "system": dialect(d).TITLE} for d in dialects()]})
        if output.quiet:
            output.answer("\n".join(dialects()))
        else:
            _table_of_dialects(output)


def _table_of_dialects(output: Output) -> None:
    from itertools import islice

    from rich.table import Table

    from relayout.notation import dialect, dialects

    console = output.console()
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


def _formats_of(names: list[str], search: str | None) -> list[dict[str, Any]]:
    """The formats that dialects list, with their digits; those with ``search`` in one of the two.

    A dialect that is a grammar lists the usual formats only. So a search that is itself a format of it finds
    that one, too.
    """
    from relayout.errors import LayoutError
    from relayout.layout.format import Format
    from relayout.notation import attested, dialect

    found = []
    wanted = (search or "").strip()
    for name in names:
        listed = list(dialect(name).names())
        for text in [*listed, *([wanted] if wanted and wanted not in listed else [])]:
            try:
                format = Format(text, name)
                digits = format.digits_text() if format.rank is not None else "depends on the number of axes"
            except LayoutError as error:
                if text not in listed:
                    continue
                digits = str(error)
            if wanted.lower() in text.lower() or wanted.lower() in digits.lower():
                own = text in listed or attested(text, name)
                found.append({"dialect": name, "format": text, "digits": digits, "by_grammar_only": not own})
    return found


def _table_of_formats(found: list[dict[str, Any]], several: bool, output: Output) -> None:
    from rich.table import Table
    from rich.text import Text

    from relayout.draw.text import FADED

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("format", overflow="fold")
    if several:
        table.add_column("dialect", no_wrap=True)
    table.add_column("digits")
    for one in found:
        mark = ("  (by grammar only)", FADED) if one["by_grammar_only"] else ""
        digits = Text.assemble(one["digits"], mark)
        table.add_row(one["format"], *([one["dialect"]] if several else []), digits)
    output.console().print(table)
