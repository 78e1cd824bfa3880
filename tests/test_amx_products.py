"""Sums of products with tiles of AMX, emulated: every way through the kernels is exact, tails included.

The processor is this one, which is told to have AMX and to emulate it (:mod:`relayout.ir.amx`). Plans,
packing, tails, the configuration of tiles, the epilogue and threads are as on processors that have it.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import exactness
import relayout as rl
from relayout import MemoryDesc
from relayout.kernels.conv import arithmetic, candidates
from relayout.ops.post_ops import Sum
from relayout.primitives import Convolution, InnerProduct, Matmul
from strategies import examples
from test_amx import assembly
from test_products import check, drafting, machines, on, products, vectors

compile_ = pytest.importorskip("relayout.jit.compile")
FEATURES = ("amx-tile", "amx-int8", "amx-bf16")
emulates = pytest.mark.skipif(
    not compile_.available() or machines.host().vector != 64,
    reason="code for registers of 512 bits does not run here",
)


@contextlib.contextmanager
def tiles(threads=2, machine=None, only="tdp"):
    """Plans with tiles of AMX alone, for this machine or another."""
    before, ways = machines.host, candidates._ways
    made = machine or machines.host()._replace(emulates=FEATURES)

    def some(problem, machine):
        return [one for one in ways(problem, machine) if one.arithmetic.dot.startswith(only)]

    machines.host, candidates._ways = lambda: made, some
    products._ways.cache_clear()
    try:
        with on(None, threads):
            yield
    finally:
        machines.host, candidates._ways = before, ways
        products._ways.cache_clear()
        products._products.cache_clear()


KINDS = [("u8", "s8"), ("s8", "s8"), ("bf16", "bf16")]
TARGETS = {
    "bf16": ("f32", "bf16"),
    "s8": ("s32", "f32", "s8", "u8", "bf16"),
    "u8": ("s32", "u8", "s8", "f32"),
}


@st.composite
def convolutions(draw):
    """Tails of pixels, of channels, of outputs; packed rows and rows read in place."""
    kinds = draw(st.sampled_from(KINDS))
    channels = draw(st.sampled_from([1, 3, 4, 8, 12, 17, 33, 64, 68, 96, 132]))
    groups = draw(st.sampled_from([1, 1, 1, 2]))
    channels += -channels % 4 * (groups > 1)
    outputs = draw(st.integers(1, 50)) + 16 * (groups > 1)
    kernel = draw(st.sampled_from([(1, 1), (1, 1), (3, 3), (2, 1), (1, 7)]))
    size = [k + draw(st.integers(0, 20)) for k in kernel]
    form = draw(st.sampled_from(["nhwc", "nhwc", "nchw", "nChw16c", "nChw4c"]))
    src = MemoryDesc((draw(st.integers(1, 2)), groups * channels, *size), kinds[0], form)
    filters = (outputs, channels, *kernel)
    weights = MemoryDesc((groups, *filters) if groups > 1 else filters, kinds[1], rl.any)
    strides, padding = draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([0, 0, 1]))
    target = draw(st.sampled_from(TARGETS[kinds[0]]))
    ops = draw(st.sampled_from([(), (), "relu", (Sum(0.5), "relu")]))
    bias, scale = draw(vectors(groups * outputs, kinds[1] == "s8"))
    given = {"strides": strides, "padding": padding, "post_ops": ops, "bias": bias, "scale": scale}
    dims = Convolution(src, weights, **given).dst.dims
    dst = MemoryDesc(dims, target, draw(st.sampled_from(["nhwc", "nhwc", "nchw", "nChw16c"])))
    return Convolution(src, weights, dst=dst, **given)


@emulates
@given(made=convolutions(), threads=st.sampled_from((1, 2, 3)), seed=st.integers(0, 99))
@examples(60)
def test_convolutions_are_what_definitions_say(made, threads, seed):
    with tiles(threads):
        check(made, seed)


@emulates
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    inner=st.sampled_from([1, 4, 15, 16, 64, 100, 260]),
    kinds=st.sampled_from(KINDS),
    batch=st.sampled_from([0, 0, 3]),
    orders=st.tuples(*[st.sampled_from(["ab", "ba"])] * 2),
    threads=st.sampled_from((1, 2)),
    seed=st.integers(0, 99),
)
@examples(60)
def test_matrix_products_are_what_definitions_say(rows, columns, inner, kinds, batch, orders, threads, seed):
    front, at = ((batch,), {"ab": "abc", "ba": "acb"}) if batch else ((), {"ab": "ab", "ba": "ba"})
    src = MemoryDesc((*front, rows, inner), kinds[0], at[orders[0]])
    weights = MemoryDesc((*front, inner, columns), kinds[1], at[orders[1]])
    dst = MemoryDesc((*front, rows, columns), "f32" if kinds[0] == "bf16" else "s32", at["ab"])
    with tiles(threads):
        check(Matmul(src, weights, dst=dst), seed)


@emulates
@pytest.mark.parametrize("size", [33, 49, 50, 65])
@pytest.mark.parametrize("sides", [(1, 1), (3, 3), (5, 1)])
def test_pixels_that_are_left_over_are_added_to_once(size, sides):
    """Though they are computed together with others, which have been stored before."""
    for height in (1, 3, 7, 19):
        src = MemoryDesc((2, 36, height + sides[0] - 1, size), "u8", "nhwc")
        weights = MemoryDesc((40, 36, sides[0], sides[1]), "s8", rl.any)
        with tiles(2):
            check(Convolution(src, weights, padding=(0, sides[1] // 2), post_ops=Sum(1)), kernel=True)


@emulates
@pytest.mark.parametrize("kinds", KINDS)
def test_inner_products_and_volumes(kinds):
    target = "f32" if kinds[0] == "bf16" else "s32"
    with tiles():
        images = MemoryDesc((5, 20, 3, 4), kinds[0], "nhwc")
        dst = MemoryDesc((5, 37), target, "nc")
        check(InnerProduct(images, MemoryDesc((37, 20, 3, 4), kinds[1], rl.any), dst=dst), kernel=True)
        volumes = MemoryDesc((1, 20, 5, 6, 7), kinds[0], "ndhwc")
        filters = MemoryDesc((18, 20, 3, 2, 2), kinds[1], rl.any)
        check(Convolution(volumes, filters, padding=1), kernel=True)


@emulates
@pytest.mark.parametrize(
    "form", ["OhwI16o4i", "OIhw4i16o4i", "OIhw16i16o4i", "OIhw16i64o4i", "OhwI32o4i", "oihw"]
)
def test_weights_that_are_given_in_a_format_run_in_it(form):
    src, weights = MemoryDesc((1, 128, 6, 7), "u8", "nhwc"), MemoryDesc((64, 128, 3, 3), "s8", form)
    with tiles():
        check(Convolution(src, weights, dst=MemoryDesc((1, 64, 4, 5), "s32", "nhwc")), kernel=True)


@emulates
@pytest.mark.parametrize("source", ["u8", "s8"])
def test_bytes_give_the_same_bits_as_other_instructions(source):
    src, weights = MemoryDesc((2, 68, 9, 9), source, "nhwc"), MemoryDesc((40, 68, 3, 3), "s8", rl.any)
    rng = np.random.default_rng(0)
    low = 0 if source == "u8" else -128
    x, y = rng.integers(low, low + 256, src.dims), rng.integers(-128, 128, weights.dims)
    found = []
    for where in (tiles(), contextlib.nullcontext()):
        with where:
            made = Convolution(src, weights, padding=1, scale=MemoryDesc((40,), "f32", "a"), post_ops="relu")
            found.append(run(made, x, y, np.linspace(0.001, 0.01, 40)))
    np.testing.assert_array_equal(*found)


def run(made, *arrays):
    """What a primitive makes of arrays."""
    descs = [made.descs[name] for name in made.inputs]
    given = [
        rl.reorder(rl.tensor(np.asarray(x), dtype=d.dtype), d) for x, d in zip(arrays, descs, strict=True)
    ]
    return made(*given).numpy()


@emulates
@pytest.mark.parametrize("pixels", [9, 33, 70])
def test_zero_points_of_several_groups(pixels):
    """What the sums of a group begin with is in scratch, where the next group's comes."""
    src, weights = MemoryDesc((1, 64, 1, pixels), "u8", "nhwc"), MemoryDesc((150, 64, 1, 1), "s8", rl.any)
    with tiles(1):
        made = Convolution(
            src, weights, dst=MemoryDesc((1, 150, 1, pixels), "s32", "nhwc"),
            src_zero_point=MemoryDesc((1,), "s32", "a"),
        )  # fmt: skip
        assert "tdpbusd" in made.implementation
        rng = np.random.default_rng(pixels)
        x, y = rng.integers(0, 256, src.dims), rng.integers(-128, 128, weights.dims)
        found = run(made, x, y, np.array([77]))
    wanted = np.einsum("ncyx,oc->noyx", x - 77, y[:, :, 0, 0])
    np.testing.assert_array_equal(found, wanted)


