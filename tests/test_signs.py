"""Products of bytes whose signs have moved: bit for bit the definition's, whatever the bytes are."""

from __future__ import annotations

import random
from contextlib import contextmanager

import numpy as np
import pytest

import relayout as rl
from fences import output_of
from relayout.kernels.conv import candidates
from relayout.kernels.conv.arithmetic import Zeros, arithmetic_of
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.signs import Signs, cycles, signs
from relayout.kernels.conv.weights import weights_text
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, Sum
from relayout.primitives import Matmul
from strategies import tried
from test_kernels import x86
from test_products import check, compiles, desc, on, problem, products, vector

CPU = "x86-64-v3"
needed = pytest.mark.skipif(not x86(CPU)[1], reason="this processor has no AVX2")
pytestmark = compiles


@contextmanager
def moved(threads=2, number=0):
    """Of all schedules the one of a number among those that move signs; the others cost more."""
    ways, cost = candidates.signs, candidates.signs_of
    candidates.signs = lambda *given: (
        [plan for k, plan in enumerate(ways(*given)) if k == number] or list(ways(*given))
    )
    candidates.signs_of = lambda *_: 0.0
    products._ways.cache_clear()
    try:
        with on(CPU, threads):
            yield
    finally:
        candidates.signs, candidates.signs_of = ways, cost
        products._ways.cache_clear()


def plan_of(made):
    return products.products(made._as_products(made.descs)).plan


def values(dims, kind, how, rng):
    """Logical bytes: all one extreme, extremes by chance, any, small with few large ones among them."""
    low, high = (0, 255) if kind == "u8" else (-128, 127)
    if how == 0:
        return np.full(dims, rng.choice([low, high])).astype(np.float64)
    if how == 1:
        return rng.choice([low, high], dims).astype(np.float64)
    found = rng.integers(low, high + 1, dims)
    if how == 3:  # so that some entries are added up by eights, and others by fours
        found = np.where(rng.random(dims) < 0.02, found, np.clip(found // 4, low, high))
    return found.astype(np.float64)


def drawn(made, how, rng):
    return {
        name: values(made.descs[name].dims, made.descs[name].dtype.name, how, rng)
        for name in ("src", "weights")
    }


def variety():
    """Every kind of edge, tail, format and destination."""
    whole, bytes_ = ("u8", "s8", "s32"), ("u8", "s8", "u8")
    scaled = {"bias": vector(40), "scale": vector(40)}
    relu = (Function("linear", 0.01, 1), Function("relu"))
    zero = {"src_zero_point": desc((1,), "a", "s32")}
    return [
        problem(((1, 16, 4, 4), "nhwc"), (8, 16, 1, 1), 1, 0, whole),
        problem(((2, 32, 5, 7), "nhwc"), (24, 32, 1, 1), 1, 0, whole),
        problem(((1, 48, 5, 4), "nhwc"), (7, 48, 1, 1), 1, 0, ("s8", "s8", "f32")),
        problem(((3, 8, 1, 9), "nhwc"), (16, 8, 1, 1), 1, 0, whole),
        problem(((1, 24, 9, 2), "nhwc"), (17, 24, 1, 1), 1, 0, bytes_),
        problem(((1, 64, 6, 9), "nhwc"), (40, 64, 1, 1), 1, 0, bytes_, "nhwc", relu, **scaled),
        problem(((1, 64, 6, 9), "nhwc"), (40, 64, 1, 1), 1, 0, ("s8", "s8", "s8"), "nhwc", (Sum(0.5),)),
        problem(((1, 64, 6, 9), "nhwc"), (37, 64, 1, 1), 1, 0, bytes_, "nChw8c"),
        problem(((3, 256, 11, 6), "nhwc"), (32, 256, 1, 1), 1, 0, ("s8", "s8", "bf16"), "nhwc"),
        problem(((1, 40, 7, 7), "nhwc"), (24, 40, 1, 1), 1, 0, ("u8", "s8", "f32"), "nhwc", **zero),
        problem(((2, 48, 9, 7), "nhwc"), (24, 48, 1, 1), 2, 0, whole),
        problem(((2, 16, 9, 8), "nhwc"), (24, 16, 1, 1), [3, 1], 0, bytes_, "nhwc"),
        problem(((2, 2048, 5, 5), "nhwc"), (21, 2048, 1, 1), 1, 0, whole),
        problem(((1, 2048, 5, 5), "nhwc"), (5, 2048, 1, 1), 1, 0, bytes_, "nhwc", (Sum(1),)),
    ]


@pytest.mark.turns(2)
@needed
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("how", range(4))
def test_all_results_are_the_definition_and_the_bits_of_the_other_schedules(how, threads):
    rng = np.random.default_rng(threads)
    for k, made in enumerate(variety()):
        arrays = drawn(made, how, rng)
        found = []
        with on(CPU, threads):
            found.append(check(made, arrays=arrays, kernel=True))
        for number in (0, 1):
            with moved(threads, number):
                other = variety()[k]
                assert isinstance(plan_of(other), Signs), made
                found.append(check(other, arrays=arrays, kernel=True))
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0], err_msg=str(made))


