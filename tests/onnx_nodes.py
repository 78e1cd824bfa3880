"""Nodes of ONNX run through the table of operators, and the ONNX project's own cases for single nodes.

::

    cases()              the node tests of the backend suite: a model, arrays in, arrays out, tolerances
    evaluate(...)        a list of NodeProto by ``OPERATORS``, without importer, graph or passes
    assert_agrees(...)   a result against what is expected, in dims, data type and values
    assert_inferred(...) what inference says against a result
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from relayout.graph.operators import OPERATORS, Fact


@dataclass(frozen=True, eq=False)
class Case:
    """A model of the backend suite, with one of its sets of inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """Of all nodes, those in inner graphs among them."""
        return set(map(operator_name, _nodes(self.model.graph.node)))

    @property
    def newest(self) -> bool:
        """Whether all nodes take what the newest versions of their operators take, by the same defaults.

        Older ones are an importer's affair.
        """
        versions = {one.domain: one.version for one in self.model.opset_import}
        return all(
            _signature(name, versions[domain], domain) == _signature(name, None, domain)
            for domain, name in {(node.domain, node.op_type) for node in _nodes(self.model.graph.node)}
        )

    @property
    def known(self) -> dict[str, Any]:
        """Inputs and constants by name."""
        names = [value.name for value in self.model.graph.input]
        known = {name: value for name, value in zip(names, self.inputs, strict=False) if name}
        return known | {one.name: numpy_helper.to_array(one) for one in self.model.graph.initializer}

    def run(self) -> tuple[Any, ...]:
        """The outputs by the definitions."""
        known = self.known
        evaluate(self.model.graph.node, known)
        return tuple(known[value.name] for value in self.model.graph.output)

    def __repr__(self) -> str:
        return self.name


@cache
def cases() -> tuple[Case, ...]:
    """All node tests of the backend suite that the installed onnx package makes (takes some seconds)."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(
            Case(
                one.name + (f"-{i}" if i else ""),
                one.model,
                [_array(x) for x in given],
                [_array(x) for x in expected],
                one.rtol,
                one.atol,
            )
            for one in load_model_tests(kind="node")
            for i, (given, expected) in enumerate(one.data_sets)
        )


def single(case: Case) -> onnx.NodeProto | None:
    """The node of a case that has one only."""
    nodes = case.model.graph.node
    return nodes[0] if len(nodes) == 1 and not case.model.functions else None


def operator_name(node: onnx.NodeProto) -> str:
    """As in OPERATORS: the domain in front where it isn't ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def attributes_of(node: onnx.NodeProto) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A node's attributes as Python values, and the names that its inner graphs use of what is around them.

    Inner graphs become :class:`Inner`, with those names as trailing inputs.
    """
    graphs = [one.g for one in node.attribute if one.type == AttributeProto.GRAPH]
    free = tuple(dict.fromkeys(name for graph in graphs for name in _free(graph)))
    made = {one.name: _value(one, free) for one in node.attribute}
    if free:
        made["captured"] = len(free)
    return made, free


def evaluate(nodes: Sequence[onnx.NodeProto], known: dict[str, Any]) -> None:
    """Add what nodes compute to the known values."""
    for node in nodes:
        attributes, free = attributes_of(node)
        inputs = [known[name] if name else None for name in (*node.input, *free)]
        made = OPERATORS[operator_name(node)](*inputs, outputs=len(node.output), **attributes)
        known.update((name, value) for name, value in zip(node.output, made, strict=False) if name)


@dataclass(frozen=True, eq=False)
class Inner:
    """A graph within a node, closed: what it uses of the graph around it are its last inputs."""

    graph: onnx.GraphProto
    free: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs."""
        return (*(value.name for value in self.graph.input), *self.free)

    def evaluate(self, *values: Any) -> tuple[Any, ...]:
        """The outputs for given inputs."""
        known = {one.name: numpy_helper.to_array(one) for one in self.graph.initializer}
        known |= dict(zip(self.inputs, values, strict=True))
        evaluate(self.graph.node, known)
        return tuple(known[value.name] for value in self.graph.output)


