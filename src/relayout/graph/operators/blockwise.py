"""Matrix products by weights in blocks, as kernels read them.

``relayout.MatMulNBits`` is a ``DequantizeLinear`` of constant weights with a ``MatMul`` behind it, as one
operator (:mod:`relayout.graph.passes.blockwise`): weights of ``n x k`` numbers of 4 or 8 bits, unsigned, with
a scale and a zero point for each block along ``k``. Without zero points these are 8 or 128.
"""

from __future__ import annotations

import numpy as np

from relayout.graph.operators.quantization import dequantize_linear
from relayout.graph.operators.registry import Array, Fact, operator

__all__ = ["BLOCKWISE"]

BLOCKWISE = "relayout.MatMulNBits"


def _infer(x: Fact, weights: Fact, *_: Fact | None, **__: object) -> Fact:
    if x.dims is None or weights.dims is None:
        return Fact(None, x.dtype)
    return Fact((*x.dims[:-1], weights.dims[0]), x.dtype)


@operator(BLOCKWISE, infer=_infer)
def matmul_n_bits(
    x: Array,
    weights: Array,
    scale: Array,
    zero_points: Array | None = None,
    /,
    *,
    block_size: int,
    source_bits: int = 24,
) -> Array:
    """``x`` by the transpose of the weights as they are meant; ``source_bits`` as of ``MatMul``."""
    if zero_points is None:
        half = 1 << (3 if weights.dtype.name == "uint4" else 7)
        zero_points = np.full(scale.shape, half, weights.dtype)
    real = dequantize_linear(weights, scale, zero_points, axis=1, block_size=block_size)
    made: Array = np.matmul(x, real.T.astype(x.dtype))
    return made
