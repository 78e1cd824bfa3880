"""Candidates for a nest: whatever costs what, all of them write the bytes of the definition."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.kernels.copy import ESTIMATE, base, candidates
from relayout.kernels.copy.plan import DIVIDED, Facts, Plan, costing, one_of, runs, shared_of
from relayout.kernels.copy.problem import Move, moves, simplified
from relayout.runtime import tuning
from strategies import examples
from test_kernels import MOVED, RUNS, SHAPES, Run, attributes_of, compare, compile_, problem

native = importlib.import_module("relayout.reorder.native")
pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

PAIRS = [*((dtype, dtype) for dtype in MOVED), ("f32", "s8"), ("u8", "f32"), ("f32", "bf16"), ("s4", "s8")]
ATTRIBUTES: tuple[dict[str, float], ...] = ({}, {"src_scale": 0.5}, {"beta": 1.0})


def offered(src: rl.MemoryDesc, dst: rl.MemoryDesc, shape=()) -> list[Plan]:
    """All candidates of all nests, and of the parts that they are cut into."""
    found = moves(src, dst, shape)
    parts = candidates._offered(found, None, True) if found is not None else None
    return [plan for plans in parts or () for plan in plans]


def test_choices_among_other_kinds_are_not_taken_for_granted():
    """A choice that was kept knows nothing of kinds that came later: with the list, the version changes."""
    kinds = [plans.__module__.rpartition(".")[2] for plans in candidates.KINDS]
    listed = ["lines", "rows", "blocks", "padded", "deinterleave", "interleave", "packing", "words", "apart"]
    listed += ["together", "regroup", "tiling", "patches", "squares", "elements"]
    assert (tuning.VERSION, kinds) == (29, listed)


@examples(150)
@given(st.integers(0, len(SHAPES) - 1), st.sampled_from(PAIRS), st.sampled_from(ATTRIBUTES), st.data())
def test_every_candidate_writes_what_the_definition_says(number, types, given, data):
    """Also off a line, in parts, and where old values are added."""
    src, dst = problem(number, types)
    plans = offered(src, dst, attributes_of(src, dst, given).shape)
    if plans:
        plan = data.draw(st.sampled_from(plans))
        made = compare(src, dst, given=given, wish=", ".join(plan.words))
        assert plan in made._plans or len(made._plans) > 1


@examples(100)
@given(st.integers(0, len(SHAPES) - 1), st.sampled_from(PAIRS))
def test_candidates_are_sorted_and_told_apart_by_their_words(number, types):
    for nest in moves(*problem(number, types)) or ():
        plans = candidates.candidates(simplified(nest), streaming=True)
        assert candidates.cheapest(simplified(nest), streaming=True) == plans[:1]
        costs = [plan.cost for plan in plans]
        assert costs == sorted(costs)
        assert all(cost > 0 for cost in costs)
        assert len(set(plans)) == len(plans)
        assert len({plan.words for plan in plans}) == len(plans)
        assert all(word != ESTIMATE and ", " not in word for plan in plans for word in plan.words)


@examples(50)
@given(st.integers(0, len(SHAPES) - 1), st.sampled_from(PAIRS), st.booleans())
def test_wishes_are_granted(number, types, streaming):
    """The estimate comes first; what is worth measuring differs, and is found again by its words."""
    found = moves(*problem(number, types))
    known = candidates.wishes(found, streaming=streaming) if found is not None else {}
    for k, (plans, wish) in enumerate(known.items()):
        assert (wish == ESTIMATE) == (k == 0)
        words = {word for plan in plans for word in plan.words}
        assert k == 0 or set(wish.split(", ")) & words
        assert candidates.lowered(found, wish, streaming=streaming) == plans


@examples(100)
@given(st.integers(0, len(SHAPES) - 1), st.sampled_from(PAIRS), st.booleans(), st.sampled_from(ATTRIBUTES))
def test_the_estimate_is_the_cheapest_of_all(number, types, streaming, given):
    """Though most of the others were not made."""
    src, dst = problem(number, types)
    found = moves(src, dst, attributes_of(src, dst, given).shape)
    if found is not None:
        all_of_them = candidates._offered(found, None, streaming)
        expected = None if all_of_them is None else tuple(plans[0] for plans in all_of_them)
        assert candidates.lowered(found, streaming=streaming) == expected


def test_what_fits_the_caches_is_not_tried_around_them():
    found = moves(*(rl.MemoryDesc((256, 512), "f32", tag) for tag in ("ab", "ba")))
    for streaming in (False, True):
        tried = {plan.stream for plans in candidates.wishes(found, streaming=streaming) for plan in plans}
        assert tried == ({False, True} if streaming else {False})


@pytest.mark.turns(2)
@pytest.mark.parametrize("types", [("f32", "f32"), ("s8", "s8"), ("f32", "s8"), ("u8", "f32")])
@pytest.mark.parametrize(
    "sides", [("nchw", "nhwc"), ("nhwc", "nChw16c"), ("nChw8c", "nchw"), ("nhwc", "nchw")]
)
def test_half_of_every_share_may_leave_around_the_caches(types, sides):
    """In one piece, in parts of several units and of less than two, and where lines are not completed."""
    dims = (3, 64, 16, 16)
    src, dst = (rl.MemoryDesc(dims, dtype, tag) for dtype, tag in zip(types, sides, strict=True))
    one_of_each_kind = {plan.kind: plan for plan in offered(src, dst) if plan.stores == 2}
    shares = Run(0, tuple(range(30)))
    for plan in one_of_each_kind.values():
        assert plan.stream
        assert plan.extent >= DIVIDED * plan.unit
        compare(src, dst, wish=", ".join(plan.words), runs=(*RUNS, shares))


def test_half_streams_where_there_are_units_enough():
    src, dst = (rl.MemoryDesc((16, 64, 16, 16), "f32", tag) for tag in ("nchw", "nhwc"))
    made = compare(src, dst, wish="half streamed")
    assert all(plan.stores == 2 for plan in made._plans)


def test_a_wish_that_nobody_grants_is_the_estimate():
    found = moves(rl.MemoryDesc((40, 50), "f32", "ab"), rl.MemoryDesc((40, 50), "f32", "ba"))
    assert candidates.lowered(found, "sideways, 7 rows") == candidates.lowered(found)


class BackwardsPlan(Plan):
    """A kind of kernel in one file: all elements, the last one of a row first."""

    kind = "backwards"


def backwards(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Nests with a row."""
    _, outer = runs(nest)
    if outer is not None and not nest.fill and not nest.zero:
        made = BackwardsPlan(nest, one_of(nest), one_of(nest), nest.loops, shared_of(nest.loops))
        yield from costing(made, facts, 0.1)


