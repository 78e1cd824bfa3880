"""What all commands share: ``--json``, ``--quiet``, ``-`` for standard input and output, and exit codes.

A command takes :func:`output_options` and prints through the :class:`Output` that it gets:

=====================  ============================================================================
option                 what goes to standard output
=====================  ============================================================================
(none)                 everything
``--quiet``, ``-q``    the bare answer (:meth:`Output.answer`), or nothing where there is none
``--json``             the JSON document and nothing else; ``--json -`` is the same
``--json FILE``        everything; the document goes to the file
=====================  ============================================================================

``--json`` takes the next word as its file only if that ends in ``.json`` or is ``-``: in
``relayout info --json weights.npy`` the last word is the input and must not be overwritten. Any other file is
written ``--json=FILE``.

Errors go to standard error, always as one line. Where a reader closes the pipe early (``| head -1``), or
standard output was closed from the start, the rest is dropped and the command ends well.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from relayout.errors import AmbiguousFormat, LayoutError, UnknownFormat, Unsupported

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "STANDARD",
    "Exit",
    "NothingFound",
    "Output",
    "Terminated",
    "axes_option",
    "check_writable",
    "code_of",
    "exit_codes",
    "heard_or_not",
    "misuse",
    "no_progress_option",
    "output_options",
    "with_json_files",
]

STANDARD = "-"
"""The name of standard input and standard output."""

no_progress_option = click.option("--no-progress", is_flag=True, help="No progress bar.")
"""Of commands that work for long."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Exit(IntEnum):
    """What a command's exit code tells a script."""

    DONE = 0
    NO = 1
    MISUSE = 2
    NOT_EXPRESSIBLE = 3
    BAD_DATA = 4
    SYSTEM = 5
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


_MEANINGS = {
    Exit.DONE: "done",
    Exit.NO: "the answer is no: diff found a difference, a search nothing",
    Exit.MISUSE: "misuse: an option, a format, a dialect that is not known",
    Exit.NOT_EXPRESSIBLE: "not expressible: valid, but without a name there, or no layout",
    Exit.BAD_DATA: "bad data: sizes, indices or files that break a rule",
    Exit.SYSTEM: "a file can't be read or written, or memory is short",
    Exit.BUG: "an error in Relayout itself",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
    Exit.TERMINATED: "terminated (SIGTERM)",
}


class Terminated(BaseException):
    """The system asked the process to end (SIGTERM); not click's business, to which Ctrl-C is."""


class NothingFound(click.ClickException):
    """A search came to its end without a hit: an answer, with the exit code for "no"."""


def exit_codes() -> str:
    """The part of a help page that lists the exit codes.

    >>> print(exit_codes().splitlines()[4])
      2    misuse: an option, a format, a dialect that is not known
    """
    return "\b\nExit codes:\n" + "\n".join(f"  {code:<3d}  {meaning}" for code, meaning in _MEANINGS.items())


def code_of(error: BaseException) -> Exit:
    """The exit code for an error that ended a command.

    A text that can't be read (as an option, format, dialect or number) is misuse. Input that was read, but
    breaks a rule, is bad data: an index out of bounds, sizes that do not fit the format, a damaged file.
    """
    if isinstance(error, Terminated):
        return Exit.TERMINATED
    if isinstance(error, NothingFound):
        return Exit.NO
    if isinstance(error, click.UsageError | UnknownFormat | AmbiguousFormat):
        return Exit.MISUSE
    if isinstance(error, Unsupported):
        return Exit.NOT_EXPRESSIBLE
    if isinstance(error, LayoutError):
        return Exit.BAD_DATA
    if isinstance(error, click.ClickException | OSError | MemoryError):
        return Exit.SYSTEM
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return Exit.INTERRUPTED
    return Exit.BUG


@contextmanager
def misuse() -> Iterator[None]:
    """Report what the library refuses in this block as misuse: the values of options are read here."""
    try:
        yield
    except Unsupported:
        raise
    except LayoutError as error:
        raise click.UsageError(str(error), click.get_current_context(silent=True)) from error


def with_json_files(words: Sequence[str]) -> list[str]:
    """The words of a command line, each ``--json`` with its file or ``-``.

    >>> with_json_files(["show", "nchw", "1,2,3,4", "--json"])
    ['show', 'nchw', '1,2,3,4', '--json=-']
    >>> with_json_files(["info", "--json", "weights.npy"])
    ['info', '--json=-', 'weights.npy']
    >>> with_json_files(["info", "--json", "info.json", "weights.npy"])
    ['info', '--json=info.json', 'weights.npy']
    """
    found: list[str] = []
    left = iter(range(len(words)))
    for k in left:
        word = words[k]
        if word == "--":
            return [*found, *words[k:]]
        if word == "--json":
            following = words[k + 1] if k + 1 < len(words) else ""
            if following == STANDARD or (following.endswith(".json") and not following.startswith("-")):
                word = f"--json={following}"
                next(left)
            else:
                word = f"--json={STANDARD}"
        found.append(word)
    return found


