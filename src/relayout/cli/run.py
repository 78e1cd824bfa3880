"""``relayout run``: a whole network, in a format that one option chooses.

The networks here are those that Relayout builds itself; models in files are run by
:mod:`relayout.cli.run_model`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from relayout.cli.arguments import ALGORITHM, DTYPE, FORMAT, PRECISION, examples
from relayout.cli.models import is_model, model_options
from relayout.cli.options import Output, no_progress_option, output_options
from relayout.cli.tables import Column, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.runner import Layer, Run
    from relayout.tensor import Tensor

Progress = Callable[[int, int, str], None] | None

__all__ = ["run"]

MIB = 1 << 20
COMPUTING = ("convolution", "inner product")
"""Kinds of layers whose floating-point operations count."""


def _networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from relayout.networks import NETWORKS

    return [CompletionItem(name) for name in NETWORKS if name.startswith(incomplete)]


@click.command(
    short_help="Run a model, and time it and its layers.",
    epilog=examples(
        "relayout run model.onnx",
        "relayout run model.onnx --input photo.npy --profile",
        "relayout run model.onnx --precision bf16",
        "relayout run model.relayout",
        "relayout run bert.onnx --batch 1 --dim length=128 --input ids=ids.npy",
        "relayout run resnet50",
        "relayout run resnet50 --format nchw --batch 8 --threads 2 --layers",
        "relayout run resnet50 --format any --format nhwc --format nchw",
        "relayout run resnet50 --weights resnet50.safetensors --json resnet50.json",
        "relayout run resnext101_32x4d --size 64 --repeat 50",
    ),
)
@click.argument("network", metavar="MODEL|NETWORK", shell_complete=_networks)
@click.option(
    "--format",
    "formats",
    type=FORMAT,
    multiple=True,
    default=["any"],
    show_default=True,
    help="The format of all activations (nchw, nhwc, nChw16c, ...); any: convolutions choose. Several are "
    "run in turn.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Of a model: an array for an input, by its place or its name. [default: random]",
)
@model_options()
@click.option(
    "--size", type=click.IntRange(min=1), help="Of a network: height and width of a picture. [default: 224]"
)
@click.option(
    "--dtype", type=DTYPE, help="Of a network: data type of activations and weights. [default: f32]"
)
@click.option(
    "--precision",
    type=PRECISION,
    help="Of a model: the type of its products of f32, and of what follows them. [default: f32]",
)
@click.option(
    "--algorithm",
    type=ALGORITHM,
    help="Of a model: how 3x3 convolutions are added up, all products, fewer of transformed tiles, or "
    "whichever takes less time. [default: auto]",
)
@click.option(
    "--weights",
    type=click.Path(readable=False),
    help="Of a network: a safetensors or npz file with PyTorch's names: conv1.weight, ... [default: random]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of random inputs and weights.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=10, show_default=True, help="How many runs are timed."
)
@click.option(
    "--layers",
    "--profile",
    "listed",
    is_flag=True,
    help="A table of all layers: formats, kernels, times; of a model the slowest first.",
)
@no_progress_option
@output_options
def run(
    network: str,
    formats: tuple[str, ...],
    inputs: tuple[str, ...],
    batch: int | None,
    dims: dict[str, Any],
    threads: int | None,
    size: int | None,
    dtype: str | None,
    precision: str | None,
    algorithm: str | None,
    weights: str | None,
    seed: int,
    repeat: int,
    listed: bool,
    no_progress: bool,
    output: Output,
) -> None:
    """Run a MODEL, or the forward pass of a NETWORK that Relayout builds.

    MODEL is an ONNX file, a program of torch.export (.pt2), or a run that relayout plan --save has written
    (.relayout), whose formats and sizes are decided. Inputs are read from files, or random, and
    outputs are described. The planner chooses formats so that a run costs least, or (--format nhwc) images
    have one.

    NETWORK is resnet50, resnet101, resnet152 or resnext101_32x4d. All activations are in one format, or (any)
    each convolution has its fastest one and reorders are inserted between where two differ: what they cost is
    a line of its own. Weights are packed before, and batch normalisations folded into convolutions. The
    pictures are random. Times are medians.
    """
    from relayout.runtime.threads import count

    if is_model(network) or (Path(network).is_file() and network not in _names()):
        from relayout.cli.run_model import run_model

        for option, value in (("--size", size), ("--dtype", dtype), ("--weights", weights)):
            if value is not None:
                raise click.UsageError(f"{option} is for the networks {', '.join(_names())}", _context())
        given = {"batch": batch, "dims": dims, "threads": threads, "precision": precision}
        given |= {"algorithm": algorithm, "seed": seed, "repeat": repeat}
        run_model(network, tuple(dict.fromkeys(formats)), inputs, given, listed, output)
        return
    for option, several in (("--input", inputs), ("--dim", dims)):
        if several:
            raise click.UsageError(f"{option} is for models in files; {network!r} is none", _context())
    if precision is not None:
        raise click.UsageError("--precision is for models in files; a network has --dtype", _context())
    if algorithm is not None:
        raise click.UsageError(f"--algorithm is for models in files; {network!r} is none", _context())
    batch, size, dtype = batch or 1, size or 224, dtype or "f32"
    if weights is not None:
        Path(weights).open("rb").close()  # what can't be read is refused now
    _check_network(network)
    settings = {
        "network": network,
        "batch": batch,
        "size": size,
        "dtype": dtype,
        "threads": count(threads),
        "weights": weights,
        "seed": seed,
    }
    ready = []
    for format in dict.fromkeys(formats):
        with _progress(format, output, no_progress) as progress:
            ready.append(_prepared(settings, format, progress))
    times = _in_turn(ready, repeat)
    reports = [
        _Report(one, seconds, one.run.profile(one.data, repeat=repeat))
        for one, seconds in zip(ready, times, strict=True)
    ]
    if output.wants_json:
        output.json(_as_json(settings, reports))
    if not output.talks:
        return
    console = output.console()
    many = settings["threads"]
    console.print(f"{network}, {batch} x 3x{size}x{size}, {dtype}, {many} thread{'s' * (many != 1)}")
    _summary(reports, batch, console)
    for report in reports if listed else ():
        console.print(f"\n{report.ready.format}", style="bold")
        _table(report, console)
    if output.json_file is not None:
        console.print(f"written to {output.json_file}")


def _names() -> list[str]:
    from relayout.networks import NETWORKS

    return list(NETWORKS)


def _context() -> click.Context:
    return click.get_current_context()


def _check_network(name: str) -> None:
    if name not in _names():
        raise click.UsageError(
            f"there is no network {name!r}; there are {', '.join(_names())}, and files (.onnx, .pt2)",
            _context(),
        )


class _Ready(NamedTuple):
    """A network in a format, compiled."""

    format: str
    run: Run
    data: Tensor
    seconds: float
    """How long that took."""


class _Report(NamedTuple):
    """What was measured of it."""

    ready: _Ready
    times: list[float]
    """Seconds of whole runs."""
    layers: tuple[Layer, ...]

    @property
    def seconds(self) -> float:
        """Of one run."""
        return median(self.times)

    @property
    def flops(self) -> int:
        """Of the layers that compute much."""
        return sum(layer.flops for layer in self.layers if layer.kind in COMPUTING)

    def share(self, layers: Iterable[Layer]) -> float:
        """Of the time of all layers."""
        whole = sum(layer.seconds or 0.0 for layer in self.layers)
        return sum(layer.seconds or 0.0 for layer in layers) / max(whole, 1e-12)

    @property
    def reorders(self) -> list[Layer]:
        """What formats cost."""
        return [layer for layer in self.layers if layer.kind == "reorder"]


def _prepared(settings: dict[str, Any], format: str, progress: Progress) -> _Ready:
    """Build and compile the network, and make its input."""
    import numpy as np

    import relayout as rl
    from relayout.networks import build, from_file, random

    seed, weights = settings["seed"], settings["weights"]
    start = time.perf_counter()
    sequence = build(
        settings["network"],
        settings["batch"],
        format,
        random(seed) if weights is None else from_file(weights),
        size=settings["size"],
        dtype=settings["dtype"],
    )
    made = sequence.compile(settings["threads"], progress)
    seconds = time.perf_counter() - start
    desc = sequence.inputs[0].desc
    pictures = np.random.default_rng(seed).standard_normal(desc.dims).astype(np.float32)
    return _Ready(format, made, rl.tensor(pictures).reorder(desc), seconds)


def _in_turn(ready: Sequence[_Ready], repeat: int) -> list[list[float]]:
    """Seconds of runs, one of each format after the other; the first of each does not count."""
    outputs = [one.run(one.data) for one in ready]
    times: list[list[float]] = [[] for _ in ready]
    for _ in range(repeat):
        for one, out, taken in zip(ready, outputs, times, strict=True):
            start = time.perf_counter()
            one.run(one.data, out=out)
            taken.append(time.perf_counter() - start)
    return times


def _as_json(settings: dict[str, Any], reports: Sequence[_Report]) -> dict[str, Any]:
    """Times in seconds, sizes in bytes."""
    from relayout.bench.particulars import particulars

    return {
        "machine": particulars("numpy", "llvmlite", "relayout"),
        **settings,
        "formats": [
            {
                "format": report.ready.format,
                "ready": report.ready.seconds,
                "seconds": report.seconds,
                "seconds_per_image": report.seconds / settings["batch"],
                "runs": report.times,
                "flops": report.flops,
                "memory": {**report.ready.run.memory._asdict(), "weights": report.ready.run.constant_bytes},
                "layers": [
                    {
                        "name": layer.name,
                        "kind": layer.kind,
                        "descs": {name: str(desc) for name, desc in layer.descs.items()},
                        "implementation": layer.implementation,
                        "in_place": layer.in_place,
                        "flops": layer.flops,
                        "bytes": layer.bytes,
                        "seconds": layer.seconds,
                        "share": report.share([layer]),
                    }
                    for layer in report.layers
                ],
            }
            for report in reports
        ],
    }


def _summary(reports: Sequence[_Report], batch: int, console: Console) -> None:
    """A line for each format; activations are what the arena takes, and would take without sharing."""
    several, compared = len(reports[0].times) > 1, len(reports) > 1
    columns = [
        Column("format"),
        Column("ms an image", 0, True),
        Column("ms a run", 2, True),
        *[Column(head, 5, True) for head in ("fastest", "slowest") if several],
        Column("GFLOP/s", 3, True),
        *[Column("ratio", 1, True)] * compared,
        Column("layers", 6, True),
        Column("reorders", 4, True),
        Column("activations (unshared)", 7, True),
        Column("weights", 8, True),
        Column("ready in", 9, True),
    ]
    rows = []
    for report in reports:
        ready, seconds = report.ready, report.seconds
        memory = ready.run.memory
        times = (seconds / batch, seconds, *[min(report.times), max(report.times)] * several)
        rows.append(
            (
                ready.format,
                *(f"{1e3 * t:.2f}" for t in times),
                f"{report.flops / seconds / 1e9:.0f}",
                *[f"{seconds / reports[0].seconds:.2f}"] * compared,
                str(len(report.layers)),
                f"{len(report.reorders)}, {100 * report.share(report.reorders):.1f} %",
                f"{memory.peak / MIB:.1f} ({memory.total / MIB:.1f}) MiB",
                f"{ready.run.constant_bytes / MIB:.0f} MiB",
                f"{ready.seconds:.1f} s",
            )
        )
    print_table(console, columns, rows)


LAYERS = (
    Column("layer"),
    Column("kind", 7),
    Column("src", 3),
    Column("weights", 5),
    Column("dst", 4),
    Column("MFLOP", 8, True),
    Column("us", 0, True),
    Column("share", 2, True),
    Column("GFLOP/s", 6, True),
    Column("implementation", 9),
)


def _table(report: _Report, console: Console) -> None:
    """A line for each layer."""
    rows = []
    for layer in report.layers:
        seconds = layer.seconds or 0.0
        computes = layer.kind in COMPUTING
        rows.append(
            (
                layer.name,
                layer.kind,
                *(_spelled(layer.descs.get(name)) for name in ("src", "weights", "dst")),
                f"{layer.flops / 1e6:.1f}" if computes else "",
                f"{1e6 * seconds:.0f}",
                f"{100 * report.share([layer]):.1f} %",
                f"{layer.flops / seconds / 1e9:.0f}" if computes and seconds else "",
                layer.implementation.removeprefix("machine code: "),
            )
        )
    styles = ["yellow" if layer.kind == "reorder" else None for layer in report.layers]
    print_table(console, LAYERS, rows, styles)


def _spelled(desc: MemoryDesc | None) -> str:
    """The format of a descriptor."""
    if desc is None:
        return ""
    kind = "" if desc.dtype.name == "f32" else f"{desc.dtype}:"
    return kind + (str(desc.format) if desc.format is not None else "strides")


@contextmanager
def _progress(format: str, output: Output, unwanted: bool) -> Iterator[Progress]:
    """Which layer is being compiled, on standard error, if that is a terminal."""
    if unwanted or not output.shows_progress:
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn(f"compiling {escape(format)}"),
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(
            task, completed=done, total=total, description=escape(name)
        )
