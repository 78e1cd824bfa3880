"""Reductions, running sums and running products."""

from __future__ import annotations

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


def _axes(r: Reverse) -> list[int]:
    """The axes that are reduced."""
    rank, axes = len(r.dims(r.x)), r.whole_numbers(1)
    if not axes:
        return [] if r.attributes["noop_with_empty_axes"] else list(range(rank))
    return sorted(k % rank for k in axes)


def _kept(r: Reverse, name: str) -> str:
    """A result with the reduced axes of size 1."""
    axes = _axes(r)
    return r.reshaped(name, [1 if k in axes else n for k, n in enumerate(r.dims(r.x))])


@gradient("ReduceSum")
def reduce_sum(r: Reverse) -> str:
    """To each element the gradient of the sum."""
    return r.broadcast(_kept(r, r.dy), r.x)


@gradient("ReduceMean")
def reduce_mean(r: Reverse) -> str:
    """To each element its share."""
    return r.broadcast(_kept(r, r.times(r.dy, 1 / max(1, r.size(_axes(r))))), r.x)


@gradient("ReduceSumSquare")
def reduce_sum_square(r: Reverse) -> str:
    """``2 x dy``."""
    return str(r("Mul", r.times(r.x, 2), _kept(r, r.dy)))


@gradient("ReduceL1")
def reduce_l1(r: Reverse) -> str:
    """``sign(x) dy``."""
    return str(r("Mul", r("Sign", r.x), _kept(r, r.dy)))


@gradient("ReduceL2")
def reduce_l2(r: Reverse) -> str:
    """``x dy / y``; 0 where all elements are."""
    share = r("Where", r("Equal", r.y, r.number(0)), r.number(0), r("Div", r.dy, r.y))
    return str(r("Mul", r.x, _kept(r, share)))


@gradient("ReduceLogSum")
def reduce_log_sum(r: Reverse) -> str:
    """``dy / sum(x)``."""
    return r.broadcast(_kept(r, r("Div", r.dy, r("Exp", r.y))), r.x)


@gradient("ReduceLogSumExp")
def reduce_log_sum_exp(r: Reverse) -> str:
    """``dy exp(x - y)``."""
    return str(r("Mul", r("Exp", r("Sub", r.x, _kept(r, r.y))), _kept(r, r.dy)))


@gradient("ReduceProd")
def reduce_prod(r: Reverse) -> str:
    """``dy`` times the product of the others: ``y / x``, or of an only 0 the product without it."""
    zero, one = r.number(0), r.number(1)
    empty = r("Equal", r.x, zero)
    rest = r("Where", empty, one, r.x)
    along = r.integers(*_axes(r))
    several = r("ReduceSum", r("Where", empty, one, zero), along, keepdims=1, noop_with_empty_axes=1)
    product = r("ReduceProd", rest, along, keepdims=1, noop_with_empty_axes=1)
    others = r("Where", r("Equal", several, r("Where", empty, one, zero)), r("Div", product, rest), zero)
    return str(r("Mul", _kept(r, r.dy), others))


@gradient("ReduceMax", "ReduceMin")
def reduce_extreme(r: Reverse) -> str:
    """In equal shares to those that are the result."""
    chosen = r("Where", r("Equal", r.x, _kept(r, r.y)), r.number(1), r.number(0))
    return str(r("Mul", chosen, r("Div", _kept(r, r.dy), r.sum(chosen, _axes(r), 1))))


@gradient("CumSum")
def cumulative_sum(r: Reverse) -> str:
    """The running sum from the other end."""
    if not r.input(1):
        raise LayoutError("CumSum needs an axis")
    way = {"exclusive": r.attributes["exclusive"], "reverse": 1 - r.attributes["reverse"]}
    return str(r("CumSum", r.dy, r.input(1), **way))


@gradient("CumProd")
def cumulative_product(r: Reverse) -> str:
    """The product of all that comes before an element, times what is made of it behind.

    With ``T[i, j]`` the product of what lies between the elements i and j, that is the sum of
    ``dy[j] T[i, j]``: nothing is divided, so elements may be 0.
    """
    (axis,) = (int(n) % len(r.dims(r.x)) for n in r.data(1).reshape(-1))
    exclusive, reverse = r.attributes["exclusive"], r.attributes["reverse"]
    dims = r.dims(r.x)
    order = (*(k for k in range(len(dims)) if k != axis), axis)
    x, dy = (str(r("Transpose", one, perm=order)) for one in (r.x, r.dy))
    size, front = dims[axis], [dims[k] for k in order[:-1]]
    last = r.integers(len(dims) - 1)
    before = r("CumProd", x, last, exclusive=1, reverse=reverse)
    i, j = np.indices((size, size))
    behind = j < i if reverse else j > i
    reached = behind if exclusive else behind | (i == j)
    rows = r("Where", r.writing.constant(behind), r.reshaped(x, (*front, 1, size)), r.number(1))
    between = r("CumProd", rows, r.integers(len(dims)), exclusive=exclusive, reverse=reverse)
    each = r("Mul", between, r.reshaped(dy, (*front, 1, size)))
    sums = r.sum(str(r("Where", r.writing.constant(reached), each, r.number(0))), [len(dims)])
    return str(r("Transpose", r("Mul", before, sums), perm=tuple(np.argsort(order).tolist())))
