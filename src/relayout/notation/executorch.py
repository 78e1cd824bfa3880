"""ExecuTorch's ``dim_order``: the axes by number, outermost first.

PyTorch Mobile's successor stores no strides in a program but a tuple for each tensor: which logical axis
lies outermost in memory, which next, and so on to the innermost one. Strides follow from it and the sizes;
nothing is padded or blocked, so that every permutation of the axes can be written and nothing else::

    dim_order=(0,1,2,3)      n, c, h, w      contiguous
    dim_order=(0,2,3,1)      n, h, w, c      channels last
    dim_order=(1,0)          b, a            a transposed matrix

Mind the direction: the tuple lists axes in the order of memory (it is what NumPy's ``transpose`` takes to
make the memory's shape of the logical one). XLA writes the same list from the innermost axis,
``{1,3,2,0}``.

As its runtime does, this module calls (0,2,3,1) and (0,2,3,4,1) channels last and so knows that their axes
are N, C, [D,] H, W. In other orders the axes have no meaning. Square brackets do as well as round ones, and
a tuple of two axes or more may stand alone, ``(0,2,3,1)``.
"""

from __future__ import annotations

import re

from relayout.errors import LayoutError
from relayout.layout.format import Format, letters
from relayout.layout.roles import data_roles

TITLE = "ExecuTorch"

__all__ = ["TITLE", "names", "parse", "render"]

_TEXT = re.compile(r"(dim_order\s*=\s*)?(?:\(([0-9,\s]*)\)|\[([0-9,\s]*)\])")
_CHANNELS_LAST = {(0, 2, 3, 1): data_roles(2), (0, 2, 3, 4, 1): data_roles(3)}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a dim order.

    Raises
    ------
    LayoutError
        ``dim_order=`` is followed by numbers that are no permutation of 0 .. rank - 1.

    Examples
    --------
    >>> parse("dim_order=(0,2,3,1)") == Format("nhwc")
    True
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    body = match[2] if match[2] is not None else match[3]
    words = [word.strip() for word in body.split(",")]
    if words[-1] == "":
        words.pop()  # Python's comma behind a tuple of one
    if match[1] is None and len(words) < 2:
        return None
    short = all(word.isdigit() and len(word) <= 3 for word in words)
    order = tuple(int(word) for word in words) if short else None
    if order is None or set(order) != set(range(len(order))) or len(set(order)) != len(order):
        if match[1] is None:
            return None
        raise LayoutError(
            f"{text!r}: a dim order must name each of the axes 0 to {max(len(words) - 1, 0)} once, "
            "outermost first, as in (0,2,3,1)"
        )
    axes = _CHANNELS_LAST.get(order) or letters(len(order))
    return Format.blocked(axes, [axes[axis] for axis in order])


def render(format: Format) -> str | None:
    """Spell a format that only permutes its axes.

    >>> render(Format("nhwc")), render(Format("ba")), render(Format("nChw8c"))
    ('dim_order=(0,2,3,1)', 'dim_order=(1,0)', None)
    """
    if format.rank is None or len(format.terms) != format.rank or any(format.radices):
        return None
    order = [str(axis) for axis, _ in format.order]
    return f"dim_order=({','.join(order)}{',' if len(order) == 1 else ''})"


def names() -> tuple[str, ...]:
    """The two orders that most programs use."""
    return ("dim_order=(0,1,2,3)", "dim_order=(0,2,3,1)")
