"""Measured choice: contests, what is kept of them, and plans that take part."""

from __future__ import annotations

import importlib
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from relayout import LayoutError, MemoryDesc, environment
from relayout.jit.support import supported
from relayout.kernels.copy import ESTIMATE
from relayout.reorder import choice, conversion, native
from relayout.reorder import tuning as reorders
from relayout.runtime import tuning
from relayout.runtime.tuning import Choice, Contest
from strategies import examples

trials = importlib.import_module("relayout.primitives.trials")
runs_code = pytest.mark.skipif(not supported(), reason="this host forbids making machine code")
SRC, DST = (MemoryDesc((1, 64, 40, 40), "f32", format) for format in ("nchw", "nhwc"))


@pytest.fixture
def measuring(monkeypatch, tmp_path):
    """Choices of this test's own, as a first process on this machine has them."""
    monkeypatch.setenv("RELAYOUT_EFFORT", "measure")
    monkeypatch.setenv("RELAYOUT_CACHE", str(tmp_path))
    forgotten()
    yield
    forgotten()


def forgotten():
    """What a new process does not know."""
    reorders.trial.cache_clear()
    native._native.cache_clear()
    choice._chosen.cache_clear()
    trials._trial.cache_clear()


def held(contest, times):
    """How many calls a contest takes in which candidate k takes ``times[k]``."""
    calls = 0
    while (turn := contest.turn()) is not None:
        contest.record(turn, times[turn])
        calls += 1
        assert calls < 1000
    return calls


def test_long_calls_take_one_turn_each_once_they_are_known_to_be_long():
    usual, long = ([30 * unit, 20 * unit, 25 * unit] for unit in (1, tuning.LONG))
    assert held(Contest(3), long) < held(Contest(3), usual)
    contest = Contest(3)
    held(contest, long)
    assert contest.winner == 1


@examples(200)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=15))
def test_the_fastest_wins_if_it_beats_the_estimate(times):
    contest = Contest(len(times))
    calls = held(contest, times)
    assert calls <= len(times) * tuning.ROUNDS * tuning.TURN
    best = min(times)
    assert contest.winner is not None
    if best < tuning.NOISE * times[0]:
        assert times[contest.winner] == best
    else:
        assert contest.winner == 0
    assert contest.turn() is None


@examples(50)
@given(st.lists(st.floats(1, 10), min_size=2, max_size=8), st.data())
def test_a_call_that_was_held_up_does_not_decide(times, data):
    """One call of each candidate takes three times as long, whichever it is."""
    held_up = [data.draw(st.integers(0, tuning.ROUNDS * tuning.TURN - 1)) for _ in times]
    contest, calls = Contest(len(times)), [0] * len(times)
    while (turn := contest.turn()) is not None:
        contest.record(turn, times[turn] * (3 if calls[turn] == held_up[turn] else 1))
        calls[turn] += 1
    assert times[contest.winner] <= min(times) / tuning.NOISE


def test_candidates_are_timed_in_caches_that_they_have_left():
    """The second one writes around the caches: called again and again it is slower than the estimate."""
    contest, before = Contest(2), 1
    while (turn := contest.turn()) is not None:
        contest.record(turn, {(0, 0): 5, (1, 0): 20, (0, 1): 8, (1, 1): 10}[before, turn])
        before = turn
    assert contest.winner == 0


def test_candidates_that_can_not_do_it_are_left_out():
    contest = Contest(3)
    while (turn := contest.turn()) is not None:
        if turn == 1:
            contest.refuse(turn)
        else:
            contest.record(turn, (10, 1, 5)[turn])
    assert contest.winner == 2


def test_threads_hold_one_contest_together():
    contest, taken = Contest(6), []

    def work():
        while (turn := contest.turn()) is not None:
            contest.record(turn, (9, 8, 7, 2, 8, 9)[turn])
            taken.append(turn)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contest.winner == 3
    assert len(taken) <= 6 * tuning.ROUNDS * tuning.TURN