@needed
@pytest.mark.parametrize("zero", [300, -5, 0, 128, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_zero_points_may_be_any_number(zero, kind):
    """As far as s32 wraps around; none of them counts in the 16 bits of products."""
    rng = np.random.default_rng(5)
    given = {"src": desc((33, 264), "ab", kind), "weights": desc((264, 21), rl.any, "s8")}
    with moved(1):
        made = Matmul(*given.values(), dst=desc((33, 21), "ab", "s32"), src_zero_point=desc((1,), "a", "s32"))
        assert isinstance(plan_of(made), Signs)
        x, w = (values(one.dims, one.dtype.name, 3, rng) for one in given.values())
        several = (rl.tensor(each, made.descs[name]) for name, each in (("src", x), ("weights", w)))
        got = made(*several, rl.tensor(np.array([zero], np.int32), "a"))
    wanted = (x.astype(int).astype(object) - zero) @ w.astype(int).astype(object)
    wrapped = (wanted + 2**31) % 2**32 - 2**31
    np.testing.assert_array_equal(got.numpy().astype(np.int64), wrapped.astype(np.int64))


@needed
@pytest.mark.parametrize("total", [255, 256, 257])
def test_sums_of_magnitudes_at_the_bound_are_exact(total):
    """Those of the four weights that meet in 16 bits are just within it, or just beyond."""
    rng = np.random.default_rng(total)
    with moved(1):
        made = problem(((1, 32, 5, 8), "nhwc"), (16, 32, 1, 1), 1, 0, ("u8", "s8", "s32"))
        assert isinstance(plan_of(made), Signs)
        for signs in ((-1,), (1,), (-1, 1)):
            weights = np.zeros((16, 32, 1, 1))
            for output in range(16):
                for first in range(0, 32, 8):
                    for pair in (0, 2):  # inputs 0, 1, 4 and 5 meet in a lane, and so do 2, 3, 6 and 7
                        several = np.array([total - 3 * (total // 4), *[total // 4] * 3])
                        several += rng.integers(0, 40) * rng.permutation([1, 1, -1, -1])
                        places = first + pair + np.array([0, 1, 4, 5])
                        weights[output, places, 0, 0] = several * rng.choice(signs, 4)
            weights[0, :, 0, 0] = -128 * (np.arange(32) % 8 < 2)  # -128 twice: 256 in a lane
            for pixel in (0.0, 255.0, 128.0, 127.0):
                check(made, arrays={"src": np.full(made.src.dims, pixel), "weights": weights}, kernel=True)


@needed
def test_operands_of_other_tensors_are_read_where_results_are_written():
    """A residual, and a value for each row, as post-ops."""
    rng = np.random.default_rng(0)
    other = BinaryOp("add", desc((2, 40, 7, 9), "nhwc", "u8"))
    found = []
    for context in (on(CPU, 1), moved(1)):
        with context:
            made = problem(
                *(((2, 32, 7, 9), "nhwc"), (40, 32, 1, 1), 1, 0, ("u8", "s8", "f32"), "nhwc", (other,)),
                scale=vector(1),
            )
            if not found:
                given = [
                    rl.tensor(rng.integers(0, 99, made.descs[n].dims), made.descs[n]) for n in made.inputs
                ]
            else:
                assert isinstance(plan_of(made), Signs)
            found.append(made(*given).numpy())
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_allclose(found[0], made.reference(*given), rtol=1e-6)


@needed
def test_random_sizes_are_exact():
    """Of bytes by chance, extremes among them; others each time."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(tried(20)):
        n, c, k = rng.integers(1, 4), 8 * rng.integers(1, 40), rng.integers(4, 60)
        h, w = rng.integers(4, 13), rng.integers(4, 13)
        kinds = (str(rng.choice(["u8", "s8"])), "s8", str(rng.choice(["s32", "u8", "s8", "f32"])))
        with moved(int(rng.integers(1, 4)), int(rng.integers(0, 3))):
            sizes = (int(n), int(c), int(h), int(w)), (int(k), int(c), 1, 1)
            stride = [int(x) for x in rng.integers(1, 3, 2)]
            made = problem((sizes[0], "nhwc"), sizes[1], stride, 0, kinds)
            assert isinstance(plan_of(made), Signs), made
            check(made, arrays=drawn(made, int(rng.integers(0, 4)), rng))


@needed
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_signs import moved, plan_of, variety

        arenas = [arena(1 << 22) for _ in range(8)]
        with moved(1):
            for made in variety():
                run_between(made, arenas)
                print(type(plan_of(made)).__name__)
        """
    assert output_of(script).split() == ["Signs"] * len(variety())


def planned(cpu, threads=1, kinds=("u8", "s8"), sizes=(197, 768, 768), **changes):
    """The plans for a layer of a vision transformer."""
    pixels, inputs, outputs = sizes
    machine, shape = x86(cpu)[0], Geometry.of_matrices(*sizes)
    src, filters = desc((pixels, inputs), "nc", kinds[0]), desc((outputs, inputs), rl.any, kinds[1])
    how = arithmetic_of(src.dtype, filters.dtype, shape, machine)
    packed = filters.with_layout(desc(filters.dims, weights_text(shape, how, machine, 0, False), "s8").layout)
    given = candidates.Problem(src, packed, desc((pixels, outputs), "nc", "s32"), shape, how, False)
    given = given._replace(**changes)
    return given, machine, list(signs(given, machine, threads))


@pytest.mark.parametrize(
    ("cpu", "some"),
    [
        ("znver3", True),
        ("x86-64-v3", True),
        ("znver4", False),
        ("alderlake", False),
        ("skylake-avx512", False),
    ],
)
def test_only_processors_that_multiply_pairs_in_registers_of_256_bits_have_them(cpu, some):
    assert bool(planned(cpu)[2]) == some


def test_what_they_do_not_take():
    assert not planned("znver3", zeros=Zeros(weights=1))[2]
    assert planned("znver3", zeros=Zeros(True))[2]
    assert not planned("znver3", sizes=(3, 768, 768))[2]
    assert not planned("znver3", sizes=(197, 100, 768))[2]


def test_threads_all_get_something_to_do():
    for threads in (2, 3, 8):
        _, machine, found = planned("znver3", threads)
        best = min(found, key=lambda plan: cycles(plan, threads, candidates.facts_of(machine)))
        assert best.tasks % threads == 0, best
        alone = planned("znver3")[2]
        assert cycles(best, threads, candidates.facts_of(machine)) < min(
            cycles(plan, 1, candidates.facts_of(machine)) for plan in alone
        )


def test_the_estimate_prefers_them_where_weights_meet_many_pixels():
    for sizes in (197, 768, 768), (196, 1024, 256), (3136, 64, 256):
        given, machine, _ = planned("znver3", sizes=sizes)
        assert isinstance(candidates.cheapest(given, machine, 1).plan, Signs), sizes
