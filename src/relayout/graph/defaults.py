"""Inputs with a default: constants that a run may be given others for.

ONNX lists among the inputs of a model also values that are in the file (all of them, up to version 3 of its
format). Those are constants here: they are folded, packed and computed with ahead of time. Who gives one by
its name, ``run(x, scale=array)``, gets another network, compiled for that value; some of these are kept. A
default that the graph depends on, such as the dims of a reshape, can't be changed; nor can
one that was used up when the model was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.evaluate import checked_inputs
from relayout.graph.graph import Array, Graph, Value

__all__ = ["checked", "overridden"]


def checked(graph: Graph, given: Mapping[str, Any]) -> dict[str, Array]:
    """Arrays for defaults.

    Raises
    ------
    LayoutError
        One does not fit, or may not be changed.
    """
    found = {}
    for name, data in given.items():
        value = graph.defaults[name]
        if value is None or name not in graph.constants:
            raise LayoutError(
                f"the input {name!r} has its value from the file, and the network depends on it: it can't be"
                " given; change it in the model"
            )
        default = graph.constants[name]
        value = Value(name, default.shape if value.dims is None else value.dims, default.dtype)
        found[name] = np.asarray(checked_inputs((value,), (data,))[0])
    return found


def overridden(graph: Graph, given: Mapping[str, Any]) -> Graph:
    """The graph with other constants in the place of defaults.

    >>> from relayout.graph.graph import Node
    >>> x, w = Value("x", (2,), np.dtype("f4")), Value("w", (2,), np.dtype("f4"))
    >>> nodes = (Node("Mul", ("x", "w"), ("y",)),)
    >>> graph = Graph((x,), ("y",), nodes, {"w": np.float32([1, 2])}, defaults={"w": w})
    >>> overridden(graph, {"w": np.float32([3, 4])}).evaluate(np.float32([1, 1]))
    (array([3., 4.], dtype=float32),)

    Raises
    ------
    LayoutError
        See :func:`checked`.
    """
    forgotten = {name: Value(name, None, one.dtype) for name, one in graph.values.items()}
    constants = {**graph.constants, **checked(graph, given)}
    return graph.replaced(constants=constants, values=forgotten)
