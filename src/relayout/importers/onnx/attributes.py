"""Attributes of nodes as Python values.

::

    FLOAT, INT             float, int                    FLOATS, INTS, STRINGS       tuples of them
    STRING                 str                           TENSOR, SPARSE_TENSOR       ndarray
    GRAPH                  the caller's business         TYPE_PROTO                  what the file has

Within a function an attribute may stand for one of the function's own (``ref_attr_name``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relayout.errors import LayoutError, described
from relayout.graph.graph import Graph
from relayout.importers.onnx.external import Folder
from relayout.importers.onnx.tensors import array_of, dense

__all__ = ["attributes_of", "check_kinds"]

KINDS = {
    1: "f",
    2: "i",
    3: "s",
    4: "t",
    5: "g",
    6: "floats",
    7: "ints",
    8: "strings",
    9: "tensors",
    10: "graphs",
    11: "sparse_tensor",
    13: "tp",
}
"""The field of each kind of attribute."""

PYTHON = {
    "FLOAT": float,
    "FLOATS": float,
    "INT": int,
    "INTS": int,
    "STRING": str,
    "STRINGS": str,
    "TENSOR": np.ndarray,
    "SPARSE_TENSOR": np.ndarray,
    "GRAPH": Graph,
}
"""What becomes of attributes of each kind."""


def attributes_of(
    node: Any, folder: Folder, given: Mapping[str, Any], graph: Callable[[Any], Any]
) -> dict[str, Any]:
    """The attributes of a ``NodeProto`` by name.

    Parameters
    ----------
    node : onnx.NodeProto
        The node.
    folder : Folder
        Where files with external data are.
    given : mapping of str
        The attributes of the function that the node is in.
    graph : callable
        What becomes of a ``GraphProto``.

    Raises
    ------
    LayoutError
        An attribute has no kind that there is, or comes twice.
    """
    made: dict[str, Any] = {}
    for attribute in node.attribute:
        name = attribute.name
        if name in made:
            raise LayoutError(f"attribute {name!r} is given twice")
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                made[name] = given[attribute.ref_attr_name]
            continue  # the function was called without: the operator's own default
        made[name] = _value(attribute, folder, graph)
    return made


def check_kinds(attributes: Mapping[str, Any], schema: Any, version: int) -> None:
    """Refuse attributes of other kinds than an operator has.

    Parameters
    ----------
    attributes : mapping of str
        As :func:`attributes_of` makes them.
    schema : onnx.defs.OpSchema
        What the onnx package says of the operator.
    version : int
        Of the operators, for the message.

    Raises
    ------
    LayoutError
        One is of another kind, or missing.
    """
    for name, known in schema.attributes.items():
        value = attributes.get(name)
        kind = PYTHON.get(known.type.name)
        if value is None:
            if known.required and name != "consumed_inputs":  # advice about memory
                raise LayoutError(f"{schema.name} needs the attribute {name!r} in version {version}")
        elif kind is not None and not _is_of(value, kind, known.type.name.endswith("S")):
            raise LayoutError(f"the attribute {name!r} must be {known.type.name}, got {described(value)}")


def _is_of(value: Any, kind: type, several: bool) -> bool:
    if several:
        return isinstance(value, tuple) and all(type(one) is kind for one in value)
    return isinstance(value, kind)


def _value(attribute: Any, folder: Folder, graph: Callable[[Any], Any]) -> Any:
    field = KINDS.get(attribute.type) if attribute.type else _only_field(attribute)
    value: Any = getattr(attribute, field) if field else None
    if field in ("f", "i", "tp"):
        return value
    if field in ("floats", "ints"):
        return tuple(value)
    if field == "s":
        return _text(value, attribute.name)
    if field == "strings":
        return tuple(_text(one, attribute.name) for one in value)
    if field == "t":
        return array_of(value, folder)
    if field == "sparse_tensor":
        return dense(value, folder)
    if field == "g":
        return graph(value)
    if field == "tensors":
        return tuple(array_of(one, folder) for one in value)
    raise LayoutError(f"attribute {attribute.name!r} is of kind {attribute.type}, which no operator has")


def _only_field(attribute: Any) -> str | None:
    """The first versions of the format did not say which field is in use."""
    single = [field for field in ("f", "i", "s", "t", "g") if attribute.HasField(field)]
    several = [field for field in ("floats", "ints", "strings") if len(getattr(attribute, field))]
    found = single + several
    return found[0] if len(found) == 1 else None


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise LayoutError(f"attribute {name!r} is not UTF-8: {data!r:.60}") from None
