"""Kernels: the bytes that the definition writes, and no others; on every kind of processor, in any share.

A problem is compiled once, with streaming, and run in several ways: from a line on (which streams), off a
line and with ``cached`` (which don't), in one piece and in parts.
"""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
import textwrap
from functools import cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import covering, share
from relayout import views
from relayout.dtypes import DTYPES
from relayout.kernels.copy.problem import PASSES, Move
from relayout.kernels.copy.problem import moves as all_moves
from relayout.loops.nest import Loop
from relayout.reorder.attributes import Attributes
from relayout.reorder.engine import reorder_numpy
from relayout.reorder.reference import reorder_by_definition
from strategies import examples, formats, plain_layouts
from test_reorder import in_front, pairs, random_bytes, writable

native = importlib.import_module("relayout.reorder.native")
compile_ = pytest.importorskip("relayout.jit.compile")
machine = importlib.import_module("relayout.targets.machine")
candidates = importlib.import_module("relayout.kernels.copy.candidates")
kernels = importlib.import_module("relayout.kernels.copy.module")
base = importlib.import_module("relayout.kernels.copy.base")

NAMES = [str(dtype) for dtype in DTYPES]

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")


class Run(NamedTuple):
    """One way to run kernels: how many bytes behind a line the destination begins, and the order of parts."""

    at: int = 0
    parts: tuple[int, ...] = (0,)
    cached: bool = False


RUNS = (Run(), Run(cached=True), Run(4), Run(0, (2, 0, 1)), Run(8, (4, 3, 2, 1, 0)))


def lowered(src, dst, shape=(), streaming=False, machine=None):
    """The kernels of a problem, or None where NumPy does it."""
    found = all_moves(src, dst, shape)
    return None if found is None else candidates.lowered(found, machine=machine, streaming=streaming)


@cache
def compiled(src, dst, shape=(), cpu=None, streaming=True, wish="estimate"):
    """The kernels of a problem, made once for all tests."""
    return native.Native(src, dst, all_moves(src, dst, shape), cpu, streaming, wish=wish)


def x86(cpu):
    """A processor, and whether its code runs here."""
    here = machine.host()
    made = machine.machine(
        cpu, here.triple if here.triple.startswith("x86_64") else "x86_64-unknown-linux-gnu"
    )
    return made, made.triple == here.triple and made.vector <= here.vector


def attributes_of(src, dst, given):
    return Attributes.make(src.dims, **(given or {})).taking_part(src.dtype, dst.dtype)


def compare(src, dst, *, given=None, runs=RUNS, by=reorder_numpy, cpu=None, streaming=True, wish="estimate"):
    """Kernels write the bytes that the slower engine writes, and no others; the source stays as it is."""
    attributes = attributes_of(src, dst, given)
    made = compiled(src, dst, attributes.shape, cpu, streaming, wish)
    operands = made.operands(attributes)
    address = 0 if operands is None else operands.ctypes.data
    kept = random_bytes(src.required_bytes + 192, 1)
    source = kept.copy()
    size = dst.required_bytes
    old = random_bytes(size + 320, 2)
    expected = old[64 : 64 + size].copy()
    by(src, kept[64 : 64 + src.required_bytes], dst, expected, attributes)
    for run in runs:
        got, wanted = np.empty_like(old), old.copy()
        start = 64 - got.ctypes.data % 64 + run.at
        got[:], got[start : start + size] = old, old[64 : 64 + size]
        wanted[start : start + size] = expected
        kernel = made._cached if run.cached else made._kernel
        for part in run.parts:
            kernel(source.ctypes.data + 64, got.ctypes.data + start, address, part, len(run.parts))
        if attributes.reads_destination and dst.dtype.is_float:
            one, two = (data[start : start + size].view(dst.dtype.numpy) for data in (wanted, got))
            with np.errstate(invalid="ignore"):  # signalling NaNs
                both = np.isnan(one) & np.isnan(two)
            one[both] = two[both] = 0  # which NaN comes of adding two is left open
        np.testing.assert_array_equal(got, wanted, err_msg=f"{src} {dst} {attributes} {run} {made.kinds}")
        np.testing.assert_array_equal(source, kept)
    return made


def test_a_source_that_repeats_one_element_is_written_no_further_than_the_destination_goes():
    """Rows of one column, whose last tile must not begin behind the last row."""
    for rows in (7, 8, 17, 64, 65, 136, 137):
        src = rl.MemoryDesc((8, rows), "f64", strides=(0, 0))
        compare(src, rl.MemoryDesc((8, rows), "f64", "ab"))


# -- shapes that occur --------------------------------------------------------------------------------------

