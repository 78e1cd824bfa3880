"""Views of one buffer: which of them share memory, bit by bit."""

from __future__ import annotations

import importlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from strategies import element_places, examples, layouts, plain_layouts, room_places
from test_reorder import in_front

module = importlib.import_module("relayout.reorder.overlap")
KINDS = ("u4", "u8", "bf16", "f32", "f64")


def bits_of(desc, places, address):
    """All bits of the elements at some places."""
    width = desc.dtype.bits
    return {address * 8 + place * width + bit for place in places for bit in range(width)}


@st.composite
def sides(draw):
    """A descriptor of any type, strided or blocked, and an address."""
    layout = draw(st.one_of(plain_layouts(), layouts()).map(in_front))
    return rl.MemoryDesc(layout.dims, draw(st.sampled_from(KINDS)), layout), draw(st.integers(0, 80))


def share(one, two):
    """By definition: what is read, and what is written with padding, have bits in common."""
    (src, source_at), (dst, target_at) = one, two
    read = bits_of(src, set(element_places(src.layout).ravel().tolist()), source_at)
    return bool(read & bits_of(dst, room_places(dst.layout), target_at))


@given(one=sides(), two=sides())
@examples(300)
def test_what_is_shared_is_told_exactly(one, two):
    assert module.overlap(*one, *two) == share(one, two)


@given(one=sides(), two=sides())
@examples(300)
def test_strides_alone_never_call_apart_what_is_not(one, two):
    with mock.patch.object(module, "COMPARED", 0):
        assert module.overlap(*one, *two) or not share(one, two)


@given(
    data=st.data(),
    widths=st.lists(st.sampled_from((1, 2, 4, 8)), min_size=2, max_size=5),
    dims=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
@examples(100)
def test_fields_of_records_are_told_apart_by_strides(data, widths, dims):
    """Records of fields of any widths, padded to a multiple of 8 bytes, in any number of axes."""
    size = -(-sum(widths) // 8) * 8
    strides = np.cumprod([1, *dims[::-1]])[:-1][::-1] * size
    kinds = {1: "u8", 2: "bf16", 4: "f32", 8: "f64"}
    one, two = data.draw(st.permutations(range(len(widths))))[:2]
    given = []
    for field in (one, two):
        width = widths[field]
        layout = rl.Layout(dims, strides=[int(s) // width for s in strides])
        given += [rl.MemoryDesc(dims, kinds[width], layout), sum(widths[:field])]
    with mock.patch.object(module, "COMPARED", 0):
        assert not module.overlap(*given)


@pytest.mark.parametrize("count", [50, 5_000_000])
def test_reorders_between_fields_of_a_record(count):
    """An f32 to a u8 and a bf16 beside it, by every engine, of any number of records."""
    records = np.zeros(count, [("value", "<f4"), ("flag", "u1"), ("gap", "u1"), ("short", "<u2")])
    records["value"], records["gap"] = np.arange(count) % 251, 7
    buffer = records.view(np.uint8)
    values = rl.from_buffer(buffer, rl.MemoryDesc((count,), "f32", rl.Layout((count,), strides=(2,))))
    flags = rl.MemoryDesc((count,), "u8", rl.Layout((count,), strides=(8,)))
    shorts = rl.MemoryDesc((count,), "bf16", rl.Layout((count,), strides=(4,)))
    for desc, at in ((flags, 4), (shorts, 6)):
        out = rl.from_buffer(buffer[at:], desc)
        rl.reorder(values, out=out)
        rl.Reorder(values.desc, desc)(values, out)
    assert np.array_equal(records["flag"], records["value"])
    assert np.array_equal(records["short"], (np.arange(count) % 251).astype(np.float32).view(np.uint32) >> 16)
    assert (records["gap"] == 7).all()
    for at in (1, 3):  # within the f32
        with pytest.raises(rl.LayoutError, match="overlap in memory"):
            rl.reorder(values, out=rl.from_buffer(buffer[at:], flags))


def test_columns_of_a_large_matrix():
    """A block of columns to another one, in another type: told by strides, whatever the number of rows."""
    rows = 1 << 22
    left = rl.MemoryDesc((rows, 3), "f32", rl.Layout((rows, 3), strides=(8, 1)))
    right = rl.MemoryDesc((rows, 3), "bf16", rl.Layout((rows, 3), strides=(16, 1)))
    assert not module.overlap(left, 0, right, 12)
    assert module.overlap(left, 0, right, 11)
    assert module.overlap(left, 0, right, 27)
