"""Recurrent layers: ONNX's LSTM, GRU and RNN in the form in which they have gradients.

The backward pass reads gates and states of all steps, which the forward pass computes. So before a graph is
differentiated, its recurrent layers are replaced by :mod:`relayout.graph.operators.recurrent_training`, which
keeps that, with weights in the primitives' order of gates::

    W  d, g*o, c  --- gates in order, transposed --->  weights    l, d, c, g, o
    R  d, g*o, o  --- the same ---------------------->  recurrent  l, d, o, g, o   --->  RecurrentTraining
    B  d, 2*g*o   --- both halves added up ---------->  bias       l, d, g, o

These are nodes as all others, and have their own rules. What comes out has the names that it had before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, Writing, gradient
from relayout.graph.graph import Graph, Node, fresh
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.recurrent import activations_of
from relayout.graph.operators.recurrent_training import DIRECTIONS, RESULTS, SLOPES
from relayout.records import dataclass

__all__ = ["with_workspaces"]

GATES: Final = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
"""The gates of the primitives, as positions among ONNX's."""
PEEPHOLES: Final = (0, 2, 1)
USUAL: Final = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh"), "RNN": ("tanh",)}


@dataclass(frozen=True)
class _Layer:
    """What a node says of its layer."""

    cell: str
    direction: str
    activations: tuple[tuple[str, float, float], ...]
    turned: bool
    """Whether the rows of the batch come first (``layout``)."""

    @property
    def attributes(self) -> dict[str, Any]:
        """Those of ``relayout.RecurrentTraining``."""
        names, alphas, betas = zip(*self.activations, strict=True)
        shared = {"cell": self.cell, "direction": self.direction}
        return {**shared, "activations": names, "alphas": alphas, "betas": betas}


def with_workspaces(graph: Graph, active: set[str]) -> Graph:
    """The graph whose recurrent layers keep what their gradients need.

    Parameters
    ----------
    graph : Graph
        All dims are known.
    active : set of str
        The values that gradients are wanted of, and all that depend on them. Layers that read none of them
        stay as they are, as do those that have no gradient.
    """
    if not any(node.operator in GATES for node in graph.nodes):
        return graph
    writing = Writing(graph._known, graph.constants)
    for node in graph.nodes:
        layer = None
        if node.operator in GATES and any(name in active for name in node.inputs):
            try:
                layer = _layer(writing, node)
            except LayoutError:  # its rule says so, if a gradient has to pass
                layer = None
        if layer is None:
            writing.append(node)
        else:
            _replaced(writing, node, layer)
    values = {name: value for name, value in writing.values.items() if name not in writing.constants}
    return graph.replaced(nodes=tuple(writing.nodes), constants=writing.constants, values=values)


