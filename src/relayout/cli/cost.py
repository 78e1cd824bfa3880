"""``relayout cost``: what a format costs, counted."""

from __future__ import annotations

import click

from relayout.cli.arguments import DTYPE, FORMAT, examples
from relayout.cli.described import described, meaning_option, with_meaning
from relayout.cli.options import Output, output_options

__all__ = ["cost"]


@click.command(
    short_help="Count what a format costs: bytes, lines, pages.",
    epilog=examples(
        "relayout cost nchw 1,64,56,56",
        "relayout cost nChw16c 1,17,56,56 --dtype bf16",
        "relayout cost nchw 8,64,64,64 --to nhwc     and a conversion to it",
        "relayout cost OIhw16i16o 64,3,7,7 --json",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="FORMAT DIMS")
@click.option("--to", "target", type=FORMAT, help="Another format of the tensor: what a conversion moves.")
@click.option("--to-dtype", type=DTYPE, help="Data type after the conversion. [default: the same]")
@click.option("--dtype", type=DTYPE, help="Data type. [default: f32]")
@meaning_option
@output_options
def cost(
    words: tuple[str, ...],
    target: str | None,
    to_dtype: str | None,
    dtype: str | None,
    meaning: str | None,
    output: Output,
) -> None:
    """Count what a tensor of the sizes DIMS costs in a format.

    Bytes, padding, alignment; the cache lines (64 bytes) and pages (4 KiB) that a row, all channels of a
    pixel and a window of 3x3 touch, and how many of these lines find their set of the first-level cache full.
    With --to, what a conversion reads and writes, and how long a copy of as many bytes takes on this machine.
    """
    import relayout

    told = described(words, dtype, None, meaning)
    if told.rest:
        raise click.UsageError(f"give FORMAT DIMS; got {' '.join(words)}", click.get_current_context())
    desc, other = told.desc, None
    if target is not None:
        kind = to_dtype or desc.dtype.name
        format = relayout.Format(target).resolve(desc.rank, kind)
        other = relayout.MemoryDesc(desc.dims, kind, with_meaning(format, meaning))
    found = relayout.cost(desc, other)
    output.json(found.to_json())
    if output.quiet:
        output.answer(str(found.bytes))
    output.echo(str(found))
