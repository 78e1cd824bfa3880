"""tinygrad's images: ``dtypes.imageh((H, W*C/4, 4))``.

tinygrad has no layouts; a tensor is a buffer and a stack of views (shape, strides, offset, mask). There is
one exception. On GPUs whose texture units are fast (Adreno, through OpenCL) it can keep a buffer as an
*image* of pixels with four values each, and the data type says so: ``imageh`` holds half floats, ``imagef``
floats, and the shape behind it is rows, pixels a row, 4::

    dtypes.imageh((H, W*C/4, 4))      axes H W C      h, w, c//4, c%4

Row h holds the columns, and of each column all channels, four to a pixel. Both digits of c lie side by
side: this is ``hwc`` with C rounded up to a multiple of 4, and equals it where 4 divides C.

tinygrad prints the sizes as numbers, ``dtypes.imageh((32, 1024, 4))``; any sizes are read, for the order of
the digits does not depend on them. What a format can't say: the driver may pad the rows of an image, and
asks for its own row pitch. Give that as strides of a layout.
"""

from __future__ import annotations

import re

from relayout.layout.format import Format

TITLE = "tinygrad"

__all__ = ["TITLE", "names", "parse", "render"]

_TEXT = re.compile(r"(?:dtypes\.)?image[hf](?:\(\(\s*[0-9A-Z*/]+\s*,\s*[0-9A-Z*/]+\s*,\s*4\s*\)\))?")
_AXES = ("h", "w", "c")
_CANONICAL = "dtypes.imageh((H, W*C/4, 4))"


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read an image type.

    >>> parse("dtypes.imageh((32, 1024, 4))").digits_text()
    'hwc -> h, w, c//4, c%4'
    """
    return Format.blocked(_AXES, _AXES, [("c", 4)]) if _TEXT.fullmatch(text) else None


def render(format: Format) -> str | None:
    """Spell the one format that there is.

    >>> render(Format("hwc -> h, w, c//4, c%4"))
    'dtypes.imageh((H, W*C/4, 4))'
    """
    return _CANONICAL if format.roles == _AXES and format == parse(_CANONICAL) else None


def names() -> tuple[str, ...]:
    """The one image type, in half floats and in floats."""
    return (_CANONICAL, _CANONICAL.replace("imageh", "imagef"))
