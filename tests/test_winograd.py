"""3x3 convolutions of bytes by transformed products: bit for bit the definition's, whatever the bytes are."""

from __future__ import annotations

import random
from contextlib import contextmanager

import numpy as np
import pytest

import relayout as rl
from fences import output_of
from relayout.kernels.conv import arithmetic, candidates, weights
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.winograd import MOST_INPUTS, Winograd, blocks_of, cycles, winograd
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, Sum
from strategies import tried
from test_kernels import x86
from test_products import check, compiles, desc, on, problem, products, vector

CPU = "x86-64-v3"
needed = pytest.mark.skipif(not x86(CPU)[1], reason="this processor has no AVX2")
pytestmark = compiles


@contextmanager
def transformed(threads=2, number=0):
    """Of all schedules the one of a number among those that transform; the others cost more."""
    ways, cost = candidates.winograd, candidates.transformed_of
    candidates.winograd = lambda *given: (
        [plan for k, plan in enumerate(ways(*given)) if k == number] or list(ways(*given))
    )
    candidates.transformed_of = lambda *_: 0.0
    products._ways.cache_clear()
    try:
        with on(CPU, threads):
            yield
    finally:
        candidates.winograd, candidates.transformed_of = ways, cost
        products._ways.cache_clear()


def plan_of(made):
    return products.products(made._as_products(made.descs)).plan


def bytes_of(dims, kind, how, rng):
    """Logical bytes: all one extreme, extremes by chance, any."""
    low, high = (0, 255) if kind == "u8" else (-128, 127)
    if how == 0:
        return np.full(dims, rng.choice([low, high])).astype(np.float64)
    return (rng.choice([low, high], dims) if how == 1 else rng.integers(low, high + 1, dims)).astype(
        np.float64
    )


def variety():
    """Every kind of edge, tail, format and destination."""
    whole, bytes_ = ("u8", "s8", "s32"), ("u8", "s8", "u8")
    scaled = {"bias": vector(40), "scale": vector(40)}
    relu = (Function("linear", 0.01, 1), Function("relu"))
    return [
        problem(((1, 16, 4, 4), "nhwc"), (8, 16, 3, 3), 1, 1, whole),
        problem(((2, 32, 5, 7), "nhwc"), (24, 32, 3, 3), 1, 1, whole),
        problem(((1, 48, 3, 3), "nhwc"), (7, 48, 3, 3), 1, 0, ("s8", "s8", "f32")),
        problem(((1, 16, 1, 1), "nhwc"), (21, 16, 3, 3), 1, 1, whole),
        problem(((1, 16, 1, 9), "nhwc"), (16, 16, 3, 3), 1, (2, 0), whole),
        problem(((1, 16, 9, 2), "nhwc"), (16, 16, 3, 3), 1, [(0, 2), (3, 1)], bytes_),
        problem(((1, 64, 6, 9), "nChw16c"), (40, 64, 3, 3), 1, 1, bytes_, "nChw16c", relu, **scaled),
        problem(((1, 64, 6, 9), "nChw32c"), (40, 64, 3, 3), 1, 1, ("s8", "s8", "s8"), "nhwc", (Sum(0.5),)),
        problem(((1, 64, 6, 9), "nhwc"), (37, 64, 3, 3), 1, 1, bytes_, "nChw8c"),
        problem(((3, 32, 11, 6), "nhwc"), (32, 32, 3, 3), 1, 1, ("s8", "s8", "bf16"), "nhwc"),
        problem(((2, 32, 7, 9), "nhwc"), (24, 32, 3, 3), 2, 1, whole),
        problem(((1, 16, 8, 8), "nhwc"), (21, 16, 3, 3), 2, 0, ("s8", "s8", "s32")),
        problem(
            ((1, 64, 9, 5), "nChw16c"), (40, 64, 3, 3), 2, [(0, 1), (2, 0)], bytes_, "nChw16c", relu, **scaled
        ),
        problem(((1, 48, 2, 12), "nhwc"), (16, 48, 3, 3), 2, (2, 1), ("s8", "s8", "f32")),
    ]


