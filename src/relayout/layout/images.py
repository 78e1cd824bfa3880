"""What the formats of a network's values are called: as those of images, where there are four axes.

oneDNN numbers axes by letters, ``aBcd16b``. A network's values of four axes are images, or are kept as if
they were, and the user says ``nChw16c``. Drawings, tables, pages, JSON and messages all use this name.
"""

from __future__ import annotations

from relayout.layout.descriptor import MemoryDesc

__all__ = ["descriptor_name", "format_name"]

LETTERS, NAMES = "abcd", "nchw"


def format_name(format: object) -> str:
    """The format of a value of a network, called as that of an image if it has four axes.

    What is no descriptor has the name that it prints.

    >>> from relayout import MemoryDesc
    >>> [format_name(MemoryDesc((1, 32, 4, 4), "f32", tag)) for tag in ("acdb", "aBcd16b", "abcd")]
    ['nhwc', 'nChw16c', 'nchw']
    >>> format_name(MemoryDesc((7, 5), "f32", "ba")), format_name("x")
    ('ba', 'x')
    """
    if not isinstance(format, MemoryDesc):
        return str(format)
    if format.tag is None:
        return "strided"
    if len(format.dims) != len(NAMES):
        return str(format.tag)
    return str(format.tag).translate(str.maketrans(LETTERS + LETTERS.upper(), NAMES + NAMES.upper()))


def descriptor_name(desc: MemoryDesc) -> str:
    """A descriptor with its format called as :func:`format_name` does.

    >>> from relayout import MemoryDesc
    >>> descriptor_name(MemoryDesc((1, 32, 4, 4), "f32", "aBcd16b"))
    'f32:nChw16c:1x32x4x4'
    """
    return str(desc) if desc.tag is None else str(desc).replace(f":{desc.tag}:", f":{format_name(desc)}:", 1)