def test_choices_are_kept(measuring):
    choice = Choice("f32 somewhere", 2, (("direct", 0.5), ("estimate", 1.0)))
    tuning.keep(choice)
    found = tuning.kept("f32 somewhere")
    assert found is not None
    assert found[:3] == choice[:3]
    assert not found.settled
    assert [known.problem for known in tuning.choices()] == ["f32 somewhere"]
    assert tuning.kept("something else") is None
    assert tuning.forget() == 1
    assert tuning.kept("f32 somewhere") is None


@examples(100)
@given(st.binary(max_size=60))
def test_damaged_entries_are_no_choices(data):
    name = tuning.entry("p")
    tuning.cache.save(name, data)
    tuning.kept("p")  # may be None, must not raise
    tuning.cache.save(name, b"p\n1\n0\n0.5 direct\n" + data)
    tuning.kept("p")


def test_a_time_that_is_no_time_is_no_choice():
    tuning.cache.save(tuning.entry("p"), b"p\n1\n" + 400 * b"9" + b"\n0.5 direct")
    assert tuning.kept("p") is None
    tuning.forget()


def test_agreement_settles_and_age_unsettles():
    choice = Choice("p", 0, ())
    for _ in range(tuning.AGREE):
        assert not choice.settled
        choice = choice.joined([("direct", 0.5), ("estimate", 1.0)])
    assert choice.settled
    assert not choice._replace(age=tuning.STALE + 1.0).settled
    assert choice.joined([("estimate", 1.0), ("direct", 1.9)]).contests == 1


def contest_of(problem, times):
    """Which candidates a later process tries, called often enough, if each takes so many seconds."""
    trial = tuning.Trial(problem, lambda: list(times), lambda name: name)
    tried, clock = set(), [0.0]

    def run(name):
        tried.add(name)
        clock[0] += 1e9 * times[name]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning.time, "perf_counter_ns", lambda: int(clock[0]))
        for _ in range(200):
            trial.call(run)
    assert trial.done
    return tried


def test_one_thread_alone_is_timed_by_its_own_clock():
    """Others that take the processor away from it make no candidate slower."""

    def busy():
        end = time.thread_time_ns() + 2_000_000
        while time.thread_time_ns() < end:
            pass

    def held_up():
        busy()
        time.sleep(0.02)

    taken = tuning._nanoseconds(held_up, True)
    assert 2_000_000 <= taken < 20_000_000 <= tuning._nanoseconds(held_up, False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning.time, "thread_time_ns", lambda: 0)  # of a clock that ticks slowly
        assert tuning._nanoseconds(lambda: time.sleep(0.002), True) >= 2_000_000


def test_an_old_choice_is_forgotten_by_the_contest_that_follows(measuring, monkeypatch):
    times = {"estimate": 0.002, "slow": 0.01, "fast": 0.0005}
    tuning.keep(Choice("p", tuning.AGREE, (("slow", 0.5), ("estimate", 1.0))))
    assert contest_of("p", times) == set()
    for days in (31, -31):  # that clock was ahead
        tuning.keep(Choice("p", tuning.AGREE, (("slow", 0.5), ("estimate", 1.0))))
        now = time.time()
        with monkeypatch.context() as patched:
            patched.setattr(tuning.time, "time", lambda then=now + days * 86400: then)
            assert contest_of("p", times) == set(times)
            found = tuning.kept("p")
            assert (found.contests, found.ranking[0][0]) == (1, "fast")


def test_an_estimate_that_was_left_alone_is_measured_again(measuring):
    """A contest without others could only agree, and noise would have decided for ever."""
    times = {"estimate": 0.002, "fast": 0.0005}
    tuning.keep(Choice("p", 1, (("estimate", 1.0),)))
    assert contest_of("p", times) == set(times)
    found = tuning.kept("p")
    assert (found.contests, found.ranking[0][0]) == (1, "fast")


