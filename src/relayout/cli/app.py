"""The commands together, and what becomes of errors: one line, and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Any, cast

import click

from relayout.cli.arguments import examples
from relayout.cli.options import (
    Exit,
    Terminated,
    code_of,
    drop_standard_output,
    exit_codes,
    open_standard_streams,
    with_json_files,
)
from relayout.errors import LayoutError

__all__ = ["application"]


class _ReaderLeft(Exception):
    """Nobody reads standard output any more."""


COMMANDS = (
    *("show", "explore", "offset", "diff", "verify", "guess", "cost", "translate", "formats", "convert"),
    *("info", "strides", "run", "plan", "optimize", "audit", "explain", "bench", "tune", "completion"),
)
"""Each is a function in a module of its name, unless that is one of :data:`ELSEWHERE`."""
ELSEWHERE = {"translate": "names", "formats": "names"}


class Commands(MutableMapping[str, click.Command]):
    """Commands by name, each loaded when it is asked for.

    Help asks for all of them. A command that is run asks for one, so a script that calls ``relayout offset``
    a thousand times does not wait for what measures or converts.
    """

    def __init__(self) -> None:
        self._loaded = dict[str, click.Command | None].fromkeys(COMMANDS)

    def __getitem__(self, name: str) -> click.Command:
        found = self._loaded[name]
        if found is None:
            module = import_module(f"relayout.cli.{ELSEWHERE.get(name, name)}")
            found = self._loaded[name] = cast(click.Command, getattr(module, name))
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)


class Application(click.Group):
    """A group of commands that ends every error in one line on standard error."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and leave Python with its exit code."""
        open_standard_streams()
        given = with_json_files(sys.argv[1:] if args is None else args)
        code: int
        try:
            result = super().main(given, prog_name, complete_var, False, **extra)
            code = result if isinstance(result, int) else Exit.DONE
        except _ReaderLeft:
            drop_standard_output()
            code = Exit.DONE
        except (Exception, KeyboardInterrupt, Terminated) as error:
            if "--debug" in given:
                raise
            click.echo(f"relayout: error: {_one_line(_message(error))}", err=True)
            code = code_of(error)
        sys.exit(int(_flushed(code)))

    def make_context(self, *args: Any, **given: Any) -> click.Context:
        """Make a context; help is printed here."""
        try:
            return super().make_context(*args, **given)
        except BrokenPipeError:  # before click, to which it is an error
            raise _ReaderLeft from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None


def _flushed(code: int) -> int:
    """The exit code once standard output is written to its end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_standard_output()
    except OSError as error:
        drop_standard_output()
        if code == Exit.DONE:
            click.echo(f"relayout: error: standard output: {_io_error(error)}", err=True)
            return Exit.SYSTEM
    return code


def _message(error: BaseException) -> str:
    """What is said about an error."""
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        return f"{error.option_name}... is negative; sizes and indices are not, they count from 0"
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "relayout"
        return f"{error.format_message().rstrip('.')} (see {command} --help)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, Terminated):
        return "terminated"
    if isinstance(error, LayoutError):
        return str(error).replace("axes='position'", "--axes position")  # as it is said here
    if isinstance(error, OSError):
        return _io_error(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory for this"
    # a mistake of ours; a traceback helps nobody who did not ask for one
    return f"unexpected {type(error).__name__}: {error}; with --debug the traceback is shown"


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _io_error(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.filename is None and error.errno == errno.ENOSPC:  # any other file is named where it is written
        return f"standard output: {what}"
    if error.filename is None:
        return what
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    if not name.isprintable():
        from relayout.files.spelling import spelled

        name = spelled(name)
    return f"{name}: {what}"


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        import relayout

        click.echo(f"relayout {relayout.__version__}")
        ctx.exit()


@click.group(
    cls=Application,
    commands=Commands(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "relayout offset nChw8c 2,17,5,4 1,9,0,2  where does element (1,9,0,2) lie?",
        "relayout show nChw8c 1,17,2,2            what does the format look like?",
        "relayout translate nChw8c                what do others call it?",
        "relayout diff nchw nChw8c 1,17,2,2       are elements at the same offsets?",
        "relayout convert cat.png cat.npy --to nChw16c --dtype f32 --src-scale 1/255",
    )
    + "\n\n"
    + exit_codes(),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and exit.",
)
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show a traceback where an error would be one line."
)
@click.pass_context
def application(ctx: click.Context) -> None:
    """Memory formats of tensors: show, translate and convert them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
