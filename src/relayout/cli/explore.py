"""``relayout explore``: formats on a page that computes where elements lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from relayout.cli.arguments import DTYPE, examples
from relayout.cli.described import completed, described
from relayout.cli.options import STANDARD, Output, check_writable, output_options

__all__ = ["explore"]

FIRST: Final = ("nChw8c", (1, 17, 3, 3))
"""What is shown where no format is named: blocks that are half full."""


@click.command(
    short_help="Type formats and step through memory, in a browser.",
    epilog=examples(
        "relayout explore                              opens the page",
        "relayout explore nChw16c 1,40,7,7             begins with a format",
        "relayout explore b_fs_yx_fsv16 2,17,3,3 --beside bfyx --dtype bf16",
        "relayout explore --html explorer.html         writes it: one file",
        "relayout explore OIhw4i16o4i 64,64,3,3 --html packed.html",
        "relayout explore src:f32:p:blocked:aBcd8b::f0 1,17,2,2 --html logged.html",
    ),
)
@click.argument("words", nargs=-1, metavar="[FORMAT DIMS]")
@click.option("--beside", metavar="FORMAT", help="A second format, side by side with the first.")
@click.option("--dtype", type=DTYPE, help="Data type, for bytes and cache lines. [default: f32]")
@click.option("--html", metavar="FILE", help="Write the page (-: to standard output) and open nothing.")
@output_options
def explore(
    words: tuple[str, ...], beside: str | None, dtype: str | None, html: str | None, output: Output
) -> None:
    """Open a page in which formats are typed, seen and stepped through.

    The page shows a tensor by index and in memory, in one format or in two side by side. Point at an element
    to see its index, digits, offset, byte and cache line; drag the sizes; go to an offset. The address holds
    what is shown. The page is one file that loads nothing.

    FORMAT is written in any notation (see relayout formats), or is a descriptor as Relayout prints it or
    oneDNN logs it; DIMS are the logical sizes in the order of its axes.
    """
    if html == STANDARD:
        output.take_standard_output("--html -")
    elif html is not None:
        check_writable(Path(html))
    from relayout.draw.explorer import explorer_page
    from relayout.notation import verbose

    if words:
        told = described(words, dtype)
        if told.rest:
            raise click.UsageError(f"give FORMAT DIMS; got {' '.join(words)}", click.get_current_context())
        if told.desc.layout.format is None:
            raise click.UsageError("the explorer shows formats, not strides", click.get_current_context())
        if told.appended:  # the page must not take the elements for all that is in memory
            raise click.UsageError(
                f"oneDNN keeps more behind these elements ({told.appended}), which the explorer does not "
                f"show; name {told.desc.format} to see where the elements lie",
                click.get_current_context(),
            )
        logged = verbose.read(words[0].strip()) is not None  # its title has words that are no format
        name = str(told.desc.format) if logged else told.title
        beside = _second(beside, told.desc.dims)
        page = explorer_page(name, told.desc.dims, beside=beside, dtype=told.desc.dtype.name)
    else:
        beside = _second(beside, FIRST[1])
        page = explorer_page(*FIRST, beside=beside or "nhwc", dtype=dtype or "f32")
    if output.wants_json:
        output.json({"html": html, "bytes": len(page.encode())})
    if html == STANDARD:
        click.echo(page, nl=False)
    elif html is not None:
        try:
            Path(html).write_text(page, encoding="utf-8")
        except OSError as error:
            error.filename = html  # a full disk does not say where
            raise
        output.echo(f"written to {html}")
    else:
        _open(page, output)


def _second(text: str | None, dims: tuple[int, ...]) -> str | None:
    """The format of ``--beside``, which may be a descriptor as well; the tensor is one and the same."""
    name, sizes, _ = completed(text, None, None)
    if sizes is not None and sizes != dims:
        raise click.UsageError(
            f"--beside {text} has other sizes than {'x'.join(map(str, dims))}", click.get_current_context()
        )
    return name


def _open(page: str, output: Output) -> None:
    """Open a page in the browser, from a file that stays there for it."""
    import tempfile
    import webbrowser

    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="relayout-explore-", suffix=".html", delete=False
    ) as file:
        file.write(page)
    path = Path(file.name)
    if not webbrowser.open(path.as_uri()):
        path.unlink()
        raise click.ClickException("no browser can be opened here; write the page with --html FILE")
    output.echo(f"opened {path}")