class Output:
    """Where the results of a command go.

    Parameters
    ----------
    json_to : str or None
        ``-`` for standard output, a path, or None where no JSON is wanted.
    quiet : bool
        Print the bare answer only.
    no_colour : bool
        Print without colours.

    Raises
    ------
    OSError
        The file can't be written. It is tried at once: what was computed for an hour should not be lost.
    """

    def __init__(self, json_to: str | None = None, quiet: bool = False, no_colour: bool = False) -> None:
        self.json_to, self.quiet, self.no_colour = json_to, quiet, no_colour
        self._taken = json_to == STANDARD
        if json_to is not None and json_to != STANDARD:
            check_writable(Path(json_to))

    @property
    def wants_json(self) -> bool:
        """Whether :meth:`json` writes something."""
        return self.json_to is not None

    @property
    def json_file(self) -> str | None:
        """The file that :meth:`json` writes, if it is one."""
        return None if self.json_to == STANDARD else self.json_to

    @property
    def talks(self) -> bool:
        """Whether tables and explanations are printed."""
        return not (self.quiet or self._taken)

    @property
    def shows_progress(self) -> bool:
        """Whether a progress bar may be drawn, on standard error."""
        return not self.quiet and sys.stderr.isatty()

    def take_standard_output(self, what: str) -> None:
        """Keep standard output for data, such as the bytes of a file; ``what`` is that data's option.

        Raises
        ------
        click.UsageError
            It is taken by JSON already.
        """
        if self._taken:
            raise click.UsageError(
                f"{what} and --json both want standard output; write one of them to a file",
                click.get_current_context(silent=True),
            )
        self._taken = True

    def console(self) -> Console:
        """The console for tables and explanations; it prints nothing where they are not wanted."""
        from relayout.cli.console import console_for

        console = console_for(self.no_colour)
        console.quiet = not self.talks
        return console

    def echo(self, text: str) -> None:
        """Print an explanation."""
        if self.talks:
            click.echo(text)

    def answer(self, text: str) -> None:
        """Print the bare answer, with ``--quiet`` too."""
        if not self._taken:
            click.echo(text)

    def json(self, value: Any) -> None:
        """Write a document where it is wanted: a value of dicts, lists, text and numbers."""
        if self.json_to is None:
            return
        from json import dumps

        text = dumps(value, indent=2) + "\n"
        if self.json_to == STANDARD:
            click.echo(text, nl=False)
        else:
            try:
                Path(self.json_to).write_text(text, encoding="utf-8")
            except OSError as error:
                error.filename = self.json_to
                raise


def _json_file(ctx: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value == "":
        raise click.BadParameter("write --json, --json FILE.json or --json=FILE", ctx, option)
    return value


axes_option = click.option(
    "--axes",
    type=click.Choice(["meaning", "position"]),
    default="meaning",
    show_default=True,
    help="Match axes by what they mean, or by position whatever they mean.",
)
"""How the axes of two formats are matched."""


def output_options(command: _Command) -> _Command:
    """Give a command ``--json``, ``--quiet`` and ``--no-color``, and an argument ``output``.

    Stands below the other options of the command.
    """

    @functools.wraps(command)  # keeps the options and arguments that stand below this one
    def called(*args: Any, json_to: str | None, quiet: bool, no_colour: bool, **given: Any) -> Any:
        return command(*args, output=Output(json_to, quiet, no_colour), **given)

    options: tuple[Callable[[_Command], _Command], ...] = (
        click.option(
            "--json",
            "json_to",
            metavar="[FILE]",
            callback=_json_file,
            help="Write JSON: to standard output and nothing else there, or to FILE.json.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="Print the bare answer, or nothing."),
        click.option(
            "--no-color", "no_colour", is_flag=True, help="Print without colours, as with NO_COLOR."
        ),
    )
    decorated = cast(_Command, called)
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def check_writable(path: Path) -> None:
    """Raise OSError now if a file can't be written later; a file that is not there yet is not left behind."""
    new = not path.exists()
    if new or path.is_file():  # a device or a pipe is left alone until there is something to write
        path.open("ab").close()
    if new:
        path.unlink()


def open_standard_streams() -> None:
    """Open what was closed when the process began, as ``>&-`` does, on the null device.

    Otherwise the next file that is opened would get the number of standard output, and be written by whatever
    prints. Characters that a stream's encoding lacks are written as escapes instead of ending the command.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def heard_or_not() -> Iterator[None]:
    """Print what nobody needs to hear: where the exit code is the answer, it stays when the reader leaves."""
    try:
        yield
    except BrokenPipeError:
        drop_standard_output()


def drop_standard_output() -> None:
    """Drop what is still to be printed: nobody reads it, and Python must not complain about it at its end."""
    try:
        number = sys.stdout.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
    except (OSError, ValueError):  # a stream without a descriptor, as in tests
        return
    os.dup2(null, number)
    os.close(null)
