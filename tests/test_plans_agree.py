"""Plans don't differ between processes: what they are made by is measured once, and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from relayout.graph.plan import NOISE, told_apart
from relayout.reorder import predict
from relayout.reorder.predict import seconds_to_move
from relayout.runtime import clock, kept, thresholds
from relayout.runtime.clock import STEP, cycles_per_second
from relayout.targets.machine import derived, host

PLANNED = """
import json
from importlib import import_module
import numpy as np
from relayout.graph import Graph, Node, Value

asked, predict = [], import_module("relayout.reorder.predict")
measured = predict.copy_seconds
predict.copy_seconds = lambda *given: asked.append(given) or measured(*given)
rng = np.random.default_rng(0)
x, nodes, constants, last = Value("x", (1, 24, 28, 28), np.dtype("f4")), [], {}, "x"
for k in range(3):
    constants[f"w{k}"] = rng.standard_normal((24, 24, 1 + 2 * (k % 2), 1 + 2 * (k % 2))).astype("f4")
    nodes.append(Node("Conv", (last, f"w{k}"), (f"c{k}",), {"pads": (k % 2,) * 4}))
    nodes.append(Node("Relu", (f"c{k}",), (f"r{k}",)))
    nodes.append(Node("Concat", (f"r{k}", "x"), (f"j{k}",), {"axis": 1}))
    nodes.append(Node("Slice", (f"j{k}", "begin", "end", "axis"), (f"s{k}",)))
    last = f"s{k}"
constants |= {"begin": np.array([8]), "end": np.array([32]), "axis": np.array([1])}
plan = Graph((x,), (last,), tuple(nodes), constants).plan()
ways = [[one.way.name, sorted(map(str, one.way.inputs.values()))] for one in plan.chosen]
print(json.dumps([plan.cost, ways, len(asked)]))
"""


def answered(folder):
    """What a process of its own plans, with a cache of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PLANNED],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RELAYOUT_CACHE": str(folder), "RELAYOUT_EFFORT": "measure"},
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_a_second_process_plans_by_what_the_first_has_measured(tmp_path):
    folder = tmp_path / "cache"
    first, second = answered(folder), answered(folder)
    assert first[2] > 0
    assert second == [first[0], first[1], 0]


def test_a_speed_measured_on_a_busy_machine_does_not_stay(tmp_path, monkeypatch):
    """A copy that is far faster proves that; one that is slower may be noise, and changes nothing."""
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept.cache, "sources", lambda _: "code")
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    kept.generation.cache_clear()
    size, asked, taken = 1 << 20, [], [1.0]
    monkeypatch.setattr(predict, "copy_seconds", lambda *given: asked.append(given) or taken[0])
    predict._speed.clear()
    busy = seconds_to_move(size)
    taken[0] = 0.1
    for seconds in (2 * busy, busy, busy / 1.2):
        predict.note(size, seconds)
        assert seconds_to_move(size) == busy
    assert len(asked) == 2  # sizes of that order, and of the one below
    before = kept.generation()
    predict.note(size, busy / 10)
    assert kept.generation() != before
    assert seconds_to_move(size) == pytest.approx(busy / 10, rel=0.2)
    predict.note(size, busy / 10)
    assert len(asked) == 4
    predict._speed.clear()
    kept.generation.cache_clear()


def test_costs_that_no_estimate_tells_apart_are_the_same():
    assert told_apart([2.0, 2.0 * (1 + 0.4 * NOISE), 3.0]) == [2.0, 2.0, pytest.approx(3.0)]
    assert told_apart([0.0, 1e-9, 5.0]) == [0.0, 1e-9, 5.0]  # views cost nothing, and what is no view does


@pytest.mark.parametrize("costs", [[1.0], [3e-6, 1e-6, 2.2e-6], [1e-3, 1.06e-3]])
def test_costs_stay_what_they_are_but_for_noise(costs):
    found = told_apart(costs)
    assert min(found) == min(costs)
    assert all(abs(a - b) <= 0.5001 * NOISE * min(costs) for a, b in zip(costs, found, strict=True))


def test_the_clock_is_a_whole_number_of_steps(monkeypatch):
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    assert cycles_per_second() % STEP == 0


def test_nothing_is_measured_for_an_estimate(monkeypatch):
    """Else one problem had other plans in other processes, and on a busy machine bad ones."""

    def measured(*_):
        raise AssertionError("nothing may be measured")

    monkeypatch.setenv("RELAYOUT_EFFORT", "estimate")
    monkeypatch.setattr(predict, "copy_seconds", measured)
    monkeypatch.setattr(thresholds, "calibrated", measured)
    monkeypatch.setattr(clock.time, "perf_counter", measured)
    predict._speed.clear()
    cycles_per_second.clear()
    assert [seconds_to_move(1 << 24, count) > 0 for count in (1, 2, None)] == [True] * 3
    assert cycles_per_second() == clock.USUAL
    for what in ("streaming", "sharing"):
        here = host()
        assert thresholds.threshold(what, here) == getattr(derived(here.l2, here.l3), what)


def test_what_is_no_answer_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept.cache, "sources", lambda _: "code")
    asked = []

    def ask(number):
        asked.append(number)
        return [number]

    assert kept.kept("a test")(ask)(1) == kept.kept("a test")(ask)(1) == [1]
    assert asked == [1]
    (entry,) = [path for path in (tmp_path / "cache").iterdir() if path.name.startswith("cost-")]
    kept.cache.save(entry.name, b"{")
    assert kept.kept("a test")(ask)(1) == [1]
    assert asked == [1, 1]
