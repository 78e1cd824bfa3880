"""A layout from its digits, each with weight, extent and stride: what texts and files hand in.

A :class:`~relayout.layout.layout.Layout` made here may have digits in any order, strides with holes, and
room that ends anywhere in the last block, so it is the way in for every layout that has no name. Nothing is
believed: digits that are no mixed-radix number, axes that are missing or written twice and room that the
digits can't count to are refused, each with a sentence that says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from relayout.errors import LayoutError
from relayout.layout.layout import Digit, Layout

__all__ = ["from_digits"]


def from_digits(
    dims: tuple[int, ...],
    digits: Sequence[tuple[tuple[int, ...], Digit]],
    padded: Sequence[int] | None = None,
    offset: int = 0,
    roles: tuple[str, ...] | None = None,
) -> Layout:
    """Assemble a layout.

    Parameters
    ----------
    dims : tuple of int
        The logical sizes.
    digits : sequence of (axes, Digit)
        Outermost first: the axis (or the axes that are fused, most significant first), and its digit with the
        stride in elements.
    padded : sequence of int, optional
        For each term, sorted by its axes, how many numbers there is room for; without it, all that the digits
        count to.
    offset : int
        Where element (0, ..., 0) lies, in elements.
    roles : tuple of str, optional
        What the axes mean.

    Raises
    ------
    LayoutError
        The digits don't cover each axis once, are no mixed-radix number, or don't reach far enough.

    Examples
    --------
    >>> x = from_digits((4, 3), [((1,), Digit(1, 3, 8)), ((0,), Digit(2, 2, 4)), ((0,), Digit(1, 2, 1))])
    >>> x.offset(3, 1), x.span
    (13, 22)
    """
    by_term: dict[tuple[int, ...], list[tuple[Digit, int]]] = {}
    for position, (axes, digit) in enumerate(digits):
        by_term.setdefault(axes, []).append((digit, position))
    terms = tuple(sorted(by_term))
    if sorted(a for term in terms for a in term) != list(range(len(dims))) or () in by_term:
        raise LayoutError(
            f"digits must cover each of the {len(dims)} axes once, got those of {[list(t) for t in terms]}"
        )
    ladders = []
    order: list[tuple[int, int]] = [(0, 0)] * len(digits)
    for t, term in enumerate(terms):
        ladder = sorted(by_term[term], key=lambda entry: (-entry[0].weight, -entry[0].extent))
        _check_chain(term, [digit for digit, _ in ladder])
        ladders.append(tuple(digit for digit, _ in ladder))
        for level, (_, position) in enumerate(ladder):
            order[position] = (t, level)
    rooms = [prod(digit.extent for digit in ladder) for ladder in ladders]
    room = rooms if padded is None else list(padded)
    sizes = [prod(dims[a] for a in term) for term in terms]
    if len(room) != len(terms) or any(not n <= p <= r for n, p, r in zip(sizes, room, rooms, strict=True)):
        raise LayoutError(
            f"padded {room} must lie between the sizes {sizes} and what the digits count to, {rooms}"
        )
    return Layout._make(dims, terms, tuple(ladders), tuple(order), tuple(room), offset, roles=roles)


def _check_chain(term: tuple[int, ...], ladder: Sequence[Digit]) -> None:
    expected = 1
    for level, digit in enumerate(reversed(ladder)):
        if digit.weight != expected:
            raise LayoutError(
                f"digits of axes {list(term)}: one has weight {digit.weight} where those below it count "
                f"{expected}; "
                "the weight must be the product of the extents below"
            )
        if digit.extent == 0 and level != len(ladder) - 1:
            raise LayoutError(
                f"digits of axes {list(term)}: an inner digit has extent 0; only the outermost may"
            )
        expected *= digit.extent
