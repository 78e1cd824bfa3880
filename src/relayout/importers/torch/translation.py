"""A program taken apart, node after node, into a graph.

Nodes of the program become values of the graph, under the same names. What only renames, such as ``clone``,
becomes no node: its readers read what it reads. Everything that can't be translated is collected and refused
at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.graph.graph import Array, Dims, Graph, Node, Value
from relayout.importers.torch.call import Call, Writer
from relayout.importers.torch.operators import IGNORED, TABLE

__all__ = ["Parts", "Untranslatable", "operator_of", "translated", "unknown"]

SYMBOL: Final = re.compile(r"\b[su]\d+\b")
"""PyTorch's name of a size that is not known, also within an expression such as ``2*s77``."""

KINDS: Final = {"int": "int64", "float": "float64", "bool": "bool"}
"""Data types of numbers and symbolic numbers, whose class is called ``SymInt`` and so on."""


class Untranslatable(Unsupported):
    """What can't be translated, all of it.

    Attributes
    ----------
    reasons : dict of str to str
        Why, for each node by its name; empty: its operator has no translation.
    """

    def __init__(self, refused: Mapping[str, Sequence[tuple[str, str]]]) -> None:
        super().__init__(_told(refused))
        self.reasons = {name: reason for found in refused.values() for name, reason in found}


@dataclass(frozen=True, eq=False)
class Parts:
    """What a graph is made of.

    Attributes
    ----------
    inputs : tuple
        The placeholders that a run is given.
    weights : mapping
        The other placeholders, each with its name in the state dict and its data.
    learned : frozenset of str
        Which of them are parameters.
    nodes : tuple
        The program's nodes in their order, placeholders and the output left out.
    outputs : tuple
        What the program returns: nodes, and numbers.
    names : tuple of str or None
        How the outputs are called, as far as they have names.
    sizes : mapping of str to str
        The names of symbolic sizes, by PyTorch's symbol.
    """

    inputs: tuple[Any, ...]
    weights: Mapping[Any, tuple[str, Array]]
    nodes: tuple[Any, ...]
    outputs: tuple[Any, ...]
    names: tuple[str | None, ...] = ()
    sizes: Mapping[str, str] = field(default_factory=dict)
    learned: frozenset[str] = frozenset()


def operator_of(node: Any) -> str:
    """The name of a node's operator in the table.

    >>> from types import SimpleNamespace as Some
    >>> import operator
    >>> operator_of(Some(target=operator.add))
    '_operator.add'
    """
    target = node.target
    if getattr(target, "_schema", None) is not None or not hasattr(target, "__name__"):
        return str(target)
    module = getattr(target, "__module__", "") or ""
    return f"{'torch' if module.startswith('torch') else module}.{target.__name__}"


def unknown(nodes: Iterable[Any]) -> list[Any]:
    """The nodes that there is no translation for."""
    known = {*TABLE, *IGNORED, "_operator.getitem"}
    return [node for node in nodes if operator_of(node) not in known]


def _is_getitem(node: Any) -> bool:
    return operator_of(node) == "_operator.getitem"


def translated(parts: Parts) -> Graph:
    """The graph.

    Raises
    ------
    Untranslatable
        Operators without a translation, or used in a way that it does not cover: all of them, each with the
        names of its nodes.
    """
    return _Translation(parts).graph()


