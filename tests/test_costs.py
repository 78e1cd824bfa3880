"""What schedules of transposes cost: facts that hold for every first cache of 32 KiB or more."""

from __future__ import annotations

import pytest

import relayout as rl
from relayout.kernels.copy import ESTIMATE, cost, tiling
from relayout.kernels.copy import plan as plans
from relayout.kernels.copy.candidates import lowered
from relayout.kernels.copy.module import module
from relayout.kernels.copy.problem import moves, simplified
from relayout.kernels.copy.tiling import tiled
from relayout.targets.machine import machine


@pytest.fixture(autouse=True)
def first_cache(monkeypatch):
    """A first cache of 48 KiB: 12 ways of 64 sets."""
    monkeypatch.setattr(cost, "caches", lambda: (48 << 10, 2 << 20, 32 << 20))


def planned(rows, columns, dtype="f32", *, pitch=None, wish=ESTIMATE, processor=None):
    """The plan of a matrix's transpose, whose rows begin so many elements apart."""
    layout = rl.Layout((rows, columns), strides=(pitch or columns, 1))
    src, dst = rl.MemoryDesc((rows, columns), dtype, layout), rl.MemoryDesc((rows, columns), dtype, "ba")
    (plan,) = lowered(moves(src, dst), wish, processor)
    return plan


def test_rows_that_fall_into_one_set_are_staged():
    for name, other in (("x86-64-v3", "transpose"), ("x86-64-v4", "squares")):
        processor = machine(name)
        assert planned(512, 512, pitch=1024, processor=processor).kind == "staged"
        assert planned(512, 512, pitch=1040, processor=processor).kind == other


@pytest.mark.parametrize(
    ("pitch", "rows"), [(64, 384), (128, 192), (256, 96), (1024, 24), (4096, 6), (1000, 384)]
)
def test_how_many_rows_have_a_line_in_the_first_cache(pitch, rows):
    """Six ways of twelve, in as many sets as rows fall into."""
    plan = planned(1024, 64, "u8", pitch=pitch)
    assert cost.fitting(plan.rows) == rows


@pytest.mark.parametrize("dtype", ["u8", "bf16", "f32", "f64"])
def test_blocks_are_whole_lines_that_fit(dtype):
    for pitch in (768, 800, 832, 1536):
        plan = planned(1024, 700, dtype, pitch=pitch)
        bits = plan.nest.write
        assert plan.block * bits % 512 == 0
        assert plan.kind in ("staged", "squares") or plan.block <= cost.fitting(plan.rows)


def test_what_a_schedule_says_holds():
    for stage in (True, False):
        for rows in (16, 64, 128):
            plan = planned(700, 900, wish=f"{'staged' if stage else 'direct'}, {rows} rows")
            assert (plan.kind == "staged", plan.block) == (stage, rows)


def test_a_stage_costs_more_where_nothing_collides():
    plan = planned(500, 500, "u8")
    costs = [cost.transposing(plan.nest, plan.columns, plan.rows, 64, stage) for stage in (False, True)]
    assert costs[0] < costs[1]


@pytest.mark.parametrize(
    ("inputs", "taps", "taken"),
    [(616, 7, 308), (90, 49, 45), (89, 49, 89), (617, 7, 617), (512, 9, 32), (40, 9, 40), (4099, 7, 0)],
)
def test_short_runs_go_on_as_far_as_their_table_may(inputs, taps, taken):
    """By whole lines if there are any, else by a large part, or as a whole where there are no parts."""
    src, dst = (rl.MemoryDesc((8, inputs, 1, taps), "bf16", tag) for tag in ("hwio", "oihw"))
    (move,) = moves(src, dst)
    rows = tiled(simplified(move)).rows
    assert rows.extent == taps * (taken or 1)


@pytest.mark.parametrize("dims", [(127, 1801, 3, 3), (96, 331, 7, 7), (128, 641, 5, 5)])
@pytest.mark.parametrize("tags", [("oihw", "hwio"), ("hwio", "oihw")])
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_where_all_is_joined_threads_share_rows(dims, tags, name, monkeypatch):
    """Nothing is left around a run that has taken a prime number of inputs."""
    for module_ in (plans, tiling):
        monkeypatch.setattr(module_, "count", lambda: 2)
    src, dst = (rl.MemoryDesc(dims, "f32", tag) for tag in tags)
    (plan,) = lowered(moves(src, dst), ESTIMATE, machine(name))
    assert plan.extent >= 2 * plan.unit


@pytest.mark.parametrize(("blocks", "pixels"), [("nChw16c", 7), ("nChw16c", 5), ("nChw8c", 7), ("nChw4c", 7)])
def test_few_pixels_are_interleaved_many_at_a_time(blocks, pixels):
    """Nothing but 1 divides 49: a vector has as many pixels as fit, and then come those that are left."""
    src, dst = (rl.MemoryDesc((1, 16, pixels, pixels), "s8", tag) for tag in ("nchw", blocks))
    (plan,) = lowered(moves(src, dst), ESTIMATE, machine("x86-64-v4"))
    text, _ = module([plan], machine("x86-64-v4"))
    assert plan.kind == "interleave"
    assert "load <16 x i8>" in text
