"""Options of several commands that measure, each spelled once: the same word means the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
from click.shell_completion import CompletionItem

from relayout.cli.arguments import DIMS
from relayout.cli.options import no_progress_option, output_options

__all__ = [
    "WHOLE",
    "batch_option",
    "case_option",
    "check_batches",
    "group_option",
    "list_option",
    "measuring",
    "minutes_option",
    "only_option",
    "random_option",
    "results_option",
    "rounds_option",
    "run_settings",
    "seconds_option",
    "seed_option",
    "threads_option",
    "without_option",
]

WHOLE = 7, 3.0  # rounds, and seconds for a case and a number of threads, unless fewer are asked for
FILE = click.Path(dir_okay=False)

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Option(Protocol):
    """What decorates a command with an option, and leaves its type as it is."""

    def __call__(self, command: _Command, /) -> _Command: ...


# -- which cases --------------------------------------------------------------------------------------------


def _matching(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from relayout.bench.suite import GROUPS

    return [CompletionItem(group) for group in GROUPS if group.startswith(incomplete)]


only_option = click.option(
    "--only", "texts", multiple=True, metavar="TEXT", help="Only networks with TEXT in their name."
)
group_option = click.option(
    "--group", "groups", multiple=True, shell_complete=_matching, help="Only this group of cases."
)
random_option = click.option(
    "--random",
    "count",
    type=click.IntRange(min=1),
    help="Measure so many reorders, drawn at random, instead of the suite.",
)
seed_option = click.option(
    "--seed",
    default=0,
    show_default=True,
    help="Which reorders --random draws: the same ones for the same number.",
)


def case_option(what: str = "cases") -> _Option:
    """Only some of the cases, by their lines."""
    return click.option(
        "--case", "texts", multiple=True, metavar="TEXT", help=f"Only {what} whose line has TEXT in it."
    )


def without_option(names: str = "") -> _Option:
    """Not all contestants."""
    which = f": {names}" if names else ""
    return click.option("--without", multiple=True, metavar="NAME", help=f"Leave this contestant out{which}.")


def list_option(does: str = "Print the cases and measure nothing") -> _Option:
    """What there is to do, instead of doing it."""
    return click.option("--list", "listed", is_flag=True, help=f"{does}.")


# -- how it is measured -------------------------------------------------------------------------------------


def threads_option(default: str = "1,2") -> _Option:
    """Numbers of threads, one after the other."""
    return click.option(
        "--threads", type=DIMS, default=default, show_default=True, help="Numbers of threads."
    )


def batch_option(what: str, default: str = "") -> _Option:
    """Batches, one after the other."""
    if not default:
        return click.option("--batch", "batches", type=DIMS, help=what)
    return click.option("--batch", "batches", type=DIMS, default=default, show_default=True, help=f"{what}.")


def rounds_option(default: int, does: str = "How often each is timed, at most") -> _Option:
    """How often each contestant is timed."""
    return click.option(
        "--rounds", type=click.IntRange(min=1), default=default, show_default=True, help=f"{does}."
    )


def seconds_option(default: float, does: str) -> _Option:
    """Time for something, in seconds."""
    return click.option(
        "--seconds",
        type=click.FloatRange(min=0, min_open=True),
        callback=_finite,
        default=default,
        show_default=True,
        help=f"{does}.",
    )


def minutes_option(begins: str) -> _Option:
    """When to begin nothing further."""
    return click.option("--minutes", type=click.FloatRange(min=0), callback=_finite, help=f"Begin {begins}.")


def results_option(does: str = "") -> _Option:
    """A file that a long run is continued with."""
    says = f": {does}" if does else ", that later runs continue"
    return click.option(
        "--results",
        type=click.Path(dir_okay=False, path_type=Path),
        help=f"A file of results, a line each{says}.",
    )


def measuring(quick: tuple[int, float], whole: tuple[int, float]) -> _Option:
    """The options of commands that measure a suite; with the defaults for rounds and seconds."""
    options: Sequence[Callable[[Any], Any]] = [
        case_option(),
        threads_option(),
        click.option(
            "--rounds",
            type=click.IntRange(min=1),
            help=f"How often each contestant is timed. [default: {whole[0]}; quick: {quick[0]}]",
        ),
        click.option(
            "--seconds",
            type=click.FloatRange(min=0, min_open=True),
            callback=_finite,
            help="Time for the rounds of a case with one number of threads; one round is made in any case. "
            f"[default: {whole[1]:g}; quick: {quick[1]:g}]",
        ),
        click.option("--plot", "plot_path", type=FILE, help="Draw the ratios: .svg, .png or .pdf."),
        list_option(),
        no_progress_option,
        output_options,
    ]

    def decorated(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


# -- what they mean -----------------------------------------------------------------------------------------


def _finite(ctx: click.Context, option: click.Parameter, value: float | None) -> float | None:
    """Refuse lengths of time that are infinite or NaN."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no length of time; write seconds, such as 0.5", ctx, option)
    return value


def check_batches(batches: Sequence[int]) -> None:
    """Refuse batches that are none."""
    if not batches or min(batches) < 1:
        raise click.UsageError("--batch takes numbers from 1 on: 1,8", click.get_current_context())


def run_settings(
    quick: bool,
    threads: tuple[int, ...],
    rounds: int | None,
    seconds: float | None,
    default: tuple[int, float],
) -> dict[str, Any]:
    """The options of a run."""
    from relayout.processors import MOST

    if not threads or min(threads) < 1 or max(threads) > MOST:
        raise click.UsageError(f"--threads takes numbers from 1 to {MOST}: 1,2", click.get_current_context())
    return {
        "quick": quick,
        "threads": list(dict.fromkeys(threads)),
        "rounds": rounds or default[0],
        "seconds": seconds or default[1],
    }
