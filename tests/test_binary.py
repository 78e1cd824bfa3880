"""Binary operations and sums: what the definition says, broadcast in any way, in every layout and type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from elementwise import FORMATS, TYPES, check, machine_code, sides
from relayout import LayoutError
from relayout.ops import post_ops
from relayout.primitives import Binary, Sum
from relayout.primitives.binary import ALGORITHMS
from strategies import examples, has_clean_padding, layouts
from test_reorder import in_front

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


@st.composite
def broadcast(draw):
    """A destination and two sources that broadcast to its dims."""
    dst, one, two = draw(sides(3))
    sources = []
    for source in (one, two):
        gone = {a for a in range(len(dst.dims)) if draw(st.integers(0, 2)) == 0}
        dims = tuple(1 if a in gone else size for a, size in enumerate(dst.dims))
        layout = source.layout if dims == dst.dims else in_front(draw(layouts(dims=dims)))
        sources.append(rl.MemoryDesc(dims, source.dtype, layout))
    one, two = sources
    both = tuple(b if a == 1 else a for a, b in zip(one.dims, two.dims, strict=True))
    assume(both == dst.dims and all(has_clean_padding(d.layout) for d in sources))
    return dst, one, two


class TestBinary:
    @given(
        broadcast(),
        st.sampled_from(ALGORITHMS),
        st.sampled_from([(), "relu", [post_ops.Sum(2)]]),
        st.booleans(),
    )
    @examples(60)
    def test_any_layouts(self, descs, algorithm, after, scaled):
        dst, one, two = descs
        check(Binary(algorithm, one, two, dst, scales=(0.5, -2) if scaled else (1, 1), post_ops=after))

    @pytest.mark.turns(2)
    @pytest.mark.parametrize("format", FORMATS)
    def test_a_value_for_each_channel_image_row_or_all(self, format):
        for k, channels in enumerate((3, 17, 80)):
            dims = (2, channels, 3, 5)
            desc = rl.MemoryDesc(dims, TYPES[(k + len(format)) % len(TYPES)], format)
            for kept in share(((1,), (0,), (2,), (0, 1), (1, 3), ()), k + FORMATS.index(format)):
                few = rl.MemoryDesc([n if a in kept else 1 for a, n in enumerate(dims)], "f32", "nchw")
                made = Binary("sub", desc, few)
                assert (made.dst, made.implementation) == (desc, "machine code: sub")
                check(made)

    @pytest.mark.parametrize("kind", ["s8", "f32"])
    @pytest.mark.parametrize("channels", [2, 3, 5, 12, 20, 64, 80, 96])
    def test_rows_that_repeat_a_pattern(self, kind, channels):
        desc = rl.MemoryDesc((3, channels, 7, 9), kind, "nhwc")
        check(Binary("mul", desc, rl.MemoryDesc((1, channels, 1, 1), "f32", "nchw")))

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_special_values(self, algorithm):
        values = np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan], np.float32)
        one, two = rl.tensor(np.repeat(values, 7)), rl.tensor(np.tile(values, 7))
        made = Binary(algorithm, one.desc, two.desc)
        np.testing.assert_array_equal(made(one, two).numpy(), made.reference(one, two))

    @pytest.mark.parametrize("scales", [(1, 1), (1, 4), (0.5, 2), (3e38, -1e-38), (1e-44, 3e38), (-3, 0)])
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_near_the_ends_of_the_range(self, algorithm, scales):
        """To the bit what exact products and one rounding give, though a product alone is beyond f32."""
        ends = np.array([3.4e38, 1e38, 2.0**127, 1.5, 2.0**-126, 1.1e-38, 1e-44, 2.0**-149, 0], np.float32)
        values = np.concatenate([ends, -ends])
        one, two = rl.tensor(np.repeat(values, 18)), rl.tensor(np.tile(values, 18))
        made = Binary(algorithm, one.desc, two.desc, scales=scales)
        with np.errstate(all="ignore"):
            wanted = made.reference(one, two).astype(np.float32)
        np.testing.assert_array_equal(made(one, two).numpy(), wanted)

    def test_a_scaled_divisor_beyond_the_range(self):
        x = rl.tensor(np.float32([1e38, 2.0**-126, 3e38]))
        y = rl.tensor(np.float32([1e38, 2.0**-127, -1e38]))
        assert Binary("div", x.desc, y.desc, scales=(1, 4))(x, y).numpy().tolist() == [0.25, 0.5, -0.75]

    def test_in_place_and_both_sources_the_same(self):
        x = rl.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        made = Binary("add", x.desc, x.desc)
        assert made(x, x, out=x).numpy().tolist() == [[0, 2, 4], [6, 8, 10]]

    def test_zeros_in_the_padding_whatever_is_broadcast(self):
        x = rl.tensor(np.ones((1, 3, 2, 2), np.float32)).reorder("nChw8c")
        made = Binary("mul", x.desc, rl.MemoryDesc((1, 1, 1, 1), "f32", "nchw"))
        y = made(x, np.full((1, 1, 1, 1), np.inf, np.float32))
        assert np.isinf(y.buffer.view("f4").reshape(4, 8)[:, :3]).all()
        assert not y.buffer.view("f4").reshape(4, 8)[:, 3:].any()

    def test_any_follows_the_source_that_has_the_dims(self):
        x, row = (rl.MemoryDesc(dims, "f32", text) for dims, text in (((2, 3, 4), "acb"), ((1, 3, 1), "abc")))
        assert Binary("add", x, row).dst == x == Binary("add", row, x).dst
        column = rl.MemoryDesc((2, 1, 4), "f32", "acb")
        assert Binary("add", column, row).dst == x

    @pytest.mark.parametrize(
        ("algorithm", "dims", "options", "message"),
        [
            ("plus", ((2, 3), (2, 3)), {}, "no binary operation"),
            ("add", ((2, 3), (3,)), {}, "give both as many"),
            ("add", ((2, 3), (2, 2)), {}, "axis 1 has 3 elements in src0 2x3 and 2 in src1 2x2"),
            ("add", ((2, 3), (2, 1)), {"dst": rl.MemoryDesc((2, 1), "f32", "ab")}, "must be 2x3"),
            ("add", ((2, 3), (2, 3)), {"scales": (1, np.inf)}, "scale must be a finite number"),
            ("add", ((2, 3), (2, 3)), {"scales": 2}, "must be two numbers"),
            ("div", ((2, 3), (2, 3)), {"scales": (1, 1e-46)}, "within the range of f32, not 1e-46"),
            ("div", ((2, 3), (2, 3)), {"scales": (1e39, 1)}, "within the range of f32"),
        ],
    )
    def test_errors(self, algorithm, dims, options, message):
        one, two = (rl.MemoryDesc(d, "f32", "ab"[: len(d)]) for d in dims)
        with pytest.raises(LayoutError, match=message):
            Binary(algorithm, one, two, **options)


class TestSum:
    @given(sides(4), st.integers(1, 3), st.booleans())
    @examples(40)
    def test_any_layouts(self, descs, count, scaled):
        dst, *sources = descs
        assume(all(has_clean_padding(d.layout) for d in sources))
        check(Sum(sources[:count], (0.5, -2, 4)[:count] if scaled else None, dst))

    def test_many_sources(self):
        desc = rl.MemoryDesc((2, 17, 3, 5), "f32", "nChw16c")
        made = Sum([desc] * 9)
        assert (made.inputs[-1], made.implementation) == ("src8", "machine code: add")
        check(made)

    def test_zeros_in_the_padding_are_not_negative(self):
        desc = rl.MemoryDesc((2, 3), "f32", "aB8b")
        check(Sum([desc], (-1,)))
        check(Binary("mul", desc, desc, scales=(1, -1)))

    def test_scales_share_one_kernel(self):
        desc = rl.MemoryDesc((2, 3), "f32", "ab")
        kernels = {
            Sum([desc, desc], scales)._compiled().steps[0].kernel.address for scales in ((2, 3), (4, 5))
        }
        assert len(kernels) == 1

    def test_in_place(self):
        x, y = (rl.tensor(np.full((2, 3), k, np.float32)) for k in (1, 2))
        made = Sum([x.desc, y.desc])
        assert made.in_place == {"dst": ("src0", "src1")}
        assert made(x, y, out=y).numpy().tolist() == [[3] * 3] * 2

    @pytest.mark.parametrize(
        ("srcs", "scales", "message"),
        [
            ([], None, "list of descriptors"),
            (0.5, None, "post_ops.Sum"),
            ([(2, 3), (2, 2)], None, "src1 has the dims 2x2, src0 2x3"),
            ([(2, 3)], (1, 2), "must be 1 numbers"),
            ([(2, 3)], (np.nan,), "scale must be a finite number"),
        ],
    )
    def test_errors(self, srcs, scales, message):
        given = [rl.MemoryDesc(dims, "f32", "ab") for dims in srcs] if isinstance(srcs, list) else srcs
        with pytest.raises(LayoutError, match=message):
            Sum(given, scales)
