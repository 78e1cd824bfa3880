"""Padding that is no block: axes rounded up to a multiple, and channels padded group by group.

A blocked axis is rounded up because its digits count whole blocks. MegEngine also rounds up where it does
not block, and the two cases that it has are digits as well.

**A rounded axis.** The weights of ``INTER_WEIGHT_DENSE`` lie as ``[K/4, R, S, C, 4]`` with C rounded up to
a multiple of 4 although nothing is blocked by C. Rows of 4-bit elements are rounded up to whole bytes. In
both cases it is enough to cut the axis into two digits *that stay neighbours*: the place of no element
changes, but the open digit now counts in steps of the multiple. ::

    n, c, h, w          ->   n, c, h, w//2, w%2        rows of 4-bit elements, 2 to a byte

**Groups.** A group convolution must find the channels of each group in blocks of their own, so with 2
groups of 3 channels ``NCHW4`` holds 2 x 4 channels, and not 6 rounded up to 8 at the end. That is a layout
over ``[N, G, C/G, H, W]``, with the digit of the group right outside of the channels' blocks::

    n, c//4, h, w, c%4  ->   n, g, c//4, h, w, c%4     the c of one group
"""

from __future__ import annotations

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format

__all__ = ["byte_rows", "grouped", "rounded"]


def rounded(format: Format, axis: int, multiple: int) -> Format:
    """Return the format with an axis that is rounded up to a multiple, its elements staying where they are.

    Parameters
    ----------
    format : Format
    axis : int
        An axis that is not blocked, and not fused with another.
    multiple : int
        What the size is rounded up to, in elements, 1 or more.

    Raises
    ------
    LayoutError
        The axis has blocks already, or does not exist.

    Examples
    --------
    >>> rounded(Format("KRSCk4"), 1, 4).digits_text()
    'oihw -> o//4, h, w, i//4, i%4, o%4'
    """
    names = format.axis_names()
    if not 0 <= axis < len(names) or (axis,) not in format.terms or format.blocks[axis] != 1:
        raise LayoutError(
            f"axis {axis} of {format} can't be rounded up to {multiple}; "
            "only an axis of its own without blocks can"
        )
    if multiple < 1:
        raise LayoutError(
            f"axis {axis} of {format} can't be rounded up to a multiple of {multiple}; that must be 1 or more"
        )
    if multiple == 1:
        return format
    digits: list[tuple[str | tuple[str, ...], int, int | None]] = []
    for digit in format.digits:
        term = format.terms[digit.term]
        if term == (axis,):
            digits += [(names[axis], multiple, None), (names[axis], 1, multiple)]
        else:
            digits.append((tuple(names[a] for a in term), digit.weight, digit.extent))
    return Format.from_digits(names, digits)


def byte_rows(format: Format, bits: int) -> Format:
    """Return the format with its innermost digit filled up to whole bytes, for elements of 1, 2 or 4 bits.

    A block that fills whole bytes (all of MegEngine's do) needs nothing.

    Raises
    ------
    LayoutError
        Elements of so many bits do not share bytes.
    Unsupported
        The innermost digit is a block that ends inside a byte; filling that up would leave gaps that no
        digit describes.

    Examples
    --------
    >>> byte_rows(Format("NHWC"), 4).digits_text()
    'nchw -> n, h, w, c//2, c%2'
    >>> byte_rows(Format("NCHW64"), 4) == Format("NCHW64")
    True
    """
    if bits not in (1, 2, 4):
        raise LayoutError(
            f"elements of {bits} bits don't share bytes; rows can be aligned to bytes for 1, 2 and 4 bits"
        )
    together = 8 // bits
    innermost = format.digits[-1]
    if innermost.extent is None:
        return rounded(format, format.terms[innermost.term][0], together)
    if innermost.extent % together:
        raise Unsupported(
            f"the innermost block of {format} has {innermost.extent} elements of {bits} bits and ends inside "
            f"a byte; only blocks of a multiple of {together} elements start on bytes"
        )
    return format


def grouped(format: Format) -> Format:
    """Return a data format over the axes ``n g c ...``: each group's channels are padded on their own.

    Raises
    ------
    LayoutError
        The format has no axis with the role ``c`` behind its batch.

    Examples
    --------
    >>> grouped(Format("NCHW4")).digits_text()
    'ngchw -> n, g, c//4, h, w, c%4'
    """
    roles = format.roles or ()
    if roles[:2] != ("n", "c"):
        raise LayoutError(
            f"{format} is no data format with axes n, c, ...; only channels of data are padded by group"
        )
    axes = ("n", "g", *roles[1:])
    digits: list[tuple[str | tuple[str, ...], int, int | None]] = []
    for digit in format.digits:
        name = roles[format.terms[digit.term][0]]
        if name == "c" and digit.extent is None:
            digits.append(("g", 1, None))
        digits.append((name, digit.weight, digit.extent))
    return Format.from_digits(axes, digits)
