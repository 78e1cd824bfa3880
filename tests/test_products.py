"""Sums of products: what convolution, inner product and matrix product share, and how their tests judge them.

:func:`check` runs one primitive on poisoned memory and compares it with its definition. Everything that is
no element holds ``0xff`` in all bytes (NaN, or -1): holes and padding of the sources, scratch, the old
destination, and a margin around each buffer. So what is read by mistake shows in the result, and what is
written by mistake in the margins.

Tolerances are those of the arithmetic (:func:`tolerance`), not of a shape: with S the same sum of absolute
values, scale and bias included,

* f32 sums are within 1e-5 S; a destination of f16 or bf16 adds one rounding;
* integers that stay integers are exact; with scales or a bias in f32, sums are within 3e-7 S, and integer
  destinations are what some number within that rounds to: exact away from ties.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import subprocess
import sys
import textwrap
import threading
from itertools import product
from math import ceil, prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from fences import output_of
from relayout import LayoutError, MemoryDesc
from relayout.kernels.conv import arithmetic, candidates, convolution, cost, geometry, planning, tile, weights
from relayout.kernels.conv import module as text
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.tile import lanes_of, pieces_of
from relayout.loops.nest import Loop
from relayout.ops.functions import Function
from relayout.ops.post_ops import Sum
from relayout.primitives import Convolution, InnerProduct, Matmul
from strategies import element_places, examples, padding_offsets
from test_kernels import x86
from test_values import undefined

machines = importlib.import_module("relayout.targets.machine")
compile_ = pytest.importorskip("relayout.jit.compile")
products = importlib.import_module("relayout.primitives.products")
drafting = importlib.import_module("relayout.primitives.drafting")
sharing = importlib.import_module("relayout.runtime.sharing")

MARGIN = 192  # bytes around each buffer
FLOATS = ("f32", "f16", "bf16")
INTEGERS = ("s8", "u8", "s32")
STEEP = {"relu": 1, "tanh": 1, "logistic": 0.25, "clip": 1, "abs": 1, "elu": 1, "gelu_erf": 1.2}
"""The largest slope of functions, for the numbers that are used here."""

compiles = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


# -- how to judge -------------------------------------------------------------------------------------------


def random_values(desc, rng):
    """A logical array that its data type can hold: small numbers, at times the extremes of integers."""
    name = desc.dtype.name
    if name in FLOATS:
        return rng.standard_normal(desc.dims)
    low, high = {"s8": (-128, 127), "u8": (0, 255), "s32": (-1000, 1000)}[name]
    how = rng.integers(3)
    if how == 0 and name != "s32":
        return np.full(desc.dims, rng.choice([low, high])).astype(np.float64)
    return rng.integers(low, high + 1, desc.dims).astype(np.float64)


class Held:
    """A tensor in the middle of a buffer in which all else is ``0xff``.

    Attributes: ``tensor``, the ``array`` that it holds (where elements share a place, one of them wins), the
    ``whole`` buffer and what it held ``before``.
    """

    def __init__(self, desc, array=None):
        size = desc.dtype.bits // 8
        room = max(desc.required_bytes, desc.nbytes)
        raw = np.full(room + 2 * MARGIN + 64, 0xFF, np.uint8)
        start = -raw.ctypes.data % 64  # elements are aligned, vectors are not
        self.whole = raw[start : start + room + 2 * MARGIN]
        self.first = MARGIN + 3 * size
        self.desc = desc
        inside = self.whole[self.first : self.first + room]
        self.elements = inside[: room // size * size].view(desc.dtype.numpy)
        self.places = element_places(desc.layout)
        if array is not None:
            made = rl.tensor(np.asarray(array, np.float64), dtype=desc.dtype).numpy()
            self.elements[self.places] = made.reshape(desc.dims)
        self.before = self.whole.copy()
        self.tensor = rl.from_buffer(inside, desc)

    @property
    def array(self):
        return self.elements[self.places].astype(np.float64)

    def clear_padding(self):
        """As callers must have it."""
        self.elements[padding_offsets(self.desc.layout)] = 0
        self.before = self.whole.copy()

    def check_written(self, what):
        """Padding is zero, and what is neither that nor an element is as it was."""
        size = self.desc.dtype.bits // 8
        padding = padding_offsets(self.desc.layout)
        as_bits = self.elements.view(np.dtype(f"u{size}"))
        assert not as_bits[padding].any(), f"{what}: padding of {self.desc} is not zero"
        touched = np.zeros(self.whole.size, bool)
        for places in (self.places.ravel(), padding):
            for byte in range(size):
                touched[self.first + places * size + byte] = True
        np.testing.assert_array_equal(self.whole[~touched], self.before[~touched], err_msg=f"{what}: outside")

    def check_untouched(self, what):
        np.testing.assert_array_equal(self.whole, self.before, err_msg=f"{what}: {self.desc} was written to")


def poisoned(program):
    """Give a program scratch that is ``0xff`` throughout; the buffers around it."""
    wholes = {name: np.full(size + 2 * MARGIN + 64, 0xFF, np.uint8) for name, size in program.scratch.items()}
    made = {}
    for name, raw in wholes.items():
        start = MARGIN + -(raw.ctypes.data + MARGIN) % 64
        made[name] = raw[start : start + program.scratch[name]]
        wholes[name] = raw[:start], raw[start + program.scratch[name] :]
    program._free[:] = [made]
    return [side for sides in wholes.values() for side in sides]


def magnitude(made, arrays):
    """The sums of absolute values, without post-ops."""
    given = {name: abs(arrays[name]) for name in ("src", "weights", "bias", "scale") if name in arrays}
    points = ("src_zero_point", "weights_zero_point")
    given |= {name: -abs(arrays[name]) for name in points if name in arrays}
    with np.errstate(all="ignore"):
        return made.operation.compute(**given)


def tolerance(made, arrays, exact, old):
    """How far from the exact result a result may be before it is rounded to the data type of dst."""
    whole = made.src.dtype.name in INTEGERS
    between = "scale" in arrays or made.post_ops or ("bias" in arrays and made.bias.dtype.name != "s32")
    if whole and made.dst.dtype.name == "s32" and not between:
        return np.zeros(exact.shape)
    allowed = magnitude(made, arrays) * (3e-7 if whole else 1e-5)
    for op in made.post_ops:
        if isinstance(op, Sum):
            allowed = allowed + 3e-7 * abs(op.scale * old)
        else:
            steep = abs(op.alpha) if op.algorithm == "linear" else STEEP[op.algorithm]
            allowed = allowed * max(1, steep) + 1e-6
    if "dst_scale" in arrays:
        allowed = allowed / abs(arrays["dst_scale"])
    return allowed + 3e-7 * abs(exact)


def judge(got, exact, allowed, kind, what):
    """Compare with what the destination's data type can hold."""
    with np.errstate(all="ignore"):
        if kind in INTEGERS:
            info = np.iinfo(kind.replace("s", "int").replace("u", "uint"))
            low, high = (np.nan_to_num(exact, nan=0) + side for side in (-allowed, allowed))
            low, high = (np.clip(np.rint(np.nan_to_num(x)), info.min, info.max) for x in (low, high))
            bad = (got < low) | (got > high)
        else:
            rounding = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}[kind]
            least = {"f32": 2.0**-149, "f16": 2.0**-25, "bf16": 2.0**-133}[kind]
            bad = ~(abs(got - exact) <= allowed + rounding * (abs(exact) + allowed) + least)
            odd = ~np.isfinite(exact)
            bad[odd] = ~((got == exact) | (np.isnan(got) & np.isnan(exact)))[odd]
    if bad.any():
        worst = np.unravel_index(np.argmax(np.where(bad, abs(got - exact), -1)), got.shape)
        raise AssertionError(
            f"{what}: {bad.sum()} of {bad.size} differ; at {worst} {got[worst]} is not {exact[worst]} "
            f"within {allowed[worst]}"
        )


