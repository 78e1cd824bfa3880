"""Sizes that no memory holds: descriptions stay exact, and what needs a buffer is refused at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import MemoryDesc
from relayout.errors import LayoutError, TooLarge
from relayout.graph import Graph, Node, Value
from relayout.kernels.conv.geometry import (
    MOST_BORDER,
    Geometry,
    at_border,
    few_borders,
    rows_have_taps,
    taps_inside,
)
from relayout.primitives import Convolution, Eltwise, Matmul, Sum
from relayout.tensor import aligned, allocate
from strategies import examples

F32 = np.dtype("f4")
FAR = 1 << 62
NEAR = MemoryDesc((2, 3), "f32", "ab")


def rows(stride):
    return MemoryDesc((2, 3), "f32", strides=(stride, 1))


class TestDescriptors:
    def test_arithmetic_is_exact(self):
        desc = rows(FAR)
        assert desc.layout.offset(1, 2) == FAR + 2
        assert desc.required_bytes == 4 * (FAR + 3)
        assert desc.nbytes == 8 * FAR
        assert not desc.layout.same_bytes(NEAR.layout)
        assert str(desc) == f"f32:2x3 strides {FAR}x1"

    @pytest.mark.parametrize("stride", [FAR, 1 << 61, 1 << 46])
    def test_a_reorder_refuses_what_has_no_address(self, stride):
        desc = rows(stride)
        for src, dst in ((desc, NEAR), (NEAR, desc)):
            with pytest.raises(TooLarge, match=rf"reorder: (src|dst) .* spans {desc.required_bytes} bytes"):
                rl.Reorder(src, dst)
        with pytest.raises(TooLarge, match="no process has more than"):
            rl.reorder(np.zeros((2, 3), F32), desc)
        with pytest.raises(TooLarge, match="no process has more than"):
            allocate(desc)

    @pytest.mark.parametrize(
        "made",
        [
            lambda: Eltwise(rows(FAR), "relu"),
            lambda: Sum([rows(FAR), NEAR]),
            lambda: Matmul(rows(FAR), MemoryDesc((3, 4), "f32", "ab")),
            lambda: Convolution(
                MemoryDesc((2, 2, 3, 3), "f32", strides=(FAR, 9, 3, 1)),
                MemoryDesc((4, 2, 3, 3), "f32", "oihw"),
            ),
        ],
        ids=["elementwise", "sum", "matrix product", "convolution"],
    )
    def test_primitives_refuse_it_when_they_are_compiled_or_called(self, made):
        one = made()
        with pytest.raises(TooLarge, match=rf"{one.kind}: src0? .* no process has more than 2\*\*47"):
            one.tune()
        with pytest.raises(TooLarge, match="no process has more than"):
            one(*(np.zeros(one.descs[name].dims, F32) for name in one.inputs))

    def test_a_buffer_that_the_system_does_not_have(self):
        for size in (1 << 46, 1 << 62, 1 << 63, 1 << 80):
            with pytest.raises(TooLarge, match=f"a buffer of {size} bytes is needed"):
                aligned(size)
        assert issubclass(TooLarge, LayoutError)
        assert issubclass(TooLarge, MemoryError)


@st.composite
def geometries(draw):
    """Convolutions along the rows of a plane, with any padding."""
    source, kernel = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    stride, dilation, padding = draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(0, 20))
    target = draw(st.integers(1, 20))
    both = (kernel, stride, dilation, padding)
    k, s, d, p = ((1, n, n) if i < 3 else (0, n, n) for i, n in enumerate(both))
    return Geometry(1, 1, 1, 1, (1, source, source), (1, target, target), k, s, d, p)


class TestConvolutions:
    @given(geometries())
    @examples(200)
    def test_outputs_at_borders_are_those_that_the_taps_tell(self, geometry):
        outputs, taps = range(geometry.target[1]), geometry.kernel[1]
        whole = [at for at in outputs if len(taps_inside(geometry, 1, at)) == taps]
        front, behind = at_border(geometry, 1)
        assert [at for at in outputs if at not in front and at not in behind] == whole
        assert rows_have_taps(geometry) == all(taps_inside(geometry, 1, at) for at in outputs)

    def test_very_many_at_a_border_are_not_looked_at(self):
        n = 1 << 40
        one = Geometry(1, 1, 1, 1, (1, 4, 4), (1, 1, n), (1, 1, 3), (1, 1, 1), (1, 1, n), (0, 0, n))
        assert not few_borders(one)
        two = Geometry(1, 1, 1, 1, (1, n, 4), (1, n, 1), (1, 3, 1), (1, 1, 1), (1, n, 1), (0, n, 0))
        assert not rows_have_taps(two)
        assert few_borders(two._replace(target=(1, 1, MOST_BORDER)))


def convolved(operator="Conv", **attributes):
    """Channels that are convolved one by one, and all together."""
    nodes = (
        Node(operator, ("x", "w"), ("y",), {"group": 4, **attributes}, "first"),
        Node("Relu", ("y",), ("z",)),
    )
    x = Value("x", (1, 4, 10, 10), F32)
    return Graph((x,), ("z",), nodes, {"w": np.ones((4, 1, 3, 3), F32)})


class TestNetworks:
    @pytest.mark.parametrize("padding", [1 << 31, 1 << 40, 5040 * 720720])
    @pytest.mark.parametrize("side", range(4))
    def test_padding_that_no_memory_holds(self, padding, side):
        pads = [0, 0, 0, 0]
        pads[side] = padding
        with pytest.raises(
            TooLarge, match=r"node 'first' \(Conv\) can't be planned: y f32 1x4x.* takes \d+ bytes"
        ):
            convolved(pads=tuple(pads)).compile()

    @pytest.mark.parametrize("stride", [1 << 20, 1 << 31])
    def test_strides_that_spread_an_image(self, stride):
        with pytest.raises(TooLarge, match=r"node 'first' \(ConvTranspose\) can't be planned: y f32"):
            convolved("ConvTranspose", strides=(stride, stride)).compile()

    def test_a_transposed_convolution_of_many_phases_is_left_to_its_definition(self):
        graph = convolved("ConvTranspose", strides=(40, 30))
        x = np.random.default_rng(0).standard_normal((1, 4, 10, 10)).astype(F32)
        run = graph.compile()
        np.testing.assert_allclose(run(x)[0], graph.evaluate(x)[0], rtol=1e-6)

    def test_an_input_that_nobody_can_give(self):
        x = Value("x", (1 << 40, 16), F32)
        with pytest.raises(
            TooLarge, match=r"input 'x' can't be planned: x f32 1099511627776x16 takes 70368744177664 bytes"
        ):
            Graph((x,), ("y",), (Node("ReduceMax", ("x",), ("y",)),)).plan()

    def test_large_rows_are_planned_in_no_time(self):
        """Ten million rows of which each number of parts is a way to share them."""
        x = Value("x", (1, 4, 7207200, 3), F32)
        nodes = (Node("Conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)}),)
        plan = Graph((x,), ("y",), nodes, {"w": np.ones((4, 4, 3, 3), F32)}).plan()
        assert plan.cost > 0
