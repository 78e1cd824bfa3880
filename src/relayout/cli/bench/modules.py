"""``relayout bench compile``: torch.compile with this back end beside PyTorch's own."""

from __future__ import annotations

from pathlib import Path

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import (
    WHOLE,
    batch_option,
    check_batches,
    list_option,
    minutes_option,
    only_option,
    results_option,
    rounds_option,
    run_settings,
    seconds_option,
    threads_option,
    without_option,
)
from relayout.cli.bench.shown import heading
from relayout.cli.options import Output, no_progress_option, output_options
from relayout.cli.progress import progress_bar

__all__ = ["compile_"]


@bench.command(
    "compile",
    short_help="torch.compile with this back end beside eager PyTorch and its own back end.",
    epilog=examples(
        "relayout bench compile --one-of-each-family --batch 1 --threads 1",
        "relayout bench compile --results compile.jsonl --minutes 60 --json a.json",
        'relayout bench compile --only resnet --without "torch.compile frozen"',
        "relayout bench compile --one-of-each-family --results compile.jsonl --list",
    ),
)
@only_option
@click.option("--one-of-each-family", "families", is_flag=True, help="24 networks instead of all 80.")
@without_option("PyTorch, PyTorch channels_last, torch.compile, torch.compile frozen")
@threads_option()
@batch_option("Pictures of a call", "1,8")
@rounds_option(7)
@seconds_option(6.0, "Time for the rounds of a network")
@minutes_option("no further network after so many minutes")
@results_option("what it has of this machine is not measured again")
@list_option("Print what would be measured")
@no_progress_option
@output_options
def compile_(
    texts: tuple[str, ...],
    families: bool,
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure torch.compile with this back end on torchvision's networks for classification.

    Beside it eager PyTorch, contiguous and channels_last, and PyTorch's own back end, with weights as inputs
    and frozen. Weights are random. Each contestant has a process of its own.

    One network of each family comes first: batch 1, then batch 8, on one thread, then on two; behind them all
    other networks. The first entry of a network shows what compiling takes, too: the first call with empty
    caches on disk, and with what that has left there. Most of the time is that of PyTorch's own back end,
    which compiles for each batch and number of threads, and once more for frozen weights.
    """
    from relayout.bench import modules

    if not {*without} <= {*modules.CONTESTANTS}:
        known = ", ".join(modules.CONTESTANTS)
        raise click.UsageError(f"--without takes {known}", click.get_current_context())
    check_batches(batches)
    many = run_settings(False, threads, rounds, seconds, WHOLE)["threads"]
    console, versions, here = output.console(), modules.versions(), modules.machine()
    names = [one for one in modules.CONTESTANTS if one not in without and versions.get(one, "") is not None]
    told = modules.read(results, here) if results else {}
    chosen = modules.REPRESENTATIVES if families else modules.NETWORKS
    networks = [one for one in chosen if not texts or any(text in one for text in texts)]
    missing = modules.settings_of(modules.entries(networks, batches, many, names, told))
    wanted = [(network, *setting) for network, several in missing.items() for setting in several]
    if listed:
        for network, count, batch in wanted:
            console.print(f"{network}, batch {batch}, threads: {count}", markup=False)
        output.json({"networks": wanted})
        return
    heading(here, versions, console)
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            for found in modules.run(wanted, names, rounds, seconds, minutes, results, progress, told):
                told[found.key] = found
    finally:
        if told:
            modules.show(list(told.values()), console)
            output.json(modules.as_json(list(told.values()), here, versions))
