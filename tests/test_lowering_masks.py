"""Masks, positions and indices in networks: nodes on truth values and integers are kernels, and right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout import LayoutError
from relayout.graph.compiling import compiled
from relayout.graph.evaluate import evaluate
from relayout.graph.graph import Graph, Node, Value
from strategies import examples

pytest.importorskip("llvmlite")

RNG = np.random.default_rng(7)


def array(dims, kind):
    """Small numbers of a data type, truth values among them."""
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return RNG.integers(0, 2, dims).astype(bool)
    if dtype.kind == "f":
        return (RNG.integers(-8, 9, dims) / 4).astype(dtype)
    return RNG.integers(0 if dtype.kind == "u" else -9, 10, dims).astype(dtype)


def graph_of(inputs, *nodes, outputs=None, **constants):
    """A graph: ``("y = Add(a, b)", {})`` are its nodes, arrays by name its inputs."""
    made = []
    for text, attributes in nodes:
        results, _, call = text.partition(" = ")
        operator, _, names = call.rstrip(")").partition("(")
        given = tuple(names.replace("-", "").split(", "))
        made.append(Node(operator, given, tuple(results.split(", ")), attributes, name=results))
    values = tuple(Value(name, one.shape, one.dtype) for name, one in inputs.items())
    return Graph(values, tuple(outputs or made[-1].outputs[:1]), tuple(made), constants)


def check(inputs, *nodes, by_definition=(), **options):
    """What a run gives is what the definitions give, and no node is left to them but some."""
    graph = graph_of(inputs, *nodes, **options)
    run = compiled(graph)
    assert run.steps is not None
    found, wanted = run(*inputs.values()), evaluate(graph, *inputs.values())
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one, other)
    left = [layer.kind for layer in run.steps.layers() if "definition" in layer.implementation]
    assert left == list(by_definition)
    return run


INTEGERS = ["i8", "u1", "i2", "i4", "i8"]
BINARY = [
    *(
        (name, kind)
        for name in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min")
        for kind in ("i8", "i4", "u1")
    ),
    *((name, kind) for name in ("Add", "Sub", "Mul", "Div", "Max", "Min") for kind in ("f8",)),
    *((name, "?") for name in ("And", "Or", "Xor", "Equal")),
    *((f"Bitwise{name}", "i4") for name in ("And", "Or", "Xor")),
    *(
        (name, kind)
        for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
        for kind in "lfdB"
    ),
]


REPEATED = ((3, 17), (3, 1), (), (17,), (1, 1))
"""Dims of the second operand; each operator has every other one of them."""


@pytest.mark.turns(2)
@pytest.mark.parametrize(("operator", "kind", "first"), [(*both, k % 2) for k, both in enumerate(BINARY)])
def test_two_operands(operator, kind, first):
    """Several nodes of one graph, each with operands of its own."""
    shapes = [((3, 17), dims) for dims in REPEATED[first::2]] + [((3, 1), (1, 17))]
    inputs, nodes = {}, []
    for k, pair in enumerate(shapes):
        inputs |= {name + str(k): array(dims, kind) for name, dims in zip("ab", pair, strict=True)}
        nodes.append((f"y{k} = {operator}(a{k}, b{k})", {}))
    inputs |= {"c": array((3, 17), kind), "d": array((3, 17), kind)}
    nodes += [(f"y = {operator}(c, n)", {}), (f"z = {operator}(m, d)", {})]
    number = np.full(1, 2 if kind != "?" else 1).astype(kind)
    outputs = [*(f"y{k}" for k in range(len(shapes))), "y", "z"]
    check(inputs, *nodes, outputs=outputs, n=number, m=array((17,), kind))


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        *(("Not", "?"), ("BitwiseNot", "i4"), ("Neg", "i8"), ("Abs", "i4"), ("Abs", "d"), ("Sign", "f")),
        *(("Sign", "i8"), ("Floor", "f"), ("Ceil", "e"), ("IsNaN", "f"), ("IsInf", "f"), ("Relu", "i4")),
    ],
)
def test_one_operand(operator, kind):
    check({"a": array((3, 17), kind)}, (f"y = {operator}(a)", {}))


NUMBERS = {"?": 9, "u1": 2, "i1": 3, "i2": 5, "i4": 6, "i8": 7, "e": 10, "f": 1, "d": 11}


@pytest.mark.parametrize("source", NUMBERS)
def test_casts(source):
    """To every type, each from an input of its own."""
    inputs = {f"a{k}": array((3, 17), source) for k in range(len(NUMBERS))}
    nodes = [(f"y{k} = Cast(a{k})", {"to": number}) for k, number in enumerate(NUMBERS.values())]
    run = check(inputs, *nodes, outputs=[f"y{k}" for k in range(len(NUMBERS))])
    assert len(run.steps.layers()) == len(NUMBERS)


@pytest.mark.parametrize("kind", ["?", "u1", "i4", "i8", "e", "f", "d"])
def test_a_choice(kind):
    x, y, c = array((2, 3, 17), kind), array((3, 1), kind), array((17,), "?")
    check({"c": c, "x": x, "y": y}, ("z = Where(c, x, y)", {}))
    check({"c": c, "x": x}, ("z = Where(c, x, n)", {}), n=array((1,), kind))
    check({"c": c}, ("z = Where(c, n, m)", {}), n=array((), kind), m=array((2, 1), kind))


def test_others():
    x, y = array((3, 17), "f"), array((17,), "f")
    check({"x": x, "y": y}, ("z = PRelu(x, y)", {}))
    check({"x": x, "y": y, "v": array((3, 1), "f")}, ("z = Max(x, y, v)", {}))
    check({"x": array((3, 17), "i8")}, ("z = Clip(x, a, b)", {}), a=np.int64(-2), b=np.int64(3))
    check({"x": x, "a": array((), "f")}, ("z = Clip(x, a)", {}))
    check({"x": array((3, 17), "i8")}, ("z = Pow(x, n)", {}), n=np.int64(2))
    for upper, k in ((1, 0), (0, 2), (1, -1)):
        check({"x": x}, ("z = Trilu(x, k)", {"upper": upper}), k=np.int64(k))
    infinite = np.float32([np.inf, -np.inf, np.nan, 0])
    for one, two in ((1, 1), (0, 1), (1, 0)):
        check({"x": infinite}, ("z = IsInf(x)", {"detect_negative": one, "detect_positive": two}))


def test_the_mask_of_an_encoder():
    """As exporters write it: 0 and 1 in 64-bit integers become what is added to the scores."""
    mask, scores = array((2, 9), "?").astype("i8"), array((2, 4, 9, 9), "f")
    run = check(
        {"mask": mask, "scores": scores},
        ("a = Unsqueeze(mask, axes)", {}),
        ("b = Cast(a)", {"to": 9}),
        ("c = Not(b)", {}),
        ("d = Where(c, low, zero)", {}),
        ("e = Add(scores, d)", {}),
        axes=np.array([1, 2]),
        low=np.float32(-1e9),
        zero=np.float32(0),
    )
    assert "reorder" not in [layer.kind for layer in run.steps.layers()]


@pytest.mark.parametrize("kind", ["f", "i8", "?"])
def test_elements_by_index(kind):
    table, words = array((11, 6), kind), RNG.integers(-11, 11, (2, 5))
    check({"words": words}, ("y = Gather(table, words)", {}), table=table)
    check({"words": words.astype("i4")}, ("y = Gather(table, words)", {}), table=table)
    check({"x": array((2, 4, 3, 5), kind)}, ("y = Gather(x, k)", {"axis": 1}), k=np.array([2, -1, 2]))
    check({"x": table, "k": RNG.integers(-6, 6, (11, 4))}, ("y = GatherElements(x, k)", {"axis": 1}))
    points = np.stack([RNG.integers(-11, 11, (3, 4)), RNG.integers(-6, 6, (3, 4))], -1)
    check({"x": table, "k": points}, ("y = GatherND(x, k)", {}))
    check({"x": table, "k": points[..., :1]}, ("y = GatherND(x, k)", {}))
    batched = {"x": array((3, 4, 5), kind), "k": RNG.integers(-4, 4, (3, 2, 1))}
    check(batched, ("y = GatherND(x, k)", {"batch_dims": 1}))
    check({"x": table, "k": points, "u": array((3, 4), kind)}, ("y = ScatterND(x, k, u)", {}))
    given = {"x": table, "k": RNG.integers(-6, 6, (11, 4)), "u": array((11, 4), kind)}
    check(given, ("y = ScatterElements(x, k, u)", {"axis": 1}))
    if kind != "?":
        check(
            {"x": table, "k": points, "u": array((3, 4), kind)},
            ("y = ScatterND(x, k, u)", {"reduction": "add"}),
        )


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", ["i8", "i4", "u1", "f", "d"])
@pytest.mark.parametrize(("reverse", "exclusive"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_running_sums(kind, reverse, exclusive):
    attributes = {"reverse": reverse, "exclusive": exclusive}
    cases = ((2, 17), 1), ((33, 3), 0), ((2, 2, 5), -2), ((8,), 0)
    inputs = {f"x{k}": array(dims, kind) for k, (dims, _) in enumerate(cases)}
    axes = {f"axis{k}": np.int64(axis) for k, (_, axis) in enumerate(cases)}
    nodes = [(f"y{k} = CumSum(x{k}, axis{k})", attributes) for k in range(len(cases))]
    check(inputs, *nodes, outputs=[f"y{k}" for k in range(len(cases))], **axes)


def test_an_index_that_names_nothing_names_the_node():
    table, words = array((11, 6), "f"), np.array([3, 11])
    run = compiled(graph_of({"words": words}, ("embedded = Gather(table, words)", {}), table=table))
    with pytest.raises(LayoutError, match="embedded: index 11 of axis 0, which has 11 elements"):
        run(words)
    assert run(words - 1)[0].shape == (2, 6)


STEPS = [
    "Add",
    "Sub",
    "Mul",
    "Max",
    "Equal",
    "Less",
    "And",
    "Or",
    "Not",
    "Where",
    "Cast",
    "Gather",
    "Transpose",
]


@st.composite
def networks(draw):
    """Graphs of masks, positions and numbers that meet in any order."""
    dims = (3, 4, 5)
    known = {"x": "f", "k": "i8", "m": "?"}
    shapes = dict.fromkeys(known, dims)
    nodes = []

    def one(kind, shape=None):
        fitting = [n for n, its in known.items() if its == kind and shape in (None, shapes[n])]
        return draw(st.sampled_from(fitting)) if fitting else None

    for k in range(draw(st.integers(1, 10))):
        operator, name = draw(st.sampled_from(STEPS)), f"v{k}"
        kind = draw(st.sampled_from(["f", "i8"]))
        a = one("?" if operator in ("And", "Or", "Not", "Where") else kind)
        if operator in ("Not", "Cast", "Transpose", "Gather"):
            a, attributes, more = draw(st.sampled_from(list(known))) if operator != "Not" else a, {}, ""
            made, shape = known[a], shapes[a]
            if operator == "Cast":
                made = draw(st.sampled_from(["f", "i8", "?", "i4", "d"]))
                attributes = {"to": NUMBERS[made]}
            elif operator == "Transpose":
                attributes, shape = {"perm": (2, 0, 1)}, (shape[2], shape[0], shape[1])
            elif operator == "Gather":
                attributes, more = {"axis": draw(st.integers(0, 2))}, ", picks"
                shape = tuple(2 if i == attributes["axis"] else n for i, n in enumerate(shape))
            nodes.append((f"{name} = {operator}({a}{more})", attributes))
            known[name], shapes[name] = made, shape
            continue
        same = known[a] if operator != "Where" else kind
        b, c = one(same, shapes[a]), one(same, shapes[a])
        if b is None or c is None:
            continue
        operands = (a, b, c) if operator == "Where" else (a, b)
        nodes.append((f"{name} = {operator}({', '.join(operands)})", {}))
        known[name], shapes[name] = "?" if operator in ("Equal", "Less") else same, shapes[a]
    return nodes, known


@given(networks())
@examples(60)
def test_any_network_of_them(network):
    nodes, _ = network
    if not nodes:
        return
    inputs = {"x": array((3, 4, 5), "f"), "k": array((3, 4, 5), "i8"), "m": array((3, 4, 5), "?")}
    outputs = [text.partition(" = ")[0] for text, _ in nodes]
    check(inputs, *nodes, outputs=outputs, picks=np.array([1, 0]))
