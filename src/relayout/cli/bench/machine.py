"""``relayout bench calibrate`` and ``bench threads``: what the machine itself takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import rounds_option
from relayout.cli.options import Output, misuse, output_options

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.bench.threads import Figure
    from relayout.runtime.calibration import Measured

__all__ = ["calibrate", "threads"]


@bench.command(
    "calibrate",
    short_help="When to bypass the caches, when to wake threads.",
    epilog=examples("relayout bench calibrate", "RELAYOUT_THREADS=8 relayout bench calibrate"),
)
@output_options
def calibrate(output: Output) -> None:
    """Measure this machine's thresholds anew, and keep them.

    Relayout does so by itself when it first needs them, and keeps them beside its compiled kernels. Measure
    again where the machine was busy then, or has changed. Each table shows times as a multiple of the plain
    way: of a copy and one reading of the result, with streaming stores; and of a copy, with all threads.
    The clock and the speed of copies, by which networks are planned, are forgotten and measured again, too.
    RELAYOUT_STREAMING and RELAYOUT_SHARING, in bytes, override what was measured.
    """
    from relayout.jit import compile
    from relayout.runtime.kept import forget
    from relayout.runtime.threads import count
    from relayout.runtime.thresholds import calibrated
    from relayout.targets.machine import host

    machine, console = host(), output.console()
    if not compile.available() or machine.thresholds is not None:
        raise click.ClickException(
            "nothing to measure: RELAYOUT_CPU is set, or this host forbids machine code"
        )
    forget()  # the clock and the speed of copies, which are measured again when a plan asks for them
    headings = {"streaming": "streamed", "sharing": f"{count()} threads"}
    told: dict[str, Any] = {"threads": count()}
    for what, heading in headings.items():
        if what == "sharing" and count() == 1:
            console.print("sharing: one thread, nothing to share")
            continue
        found = calibrated(what, machine)
        told[what] = {"threshold": found.threshold, "figures": [f._asdict() for f in found.figures]}
        _thresholds(what, heading, found, console)
    output.json(told)


def _thresholds(what: str, heading: str, found: Measured, console: Console) -> None:
    from rich.table import Table

    from relayout.runtime.calibration import crossover

    how = "" if crossover(found.figures) else ", a guess: nothing that was measured won clearly"
    console.print(f"{what}: from {found.threshold / 2**20:g} MiB on{how}")
    table = Table()
    for name in ("source and destination", "plain", heading):
        table.add_column(name, justify="right", no_wrap=True)
    for size, without, with_it in found.figures:
        table.add_row(f"{size / 2**20:g} MiB", f"{1e6 * without:.0f} us", f"{with_it / without:.2f}")
    console.print(table)


@bench.command(
    "threads",
    short_help="What it costs to share work among threads.",
    epilog=examples(
        "relayout bench threads", "relayout bench threads --threads 4 --rounds 30 --json threads.json"
    ),
)
@click.option(
    "--threads", type=click.IntRange(min=2), help="Number of threads. [default: all that may be used]"
)
@rounds_option(15, "How often each is measured")
@output_options
def threads(threads: int | None, rounds: int, output: Output) -> None:
    """Measure what it costs to share work among threads: Relayout's and OpenMP's.

    region: a region that does nothing. wakeup: until all threads have begun. arithmetic, copy: how many times
    as fast all threads do what takes one a millisecond. The states: hot, right after another region; busy,
    after the caller has computed alone for so long; asleep, after it has slept; after another, when threads
    of another library may still spin. Figures are medians with quartiles.
    """
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.bench.threads import figures
    from relayout.processors import MOST
    from relayout.runtime.threads import count

    many, load, console = min(threads or max(2, count()), MOST), Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with misuse():
        found = list(figures(many, rounds))
    others = load.others()
    _shared(found, many, others, console)
    told = [{**figure._asdict(), "spread": figure.spread._asdict()} for figure in found]
    output.json(
        {
            "machine": machine,
            "threads": many,
            "rounds": rounds,
            "cores_used_by_others": others,
            "figures": told,
        }
    )


def _shared(found: Sequence[Figure], many: int, others: float | None, console: Console) -> None:
    """A row for each state, a column for each contestant."""
    from rich.table import Table

    from relayout.bench.load import disturbed

    names = list(dict.fromkeys(figure.contestant for figure in found))
    rows: dict[tuple[str, str, str], dict[str, Figure]] = {}
    for figure in found:
        after = "after another" if figure.state.startswith("after ") else figure.state
        rows.setdefault((figure.what, after, figure.unit), {})[figure.contestant] = figure
    table = Table(title=f"{many} threads: medians and quartiles", title_justify="left")
    for heading in ("what", "state", "unit"):
        table.add_column(heading, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row, by in rows.items():
        spreads = [by[name].spread if name in by else None for name in names]
        table.add_row(*row, *(f"{s.median:.2f} ({s.low:.2f} .. {s.high:.2f})" if s else "-" for s in spreads))
    console.print(table)
    if disturbed(many, others):
        console.print("DISTURBED: other processes took the cores; measure on a quiet machine")
