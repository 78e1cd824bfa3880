"""The commands together, and what becomes of errors: one line, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from relayout.cli.arguments import examples
from relayout.cli.bench import bench
from relayout.cli.completion import completion
from relayout.cli.convert import convert
from relayout.cli.names import formats, translate
from relayout.cli.offset import offset
from relayout.cli.run import run
from relayout.cli.show import show
from relayout.cli.strides import strides
from relayout.errors import LayoutError

__all__ = ["application"]

INTERRUPTED = 130  # what a shell reports for a process that Ctrl-C ended


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
        given = list(sys.argv[1:] if args is None else args)
        if "--debug" in given:
            sys.exit(_code(super().main(given, prog_name, complete_var, False, **extra)))
        try:
            sys.exit(_code(super().main(given, prog_name, complete_var, False, **extra)))
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx is not None else "relayout"
            _fail(f"{error.format_message().rstrip('.')} (see {command} --help)", error.exit_code)
        except click.ClickException as error:
            _fail(error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _fail("interrupted", INTERRUPTED)
        except LayoutError as error:
            _fail(str(error), 2)
        except OSError as error:
            _fail(_io_error(error), 1)
        except MemoryError:
            _fail("there is not enough memory for this", 1)
        except Exception as error:  # a mistake of ours; a traceback helps nobody who did not ask for one
            _fail(f"unexpected {type(error).__name__}: {error}; with --debug the traceback is shown", 1)


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> NoReturn:
    click.echo("relayout: error: " + " ".join(message.split()), err=True)
    sys.exit(code)


def _io_error(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{os.fspath(error.filename)!s}: {what}" if error.filename is not None else what


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        import relayout

        click.echo(f"relayout {relayout.__version__}")
        ctx.exit()


@click.group(
    cls=Application,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "relayout offset nChw8c 2,17,5,4 1,9,0,2     where does element (1,9,0,2) lie?",
        "relayout show nChw8c 1,17,2,2               what does the format look like?",
        "relayout translate nChw8c                   what do others call it?",
        "relayout convert cat.png cat.npy --to nChw16c --dtype f32 --src-scale 1/255",
    ),
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version and leave.",
)
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show a traceback where an error would be one line."
)
@click.pass_context
def application(ctx: click.Context) -> None:
    """Memory formats of tensors: show, translate and convert them."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (show, offset, translate, formats, convert, strides, run, bench, completion):
    application.add_command(command)
