"""``relayout bench census``: which networks come in, and come out right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from relayout.cli.arguments import examples
from relayout.cli.bench.group import bench
from relayout.cli.bench.options import list_option, only_option, results_option, seconds_option
from relayout.cli.options import Output, no_progress_option, output_options
from relayout.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.bench.census import Outcome

__all__ = ["census"]


@bench.command(
    "census",
    short_help="Which networks of public packages come in, and come out right.",
    epilog=examples(
        "relayout bench census --only extra/",
        "relayout bench census --results census.jsonl --way batch",
        "relayout bench census --results census.jsonl --list",
        "relayout bench census --training --way program --results census.jsonl",
    ),
)
@only_option
@click.option(
    "--way",
    "ways",
    multiple=True,
    default=("static",),
    show_default=True,
    help="static, batch (its size open), plain (unoptimised), script (TorchScript), program (torch.export).",
)
@click.option("--training", is_flag=True, help="Train each network for a step.")
@results_option()
@click.option("--again", is_flag=True, help="Try once more the networks that did not agree.")
@click.option("--keep", is_flag=True, help="Keep the exported files.")
@seconds_option(900.0, "Seconds that a network may take")
@click.option(
    "--memory",
    type=click.FloatRange(min=0.1),
    default=14.0,
    show_default=True,
    help="Memory that a network may take, in GB.",
)
@list_option("Print the networks and what is known of them")
@no_progress_option
@output_options
def census(
    texts: tuple[str, ...],
    ways: tuple[str, ...],
    training: bool,
    results: Path | None,
    again: bool,
    keep: bool,
    seconds: float,
    memory: float,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Import, run and compare 277 networks of torchvision, timm and transformers, and some more.

    ONNX files are compared with ONNX Runtime, programs of torch.export with PyTorch: no output may differ by
    more than 1e-4 of its largest value. With --training a step of 77 of them, on pictures of 64 x 64, is
    compared with PyTorch's in double precision: loss and gradients may be 4 times as far off as those of
    PyTorch in single precision. Each network has a process of its own; one that takes too long or too much
    memory is a line in the results.
    """
    import tempfile
    from dataclasses import asdict

    from relayout.bench import census as looking
    from relayout.bench.zoo import CENSUS, MORE, TRAINED

    wrong = [way for way in ways if way not in looking.WAYS]
    if wrong:
        raise click.UsageError(f"--way takes {', '.join(looking.WAYS)}", click.get_current_context())
    names = TRAINED if training else (*CENSUS, *MORE)
    names = tuple(name for name in names if not texts or any(text in name for text in texts))
    if listed:
        before = [one for one in (looking.read(results) if results else ()) if one.training == training]
        known = {(one.name, one.way): one.status for one in before}
        for name in names:
            told = ", ".join(f"{way} {known[name, way]}" for way in ways if (name, way) in known)
            output.answer(f"{name:<48} {told}".rstrip())
        return
    limits = looking.Limits(seconds, memory * 1e9)
    with tempfile.TemporaryDirectory() as scratch:
        path = results or Path(scratch, "census.jsonl")
        with progress_bar(len(names) * len(ways), output, no_progress) as progress:
            for way in ways:
                for name in names:
                    progress(f"{name}, {way}")
                    for one in looking.looked_at([name], way, path, limits, keep, again, training):
                        if training:
                            output.console().print(f"{name}, {way}: {one.status}: {one.why}", markup=False)
        found = [one for one in looking.read(path) if one.way in ways and one.training == training]
        found = [one for one in found if one.name in set(names)]
    _counted(found, output.console())
    output.json({"agrees": looking.AGREES, "outcomes": [asdict(one) for one in found]})


def _counted(found: Sequence[Outcome], console: Console) -> None:
    """How many networks agree, and every one that does not."""
    from relayout.bench.census import OUTSIDE, RIGHT, summary

    for way in dict.fromkeys(one.way for one in found):
        own = [one for one in found if one.way == way]
        valid = [one for one in own if one.status not in OUTSIDE]
        right = sum(one.status == RIGHT for one in valid)
        share = f", {100 * right / len(valid):.1f} %" if valid else ""
        console.print(f"{way}: {right} of {len(valid)} agree{share}; {len(own) - len(valid)} say nothing")
        told = ", ".join(f"{status}: {count}" for status, count in summary(own).items())
        console.print(told, markup=False)
        for one in own:
            if one.status != RIGHT:
                gap = "" if one.difference is None else f" by {one.difference:.1e}"
                console.print(f"{one.name}: {one.status}{gap} {one.why[:300]}".rstrip(), markup=False)
