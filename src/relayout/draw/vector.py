"""Cache lines, and what a vector unit reads at once: the question that memory formats answer.

A processor moves memory in lines of 64 bytes, and computes on vectors: 16 channels of one pixel, say. Where
the format keeps these 16 side by side, as ``nChw16c`` does, one line has them all. Where their places are
far apart, as in ``nchw``, each lies in a line of its own: 16 lines are read for the work of one.

>>> from relayout import Layout
>>> for format in ("nchw", "nChw16c"):
...     print(format, vector_of(Layout((1, 64, 56, 56), format), 32).lines)
nchw 16
nChw16c 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from relayout.draw.cells import names_of
from relayout.draw.places import plural_of
from relayout.errors import LayoutError
from relayout.layout.layout import Layout

__all__ = ["LINE", "Vector", "line_of", "vector_of"]

LINE: Final = 64
"""Bytes of a cache line, on x86-64 and most ARM processors."""

LANES: Final = 16
"""Elements of a vector: 512 bits of f32."""


class Vector(NamedTuple):
    """Neighbours along one axis, from element (0, ..., 0) on."""

    axis: int
    indices: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    lines: int
    """Cache lines that hold them, if the buffer begins with one."""
    words: str
    """What they are: ``16 channels of n=0 h=0 w=0``."""

    @property
    def said(self) -> str:
        """The words and the lines."""
        return f"{self.words}: in {self.lines} cache line{'s' * (self.lines != 1)} of {LINE} bytes"


def line_of(offset: int, bits: int) -> int:
    """The cache line of an element of so many bits, if the buffer begins with a line."""
    return offset * bits // (8 * LINE)


def vector_of(
    layout: Layout, bits: int, axis: str | None = None, names: Sequence[str] | None = None
) -> Vector | None:
    """The vector of a layout: 16 channels of the first pixel, or as many as there are.

    Parameters
    ----------
    layout : Layout
        Where the elements lie.
    bits : int
        Bits of an element.
    axis : str, optional
        The axis along which the vector runs. Without it: channels, else output channels, else the last axis
        with more than one element.
    names : sequence of str, optional
        What the axes are called, one name an axis. Of a layout without roles they say what the axes mean.

    Returns
    -------
    Vector or None
        None where there is nothing to put side by side: no elements, or no axis with two.

    Raises
    ------
    LayoutError
        The layout has no such axis.
    """
    known = names_of(layout, names)
    roles = tuple(names) if names is not None and layout.roles is None else layout.roles or ()
    counted = [a for a, size in enumerate(layout.dims) if size > 1]
    if axis is not None:
        if axis not in (*known, *roles):
            raise LayoutError(f"{layout} has no axis {axis!r} for a vector; it has {', '.join(known)}")
        along = (known if axis in known else roles).index(axis)
    elif not counted or 0 in layout.dims:
        return None
    else:
        named = [roles.index(role) for role in ("c", "o") if role in roles]
        along = next((a for a in named if a in counted), counted[-1])
    if not layout.size:
        return None
    count = min(layout.dims[along], LANES)
    indices = tuple(tuple(k if a == along else 0 for a in range(layout.rank)) for k in range(count))
    offsets = tuple(layout.offset(*index) for index in indices)
    fixed = " ".join(f"{known[a]}=0" for a in counted if a != along)
    words = f"{count} {plural_of(roles[along] if roles else None, known[along])}" + (
        f" of {fixed}" if fixed else ""
    )
    return Vector(along, indices, offsets, len({line_of(offset, bits) for offset in offsets}), words)
