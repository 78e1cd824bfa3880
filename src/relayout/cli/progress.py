"""A bar for what takes long: on standard error, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relayout.cli.options import Output

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(steps: int, output: Output, unwanted: bool = False) -> Iterator[Callable[[str], None]]:
    """What is being measured, on standard error, if that is a terminal."""
    if unwanted or not output.shows_progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps, completed=-1)
        yield lambda what: bar.update(task, advance=1, description=escape(what))
