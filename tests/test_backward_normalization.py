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
from elementwise import FORMATS, check, machine_code, sides
from relayout.primitives import (
    BatchNormalization,
    BatchNormalizationBackward,
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
