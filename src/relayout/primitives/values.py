"""The values of a sequence, and the primitives between them: what a sequence is built of, as plain data.

Building (:mod:`relayout.primitives.sequence`), laying out (:mod:`relayout.primitives.schedule`) and running
(:mod:`relayout.primitives.runner`) share these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.primitive import Primitive
from relayout.records import dataclass, field
from relayout.tensor import Tensor

__all__ = ["Memories", "Node", "Nodes", "Value", "origin", "signature"]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that a sequence will have when it runs.

    Attributes
    ----------
    desc : MemoryDesc
        What it is.
    name : str
        What the layer that makes it is called.
    number : int
        Its place among the values of the sequence.
    """

    desc: MemoryDesc
    name: str
    number: int

    def __repr__(self) -> str:
        return f"Value({self.name!r}, {str(self.desc)!r})"


@dataclass(frozen=True)
class Node:
    """One primitive with its arguments, in exactly the descriptors that it wants."""

    name: str
    primitive: Primitive
    arguments: Mapping[str, Value]
    """By name; that of an output is what its result is added to."""
    results: Mapping[str, Value]
    """By the names of the primitive's outputs."""


@dataclass(eq=False, repr=False)
class Nodes:
    """Primitives in the order in which they are run, and the values between them.

    Attributes
    ----------
    nodes : list of Node
        Primitives, reorders between them included.
    inputs, outputs : list of Value
        What a run is given, and what it returns.
    constants : dict of int to Tensor
        The tensors of constant values, by number, not yet in the value's descriptor.
    bases : dict of int to Value
        For a value that is another one under other dims, that other one.
    """

    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    bases: dict[int, Value] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({signature(self.inputs, self.outputs, len(self.nodes))})"


class Memories:
    """What values hold while a sequence is gone through by definitions: logical arrays in double precision.

    Values that are views of another one, or have their place in one, share an array of its elements in the
    order of memory.
    """

    def __init__(self, bases: Mapping[int, Value]) -> None:
        self._bases = bases
        self._arrays: dict[int, NDArray[np.float64]] = {}
        self._flat = {}
        for value in bases.values():
            whole = origin(value, bases)
            self._flat[whole.number] = np.zeros(_elements(whole.desc))

    def read(self, value: Value) -> NDArray[np.float64]:
        """The logical array of a value."""
        flat = self._flat.get(origin(value, self._bases).number)
        return self._arrays[value.number] if flat is None else flat[_places(value.desc)]

    def write(self, value: Value, made: NDArray[np.float64]) -> None:
        """Note the logical array of a value."""
        flat = self._flat.get(origin(value, self._bases).number)
        if flat is None:
            self._arrays[value.number] = made
        else:
            flat[_places(value.desc)] = made


def origin(value: Value, bases: Mapping[int, Value]) -> Value:
    """The value that another one is a view of, or has its place in; itself, if it is none."""
    while value.number in bases:
        value = bases[value.number]
    return value


def _elements(desc: MemoryDesc) -> int:
    return 8 * max(desc.required_bytes, desc.nbytes) // desc.dtype.bits


def _places(desc: MemoryDesc) -> NDArray[np.int64]:
    """Where each element lies, in elements."""
    layout: Any = desc.layout
    return np.asarray(layout.offsets(np.moveaxis(np.indices(desc.dims), 0, -1)))


def signature(inputs: Sequence[Value], outputs: Sequence[Value], steps: int) -> str:
    """What is given, what comes out, and in how many steps, on one line."""

    def side(values: Sequence[Value]) -> str:
        return ", ".join(f"{value.name} {value.desc}" for value in values) or "nothing"

    return f"{side(inputs)} -> {side(outputs)}, steps: {steps}"
