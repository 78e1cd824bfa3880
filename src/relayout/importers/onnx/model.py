"""Models as graphs: nodes in order, inner graphs closed, functions written out, old versions in new words.

The graph of a model is gone through once, each node behind those whose results it reads. What a node becomes
is decided in this order:

1. a function of the model's own takes its place, node by node (:meth:`_Model.function`);
2. older versions are rewritten into the newest (:mod:`.versions`), operators of runtimes into ONNX's
   (:mod:`.microsoft`);
3. an operator with a definition (:data:`relayout.graph.operators.OPERATORS`) is a node of the graph;
4. one that ONNX itself defines by a function becomes that function;
5. anything else is unknown. All of these are collected, and refused together.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.graph.graph import Array, Dims, Graph, Node, Value
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.types import NUMBERS
from relayout.importers.onnx.attributes import attributes_of, check_kinds
from relayout.importers.onnx.building import Body, Call, Scope, Writer
from relayout.importers.onnx.external import Folder
from relayout.importers.onnx.tensors import array_of, dense
from relayout.importers.onnx.versions import NEWEST, newest

__all__ = ["graph_of"]

CONSTANTS = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_string": object,
    "value_strings": object,
}
"""The attributes of a Constant that are no tensors."""

DEEPEST = 100
"""Functions that call each other, at most."""

MOST = 1_000_000
"""Nodes of a network, those of functions at each call: a few functions that call each other ten times each
would make more than any memory holds."""


def graph_of(model: Any, folder: Folder, held: Mapping[int, Array] = MappingProxyType({})) -> Graph:
    """The graph of a ``ModelProto``; see :func:`relayout.importers.onnx.read`.

    The bytes of some initializers may be held apart, by their places.
    """
    if not model.HasField("graph"):
        raise LayoutError("the model has no graph")
    reader = _Model(model, folder)
    graph = reader.top(model.graph, held)
    if reader.unknown:
        raise Unsupported(reader.refusal())
    return graph


class _Model:
    """What the nodes of all graphs and functions of a model have in common."""

    def __init__(self, model: Any, folder: Folder) -> None:
        self.folder = folder
        self.opsets = _versions(model.opset_import, model.ir_version)
        self.functions = {(_domain(one), one.name, one.overload): one for one in model.functions}
        if len(self.functions) != len(model.functions):
            raise LayoutError("the model defines a function twice")
        self.count = 0
        self.sizes: dict[tuple[str, str, str], int] = {}
        """Nodes of functions, with those that they call written out."""
        self.unknown: list[tuple[str, int, str, str]] = []
        """Domain, version, operator and node of what there is no definition of."""

    def top(self, graph: Any, held: Mapping[int, Array]) -> Graph:
        """The model's own graph."""
        if self.functions:
            _check_count(self.written(graph.node))
        scope = Scope(Body(_names(graph)), self.opsets)
        return self.graph(graph, scope, held)

    def written(self, nodes: Iterable[Any], depth: int = 0) -> int:
        """How many nodes these are with the model's functions written out, without writing them.

        Functions that call themselves, or each other too deep, are refused when they are written.
        """
        count = 0
        for node in nodes:
            key = _domain(node), node.op_type, node.overload
            if key in self.functions and key not in self.sizes and depth < DEEPEST:
                self.sizes[key] = 0
                self.sizes[key] = self.written(self.functions[key].node, depth + 1)
            count += 1 + self.sizes.get(key, 0)
            for attribute in node.attribute:
                for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                    count += self.written(graph.node, depth + 1)
        return count

    def graph(self, graph: Any, scope: Scope, held: Mapping[int, Array] = MappingProxyType({})) -> Graph:
        """A graph, in a scope of its own."""
        body = scope.body
        constants = {one.name for one in graph.initializer}
        constants |= {one.values.name for one in graph.sparse_initializer}
        for info in graph.input:
            if not info.name:
                raise LayoutError("the graph has an input without a name")
            dims, dtype = _type(info)
            if info.name not in constants:
                body.inputs.append(Value(scope.define(info.name), dims, dtype))
            elif scope.outer is None:
                body.defaults[info.name] = Value(info.name, dims, dtype)
        for k, tensor in enumerate(graph.initializer):
            if not tensor.name:
                raise LayoutError("a tensor of the graph has no name")
            body.constants[scope.define(tensor.name)] = array_of(tensor, self.folder, held.get(k))
        for sparse in graph.sparse_initializer:
            body.constants[scope.define(sparse.values.name)] = dense(sparse, self.folder)
        for info in (*graph.value_info, *graph.output):
            dims, dtype = _type(info)
            body.values[info.name] = Value(info.name, dims, dtype)
        for node in _ordered(graph.node, set(scope.names)):
            self.node(node, scope)
        outputs = {info.name: scope.known(info.name) for info in graph.output}
        missing = [name for name, found in outputs.items() if not found]
        if missing:
            raise LayoutError(f"nothing computes the output {missing[0]!r} of the graph")
        return body.graph(tuple(str(outputs[info.name]) for info in graph.output), graph.name)

    def node(self, node: Any, scope: Scope) -> None:
        """Add what a ``NodeProto`` means."""
        name = node.name or next(filter(None, node.output), "")
        self.count += 1
        _check_count(self.count)
        try:
            self._node(node, name, scope)
        except RecursionError:
            raise LayoutError(f"node {name!r} ({node.op_type}): graphs within graphs are too many") from None
        except LayoutError as error:
            raise type(error)(f"node {name!r} ({node.op_type}): {error}") from error

    def _node(self, node: Any, name: str, scope: Scope) -> None:
        domain, version = _domain(node), 0
        if not all(isinstance(one, str) for one in (node.name, node.op_type, node.domain, node.overload)):
            raise LayoutError(f"a name of it is not UTF-8: {node.op_type!r} {node.domain!r} {node.name!r}")
        function = self.functions.get((domain, node.op_type, node.overload))
        if function is None:
            version = self._version(domain, node, scope)
        inner: list[tuple[Any, Scope]] = []

        def graph(proto: Any) -> Any:
            made = Scope(Body(_names(proto)), scope.opsets, scope, scope.attributes, None, scope.calls)
            inner.append((proto, made))
            return len(inner) - 1, made

        attributes = attributes_of(node, self.folder, scope.attributes, graph)
        inputs = [scope.find(one) for one in node.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        graphs = [self.graph(proto, made) for proto, made in inner]
        captured = list(dict.fromkeys(outer for _, made in inner for outer in made.body.captured))
        for key, value in attributes.items():
            if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Scope):
                attributes[key] = _closed(graphs[value[0]], value[1].body, captured)
        if captured:
            attributes["captured"] = len(captured)
            inputs += captured
        schema = _schema(node.op_type, version, domain) if function is None else None
        if schema is not None:
            check_kinds(attributes, schema, version)
        if domain == "" and node.op_type == "Constant" and function is None:
            if len(node.output) != 1 or not node.output[0]:
                raise LayoutError("a Constant has one output")
            scope.body.constants[scope.define(node.output[0])] = _constant(attributes)
            return
        made = list(node.output)
        while (
            made and not made[-1] and node.op_type != "Split"
        ):  # how many parts a Split has may be their number
            made.pop()
        outputs = tuple(scope.define(one) if one else "" for one in made)
        operator = f"{domain}.{node.op_type}" if domain else node.op_type
        call = Call(operator, version, tuple(inputs), outputs, attributes, name)
        if function is not None:
            self.function(function, call, scope, function.attribute_proto)
        else:
            self._operator(call, schema, domain, node, scope)

    def _version(self, domain: str, node: Any, scope: Scope) -> int:
        version = scope.opsets.get(domain)
        if version is None:
            if domain in ("", *NEWEST):
                raise LayoutError(f"the model says no version of the operators of {domain or 'ai.onnx'!r}")
            return 0
        return version

    def _operator(self, call: Call, schema: Any, domain: str, node: Any, scope: Scope) -> None:
        """Add a node for a call, or the nodes that it is made of."""
        try:
            remaining = newest(call, Writer(scope.body, call))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError(f"its attributes are none of version {call.version}: {error}") from error
        if remaining is None:
            return
        operator = OPERATORS.get(remaining.operator)
        if operator is not None:
            operator.check(len(remaining.inputs), remaining.attributes)
            for place, value in zip(operator.inputs, remaining.inputs, strict=False):
                if not value and place in operator.needed:
                    raise LayoutError(f"{remaining.operator} needs the input {place!r}")
            scope.body.nodes.append(
                Node(remaining.operator, remaining.inputs, remaining.outputs, remaining.attributes, call.name)
            )
            return
        function, defaults = _schema_function(schema, call, node, scope.body)
        if function is not None:
            self.function(function, call, scope, defaults)
            return
        self.unknown.append((domain, call.version, node.op_type, call.name))

    def function(self, function: Any, call: Call, scope: Scope, defaults: Any) -> None:
        """Write a function out in the place of a call of it."""
        key = f"{function.domain}.{function.name}:{function.overload}"
        if key in scope.calls:
            raise LayoutError(f"the function {function.name!r} calls itself")
        if len(scope.calls) >= DEEPEST:
            raise LayoutError(f"functions call each other more than {DEEPEST} deep")
        if len(call.inputs) > len(function.input) or len(call.outputs) > len(function.output):
            raise LayoutError(
                f"the function {function.name!r} takes {len(function.input)} inputs and makes"
                f" {len(function.output)} outputs; the call has {len(call.inputs)} and {len(call.outputs)}"
            )
        given = attributes_of(_Attributes(defaults), self.folder, {}, _no_graph)
        given |= call.attributes
        opsets = (
            {**scope.opsets, **_versions(function.opset_import, 3)} if function.opset_import else scope.opsets
        )
        results: dict[str, str] = {}
        for name, value in zip(function.output, call.outputs, strict=False):
            if value:
                results.setdefault(name, value)
        inner = Scope(scope.body, opsets, None, given, results, (*scope.calls, key))
        for name, value in zip(function.input, (*call.inputs, *[""] * len(function.input)), strict=False):
            if name in inner.names:
                raise LayoutError(f"the function {function.name!r} has the input {name!r} twice")
            inner.names[name] = value
        for node in _ordered(function.node, set(inner.names)):
            self.node(node, inner)
        writer = Writer(scope.body, call)
        for name, value in zip(function.output, call.outputs, strict=False):
            found = inner.find(name)
            if value and not found:
                raise LayoutError(f"nothing computes the output {name!r} of the function {function.name!r}")
            if value and found != value:  # an output that is an input, or one that comes twice
                writer.add("Identity", found, into=value)

    def refusal(self) -> str:
        """What to say of the operators that are unknown."""
        kinds: dict[tuple[str, int, str], list[str]] = {}
        for domain, version, operator, name in self.unknown:
            kinds.setdefault((domain, version, operator), []).append(name)
        lines = [
            f"{operator} (domain {domain or 'ai.onnx'!r}, version {version or 'unknown'}):"
            f" {', '.join(map(repr, names[:8]))}{f' and {len(names) - 8} more' if len(names) > 8 else ''}"
            for (domain, version, operator), names in kinds.items()
        ]
        return "the model has operators that are unknown here: " + "; ".join(lines)


