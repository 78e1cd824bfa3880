"""Rows into blocks (:mod:`relayout.primitives.blocking`), held against reorders of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.jit.support import supported
from relayout.layout.descriptor import MemoryDesc
from relayout.primitives.blocking import blocks_of, move_of
from relayout.reorder.conversion import Conversion

pytestmark = pytest.mark.skipif(not supported(), reason="no machine code here")

CANARY, EDGE = 0xA5, 64


def moved(src: MemoryDesc, dst: MemoryDesc) -> None:
    """Move random bits both ways and compare all bytes of the target, those around it too."""
    found = blocks_of(src, dst)
    assert found is not None
    source = np.random.default_rng(0).integers(0, 256, src.required_bytes, np.uint8)
    wanted = np.zeros(dst.required_bytes, np.uint8)
    made = np.full(dst.required_bytes + 2 * EDGE, CANARY, np.uint8)
    made[EDGE:-EDGE] = 0
    plan = Conversion.uncompiled(src, dst)
    from relayout.reorder.engine import reorder_numpy

    reorder_numpy(plan.src, source, plan.alike, wanted, plan.attributes, zeroed=True)
    move_of(found, source.ctypes.data, made[EDGE:].ctypes.data)()
    assert (made[EDGE:-EDGE] == wanted).all()
    assert (made[:EDGE] == CANARY).all()
    assert (made[-EDGE:] == CANARY).all()


@given(
    outputs=st.integers(1, 6),
    inputs=st.integers(1, 20),
    kernel=st.sampled_from([(1, 1), (3, 3), (1, 7), (5, 2)]),
    target=st.sampled_from(["Ohwi8o", "OIhw8o", "Ohwi16o", "Ohwi24o", "hwio", "OIhw4i8o"]),
)
def test_filters(outputs: int, inputs: int, kernel: tuple[int, int], target: str) -> None:
    dims = 8 * outputs, inputs, *kernel
    if inputs * kernel[0] * kernel[1] >= 8:
        moved(MemoryDesc(dims, "f32", "oihw"), MemoryDesc(dims, "f32", target))


@given(st.integers(1, 9), st.integers(8, 40), st.sampled_from(["AB8b", "BA8b", "BA16b", "ab"]))
def test_matrices(outputs: int, inputs: int, target: str) -> None:
    dims = inputs, 8 * outputs
    moved(MemoryDesc(dims, "f32", "ba"), MemoryDesc(dims, "f32", target))


def test_columns_of_what_was_an_image() -> None:
    """A matrix behind a flattened image reads its columns in another order than they lie."""
    import relayout as rl

    rows = rl.Layout((8 * 5 * 3, 16), "ba")
    split = rl.views.split_axis(rows, 0, (8, 15))
    turned = rl.views.merge_axes(rl.views.permute(split, (1, 0, 2)), 0, 1)
    src = MemoryDesc((120, 16), "f32", rows).with_layout(turned)
    moved(src, MemoryDesc((120, 16), "f32", "BA8b"))


@pytest.mark.parametrize(
    ("src", "dst", "dtype"),
    [
        ("oihw", "Ohwi8o", "bf16"),  # another size of elements
        ("ohwi", "oihw", "f32"),  # nothing in blocks
        ("Ohwi8o", "oihw", "f32"),  # the way back
        ("oihw", "oihw", "f32"),
    ],
)
def test_what_it_is_not_for(src: str, dst: str, dtype: str) -> None:
    dims = 16, 8, 3, 3
    assert blocks_of(MemoryDesc(dims, dtype, src), MemoryDesc(dims, dtype, dst)) is None


@pytest.mark.parametrize("dims", [(12, 8, 3, 3), (16, 7, 1, 1), (4, 64, 1, 1)])
def test_sizes_that_are_left_to_others(dims: tuple[int, ...]) -> None:
    assert blocks_of(MemoryDesc(dims, "f32", "oihw"), MemoryDesc(dims, "f32", "Ohwi8o")) is None
