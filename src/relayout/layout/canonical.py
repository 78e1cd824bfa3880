"""Normal forms: when are two layouts the same function, and which digits does a table of offsets have?

Many digit lists compute one function. ``nChw8c`` with 8 channels has a digit ``c//8`` that only ever is 0; a
block of 16 may be written as 4 times 4; a last digit may count further than the size lets it. The normal form
of a term removes all three liberties:

1. *trim*: digits that stay 0 are dropped, and the first digit counts no further than the size demands;
2. *merge*: a digit whose stride continues the one below it (stride = stride below x extent below) becomes one
   with it;
3. *unfuse*: fused axes are taken apart where the digits allow it, so that ``y * X + x`` with plain strides is
   two axes.

:func:`normal` is the first two (and trims what merging has made longer).

What is left is unique, because it can be read off the function: the least significant digit ends where the
offsets stop to be an arithmetic progression, and so on upwards. :func:`fit` does exactly that with a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import TYPE_CHECKING

from relayout.forking import lock
from relayout.layout.digits import digit_sum
from relayout.layout.layout import Digit, Layout, values_towards

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ladder = tuple[Digit, ...]

__all__ = ["canonical", "fit", "is_injective", "merge", "normal", "same_bytes", "split_ladder", "trim"]

COUNTED = 1 << 22  # up to so many elements are counted one by one where a proof is not at hand


def trim(ladder: Sequence[Digit], size: int) -> Ladder:
    """Drop the digits that stay 0 for numbers below ``size``; cut the first of the others to what it reaches.

    >>> trim((Digit(8, 2, 80), Digit(4, 2, 40), Digit(1, 4, 1)), 6)
    (Digit(weight=4, extent=2, stride=40), Digit(weight=1, extent=4, stride=1))
    """
    kept = [d for d in ladder if d.weight < size and d.extent > 1]
    if kept:
        first = kept[0]
        kept[0] = Digit(first.weight, min(first.extent, -(-size // first.weight)), first.stride)
    return tuple(kept)


def merge(ladder: Sequence[Digit]) -> Ladder:
    """Join neighbouring digits of which the upper continues the lower one, and drop those of extent 1.

    >>> merge((Digit(8, 3, 80), Digit(4, 2, 4), Digit(1, 4, 1)))
    (Digit(weight=8, extent=3, stride=80), Digit(weight=1, extent=8, stride=1))
    """
    out: list[Digit] = []
    for digit in reversed(ladder):
        if digit.extent == 1:
            continue
        if out and digit.stride == out[-1].stride * out[-1].extent:
            below = out.pop()
            digit = Digit(below.weight, below.extent * digit.extent, below.stride)
        out.append(digit)
    return tuple(reversed(out))


def normal(ladder: Sequence[Digit], size: int) -> Ladder:
    """The shortest digits of the same function on the numbers below ``size``; there is only one such list.

    >>> normal((Digit(8, 2, 8), Digit(4, 2, 4), Digit(1, 4, 1)), 6)
    (Digit(weight=1, extent=6, stride=1),)
    """
    return trim(merge(trim(ladder, size)), size)


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

    ``padded`` takes the room of the layout instead of its logical size. Two layouts of the same dims and
    ``offset0`` place all elements alike if and only if their normal forms are equal. Where there are no
    elements the form is empty.
    """
    if 0 in layout.dims:
        return ()
    out: list[tuple[tuple[int, ...], Ladder]] = []
    for t, term in enumerate(layout.terms):
        size = layout.padded[t] if padded else layout.term_size(t)
        axes = tuple(a for a in term if layout.dims[a] != 1)
        ladder = normal(layout.ladders[t], size)
        taken = len(axes) - 1
        while taken > 0:  # cut off as few of the last axes as the digits allow, again and again
            width = prod(layout.dims[a] for a in axes[taken:])
            cut = split_ladder(ladder, width) if size % width == 0 else None
            if cut is not None:
                out.append((axes[taken:], normal(cut[1], width)))
                axes, size = axes[:taken], size // width
                ladder = normal(cut[0], size)
            taken -= 1
        out.append((axes, ladder))
    return tuple(sorted((axes, ladder) for axes, ladder in out if ladder))


def same_bytes(a: Layout, b: Layout) -> bool:
    """Whether two layouts put every logical element, and the padding, at the same offset.

    Exact for everything that formats, strides and views of them make. Only where hand-made strides overlap,
    or a view ends within the blocks of several axes, *and* there are millions of elements, is the padding
    taken to differ unless it is written alike.
    """
    if a.dims != b.dims:
        return False
    if 0 in a.dims:
        return True
    if a.offset0 != b.offset0 or canonical(a) != canonical(b):
        return False
    if not (a.has_padding or b.has_padding):
        return True
    # The elements lie alike, so the padding does if the rooms are the same set of places. Equal digits alone
    # do not say so: 17 channels and 32 are both counted by c//16 and c%16.
    alike = a.terms == b.terms and a.padded == b.padded
    return (alike and canonical(a, padded=True) == canonical(b, padded=True)) or _same_room(a, b)


