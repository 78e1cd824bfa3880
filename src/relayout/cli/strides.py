"""``relayout strides``: what strides mean to PyTorch."""

from __future__ import annotations

import click

from relayout.cli.arguments import DIMS, examples
from relayout.cli.console import reading_width
from relayout.cli.options import Output, output_options

__all__ = ["strides"]


@click.command(
    short_help="Explain what strides mean to PyTorch.",
    epilog=examples(
        "relayout strides 8,64,7,7 3136,1,448,64",
        "relayout strides 8,1,7,7 49,1,7,1",
    ),
)
@click.argument("dims", type=DIMS)
@click.argument("steps", type=DIMS, metavar="STRIDES")
@output_options
def strides(dims: tuple[int, ...], steps: tuple[int, ...], output: Output) -> None:
    """Explain what x.shape and x.stride() mean to PyTorch.

    Which memory formats they are, which they can be mistaken for, what the next convolution takes them for,
    and which calls copy. With --quiet: the format that PyTorch takes them for.
    """
    from dataclasses import asdict

    from relayout.pytorch import explain
    from relayout.pytorch.wording import in_words

    report = explain(dims, steps)
    output.json({**asdict(report), "mistakable": report.mistakable})
    if output.quiet:
        output.answer(report.suggested)
    else:
        output.echo(in_words(report, reading_width(output.console())))
