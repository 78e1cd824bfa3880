"""Graphs while they are made: names, nodes, constants, and what rewriting rules see of them.

``Body``
    A :class:`~relayout.graph.graph.Graph` that grows, node by node, in an order in which they can run.
``Scope``
    Names of a source, and the values of a body that they stand for. A graph has one; so has each call of a
    function, whose nodes become nodes of the same body. A scope within another one may use its values: what
    an inner graph uses of the graph around it becomes further inputs of it (its *captures*), and constants
    are simply constants of both.
``Call``
    A node as it was read, in the meaning of some version of its operator.
``Writer``
    What a rule that rewrites a call may do: add nodes and constants, ask what is known of a value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.graph.graph import Dims, Graph, Node, Value, fresh
from relayout.graph.inference import facts_of
from relayout.graph.operators import Fact

__all__ = ["Body", "Call", "Scope", "Writer"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Call:
    """A node with the names of values of the body that it is for.

    Attributes
    ----------
    operator : str
        With its domain in front, unless it is ONNX's own.
    version : int
        Of the operator set.
    inputs, outputs : tuple of str
        Values; ``""`` for what is left out.
    attributes : mapping of str
        As :func:`relayout.importers.onnx.attributes.attributes_of` has them.
    name : str
        The node's.
    """

    operator: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def but(self, *without: str, **changes: Any) -> Call:
        """With other inputs, outputs, operator or version; ``attributes`` are added, those named removed."""
        added = changes.pop("attributes", {})
        kept = {name: value for name, value in self.attributes.items() if name not in without}
        return replace(self, attributes={**kept, **added}, **changes)

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attributes.get(name, default)

    def input(self, index: int) -> str:
        """An input, or ``""`` where there are not so many."""
        return self.inputs[index] if index < len(self.inputs) else ""


class Body:
    """A graph that is being made.

    Parameters
    ----------
    taken : iterable of str
        Names that the source uses, so that none is made up that comes later.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Value] = {}
        self.captured: dict[str, str] = {}
        """The own names of values of the graph around this one, by their names there."""
        self.defaults: dict[str, Value] = {}
        """Inputs that have a value in the file, by name: those whose value no rule has looked at may have
        another one in a run."""
        self._looked: set[str] = set()
        self._taken = set(taken)
        self._facts: dict[str, Fact] = {}
        self._inferred = 0

    def fresh(self, name: str) -> str:
        """A name that nothing has yet, this one if possible."""
        return fresh(name, self._taken)

    def constant(self, data: Array, name: str) -> str:
        """Add a constant."""
        made = self.fresh(name)
        self.constants[made] = data
        return made

    def fact(self, name: str) -> Fact:
        """What is known of a value; nodes that came since the last question are looked at now."""
        if name in self.constants:
            self.looked_at(name)
            data = self.constants[name]
            return Fact(data.shape, data.dtype, data)
        if not self._inferred:
            self._facts |= {value.name: Fact(value.dims, value.dtype) for value in self.inputs}
        while self._inferred < len(self.nodes):
            node = self.nodes[self._inferred]
            self._inferred += 1
            self._facts |= facts_of(node, self._known)
        return self._known(name)

    def looked_at(self, name: str) -> None:
        """Note that the graph depends on the value of a constant."""
        self._looked.add(name)

    def _known(self, name: str) -> Fact:
        if name in self.constants:
            data = self.constants[name]
            if data.dtype.kind in "iu":  # perhaps dims, which decide those of other values
                self.looked_at(name)
            return Fact(data.shape, data.dtype, data)
        found, said = self._facts.get(name, Fact()), self.values.get(name)
        if said is not None and (found.dims is None or found.dtype is None):
            return Fact(
                said.dims if found.dims is None else found.dims,
                said.dtype if found.dtype is None else found.dtype,
                found.data,
            )
        return found

    def graph(self, outputs: tuple[str, ...], name: str) -> Graph:
        """The graph as it stands."""
        made = {one for node in self.nodes for one in node.outputs}
        known = {key: value for key, value in self.values.items() if key in made}
        read = {one for node in self.nodes for one in node.inputs} | set(outputs)
        defaults = {
            name: value if name in read and name not in self._looked else None
            for name, value in self.defaults.items()
        }
        inputs, nodes = tuple(self.inputs), tuple(self.nodes)
        return Graph(inputs, outputs, nodes, self.constants, known, name, defaults)


