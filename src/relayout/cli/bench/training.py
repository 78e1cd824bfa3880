"""``relayout bench training``: steps of training beside PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import (
    WHOLE,
    batch_option,
    check_batches,
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

if TYPE_CHECKING:
    from relayout.bench.models import Result
    from relayout.bench.modules import Compared

__all__ = ["training"]


@bench.command(
    "training",
    short_help="Steps of training beside PyTorch.",
    epilog=examples(
        "relayout bench training --network resnet50 --threads 2",
        "relayout bench training --batch 8,32 --results steps.jsonl --json steps.json",
        "relayout bench training --without torch.compile",
        "relayout bench training --check --network resnet50 --batch 8",
    ),
)
@click.option("--network", "networks", multiple=True, help="Only this network. [default: all there are]")
@without_option()
@threads_option()
@batch_option("Pictures of a step", "8")
@rounds_option(5)
@seconds_option(60.0, "Time for the rounds of a network")
@click.option(
    "--check",
    is_flag=True,
    help="Time nothing: how far five steps come from PyTorch's and from double precision.",
)
@click.option("--rate", "rates", multiple=True, type=float, help="Learning rates of --check. [default: 0.01]")
@click.option(
    "--size",
    type=click.IntRange(min=32),
    default=224,
    show_default=True,
    help="Height and width of the pictures of --check.",
)
@results_option()
@no_progress_option
@output_options
def training(
    networks: tuple[str, ...],
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    check: bool,
    rates: tuple[float, ...],
    size: int,
    results: Path | None,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure steps of training: forward, backward and stochastic gradient descent with momentum.

    ResNet-50 and ResNeXt-101 on random pictures of 224 x 224: Relayout in the formats that it chooses, with
    nhwc and with nChw16c for all images; PyTorch contiguous, channels_last and compiled. Each has a process
    of its own, and its threads sleep before another one's turn.

    With --check the same five steps are made by Relayout, and by PyTorch in single and in double precision;
    what is told is how far losses and parameters are apart.
    """
    from relayout.bench import training
    from relayout.bench.models import as_json, read
    from relayout.bench.particulars import particulars

    for given, known, what in (
        (networks, training.NETWORKS, "--network"),
        (without, training.CONTESTANTS, "--without"),
    ):
        if not {*given} <= {*known}:
            raise click.UsageError(f"{what} takes {', '.join(known)}", click.get_current_context())
    check_batches(batches)
    if check:
        _checked(networks or training.NETWORKS[:1], batches, rates or (0.01,), size, threads, output)
        return
    many = run_settings(False, threads, rounds, seconds, WHOLE)["threads"]
    console, versions = output.console(), training.peers()
    names = [
        name
        for name in training.CONTESTANTS
        if name not in without and versions.get(name, "here") is not None
    ]
    told = {one.key: one for one in read(results)} if results else {}
    wanted = [
        (network, batch, count)
        for network in networks or training.NETWORKS
        for batch in batches
        for count in many
        if not {*names} <= _took_part(told.get((network, count, batch)))
    ]
    heading(particulars("numpy", "relayout"), versions, console)
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            for found in training.run(wanted, names, rounds, seconds, results, progress):
                told[found.key] = found
    finally:
        if told:
            training.show(list(told.values()), console)
            output.json(as_json(list(told.values()), particulars("numpy", "relayout"), versions))


def _checked(
    networks: Sequence[str],
    batches: Sequence[int],
    rates: Sequence[float],
    size: int,
    threads: Sequence[int],
    output: Output,
) -> None:
    """How far steps of training come from PyTorch's."""
    from relayout.bench.drift import drift, show

    found = []
    for network, batch, rate in product(networks, batches, rates):
        with progress_bar(0, output, False) as progress:
            found.append(drift(network, batch, rate, 5, size, max(threads), progress))
        show(found[-1:], output.console())
    output.json({"runs": [one.as_json() for one in found]})


def _took_part(found: Result | Compared | None) -> set[str]:
    """Who has a figure in a result, or was refused."""
    return set() if found is None else {*found.seconds, *found.refused}
