"""Gradients of pooling and resampling: kernels against definitions, and these against others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import check, machine_code
from relayout import MemoryDesc
from relayout.primitives import Pooling, PoolingBackward, Resampling, ResamplingBackward
from strategies import examples
from test_pooling import FORMATS, poolings, sources

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
REALS = ("f32", "f32", "bf16", "f16")


def trained(made: Pooling) -> Pooling:
    """The same, with a workspace where it needs one."""
    return Pooling(made.src, made.algorithm, made.kernel, made.strides, made.padding, made.dilation,
                   workspace=made.algorithm == "max")  # fmt: skip


def taps(made: Pooling, seed: int) -> dict[str, np.ndarray]:
    """A workspace that a forward pass has written."""
    if made.algorithm != "max":
        return {}
    x = np.random.default_rng(seed).integers(-9, 10, made.src.dims)
    return {"workspace": made.reference(x).workspace}


@st.composite
def other(draw, desc, kinds=REALS):
    """None, any, or another format of the same dims."""
    how = draw(st.integers(0, 4))
    text = draw(st.sampled_from(FORMATS[len(desc.dims) - 2]))
    return (
        None if how < 3 else rl.any if how == 3 else MemoryDesc(desc.dims, draw(st.sampled_from(kinds)), text)
    )


@runs_code
@given(data=st.data(), made=poolings(), seed=st.integers(0, 99))
@examples(150)
def test_pooling_kernel_is_the_definition(data, made, seed) -> None:
    forward = trained(made)
    workspace = None
    if forward.algorithm == "max" and data.draw(st.integers(0, 4)) == 0:
        kept = forward.descs["workspace"]
        workspace = MemoryDesc(kept.dims, kept.dtype, data.draw(st.sampled_from(FORMATS[len(kept.dims) - 2])))
    backward = PoolingBackward(
        forward,
        diff_dst=data.draw(other(forward.dst)),
        diff_src=data.draw(other(forward.src)),
        workspace=workspace,
    )
    assert backward._compiled() is not None or 0 in forward.dst.dims
    check(backward, seed, taps(forward, seed))


@st.composite
def resamplings(draw, kinds=("f32",)):
    """A resampling to other sizes, in any format."""
    src = draw(sources(draw(st.sampled_from(kinds))))
    sizes = [draw(st.sampled_from((1, n, 2 * n, 3 * n, max(1, n // 2), n + 1, 11))) for n in src.dims[2:]]
    dims = (*src.dims[:2], *sizes)
    text = draw(st.sampled_from((rl.any, rl.any, *FORMATS[len(sizes)])))
    kind = draw(st.sampled_from(kinds))
    algorithm = draw(st.sampled_from(("nearest", "linear")))
    post_ops = draw(st.sampled_from(((), (), "relu", ("exp", "linear"))))
    return Resampling(src, algorithm, MemoryDesc(dims, kind, text), post_ops=post_ops)


@runs_code
@given(made=resamplings(("f32", "f32", "bf16", "u8")), seed=st.integers(0, 99))
@examples(100)
def test_resampling_kernel_is_the_definition(made, seed) -> None:
    assert made._compiled() is not None
    check(made, seed)


@runs_code
@given(data=st.data(), made=resamplings(REALS), seed=st.integers(0, 99))
@examples(100)
def test_resampling_backward_kernel_is_the_definition(data, made, seed) -> None:
    forward = Resampling(made.src, made.algorithm, made.dst)
    backward = ResamplingBackward(
        forward, diff_dst=data.draw(other(forward.dst)), diff_src=data.draw(other(forward.src))
    )
    assert backward._compiled() is not None
    check(backward, seed)


@runs_code
@given(data=st.data(), made=poolings(("max",)), seed=st.integers(0, 99))
@examples(150)
def test_maxima_and_their_places_are_the_definition(data, made, seed) -> None:
    kinds = data.draw(
        st.sampled_from((("f32", "f32"), ("f32", "f32"), ("bf16", "bf16"), ("s8", "s8"), ("u8", "f32")))
    )
    src = MemoryDesc(made.src.dims, kinds[0], made.src.layout)
    dst = MemoryDesc(made.dst.dims, kinds[1], made.dst.layout)
    post_ops = data.draw(st.sampled_from(((), (), "relu", ("linear", "tanh"))))
    forward = Pooling(src, "max", made.kernel, made.strides, made.padding, made.dilation, dst,
                      workspace=True, post_ops=post_ops)  # fmt: skip
    assert forward._compiled() is not None
    x = np.random.default_rng(seed).integers(0, 4, src.dims).astype(float)  # many are equal
    if not data.draw(st.booleans()) and kinds[0] == "f32":
        x[x == 0], x[x == 3] = -np.inf, np.nan
    check(forward, seed, {"src": x})
