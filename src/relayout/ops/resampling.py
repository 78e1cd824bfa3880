"""Resampling: spatial axes of another size, by the nearest element or between the two nearest.

Element o of n, of m before, lies at ``(o + 1/2) m / n - 1/2`` among them: both axes reach from -1/2 to the
last index and a half. So it is in oneDNN, in PyTorch without ``align_corners`` (and with ``nearest-exact``),
and in ONNX with ``half_pixel``. Beyond the first and the last element these are repeated. Each axis is a
sparse matrix (:func:`matrix`), and a resampling is the product along all spatial axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation

__all__ = ["ALGORITHMS", "Resampling", "matrix", "places", "product_along"]

ALGORITHMS = ("nearest", "linear")


def places(algorithm: str, size: int, out: int) -> list[list[tuple[int, float]]]:
    """For each element of the result those that it is made of, and their weights.

    Places are fractions, so that no rounding decides which element is nearest; of two that are as near the
    second is taken.

    >>> places("linear", 2, 4)
    [[(0, 1.0)], [(0, 0.75), (1, 0.25)], [(0, 0.25), (1, 0.75)], [(1, 1.0)]]
    >>> places("nearest", 4, 2)
    [[(1, 1.0)], [(3, 1.0)]]
    """
    found: list[list[tuple[int, float]]] = []
    for o in range(out):
        if algorithm == "nearest":
            found.append([((2 * o + 1) * size // (2 * out), 1.0)])
            continue
        at = min(max(Fraction((2 * o + 1) * size - out, 2 * out), Fraction(0)), Fraction(size - 1))
        left = int(at)
        rest = at - left
        found.append([(left, float(1 - rest)), (left + 1, float(rest))] if rest else [(left, 1.0)])
    return found


def matrix(algorithm: str, size: int, out: int) -> Reals:
    """An axis as a matrix, a row for each element of the result.

    >>> matrix("linear", 2, 3).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    found = np.zeros((out, size))
    for o, several in enumerate(places(algorithm, size, out)):
        for place, weight in several:
            found[o, place] = weight
    return found


def product_along(x: Reals, axis: int, by: Reals) -> Reals:
    """The product of a matrix and the elements along an axis."""
    return np.moveaxis(np.tensordot(by, x, (1, axis)), 0, axis)


@dataclass(frozen=True, kw_only=True)
class Resampling(Operation):
    """All spatial axes of a source, of the sizes that the result has."""

    kind = "resampling"
    algorithm: str

    def compute(self, *, src: Reals) -> Reals:
        """Axis by axis."""
        out = self.outputs[0].dims
        matrices = {k: matrix(self.algorithm, src.shape[k], out[k]) for k in range(2, len(out))}
        return reduce(lambda x, k: product_along(x, k, matrices[k]), matrices, src)

    @property
    def flops(self) -> int:
        """A product and a sum for each neighbour; of the nearest element none."""
        many = 2 ** len(self.outputs[0].dims[2:])
        return 2 * many * prod(self.outputs[0].dims) if self.algorithm == "linear" else 0
