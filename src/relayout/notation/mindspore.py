"""MindSpore Lite's formats: ``NHWC4``, ``NC8HW8``.

MindSpore Lite writes formats with the letters of the axes and two kinds of numbers. ::

    NC8HW8     axes N C H W      n, c//8, h, w, c%8            packs of 8 channels: nChw8c
    NHWC4      axes N C H W      n, h, w, c//4, c%4            the last axis is padded to a multiple of 4
    NC4, HW4   axes N C; H W     n, c//4, c%4; h, w//4, w%4

In the first kind (4, 8 and 16) the number stands twice, behind C and at the end, and cuts the channels into
packs. In the second it stands only at the end and rounds the innermost axis up: both digits of the axis lie
side by side, so this is not a block but a padded row. With 3 channels, pixel (h, w) of a ``NHWC4`` image
starts at 4 * (h * W + w), and every fourth element is padding.

As in every dialect, letters with a meaning are indexed in the order of their domain, n, c, h, w, whatever
the order of memory (:mod:`relayout.layout.roles`). In MindSpore Lite itself the shape of a ``NHWC4`` tensor
is (N, H, W, C); for a program that indexes so there is the reading ``NHWC4@nhwc``: the same memory.

Padding is zero. Some of its kernels use a packing that they call *not aligned*, in which the last pack is
as narrow as the channels that are left. There the stride of a pack depends on which one it is; no digits
say that, and this module's names never mean it.

MNN uses the names ``NC4HW4``, ``NC8HW8``, too, with the packs outermost. Without a dialect in front they
are ambiguous.
"""

from __future__ import annotations

import re

from relayout.layout.format import Format
from relayout.layout.roles import data_roles, domain_order

TITLE = "MindSpore Lite"

__all__ = ["TITLE", "names", "parse", "render"]

_PACKED = re.compile(r"NC(4|8|16)HW\1")
_ROW = re.compile(r"(NHWC|NC|HW)4(@nchw|@nhwc)?")
_PACKS = (4, 8, 16)
_ROWS = ("NHWC4", "NHWC4@nhwc", "NC4", "HW4")


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read packed channels or a padded row.

    >>> parse("NC8HW8") == Format("nChw8c")
    True
    >>> parse("NHWC4").digits_text(), parse("NHWC4@nhwc").digits_text()
    ('nchw -> n, h, w, c//4, c%4', 'nhwc -> n, h, w, c//4, c%4')
    """
    match = _PACKED.fullmatch(text)
    if match:
        return _packed(int(match[1]))
    match = _ROW.fullmatch(text)
    if match is None or (match[2] and match[1] != "NHWC"):
        return None
    outer = tuple(match[1].lower())
    return Format.blocked(outer if match[2] == "@nhwc" else domain_order(outer), outer, [(outer[-1], 4)])


def _packed(pack: int) -> Format:
    return Format.blocked(data_roles(2), data_roles(2), [("c", pack)])


def render(format: Format) -> str | None:
    """Spell a format that MindSpore Lite has.

    >>> render(Format("nChw16c")), render(Format("nhwC4c")), render(Format("nchw"))
    ('NC16HW16', 'NHWC4', None)
    """
    for name in names():
        made = parse(name)
        if made == format and made.roles == format.roles:
            return name
    return None


def names() -> tuple[str, ...]:
    """All of them."""
    return (*(f"NC{pack}HW{pack}" for pack in _PACKS), *_ROWS)
