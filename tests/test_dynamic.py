"""Networks with open sizes: of inputs, and those that data decide."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from graphs import Building
from relayout.errors import LayoutError
from relayout.graph import Value
from relayout.graph.compiling import KEPT, OpenRun
from relayout.graph.dynamic import divided
from relayout.graph.inference import inferred

RNG = np.random.default_rng(5)


def noise(*dims):
    return RNG.standard_normal(dims).astype(np.float32)


def small(dims):
    b = Building(dims)
    conv = b("Conv", "x0", b.random(16, 16, 3, 3) / 12, pads=(1, 1, 1, 1))
    return b.graph(b("Relu", conv))


def detector(dims=(2, 16, 9, 9)):
    """Scores of all places, and where they are large: only data decide how many there are."""
    b = Building(dims, (1,))
    conv = b("Conv", "x0", b.random(16, 16, 3, 3), pads=(1, 1, 1, 1))
    scores = b("Sigmoid", conv)
    found = b("NonZero", b("Greater", scores, 0.5))
    return b.graph(b("Add", b("Cast", found, to=1), "x1"), scores)


def test_sizes_of_inputs_are_known_when_arrays_are_there():
    graph = small(("batch", 16, "h", "w"))
    run = graph.compile()
    assert run.plan is None
    assert "batch" in run.why
    for dims in ((1, 16, 8, 8), (3, 16, 5, 9), (1, 16, 8, 8)):
        x = noise(*dims)
        (found,) = run(x)
        np.testing.assert_allclose(found, graph.evaluate(x)[0], rtol=1e-4, atol=1e-5)
    assert run.at(x).steps is not None
    assert run.at(x) is run.at(noise(1, 16, 8, 8))
    assert run.profile(x, repeat=1)


def test_only_some_sets_of_sizes_are_kept():
    run = small(("batch", 16, 4, 4)).compile()
    assert isinstance(run, OpenRun)
    first = run.at(noise(1, 16, 4, 4))
    for batch in range(2, KEPT + 1):
        run.at(noise(batch, 16, 4, 4))
    assert run.at(noise(1, 16, 4, 4)) is first
    run.at(noise(KEPT + 1, 16, 4, 4))
    run.at(noise(KEPT + 2, 16, 4, 4))
    assert run.at(noise(1, 16, 4, 4)) is first
    assert run._made.cache_info().currsize == KEPT


def test_sizes_that_never_come_again_are_not_compiled():
    graph = small(("batch", 16, 4, 4))
    run = graph.compile()
    for batch in range(1, KEPT + 3):
        x = noise(batch, 16, 4, 4)
        np.testing.assert_allclose(run(x)[0], graph.evaluate(x)[0], rtol=1e-4, atol=1e-5)
    assert run._made.cache_info().misses == KEPT
    run(x)
    assert run._made.cache_info().misses == KEPT + 1


def test_sizes_that_do_not_fit_name_the_node():
    b = Building(("n", 3), ("m", 4))
    run = b.graph(b("MatMul", "x0", "x1")).compile()
    assert run(noise(2, 3), noise(3, 4))[0].shape == (2, 4)
    with pytest.raises(LayoutError, match="MatMul"):
        run(noise(2, 3), noise(5, 4))
    with pytest.raises(LayoutError, match="the network's input is x0 f32 nx3"):
        run(noise(2, 4), noise(4, 4))


def test_threads_bring_their_own_sizes():
    graph = small(("batch", 16, 6, 6))
    run = graph.compile()
    given = [noise(1 + i % 3, 16, 6, 6) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, given))
    for x, (found,) in zip(given, results, strict=True):
        np.testing.assert_allclose(found, graph.evaluate(x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [(2, 16, 9, 9), ("batch", 16, 9, 9)])
def test_what_data_do_not_decide_is_compiled(dims):
    graph = detector(dims)
    run = graph.compile()
    x, shift = noise(2, 16, 9, 9), np.float32([7])
    one = run.at(x, shift) if isinstance(run, OpenRun) else run
    assert "NonZero" in one.why
    assert [node.operator for node in one.plan.tail.nodes] == ["NonZero", "Cast", "Add"]
    assert any("conv" in step.kind.lower() for step in run.profile(x, shift, repeat=1))
    both, scores = run(x, shift)
    np.testing.assert_allclose(scores, graph.evaluate(x, shift)[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(both, np.float32(np.nonzero(scores > 0.5)) + 7)
    into = np.empty_like(both), np.empty_like(scores)
    assert run(x, x1=shift, out=into)[0] is into[0]
    np.testing.assert_array_equal(into[0], both)


def test_a_plan_covers_what_is_decided():
    plan = detector().plan()
    assert "NonZero" not in {node.operator for node in plan.graph.nodes}
    assert plan.cost > 0
    assert [node.operator for node in plan.tail.nodes] == ["NonZero", "Cast", "Add"]


def test_divided_graphs_compute_the_same():
    graph = inferred(detector())
    head, tail = divided(graph)
    x, shift = noise(2, 16, 9, 9), np.float32([7])
    given = {"x0": x, "x1": shift}
    made = dict(zip(head.results, head.evaluate(*(given[value.name] for value in head.inputs)), strict=True))
    known = given | made
    found = tail.evaluate(*(known[value.name] for value in tail.inputs))
    for one, other in zip(found, graph.evaluate(x, shift), strict=True):
        np.testing.assert_array_equal(one, other)
    assert divided(inferred(small((1, 16, 4, 4))))[1] is None


def test_where_nothing_is_decided_definitions_run():
    b = Building((3, 4))
    run = b.graph(b("Cast", b("NonZero", "x0"), to=1)).compile()
    assert run.steps is None
    assert "NonZero" in run.why
    with pytest.raises(LayoutError, match="NonZero"):
        run.profile(noise(3, 4))


def test_inputs_that_nobody_reads_do_not_matter():
    """Text has no memory format, and none is needed where it is not read."""
    b = Building((2, 3))
    graph = b.graph(b("Relu", "x0"))
    text = Value("text", ("n",), np.dtype(object))
    run = graph.replaced(inputs=(*graph.inputs, text)).compile()
    assert run.steps is not None
    assert not run.why
    x = noise(2, 3)
    (found,) = run(x, np.array(["a", "b"], object))
    np.testing.assert_array_equal(found, np.maximum(x, 0))


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "said"),
    [
        ("LogSoftmax", ((1, 3),), {"axis": 100}, "axis 100 is outside of -2 to 1"),
        ("MatMul", ((1, 2), (2, 1 << 36)), {}, "can't be planned"),
    ],
)
def test_what_can_not_be_planned_names_the_node(operator, inputs, attributes, said):
    b = Building(*inputs)
    with pytest.raises(LayoutError, match=rf"'n0' \({operator}\).*{said}"):
        b.graph(b(operator, *(f"x{i}" for i in range(len(inputs))), **attributes)).compile()