class _Translation:
    """The state of one translation: what each node of the program has become."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.writer = Writer({node.name for node in (*parts.inputs, *parts.nodes)})
        self.made: dict[Any, Any] = {}
        self.refused: dict[str, list[tuple[str, str]]] = {}

    def graph(self) -> Graph:
        inputs = tuple(facts(node)[0] for node in self.parts.inputs)
        self.made.update(zip(self.parts.inputs, inputs, strict=True))
        learned = []
        for node, (name, data) in self.parts.weights.items():
            free = self.writer.fresh(name)
            self.writer.constants[free] = data
            self.made[node] = Value(free, data.shape, data.dtype)
            if name in self.parts.learned:
                learned.append(free)
        for node in unknown(self.parts.nodes):
            self.refused.setdefault(operator_of(node), []).append((node.name, ""))
        for node in self.parts.nodes:
            self.node(node)
        if self.refused:
            raise Untranslatable(self.refused)
        outputs = self.outputs()
        self.name_sizes()
        inputs = tuple(self.sized(value) for value in inputs)
        nodes = _needed(self.writer.nodes, outputs)
        read = {name for node in nodes for name in node.inputs} | set(outputs)
        written = {name for node in nodes for name in node.outputs}
        return Graph(
            inputs,
            outputs,
            nodes,
            {name: data for name, data in self.writer.constants.items() if name in read},
            {name: value for name, value in self.writer.values.items() if name in written},
            parameters=tuple(name for name in learned if name in read),
        )

    def node(self, node: Any) -> None:
        """Translate one node, or note why not; then only its facts are known to those that read it."""
        operator = operator_of(node)
        if operator in IGNORED:
            return
        if _is_getitem(node):
            source, index = node.args
            self.made[node] = self.made[source][index]
            return
        results = facts(node)
        translate = TABLE.get(operator)
        several = isinstance(node.meta.get("val"), (list, tuple))
        self.made[node] = results if several else results[0]
        if translate is None:
            return
        users = {user.args[1]: user for user in node.users if _is_getitem(user)} if several else {0: node}
        used = tuple(index in users and bool(users[index].users) for index in range(len(results)))
        call = Call(self.writer, node.name, operator, results, used, partial(_is_contiguous, node))
        first = len(self.writer.nodes)
        try:
            made = translate(call, *(self.argument(one) for one in _arguments(node)))
        except Exception as error:  # other versions of PyTorch may have other arguments
            reason = str(error) if isinstance(error, LayoutError) else f"{type(error).__name__}: {error}"
            self.refused.setdefault(operator, []).append((node.name, reason))
            return
        names = [
            users[index].name if index in users else self.writer.fresh(f"{node.name}.{index}")
            for index in range(len(results))
        ]
        self.made[node] = self.named(made if isinstance(made, tuple) else (made,), results, names, first)
        if not several:
            (self.made[node],) = self.made[node]

    def named(
        self, made: Sequence[Any], results: Sequence[Value], names: Sequence[str], first: int
    ) -> tuple[Any, ...]:
        """What a translation returned, where it wrote it under the names that the program has."""
        fresh = {name for node in self.writer.nodes[first:] for name in node.outputs}
        renamed: dict[str, str] = {}
        final: list[Any] = []
        for value, result, name in zip(made, results, names, strict=False):
            if isinstance(value, Value) and value.name in fresh and value.name not in renamed:
                renamed[value.name] = name
                value = replace(result, name=name)
                self.writer.values[name] = value
            elif isinstance(value, Value) and value.name in renamed:
                value = replace(result, name=renamed[value.name])
            elif isinstance(value, Value):
                value = Value(value.name, result.dims, result.dtype)
            final.append(value)
        for place in range(first, len(self.writer.nodes)):
            node = self.writer.nodes[place]
            inputs = tuple(renamed.get(one, one) for one in node.inputs)
            outputs = tuple(renamed.get(one, one) for one in node.outputs)
            self.writer.nodes[place] = replace(node, inputs=inputs, outputs=outputs)
        return tuple(final)

    def argument(self, given: Any) -> Any:
        """An argument as translations want it."""
        if isinstance(given, (list, tuple)):
            return [self.argument(one) for one in given]
        if type(given).__name__ == "Node":
            return self.made[given]
        if type(given).__name__ == "dtype":
            return numpy_dtype(given)
        return given

    def outputs(self) -> tuple[str, ...]:
        """The names of what is returned: each computed by a node, and each another one."""
        names: list[str] = []
        called: dict[str, str] = {}
        computed = {name for node in self.writer.nodes for name in node.outputs}
        wanted = self.parts.names or (None,) * len(self.parts.outputs)
        for given, own in zip(self.parts.outputs, wanted, strict=True):
            value = self.argument(given)
            if not isinstance(value, Value):
                value = self.writer.constant(str(value), np.array(value))
            if value.name not in computed or value.name in names:
                name = self.writer.fresh(own or f"output.{len(names)}")
                self.writer.nodes.append(Node("Identity", (value.name,), (name,)))
                value = self.writer.values[name] = replace(value, name=name)
            elif own is not None and own != value.name:
                called[value.name] = own
            names.append(value.name)
        final: dict[str, str] = {}
        for name, own in called.items():
            free = own not in final.values() and (own in computed or own not in self.writer.taken)
            final[name] = own if free else self.writer.fresh(own)
            self.writer.taken.add(own)
        for own in set(final.values()) & computed - set(final):  # a value inside, which has to give way
            final[own] = self.writer.fresh(own)
        self.writer.rename(final)
        return tuple(final.get(name, name) for name in names)

    def sized(self, value: Value) -> Value:
        """A value whose symbolic sizes have their names."""
        if value.dims is None or not self.parts.sizes:
            return value
        dims = tuple(SYMBOL.sub(self._size, n) if isinstance(n, str) else n for n in value.dims)
        return replace(value, dims=dims)

    def _size(self, found: re.Match[str]) -> str:
        return self.parts.sizes.get(found[0], found[0])

    def name_sizes(self) -> None:
        """Give symbolic sizes of all values their names."""
        self.writer.values.update((name, self.sized(value)) for name, value in self.writer.values.items())


def _needed(nodes: Sequence[Node], outputs: Iterable[str]) -> tuple[Node, ...]:
    """Those that an output depends on."""
    wanted = set(outputs)
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return tuple(reversed(kept))


def _told(refused: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The error about everything that is refused."""
    lines = []
    for operator, found in refused.items():
        reasons: dict[str, list[str]] = {}
        for name, reason in found:
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            lines.append(f"{operator}{f' ({reason})' if reason else ''} at {', '.join(names)}")
    return "this program has what can't be translated: " + "; ".join(lines)


