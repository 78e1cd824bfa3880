"""What commands that measure print besides their tables: the machine, lists of cases, pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.options import Output, check_writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["heading", "list_cases", "plot_file", "plotted"]


def _amount(cases: int, settings: dict[str, Any]) -> str:
    """What a run would do, in a line."""
    threads = " and ".join(map(str, settings["threads"]))
    return (
        f"cases: {cases}; threads: {threads}; rounds of each: at most {settings['rounds']}, for about "
        f"{settings['seconds']:g} seconds"
    )


def heading(machine: dict[str, Any], peers: dict[str, str | None], console: Console) -> None:
    """Print the machine, and the version of each contestant."""
    facts = ", ".join(f"{key} {value}" for key, value in machine.items())
    console.print(*textwrap.wrap(facts, 80), sep="\n", markup=False)
    for name, version in peers.items():
        console.print(f"{name}: {version or 'not installed'}")


def list_cases(
    cases: Sequence[tuple[str, str]], width: int, settings: dict[str, Any], output: Output
) -> None:
    """Print the cases of a run that is not made."""
    output.json({"cases": [{"group": group, "case": case} for group, case in cases], **settings})
    for group, case in cases:
        output.answer(case if output.quiet else f"{group:<{width}} {case}")
    if output.talks:
        click.echo(_amount(len(cases), settings), err=True)


def plot_file(text: str | None) -> Path | None:
    """Where the picture goes; what can't be written is refused now, and not after an hour of measuring."""
    from relayout.bench import plot

    if text is None:
        return None
    path = Path(text)
    plot.check(path)
    check_writable(path)
    return path


def plotted(path: Path | None, output: Output, draw: Callable[[Path], None]) -> None:
    """Draw the picture that was asked for, and say what was written."""
    if path is not None:
        draw(path)
    for written in (output.json_file, path):
        if written is not None:
            output.echo(f"written to {written}")
