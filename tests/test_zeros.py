"""Padding: every place of it is zeroed, nothing else is, and few kernels do it."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.kernels.copy.problem import moves, simplified
from relayout.kernels.copy.tiling import HollowPlan
from relayout.loops.padding import _gathered, _joined
from strategies import (
    element_places,
    examples,
    formats,
    has_clean_padding,
    letters_text,
    padding_places,
    tag_formats,
)
from test_kernels import PAIRS, RUNS, Run, attributes_of, compare, compile_, lowered, processors
from test_reorder import writable


@st.composite
def padded(draw, most=4096):
    """Dims and a layout of them that has padding, in blocks of any order."""
    rank = draw(st.integers(1, 4))
    dims = tuple(draw(st.sampled_from((1, 2, 3, 3, 5, 7, 13, 17, 20))) for _ in range(rank))
    layout = rl.Layout(dims, draw(st.one_of(formats(rank), tag_formats(rank))))
    assume(layout.has_padding and np.prod(layout.padded) <= most and writable(layout))
    fused = any(len(term) > 1 for term in layout.terms)
    if not fused and draw(st.integers(0, 3)) == 0:  # pitches, and holes between them
        layout = rl.Layout(dims, layout.format, strides=[2 * s for s in layout.strides], offset=5)
        assume(writable(layout) and has_clean_padding(layout))
    return layout


def places_of(nest):
    """The places that a nest zeroes, in elements of its width; and those that it writes otherwise."""
    data, zeros = [nest.dst], []
    for loop in nest.loops:
        if nest.fill and loop.dst == nest.write:
            row = loop
            continue
        data = [at + turn * loop.dst for at in data for turn in range(loop.extent)]
    if nest.fill:
        ends = range(row.extent, row.extent + nest.fill)
        zeros = [at + k * nest.write for at in data for k in ends]
        data = [at + k * nest.write for at in data for k in range(row.extent)]
    places = [[at // nest.write for at in found] for found in (data, zeros)]
    return (places[0], []) if nest.zero else places[::-1]


@given(layout=padded(1024))
@examples(60)
def test_nests_zero_all_padding_and_write_every_element_once(layout):
    desc = rl.MemoryDesc(layout.dims, "u8", layout)
    found = moves(
        rl.MemoryDesc(layout.dims, "u8", rl.Layout(layout.dims, letters_text(len(layout.dims)))), desc
    )
    assume(found is not None)
    zeros, data = (list(chain(*parts)) for parts in zip(*map(places_of, found), strict=True))
    assert set(zeros) == padding_places(layout)
    assert sorted(data) == sorted(element_places(layout).ravel().tolist())


loops = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=4)


@given(turns=loops, taken=st.sets(st.integers(0, 23)), widths=st.permutations(range(5)))
@examples(100)
def test_gathered_places_are_the_same(turns, taken, widths):
    """Dense loops in any order, each with a gap behind it at times, and some numbers of the innermost one."""
    assume(taken)
    stride, around = 1, []
    for k in widths:
        if k == 4:
            places = [number * stride for number in sorted(taken)]
            stride *= 24
        elif k < len(turns):
            extent, gap = turns[k]
            around.append((extent, -stride if gap == 6 else stride))
            stride *= extent + (gap == 5)
    each = _joined([(place, place + 1) for place in places])
    rows, left = _gathered(each, around)
    assert len(rows) <= max(1, len(_gathered(each, [])[0]))

    def repeated(starts, repeats):
        return sorted(
            start + sum(k * d for k, (_, d) in zip(turn, repeats, strict=True))
            for start in starts
            for turn in product(*(range(n) for n, _ in repeats))
        )

    inner = [row.start + k * row.step + e for row in rows for k in range(row.turns) for e in range(row.size)]
    assert repeated(inner, left) == repeated(places, around)


FIRST_LAYERS = [
    ("s8", "OIhw16i16o4i"),
    ("s8", "OIhw4i16o4i"),
    ("s8", "OIhw16i16o2i"),
    ("bf16", "OIhw16i16o2i"),
    ("bf16", "OIhw8i16o2i"),
    ("bf16", "OhwI8o4i"),
    ("f32", "OIhw16i16o"),
    ("f32", "OIhw16o16i"),
    ("f32", "OIhw4i16o4i"),
]


@pytest.mark.parametrize(("dtype", "name"), FIRST_LAYERS)
def test_weights_of_first_layers_take_few_kernels(dtype, name):
    dims = (40, 3, 3, 5)
    src, dst = rl.MemoryDesc(dims, dtype, "oihw"), rl.MemoryDesc(dims, dtype, name)
    assert len(lowered(src, dst)) <= 6
    if compile_.available():
        compare(src, dst, runs=(*RUNS, Run(1, (1, 0))))


@pytest.mark.parametrize(("name", "group"), [("OIhw4i16o4i", 4), ("OIhw16i16o2i", 2), ("OIhw2i8o8i", 8)])
def test_short_rows_and_their_zeros_are_joined_to_lines(name, group):
    dims = (32, 3, 3, 5)
    made = lowered(rl.MemoryDesc(dims, "s8", "oihw"), rl.MemoryDesc(dims, "s8", name))
    (plan,) = (plan for plan in made if isinstance(plan, HollowPlan))
    assert (plan.group, plan.rows.extent * plan.nest.write >= 256) == (group, True)
    assert f"{plan.rows.extent} rows by" in str(plan)
    assert f"of {group}" in str(plan)
    assert "then" in str(plan.nest)


@pytest.mark.turns(2)
@pytest.mark.parametrize("given", [{"src_scale": 0.5, "dst_zero_point": 3}, {"beta": 1.0}, {}])
@pytest.mark.parametrize("types", [("f32", "s8"), ("f32", "bf16"), ("s8", "s8"), ("s8", "f32"), ("s4", "u4")])
def test_zeros_stay_zeros_whatever_becomes_of_values(types, given):
    """A zero point of the destination is no value of its padding, and nothing is added to it."""
    dims = (18, 3, 5, 4)
    src, dst = (rl.MemoryDesc(dims, t, f) for t, f in zip(types, ("oihw", "OIhw4i16o4i"), strict=True))
    if not compile_.available() or lowered(src, dst, attributes_of(src, dst, given).shape) is None:
        pytest.skip("NumPy does it")
    compare(src, dst, given=given)


@given(
    layout=padded(),
    types=st.one_of(
        st.sampled_from(PAIRS), st.sampled_from(("u8", "f16", "f64", "u4")).map(lambda t: (t, t))
    ),
    how=st.sampled_from(({}, {"beta": 1.0}, {"src_scale": 0.5, "dst_zero_point": 3})),
    parts=st.permutations(range(3)),
    cpu=processors(),
    data=st.data(),
)
@examples(60)
def test_kernels_zero_what_numpy_zeroes(layout, types, how, parts, cpu, data):
    order = "".join(data.draw(st.permutations(letters_text(len(layout.dims)))))
    src = rl.MemoryDesc(layout.dims, types[0], rl.Layout(layout.dims, order))
    dst = rl.MemoryDesc(layout.dims, types[1], layout)
    assume(compile_.available() and lowered(src, dst, attributes_of(src, dst, how).shape) is not None)
    compare(src, dst, given=how, runs=(Run(), Run(8, tuple(parts))), cpu=cpu)


def test_simplified_zeros_go_on_over_blocks():
    """Seven rows of 64 pixels, four bytes each, are one row of 1792 bytes."""
    src, dst = (rl.MemoryDesc((100, 100), "s8", name) for name in ("ab", "BA16a64b4a"))
    zeros = [str(simplified(nest)) for nest in moves(src, dst) if nest.zero]
    assert zeros == ["zeros 0->6400: 2x(0,8192)  224x(0,8)", "zeros 0->8336: 32x(0,256)  14x(0,8)"]
