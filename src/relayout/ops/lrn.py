"""Local response normalisation: elements by a power of the mean square of those around them.

::

    dst = src / (k + alpha mean of src^2)^beta        over a window of channels, or of pixels

The window has ``size`` channels, or ``size`` pixels along each spatial axis: (size - 1) // 2 in front of an
element, the rest behind it. What lies outside of the tensor counts as zero, in the mean, too: it is always
divided by the number of places of a window. So it is in oneDNN; ONNX has windows of channels alone.
"""

from __future__ import annotations

from math import prod
from typing import ClassVar

import numpy as np

from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["ALGORITHMS", "LRN", "mean_around", "normalised"]

ALGORITHMS = ("across_channels", "within_channel")
"""Whether windows are of channels or of pixels, by the names of oneDNN."""
FLOPS = 4  # of an element beside its window: a product, a sum, a power, a quotient


@dataclass(frozen=True, kw_only=True)
class LRN(Operation):
    """A local response normalisation."""

    kind = "lrn"
    usual: ClassVar = {
        "algorithm": "across_channels",
        "size": 5,
        "alpha": 9.999999747378752e-05,
        "beta": 0.75,
        "k": 1.0,
    }
    algorithm: str
    size: int
    alpha: float
    beta: float
    k: float

    @property
    def axes(self) -> tuple[int, ...]:
        """Those of a window."""
        rank = len(self.inputs[0].dims)
        return (1,) if self.algorithm == "across_channels" else tuple(range(2, rank))

    @property
    def flops(self) -> int:
        """Squares and sums of a window, and a power."""
        return (FLOPS + 2 * prod(self.size for _ in self.axes)) * prod(self.outputs[0].dims)

    def compute(self, *, src: Reals) -> Reals:
        """Window by window."""
        with np.errstate(all="ignore"):
            return src * (self.k + self.alpha * mean_around(src * src, self.axes, self.size)) ** -self.beta


def mean_around(x: Reals, axes: tuple[int, ...], size: int, turned: bool = False) -> Reals:
    """The mean over the window around each element; ``turned`` has the larger half in front.

    >>> mean_around(np.array([4.0, 8.0, 0.0]), (0,), 2), mean_around(np.array([4.0, 8.0, 0.0]), (0,), 2, True)
    (array([6., 4., 0.]), array([2., 6., 4.]))
    """
    front = size // 2 if turned else (size - 1) // 2
    for axis in axes:
        widths = [(front, size - 1 - front) if k == axis else (0, 0) for k in range(x.ndim)]
        padded, count = np.pad(x, widths), x.shape[axis]
        x = sum(np.take(padded, range(k, k + count), axis) for k in range(size)) / np.float64(size)
    return x


def normalised(alpha: float, beta: float, k: float) -> Expression:
    """What is written, of the source and the mean square: an expression."""
    w = Writing("f32", "f32")
    base = w.apply("fma", 1, w.number("f32", alpha), w.number("f32", k))
    w.apply("mul", 0, w.apply(Function("pow", 1.0, -beta), base))
    return w.written()
