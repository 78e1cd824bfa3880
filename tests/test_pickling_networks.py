"""Graphs and runs go to other processes and are copied; plans say why they don't."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from processes import is_done
from relayout.errors import LayoutError, Unsupported
from relayout.graph import Graph, Node, Value
from relayout.graph.defaults import Others
from relayout.graph.plain import MAGIC
from test_saving import F32, images, texts, weights

WAYS = {"pickled": lambda one: pickle.loads(pickle.dumps(one)), "copied": copy.copy, "deep": copy.deepcopy}


def drawn(graph: Graph, **sizes: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal([sizes.get(str(n), n) for n in value.dims]).astype(value.dtype)
        for value in graph.inputs
    ]


def opened() -> Graph:
    """A network whose batch is open."""
    x = Value("x", ("batch", 3, 12, 10), F32)
    nodes = Node("Conv", ("x", "w"), ("a",)), Node("Relu", ("a",), ("y",))
    return Graph((x,), ("y",), nodes, {"w": weights(8, 3, 3, 3)})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("made", [images, texts])
def test_runs_compute_the_same(way, made):
    graph = made()
    run = graph.compile(threads=2)
    other = WAYS[way](run)
    given = drawn(graph)
    for found, was in zip(other(*given), run(*given), strict=True):
        np.testing.assert_array_equal(found, was)
    assert repr(other) == repr(run)
    assert other.memory == run.memory
    assert other.why == run.why
    assert (other is run) == (way != "pickled")


@pytest.mark.parametrize("way", WAYS)
def test_graphs_are_what_they_were(way):
    graph = images()
    other = WAYS[way](graph)
    assert str(other) == str(graph)
    for found, was in zip(other.compile()(*drawn(graph)), graph.compile()(*drawn(graph)), strict=True):
        np.testing.assert_array_equal(found, was)


@pytest.mark.parametrize("way", WAYS)
def test_runs_of_open_sizes_are_compiled_there(way):
    run = opened().compile(format="nhwc", threads=1)
    given = drawn(opened(), batch=2)
    expected = run(*given)
    other = WAYS[way](run)
    np.testing.assert_array_equal(other(*given)[0], expected[0])
    assert other.at(*given).plan is not None
    assert repr(other) == repr(run)


def test_a_run_takes_its_defaults_along():
    w = np.float32([1, 2, 3])
    x, scale = Value("x", (2, 3), F32), Value("w", (3,), F32)
    graph = Graph((x,), ("y",), (Node("Mul", ("x", "w"), ("y",)),), {"w": w}, defaults={"w": scale})
    run = graph.compile()
    run(np.ones((2, 3), F32), w=w + 1)
    other = pickle.loads(pickle.dumps(run))
    assert isinstance(other.with_others, Others)
    for given in ({}, {"w": np.float32([4, 5, 6])}):
        np.testing.assert_array_equal(
            other(np.ones((2, 3), F32), **given), run(np.ones((2, 3), F32), **given)
        )


def test_a_plan_is_itself_in_this_process_and_says_why_it_stays():
    plan = images().plan()
    assert copy.copy(plan) is plan
    assert copy.deepcopy({"plan": plan})["plan"] is plan
    with pytest.raises(Unsupported, match=r"a plan can't be pickled.*graph\.compile\(\)"):
        pickle.dumps(plan)


def test_what_is_damaged_is_one_error():
    data = pickle.dumps(images().compile())
    place = data.index(MAGIC)
    with pytest.raises(LayoutError, match=r"^a pickled run"):
        pickle.loads(data[: place + 100] + b"?" + data[place + 101 :])


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_worker_processes(tmp_path, start):
    import multiprocessing

    if start not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start} here")
    is_done(
        tmp_path,
        f"""
        import multiprocessing, warnings
        warnings.simplefilter("ignore")
        import numpy as np
        from relayout.graph import Graph, Node, Value

        def network():
            w = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype("f4")
            x = Value("x", (1, 3, 9, 9), np.dtype("f4"))
            return Graph((x,), ("y",), (Node("Conv", ("x", "w"), ("y",)),), {{"w": w}})

        class Task:
            def __init__(self):
                self.run = network().compile()

            def __call__(self, k):
                return float(self.run(np.full((1, 3, 9, 9), k, "f4"))[0].sum())

        if __name__ == "__main__":
            task = Task()
            expected = [task(k) for k in range(8)]
            with multiprocessing.get_context({start!r}).Pool(2) as pool:
                assert pool.map(task, range(8)) == expected
            print("done")
        """,
    )
