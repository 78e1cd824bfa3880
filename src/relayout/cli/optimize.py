"""``relayout optimize``: an ONNX model with less to do, for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relayout.cli import models
from relayout.cli.arguments import examples
from relayout.cli.options import Exit, Output, check_writable, output_options
from relayout.cli.tables import Column, print_table
from relayout.errors import counted, spelled_bytes

if TYPE_CHECKING:
    from relayout.graph.graph import Graph, Value

__all__ = ["optimize"]

MOVING = ("Transpose",)
"""Operators that only convert: each of them that stays is named."""

SHOWN = 12
"""So many of them."""

CLOSE = 1e-4
"""How far results may differ, as a part of the largest: constants are combined, which rounds otherwise."""


@click.command(
    short_help="Rewrite an ONNX model: no saved transposes, batch norms folded.",
    epilog=examples(
        "relayout optimize model.onnx faster.onnx",
        "relayout optimize model.onnx faster.onnx --check",
        "relayout optimize model.pt2 model.onnx --opset 21",
    ),
)
@click.argument("source", metavar="IN", type=click.Path(readable=False))
@click.argument("target", metavar="OUT.onnx", type=click.Path())
@click.option(
    "--opset",
    type=click.IntRange(min=1),
    help="Version of the operators. [default: the oldest from 21 on that has all that is used]",
)
@click.option("--check", is_flag=True, help="Run both by onnxruntime, and compare the results.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the random inputs of --check.",
)
@click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=N",
    callback=models.read_dims,
    help="For --check: a size that the model leaves open.",
)
@output_options
def optimize(
    source: str, target: str, opset: int | None, check: bool, seed: int, dims: dict[str, Any], output: Output
) -> None:
    """Write the model IN with less to do as OUT.onnx, for any runtime.

    Constants are folded, batch normalisations go into convolutions, transposes that meet vanish, what was
    written out (Gelu, LayerNormalization, ...) is one node. Results are the same up to rounding; names, dims
    and data types of inputs and outputs are the same. Open sizes stay open. With --quiet: how many nodes are
    left.
    """
    from relayout.exporters.onnx import save
    from relayout.graph.passes import optimized

    if Path(target).resolve() == Path(source).resolve():
        raise click.UsageError("IN and OUT are one file", click.get_current_context())
    graph = models.load(source)
    check_writable(Path(target))
    made = optimized(graph)
    made = made.replaced(values={**made.values, **_said(graph, made)})
    written = save(made, target, opset)
    found = _found(source, target, graph, made, [node.op_type for node in written.graph.node])
    worst = None
    if check:
        worst = found["difference"] = _difference(source, target, graph, dims, seed)
    output.json(found)
    if output.quiet:
        output.answer(str(found["nodes"][1]))
    elif output.talks:
        _print(found, output)
    if worst is not None and not worst <= CLOSE:
        click.get_current_context().exit(Exit.NO)


def _said(before: Graph, after: Graph) -> dict[str, Value]:
    """The outputs as the model describes them: sizes that are not known keep their names."""
    from relayout.graph.graph import Value

    found = {}
    for old, new in zip(before.outputs, after.outputs, strict=True):
        dims = old.dims if old.dims is not None else new.dims
        found[new.name] = Value(new.name, dims, new.dtype if new.dtype is not None else old.dtype)
    return found


def _found(source: str, target: str, before: Graph, after: Graph, written: list[str]) -> dict[str, Any]:
    """What is reported; ``written`` are the operators of the file."""
    counts = [_counted([node.operator for node in before.nodes]), _counted(written)]
    names = sorted(
        {*counts[0], *counts[1]}, key=lambda name: (counts[1].get(name, 0) - counts[0].get(name, 0), name)
    )
    return {
        "source": source,
        "target": target,
        "nodes": [len(before.nodes), len(written)],
        "constant_bytes": [
            sum(data.nbytes for data in graph.constants.values()) for graph in (before, after)
        ],
        "operators": [
            {"operator": name, "before": counts[0].get(name, 0), "after": counts[1].get(name, 0)}
            for name in names
        ],
        "stayed": [
            {"node": node.name or node.outputs[0], "operator": node.operator, "value": node.inputs[0]}
            for node in after.nodes
            if node.operator in MOVING
        ],
    }


def _counted(operators: list[str]) -> dict[str, int]:
    return {name: operators.count(name) for name in dict.fromkeys(operators)}


def _print(found: dict[str, Any], output: Output) -> None:
    console = output.console()
    before, after = found["nodes"]
    bytes_before, bytes_after = map(spelled_bytes, found["constant_bytes"])
    console.print(f"{found['source']}: {counted(before, 'node')}, {bytes_before} of constants")
    console.print(f"{found['target']}: {counted(after, 'node')}, {bytes_after} of constants")
    changed = [one for one in found["operators"] if one["before"] != one["after"]]
    if changed:
        console.print()
        rows = [
            (one["operator"], str(one["before"]), str(one["after"]), f"{one['after'] - one['before']:+d}")
            for one in changed
        ]
        heads = (Column("operator"), Column("before", 0, True), Column("after", 0, True), Column("", 0, True))
        print_table(console, heads, rows)
    console.print()
    for operator in MOVING:
        was = next((one["before"] for one in found["operators"] if one["operator"] == operator), 0)
        stayed = [one for one in found["stayed"] if one["operator"] == operator]
        console.print(f"{operator}: {was - len(stayed)} of {was} are gone, {len(stayed)} stay")
        for one in stayed[:SHOWN]:
            console.print(f"  {one['node']}, of {one['value']}")
        if len(stayed) > SHOWN:
            console.print(f"  and {len(stayed) - SHOWN} more; --json has them")
    if "difference" in found:
        verdict = "the same up to rounding" if found["difference"] <= CLOSE else "NOT the same"
        console.print(f"results: {verdict} ({found['difference']:.1e} of the largest value)")


def _difference(source: str, target: str, graph: Graph, dims: dict[str, Any], seed: int) -> float:
    """By how much the results of both models differ at most, as a part of the largest of each output."""
    import numpy as np

    from relayout.cli.run_model import arrays
    from relayout.errors import LayoutError

    try:
        import onnxruntime
    except ImportError:
        raise LayoutError("--check runs both models by onnxruntime, which is not installed") from None
    if not source.lower().endswith(".onnx"):
        raise LayoutError("--check compares ONNX models; run relayout run with the other one")
    given = arrays(models.sized(graph, None, dims), (), seed)
    named = {value.name: data for value, data in zip(graph.inputs, given, strict=True)}
    try:
        results = [
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(
                list(graph.results), named
            )
            for path in (source, target)
        ]
    except Exception as error:
        raise LayoutError(f"onnxruntime can't run {source} and {target}: {error}") from error
    worst = 0.0
    for a, b in zip(*results, strict=True):
        if np.shape(a) != np.shape(b):
            return float("inf")
        if np.size(a):
            x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
            off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y))
            worst = max(worst, float(np.max(off)) / max(float(np.nanmax(np.abs(x))), 1e-30))
    return worst
