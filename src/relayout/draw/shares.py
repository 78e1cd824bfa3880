"""Shares in words, as pictures say them."""

from __future__ import annotations

__all__ = ["percent"]


def percent(part: int, whole: int) -> str:
    """A share with three digits; only all is 100 %, and only nothing is 0 %.

    Examples
    --------
    >>> percent(7, 24), percent(24, 24), percent(0, 24)
    ('29.2 %', '100 %', '0 %')
    >>> percent(147_420, 147_456), percent(10**15 - 1, 10**15), percent(1, 10**15)
    ('99.98 %', 'more than 99.99 %', 'less than 0.01 %')
    """
    share = 100 * part / whole
    if part and 10_000 * part < whole:
        return "less than 0.01 %"
    if part < whole and 10_000 * (whole - part) < whole:
        return "more than 99.99 %"
    if 99.9 < share < 100:
        return f"{share:.2f} %"
    return f"{share:.3g} %"
