"""``relayout run`` with a model in a file: its inputs, its outputs, and where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from relayout.cli import models
from relayout.cli.options import Output
from relayout.cli.tables import Column, print_table
from relayout.errors import counted, spelled_bytes
from relayout.layout.images import descriptor_name, format_name

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from relayout.graph.graph import Graph, Value
    from relayout.graph.run import Run
    from relayout.primitives.runner import Layer

__all__ = ["arrays", "run_model"]

TRIED, PATIENCE = 16, 2.0
"""Runs that do not count, and seconds after which they end: first calls try ways of computing a layer."""

MOST = 1000  # lines of a profile


class _Report(NamedTuple):
    """What was measured of a model in a format."""

    format: str
    run: Run
    times: list[float]
    layers: tuple[Layer, ...]
    results: tuple[Any, ...]

    @property
    def seconds(self) -> float:
        """Of one run."""
        return median(self.times)

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes of values and of constants; nothing is known where definitions run."""
        steps = self.run.steps
        return (0, 0) if steps is None else (steps.memory.peak, steps.constant_bytes)

    @property
    def conversions(self) -> int | None:
        """That the plan has left."""
        return None if self.run.plan is None else len(self.run.plan.conversions)


def run_model(
    file: str,
    formats: Sequence[str],
    inputs: Sequence[str],
    settings: Mapping[str, Any],
    listed: bool,
    output: Output,
) -> None:
    """Load a model, run it in each format, and print what was found.

    Raises
    ------
    click.UsageError
        Sizes are open: the message says which options are needed.
    LayoutError
        The model is damaged or has unknown operators; or an array doesn't fit its input.
    """
    from relayout.graph.graph import Graph

    start = time.perf_counter()
    found = models.opened(file)
    if isinstance(found, Graph):
        graph = models.sized(found, settings["batch"], settings["dims"])
        loaded = time.perf_counter() - start
        given = arrays(graph, inputs, settings["seed"])
        graph = models.filled(graph, given)
        runs = {
            one: graph.compile(
                None if one == "any" else one,
                settings["threads"],
                precision=settings["precision"],
                algorithm=settings["algorithm"] or "auto",
            )
            for one in formats
        }
    else:
        loaded = time.perf_counter() - start
        formatted = tuple(formats) != ("any",)
        models.check_decided(file, {**settings, "format": formatted or None})
        graph = found.tail or Graph(found.inputs, (), ())
        graph = graph.replaced(inputs=found.inputs)
        given = arrays(graph, inputs, settings["seed"])
        runs = {"saved": found}
    reports = [_measured(run, format, given, settings, listed) for format, run in runs.items()]
    output.json(_as_json(file, graph, reports, loaded, settings))
    if output.talks:
        _print(file, graph, reports, loaded, listed, output.console())


def arrays(graph: Graph, inputs: Sequence[str], seed: int) -> list[NDArray[Any]]:
    """An array for each input: from files, or random."""
    import numpy as np

    from relayout import files

    names = [value.name for value in graph.inputs]
    found: dict[str, Any] = {}
    places = iter(names)
    for one in inputs:
        name, equals, path = one.partition("=")
        if not (equals and name in names):
            unknown = bool(equals) and not Path(one).exists()
            name, path = "" if unknown else next((n for n in places if n not in found), ""), one
        if not name or name in found:
            there = ", ".join(map(str, graph.inputs))
            raise click.UsageError(
                f"--input {one}: the model's inputs are {there}", click.get_current_context(silent=True)
            )
        found[name] = files.read(path).numpy()
    generator = np.random.default_rng(seed)
    if len(found) < len(names):
        models.known(graph.replaced(inputs=tuple(v for v in graph.inputs if v.name not in found)))
    return [found[value.name] if value.name in found else _random(value, generator) for value in graph.inputs]


def _random(value: Value, generator: Any) -> NDArray[Any]:
    """Numbers for an input; whole ones are 0 or 1, so that every table has them."""
    import numpy as np

    from relayout.errors import LayoutError
    from relayout.graph.graph import spelled as kind

    if value.dtype is None or value.dtype.kind in "OUST":
        raise LayoutError(f"input {value.name} ({kind(value.dtype)}) can't be random; give it by --input")
    whole = value.dtype.kind in "iub"
    data = generator.integers(0, 2, value.dims) if whole else generator.standard_normal(value.dims)
    return np.asarray(data).astype(value.dtype)


def _measured(run: Run, format: str, given: list[Any], settings: Mapping[str, Any], listed: bool) -> _Report:
    start = time.perf_counter()
    for _ in range(TRIED):
        results = run(*given)
        if time.perf_counter() - start > PATIENCE:
            break
    times = []
    for _ in range(settings["repeat"]):
        start = time.perf_counter()
        results = run(*given)
        times.append(time.perf_counter() - start)
    layers = run.profile(*given, repeat=settings["repeat"]) if listed and run.steps is not None else ()
    return _Report(format, run, times, layers, results)


