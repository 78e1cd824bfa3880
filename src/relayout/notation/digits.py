"""The digits themselves: the one spelling that every format has.

::

    nchw -> n, c//16, h, w, c%16                        nChw16c
    oiyx -> o//32, i//4, y, x, o%2, o//2%16, i%4        os_is_yx_osv32_isv4_swizzled_by_2
    oihw -> i, (h w)//2, o//16, (h w)%2, o%16           fused axes in brackets

In front of the arrow stand the logical axes (the order of the dims), behind it the digits in memory order,
outermost first, as Python would compute them: ``axis // weight % extent``. An open digit has no ``%``.
Without the arrow the order of the axes is that of their domain if they have one (``n c d h w``, ``g o i d h
w``, ...), alphabetical for ``a, b, c, ...``, else that of their first appearance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from relayout.errors import LayoutError
from relayout.layout.format import Format, letters
from relayout.layout.roles import DOMAINS

TITLE = "digits"

__all__ = ["TITLE", "names", "parse", "render"]

_NAME = r"[A-Za-z][A-Za-z0-9_]*"
_DIGIT = re.compile(
    rf"(?:({_NAME})|\(\s*({_NAME}(?:\s+{_NAME})*)\s*\))\s*(?://?\s*([0-9]{{1,19}}))?\s*(?:%\s*([0-9]{{1,19}}))?"
)


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read digits; None if the text is none.

    >>> parse("n, c//16, h, w, c%16") == Format("nChw16c")
    True
    """
    head, arrow, body = text.rpartition("->")
    if not arrow and "," not in text:
        return None
    if arrow and not head.strip(" []") and not body.strip(" []"):
        return Format.from_digits((), ())
    parts = [
        _DIGIT.fullmatch(part.strip().strip("[]").strip()) for part in body.strip().strip("[]").split(",")
    ]
    if any(part is None for part in parts):
        if arrow:
            raise LayoutError(
                f"can't read the digits {body.strip()!r}; write them as in 'nchw -> n, c//16, h, w, c%16'"
            )
        return None
    if not all(re.fullmatch(_NAME, word) for word in head.replace(",", " ").split()):
        raise LayoutError(
            f"can't read the axes {head.strip()!r} in front of '->'; write them as in "
            "'nchw -> n, c//16, h, w, c%16'"
        )
    digits = []
    for part in parts:
        if part is None:
            continue
        name, fused, weight, extent = part.groups()
        axes = name if name else tuple(fused.split())
        digits.append((axes, int(weight or 1), int(extent) if extent else None))
    return Format.from_digits(_logical(head, digits), digits)


def _logical(head: str, digits: list[tuple[str | tuple[str, ...], int, int | None]]) -> tuple[str, ...]:
    if head.strip():
        words = tuple(head.replace(",", " ").split())
        return (
            tuple(words[0])
            if len(words) == 1 and len(words[0]) > 1 and not _is_axis(words[0], digits)
            else words
        )
    found = tuple(
        dict.fromkeys(a for axes, _, _ in digits for a in ([axes] if isinstance(axes, str) else axes))
    )
    if set(found) == set(letters(min(len(found), 26))):
        return tuple(sorted(found))
    return next((roles for roles in DOMAINS if set(roles) == set(found)), found)


def _is_axis(word: str, digits: list[tuple[str | tuple[str, ...], int, int | None]]) -> bool:
    return any(axes == word for axes, _, _ in digits)


def render(format: Format) -> str | None:
    """Write a format's digits out."""
    return format.digits_text()


def names() -> Iterator[str]:
    """Two examples."""
    yield from ("nchw -> n, c//16, h, w, c%16", "oihw -> o//16, i//16, h, w, i//4%4, o%16, i%4")