class Backwards(base.Kernel):
    """Loops as always, but turned round."""

    def moved(self, place, index, loop):
        turned = self.b.sub(loop.extent - 1, index)
        return super().moved(place, turned, loop)

    def body(self, place):
        self.store(self.load(place, 1, [[0]] * len(self.nest.tables)), place, [[0]] * len(self.nest.tables))


@pytest.mark.parametrize("types", [("f32", "f32"), ("u8", "f32")])
def test_a_kind_is_added_by_entering_its_plans_and_its_kernel(types, monkeypatch):
    monkeypatch.setitem(base.WRITERS, BackwardsPlan, Backwards)
    monkeypatch.setattr(candidates, "KINDS", [*candidates.KINDS, backwards])
    dims = (3, 5, 7)
    src, dst = (rl.MemoryDesc(dims, dtype, tag) for dtype, tag in zip(types, ("abc", "acb"), strict=True))
    found = moves(src, dst, ())
    assert "backwards" in candidates.wishes(found, streaming=True).values() or (
        candidates.lowered(found)[0].kind == "backwards"
    )
    made = native.Native(src, dst, found)
    assert made.kinds == ("backwards",)
    source = np.arange(105).astype(src.dtype.numpy)
    target = np.zeros(105, dst.dtype.numpy)
    made(source.ctypes.data, target.ctypes.data)
    expected = source.reshape(dims).transpose(0, 2, 1).astype(target.dtype)
    np.testing.assert_array_equal(target.reshape(3, 7, 5), expected)


def test_rows_are_never_moved_element_by_element():
    """They move as much or more, and a contest that is disturbed can't take them for slower."""
    for src, dst, dims in (("nChw16c", "nhwc", (1, 644, 11, 9)), ("nChw8c", "nchw", (1, 9, 5, 1))):
        for move in moves(rl.MemoryDesc(dims, "f32", src), rl.MemoryDesc(dims, "f32", dst)):
            kinds = {plan.kind for plan in candidates.candidates(simplified(move))}
            assert kinds
            assert not kinds >= {"elements", "rows"}


@pytest.mark.parametrize(
    ("src", "dst", "inputs"), [("oihw", "hwio", 9), ("hwio", "oihw", 90), ("hwio", "oihw", 89)]
)
def test_runs_that_are_joined_are_cut_where_old_values_are_added(src, dst, inputs):
    sides = (rl.MemoryDesc((3, inputs, 7, 7), "f32", tag) for tag in (src, dst))
    compare(*sides, given={"beta": 1.0}, runs=RUNS[:1])
