"""What commands about networks share: models in files, their dims, inputs, and how formats are spelled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from relayout.cli.arguments import whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.graph.graph import Graph, Value
    from relayout.graph.run import Run

__all__ = [
    "check_decided",
    "described",
    "filled",
    "is_model",
    "known",
    "load",
    "model_options",
    "named",
    "opened",
    "sized",
]

ENDINGS = (".onnx", ".pt2", ".relayout")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def is_model(text: str) -> bool:
    """Whether an argument is the file of a model, by its ending.

    >>> is_model("net.onnx"), is_model("resnet50"), is_model("weights.safetensors")
    (True, False, False)
    """
    return text.lower().endswith(ENDINGS)


def named(_: click.Context, option: click.Parameter, pairs: Sequence[str]) -> dict[str, str]:
    """``NAME=SOMETHING``, several times."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.rpartition("=")
        if not (equals and name and value):
            raise click.BadParameter(f"{pair!r} has to be written as {option.metavar}")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = value
    return found


def read_dims(ctx: click.Context, option: click.Parameter, pairs: Sequence[str]) -> dict[str, Any]:
    """A size by its name, or all dims of an input: ``seq=128``, ``x=1x3x224x224``."""
    found: dict[str, Any] = {}
    for name, text in named(ctx, option, pairs).items():
        sizes = [whole_number(part) for part in text.replace(",", "x").split("x")]
        if any(size is None or size < 0 for size in sizes):
            raise click.BadParameter(
                f"{name}={text}: write {name}=128, or all dims of an input, x=1x3x224x224"
            )
        found[name] = sizes[0] if len(sizes) == 1 else tuple(sizes)
    return found


def model_options(threads: bool = True) -> Callable[[_Command], _Command]:
    """Give a command ``--batch``, ``--dim`` and ``--threads``, as ``batch``, ``dims`` and ``threads``."""

    def decorate(command: _Command) -> _Command:
        options: list[Callable[[_Command], _Command]] = [
            click.option(
                "--batch",
                type=click.IntRange(min=1),
                help="The first size of every input that leaves it open; where none does, another batch than "
                "the model is made for.",
            ),
            click.option(
                "--dim",
                "dims",
                multiple=True,
                metavar="NAME=N",
                callback=read_dims,
                help="A size that a model leaves open; or all dims of an input: x=1x3x224x224.",
            ),
        ]
        if threads:
            told = "How many threads may work on a layer."
            options.append(click.option("--threads", type=click.IntRange(min=1), help=told))
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def opened(file: str) -> Graph | Run:
    """Load a model, or a run that was saved.

    Raises
    ------
    OSError
        There is no such file.
    """
    from relayout.importers.loading import load as loaded

    Path(file).open("rb").close()  # who forgot an ending reads that there is no such file
    found: Graph | Run = loaded(file)
    return found


def load(file: str) -> Graph:
    """Load a model.

    Raises
    ------
    OSError
        There is no such file.
    LayoutError
        It is a saved run, which has no graph any more.
    """
    from relayout.errors import LayoutError
    from relayout.graph.graph import Graph

    found = opened(file)
    if not isinstance(found, Graph):
        raise LayoutError(f"{file} is a saved run: its plan is made, and relayout run runs it")
    return found


def check_decided(file: str, settings: Mapping[str, Any]) -> None:
    """Refuse options that a saved run has no use for: those that are given, of all that decide."""
    options = {"format": "--format", "dims": "--dim", "batch": "--batch", "threads": "--threads"}
    options |= {"precision": "--precision", "algorithm": "--algorithm"}
    useless = [option for name, option in options.items() if settings.get(name)]
    if useless:
        raise click.UsageError(
            f"{file} is a saved run, whose sizes, formats and threads are decided; "
            f"{', '.join(useless)} can't change them",
            click.get_current_context(silent=True),
        )


def sized(graph: Graph, batch: int | None, dims: Mapping[str, Any]) -> Graph:
    """The graph with the sizes that options give.

    Raises
    ------
    LayoutError
        A name is none of the model's, a size is given twice, or the model is made for another batch.
    """
    from relayout.errors import LayoutError
    from relayout.graph.inference import inferred, with_dims

    for value in graph.inputs if batch is not None else ():
        first = dims.get(str(value.dims[0])) if value.dims else None
        first = dims.get(value.name, first)
        first = first[0] if isinstance(first, tuple) else first
        if first not in (None, batch):
            raise LayoutError(f"--batch {batch} and --dim give two first sizes of the input {value}")
    graph = with_dims(graph, dims or None)
    made = with_dims(graph, batch)
    if (
        batch is not None
        and made.inputs != graph.inputs
        and all(
            value.dims is not None and all(isinstance(n, int) for n in value.dims) for value in graph.inputs
        )
    ):
        inferred(graph, batch)  # says what does not go with another batch
    return made


def filled(graph: Graph, arrays: Sequence[NDArray[Any]]) -> Graph:
    """The graph with the sizes that arrays for its inputs have, where they are open."""
    from relayout.graph.inference import with_dims

    given = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        if value.dims is None or (not value.known and len(value.dims) == array.ndim):
            sizes = value.dims or array.shape
            given[value.name] = tuple(
                n if isinstance(n, int) else m for n, m in zip(sizes, array.shape, strict=True)
            )
    return with_dims(graph, given or None)


def known(graph: Graph) -> None:
    """Refuse a graph with inputs of open dims.

    Raises
    ------
    click.UsageError
        The message says which options are needed.
    """
    wanted: dict[str, None] = {}
    for value in graph.inputs:
        if value.dims is None:
            wanted[f"--dim {value.name}=DIMS"] = None
        elif any(n is None for n in value.dims):
            sizes = "x".join(str(n) if isinstance(n, int) else "?" for n in value.dims)
            wanted[f"--dim {value.name}={sizes}"] = None
        else:
            wanted |= {f"--dim {n}=N": None for n in value.dims if isinstance(n, str)}
    if wanted:
        inputs = ", ".join(str(value) for value in graph.inputs if not value.known)
        raise click.UsageError(
            f"sizes of the input {inputs} are open: {' '.join(wanted)}",
            click.get_current_context(silent=True),
        )


def described(value: Value) -> dict[str, Any]:
    """A value for JSON."""
    from relayout.graph.graph import spelled as kind

    return {
        "name": value.name,
        "dims": None if value.dims is None else list(value.dims),
        "dtype": kind(value.dtype),
    }
