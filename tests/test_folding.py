"""Sums of products in other shapes: what is folded, and that it stays the same convolution."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout import MemoryDesc
from relayout.layout import views
from relayout.ops.post_ops import Sum
from relayout.primitives import Convolution, Matmul
from relayout.primitives.folding import folded, images_inside, rows_apart, rows_together
from strategies import examples
from test_products import HERE, check, compiles, on

INSIDE = {1: ("cwn", "Cwn4c"), 2: ("chwn", "CHWN4", "Chwn8c", "whcn")}
"""Formats whose images lie side by side, by the number of spatial axes."""


@st.composite
def convolutions(draw):
    """Images inside on both sides, filters of one tap or with strides."""
    spatial = draw(st.sampled_from((1, 2, 2)))
    src, dst = (draw(st.sampled_from(INSIDE[spatial])) for _ in range(2))
    taps = [draw(st.sampled_from((1, 1, 2, 3))) for _ in range(spatial)]
    strides = [draw(st.sampled_from((1, 2, 3))) for _ in range(spatial)]
    dims = (
        draw(st.integers(2, 9)),
        draw(st.sampled_from((1, 4, 17))),
        *(draw(st.integers(3, 8)) for _ in taps),
    )
    padding = [draw(st.sampled_from(((0, 0), (1, 1), (0, 2)))) for _ in taps]
    outputs = draw(st.sampled_from((1, 16, 20)))
    source = MemoryDesc(dims, "f32", src)
    filters = MemoryDesc((outputs, dims[1], *taps), "f32", rl.any)
    shape = Convolution(source, filters, strides=strides, padding=padding).dst.dims
    assume(0 not in shape)
    target = MemoryDesc(shape, "f32", dst)
    return Convolution(source, filters, dst=target, strides=strides, padding=padding, post_ops="relu")


@given(made=convolutions(), seed=st.integers(0, 99), threads=st.sampled_from((None, 1, 3)))
@examples(40)
def test_images_inside_are_pixels(made, seed, threads):
    check(made, seed, threads=threads)


def made_of(form, taps=1, strides=1, batch=4, out=None):
    conv = Convolution(
        MemoryDesc((batch, 8, 6, 5), "f32", form),
        MemoryDesc((16, 8, taps, taps), "f32", rl.any),
        strides=strides,
        padding=taps // 2,
    )
    if out is not None:
        dst = MemoryDesc(conv.dst.dims, "f32", out)
        conv = Convolution(conv.src, conv.weights, dst=dst, strides=strides, padding=taps // 2)
    return conv._as_products(conv.descs)


@pytest.mark.parametrize(("taps", "strides"), [(1, 1), (1, 2), (3, 2)])
def test_images_inside_become_the_last_axis(taps, strides):
    before = made_of("CHWN4", taps, strides)
    after = images_inside(before)
    assert after.src.dims == (1, 8, 6, 5, 4)
    assert after.dst.dims[-1] == 4
    assert after.geometry.source == (6, 5, 4)
    assert after.geometry.kernel == (taps, taps, 1)
    assert after.geometry.flops == before.geometry.flops
    assert after.src.layout.offset(0, 5, 2, 3, 1) == before.src.layout.offset(1, 5, 2, 3)


@pytest.mark.parametrize(
    "made",
    [made_of("nhwc"), made_of("CHWN4", taps=3), made_of("CHWN4", batch=1), made_of("CHWN4", out="nhwc")],
)
def test_others_stay(made):
    assert images_inside(made) is made


def test_pixels_without_neighbours_lie_in_long_rows():
    made = folded(made_of("nhwc"))
    assert made.geometry.target == (1, 1, 30)
    assert made.src.dims == (4, 8, 1, 30)
    assert folded(made_of("nhwc", taps=3)).geometry.target == (1, 6, 5)


@given(st.data(), st.sampled_from((1, 5, 16, 40)), st.sampled_from((1, 16, 24, 33)), st.integers(0, 99))
@examples(60)
def test_rows_of_matrices_lie_in_windows(data, inner, columns, seed):
    counts = [data.draw(st.sampled_from((1, 2, 3, 7))) for _ in range(4)]
    sides = []
    for size in (inner, columns):
        order = data.draw(st.permutations(range(4)))
        layout = MemoryDesc((*(counts[axis] for axis in order), size), "f32", "abcde").layout
        layout = views.permute(layout, (*(order.index(axis) for axis in range(4)), 4))
        rows = views.reshape(layout, (-1, size))
        sides.append(MemoryDesc(rows.dims, "f32", rows))
    src, dst = sides
    weights = MemoryDesc((inner, columns), "f32", rl.any)
    ops = data.draw(st.sampled_from(((), ("relu",), (Sum(), "relu"))))
    made = Matmul(src, weights, MemoryDesc((columns,), "f32", "a"), dst, post_ops=ops)
    check(made, seed, threads=data.draw(st.sampled_from((None, 1, 3))))


def test_windows_are_read_and_written_where_they_are():
    layout = MemoryDesc((2, 4, 7, 4, 7, 32), "f32", "abcdef").layout
    layout = views.reshape(views.permute(layout, (0, 1, 3, 2, 4, 5)), (-1, 32))
    windows, rows = MemoryDesc(layout.dims, "f32", layout), MemoryDesc(layout.dims, "f32", "ab")
    for src, dst in ((windows, rows), (rows, windows), (windows, windows)):
        made = Matmul(src, MemoryDesc((32, 32), "f32", rl.any), None, dst)
        assert rows_apart(made._as_products(made.descs)).geometry.source == (4, 7, 7)
        assert "packed" not in made.implementation
        check(made)


@compiles
@pytest.mark.parametrize("cpu", HERE)
@pytest.mark.parametrize("kinds", [("f16", "f16", "f32"), ("f32", "bf16", "f32"), ("u8", "s8", "s32")])
def test_rows_of_matrices_that_are_packed_are_pixels(cpu, kinds):
    """As many as divide them: one tile takes several; where nothing is packed they stay images."""
    for many, rows, pixels in ((0, 128, 64), (0, 197, 197), (3, 50, 50), (0, 5, 5), (0, 1, 1), (2, 1200, 60)):
        front, form = ((many,), "abc") if many else ((), "ab")
        with on(cpu):
            made = Matmul(
                MemoryDesc((*front, rows, 20), kinds[0], form),
                MemoryDesc((*front, 20, 17), kinds[1], rl.any),
                dst=MemoryDesc((*front, rows, 17), kinds[2], form),
            )
            given = made._as_products(made.descs)
            found = rows_together(given)
            if kinds[0] == "f16":
                assert found.geometry.target == (1, 1, pixels)
            if kinds[0] == "f32":
                assert found is given
            if rows < 200:
                check(made, kernel=True)