class Scope:
    """What names of the source stand for.

    Parameters
    ----------
    body : Body
        Where nodes go.
    opsets : mapping of str to int
        The version of each domain.
    outer : Scope, optional
        The scope around that of an inner graph.
    attributes : mapping of str, optional
        Those of the function that is being called.
    results : mapping of str to str, optional
        Names of values that are given: the outputs of a function.
    calls : tuple of str
        The functions that are being called.
    """

    def __init__(
        self,
        body: Body,
        opsets: Mapping[str, int],
        outer: Scope | None = None,
        attributes: Mapping[str, Any] | None = None,
        results: Mapping[str, str] | None = None,
        calls: tuple[str, ...] = (),
    ) -> None:
        self.body = body
        self.opsets = opsets
        self.outer = outer
        self.attributes = attributes or {}
        self.results = results
        self.calls = calls
        self.names: dict[str, str] = {}

    def define(self, name: str) -> str:
        """The value for a name that a node, an input or a constant defines here.

        Raises
        ------
        LayoutError
            It is defined already.
        """
        if not isinstance(name, str):
            raise LayoutError(f"the name of a value is not UTF-8: {name!r:.60}")
        if name in self.names:
            raise LayoutError(f"the value {name!r} is defined twice")
        if self.results is None:  # a graph: its names were set aside
            made = name
        else:
            made = self.results.get(name) or self.body.fresh(name)
        self.names[name] = made
        return made

    def find(self, name: str) -> str:
        """The value that a name stands for; a LayoutError where there is none."""
        found = self.known(name)
        if found is None:
            raise LayoutError(f"nothing computes {name!r}, which is read here")
        return found

    def known(self, name: str) -> str | None:
        """The value that a name stands for, if there is one."""
        if name in self.names or not name:
            return self.names.get(name, "")
        outer = self.outer.known(name) if self.outer is not None else None
        if not outer or self.outer is None:
            return outer
        around, body = self.outer.body, self.body
        own = name if self.results is None else body.fresh(name)  # a graph's names were set aside
        if outer in around.constants:
            made = own
            body.constants[made] = around.constants[outer]
            around.looked_at(outer)
        elif outer in body.captured:
            made = body.captured[outer]
        else:
            made = body.captured[outer] = own
            fact = around.fact(outer)
            body.values[made] = Value(made, fact.dims, fact.dtype)
        self.names[name] = made
        return made


class Writer:
    """Adds nodes to a body on behalf of one call.

    Parameters
    ----------
    body : Body
        Where nodes go.
    call : Call
        What is being rewritten: its name is theirs, its output gives names to values between.
    """

    def __init__(self, body: Body, call: Call) -> None:
        self._body = body
        self._source = call
        self._hint = next((name for name in call.outputs if name), call.operator)

    def add(
        self, operator: str, *inputs: str, into: str | tuple[str, ...] = "", count: int = 1, **attributes: Any
    ) -> Any:
        """A node of the newest meaning; the name of its output, or a tuple where several are asked for.

        Parameters
        ----------
        operator : str
            Which.
        inputs : str
            Values.
        into : str or tuple of str
            The names of its outputs, where they are given.
        count : int
            How many outputs are made where they are not.
        """
        outputs = (into,) if isinstance(into, str) else into
        if not any(outputs):
            outputs = tuple(self._body.fresh(f"{self._hint}:{operator}") for _ in range(count))
        given = inputs
        while given and not given[-1]:
            given = given[:-1]
        self._body.nodes.append(Node(operator, given, outputs, attributes, self._source.name))
        return outputs[0] if len(outputs) == 1 else outputs

    def constant(self, data: Any, dtype: Any = np.int64) -> str:
        """A constant, of int64 unless something else is said."""
        return self._body.constant(np.asarray(data, dtype), f"{self._hint}:constant")

    def like(self, number: float, name: str) -> str:
        """A number as a scalar in the data type of a value."""
        dtype = self.dtype(name)
        if dtype is None:
            return str(self.add("CastLike", self.constant(number, np.float32), name))
        return self.constant(number, dtype)

    def shape(self, name: str, start: int = 0, end: int | None = None) -> str:
        """The sizes of a value, or of some of its axes."""
        dims = self.dims(name)
        if dims is not None and all(type(n) is int for n in dims[start:end]):
            return self.constant(dims[start:end])
        given: dict[str, Any] = {"start": start} if end is None else {"start": start, "end": end}
        return str(self.add("Shape", name, **given))

    def rank_of(self, name: str) -> str:
        """The number of axes of a value, as a list of one number."""
        rank = self.rank(name)
        return self.constant([rank]) if rank is not None else str(self.add("Shape", self.add("Shape", name)))

    def dims(self, name: str) -> Dims | None:
        """The sizes of a value as far as they are known."""
        return self._body.fact(name).dims

    def rank(self, name: str) -> int | None:
        """The number of axes, if known."""
        dims = self.dims(name)
        return None if dims is None else len(dims)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The data type, if known."""
        return self._body.fact(name).dtype

    def data(self, name: str) -> Array | None:
        """The value itself, where it is a constant."""
        return self._body.fact(name).data if name else None

    def is_empty(self, name: str) -> bool:
        """Whether an input is left out, or a tensor that is known to have no elements."""
        dims = self.dims(name) if name else (0,)
        return dims is not None and all(type(n) is int for n in dims) and not math.prod(map(int, dims))  # type: ignore[arg-type]
