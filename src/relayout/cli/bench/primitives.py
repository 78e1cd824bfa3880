"""``relayout bench primitives``: layers of networks beside oneDNN, PyTorch and the processor's peak."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from relayout.cli.arguments import FORMAT, examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import WHOLE, batch_option, check_batches, measuring, run_settings
from relayout.cli.bench.shown import heading, list_cases, plot_file, plotted
from relayout.cli.options import Output, misuse
from relayout.cli.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from relayout.bench.peers.primitives.contestant import Contestant
    from relayout.bench.primitives import Task
    from relayout.bench.primitives_report import Report as PrimitivesReport

__all__ = ["primitives"]

QUICK = 5, 1.0  # rounds, and seconds for a case and a number of threads


def networks_that_match(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from relayout.bench.primitives import NETWORKS

    return [CompletionItem(network) for network in NETWORKS if network.startswith(incomplete)]


@bench.command(
    "primitives",
    short_help="Convolutions, products, recurrent layers, compared with oneDNN and PyTorch.",
    epilog=examples(
        "relayout bench primitives --quick",
        "relayout bench primitives --network ResNet-50 --batch 1 --threads 1",
        "relayout bench primitives --network LSTM --network GRU",
        "relayout bench primitives --network ResNet-50 --dtype u8s8 --case middle",
        "relayout bench primitives --only data --only weights --json gradients.json",
        "relayout bench primitives --case stage1.1.middle --format nhwc --format nchw",
        "relayout bench primitives --json primitives.json --plot primitives.svg",
        "relayout bench primitives --list",
    ),
)
@click.option("--quick", is_flag=True, help="A few layers in a few formats: less than two minutes.")
@click.option(
    *("--network", "--only", "networks"),
    multiple=True,
    shell_complete=networks_that_match,
    metavar="NAME",
    help="Only this network, or all with this word in their names: data and weights are gradients.",
)
@click.option(
    "--dtype",
    type=click.Choice(["f32", "bf16", "f16", "u8s8", "s8s8"]),
    default="f32",
    show_default=True,
    help="Data types of convolutions and matrix products: u8s8 are sources of u8 and weights of s8.",
)
@batch_option("Batches. [default: 1,8; of recurrent layers 1,16,64]")
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=FORMAT,
    help="Relayout in this format too, besides those that it chooses. [default: all that are in use]",
)
@measuring(QUICK, WHOLE)
def primitives(
    quick: bool,
    networks: Sequence[str],
    dtype: str,
    batches: tuple[int, ...] | None,
    formats: Sequence[str],
    texts: Sequence[str],
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    plot_path: str | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure the layers of networks, each as a multiple of its time at the processor's peak.

    The peak is that of multiplications and additions in registers, with as many threads, measured in each
    round; of narrow data types it is that of the instruction which adds up their products. Relayout in the
    formats that it chooses and in given ones, oneDNN and PyTorch are timed in turn; of whole networks also
    ONNX Runtime and OpenVINO. "Relayout, auto" are convolutions of f32 that may do with fewer products, as
    in networks. Those not installed are left out. Only the primitive is timed: sources are laid out and
    weights are packed before. A file of --json is written anew whenever a network is done, so that a run
    which is ended leaves what it has measured.
    """
    from relayout.bench import plot
    from relayout.bench.primitives import tasks
    from relayout.bench.primitives_report import as_json, show

    settings = run_settings(quick, threads, rounds, seconds, QUICK if quick else WHOLE)
    if batches is not None:
        check_batches(batches)
    with misuse():
        chosen = tasks(quick, networks, batches, texts, dtype)
        plot_to = plot_file(plot_path)
    if listed:
        list_cases([(task.group, str(task.work)) for task in chosen], 28, settings, output)
        return
    console = output.console()
    report, contestants = _contestants(settings, formats)
    report.planned = len(chosen) * len(settings["threads"])
    heading(report.machine, report.peers, console)
    try:
        with progress_bar(len(chosen), output, no_progress) as progress:
            _measure_primitives(report, chosen, contestants, progress, output)
    finally:
        if report.results:
            show(report, console)
            words = "Primitives against the processor's peak", "time / time at the peak"
            output.json(json.loads(as_json(report)))
            plotted(plot_to, output, lambda path: plot.draw(report, path, *words))


def _contestants(
    settings: dict[str, Any], formats: Sequence[str]
) -> tuple[PrimitivesReport, list[Contestant]]:
    """An empty report of primitives, and the contestants that are installed."""
    from relayout.bench.ours import FORMATS, QUICK_FORMATS, all_ours
    from relayout.bench.particulars import particulars
    from relayout.bench.peers.primitives import all_peers
    from relayout.bench.primitives_report import Report

    chosen = tuple(formats) or (QUICK_FORMATS if settings["quick"] else FORMATS)
    found = [(peer, peer.available()) for peer in all_peers()]
    report = Report(
        particulars("numpy", "llvmlite", "relayout"),
        {peer.name: version for peer, version in found},
        {**settings, "formats": chosen},
    )
    return report, [*all_ours(chosen), *(peer for peer, version in found if version is not None)]


def _measure_primitives(
    report: PrimitivesReport,
    chosen: list[Task],
    contestants: list[Contestant],
    progress: Callable[[str], None],
    output: Output,
) -> None:
    """Measure all layers; a file has what was measured after each network."""
    from relayout.bench.load import Load
    from relayout.bench.primitives import measured
    from relayout.bench.primitives_report import as_json

    threads, rounds, seconds = (report.settings[key] for key in ("threads", "rounds", "seconds"))
    load = Load()
    for _, layers in groupby(chosen, key=lambda task: task.group):
        for task in layers:
            progress(str(task))
            report.results.extend(measured(task, threads, rounds, seconds, contestants, load))
        if output.json_file is not None:
            output.json(json.loads(as_json(report)))