def check(made, seed=0, arrays=None, old=None, threads=None, kernel=None, exactly=None):
    """Run it on poisoned memory; the bytes that it wrote.

    ``kernel`` says whether there must be machine code (True) or must not (False). ``exactly`` says what
    results must be to the bit, of the primitive and its arrays; without it they are the definition's.
    """
    rng = np.random.default_rng(seed)
    given = {**{name: random_values(made.descs[name], rng) for name in made.inputs}, **(arrays or {})}
    held = {name: Held(made.descs[name], array) for name, array in given.items()}
    if made.descs["weights"].dtype.name == "bf16":  # pairs of an odd channel and padding, which must be zero
        held["weights"].clear_padding()
    adds = made.accumulates
    out = Held(made.dst, (random_values(made.dst, rng) if old is None else old) if adds else None)
    before = out.array if adds else None
    arrays = {name: one.array for name, one in held.items()}
    program = made._compiled()
    if kernel is not None:
        assert (program is not None) == kernel, made
    around = poisoned(program) if program is not None else []
    result = made(*(one.tensor for one in held.values()), out=out.tensor, threads=threads)
    what = f"{made} {getattr(made, '__dict__', {}).get('geometry', '')} {made.post_ops} {made.implementation}"
    assert result is out.tensor
    for one in held.values():
        one.check_untouched(what)
    out.check_written(what)
    for side in around:
        assert (side == 0xFF).all(), f"{what}: scratch overflows"
    if exactly is not None:
        wanted = exactly(made, arrays)
        judge(out.array, wanted, np.zeros(wanted.shape), made.dst.dtype.name, what)
        return out.whole
    with np.errstate(all="ignore"):
        exact = made.reference(**arrays, **({"out": before} if adds else {}))
        allowed = tolerance(made, arrays, exact, before)
    judge(out.array, exact, allowed, made.dst.dtype.name, what)
    return out.whole


LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
HERE = [cpu for cpu in LEVELS if x86(cpu)[1]] or [None]
"""Processors whose code runs here; None is this one."""
DOTS = all(machines.host().has(f"avx512{name}") for name in ("vnni", "bf16"))
HERE += ["znver4"] * (DOTS and HERE != [None])  # adds up products of narrow numbers


@contextlib.contextmanager
def on(cpu, threads=2):
    """Make code for another processor, for so many threads, and share all work."""
    before = machines.host, sharing.WORTH, os.environ.get("RELAYOUT_THREADS")
    if cpu is not None:
        made = x86(cpu)[0]
        machines.host = lambda: made
    sharing.WORTH = 0
    products._products.cache_clear()
    os.environ["RELAYOUT_THREADS"] = str(threads)
    try:
        yield
    finally:
        machines.host, sharing.WORTH = before[:2]
        products._products.cache_clear()
        if before[2] is None:
            del os.environ["RELAYOUT_THREADS"]
        else:
            os.environ["RELAYOUT_THREADS"] = before[2]


hosts = st.tuples(st.sampled_from(HERE), st.sampled_from((1, 2, 3)))
"""What :func:`on` takes."""


@st.composite
def post_ops(draw):
    """Functions, with and without f(0) = 0, and a sum somewhere between them."""
    functions = [
        *("relu", "tanh", "logistic", "abs"),
        Function("relu", 0.5),
        Function("clip", -1, 2),
        Function("clip", 1, 4),
        Function("linear", 2, 3),
        Function("linear", -0.5, 0),
    ]
    found = [draw(st.sampled_from(functions)) for _ in range(draw(st.sampled_from((0, 0, 1, 2))))]
    if draw(st.integers(0, 2)) == 0:
        found.insert(draw(st.integers(0, len(found))), Sum(draw(st.sampled_from((1, 0.5, -2)))))
    return tuple(found)


TYPES = [
    *[("f32", "f32", "f32")] * 6,
    *(("bf16", "bf16", "bf16"), ("bf16", "bf16", "f32"), ("f16", "f16", "f16"), ("f32", "bf16", "f16")),
    *(("u8", "s8", "s32"), ("s8", "s8", "s32"), ("u8", "s8", "u8"), ("s8", "s8", "s8")),
    *(("u8", "s8", "f32"), ("s8", "s8", "bf16"), ("f32", "f32", "s8"), ("f32", "f32", "bf16")),
]
"""Of source, weights and destination."""


