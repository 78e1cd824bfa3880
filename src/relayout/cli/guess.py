"""``relayout guess``: in which formats does a dump hold given elements?"""

from __future__ import annotations

import click

from relayout.cli.arguments import DTYPE, examples
from relayout.cli.dumps import dump_and_like, dump_options
from relayout.cli.options import Exit, Output, heard_or_not, output_options

__all__ = ["guess"]


@click.command(
    short_help="Find out in which format a dump is.",
    epilog=examples(
        "relayout guess dump.bin --like x.npy            x.npy has the logical shape",
        "relayout guess dump.bin --like x.npy --dtype bf16",
        "relayout guess dump.bin --like x.npy --skip 64  after a header",
        "relayout guess -q dump.bin --like x.npy         the format alone",
        "relayout guess dump.bin --like x.npy --json     with names in all dialects",
    ),
)
@dump_options
@click.option("--dtype", type=DTYPE, help="Data type of the dump's elements, if it is known.")
@output_options
def guess(dump: str, like: str, like_name: str | None, skip: int, dtype: str | None, output: Output) -> int:
    """Find the formats in which the file DUMP holds the elements of another file.

    The format is worked out from where values lie: it needs no name, and may have padding, an offset, another
    data type or byte order. Formats are only named if they reproduce every element. The exit code is 0 if one
    is found, else 1.
    """
    import relayout

    data, wanted = dump_and_like(dump, like, like_name, skip)
    found = relayout.guess(data, wanted, dtype=dtype)
    with heard_or_not():
        output.json(found.to_json())
        if output.quiet and found.best is not None:
            output.answer(str(found.format or found.best.desc.layout))
        output.echo(str(found))
    return Exit.DONE if found else Exit.NO