def _as_json(
    file: str, graph: Graph, reports: Sequence[_Report], loaded: float, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Times in seconds, sizes in bytes."""
    return {
        "model": file,
        "inputs": [models.described(value) for value in graph.inputs],
        "outputs": [models.described(value) for value in reports[0].run.outputs],
        **{name: settings[name] for name in ("threads", "precision", "seed", "repeat")},
        "load": loaded,
        "formats": [
            {
                "format": one.format,
                **one.run.seconds,
                "seconds": one.seconds,
                "runs": one.times,
                "estimated": None if one.run.plan is None else one.run.plan.cost,
                "conversions": one.conversions,
                "memory": {"arena": one.memory[0], "constants": one.memory[1]},
                "by_definition": one.run.why or None,
                "layers": [
                    {
                        "name": layer.name,
                        "kind": layer.kind,
                        "descs": {
                            name: str(desc) if name.startswith("weights") else descriptor_name(desc)
                            for name, desc in layer.descs.items()
                        },
                        "implementation": layer.implementation,
                        "flops": layer.flops,
                        "bytes": layer.bytes,
                        "seconds": layer.seconds,
                    }
                    for layer in one.layers
                ],
            }
            for one in reports
        ],
    }


def _print(
    file: str, graph: Graph, reports: Sequence[_Report], loaded: float, listed: bool, console: Console
) -> None:
    first = reports[0].run
    saved = first.plan is None and first.steps is not None
    size = f"a saved run of {counted(len(first.steps.layers()), 'step')}" if saved and first.steps else ""
    console.print(f"{file}: {size or counted(len(graph.nodes), 'node')}, loaded in {loaded:.2f} s")
    if first.note:
        console.print(first.note, style="yellow")
    for value in graph.inputs:
        console.print(f"  input   {value}")
    for value, result in zip(reports[0].run.outputs, reports[0].results, strict=True):
        console.print(f"  output  {_told(value, result)}")
    columns = [
        Column("format"),
        Column("ms a run", 0, True),
        Column("fastest", 5, True),
        Column("planned in", 3, True),
        Column("compiled in", 2, True),
        Column("conversions", 1, True),
        Column("values", 2, True),
        Column("constants", 2, True),
    ]
    rows = []
    for one in reports:
        took = one.run.seconds
        values, constants = one.memory
        rows.append(
            (
                one.format,
                f"{1e3 * one.seconds:.2f}",
                f"{1e3 * min(one.times):.2f}",
                f"{took['plan']:.2f} s",
                f"{took['compile']:.2f} s",
                "" if one.conversions is None else str(one.conversions),
                spelled_bytes(values),
                spelled_bytes(constants),
            )
        )
    print_table(console, columns, rows)
    for one in reports:
        if one.run.why:
            nodes = (one.run.tail or graph).nodes
            left = (
                "1 node runs by its definition"
                if len(nodes) == 1
                else f"{len(nodes)} nodes run by definition"
            )
            console.print(f"{one.format}: {left}, without kernels: {one.run.why}", style="yellow")
        if listed and one.layers:
            console.print(f"\n{one.format}", style="bold")
            _table(one, console)


def _told(value: Value, result: Any) -> str:
    """A value, with the dims that it has after all."""
    from relayout.graph.graph import Value

    dims, dtype = getattr(result, "shape", value.dims), getattr(result, "dtype", value.dtype)
    return str(Value(value.name, dims, dtype))


def _table(report: _Report, console: Console) -> None:
    """A line for each layer, the slowest first."""
    whole = max(sum(layer.seconds or 0.0 for layer in report.layers), 1e-12)
    columns = (
        Column("layer"),
        Column("kind", 2),
        Column("us", 0, True),
        Column("share", 0, True),
        Column("GFLOP/s", 4, True),
        Column("dst", 3),
        Column("implementation", 5),
    )
    rows, styles = [], []
    for layer in sorted(report.layers, key=lambda one: -(one.seconds or 0.0))[:MOST]:
        seconds = layer.seconds or 0.0
        dst = layer.descs.get("dst")
        rows.append(
            (
                layer.name if len(layer.name) <= 32 else "~" + layer.name[-31:],
                layer.kind,
                f"{1e6 * seconds:.1f}",
                f"{100 * seconds / whole:.1f} %",
                f"{layer.flops / seconds / 1e9:.0f}" if layer.flops and seconds else "",
                "" if dst is None else format_name(dst),
                layer.implementation.removeprefix("machine code: "),
            )
        )
        styles.append("yellow" if layer.kind == "reorder" else None)
    print_table(console, columns, rows, styles)
