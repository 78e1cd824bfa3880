"""Layouts and memory descriptors read from one line of text, as :func:`~.layout.write_layout` writes it.

What is printed can be read again, so an error message, a log or a notebook cell is enough to get the very
same layout back::

    nChw8c:2x17x5x4                                          a format and the dims
    nChw8c:2x17x5x4+64                                       ... that begins at element 64
    2x3x5x4 strides 120x40x8x2                               strides, in elements
    2x3x5x4 (n, c, h, w) strides 120x40x8x2                  ... of axes that have a meaning
    2x12 [a%2*24, b//4%3*8, b%4*1] padded 2x12               digits: number // weight % extent * stride
    f32:nChw8c:2x17x5x4                                      a descriptor: its data type, then the layout
    bf16:any:2x17x5x4                                        ... whose format is not decided
    src:f32:p:blocked:aBcd8b::f0:2x17x5x4                    the same as oneDNN logs it, with the dims behind

The format may be written in any dialect, and may hold colons itself: the dims are what stands behind the last
one. ``scalar`` is what has no axes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.layout import spelling
from relayout.layout.assembly import from_digits
from relayout.layout.format import Format, letters
from relayout.layout.layout import Digit, Layout, check_dims, plain, whole_numbers
from relayout.layout.roles import check_roles

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["read_descriptor", "read_layout"]

LONGEST = 10_000  # characters; no descriptor is longer, and what is takes long to find fault with
_SIZES = r"[0-9]+(?:x[0-9]+)*"
_LAYOUT = re.compile(
    rf"(?:(?P<format>.*):)?\s*(?P<dims>scalar|{_SIZES})(?:\s*\((?P<roles>[^()]*)\))?"
    r"(?:\s+strides\s+(?P<strides>-?[0-9]+(?:x-?[0-9]+)*)|\s*\[(?P<digits>[^\[\]]*)\])?"
    rf"(?:\s+padded\s+(?P<padded>{_SIZES}))?\s*(?P<offset>[+-][0-9]+)?",
    re.DOTALL,
)
_DIGIT = re.compile(r"(?:(\w+)|\(([\w ]+)\))(?://([0-9]+))?%([0-9]+)\*(-?[0-9]+)")


def read_layout(text: str, dtype: str | None = None) -> Layout:
    """Read what :func:`write_layout` wrote, or a person by hand.

    Raises
    ------
    LayoutError
        The text is no layout; the message shows the forms.

    Examples
    --------
    >>> read_layout("b_fs_yx_fsv16:1x17x2x2").offset(0, 16, 0, 1)
    80
    >>> read_layout("2x12 [a%2*24, b//4%3*8, b%4*1]").offset(1, 5)
    33
    """
    logged = spelling.logged(text)
    if logged is not None:
        return logged.desc().layout
    match = _LAYOUT.fullmatch(text.strip()) if len(text) <= LONGEST else None
    if match is None:
        raise LayoutError(
            f"{_shown(text)} is no layout; write format:dims as in 'nChw8c:2x17x5x4', or dims and strides as "
            "in '2x3 strides 10x1'"
        )
    dims = () if match["dims"] == "scalar" else check_dims(_numbers(match["dims"]))
    offset = whole_numbers([int(match["offset"] or 0)], "offset")[0]
    own = [part for part in ("strides", "digits") if match[part] is not None]
    if match["format"] is not None:
        if own or match["padded"] or match["roles"]:
            raise LayoutError(
                f"{_shown(text)} has a format and {own[0] if own else 'more'}; a format says all that itself"
            )
        return Layout._dense(dims, Format(match["format"]).resolve(len(dims), dtype), offset)
    roles = None
    if match["roles"] is not None:
        given = re.split(r"[\s,]+", match["roles"].strip())
        roles = check_roles(given, len(dims), f"the layout {_shown(text)}")
    padded = whole_numbers(_numbers(match["padded"]), "padded") if match["padded"] else None
    if match["digits"] is not None:
        return from_digits(dims, _digits(match["digits"], roles or letters(len(dims))), padded, offset, roles)
    if match["strides"] is None:
        if dims:
            raise LayoutError(f"{_shown(text)} has sizes, but neither a format nor strides")
        return Layout._dense((), plain(0), offset)
    strides = whole_numbers(_numbers(match["strides"]), "strides")
    made = Layout._strided(dims, plain(len(dims)), strides, offset, None)
    if padded is not None:
        room = [
            ((axis,), Digit(1, size, step))
            for axis, (size, step) in enumerate(zip(padded, strides, strict=False))
        ]
        made = from_digits(dims, room, padded, offset)
    return made.with_roles(roles)


def read_descriptor(text: str) -> MemoryDesc:
    """Read a memory descriptor: a data type, a colon, and a layout (or ``any`` and the dims).

    Raises
    ------
    LayoutError
        The text is no descriptor.

    Examples
    --------
    >>> read_descriptor("f32:nChw8c:2x17x5x4").nbytes
    3840
    >>> read_descriptor("s8:any:2x3").format_kind
    'any'
    >>> read_descriptor("src_f32:p:blocked:aBcd8b::f0:2x17x5x4")
    MemoryDesc('f32:aBcd8b:2x17x5x4')
    """
    with lock():
        from relayout.layout.descriptor import MemoryDesc

    logged = spelling.logged(text)
    if logged is not None:
        return logged.desc()
    kind, colon, rest = text.strip().partition(":")
    if not colon:
        raise LayoutError(
            f"{_shown(text)} is no memory descriptor; write dtype:format:dims as in 'f32:nchw:1x3x2x2'"
        )
    dtype = as_dtype(kind.strip())
    format, _, sizes = rest.rpartition(":")
    if format.strip() in ("any", "undef"):
        dims = () if sizes.strip() == "scalar" else check_dims(_numbers(sizes))
        return MemoryDesc._make(dims, dtype, None, format.strip())
    layout = read_layout(rest, dtype.name)
    return MemoryDesc(layout.dims, dtype, layout)


def _digits(text: str, names: tuple[str, ...]) -> list[tuple[tuple[int, ...], Digit]]:
    place = {name: axis for axis, name in enumerate(names)}
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _DIGIT.fullmatch(part)
        if match is None:
            raise LayoutError(f"{part!r} is no digit; write axis//weight%extent*stride as in 'b//4%3*8'")
        own, fused, weight, extent, stride = match.groups()
        axes = (own,) if own else tuple(fused.split())
        unknown = [name for name in axes if name not in place]
        if unknown:
            raise LayoutError(f"digit {part!r} names {unknown[0]!r}, which is none of the axes {list(names)}")
        numbers = whole_numbers((int(weight or 1), int(extent), int(stride)), f"digit {part!r}")
        found.append((tuple(place[name] for name in axes), Digit(*numbers)))
    return found


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split("x")]
    except ValueError:
        raise LayoutError(f"{_shown(text)} are no sizes; write them as in 2x17x5x4") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
