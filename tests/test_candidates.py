"""What a planner is told: formats with their costs, the cheapest first."""

from __future__ import annotations

import math

import numpy as np
import pytest

import relayout as rl
from relayout import MemoryDesc
from relayout.primitives import (
    Concat,
    Convolution,
    Eltwise,
    InnerProduct,
    Matmul,
    Pooling,
    Reorder,
    Softmax,
    Split,
)
from relayout.primitives.candidates import TIE


def f32(*dims, format=rl.any):
    return MemoryDesc(dims, "f32", format)


NHWC = f32(2, 32, 12, 12, format="nhwc")

OPEN = {
    "convolution": lambda: Convolution(f32(2, 32, 12, 12), f32(48, 32, 3, 3), f32(48), padding=1),
    "odd channels": lambda: Convolution(f32(2, 3, 12, 12), f32(7, 3, 3, 3), post_ops="relu"),
    "depthwise": lambda: Convolution(f32(1, 32, 14, 14), f32(32, 1, 1, 3, 3), padding=1),
    "one side": lambda: Convolution(NHWC, f32(48, 32, 1, 1)),
    "inner product": lambda: InnerProduct(f32(4, 32, 5, 5), f32(16, 32, 5, 5)),
    "matmul": lambda: Matmul(f32(24, 40), f32(40, 32)),
    "matmuls": lambda: Matmul(f32(3, 24, 40), f32(3, 40, 32)),
}
FIXED = {
    "convolution": lambda: Convolution(NHWC, f32(48, 32, 1, 1), dst=f32(2, 48, 12, 12, format="nchw")),
    "weights packed in each call": lambda: Convolution(
        NHWC, f32(8, 32, 1, 1, format="oihw"), dst=f32(2, 8, 12, 12, format="nhwc")
    ),
    "no kernel": lambda: Convolution(
        MemoryDesc((1, 4, 4, 4), "s32", "nchw"),
        MemoryDesc((4, 4, 1, 1), "s32", "oihw"),
        dst=f32(1, 4, 4, 4, format="nchw"),
    ),
    "relu": lambda: Eltwise(NHWC, "relu"),
    "softmax": lambda: Softmax(NHWC),
    "pooling": lambda: Pooling(NHWC, "max", 2),
    "concat": lambda: Concat([NHWC, NHWC], 1),
    "split": lambda: Split(NHWC, 1, (8, 24)),
    "reorder": lambda: Reorder(NHWC, f32(*NHWC.dims, format="nchw")),
}


@pytest.mark.parametrize("name", [*OPEN, *FIXED])
def test_every_candidate_is_a_primitive_in_its_formats(name):
    made = (OPEN | FIXED)[name]()
    found = made.candidates()
    assert [dict(one.formats) for one in found].count(made.descs) == 1
    assert len(found) == 1 if name in FIXED else len(found) > 1
    for one in found:
        assert one.formats.keys() == {*made.inputs, *made.outputs}
        assert all(desc.layout is not None for desc in one.formats.values())
        assert 0 < one.cost < math.inf
        assert type(one.primitive) is type(made)
        assert one.primitive.descs == one.formats
        assert "cost=" in repr(one)
    costs = [one.cost for one in found]
    rest = [cost for cost in costs if cost > TIE * min(costs)]
    assert costs[0] <= TIE * min(costs)
    assert rest == costs[len(costs) - len(rest) :] == sorted(rest)


@pytest.mark.parametrize("name", ["convolution", "odd channels", "inner product", "matmul"])
def test_candidates_do_the_same(name):
    made = OPEN[name]()
    arrays = [
        np.random.default_rng(k).integers(-4, 5, made.descs[name].dims).astype(np.float32)
        for k, name in enumerate(made.inputs)
    ]
    expected = made.reference(*arrays)
    for one in made.candidates():
        given = [
            rl.tensor(array).reorder(one.formats[name])
            for name, array in zip(made.inputs, arrays, strict=True)
        ]
        found = one.primitive(*given)
        assert found.desc == one.formats["dst"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("size", [7, 14, 56])
@pytest.mark.parametrize(("inputs", "outputs", "kernel"), [(64, 64, 3), (64, 256, 1), (256, 64, 1)])
def test_any_takes_the_cheapest(size, inputs, outputs, kernel):
    made = Convolution(f32(1, inputs, size, size), f32(outputs, inputs, kernel, kernel), padding=kernel // 2)
    costs = {str(one.formats["src"]) + str(one.formats["dst"]): one.cost for one in made.candidates()}
    assert costs[str(made.src) + str(made.dst)] <= 1.1 * min(costs.values())


def test_more_costs_more():
    costs = [
        Eltwise(f32(1, 64, size, size, format="nhwc"), "relu").candidates()[0].cost for size in (16, 64, 256)
    ]
    assert costs == sorted(costs)
    costs = [
        Convolution(f32(1, 64, size, size, format="nhwc"), f32(64, 64, 3, 3)).candidates()[0].cost
        for size in (8, 32, 128)
    ]
    assert costs == sorted(costs)
