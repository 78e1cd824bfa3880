"""``relayout tune``: measure ahead of time what plans would find out in their first calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from relayout.cli import models
from relayout.cli.arguments import examples
from relayout.cli.options import STANDARD, Output, output_options

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.runtime.tuning import Choice

__all__ = ["tune"]


@click.command(
    short_help="Measure schedules of reorders and models ahead of time.",
    epilog=examples(
        "relayout tune f32:nchw:8x64x56x56 f32:nhwc:8x64x56x56   measure one reorder",
        "cat problems.txt | relayout tune -                       a list of them",
        "relayout tune resnet50.onnx --batch 1                    a model's layers",
        "relayout tune --show                                     what is known",
        "relayout tune --forget",
    ),
)
@click.argument("problems", nargs=-1, metavar="[SOURCE DESTINATION | MODEL]...")
@click.option("--show", is_flag=True, help="List what is known on this machine.")
@click.option("--forget", is_flag=True, help="Delete what is known on this machine.")
@models.model_options()
@output_options
def tune(problems: tuple[str, ...], show: bool, forget: bool, output: Output, **settings: Any) -> None:
    """Find the fastest schedules by measuring, and keep them for all later processes.

    SOURCE and DESTINATION are memory descriptors, as Relayout prints them: data type, format, sizes; with -
    they are read from standard input, a pair on each line. MODEL is an ONNX file or a program of
    torch.export: it is planned and compiled, and each of its layers and reorders is measured alone, for the
    batch and the threads that it will run with.

    Plans that are called often do the same in their first calls. RELAYOUT_EFFORT=estimate switches all of it
    off: nothing is measured, and nothing that was found is used.
    """
    from relayout.environment import effort
    from relayout.runtime import tuning

    if forget:
        count = tuning.forget()
        output.json({"forgotten": count})
        output.echo(f"{count} {'schedule' if count == 1 else 'schedules'} forgotten")
        return
    if show:
        _show(sorted(tuning.choices()), output)
        return
    files = [one for one in problems if models.is_model(one)]
    words = tuple(one for one in problems if not models.is_model(one))
    pairs = [] if files and not words else _pairs(words)
    if effort() != "measure":
        raise click.UsageError(
            "RELAYOUT_EFFORT=estimate measures nothing", click.get_current_context(silent=True)
        )
    found = []
    with click.progressbar(
        pairs, label="measuring", hidden=not output.shows_progress or len(pairs) < 2
    ) as bar:
        for src, dst in bar:
            found.append(_tuned(src, dst))
    networks = [_tuned_model(file, settings, output) for file in files]
    output.json({"tuned": found} | ({"models": networks} if networks else {}))
    for one in found:
        output.answer(f"{one['source']} -> {one['destination']}: {one['schedule']}{_gain(one['ratio'])}")
    for network in networks:
        _print(network, output)


def _pairs(words: tuple[str, ...]) -> list[tuple[MemoryDesc, MemoryDesc]]:
    from relayout.layout.descriptor import MemoryDesc

    given = list(words)
    if given == [STANDARD]:
        given = [word for line in sys.stdin for word in line.replace("->", " ").split()]
    if not given or len(given) % 2:
        raise click.UsageError(
            "give a SOURCE and a DESTINATION, such as f32:nchw:8x64x56x56 f32:nhwc:8x64x56x56, or a model "
            f"({', '.join(models.ENDINGS)})",
            click.get_current_context(),
        )
    descs = [MemoryDesc(word) for word in given]
    return list(zip(descs[::2], descs[1::2], strict=True))


def _tuned(src: MemoryDesc, dst: MemoryDesc) -> dict[str, Any]:
    from relayout.reorder.conversion import Conversion
    from relayout.reorder.tuning import known

    plan = Conversion(src, dst)
    plan.tune()
    choice = known(plan)
    schedule, ratio = choice.ranking[0] if choice is not None else ("estimate", 1.0)
    return {"source": str(src), "destination": str(dst), "schedule": schedule, "ratio": ratio}


def _tuned_model(file: str, settings: Mapping[str, Any], output: Output) -> dict[str, Any]:
    """Measure the layers of a model; those that have something to choose, each problem once."""
    graph = models.sized(models.load(file), settings["batch"], settings["dims"])
    models.known(graph)
    run = graph.compile(threads=settings["threads"])
    layers: dict[str, dict[str, Any]] = {}
    if run.steps is None:
        return {"model": file, "problems": [], "by_definition": run.why}
    with click.progressbar(
        length=len(run.steps.layers()), label=f"measuring {file}", hidden=not output.shows_progress
    ) as bar:
        done: set[str] = set()

        def measured(name: str, choice: Choice | None) -> None:
            bar.update(name not in done)
            done.add(name)
            if choice is not None:
                schedule, ratio = choice.ranking[0]
                entry = {"problem": choice.problem, "schedule": schedule, "ratio": ratio, "layers": []}
                layers.setdefault(choice.problem, entry)["layers"].append(name)

        run.tune(measured)
    return {"model": file, "problems": list(layers.values())}


def _print(network: Mapping[str, Any], output: Output) -> None:
    problems = network["problems"]
    for one in problems:
        first, *others = one["layers"]
        also = f" and {len(others)} more" if others else ""
        output.answer(f"{first}{also}: {one['schedule']}{_gain(one['ratio'])}")
    if "by_definition" in network:
        output.echo(f"{network['model']}: definitions are what runs: {network['by_definition']}")
    faster = sum(one["ratio"] < 1 for one in problems)
    output.echo(f"{network['model']}: {len(problems)} problems, {faster} faster than by estimate")


def _gain(ratio: float) -> str:
    return f", {ratio:.2f} of the estimate's time" if ratio != 1 else ""


def _show(found: list[Choice], output: Output) -> None:
    output.json(
        [
            {"problem": c.problem, "contests": c.contests, "ranking": [list(entry) for entry in c.ranking]}
            for c in found
        ]
    )
    for choice in found:
        schedule, ratio = choice.ranking[0]
        output.echo(f"{choice.problem}\n    {schedule}{_gain(ratio)}; contests that agree: {choice.contests}")
    if not found:
        output.echo("no schedule has been measured on this machine yet")