SHAPES = [
    ("nchw", "nhwc", (2, 48, 20, 9)),
    ("nhwc", "nchw", (2, 48, 20, 9)),
    ("nhwc", "nchw", (2, 3, 20, 33)),
    ("nchw", "nhwc", (2, 3, 20, 33)),
    ("nhwc", "nchw", (1, 5, 16, 16)),
    ("nchw", "nhwc", (1, 7, 16, 16)),
    ("nchw", "nChw16c", (2, 3, 10, 20)),
    ("nchw", "nChw16c", (2, 50, 10, 20)),
    ("nchw", "nChw8c", (2, 17, 10, 20)),
    ("nChw16c", "nchw", (2, 50, 10, 20)),
    ("nChw8c", "nChw16c", (2, 50, 10, 20)),
    ("nhwc", "nChw16c", (2, 50, 10, 20)),
    ("nhwc", "nChw16c", (2, 3, 10, 21)),
    ("nhwc", "nChw8c", (1, 5, 7, 9)),
    ("nCw48c", "nCw32c", (2, 200, 30)),
    ("ab", "ba", (70, 4096)),
    ("ab", "ba", (4096, 70)),
    ("ab", "ba", (33, 2048)),
    ("ab", "ba", (1000, 130)),
    ("ab", "BA16a64b4a", (100, 130)),
    ("oihw", "OIhw4i16o4i", (40, 20, 3, 3)),
    ("oihw", "hwio", (40, 24, 3, 3)),
    ("goihw", "Goihw16g", (33, 1, 1, 3, 3)),
    ("abc", "abc", (7, 40, 100)),
    ("nhwc", "nChw8c", (2, 64, 9, 9)),
    ("nChw16c", "nChw8c", (2, 64, 9, 9)),
    ("ab", "AB16b64a4b", (100, 130)),
    ("oihw", "hwio", (150, 40, 3, 3)),
    ("oihw", "OIhw8i8o", (32, 64, 3, 3)),
    ("oihw", "OIhw16i16o", (32, 64, 3, 3)),
    ("hwio", "oihw", (32, 64, 3, 3)),
    ("nchw", "nhwc", (2, 20, 64, 4)),
    ("nChw8c", "nchw", (2, 17, 1, 3)),
    ("nhwc", "nChw16c", (2, 64, 12, 12)),
    ("nhwc", "nchw", (1, 40, 41, 41)),
    ("nchw", "nhwc", (3, 70, 9, 9)),
    ("ab", "ba", (299, 77)),
    ("oihw", "OIhw4i16o4i", (32, 16, 3, 3)),
    ("OIhw4i16o4i", "oihw", (32, 16, 3, 3)),
    ("OIhw8i16o2i", "oihw", (32, 32, 3, 3)),
    ("oihw", "OIhw8i16o2i", (32, 32, 3, 3)),
    ("nchw", "CHWN4", (64, 8, 3, 3)),
    ("BA16a64b4a", "ab", (100, 130)),
    ("abc", "acb", (5, 9, 9)),
    ("nhwc", "nchw", (2, 64, 14, 14)),
    ("abc", "acb", (5, 13, 11)),
    ("nChw8c", "nhwc", (2, 17, 10, 9)),
    ("nhwc", "nchw", (3, 100, 3, 3)),
    ("nchw", "nChw8c", (2, 11, 9, 30)),
    ("nChw16c", "nchw", (2, 32, 20, 9)),
    ("hwio", "oihw", (9, 90, 7, 7)),
    ("oihw", "hwio", (9, 89, 7, 7)),
    ("abcd", "dcba", (17, 3, 2, 35)),
    ("nChw32c", "nChw8c", (2, 64, 5, 7)),
    ("nChw8c", "nChw32c", (1, 40, 3, 9)),
    ("nCw16c", "nCw48c", (2, 96, 21)),
    ("nchw", "nChw16c", (2, 32, 7, 7)),
    ("nchw", "nChw4c", (2, 8, 5, 5)),
    ("abc", "bac", (4, 4, 4)),
]
EACH_SHAPE = pytest.mark.parametrize(
    "number", range(len(SHAPES)), ids=[f"{one}-{two}-{'x'.join(map(str, d))}" for one, two, d in SHAPES]
)
MOVED = ("f32", "s8", "f64", "bf16")


def problem(number, types):
    """A shape with two data types; rows of 4-bit elements have whole bytes."""
    one, two, dims = SHAPES[number]
    dims = tuple(n + n % 2 for n in dims) if {"s4", "u4"} & {*types} else dims
    return rl.MemoryDesc(dims, types[0], one), rl.MemoryDesc(dims, types[1], two)


def moves(number):
    """Elements of 1 and 4 bytes in every shape, of 2 and 8 bytes in every other."""
    return [problem(number, (dtype, dtype)) for dtype in (*MOVED[:2], MOVED[2 + number % 2])]


@pytest.mark.turns(2)
@EACH_SHAPE
def test_moves_in_shapes_of_networks(number):
    *usual, other = moves(number)
    for src, dst in (*share(usual, number), other):
        compare(src, dst)


def test_every_kind_of_kernel_is_tested():
    """Some nest has each kind for the cheapest, here or where vectors are whole lines.

    The others are run here, too, as candidates (test_candidates.py).
    """
    kinds = set()
    for src, dst in (problem for number in range(len(SHAPES)) for problem in moves(number)):
        for processor in (None, x86("x86-64-v3")[0], x86("znver4")[0]):
            kinds |= {(made.kind, str(src.dtype)) for made in lowered(src, dst, machine=processor)}
    steps = {"converted", "regrouped", "order"}  # made of several, of which one is nothing by itself
    known = {plan.kind for plan in base.WRITERS} - steps
    assert {kind for kind, _ in kinds} - steps == known
    assert {kind for kind, dtype in kinds if dtype == "f32"} >= known - {
        "lines",
        "words",
        "apart",
        "together",
        "staged",
        "patched",
    }


PAIRS = [
    ("f32", "s8"),
    ("s8", "f32"),
    ("f32", "bf16"),
    ("f16", "f32"),
    ("s4", "f32"),
    ("f32", "u4"),
    ("s4", "s4"),
    ("u8", "f32"),
]


def conversions(number):
    """Three problems of a shape, each with a pair of types and attributes: none, along an axis, or beta.

    Over all shapes, every pair meets all attributes.
    """
    for k in range(3):
        src, dst = problem(number, PAIRS[(2 * k + number) % len(PAIRS)])
        size = src.dims[1]
        given = (
            {"src_scale": (np.linspace(0.5, 9, size, dtype=np.float32), 1), "dst_zero_point": 3},
            {
                "dst_scale": (np.linspace(0.5, 9, size, dtype=np.float32), 1),
                "src_zero_point": (np.arange(size) % 5, 1),
            },
            {},
            {"beta": 1.0, "src_scale": 0.5},
        )[(number // 3 + k) % 4]
        shape = attributes_of(src, dst, given).shape
        if lowered(src, dst, shape) is not None:
            yield src, dst, given


@pytest.mark.turns(2)
@EACH_SHAPE
def test_conversions_in_shapes_of_networks(number):
    some = [*conversions(number)]
    for src, dst, attributes in share(some, random.randrange(2)) if len(some) > 1 else some:
        compare(src, dst, given=attributes, runs=RUNS[::3])


PER_CHANNEL = {"src_scale": (np.arange(1, 4) / 4, 1), "src_zero_point": (np.array([1, 2, 3]), 1)}
TRUE_MEANS = {
    "src_scale": 1 / 255,
    "src_shift": ([0.485, 0.456, 0.406], 1),
    "dst_scale": ([0.229, 0.224, 0.225], 1),
}
PICTURES = [("nhwc", "nchw"), ("nhwc", "nChw16c"), ("nhwc", "nhwc"), ("nchw", "nhwc"), ("nchw", "nChw8c")]


@pytest.mark.parametrize("given", [PER_CHANNEL, TRUE_MEANS], ids=["whole", "real"])
@pytest.mark.parametrize(("one", "two"), PICTURES)
def test_pictures(one, two, given):
    """Bytes to normalised floats, a scale and a whole or real number to subtract for each channel."""
    for dtype in ("f32", "bf16"):
        dims = (2, 3, 21, 50)
        compare(rl.MemoryDesc(dims, "u8", one), rl.MemoryDesc(dims, dtype, two), given=given)


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@EACH_SHAPE
def test_other_processors(cpu, number):
    """Code for smaller vectors runs here too; for larger ones it is at least assembled."""
    other, runs = x86(cpu)
    if runs and other.vector == machine.host().vector and number % 3:
        return  # much as in the tests above
    if not runs and number not in share(range(len(SHAPES)), ord(cpu[-1])):
        return  # what is only assembled
    src, dst = problem(number, [("f32", "f32"), ("s8", "s8"), ("u8", "f32"), ("f32", "s8")][number % 4])
    if runs:
        compare(src, dst, cpu=other, runs=RUNS[::3])
    else:
        assert compile_.assemble(
            kernels.module(lowered(src, dst, streaming=True, machine=other), other)[0], other
        )


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("cpu", "triple"),
    [("neoverse-n1", "aarch64-unknown-linux-gnu"), ("znver4", "x86_64-unknown-linux-gnu")],
    ids=["arm", "zen"],
)
def test_others_are_assembled(cpu, triple):
    """Planes of even and odd sizes, rows and columns shorter than a lane."""
    other = machine.machine(cpu, triple)
    shapes = [0, *(k for k, (_, two, dims) in enumerate(SHAPES) if 9 in dims or 41 in dims or two == "oihw")]
    for types in (("f32", "f32"), ("s8", "s8"), ("u8", "f32"), ("f32", "s8")):
        for number in shapes if types[0] == types[1] else shapes[:1]:
            planned = lowered(*problem(number, types), streaming=True, machine=other)
            text, _ = kernels.module(planned, other)
            assert compile_.assemble(text, other)[:4] == b"\x7fELF"


# -- any problem --------------------------------------------------------------------------------------------

TAGS = {
    1: ["a"],
    2: ["ab", "ba", "AB16b64a4b", "BA16a64b4a", "Ab4a", "aB8b"],
    3: ["abc", "acb", "bca", "bac", "cba", "aBc16b", "aCb4c", "nCw48c", "nCw32c"],
    4: ["nchw", "nhwc", "nChw8c", "nChw16c", "hwio", "OIhw4i16o4i", "OIhw8i8o", "chwn"],
    5: ["goihw", "Goihw16g", "gOIhw4o4i", "ncdhw", "ndhwc", "nCdhw16c"],
}
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 70, 128, 130, 512, 1024, 2048)
MOST = 1 << 14  # elements


