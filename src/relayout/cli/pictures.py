"""Options of commands that write pictures: ``--svg``, ``--png``, ``--html``, and what they need."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from relayout.cli.options import STANDARD, Output, check_writable

__all__ = ["Pictures", "picture_options"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Pictures:
    """Where pictures go, and how they are drawn.

    Parameters
    ----------
    svg, png, html : str or None
        Files, ``-`` for standard output; None where none is wanted.
    vector : str or None
        As :func:`relayout.draw.sheet.sheet` takes them.
    scale : float
        Pixels of a png file for one of the picture.
    dark : bool
        Whether a png file is dark.
    """

    def __init__(
        self, svg: str | None, png: str | None, html: str | None, vector: str | None,
        scale: float, dark: bool,
    ) -> None:  # fmt: skip
        self.svg, self.png, self.html = svg, png, html
        self.vector, self.scale, self.dark = vector, scale, dark
        self.needs("--vector", vector)
        if dark and png is None:  # the others follow the reader's system
            raise click.UsageError(
                "--dark is about png files; add --png FILE", click.get_current_context(silent=True)
            )
        wanted = [path for path in (svg, png, html) if path is not None]
        if len(set(wanted)) < len(wanted):
            raise click.UsageError(
                "two pictures can't go to one file", click.get_current_context(silent=True)
            )
        for path in wanted:
            if path != STANDARD:
                check_writable(Path(path))

    @property
    def wanted(self) -> bool:
        """Whether any picture is."""
        return any(path is not None for path in (self.svg, self.png, self.html))

    def claim(self, output: Output) -> None:
        """Keep standard output for the picture that goes there, if one does."""
        for path, option in ((self.svg, "--svg"), (self.png, "--png"), (self.html, "--html")):
            if path == STANDARD:
                output.take_standard_output(f"{option} -")

    def needs(self, option: str, given: str | None) -> None:
        """Refuse an option about pictures where none is wanted."""
        if given is not None and not self.wanted:
            raise click.UsageError(
                f"{option} is about pictures; add --svg FILE, --png FILE or --html FILE",
                click.get_current_context(silent=True),
            )

    def write(self, output: Output, svg: Callable[[], str], html: Callable[[], str]) -> None:
        """Draw what is wanted and write it."""
        picture = svg() if self.svg is not None or self.png is not None else ""
        if self.svg is not None:
            _put(self.svg, picture.encode())
        if self.png is not None:
            from relayout.draw.raster import png

            _put(self.png, png(picture, self.scale, self.dark))
        if self.html is not None:
            _put(self.html, html().encode())
        for path in (self.svg, self.png, self.html):
            if path is not None and path != STANDARD:
                output.echo(f"written to {path}")


def _put(path: str, data: bytes) -> None:
    if path == STANDARD:
        click.echo(data, nl=False)
    else:
        try:
            Path(path).write_bytes(data)
        except OSError as error:
            error.filename = path
            raise


def picture_options(command: _Command) -> _Command:
    """Give a command ``--svg``, ``--png``, ``--html`` and how they look, and an argument ``pictures``."""

    @functools.wraps(command)
    def called(
        *args: Any, svg: str | None, png: str | None, html: str | None, vector: str | None, scale: float,
        dark: bool, **given: Any,
    ) -> Any:  # fmt: skip
        made = Pictures(svg, png, html, vector, scale, dark)
        return command(*args, pictures=made, **given)

    options: tuple[Callable[[Any], Any], ...] = (
        click.option("--svg", metavar="FILE", help="Write a picture (see above)."),
        click.option("--png", metavar="FILE", help="Write the picture as pixels (needs resvg-py)."),
        click.option("--html", metavar="FILE", help="Write a page with the picture and tables."),
        click.option("--vector", metavar="AXIS", help="Axis of the elements that stand out. [default: c]"),
        click.option(
            "--scale", type=click.FloatRange(0.1, 20), default=2.0, show_default=True,
            help="Pixels of a png for each pixel of the picture.",
        ),
        click.option("--dark", is_flag=True, help="A dark png; svg and html follow the reader's system."),
    )  # fmt: skip
    decorated: Any = called
    for option in reversed(options):
        decorated = option(decorated)
    return cast(_Command, decorated)
