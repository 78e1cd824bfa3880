"""Tiles: the emulation of AMX does what the pseudocode of its instructions says."""

from __future__ import annotations

import importlib
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.ir import amx
from relayout.ir.builder import Function
from relayout.ir.kernel import kernel
from relayout.ir.types import PTR, Value
from strategies import examples

compile_ = pytest.importorskip("relayout.jit.compile")
machines = importlib.import_module("relayout.targets.machine")
compiles = pytest.mark.skipif(
    not compile_.available() or not machines.host().fuses, reason="no machine code, or none that fuses"
)


def assembly(text, machine):
    """What a module is assembled to."""
    target = compile_._target(machine, 2)
    return target.emit_assembly(machines.llvm().parse_assembly(text))


class Sizes(NamedTuple):
    """C is m x n sums, A m x k groups, B k x n groups."""

    m: int
    n: int
    k: int


def bf16(x):
    """Words of 16 bits as the numbers that they are, but zero for subnormal ones."""
    reals = (x.astype(np.uint32) << 16).view(np.float32)
    return usual(reals)


def usual(x):
    """The same, with zeros of the same sign in place of subnormal numbers."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x).astype(np.float32)


def product(kind, c, a, b):
    """The pseudocode, row by row; ``c`` of s32 or f32, ``a`` and ``b`` of groups of 4 bytes."""
    if kind != "bf16":
        one, two = (
            x.view(np.int8 if s == "s" else np.uint8).astype(np.int64)
            for x, s in zip((a, b), (kind[0], kind[2]), strict=True)
        )
        one = one.reshape(a.shape[0], -1, 4)
        two = two.reshape(b.shape[0], -1, 4)
        return (c + np.einsum("mkj,knj->mn", one, two)).astype(np.int32)  # wraps around
    one = bf16(a.view(np.uint16)).reshape(a.shape[0], -1, 2)
    two = bf16(b.view(np.uint16)).reshape(b.shape[0], -1, 2)
    halves = []
    for half in (0, 1):
        total = np.zeros(c.shape, np.float32)
        for k in range(b.shape[0]):
            exact = one[:, k, half][:, None].astype(np.float64) * two[k, :, half][None, :]
            total = usual((exact + total).astype(np.float32))
        halves.append(total)
    return usual(usual(c) + usual(halves[0] + halves[1]))


def run(kind, c, a, b, stride=(64, 64, 64)):
    """The same by the emulation: tiles 0, 4 and 6, loaded from rows a stride apart."""
    machine = machines.host()
    shapes = [amx.Shape(0, 0)] * amx.TILES
    for number, x in ((0, c), (4, a), (6, b)):
        shapes[number] = amx.Shape(x.shape[0], x.shape[1] * x.itemsize)
    f = kernel("product", machine)
    places = [f.load(PTR, f.gep(f["ops"], 8 * k)) for k in range(3)]
    tiles = amx.Tiles(f, f.alloca(amx.STATE, 64))
    tiles.configure(Value("@sizes", PTR))
    for number, place, step in zip((0, 4, 6), places, stride, strict=True):
        tiles.load(number, place, step)
    tiles.multiply(kind, 0, 4, 6)
    tiles.store(0, places[0], stride[0])
    tiles.release()
    text = "\n".join([amx.configuration("sizes", shapes), amx.emulation(machine), f.text()])
    code = compile_.compiled(text, ["product"], machine)["product"]
    rooms = []
    for x, step in zip((c, a, b), stride, strict=True):
        room = np.full((x.shape[0], step), 0xEE, np.uint8)
        room[:, : x.shape[1] * x.itemsize] = x.view(np.uint8)
        rooms.append(room.ravel()[: (x.shape[0] - 1) * step + x.shape[1] * x.itemsize].copy())
    operands = np.array([room.ctypes.data for room in rooms], np.int64)
    before = rooms[0].copy()
    code(0, 0, operands.ctypes.data, 0, 1)
    whole = np.concatenate([rooms[0], np.zeros(stride[0], np.uint8)])[: c.shape[0] * stride[0]]
    whole = whole.reshape(c.shape[0], stride[0])
    size = c.shape[1] * c.itemsize
    made = whole[:, :size].copy().view(c.dtype)
    rest = np.concatenate([before, np.zeros(stride[0], np.uint8)])[: c.shape[0] * stride[0]]
    np.testing.assert_array_equal(whole[:, size:], rest.reshape(whole.shape)[:, size:])
    return made


sizes = st.builds(Sizes, st.integers(1, 16), st.integers(1, 16), st.integers(1, 16))


@compiles
@given(
    size=sizes,
    kind=st.sampled_from(["u8s8", "s8s8", "s8u8", "u8u8"]),
    extremes=st.booleans(),
    steps=st.tuples(*[st.sampled_from([64, 72, 256])] * 3),
    seed=st.integers(0, 99),
)
@examples(40)
def test_products_of_bytes_are_those_of_the_pseudocode(size, kind, extremes, steps, seed):
    rng = np.random.default_rng(seed)
    a, b = (
        rng.integers(0, 256, (rows, 4 * n), dtype=np.uint8)
        for rows, n in ((size.m, size.k), (size.k, size.n))
    )
    if extremes:
        a[:], b[:] = rng.choice([0, 127, 128, 255]), rng.choice([0, 127, 128, 255])
    c = rng.integers(-(2**31), 2**31, (size.m, size.n)).astype(np.int32)
    np.testing.assert_array_equal(run(kind, c, a, b, steps), product(kind, c, a, b))


@compiles
@given(size=sizes, seed=st.integers(0, 99), scale=st.sampled_from([1.0, 2.0**-64, 2.0**50]))
@examples(40)
def test_products_of_reals_are_those_of_the_pseudocode(size, seed, scale):
    rng = np.random.default_rng(seed)

    def words(rows, n, by):
        reals = (rng.integers(-200, 200, (rows, n)) * by).astype(np.float32)
        return (reals.view(np.uint32) >> 16).astype(np.uint16)

    a, b = words(size.m, 2 * size.k, scale), words(size.k, 2 * size.n, scale)
    c = (rng.integers(-(2**20), 2**20, (size.m, size.n)) * scale * scale).astype(np.float32)
    got, wanted = run("bf16", c, a, b), product("bf16", c, a, b)
    np.testing.assert_array_equal(got.view(np.uint32), wanted.view(np.uint32))


@compiles
def test_subnormal_numbers_count_as_zero():
    a, b = np.full((1, 2), 0x0040, np.uint16), np.full((1, 2), 0x7F00, np.uint16)  # 2**-127 times 2**127
    assert run("bf16", np.zeros((1, 1), np.float32), a, b) == 0
    c = np.array([[-1e-40]], np.float32)
    got = run("bf16", c, np.zeros((1, 2), np.uint16), b)
    assert got == 0


@pytest.mark.parametrize("shape", [(17, 64), (16, 65), (0, 4), (4, 0)])
def test_sizes_that_no_tile_has_are_refused(shape):
    with pytest.raises(ValueError, match="tile 0"):
        amx.configuration("sizes", [amx.Shape(*shape)])


def test_every_operation_becomes_its_instruction():
    machine = machines.machine("sapphirerapids", "x86_64-unknown-linux-gnu")
    f = Function("all", {"at": PTR}, machine)
    tiles = amx.Tiles(f)
    tiles.configure(f["at"])
    for kind, (one, two) in zip(amx.PRODUCTS, itertools.combinations(range(4), 2), strict=False):
        tiles.multiply(kind, 7, one, two)
    tiles.zero(1)
    tiles.load(2, f["at"], 64)
    tiles.store(3, f["at"], 64)
    tiles.release()
    listing = assembly(f.text(), machine)
    names = ["ldtilecfg", "tilezero", "tileloadd", "tilestored", "tilerelease", *amx.PRODUCTS.values()]
    assert [name for name in names if name not in listing] == []
