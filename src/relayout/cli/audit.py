"""``relayout audit``: where a model of PyTorch loses its memory format, and which operators keep it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DIMS, WHOLE, examples
from relayout.cli.options import Output, check_writable, output_options
from relayout.cli.progress import progress_bar
from relayout.cli.tables import Column, print_table
from relayout.errors import LayoutError

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.torch.auditing.coverage import Covered

__all__ = ["audit"]


@click.command(
    short_help="Find where a PyTorch model loses channels-last.",
    epilog=examples(
        "relayout audit mine:make             make() returns (model, inputs)",
        "relayout audit net.py:Net --input 8,3,224,224 --channels-last",
        "relayout audit torchvision.models:resnet50 --input 1,3,224,224",
        "relayout audit mine:make --train --html audit.html --json audit.json",
        "relayout audit --operators           which operators keep the format",
        "relayout audit --operators --since torch-2.13.json",
    ),
)
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option("--input", "inputs", multiple=True, type=DIMS, metavar="DIMS", help="Sizes of a random input.")
@click.option("--channels-last", is_flag=True, help="First bring model and inputs into channels-last.")
@click.option("--train", is_flag=True, help="Audit a training step: forward, sum, backward.")
@click.option("--no-compare", is_flag=True, help="Do not measure the model in other formats.")
@click.option("--threads", type=WHOLE, help="Threads of PyTorch.")
@click.option("--html", metavar="FILE", type=click.Path(), help="Write the report as a page.")
@click.option("--operators", is_flag=True, help="Run PyTorch's operators, and list which keep the format.")
@click.option(
    "--since",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="With --operators: what has changed since this file, of --json.",
)
@output_options
def audit(
    target: str | None,
    inputs: tuple[tuple[int, ...], ...],
    channels_last: bool,
    train: bool,
    no_compare: bool,
    threads: int | None,
    html: str | None,
    operators: bool,
    since: str | None,
    output: Output,
) -> None:
    """Run a model of PyTorch once, and tell where channels-last is lost, and what that costs.

    FUNCTION of a module or of a file.py is called without arguments. It returns a model and its inputs, or a
    model alone, which gets random inputs of the sizes that --input names. Each finding comes with the line
    of the program, the module of the model, and what to write instead. With --quiet: the losses, one on each
    line.

    With --operators no model is run, but a list of operators, on tensors of 4 and 5 axes: which of them keep
    channels-last in the PyTorch that is installed, which lose it, and which leave strides that will be taken
    for another format. --json writes the table; --since compares it with one of another version of PyTorch.
    """
    if operators == (target is not None):
        raise click.UsageError("give MODULE:FUNCTION, or --operators", click.get_current_context())
    if since is not None and not operators:
        raise click.UsageError("--since goes with --operators", click.get_current_context())
    if operators:
        _operators(output, since)
        return
    assert target is not None
    if html is not None:
        check_writable(Path(html))
    from relayout.torch import audit as audited

    model, args, kwargs = _loaded(target, inputs, channels_last, train)
    found = _audited(audited, model, args, kwargs, train, not no_compare, threads, output)
    output.json(found.json())
    if html is not None:
        Path(html).write_text(found.html(), encoding="utf-8")
    if output.quiet:
        for one in found.lost:
            output.answer(f"{one.operator}\t{one.module}\t{one.source}")
    output.echo(str(found))
    if html is not None:
        output.echo(f"\nwritten to {html}")
    if found.error:
        raise LayoutError(f"the model raised {found.error}")


def _audited(
    audited: Any,
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    train: bool,
    compare: bool,
    threads: int | None,
    output: Output,
) -> Any:
    """The audit of a model; of one that raises, what was seen until then."""
    import torch

    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        with torch.set_grad_enabled(train), progress_bar(2, output) as progress:
            progress("running" if not compare else "running, then comparing formats")
            return audited(model, *args, train=train, compare=compare, warmup=1, **kwargs)
    except Exception as error:
        seen = getattr(error, "audit", None)
        if seen is None:
            raise
        return seen
    finally:
        torch.set_num_threads(before)


def _named(target: str) -> Any:
    """What ``module:function`` or ``file.py:function`` names."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise click.UsageError(
            f"{target!r} is no MODULE:FUNCTION; write package.module:function or file.py:function"
        )
    if place.endswith(".py"):
        path = Path(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise click.UsageError(f"there is no file {place}")
        sys.path.insert(0, str(path.resolve().parent))
        found: Any = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, found)
        spec.loader.exec_module(found)
    else:
        sys.path.insert(0, os.getcwd())
        try:
            found = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not place.startswith(str(error.name)):
                raise
            raise click.UsageError(f"there is no module {place}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise click.UsageError(f"{place} has no {name}")
        found = getattr(found, part)
    return found


def _loaded(
    target: str, sizes: tuple[tuple[int, ...], ...], channels_last: bool, train: bool
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model, and what it is called with."""
    import torch

    from relayout.torch.auditing.comparing import converted, fitting

    torch.manual_seed(0)
    named = _named(target)
    made = named if isinstance(named, torch.nn.Module) else named()
    given: Any = tuple(torch.randn(dims) for dims in sizes)
    if isinstance(made, tuple) and not isinstance(made, torch.nn.Module):
        if len(made) != 2:
            raise LayoutError(f"{target} returns a tuple of {len(made)}, not (model, inputs)")
        made, given = made[0], given or made[1]
    elif not sizes:
        raise click.UsageError(
            f"{target} returns a model without inputs: give --input DIMS, or return (model, inputs)"
        )
    kwargs = given if isinstance(given, dict) else {}
    args = () if kwargs else given if isinstance(given, (tuple, list)) else (given,)
    if isinstance(made, torch.nn.Module):
        made.train(train)
        if channels_last:
            with torch.no_grad():
                for one in made.parameters():
                    one.data = fitting(one.data, True)
    if channels_last:
        args, kwargs = converted(tuple(args), True), converted(kwargs, True)
    return made, tuple(args), kwargs


def _operators(output: Output, since: str | None) -> None:
    """Run the list of operators, and compare with what an earlier version of PyTorch made of it."""
    from relayout.torch.auditing.cases import CASES
    from relayout.torch.auditing.coverage import changed, covered, document

    earlier = None if since is None else _table_in(since)
    with progress_bar(sum(len(case.ranks) for case in CASES), output) as progress:
        found = covered(progress=lambda case: progress(case.operator))
    told = document(found)
    if earlier is not None:
        told["since"] = earlier.get("torch")
        told["changed"] = [one._asdict() for one in changed(earlier, told)]
    output.json(told)
    if output.quiet:
        for one in told["changed"] if earlier is not None else told["operators"]:
            verdict = f"{one['before']}\t{one['after']}" if earlier is not None else one["verdict"]
            output.answer(f"{one['operator']}\t{one['rank']}\t{verdict}")
    elif output.talks:
        _table(found, told, output.console())
        if earlier is not None:
            _changes(told, output.console())


def _table_in(path: str) -> dict[str, Any]:
    """A table that --json has written."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise LayoutError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or "operators" not in found:
        raise LayoutError(
            f"{path} is no table of operators; relayout audit --operators --json {path} writes one"
        )
    return found


def _changes(told: dict[str, Any], console: Console) -> None:
    """What other verdicts there are."""
    changed = told["changed"]
    console.print(f"\nsince torch {told['since']}: {len(changed) or 'no'} changes", highlight=False)
    for one in changed:
        was = one["before"] or "not in the list"
        console.print(f"  {one['operator']}, {one['rank']}-D: {was}, now {one['after']}", highlight=False)


def _table(found: tuple[Covered, ...], told: dict[str, Any], console: Console) -> None:
    rows: dict[tuple[str, str], list[Covered]] = {}
    for one in found:
        rows.setdefault((one.kind, one.operator.replace("3d", "2d")), []).append(one)
    last = ""
    columns = [
        Column("operator"),
        Column("4-D"),
        Column("5-D"),
        Column("what is called", 1),
        Column("note", 2),
    ]
    cells: list[tuple[str, ...]] = []
    styles: list[str | None] = []
    for (kind, _), several in rows.items():
        if kind != last:
            cells.append((kind, "", "", "", ""))
            styles.append("bold")
            last = kind
        verdicts = {one.rank: one.verdict for one in several}
        notes = ", ".join(dict.fromkeys(f"{one.note} ({one.rank}-D)" for one in several if one.note))
        first = several[0]
        name = first.operator
        cells.append((f"  {name}", verdicts.get(4, ""), verdicts.get(5, ""), first.text, notes))
        bad = {"loses", "ambiguous"} & set(verdicts.values())
        styles.append("yellow" if bad else None)
    print_table(console, columns, cells, styles)
    for rank, counts in told["counts"].items():
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        console.print(f"\n{rank}-D: {said} (torch {told['torch']}, CPU)")
