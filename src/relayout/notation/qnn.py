"""Qualcomm's chunked memory layouts: ``ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0, 1,8, 2,8, 3,32>``.

The QNN SDK runs networks on Qualcomm's Hexagon processors (HTP). Its tensors have four axes, batch, height,
width and depth (= channels), and are kept in *chunks* of 2 KiB that fit the matrix unit. The layouts are C++
templates, which spell the digits one by one.

The grammar
===========

::

    ChunkedMemoryLayout<rank, axis,size, axis,size, ...>

The pairs are the digits, outermost first; axes are numbered 0 to rank-1. A size says how far the digit
counts. Size 0 says *all the rest of this axis*. Qualcomm reads the pairs from right to left: take 32 of axis
3, then 8 of axis 2, then 8 of axis 1, and what is left of each axis counts chunks. So the layout above,
``R4CroutonLayout``, is ::

    n   h//8   w//8   c//32   h%8   w%8   c%32

The named layouts
=================

The SDK defines classes for the layouts in use, ``class R4CroutonLayout : ChunkedMemoryLayout<...>``. A
crouton is a chunk; the number behind it is the bytes of an element where it is not 1.
``R<n>FlatMemoryLayout`` is row-major. The definition may be written behind a name, with an equals sign; then
both must agree.

Formats of rank 4 have the roles n, h, w, c, in this logical order. ``R4Crouton2Layout`` is what TVM calls
``nhwc-8h2w32c2w``.

Source: Qualcomm's "Tensors and memory layout" (QNN HTP).
"""

from __future__ import annotations

import re

from relayout.errors import LayoutError
from relayout.layout.format import Format, letters
from relayout.notation.onednn import blocked_digits

TITLE = "Qualcomm QNN"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_ROLES = ("n", "h", "w", "c")  # of tensors with four axes; Qualcomm: batch, height, width, depth
_CHUNKED = re.compile(r"ChunkedMemoryLayout\s*<((?:\s*[0-9]{1,9}\s*,)*\s*[0-9]{1,9}\s*)>")
_FLAT = re.compile(r"R([1-9])FlatMemoryLayout")
_NAMED = {
    "R4Depth32MemoryLayout": "4, 0,0, 1,0, 3,0, 2,0, 2,4, 3,32",
    "R4CroutonLayout": "4, 0,0, 1,0, 2,0, 3,0, 1,8, 2,8, 3,32",
    "R4WideCroutonLayout": "4, 0,0, 1,0, 2,0, 3,0, 1,2, 2,32, 3,32",
    "R4Crouton2Layout": "4, 0,0, 1,0, 2,0, 3,0, 1,8, 2,2, 3,32, 2,2",
    "R4Crouton4Layout": "4, 0,0, 1,0, 2,0, 3,0, 1,8, 2,2, 3,32",
    "R4Crouton4x1Layout": "4, 0,0, 1,0, 2,0, 3,0, 1,8, 2,2, 3,32, 2,4",
    "R4Crouton2x2Layout": "4, 0,0, 1,0, 2,0, 3,0, 1,4, 2,4, 3,32, 1,2, 2,2",
}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a chunked layout, or the name of one; None if it is none.

    Raises
    ------
    LayoutError
        Pairs that break a rule of the template, or a name with another layout's definition behind it.

    Examples
    --------
    >>> parse("R4CroutonLayout").digits_text()
    'nhwc -> n, h//8, w//8, c//32, h%8, w%8, c%32'
    >>> parse("ChunkedMemoryLayout<2, 1,0, 0,0, 1,4>").digits_text()
    'ab -> b//4, a, b%4'
    """
    name, equals, definition = (side.strip() for side in text.partition("="))
    format = _parse_one(name)
    if not equals or format is None:
        return format
    defined = _parse_one(definition)
    if defined is not None and defined != format:
        raise LayoutError(f"{name} is {render(format.with_roles(None))}, not {definition}")
    return format if defined is not None else None


def _parse_one(text: str) -> Format | None:
    if match := _FLAT.fullmatch(text):
        axes = _axes(int(match[1]))
        return Format.blocked(axes, axes)
    match = _CHUNKED.fullmatch(text)
    pairs = match[1] if match else _NAMED.get(text)
    return None if pairs is None else _chunked(text, [int(number) for number in pairs.split(",")])


def _chunked(text: str, numbers: list[int]) -> Format:
    rank, *flat = numbers
    if len(flat) % 2:
        raise LayoutError(
            f"{text}: behind the rank stand pairs 'axis,size', but there are {len(flat)} numbers"
        )
    pairs = list(zip(flat[::2], flat[1::2], strict=True))
    for axis, size in pairs:
        if axis >= rank:
            raise LayoutError(
                f"{text}: axis {axis} in the pair {axis},{size} is none of the {rank} axes 0 to {rank - 1}"
            )
    outer = [axis for axis, size in pairs if size == 0]
    if sorted(outer) != list(range(rank)):
        raise LayoutError(
            f"{text}: each of the {rank} axes needs one pair with size 0 (all the rest), got them for {outer}"
        )
    for axis in range(rank):
        if next(size for a, size in pairs if a == axis):
            raise LayoutError(
                f"{text}: the size 0 of axis {axis} takes all of it; nothing is left for the pair outside"
            )
    axes = _axes(rank)
    weights = [1] * rank
    digits: list[tuple[str, int, int | None]] = []
    for axis, size in reversed(pairs):
        if size != 1:
            digits.append((axes[axis], weights[axis], size or None))
            weights[axis] *= size or 1
    return Format.from_digits(axes, reversed(digits))


def _axes(rank: int) -> tuple[str, ...]:
    return _ROLES if rank == len(_ROLES) else letters(rank)


def render(format: Format) -> str | None:
    """Spell a format as a chunked layout; by name if its axes are n, h, w, c (or have no meaning).

    >>> render(Format("nhwc-8h2w32c2w")), render(Format("nChw16c"))
    ('R4Crouton2Layout', 'ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0, 1,16>')
    """
    digits = blocked_digits(format)
    if digits is None or not format.rank:
        return None
    outer, inner = digits
    if any(not 1 < size < 10**9 for _, size in inner):
        return None
    pairs = ", ".join(f"{axis},{size}" for axis, size in ((*((axis, 0) for axis in outer), *inner)))
    if format.roles in (None, _ROLES):
        if outer == list(range(format.rank)) and not inner and format.rank < 10:
            return f"R{format.rank}FlatMemoryLayout"
        for name, definition in _NAMED.items():
            if definition == f"{format.rank}, {pairs}":
                return name
    return f"ChunkedMemoryLayout<{format.rank}, {pairs}>"


def names() -> tuple[str, ...]:
    """The named layouts, and the template's spelling of a blocked one."""
    return (
        "R4FlatMemoryLayout",
        "R5FlatMemoryLayout",
        *_NAMED,
        f"ChunkedMemoryLayout<{_NAMED['R4CroutonLayout']}>",
    )


def attested(name: str) -> bool:
    """Whether the SDK defines a class of this name, rather than only the template.

    >>> attested("R4CroutonLayout"), attested("ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0, 1,16>")
    (True, False)
    """
    name = name.partition("=")[0].strip()
    if _FLAT.fullmatch(name) or name in _NAMED:
        return True
    match = _CHUNKED.fullmatch(name)
    return match is not None and "".join(match[1].split()) in {"".join(d.split()) for d in _NAMED.values()}
