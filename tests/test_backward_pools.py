"""Gradients of pooling and resampling: kernels against definitions, and these against others."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import check, machine_code
from relayout import LayoutError, MemoryDesc, Unsupported
from relayout.ops.functions import Function
from relayout.primitives import Pooling, PoolingBackward, Resampling, ResamplingBackward
from relayout.primitives.plain import plain, remade
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
@examples(60)
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
    post_ops = draw(st.sampled_from(((), (), "relu", ("tanh", Function("linear", 0.5, 3)))))
    return Resampling(src, algorithm, MemoryDesc(dims, kind, text), post_ops=post_ops)


@runs_code
@given(made=resamplings(("f32", "f32", "bf16", "u8")), seed=st.integers(0, 99))
@examples(50)
def test_resampling_kernel_is_the_definition(made, seed) -> None:
    assert made._compiled() is not None
    check(made, seed)


@runs_code
@given(data=st.data(), made=resamplings(REALS), seed=st.integers(0, 99))
@examples(50)
def test_resampling_backward_kernel_is_the_definition(data, made, seed) -> None:
    forward = Resampling(made.src, made.algorithm, made.dst)
    backward = ResamplingBackward(
        forward, diff_dst=data.draw(other(forward.dst)), diff_src=data.draw(other(forward.src))
    )
    assert backward._compiled() is not None
    check(backward, seed)


@runs_code
@given(data=st.data(), made=poolings(("max",)), seed=st.integers(0, 99))
@examples(60)
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


@given(made=poolings(), seed=st.integers(0, 99))
@examples(40)
def test_pooling_gradients_are_quotients_of_differences(made, seed) -> None:
    """The derivative in some direction; the largest of a window stays that when steps are small."""
    forward = trained(made)
    rng = np.random.default_rng(seed)
    x = rng.permutation(np.arange(np.prod(made.src.dims, dtype=int))).reshape(made.src.dims) / 8
    along, diff = rng.standard_normal(made.src.dims), rng.standard_normal(forward.dst.dims)
    h = 1e-3
    both = [forward.operation.definition({"src": x + sign * h * along})["dst"] for sign in (1, -1)]
    wanted = (diff * (both[0] - both[1])).sum() / (2 * h)
    given_ = {"diff_dst": diff}
    if forward.algorithm == "max":
        given_["workspace"] = forward.reference(x).workspace
    got = (PoolingBackward(forward).operation.definition(given_)["diff_src"] * along).sum()
    np.testing.assert_allclose(got, wanted, 1e-6, 1e-6)


@given(made=resamplings(), seed=st.integers(0, 99))
@examples(40)
def test_resampling_gradients_are_the_transposed_product(made, seed) -> None:
    forward = Resampling(made.src, made.algorithm, made.dst)
    rng = np.random.default_rng(seed)
    x, diff = rng.standard_normal(made.src.dims), rng.standard_normal(made.dst.dims)
    back = ResamplingBackward(forward).reference(diff)
    np.testing.assert_allclose((forward.reference(x) * diff).sum(), (back * x).sum(), 1e-9, 1e-9)


@pytest.mark.parametrize("sizes", [((5,), (9,)), ((7, 4), (3, 8)), ((4, 5, 6), (8, 5, 3)), ((3, 3), (1, 20))])
def test_resampling_is_pytorchs(sizes) -> None:
    torch = pytest.importorskip("torch")
    before, after = sizes
    x = np.random.default_rng(0).standard_normal((2, 3, *before))
    desc = MemoryDesc(x.shape, "f32", {3: "nwc", 4: "nhwc", 5: "ndhwc"}[x.ndim])
    modes = {"nearest": "nearest-exact", "linear": ("linear", "bilinear", "trilinear")[x.ndim - 3]}
    for algorithm, mode in modes.items():
        made = Resampling(desc, algorithm, MemoryDesc((2, 3, *after), "f32", rl.any))
        wanted = torch.nn.functional.interpolate(torch.tensor(x), after, mode=mode).numpy()
        np.testing.assert_allclose(made.reference(x), wanted, 1e-9, 1e-12)
        np.testing.assert_allclose(made(rl.tensor(x, desc)).numpy(), wanted, 1e-5, 1e-5)


@runs_code
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c", "CHWN4"])
def test_results_do_not_depend_on_threads(format) -> None:
    src = MemoryDesc((4, 24, 61, 57), "f32", format)
    rng = np.random.default_rng(1)
    largest = Pooling(src, "max", 3, 2, 1, workspace=True)
    average = Pooling(src, "average_exclude_padding", 3, 1, 1)
    larger = Resampling(src, "linear", factors=1.7)
    for made in (largest, larger, *map(PoolingBackward, (largest, average)), ResamplingBackward(larger)):
        descs = [made.descs[name] for name in made.inputs]
        given_ = [rl.tensor(rng.integers(0, 9, one.dims), one.layout, dtype=one.dtype) for one in descs]
        assert made.implementation.startswith("machine code")
        one, two = made(*given_, threads=1), made(*given_, threads=2)
        for a, b in zip(*((x,) if isinstance(x, rl.Tensor) else x for x in (one, two)), strict=True):
            assert a.buffer.tobytes() == b.buffer.tobytes()


def test_nothing_and_one() -> None:
    empty = Pooling(MemoryDesc((0, 3, 4, 4), "f32", "nchw"), "max", 2, workspace=True)
    y, workspace = empty(np.zeros((0, 3, 4, 4), np.float32))
    assert PoolingBackward(empty)(y, workspace).dims == (0, 3, 4, 4)
    one = Pooling(MemoryDesc((1, 1, 1), "f32", "ncw"), "max", 1, workspace=True)
    y, workspace = one(np.full((1, 1, 1), -np.inf, np.float32))
    assert PoolingBackward(one)(np.full((1, 1, 1), 3, np.float32), workspace).numpy().item() == 3
    single = Resampling(MemoryDesc((1, 1, 1), "f32", "ncw"), "linear", factors=5)
    assert ResamplingBackward(single)(np.ones((1, 1, 5), np.float32)).numpy().item() == 5
    nothing = Resampling(MemoryDesc((2, 3, 4), "f32", "ncw"), "nearest", MemoryDesc((2, 3, 0), "f32", "ncw"))
    assert not ResamplingBackward(nothing)(np.zeros((2, 3, 0), np.float32)).numpy().any()


def test_what_is_refused() -> None:
    x = MemoryDesc((1, 8, 6, 6), "f32", "nhwc")
    with pytest.raises(LayoutError, match="workspace=True"):
        PoolingBackward(Pooling(x, "max", 2))
    largest = Pooling(x, "max", 2, workspace=True)
    with pytest.raises(LayoutError, match="must be u8, as the forward pass"):
        PoolingBackward(largest, workspace=MemoryDesc(largest.dst.dims, "s32", "nhwc"))
    with pytest.raises(LayoutError, match="has no workspace"):
        PoolingBackward(Pooling(x, "average_include_padding", 2), workspace=rl.any)
    with pytest.raises(Unsupported, match="post-ops"):
        PoolingBackward(Pooling(x, "average_include_padding", 2, post_ops="relu"))
    with pytest.raises(Unsupported, match="real numbers"):
        PoolingBackward(largest, diff_src=MemoryDesc(x.dims, "s8", "nhwc"))
    with pytest.raises(LayoutError, match="as in the forward pass"):
        PoolingBackward(largest, diff_src=largest.dst)
    for given_, message in (
        ({}, "either dst"),
        ({"factors": 0}, "more than 0"),
        ({"factors": 2, "dst": x}, "factors 2 make"),
        ({"factors": (1, 2, 3)}, "or 2 of them"),
        ({"dst": MemoryDesc((1, 9, 6, 6), "f32", "nhwc")}, "must be"),
    ):
        with pytest.raises(LayoutError, match=message):
            Resampling(x, "linear", **given_)
    with pytest.raises(LayoutError, match="no algorithm"):
        Resampling(x, "cubic", factors=2)


def test_gradients_follow() -> None:
    x = MemoryDesc((1, 17, 6, 6), "bf16", "nChw16c")
    forward = Pooling(x, "max", 2, dst=MemoryDesc((1, 17, 3, 3), "f32", "nhwc"), workspace=True)
    made = PoolingBackward(forward)
    assert (made.diff_dst, made.diff_src) == (forward.dst, x)
    made = PoolingBackward(forward, diff_src=rl.any)
    assert made.diff_src == MemoryDesc(x.dims, "bf16", "nhwc")


@pytest.mark.parametrize(
    "make",
    [
        lambda x: PoolingBackward(Pooling(x, "max", 3, 2, (1, (0, 1)), workspace=True)),
        lambda x: PoolingBackward(Pooling(x, "average_include_padding", 2), diff_dst=rl.any),
        lambda x: Resampling(x, "nearest", factors=(2, 0.5), post_ops="relu"),
        lambda x: ResamplingBackward(Resampling(x, "linear", factors=2), diff_src=rl.any),
    ],
)
def test_text_and_pickles(make) -> None:
    made = make(MemoryDesc((2, 6, 7, 7), "f32", "nhwc"))
    for again in (remade(plain(made)), pickle.loads(pickle.dumps(made))):
        assert again.operation == made.operation
        assert again.descs == made.descs