@st.composite
def vectors(draw, count, integers):
    """Descriptors of bias and scale, or None: dense, and at times a part of something longer."""

    def vector(size, kind):
        at = draw(st.sampled_from((0, 0, 5)))
        return MemoryDesc((size,), kind, rl.Layout((size,), "a", offset=at))

    bias, scale = draw(st.tuples(st.integers(0, 2), st.integers(0, 3)))
    return (
        None if bias == 0 else vector(count, "s32" if integers and bias == 1 else "f32"),
        None if scale < 2 else vector(1 if scale == 2 else count, "f32"),
    )


def problem(src, filters, strides=1, padding=0, kinds=("f32",) * 3, out=None, ops=(), plain=None, **more):
    """A convolution of two spatial axes from formats; ``any`` for weights unless ``plain`` is a format."""
    dims, form = src
    one = MemoryDesc(dims, kinds[0], form)
    two = MemoryDesc(filters, kinds[1], plain or rl.any)
    spatial = {"strides": strides, "padding": padding, "post_ops": ops}
    sizes = Convolution(one, two, **spatial).dst.dims
    return Convolution(one, two, dst=MemoryDesc(sizes, kinds[2], out or rl.any), **spatial, **more)


def variety():
    """Problems that between them take every way through the kernels, tails of all sorts included."""
    whole, bytes_ = ("u8", "s8", "s32"), ("u8", "s8", "u8")
    return [
        problem(((2, 17, 6, 5), "nhwc"), (50, 17, 3, 3)),
        problem(((2, 17, 6, 5), "nchw"), (50, 17, 3, 3), padding=1, ops="relu"),
        problem(((1, 16, 9, 9), "nChw16c"), (3, 16, 1, 1), 2, out="nChw16c"),
        problem(((1, 64, 19, 19), "nchw"), (8, 64, 1, 1), 10, out="nchw"),
        problem(((1, 64, 9, 9), "nchw"), (8, 64, 1, 1), 7, [(3, 0), (3, 0)]),
        problem(
            ((2, 33, 7, 11), "nChw8c"), (21, 33, 2, 3), padding=(0, 2), out="nChw24c", ops=(Sum(), "tanh")
        ),
        problem(((3, 8, 5, 5), "Chwn4c"), (40, 8, 3, 3), padding=1, out="NChw16n16c"),
        problem(((1, 100, 6, 7), "nhwc"), (100, 1, 1, 3, 3), padding=1),
        problem(((1, 19, 5, 5), "nhwc"), (19, 1, 1, 1, 1), plain="goihw"),
        problem(((2, 20, 6, 7), "nhwc"), (5, 4, 4, 3, 3)),
        problem(((1, 24, 4, 5), "nChw8c"), (8, 4, 3, 2, 2)),
        problem(((2, 20, 6, 7), "nChw32c"), (10, 4, 2, 3, 3), out="nchw", ops=(Sum(0.5),)),
        problem(((2, 12, 6, 7), "nhwc"), (2, 24, 6, 3, 3)),
        problem(((2, 3, 9, 9), "nchw"), (17, 3, 3, 3), 2, 1, bytes_, ops=(Function("linear", 0.01, 1),)),
        problem(((1, 66, 4, 5), "nhwc"), (33, 66, 3, 3), 1, 1, whole),
        problem(((1, 515, 3, 3), "nChw32c"), (20, 515, 1, 1), 1, 0, whole, out="nchw"),
        problem(((2, 17, 6, 5), "nhwc"), (50, 17, 3, 3), 1, 1, ("bf16", "bf16", "f16"), out="nchw"),
        problem(((2, 17, 6, 5), "nhwc"), (50, 17, 3, 3), plain="oihw"),
        problem(((2, 17, 6, 5), "nhwc"), (21, 17, 3, 3), plain="hwio"),
        problem(((2, 17, 6, 5), "nhwc"), (50, 17, 3, 3), bias=vector(50), scale=vector(1)),
        problem(((2, 17, 6, 5), "nhwc"), (50, 17, 3, 3), bias=vector(50), scale=vector(50), out="nchw"),
        InnerProduct(desc((3, 17, 3, 4), "nhwc"), desc((70, 17, 3, 4)), vector(70)),
        InnerProduct(
            desc((2, 600), "nc", "s8"), desc((19, 600), rl.any, "s8"), dst=desc((2, 19), "nc", "s32")
        ),
        Matmul(desc((7, 33), "ba"), desc((33, 21)), dst=desc((7, 21), "ba")),
        Matmul(desc((5, 7, 33), "abc"), desc((5, 33, 21)), vector(21)),
        Matmul(desc((5, 7, 33), "abc"), desc((5, 33, 70), "acb"), vector(70)),
        Matmul(desc((40, 33), "ab", "s8"), desc((33, 70), "ab", "s8"), dst=desc((40, 70), "ab", "s32")),
        Matmul(desc((90, 64), "ab"), desc((64, 50), "ba"), post_ops="relu"),
        Matmul(desc((21, 3, 2), "abc"), desc((21, 2, 2)), vector(2), scale=vector(2)),
        Matmul(desc((4, 7, 33), "bac"), desc((1, 33, 21), "acb"), vector(21), post_ops="gelu_erf"),
        problem(((2, 20, 6, 7), "nhwc"), (33, 20, 3, 3), 1, 1, ("s8", "s8", "f32"), out="nchw"),
        problem(((2, 20, 6, 7), "nhwc"), (40, 20, 3, 3), 1, 1, ("bf16", "bf16", "bf16")),
        problem(((1, 40, 5, 6, 7), "ndhwc"), (18, 40, 3, 3, 2), 1, 1, ("s8", "s8", "s32")),
        problem(((1, 32, 6, 7), "nChw16c"), (40, 32, 2, 3), 2, 1, ("s8", "s8", "s8"), plain="OIhw4i16o4i"),
        problem(((1, 32, 6, 7), "nChw16c"), (40, 32, 1, 1), 1, 0, ("u8", "s8", "s32"), plain="OIhw4i16o4i"),
        problem(((1, 64, 6, 7), "nhwc"), (32, 64, 3, 3), 1, 1, ("bf16", "bf16", "f32"), plain="OIhw16i16o2i"),
        problem(((2, 24, 6, 7), "nhwc"), (3, 18, 8, 3, 3), 1, 1, ("s8", "s8", "s32")),
        problem(((2, 12, 6, 7), "nhwc"), (2, 24, 6, 3, 3), 1, 1, ("u8", "s8", "s32")),
        Matmul(
            desc((40, 64), "ab", "s8"), desc((64, 70), "BA16a64b4a", "s8"), dst=desc((40, 70), "ab", "s32")
        ),
        Matmul(desc((3, 9, 36), "abc", "bf16"), desc((3, 36, 40), "abc", "bf16")),
    ]


