"""Concatenation: what the definition says, and nothing is moved that is where it belongs."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from elementwise import FORMATS, TYPES, check, machine_code
from relayout import LayoutError
from relayout.primitives import Concat, Split
from relayout.tensor import address
from strategies import examples, has_clean_padding, layouts, shapes
from test_reorder import in_front, writable


@st.composite
def problems(draw):
    """Sources in any layouts, an axis, and a destination in any layout."""
    dims = draw(shapes(zeros=True))
    axis = draw(st.integers(0, len(dims) - 1))
    sizes = draw(st.lists(st.integers(0, 17), min_size=1, max_size=3))
    with_axis = [(*dims[:axis], size, *dims[axis + 1 :]) for size in (*sizes, sum(sizes))]
    made = [in_front(draw(layouts(dims=d))) for d in with_axis]
    assume(writable(made[-1]) and all(has_clean_padding(layout) for layout in made))
    assume(sum(layout.size for layout in made) < 4000)
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=len(made), max_size=len(made)))
    *srcs, dst = (rl.MemoryDesc(o.dims, kind, o) for o, kind in zip(made, kinds, strict=True))
    return srcs, draw(st.sampled_from([axis, axis - len(dims)])), dst


class TestAnyLayouts:
    @given(problems(), st.integers(0, 1000))
    @examples(50)
    def test_with_kernels(self, problem, seed):
        srcs, axis, dst = problem
        check(Concat(srcs, axis, dst), seed)

    @given(problems(), st.integers(0, 1000))
    @examples(25)
    def test_without(self, problem, seed):
        srcs, axis, dst = problem
        with mock.patch("relayout.jit.support.supported", return_value=False):
            check(Concat(srcs, axis, dst), seed)

    @pytest.mark.turns(2)
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("sizes", [(32, 17), (17, 15), (3, 100, 1), (1, 31, 32)])
    def test_formats(self, format, sizes):
        for other in ("nchw", format):
            srcs = [rl.MemoryDesc((2, n, 3, 5), "f32", other) for n in sizes]
            check(Concat(srcs, 1, rl.MemoryDesc((2, sum(sizes), 3, 5), "f32", format)))


def test_half_bytes_and_64_bits_keep_their_value():
    for kind, values in (("s4", (-8, 7)), ("s64", (2**53 + 1, -(2**60) - 1))):
        srcs = [rl.tensor(np.full((3, 2), value), "ab", dtype=kind) for value in values]
        made = Concat([src.desc for src in srcs], 1)
        assert made(*srcs).numpy().tolist() == [[values[0]] * 2 + [values[1]] * 2] * 3


class TestInPlace:
    FORMATS = ("nchw", "nhwc", "nChw16c", "CHWN4")

    @staticmethod
    def result(format):
        desc = rl.MemoryDesc((2, 48, 3, 5), "f32", format)
        return rl.tensor(np.random.default_rng(0).standard_normal(desc.dims).astype(np.float32)).reorder(desc)

    @pytest.mark.parametrize("format", FORMATS)
    def test_sources_that_are_parts_are_left_alone(self, format):
        whole = self.result(format)
        kept = whole.buffer.copy()
        parts = whole.parts(1, (16, 32))
        made = Concat([part.desc for part in parts], 1, whole.desc)
        assert made.parts == tuple(part.desc for part in parts)
        assert made(*parts, out=whole) is whole
        np.testing.assert_array_equal(whole.buffer, kept)
        places = {name: address(part.buffer) for name, part in zip(made.inputs, parts, strict=True)}
        assert made._needed(made._compiled(), places | {"dst": address(whole.buffer)}).steps == ()

    @pytest.mark.parametrize("format", FORMATS)
    def test_one_of_two_is_moved(self, format):
        whole = self.result(format)
        left, _ = whole.parts(1, (16, 32))
        expected = whole.numpy(copy=True)
        other = np.ones((2, 32, 3, 5), np.float32)
        expected[:, 16:] = other
        made = Concat([left.desc, rl.tensor(other).desc], 1, whole.desc)
        np.testing.assert_array_equal(made(left, other, out=whole).numpy(), expected)
        np.testing.assert_array_equal(made(left, other).numpy(), expected)

    def test_a_part_that_begins_its_own_buffer_is_one_too(self):
        whole = self.result("nChw16c").submemory((1, 48, 3, 5), (0, 0, 0, 0))
        right = whole.parts(1, (16, 32))[1]
        dense = rl.MemoryDesc(right.dims, "f32", "nChw16c")
        view = rl.from_buffer(whole.buffer[right.desc.offset0 * 4 :], dense)
        made = Concat([rl.MemoryDesc((1, 16, 3, 5), "f32", "nchw"), dense], 1, whole.desc)
        expected = right.numpy(copy=True)
        made(np.zeros((1, 16, 3, 5), np.float32), view, out=whole)
        np.testing.assert_array_equal(right.numpy(), expected)
        assert not whole[:, :16].numpy().any()

    def test_a_part_in_another_place_is_refused(self):
        whole = self.result("nchw")
        left, right = whole.parts(1, (24, 24))
        made = Concat([left.desc, right.desc], 1, whole.desc)
        shifted = rl.from_buffer(whole.buffer[4:], left.desc)
        with pytest.raises(LayoutError, match="src0 and dst overlap"):
            made(shifted, right, out=whole)


class TestParts:
    def test_descriptors(self):
        srcs = [rl.MemoryDesc((1, n, 4, 4), "f32", "nhwc") for n in (32, 17)]
        made = Concat(srcs, 1, rl.MemoryDesc((1, 49, 4, 4), "f32", "nChw16c"))
        assert [part.dims for part in made.parts] == [(1, 32, 4, 4), (1, 17, 4, 4)]
        assert [part.offset0 for part in made.parts] == [0, 512]
        assert made.parts[1].padded_dims == (1, 32, 4, 4)

    @pytest.mark.parametrize("sizes", [(17, 32), (14, 4)])
    def test_there_are_none_where_blocks_are_cut(self, sizes):
        srcs = [rl.MemoryDesc((1, n, 4, 4), "f32", "nChw16c") for n in sizes]
        made = Concat(srcs, 1)
        assert made.implementation in ("machine code: reorders, twice", "definition (NumPy)")
        with pytest.raises(LayoutError, match="uneven places"):
            made.parts  # noqa: B018


@pytest.mark.parametrize(
    ("srcs", "axis", "dst", "message"),
    [
        ([], 0, None, "list of descriptors"),
        ([(2, 3)], 2, None, "no axis 2"),
        ([(2, 3)], "a", None, "whole number"),
        ([(2, 3), (3, 3)], 1, None, "may differ on axis 1 only"),
        ([(2, 3), (2, 3, 1)], 1, None, "may differ on axis 1 only"),
        ([(2, 3), (2, 4)], 1, (2, 8), "must be 2x7"),
    ],
)
def test_errors(srcs, axis, dst, message):
    given = [rl.MemoryDesc(dims, "f32", "abc"[: len(dims)]) for dims in srcs]
    with pytest.raises(LayoutError, match=message):
        Concat(given, axis, dst and rl.MemoryDesc(dst, "f32", "ab"))


def test_a_source_needs_a_format():
    with pytest.raises(LayoutError, match=r"src0 .* needs a format"):
        Concat([rl.MemoryDesc((2, 3), "f32", rl.any)], 0)


@pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
@pytest.mark.parametrize("sizes", [(0, 7), (7, 0), (3, 0, 4)])
def test_empty_parts_leave_the_others_to_kernels(sizes):
    srcs = [rl.MemoryDesc((1, 12, size, 64), "f32", "abcd") for size in sizes]
    joined, apart = Concat(srcs, 2), Split(rl.MemoryDesc((1, 12, 7, 64), "f32", "abcd"), 2, sizes)
    for made in (joined, apart):
        assert made.implementation.startswith("machine code")
        check(made)
