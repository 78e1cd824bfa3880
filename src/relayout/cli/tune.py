"""``relayout tune``: measure ahead of time what plans would find out in their first calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import examples
from relayout.cli.options import STANDARD, Output, output_options

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.runtime.tuning import Choice

__all__ = ["tune"]


@click.command(
    short_help="Measure schedules of reorders ahead of time.",
    epilog=examples(
        "relayout tune f32:nchw:8x64x56x56 f32:nhwc:8x64x56x56   measure one reorder",
        "cat problems.txt | relayout tune -                      a list of them",
        "relayout tune --show                                    what is known",
        "relayout tune --forget",
    ),
)
@click.argument("descriptors", nargs=-1, metavar="[SOURCE DESTINATION]...")
@click.option("--show", is_flag=True, help="List what is known on this machine, of primitives too.")
@click.option("--forget", is_flag=True, help="Delete all of it.")
@output_options
def tune(descriptors: tuple[str, ...], show: bool, forget: bool, output: Output) -> None:
    """Find the fastest schedule of reorders by measuring, and keep it for all later processes.

    SOURCE and DESTINATION are memory descriptors, as Relayout prints them: data type, format, sizes; with -
    they are read from standard input, a pair on each line. Plans that are called often do the same in their
    first calls, those of primitives too; RELAYOUT_EFFORT=estimate switches that off.
    """
    from relayout.runtime import tuning

    if forget:
        count = tuning.forget()
        output.json({"forgotten": count})
        output.echo(f"{count} {'schedule' if count == 1 else 'schedules'} forgotten")
        return
    if show:
        _show(sorted(tuning.choices()), output)
        return
    problems = _problems(descriptors)
    found = []
    with click.progressbar(
        problems, label="measuring", hidden=not output.shows_progress or len(problems) < 2
    ) as bar:
        for src, dst in bar:
            found.append(_tuned(src, dst))
    output.json({"tuned": found})
    for one in found:
        output.answer(f"{one['source']} -> {one['destination']}: {one['schedule']}{_gain(one['ratio'])}")


def _problems(words: tuple[str, ...]) -> list[tuple[MemoryDesc, MemoryDesc]]:
    from relayout.layout.descriptor import MemoryDesc

    given = list(words)
    if given == [STANDARD]:
        given = [word for line in sys.stdin for word in line.replace("->", " ").split()]
    if not given or len(given) % 2:
        raise click.UsageError(
            "give a SOURCE and a DESTINATION, such as f32:nchw:8x64x56x56 f32:nhwc:8x64x56x56",
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
