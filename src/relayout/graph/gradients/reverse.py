"""One node while it is differentiated, and the table of the rules that do it.

Reverse mode goes through a graph from its end. For each node there is the gradient of each output, and a
rule turns these into gradients of the inputs, by appending nodes:

* :class:`Writing` has the nodes that were appended, and finds out dims and data types of their results at
  once, since the next rule may depend on them;
* :class:`Reverse` is what a rule gets: the node, its gradients, which inputs' gradients are wanted, and short
  ways to write what most rules need. What was repeated by broadcasting is summed up again
  (:meth:`Reverse.summed`), since each of the copies has its share of the gradient;
* :data:`RULES` has the rule of each operator, entered by :func:`gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.graph import Array, Node, Value, fresh
from relayout.graph.inference import facts_of
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.registry import Fact

__all__ = ["RULES", "Reverse", "Rule", "Writing", "gradient"]


class Writing:
    """Nodes that are appended to a graph, and what is known of their results.

    Parameters
    ----------
    values : mapping of str to Value
        What is known of the values that there are.
    constants : mapping of str to ndarray
        Those of them that are constants.
    """

    def __init__(self, values: Mapping[str, Value], constants: Mapping[str, Array]) -> None:
        self.nodes: list[Node] = []
        self.label = "gradient"  # what new values are called after
        self.values, self.constants = dict(values), dict(constants)
        self._taken = set(self.values) | set(self.constants)
        self._known: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def __call__(
        self, operator: str, *inputs: str, outputs: int = 1, label: str = "", **attributes: Any
    ) -> Any:
        """Append a node; the name of its result, or a tuple of several."""
        label = label or f"{self.label}/{operator.rpartition('.')[2]}"
        made = tuple(fresh(label, self._taken) for _ in range(outputs))
        self.append(Node(operator, inputs, made, attributes, made[0]))
        return made[0] if outputs == 1 else made

    def names(self, label: str, wanted: Sequence[bool]) -> tuple[str, ...]:
        """New names for some of several values."""
        return tuple(fresh(label, self._taken) if one else "" for one in wanted)

    def append(self, node: Node) -> None:
        """Append a node that has its names."""
        facts = facts_of(node, self.fact)
        for name in filter(None, node.outputs):
            fact = facts.get(name, Fact())
            self.values[name] = Value(name, fact.dims, fact.dtype)
            self._taken.add(name)
        self.nodes.append(node)

    def renamed(self, name: str, wanted: str) -> str:
        """The same value under a name of its own."""
        made = fresh(wanted, self._taken)
        self.append(Node("Identity", (name,), (made,), {}, made))
        return made

    def unused(self, label: str) -> str:
        """A name that no value has."""
        return fresh(label, self._taken)

    def fact(self, name: str) -> Fact:
        """What is known of a value."""
        data = self.constants.get(name)
        if data is not None:
            return Fact(data.shape, data.dtype, data)
        value = self.values.get(name)
        return Fact() if value is None else Fact(value.dims, value.dtype)

    def dims(self, name: str) -> tuple[int, ...]:
        """The dims of a value.

        Raises
        ------
        LayoutError
            They are not all known.
        """
        dims = self.fact(name).dims
        if dims is None or not all(isinstance(n, int) for n in dims):
            raise LayoutError(
                f"the dims of {name!r} are not known, but its gradient depends on them; give them: batch=..."
            )
        return tuple(n for n in dims if isinstance(n, int))

    def dtype(self, name: str) -> np.dtype[Any]:
        """The data type of a value."""
        found = self.fact(name).dtype
        if found is None:
            raise LayoutError(f"the data type of {name!r} is not known")
        return found

    def constant(self, data: Any) -> str:
        """A constant; equal ones are one."""
        made = np.asarray(data)
        key = str(made.dtype), made.tobytes(), made.shape
        if key not in self._known:
            name = fresh("gradient/constant", self._taken)
            self.constants[name] = made
            self._known[key] = name
        return self._known[key]

    def number(self, number: float, like: str) -> str:
        """A number in the data type of a value."""
        return self.constant(np.asarray(number, self.dtype(like)))

    def integers(self, *numbers: int) -> str:
        """Axes or sizes."""
        return self.constant(np.asarray(numbers, np.int64))

    def zeros(self, like: str) -> str:
        """Zeros of the dims and the data type of a value."""
        return self.constant(np.zeros(self.dims(like), self.dtype(like)))


class Reverse:
    """A node, the gradients of its outputs, and what appends nodes.

    Called with an operator, inputs and attributes it appends a node and returns the name of the result.

    Attributes
    ----------
    node : Node
        What is differentiated.
    gradients : tuple of str or None
        Of its outputs; None: the loss does not depend on that one.
    wanted : tuple of bool
        Of which inputs gradients are wanted.
    attributes : mapping
        With defaults.
    """

    def __init__(
        self, writing: Writing, node: Node, gradients: Sequence[str | None], wanted: Sequence[bool]
    ) -> None:
        self.writing, self.node = writing, node
        self.gradients, self.wanted = tuple(gradients), tuple(wanted)
        self.attributes = {**OPERATORS[node.operator].attributes, **node.attributes}

    def __call__(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; the name of its result, or a tuple of several."""
        label = f"gradient/{self.node.outputs[0]}/{operator.rpartition('.')[2]}"
        return self.writing(operator, *inputs, outputs=outputs, label=label, **attributes)

    def some(self, operator: str, wanted: Sequence[bool], *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Append a node some of whose outputs are wanted; the others have no names."""
        last = max(k for k, one in enumerate(wanted) if one)
        label = f"gradient/{self.node.outputs[0]}/{operator.rpartition('.')[2]}"
        names = self.writing.names(label, wanted[: last + 1])
        self.writing.append(Node(operator, inputs, names, attributes, label))
        return names + ("",) * (len(wanted) - len(names))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of the node."""
        return self.node.inputs

    @property
    def x(self) -> str:
        """The first input."""
        return self.node.inputs[0]

    @property
    def y(self) -> str:
        """The first output."""
        return self.node.outputs[0]

    @property
    def dy(self) -> str:
        """The gradient of the first output.

        Raises
        ------
        LayoutError
            The loss depends on another output only.
        """
        found = self.gradients[0]
        if found is None:
            raise LayoutError(
                f"there is no gradient of {self.node.outputs[1:]}, outputs of {self.node.operator}"
            )
        return found

    def input(self, place: int) -> str:
        """An input; empty: it is left out."""
        return self.node.inputs[place] if place < len(self.node.inputs) else ""

    def wants(self, place: int) -> bool:
        """Whether the gradient of an input is wanted."""
        return place < len(self.wanted) and self.wanted[place]

    def dims(self, name: str) -> tuple[int, ...]:
        """The dims of a value."""
        return self.writing.dims(name)

    def data(self, place: int) -> Array:
        """An input that must be a constant, such as axes.

        Raises
        ------
        LayoutError
            It is none.
        """
        name = self.input(place)
        if name not in self.writing.constants:
            raise LayoutError(f"{self.node.operator} has a gradient where {name!r} is a constant")
        return self.writing.constants[name]

    def whole_numbers(self, place: int) -> tuple[int, ...] | None:
        """The numbers of a constant input; None: it is left out."""
        return tuple(int(n) for n in self.data(place).reshape(-1)) if self.input(place) else None

    def number(self, number: float) -> str:
        """A number in the data type of the first input."""
        return self.writing.number(number, self.x)

    def integers(self, *numbers: int) -> str:
        """Axes or sizes."""
        return self.writing.integers(*numbers)

    def times(self, x: str, number: float) -> str:
        """A value times a number."""
        return x if number == 1 else self._named(self("Mul", x, self.writing.number(number, x)))

    def reshaped(self, x: str, dims: Sequence[int]) -> str:
        """A value under other dims; itself, if it has them."""
        if self.dims(x) == tuple(dims):
            return x
        return self._named(self("Reshape", x, self.integers(*dims), allowzero=1))

    def broadcast(self, x: str, like: str) -> str:
        """A value with the dims of another one, elements repeated."""
        return (
            x
            if self.dims(x) == self.dims(like)
            else self._named(self("Expand", x, self.integers(*self.dims(like))))
        )

    def sum(self, x: str, axes: Sequence[int], keepdims: int = 0) -> str:
        """The sums over some axes."""
        if not axes:
            return x
        return self._named(self("ReduceSum", x, self.integers(*axes), keepdims=keepdims))

    def summed(self, x: str, like: str) -> str:
        """The gradient of what was broadcast from the dims of another value: sums over what was repeated."""
        dims, wanted = self.dims(x), self.dims(like)
        if dims == wanted:
            return x
        front = len(dims) - len(wanted)
        axes = [k for k, n in enumerate(dims) if k < front or (wanted[k - front] == 1 and n != 1)]
        return self.reshaped(self.sum(x, axes, 1), wanted)

    def transposed(self, x: str) -> str:
        """The last two axes in the other order."""
        rank = len(self.dims(x))
        order = (*range(rank - 2), rank - 1, rank - 2)
        return self._named(self("Transpose", x, perm=order))

    @staticmethod
    def _named(name: Any) -> str:
        return str(name)

    def size(self, axes: Sequence[int]) -> int:
        """How many elements of the first input lie along some axes."""
        dims = self.dims(self.x)
        return prod(dims[k] for k in axes)


Rule: TypeAlias = "Callable[[Reverse], Sequence[str | None] | str | None]"

RULES: Final[dict[str, Rule]] = {}
"""By operator."""


def gradient(*operators: str) -> Callable[[Rule], Rule]:
    """Enter a rule for some operators."""

    def enter(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, rule))
        return rule

    return enter