def assert_agrees(got: Any, expected: Any, rtol: float = 1e-3, atol: float = 1e-7) -> None:
    """Equal in structure, dims and data type, and in values within tolerances: the suite's own comparison."""
    if expected is None or isinstance(expected, (list, tuple)):
        assert type(got) is (list if expected is not None else type(None))
        for one, other in zip(got or (), expected or (), strict=True):
            assert_agrees(one, other, rtol, atol)
        return
    assert isinstance(got, np.ndarray), f"{type(got)} is no array"
    expected = _array(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if expected.dtype == object:
        assert got.tolist() == expected.tolist()
    elif expected.dtype.kind in "biuc" and expected.dtype.kind != "c":
        np.testing.assert_array_equal(got, expected)
    elif expected.dtype.kind == "V" and expected.dtype.name.startswith(("int", "uint")):
        np.testing.assert_array_equal(got.astype(np.int64), expected.astype(np.int64))
    else:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=rtol, atol=atol)


def facts(
    node: onnx.NodeProto, known: Mapping[str, Any], *, data: bool, named: Sequence[int] = ()
) -> list[Fact | None]:
    """What is known of a node's inputs before it runs: dims and data types, and with ``data`` the values.

    Sizes along the axes that are ``named`` are text: ``n4`` for 4.
    """
    made: list[Fact | None] = []
    for name in (*node.input, *attributes_of(node)[1]):
        value = known[name] if name else None
        fact = Fact()
        if isinstance(value, np.ndarray):
            dims = tuple(f"n{n}" if axis in named else n for axis, n in enumerate(value.shape))
            fact = Fact(dims, value.dtype, value if data else None)
        made.append(fact if name else None)
    return made


def assert_inferred(fact: Fact, got: Any, *, whole: bool) -> None:
    """A fact is true of a result; ``whole``: and says all of its dims and its data type."""
    if not isinstance(got, np.ndarray):
        assert (fact.dims, fact.dtype, fact.data) == (None, None, None)
        return
    if whole:
        assert fact.dims == got.shape
        assert fact.dtype == got.dtype
    if fact.dims is not None:
        assert len(fact.dims) == got.ndim, fact.dims
        for n, size in zip(fact.dims, got.shape, strict=True):
            assert type(n) in (int, str, type(None)), fact.dims
            assert n is None or n in (size, f"n{size}"), (fact.dims, got.shape)
    assert fact.dtype is None or (isinstance(fact.dtype, np.dtype) and fact.dtype == got.dtype)
    if fact.data is not None:
        assert_agrees(fact.data, got)


def _array(x: Any) -> Any:
    """Data of the suite as arrays are here: text is an object."""
    if isinstance(x, (list, tuple)):
        return [_array(one) for one in x]
    if x is None:
        return None
    x = numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)
    return x.astype(object) if x.dtype.kind in "US" else x


def _value(attribute: AttributeProto, free: tuple[str, ...]) -> Any:
    kind = attribute.type
    if kind == AttributeProto.GRAPH:
        return Inner(attribute.g, free)
    if kind == AttributeProto.TENSOR:
        return _array(numpy_helper.to_array(attribute.t))
    if kind == AttributeProto.SPARSE_TENSOR:
        return _dense(attribute.sparse_tensor)
    if kind == AttributeProto.STRING:
        return attribute.s.decode()
    if kind == AttributeProto.STRINGS:
        return tuple(one.decode() for one in attribute.strings)
    value = onnx.helper.get_attribute_value(attribute)
    return tuple(value) if kind in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def _dense(sparse: onnx.SparseTensorProto) -> np.ndarray:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    made = np.zeros(tuple(sparse.dims), values.dtype)
    made[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, made.shape)] = values
    return made


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of graphs within them."""
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _nodes(graph.node)


@cache
def _signature(name: str, version: int | None, domain: str) -> object:
    """What an operator takes, in one of its versions."""
    given = () if version is None else (version,)
    schema = onnx.defs.get_schema(name, *given, domain)
    attributes = {one.name: one.default_value.SerializeToString() for one in schema.attributes.values()}
    return [one.name for one in schema.inputs], attributes


def _free(graph: onnx.GraphProto) -> Iterator[str]:
    """Names that a graph uses and doesn't define."""
    defined = {one.name for one in (*graph.input, *graph.initializer)}
    for node in graph.node:
        inner = (name for one in _graphs(node) for name in _free(one))
        yield from (name for name in (*node.input, *inner) if name and name not in defined)
        defined.update(node.output)
    yield from (value.name for value in graph.output if value.name not in defined)
