"""The reductions: how elements become one, and the machine code for it.

A :class:`Reduction` combines two elements at a time, in any order; what no element has been added to is its
*identity*. Pooling applies one to the elements of a window, :class:`relayout.primitives.Reduction` to those
along whole axes; both divide by a count afterwards where a mean is wanted.

=======  ===========  ==================================================================================
name     identity     of two elements
=======  ===========  ==================================================================================
``max``  -infinity    the larger; NaN if either is NaN, as in NumPy and PyTorch
``min``  infinity     the smaller, likewise
``sum``  0            the sum
``mul``  1            the product
=======  ===========  ==================================================================================

To add one is a line in :data:`REDUCTIONS`: its definition is a function of NumPy, its code a function that
combines vectors with typed instructions (:mod:`relayout.ir.builder`).

>>> REDUCTIONS["max"].define.reduce([3.0, 5.0, 4.0])
np.float64(5.0)
>>> REDUCTIONS["sum"].identity
0.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from relayout.records import dataclass, field

if TYPE_CHECKING:
    from relayout.ir.lanes import Lanes
    from relayout.ir.types import Value

__all__ = ["REDUCTIONS", "Reduction"]


@dataclass(frozen=True)
class Reduction:
    """How elements become one.

    Attributes
    ----------
    name : str
        What it is called.
    identity : float
        What changes no element that it is combined with.
    define : numpy.ufunc
        The definition, on two arrays.
    emit : callable
        The machine code: a vector, combined with further ones.
    repeats : bool
        Whether it makes no difference if an element is combined twice; such a reduction only picks, so that
        integers stay integers.
    onnx : str
        The operator of ONNX that is the same; empty: there is none. Tests compare the definition with it.
    """

    name: str
    identity: float
    define: np.ufunc = field(repr=False)
    emit: Callable[[Lanes, Value, Sequence[Value]], Value] = field(repr=False, compare=False)
    repeats: bool = False
    onnx: str = ""


def _largest(v: Lanes, first: Value, others: Sequence[Value]) -> Value:
    return v.picked("gt", first, others)


def _smallest(v: Lanes, first: Value, others: Sequence[Value]) -> Value:
    return v.picked("lt", first, others)


def _sum(v: Lanes, first: Value, others: Sequence[Value]) -> Value:
    """The others are added up first: they are fewer and smaller than what ``first`` holds already."""
    total, *more = others
    for other in more:
        total = v.added(total, other)
    return v.added(first, total)


def _product(v: Lanes, first: Value, others: Sequence[Value]) -> Value:
    total, *more = others
    for other in more:
        total = v.b.fmul(total, other)
    return v.b.fmul(first, total)


REDUCTIONS: Final[dict[str, Reduction]] = {
    one.name: one
    for one in (
        Reduction("max", -inf, np.maximum, _largest, True, "ReduceMax"),
        Reduction("min", inf, np.minimum, _smallest, True, "ReduceMin"),
        Reduction("sum", 0.0, np.add, _sum, onnx="ReduceSum"),
        Reduction("mul", 1.0, np.multiply, _product, onnx="ReduceProd"),
    )
}
"""All reductions, by name. An entry is all that one takes."""
