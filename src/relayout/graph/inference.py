"""Dims and data types of all values of a network, and everything that is known once they are.

One sweep in the order of the nodes. For each node it asks the operator's rule what is known of its results
(:mod:`relayout.graph.operators.registry`), and computes them where all inputs are constants. Exporters leave
thousands of nodes that compute shapes, and weights that are computed from others: with the dims of the
inputs known, all of these become constants. An ``If`` whose condition is one becomes its branch, a short
``Loop`` its iterations.

>>> import numpy as np
>>> from relayout.graph.graph import Graph, Node, Value
>>> x = Value("x", ("batch", 3), np.dtype("float32"))
>>> shape, zero = Node("Shape", ("x",), ("s",)), Node("ConstantOfShape", ("s",), ("zero",))
>>> add = Node("Add", ("x", "zero"), ("y",))
>>> print(inferred(Graph((x,), ("y",), (shape, zero, add)), 2))
x f32 2x3
y = Add(x, zero)
-> y

What is left as it is: random numbers; results that are much larger than what they are made of; quantised
constants, which stay quantised; a loop that might run for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, counted, whole
from relayout.graph.graph import Dims, Graph, Node, Value, fresh
from relayout.graph.operators import OPERATORS, Fact

__all__ = ["facts_of", "inferred", "labelled", "with_dims"]

Array: TypeAlias = NDArray[Any]

RANDOM: Final = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
"""Each run has other numbers."""

QUANTISED: Final = frozenset(("DequantizeLinear",))
"""Constants behind these stay as small as they are."""

BRANCHES: Final = ("then_branch", "else_branch")

FOLDED_BYTES: Final = 1 << 29
"""Results of up to so many bytes are computed; larger ones where they are at most twice what they are made of
(weights)."""

REPEATING: Final = frozenset(("Expand", "Tile"))
REPEATED_BYTES: Final = 1 << 12
"""The same of constants that are only repeated."""

SWEPT: Final = "_swept"
"""Where a graph says that it is the result of a sweep: how that was done."""

FOLDED_IN_ALL: Final = 1 << 31, 4
"""Bytes that all results together may take, and how often those of the constants that there are: a short file
must not ask for all memory."""


def inferred(
    graph: Graph,
    dims: Mapping[str, Dims | int] | int | None = None,
    *,
    unroll: int = 0,
    keep: frozenset[str] = QUANTISED,
    repeat: bool = False,
) -> Graph:
    """The graph with the dims and data types of its values, and without what they make constant or dead.

    Parameters
    ----------
    graph : Graph
        Any.
    dims : int or mapping of str, optional
        A number: the batch, which is the first size of every input that leaves it open; where none does, of
        those that have the same one as the first input. A mapping: the dims of inputs by their names, and
        sizes by the names that they have as dims, such as ``{"batch": 8}``.
    unroll : int, optional
        A loop whose trip count is known becomes its iterations if they have so many nodes at most.
    keep : frozenset of str, optional
        Operators that are left alone even where all inputs are constants.
    repeat : bool, optional
        Constants that are only repeated are written out, however much larger that is. Before a graph is
        optimised they aren't: most of their readers broadcast anyway.

    Returns
    -------
    Graph
        With the same inputs and outputs. Names of values that are left are the same; those within a branch
        that took the place of its ``If`` are new.

    Raises
    ------
    LayoutError
        The dims don't fit; the message names the node.

    See Also
    --------
    relayout.graph.evaluate.evaluate : what the graph computes, before and after.
    """
    if isinstance(dims, int) and (fixed := _fixed(graph.inputs)) not in (None, dims):
        try:
            return inferred(with_dims(graph, dims), unroll=unroll, keep=keep, repeat=repeat)
        except LayoutError as error:
            why = f"the model is made for a batch of {fixed}, and not all of it goes with {dims}"
            raise type(error)(f"{why}: {error}") from error
    how = unroll, keep, repeat
    if dims is None and graph.__dict__.get(SWEPT) == how:  # there would be nothing to find out
        return graph
    graph = with_dims(graph, dims)
    sweep = _Sweep(unroll, keep, repeat, {value.name for value in graph.inputs})
    sweep.taken |= {name for node in graph.nodes for name in node.outputs} | set(graph.constants)
    sweep.facts = {value.name: Fact(value.dims, value.dtype) for value in graph.inputs}
    sweep.constants = dict(graph.constants)
    sweep.said = graph.values
    sweep.outputs = set(graph.results)
    least, times = FOLDED_IN_ALL
    sweep.left = [max(least, times * sum(data.nbytes for data in graph.constants.values()))]
    sweep.run(graph.nodes, {})
    made = sweep.made(graph)
    made.__dict__[SWEPT] = how
    return made


def with_dims(graph: Graph, dims: Mapping[str, Dims | int] | int | None) -> Graph:
    """The graph with other dims of its inputs, its values' forgotten; see :func:`inferred`.

    Raises
    ------
    LayoutError
        A name is none of the graph's inputs or open sizes, or a size is no whole number from 0 on.

    Examples
    --------
    >>> x = Value("x", ("batch", "length", 3), np.dtype("f4"))
    >>> table = Value("table", (100, 3), np.dtype("f4"))
    >>> [str(value) for value in with_dims(Graph((x, table), (), ()), 2).inputs]
    ['x f32 2xlengthx3', 'table f32 100x3']
    >>> [str(value) for value in with_dims(Graph((x, table), (), ()), {"length": 8}).inputs]
    ['x f32 batchx8x3', 'table f32 100x3']
    """
    if dims is None:
        return graph
    sizes: dict[str, int] = {}
    given: dict[str, Dims] = {}
    if isinstance(dims, Mapping):
        inputs = {value.name: value for value in graph.inputs}
        names = {n for value in graph.inputs for n in value.dims or () if isinstance(n, str)}
        for name, one in dims.items():
            if name not in inputs and name not in names:
                there = ", ".join(sorted({*names, *inputs}))
                raise LayoutError(f"the model has no dim and no input {name!r}; there are {there}")
            if isinstance(one, Sequence) and not isinstance(one, str):
                given[name] = tuple(
                    n if n is None or isinstance(n, str) else whole(n, f"a size of the input {name!r}")
                    for n in one
                )
            elif name in names:
                sizes[name] = whole(one, f"the size {name!r}")
            else:
                given[name] = (whole(one, f"the size of the input {name!r}"),)
    else:
        sizes, given = _batched(graph.inputs, whole(dims, "the batch size"))
    made = []
    for value in graph.inputs:
        wanted = given.get(value.name, value.dims)
        if value.dims is not None and wanted is not None and len(wanted) != len(value.dims):
            raise LayoutError(
                f"input {value} has {counted(len(value.dims), 'axis')}; got {counted(len(wanted), 'size')}"
            )
        if wanted is not None:
            wanted = tuple(sizes.get(n, n) if isinstance(n, str) else n for n in wanted)
        if any(isinstance(n, int) and n < 0 for n in wanted or ()):
            raise LayoutError(f"input {value.name!r} can't have negative sizes: {wanted}")
        made.append(Value(value.name, wanted, value.dtype))
    values = {name: Value(name, None, value.dtype) for name, value in graph.values.items()}
    return graph.replaced(inputs=tuple(made), values=values)


def _fixed(inputs: Sequence[Value]) -> int | None:
    """The batch that a model is made for; None: it leaves one open."""
    first = [value.dims[0] for value in inputs if value.dims]
    return first[0] if first and all(isinstance(n, int) for n in first) else None  # type: ignore[return-value]


def _batched(inputs: Sequence[Value], batch: int) -> tuple[dict[str, int], dict[str, Dims]]:
    """The sizes by name, and the dims of inputs, that a batch means: the first size of each is the batch.

    Of inputs with a fixed one only those count that have it from the first input: a model made for another
    batch. The rows of a table stay as they are, and so does everything fixed beside an open size.
    """
    first, fixed = {value.name: value.dims[0] for value in inputs if value.dims}, _fixed(inputs)
    changed = [name for name, n in first.items() if n == fixed or not isinstance(n, int)]
    sizes = {n: batch for name in changed if isinstance(n := first[name], str)}
    return sizes, {
        value.name: (batch, *value.dims[1:]) for value in inputs if value.dims and value.name in changed
    }


def facts_of(node: Node, known: Callable[[str], Fact]) -> dict[str, Fact]:
    """What is known of a node's results, by name; nothing where its rule fails.

    Parameters
    ----------
    node : Node
        Any.
    known : callable
        What is known of a value.
    """
    given = [known(name) if name else None for name in node.inputs]
    try:
        facts = _facts(node, given)
    except LayoutError:
        return {}
    return {name: fact for name, fact in zip(node.outputs, facts, strict=False) if name}


def labelled(node: Node) -> str:
    """A node for messages: its name and its operator."""
    return f"node {node.name or next(filter(None, node.outputs), '')!r} ({node.operator})"


def _facts(node: Node, given: list[Fact | None]) -> tuple[Fact, ...]:
    operator = OPERATORS.get(node.operator)
    if operator is None:
        raise LayoutError(f"{labelled(node)}: there is no operator {node.operator!r}")
    return operator.inferred(*given, outputs=len(node.outputs), **node.attributes)


class _Sweep:
    """One way through a graph: what is known so far, and what is left of it."""

    def __init__(self, unroll: int, keep: frozenset[str], repeat: bool, taken: set[str]) -> None:
        self.unroll = unroll
        self.keep = keep
        self.repeat = repeat
        self.taken = taken
        self.facts: dict[str, Fact] = {}
        self.constants: dict[str, Array] = {}
        self.said: Mapping[str, Value] = {}
        self.outputs: set[str] = set()
        self.nodes: list[Node] = []
        self.strict = True
        self.left = [0]
        """Bytes that may still be made constant, in this graph and those within it."""

    def run(self, nodes: tuple[Node, ...], names: dict[str, str]) -> None:
        """Go through nodes whose names stand for others where ``names`` says so, and note further ones."""
        for node in nodes:
            renamed = node
            if not names.keys().isdisjoint((*node.inputs, *node.outputs)):
                inputs = tuple(names.get(name, name) for name in node.inputs)
                outputs = tuple(names.get(name, name) for name in node.outputs)
                renamed = Node(node.operator, inputs, outputs, node.attributes, node.name)
            is_name = node.operator == "Identity" and renamed.outputs[0] not in self.outputs
            if is_name and renamed.inputs[0]:
                names[node.outputs[0]] = renamed.inputs[0]
                continue
            try:
                self._node(renamed, names, node.outputs)
            except LayoutError as error:
                label = labelled(node)
                raise type(error)(
                    str(error) if str(error).startswith("node ") else f"{label}: {error}"
                ) from error

    def fact(self, name: str) -> Fact:
        if name in self.constants:
            data = self.constants[name]
            return Fact(data.shape, data.dtype, data)
        return self.facts.get(name, Fact())

    def _node(self, node: Node, names: dict[str, str], sources: tuple[str, ...]) -> None:
        given = [self.fact(name) if name else None for name in node.inputs]
        if self._branch(node, given, names, sources) or self._unrolled(node, given, names, sources):
            return
        rule = node.operator in OPERATORS and OPERATORS[node.operator].infer is not None
        if not rule and any(isinstance(value, Graph) for value in node.attributes.values()):
            node, facts = self._inner(node, given)
        else:
            facts = _facts(node, given)
            facts = tuple(self._merged(fact, name) for fact, name in zip(facts, node.outputs, strict=False))
            facts = self._computed(node, given, facts)
        for name, fact in zip(node.outputs, facts, strict=False):
            if name:
                self.facts[name] = fact
        if all(fact.data is not None or not name for name, fact in zip(node.outputs, facts, strict=True)):
            for name, fact in zip(node.outputs, facts, strict=True):
                if name and fact.data is not None:
                    self.constants[name] = np.asarray(fact.data)
            return
        self.nodes.append(node)

    def _merged(self, fact: Fact, name: str) -> Fact:
        """What the rule says, and where it says nothing what the source said."""
        said = self.said.get(name)
        if said is None or (fact.dims is not None and fact.dtype is not None):
            return fact
        dims = said.dims if fact.dims is None else fact.dims
        return Fact(dims, said.dtype if fact.dtype is None else fact.dtype, fact.data)

    def _computed(self, node: Node, given: list[Fact | None], facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
        """The facts with the values themselves, where all inputs are constants."""
        data = [None if fact is None else fact.data for fact in given]
        if (
            any(fact is not None and fact.data is None for fact in given)
            or node.operator in self.keep | RANDOM
        ):
            return facts
        if node.operator == "Dropout" and len(data) > 2 and data[2] is not None and data[2].any():
            return facts
        size = sum(one.nbytes for one in data if one is not None)
        most = REPEATED_BYTES if node.operator in REPEATING and not self.repeat else FOLDED_BYTES
        if not self._is_small(facts, size, most):
            return facts
        try:
            made = OPERATORS[node.operator](*data, outputs=len(node.outputs), **node.attributes)
        except LayoutError:
            if self.strict:
                raise
            return facts
        except (MemoryError, OverflowError):
            return facts
        if not all(isinstance(one, np.ndarray) for one in made[: len(node.outputs)]):
            return facts
        self.left[0] -= sum(
            one.nbytes
            for one in made[: len(node.outputs)]
            if not any(other is not None and np.may_share_memory(one, other) for other in data)
        )
        return tuple(Fact(one.shape, one.dtype, one) for one in made[: len(node.outputs)])

    def _is_small(self, facts: tuple[Fact, ...], size: int, most: int) -> bool:
        """Whether results of constants of so many bytes have ``most`` bytes, or twice as many as these."""
        total = 0
        for fact in facts:
            if fact.dims is None or not all(isinstance(n, int) for n in fact.dims):
                return size <= 1 << 20  # how large shows when it is computed
            itemsize = 8 if fact.dtype is None else fact.dtype.itemsize
            total += math.prod(n for n in fact.dims if isinstance(n, int)) * itemsize
        return total <= min(self.left[0], max(most, 2 * size))

    # ---- graphs within nodes

    def _branch(
        self, node: Node, given: list[Fact | None], names: dict[str, str], sources: tuple[str, ...]
    ) -> bool:
        """Put the branch in the place of an If whose condition is constant."""
        condition = given[0].data if node.operator == "If" and given and given[0] is not None else None
        if condition is None or condition.size != 1:
            return False
        branch = node.attributes[BRANCHES[0] if condition.reshape(()).item() else BRANCHES[1]]
        results = self._inlined(branch, node.inputs[1:], node.name, node.outputs)
        self._bound(node, results, names, sources)
        return True

    def _inlined(
        self, graph: Graph, inputs: tuple[str, ...], name: str, outputs: tuple[str, ...] = ()
    ) -> list[str]:
        """Run the nodes of a closed graph as nodes of this one; the names of its results.

        Results that nodes compute get the names of those outputs of this graph that they are.
        """
        _check_inputs(graph, len(inputs))
        names = {value.name: one for value, one in zip(graph.inputs, inputs, strict=True)}
        for key, data in graph.constants.items():
            names[key] = self._fresh(f"{name}/{key}")
            self.constants[names[key]] = data
        for node in graph.nodes:
            names.update((key, self._fresh(f"{name}/{key}")) for key in node.outputs if key)
        made = {key for node in graph.nodes for key in node.outputs if key}
        for key, output in zip(graph.results, outputs, strict=False):
            if key in made and output in self.outputs:
                names[key] = output
                made.remove(key)
        self.run(graph.nodes, names)
        return [names[key] for key in graph.results]

    def _bound(self, node: Node, results: list[str], names: dict[str, str], sources: tuple[str, ...]) -> None:
        """Let the outputs of a node stand for values; the graph's own outputs keep their names."""
        for output, source, result in zip(node.outputs, sources, results, strict=False):
            if output in self.outputs and result != output:
                self.run((Node("Identity", (result,), (output,)),), {})
            elif output and result != output:
                names[source] = result

    def _fresh(self, name: str) -> str:
        return fresh(name, self.taken)

    def _unrolled(
        self, node: Node, given: list[Fact | None], names: dict[str, str], sources: tuple[str, ...]
    ) -> bool:
        """Put its iterations in the place of a loop whose trip count is known and small."""
        if node.operator != "Loop" or given[0] is None or given[0].data is None or given[0].data.size != 1:
            return False
        body = node.attributes["body"]
        trips = int(given[0].data.reshape(()).item())
        condition = given[1] if len(given) > 1 else None
        if not 1 <= trips * max(1, len(body.nodes)) <= self.unroll:
            return False
        if condition is not None and (condition.data is None or not condition.data.all()):
            return False
        count = len(node.inputs) - 2 - node.attributes.get("captured", 0)
        states, captured = list(node.inputs[2 : 2 + count]), node.inputs[2 + count :]
        before = len(self.nodes), dict(self.constants), dict(self.facts)
        rows: list[list[str]] = []
        for trip in range(trips):
            iteration, going = self._fresh(f"{node.name}/trip"), self._fresh(f"{node.name}/condition")
            self.constants[iteration], self.constants[going] = np.asarray(trip, np.int64), np.asarray(True)
            results = self._inlined(body, (iteration, going, *states, *captured), f"{node.name}/{trip}")
            still = self.fact(results[0]).data
            if still is None:  # how often it runs shows only when it does
                del self.nodes[before[0] :]
                self.constants, self.facts = before[1:]
                return False
            states = results[1 : 1 + count]
            rows.append(results[1 + count :])
            if not still.all():
                break
        scans = [self._stacked(node, column) for column in zip(*rows, strict=True)]
        self._bound(node, [*states, *scans], names, sources)
        return True

    def _stacked(self, node: Node, values: tuple[str, ...]) -> str:
        """One result of a loop from those of its iterations, along a new first axis."""
        axes = self._fresh(f"{node.name}/axes")
        self.constants[axes] = np.zeros(1, np.int64)
        rows = tuple(self._fresh(f"{value}/row") for value in values)
        result = self._fresh(f"{node.name}/scan")
        self.run(
            tuple(
                Node("Unsqueeze", (v, axes), (r,), {}, node.name) for v, r in zip(values, rows, strict=True)
            ),
            {},
        )
        self.run((Node("Concat", rows, (result,), {"axis": 0}, node.name),), {})
        return result

    def _inner(self, node: Node, given: list[Fact | None]) -> tuple[Node, tuple[Fact, ...]]:
        """A node with its graphs inferred, and what is known of its results."""
        node, given = _without_constants(node, given)
        graphs = {name: value for name, value in node.attributes.items() if isinstance(value, Graph)}
        made, facts = dict(node.attributes), tuple(Fact() for _ in node.outputs)
        if node.operator == "If":
            several = []
            for name, graph in graphs.items():
                made[name], found = self._closed(graph, given[1:])
                several.append(found)
            facts = tuple(_either(column) for column in zip(*several, strict=False))
        elif node.operator == "Loop":
            made["body"], facts = self._loop(node, given)
        elif node.operator == "Scan":
            made["body"], facts = self._scan(node, given)
        facts = tuple(Fact(fact.dims, fact.dtype) for fact in (*facts, *(Fact() for _ in node.outputs)))
        return Node(node.operator, node.inputs, node.outputs, made, node.name), facts[: len(node.outputs)]

    def _closed(self, graph: Graph, given: list[Fact | None]) -> tuple[Graph, list[Fact]]:
        """A closed graph, inferred for inputs of which something is known, and its results."""
        _check_inputs(graph, len(given))
        inner = _Sweep(self.unroll, self.keep, self.repeat, {value.name for value in graph.inputs})
        inner.strict = False  # it may never run
        inner.taken |= {name for node in graph.nodes for name in node.outputs} | set(graph.constants)
        inner.facts = {
            value.name: Fact(fact.dims, fact.dtype) if fact is not None else Fact()
            for value, fact in zip(graph.inputs, given, strict=True)
        }
        inner.constants = dict(graph.constants)
        inner.said = graph.values
        inner.outputs = set(graph.results)
        inner.left = self.left
        try:
            inner.run(graph.nodes, {})
        except LayoutError:
            return graph, [Fact() for _ in graph.results]
        inputs = tuple(
            Value(value.name, inner.facts[value.name].dims, inner.facts[value.name].dtype)
            for value in graph.inputs
        )
        return inner.made(graph.replaced(inputs=inputs)), [inner.fact(name) for name in graph.results]

    def _loop(self, node: Node, given: list[Fact | None]) -> tuple[Graph, tuple[Fact, ...]]:
        body = node.attributes["body"]
        count = len(node.inputs) - 2 - node.attributes.get("captured", 0)
        states, captured = given[2 : 2 + count], given[2 + count :]
        first = Fact((), np.dtype("int64")), Fact((), np.dtype("bool"))
        graph, results = self._settled(body, list(first), states, captured, 1)
        trips = given[0].data if given[0] is not None else None
        condition = given[1] if len(given) > 1 else None
        sure = trips is not None and condition is None and _is_true(graph, graph.results[0])
        length = int(trips.reshape(()).item()) if sure and trips is not None else None
        scans = [
            Fact(None if fact.dims is None else (length, *fact.dims), fact.dtype)
            for fact in results[1 + count :]
        ]
        return graph, (*results[1 : 1 + count], *scans)

    def _scan(self, node: Node, given: list[Fact | None]) -> tuple[Graph, tuple[Fact, ...]]:
        body, scanned = node.attributes["body"], node.attributes["num_scan_inputs"]
        own = len(node.inputs) - node.attributes.get("captured", 0)
        count = own - scanned
        axes = node.attributes.get("scan_input_axes") or (0,) * scanned
        rows, length = [], None
        for fact, axis in zip(given[count:own], axes, strict=True):
            if fact is None or fact.dims is None:
                rows.append(Fact(None, None if fact is None else fact.dtype))
                continue
            axis = axis % len(fact.dims)
            length = fact.dims[axis] if length is None else length
            rows.append(Fact(fact.dims[:axis] + fact.dims[axis + 1 :], fact.dtype))
        graph, results = self._settled(body, [], given[:count], [*rows, *given[own:]], 0)
        into = node.attributes.get("scan_output_axes") or (0,) * (len(results) - count)
        scans = []
        for fact, axis in zip(results[count:], into, strict=True):
            if fact.dims is None:
                scans.append(Fact(None, fact.dtype))
                continue
            axis = axis % (len(fact.dims) + 1)
            scans.append(Fact((*fact.dims[:axis], length, *fact.dims[axis:]), fact.dtype))
        return graph, (*results[:count], *scans)

    def _settled(
        self,
        body: Graph,
        before: list[Fact],
        states: list[Fact | None],
        behind: list[Fact | None],
        skip: int,
    ) -> tuple[Graph, list[Fact]]:
        """A loop's body, for states that are the same before and after it as far as they are known."""
        known = [fact or Fact() for fact in states]
        while True:
            graph, results = self._closed(body, [*before, *known, *behind])
            wider = [_either(both) for both in zip(known, results[skip:], strict=False)]
            if [(one.dims, one.dtype) for one in wider] == [(one.dims, one.dtype) for one in known]:
                return graph, [*results[:skip], *wider, *results[skip + len(known) :]]
            known = wider

    def made(self, graph: Graph) -> Graph:
        """What is left, without what nothing needs."""
        needed, nodes = set(graph.results), []
        for node in reversed(self.nodes):
            if needed.intersection(filter(None, node.outputs)):
                needed.update(node.inputs)
                nodes.append(node)
        made = {name for node in nodes for name in node.outputs if name}
        values = {
            name: Value(name, fact.dims, fact.dtype) for name, fact in self.facts.items() if name in made
        }
        constants = {
            name: data for name, data in self.constants.items() if name in needed and name not in made
        }
        return graph.replaced(nodes=tuple(reversed(nodes)), values=values, constants=constants)


