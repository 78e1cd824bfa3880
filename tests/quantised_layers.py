"""Dynamically quantised networks held against ONNX Runtime layer by layer, each given the same inputs.

A network that is quantised by what it computes (DynamicQuantizeLinear) passes on every difference: a number
that f32 rounds otherwise becomes the next byte, a byte moves a range, and all bytes that are made with that
range. Behind a few blocks two programs that are both right differ by percents of their results' range, as
ONNX Runtime does from itself with and without its optimisations. So whole results say little about who is
right. Here every layer gets what ONNX Runtime has computed in front of it::

    x  --->  DynamicQuantizeLinear  --->  q, s, z  --->  MatMulInteger, Cast, Mul  --->  y
       its x goes in                  its bytes?                                    its y?

and what is left of the network, all of it in f32, gets the results y of all layers, and must give the inputs
x of all layers, and the results. If each layer is right for the inputs that it was given, and each of them is
compared, so is the network: that is induction, in the order of the layers.

Bytes are compared in steps. So are products: a step of a result is a 255th of its range, which is what the
next layer would make of it::

    python tests/quantised_layers.py network.onnx inputs.npz
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import relayout
from relayout.graph.graph import Graph, Node, Value

PRODUCTS = ("MatMulInteger", "ConvInteger")
LEVELS = 255


class Compared(NamedTuple):
    """What a layer gives, beside what ONNX Runtime gives for the same inputs."""

    name: str
    kind: str
    """``bytes``, ``product`` or ``real``."""
    most: float
    """The largest difference, in steps."""
    same: float
    """The share of elements without any, or within a 1000th of a step where they are real."""


class Cut(NamedTuple):
    """A network apart: its quantised layers, and the rest."""

    inner: tuple[Node, ...]
    outer: tuple[Node, ...]
    sources: tuple[str, ...]
    """What is quantised."""
    bytes: tuple[str, ...]
    """Bytes, scales and zero points."""
    products: tuple[str, ...]
    """What the rest reads of the quantised layers."""


def cut(graph: Graph) -> Cut:
    """Find the quantised layers: from DynamicQuantizeLinear to the product with the scales."""
    inside: set[str] = set()
    inner, outer = [], []
    sources, made = dict[str, None](), dict[str, None]()
    for node in graph.nodes:
        given = [name for name in node.inputs if name and name not in graph.constants]
        quantises = node.operator == "DynamicQuantizeLinear"
        goes_on = node.operator in (*PRODUCTS, "Cast", "Mul") and all(name in inside for name in given)
        if quantises or (goes_on and given):
            inner.append(node)
            inside.update(node.outputs)
            if quantises:
                sources[node.inputs[0]] = None
                made |= dict.fromkeys(filter(None, node.outputs))
        else:
            outer.append(node)
    read = {name for node in outer for name in node.inputs} | {*graph.results}
    products = [name for node in inner for name in node.outputs if name in read and name not in made]
    return Cut(tuple(inner), tuple(outer), tuple(sources), tuple(made), tuple(products))


def runtime_values(
    model: Path, given: Mapping[str, Any], names: Sequence[str], optimised: bool = False
) -> dict[str, Any]:
    """What ONNX Runtime computes for these values, and for the results of the network."""
    import onnx
    import onnxruntime

    proto = onnx.load(str(model))
    known = [one.name for one in proto.graph.output]
    written = {name for node in proto.graph.node for name in node.output}
    more = [name for name in dict.fromkeys(names) if name in written and name not in known]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in more)
    wanted = [*known, *more]
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    return dict(zip(wanted, session.run(wanted, dict(given)), strict=True))


def ours(graph: Graph, nodes: Sequence[Node], given: Mapping[str, Any], results: Sequence[str]) -> Any:
    """What Relayout's kernels make of some of a network's nodes, for these inputs."""
    read = {name for node in nodes for name in node.inputs} | {*results}
    made = {name for node in nodes for name in node.outputs}
    inputs = tuple(
        Value(name, data.shape, data.dtype)
        for name, data in given.items()
        if name in read and name not in made
    )
    constants = {name: data for name, data in graph.constants.items() if name in read}
    part = Graph(inputs, tuple(results), tuple(nodes), constants)
    found = part.compile()(*(given[one.name] for one in inputs))
    return dict(zip(results, found, strict=True))


def compared(model: Path, given: Mapping[str, Any]) -> list[Compared]:
    """All layers, each with the inputs that ONNX Runtime has for it."""
    graph = relayout.load(model)
    parts = cut(graph)
    names = [*parts.sources, *parts.bytes, *parts.products]
    theirs = {**given, **runtime_values(model, given, names)}
    found = []
    inner = ours(graph, parts.inner, theirs, [*parts.bytes, *parts.products])
    for node in parts.inner:
        for name in node.outputs:
            if name in parts.bytes and theirs[name].ndim and theirs[name].dtype == np.uint8:
                apart = abs(inner[name].astype(np.int64) - theirs[name].astype(np.int64))
                found.append(Compared(name, "bytes", float(apart.max()), float((apart == 0).mean())))
            elif name in parts.bytes:
                same = inner[name] == theirs[name]
                found.append(Compared(name, "range", float(not same), float(same)))
            elif name in parts.products:
                found.append(_real(name, "product", inner[name], theirs[name]))
    rest = [*dict.fromkeys(name for name in (*parts.sources, *graph.results) if name not in given)]
    outer = ours(graph, parts.outer, theirs, [name for name in rest if name not in parts.products])
    found += [_real(name, "real", outer[name], theirs[name]) for name in outer]
    return found


def _real(name: str, kind: str, one: Any, other: Any) -> Compared:
    """Differences of real numbers, in steps of the second's range."""
    step = (max(other.max(), 0) - min(other.min(), 0)) / LEVELS or 1.0
    apart = abs(one.astype(np.float64) - other) / step
    return Compared(name, kind, float(apart.max()), float((apart < 1e-3).mean()))


def whole(model: Path, given: Mapping[str, Any]) -> dict[str, float]:
    """Results of the whole network: how far programs are from each other, by the range of the results."""
    graph = relayout.load(model)
    named = [one.name for one in graph.inputs]
    run = dict(zip(graph.results, graph.compile()(*(given[name] for name in named)), strict=True))
    plain, better = (runtime_values(model, given, (), optimised) for optimised in (False, True))
    pairs = {
        "Relayout, ONNX Runtime": (run, plain),
        "Relayout, ONNX Runtime optimised": (run, better),
        "ONNX Runtime, ONNX Runtime optimised": (plain, better),
    }
    return {
        title: max(float(abs(one[name] - other[name]).max() / np.ptp(other[name])) for name in graph.results)
        for title, (one, other) in pairs.items()
    }


def main() -> int:
    model, inputs = Path(sys.argv[1]), np.load(sys.argv[2])
    given = {
        one.name: inputs[name] for one, name in zip(relayout.load(model).inputs, inputs.files, strict=True)
    }
    found = compared(model, given)
    for kind in ("range", "bytes", "product", "real"):
        several = [one for one in found if one.kind == kind]
        if several:
            worst = max(several, key=lambda one: one.most)
            share = np.mean([one.same for one in several])
            print(f"{kind}: {len(several)}, same {share:.6f}, at most {worst.most:.4f} steps ({worst.name})")
    for title, apart in whole(model, given).items():
        print(f"{title}: {100 * apart:.2f} % of the range")
    return 0


if __name__ == "__main__":
    sys.exit(main())
