"""Sums of products of bytes and of bf16: exactness, bounds, zero points, and the instructions for them."""

from __future__ import annotations

import importlib
import json
import re

import numpy as np
import pytest

import exactness
import relayout as rl
from covering import covering
from relayout import LayoutError, MemoryDesc
from relayout.primitives import Convolution, InnerProduct, Matmul, Sequence
from relayout.primitives.plain import plain, remade
from relayout.primitives.post_ops import BinaryOp, Function, Sum
from strategies import tried
from test_products import DOTS, check, compiles, desc, drafting, on, problem, products, random_values

machines = importlib.import_module("relayout.targets.machine")
compile_ = pytest.importorskip("relayout.jit.compile")

dots = pytest.mark.skipif(not DOTS, reason="this processor has no instructions for it")
COUNT = 25  # configurations of one test


@pytest.mark.turns(2)
@compiles
@pytest.mark.parametrize("first", range(0, tried(200), COUNT))
def test_bytes_are_exact(first):
    """Bit for bit the definition's; ``exactness.py`` tries as many as one likes."""
    for seed in range(first, first + COUNT):
        exactness.one(seed)


# -- bf16 ---------------------------------------------------------------------------------------------------


def widened(shape, rng, exponents):
    """Random bf16 of some magnitudes, as f64."""
    return (
        rl.tensor(rng.standard_normal(shape) * 2.0 ** rng.integers(*exponents, shape), dtype="bf16")
        .numpy()
        .astype(np.float64)
    )


@dots
@pytest.mark.parametrize("exponents", [(-3, 3), (-70, -60), (-66, -62), (-126, 0), (-133, -120)])
def test_sums_of_bf16_are_within_their_bound(exponents):
    """Each of K sums is rounded once to f32, and what is subnormal counts as zero."""
    rng = np.random.default_rng(0)
    for k in (1, 2, 3, 64, 333):
        src, weights = widened((20, k), rng, exponents), widened((k, 33), rng, exponents)
        made = Matmul(desc((20, k), "ab", "bf16"), desc((k, 33), rl.any, "bf16"), dst=desc((20, 33), "ab"))
        assert "vdpbf16ps" in made.implementation
        given = (rl.tensor(x, made.descs[n].layout, "bf16") for n, x in (("src", src), ("weights", weights)))
        found = made(*given).numpy().astype(np.float64)
        sums = abs(src) @ abs(weights)
        lost = abs(src).sum(1)[:, None] + abs(weights).sum(0)[None] + k
        allowed = k * 2.0**-24 * sums + 2.0**-126 * lost
        assert (abs(found - src @ weights) <= allowed).all()


@dots
def test_subnormal_bf16_count_as_zero():
    src, weights = np.full((1, 2), 2.0**-127), np.full((2, 16), 2.0**20)
    made = Matmul(desc((1, 2), "ab", "bf16"), desc((2, 16), rl.any, "bf16"), dst=desc((1, 16), "ab"))
    given = (rl.tensor(x, made.descs[n].layout, "bf16") for n, x in (("src", src), ("weights", weights)))
    assert not made(*given).numpy().any()


@dots
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bf16_weights_of_taps_outside_count(value):
    """As those of f32 do: zero times NaN, or infinity, is NaN."""
    rng = np.random.default_rng(0)
    for form in ("nhwc", "nChw16c"):
        for tap in np.ndindex(3, 3):
            for channel in (2, 3):
                made = problem(((1, 16, 5, 6), form), (20, 16, 3, 3), 1, 1, ("bf16", "bf16", "f32"))
                weights = rng.standard_normal(made.weights.dims)
                weights[(1, channel, *tap)] = value
                check(made, arrays={"weights": weights}, kernel=True)


# -- formats ------------------------------------------------------------------------------------------------


@dots
@pytest.mark.parametrize(
    ("kinds", "form"),
    [
        (("u8", "s8", "s32"), "OIhw4i16o4i"),
        (("s8", "s8", "s32"), "OhwI16o4i"),
        (("u8", "s8", "s32"), "OIhw16i64o4i"),
        (("bf16", "bf16", "f32"), "OIhw16i16o2i"),
        (("bf16", "bf16", "f32"), "OIhw8i16o2i"),
    ],
)
def test_packings_of_the_same_digits_are_read_as_they_are(kinds, form):
    made = problem(((1, 64, 6, 7), "nhwc"), (64, 64, 3, 3), 1, 1, kinds, plain=form)
    assert not re.search("weights packed|reordered", made.implementation)
    check(made, kernel=True)


