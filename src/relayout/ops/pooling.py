"""Pooling and reduction: how elements of windows, or along whole axes, become one.

Both combine elements by one of :mod:`~.reductions`. A window may stand on padding in part, and what that
means differs between systems. Here it is as in oneDNN:

===========================  =================================================================================
``max``                      padding is nothing: minus infinity, the identity of maxima
``average_include_padding``  padding counts as zeros: sums are divided by the elements of a whole window
``average_exclude_padding``  padding does not count: sums are divided by the elements that are there
===========================  =================================================================================

A maximum is NaN where one element is. Its place, the output ``workspace``, is the first tap of those that are
largest. The definitions go tap by tap: the first elements of all windows, then all second ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from math import prod

import numpy as np
from numpy.typing import NDArray

from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.ops.reductions import REDUCTIONS
from relayout.ops.windows import counts_of, taps_of
from relayout.records import dataclass

__all__ = ["NORMS", "REDUCED_BY", "Pooling", "Reduction", "definition", "places"]

REDUCED_BY = {
    "max": ("max", ""),
    "average_include_padding": ("sum", "window"),
    "average_exclude_padding": ("sum", "elements"),
}
"""The reduction of each algorithm of pooling, and what results are divided by: nothing, the elements of a
window, or those that are no padding."""


NORMS = ("norm_lp_max", "norm_lp_sum", "norm_lp_power_p_max", "norm_lp_power_p_sum")
"""Norms: the sum of ``|x|^p``, at least eps or with eps added; without ``power`` the root of that."""


@dataclass(frozen=True, kw_only=True)
class Pooling(Operation):
    """The largest or the average element of every window; with an output ``workspace`` also its place."""

    kind = "pooling"
    algorithm: str
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]

    @property
    def reduction(self) -> tuple[str, str]:
        """How elements are combined, and what results are divided by; see :data:`REDUCED_BY`."""
        return REDUCED_BY[self.algorithm]

    @property
    def flops(self) -> int:
        """Comparisons or additions; what falls into the padding counts."""
        return prod(self.outputs[0].dims) * prod(self.kernel)

    def compute(self, *, src: Reals) -> dict[str, Reals]:
        """Tap by tap."""
        windows = self.kernel, self.strides, self.padding, self.dilation
        found = {"dst": definition(src, self.algorithm, *windows)}
        if len(self.outputs) > 1:
            found["workspace"] = places(src, *windows)
        return found


@dataclass(frozen=True, kw_only=True)
class Reduction(Operation):
    """All elements along some axes become one; the axes stay, with one element."""

    kind = "reduction"
    algorithm: str
    axes: tuple[int, ...]
    p: float = 0.0
    eps: float = 0.0

    @property
    def reduction(self) -> tuple[str, str]:
        """How elements are combined, and what results are divided by: nothing, or their number."""
        if self.algorithm in NORMS:
            return "sum", ""
        return ("sum", "window") if self.algorithm == "mean" else (self.algorithm, "")

    @property
    def before(self) -> tuple[Function, ...]:
        """What becomes of each element first: of norms, its magnitude to the power of p."""
        if self.algorithm not in NORMS:
            return ()
        if self.p == 2:
            return (Function("square"),)
        return (Function("abs"), *([] if self.p == 1 else [Function("pow", 1, self.p)]))

    @property
    def after(self) -> tuple[Function, ...]:
        """What becomes of a result: of norms, eps is added or is the least, and perhaps the root is taken."""
        if self.algorithm not in NORMS:
            return ()
        least = self.algorithm.endswith("max")
        found = [Function("clip", self.eps, math.inf) if least else Function("linear", 1, self.eps)]
        if "power" not in self.algorithm and self.p != 1:
            found.append(Function("sqrt") if self.p == 2 else Function("pow", 1, 1 / self.p))
        return tuple(found)

    @property
    def flops(self) -> int:
        """Comparisons, additions or multiplications."""
        return prod(self.inputs[0].dims)

    def compute(self, *, src: Reals) -> Reals:
        """Axis by axis; norms by their formula."""
        if self.algorithm in NORMS:
            return self._norm(src)
        name, divisor = self.reduction
        define = REDUCTIONS[name].define
        with np.errstate(all="ignore"):
            found = reduce(lambda x, axis: define.reduce(x, axis, keepdims=True), self.axes, src)
        return np.asarray(found / (prod(src.shape[axis] for axis in self.axes) if divisor else 1))

    def _norm(self, src: Reals) -> Reals:
        with np.errstate(all="ignore"):
            powers = (np.abs(src) ** self.p).sum(self.axes, keepdims=True)
            least = self.algorithm.endswith("max")
            found = np.maximum(powers, self.eps) if least else powers + self.eps
            return np.asarray(found if "power" in self.algorithm else found ** (1 / self.p))


def definition(
    src: Reals,
    algorithm: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Reals:
    """The pooling of a logical array, tap by tap.

    >>> definition(np.array([[[1.0, 3.0, 2.0]]]), "average_exclude_padding", [2], [1], [(1, 0)], [1])
    array([[[1. , 2. , 2.5]]])
    """
    name, divisor = REDUCED_BY[algorithm]
    reduction = REDUCTIONS[name]
    taps = _taps(src, kernel, strides, padding, dilation, reduction.identity)
    value, inside = next(taps)
    out, count = value.copy(), inside.astype(np.float64)
    with np.errstate(invalid="ignore"):
        for value, inside in taps:
            out = reduction.define(out, value)
            count += inside
    if not divisor or 0 in out.shape:
        return np.asarray(out)
    return np.asarray(out / (count if divisor == "elements" else prod(kernel)))


def places(
    src: Reals,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Reals:
    """Which tap of each window is its maximum, tap by tap.

    >>> places(np.array([[[1.0, 3.0, 3.0]]]), [2], [1], [(1, 0)], [1])
    array([[[1., 1., 0.]]])
    """
    taps = _taps(src, kernel, strides, padding, dilation, -np.inf)
    value, inside = next(taps)
    best, found = value.copy(), np.where(inside & np.ones(value.shape, bool), 0.0, -1.0)
    for number, (value, inside) in enumerate(taps, 1):
        larger = (value > best) | (np.isnan(value) & ~np.isnan(best))
        better = inside & (larger | (found < 0))
        found[better], best = number, np.where(better, value, best)
    return found


def _taps(
    src: Reals,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    outside: float,
) -> Iterator[tuple[Reals, NDArray[np.bool_]]]:
    """For each tap of all windows, the elements there, and whether they are no padding."""
    pads = [(0, 0), (0, 0), *padding]
    padded = np.pad(src, pads, constant_values=outside)
    within = np.pad(np.ones((1, 1, *src.shape[2:]), bool), pads)
    sizes = counts_of(padded.shape[2:], kernel, strides, dilation)
    for _, at in taps_of(kernel, sizes, strides, dilation):
        yield padded[at], within[at]
