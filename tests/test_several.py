"""Programs of several products: their contests, and what is known from them later."""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import relayout as rl
from elementwise import machine_code
from processes import is_done
from relayout import MemoryDesc
from relayout.primitives import LSTM, InnerProduct, InnerProductBackwardData, LSTMBackward, Sequence
from relayout.primitives.drafting import Part
from relayout.primitives.several import Contests
from relayout.runtime import tuning
from relayout.runtime.tuning import AGREE, Choice
from relayout.tensor import Tensor

products, recurrence, trials = (
    importlib.import_module(f"relayout.primitives.{name}") for name in ("products", "recurrence", "trials")
)
pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")

STEPS, BATCH, WIDTH = 6, 16, 96
MOST = tuning.BEGIN + 16 * (tuning.TURN * tuning.ROUNDS + 1)
"""Calls that no contest outlasts."""


@pytest.fixture(autouse=True)
def measuring(monkeypatch, tmp_path):
    """Choices of this test's own, as a first process on this machine has them; all products are measured."""
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    monkeypatch.setattr(trials, "MEASURABLE", 0)
    forgotten()
    yield
    forgotten()


def forgotten() -> None:
    """What a new process does not know."""
    trials._trial.cache_clear()


def forward(**options: Any) -> LSTM:
    """A small layer."""
    directions = 2 if options.get("direction") else 1
    src = MemoryDesc((STEPS, BATCH, WIDTH), "f32", "tnc")
    weights = MemoryDesc((1, directions, WIDTH, 4, WIDTH), "f32", rl.any)
    return LSTM(src, weights, weights, workspace=True, **options)


def backward(**options: Any) -> LSTMBackward:
    """The way back."""
    free = dict.fromkeys(("weights_layer", "weights_iter", "diff_weights_layer", "diff_weights_iter"), rl.any)
    return LSTMBackward(forward(**options), **free)


def inner(format: str = "oihw") -> InnerProductBackwardData:
    """A product between reorders."""
    weights = MemoryDesc((200, 32, 4, 4), "f32", format)
    made = InnerProduct(MemoryDesc((64, 32, 4, 4), "f32", "nchw"), weights)
    return InnerProductBackwardData(made, diff_src=MemoryDesc(made.src.dims, "f32", "nChw16c"))


def given(made: Any) -> list[Tensor]:
    """Its inputs: of small numbers."""
    rng = np.random.default_rng(1)
    return [
        rl.tensor(rng.uniform(-0.5, 0.5, made.descs[name].dims).astype("f4"), made.descs[name])
        for name in made.inputs
    ]


def results(made: Any, inputs: list[Tensor]) -> list[np.ndarray]:
    found = made(*inputs)
    several = (found,) if len(made.outputs) == 1 else found
    return [one.numpy().view("u4") for one in several]


def parts(made: Any) -> list[Part]:
    """The products of a primitive whose contests have not been held."""
    made._compiled()
    assert isinstance(made._trial, Contests)
    return [one for one in made._trial._draft.pieces if isinstance(one, Part)]


def contested(made: Any) -> list[Part]:
    """Those of them that have several schedules: with 16 registers a recurrence may have one tile alone."""
    return [one for one in parts(made) if one.trial is not None]


def rankings(choices: Iterable[Choice]) -> dict[str, Any]:
    """What is known of each problem, whenever it was asked for."""
    return {one.problem: one.ranking for one in choices}


KINDS = [forward, backward, inner]


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", KINDS)
def test_first_calls_hold_the_contests_of_all_products(kind):
    made = kind()
    inputs = given(made)
    first = results(made, inputs)
    mine, problems = contested(made), made._problems
    assert len(problems) >= 1
    assert made.choices() == ()
    for _ in range(MOST):
        np.testing.assert_equal(results(made, inputs), first)
        if made._trial is None:
            break
    assert made._trial is None
    assert tuple(one.problem for one in made.choices()) == problems
    assert sorted(one.problem for one in tuning.choices()) == sorted(problems)
    known = {one.problem: [name for name, _ in one.ranking] for one in made.choices()}
    for part in mine:
        assert str(part.lowered()).endswith(part.trial.first)
        assert part.trial.first in known[part.trial.problem]
        assert part.trial.first in made.implementation
    np.testing.assert_equal(results(made, inputs), first)
    later = kind()
    assert later.implementation == made.implementation
    assert later._trial is None


@pytest.mark.parametrize("kind", KINDS)
def test_every_schedule_gives_the_same_bits(kind, monkeypatch):
    inputs = given(kind())
    expected, seen = results(kind(), inputs), set()
    listed = {part.trial.problem: part.trial._listed() for part in contested(kind())}
    for k in range(1, max(map(len, listed.values()))):
        for problem, several in listed.items():
            name = str(several[min(k, len(several) - 1)])
            tuning.keep(Choice(problem, AGREE, ((name, 0.5), (str(several[0]), 1.0))))
        forgotten()
        made = kind()
        assert made._compiled() is not None
        assert made._trial is None
        seen.add(made.implementation)
        np.testing.assert_equal(results(made, inputs), expected)
        monkeypatch.setenv("RELAYOUT_EFFORT", "estimate")  # reads none of it
        assert kind().implementation not in seen
        monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    assert seen


