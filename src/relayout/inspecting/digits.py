"""The digits of a number from the places of some of its values.

Along an axis the place of element ``k`` is ``start + sum of (k // weight % extent * stride)``. With all
places known, :func:`relayout.layout.canonical.fit` reads the digits off. Here only some are: values that
repeat have no place of their own. What is known is enough as long as it pins down every digit:

1. *stride*: neighbours ``k - 1, k`` lie one stride apart, unless a carry lies between them;
2. *extent*: carries happen at multiples of the extent, so it divides every ``k`` with another step;
3. what is left after the digit, ``place - k % extent * stride``, is one number for each ``k // extent``: the
   same question again, for the number that the digits above count.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

import numpy as np

from relayout.inspecting.whereabouts import Integers, Places
from relayout.layout.layout import Digit

__all__ = ["digits_of"]

TRIED = 3  # strides, the most frequent steps first
MOST_STEPS = 48  # different steps between neighbours: each digit makes one, and junk as many as there are
FEW = 8  # steps: of more than that, half are equal at least
LONGEST_SEARCH = 1 << 6  # extents that are tried where no carry was seen


def digits_of(numbers: Integers, places: Places, size: int) -> tuple[Digit, ...] | None:
    """The digits of a number below ``size``, the most significant first; None where digits can't be found.

    Parameters
    ----------
    numbers : array of int, rising
        The values whose places are known.
    places : array of int
        Their places, up to a common offset.
    size : int
        How many values the number has.

    Examples
    --------
    >>> import numpy as np
    >>> known = np.array([0, 1, 3, 4, 5])  # 2 is not
    >>> digits_of(known, np.array([0, 1, 11, 20, 21]), 6)
    (Digit(weight=2, extent=3, stride=10), Digit(weight=1, extent=2, stride=1))
    """
    if size <= 1:
        return ()
    if len(numbers) < 2:
        return None
    consecutive = np.flatnonzero(np.diff(numbers) == 1)
    if not len(consecutive):
        return None
    steps = places[consecutive + 1] - places[consecutive]
    distinct, counts = np.unique(steps, return_counts=True)
    if len(distinct) > MOST_STEPS or (len(steps) >= FEW and len(distinct) > len(steps) // 2 + 1):
        return None
    candidates = [int(step) for step in distinct[np.argsort(-counts, kind="stable")][:TRIED]]
    if numbers[0] == 0 and numbers[1] == 1:  # no carry can lie between these two
        candidates = [int(places[1] - places[0])]
    for stride in candidates:
        if np.array_equal(places - places[0], (numbers - numbers[0]) * stride):
            return (Digit(1, size, stride),)
        carries = numbers[consecutive + 1][steps != stride]
        for extent in _extents(carries, size):
            rest = places - numbers % extent * stride
            above, first = np.unique(numbers // extent, return_index=True)
            if not np.array_equal(rest, np.repeat(rest[first], np.diff([*first, len(rest)]))):
                continue
            upper = digits_of(above, rest[first], -(-size // extent))
            if upper is not None:
                raised = tuple(Digit(d.weight * extent, d.extent, d.stride) for d in upper)
                return (*raised, Digit(1, extent, stride))
    return None


def _extents(carries: Integers, size: int) -> Iterator[int]:
    """Extents that put carries there, the largest first."""
    if not len(carries):  # hidden where places are unknown
        yield from range(min(size - 1, LONGEST_SEARCH), 1, -1)
        return
    common = gcd(*(int(carry) for carry in np.unique(carries)))
    small = [d for d in range(1, int(common**0.5) + 1) if common % d == 0]
    for extent in sorted({*small, *(common // d for d in small)}, reverse=True):
        if 1 < extent < size:
            yield extent
