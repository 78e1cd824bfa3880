"""Gradients of pooling: each window hands what it got to its elements, or to the largest of them."""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.ops.pooling import REDUCED_BY
from relayout.ops.windows import taps_of
from relayout.records import dataclass

__all__ = ["PoolingBackward"]


@dataclass(frozen=True, kw_only=True)
class PoolingBackward(Operation):
    """The sum over the windows that an element is in, or over those whose ``workspace`` says that it won."""

    kind = "pooling backward"
    algorithm: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def divisor(self) -> str:
        """What results of the forward pass were divided by; see :data:`~relayout.ops.pooling.REDUCED_BY`."""
        return REDUCED_BY[self.algorithm][1]

    @property
    def flops(self) -> int:
        """An addition for each tap; what falls into the padding counts."""
        return prod(self.inputs[0].dims) * prod(self.kernel)

    def compute(self, *, diff_dst: Reals, workspace: Reals | None = None) -> Reals:
        """Tap by tap."""
        dims = self.outputs[0].dims
        sizes = [n + front + behind for n, (front, behind) in zip(dims[2:], self.padding, strict=True)]
        found = np.zeros((*dims[:2], *sizes))
        inside = tuple(slice(front, front + n) for n, (front, _) in zip(dims[2:], self.padding, strict=True))
        within = np.zeros(sizes)
        within[inside] = 1
        taps = [at for _, at in taps_of(self.kernel, diff_dst.shape[2:], self.strides, self.dilation)]
        if self.divisor == "elements":
            diff_dst = diff_dst / sum(within[at] for at in taps)
        elif self.divisor:
            diff_dst = diff_dst / len(taps)
        for number, at in enumerate(taps):
            found[at] += diff_dst if workspace is None else np.where(workspace == number, diff_dst, 0)
        elements = (slice(None), slice(None), *inside)
        return np.ascontiguousarray(found[elements])
