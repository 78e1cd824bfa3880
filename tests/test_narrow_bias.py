"""A bias of 16 bits: converted ahead of the kernel, in all primitives that have one, forward and backward."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import relayout as rl
from elementwise import check, machine_code
from relayout import primitives
from relayout.primitives.primitive import Primitive

pytestmark = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")


def made(kind: str, dtype: str, of: str, post_ops: object = ()) -> Primitive:
    """A primitive of this kind whose bias has one data type and whose data another."""

    def desc(*dims: int, format: object = rl.any) -> rl.MemoryDesc:
        return rl.MemoryDesc(dims, of, format)

    image, vector = desc(2, 8, 6, 5, format="nhwc"), rl.MemoryDesc((20,), dtype, "a")
    filters = desc(20, 8, 3, 3)
    if kind == "convolution":
        return primitives.Convolution(image, filters, vector, padding=1, post_ops=post_ops)
    if kind == "deconvolution":
        return primitives.Deconvolution(image, filters, vector, strides=2, padding=1, post_ops=post_ops)
    if kind == "inner product":
        return primitives.InnerProduct(desc(7, 33, format="nc"), desc(20, 33), vector, post_ops=post_ops)
    rows, matrix = desc(7, 33, format="ab"), desc(33, 20)
    return primitives.Matmul(rows, matrix, vector, post_ops=post_ops)


KINDS = ("convolution", "deconvolution", "inner product", "matrix product")


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "of"), [("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f16", "bf16")]
)
def test_it_is_added(kind: str, dtype: str, of: str) -> None:
    one = made(kind, dtype, of)
    assert one.implementation.startswith("machine code")
    rng = np.random.default_rng(0)
    check(one, arrays={"bias": rl.tensor(4 * rng.standard_normal(20), dtype=dtype).numpy()})
    check(made(kind, dtype, of, ("relu",)))


@pytest.mark.parametrize("kind", KINDS)
def test_tuning_and_pickling_change_nothing(kind: str) -> None:
    one = made(kind, "bf16", "bf16")
    rng = np.random.default_rng(0)
    given = [rl.tensor(rng.standard_normal(one.descs[n].dims), one.descs[n]) for n in one.inputs]
    first = one(*given).numpy()
    one.tune()
    for other in (one, pickle.loads(pickle.dumps(one))):
        for _ in range(10):
            np.testing.assert_array_equal(other(*given).numpy(), first)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_its_gradient_has_its_type(dtype: str) -> None:
    for kind, backward in (
        ("convolution", primitives.ConvolutionBackwardWeights),
        ("deconvolution", primitives.DeconvolutionBackwardWeights),
        ("inner product", primitives.InnerProductBackwardWeights),
    ):
        one = backward(made(kind, dtype, dtype))
        assert one.diff_bias.dtype.name == dtype
        assert one.implementation.startswith("machine code")
        check(one)