@dots
def test_any_answers_the_format_of_the_instruction():
    for kinds, form in ((("u8", "s8", "s32"), "OhwI16o4i"), (("bf16", "bf16", "bf16"), "OhwI16o2i")):
        made = problem(((1, 64, 6, 7), "nhwc"), (64, 64, 3, 3), 1, 1, kinds)
        assert made.weights == desc((64, 64, 3, 3), form, kinds[1])
        assert "weights packed" not in made.implementation
    made = Matmul(
        desc((8, 64), "ab", "u8"), desc((64, 64), "BA16a64b4a", "s8"), dst=desc((8, 64), "ab", "s32")
    )
    assert "vpdpbusd" in made.implementation
    assert "reordered" not in made.implementation


@dots
def test_weights_that_meet_one_row_are_not_packed_for_bf16():
    """They are read as they are, by multiplications in f32; for more rows, and in bytes, packing pays."""
    for rows, form, kind, word in (
        (1, "ab", "bf16", "source rows packed"),
        (2, "ab", "bf16", "vdpbf16ps"),
        (1, rl.any, "bf16", "vdpbf16ps"),
        (1, "ab", "s8", "vpdpbusd"),
    ):
        with on("znver4", 1):
            dst = desc((rows, 64), "ab", "f32")
            made = Matmul(desc((rows, 96), "ab", kind), desc((96, 64), form, kind), dst=dst)
            assert word in made.implementation
            check(made, kernel=True)


# -- zero points --------------------------------------------------------------------------------------------


def point(count=1, kind="s32"):
    return MemoryDesc((count,), kind, "a")


def test_zero_points_are_checked():
    src, weights = desc((1, 4, 5, 5), "nhwc", "u8"), desc((8, 4, 1, 1), rl.any, "s8")
    for named, says in (
        ({"src_zero_point": point(2)}, r"src_zero_point .* must be a vector of 1 s32"),
        ({"src_zero_point": point(1, "u8")}, "must be a vector of 1 s32"),
        ({"weights_zero_point": point(4)}, r"weights_zero_point .* must be a vector of 1 or 8 s32"),
    ):
        with pytest.raises(LayoutError, match=says):
            Convolution(src, weights, **named)
    with pytest.raises(LayoutError, match=r"src_zero_point .* is for integers, and src is f32"):
        Matmul(desc((3, 4), "ab"), desc((4, 5)), src_zero_point=point())
    with pytest.raises(LayoutError, match=r"weights_zero_point .* is for integers, and weights is f32"):
        InnerProduct(desc((3, 4), "nc"), desc((5, 4)), weights_zero_point=point())


def test_padding_is_real_zero():
    """Neither the stored zero nor the zero point adds anything outside."""
    src, weights = desc((1, 1, 1, 1), "nhwc", "u8"), desc((1, 1, 3, 3), "oihw", "s8")
    made = Convolution(src, weights, dst=desc((1, 1, 1, 1), "nhwc", "s32"), padding=1, src_zero_point=point())
    given = np.full((1, 1, 1, 1), 7, "u1"), np.full((1, 1, 3, 3), 2, "i1"), np.full(1, 10, "i4")
    assert made.reference(*given).item() == made(*given).numpy().item() == (7 - 10) * 2


@compiles
def test_bias_and_scale_come_behind_zero_points():
    rng = np.random.default_rng(0)
    for kind in ("u8", "s8"):
        made = problem(
            ((2, 20, 6, 5), "nhwc"),
            (33, 20, 3, 3),
            1,
            1,
            (kind, "s8", "u8"),
            ops="relu",
            bias=MemoryDesc((33,), "f32", "a"),
            scale=MemoryDesc((33,), "f32", "a"),
            src_zero_point=point(),
            weights_zero_point=point(33),
        )
        arrays = {
            "src_zero_point": [3],
            "weights_zero_point": rng.integers(-5, 5, 33),
            "scale": rng.random(33) * 1e-3,
            "bias": rng.random(33) * 100,
        }
        check(made, arrays=arrays, kernel=True)


