"""Inference and folding: the same results before and after, true dims, and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred, labelled, with_dims
from relayout.graph.operators import OPERATORS
from strategies import tried

F32 = np.dtype("float32")
I64 = np.dtype("int64")


def graph(inputs: list[Value], outputs: list[str], nodes: list[Node], **constants: Any) -> Graph:
    arrays = {name: np.asarray(one) for name, one in constants.items()}
    return Graph(tuple(inputs), tuple(outputs), tuple(nodes), arrays)


def operators(one: Graph) -> list[str]:
    return [node.operator for node in one.nodes]


X = Value("x", ("batch", 3, 4), F32)
RESHAPING = graph(
    [X],
    ["y"],
    [
        Node("Shape", ("x",), ("shape",)),
        Node("Gather", ("shape", "zero"), ("first",)),
        Node("Unsqueeze", ("first", "axes"), ("firsts",)),
        Node("Concat", ("firsts", "rest"), ("wanted",), {"axis": 0}),
        Node("Reshape", ("x", "wanted"), ("y",)),
        Node("Relu", ("x",), ("unused",)),
    ],
    zero=np.int64(0),
    axes=np.int64([0]),
    rest=np.int64([-1]),
)


def test_computations_of_shapes_disappear_once_sizes_are_known() -> None:
    small = inferred(RESHAPING, 5)
    assert operators(small) == ["Reshape"]
    assert small.value("y").dims == (5, 12)
    assert small.constants["wanted"].tolist() == [5, -1]
    assert set(small.constants) == {"wanted"}
    x = np.arange(60, dtype=F32).reshape(5, 3, 4)
    np.testing.assert_array_equal(small.evaluate(x)[0], RESHAPING.evaluate(x)[0])


def test_nothing_disappears_before() -> None:
    kept = inferred(RESHAPING)
    assert operators(kept) == ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape"]
    assert RESHAPING.value("y").dims is None  # the graph that was given is as it was


@pytest.mark.parametrize("dims", [7, {"x": (7, 3, 4)}, {"batch": 7}])
def test_ways_to_say_sizes(dims: Any) -> None:
    other = Value("m", (2, "batch"), F32)
    changed = with_dims(graph([X, other], ["x"], []), dims)
    named = dims == 7 or "batch" in dims
    assert changed.inputs[1].dims == (2, 7 if named else "batch")  # what is fixed stays as it is
    assert changed.inputs[0].dims == (7, 3, 4)


def test_a_batch_of_inputs_that_have_another_one() -> None:
    x, y, table = (Value(name, dims, F32) for name, dims in {"x": (1, 3), "y": (1,), "t": (100, 3)}.items())
    changed = with_dims(graph([x, y, table], ["x"], []), np.int64(4))
    assert [value.dims for value in changed.inputs] == [(4, 3), (4,), (100, 3)]
    assert all(type(n) is int for value in changed.inputs for n in value.dims or ())


@pytest.mark.parametrize(
    ("dims", "why"),
    [
        ({"z": (1,)}, "no dim and no input 'z'; there are batch, x"),
        ({"bacth": 2}, "no dim and no input 'bacth'; there are batch, x"),
        ({"batch": "2"}, "size 'batch' must be a whole number, got '2'"),
        ({"x": (1.5, 3, 4)}, "size of the input 'x' must be a whole number, got 1.5"),
        (2.0, "batch size must be a whole number, got 2.0"),
        ([2], r"batch size must be a whole number, got \[2\]"),
        ({"x": (1, 2)}, "x f32 batchx3x4 has 3 axes; got 2 sizes"),
        ({"x": (-1, 3, 4)}, "negative"),
    ],
)
def test_sizes_that_do_not_fit(dims: Any, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        inferred(RESHAPING, dims)


def test_nodes_that_can_not_run_are_named() -> None:
    wrong = graph([X], ["y"], [Node("Add", ("x", "w"), ("y",), {}, "sum")], w=np.ones(5, F32))
    with pytest.raises(LayoutError, match=r"node 'sum' \(Add\).*"):
        inferred(wrong)
    assert labelled(wrong.nodes[0]) == "node 'sum' (Add)"
    with pytest.raises(LayoutError, match="no operator 'Strange'"):
        inferred(graph([X], ["y"], [Node("Strange", ("x",), ("y",))]))


def test_weights_that_are_computed_become_constants() -> None:
    one = graph(
        [], ["w"], [Node("Transpose", ("v",), ("w",), {"perm": (1, 0)})], v=np.arange(6.0).reshape(2, 3)
    )
    small = inferred(one)
    assert not small.nodes
    assert small.constants["w"].shape == (3, 2)
    assert small.results == ("w",)


def test_quantised_weights_stay_quantised() -> None:
    nodes = [Node("DequantizeLinear", ("v", "s"), ("w",))]
    one = graph([], ["w"], nodes, v=np.ones((2, 2), np.int8), s=np.float32(0.5))
    assert operators(inferred(one)) == ["DequantizeLinear"]
    assert operators(inferred(one, keep=frozenset())) == []


def test_random_numbers_stay_random() -> None:
    nodes = [
        Node("RandomNormal", (), ("r",), {"shape": (2,)}),
        Node("RandomUniformLike", ("c",), ("u",)),
        Node("Bernoulli", ("c",), ("b",)),
        Node("Dropout", ("c", "ratio", "training"), ("d",)),
        Node("Dropout", ("c", "ratio"), ("e",)),
    ]
    constants = {"c": np.full(4, 0.5, F32), "ratio": np.float32(0.5), "training": np.asarray(True)}
    one = graph([], ["r", "u", "b", "d", "e"], nodes, **constants)
    kept = inferred(one)
    assert operators(kept) == ["RandomNormal", "RandomUniformLike", "Bernoulli", "Dropout"]
    assert "e" in kept.constants


@pytest.mark.parametrize(
    "nodes",
    [
        [Node("ConstantOfShape", ("huge",), ("y",))],
        [Node("Expand", ("one", "huge"), ("y",))],
        [Node("Range", ("zero", "many", "step"), ("y",))],
        [Node("Tile", ("ones", "huge"), ("y",))],
        [Node("Pad", ("ones", "pads"), ("y",))],
        [Node("OneHot", ("ids", "many", "pair"), ("y",))],
        [Node("Resize", ("line", "", "scales"), ("y",))],
        [Node("EyeLike", ("y",), ("eye",)), Node("ConstantOfShape", ("square",), ("y",))][::-1],
    ],
    ids=lambda nodes: nodes[-1].operator,
)
def test_what_would_take_gigabytes_is_not_made(nodes: list[Node]) -> None:
    constants = {
        "huge": np.int64([2**20, 2**16]),
        "square": np.int64([2**18, 2**18]),
        "one": np.float32(1),
        "zero": np.int64(0),
        "step": np.int64(1),
        "many": np.int64(2**40),
        "ones": np.ones((1, 1), F32),
        "pads": np.int64([0, 0, 2**20, 2**20]),
        "ids": np.int64([1, 2]),
        "pair": np.float32([0, 1]),
        "line": np.ones((1, 1, 4), F32),
        "scales": np.float32([1, 1, 2**35]),
    }
    kept = inferred(graph([], ["y"], nodes, **constants))
    assert kept.nodes
    assert all(one.nbytes < 2**20 for one in kept.constants.values())


def test_growth_in_small_steps_ends() -> None:
    """Each doubles the last one: a thousand of them would be more than any memory."""
    names = [f"v{i}" for i in range(1000)]
    nodes = [Node("Concat", (a, a), (b,), {"axis": 0}) for a, b in zip(["v", *names], names, strict=False)]
    kept = inferred(graph([], [names[-1]], nodes, v=np.ones(2**18, F32)))
    assert 900 < len(kept.nodes) < 1000


def test_values_that_nothing_is_said_of_keep_what_the_source_said() -> None:
    nodes = (Node("NonZero", ("x",), ("y",)), Node("Relu", ("z",), ("w",)))
    said = {"y": Value("y", (3, "found"), I64)}
    made = inferred(Graph((X, Value("z")), ("y", "w"), nodes, {}, said))
    assert made.value("y").dims is not None
    assert made.value("y").dtype == I64
    assert made.value("w").dtype is None


def branches() -> tuple[Graph, Graph]:
    a, b = Value("a"), Value("b")
    yes = Graph((a, b), ("r",), (Node("Add", ("a", "b"), ("r",)),))
    no = Graph((a, b), ("r",), (Node("Mul", ("a", "c"), ("r",)),), {"c": np.float32(3)})
    return yes, no


def test_branches_know_dims_and_take_the_place_of_their_if() -> None:
    yes, no = branches()
    inner = {"then_branch": yes, "else_branch": no, "captured": 2}
    one = graph(
        [Value("c", (), np.dtype(bool)), X],
        ["y"],
        [Node("If", ("c", "x", "w"), ("y",), inner, "choice")],
        w=np.float32(2),
    )
    made = inferred(one, 2)
    (node,) = made.nodes
    assert made.value("y").dims == (2, 3, 4)
    assert node.inputs == ("c", "x")  # the constant moved into the branches
    assert node.attributes["captured"] == 1
    assert node.attributes["then_branch"].constants["b"] == 2
    x = np.ones((2, 3, 4), F32)
    for condition, expected in ((True, 3), (False, 3)):
        assert (made.evaluate(np.asarray(condition), x)[0] == expected).all()
    for condition, name in ((True, "Add"), (False, "Mul")):
        known = one.replaced(inputs=(X,), constants={**one.constants, "c": np.asarray(condition)})
        flat = inferred(known, 2)
        assert operators(flat)[0] == name
        assert flat.results == ("y",)
        np.testing.assert_array_equal(flat.evaluate(x)[0], one.evaluate(np.asarray(condition), x)[0])


def test_a_branch_that_can_not_run_is_no_error_until_it_does() -> None:
    yes, _ = branches()
    wrong = yes.replaced(nodes=(Node("Reshape", ("a", "b"), ("r",)),))
    inner = {"then_branch": yes, "else_branch": wrong, "captured": 2}
    one = graph(
        [Value("c"), X], ["y"], [Node("If", ("c", "x", "w"), ("y",), inner)], w=np.int64([5, 5]).astype(F32)
    )
    one = one.replaced(constants={"w": np.ones(4, F32)})
    x = np.ones((1, 3, 4), F32)
    assert (inferred(one, {"x": (1, 3, 4)}).evaluate(np.asarray(True), x)[0] == 2).all()


# ---- random graphs

UNARY = ("Relu", "Neg", "Abs", "Sigmoid", "Identity")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, np.ndarray[Any, Any]]:
    """Chains of elementwise operators, views and computations of shapes, some of constants."""
    dims = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    values, nodes = ["x", "k"], []
    for i in range(draw(st.integers(1, 8))):
        name, source = f"v{i}", draw(st.sampled_from(values))
        kind = draw(st.sampled_from(("unary", "add", "shape", "flatten", "transpose")))
        if kind == "unary":
            nodes.append(Node(draw(st.sampled_from(UNARY)), (source,), (name,)))
        elif kind == "add":
            nodes.append(Node("Mul", (source, "half"), (name,)))
        elif kind == "shape":
            nodes.append(Node("Shape", (source,), (f"{name}s",)))
            nodes.append(Node("ConstantOfShape", (f"{name}s",), (f"{name}z",)))
            nodes.append(Node("Add", (source, f"{name}z"), (name,)))
        elif kind == "flatten":
            nodes.append(Node("Flatten", (source,), (name,), {"axis": draw(st.integers(0, 1))}))
        else:
            nodes.append(Node("Transpose", (source,), (name,)))
        values.append(name)
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
    x = np.arange(np.prod(dims), dtype=F32).reshape(dims) - 3
    constants = {"k": np.float32([[1, -2]]), "half": np.float32(0.5)}
    open_dims = tuple(draw(st.sampled_from((n, None, f"n{i}"))) for i, n in enumerate(dims))
    return graph([Value("x", open_dims, F32)], outputs, nodes, **constants), x


@settings(max_examples=tried(300), deadline=None)
@given(graphs())
def test_results_are_the_same_and_dims_are_true(both: tuple[Graph, np.ndarray[Any, Any]]) -> None:
    one, x = both
    expected = one.evaluate(x)
    for made in (inferred(one), inferred(one, {"x": x.shape})):
        for name, got, other in zip(made.results, made.evaluate(x), expected, strict=True):
            np.testing.assert_array_equal(got, other)
            value = made.value(name)
            assert value.dtype in (None, got.dtype)
            assert value.dims is None or len(value.dims) == got.ndim
            assert all(
                not isinstance(n, int) or n == m for n, m in zip(value.dims or (), got.shape, strict=False)
            )
    whole = inferred(one, {"x": x.shape})
    assert all(whole.value(name).known for name in whole.results)
    assert not {"Shape", "ConstantOfShape"} & set(operators(whole))
    assert str(inferred(whole)) == str(whole)


def test_operators_of_the_tests_exist() -> None:
    assert set(UNARY) <= set(OPERATORS)


VECTOR = np.ones(3, np.float32)
REFUSED: dict[str, tuple[str, list[Any], dict[str, Any], int, str]] = {
    "channels": (
        "Conv",
        ["x", np.ones((4, 5, 3, 3), np.float32)],
        {},
        1,
        "3 channels, but the weights take 5",
    ),
    "group": ("Conv", ["x", np.ones((4, 3, 3, 3), np.float32)], {"group": 0}, 1, "parted into 0 groups"),
    "kernel": ("Conv", ["x", np.ones((4, 3, 3, 3), np.float32)], {"kernel_shape": (5, 5)}, 1, "kernel_shape"),
    "bias": ("Conv", ["x", np.ones((4, 3, 1, 1), np.float32), VECTOR], {}, 1, r"bias of \(3,\) for 4"),
    "transposed": ("ConvTranspose", ["x", np.ones((4, 3, 1, 1), np.float32)], {}, 1, "weights take 4"),
    "batch": ("BatchNormalization", ["x", VECTOR, VECTOR, VECTOR[:2], VECTOR], {}, 1, r"mean of \(2,\)"),
    "training": ("BatchNormalization", ["x", VECTOR, VECTOR, VECTOR, VECTOR], {}, 2, "1 output .* not 2"),
    "layer": ("LayerNormalization", ["x", VECTOR], {}, 1, r"scale of \(3,\) can't be broadcast"),
    "groups": ("GroupNormalization", ["x", VECTOR, VECTOR], {"num_groups": 2}, 1, "parted into 2 groups"),
    "outputs": ("Reshape", ["x", np.array([-1])], {}, 2, "1 output .* not 2"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("batch", [2, "batch"])
def test_nodes_that_can_not_run_are_refused_before_they_do(case: str, batch: Any) -> None:
    """By the checks of their definitions, whose error names the node; an open batch changes nothing."""
    operator, inputs, attributes, outputs, said = REFUSED[case]
    constants = {f"c{k}": one for k, one in enumerate(inputs) if not isinstance(one, str)}
    names = tuple(one if isinstance(one, str) else f"c{k}" for k, one in enumerate(inputs))
    node = Node(operator, names, tuple(f"y{k}" for k in range(outputs)), attributes, "bad")
    made = Graph((Value("x", (batch, 3, 8, 8), F32),), ("y0",), (node,), constants)
    with pytest.raises(LayoutError, match=f"node 'bad' .*{said}"):
        inferred(made)


def test_a_model_that_is_made_for_one_batch_says_so() -> None:
    x, shape = Value("x", (1, 4), F32), {"shape": np.array([2, 2])}
    made = Graph((x,), ("y",), (Node("Reshape", ("x", "shape"), ("y",), name="view"),), shape)
    assert inferred(made, 1).value("y").dims == (2, 2)
    message = "made for a batch of 1, and not all of it goes with 3: node 'view'"
    with pytest.raises(LayoutError, match=message):
        inferred(made, 3)
