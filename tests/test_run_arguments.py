"""What a network is given and gives back: arrays of every kind, and errors that say what it wants."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from graphs import Building
from relayout.errors import LayoutError
from relayout.graph import Graph, Node, Value

F32 = np.dtype(np.float32)
DIMS = 2, 16, 4, 4


def small():
    b = Building(DIMS)
    return b.graph(b("Relu", "x0"), b("Add", "x0", 1.0))


@pytest.fixture(scope="module")
def run():
    return small().compile()


def image(seed=0):
    return np.random.default_rng(seed).standard_normal(DIMS).astype(np.float32)


def test_out_is_written_and_returned(run):
    x, first, second = image(), np.empty(DIMS, F32), np.asfortranarray(np.empty(DIMS, F32))
    found = run(x, out=[first, second])
    assert found[0] is first
    assert found[1] is second
    for one, wanted in zip(found, run(x), strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_one_output_is_given_its_array_alone():
    x = Value("x", (2, 3), F32)
    out = np.empty((2, 3), F32)
    (found,) = Graph((x,), ("y",), (Node("Relu", ("x",), ("y",)),)).compile()(-np.ones((2, 3), F32), out=out)
    assert found is out
    assert not out.any()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: [np.zeros((5, *DIMS), F32)], "5x2x16x4x4 was given"),  # it could be broadcast to
        (lambda: [np.zeros((2, 16, 4, 5), F32)], "float32 2x16x4x5 was given"),
        (lambda: [np.zeros(DIMS)], "float64 2x16x4x4 was given"),
        (lambda: [np.broadcast_to(np.float32(0), DIMS)], "can only be read"),
        (lambda: [np.zeros(DIMS, F32).tolist()], "there is list"),
        (lambda: [None], "there is NoneType"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(run, make, said):
    first = np.zeros(DIMS, F32)
    with pytest.raises(LayoutError, match=said):
        run(image(), out=[first, *make()])
    assert not first.any()


@pytest.mark.parametrize("out", [np.zeros(DIMS, F32), [np.zeros(DIMS, F32)], {"a": 1}, 3])
def test_there_is_an_array_for_each_output(run, out):
    with pytest.raises(LayoutError, match=r"out takes an array for each output"):
        run(image(), out=out)


def test_results_have_memory_of_their_own_whatever_runs():
    """Definitions return views, of inputs and constants too."""
    x = Value("x", (2, 3), F32)
    nodes = Node("Reshape", ("x", "shape"), ("y",)), Node("NonZero", ("x",), ("n",))
    constants = {"shape": np.array([3, 2]), "c": np.ones(2, F32)}
    run = Graph((x,), ("x", "y", "y", "n", "c"), nodes, constants).compile()
    assert "NonZero" in run.why
    given = np.ones((2, 3), F32)
    made = run(given)
    for k, one in enumerate(made):
        assert one.flags.writeable
        assert not any(np.may_share_memory(one, other) for other in (given, *made[:k]))


def test_inputs_have_any_name():
    values = Value("self", (2,), F32), Value("x:0", (2,), F32)
    run = Graph(values, ("y",), (Node("Add", ("self", "x:0"), ("y",)),)).compile()
    (found,) = run(**{"self": np.ones(2, F32), "x:0": np.ones(2, F32)})
    np.testing.assert_array_equal(found, [2, 2])


def test_tensors_of_pytorch(run):
    torch = pytest.importorskip("torch")
    x = image()
    for given in (torch.from_numpy(x), torch.from_numpy(x).requires_grad_()):
        np.testing.assert_array_equal(run(given)[0], run(x)[0])
    with pytest.raises(LayoutError, match="an array of bfloat16 2x16x4x4 was given"):
        run(torch.from_numpy(x).bfloat16())
    halves = Graph(
        (Value("x", (3,), np.dtype("bfloat16")),), ("y",), (Node("Neg", ("x",), ("y",)),)
    ).compile()
    assert halves(torch.ones(3, dtype=torch.bfloat16))[0].tolist() == [-1, -1, -1]
    truths = Graph((Value("x", (3,), np.dtype(bool)),), ("y",), (Node("Not", ("x",), ("y",)),)).compile()
    assert truths(torch.tensor([True, False, True]))[0].tolist() == [False, True, False]


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_threads_are_one_or_more(threads):
    for ask in (small().compile, small().plan):
        with pytest.raises(LayoutError, match="threads must be 1 or more"):
            ask(threads=threads)


def test_optional_outputs_that_are_left_out_by_an_empty_name():
    helper = pytest.importorskip("onnx").helper
    node = helper.make_node("MaxPool", ["x"], ["y", ""], kernel_shape=[2, 2])
    ends = [helper.make_tensor_value_info(name, 1, dims) for name, dims in {"x": DIMS, "y": None}.items()]
    run = rl.load(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]))).compile()
    assert run(image())[0].shape == (2, 16, 3, 3)
