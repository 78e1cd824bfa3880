"""Sizes along spatial axes, as users write them: one number for all axes, or one for each.

Convolution and pooling take strides, dilations and padding in the same ways, and refuse the same mistakes in
the same words, each in its own name:

>>> for_each_axis("convolution", 2, 3, "strides", least=1)
(2, 2, 2)
>>> in_front_and_behind("convolution", (1, (0, 2)), 2)
((1, 1), (0, 2))
>>> for_each_axis("pooling", (3, 0), 2, "kernel", least=1)
Traceback (most recent call last):
    ...
relayout.errors.LayoutError: pooling: kernel (3, 0) must be at least 1

A trap: with two axes the padding ``(0, 2)`` is a number for each of them, 0 around the one and 2 around the
other. In front of and behind both it is ``((0, 2), (0, 2))``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

from relayout.errors import LayoutError
from relayout.layout.layout import whole_number

__all__ = ["for_each_axis", "in_front_and_behind"]


def for_each_axis(
    kind: str, given: SupportsIndex | Sequence[SupportsIndex], count: int, name: str, least: int
) -> tuple[int, ...]:
    """One number for each of ``count`` spatial axes.

    Parameters
    ----------
    kind : str
        The primitive, for errors.
    given : int or sequence of int
        A number for all axes, or one for each.
    count : int
        How many axes there are, at least 1.
    name : str
        What the numbers are, for errors.
    least : int
        The smallest that is allowed.

    Raises
    ------
    LayoutError
        It is no whole number, and no such sequence of them; or one of them is too small.
    """
    several = _listed(given, count)
    if several is None or len(several) != count:
        raise LayoutError(f"{kind}: {name} {given} must be a whole number, or {count} of them")
    numbers = tuple(whole_number(value, f"{kind}: {name}") for value in several)
    if min(numbers) < least:
        raise LayoutError(f"{kind}: {name} {given} must be at least {least}")
    return numbers


def in_front_and_behind(
    kind: str, given: SupportsIndex | Sequence[SupportsIndex | Sequence[SupportsIndex]], count: int
) -> tuple[tuple[int, int], ...]:
    """The elements of padding in front of and behind each of ``count`` spatial axes.

    Parameters
    ----------
    kind : str
        The primitive, for errors.
    given : int or sequence
        A number for all axes, or for each axis a number or a pair (in front, behind).
    count : int
        How many axes there are, at least 1.

    Raises
    ------
    LayoutError
        It is nothing of the kind, or a number is negative.
    """
    several = _listed(given, count)
    if several is None or len(several) != count:
        raise LayoutError(
            f"{kind}: padding {given} must be a whole number, or one or a pair for each of {count} axes"
        )
    pairs = []
    for one in several:
        pair = _listed(one, 2)
        if pair is None or len(pair) != 2:
            raise LayoutError(f"{kind}: padding {one} must be a whole number or a pair")
        front, behind = (whole_number(value, f"{kind}: padding") for value in pair)
        pairs.append((front, behind))
    if min(min(pair) for pair in pairs) < 0:
        raise LayoutError(f"{kind}: padding {given} must not be negative")
    return tuple(pairs)


def _listed(given: object, count: int) -> list[Any] | None:
    """A number so many times, or what a sequence holds; None where it is neither."""
    if type(given) is int or (type(given) is not tuple and isinstance(given, SupportsIndex)):
        return [given] * count
    return list(given) if isinstance(given, Iterable) else None