def _arguments(node: Any) -> list[Any]:
    """All arguments of a node in the order of its operator's schema, with defaults."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return [*node.args, *node.kwargs.values()]
    return [
        node.args[place] if place < len(node.args) else node.kwargs.get(one.name, one.default_value)
        for place, one in enumerate(schema.arguments)
    ]


def _is_contiguous(node: Any) -> bool:
    """Whether the first argument lies in memory in the order of its axes."""
    value: Any = getattr(node.args[0], "meta", {}).get("val") if node.args else None
    return hasattr(value, "is_contiguous") and value.is_contiguous() and value.storage_offset() == 0


def facts(node: Any) -> tuple[Value, ...]:
    """What is known of the results of a node of the program."""
    value = node.meta.get("val")
    return tuple(_fact(node.name, one) for one in (value if isinstance(value, (list, tuple)) else (value,)))


def _fact(name: str, value: Any) -> Value:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return Value(name, _dims(value.shape), numpy_dtype(value.dtype))
    kind = KINDS.get(type(value).__name__.removeprefix("Sym").lower())
    return Value(name, (), None if kind is None else np.dtype(kind))


def _dims(shape: Iterable[Any]) -> Dims:
    """Sizes as numbers, and as text where they are symbolic."""
    return tuple(size if isinstance(size, int) else _size(size) for size in shape)


def _size(size: Any) -> int | str:
    number = size.node.maybe_as_int()
    return str(size) if number is None else int(number)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """NumPy's or ml_dtypes' type of the same name as PyTorch's.

    Raises
    ------
    Unsupported
        Neither has it.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError:
        raise Unsupported(f"the data type {dtype} of PyTorch is not known here") from None