def _layer(w: Writing, node: Node) -> _Layer:
    """What a node says.

    Raises
    ------
    LayoutError
        There are no gradients of such a layer.
    """
    a = {**OPERATORS[node.operator].attributes, **node.attributes}
    for name, what in (("clip", "a clip"), ("input_forget", "coupled gates")):
        if a.get(name):
            raise LayoutError(f"there is no gradient of a layer with {what} ({name} is {a[name]})")
    direction = a["direction"]
    if direction not in DIRECTIONS:
        raise LayoutError(f"direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    directions, usual = len(DIRECTIONS[direction]), USUAL[node.operator]
    names = a["activations"]
    if node.operator == "RNN" and names is not None:
        names = names[:directions]
    named = activations_of(names, usual, directions, a["activation_alpha"], a["activation_beta"])
    found = [(name, n.get("alpha", 0.0), n.get("beta", 0.0)) for name, n in named]
    first = tuple(found[: len(usual)])
    if found != [*first] * directions:
        raise LayoutError("there is no gradient of a layer whose directions have different activations")
    for name, alpha, _ in first:
        if name not in SLOPES or (name == "leakyrelu" and alpha < 0):
            raise LayoutError(
                f"there is no gradient of a layer with the activation {name} ({alpha}); there are of "
                f"{', '.join(SLOPES)} (alpha of leakyrelu at least 0)"
            )
    turned = bool(a["layout"])
    _check_lengths(w, node, w.dims(node.inputs[0])[1 if turned else 0])
    if 0 in w.dims(node.inputs[0])[:2] or 0 in w.dims(node.inputs[2]):
        raise LayoutError("there is no gradient of a layer without steps, rows or units")
    linear = node.operator == "GRU" and a["linear_before_reset"]
    cell = "lbr_gru" if linear else node.operator.lower()
    return _Layer(cell, direction, first, turned)


def _check_lengths(w: Writing, node: Node, time: int) -> None:
    """Refuse sequences that end early."""
    name = node.inputs[4] if len(node.inputs) > 4 else ""
    if name and (name not in w.constants or (w.constants[name] != time).any()):
        raise LayoutError(
            f"there is no gradient of a layer whose sequences end early (sequence_lens is {name!r}); all "
            f"must have {time} steps"
        )


def _replaced(w: Writing, node: Node, layer: _Layer) -> None:
    """Append a layer with all that leads to it and from it."""
    w.label = node.name or next(filter(None, node.outputs))
    order, inputs = GATES[node.operator], [*node.inputs, *[""] * 8]
    x, weights, recurrent, bias, _, *states = inputs[:8]
    lstm = layer.cell == "lstm"
    if layer.turned:
        x = w("Transpose", x, perm=(1, 0, 2))
    given = [
        x,
        _weights(w, weights, order),
        _weights(w, recurrent, order),
        _bias(w, bias, order, layer.cell) if bias else "",
        *(_state(w, one, layer.turned) if one else "" for one in states[: 1 + lstm]),
        *[""] * (1 - lstm),
        _peephole(w, states[2]) if lstm and states[2] else "",
    ]
    while not given[-1]:
        given.pop()
    outputs = [*node.outputs, "", ""][: 2 + lstm]
    taken = set(w.values) | set(w.constants)
    whole, kept = (fresh(f"{w.label}/{name}", taken) for name in ("states", "workspace"))
    last = [fresh(f"{one}/last", taken) if one else "" for one in outputs[1:]]
    operator = "relayout.RecurrentTraining"
    w.append(Node(operator, tuple(given), (whole, kept, *last), layer.attributes, node.name))
    time, rows, wide = w.dims(whole)
    directions = len(DIRECTIONS[layer.direction])
    units = wide // directions
    if outputs[0]:
        apart = w("Reshape", whole, _numbers(w, time, rows, directions, units))
        perm = (1, 0, 2, 3) if layer.turned else (0, 2, 1, 3)
        w.append(Node("Transpose", (apart,), (outputs[0],), {"perm": perm}, outputs[0]))
    for name, one in zip(outputs[1:], last, strict=True):
        if not name:
            continue
        dims = _numbers(w, directions, rows, units)
        if layer.turned:
            made = w("Reshape", one, dims)
            w.append(Node("Transpose", (made,), (name,), {"perm": (1, 0, 2)}, name))
        else:
            w.append(Node("Reshape", (one, dims), (name,), {}, name))


def _numbers(w: Writing, *numbers: int) -> str:
    return w.constant(np.asarray(numbers, np.int64))


def _reshaped(w: Writing, x: str, *dims: int) -> str:
    return str(w("Reshape", x, _numbers(w, *dims)))


def _ordered(w: Writing, x: str, order: Sequence[int], axis: int) -> str:
    """The elements of an axis in another order: those that stay side by side are moved together."""
    runs: list[list[int]] = []
    for one in order:
        if runs and runs[-1][-1] + 1 == one:
            runs[-1].append(one)
        else:
            runs.append([one])
    if len(runs) == 1:
        return x
    sizes = [len(run) for run in sorted(runs)]
    parts = w("Split", x, _numbers(w, *sizes), outputs=len(sizes), axis=axis)
    return str(w("Concat", *(parts[sorted(runs).index(run)] for run in runs), axis=axis))


def _weights(w: Writing, x: str, order: Sequence[int]) -> str:
    directions, rows, inputs = w.dims(x)
    units = rows // len(order)
    apart = _ordered(w, _reshaped(w, x, directions, len(order), units, inputs), order, 1)
    turned = w("Transpose", apart, perm=(0, 3, 1, 2))
    return _reshaped(w, turned, 1, directions, inputs, len(order), units)


def _bias(w: Writing, x: str, order: Sequence[int], cell: str) -> str:
    """Of data and state added up, but for the last gate of a GRU with linear before reset."""
    directions, several = w.dims(x)
    units = several // 2 // len(order)
    apart = _ordered(w, _reshaped(w, x, directions, 2, len(order), units), order, 2)
    if cell != "lbr_gru":
        return _reshaped(
            w, w("ReduceSum", apart, _numbers(w, 1), keepdims=0), 1, directions, len(order), units
        )
    both, last = w("Split", apart, _numbers(w, 2, 1), outputs=2, axis=2)
    added = w("ReduceSum", both, _numbers(w, 1), keepdims=0)
    made = w("Concat", added, _reshaped(w, last, directions, 2, units), axis=1)
    return _reshaped(w, made, 1, directions, len(order) + 1, units)


def _state(w: Writing, x: str, turned: bool) -> str:
    if turned:
        x = w("Transpose", x, perm=(1, 0, 2))
    return _reshaped(w, x, 1, *w.dims(x))


def _peephole(w: Writing, x: str) -> str:
    directions, several = w.dims(x)
    apart = _ordered(w, _reshaped(w, x, directions, 3, several // 3), PEEPHOLES, 1)
    return _reshaped(w, apart, 1, directions, 3, several // 3)


@gradient("LSTM", "GRU", "RNN")
def recurrent(r: Reverse) -> None:
    """What has a gradient was replaced before."""
    _layer(r.writing, r.node)
    raise LayoutError(f"{r.node.operator} has a gradient in training form")


@gradient("relayout.RecurrentTraining")
def recurrent_training(r: Reverse) -> Sequence[str | None]:
    """Backward through time; what is not wanted is not computed."""
    given = {name: k for k, name in enumerate(OPERATORS["relayout.RecurrentTraining"].inputs)}
    dy, kept, *last = r.gradients
    if kept is not None:
        raise LayoutError("there is no gradient by the workspace of a layer")
    inputs = [*r.inputs[:3], r.input(6), r.node.outputs[1], *(one or "" for one in (dy, *last))]
    while not inputs[-1]:
        inputs.pop()
    wanted = [r.wants(given[name]) for name in RESULTS]
    made = dict(zip(RESULTS, r.some("relayout.RecurrentGrad", wanted, *inputs, **r.attributes), strict=True))
    return [made[name] or None for name in given]
