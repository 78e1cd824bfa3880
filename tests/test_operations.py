"""Operations: frozen data that says what primitives compute, and nothing of formats."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import relayout as rl
from relayout.ops.operation import Operation
from relayout.primitives import (
    LRN,
    BatchNormalization,
    Binary,
    Concat,
    Convolution,
    Eltwise,
    GroupNormalization,
    InnerProduct,
    LayerNormalization,
    Matmul,
    Pooling,
    Reduction,
    Reorder,
    Softmax,
    Split,
    Sum,
)
from relayout.primitives.post_ops import BinaryOp
from relayout.primitives.post_ops import Sum as Add

torch = pytest.importorskip("torch")
DIMS = (2, 16, 5, 4)


def f32(format="nchw", dims=DIMS):
    return rl.MemoryDesc(dims, "f32", format)


def with_operand(format):
    """Post-ops that read a tensor."""
    return [Add(), BinaryOp("mul", f32(format, (1, 16, 1, 1))), "relu"]


MAKERS = {
    "eltwise": lambda f: Eltwise(f32(f), "clip", alpha=0, beta=6),
    "eltwise and then": lambda f: Eltwise(f32(f), "tanh", post_ops=with_operand(f)),
    "binary": lambda f: Binary("max", f32(f), f32(f, (1, 16, 1, 1)), scales=(1, 2)),
    "sum": lambda f: Sum([f32(f), f32(f)], (1, 3)),
    "convolution": lambda f: Convolution(
        f32(f), f32("oihw", (8, 16, 3, 3)), rl.MemoryDesc((8,), "f32", "a"), strides=2, padding=(1, (0, 1))
    ),
    "grouped": lambda f: Convolution(f32(f), f32("goihw", (4, 2, 4, 3, 3)), dilation=2, padding=2),
    "inner product": lambda f: InnerProduct(f32(f), f32(f, (7, 16, 5, 4))),
    "matmul": lambda f: Matmul(f32("ab" if f == "nchw" else "ba", (3, 5)), f32("ab", (5, 4))),
    "max": lambda f: Pooling(f32(f), "max", 3, strides=2, padding=1, workspace=True),
    "average": lambda f: Pooling(f32(f), "average_exclude_padding", (2, 3), padding=((1, 0), (0, 1))),
    "mean": lambda f: Reduction(f32(f), "mean", (2, 3)),
    "softmax": lambda f: Softmax(f32(f), log=True),
    "batch normalisation": lambda f: BatchNormalization(f32(f), use_global_stats=False, use_shift=True),
    "layer normalisation": lambda f: LayerNormalization(f32(f), True, axes=(2, 3), statistics=True),
    "group normalisation": lambda f: GroupNormalization(f32(f), True, True, groups=4),
    "concat": lambda f: Concat([f32(f), f32(f, (2, 3, 5, 4))], 1),
    "split": lambda f: Split(f32(f), 1, (5, 11)),
    "reorder": lambda f: Reorder(f32(f), f32("nChw16c"), src_scale=([0.5] * 16, 1), beta=1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_operation_is_a_value_without_formats(name):
    one, two = (MAKERS[name](format).operation for format in ("nchw", "nhwc"))
    assert isinstance(one, Operation)
    assert one == two
    assert (hash(one), str(one)) == (hash(two), str(two))
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.kind in str(one).splitlines()[-1]
    assert len(str(one).splitlines()) == 1
    assert len({make("nchw").operation for make in MAKERS.values()}) == len(MAKERS)


@pytest.mark.parametrize("name", MAKERS)
def test_its_definition_is_the_primitives_reference(name):
    made = MAKERS[name]("nhwc")
    rng = np.random.default_rng(0)
    names = (*made.inputs, *made.accumulates)
    arrays = {one: 1 + rng.random(made.descs[one].dims) for one in names}
    found = made.operation.definition(arrays)
    given = [arrays[one] for one in made.inputs]
    wanted = made.reference(*given, out={one: arrays[one] for one in made.accumulates})
    for one, each in zip(made.outputs, wanted if len(made.outputs) > 1 else [wanted], strict=True):
        assert found[one].shape == made.descs[one].dims
        np.testing.assert_array_equal(found[one], each)


def test_the_definition_of_a_convolution_is_pytorchs():
    made = MAKERS["convolution"]("nhwc")
    rng = np.random.default_rng(0)
    src, weights, bias = (rng.standard_normal(desc.dims) for desc in list(made.descs.values())[:3])
    padded = torch.nn.functional.pad(torch.from_numpy(src), (0, 1, 1, 1))
    wanted = torch.nn.functional.conv2d(padded, torch.from_numpy(weights), torch.from_numpy(bias), stride=2)
    found = made.operation.definition({"src": src, "weights": weights, "bias": bias})["dst"]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_it_prints_itself_on_one_line():
    print_ = str(MAKERS["eltwise and then"]("nhwc").operation)
    assert print_ == (
        "dst f32:2x16x5x4 = eltwise(src f32:2x16x5x4, operand0 f32:1x16x1x1, function tanh), sum, "
        "mul(f32:any:1x16x1x1), relu"
    )


def test_a_primitive_says_what_it_was_given_and_not_what_goes_without_saying():
    src, weights = rl.MemoryDesc((1, 16, 5, 5), "f32", "nhwc"), rl.MemoryDesc((16, 16, 3, 3), "f32", "oihw")
    made = Convolution(src, weights, strides=2, post_ops="relu", algorithm="winograd")
    descs = "src f32:nhwc:1x16x5x5, weights f32:oihw:16x16x3x3, dst f32:nhwc"
    assert repr(made) == f"Convolution({descs}:1x16x2x2, strides (2, 2), algorithm winograd), relu"
    assert repr(Convolution(src, weights)) == f"Convolution({descs}:1x16x3x3)"
    padded = Convolution(src, weights, padding=((1, 0), (0, 0)))
    assert repr(padded) == f"Convolution({descs}:1x16x4x3, padding ((1, 0), (0, 0)))"
    assert repr(LRN(src)) == "LRN(src f32:nhwc:1x16x5x5, dst f32:nhwc:1x16x5x5)"
    assert repr(BatchNormalization(src)).endswith("dst f32:nhwc:1x16x5x5)")
    assert repr(BatchNormalization(src, epsilon=1e-3)).endswith("epsilon 0.0010000000474974513)")