@st.composite
def large_shapes(draw):
    """Sizes that need several tiles, among sizes that need one or none."""
    dims = []
    for _ in range(draw(st.integers(1, 5))):
        left = MOST // prod(dims)
        dims.append(draw(st.sampled_from([size for size in EXTENTS if size <= left])))
    return tuple(draw(st.permutations(dims)))


@st.composite
def sides(draw, dims, overlapping):
    """A layout by name, by strides (backwards, broadcast, with gaps), by digits, padded, or a part of one."""
    rank = len(dims)
    tag = rl.Format(draw(st.sampled_from(TAGS[rank])))
    how = draw(st.integers(0, 5))
    if how == 0:
        return draw(plain_layouts(dims, overlapping))
    format = draw(formats(rank)) if how in (1, 2) else tag
    if how in (1, 3):  # a part, perhaps backwards or every other one, of something larger
        before = [draw(st.sampled_from((0, 0, 1, 8, 16))) for _ in dims]
        steps = [draw(st.sampled_from((1, 1, 1, 2, -1))) for _ in dims]
        behind = draw(st.sampled_from((0, 0, 3)))
        whole = tuple(b + n * abs(s) + behind for b, n, s in zip(before, dims, steps, strict=True))
        layout = rl.Layout(whole, format)
        if prod(layout.padded) > 16 * MOST:
            return rl.Layout(dims, tag)
        for axis, (first, size, step) in enumerate(zip(before, dims, steps, strict=True)):
            last = first + size * abs(step)
            cut = (first, last, step) if step > 0 else (last - 1, first - 1 if first else None, -1)
            layout = views.slice_axis(layout, axis, *cut)
        return layout
    layout = rl.Layout(dims, format)
    if prod(layout.padded) > 16 * MOST:
        return rl.Layout(dims, TAGS[rank][0])
    if how == 4:  # pitches, as clDNN pads them
        factor = draw(st.sampled_from((2, 3)))
        strides = [factor * stride for stride in layout.strides]
        return rl.Layout(dims, format, strides=strides, offset=draw(st.sampled_from((0, 5, 64))))
    return layout


@st.composite
def problems(draw, types):
    dims = draw(large_shapes())
    try:
        src, dst = (in_front(draw(sides(dims, overlapping))) for overlapping in (True, False))
    except rl.LayoutError:  # a part that no layout can hold
        assume(False)
    assume(writable(dst) and max(src.span, dst.span) < 32 * MOST)
    one, two = draw(types)
    return rl.MemoryDesc(dims, one, src), rl.MemoryDesc(dims, two, dst)


@st.composite
def given_attributes(draw, dims):
    """Some attributes, each for the tensor or along an axis."""
    out = {}
    for name in ("src_scale", "dst_scale", "src_zero_point", "dst_zero_point", "src_shift"):
        if not draw(st.booleans()):
            continue
        numbers = st.integers(-9, 9) if "point" in name else st.floats(0.125, 8, width=32)
        axis = draw(st.sampled_from((None, *range(len(dims)))))
        if axis is None:
            out[name] = draw(numbers)
        else:
            out[name] = (np.array([draw(numbers) for _ in range(min(dims[axis], 3))]), axis)
            out[name] = (np.resize(out[name][0], dims[axis]), axis)
    if draw(st.integers(0, 3)) == 0:
        out["beta"] = draw(st.sampled_from((1.0, -0.5)))
    return out


@st.composite
def some_runs(draw):
    """Parts in any order, from a line on or not."""
    count = draw(st.integers(1, 9))
    return [
        Run(draw(st.sampled_from((0, 0, 8, 32, 1))), tuple(draw(st.permutations(range(count)))), cached)
        for cached in (False, True)
    ]


@st.composite
def processors(draw):
    """This one or a smaller one; at times with so small caches that all is prefetched."""
    smaller = [made for made, runs in map(x86, ("x86-64-v2", "x86-64-v3")) if runs]
    one = draw(st.sampled_from([machine.host(), *smaller]))
    return one._replace(l2=draw(st.sampled_from((one.l2, 0))))


def same_types(names):
    return st.sampled_from(names).map(lambda name: (name, name))


@given(pair=pairs(), dtype=st.sampled_from(("f64", "f32", "f16", "u8", "s4")))
@examples(50)
def test_moves_are_the_definition(pair, dtype):
    src, dst = pair
    assume(0 not in src.dims)
    src, dst = rl.MemoryDesc(src.dims, dtype, src), rl.MemoryDesc(dst.dims, dtype, dst)
    assume(lowered(src, dst) is not None)
    compare(src, dst, by=reorder_by_definition, runs=RUNS[::2])


