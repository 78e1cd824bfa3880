"""Few combinations of parameters, among which every pair is.

A test with five parameters of four values each has 1024 cases, and of a mistake in one of them nearly all
tell the same. Most mistakes depend on one value or on two that meet, so sixteen or twenty well-chosen cases
find them as well::

    @pytest.mark.parametrize(("kind", "format", "size"), covering(("f32", "s8"), ("nchw", "nhwc"), (1, 7, 9)))

has six cases instead of twelve: each data type meets each format and each size, and each format each size.
They are the same ones every time. ``strength=1`` asks only that each value appears, ``strength=3`` that any
three do. Where a test tries the same list of things in each of its cases, :func:`share` gives every case some
of them. All combinations are tried where all random cases are: ``make test THOROUGH=1``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from random import randrange
from typing import Any, TypeVar

from strategies import THOROUGH

__all__ = ["covering", "share", "turn"]

T = TypeVar("T")


def covering(
    *axes: Iterable[Any], strength: int = 2, thorough: bool = THOROUGH >= 1
) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis, such that any ``strength`` axes have all of theirs among them.

    They come in the order of :func:`itertools.product`, which ``thorough`` is.
    """
    values = [list(axis) for axis in axes]
    if thorough or strength >= len(values):
        return list(product(*values))
    left = {
        tuple(zip(places, chosen, strict=True)): None  # ordered, as a set is not: the same in every process
        for places in combinations(range(len(values)), strength)
        for chosen in product(*(range(len(values[place])) for place in places))
    }
    used = [[0] * len(axis) for axis in values]
    found = []
    while left:
        case = dict(next(iter(left)))
        for place in [place for place in range(len(values)) if place not in case]:
            case[place] = max(
                range(len(values[place])),
                key=lambda at, place=place: (_gained(left, case, place, at, strength), -used[place][at]),
            )
        for parts in combinations(sorted(case.items()), strength):
            left.pop(parts, None)
        for place, at in case.items():
            used[place][at] += 1
        found.append(tuple(case[place] for place in range(len(values))))
    return [tuple(axis[at] for axis, at in zip(values, case, strict=True)) for case in sorted(found)]


def _gained(left: dict[Any, None], case: dict[int, int], place: int, at: int, strength: int) -> int:
    """How many combinations that are still missing a case would have with this value, too."""
    others = combinations(case.items(), strength - 1)
    return sum(tuple(sorted((*parts, (place, at)))) in left for parts in others)


def share(things: Sequence[T], number: int, of: int = 2, thorough: bool = THOROUGH >= 1) -> Sequence[T]:
    """Every other one of some things, or every third: ``number``, another one in each case, says which."""
    return things if thorough else things[number % of :: of]


def turn() -> int:
    """A number that is another one each time that tests are run, and the same in all processes that run them.

    ``RELAYOUT_TURN`` is set by the first process that asks, or by whoever wants the same cases again.
    """
    if not os.environ.get("RELAYOUT_TURN", "").isdecimal():
        os.environ["RELAYOUT_TURN"] = str(randrange(100))
    return int(os.environ["RELAYOUT_TURN"])
