"""``relayout bench reorder`` and ``bench schedules``: reorders beside others, and all their schedules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DTYPE, examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import (
    WHOLE,
    case_option,
    group_option,
    measuring,
    minutes_option,
    random_option,
    results_option,
    rounds_option,
    run_settings,
    seed_option,
    threads_option,
)
from relayout.cli.bench.shown import heading, list_cases, plot_file, plotted
from relayout.cli.options import Output, check_writable, misuse, no_progress_option, output_options
from relayout.cli.progress import progress_bar

if TYPE_CHECKING:
    from relayout.bench.peers import Peer
    from relayout.bench.report import Report

__all__ = ["reorder", "schedules"]

QUICK = 5, 0.25  # rounds, and seconds for a case and a number of threads
FURTHEST = 20  # reorders whose estimates are shown


@bench.command(
    "reorder",
    short_help="Reorders, compared with memcpy, oneDNN, PyTorch and NumPy.",
    epilog=examples(
        "relayout bench reorder --quick",
        "relayout bench reorder --group weights --dtype s8 --threads 1",
        'relayout bench reorder --case "nchw -> f32:nhwc" --rounds 15',
        "relayout bench reorder --json reorder.json --plot reorder.svg",
        "relayout bench reorder --results all.jsonl --minutes 10   one more piece",
        "relayout bench reorder --results all.jsonl --minutes 0    what there is",
        "relayout bench reorder --random 30 --seed 7   sizes that nobody has chosen",
        "relayout bench reorder --list",
    ),
)
@click.option("--quick", is_flag=True, help="A small suite: less than two minutes.")
@group_option
@click.option("--dtype", "dtypes", multiple=True, type=DTYPE, help="Only cases with this data type.")
@random_option
@seed_option
@minutes_option("no case after so long; cases are taken from all groups in turn")
@results_option("what it has is not measured again, but reported with the rest")
@measuring(QUICK, WHOLE)
def reorder(
    quick: bool,
    groups: Sequence[str],
    dtypes: Sequence[str],
    count: int | None,
    seed: int,
    minutes: float | None,
    results: Path | None,
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    plot_path: str | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure reorders, each as a multiple of memcpy of the same bytes on as many threads.

    Relayout, oneDNN, PyTorch and NumPy are timed in turn, within one run; those not installed are left out:
    pip install '.[bench]' in a checkout brings all. Figures are medians of the ratios of single rounds. When
    it is interrupted, what was measured until then is reported. The whole suite takes hours: with a file of
    results it can be had in pieces, which are summed up together. What calls cost is left out then.
    """
    from relayout.bench import pieces, plot
    from relayout.bench.drawn import drawn
    from relayout.bench.overhead import overheads
    from relayout.bench.report import as_json, show
    from relayout.bench.suite import cases
    from relayout.dtypes import dtype as as_dtype

    settings = run_settings(quick, threads, rounds, seconds, QUICK if quick else WHOLE)
    with misuse():
        several = drawn(count, seed) if count else None
        chosen = cases(quick, groups, [as_dtype(name).name for name in dtypes], texts, several)
        plot_to = plot_file(plot_path)
    if results is not None:
        check_writable(results)
    known = pieces.read(results) if results else {}
    left = pieces.left(chosen, settings["threads"], known)
    if listed:
        list_cases([(case.group, str(case)) for case, _ in left], 14, settings, output)
        return
    console = output.console()
    report, peers = _prepared(settings)
    report.planned = len(chosen) * len(settings["threads"])
    heading(report.machine, report.peers, console)
    wanted = [(str(case), count) for case in chosen for count in settings["threads"]]
    settled = pieces.Settings(settings["rounds"], settings["seconds"], minutes)
    calls = results is None and minutes is None
    try:
        with progress_bar(len(left) + calls, output, no_progress) as progress:
            order = left if minutes is None else pieces.spread_out(left)
            for found in pieces.run(order, settled, peers, results, progress):
                known[str(found.case), found.threads] = found
            if calls:
                progress("calls")
                report.overheads.extend(overheads(settings["rounds"]))
    finally:
        report.results.extend(known[key] for key in wanted if key in known)
        if report.results:
            show(report, console)
            output.json(json.loads(as_json(report)))
            plotted(plot_to, output, lambda path: plot.draw(report, path))