@given(
    problem=problems(same_types(("f64", "f32", "f16", "u8", "s4"))),
    runs=some_runs(),
    cpu=processors(),
    data=st.data(),
)
@examples(80)
def test_any_move(problem, runs, cpu, data):
    assume(lowered(*problem) is not None)
    compare(*problem, runs=runs, cpu=cpu, streaming=data.draw(st.booleans()))


@given(
    problem=problems(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES))),
    runs=some_runs(),
    cpu=processors(),
    data=st.data(),
)
@examples(80)
def test_any_conversion(problem, runs, cpu, data):
    src, dst = problem
    given = data.draw(given_attributes(src.dims))
    assume(lowered(src, dst, attributes_of(src, dst, given).shape) is not None)
    compare(src, dst, given=given, runs=runs, cpu=cpu, streaming=data.draw(st.booleans()))


@given(pair=pairs())
@examples(80)
def test_passes_keep_the_set_of_moves(pair):
    """What is moved where, byte by byte, is the same before and after every pass."""
    src, dst = pair
    assume(0 not in src.dims)
    found = all_moves(rl.MemoryDesc(src.dims, "f16", src), rl.MemoryDesc(dst.dims, "f16", dst))
    assume(found is not None)

    def moved(nest):
        source, target = np.array([nest.src]), np.array([nest.dst])
        bits = (nest.write, 0 if nest.zero else 1, 1)
        for extent, s, d in (*((loop.extent, loop.src, loop.dst) for loop in nest.loops), bits):
            steps = np.arange(extent)
            source = (source[:, None] + steps * s).ravel()
            target = (target[:, None] + steps * d).ravel()
        return nest.zero, sorted(zip(target.tolist(), source.tolist(), strict=True)), nest.fill * nest.write

    for nest in found:
        before = moved(nest)
        for step in PASSES:
            nest = step(nest)
            after = moved(nest)
            assert (after[0], after[2]) == (before[0], before[2])
            assert after[1] == before[1] or (
                nest.zero and {t for t, _ in after[1]} == {t for t, _ in before[1]}
            )


@given(
    size=st.integers(1, 8),
    rows=st.integers(60, 700),
    columns=st.integers(2, 70),
    off=st.integers(0, 63),
    buffer=st.sampled_from(("buffered", "unbuffered")),
)
@examples(30)
def test_columns_that_begin_anywhere(size, rows, columns, off, buffer):
    """Planes of odd sizes: pieces of each pass through a buffer, or straight to where they belong."""
    dtype = ("s8", "s16", "f32", "f64")[size % 4]
    src, dst = (rl.MemoryDesc((rows, columns), dtype, tag) for tag in ("ab", "ba"))
    runs = [Run(off), Run(off, (2, 0, 1))]
    compare(src, dst, runs=runs, wish=f"{buffer}, {(64, 128, 256)[size % 3]} rows")


@given(
    dims=st.tuples(st.integers(1, 3), st.integers(4, 150), st.integers(5, 300)),
    off=st.integers(0, 63),
    types=st.sampled_from(("s8 s8", "s16 s16", "f32 f32", "f64 f64", "u8 f32", "f32 s8")),
    wish=st.sampled_from(
        ("transpose, unbuffered", "transpose, buffered", "staged, unbuffered", "staged, buffered", "streamed")
    ),
    values=st.sampled_from((None, "src_scale", "beta")),
    cpu=st.sampled_from(("x86-64-v2", "x86-64-v3", "host")),
)
@examples(60)
def test_columns_that_end_where_the_next_begin(dims, off, types, wish, values, cpu):
    """Images of a few pixels: each strip of channels ends all of its columns, in tiles of several sizes."""
    one, two = types.split()
    src, dst = rl.MemoryDesc(dims, one, "acb"), rl.MemoryDesc(dims, two, "abc")
    given = {"src_scale": (1 + np.arange(dims[1]) / 4, 1)} if values == "src_scale" else {"beta": 0.5}
    given = given if one != two and values else {}
    runs = [Run(off), Run(off, (2, 0, 1))]
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    block = 512 // dst.dtype.bits
    while block < dims[2]:
        block *= 2  # until it is all of a column
    for words in (f"{wish}, {block} rows", wish):
        compare(src, dst, given=given, cpu=made, runs=runs if runs_here else [], wish=words)


@given(
    dims=st.tuples(st.integers(1, 2), st.integers(60, 300), st.integers(20, 200)),
    off=st.integers(0, 63),
    types=st.sampled_from(("s8 s8", "s16 s16", "f32 f32", "u8 f32", "f32 f16", "bf16 f32", "f16 bf16")),
    formats=st.sampled_from((("acb", "abc"), ("abc", "acb"), ("abc", "cba"))),
    values=st.sampled_from((None, "src_scale", "beta")),
    cpu=st.sampled_from(("x86-64-v2", "x86-64-v3", "host")),
)
@examples(50)
def test_patches_go_down_the_rows(dims, off, types, formats, values, cpu):
    """Columns that are no multiple of a patch, or of a strip; rows that no tile ends."""
    one, two = types.split()
    src, dst = (rl.MemoryDesc(dims, dtype, tag) for dtype, tag in zip((one, two), formats, strict=True))
    given = {"src_scale": (1 + np.arange(dims[1]) / 4, 1)} if values == "src_scale" else {"beta": 0.5}
    given = given if one != two and values else {}
    runs = [Run(off), Run(off, (2, 0, 1))]
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    ways = "patched, cached", "patched, prefetched", "patched, not prefetched", "patched, streamed"
    for words in share(ways, off):
        compare(src, dst, given=given, cpu=made, runs=runs if runs_here else [], wish=words)