def _check_count(nodes: int) -> None:
    if nodes > MOST:
        raise LayoutError(f"the network has more than {MOST} nodes, with its functions written out")


class _Attributes:
    """A function's own attributes, looked at as those of a node are."""

    def __init__(self, attributes: Any) -> None:
        self.attribute = attributes


def _no_graph(_: Any) -> Any:
    raise LayoutError("a function can't have a graph as a default of an attribute")


def _closed(graph: Graph, body: Body, captured: Sequence[str]) -> Graph:
    """An inner graph with what it and its neighbours capture as further inputs."""
    inputs = list(graph.inputs)
    for outer in captured:
        name = body.captured.get(outer)
        inputs.append(body.values[name] if name is not None else Value(body.fresh(outer)))
    return graph.replaced(inputs=tuple(inputs))


def _constant(attributes: Mapping[str, Any]) -> Any:
    """The value of a Constant."""
    if len(attributes) != 1:
        raise LayoutError(f"a Constant has one value; this one has {', '.join(attributes) or 'none'}")
    ((name, value),) = attributes.items()
    if name in CONSTANTS:
        return np.array(value, CONSTANTS[name])
    if name in ("value", "sparse_value") and isinstance(value, np.ndarray):
        return value
    raise LayoutError(f"a Constant has no attribute {name!r}")


