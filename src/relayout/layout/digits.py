"""The value of a number in digits: one definition for ints and for arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from relayout.layout.layout import Digit

__all__ = ["digit_sum"]

_Number = TypeVar("_Number", bound=Any)


def digit_sum(ladder: Sequence[Digit], number: _Number) -> _Number:
    """What the digits of one term add to an offset: the sum of ``number // weight % extent * stride``.

    Parameters
    ----------
    ladder : sequence of Digit
        Most significant first. The first digit is open: it counts on without end, also below zero.
    number : int or ndarray of int64
        One number of the term, or many.

    Returns
    -------
    int or ndarray
        In elements, ``offset0`` left out.

    Examples
    --------
    >>> from relayout.layout.layout import Digit
    >>> digit_sum((Digit(4, 3, 100), Digit(1, 4, 1)), 6)
    102
    """
    total: Any = None
    for level, (weight, extent, stride) in enumerate(ladder):
        part = number if weight == 1 else number // weight
        if level:
            if extent == 1:
                continue
            part = part % extent
        part = part * stride
        total = part if total is None else total + part
    made: _Number = number * 0 if total is None else total
    return made
