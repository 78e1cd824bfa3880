"""Sums of narrow products by the instructions of other processors than this one.

Registers of 256 bits with AVX-VNNI, whose instruction this processor may have in another encoding; and
AArch64, whose instructions are written here as what they do. So their plans, formats and epilogues run; what
those processors are given is looked at in assembly.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import exactness
import relayout as rl
from relayout import MemoryDesc, dtype
from relayout.kernels.conv import arithmetic, candidates
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.weights import weights_text
from relayout.primitives import Convolution, InnerProduct, Matmul
from strategies import examples, tried
from test_amx import assembly
from test_amx_products import KINDS, convolutions, modules_of
from test_kernels import x86
from test_products import check, machines, on, products

compile_ = pytest.importorskip("relayout.jit.compile")
LINUX = "x86_64-unknown-linux-gnu"
ARM = "aarch64-unknown-linux-gnu"


def here():
    """What this processor can do in the place of others, by name."""
    found = {}
    if not compile_.available():
        return found
    if x86("x86-64-v2")[1]:
        small = x86("x86-64-v2")[0]
        found["dotprod"] = small._replace(emulates=("dotprod",))
        found["i8mm"] = small._replace(emulates=("dotprod", "i8mm", "bf16"))
    host = machines.host()
    if host.vector == 64 and host.has("avx512vnni"):
        found["avxvnni"] = host._replace(vector=32, emulates=("avxvnni",))
    return found


HERE = here()
runs = pytest.mark.skipif(not HERE, reason="no machine code, or another processor than x86-64")


@contextlib.contextmanager
def instead(name, threads=2, only=""):
    """Code for one of these, by one instruction alone if that is asked for."""
    before, ways = machines.host, candidates._ways
    machines.host = lambda: HERE[name]

    def some(problem, machine):
        return [one for one in ways(problem, machine) if only in one.arithmetic.dot]

    candidates._ways = some
    products._ways.cache_clear()
    try:
        with on(None, threads):
            yield
    finally:
        machines.host, candidates._ways = before, ways
        products._ways.cache_clear()
        products._products.cache_clear()


@runs
@given(data=st.data(), threads=st.sampled_from((1, 2)), seed=st.integers(0, 99))
@examples(60)
def test_convolutions_are_what_definitions_say(data, threads, seed):
    with instead(data.draw(st.sampled_from(sorted(HERE))), threads):
        check(data.draw(convolutions()), seed)


@runs
@given(
    name=st.sampled_from(sorted(HERE) or [""]),
    rows=st.integers(1, 20),
    columns=st.integers(1, 20),
    inner=st.sampled_from([1, 4, 7, 8, 36, 100, 5000]),
    kinds=st.sampled_from(KINDS),
    seed=st.integers(0, 99),
)
@examples(60)
def test_matrix_products_are_what_definitions_say(name, rows, columns, inner, kinds, seed):
    with instead(name):
        src, weights = (
            MemoryDesc((rows, inner), kinds[0], "ab"),
            MemoryDesc((inner, columns), kinds[1], rl.any),
        )
        dst = MemoryDesc((rows, columns), "f32" if kinds[0] == "bf16" else "s32", "ab")
        check(Matmul(src, weights, dst=dst), seed, kernel=True)


@runs
@pytest.mark.parametrize("name", sorted(HERE))
@pytest.mark.parametrize("kinds", KINDS)
def test_every_instruction_computes_the_same(name, kinds):
    """Of those that a processor has for the same types; and of weights in the formats that each wants."""
    one = Geometry(1, 1, 72, 24, *[(1, 1, 1)] * 6)
    for how in arithmetic.dots_of(*map(dtype, kinds), one, HERE[name]):
        form = weights_text(one, how, HERE[name], 2, False)
        with instead(name, only=how.dot):
            src, weights = (
                MemoryDesc((1, 72, 5, 7), kinds[0], "nhwc"),
                MemoryDesc((24, 72, 3, 3), kinds[1], form),
            )
            made = Convolution(src, weights, padding=1)
            assert how.dot in made.implementation
            check(made, kernel=True)
            images, filters = (
                MemoryDesc((3, 72, 2, 2), kinds[0], "nhwc"),
                MemoryDesc((24, 72, 2, 2), kinds[1], form),
            )
            check(InnerProduct(images, filters), kernel=True)


@pytest.mark.turns(2)
@runs
@pytest.mark.parametrize("name", sorted(HERE))
def test_bytes_are_exact(name):
    """With all tails, zero points and extremes that are tried elsewhere."""
    found = [exactness.one(seed, instead(name, 1 + seed % 3)) for seed in range(tried(40))]
    assert sum("added up in s32 by" in one for one in found) >= len(found) // 2


# -- the code -----------------------------------------------------------------------------------------------

BYTES = ("u8", "s8"), ("s8", "s8")
TARGETS = [
    *((cpu, LINUX, kinds, "vpdpbusd") for cpu in ("alderlake", "meteorlake") for kinds in BYTES),
    *(("arrowlake", LINUX, kinds, name) for kinds, name in zip(BYTES, ("vpdpbusd", "vpdpbssd"), strict=True)),
    *((cpu, LINUX, kinds, "vpdpbusd") for cpu in ("cascadelake", "znver4", "znver5") for kinds in BYTES),
    *((cpu, LINUX, ("bf16", "bf16"), "vdpbf16ps") for cpu in ("cooperlake", "znver4", "znver5")),
    *((cpu, LINUX, kinds, "pmaddwd") for cpu in ("x86-64-v3", "znver3") for kinds in BYTES),
    *(("neoverse-n1", ARM, kinds, "sdot") for kinds in BYTES),
    *((cpu, ARM, BYTES[0], "usmmla") for cpu in ("neoverse-v1", "neoverse-v2", "apple-m2")),
    *((cpu, ARM, BYTES[1], "smmla") for cpu in ("neoverse-v1", "neoverse-v2", "apple-m2")),
    *((cpu, ARM, ("bf16", "bf16"), "bfmmla") for cpu in ("neoverse-v1", "neoverse-v2", "apple-m2")),
]


def layer(kinds, form=rl.any):
    """A convolution whose tails are all there are."""
    src, weights = MemoryDesc((1, 134, 9, 9), kinds[0], "nhwc"), MemoryDesc((45, 134, 3, 3), kinds[1], form)
    return Convolution(src, weights, padding=1)


@pytest.mark.parametrize(("cpu", "triple", "kinds", "name"), TARGETS)
def test_processors_get_their_instructions(cpu, triple, kinds, name, monkeypatch):
    machine = machines.machine(cpu, triple)
    listing = assembly(modules_of(lambda: layer(kinds), machine, monkeypatch, "")[0], machine)
    assert f"\t{name}\t" in listing.replace("{vex}\t", "\t").replace("vpmaddwd", "pmaddwd")


@pytest.mark.parametrize(
    ("kinds", "form", "name"),
    [
        (("u8", "s8"), "OhwI4o4i", "usdot"),
        (("s8", "s8"), "OhwI4o4i", "sdot"),
        (("bf16", "bf16"), "OhwI4o2i", "bfdot"),
    ],
)
def test_the_format_of_weights_chooses_the_instruction(kinds, form, name, monkeypatch):
    machine = machines.machine("neoverse-v1", ARM)
    listing = assembly(modules_of(lambda: layer(kinds, form), machine, monkeypatch, "")[0], machine)
    assert f"\t{name}\t" in listing


@pytest.mark.parametrize("feature", ["dotprod", "i8mm", "bf16"])
def test_llvm_knows_the_features_of_all_processors_that_are_listed(feature):
    """It would end the process otherwise."""
    for cpu in machines.PRODUCTS[feature]:
        kinds = ("bf16", "bf16") if feature == "bf16" else ("u8", "s8")
        one = Geometry(1, 1, 64, 64, *[(1, 1, 1)] * 6)
        found = arithmetic.dots_of(*map(dtype, kinds), one, machines.machine(cpu, ARM))
        assert found
        np.testing.assert_equal(found[0].paired, feature != "dotprod" or cpu in machines.PRODUCTS["i8mm"])