@pytest.mark.parametrize("kind", KINDS)
def test_an_estimate_measures_nothing(kind, monkeypatch):
    monkeypatch.setenv("RELAYOUT_EFFORT", "estimate")
    made = kind()
    inputs = given(made)
    for _ in range(tuning.BEGIN + 2):
        results(made, inputs)
    assert made.tune() is None
    assert made._trial is None
    assert not list(tuning.choices())


def test_tuning_ahead_decides_all_problems():
    made = backward()
    assert made.tune().ranking == made.choices()[0].ranking
    assert made._trial is None
    largest = made.choices()[0].problem
    assert largest == made._problems[0]
    assert rankings(made.choices()) == rankings(tuning.choices())
    copied = copy.copy(made)
    assert copied.implementation == made.implementation


def test_directions_and_gates_have_one_problem():
    one, both = parts(forward()), parts(forward(direction="bidirectional_concat"))
    assert [part.made.problem for part in both[:2]] == [one[0].made.problem] * 2
    assert [part.holds for part in both] == [True, False, True]
    assert both[2].made.problem != one[1].made.problem
    gates = [part for part in parts(backward()) if isinstance(part.made, products.Products)]
    assert len({part.trial.problem for part in gates}) < len(gates)


def test_what_begins_within_a_cache_line_is_another_problem():
    part = parts(forward())[0]
    src = part.made.src

    def moved(offset: int) -> str:
        other = MemoryDesc(src.dims, "f32", src.layout.moved(offset))
        return products.replace(part.made, src=other).problem

    assert moved(0) == moved(16) == moved(160) == part.made.problem
    assert moved(1) == moved(17) != moved(0)


def test_a_part_that_follows_takes_what_was_found():
    made = forward(direction="bidirectional_concat")
    inputs = given(made)
    first = results(made, inputs)
    assert {*made._problems} == {part.trial.problem for part in contested(made)}
    trial = parts(made)[0].trial
    problem, listed = trial.problem, trial._listed()
    known = Choice(problem, AGREE, ((str(listed[1]), 0.5), (str(listed[0]), 1.0)))
    tuning.keep(known)
    forgotten()
    later = forward(direction="bidirectional_concat")
    assert later.implementation.endswith(f"products in {listed[1]}")
    np.testing.assert_equal(results(later, inputs), first)


@pytest.mark.parametrize("kind", [forward, backward])
def test_every_tile_of_a_recurrence_gives_the_same_bits(kind):
    made = kind()
    inputs = given(made)
    expected = results(made, inputs)
    (part,) = (one for one in parts(made) if isinstance(one.made, recurrence.Recurring))
    if part.trial is None:
        pytest.skip("this processor has registers for one tile alone")
    estimate, *others = map(str, part.trial._listed())
    assert others
    for tile in others:
        tuning.keep(Choice(part.trial.problem, AGREE, ((tile, 0.5), (estimate, 1.0))))
        forgotten()
        later = kind()
        assert later.implementation.startswith(f"machine code: {tile}; ")
        np.testing.assert_equal(results(later, inputs), expected)


def test_threads_hold_one_contest():
    made = backward()
    inputs = given(made)
    expected = results(made, inputs)
    right = []

    def work() -> None:
        right.extend(all(map(np.array_equal, results(made, inputs), expected)) for _ in range(MOST // 2))

    several = [threading.Thread(target=work) for _ in range(3)]
    for one in several:
        one.start()
    for one in several:
        one.join()
    assert len(right) == 3 * (MOST // 2)
    assert all(right)
    assert made._trial is None
    assert len(made.choices()) == len(made._problems)


def test_sequences_tune_all_problems_of_a_layer():
    sequence = Sequence()
    made = inner()
    values = [sequence.input(name, made.descs[name]) for name in made.inputs]
    sequence.output(sequence.add(made, *values))
    layer = forward()
    values = [sequence.input(f"layer {name}", layer.descs[name]) for name in layer.inputs]
    dst, _ = sequence.add(layer, *values)
    sequence.output(dst)
    run = sequence.compile()
    inputs = given(made) + given(layer)
    expected = [one.numpy() for one in run(*inputs)]
    told = []
    run.tune(lambda name, choice: told.append(choice))
    np.testing.assert_equal([one.numpy() for one in run(*inputs)], expected)
    assert rankings(told) == rankings(tuning.choices())
    assert [one.implementation for one in run.layers()] == [made.implementation, layer.implementation]


def test_other_processes_know_the_winner(tmp_path):
    made = inner()
    made._compiled()
    part = parts(made)[0]
    listed = part.trial._listed()
    tuning.keep(Choice(part.trial.problem, AGREE, ((str(listed[1]), 0.5), (str(listed[0]), 1.0))))
    is_done(
        tmp_path,
        f"""
        import sys
        sys.path.insert(0, sys.argv[1])
        from test_several import inner, trials
        trials.MEASURABLE = 0
        made = inner()
        assert made.implementation == "machine code: {listed[1]}", made.implementation
        assert made._trial is None
        print("done")
        """,
    )
