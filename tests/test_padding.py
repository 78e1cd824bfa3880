"""``Tensor.padding_is_zero`` against its definition: what ``Layout.index`` says is no element."""

from __future__ import annotations

import importlib
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.loops.nest import places as places_of
from relayout.loops.padding import padding
from strategies import DTYPES, examples, has_clean_padding, padding_places
from test_zeros import padded

module = importlib.import_module("relayout.tensor")


def padding_by_index(layout):
    """Places in the room of a layout at which there is no element."""
    low, high = layout.bounds()
    room = layout.room()
    return [at for at in range(low, high + 1) if layout.index(at) is None and room.index(at) is not None]


def put(buffer, dtype, place, value):
    """Set all bits, or one, of an element."""
    bits = rl.dtype(dtype).bits
    if bits < 8:
        half = 4 * (place & 1)
        buffer[place >> 1] = buffer[place >> 1] & (0xF0 >> half) | value << half
    else:
        buffer[place * bits // 8 : (place + 1) * bits // 8] = value


@st.composite
def padded_or_part(draw):
    """A layout, or a view of it that may end within a block."""
    layout = draw(padded(512))
    if any(len(term) > 1 for term in layout.terms) or draw(st.booleans()):
        return layout
    dims = [draw(st.integers(1, size)) for size in layout.dims]
    starts = [draw(st.integers(0, size - part)) for size, part in zip(layout.dims, dims, strict=True)]
    try:
        return rl.views.submemory(layout, dims, starts)
    except rl.LayoutError:  # it cuts blocks at uneven places
        return layout


@given(layout=padded_or_part(), dtype=st.sampled_from((*DTYPES, "s4", "u4")), data=st.data())
@examples(200)
def test_one_bit_of_padding_is_seen_and_nothing_else(layout, dtype, data):
    assume(has_clean_padding(layout) and layout.bounds()[0] >= 0)
    desc = rl.MemoryDesc(layout.dims, dtype, layout)
    padding = padding_by_index(layout)
    assert set(padding) == padding_places(layout)
    buffer = np.full(max(1, desc.required_bytes), 0xFF, np.uint8)  # elements, holes and neighbours
    for place in padding:
        put(buffer, dtype, place, 0)
    tensor = rl.from_buffer(buffer, desc)
    with mock.patch.object(module, "GATHERED", data.draw(st.sampled_from((1, 7, 1 << 20)))):
        assert tensor.padding_is_zero() is True
        if padding:
            put(buffer, dtype, data.draw(st.sampled_from(padding)), 1)
            assert tensor.padding_is_zero() is False


@given(layout=padded())
@examples(100)
def test_nests_reach_all_padding(layout):
    parts = [at for nest in padding(layout) for at in places_of(nest)]
    assert set(np.concatenate([[], *parts]).tolist()) == padding_places(layout)


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw8c"])
def test_without_padding_it_is_zero(format):
    assert rl.tensor(np.ones((2, 8, 3, 3), np.float32), format).padding_is_zero()
    assert rl.tensor(np.ones((0, 3, 3, 3), np.float32), format).padding_is_zero()


def test_what_relayout_makes_has_zeros():
    x = rl.tensor(np.ones((2, 17, 3, 3), np.float32), "nChw16c")
    assert x.padding_is_zero()
    x.buffer.view(np.float32)[17 * 3 * 3 + 50 :] = -0.0
    assert not x.padding_is_zero()
    assert x[:, :17].desc == x.desc
    assert not x[:, 16:].padding_is_zero()
    assert x[:, :16].padding_is_zero()  # it has none
    assert x[:, :3].padding_is_zero()  # what follows is its neighbour's


@pytest.mark.parametrize(("dtype", "most"), [("u8", 1 << 18), ("u4", 48 << 20)])
def test_memory_is_bounded(dtype, most):
    x = rl.from_buffer(np.zeros(32 << 20, np.uint8), rl.MemoryDesc((1, 1, 2048, 1024), dtype, "nChw16c"))
    assert x.padding_is_zero()  # everything is imported
    tracemalloc.start()
    try:
        assert x.padding_is_zero()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_a_block_of_millions():
    x = rl.from_buffer(np.zeros(1 << 24, np.uint8), rl.MemoryDesc((3,), "u8", "A16777216a"))
    assert x.padding_is_zero()
    x.buffer[3] = 1
    assert not x.padding_is_zero()
