"""Primitives refuse arguments that are known to be indexed otherwise than they index."""

from __future__ import annotations

import pytest

import relayout as rl
from relayout import LayoutError, MemoryDesc
from relayout.primitives import Binary, Convolution, Eltwise, InnerProduct, Pooling, Sum

X = MemoryDesc((1, 8, 8, 8), "f32", "nchw")
TURNED = MemoryDesc((1, 8, 8, 8), "f32", "NHWC4@nhwc")
W = MemoryDesc((8, 8, 1, 1), "f32", "oihw")


def test_a_source_with_channels_last_in_its_index_is_refused() -> None:
    with pytest.raises(
        LayoutError, match=r"src .* is indexed n, h, w, c; .* n, c, h, w: permute\(0, 3, 1, 2\)"
    ):
        Convolution(TURNED, W)
    with pytest.raises(LayoutError, match=r"dst .* is indexed n, h, w, c"):
        Convolution(X, W, dst=TURNED)
    with pytest.raises(LayoutError, match=r"weights .* is indexed o, h, w, i; .* permute\(0, 3, 1, 2\)"):
        Convolution(MemoryDesc((1, 1, 8, 8), "f32", "nchw"), MemoryDesc((8, 1, 1, 1), "f32", "OHWIo4@ohwi"))
    with pytest.raises(LayoutError, match=r"pooling: src .* is indexed n, h, w, c"):
        Pooling(TURNED, "max", 2)
    with pytest.raises(LayoutError, match=r"inner product: src .* is indexed n, h, w, c"):
        InnerProduct(TURNED, MemoryDesc((5, 8, 8, 8), "f32", "oihw"))


def test_another_meaning_is_refused_unless_it_is_taken_off() -> None:
    recurrent = MemoryDesc((4, 8, 16), "f32", "tnc")
    weights = MemoryDesc((8, 8, 3), "f32", "oiw")
    with pytest.raises(LayoutError, match="has the axes t, n, c, where n, c, w are wanted"):
        Convolution(recurrent, weights)
    plain = MemoryDesc(recurrent.dims, "f32", recurrent.layout.with_roles(None))
    assert Convolution(plain, weights).dst.dims == (4, 8, 14)


def test_weights_may_be_written_as_data() -> None:
    assert Convolution(X, MemoryDesc(W.dims, "f32", "nhwc")).dst.dims == X.dims


def test_operands_are_indexed_alike() -> None:
    for make in (
        lambda: Binary("add", X, TURNED),
        lambda: Sum([X, TURNED]),
        lambda: Eltwise(X, "relu", dst=TURNED),
    ):
        with pytest.raises(LayoutError, match="is indexed n, h, w, c; it must be indexed n, c, h, w"):
            make()
    assert Eltwise(TURNED, "relu").dst == TURNED


def test_a_permuted_view_says_what_it_is() -> None:
    x = rl.tensor([[[[1.0]] * 3]], "nhwc", "f32").permute(0, 2, 3, 1)
    with pytest.raises(LayoutError, match="is indexed n, h, w, c"):
        Pooling(x.desc, "max", 1)