@bench.command(
    "schedules",
    short_help="All schedules of each reorder: how far the estimate is from the best.",
    epilog=examples(
        "relayout bench schedules --quick",
        "relayout bench schedules --quick --threads 1 --json schedules.json",
        'relayout bench schedules --case "s8:nchw -> s8:nhwc" --rounds 9',
    ),
)
@click.option("--quick", is_flag=True, help="The small suite of bench reorder.")
@group_option
@random_option
@seed_option
@case_option()
@threads_option()
@rounds_option(4, "How often each schedule is timed that is not hopeless after the first")
@no_progress_option
@output_options
def schedules(
    quick: bool,
    groups: Sequence[str],
    count: int | None,
    seed: int,
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int,
    no_progress: bool,
    output: Output,
) -> None:
    """Time every schedule that a reorder has, the estimate among them, in turn and in this process.

    The estimate is what runs with RELAYOUT_EFFORT=estimate, and before a contest is over. Its time divided by
    that of the best schedule is what it loses. Reorders that kernels don't do are left out, and those of less
    than 128 KiB, among whose schedules nobody chooses by measuring.
    """
    from rich.table import Table

    from relayout.bench.drawn import drawn
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.bench.schedules import figure, mean_loss
    from relayout.bench.suite import cases

    settings = run_settings(False, threads, rounds, None, (rounds, 1.0))
    load, console = Load(), output.console()
    machine = particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    with misuse():
        chosen = cases(quick, groups, (), texts, drawn(count, seed) if count else None)
    found = []
    with progress_bar(len(chosen) * len(settings["threads"]), output, no_progress) as progress:
        for many, case in product(settings["threads"], chosen):
            progress(str(case))
            found.append(figure(case, many, rounds))
    figures = [one for one in found if one is not None]
    table = Table(title="furthest from the best")
    table.add_column("reorder", no_wrap=True)
    for name in ("threads", "schedules", "estimate / memcpy", "best / memcpy", "estimate / best"):
        table.add_column(name, justify="right")
    table.add_column("best")
    for one in sorted(figures, key=lambda one: -one.loss)[:FURTHEST]:
        table.add_row(
            str(one.case),
            str(one.threads),
            str(len(one.schedules)),
            f"{one.estimate.seconds / one.copy:.2f}",
            f"{one.best.seconds / one.copy:.2f}",
            f"{one.loss:.2f}",
            one.best.wish,
        )
    console.print(table)
    means = {}
    for many in settings["threads"]:
        several = [one for one in figures if one.threads == many]
        if several:
            means[many] = mean_loss(several)
            amount = f"{len(several)} {'reorder' if len(several) == 1 else 'reorders'}"
            console.print(f"threads {many}: estimate / best {means[many]:.3f}, geometric mean of {amount}")
    output.json(
        {
            "machine": machine,
            "cores_used_by_others": load.others(),
            "estimate_over_best": {str(many): mean for many, mean in means.items()},
            "figures": [one.as_data() for one in figures],
        }
    )


def _prepared(settings: dict[str, Any]) -> tuple[Report, list[Peer]]:
    """An empty report, and the peers that are there."""
    from relayout.bench.particulars import particulars
    from relayout.bench.peers import all_peers
    from relayout.bench.report import Report

    found = [(peer, peer.available()) for peer in all_peers()]
    machine = particulars("numpy", "llvmlite", "relayout")
    report = Report(machine, {peer.name: version for peer, version in found}, settings)
    return report, [peer for peer, version in found if version is not None]
