"""``relayout info`` with a model: operators, inputs and outputs, parameters, multiply-adds, memory.

A saved run has no operators any more: there it is steps, and the memory that they take.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from relayout.cli import models
from relayout.cli.options import Output
from relayout.cli.tables import Column, print_table
from relayout.errors import counted, spelled_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.graph.graph import Graph
    from relayout.graph.run import Run

__all__ = ["info_model"]


def info_model(file: str, batch: int | None, dims: dict[str, Any], layers: bool, output: Output) -> None:
    """Print what is in a model, where sizes that are open stay open; or in a saved run."""
    from relayout.graph.run import Run

    model = models.opened(file)
    if isinstance(model, Run):
        models.check_decided(file, {"batch": batch, "dims": dims})
        _saved(file, model, layers, output)
        return
    found = facts(models.sized(model, batch, dims))
    output.json({"file": file, **found})
    if output.quiet:
        for one in found["operators"]:
            output.answer(f"{one['count']}\t{one['operator']}")
    elif output.talks:
        _print(file, found, layers, output)


def facts(graph: Graph) -> dict[str, Any]:
    """Everything that is told of a model, as JSON has it."""
    from relayout.graph.inference import inferred
    from relayout.graph.macs import multiply_adds
    from relayout.graph.plan import RULES

    known = inferred(graph)
    counts: dict[str, int] = {}
    for node in graph.nodes:
        counts[node.operator] = counts.get(node.operator, 0) + 1
    floats = [data for data in graph.constants.values() if data.dtype.kind not in "OUS"]
    alive = _alive(known)
    layers = [
        {
            "name": node.name or next(filter(None, node.outputs), ""),
            "operator": node.operator,
            "dims": None if (dims := known.value(node.outputs[0]).dims) is None else list(dims),
            "parameters": sum(known.constants[n].size for n in node.inputs if n in known.constants),
            "multiply_adds": multiply_adds(node, known),
            "bytes": _bytes(known, node.outputs),
            "alive": at_once,
        }
        for node, at_once in zip(known.nodes, alive, strict=True)
    ]
    sums = [layer["multiply_adds"] for layer in layers]
    return {
        "name": graph.name,
        "inputs": [models.described(value) for value in graph.inputs],
        "outputs": [models.described(value) for value in known.outputs],
        "nodes": len(graph.nodes),
        "nodes_after_inference": len(known.nodes),
        "operators": [
            {"operator": name, "count": count, "kernel": name in RULES}
            for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        ],
        "parameters": sum(data.size for data in floats if data.dtype.kind not in "iub"),
        "constant_bytes": sum(data.nbytes for data in floats),
        "multiply_adds": None if None in sums else sum(sums),
        "value_bytes": None if None in alive else max((n for n in alive if n is not None), default=0),
        "layers": layers,
    }


def _saved(file: str, run: Run, layers: bool, output: Output) -> None:
    """Print what is known of a saved run: it has steps in the place of nodes."""
    steps = () if run.steps is None else run.steps.layers()
    memory = run.memory
    inputs, outputs = ([models.described(one) for one in side] for side in (run.inputs, run.outputs))
    output.json(
        {
            "file": file,
            "inputs": inputs,
            "outputs": outputs,
            "constant_bytes": memory.weights,
            "value_bytes": memory.values,
            "steps": [{"name": o.name, "kind": o.kind, "implementation": o.implementation} for o in steps],
        }
    )
    if output.quiet:
        for one in steps:
            output.answer(one.name)
    elif output.talks:
        console = output.console()
        console.print(f"{file}: a saved run of {counted(len(steps), 'step')}")
        _print_values(inputs, outputs, console)
        console.print(f"constants      {spelled_bytes(memory.weights)}, as they are packed")
        console.print(f"values         {spelled_bytes(memory.values)} at once, in each call")
        if layers:
            console.print()
            columns = (Column("step"), Column("kind"), Column("implementation", 1))
            print_table(console, columns, [(one.name, one.kind, one.implementation) for one in steps])


def _bytes(graph: Graph, names: Iterable[str]) -> int | None:
    """Bytes of values that are no constants; None: dims are open."""
    values = [graph.value(name) for name in names if name and name not in graph.constants]
    if not all(value.known for value in values):
        return None
    return sum(math.prod(v.dims) * v.dtype.itemsize for v in values)  # type: ignore[misc, arg-type, union-attr]


def _alive(graph: Graph) -> list[int | None]:
    """For each node the bytes of values that are there while it runs, if each has memory of its own."""
    last = {name: k for k, node in enumerate(graph.nodes) for name in node.inputs}
    last |= dict.fromkeys(graph.results, len(graph.nodes))
    there = {value.name for value in graph.inputs}
    found = []
    for k, node in enumerate(graph.nodes):
        there |= {name for name in node.outputs if name}
        found.append(_bytes(graph, there))
        there = {name for name in there if last.get(name, k) > k}
    return found


def _print(file: str, found: dict[str, Any], layers: bool, output: Output) -> None:
    console = output.console()
    console.print(f"{file}: {counted(found['nodes'], 'node')}")
    _print_values(found["inputs"], found["outputs"], console)
    sums, values = found["multiply_adds"], found["value_bytes"]
    console.print(f"parameters     {found['parameters']}")
    console.print(f"constants      {spelled_bytes(found['constant_bytes'])}")
    if values is not None:
        console.print(f"values         {spelled_bytes(values)} at once, as the model has them")
    console.print(f"multiply-adds  {'open: give the sizes by --batch and --dim' if sums is None else sums}")
    console.print()
    columns = (Column("operator"), Column("nodes", 0, True), Column("kernel"))
    rows = [
        (one["operator"], str(one["count"]), "yes" if one["kernel"] else "") for one in found["operators"]
    ]
    print_table(console, columns, rows)
    if layers:
        console.print()
        heads = (
            Column("layer"),
            Column("operator", 1),
            Column("dims"),
            Column("parameters", 2, True),
            Column("bytes", 3, True),
            Column("multiply-adds", 0, True),
        )
        print_table(
            console,
            heads,
            [
                (
                    one["name"],
                    one["operator"],
                    _dims(one["dims"]),
                    str(one["parameters"] or ""),
                    "?" if one["bytes"] is None else str(one["bytes"]),
                    "?" if one["multiply_adds"] is None else str(one["multiply_adds"] or ""),
                )
                for one in found["layers"]
            ],
        )


def _print_values(
    inputs: Iterable[Mapping[str, Any]], outputs: Iterable[Mapping[str, Any]], console: Console
) -> None:
    for kind, several in (("input", inputs), ("output", outputs)):
        for one in several:
            console.print(f"  {kind:<6}  {one['name']} {one['dtype']} {_dims(one['dims'])}")


def _dims(dims: list[Any] | None) -> str:
    if dims is None:
        return "?"
    return "x".join("?" if n is None else str(n) for n in dims) or "scalar"
