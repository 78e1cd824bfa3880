"""``relayout bench networks``: whole networks beside other runtimes."""

from __future__ import annotations

from pathlib import Path

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import (
    WHOLE,
    batch_option,
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

__all__ = ["networks"]


@bench.command(
    "networks",
    short_help="Whole networks beside ONNX Runtime, OpenVINO and torch.compile.",
    epilog=examples(
        "relayout bench networks --quick",
        "relayout bench networks --only resnet --batch 1 --results nets.jsonl",
        "relayout bench networks --dtype int8 --dtype bf16 --results narrow.jsonl",
        "relayout bench networks model.onnx other.onnx --threads 4",
    ),
)
@click.argument(
    "models",
    nargs=-1,
    metavar="[MODEL.onnx...]",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("--quick", is_flag=True, help="Six networks with batch 1.")
@only_option
@click.option(
    "--dtype",
    "kinds",
    type=click.Choice(("f32", "bf16", "int8")),
    multiple=True,
    help="What networks are computed in; int8: quantised by ONNX Runtime. Several: one after the other. "
    "[default: f32]",
)
@click.option("--type", "older", type=click.Choice(("f32", "bf16", "int8")), multiple=True, hidden=True)
@without_option()
@threads_option()
@batch_option("Batches. [default: 1,8; of files that leave it open: 1]")
@rounds_option(7)
@seconds_option(6.0, "Time for the rounds of a network, with one number of threads and one batch")
@minutes_option("no further network after so many minutes")
@results_option("what it has of all contestants is not measured again")
@list_option("Print what would be measured")
@click.option("--export", "exports", is_flag=True, help="Write the networks as files, and measure nothing.")
@no_progress_option
@output_options
def networks(
    models: tuple[Path, ...],
    quick: bool,
    texts: tuple[str, ...],
    kinds: tuple[str, ...],
    older: tuple[str, ...],
    without: tuple[str, ...],
    threads: tuple[int, ...],
    batches: tuple[int, ...] | None,
    rounds: int,
    seconds: float,
    minutes: float | None,
    results: Path | None,
    listed: bool,
    exports: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Measure whole networks: Relayout, ONNX Runtime, OpenVINO and torch.compile in turn.

    Without files: 30 well-known networks of torchvision, timm and transformers, with random weights;
    what is not installed is named and left out. They are exported once and kept (RELAYOUT_NETWORKS names the
    folder). Each contestant has a process of its own, and its threads sleep before another one's turn. Memory
    and the time to the first result are those of fresh processes.

    In bf16 and int8 (--dtype) five networks are measured, batch 1 unless --batch says another one: in bf16
    OpenVINO and torch.compile take part; in int8 ONNX Runtime, and OpenVINO with the quantised file and with
    the other one in bf16, which is its default. Relayout in f32 stands beside both.
    """
    from relayout.bench import contest, running
    from relayout.bench.models import as_json, read, show
    from relayout.bench.particulars import particulars

    many = run_settings(quick, threads, rounds, seconds, WHOLE)["threads"]
    unknown = sorted(set(without) - set(contest.PEERS))
    if unknown or (batches is not None and (not batches or min(batches) < 1)):
        what = f"--without takes {', '.join(contest.PEERS)}" if unknown else "--batch takes numbers from 1 on"
        raise click.UsageError(what, click.get_current_context())
    kinds = tuple(dict.fromkeys(kinds + older)) or ("f32",)
    if models and "int8" in kinds:
        what = "--dtype int8 is for networks that are quantised here; a quantised file is measured as it is"
        raise click.UsageError(what, click.get_current_context())
    console = output.console()
    peers = {name: None if name in without else found for name, found in contest.installed().items()}
    with running.entries(models, quick, texts, batches, many, kinds) as (entries, lacking):
        known = {one.key: one for one in read(results)} if results else {}
        taking = [name for name in peers if peers[name]]
        left = [one for one in entries if not running.done(one, taking, known)]
        if listed:
            for one in left:
                output.answer(f"{one.title}, batch {one.batch}, threads: {one.threads}")
            return
        if not exports:
            versions = {name: "left out" if name in without else one for name, one in peers.items()}
            heading(particulars("numpy", "relayout"), versions, console)
        for name, why in lacking.items():
            console.print(f"{name}: left out, {why}", markup=False)
        try:
            with progress_bar(len(left), output, no_progress) as progress:
                settings = running.Settings([name for name in peers if peers[name]], rounds, seconds, minutes)
                for found in running.run(left, settings, results, progress, exports):
                    known[found.key] = found
        finally:
            wanted = {(one.title, one.threads, one.batch) for one in entries}
            told = [one for key, one in known.items() if key in wanted]
            if told:
                show(told, console)
                output.json(as_json(told, particulars("numpy", "relayout"), peers))
