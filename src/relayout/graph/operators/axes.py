"""Axes that count from either end, numbers that tensors hold, and arithmetic with dims that are not known."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any, TypeAlias

from relayout.errors import LayoutError
from relayout.graph.operators.registry import Array, Fact

__all__ = ["Dim", "Dims", "axes_in", "axis_in", "known_product", "numbers", "one_number", "only", "unknown"]

Dim: TypeAlias = "int | str | None"
Dims: TypeAlias = "tuple[Dim, ...]"


def axis_in(axis: int, rank: int) -> int:
    """An axis counted from the front.

    >>> axis_in(-1, 4)
    3
    >>> axis_in(4, 4)
    Traceback (most recent call last):
    relayout.errors.LayoutError: axis 4 is outside of -4 to 3
    """
    if not -rank <= axis < rank:
        raise LayoutError(f"axis {axis} is outside of {-rank} to {rank - 1}" if rank else "there are no axes")
    return int(axis) % rank


def axes_in(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Several axes counted from the front, none twice."""
    found = tuple(axis_in(axis, rank) for axis in axes)
    if len(set(found)) < len(found):
        raise LayoutError(f"axes {found} name one twice")
    return found


def only(x: Array, what: str) -> Any:
    """The one element of a tensor that is to have one."""
    if x.size != 1:
        raise LayoutError(f"{what} must be one number, got {x.size}")
    return x.item()


def numbers(fact: Fact | None) -> tuple[int, ...] | None:
    """The whole numbers of an input: none where it is left out, None where they are not known yet."""
    if fact is None:
        return ()
    return None if fact.data is None else tuple(int(n) for n in fact.data.reshape(-1))


def one_number(fact: Fact | None) -> int | None:
    """The whole number that an input is; None where it is not known yet."""
    found = numbers(fact)
    return found[0] if found is not None and len(found) == 1 else None


def unknown(fact: Fact | None) -> Dims | None:
    """As many unknown sizes as a vector of sizes has elements, where that is known.

    >>> unknown(Fact((3,)))
    (None, None, None)
    """
    if fact is None or fact.dims is None or len(fact.dims) != 1 or not isinstance(fact.dims[0], int):
        return None
    return (None,) * fact.dims[0]


def known_product(dims: Iterable[Dim]) -> Dim:
    """The product of sizes, as far as it is known.

    >>> known_product((2, 3)), known_product(("batch", 1)), known_product(("batch", 2))
    (6, 'batch', None)
    """
    sizes = [n for n in dims if n != 1]
    if all(isinstance(n, int) for n in sizes):
        return prod(n for n in sizes if isinstance(n, int))
    if any(n == 0 for n in sizes):
        return 0
    return sizes[0] if len(sizes) == 1 else None
