"""Normal forms: when are two layouts the same function, and which digits does a table of offsets have?

Many digit lists compute one function. ``nChw8c`` with 8 channels has a digit ``c//8`` that only ever is 0; a block of 16 may
be written as 4 times 4; a last digit may count further than the size lets it. The normal form of a term removes all three
liberties:

1. *trim*: digits that stay 0 are dropped, and the first digit counts no further than the size demands;
2. *merge*: a digit whose stride continues the one below it (stride = stride below x extent below) becomes one with it;
3. *unfuse*: fused axes are taken apart where the digits allow it, so that ``y * X + x`` with plain strides is two axes.

What is left is unique, because it can be read off the function: the least significant digit ends where the offsets stop to
be an arithmetic progression, and so on upwards. :func:`fit` does exactly that with a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from relayout.layout.layout import Digit, Layout

if TYPE_CHECKING:
    Ladder = tuple[Digit, ...]

__all__ = ["canonical", "fit", "is_injective", "merge", "same_bytes", "split_ladder", "trim"]

COUNTED = 1 << 22  # up to so many elements are counted one by one where a proof is not at hand


def trim(ladder: Sequence[Digit], size: int) -> Ladder:
    """Drop the digits that stay 0 for numbers below ``size``, and cut the first of the others to what it reaches."""
    kept = [d for d in ladder if d.weight < size and d.extent > 1]
    if kept:
        first = kept[0]
        kept[0] = Digit(first.weight, min(first.extent, -(-size // first.weight)), first.stride)
    return tuple(kept)


def merge(ladder: Sequence[Digit]) -> Ladder:
    """Join neighbouring digits of which the upper continues the lower one, and drop those of extent 1."""
    out: list[Digit] = []
    for digit in reversed(ladder):
        if digit.extent == 1:
            continue
        if out and digit.stride == out[-1].stride * out[-1].extent:
            below = out.pop()
            digit = Digit(below.weight, below.extent * digit.extent, below.stride)
        out.append(digit)
    return tuple(reversed(out))


def split_ladder(ladder: Sequence[Digit], width: int) -> tuple[Ladder, Ladder] | None:
    """Cut a term ``y * width + x`` into the digits of y and those of x; None where a digit straddles the two.

    >>> split_ladder((Digit(1, 12, 5),), 4)
    ((Digit(weight=1, extent=3, stride=20),), (Digit(weight=1, extent=4, stride=5),))
    """
    upper: list[Digit] = []
    lower: list[Digit] = []
    for level, (weight, extent, stride) in enumerate(ladder):
        if weight >= width:
            if weight % width:
                return None
            upper.append(Digit(weight // width, extent, stride))
        elif weight * extent <= width:
            lower.append(Digit(weight, extent, stride))
        else:
            within, rest = divmod(width, weight)
            if rest or (extent % within and level):
                return None
            upper.append(Digit(1, -(-extent // within), stride * within))
            lower.append(Digit(weight, within, stride))
    if prod(d.extent for d in lower) < width and upper:
        return None  # x would end before its digits start again
    return tuple(upper), tuple(lower)


def canonical(layout: Layout, padded: bool = False) -> tuple[tuple[tuple[int, ...], Ladder], ...]:
    """The normal form: for each term its axes and digits; terms without digits (all sizes 1) are left out.

    ``padded`` takes the room of the layout instead of its logical size. Two layouts of the same dims and ``offset0`` place all
    elements alike if and only if their normal forms are equal.
    """
    out: list[tuple[tuple[int, ...], Ladder]] = []
    for t, term in enumerate(layout.terms):
        size = layout.padded[t] if padded else layout.term_size(t)
        axes = tuple(a for a in term if layout.dims[a] != 1)
        ladder = merge(trim(layout.ladders[t], size))
        while len(axes) > 1:  # take the last axis off, as long as the digits allow it
            cut = split_ladder(ladder, layout.dims[axes[-1]])
            if cut is None:
                break
            ladder, lower = cut
            out.append(((axes[-1],), merge(lower)))
            axes, ladder = axes[:-1], merge(ladder)
        out.append((axes, ladder))
    return tuple(sorted((axes, ladder) for axes, ladder in out if ladder))


def same_bytes(a: Layout, b: Layout) -> bool:
    """Whether two layouts put every logical element, and the padding, at the same offset."""
    if a.dims != b.dims:
        return False
    if 0 in a.dims:
        return True
    if a.offset0 != b.offset0 or canonical(a) != canonical(b):
        return False
    if not (a.has_padding or b.has_padding):
        return True
    if prod(a.padded) != prod(b.padded):
        return False
    # The padding is a set of places; which axis it is counted on does not matter.
    return canonical(a, padded=True) == canonical(b, padded=True) or _padding_places(a) == _padding_places(b)


def _padding_places(layout: Layout) -> frozenset[int]:
    low, high = layout.bounds()
    return frozenset(k for k in range(low, high + 1) if layout.is_padding(k))


def fit(table: Sequence[int]) -> Ladder | None:
    """Find the digits of a function given by its values at 0, 1, 2, ...; None where digits can't express it.

    >>> fit([0, 1, 10, 11, 20])
    (Digit(weight=2, extent=3, stride=10), Digit(weight=1, extent=2, stride=1))
    >>> fit([0, 1, 5, 4]) is None
    True
    """
    digits: list[Digit] = []
    values = [v - table[0] for v in table]
    weight = 1
    while len(values) > 1:
        stride = values[1]
        run = 2
        while run < len(values) and values[run] == run * stride:
            run += 1
        for start in range(run, len(values), run):
            base = values[start]
            if any(values[k] - base != (k - start) * stride for k in range(start, min(start + run, len(values)))):
                return None
        digits.append(Digit(weight, run, stride))
        values = values[::run]
        weight *= run
    return tuple(reversed(digits))


def is_injective(layout: Layout) -> bool:
    """Whether no two elements share a place."""
    if layout.size <= 1:
        return True
    digits = [(t, d) for t, (_, ladder) in enumerate(canonical(layout)) for d in ladder]
    digits.sort(key=lambda item: abs(item[1].stride))
    below = 0
    for _, (_, extent, stride) in digits:
        if stride == 0:
            return False  # a broadcast axis; the normal form has no digits of extent 1
        if abs(stride) <= below:
            break  # not nested: it may still be injective
        below += abs(stride) * (extent - 1)
    else:
        return True
    if layout.size <= COUNTED:
        return _all_different(layout)
    return not _collision(layout)


def _all_different(layout: Layout) -> bool:
    import numpy as np

    from relayout.layout.vectorised import term_offsets

    places = np.zeros(1, dtype=np.int64)
    for t, ladder in enumerate(layout.ladders):
        numbers = np.arange(layout.term_size(t), dtype=np.int64)
        places = (places[:, None] + term_offsets(ladder, numbers)).ravel()
    return len(np.unique(places)) == len(places)


def _collision(layout: Layout) -> bool:
    """Search for two elements in one place: a non-zero difference of digits that moves nowhere.

    If such a difference exists between any two elements, it exists between the two smallest that differ so, which is what is
    compared with the sizes at the end.
    """
    forms = canonical(layout)
    sizes = [prod(layout.dims[a] for a in axes) for axes, _ in forms]
    steps = sorted(((d, t) for t, (_, ladder) in enumerate(forms) for d in ladder), key=lambda s: -abs(s[0].stride))
    below = [0] * (len(steps) + 1)
    for k in range(len(steps) - 1, -1, -1):
        below[k] = below[k + 1] + abs(steps[k][0].stride) * (steps[k][0].extent - 1)

    def descend(k: int, rest: int, one: tuple[int, ...], two: tuple[int, ...], differ: bool) -> bool:
        if abs(rest) > below[k]:
            return False
        if k == len(steps):
            return differ and all(n < s for n, s in zip(one, sizes, strict=True)) and all(
                n < s for n, s in zip(two, sizes, strict=True)
            )
        (weight, extent, stride), term = steps[k]
        low, high = 1 - extent, extent - 1
        if stride:
            ends = sorted(((rest - below[k + 1]) / stride, (rest + below[k + 1]) / stride))
            low, high = max(low, int(ends[0]) - 1), min(high, int(ends[1]) + 1)
        for value in range(low, high + 1):
            first, second = list(one), list(two)
            first[term] += max(0, value) * weight
            second[term] += max(0, -value) * weight
            if descend(k + 1, rest - value * stride, tuple(first), tuple(second), differ or value != 0):
                return True
        return False

    zero = (0,) * len(forms)
    return descend(0, 0, zero, zero, False)