@emulates
@pytest.mark.parametrize("first", range(0, 100, 25))
def test_bytes_are_exact(first):
    """With all tails, zero points and extremes that are tried elsewhere; ``exactness.py`` tries more."""
    found = [exactness.one(seed, tiles(1 + seed % 3)) for seed in range(first, first + 25)]
    assert sum("by tdp" in one for one in found) >= 5  # others have no such plan


HERE = compile_.available() and machines.host().has("amx-tile")


@pytest.mark.skipif(not HERE, reason="this processor has no AMX, or the system keeps it to itself")
def test_the_processor_computes_what_its_emulation_does():
    """Bit for bit, bf16 included: the order of sums, and what is rounded, are those of the pseudocode."""
    for seed in range(100):
        exactness.one(seed, tiles(1 + seed % 3, machines.host()))
    rng = np.random.default_rng(0)
    for dims, filters in (((1, 70, 9, 9), (40, 70, 3, 3)), ((3, 300, 1, 50), (33, 300, 1, 1))):
        src, weights = MemoryDesc(dims, "bf16", "nhwc"), MemoryDesc(filters, "bf16", rl.any)
        x, y = (rng.standard_normal(sizes) * 2.0 ** rng.integers(-40, 40, sizes) for sizes in (dims, filters))
        out = Convolution(src, weights).dst.dims
        found = []
        for machine in (None, machines.host()):
            with tiles(2, machine):
                made = Convolution(src, weights, dst=MemoryDesc(out, "f32", "nhwc"))
                assert "tdpbf16ps" in made.implementation
                found.append(run(made, x, y).view(np.uint32))
        np.testing.assert_array_equal(*found)


