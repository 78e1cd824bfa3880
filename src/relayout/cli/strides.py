"""``relayout strides``: what strides mean to PyTorch."""

from __future__ import annotations

import click

from relayout.cli.arguments import DIMS, examples
from relayout.cli.console import console_for, reading_width

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
def strides(dims: tuple[int, ...], steps: tuple[int, ...]) -> None:
    """Explain what x.shape and x.stride() mean to PyTorch.

    Which memory formats they are, which they can be mistaken for, what the next convolution takes them for,
    and which calls copy.
    """
    from relayout.pytorch import explain
    from relayout.pytorch.wording import in_words

    click.echo(in_words(explain(dims, steps), reading_width(console_for())))
