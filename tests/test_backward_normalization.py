"""Gradients of normalisations, softmax and local response normalisation, and the latter itself.

PyTorch's gradients are in :mod:`gradients_normalization`; here are machine code against definition, finite
differences, threads, and what is refused.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from elementwise import FORMATS, check, machine_code, sides
from relayout import LayoutError, Unsupported
from relayout.primitives import (
    LRN,
    BatchNormalization,
    BatchNormalizationBackward,
    GroupNormalization,
    GroupNormalizationBackward,
    LayerNormalization,
    LayerNormalizationBackward,
    LRNBackward,
    Softmax,
    SoftmaxBackward,
)
from strategies import examples, has_clean_padding

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
FLOATS = ("f32", "bf16", "f16")


def arrays(made, seed=0):
    """Inputs; variances are positive, a workspace is zeros and ones."""
    random = np.random.default_rng(seed)
    found = {}
    for name in made.inputs:
        dims = made.descs[name].dims
        if name == "variance":
            found[name] = random.integers(1, 16, dims) / 4
        elif name == "workspace":
            found[name] = random.integers(0, 2, dims)
    return found


def batch(src, diff_dst=None, diff_src=None, **options):
    relu = options.get("fuse_relu", False)
    forward = BatchNormalization(src, None, 0.125, workspace=relu, **options)
    return BatchNormalizationBackward(forward, diff_dst=diff_dst, diff_src=diff_src)


class TestBatch:
    @given(sides(3, FLOATS), *(st.booleans() for _ in range(4)))
    @examples(60)
    def test_any_layouts(self, descs, scale, shift, given, relu):
        diff_src, src, diff_dst = descs
        assume(len(src.dims) > 1 and has_clean_padding(src.layout) and has_clean_padding(diff_dst.layout))
        assume(0 not in src.dims)
        made = batch(
            src,
            diff_dst,
            diff_src,
            use_scale=scale,
            use_shift=shift,
            use_global_stats=given,
            fuse_relu=relu,
        )
        check(made, arrays=arrays(made))

    @pytest.mark.parametrize("format", FORMATS)
    def test_formats(self, format):
        for k, channels in enumerate((1, 3, 17, 31, 100)):
            src = rl.MemoryDesc((2, channels, 3, 5), FLOATS[k % 3], format)
            made = batch(src, use_scale=True, use_shift=k % 2 > 0, use_global_stats=k == 3, fuse_relu=k != 1)
            assert made.implementation.startswith("machine code")
            check(made, arrays=arrays(made))

    @pytest.mark.parametrize("format", ["nc", "ncw", "ncdhw", "ndhwc", "nCdhw8c"])
    def test_other_numbers_of_axes(self, format):
        dims = (2, 17, 3, 4, 5)[: rl.Format(format).rank]
        made = batch(rl.MemoryDesc(dims, "f32", format), use_global_stats=False)
        check(made, arrays=arrays(made))

    @given(sides(2, FLOATS), *(st.booleans() for _ in range(3)), st.sampled_from([(), "tanh"]))
    @examples(40)
    def test_workspaces(self, descs, scale, shift, given, after):
        dst, src = descs
        assume(len(src.dims) > 1 and has_clean_padding(src.layout) and 0 not in src.dims)
        made = BatchNormalization(
            src, dst, 0.125, use_scale=scale, use_shift=shift or not given, use_global_stats=given,
            fuse_relu=True,
            workspace=True, post_ops=after,
        )  # fmt: skip
        values = arrays(made) | {"shift": 0.3 + np.arange(src.dims[1])}
        if "mean" in made.inputs:
            values["mean"] = 0.07 + np.arange(src.dims[1])
        check(made, arrays=values)

    @pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
    @pytest.mark.parametrize("dims", [(5, 3, 29, 31), (3, 48, 17, 9), (2, 300, 7, 7), (70, 16, 4, 5)])
    def test_many_parts(self, dims, format):
        src = rl.MemoryDesc(dims, "f32", format)
        made = batch(src, use_scale=True, use_shift=True, use_global_stats=False, fuse_relu=True)
        check(made, arrays=arrays(made))
        check(made.forward, arrays=arrays(made.forward))

    def test_digits_are_kept_where_the_mean_is_large(self):
        x = 1000 + np.random.default_rng(0).standard_normal((4, 2, 32, 32)).astype(np.float32)
        d = np.random.default_rng(1).standard_normal(x.shape).astype(np.float32)
        forward = BatchNormalization(rl.tensor(x).desc, use_scale=True, use_global_stats=False)
        scale = np.ones(2, np.float32)
        _, mean, variance = forward(x, scale)
        made = BatchNormalizationBackward(forward)
        for found, wanted in zip(
            made(x, d, mean, variance, scale),
            made.reference(x, d, mean, variance, scale),
            strict=True,
        ):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-4 * np.abs(wanted).max())

    @pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
    def test_threads_do_not_change_bits(self, format):
        src = rl.MemoryDesc((8, 70, 33, 31), "f32", format)
        made = batch(src, use_scale=True, use_shift=True, use_global_stats=False)
        same_on_threads(made)
        same_on_threads(made.forward)


class TestRows:
    @given(sides(3, FLOATS), st.integers(1, 5), *(st.booleans() for _ in range(4)))
    @examples(80)
    def test_any_layouts(self, descs, count, scale, shift, rms, own):
        diff_src, src, diff_dst = descs
        assume(has_clean_padding(src.layout) and has_clean_padding(diff_dst.layout))
        assume(src.rank and 0 not in src.dims)
        forward = LayerNormalization(
            src,
            scale,
            shift,
            axes=min(count, src.rank),
            epsilon=0.125,
            rms=rms,
            statistics=own,
            use_global_stats=not own,
        )
        made = LayerNormalizationBackward(forward, diff_dst=diff_dst, diff_src=diff_src)
        check(made, arrays=arrays(made))

    @given(sides(3, FLOATS), st.integers(1, 4), *(st.booleans() for _ in range(3)))
    @examples(80)
    def test_any_groups(self, descs, groups, scale, shift, own):
        diff_src, src, diff_dst = descs
        assume(len(src.dims) > 1 and 0 not in src.dims and src.dims[1] % groups == 0)
        assume(has_clean_padding(src.layout) and has_clean_padding(diff_dst.layout))
        forward = GroupNormalization(
            src, scale, shift, groups=groups, epsilon=0.125, statistics=own, use_global_stats=not own
        )
        made = GroupNormalizationBackward(forward, diff_dst=diff_dst, diff_src=diff_src)
        check(made, arrays=arrays(made))

    @pytest.mark.turns(2)
    @pytest.mark.parametrize("format", FORMATS)
    def test_formats(self, format):
        tried = [*enumerate(((1, 1), (32, 8), (32, 32), (40, 4), (160, 4)))]
        for k, (channels, groups) in share(tried, FORMATS.index(format)):
            src = rl.MemoryDesc((2, channels, 5, 9), FLOATS[k % 3], format)
            table = rl.MemoryDesc((channels,), FLOATS[k // 2], "a")
            forward = GroupNormalization(src, table, True, groups=groups, epsilon=0.125, statistics=True)
            made = GroupNormalizationBackward(forward)
            assert made.implementation.startswith("machine code")
            check(made, arrays=arrays(made))
            forward = LayerNormalization(src, True, True, axes=1 + k % 3, epsilon=0.125, statistics=True)
            made = LayerNormalizationBackward(forward)
            assert made.implementation.startswith("machine code")
            check(made, arrays=arrays(made))

    def test_threads_do_not_change_bits(self):
        src = rl.MemoryDesc((8, 197, 770), "f32", "abc")
        same_on_threads(LayerNormalizationBackward(LayerNormalization(src, True, True, statistics=True)))


class TestSoftmax:
    @given(sides(3, FLOATS), st.integers(0, 4), st.booleans())
    @examples(60)
    def test_any_layouts(self, descs, axis, log):
        diff_src, src, diff_dst = descs
        assume(has_clean_padding(src.layout) and has_clean_padding(diff_dst.layout) and src.rank)
        forward = Softmax(src, axis % src.rank, src if has_one_place(src) else None, log)
        made = SoftmaxBackward(forward, diff_dst=diff_dst, diff_src=diff_src)
        check(made)

    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("log", [False, True])
    def test_formats(self, format, log):
        for k, channels in share([*enumerate((1, 3, 17, 100, 1000))], FORMATS.index(format) + log):
            src = rl.MemoryDesc((2, channels, 3, 5), FLOATS[k % 3], format)
            made = SoftmaxBackward(Softmax(src, 1 + k % 3, log=log))
            assert made.implementation.startswith("machine code")
            check(made)


class TestResponses:
    @given(sides(3, FLOATS), st.integers(1, 6), st.booleans(), st.sampled_from([0.5, 0.75, 1.0]))
    @examples(60)
    def test_any_layouts(self, descs, size, within, beta):
        dst, src, diff_dst = descs
        assume(len(src.dims) > 1 + within)
        assume(has_clean_padding(src.layout) and has_clean_padding(diff_dst.layout))
        algorithm = ("across_channels", "within_channel")[within]
        forward = LRN(src, dst, algorithm=algorithm, size=size, alpha=0.25, beta=beta, k=1.5)
        check(forward)
        check(LRNBackward(forward, diff_dst=diff_dst, diff_src=dst))

    @pytest.mark.turns(2)
    @pytest.mark.parametrize("format", FORMATS)
    @pytest.mark.parametrize("algorithm", ["across_channels", "within_channel"])
    def test_formats(self, format, algorithm):
        tried = [*enumerate((1, 3, 17, 31, 100))]
        for k, channels in share(tried, FORMATS.index(format) + len(algorithm)):
            src = rl.MemoryDesc((2, channels, 7, 9), FLOATS[k % 3], format)
            forward = LRN(src, algorithm=algorithm, size=k + 1, alpha=0.5)
            for made in (forward, LRNBackward(forward)):
                assert made.implementation.startswith("machine code")
                check(made)

    def test_it_is_that_of_pytorch(self):
        torch = pytest.importorskip("torch")
        x = np.random.default_rng(0).standard_normal((2, 11, 5, 4)).astype(np.float32)
        wanted = torch.nn.functional.local_response_norm(torch.tensor(x), 5, 0.3, 0.6, 2.0)
        made = LRN(rl.tensor(x).desc, size=5, alpha=0.3, beta=0.6, k=2.0)
        np.testing.assert_allclose(made(x).numpy(), wanted, rtol=1e-5)


def has_one_place(desc):
    """Whether a descriptor can be written."""
    return desc.layout.is_injective() and (not desc.layout.has_padding or desc.layout.room().is_injective())


def same_on_threads(made):
    """One thread and two write the same."""
    random = np.random.default_rng(3)
    given = [
        rl.tensor(1 + random.random(made.descs[name].dims), made.descs[name].layout, made.descs[name].dtype)
        for name in made.inputs
    ]
    one, two = (made(*given, threads=threads) for threads in (1, 2))
    for x, y in zip(*((found,) if len(made.outputs) == 1 else found for found in (one, two)), strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda x: BatchNormalizationBackward(Softmax(x)),
            LayoutError,
            "forward must be a BatchNormalization",
        ),
        (lambda x: LayerNormalizationBackward(LayerNormalization(x)), LayoutError, "statistics=True"),
        (
            lambda x: LayerNormalizationBackward(LayerNormalization(x, statistics=True, post_ops="relu")),
            Unsupported,
            "post-ops",
        ),
        (
            lambda x: BatchNormalizationBackward(BatchNormalization(x, fuse_relu=True)),
            LayoutError,
            "workspace=True",
        ),
        (lambda x: BatchNormalization(x, workspace=True), LayoutError, "fused ReLU"),
        (
            lambda x: SoftmaxBackward(Softmax(x), diff_dst=rl.MemoryDesc((1, 2), "f32", "ab")),
            LayoutError,
            "must be 2x3x4x5",
        ),
        (
            lambda x: SoftmaxBackward(Softmax(x), diff_src=rl.MemoryDesc(x.dims, "s8", "nchw")),
            Unsupported,
            "integers",
        ),
        (lambda x: SoftmaxBackward(Softmax(x, log=True, guarded=True)), Unsupported, "guarded"),
        (lambda x: LRN(x, size=0), LayoutError, "1 or more"),
        (lambda x: LRN(x, algorithm="along"), LayoutError, "across_channels"),
        (
            lambda x: LRN(rl.MemoryDesc((2, 3), "f32", "ab"), algorithm="within_channel"),
            LayoutError,
            "at least 3 axes",
        ),
        (lambda x: LRN(x, alpha=float("nan")), LayoutError, "alpha"),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make(rl.MemoryDesc((2, 3, 4, 5), "f32", "nchw"))


@pytest.mark.parametrize("dims", [(0, 3, 2, 2), (2, 0, 2, 2), (2, 3, 0, 2), (1, 1, 1, 1)])
def test_nothing_and_one_element(dims):
    src = rl.MemoryDesc(dims, "f32", "nhwc")
    norm = BatchNormalization(src, use_scale=True, use_global_stats=False)
    layer = LayerNormalization(src, scale=True, statistics=True)
    for made in (
        BatchNormalizationBackward(norm),
        LayerNormalizationBackward(layer),
        SoftmaxBackward(Softmax(src)),
        LRN(src),
        LRNBackward(LRN(src)),
    ):
        given = [np.ones(made.descs[name].dims, np.float32) for name in made.inputs]
        given = [rl.tensor(x, made.descs[n].layout, "f32") for x, n in zip(given, made.inputs, strict=True)]
        found = made(*given)
        for one in (found,) if len(made.outputs) == 1 else found:
            assert np.isfinite(one.numpy()).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda x: BatchNormalizationBackward(BatchNormalization(x, use_scale=True, use_global_stats=False)),
        lambda x: LayerNormalizationBackward(LayerNormalization(x, True, True, axes=2, statistics=True)),
        lambda x: GroupNormalizationBackward(GroupNormalization(x, True, groups=2, statistics=True)),
        lambda x: SoftmaxBackward(Softmax(x, 3, log=True)),
        lambda x: LRNBackward(LRN(x, size=4, alpha=0.5)),
        lambda x: LRNBackward(LRN(x, size=2, alpha=0.5, algorithm="within_channel")),
    ],
)
def test_definitions_are_differences(make):
    """What comes in times a small change of the results is the gradient times the change of the source."""
    random = np.random.default_rng(0)
    made = make(rl.MemoryDesc((3, 4, 2, 5), "f32", "nchw"))
    forward = made.forward.operation
    x, d, step = (random.standard_normal((3, 4, 2, 5)) for _ in range(3))
    tables = {name: random.standard_normal(made.forward.descs[name].dims) for name in ("scale", "shift")
              if name in made.forward.inputs}  # fmt: skip
    known = {"src": x, "diff_dst": d, **tables, **forward.definition({"src": x, **tables})}
    found = made.operation.definition({name: known[name] for name in made.inputs})
    h = 1e-5
    for name, change in {
        "src": step,
        **{n: random.standard_normal(t.shape) for n, t in tables.items()},
    }.items():
        ends = [
            forward.definition({"src": x, **tables, name: {"src": x, **tables}[name] + sign * h * change})[
                "dst"
            ]
            for sign in (1, -1)
        ]
        wanted = ((ends[0] - ends[1]) / (2 * h) * d).sum()
        np.testing.assert_allclose((found[f"diff_{name}"] * change).sum(), wanted, rtol=1e-6, atol=1e-7)
