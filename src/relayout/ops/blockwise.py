"""Matrix products by weights of few bits, in blocks that have a scale and a zero point each."""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["MatmulNBits"]


@dataclass(frozen=True, kw_only=True)
class MatmulNBits(Operation):
    """``dst[m, n] = bias[n] + sum over k of src[m, k] * scale[n, k / block] * (weights[n, k] - zero point)``.

    The zero point is that of the block, too. Without zero points it is half of the range, 8 or 128.
    """

    kind = "matrix product of few bits"
    block: int
    """Neighbouring inputs of an output that share a scale and a zero point."""
    source_bits: int = 24
    """8: the source may be rounded to 8 bits; 24: it may not, but for what f32 rounds."""

    def compute(
        self,
        *,
        src: Reals,
        weights: Reals,
        scale: Reals,
        zero_points: Reals | None = None,
        bias: Reals | None = None,
    ) -> Reals:
        """The weights as they are meant, and NumPy's product."""
        inputs = weights.shape[1]
        half = 1 << (self.inputs[1].dtype.bits - 1)
        zeros = np.full_like(scale, half) if zero_points is None else zero_points
        scales, points = (np.repeat(one, self.block, axis=1)[:, :inputs] for one in (scale, zeros))
        made: Reals = src @ ((weights - points) * scales).T
        return made if bias is None else made + bias

    @property
    def flops(self) -> int:
        """Two for each product."""
        return 2 * self.inputs[0].dims[0] * prod(self.inputs[1].dims)
