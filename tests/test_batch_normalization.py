"""Batch normalisation: what the definition says, in every layout and data type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from elementwise import FORMATS, TYPES, check, machine_code, sides
from relayout import LayoutError
from relayout.ops import post_ops
from relayout.primitives import BatchNormalization, Eltwise, Sequence
from strategies import examples, has_clean_padding

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


def statistics(made, seed=0):
    """Vectors that a batch normalisation can be given; variances are positive."""
    random = np.random.default_rng(seed)
    channels = made.src.dims[1]
    return {name: random.integers(1, 16, channels) / 4 for name in made.inputs if name != "src"}


@given(
    sides(2), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([(), "abs", [post_ops.Sum(0.5)]])
)
@examples(60)
def test_any_layouts(descs, scale, shift, relu, after):
    dst, src = descs
    assume(len(src.dims) > 1 and has_clean_padding(src.layout))
    made = BatchNormalization(
        src, dst, 0.125, use_scale=scale, use_shift=shift, fuse_relu=relu, post_ops=after
    )
    check(made, arrays=statistics(made))


@pytest.mark.parametrize("format", FORMATS)
def test_formats(format):
    for k, channels in enumerate((1, 3, 17, 31, 100)):
        made = BatchNormalization(
            rl.MemoryDesc((2, channels, 3, 5), TYPES[k], format), use_scale=True, use_shift=k % 2 == 0
        )
        assert made.implementation.startswith("machine code")
        check(made, arrays=statistics(made))


@pytest.mark.parametrize("format", ["nc", "ncw", "ncdhw", "ndhwc", "nCdhw8c"])
def test_other_numbers_of_axes(format):
    dims = (2, 17, 3, 4, 5)[: rl.Format(format).rank]
    made = BatchNormalization(rl.MemoryDesc(dims, "f32", format), use_shift=True)
    check(made, arrays=statistics(made))


def test_digits_are_kept_where_the_mean_is_large():
    x = 1000 + np.random.default_rng(0).standard_normal((4, 1, 8, 8)).astype(np.float32)
    made = BatchNormalization(rl.tensor(x).desc, use_shift=True)
    given = [np.float32([x.mean()]), np.float32([x.var()]), np.float32([3])]
    np.testing.assert_allclose(made(x, *given).numpy(), made.reference(x, *given), rtol=2e-5, atol=2e-6)


class TestTraining:
    """Mean and variance of the source are results."""

    @given(sides(2), st.booleans(), st.sampled_from([(), "abs", [post_ops.Sum(0.5)]]))
    @examples(40)
    def test_any_layouts(self, descs, scale, after):
        dst, src = descs
        assume(len(src.dims) > 1 and has_clean_padding(src.layout) and 0 not in src.dims)
        made = BatchNormalization(src, dst, 0.125, use_scale=scale, post_ops=after, use_global_stats=False)
        check(made, arrays=statistics(made))

    @pytest.mark.parametrize("format", FORMATS)
    def test_formats(self, format):
        for k, channels in enumerate((1, 3, 17, 31, 100)):
            src = rl.MemoryDesc((2, channels, 3, 5), TYPES[k], format)
            made = BatchNormalization(src, use_shift=True, fuse_relu=True, use_global_stats=False)
            assert made.implementation.startswith("machine code")
            check(made, arrays=statistics(made))

    @pytest.mark.parametrize("format", ["nc", "ncw", "ncdhw", "ndhwc", "nCdhw8c"])
    def test_other_numbers_of_axes(self, format):
        dims = (2, 17, 3, 4, 5)[: rl.Format(format).rank]
        check(BatchNormalization(rl.MemoryDesc(dims, "f32", format), use_global_stats=False))

    def test_digits_are_kept_where_the_mean_is_large(self):
        x = 1000 + np.random.default_rng(0).standard_normal((4, 2, 32, 32)).astype(np.float32)
        made = BatchNormalization(rl.tensor(x).desc, use_global_stats=False)
        for found, wanted in zip(made(x), made.reference(x), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-4, atol=2e-4)

    def test_in_place_and_in_a_sequence(self):
        x = rl.tensor(np.random.default_rng(0).standard_normal((2, 8, 4, 4)), "nChw8c", "f32")
        made = BatchNormalization(x.desc, use_global_stats=False)
        seq = Sequence()
        value = seq.add(Eltwise(x.desc, "abs"), seq.input("x", x.desc))
        normal = seq.add(made, value)
        seq.output(normal.dst)
        seq.output(normal.variance)
        run = seq.compile()
        for found, wanted in zip(run(x), seq.reference(x), strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
        assert run.layers()[1].in_place == {"dst": "src"}
        expected = made.reference(x)
        found = made(x, out={"dst": x})
        assert found.dst is x
        np.testing.assert_allclose(x.numpy(), expected.dst, rtol=1e-5, atol=1e-5)


def test_in_place():
    x = rl.tensor(np.arange(12, dtype=np.float32).reshape(2, 3, 2))
    made = BatchNormalization(x.desc, epsilon=0)
    expected = made.reference(x, [1, 2, 3], [1, 4, 16])
    vectors = [np.float32(v) for v in ([1, 2, 3], [1, 4, 16])]
    np.testing.assert_allclose(made(x, *vectors, out=x).numpy(), expected)


@pytest.mark.parametrize(
    ("dims", "options", "error", "message"),
    [
        ((3,), {}, LayoutError, "at least 2 axes"),
        ((2, 3), {"epsilon": -1}, LayoutError, "must not be negative"),
        ((2, 3), {"epsilon": "x"}, LayoutError, "epsilon"),
        ((2, 3), {"dst": rl.MemoryDesc((2, 4), "f32", "ab")}, LayoutError, "must be 2x3"),
    ],
)
def test_errors(dims, options, error, message):
    with pytest.raises(error, match=message):
        BatchNormalization(rl.MemoryDesc(dims, "f32", "abc"[: len(dims)]), **options)


def test_a_vector_of_other_length_is_refused():
    made = BatchNormalization(rl.MemoryDesc((2, 3), "f32", "ab"))
    with pytest.raises(LayoutError, match="mean must be f32:a:3"):
        made(np.zeros((2, 3), np.float32), np.zeros(4, np.float32), np.ones(3, np.float32))


KINDS = [("u8", "u8"), ("s8", "s8"), ("u8", "s8"), ("f8_e4m3", "u8"), ("s8", "f8_e5m2")]


@pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("size", [(32, 32), (31, 45), (40, 301)])
def test_bytes_of_long_runs_are_what_they_are_one_by_one(kinds, size):
    """In ``nchw`` results of a channel may be looked up; in ``nhwc`` each one is computed."""
    random, dims = np.random.default_rng(0), (2, 5, *size)
    src, dst = (rl.MemoryDesc(dims, kind, "nhwc") for kind in kinds)
    x = rl.tensor(random.integers(0, 128, dims) - 64 * (kinds[0] != "u8"), "nhwc", kinds[0])
    vectors = [random.random(5).astype(np.float32) * by for by in (30, 900, 9, 20)]
    one = BatchNormalization(src, dst, use_scale=True, use_shift=True)(x, *vectors).numpy()
    src, dst = (rl.MemoryDesc(dims, kind, "nchw") for kind in kinds)
    made = BatchNormalization(src, dst, use_scale=True, use_shift=True)
    assert made.implementation.startswith("machine code")
    np.testing.assert_array_equal(made(x.reorder(src), *vectors).numpy(), one)
    out = x.reorder(src)
    if kinds[0] == kinds[1]:
        np.testing.assert_array_equal(made(out, *vectors, out=out).numpy(), one)


@pytest.mark.parametrize("kinds", [("u8", "u8"), ("s8", "s8"), ("u8", "s8"), ("s8", "u8")])
@pytest.mark.parametrize("format", ["nhwc", "nchw", "nChw16c"])
@examples(30)
@given(seed=st.integers(0, 10**6), wild=st.booleans(), relu=st.booleans(), epsilon=st.sampled_from([0, 1e-5]))
def test_bytes_are_within_half_a_step_of_the_definition(kinds, format, seed, wild, relu, epsilon):
    """A line through all results of a channel gives those of the definition, however steep it is."""
    random, dims = np.random.default_rng(seed), (2, 70, 8, 16)
    src, dst = (rl.MemoryDesc(dims, kind, format) for kind in kinds)
    low, high = int(src.dtype.min), int(src.dtype.max)
    x = random.integers(low, high + 1, dims)
    x[:, :, 0, :4] = low, low + 1, high - 1, high
    vectors = [_wild(random, dims[1]) if wild else 3 * random.standard_normal(dims[1]) for _ in range(4)]
    vectors = [one.astype(np.float32) for one in vectors]
    vectors[1] = np.abs(vectors[1])  # the variance
    made = BatchNormalization(src, dst, epsilon, use_scale=True, use_shift=True, fuse_relu=relu)
    assert made.implementation.startswith("machine code")
    found = made(rl.tensor(x, "nchw", kinds[0]).reorder(src), *vectors).numpy().astype(np.float64)
    mean, variance, scale, shift = (one.astype(np.float64).reshape(-1, 1, 1) for one in vectors)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        moved = (x - mean) * factor
        exact = moved + shift
        exact = np.where(exact > 0, exact, np.where(np.isnan(exact), exact, 0)) if relu else exact
        rounding = 2.0**-21 * (np.abs(moved) + np.abs(shift))  # of f32, where both are large
        error = np.abs(found - np.clip(np.nan_to_num(exact, nan=0.0), int(dst.dtype.min), int(dst.dtype.max)))
        known = (np.abs(factor) < 1e38) | (factor == np.inf) | (factor == -np.inf)
        bad = known & ~np.isnan(rounding) & (error > 0.5 + 2.0**-7 + rounding)
        bad |= np.isnan(exact) & (found != 0) & known & np.isfinite(shift)
    assert not bad.any(), (found[bad][:5], np.broadcast_to(exact, dims)[bad][:5])


def _wild(random, count):
    """A number for each channel, as networks have them and as no network should."""
    sizes = np.float32([0, 1e-30, 1e-6, 1e-3, 0.1, 1, 1, 1, 30, 128, 255, 1e4, 1e8, 1e30, np.inf, np.nan])
    return random.choice(sizes, count) * np.where(random.random(count) < 0.3, -1, 1).astype(np.float32)