# -- the code -----------------------------------------------------------------------------------------------


def modules_of(made, machine, monkeypatch, only="tdp"):
    """The texts of the kernels of a primitive for a processor, which need not be this one."""
    texts = []
    monkeypatch.setattr(drafting, "reorder_step", lambda a, b, one, two: drafting.Step(None, one, two))
    monkeypatch.setattr(drafting, "zeros_step", lambda d, target: drafting.Step(None, target, target))

    def recalled(problem, imported, make, machine):
        texts.append(make().ir)
        return [None], ""

    monkeypatch.setattr(compile_, "recalled", recalled)
    with tiles(2, machine, only):
        given = made()
        assert products.products(given._as_products(given.descs)) is not None
    return texts


@pytest.mark.parametrize(("kinds", "name"), [*zip(KINDS, ["tdpbusd", "tdpbssd", "tdpbf16ps"], strict=True)])
@pytest.mark.parametrize("cpu", ["sapphirerapids", "graniterapids"])
def test_processors_with_amx_get_its_instructions(kinds, name, cpu, monkeypatch):
    """Configured before the first product, and released at the end of the kernel, on every way out."""
    machine = machines.machine(cpu, "x86_64-unknown-linux-gnu")

    def made():
        src, weights = (
            MemoryDesc((1, 70, 9, 9), kinds[0], "nhwc"),
            MemoryDesc((40, 70, 3, 3), kinds[1], rl.any),
        )
        return Convolution(src, weights, padding=1)

    (text,) = modules_of(made, machine, monkeypatch)
    listing = assembly(text, machine)
    for one in ("ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease", name):
        assert f"\t{one}" in listing, one
    entry = listing[listing.index("\nconvolution:") :].split("\n.Lfunc_end")[0]
    lines = [line.split()[0] for line in entry.splitlines() if line.startswith("\t")]
    last = len(lines) - 1 - lines[::-1].index("ldtilecfg")
    assert lines.count("tilerelease") == lines.count("retq") == 1
    assert last < lines.index("tilerelease") < lines.index("retq")