def _versions(imports: Any, ir_version: int) -> dict[str, int]:
    """The version of each domain's operators."""
    found: dict[str, int] = {}
    for one in imports:
        domain = _domain(one)
        limit = NEWEST.get(domain)
        if one.version < 1 or (limit is not None and one.version > limit):
            raise Unsupported(
                f"the model uses version {one.version} of the operators of {domain or 'ai.onnx'!r};"
                f" versions 1 to {limit or 'any'} are known here"
            )
        if domain in found and found[domain] != one.version:
            raise LayoutError(f"the model says two versions of the operators of {domain or 'ai.onnx'!r}")
        found[domain] = int(one.version)
    if not found and ir_version < 3:  # the first files did not say: there was one version
        found[""] = 1
    return found


def _domain(proto: Any) -> str:
    """A domain; ONNX's own has two spellings."""
    return "" if proto.domain == "ai.onnx" else str(proto.domain)


@locked
def _schema(operator: str, version: int, domain: str) -> Any:
    """What the onnx package says of an operator, or None."""
    from onnx import defs

    return defs.get_schema(operator, version, domain) if defs.has(operator, version, domain) else None


@locked
def _schema_function(schema: Any, call: Call, node: Any, body: Body) -> tuple[Any, Any]:
    """The function by which ONNX defines an operator, or None, and defaults of its attributes."""
    import onnx

    if schema is None:
        return None, ()
    defaults = [one.default_value for one in schema.attributes.values() if one.default_value.name]
    if schema.has_function:
        return schema.function_body, defaults
    if not schema.has_context_dependent_function:
        return None, ()
    numbers = {dtype: number for number, dtype in NUMBERS.items()}
    types = []
    for name in call.inputs:
        fact = body.fact(name)
        if name and fact.dtype is None:
            return None, ()  # what the function is depends on it
        dims = None if fact.dims is None else [n if isinstance(n, (int, str)) else None for n in fact.dims]
        number = numbers[fact.dtype] if name and fact.dtype is not None else 0
        types.append(onnx.helper.make_tensor_type_proto(number, dims).SerializeToString())
    text = schema.get_context_dependent_function(node.SerializeToString(), types)
    return onnx.FunctionProto.FromString(text), defaults