def test_ahead_by_noise_is_not_ahead():
    assert Choice("p", 0, ()).joined([("direct", 0.99), ("estimate", 1.0)]).ranking[0][0] == "estimate"


def test_an_effort_that_there_is_not(monkeypatch):
    monkeypatch.setenv("RELAYOUT_EFFORT", "patient")
    with pytest.raises(LayoutError, match="'patient' is no effort; there are estimate, measure"):
        environment.effort()


@runs_code
def test_a_plan_measures_in_its_first_calls(measuring):
    x = np.random.default_rng(0).random(SRC.dims).astype(np.float32)
    plan, out = rl.Reorder(SRC, DST), np.empty((1, 40, 40, 64), np.float32)
    assert plan.plan._trial is not None
    for _ in range(40 + 20 * tuning.TURN * tuning.ROUNDS):
        out[:] = 0
        plan(x, out)
        np.testing.assert_array_equal(out, x.transpose(0, 2, 3, 1))
    assert plan.plan._trial is None
    (known,) = tuning.choices()
    assert known.problem.startswith("f32:nchw:1x64x40x40 -> f32:nhwc:1x64x40x40 [")
    assert known.contests == 1
    assert plan.plan.kernels.wish == known.ranking[0][0]


@runs_code
@pytest.mark.parametrize("threads", [1, 2])
def test_a_tuned_plan_has_all_that_many_calls_would_have_made(measuring, threads):
    from relayout.runtime import builtin

    x = np.random.default_rng(0).random(SRC.dims).astype(np.float32)
    plan, out = rl.Reorder(SRC, DST, threads=threads), np.empty((1, 40, 40, 64), np.float32)
    plan.tune()
    assert plan.plan._trial is None
    fast = plan.plan.fast
    assert (fast is not None) == builtin.available()
    plan.tune()
    for _ in range(conversion.OFTEN):
        plan(x, out)
    assert plan.plan.fast is fast
    np.testing.assert_array_equal(out, x.transpose(0, 2, 3, 1))


@runs_code
def test_a_later_process_begins_with_what_was_found(measuring):
    way = "staged, 32 rows"
    problem = reorders.problem_of(SRC, DST, ())
    tuning.keep(Choice(problem, tuning.AGREE, ((way, 0.5), ("estimate", 1.0))))
    plan = rl.Reorder(SRC, DST)
    assert plan.plan.kernels.wish == way
    assert plan.plan._trial is None
    assert "schedule     staged, 32 rows, which was measured to be fastest" in plan.explain()
    x = np.random.default_rng(0).random(SRC.dims).astype(np.float32)
    np.testing.assert_array_equal(rl.reorder(rl.tensor(x, "nchw"), "nhwc").numpy(), x)


@runs_code
def test_a_later_plan_takes_the_winner_without_the_disk(measuring, monkeypatch):
    monkeypatch.setenv("RELAYOUT_CACHE", "off")
    held = reorders.trial(SRC, DST, (), None)
    way = "staged, 32 rows"
    held.winner, held.done = native.native(SRC, DST, (), way), True
    plan = rl.Reorder(SRC, DST)
    assert plan.plan.kernels.wish == way
    assert plan.plan._trial is None


@runs_code
def test_estimates_read_no_choices(measuring, monkeypatch):
    tuning.keep(Choice(reorders.problem_of(SRC, DST, ()), 9, (("32 rows", 0.5),)))
    monkeypatch.setenv("RELAYOUT_EFFORT", "estimate")
    plan = rl.Reorder(SRC, DST)
    assert plan.plan.kernels.wish == ESTIMATE
    assert plan.plan._trial is None