def test_results_are_written_behind_the_products_of_the_next_tile(monkeypatch):
    """Products, the epilogue of the tile before, sums to memory; and none is pending at the end."""
    machine = machines.machine("sapphirerapids", "x86_64-unknown-linux-gnu")

    def made():
        src = MemoryDesc((1, 64, 1, 397), "u8", "nhwc")
        return Convolution(src, MemoryDesc((40, 64, 1, 1), "s8", rl.any), post_ops="relu")

    (text,) = modules_of(made, machine, monkeypatch)
    entry = text[text.index("@convolution(") :].split("\n}")[0]
    calls = [line.split("@")[1].split("(")[0] for line in entry.splitlines() if "call void @" in line]
    calls = [name for name in calls if "ldtilecfg" not in name]
    tiles_of = [name for name in calls if name.startswith("tile") and not name.endswith(".sums")]
    assert len(set(tiles_of)) > 1  # several shapes share what is pending
    wanted = [one for name in tiles_of for one in (name, "finish", f"{name}.sums")]
    assert calls == [*wanted, "finish", "llvm.x86.tilerelease"]
    finish = text[text.index("@finish(") :].split("\n}")[0]
    assert all(f"@{name}.results(" in finish for name in tiles_of)


def plans(src, weights, dst, machine):
    """The candidates for a convolution."""
    made = Convolution(src, weights, dst=dst)
    given = made._as_products(made.descs)
    how = arithmetic.arithmetic_of(src.dtype, weights.dtype, given.geometry, machine)
    problem = candidates.Problem(src, weights, given.dst, given.geometry, how, False)
    return [one.plan for one in candidates.candidates(problem, machine, 2)]


@pytest.mark.parametrize("cpu", ["sapphirerapids", "znver4"])
def test_plans_that_add_up_in_another_order_do_not_compete(cpu):
    machine = machines.machine(cpu, "x86_64-unknown-linux-gnu")
    for kind, other, text in (("bf16", "bf16", "OhwI16o2i"), ("u8", "s8", "OhwI16o4i")):
        src, weights = MemoryDesc((1, 256, 28, 28), kind, "nhwc"), MemoryDesc((256, 256, 1, 1), other, text)
        found = plans(src, weights, MemoryDesc((1, 256, 28, 28), "f32", "nhwc"), machine)
        assert found
        assert len({plan.order for plan in found}) == 1
        assert found[0].arithmetic.tiles == (cpu != "znver4")


def test_where_tiles_may_not_be_used_there_are_none(monkeypatch):
    monkeypatch.setenv("RELAYOUT_CPU", "sapphirerapids")
    for allowed in (True, False):
        monkeypatch.setattr(machines, "may_use_tiles", lambda allowed=allowed: allowed)
        machines.host.cache_clear()
        try:
            made = machines.host()
        finally:
            machines.host.cache_clear()
        assert [made.has(feature) for feature in FEATURES] == [allowed] * 3
        assert made.has("avx512vnni")