@given(
    rows=st.integers(2, 18),
    columns=st.integers(2, 150),
    pieces=st.integers(1, 3),
    off=st.integers(0, 63),
    dtype=st.sampled_from(("s8", "s16", "f32")),
    cpu=st.sampled_from(("x86-64-v2", "x86-64-v3", "host")),
)
@examples(20)
def test_few_rows_by_several_lanes_of_columns(rows, columns, pieces, off, dtype, cpu):
    """Columns of fewer elements than a lane has, that follow each other, in groups of a few or all."""
    together = next(n for n in (4, 2, 1) if columns % n == 0)
    dims = (pieces, rows, columns // together, together)
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    for tag in ("acdb", "cadb", "adcb"):
        src, dst = rl.MemoryDesc(dims, dtype, "abcd"), rl.MemoryDesc(dims, dtype, tag)
        compare(src, dst, cpu=made, runs=runs)


@given(
    blocks=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    taps=st.tuples(st.integers(1, 5), st.integers(2, 7)),
    inner=st.tuples(st.sampled_from((1, 2, 3, 4, 8)), st.sampled_from((8, 16, 24)), st.sampled_from((2, 4))),
    dtype=st.sampled_from(("s8", "s16", "f32")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v4", "host")),
)
@examples(60)
def test_packed_filters(blocks, taps, inner, dtype, off, cpu):
    """A few channels of all taps in another order, and words of channels transposed: both ways."""
    some, out, word = inner
    dims = (out * blocks[0], some * word * blocks[1], *taps)
    packed = rl.MemoryDesc(dims, dtype, f"OIhw{some}i{out}o{word}i" if some > 1 else f"OIhw{out}o{word}i")
    plain = rl.MemoryDesc(dims, dtype, "oihw")
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(0), Run(off, (2, 0, 1))] if runs_here else []
    for src, dst in ((plain, packed), (packed, plain)):
        compare(src, dst, cpu=made, runs=runs, wish="regrouped")
    compare(plain, packed, cpu=made, runs=runs, wish="words")


@given(
    channels=st.integers(2, 5),
    pixels=st.integers(60, 400),
    types=st.sampled_from(("u8 f32", "u8 bf16", "u8 f16", "s8 f32", "u8 s32")),
    values=st.sampled_from((None, "src_scale", "beta")),
    off=st.integers(0, 63),
)
@examples(60)
def test_channels_that_become_wider_as_they_are_picked(channels, pixels, types, values, off):
    src, dst = (
        rl.MemoryDesc((2, channels, pixels), *given)
        for given in zip(types.split(), ("acb", "abc"), strict=True)
    )
    scale = {"src_scale": (1 + np.arange(channels) / 4, 1), "src_zero_point": 3}
    given = {None: {}, "src_scale": scale, "beta": {"beta": 1.0}}[values]
    compare(src, dst, given=given, runs=[Run(off), Run(off, (2, 0, 1))], wish="deinterleave")


@given(
    channels=st.sampled_from((2, 3, 4, 5, 7)),
    pixels=st.integers(24, 400),
    types=st.sampled_from(
        ("u8 u8", "bf16 bf16", "f32 f32", "f64 f64", "u8 f32", "u8 bf16", "u8 f16", "u8 s8", "bf16 f32")
    ),
    values=st.sampled_from((None, "src_scale", "dst_scale", "pixels")),
    off=st.integers(0, 63),
)
@examples(60)
def test_pixels_fall_apart_within_lanes(channels, pixels, types, values, off):
    """With AVX2: bytes become words by one shuffle within lanes, and odd numbers of channels are blended."""
    made, runs_here = x86("x86-64-v3")
    src, dst = (
        rl.MemoryDesc((2, channels, pixels), *given)
        for given in zip(types.split(), ("acb", "abc"), strict=True)
    )
    scales = 1 + np.arange(channels) / 4, 1
    given = {
        None: {},
        "src_scale": {"src_scale": scales, "src_zero_point": (np.arange(channels), 1)},
        "dst_scale": {"dst_scale": scales, "dst_zero_point": 2},
        "pixels": {"src_scale": (1 + np.arange(pixels) / 8, 2)},
    }[values]
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    compare(src, dst, given=given, cpu=made, runs=runs, wish="deinterleave")


@given(
    size=st.integers(1, 500).map(lambda half: 2 * half),
    types=st.sampled_from(("f32 s4", "f32 u4", "s4 f32", "u4 f32", "u4 bf16", "s4 f16", "s4 f64", "s32 u4")),
    values=st.sampled_from((None, "scale", "each", "beta")),
    off=st.integers(0, 63),
)
@examples(60)
def test_rows_of_four_bits_become_words_at_once(size, types, values, off):
    """With AVX2: eight elements of a word by shifts; and two registers of bytes that packs have dealt out."""
    made, runs_here = x86("x86-64-v3")
    src, dst = (rl.MemoryDesc((3, size), dtype, "ab") for dtype in types.split())
    side = "src" if types[1] == "4" else "dst"
    each = (1 + np.arange(size) / 8).astype(np.float32), 1
    scales = {"scale": 0.5, "each": each, "beta": 2.0}
    given = {} if values is None else {f"{side}_scale": scales[values], f"{side}_zero_point": 3}
    if values == "beta":
        given["beta"] = 1.0
    shape = attributes_of(src, dst, given).shape
    assume(candidates.lowered(all_moves(src, dst, shape), machine=made) is not None)
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    compare(src, dst, given=given, cpu=made, runs=runs, wish="rows")


@pytest.mark.parametrize("seldom", [0.0, 0.01, 1.0])
def test_bf16_is_rounded_by_halves(seldom):
    """With AVX2: ties, carries into the exponent, subnormal numbers; and NaN here and there."""
    made, runs_here = x86("x86-64-v3")
    if not runs_here:
        return
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2**32, 1 << 14, dtype=np.uint32)
    bits[::2] = bits[::2] & 0xFFFF0000 | generator.choice(
        [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], bits[::2].size
    )
    nan = np.isnan(bits.view(np.float32))
    bits[nan & (generator.random(bits.size) >= seldom)] = 0x7F7FFFFF
    src, dst = (rl.MemoryDesc(bits.shape, dtype, "a") for dtype in ("f32", "bf16"))
    got, wanted = np.zeros((2, 2 * bits.size), np.uint8)
    reorder_numpy(src, bits.view(np.uint8), dst, wanted, attributes_of(src, dst, {}))
    compiled(src, dst, cpu=made)._kernel(bits.ctypes.data, got.ctypes.data, 0, 0, 1)
    np.testing.assert_array_equal(got, wanted)