@compiles
def test_zero_points_may_be_parts_of_something_longer():
    rng = np.random.default_rng(0)
    descs = {
        "src_zero_point": MemoryDesc((1,), "s32", rl.Layout((1,), "a", offset=7)),
        "weights_zero_point": MemoryDesc((20,), "s32", rl.Layout((20,), "a", offset=3)),
    }
    for filters in ((20, 16, 3, 3), (20, 1, 1, 3, 3)):
        channels = 16 if len(filters) == 4 else 20
        made = problem(((1, channels, 6, 5), "nhwc"), filters, 1, 1, ("s8", "s8", "s32"), **descs)
        arrays = {name: rng.integers(-9, 9, one.dims) for name, one in descs.items()}
        check(made, arrays=arrays, kernel=True)


# -- steps of the destination -------------------------------------------------------------------------------


def number():
    return MemoryDesc((1,), "f32", "a")


def requantised(kind, **more):
    """A primitive from bytes to bytes, and of which sizes of a destination."""
    given = {"scale": number(), "src_zero_point": point(), "dst_scale": number(), "dst_zero_point": point()}
    given |= more
    if kind == "convolution":
        src, weights = desc((2, 20, 6, 5), "nhwc", "u8"), desc((33, 20, 3, 3), rl.any, "s8")
        return Convolution(src, weights, dst=desc((2, 33, 6, 5), "nhwc", "u8"), padding=1, **given)
    if kind == "planes":  # which are unpacked
        src, weights = desc((2, 20, 6, 5), "nchw", "u8"), desc((33, 20, 3, 3), rl.any, "s8")
        return Convolution(src, weights, dst=desc((2, 33, 6, 5), "nchw", "s8"), padding=1, **given)
    if kind == "depthwise":
        src, weights = desc((2, 20, 6, 5), "nhwc", "s8"), desc((20, 1, 1, 3, 3), rl.any, "s8")
        return Convolution(src, weights, dst=desc((2, 20, 6, 5), "nhwc", "s8"), padding=1, **given)
    if kind == "inner product":
        src, weights = desc((5, 20, 2, 2), "nhwc", "u8"), desc((33, 20, 2, 2), rl.any, "s8")
        return InnerProduct(src, weights, dst=desc((5, 33), "nc", "u8"), **given)
    src, weights = desc((3, 7, 20), "abc", "s8"), desc((3, 20, 33), rl.any, "s8")
    return Matmul(src, weights, dst=desc((3, 7, 33), "abc", "u8"), **given)


STEPS = {"scale": [0.011], "src_zero_point": [3], "dst_scale": [0.37], "dst_zero_point": [101]}


@compiles
@pytest.mark.parametrize("kind", ["convolution", "planes", "depthwise", "inner product", "matrix products"])
@pytest.mark.parametrize("ops", [(), ("relu",), "sum", "operand"])
def test_destinations_have_scales_and_zero_points(kind, ops):
    """Behind all post-ops, as the definition says it, whatever these read."""
    if ops == "sum":
        ops = (Sum(0.5), "relu")
    elif ops == "operand":
        dims = requantised(kind).dst.dims
        ops = (
            BinaryOp("add", MemoryDesc(dims, "f32", "abcd"[: len(dims)])),
            "tanh",
            Function("linear", 9, 0),
        )
    made = requantised(kind, post_ops=ops)
    names = [name for name in made.inputs if name not in ("src", "weights", "operand0")]
    assert names == ["scale", "src_zero_point", "dst_scale", "dst_zero_point"]
    check_requantised(made)


def check_requantised(made):
    """Whatever number of threads works, what is called, and read from text."""
    rng = np.random.default_rng(1)
    data = {name: random_values(made.descs[name], rng) for name in made.inputs}
    data |= {name: np.array(value, np.float64) for name, value in STEPS.items()}
    out = rl.tensor(random_values(made.dst, rng), made.dst) if made.accumulates else None
    wanted = made.reference(**data, **({"out": out} if out is not None else {}))
    given = [rl.tensor(data[name], made.descs[name]) for name in made.inputs]
    again = remade(json.loads(json.dumps(plain(made))))
    for one in (made, again):
        assert one.implementation.startswith("machine code")
        found = one(*given, **({"out": out.reorder(made.dst)} if out is not None else {}))
        info = np.iinfo(found.numpy().dtype)
        near = np.clip(np.rint(wanted), info.min, info.max)
        differ = abs(found.numpy().astype(np.float64) - near)
        assert differ.max() <= 1
        assert (differ > 0).mean() < 0.01  # ties that f32 makes, or loses