def _same_room(a: Layout, b: Layout) -> bool:
    """Whether two layouts make room at the same places, whatever axes it is counted on."""
    one, two = _room(a), _room(b)
    if one == two:
        return True
    (_, digits, rest), (_, others, rest_of_other) = one, two
    if not (rest or rest_of_other) and _nests(digits) and _nests(others):
        return False  # the lists are unique then
    if max(prod(a.padded), prod(b.padded)) > COUNTED:
        return False
    import numpy as np

    return np.array_equal(np.unique(_places(a, a.padded)), np.unique(_places(b, b.padded)))


def _room(layout: Layout) -> tuple[int, tuple[tuple[int, int], ...], tuple[tuple[int, Ladder], ...]]:
    """The places of a layout as a set, whatever axes they are counted on: a form to compare.

    The lowest place; ``(stride, extent)`` to step upwards from it, in any combination; and the terms that end
    within a block, whose steps can't be combined freely.
    """
    lowest = 0
    free: list[tuple[int, int]] = []
    rest: list[tuple[int, Ladder]] = []
    for t, room in enumerate(layout.padded):
        ladder = normal(layout.ladders[t], room)
        if prod(d.extent for d in ladder) != room:
            rest.append((room, ladder))
            continue
        for _, extent, stride in ladder:
            lowest += min(0, stride) * (extent - 1)
            free.append((abs(stride), extent))
    joined: list[tuple[int, int]] = []
    for stride, extent in sorted(free):
        if stride == 0:
            continue
        if joined:
            below, count = joined[-1]
            if stride % below == 0 and stride // below <= count:  # no gap in between
                joined[-1] = (below, count + (extent - 1) * (stride // below))
                continue
        joined.append((stride, extent))
    return lowest, tuple(joined), tuple(sorted(rest))


def _nests(digits: Sequence[tuple[int, int]]) -> bool:
    """Whether each stride (they rise) is larger than all that the digits below it reach."""
    below = 0
    for stride, extent in digits:
        if stride <= below:
            return False
        below += stride * (extent - 1)
    return True


def _places(layout: Layout, sizes: Sequence[int]) -> NDArray[np.int64]:
    """The offsets (less ``offset0``) of all numbers below ``sizes``, one size a term."""
    with lock():
        import numpy as np

    places = np.zeros(1, dtype=np.int64)
    for ladder, size in zip(layout.ladders, sizes, strict=True):
        places = (places[:, None] + digit_sum(ladder, np.arange(size, dtype=np.int64))).ravel()
    return places


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
            if any(
                values[k] - base != (k - start) * stride for k in range(start, min(start + run, len(values)))
            ):
                return None
        digits.append(Digit(weight, run, stride))
        values = values[::run]
        weight *= run
    return tuple(reversed(digits))


def is_injective(layout: Layout) -> bool:
    """Whether no two elements share a place."""
    if layout.size <= 1:
        return True
    digits = sorted((abs(d.stride), d.extent) for _, ladder in canonical(layout) for d in ladder)
    if digits[0][0] == 0:
        return False  # a broadcast axis; the normal form has no digits of extent 1
    if _nests(digits):
        return True
    if layout.size <= COUNTED:
        import numpy as np

        places = _places(layout, [layout.term_size(t) for t in range(len(layout.terms))])
        return len(np.unique(places)) == len(places)
    return not _collision(layout)


def _collision(layout: Layout) -> bool:
    """Search for two elements in one place: a non-zero difference of digits that moves nowhere.

    If such a difference exists between any two elements, it exists between the two smallest that differ so,
    which is what is compared with the sizes at the end.
    """
    forms = canonical(layout)
    sizes = [prod(layout.dims[a] for a in axes) for axes, _ in forms]
    steps = sorted(
        ((d, t) for t, (_, ladder) in enumerate(forms) for d in ladder), key=lambda s: -abs(s[0].stride)
    )
    below, common = [0] * (len(steps) + 1), [0] * (len(steps) + 1)
    for k in range(len(steps) - 1, -1, -1):
        stride = abs(steps[k][0].stride)
        below[k] = below[k + 1] + stride * (steps[k][0].extent - 1)
        common[k] = gcd(common[k + 1], stride)

    def descend(k: int, rest: int, one: tuple[int, ...], two: tuple[int, ...], differ: bool) -> bool:
        if k == len(steps):
            return differ and all(n < s for n, s in zip((*one, *two), (*sizes, *sizes), strict=True))
        (weight, extent, stride), term = steps[k]
        within = (-below[k + 1], below[k + 1])
        for value in values_towards(rest, stride, within, common[k + 1], 1 - extent, extent - 1):
            first, second = list(one), list(two)
            first[term] += max(0, value) * weight
            second[term] += max(0, -value) * weight
            if descend(k + 1, rest - value * stride, tuple(first), tuple(second), differ or value != 0):
                return True
        return False

    zero = (0,) * len(forms)
    return descend(0, 0, zero, zero, False)
