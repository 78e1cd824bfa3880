"""Packings for matrix instructions: a few rows interleaved element by element, and converted on the way."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from relayout.kernels.copy import candidates as some
from relayout.kernels.copy import packing
from relayout.kernels.copy.candidates import candidates
from relayout.kernels.copy.problem import moves
from strategies import examples
from test_kernels import (
    RUNS,
    attributes_of,
    compare,
    compile_,
    kernels,
    lowered,
    machine,
    processors,
    some_runs,
    x86,
)

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

PACKED = [
    ("s8", "ab", "BA16a16b4a", (128, 192)),
    ("s8", "ab", "BA16a16b4a", (100, 200)),
    ("s8", "ab", "BA16a64b4a", (70, 130)),
    ("s8", "ab", "BA4a8b4a", (64, 72)),
    ("bf16", "ab", "BA16a16b2a", (96, 160)),
    ("bf16", "ab", "BA8a8b2a", (33, 100)),
    ("s8", "hwio", "OIhw16i16o4i", (40, 72, 2, 3)),
    ("bf16", "hwio", "OIhw8i16o2i", (40, 36, 2, 2)),
    ("s8", "nchw", "nChw16c", (2, 48, 7, 12)),
    ("u8", "nchw", "nChw16c", (1, 20, 13, 5)),
    ("f64", "nchw", "nChw4c", (2, 8, 9, 9)),
]
EACH = pytest.mark.parametrize(
    ("dtype", "one", "two", "dims"), PACKED, ids=[f"{t}-{'x'.join(map(str, d))}" for _, _, t, d in PACKED]
)


def sides(dims, types, formats):
    return tuple(rl.MemoryDesc(dims, *side) for side in zip(types, formats, strict=True))


@EACH
def test_packings(dtype, one, two, dims):
    src, dst = sides(dims, (dtype, dtype), (one, two))
    compare(src, dst)
    compare(dst, src, runs=RUNS[:1])


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@EACH
def test_other_processors(cpu, dtype, one, two, dims):
    other, runs = x86(cpu)
    src, dst = sides(dims, (dtype, dtype), (one, two))
    if runs:
        compare(src, dst, cpu=other, runs=RUNS[::3])
    else:
        assert compile_.assemble(kernels.module(lowered(src, dst, streaming=True), other)[0], other)


@EACH
def test_arm_is_assembled(dtype, one, two, dims):
    other = machine.machine("neoverse-n1", "aarch64-unknown-linux-gnu")
    text, _ = kernels.module(lowered(*sides(dims, (dtype, dtype), (one, two)), streaming=True), other)
    assert compile_.assemble(text, other)[:4] == b"\x7fELF"


SCALE = np.linspace(0.25, 4, 200, dtype=np.float32)
CONVERTED = [
    ("f32", "s8", "oihw", "OIhw4i16o4i", (40, 36, 3, 3)),
    ("f32", "u8", "oihw", "OIhw16i16o4i", (32, 64, 3, 3)),
    ("f32", "s8", "oihw", "hwio", (70, 24, 3, 3)),
    ("f32", "s8", "ab", "BA16a16b4a", (100, 160)),
    ("f32", "bf16", "ab", "BA16a16b2a", (64, 96)),
    ("s8", "f32", "ab", "BA16a16b4a", (64, 96)),
    ("f32", "s8", "nchw", "nChw16c", (2, 40, 6, 7)),
    ("u8", "f32", "nchw", "nChw16c", (2, 40, 6, 7)),
    ("s16", "s32", "nchw", "nChw4c", (2, 12, 3, 4)),
    ("s8", "f32", "nchw", "nChw16c", (2, 32, 2, 4)),
]


@pytest.mark.turns(2)
@pytest.mark.parametrize("along", [None, 0, 1, -2])
@pytest.mark.parametrize(("a", "b", "one", "two", "dims"), CONVERTED)
def test_conversions(along, a, b, one, two, dims):
    src, dst = sides(dims, (a, b), (one, two))
    scale = 0.5 if along is None else (SCALE[: dims[along]], along % len(dims))
    number = CONVERTED.index((a, b, one, two, dims)) + (along or 0)
    for attributes in share(({"dst_scale": scale}, {"src_scale": scale, "beta": 1.0}), number):
        compare(src, dst, given=attributes, runs=RUNS[::3])


def test_4_bit_rows():
    for types in (("s4", "s4"), ("u4", "u8"), ("s8", "s4")):
        src, dst = sides((64, 96), types, ("ab", "BA16a16b8a"))
        if lowered(src, dst) is not None:
            compare(src, dst, runs=RUNS[:1])


@st.composite
def packings(draw):
    """A matrix and a format that interleaves some of its rows: so many, in blocks of so many columns."""
    few = draw(st.sampled_from((2, 4, 8, 16)))
    many = draw(st.sampled_from((2, 4, 8, 16, 24, 32, 64)))
    deep = draw(st.sampled_from((1, 2, 4, 16)))
    order = draw(st.sampled_from(("AB", "BA")))
    tag = f"{order}{f'{deep}a' if deep > 1 else ''}{many}b{few}a"
    sizes = st.sampled_from((1, 3, 4, 8, 15, 16, 31, 32, 48, 64, 65, 96, 128, 130))
    dims = draw(sizes), draw(sizes)
    names = st.sampled_from(("s8", "u8", "bf16", "f32", "f64", "s32"))
    one = draw(names)
    two = draw(st.sampled_from((one, "s8", "f32")))
    src, dst = rl.MemoryDesc(dims, one, "ab"), rl.MemoryDesc(dims, two, tag)
    given = {}
    if draw(st.booleans()):
        axis = draw(st.sampled_from((None, 0, 1)))
        given["src_scale"] = 0.5 if axis is None else (np.resize(SCALE, dims[axis]), axis)
    if one == two and draw(st.integers(0, 3)) == 0:
        given["beta"] = 1.0
    return (src, dst, given) if draw(st.integers(0, 3)) else (dst_as_source(src, dst), src, given)


def dst_as_source(src, dst):
    """The packed side with the type of the plain one: for the way back."""
    return rl.MemoryDesc(src.dims, src.dtype, dst.layout)


@given(packing=packings(), runs=some_runs(), cpu=processors(), streaming=st.booleans())
@examples(120)
def test_any_packing(packing, runs, cpu, streaming):
    src, dst, given = packing
    assume(lowered(src, dst, attributes_of(src, dst, given).shape) is not None)
    compare(src, dst, given=given, runs=runs, cpu=cpu, streaming=streaming)


@given(packing=packings())
@examples(100)
def test_plans_visit_every_element_once(packing):
    src, dst, given = packing
    plans = lowered(src, dst, attributes_of(src, dst, given).shape)
    assume(plans is not None)
    for plan in plans:
        if plan.kind in ("converted", "regrouped"):  # through a buffer, all of it in one run
            continue
        run = plan.columns.extent * (1 if plan.kind in ("rows", "lines") else plan.rows.extent)
        run = plan.short.extent * plan.count if plan.kind == "words" else run
        run = plan.columns.extent * plan.blocks.extent * plan.along.extent if plan.kind == "blocks" else run
        visited = run * prod(loop.extent for loop in plan.around)
        visited *= plan.blocked.extent if plan.kind in ("rows", "lines") and plan.blocked is not None else 1
        visited *= plan.across.extent if plan.kind in ("together", "apart", "words") else 1
        assert visited == prod(loop.extent for loop in plan.nest.loops)


def test_matrices_are_read_line_by_line():
    """Rows are interleaved a line of the source at a time, and four lines of the destination meet."""
    (made,) = lowered(*sides((4096, 4096), ("s8", "s8"), ("ab", "BA16a16b4a")))
    assert made.kind == "interleave"
    assert made.packs
    assert "16 pixels of 4 channels" in str(made)
    assert [(loop.extent, loop.src // 8) for loop in made.around] == [
        (256, 4 * 4 * 4096),
        (64, 64),
        (4, 4 * 4096),
        (4, 16),
    ]


def test_short_rows_of_many_planes_print_as_such():
    (made,) = lowered(*sides((1, 8, 2, 2), ("f32", "f32"), ("nchw", "nChw8c")))
    assert "4 pixels of 8 channels" in str(made)


@pytest.mark.parametrize(
    ("cpu", "last", "long"), [("znver4", "words", False), ("x86-64-v3", "together", True)]
)
def test_weights_are_converted_in_whole_runs(cpu, last, long):
    """The taps of all inputs of an output are one run, with one scale; a buffer fits the first cache.

    With AVX2 all of the rows that are put together are converted first, and the buffer fits the second one.
    """
    dims = (512, 512, 3, 3)
    given = {"dst_scale": (np.resize(SCALE, 512), 0)}
    src, dst = sides(dims, ("f32", "s8"), ("oihw", "OIhw4i16o4i"))
    found = moves(src, dst, attributes_of(src, dst, given).shape)
    machine = x86(cpu)[0]
    (made,) = some.lowered(found, machine=machine)
    assert [step.kind for step in made.steps] == ["rows", last]
    assert made.steps[0].rows.extent >= 144
    assert made.long is long
    assert not made.asks
    assert made.between <= (4 * machine.l2 if long else packing.STEP_BUFFER_BITS)
    assert "at a time" in str(made)


@pytest.mark.parametrize("wish", ["converted, prefetched", "converted, not prefetched"])
@pytest.mark.parametrize("cpu", ["host", "x86-64-v3", "x86-64-v4"])
def test_rows_may_be_asked_for_before_they_are_converted(wish, cpu):
    """What is asked for lies behind the rows, and behind the last of them is nothing that is read."""
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    for dims in ((32, 128, 3, 3), (16, 96, 5, 1)):
        src, dst = sides(dims, ("f32", "s8"), ("oihw", "OIhw4i16o4i"))
        given = {"dst_scale": (np.resize(SCALE, dims[0]), 0)}
        kinds = compare(src, dst, given=given, cpu=made, runs=RUNS if runs_here else [], wish=wish).kinds
        assert kinds == ("converted",)


@pytest.mark.parametrize("text", ["f32:6 [a%3*1, a//3%2*1]", "f32:6 [a%2*1, a//2%3*1]"])
def test_sources_that_are_read_twice_have_plans(text):
    """Two of their loops go from neighbour to neighbour, which must not be exchanged for ever."""
    (nest,) = moves(rl.MemoryDesc(text), rl.MemoryDesc((6,), "s8", "a"))
    assert candidates(nest)