def _check_inputs(graph: Graph, given: int) -> None:
    """Refuse an inner graph that takes other inputs than its node has for it."""
    if len(graph.inputs) != given:
        raise LayoutError(
            f"its graph {graph.name!r} takes {counted(len(graph.inputs), 'input')}; it is given {given}"
        )


def _either(facts: tuple[Fact, ...]) -> Fact:
    """What is true of all."""
    first = facts[0]
    dims: Dims | None = first.dims
    for other in facts[1:]:
        if dims is None or other.dims is None or len(dims) != len(other.dims):
            dims = None
            break
        dims = tuple(n if n == m else None for n, m in zip(dims, other.dims, strict=True))
    same = all(other.dtype == first.dtype for other in facts)
    return Fact(dims, first.dtype if same else None)


def _is_true(graph: Graph, name: str) -> bool:
    """Whether the condition that a loop's body returns is always that it goes on."""
    if name in graph.constants:
        return bool(graph.constants[name].all())
    made = {output: node for node in graph.nodes for output in node.outputs}
    while name in made and made[name].operator == "Identity":
        name = made[name].inputs[0]
    return name == graph.inputs[1].name or (name in graph.constants and bool(graph.constants[name].all()))


def _without_constants(node: Node, given: list[Fact | None]) -> tuple[Node, list[Fact | None]]:
    """A node whose inner graphs have as constants what they capture of constants."""
    count = node.attributes.get("captured", 0)
    first = len(node.inputs) - count
    gone = [
        i for i in range(first, len(node.inputs)) if (fact := given[i]) is not None and fact.data is not None
    ]
    if not gone:
        return node, given
    attributes = dict(node.attributes)
    for name, graph in node.attributes.items():
        if isinstance(graph, Graph):
            behind = [len(graph.inputs) - len(node.inputs) + i for i in gone]
            data = {graph.inputs[j].name: given[i].data for i, j in zip(gone, behind, strict=True)}  # type: ignore[union-attr]
            inputs = tuple(value for j, value in enumerate(graph.inputs) if j not in behind)
            attributes[name] = graph.replaced(inputs=inputs, constants={**graph.constants, **data})
    attributes["captured"] = count - len(gone)
    if not attributes["captured"]:
        del attributes["captured"]
    names = tuple(name for i, name in enumerate(node.inputs) if i not in gone)
    facts = [fact for i, fact in enumerate(given) if i not in gone]
    return Node(node.operator, names, node.outputs, attributes, node.name), facts
