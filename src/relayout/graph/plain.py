"""Graphs as plain data, with their arrays beside: what files of runs have of them.

Numbers and texts stand as they are, lists for tuples, and everything else has a tag::

    {"array": [3, "f32", [2, 64]]}     the third array of those beside, its data type, its dims
    {"texts": ["a", "b"], "dims": [2]}
    {"graph": {"inputs": ..., "results": ..., "nodes": ..., "constants": ...}}

>>> import numpy as np
>>> writing = Writing()
>>> data = writing.data({"k": (1, 2.5, np.float32([3, 4]))})
>>> data, len(writing.arrays)
({'map': {'k': [1, 2.5, {'array': [0, 'f32', [2]]}]}}, 1)
>>> Reading(writing.arrays).data(data)
{'k': (1, 2.5, array([3., 4.], dtype=float32))}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value, spelled

__all__ = ["MAGIC", "Reading", "Writing"]

MAGIC: Final = b"relayout run"
"""What files of runs (:mod:`relayout.graph.saving`) begin with."""

Array = NDArray[Any]

BUILTIN: Final = ("bool", "uint16", "uint32", "uint64", "complex64", "complex128", "object")
"""Data types that have no name of Relayout's."""


class Writing:
    """Makes plain data of values, and collects the arrays in them."""

    def __init__(self) -> None:
        self.arrays: list[NDArray[np.uint8]] = []

    def data(self, value: Any) -> Any:
        """A value as plain data; a LayoutError for what there is no way to write."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.dtype):
            return {"dtype": _name(value)}
        if isinstance(value, Graph):
            return {"graph": self.graph(value)}
        if isinstance(value, Mapping):
            return {"map": {str(name): self.data(one) for name, one in value.items()}}
        if isinstance(value, (tuple, list)):
            return [self.data(one) for one in value]
        raise LayoutError(f"a {type(value).__name__} can't be written to a file")

    def values(self, several: Sequence[Value]) -> list[Any]:
        """Values of a graph: name, dims, data type."""
        return [
            [
                one.name,
                None if one.dims is None else list(one.dims),
                None if one.dtype is None else _name(one.dtype),
            ]
            for one in several
        ]

    def graph(self, graph: Graph) -> dict[str, Any]:
        """A graph."""
        return {
            "inputs": self.values(graph.inputs),
            "results": list(graph.results),
            "nodes": [
                [node.operator, list(node.inputs), list(node.outputs), self.data(node.attributes), node.name]
                for node in graph.nodes
            ],
            "constants": {name: self._array(data) for name, data in graph.constants.items()},
            "values": self.values(tuple(graph.values.values())),
            "name": graph.name,
        }

    def _array(self, value: Array) -> dict[str, Any]:
        if value.dtype.kind in "OUST":
            texts = value.reshape(-1).tolist()
            if not all(isinstance(text, str) for text in texts):
                raise LayoutError("an array of objects that are no texts can't be written to a file")
            return {"texts": texts, "dims": list(value.shape)}
        name = _name(value.dtype)
        self.arrays.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return {"array": [len(self.arrays) - 1, name, list(value.shape)]}


def _name(dtype: np.dtype[Any]) -> str:
    name = "object" if dtype.kind in "UST" else spelled(dtype)
    if _dtype(name) != dtype and dtype.kind not in "UST":
        raise LayoutError(f"elements of {dtype} can't be written to a file")
    return name


def _dtype(name: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(name if name in BUILTIN else as_dtype(name).numpy)
    return found


class Reading:
    """Makes values of plain data again; whatever is damaged is a LayoutError, or one of Python's own."""

    def __init__(self, arrays: Sequence[NDArray[np.uint8]]) -> None:
        self.arrays = arrays

    def data(self, value: Any) -> Any:
        """A value."""
        if isinstance(value, list):
            return tuple(map(self.data, value))
        if not isinstance(value, dict):
            return value
        if "graph" in value:
            return self.graph(value["graph"])
        if "map" in value:
            return {name: self.data(one) for name, one in value["map"].items()}
        if "dtype" in value:
            return _dtype(value["dtype"])
        return self._array(value)

    def values(self, several: Sequence[Any]) -> tuple[Value, ...]:
        """Values of a graph."""
        return tuple(self._value(*one) for one in several)

    def graph(self, data: Mapping[str, Any]) -> Graph:
        """A graph."""
        nodes = tuple(
            Node(_text(operator), _texts(inputs), _texts(outputs), dict(self.data(attributes)), _text(name))
            for operator, inputs, outputs, attributes, name in data["nodes"]
        )
        return Graph(
            self.values(data["inputs"]),
            _texts(data["results"]),
            nodes,
            {name: self._array(one) for name, one in data["constants"].items()},
            {value.name: value for value in self.values(data["values"])},
            _text(data["name"]),
        )

    def _value(self, name: Any, dims: Any, dtype: Any) -> Value:
        if dims is not None:
            dims = tuple(dims)
            if not all(n is None or isinstance(n, str) or (type(n) is int and n >= 0) for n in dims):
                raise LayoutError(f"the dims of {name!r:.60} are {dims!r:.60}")
        return Value(_text(name), dims, None if dtype is None else _dtype(dtype))

    def _array(self, value: Mapping[str, Any]) -> Array:
        if "texts" in value:
            found = np.empty(len(value["texts"]), object)
            found[:] = _texts(value["texts"])
            return found.reshape([_size(n) for n in value["dims"]])
        place, name, dims = value["array"]
        dtype, shape = _dtype(name), [_size(n) for n in dims]
        if dtype.hasobject:
            raise LayoutError("an array of objects has no bytes")
        data = self.arrays[_size(place)]
        if data.size != prod(shape) * dtype.itemsize:
            raise LayoutError(f"an array of {name} {shape} takes {data.size} bytes")
        return data.view(dtype).reshape(shape)


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise LayoutError(f"{value!r:.60} is no size")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise LayoutError(f"{value!r:.60} is no text")
    return value


def _texts(several: Any) -> tuple[str, ...]:
    return tuple(map(_text, several))
