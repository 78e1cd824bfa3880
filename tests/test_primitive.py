"""What all primitives refuse, and what long sums come to."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout.primitives import (
    BatchNormalization,
    Binary,
    Concat,
    Convolution,
    Eltwise,
    Matmul,
    Pooling,
    Softmax,
    Sum,
)

IMAGE = MemoryDesc((1, 2, 1, 3), "f32", "nchw")


def test_a_source_whose_buffer_is_too_short_is_not_read():
    """Also by a single element: what lies behind it is somebody else's."""
    for size in (0, 4, 20):
        short = rl.Tensor(IMAGE, np.zeros(size, np.uint8))
        with pytest.raises(LayoutError, match=f"src .* needs 24 bytes; its buffer has {size}"):
            Eltwise(IMAGE, "exp")(short)
    weights = MemoryDesc((1, 2, 1, 1), "f32", "oihw")
    with pytest.raises(LayoutError, match="weights"):
        Convolution(IMAGE, weights)(
            rl.tensor(np.ones(IMAGE.dims, np.float32)), rl.Tensor(weights, np.zeros(4, np.uint8))
        )


def test_an_array_that_looks_logical_is_no_place_for_physical_bytes():
    relu = Eltwise(IMAGE, "relu", MemoryDesc(IMAGE.dims, "f32", "nhwc"))
    x = rl.tensor(np.arange(6, dtype=np.float32).reshape(IMAGE.dims))
    for out in (np.zeros(IMAGE.dims, np.float32), np.zeros(6, np.int32), np.zeros(6, np.float64)):
        with pytest.raises(LayoutError, match="out"):
            relu(x, out=out)
        assert not out.any()
    out = np.zeros(6, np.float32)
    relu(x, out=out)
    assert out.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Eltwise("f32:nchw:1x2x1x3", "relu"),
        lambda: Eltwise(IMAGE, ["relu"]),
        lambda: Eltwise(IMAGE, "relu", "nhwc"),
        lambda: Softmax(None),
        lambda: Softmax(IMAGE, dst="nhwc"),
        lambda: Binary("add", None, IMAGE),
        lambda: Binary(["add"], IMAGE, IMAGE),
        lambda: Pooling(IMAGE, "max", 1, dst="nhwc"),
        lambda: Sum([None]),
        lambda: Concat([None], 0),
        lambda: Concat([IMAGE, IMAGE], 0, "nchw"),
        lambda: BatchNormalization(None),
        lambda: Convolution(IMAGE, None),
        lambda: Matmul("ab", IMAGE),
    ],
)
def test_what_is_no_descriptor_is_refused(make):
    with pytest.raises(LayoutError):
        make()


def test_none_is_no_tensor_and_the_message_says_of_what():
    with pytest.raises(LayoutError, match="src"):
        Eltwise(IMAGE, "relu")(None)


def test_long_sums_keep_their_digits():
    """In one f32 after the other, ones would stop at 2**24 and tenths lose a hundredth."""
    k = 1 << 20
    a, b = np.full((1, k), 0.1, np.float32), np.full((k, 16), 0.1, np.float32)
    product = Matmul(MemoryDesc(a.shape, "f32", "ab"), MemoryDesc(b.shape, "f32", "ab"))
    got = product(rl.tensor(a), rl.tensor(b)).numpy()
    assert np.allclose(got, k * float(np.float32(0.1)) ** 2, rtol=5e-5)


def test_integer_sums_beyond_s32_are_saturated_not_wrapped():
    k = 70000
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 16), 127, np.int8)
    for kind, most in (("s32", 2**31 - 1), ("f32", np.float32(255 * 127 * k))):
        product = Matmul(
            MemoryDesc(a.shape, "u8", "ab"),
            MemoryDesc(b.shape, "s8", "ab"),
            None,
            MemoryDesc((1, 16), kind, "ab"),
        )
        assert (product(rl.tensor(a), rl.tensor(b)).numpy() == most).all()
