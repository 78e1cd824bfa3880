"""``relayout completion``: commands, options and formats at the press of a key."""

from __future__ import annotations

import click

from relayout.cli.arguments import examples

__all__ = ["completion"]

VARIABLE = "_RELAYOUT_COMPLETE"


@click.command(
    short_help="Print the completion script of a shell.",
    epilog=examples(
        "bash:  echo 'eval \"$(relayout completion bash)\"' >> ~/.bashrc",
        "zsh:   echo 'eval \"$(relayout completion zsh)\"' >> ~/.zshrc",
        "fish:  relayout completion fish > ~/.config/fish/completions/relayout.fish",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes the shell complete commands, options, formats and data types."""
    from click.shell_completion import ShellComplete, get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"click does not know the shell {shell}", ctx)
    script = found(ctx.find_root().command, {}, "relayout", VARIABLE)
    click.echo(ShellComplete.source(script))  # without the checks of the shell that is running
