"""The scale factors of block-scaled data types: ``F8_128x4``.

In the MX and NV formats (MXFP8, MXFP4, NVFP4) a group of 32 or 16 neighbours along K shares one scale of 8
bits. The scales of a matrix form a smaller matrix: R rows, S = K/32 (or K/16) scales each. Tensor cores do
not read it row by row, but in tiles of 128 rows by 4 scales, 512 bytes each::

    r//128   s//4   r%32   r//32%4   s%4

Within a tile, row 0 is followed by rows 32, 64 and 96; the four of them share 16 bytes. So the digit
``r//32%4`` is written *inside* of ``r%32``, although it is the more significant one. oneDNN's descriptors
cannot say this.

Worked example: 128 x 8 scales, element (5, 5). s//4 = 1 is the second tile, at 512; r%32 = 5 gives 5 * 16 =
80; s%4 = 1 gives 1. In all 593.

One layout, several names
=========================

=====================================  =====================================================================
cuDNN                                  ``CUDNN_TENSOR_REORDERING_F8_128x4``
cuBLAS                                 "1D block scaling factors layout"
PyTorch                                ``SwizzleType.SWIZZLE_32_4_4`` (its digits: 32, 4, 4); ``to_blocked``
=====================================  =====================================================================

The numbers of a name are its digits: ``F8_<rows>x<scales>`` is a tile of so many rows in strips of 32, and
``SWIZZLE_32_4_4`` lists the three inner extents. Only 128 x 4 exists, so only that is read.

Source: cuBLAS's "1D block scaling factors layout"; cuDNN's and PyTorch's documentation of the same.
"""

from __future__ import annotations

import re

from relayout.layout.format import Format

TITLE = "MX scale factors"

__all__ = ["TITLE", "names", "parse", "render"]

_STRIP, _STRIPS, _SCALES = 32, 4, 4  # rows of a strip, strips of a tile, scales of a row
_NAME = re.compile(
    rf"(?:CUDNN_TENSOR_REORDERING_)?F8_{_STRIP * _STRIPS}x{_SCALES}"
    rf"|(?:SwizzleType\.)?SWIZZLE_{_STRIP}_{_STRIPS}_{_SCALES}"
    r"|cuBLAS 1D block scaling factors layout"
)
_FORMAT = Format.from_digits(
    ("row", "scale"),
    [
        ("row", _STRIP * _STRIPS, None),
        ("scale", _SCALES, None),
        ("row", 1, _STRIP),
        ("row", _STRIP, _STRIPS),
        ("scale", 1, _SCALES),
    ],
)


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a name of the layout (or several, separated by semicolons); None if it is none.

    >>> parse("F8_128x4").digits_text()
    'row scale -> row//128, scale//4, row%32, row//32%4, scale%4'
    """
    return _FORMAT if all(_NAME.fullmatch(name.strip()) for name in text.split(";")) else None


def render(format: Format) -> str | None:
    """Spell the format, if it is the one.

    >>> render(Format("SWIZZLE_32_4_4"))
    'F8_128x4'
    """
    return "F8_128x4" if format == _FORMAT else None


def names() -> tuple[str, ...]:
    """What the layout is called."""
    return ("F8_128x4", "CUDNN_TENSOR_REORDERING_F8_128x4", "SWIZZLE_32_4_4")
