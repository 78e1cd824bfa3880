"""``relayout explain``: the conversions of formats in the log of a runtime."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import WHOLE, examples
from relayout.cli.options import STANDARD, Output, check_writable, output_options
from relayout.cli.progress import progress_bar
from relayout.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.logs import Explanation

__all__ = ["explain"]

RANKS = {
    "producer": 6,
    "consumer": 5,
    "same bytes": 4,
    "bytes": 3,
    "conversion": 1,
    "times": 2,
    "each": 2,
    "memcpy": 2,
    "Relayout": 2,
}
"""Which columns of the table are left out first where the terminal is narrow: those of high rank."""
LARGE = 1 << 24  # bytes of a log from which on reading it shows its progress
TOP = 20


@click.command(
    short_help="Find the conversions in a runtime's log.",
    epilog=examples(
        "ONEDNN_VERBOSE=1 python net.py > net.log; relayout explain net.log",
        "python net.py | relayout explain -   the log comes through a pipe",
        "relayout explain onnxruntime_profile.json --measure",
        "relayout explain exec_graph.xml --html conversions.html",
        "relayout explain trace.json.gz --top 5 --json conversions.json",
    ),
)
@click.argument("log", metavar="LOG", type=click.Path())
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=TOP,
    show_default=True,
    metavar="N",
    help="Show the N rows that take longest.",
)
@click.option("--measure", is_flag=True, help="Measure memcpy and Relayout for each shown, on this machine.")
@click.option("--threads", type=WHOLE, help="How many threads may work with --measure.")
@click.option("--html", metavar="FILE", type=click.Path(), help="Write a page.")
@output_options
def explain(log: str, top: int, measure: bool, threads: int | None, html: str | None, output: Output) -> None:
    """List the reorders, transposes and data type conversions in a log, and what to do about them.

    LOG is what a runtime has written; its content tells which one: oneDNN's verbose output
    (ONEDNN_VERBOSE=1), also amid other output; a profile of ONNX Runtime; an execution graph (XML) or
    performance counters of OpenVINO; a trace of torch.profiler. Compressed logs are read through; - is
    standard input.

    Equal conversions are one row: from and to, sizes, how often, how long, which share of everything in the
    log, whether both formats are the same bytes, who made and who reads the tensor. Below it says of each
    what to do: weights that are packed in every call, ways there and back, copies that change nothing. A
    log that is cut is explained as far as it goes, and the output says so. --json has all rows, whatever
    --top is. With --quiet: the share of the time that conversions take, from 0 to 1.
    """
    if html is not None:
        check_writable(Path(html))
    import relayout.logs as logs

    given: Any = sys.stdin.buffer if log == STANDARD else log
    with _reading(log, output) as progress:
        found = logs.explain(given, progress=progress)
    if measure:
        shown = min(top, len(found.rows))
        with progress_bar(shown, output) as told:
            found = found.measured(top, threads, told)
    output.json(found.json())
    if html is not None:
        Path(html).write_text(found.html(top), encoding="utf-8")
    if output.quiet:
        output.answer(f"{found.share:.4f}")
    if output.talks:
        _print(found, top, output)
    if html is not None:
        output.echo(f"\nwritten to {html}")


def _print(found: Explanation, top: int, output: Output) -> None:
    from relayout.logs import text, values

    shown = found.rows[:top]
    for line in text.head(found.log, found.rows, found.trips):
        output.echo(line)
    if shown:
        console: Console = output.console()
        heads, table = values.cells(shown)
        columns = [Column(name, RANKS.get(name, 0), name in text.RIGHT) for name in heads]
        output.echo("")
        print_table(console, columns, [[text.clean(cell) for cell in line] for line in table])
        output.echo("")
        for line in text.sentences(shown):
            output.echo(line)
    rest = text.below(found.log, found.rows, top)
    if rest:
        output.echo("")
    for line in rest:
        output.echo(line)


@contextmanager
def _reading(log: str, output: Output) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar for the bytes of a large log, on standard error, if that is a terminal."""
    large = log == STANDARD or (Path(log).is_file() and Path(log).stat().st_size >= LARGE)
    if not (large and output.shows_progress):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("reading"), BarColumn(20), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda read, size: bar.update(task, completed=read, total=size)
