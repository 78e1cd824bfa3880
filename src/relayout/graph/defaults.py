"""Inputs with a default: constants that a run may be given others for.

ONNX lists among the inputs of a model also values that are in the file (all of them, up to version 3 of its
format). Those are constants here: they are folded, packed and computed with ahead of time. Who gives one by
its name, ``run(x, scale=array)``, gets another network, compiled for that value; some of these are kept. A
default that the graph depends on, such as the dims of a reshape, can't be changed; nor can
one that was used up when the model was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.arrays import checked_inputs
from relayout.graph.graph import Array, Graph, Value

if TYPE_CHECKING:
    from relayout.graph.run import Run

__all__ = ["Others", "checked", "overridden"]

KEPT: Final = 4
"""For how many other values a network is kept compiled, besides that of the file."""


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


class Others:
    """Runs with other values in the place of defaults; the last :data:`KEPT` are kept."""

    def __init__(self, graph: Graph, made: Callable[[Graph], Run]) -> None:
        self._graph, self._made = graph, made
        self._known: dict[Any, Run] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the runs that are kept."""
        return Others, (self._graph, self._made)

    @locked
    def __call__(self, given: Mapping[str, Any]) -> Run:
        """The run for these."""
        arrays = checked(self._graph, given)
        key = tuple((name, one.shape, one.tobytes()) for name, one in sorted(arrays.items()))
        found = self._known.pop(key, None) or self._made(overridden(self._graph, arrays))
        self._known[key] = found
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))
        return found