def _type(info: Any) -> tuple[Dims | None, np.dtype[Any] | None]:
    """Dims and data type that a file says of a value; None for sequences and the like."""
    if not info.type.HasField("tensor_type"):
        return None, None
    tensor = info.type.tensor_type
    dtype = NUMBERS.get(tensor.elem_type)
    if tensor.elem_type and dtype is None:
        raise LayoutError(
            f"the value {info.name!r} has data type {tensor.elem_type}; ONNX has 1 to {max(NUMBERS)}"
        )
    if not tensor.HasField("shape"):
        return None, dtype
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(int(dim.dim_value))
        else:  # some exporters write -1 for a size that they don't know
            dims.append(dim.dim_param or None)
    return tuple(dims), dtype


def _names(graph: Any) -> Iterator[str]:
    """All names that a graph itself uses for values."""
    yield from (one.name for one in (*graph.input, *graph.initializer, *graph.output))
    yield from (one.values.name for one in graph.sparse_initializer)
    for node in graph.node:
        yield from node.input
        yield from node.output


def _ordered(nodes: Iterable[Any], known: set[str]) -> list[Any]:
    """Nodes, each behind those whose results it reads, otherwise as they come.

    Raises
    ------
    LayoutError
        Two nodes define one value, or nodes wait for each other.
    """
    nodes = list(nodes)
    makers: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in makers or name in known:
                other = "an input or a constant"
                if name in makers:
                    other = f"node {makers[name]} ({nodes[makers[name]].op_type})"
                raise LayoutError(f"node {i} ({node.op_type}) defines {name!r}, which {other} defines, too")
            makers[name] = i
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    readers: dict[int, list[int]] = {}
    for i, several in enumerate(needs):
        for j in several:
            readers.setdefault(j, []).append(i)
    left = Counter({i: len(several) for i, several in enumerate(needs)})
    ready = [i for i in range(len(nodes)) if not left[i]]
    order: list[int] = []
    while ready:
        one = heapq.heappop(ready)
        order.append(one)
        for reader in readers.get(one, ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        names = ", ".join(repr(_label(nodes[i])) for i in _circle(needs, set(order)))
        raise LayoutError(f"nodes read each other's results in a circle: {names}")
    return [nodes[i] for i in order]


def _circle(needs: Sequence[set[int]], done: set[int]) -> list[int]:
    """Nodes that wait for each other."""
    path = [next(i for i in range(len(needs)) if i not in done)]
    while path.count(path[-1]) < 2:
        path.append(next(i for i in sorted(needs[path[-1]]) if i not in done))
    return path[path.index(path[-1]) + 1 :]


def _label(node: Any) -> str:
    return str(node.name or next(filter(None, node.output), node.op_type))


def _reads(node: Any) -> Iterator[str]:
    """Names that a node reads, or a graph within it does and doesn't define."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            own = {one.name for one in (*graph.input, *graph.initializer)}
            own |= {name for inner in graph.node for name in inner.output}
            read = (name for inner in graph.node for name in _reads(inner))
            yield from (name for name in (*read, *(one.name for one in graph.output)) if name not in own)
