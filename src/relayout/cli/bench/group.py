"""The command ``relayout bench``, which the modules beside this one add theirs to."""

from __future__ import annotations

import click

from relayout.cli.arguments import examples

__all__ = ["bench"]


@click.group(
    invoke_without_command=True,
    short_help="Measure speed, beside other libraries and runtimes.",
    epilog=examples(
        "relayout bench reorder --quick          less than two minutes",
        "relayout bench reorder --list --quick   which reorders that measures",
        "relayout bench primitives --quick",
        "relayout bench threads",
        "relayout bench calibrate",
    ),
)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure speed on this machine, compared with other libraries."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