def test_steps_of_the_destination_are_checked():
    src, weights = desc((3, 4), "ab"), desc((4, 5))
    with pytest.raises(LayoutError, match=r"dst_zero_point .* is for integers, and dst is f32"):
        Matmul(src, weights, dst_zero_point=point())
    for named in ({"dst_scale": point()}, {"dst_scale": MemoryDesc((5,), "f32", "a")}):
        with pytest.raises(LayoutError, match=r"dst_scale .* must be a vector of 1 f32"):
            Matmul(src, weights, **named)


@compiles
def test_a_sequence_takes_steps_as_constants():
    made = requantised("inner product")
    rng = np.random.default_rng(2)
    data = {name: random_values(made.descs[name], rng) for name in ("src", "weights")} | STEPS
    steps = Sequence()
    x = steps.input("x", made.src)
    rest = {name: rl.tensor(data[name], made.descs[name]) for name in made.inputs if name != "src"}
    steps.output(steps.add(made, src=x, **rest))
    run, src = steps.compile(), rl.tensor(data["src"], made.src)
    for _ in range(20):  # Python, then machine code
        np.testing.assert_array_equal(run(src).numpy(), made(src, **rest).numpy())


# -- groups whose channels leave a rest ---------------------------------------------------------------------


@compiles
@pytest.mark.parametrize(
    ("kinds", "inputs", "form", "points"),
    covering(
        [("u8", "s8", "s32"), ("s8", "s8", "s32")],
        [3, 5, 17],
        ["nhwc", "nchw", "nChw16c"],
        [(1, 0), (1, 1), (0, 99), (1, 99)],
    ),
)
def test_groups_that_leave_a_rest_are_packed(kinds, inputs, form, points):
    """Each is completed by itself, with what counts as zero."""
    descs = {"src_zero_point": point()} if points[0] else {}
    if points[1]:
        descs["weights_zero_point"] = point(30 if points[1] > 1 else 1)
    made = problem(((2, 3 * inputs, 6, 5), form), (3, 10, inputs, 3, 2), 1, 1, kinds, **descs)
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 9, one.dims) for name, one in descs.items()}
    check(made, arrays=arrays, kernel=True)


@compiles
@pytest.mark.parametrize(
    ("sizes", "forms", "points"),
    covering(
        [(16, 1, 1), (8, 2, 2), (3, 2, 8), (16, 4, 4)],
        [("nChw8c", "nhwc"), ("nchw", "nChw4c"), ("nhwc", "nchw")],
        [(1, 0), (0, 1), (1, 99)],
    ),
)
def test_zero_points_of_small_groups_have_kernels(sizes, forms, points):
    """Several would fit in a vector, and have one each where such vectors know no zero points."""
    (groups, inputs, outputs), (form, out) = sizes, forms
    descs = {"src_zero_point": point()} if points[0] else {}
    if points[1]:
        descs["weights_zero_point"] = point(groups * outputs if points[1] > 1 else 1)
    filters, kinds = (groups, outputs, inputs, 3, 2), ("u8", "s8", "s32")
    for strides in (1, 2):
        made = problem(((2, groups * inputs, 6, 5), form), filters, strides, 1, kinds, out=out, **descs)
        rng = np.random.default_rng(0)
        arrays = {name: rng.integers(0, 9, one.dims) for name, one in descs.items()}
        check(made, arrays=arrays, kernel=True)


@compiles
def test_large_sums_of_groups_that_leave_a_rest_are_exact():
    """Beyond what f32 adds up."""
    src, weights = desc((1, 6, 90, 90), "nhwc", "u8"), desc((2, 20, 3, 80, 80), rl.any, "s8")
    made = Convolution(src, weights, dst=desc((1, 40, 11, 11), "nhwc", "s32"))
    arrays = {"src": np.full(src.dims, 255), "weights": np.full(weights.dims, -127)}
    arrays["weights"][..., 0, 0] = 126
    check(made, arrays=arrays, kernel=True)


# -- instructions -------------------------------------------------------------------------------------------


def assembly(made, cpu, monkeypatch):
    """What a primitive becomes on a processor that need not be this one."""
    target, modules = machines.machine(cpu, "x86_64-unknown-linux-gnu"), []
    monkeypatch.setattr(machines, "host", lambda: target)
    monkeypatch.setattr(drafting, "reorder_step", lambda src, dst, one, two: drafting.Step(None, one, two))

    def recalled(problem, imported, make, machine):
        modules.append(make().ir)
        return [None], ""

    monkeypatch.setattr(compile_, "recalled", recalled)
    products._products.cache_clear()
    assert products.products(made()) is not None
    products._products.cache_clear()
    return compile_._target(target, 2).emit_assembly(machines.llvm().parse_assembly(modules.pop()))