def desc(dims, form=rl.any, kind="f32"):
    return MemoryDesc(dims, kind, form)


def vector(count):
    return MemoryDesc((count,), "f32", "a")


# -- memory -------------------------------------------------------------------------------------------------


@compiles
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched.

    A stray access ends the process.
    """
    script = """
        from fences import arena, run_between
        from test_products import HERE, on, variety

        arenas = [arena(1 << 20) for _ in range(7)]
        count = 0
        for cpu in HERE:
            with on(cpu):
                for made in variety():
                    run_between(made, arenas)
                    count += 1
        print(count)
        """
    assert int(output_of(script)) == len(HERE) * len(variety())


@compiles
def test_parts_of_one_tensor_are_apart():
    """Input and output may be neighbouring channels of one tensor, as in a concatenation in place."""
    rng = np.random.default_rng(0)
    for form in ("nhwc", "nChw16c"):
        whole = rl.tensor(rng.standard_normal((2, 48, 4, 5)).astype("f4"), form)
        src, dst = whole.parts(1, (16, 32))
        made = Convolution(src.desc, desc((32, 16, 3, 3)), dst=dst.desc, padding=1)
        weights = rl.tensor(rng.standard_normal((32, 16, 3, 3)).astype("f4"), made.weights)
        before, exact = src.numpy().copy(), made.reference(src, weights)
        made(src, weights, out=dst)
        np.testing.assert_allclose(dst.numpy(), exact, atol=1e-4)
        np.testing.assert_array_equal(src.numpy(), before)
        kept = whole.buffer.copy()
        clash = whole[:, 8:24]
        made = Convolution(src.desc, desc((16, 16, 1, 1)), dst=clash.desc)
        weights = rl.tensor(weights.numpy()[:16, :, :1, :1], made.weights)
        with pytest.raises(LayoutError, match="src and dst overlap"):
            made(src, weights, out=clash)
        np.testing.assert_array_equal(whole.buffer, kept)


# -- threads ------------------------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize("cpu", HERE)
def test_all_ways_compute_the_definition(cpu):
    with on(cpu):
        for made in variety():
            check(made, kernel=True)


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize("number", range(len(variety())))
def test_any_number_of_threads_gives_the_same_bits(number):
    """However the work is cut, each sum is added up in the same order."""
    found = []
    for most in (1, *share((3, 8), number)):
        with on(None, most):
            made = variety()[number]
            found += [check(made, seed=1, threads=threads, kernel=True) for threads in (1, 2, 8)]
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def by_every_candidate(made, arrays=None):
    """The bytes that a primitive writes by each of its schedules, all of which compute the definition."""
    given = made._as_products(made.descs)
    found = products.ways(given)
    for one in found.candidates if found is not None else ():
        made._compiled()
        lowered = products.products(given, str(one))
        assert str(lowered.plan) == str(one)
        made._take(lowered)
        yield check(made, seed=1, arrays=arrays, kernel=True)


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize("cpu", HERE)
def test_every_schedule_gives_the_same_bits(cpu):
    """Of some layers, others each time."""
    begin = random.randrange(4)
    several, some = 0, share(variety()[HERE.index(cpu) % 2 :: 2], begin)
    print(f"begins with {begin}")
    with on(cpu):
        for made in some:
            first, *others = by_every_candidate(made)
            several += len(others)
            for one in others:
                np.testing.assert_array_equal(one, first)
    assert several > 2 * len(some)


@compiles
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_of_taps_outside_count(value):
    """Zero times NaN, or infinity, is NaN: at the borders of images too, packed or read where they lie."""
    rng = np.random.default_rng(0)
    for cpu, form, tap in product(HERE, ("nhwc", "nChw16c"), product(range(3), range(3))):
        with on(cpu):
            made = problem(((1, 16, 5, 6), form), (20, 16, 3, 3), 1, 1)
            weights = rng.standard_normal(made.weights.dims)
            weights[(1, 3, *tap)] = value
            check(made, arrays={"weights": weights}, kernel=True)


@compiles
def test_many_callers_at_once():
    with on(None, 2):
        for made in (variety()[k] for k in (1, 5, 17)):
            rng = np.random.default_rng(2)
            jobs = []
            for _ in range(6):
                given = [
                    rl.tensor(random_values(made.descs[n], rng), made.descs[n].layout, "f32")
                    for n in made.inputs
                ]
                out = rl.tensor(random_values(made.dst, rng), made.dst.layout, "f32")
                jobs.append((given, out))
            fresh = [rl.from_buffer(out.buffer.copy(), out.desc) for _, out in jobs]
            expected = [made(*given, out=out).buffer for (given, _), out in zip(jobs, fresh, strict=True)]
            wrong = []

            def work(job, wanted, made=made, wrong=wrong):
                given, out = job
                for _ in range(20):
                    target = rl.from_buffer(out.buffer.copy(), out.desc)
                    if made(*given, out=target).buffer.tobytes() != wanted.tobytes():
                        wrong.append(made)

            callers = [threading.Thread(target=work, args=pair) for pair in zip(jobs, expected, strict=True)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            assert not wrong


@compiles
@forks
def test_a_forked_child_computes_the_same():
    """While other threads call the same primitive."""
    script = textwrap.dedent(
        """
        import os, sys, threading
        import numpy as np
        sys.path.insert(0, {tests!r})
        from test_products import check, on, variety
        with on(None, 2):
            made, later = variety()[1], variety()[7]
            wanted = check(made, 3).tobytes()
            going, rng = True, np.random.default_rng(0)
            import relayout as rl
            descs = [made.descs[name] for name in made.inputs]
            given = [rl.tensor(rng.random(desc.dims, "f4"), desc.layout) for desc in descs]
            def calls():
                while going:
                    made(*given)
            callers = [threading.Thread(target=calls) for _ in range(2)]
            for caller in callers:
                caller.start()
            for _ in range(8):
                child = os.fork()
                if child == 0:
                    made(*given)
                    same = check(made, 3).tobytes() == wanted
                    check(later)  # compiled in the child
                    os._exit(0 if same else 1)
                assert os.waitpid(child, 0)[1] == 0
            going = False
            for caller in callers:
                caller.join()
        print("good")
        """
    ).format(tests=os.path.dirname(__file__))
    command = [sys.executable, "-W", "ignore", "-c", script]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert ran.stdout == "good\n", ran.stderr[-2000:]


def test_without_machine_code_the_definition_runs(monkeypatch):
    made = [variety()[k] for k in (2, 5, 14, 22, 26)]
    monkeypatch.setattr("relayout.jit.support.supported", lambda: False)
    for one in made:
        check(one, kernel=False)
        assert one.implementation == "definition (NumPy)"


# -- calls --------------------------------------------------------------------------------------------------


def test_calls_refuse_what_they_were_not_made_for():
    made = problem(((1, 4, 5, 5), "nhwc"), (8, 4, 3, 3), bias=vector(8), ops=(Sum(),))
    src, weights, bias = (
        rl.tensor(np.ones(made.descs[n].dims, "f4"), made.descs[n].layout) for n in made.inputs
    )
    out = rl.tensor(np.full(made.dst.dims, 7, "f4"), made.dst.layout)
    frozen = rl.from_buffer(bytes(out.buffer), made.dst)
    arguments = (src, weights, bias)
    for tensors, named, says in (
        (arguments[:2], {"out": out}, "needs bias"),
        ((*arguments, bias), {"out": out}, "got 4 tensors"),
        (arguments, {"src": src, "out": out}, "'src' was given twice"),
        (arguments, {"filter": src, "out": out}, "'filter' is none of src, weights, bias"),
        (arguments, {}, "adds to what dst held, but no out was given"),
        ((src.reorder("nchw"), weights, bias), {"out": out}, "src must be"),
        ((rl.tensor(src.numpy(), "nhwc", "bf16"), weights, bias), {"out": out}, "src must be"),
        ((src[:, :, :4], weights, bias), {"out": out}, "src must be"),
        ((src, weights.reorder("oihw"), bias), {"out": out}, "weights must be"),
        ((src, weights, rl.tensor(np.ones(16, "f4"))[::2]), {"out": out}, "bias must be"),
        (arguments, {"out": out.reorder("nchw")}, "dst must be"),
        (arguments, {"out": frozen}, "read-only"),
        (arguments, {"out": bytes(out.buffer)}, "read-only"),
        (arguments, {"out": bytearray(out.buffer.nbytes - 1)}, "needs 288 bytes; its buffer has 287"),
        (arguments, {"out": np.zeros((3, 3, 16), "f4")[:, :, ::2]}, "not contiguous"),
        (arguments, {"out": out, "threads": 0}, "threads must be 1 or more"),
        (arguments, {"out": out, "threads": 1.5}, "threads must be a whole number"),
    ):
        with pytest.raises(LayoutError, match=says):
            made(*tensors, **named)
        assert (out.numpy() == 7).all()


def test_buffers_and_arrays_are_taken():
    made = Convolution(desc((1, 4, 5, 5), "nchw"), desc((8, 4, 1, 1), "oihw"), dst=desc((1, 8, 5, 5), "nhwc"))
    rng = np.random.default_rng(0)
    src, weights = (rng.standard_normal(one.dims).astype("f4") for one in (made.src, made.weights))
    out = np.zeros((1, 5, 5, 8), "f4")
    result = made(src, weights, out=out)
    np.testing.assert_allclose(out.transpose(0, 3, 1, 2), made.reference(src, weights), atol=1e-5)
    np.testing.assert_array_equal(result.numpy(), out.transpose(0, 3, 1, 2))
    assert result.buffer.dtype == np.uint8


def test_bytes_count_all_arguments():
    made = problem(((1, 4, 5, 5), "nhwc"), (8, 4, 3, 3), bias=vector(8), out="nChw16c", plain="oihw")
    assert made.bytes == 4 * (4 * 25 + 8 * 4 * 9 + 8 + 16 * 9)
    assert made.flops == 2 * 9 * 8 * 4 * 9


@pytest.mark.parametrize("scale", ["a", None, float("nan"), float("inf"), 1e39])
def test_the_scale_of_a_sum_is_a_number(scale):
    with pytest.raises(LayoutError, match="scale of a sum"):
        Sum(scale)


# -- integers -----------------------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize("form", ["nhwc", "nchw"])
@pytest.mark.parametrize("source", ["u8", "s8"])
@pytest.mark.parametrize("channels", [64, 2501])
def test_long_sums_of_extremes_are_exact(source, form, channels):
    """Beyond 2**24, where f32 has no longer all numbers; also where results go through scratch."""
    for cpu in HERE:
        with on(cpu):
            filters, kinds = (5, channels, 1, 1), (source, "s8", "s32")
            made = problem(
                ((1, channels, 2, 3), form), filters, kinds=kinds, out=form, bias=desc((5,), "a", "s32")
            )
            signs = np.where(np.arange(5) % 2, 127.0, -128.0)
            most = 255.0 if source == "u8" else -128.0
            weights = np.broadcast_to(signs[:, None, None, None], made.weights.dims)
            bias = [2**31 - 1, -(2**31), 16777217, -1, 0]
            check(
                made,
                arrays={"src": np.full(made.src.dims, most), "weights": weights, "bias": bias},
                kernel=True,
            )


# -- below the primitives -----------------------------------------------------------------------------------

TARGETS = [(cpu, "x86_64-unknown-linux-gnu") for cpu in LEVELS]
TARGETS += [("neoverse-n1", "aarch64-unknown-linux-gnu"), ("apple-m1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_for_every_processor_calls_no_library(cpu, triple, monkeypatch):
    """And is made at all: LLVM would end the process where a function is missing."""
    modules = []
    monkeypatch.setattr(machines, "host", lambda: machines.machine(cpu, triple))
    monkeypatch.setattr(
        drafting, "reorder_step", lambda src, dst, source, target: drafting.Step(None, source, target)
    )
    monkeypatch.setattr(drafting, "zeros_step", lambda desc, target: drafting.Step(None, target, target))

    def recalled(problem, imported, make, machine):
        modules.append(make().ir)
        return [None], ""

    monkeypatch.setattr(compile_, "recalled", recalled)
    products._products.cache_clear()
    for made in variety()[:: 1 if "v2" in cpu else 3]:
        given = made._as_products(made.descs)
        assert products.products(given) is not None
        code = compile_.assemble(modules.pop(), machines.host(), 0)
        assert undefined(code) == set()


@given(first=st.integers(0, 20), count=st.integers(0, 64), size=st.sampled_from((1, 2, 4)))
def test_pieces_cover_lanes_once(first, count, size):
    pieces = pieces_of(first, count, 100, size)
    lanes = [lane for piece in pieces for lane in range(piece.lane, piece.lane + piece.lanes)]
    assert lanes == list(range(first, first + count))
    assert all(piece.offset == 100 + (piece.lane - first) * size for piece in pieces)
    assert all(piece.lanes & (piece.lanes - 1) == 0 for piece in pieces)


@given(data=st.data())
@examples(60)
def test_plans_fit_the_processor_and_cover_the_output(data):
    """Sums fit the registers; tasks are as many as they say; the groups of vectors are all channels, once."""
    draw = data.draw
    machine = machines.machine(draw(st.sampled_from(LEVELS)), "x86_64-unknown-linux-gnu")
    g, i, o = draw(
        st.sampled_from(((1, 3, 17), (1, 64, 64), (1, 17, 100), (32, 4, 4), (24, 1, 1), (3, 24, 24)))
    )
    h, w, k = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.sampled_from((1, 3)))
    out, one = (1, h, w), (1, 1, 1)
    shape = geometry.Geometry(2, g, i, o, (1, h + k - 1, w + k - 1), out, (1, k, k), one, one, (0, 0, 0))
    src, dst = (desc((2, g * n, *sizes[1:]), "nhwc") for n, sizes in ((i, shape.source), (o, out)))
    how = arithmetic.FLOATS
    packed = weights.weights_text(shape, how, machine, 2, True)
    threads = draw(st.integers(1, 16))
    problem = planning.Problem(src, desc((g, o, i, k, k), packed), dst, shape, how, True)
    nests = (one.plan for one in candidates.candidates(problem, machine, threads))
    nest = draw(st.sampled_from([one for one in nests if isinstance(one, planning.Direct)] or [None]))
    assume(nest is not None)
    lanes = lanes_of(machine)
    channels = []
    for spot in nest.places:
        group = nest.kinds[spot.kind]
        stored = [
            (spot.dst + piece.offset) // 4 + lane
            for pieces in group.pieces
            for piece in pieces
            for lane in range(piece.lanes)
        ]
        assert stored[0] == spot.channel
        channels += stored
    assert channels == list(range(g * o))
    most = max(group.vectors for group in nest.kinds)
    registers = 32 if lanes == 16 else 16
    assert nest.block.rows * nest.block.columns * most + most <= registers
    assert prod(dim.extent for dim in nest.dims) == 2 * h * w
    n, d, rows, columns = (dim.extent for dim in nest.dims)
    assert nest.tasks == n * d * ceil(rows / nest.rows) * ceil(columns / nest.columns) * nest.chunks
    assert 1 <= nest.chunks <= len(nest.places)


@pytest.mark.parametrize("cpu", LEVELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_cheapest_schedule_is_the_first_candidate(cpu, threads):
    """What plans of networks ask for, and what is lowered then."""
    machine, how = x86(cpu)[0], arithmetic.FLOATS
    for groups, each, k in ((1, 48, 3), (1, 40, 1), (48, 1, 3)):
        size, edge = (1, 14, 14), (0, k // 2, k // 2)
        shape = geometry.Geometry(2, groups, each, each, size, size, (1, k, k), (1, 1, 1), (1, 1, 1), edge)
        packed = weights.weights_text(shape, how, machine, 2, True)
        filters = desc((groups, each, each, k, k), packed)
        for one, two in product(("nchw", "nhwc", "nChw8c", "nChw16c"), repeat=2):
            sides = (desc((2, groups * each, 14, 14), form) for form in (one, two))
            problem = planning.Problem(next(sides), filters, next(sides), shape, how, True)
            found = candidates.candidates(problem, machine, threads)
            best = candidates.cheapest(problem, machine, threads)
            assert best == (found[0] if found else None), (one, two, groups, k)


@pytest.mark.parametrize("inputs", [7, 8, 9, 10, 64])
@pytest.mark.parametrize("kinds", [("f32", "f32"), ("u8", "s8")])
def test_turns_of_avx2_are_several_in_one_piece(kinds, inputs):
    """Four turns, or as many as leave none over, with one barrier each, ask for each line of weights once."""
    for cpu in ("x86-64-v3", "x86-64-v4"):
        machine, shape = x86(cpu)[0], geometry.Geometry.of_matrices(12, inputs, 16)
        how = arithmetic.arithmetic_of(*map(rl.dtype, kinds), shape, machine)
        found = tile.Tile(
            how,
            kinds[1],
            (0, 4 * inputs),
            (0, 64),
            (0,),
            ((),),
            machine.vector // 4,
            (Loop(ceil(inputs / how.depth), (how.step, lanes_of(machine) * how.depth)),),
            ahead=2048,
        )
        turns, weight = found.loops[0].extent, found.loops[0].steps[1]
        several = max(n for n in (1, 2, 3, 4) if turns % n == 0) if machine.is_avx2 else 1
        written = tile.tile_function("one", found, machine, (), Nothing())
        assert written.count("llvm.prefetch") == (ceil(several * weight / 64) if several > 1 else 1), cpu
        assert written.count(tile.BARRIER) == (several if several > 1 else 0), cpu


@pytest.mark.parametrize(
    ("batch", "edge", "inputs", "outputs", "pixels", "weights_asked", "source_asked"),
    [
        (1, 14, 1024, 256, 196, False, False),  # weights stay in the L2 cache, and the source is smaller
        (8, 14, 1024, 256, 16, True, True),  # neither stays
        (1, 56, 256, 64, 96, False, True),
        (1, 7, 2048, 512, 49, True, False),  # few pixels for 4 MiB of weights
        (8, 14, 768, 2304, 196, False, True),  # the source is smaller than the weights and beyond the caches
        (8, 7, 3072, 2304, 196, False, False),  # the same; tiles fill the L1 cache
    ],
)
def test_what_avx2_asks_for_in_advance(batch, edge, inputs, outputs, pixels, weights_asked, source_asked):
    """Weights from afar that few pixels meet; a source that is larger than the weights."""
    how = arithmetic.FLOATS
    size, one = (1, edge, edge), (1, 1, 1)
    shape = geometry.Geometry(batch, 1, inputs, outputs, size, size, one, one, one, (0, 0, 0))
    for cpu in ("znver3", "x86-64-v4"):
        machine = x86(cpu)[0]._replace(l1=1 << 15, l2=1 << 19)
        filters = desc((outputs, inputs, 1, 1), weights.weights_text(shape, how, machine, 2, False))
        sides = desc((batch, inputs, edge, edge), "nhwc"), filters, desc((batch, outputs, edge, edge), "nhwc")
        nest = next(planning.nests(planning.Problem(*sides, shape, how, False), machine, 1))
        cut = cost.Cut(cost.Block(1, 4), 1, min(pixels, nest.dims[3].extent), 1)
        made = convolution.DirectModule(planning.with_loops(nest, cut), convolution.Rows(), Epilogue("f32"))
        if machine.is_avx2:
            assert (made._ahead(0)[0] > 0, made._pitch() > 0) == (weights_asked, source_asked)
        else:
            assert made._ahead(0) == (convolution.PREFETCH_BYTES, convolution.L1)
            assert (made._pitch() > 0) == (nest.source_bytes > nest.weights_bytes)


@pytest.mark.parametrize(
    ("inputs", "outputs", "taps", "places", "ahead"),
    [
        (256, 1024, 1, 32, 32 * 256 * 4),  # what two vectors of channels read, one group behind the other
        (512, 512, 3, 32, 1 << 18),  # a quarter of the L2 cache, if a group is more
        (64, 64, 1, 2, 0),  # all of it stays in the L1 cache
        (256, 32, 3, 1, convolution.PREFETCH_BYTES),  # there is no next group
    ],
)
def test_what_zen_5_asks_for_in_advance(inputs, outputs, taps, places, ahead):
    """The weights of the next group, into the second cache."""
    how, machine = arithmetic.FLOATS, x86("znver5")[0]._replace(l1=48 << 10, l2=1 << 20)
    edge, one = 14, (1, 1, 1)
    size, kernel, padding = (1, edge, edge), (1, taps, taps), (0, taps // 2, taps // 2)
    shape = geometry.Geometry(1, 1, inputs, outputs, size, size, kernel, one, one, padding)
    filters = desc((outputs, inputs, taps, taps), weights.weights_text(shape, how, machine, 2, False))
    sides = desc((1, inputs, edge, edge), "nhwc"), filters, desc((1, outputs, edge, edge), "nhwc")
    nests = planning.nests(planning.Problem(*sides, shape, how, False), machine, 1)
    nest = next(one for one in nests if len(one.places) == places)
    cut = cost.Cut(cost.Block(1, 7), 1, 14, 1)
    made = convolution.DirectModule(planning.with_loops(nest, cut), convolution.Rows(), Epilogue("f32"))
    into = convolution.L2 if ahead > convolution.PREFETCH_BYTES else convolution.L1
    assert made._ahead(0) == (ahead, into)
    written = made.text()
    assert ("i32 0, i32 2, i32 1)" in written) == (into == convolution.L2)


@pytest.mark.parametrize("cpu", ["znver5", "znver4"])
@pytest.mark.parametrize("sizes", [(256, 4096, 4096), (1024, 4096, 11008), (1576, 3072, 768)])
def test_what_exceeds_the_last_cache_is_not_read_again_and_again(cpu, sizes):
    """Weights by tasks of a few rows, or sources by chunks of a few channels: memory would be the limit."""
    machine, (rows, inputs, outputs) = x86(cpu)[0]._replace(l1=48 << 10, l2=1 << 20, l3=32 << 20), sizes
    src, dst = desc((rows, inputs), "ab"), desc((rows, outputs), "ab")
    made = Matmul(src, desc((inputs, outputs), rl.any), dst=dst)
    plan = products._ways(made._as_products(made.descs), machine, 1).candidates[0].plan
    blocks = ceil(rows / plan.columns)  # of rows, each of which meets all weights
    moved = 4 * inputs * (blocks * outputs + plan.chunks * rows)
    cycles = rows * inputs * outputs / 32  # of two products of 16 sums
    assert moved / cycles < 6  # bytes that memory gives in one


@pytest.mark.parametrize(
    ("cpu", "triple"), [("znver3", None), ("znver4", None), ("generic", "aarch64-unknown-linux-gnu")]
)
def test_loops_around_calls_of_tiles_are_compiled_in_haste(cpu, triple):
    """With AVX2; tiles never are."""
    machine = machines.machine(cpu, *filter(None, (triple,)))
    how, size, one = arithmetic.FLOATS, (1, 9, 9), (1, 1, 1)
    shape = geometry.Geometry(1, 1, 16, 16, size, size, one, one, one, (0, 0, 0))
    filters = desc((16, 16, 1, 1), weights.weights_text(shape, how, machine, 2, False))
    side = desc((1, 16, 9, 9), "nhwc")
    found = candidates.candidates(planning.Problem(side, filters, side, shape, how, False), machine, 1)
    nest = next(one.plan for one in found if isinstance(one.plan, candidates.Direct))
    made = convolution.DirectModule(nest, convolution.Rows(), Epilogue("f32")).text()
    heads = [line for line in made.splitlines() if line.startswith("define")]
    assert {"optnone" in head for head in heads if "@convolution(" in head} == {machine.is_avx2}
    assert not any("optnone" in head for head in heads if "@convolution(" not in head)
    assert compile_.assemble(compile_._guarded(compile_.Module(made, ["convolution"]), machine).ir, machine)


class Nothing:
    """What becomes of sums that nobody stores."""

    def __call__(self, b, x, pixel, number):
        return x

    def store(self, b, sums):
        pass


def test_pixels_of_all_taps_count_for_a_set_of_the_first_cache():
    """7 pixels of three taps, two apart, are 15 lines of one set, where a pixel has 4096 bytes."""
    how, machine = arithmetic.FLOATS, x86("x86-64-v3")[0]
    shape = geometry.Geometry(
        1, 32, 32, 32, (1, 14, 14), (1, 7, 7), (1, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1)
    )
    filters = desc((32, 32, 32, 3, 3), weights.weights_text(shape, how, machine, 2, True))
    sides = desc((1, 1024, 14, 14), "nhwc"), filters, desc((1, 1024, 7, 7), "nhwc")
    several = [
        cost.Model(nest)
        for nest in planning.nests(planning.Problem(*sides, shape, how, True), machine, 1)
        if len(nest.taps) == 3 and not nest.packs
    ]
    assert several
    for model in several:
        assert [model.read(pixels) for pixels in (1, 4, 7)] == [3, 9, 15]
        assert model.turn(7, 1) > model.turn(3, 1) + 5


@pytest.mark.parametrize("cpu", LEVELS)
def test_shares_of_the_weights_fit_a_small_cache(cpu):
    """Where sixteenths of the weights are too large for the L2 cache, smaller shares are tried."""
    machine = x86(cpu)[0]._replace(l2=1 << 18)
    sides = desc((600, 768), "ab"), desc((768, 3072), "Ba16b"), desc((600, 3072), "ab")
    shape, how = geometry.Geometry.of_matrices(600, 768, 3072, 1), arithmetic.FLOATS
    filters = sides[1].permute_axes((1, 0))
    for nest in planning.nests(planning.Problem(sides[0], filters, sides[2], shape, how, False), machine, 1):
        model = cost.Model(nest)
        most = max(cut.chunks for cut in model.cuts(1))
        assert most > 16, cpu
        assert model.weights_bytes / most <= machine.l2 / 2 or most == len(nest.places), cpu


def test_weights_that_the_tile_cannot_read_are_left_to_a_reorder():
    one = (1, 1, 1)
    shape = geometry.Geometry(1, 1, 34, 20, one, one, one, one, one, (0, 0, 0))
    good = {"Ohwi16o": 8, "OIhw16i16o": 8, "Ohwi24o": 8, "hwio": 4, "Ohwi32o": 16}
    for form, lanes in good.items():
        found = weights.weights_of(desc((20, 34, 1, 1), form), shape, arithmetic.FLOATS, lanes, False)
        assert found is not None, form
        step = 4 * lanes
        assert len(found.vectors) == -(-20 // lanes)
        layout = rl.Layout((20, 34, 1, 1), form)
        assert [at // 4 for at in found.vectors] == [
            layout.offset(first, 0, 0, 0) for first in range(0, 20, lanes)
        ], step
    for form, lanes in {
        "oihw": 8,
        "Ohwi4o": 8,
        "hwio": 8,
        "Ohwi16o": 32,
    }.items():  # lanes apart, or none to read
        assert (
            weights.weights_of(desc((20, 34, 1, 1), form), shape, arithmetic.FLOATS, lanes, False) is None
        ), form
    pairs = MemoryDesc((20, 34, 1, 1), "s8", "OhwI16o2i")
    assert weights.weights_of(pairs, shape, arithmetic.PAIRS, 16, False) is not None
    for form in ("Ohwi16o", "OhwI16o4i", "OIhw4i16o4i"):
        other = MemoryDesc((20, 34, 1, 1), "s8", form)
        assert weights.weights_of(other, shape, arithmetic.PAIRS, 16, False) is None


def test_kernels_are_told_apart_by_all_that_shapes_them():
    """Two convolutions that differ only in numbers that are compiled in."""
    rng = np.random.default_rng(0)
    base = {"src": ((1, 4, 5, 5), "nhwc"), "filters": (8, 4, 3, 3)}
    for ops in (
        (Sum(0.1),),
        (Sum(0.1000001),),
        (Function("linear", 0.1),),
        (Function("linear", 0.10000001),),
    ):
        made = problem(**base, ops=ops)
        arrays = {name: rng.standard_normal(made.descs[name].dims) * 1e3 for name in made.inputs}
        check(made, arrays=arrays, old=rng.standard_normal(made.dst.dims) * 1e6)


@compiles
def test_weights_that_come_differently_are_packed_by_different_kernels():
    """What tasks pack depends on how the weights come, which no tile sees."""
    rng = np.random.default_rng(0)
    arrays = {"src": rng.standard_normal((40, 24)), "weights": rng.standard_normal((24, 33))}
    for strides in ((1, 24), (33, 1), (1, 25), (40, 1), (-33, 1), (66, 2), (-1, -24)):
        layout = rl.Layout((24, 33), strides=strides, offset=4000)
        for threads in (1, 2):
            with on(None, threads):
                made = Matmul(desc((40, 24), "ab"), MemoryDesc((24, 33), "f32", layout))
                check(made, arrays=arrays, kernel=True)
                assert "packed by tasks" in made.implementation


@compiles
def test_weights_whose_groups_are_fused_with_other_axes():
    """One digit counts groups, inputs and outputs: it does not say how far apart groups lie."""
    weights = MemoryDesc((2, 5, 7), "f32", "abc -> (a b c)")
    assert len(weights.layout.terms) == 1
    rng = np.random.default_rng(0)
    arrays = {"src": rng.standard_normal((2, 3, 5)), "weights": rng.standard_normal((2, 5, 7))}
    check(Matmul(desc((2, 3, 5), "abc"), weights), arrays=arrays)


def test_finishing_is_whole_only_if_nothing_comes_between():
    assert Epilogue("s32").stays_whole("s8")
    assert Epilogue("s32", "s32").stays_whole("s8")
    for other in (Epilogue("s32", "f32"), Epilogue("s32", scale=1), Epilogue("s32", post_ops=(Sum(),))):
        assert not other.stays_whole("s8")
    assert not Epilogue("s32").stays_whole("f32")
    assert text.OPERANDS[:3] == ("weights", "bias", "scale")
