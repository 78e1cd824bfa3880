"""What the elements that differ have in common: where they are, and how their values went wrong.

Two kinds of sentences. *Where*: if the indices that differ are all combinations of some indices of each
axis, then each axis says which: ``b = 16 to 31 (b//16 = 1)``, ``c odd``, ``all of d``. If they are one piece
of memory, the bytes are said, too. *How*: the bytes of each element are swapped, all values are zero, they
are what was expected times a number, or they are there but some bytes further on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.inspecting.whereabouts import Integers, Places, Tokens, Whereabouts
from relayout.layout.layout import Digit, Layout

__all__ = ["how_values_differ", "where_they_differ"]

COMPARED = 1 << 16  # elements whose values are looked at
ROUNDED = 4  # units in the last place that a difference may be to be called rounding
ALMOST = 0.999  # of values that must agree with a relation between the two sides
NO_PATTERN = "no pattern along the axes"
LISTED = 4  # numbers that are written out


def where_they_differ(mask: NDArray[np.bool_], layout: Layout, names: Sequence[str]) -> list[str]:
    """Sentences on where elements differ.

    Parameters
    ----------
    mask : array of bool, of the logical shape
        Which elements differ.
    layout : Layout
        Where they lie.
    names : sequence of str
        What the axes are called.

    Examples
    --------
    >>> mask = np.zeros((1, 32, 2, 2), bool)
    >>> mask[:, 16:] = True
    >>> where_they_differ(mask, Layout((1, 32, 2, 2), "nChw16c"), "nchw")
    ['c = 16 to 31, the tail: c//16 = 1; all of n, h, w']
    """
    count = int(np.count_nonzero(mask))
    if count == mask.size:
        return ["every element"]
    if not count:
        return []
    axes = range(mask.ndim)
    sets = [np.flatnonzero(mask.any(axis=tuple(b for b in axes if b != a))) for a in axes]
    product = 1
    for chosen in sets:
        product *= len(chosen)
    if count == 1:
        return ["one element"]
    if product == count:
        return [_box(sets, mask.shape, layout, names)]
    missing = mask.size - count
    if missing <= mask.size // 8:
        rest = where_they_differ(~mask, layout, names)
        if rest and not rest[0].startswith(NO_PATTERN):
            return [f"all but {rest[0]}"]
    return [f"{NO_PATTERN}: {100 * count / mask.size:.3g} % of the elements"]


def _box(sets: Sequence[Integers], sizes: Sequence[int], layout: Layout, names: Sequence[str]) -> str:
    """All combinations of some indices, an axis at a time."""
    said, whole = [], []
    for axis, (chosen, size, name) in enumerate(zip(sets, sizes, names, strict=True)):
        if len(chosen) == size:
            whole.append(name)
            continue
        ladder = layout.ladders[layout.terms.index((axis,))] if (axis,) in layout.terms else ()
        by_digit = _by_digit(chosen, size, name, ladder)
        spelled = _spelled(chosen, size, name)
        said.append(f"{spelled}: {by_digit}" if by_digit and by_digit != spelled else spelled)
    return "; ".join([*said, *([f"all of {', '.join(whole)}"] if whole else [])])


def _spelled(chosen: Integers, size: int, name: str) -> str:
    """Some indices of an axis, in few words."""
    first, last = int(chosen[0]), int(chosen[-1])
    if len(chosen) == 1:
        return f"{name} = {first}"
    steps = np.unique(np.diff(chosen))
    if len(steps) == 1 and steps[0] == 1:
        if last == size - 1 and first:
            return f"{name} = {first} to {last}, the tail"
        return f"{name} = {first} to {last}"
    if len(steps) == 1 and last + steps[0] >= size and first < steps[0]:
        if steps[0] == 2:
            return f"every second {name} ({first}, {first + 2}, ...)"
        return f"every {int(steps[0])}th {name} from {first} on"
    listed = ", ".join(str(int(k)) for k in chosen[:LISTED])
    return f"{len(chosen)} of {size} {name} ({listed}{', ...' if len(chosen) > LISTED else ''})"


def _by_digit(chosen: Integers, size: int, name: str, ladder: Sequence[Digit]) -> str:
    """The same indices as one value of one digit of a blocked axis; empty where that does not say it."""
    if len(ladder) < 2:
        return ""
    for level, (weight, extent, _) in enumerate(ladder):
        numbers = np.arange(size) // weight % extent
        values = np.unique(numbers[chosen])
        if len(values) < extent and np.array_equal(np.flatnonzero(np.isin(numbers, values)), chosen):
            over = f"//{weight}" if weight > 1 else ""
            within = f"%{extent}" if level else ""
            return _spelled(values, extent, f"{name}{over}{within}")
    return ""


def how_values_differ(
    expected: NDArray[Any], found: NDArray[Any], values: Tokens, where: Whereabouts, places: Places
) -> list[str]:
    """Sentences on the values of elements that differ.

    Parameters
    ----------
    expected, found : array
        The two values of each, in the data type of the buffer; 4-bit integers one a byte.
    values : array of unsigned integers
        The expected ones as bits.
    where : Whereabouts
        The memory.
    places : array of int
        Where each of them should lie.
    """
    few = slice(0, COMPARED)
    expected, found = expected[few], found[few]
    said = []
    one, two = _numbers(expected), _numbers(found)
    with np.errstate(all="ignore"):
        if not two.any():
            said.append("zeros in place of all of them")
        elif np.isnan(two).all():
            said.append("NaN in place of all of them")
        elif (found == found[0]).all() and len(found) > 1:
            same = str(int(found[0])) if found.dtype.kind in "iu" else f"{two[0]:.9g}"
            said.append(f"{same} in place of all of them")
        elif expected.dtype.itemsize > 1 and _swapped(expected, found, two):
            said.append("the bytes of each element are swapped")
        else:
            said += _related(one, two, expected)
    shift = _shift(values[few], where, places[few])
    if shift and not said:
        said.append(
            f"the expected values lie {abs(shift):,} elements "
            f"({abs(shift) * expected.dtype.itemsize:,} bytes) {'further on' if shift > 0 else 'earlier'}"
        )
    return said


def _related(one: NDArray[np.float64], two: NDArray[np.float64], kind: NDArray[Any]) -> list[str]:
    """Whether the values that were found are a function of those that were expected."""
    finite = np.isfinite(one) & np.isfinite(two)
    if np.count_nonzero(finite) < max(2, ALMOST * len(one)):
        bad = np.count_nonzero(~np.isfinite(two))
        return [f"{bad:,} of them are NaN or infinite"] if bad else []
    one, two = one[finite], two[finite]
    if kind.dtype.kind not in "iu":
        unit = np.maximum(np.abs(np.spacing(one.astype(kind.dtype)).astype(np.float64)), 0)
        if _agree_all(np.abs(one - two) <= ROUNDED * unit):
            return [f"rounding: the largest difference is {np.max(np.abs(one - two)):.3g}"]
    if _agree(one, -two):
        return ["the sign is the other"]
    divided = one != 0
    if np.count_nonzero(divided) > 1:
        ratio = float(np.median(two[divided] / one[divided]))
        if ratio and _agree_all(np.abs(two - ratio * one) <= 1e-3 * np.abs(two) + 1e-30):
            return [f"scaled: each is {ratio:.6g} times what was expected"]
    apart = float(np.median(two - one))
    if apart and _agree_all(np.abs(two - one - apart) <= 1e-3 * abs(apart)):
        return [f"{abs(apart):.6g} too {'large' if apart > 0 else 'small'}, each of them"]
    return []


def _swapped(expected: NDArray[Any], found: NDArray[Any], numbers: NDArray[np.float64]) -> bool:
    """Whether the bytes are in the other order; all NaNs are one, as they are in what was found."""
    other = expected.view(f"u{expected.dtype.itemsize}").byteswap()
    equal = other == found.view(f"u{found.dtype.itemsize}")
    nan = np.isnan(numbers)
    if nan.any():
        equal |= nan & np.isnan(_numbers(other.view(expected.dtype)))
    return _agree_all(equal)


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.astype(np.float64)


def _agree(one: NDArray[Any], two: NDArray[Any]) -> bool:
    return _agree_all(one == two)


def _agree_all(equal: NDArray[np.bool_]) -> bool:
    return bool(np.count_nonzero(equal) >= ALMOST * equal.size)


def _shift(values: Tokens, where: Whereabouts, places: Places) -> int:
    """How many elements further on the values lie that occur once; 0 where that is not one number."""
    lie = where.find(values)
    known = lie >= 0
    if np.count_nonzero(known) < 2:
        return 0
    shifts, counts = np.unique(lie[known] - places[known], return_counts=True)
    most = int(np.argmax(counts))
    return int(shifts[most]) if counts[most] >= ALMOST * np.count_nonzero(known) else 0
