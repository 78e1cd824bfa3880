"""``relayout verify``: is a dump in the format that it claims to be in?"""

from __future__ import annotations

import click

from relayout.cli.arguments import DIMS, DTYPE, FORMAT, examples
from relayout.cli.described import completed
from relayout.cli.dumps import dump_and_like, dump_options
from relayout.cli.options import Exit, Output, heard_or_not, output_options

__all__ = ["verify"]


@click.command(
    short_help="Check that a dump is in a format.",
    epilog=examples(
        "relayout verify dump.bin --format nChw16c --like x.npy",
        "relayout verify dump.bin --format OIhw4i16o4i --dtype bf16 --like w.npy",
        "relayout verify dump.bin --format f32:nChw8c:1x17x2x2 --like x.npy",
        "relayout verify -q dump.bin --format nhwc --like x.npy && echo right",
    ),
)
@dump_options
@click.option("--format", "format", type=FORMAT, required=True, help="The format, or a whole descriptor.")
@click.option("--dims", type=DIMS, help="The logical sizes. [default: those of --like]")
@click.option("--dtype", type=DTYPE, help="Data type of the dump's elements. [default: that of --like]")
@output_options
def verify(
    dump: str,
    like: str,
    like_name: str | None,
    skip: int,
    format: str,
    dims: tuple[int, ...] | None,
    dtype: str | None,
    output: Output,
) -> int:
    """Compare the file DUMP with the elements of another file, which it should hold in a format.

    Says which element differs first, how many do, what they have in common, whether the padding is zero, and
    if something is wrong, which other format explains the dump. The exit code is 0 if all is as it should be,
    else 1.
    """
    import relayout

    data, wanted = dump_and_like(dump, like, like_name, skip)
    name, sizes, kind = completed(format, dims, dtype)
    desc = relayout.MemoryDesc(wanted.dims if sizes is None else sizes, kind or wanted.dtype, name)
    found = relayout.verify(data, desc, wanted)
    with heard_or_not():
        output.json(found.to_json())
        output.echo(str(found))
    return Exit.DONE if found else Exit.NO
