"""``relayout bench torch``: conversions of PyTorch's tensors."""

from __future__ import annotations

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import (
    WHOLE,
    batch_option,
    case_option,
    check_batches,
    list_option,
    rounds_option,
    run_settings,
    seconds_option,
    threads_option,
)
from relayout.cli.bench.shown import heading
from relayout.cli.options import Output, no_progress_option, output_options
from relayout.cli.progress import progress_bar

__all__ = ["torch"]


@bench.command(
    "torch",
    short_help="Conversions of PyTorch's tensors, and batches of pictures.",
    epilog=examples(
        "relayout bench torch --json conversions.json         less than five minutes",
        "relayout bench torch --batch 1,8",
        "relayout bench torch --case batch --case loader",
        "relayout bench torch --list",
    ),
)
@case_option()
@threads_option()
@batch_option("Batch of the activations", "8")
@rounds_option(9)
@seconds_option(0.5, "Time for the rounds of a case with one number of threads")
@list_option()
@no_progress_option
@output_options
def torch(
    texts: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    rounds: int,
    seconds: float,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure conversions of PyTorch's tensors beside PyTorch's own.

    The activations of ResNet-50 from and to channels-last; batches of pictures, normalised, beside PyTorch's
    operations, and by a DataLoader without and with workers. A figure is PyTorch's time / ours, the median of
    rounds.
    """
    from importlib.util import find_spec

    from relayout.bench import conversions
    from relayout.bench.particulars import particulars

    many = run_settings(False, threads, rounds, seconds, WHOLE)["threads"]
    check_batches(batches)
    chosen = conversions.cases(batches, texts)
    if listed:
        for case in chosen:
            output.answer(str(case))
        return
    if find_spec("torch") is None:
        raise click.ClickException("PyTorch is not installed: pip install torch, or as pytorch.org says")
    wanted = [
        (case, count) for count in many for case in chosen if case.kind != "loader" or count == max(many)
    ]
    machine = particulars("numpy", "torch", "relayout")
    found: list[conversions.Result] = []
    heading(machine, {}, output.console())
    try:
        with progress_bar(len(wanted), output, no_progress) as progress:
            found.extend(conversions.measured(wanted, rounds, seconds, progress))
    finally:
        if found:
            conversions.show(found, output.console())
            output.json(conversions.as_json(found, machine))
