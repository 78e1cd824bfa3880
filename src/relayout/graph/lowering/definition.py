"""Nodes that no kernel does: their definitions in NumPy, called in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.ways import Way
from relayout.graph.operators import OPERATORS
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.custom import CALL_SECONDS, Custom

if TYPE_CHECKING:
    from relayout.graph.graph import Node
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__ = ["Defined", "defined"]

DEFINED = 1e8  # elements that NumPy reads or writes in a second


class Defined:
    """An operator's definition with its attributes and its constants: a function of what moves."""

    def __init__(
        self, operator: str, attributes: Mapping[str, Any], given: tuple[Any, ...], outputs: int
    ) -> None:
        self.operator, self.attributes = operator, dict(attributes)
        self.given, self.outputs = given, outputs

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """The results for arrays; a number among what is given says which of them stands there."""
        if not all(0 <= one < len(arrays) for one in self.given if isinstance(one, int)):
            raise LayoutError(f"{self.operator} is given {len(arrays)} arrays, and reads others")
        inputs = (arrays[one] if isinstance(one, int) else one for one in self.given)
        return OPERATORS[self.operator](*inputs, outputs=self.outputs, **self.attributes)


def defined(case: Case, node: Node, read: tuple[Operand | None, ...]) -> Way:
    """The way that every node has: arrays of NumPy in, arrays of NumPy out.

    ``read`` are the inputs of the node itself, which may be a fused one.
    """
    moving = {one.name: one for one in read if one is not None and one.data is None}
    places = {name: k for k, name in enumerate(moving)}
    given = tuple(None if one is None else places[one.name] if one.data is None else one.data for one in read)
    outputs = {f"dst{k}": one for k, one in enumerate(case.outputs) if one.name}
    dense = {name: row_major(one.dims, one.dtype) for name, one in outputs.items()}
    inputs = {f"src{k}": one for k, one in enumerate(moving.values())}
    booleans = tuple(name for name, one in {**inputs, **outputs}.items() if one.kind.kind == "b")
    function = Defined(node.operator, node.attributes, given, len(case.outputs))
    chosen = [int(name[3:]) for name in outputs]

    def make(site: Site) -> tuple[Value, ...]:
        values = [site.value(one) for one in moving.values()]
        descs = {name: value.desc for name, value in zip(inputs, values, strict=True)}
        made = Custom(Picked(function, chosen), descs, dense, booleans=booleans, kind=node.operator)
        several = site.add_several(made, *values)
        whole = iter(several)
        return tuple(next(whole) if one.name else several[0] for one in case.outputs)

    formats: dict[str, MemoryDesc] = {one.name: case.formats(one)[0] for one in moving.values()}
    elements = sum(desc.nbytes for desc in (*formats.values(), *dense.values())) / 4
    targets = tuple(row_major(one.dims, one.dtype) for one in case.outputs)
    return Way(formats, targets, CALL_SECONDS + elements / DEFINED, make, "NumPy")


class Picked:
    """Some of the results of a function."""

    def __init__(self, function: Defined, places: list[int]) -> None:
        self.function, self.places = function, places

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Those results."""
        made = self.function(*arrays)
        return tuple(made[k] for k in self.places)