@pytest.mark.turns(2)
@needed
@pytest.mark.parametrize("threads", [1, 3])
def test_all_results_are_the_definition_and_the_bits_of_the_other_schedules(threads):
    rng = np.random.default_rng(threads)
    for k, made in enumerate(variety()):
        arrays = {
            name: bytes_of(made.descs[name].dims, made.descs[name].dtype.name, (k + threads) % 3, rng)
            for name in ("src", "weights")
        }
        found = []
        with on(CPU, threads):
            assert not isinstance(plan_of(made), Winograd)
            found.append(check(made, arrays=arrays, kernel=True))
        for number in (0, 1):
            with transformed(threads, number):
                other = variety()[k]
                assert isinstance(plan_of(other), Winograd), made
                found.append(check(other, arrays=arrays, kernel=True))
        for one in found[1:]:
            np.testing.assert_array_equal(one, found[0], err_msg=str(made))


@needed
@pytest.mark.parametrize("kind", ["u8", "s8"])
def test_nothing_overflows_with_as_many_channels_as_there_may_be(kind):
    """Sums are at the end of s32 when they are divided: extremes alone, of one sign and of both."""
    most = MOST_INPUTS // 16 * 16
    with transformed(1):
        made = problem(((1, most, 3, 3), "nhwc"), (16, most, 3, 3), 1, 1, (kind, "s8", "s32"))
        assert isinstance(plan_of(made), Winograd)
        low, high = (0, 255) if kind == "u8" else (-128, 127)
        for pixel in (low, high):
            for weight in (-128, 127):
                arrays = {
                    "src": np.full(made.src.dims, float(pixel)),
                    "weights": np.full(made.weights.dims, float(weight)),
                }
                check(made, arrays=arrays, kernel=True)


@needed
@pytest.mark.parametrize("zero", [300, -5, 0, 128])
def test_zero_points_may_be_any_number(zero):
    """16 bits would not hold it four times over: such convolutions are done in the direct way."""
    with transformed(1):
        point = {"src_zero_point": desc((1,), "a", "s32")}
        made = problem(((1, 64, 9, 9), "nhwc"), (32, 64, 3, 3), 1, 1, ("u8", "s8", "s32"), **point)
        assert not isinstance(plan_of(made), Winograd)
        check(made, arrays={"src_zero_point": np.array([float(zero)])}, kernel=True)


@needed
def test_a_residual_is_read_where_the_result_is_written():
    """At odd ends, where tiles have one output or two, as everywhere."""
    rng = np.random.default_rng(0)
    other = BinaryOp("add", desc((2, 40, 7, 9), "nhwc", "u8"))
    found = []
    for context in (on(CPU, 1), transformed(1)):
        with context:
            sizes = ((2, 32, 7, 9), "nhwc"), (40, 32, 3, 3)
            made = problem(*sizes, 1, 1, ("u8", "s8", "f32"), "nhwc", (other,), scale=vector(1))
            if not found:
                given = [
                    rl.tensor(rng.integers(0, 99, made.descs[n].dims), made.descs[n]) for n in made.inputs
                ]
            assert isinstance(plan_of(made), Winograd) == bool(found)
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
        n, c, k = rng.integers(1, 3), 16 * rng.integers(1, 6), rng.integers(1, 50)
        h, w, pad = rng.integers(1, 13), rng.integers(1, 13), tuple(int(x) for x in rng.integers(0, 3, 2))
        if h + 2 * pad[0] < 3 or w + 2 * pad[1] < 3:
            continue
        kinds = (str(rng.choice(["u8", "s8"])), "s8", str(rng.choice(["s32", "u8", "s8", "f32"])))
        with transformed(int(rng.integers(1, 4)), int(rng.integers(0, 3))):
            sizes = (int(n), int(c), int(h), int(w)), (int(k), int(c), 3, 3)
            stride = int(rng.integers(1, 3))
            made = problem((sizes[0], "nhwc"), sizes[1], stride, pad, kinds)
            assert isinstance(plan_of(made), Winograd) or k < 4, made
            arrays = {
                name: bytes_of(
                    made.descs[name].dims, made.descs[name].dtype.name, int(rng.integers(0, 3)), rng
                )
                for name in ("src", "weights")
            }
            check(made, arrays=arrays)


