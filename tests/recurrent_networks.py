"""Recurrent layers as nodes of ONNX, for tests: all that their gradients depend on is an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.graph.graph import Graph, Node, Value

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    kind: str,
    *,
    steps: int = 3,
    batch: int = 2,
    channels: int = 4,
    units: int = 5,
    bias: bool = True,
    initial: bool = False,
    peephole: bool = False,
    outputs: tuple[int, ...] = (0, 1, 2),
    dtype: str = "f8",
    seed: int = 1,
    **attributes: Any,
) -> Graph:
    """A layer whose results are weighed by random numbers and summed; weights are constants."""
    rng = np.random.default_rng(seed)
    directions, turned = 1 + (attributes.get("direction") == "bidirectional"), attributes.get("layout", 0)
    several, kind_ = GATES[kind] * units, np.dtype(dtype)
    dims = {"x": (steps, batch, channels), "initial_h": (directions, batch, units)}
    dims["initial_c"] = dims["initial_h"]
    results = [(steps, directions, batch, units), *[(directions, batch, units)] * (1 + (kind == "LSTM"))]
    if turned:
        dims = {name: (size[1], size[0], size[2]) for name, size in dims.items()}
        results = [(batch, steps, directions, units), *[(batch, directions, units)] * 2][: len(results)]
    states = ["initial_h", "initial_c"][: (1 + (kind == "LSTM")) * initial]
    sizes = {"w": (several, channels), "r": (several, units), "b": (2 * several,), "p": (3 * units,)}
    given = ["x", "w", "r", "b" * bias, "", *states, *[""] * (2 - len(states)), "p" * peephole]
    constants = {
        name: (rng.standard_normal((directions, *sizes[name])) * 0.5).astype(kind_)
        for name in given
        if name in sizes
    }
    while not given[-1]:
        given.pop()
    made = tuple(f"y{k}" if k in outputs else "" for k in range(len(results)))
    nodes = [Node(kind, tuple(given), made, {"hidden_size": units, **attributes}, "layer")]
    total = ""
    for k, size in enumerate(results):
        if k not in outputs:
            continue
        constants[f"weighing{k}"] = rng.standard_normal(size).astype(kind_)
        nodes.append(Node("Mul", (f"y{k}", f"weighing{k}"), (f"m{k}",)))
        nodes.append(Node("ReduceSum", (f"m{k}",), (f"s{k}",), {"keepdims": 0}))
        if total:
            nodes.append(Node("Add", (total, f"s{k}"), (f"t{k}",)))
        total = f"t{k}" if total else f"s{k}"
    nodes.append(Node("Identity", (total,), ("loss",)))
    inputs = tuple(Value(name, dims[name], kind_) for name in ("x", *states))
    return Graph(inputs, ("loss",), tuple(nodes), constants)
