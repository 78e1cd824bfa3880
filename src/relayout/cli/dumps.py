"""The two files that ``verify`` and ``guess`` compare: a dump of memory, and the elements it should hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from relayout.cli.arguments import WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from relayout.tensor import Tensor

__all__ = ["dump_and_like", "dump_options"]

_Command = TypeVar("_Command", bound="Callable[..., Any]")


def dump_options(command: _Command) -> _Command:
    """Give a command the argument DUMP, ``--like``, ``--like-name`` and ``--skip``."""
    options: tuple[Callable[[_Command], _Command], ...] = (
        click.argument("dump", type=click.Path(), metavar="DUMP"),
        click.option(
            "--like",
            type=click.Path(),
            required=True,
            metavar="FILE",
            help="The elements as a program sees them: an array of logical shape (.npy), or another file "
            "of a tensor.",
        ),
        click.option("--like-name", metavar="NAME", help="The array in that file, if it holds several."),
        click.option(
            "--skip",
            type=WHOLE,
            default=0,
            metavar="BYTES",
            help="Leave out so many bytes at the beginning of DUMP, such as a header.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def dump_and_like(dump: str, like: str, name: str | None, skip: int) -> tuple[NDArray[np.uint8], Tensor]:
    """The bytes of a dump, mapped, and the tensor that it should hold.

    A dump in a container that Relayout reads (``.npy``) is what the array in it holds; any other file is its
    bytes.

    Raises
    ------
    click.UsageError
        There are not so many bytes to skip.
    LayoutError, OSError
        A file can't be read.
    """
    from pathlib import Path

    from relayout import files
    from relayout.exchange.mapped import map_for_reading

    wanted = files.read(like, name=name)
    data = files.read(dump).buffer if Path(dump).suffix == ".npy" else map_for_reading(Path(dump))
    if not 0 <= skip <= data.size:
        raise click.UsageError(
            f"--skip {skip}: {dump} has {data.size:,} bytes", click.get_current_context(silent=True)
        )
    return data[skip:], wanted