@needed
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, end at, then begin behind, a page that can't be touched."""
    script = """
        from fences import arena, run_between
        from test_winograd import plan_of, transformed, variety

        arenas = [arena(1 << 20) for _ in range(8)]
        with transformed(1):
            for made in variety():
                run_between(made, arenas)
                print(type(plan_of(made)).__name__)
        """
    assert output_of(script).split() == ["Winograd"] * len(variety())


def asked(cpu="znver3", kinds=("u8", "s8", "u8"), form="nhwc", threads=1, **changes):
    """The plans for a layer of ResNet-50, with changes of its geometry."""
    machine = x86(cpu)[0]
    size = (1, 14, 14)
    shape = Geometry(1, 1, 64, 64, size, size, (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1))._replace(**changes)
    sides = (
        desc((shape.batch, shape.groups * each, *sizes[1:]), form, kind)
        for each, sizes, kind in (
            (shape.inputs, shape.source, kinds[0]),
            (shape.outputs, shape.target, kinds[2]),
        )
    )
    how = arithmetic.arithmetic_of(
        desc((1, 64), "ab", kinds[0]).dtype, desc((1, 64), "ab", kinds[1]).dtype, shape, machine
    )
    packed = weights.weights_text(shape, how, machine, 2, True)
    filters = desc((shape.groups, shape.outputs, shape.inputs, *shape.kernel[1:]), packed, kinds[1])
    given = candidates.Problem(next(sides), filters, next(sides), shape, how, True)
    facts = candidates.facts_of(machine)
    return given, machine, facts, list(winograd(given, machine, threads, facts))


def test_what_is_taken():
    """3x3 filters that move by one or two, runs of 16 channels, where bytes are multiplied in pairs."""
    assert asked()[3]
    assert asked(kinds=("s8", "s8", "f32"), form="nChw16c")[3]
    for cpu in ("znver4", "sapphirerapids", "x86-64-v4", "x86-64-v2", "alderlake"):
        assert not asked(cpu)[3], cpu
    assert not asked(kinds=("f32", "f32", "f32"))[3]
    assert not asked(form="nChw8c")[3]
    assert not asked(inputs=40)[3]
    assert not asked(inputs=MOST_INPUTS // 16 * 16 + 16)[3]
    assert asked(strides=(1, 2, 2), target=(1, 7, 7))[3]
    assert not asked(strides=(1, 1, 2), target=(1, 14, 7))[3]
    assert not asked(strides=(1, 3, 3), target=(1, 5, 5))[3]
    assert not asked(dilation=(1, 2, 2), padding=(0, 2, 2))[3]
    assert not asked(groups=2, inputs=32, outputs=32)[3]
    assert not asked(kernel=(1, 5, 5), padding=(0, 2, 2))[3]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tasks_cover_the_image_and_tiles_their_rows(threads):
    for height in (1, 7, 14, 56):
        size = (1, height, 14)
        *_, facts, plans = asked(threads=threads, source=size, target=size)
        assert max(plan.tasks for plan in plans) >= min(threads, plans[0].tiles_down)
        for plan in plans:
            assert plan.rows * (plan.blocks - 1) < plan.tiles_down <= plan.rows * plan.blocks
            assert sum(span.tiles for span in plan.spans) == plan.tiles_across == 7
            assert max(plan.heights) == plan.rows
            assert cycles(plan, threads, facts) > 0
            assert "products in place of 36" in str(plan)
    for tiles in range(1, 200):
        assert sum(size * count for size, count in blocks_of(tiles)) == tiles


def test_large_layers_are_transformed_where_bytes_are_multiplied_in_pairs():
    """By the estimate: half of the products are gone."""
    size = (1, 28, 28)
    for cpu, wanted in (("znver3", True), ("x86-64-v3", True), ("x86-64-v4", False), ("znver4", False)):
        given, machine, *_ = asked(cpu, source=size, target=size, inputs=128, outputs=128)
        best = candidates.cheapest(given, machine, 1)
        assert best == candidates.candidates(given, machine, 1)[0]
        assert isinstance(best.plan, Winograd) == wanted
