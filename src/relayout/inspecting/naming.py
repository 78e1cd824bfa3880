"""Formats that place elements as a layout does, in every dialect.

Elements show which digits have more than one value, and nothing else. Of ``nChw16c`` with 3 channels they
show three elements side by side and a step of 16 to the next column; whether 3 channels are stored as 16, or
another axis has a digit there that only ever is 0, they can't show. So there are several formats for one
layout more often than one, from two sources:

* the *catalogue*: every format that a dialect lists, tried on the dims, and compared in normal form;
* *reading the strides*: digits from the smallest stride up, each next stride the room of all digits below.
  Where a stride is larger, the digit below is padded, or an axis has another block there.

Both are compared with the layout once more, so neither can claim what is not so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from relayout.errors import LayoutError
from relayout.layout.canonical import canonical
from relayout.layout.format import Format, letters
from relayout.layout.layout import Layout
from relayout.layout.roles import data_roles, weights_roles
from relayout.notation import attested, dialect, dialects

__all__ = ["MEANINGS", "formats_like", "names_of", "read_from_strides"]

MEANINGS = ("activations", "weights", "grouped weights")


@lru_cache(maxsize=32)
def catalogue(rank: int, dtype: str) -> tuple[tuple[Format, int], ...]:
    """Every format of so many axes that some dialect lists, without roles, and how many dialects list it."""
    found: dict[Format, set[str]] = {}
    for name in dialects():
        for text in dialect(name).names():
            try:
                format = Format(text, name)
                if format.rank in (None, rank):
                    format = format.resolve(rank, dtype)
            except LayoutError:
                continue  # no layout, or none for this data type
            if format.rank == rank:
                found.setdefault(format, set()).add(name)
    return tuple((format.with_roles(None), len(known)) for format, known in found.items())


def formats_like(layout: Layout, room: int | None, dtype: str = "f32") -> tuple[Format, ...]:
    """The formats whose dense layout places all elements as ``layout`` does, the most likely first.

    Parameters
    ----------
    layout : Layout
        Where elements lie; its padding is not looked at. Its lowest place must be 0.
    room : int or None
        How many elements there are from there to the end of the memory. Formats that need more are left out;
        those that fill it come first. None: nobody knows.
    dtype : str
        The data type, on which some names depend.

    Examples
    --------
    >>> strides = Layout((2, 3, 5, 4), strides=(320, 1, 64, 16))
    >>> [str(format) for format in formats_like(strides, 640)]
    ['aBcd16b', 'acdB16b', 'Bacd16b']
    """
    form = canonical(layout)
    tried = [*catalogue(layout.rank, dtype)] if layout.rank else []
    tried += [(format, 0) for format in read_from_strides(layout, None)]
    tried += [(format, 0) for format in ([] if room is None else read_from_strides(layout, room))]
    found: dict[Format, tuple[object, ...]] = {}
    for format, known in tried:
        if format in found:
            continue
        try:
            made = Layout(layout.dims, format)
        except LayoutError:
            continue  # more than there is memory for
        if (room is None or made.span <= room) and canonical(made) == form:
            exact = room in (None, made.span)
            fused = any(len(term) > 1 for term in format.terms)
            order = tuple(digit.term for digit in format.digits)
            found[format] = (not exact, fused, not _usual(format), len(format.order), -known, order)
    return tuple(sorted(found, key=lambda format: found[format]))


def names_of(format: Format, only: bool = True) -> dict[str, dict[str, str]]:
    """What dialects call a format, for each meaning that its axes can have.

    Parameters
    ----------
    format : Format
        A format without roles.
    only : bool
        Leave out names that follow a dialect's grammar but that its system does not have.

    Examples
    --------
    >>> names = names_of(Format("aBcd16b"))
    >>> names["activations"]["openvino"], names["weights"]["openvino"]
    ('b_fs_yx_fsv16', 'o_is_yx_isv16')
    """
    rank = format.rank or 0
    meanings = {
        "activations": data_roles(rank - 2) if 2 <= rank <= 5 else None,
        "weights": weights_roles(rank - 2) if 2 <= rank <= 5 else None,
        "grouped weights": weights_roles(rank - 3, groups=True) if 3 <= rank <= 6 else None,
    }
    found: dict[str, dict[str, str]] = {}
    for meaning, roles in {"any axes": None, **meanings}.items():
        if roles is None and meaning != "any axes":
            continue
        meant = format.with_roles(roles)
        for name in dialects():
            try:
                spelled = None if name == "digits" else meant.name(name)
            except LayoutError:
                continue
            if spelled is None or (only and not attested(spelled, name)):
                continue
            if spelled != found.get("any axes", {}).get(name):  # named without a meaning already
                found.setdefault(meaning, {})[name] = spelled
    return found


def _usual(format: Format) -> bool:
    """Whether all blocks are powers of two."""
    return all(block & (block - 1) == 0 for blocks in format.radices for block in blocks)


def read_from_strides(layout: Layout, room: int | None) -> list[Format]:
    """Formats read off the strides of a layout; none where strides leave holes that no padding explains.

    >>> [f.digits_text() for f in read_from_strides(Layout((3, 5), strides=(1, 24)), 120)]
    ['ab -> a//24, b, a%24']
    """
    form = dict(canonical(layout))
    visible = sorted((d.stride, d.extent, d.weight, axes) for axes, ladder in form.items() for d in ladder)
    if any(stride <= 0 for stride, *_ in visible):
        return []
    names = letters(layout.rank)
    alone = [(axis,) for axis in range(layout.rank) if all(axis not in axes for axes in form)]
    top = {axes: max(d.weight for d in ladder) for axes, ladder in form.items()}
    fixed: list[tuple[tuple[int, ...], int, int]] = []  # innermost first: axes, weight, extent
    open_at: dict[tuple[int, ...], int] = {}  # where the open digit of a term stands among them
    weight: dict[tuple[int, ...], int] = {}  # what a term's digits count to, once its last one is written
    position = 1
    if not visible:  # one element, and perhaps a block of which it is the first
        block = [(names[-1], room)] if room and names else []
        return [Format.blocked(names, names, block)]
    following_strides = [*(stride for stride, *_ in visible[1:]), room or 0]
    for (stride, extent, own, axes), following in zip(visible, following_strides, strict=True):
        if stride != position:
            padded = _invisible(stride, position, weight, alone, layout)
            if padded is None:
                return []
            fixed.append((padded, weight.get(padded, 1), stride // position))
            weight[padded] = weight.get(padded, 1) * (stride // position)
        position = stride * extent
        if own != top[axes]:
            fixed.append((axes, own, extent))
            continue
        weight[axes] = own * extent
        if following % stride == 0 and following // stride > extent:
            wide = following // stride
            position, weight[axes] = following, own * wide
            fixed.append((axes, own, wide))
        else:
            open_at[axes] = len(fixed)
            fixed.append((axes, own, extent))
    behind_all = _invisible(room, position, weight, alone, layout) if room and room > position else None
    if room and behind_all is not None:
        fixed.append((behind_all, weight.get(behind_all, 1), room // position))
        weight[behind_all] = weight.get(behind_all, 1) * (room // position)
    # An open digit that was followed by another one of its axis was none.
    digits: list[tuple[tuple[int, ...], int, int | None]] = []
    for place, (axes, own, extent) in enumerate(fixed):
        ends_here = open_at.get(axes) == place and weight[axes] == own * extent
        digits.append((axes, own, None if ends_here else extent))
    digits.reverse()
    written = {axes for axes, _, extent in digits if extent is None}
    for axes in sorted({*form, *alone} - written):
        behind = [k for k, d in enumerate(digits) if d[2] is None]
        at = next((k for k in behind if digits[k][0] > axes), behind[-1] + 1 if behind else 0)
        digits.insert(at, (axes, weight.get(axes, 1), None))
    try:
        return [Format.from_digits(names, [(tuple(names[a] for a in axes), w, e) for axes, w, e in digits])]
    except LayoutError:
        return []


def _invisible(
    stride: int,
    position: int,
    weight: dict[tuple[int, ...], int],
    alone: Sequence[tuple[int, ...]],
    layout: Layout,
) -> tuple[int, ...] | None:
    """The term with a digit that is always 0, between the room of the digits below and a stride."""
    if stride % position:
        return None
    # Axes of size 1 first, channels (or input channels) before others; else one whose digits all lie below.
    for axes in sorted([*alone, *weight], key=lambda axes: (axes not in alone, axes != (1,), axes)):
        if weight.get(axes, 1) >= prod(layout.dims[a] for a in axes):
            return axes
    return None