@given(
    blocks=st.integers(1, 3),
    pixels=st.integers(8, 300),
    types=st.sampled_from(
        (
            "s8 s8 16",
            "bf16 bf16 8",
            "f32 f32 4",
            "u8 f32 16",
            "s8 f32 16",
            "u8 bf16 16",
            "s8 s32 16",
            "f16 f32 8",
        )
    ),
    values=st.sampled_from((None, "src_scale", "beta")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v3", "x86-64-v4", "host")),
)
@examples(80)
def test_rows_that_follow_each_other_a_lane_each(blocks, pixels, types, values, off, cpu):
    """Registers of several pixels are loaded at once, and put in order in the end."""
    one, two, some = types.split()
    dims = (2, blocks * int(some), pixels)
    src, dst = rl.MemoryDesc(dims, one, f"aBc{some}b"), rl.MemoryDesc(dims, two, "abc")
    scale = {"src_scale": (1 + np.arange(dims[1]) / 4, 1), "src_zero_point": 3}
    given = {None: {}, "src_scale": scale, "beta": {"beta": 1.0}}[values] if one != two else {}
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    for words in ("transpose, wide", "patched, wide"):
        compare(src, dst, given=given, cpu=made, runs=runs, wish=words)


@given(
    dims=st.tuples(*[st.integers(1, 9)] * 3, st.integers(1, 70)),
    tag=st.sampled_from(("bacd", "cbad", "bcad", "acbd", "cabd")),
    dtype=st.sampled_from(("s8", "s16", "f32")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v3", "x86-64-v4", "host")),
)
@examples(60)
def test_short_rows_several_at_a_time(dims, tag, dtype, off, cpu):
    """A row may be stored with what is none of it, but for the last of those that follow each other."""
    src, dst = rl.MemoryDesc(dims, dtype, "abcd"), rl.MemoryDesc(dims, dtype, tag)
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(off), Run(off, (4, 2, 0, 1, 3))] if runs_here else []
    compare(src, dst, cpu=made, runs=runs, wish="rows, row by row")


@given(
    channels=st.sampled_from((2, 4, 8, 16)),
    pixels=st.integers(16, 300),
    types=st.sampled_from(
        ("f32 s8", "f32 u8", "f32 bf16", "f32 f16", "bf16 s8", "f64 f32", "s32 u8", "f32 u4")
    ),
    values=st.sampled_from((None, "scale", "channels")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v2", "x86-64-v3", "x86-64-v4", "host")),
)
@examples(80)
def test_planes_that_become_narrower_before_they_are_interleaved(channels, pixels, types, values, off, cpu):
    src, dst = (
        rl.MemoryDesc((2, channels, pixels), *given)
        for given in zip(types.split(), ("abc", "acb"), strict=True)
    )
    scales = (1 + np.arange(channels) / 3, 1) if values == "channels" else 0.7
    given = {"dst_scale": scales, "dst_zero_point": 5} if values is not None else {}
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    kinds = compare(src, dst, given=given, cpu=made, runs=runs, wish="interleave").kinds
    assert kinds == ("interleave",) or pixels < 64 or channels == 16 or types == "f32 u4"


@given(
    channels=st.sampled_from((2, 4, 8, 16)),
    pixels=st.integers(8, 400),
    dtype=st.sampled_from(("s8", "bf16", "f32", "f64")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v3", "host")),
)
@examples(60)
def test_few_channels_by_lanes_that_are_far_apart(channels, pixels, dtype, off, cpu):
    """Pixels that a lane holds several of, or one, or a part; those that are left over."""
    src, dst = (rl.MemoryDesc((3, channels, pixels), dtype, tag) for tag in ("acb", "abc"))
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(off), Run(off, (2, 0, 1))] if runs_here else []
    compare(src, dst, cpu=made, runs=runs, wish="deinterleave")


@pytest.mark.parametrize("types", [("s8", "s8"), ("bf16", "bf16"), ("f32", "s8"), ("u8", "f32")])
@pytest.mark.parametrize("kind", ["estimate", "transpose", "staged", "patched", "32 rows", "128 rows"])
def test_threads_share_rows_where_nothing_else_is_left(monkeypatch, types, kind):
    """One picture whose channels are too few to be shared: blocks of its pixels."""
    monkeypatch.setenv("RELAYOUT_THREADS", "2")
    for height in share((29, 32), len(kind) + len(types[0])):
        src, dst = (
            rl.MemoryDesc((1, 24, height, 20), *side) for side in zip(types, ("nhwc", "nchw"), strict=True)
        )
        made = compare(src, dst, wish=kind, runs=(*RUNS, Run(0, tuple(range(13)))))
        (plan,) = made._plans
        if plan.kind == "converted":  # whole pieces of rows, as many as the buffer holds
            assert plan.shared.src // plan.rows.loop.src * plan.extent == height * 20
        else:
            assert plan.shared is plan.rows.loop
            assert plan.extent == height * 20


@pytest.mark.parametrize(
    ("types", "side", "channels"),
    covering(
        [("u8", "u8"), ("u8", "f32"), ("u8", "bf16"), ("f32", "f32")],
        [5, 6, 7, 8],
        [2, 3, 5],
    ),
)
def test_small_pictures_of_few_channels(types, side, channels):
    """Fewer pixels than a line has bytes: shorter vectors, the last of which may overlap."""
    dims = (9, channels, side, side)
    src, dst = (rl.MemoryDesc(dims, *part) for part in zip(types, ("nhwc", "nchw"), strict=True))
    scales = np.linspace(0.5, 2, channels, dtype=np.float32)
    for values in ({}, {"src_scale": (scales, 1), "src_zero_point": (np.arange(channels), 1)}):
        compare(src, dst, given=values, wish="deinterleave")


@given(
    rows=st.integers(8, 200),
    columns=st.integers(8, 200),
    dtype=st.sampled_from(("s8", "bf16", "f32", "f64")),
    way=st.sampled_from(("not prefetched", "across", "down")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v4", "host")),
)
@examples(60)
def test_squares_by_whole_lines(rows, columns, dtype, way, off, cpu):
    """Planes of a square at least, with rows and columns that are left over; also in shares, off a line."""
    src, dst = (rl.MemoryDesc((3, rows, columns), dtype, tag) for tag in ("abc", "acb"))
    made, runs_here = x86("x86-64-v4") if cpu != "host" else (None, True)
    runs = [Run(), Run(off), Run(0, (2, 0, 1))] if runs_here else []
    kinds = compare(src, dst, cpu=made, runs=runs, wish=f"squares, {way}").kinds
    lines = (made or machine.host()).vector == 64
    assert (kinds == ("squares",)) == (lines and min(rows, columns) >= 512 // rl.dtype(dtype).bits)


def test_words_that_follow_each_other_are_no_packed_filters():
    """Groups of a few words that are whole on both sides have nothing between their words."""
    for words in (2, 4, 8):
        src, dst = (rl.MemoryDesc((words, 2, 9), "f16", format) for format in ("abc", "acb"))
        compare(src, dst, wish="regrouped")


def test_packed_filters_are_regrouped_where_one_instruction_does_it():
    packed, plain = (rl.MemoryDesc((32, 32, 3, 3), "bf16", tag) for tag in ("OIhw8i16o2i", "oihw"))
    for src, dst, otherwise in ((plain, packed, "transpose"), (packed, plain, "apart")):
        assert compare(src, dst, cpu=x86("x86-64-v4")[0], runs=[], wish="regrouped").kinds == ("regrouped",)
        assert compare(src, dst, cpu=x86("x86-64-v3")[0], runs=[], wish="regrouped").kinds == (otherwise,)


@given(
    groups=st.integers(1, 24),
    taps=st.integers(2, 12),
    word=st.sampled_from((2, 4, 8)),
    lines=st.integers(1, 3),
    dtype=st.sampled_from(("s8", "s16", "f32")),
    off=st.integers(0, 63),
    cpu=st.sampled_from(("x86-64-v4", "host")),
)
@examples(60)
def test_words_of_several_rows_are_put_together_to_lines(groups, taps, word, lines, dtype, off, cpu):
    """Any number of groups: rows that end within a square, and groups that squares do not divide."""
    out = 64 // word // (rl.dtype(dtype).bits // 8) * lines
    dims = (out * 2, groups * word, taps)
    packed = rl.MemoryDesc(dims, dtype, f"OIw{out}o{word}i")
    made, runs_here = (None, True) if cpu == "host" else x86(cpu)
    runs = [Run(0), Run(off, (2, 0, 1))] if runs_here else []
    compare(rl.MemoryDesc(dims, dtype, "oiw"), packed, cpu=made, runs=runs, wish="words")


def test_packed_filters_of_whole_lines_are_written_line_by_line():
    packed, plain = (rl.MemoryDesc((32, 32, 3, 3), "bf16", tag) for tag in ("OIhw8i16o2i", "oihw"))
    for cpu, kind in (("x86-64-v4", "words"), ("x86-64-v3", "transpose")):
        assert compare(plain, packed, cpu=x86(cpu)[0], runs=[], wish="words").kinds == (kind,)


def test_what_is_left_over_falls_to_all_parts_alike():
    """Nests with fewer turns than parts: a line each, or three, wherever they come in the order of nests."""
    turns = (1, 3, 1, 1, 5, 1)
    size = 64 * sum(turns)
    desc = rl.MemoryDesc((size,), "u8", "a")
    starts = np.cumsum((0, *turns[:-1])) * 512
    found = tuple(
        Move((int(at), int(at)), (Loop(count, (512, 512)), Loop(3, (8, 8))), (8, 8))
        for at, count in zip(starts, turns, strict=True)
    )
    made = native.Native(desc, desc, found, streaming=False)
    assert len(made._plans) == len(turns)
    source = np.ones(size, np.uint8)
    for parts in (1, 2, 3, 4, 5, 12, 20):
        written = []
        for part in range(parts):
            target = np.zeros(size, np.uint8)
            made._kernel(source.ctypes.data, target.ctypes.data, 0, part, parts)
            written.append(int(target.sum()) // 3)
        assert sum(written) == sum(turns)
        assert max(written) - min(written) <= 1, (parts, written)


# -- what has gone wrong, or might --------------------------------------------------------------------------


class TestTraps:
    @pytest.mark.parametrize("row", [33, 131])
    @pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3", None])
    def test_rows_of_odd_size_are_not_streamed_one_by_one(self, row, cpu):
        """Blocks of 32 rows that are no whole lines: streaming stores to odd addresses end the process."""
        dims = (64, 20, row)
        other, runs = x86(cpu) if cpu else (None, True)
        if not runs:
            pytest.skip("another processor")
        made = compare(rl.MemoryDesc(dims, "u8", "abc"), rl.MemoryDesc(dims, "u8", "bac"), cpu=other)
        assert made.kinds == ("rows",)

    @pytest.mark.parametrize("rows", [2, 3, 5, 7, 19, 35])
    def test_a_last_row_of_4_bit_elements(self, rows):
        """Columns come in pairs, and so do the rows of a tile, though one row may be left over."""
        for one, two in (("s4", "f32"), ("u4", "u8")):
            compare(rl.MemoryDesc((rows, 16), one, "ab"), rl.MemoryDesc((rows, 16), two, "ba"))

    @pytest.mark.parametrize("columns", [6, 14, 22, 30])
    @pytest.mark.parametrize("rows", [2, 8, 16, 32])
    def test_few_columns_of_4_bit_elements_turned_over(self, rows, columns):
        """Pairs store every column of a tile, so that no tile may have more of them than there are."""
        for planes in (1, 3):
            dims = (planes, rows, columns)
            compare(*(rl.MemoryDesc(dims, "s4", format) for format in ("abc", "acb")))

    @pytest.mark.parametrize("columns", [3, 6, 7, 14])
    @pytest.mark.parametrize("types", [("s8", "u4"), ("s8", "u8"), ("u8", "s8"), ("s8", "f32")])
    def test_few_columns_are_converted(self, types, columns):
        """Short rows are loaded with what follows them, and what is converted behind loads is converted."""
        for planes in (1, 3):
            dims = (planes, 16, columns)
            src, dst = (rl.MemoryDesc(dims, *each) for each in zip(types, ("abc", "acb"), strict=True))
            compare(src, dst)

    @pytest.mark.parametrize(
        ("src", "dst"),
        [
            ({"strides": (8, 1)}, {"strides": (1, 5)}),
            ({"strides": (9, 1)}, {"strides": (1, 4)}),
            ({"strides": (10, 1), "offset": 1}, {"strides": (1, 4)}),
            ({"strides": (8, 1)}, {"strides": (1, 4), "offset": 1}),
        ],
    )
    def test_pairs_that_begin_within_a_byte(self, src, dst):
        src, dst = (rl.MemoryDesc((4, 8), "s4", rl.Layout((4, 8), **how)) for how in (src, dst))
        source, old = random_bytes(src.required_bytes, 1), random_bytes(dst.required_bytes, 2)
        expected, got = old.copy(), old.copy()
        reorder_by_definition(src, source, dst, expected, Attributes())
        rl.Reorder(src, dst)(source, got)
        np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize("types", [("f32", "f32"), ("s16", "s16"), ("f32", "s8")])
    @pytest.mark.parametrize(("rows", "columns"), [(23, 96), (16, 272), (23, 1000), (23, 1024)])
    def test_staged_pieces_fit_the_shares(self, types, rows, columns):
        """However many lines are fetched at a time: columns are shared, or not; nothing is added twice."""
        for planes in (1, 9):
            dims = (planes, rows, columns)
            src = rl.MemoryDesc(dims, types[0], rl.Layout(dims, strides=(rows * 1024, 1024, 1)))
            dst = rl.MemoryDesc(dims, types[1], "acb")
            for added in share(({}, {"beta": 1.0}), planes // 9 + columns % 7 + rows):
                ways = [Run(0, (0,)), Run(0, (8, 7, 6, 5, 4, 3, 2, 1, 0)), Run(4, (1, 0))]
                made = compare(src, dst, given=added, runs=ways, wish="staged")
                assert "staged" in made.kinds or added

    @pytest.mark.parametrize("pixels", [(128, 512), (129, 511)])
    @pytest.mark.parametrize("types", [("u8", "u8"), ("u8", "bf16"), ("f32", "s8")])
    @pytest.mark.parametrize("channels", [3, 4])
    def test_the_pixels_of_a_single_picture_are_shared(self, types, channels, pixels):
        for pair in (("nhwc", "nchw"), ("nchw", "nhwc")):
            src, dst = (
                rl.MemoryDesc((1, channels, *pixels), dtype, format)
                for dtype, format in zip(types, pair, strict=True)
            )
            [plan] = compare(src, dst)._plans
            assert plan.extent == pixels[0] * pixels[1]

    def test_padding_stays_zero_whatever_the_zero_point(self):
        for types in (("u8", "s8"), ("f32", "s8"), ("s8", "f32")):
            for two in ("aBc8b", "aBc16b", "aBc64b", "acB8b"):
                dims = (2, 3, 40)
                src, dst = rl.MemoryDesc(dims, types[0], "abc"), rl.MemoryDesc(dims, types[1], two)
                for one in (src, rl.MemoryDesc(dims, types[0], "acb")):
                    compare(one, dst, given={"dst_zero_point": 7, "src_zero_point": -3})

    def test_nothing_is_moved_where_there_is_nothing(self):
        for dims in ((0, 3, 4), (2, 0, 4), (0, 0, 0)):
            src, dst = rl.MemoryDesc(dims, "f32", "abc"), rl.MemoryDesc(dims, "s8", "aBc8b")
            assert native.native(src, dst) is None
            rl.Reorder(src, dst, dst_scale=2)(b"", bytearray())


# -- guard pages --------------------------------------------------------------------------------------------

WIDE_PADDING = [
    (
        rl.MemoryDesc((2, 3, 30), "u8", "abc"),
        rl.MemoryDesc((2, 3, 30), dtype, two),
        {"src_scale": ([1, 2, 3], 1)},
    )
    for dtype in ("u8", "f32")
    for two in ("aBc256b", "aBc64b")
]
"""More zeros in a row than operands."""


def guarded():
    """Problems whose buffers get a page around them that can't be touched: attributes lie along axes."""
    for number in range(len(SHAPES)):
        for src, dst in moves(number)[number % 2 :: 2]:
            yield src, dst, {}
        yield from list(conversions(number))[number % 2 :: 2]
    for one, two in PICTURES:
        yield rl.MemoryDesc((2, 3, 21, 50), "u8", one), rl.MemoryDesc((2, 3, 21, 50), "f32", two), PER_CHANNEL
    yield from WIDE_PADDING
    for dtype in ("s8", "s16", "f32"):  # patches
        for dims in ((300, 77), (577, 416), (161, 150)):
            yield rl.MemoryDesc(dims, dtype, "ab"), rl.MemoryDesc(dims, dtype, "ba"), {}
    for channels, pixels in product((40, 256), (9, 21)):
        for dtype in ("s8", "s16", "f32", "f64"):
            dims = 2, channels, pixels, 9
            yield rl.MemoryDesc(dims, dtype, "nhwc"), rl.MemoryDesc(dims, dtype, "nchw"), {}
    for pixels in (64, 100):
        for types, tag in (
            (("s8", "f32"), "nChw16c"),
            (("u8", "u8"), "nChw16c"),
            (("bf16", "f32"), "nChw8c"),
        ):
            src, dst = (
                rl.MemoryDesc((2, 16, 1, pixels), *two) for two in zip(types, (tag, "nchw"), strict=True)
            )
            yield src, dst, {}
    for extent in (9, 12, 23):
        dims = 3, 5, 7, extent
        yield rl.MemoryDesc(dims, "s16", "abcd"), rl.MemoryDesc(dims, "s16", "cbad"), {}
    for tag, dtype in (("OIhw4i16o4i", "s8"), ("OIhw8i16o2i", "bf16"), ("OIhw2i16o2i", "s16")):
        plain, packed = (rl.MemoryDesc((32, 32, 3, 3), dtype, format) for format in ("oihw", tag))
        yield from ((plain, packed, {}), (packed, plain, {}))


def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, operands too, end at, then begin behind, a page that can't be touched.

    A stray access ends the process. Half of the problems are tried, others each time.
    """
    script = textwrap.dedent(
        """
        import ctypes, mmap, random, sys
        import numpy as np
        sys.path.insert(0, {tests!r})
        from covering import share
        from test_kernels import attributes_of, compiled, guarded

        libc = ctypes.CDLL(None, use_errno=True)
        PAGE = mmap.PAGESIZE

        def arena(room):
            memory = np.frombuffer(mmap.mmap(-1, room + 2 * PAGE), np.uint8)
            kept.append(memory)
            base = memory.ctypes.data
            for page in (base, base + PAGE + room):
                assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0
            return base + PAGE, base + PAGE + room

        kept = []
        arenas = [arena(1 << 22) for _ in range(3)]
        count = 0
        for src, dst, given in share([*guarded()], random.randrange(2)):
            attributes = attributes_of(src, dst, given)
            for wish in ("estimate", "patched"):
                made = compiled(src, dst, attributes.shape, wish=wish)
                if wish not in ("estimate", *made.kinds):
                    continue
                operands = made.operands(attributes)
                sizes = src.required_bytes, dst.required_bytes, 0 if operands is None else operands.size
                for at_end in (False, True):
                    rooms = zip(arenas, sizes, strict=True)
                    places = [end - size if at_end else start for (start, end), size in rooms]
                    if operands is not None:
                        ctypes.memmove(places[2], operands.ctypes.data, operands.size)
                    print(src, dst, attributes, made.kinds, at_end, file=sys.stderr)
                    for kernel in (made._kernel, made._cached):
                        for part in (2, 0, 1):
                            kernel(*places, part, 3)
            count += 1
        print("done", count)
        """
    ).format(tests=os.path.dirname(__file__))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    word, count = ran.stdout.split()[-2:] or ("", 0)
    assert word == "done", (ran.returncode, ran.stderr[-2000:])
    assert int(count) >= len([*guarded()]) // 2


@pytest.mark.parametrize("kind", ["u8", "f16"])
def test_groups_of_two_pixels_are_transposed(kind):
    """Nothing lies across them, so they are no packed filters; writing there was beyond the end once."""
    x = np.arange(80).reshape(2, 20, 2, 1, 1)
    made = rl.Reorder(rl.MemoryDesc(x.shape, kind, "ndhwc"), rl.MemoryDesc(x.shape, kind, "ncdhw"))
    np.testing.assert_array_equal(made(rl.tensor(x, "ndhwc", dtype=kind)).numpy(), x)
