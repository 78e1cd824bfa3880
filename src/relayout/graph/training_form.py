"""A network in the form in which it is trained.

In inference a batch normalisation has given statistics and a dropout does nothing. Here the first takes those
of the batch, and running ones become results; the second multiplies by a mask, which is another one in each
step:

================================================  ===========================================================
``BatchNormalization(x, scale, bias, m, v)``      ``relayout.BatchNormalizationTraining(x, scale, bias)``, and
                                                  m' = momentum m + (1 - momentum) mean of the batch; v' the
                                                  same of the variance, by n - 1 as PyTorch has it; with a
                                                  momentum of 1 means of all batches, the k-th of which
                                                  counts 1 / k
``Dropout(x, ratio)``                             ``x * relayout.DropoutMask(step)``
================================================  ===========================================================

A momentum of 1 would keep running statistics for ever. It is what PyTorch's exporters write for
``momentum=None``, the average of all batches since the first step; so that is what it means here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Writing
from relayout.graph.graph import Graph, Node, Value, fresh
from relayout.graph.inference import inferred
from relayout.graph.operators.types import NUMBERS
from relayout.records import dataclass

__all__ = ["STEP", "TrainingForm", "training_form"]

STEP = "training/step"
"""The input that says how many steps there were: what masks depend on."""


TYPE_NUMBERS = {dtype: number for number, dtype in NUMBERS.items()}  # what the attribute of a Cast holds


@dataclass(frozen=True, eq=False)
class TrainingForm:
    """A graph in training form.

    Attributes
    ----------
    graph : Graph
        With new running statistics as further results.
    updates : mapping of str to str
        For each constant with running statistics the result that is their next value.
    """

    graph: Graph
    updates: Mapping[str, str]


def training_form(
    graph: Graph, batch: Any = None, seed: int = 0, dropout: float | None = None
) -> TrainingForm:
    """A network whose batch normalisations and dropouts are those of training.

    Parameters
    ----------
    graph : Graph
        In the form of inference.
    batch : int or mapping, optional
        Sizes that are open.
    seed : int
        Of the masks.
    dropout : float, optional
        The ratio of all dropouts, where it is another one than the graph's.

    Raises
    ------
    LayoutError
        A batch has one element of each channel, whose variance by n - 1 is none; dims are not known.

    Examples
    --------
    >>> x = Value("x", (4, 2, 3, 3), np.dtype("f4"))
    >>> ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
    >>> constants = {"scale": ones, "bias": zeros, "mean": zeros, "variance": ones}
    >>> nodes = (Node("BatchNormalization", ("x", *constants), ("y",)),)
    >>> made = training_form(Graph((x,), ("y",), nodes, constants))
    >>> dict(made.updates)
    {'mean': 'mean/next', 'variance': 'variance/next'}
    """
    graph = inferred(_without_modes(graph), batch)
    writing = Writing(graph._known, graph.constants)
    updates: dict[str, str] = {}
    uses, seen = Counter(name for node in graph.nodes for name in node.inputs), Counter[str]()
    for node in graph.nodes:
        if node.operator == "BatchNormalization":
            _batch_normalization(writing, node, updates, uses, seen)
        elif node.operator == "Dropout":
            _dropout(writing, node, seed, dropout)
        else:
            writing.append(node)
    inputs = (*graph.inputs, writing.values[STEP]) if STEP in writing.values else graph.inputs
    values = {name: value for name, value in writing.values.items() if name not in writing.constants}
    made = graph.replaced(
        inputs=inputs,
        results=(*graph.results, *updates.values()),
        nodes=tuple(writing.nodes),
        constants=writing.constants,
        values=values,
    )
    return TrainingForm(made, updates)


def _without_modes(graph: Graph) -> Graph:
    """The graph whose dropouts have no training mode, which inference would fold away or keep."""
    nodes = tuple(
        Node(node.operator, node.inputs[:2], node.outputs, node.attributes, node.name)
        if node.operator == "Dropout"
        else node
        for node in graph.nodes
    )
    return graph.replaced(nodes=nodes)


def _steps(writing: Writing) -> str:
    """The input that counts steps."""
    writing.values.setdefault(STEP, Value(STEP, (1,), np.dtype(np.int64)))
    return STEP


def _batch_normalization(
    writing: Writing, node: Node, updates: dict[str, str], uses: Mapping[str, int], seen: Counter[str]
) -> None:
    """Append it with the statistics of the batch, and what they make of running ones.

    ``uses`` and ``seen`` count how many nodes read a constant, and how many did so far.
    """
    x, scale, bias, mean, variance = node.inputs
    dims = writing.dims(x)
    count = prod(dims[:1] + dims[2:])
    if count < 2:
        raise LayoutError(
            f"node {node.name or node.outputs[0]!r}: the batch has {count} elements of each channel; "
            "statistics need two"
        )
    taken = set(writing.values) | set(writing.constants)
    epsilon = node.attributes.get("epsilon", 1e-5)
    statistics = fresh(f"{node.outputs[0]}/mean", taken), fresh(f"{node.outputs[0]}/variance", taken)
    outputs = (node.outputs[0], *statistics)
    operator = "relayout.BatchNormalizationTraining"
    writing.append(Node(operator, (x, scale, bias), outputs, {"epsilon": epsilon}, node.name))
    momentum = float(node.attributes.get("momentum", 0.9))
    given = zip((mean, variance), statistics, (1.0, count / (count - 1)), strict=True)
    for place, (old, new, unbiased) in enumerate(given):
        if old not in writing.constants:
            continue
        before = updates.get(old, old)  # a layer that is used twice: updated in the order of the nodes
        if momentum == 1:
            seen[old] += 1
            share = _share(writing, old, uses[old], seen[old])
            kept = writing("Mul", before, writing("Sub", writing.number(1, old), share))
            more = writing("Mul", writing("Mul", new, writing.number(unbiased, new)), share)
        else:
            kept = writing("Mul", before, writing.number(momentum, old))
            more = writing("Mul", new, writing.number((1 - momentum) * unbiased, new))
        wanted = node.outputs[1 + place] if len(node.outputs) > 1 + place else f"{old}/next"
        made = fresh(wanted, taken)
        writing.append(Node("Add", (kept, more), (made,), {}, made))
        updates[old] = made


def _share(writing: Writing, old: str, uses: int, number: int) -> str:
    """What a batch counts in the mean of all so far: of the k-th one 1 / k.

    A layer that is used several times in a step sees as many batches, of which this is one.
    """
    dtype = writing.dtype(old)
    count = writing("Cast", _steps(writing), to=TYPE_NUMBERS[dtype])
    before = writing("Mul", count, writing.number(uses, old)) if uses > 1 else count
    return str(writing("Reciprocal", writing("Add", before, writing.number(number, old))))


def _dropout(writing: Writing, node: Node, seed: int, dropout: float | None) -> None:
    """Append a dropout as a product with a mask."""
    x = node.inputs[0]
    given = node.inputs[1] if len(node.inputs) > 1 and node.inputs[1] else ""
    ratio = dropout
    if ratio is None:
        ratio = 0.5 if not given else float(writing.constants[given].reshape(-1)[0])
    if not ratio:
        writing.append(Node("Identity", (x,), node.outputs[:1], {}, node.name))
        return
    own = seed * 1000003 + len(writing.nodes)
    dtype = writing.dtype(x).name
    mask = writing(
        "relayout.DropoutMask", _steps(writing), dims=writing.dims(x), ratio=ratio, seed=own, dtype=dtype
    )
    writing.append(Node("Mul", (x, mask), node.outputs[:1], {}, node.name))