@pytest.mark.parametrize(
    ("cpu", "bytes_", "bf16"),
    [
        ("x86-64-v3", 0, 0),
        ("x86-64-v4", 0, 0),
        ("skylake-avx512", 0, 0),
        ("cascadelake", 1, 0),
        ("icelake-server", 1, 0),
        ("cooperlake", 1, 1),
        ("sapphirerapids", 1, 1),
        ("znver4", 1, 1),
    ],
)
def test_instructions_are_those_of_the_processor(cpu, bytes_, bf16, monkeypatch):
    def made(*kinds):
        def now():
            one = problem(((1, 128, 6, 7), "nhwc"), (32, 128, 3, 3), 1, 1, kinds)
            return one._as_products(one.descs)

        return now

    for source in ("u8", "s8"):
        code = assembly(made(source, "s8", "s32"), cpu, monkeypatch)
        assert bool(re.search("vpdpbusd|tdpb[us]sd", code)) == bool(bytes_), cpu
        assert not re.search("vpdpbusds|vpmaddubsw", code)  # they saturate
        assert ("vpmaddwd" in code) != bool(bytes_)
    code = assembly(made("bf16", "bf16", "f32"), cpu, monkeypatch)
    assert bool(re.search("vdpbf16ps|tdpbf16ps", code)) == bool(bf16), cpu
    assert ("vfmadd" in code) != bool(bf16)


@dots
def test_tiles_spill_nothing(monkeypatch):
    """Sums stay in registers: no vector goes to the stack in a function of tiles."""
    for kinds in (("u8", "s8", "s32"), ("s8", "s8", "s32"), ("bf16", "bf16", "f32")):

        def made(kinds=kinds):
            one = problem(((1, 64, 14, 14), "nhwc"), (64, 64, 1, 1), kinds=kinds)
            return one._as_products(one.descs)

        code = assembly(made, "znver4", monkeypatch)
        assert not re.search(r"vmov\w+\s+%zmm\d+, -?\d*\(%rsp\)", code)


@dots
def test_all_of_it_with_any_number_of_threads_gives_the_same_bits():
    for kinds, more in (
        (("u8", "s8", "s32"), {"src_zero_point": point(), "weights_zero_point": point(40)}),
        (("s8", "s8", "s32"), {"src_zero_point": point()}),
        (("bf16", "bf16", "f32"), {}),
    ):
        found = []
        for threads in (1, 2, 5):
            with on("znver4", threads):
                made = problem(((2, 32, 9, 8), "nhwc"), (40, 32, 3, 3), 1, 1, kinds, **more)
                rng = np.random.default_rng(5)
                arrays = {name: random_values(made.descs[name], rng) for name in ("src", "weights")}
                arrays |= {name: np.arange(one.dims[0]) % 7 for name, one in more.items()}
                found.append(check(made, arrays=arrays, threads=threads, kernel=True))
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


@compiles
@pytest.mark.parametrize("rows", [67, 103])
def test_results_in_rows_of_a_large_prime_number_are_unpacked(rows):
    """No part of such a row is a whole number of its lines."""
    src, weights = desc((rows, 64), "ab", "u8"), desc((64, 86), kind="s8")
    check(Matmul(src, weights, dst=desc((rows, 86), "ba", "s8")), kernel=True)


@pytest.mark.parametrize(
    ("kinds", "together", "alone"),
    [
        (("u8", "s8", "u8"), ("vpackssdw", "vpackuswb"), ("vpmovdb", "vpmovusdb")),
        (("bf16", "bf16", "bf16"), ("vcvtne2ps2bf16",), ("vcvtneps2bf16",)),
    ],
)
def test_wide_registers_of_sums_are_narrowed_together(kinds, together, alone, monkeypatch):
    """Whole lines are stored; no register is narrowed by itself."""

    def made():
        src, filters = desc((1, 64, 8, 8), "nhwc", kinds[0]), desc((64, 64, 1, 1), rl.any, kinds[1])
        found = Convolution(src, filters, dst=desc((1, 64, 8, 8), "nhwc", kinds[2]), post_ops="relu")
        return found._as_products(found.descs)

    listing = assembly(made, "znver4", monkeypatch)
    assert all(f"\t{name}\t" in listing for name in together)
    assert not any(f"\t{name}\t" in listing for name in alone)