@runs_code
def test_small_problems_and_few_calls_measure_nothing(measuring):
    small = rl.Reorder(MemoryDesc((8, 8), "f32", "ab"), MemoryDesc((8, 8), "f32", "ba"))
    assert small.plan._trial is None
    plan, x, out = rl.Reorder(SRC, DST), np.zeros(SRC.dims, np.float32), np.zeros(DST.nbytes, np.uint8)
    for _ in range(tuning.BEGIN):
        plan(x, out)
    assert plan.plan._trial._contest is None
    assert not list(tuning.choices())


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("attributes", [{}, {"src_scale": 0.5}, {"beta": 1}])
def test_every_schedule_gives_the_same_bytes(attributes):
    """Odd sizes, each with one of the types, another one each time; with attributes half of the sizes."""
    from relayout.reorder.attributes import Attributes
    from relayout.tensor import address, allocate

    rng = np.random.default_rng(1)
    shapes = (
        ((2, 70, 9, 31), "nchw", "nhwc"),
        ((2, 70, 9, 31), "nhwc", "nchw"),
        ((3, 130, 7, 5), "nchw", "nChw16c"),
        ((3, 130, 7, 5), "nChw8c", "nhwc"),
        ((67, 35, 3, 3), "oihw", "OIhw4i16o4i"),
        ((300, 517), "ab", "ba"),
    )
    types = [("f32", "f32"), ("s8", "s8"), ("bf16", "f32"), ("f32", "u8")]
    begin = random.randrange(4)
    print(f"begins with {types[begin]}")
    for number, (dims, one, two) in enumerate(share(shapes, begin) if attributes else shapes):
        for kinds in share(types, begin + number, 4):
            src, dst = MemoryDesc(dims, kinds[0], one), MemoryDesc(dims, kinds[1], two)
            part = Attributes.make(dims, **attributes).taking_part(src.dtype, dst.dtype)
            source, expected = allocate(src), None
            source[:] = rng.integers(0, 60, source.size)
            for way in reorders._listed(src, dst, part.shape):
                kernels = native.native(src, dst, part.shape, way)
                assert kernels is not None
                operands = kernels.operands(part)
                out = allocate(dst)
                out[:] = 64
                kernels(address(source), address(out), 0 if operands is None else address(operands))
                expected = out if expected is None else expected
                assert np.array_equal(out, expected), f"{src} -> {dst}: {way}"


@runs_code
def test_a_convolution_measures_in_its_first_calls(measuring):
    """And a later one, in this process or another, begins with what was found."""
    from relayout.primitives import Convolution, Sequence

    rng = np.random.default_rng(2)
    dims, filters = (1, 64, 28, 28), (64, 64, 3, 3)
    src, weights = (MemoryDesc(sizes, "f32", format) for sizes, format in ((dims, "nhwc"), (filters, rl.any)))
    made = Convolution(src, weights, padding=1)
    given = [rl.tensor(rng.random(desc.dims, "f4"), desc.layout) for desc in (made.src, made.weights)]
    first, calls = made(*given).numpy(), 1
    assert made._trial is not None
    while made._trial is not None:
        np.testing.assert_array_equal(made(*given).numpy(), first)
        calls += 1
        assert calls < tuning.BEGIN + 8 * (tuning.TURN * tuning.ROUNDS + 1)
    (known,) = tuning.choices()
    assert known.problem.startswith("f32:nhwc:1x64x28x28 * f32:")
    assert made.implementation == f"machine code: {known.ranking[0][0]}"
    later = Convolution(src, weights, padding=1)
    assert later.implementation == made.implementation
    assert later._trial is None
    tuning.forget()
    forgotten()
    sequence = Sequence()
    sequence.output(sequence.add(Convolution(src, weights, padding=1), sequence.input("x", src), given[1]))
    run = sequence.compile()
    run.tune()
    np.testing.assert_array_equal(run(given[0]).numpy(), first)
    assert len(list(tuning.choices())) == 1


def test_what_cannot_be_deleted_is_left_and_the_rest_forgotten(measuring):
    tuning.keep(Choice("one", 1, (("estimate", 1.0),)))
    tuning.keep(Choice("two", 1, (("estimate", 1.0),)))
    folder = importlib.import_module("relayout.jit.cache").folder()
    Path(folder, f"{tuning._PREFIX}000").mkdir()
    assert tuning.forget() == 2
    assert not list(tuning.choices())
