"""Resampling: spatial axes of another size, by the nearest element or between the two nearest.

Element o of n, of m before, lies at ``(o + 1/2) m / n - 1/2`` among them: both axes reach from -1/2 to the
last index and a half. So it is in oneDNN, in PyTorch without ``align_corners`` (and with ``nearest-exact``),
and in ONNX with ``half_pixel``. Beyond the first and the last element these are repeated. Each axis is a
sparse matrix, whose rows :func:`places` tells, and a resampling is the product along all spatial axes.

A result depends on the elements that it lies between and on no others: infinities and NaN spread to their
neighbours, and not along the whole axis, as the zeros of a dense matrix would spread them. Where a place is
that of an element, the result is that element, whatever is beside it. (PyTorch and ONNX Runtime add the
neighbour with weight 0 there, which makes NaN of an infinite one.)

Other rules than these, ONNX's corners and cubic splines among them, are other matrices: :class:`Matrices`
stands for them in the place of an algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from math import prod

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = [
    "ALGORITHMS",
    "Matrices",
    "Resampling",
    "Row",
    "combined_along",
    "matrices",
    "places",
    "transposed",
]

ALGORITHMS = ("nearest", "linear")

Row = Sequence[tuple[int, float]]
"""A row of a sparse matrix: the elements that one of the result is made of, and their weights."""


@dataclass(frozen=True)
class Matrices:
    """The rows of each spatial axis, given: for each element of the result what it is made of.

    >>> Matrices(((((0, 0.5), (1, 0.5)), ((2, 1.0),)),)).sizes  # of 3 elements two
    (2,)
    """

    axes: tuple[tuple[tuple[tuple[int, float], ...], ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The spatial sizes of the result."""
        return tuple(map(len, self.axes))

    def __str__(self) -> str:
        return "by given matrices"


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


def matrices(algorithm: str | Matrices, src: Sequence[int], dst: Sequence[int]) -> list[Sequence[Row]]:
    """The rows of all spatial axes, whose sizes are given."""
    if isinstance(algorithm, Matrices):
        return list(algorithm.axes)
    return [places(algorithm, n, m) for n, m in zip(src, dst, strict=True)]


def transposed(rows: Sequence[Row], size: int) -> list[tuple[tuple[int, float], ...]]:
    """The rows of the transposed matrix, of so many elements.

    >>> transposed([((0, 1.0),), ((0, 0.5), (1, 0.5))], 2)
    [((0, 1.0), (1, 0.5)), ((1, 0.5),)]
    """
    found: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for k, row in enumerate(rows):
        for place, number in row:
            found[place].append((k, number))
    return [tuple(row) for row in found]


def combined_along(x: Reals, axis: int, rows: Sequence[Row]) -> Reals:
    """The product of a sparse matrix and the elements along an axis; what is not in a row is not touched.

    >>> combined_along(np.array([1.0, 3.0, np.inf]), 0, [[(0, 1.0)], [(0, 0.5), (1, 0.5)], [(2, 1.0)]])
    array([ 1.,  2., inf])
    """
    source = np.moveaxis(x, axis, 0)
    found = np.zeros((len(rows), *source.shape[1:]), np.float64)
    with np.errstate(invalid="ignore"):  # infinities of both signs are NaN
        for term in range(max(map(len, rows), default=0)):
            which = [k for k, row in enumerate(rows) if len(row) > term]
            numbers = np.array([rows[k][term][1] for k in which])
            taken = source[[rows[k][term][0] for k in which]]
            found[which] += taken * numbers.reshape(-1, *[1] * (source.ndim - 1))
    return np.moveaxis(found, 0, axis)


@dataclass(frozen=True, kw_only=True)
class Resampling(Operation):
    """All spatial axes of a source, of the sizes that the result has."""

    kind = "resampling"
    algorithm: str | Matrices

    def compute(self, *, src: Reals) -> Reals:
        """Axis by axis."""
        several = enumerate(matrices(self.algorithm, src.shape[2:], self.outputs[0].dims[2:]), 2)
        return reduce(lambda x, one: combined_along(x, *one), several, src)

    @property
    def flops(self) -> int:
        """A product and a sum for each neighbour; of the nearest element none."""
        dims = self.outputs[0].dims
        if isinstance(self.algorithm, Matrices):
            return 2 * prod(dims[:2]) * prod(sum(map(len, rows)) for rows in self.algorithm.axes)
        return 2 * 2 ** len(dims[2:]) * prod(dims) if self.algorithm == "linear" else 0
