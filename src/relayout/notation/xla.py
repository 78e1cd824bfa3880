"""XLA's layouts: ``{1,0}``, ``{3,1,2,0}``, ``{1,0:T(8,128)(2,1)}``.

XLA is the compiler under JAX and TensorFlow. Its programs print a layout behind every shape::

    F32[3,5]{1,0:T(2,2)}
             | |  |
             | |  tiles of the physical dimensions
             | minor_to_major: dimension 1 moves fastest, then dimension 0
             the braces hold the layout; shape and element type in front of them are optional here

Dimensions are numbered as in the shape. ``{3,2,1,0}`` is row-major; over N, C, H, W ``{1,3,2,0}`` is NHWC.

Tiling is one step, repeated
============================

Write the *physical* dimensions, major to minor: the reverse of the list in the text. A tile of k sizes
belongs to the last k of them. It cuts each dimension d into ``d // t`` and ``d % t``, leaves the quotients in
their places and moves the remainders, in the same order, to the end::

    R   C                 {1,0:T(8,128)}         R//8   C//128   R%8   C%128

The next tile does the same with the list that this one has left, and nothing else needs to be known::

    R//8  C//128  R%8  C%128      then (2,1):       R//8    C//128   R//2%4   C%128   R%2       bf16 on a TPU
    R//8  C//128  R%8  C%128      then (2,1,1,1):   R//16   C//128   R%8      C%128   R//8%2    pairs of tiles

The second line shows what oneDNN's descriptor cannot say: ``R//8%2``, a more significant digit, lies inside
of ``R%8``. A size of 1 cuts off a digit that is always 0; it is not written, but the tiles after it count it
as a dimension.

An asterisk first joins a dimension to its right neighbour, so that the tile cuts their common number
``a * B + b``: with ``F32[2,7,8,11]{3,2,1,0:T(*,*,2,3)}`` the first three dimensions are one of 112 that is
tiled by 2. Where such a cut falls inside of plain dimensions, they become one fused term.

What is refused
===============

A tile that does not divide the tile below it leaves room in the *middle* of an axis, which rounding up an
axis can't make. Sparse dimensions (``D``), tail padding (``L``), split and physical shapes (``SC``, ``P``),
and prefixed sizes (``M``, ``#``, ``*``) are not digits either. The element size ``E(4)`` and the memory space
``S(1)`` place no element; they are read and ignored.

Source: "Tiled layout" in XLA's documentation, and ``layout.cc`` for the letters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format, letters

TITLE = "XLA"

__all__ = ["TITLE", "names", "parse", "render"]

_INT = r"\s*[0-9]{1,18}\s*"
_LIST = rf"{_INT}(?:,{_INT})*"
_TEXT = re.compile(
    rf"(?:[A-Za-z]\w*\[(?P<shape>[0-9<=?,\s]*)\]\s*)?"
    rf"\{{(?P<order>{_LIST}|\s*)(?::(?P<rest>[^{{}}]*))?\}}(?:\s+on\s+(?P<sizes>[0-9]+(?:x[0-9]+)*))?"
)
_ATTRIBUTE = re.compile(r"(SC|[TDLESPM#*])((?:\([^()]*\))+)")
_TILE = re.compile(rf"(?:{_INT}|\s*\*\s*|\s*-1\s*)(?:,(?:{_INT}|\s*\*\s*|\s*-1\s*))*")
_HARMLESS = r"D\(D(?:,D)*\)|L\([01]\)"  # all dimensions dense; no padding at the end
_REASONS = {
    "D": "sparse dimensions have no fixed place for an element",
    "L": "tail padding rounds up the whole buffer, not an axis",
    "SC": "a split array is several buffers",
    "P": "a physical shape of its own is another array, which has its own layout",
    "M": "the sizes are stored in front of the elements",
    "#": "indices of sparse dimensions are data, not layout",
    "*": "pointers of sparse dimensions are data, not layout",
}


class _Part(NamedTuple):
    """Consecutive digits of an axis or of fused axes: ``number // weight % extent`` (None: all above)."""

    term: tuple[int, ...]
    weight: int
    extent: int | None


_Dim = tuple[_Part, ...]  # a physical dimension: one part; several where joined; none if it is always 0
_Tile = tuple["int | None", ...]  # None: joined to the next dimension


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a layout, with or without a shape in front; None if it is none.

    Raises
    ------
    LayoutError
        The minor-to-major list is no permutation or does not fit the shape, or a tile has more sizes than
        there are dimensions.
    Unsupported
        A tiling or an attribute that is no order of digits; the message says why.

    Examples
    --------
    >>> parse("{1,0:T(8,128)(2,1)}").digits_text()
    'ab -> a//8, b//128, a//2%4, b%128, a%2'
    >>> parse("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}").digits_text()
    'abcde -> (a b c)//2, (d e)//3, (a b c)%2, (d e)%3'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    order = [int(number) for number in match["order"].split(",")] if match["order"].strip() else []
    _check_order(text, order, match["shape"], match["sizes"])
    dims: list[_Dim] = [(_Part((axis,), 1, None),) for axis in reversed(order)]
    for tile in _tiles(text, match["rest"] or ""):
        dims = _apply(text, dims, tile)
    axes = letters(len(order))
    parts = [part for dim in dims for part in dim]
    return Format.from_digits(axes, [(tuple(axes[a] for a in p.term), p.weight, p.extent) for p in parts])


def _check_order(text: str, order: list[int], shape: str | None, sizes: str | None) -> None:
    rank = len(order)
    if sorted(order) != list(range(rank)):
        raise LayoutError(
            f"XLA layout {text!r}: minor_to_major {order} must name {rank} dimensions, from 0 up, once each"
        )
    shapes = [[size for size in shape.split(",") if size.strip()]] if shape is not None else []
    shapes += [sizes.split("x")] if sizes is not None else []
    for given in shapes:
        if len(given) != rank:
            raise LayoutError(
                f"XLA layout {text!r}: the shape has {len(given)} dimensions, minor_to_major {rank}"
            )


def _tiles(text: str, rest: str) -> list[_Tile]:
    """The tiles among the attributes behind the colon; the others are checked."""
    compact = re.sub(r"\s+", "", rest)
    if _ATTRIBUTE.sub("", compact):
        raise LayoutError(
            f"XLA layout {text!r}: can't read {rest.strip()!r} behind the colon; write tiles as T(8,128)(2,1)"
        )
    tiles: list[_Tile] = []
    for kind, arguments in _ATTRIBUTE.findall(compact):
        groups = arguments[1:-1].split(")(")
        if kind == "T":
            tiles += [_tile(text, group) for group in groups]
        elif kind in _REASONS and not re.fullmatch(_HARMLESS, kind + arguments):
            raise Unsupported(f"XLA layout {text!r} has the attribute {kind}{arguments}: {_REASONS[kind]}")
    return tiles


def _tile(text: str, group: str) -> _Tile:
    if not _TILE.fullmatch(group):
        raise LayoutError(
            f"XLA layout {text!r}: can't read the tile ({group}); a tile is a list of sizes or asterisks"
        )
    tile = tuple(None if size in ("*", "-1") else int(size) for size in group.split(","))
    if 0 in tile:
        raise LayoutError(f"XLA layout {text!r}: tile ({group}) has a size of 0; a size must be 1 or more")
    if tile[-1] is None:
        raise LayoutError(
            f"XLA layout {text!r}: in tile ({group}) the last dimension has no right neighbour to join"
        )
    return tile


def _apply(text: str, dims: list[_Dim], tile: _Tile) -> list[_Dim]:
    """One step of tiling: the quotients stay in place, the remainders go to the end."""
    if len(tile) > len(dims):
        raise LayoutError(
            f"XLA layout {text!r}: tile {_spell(tile)} has {len(tile)} sizes, but there are only {len(dims)} "
            "dimensions to cut"
        )
    first = len(dims) - len(tile)
    outer, inner = dims[:first], []
    joined: _Dim = ()
    for dim, size in zip(dims[first:], tile, strict=True):
        joined += dim
        if size is not None:
            quotient, remainder = _cut(text, joined, size)
            outer.append(quotient)
            inner.append(remainder)
            joined = ()
    return outer + inner


def _cut(text: str, dim: _Dim, size: int) -> tuple[_Dim, _Dim]:
    """Cut a dimension into ``dim // size`` and ``dim % size``."""
    outer, inner = list(dim), list[_Part]()
    while size > 1:
        if not outer:
            raise Unsupported(_middle(text, size, "a dimension of size 1"))
        term, weight, extent = part = outer.pop()
        if extent is None:
            if outer:  # the cut goes through joined dimensions, so their common number is what is cut
                if any(p.extent is not None or p.weight != 1 for p in (*outer, part)):
                    raise Unsupported(
                        f"XLA layout {text!r} joins dimensions that are tiled already and cuts through them; "
                        "only whole dimensions have a common number"
                    )
                term = tuple(axis for p in (*outer, part) for axis in p.term)
                outer = []
            outer.append(_Part(term, weight * size, None))
            inner.append(_Part(term, weight, size))
            break
        if size % extent == 0:
            inner.append(part)
            size //= extent
        elif extent % size == 0:
            outer.append(_Part(term, weight * size, extent // size))
            inner.append(_Part(term, weight, size))
            break
        else:
            raise Unsupported(_middle(text, size, f"a tile of {extent}"))
    return tuple(outer), tuple(reversed(inner))


def _middle(text: str, size: int, what: str) -> str:
    return (
        f"XLA layout {text!r} cuts {what} by {size}, which does not divide it: there would be padding in the "
        "middle of an axis, and digits can only round an axis up as a whole"
    )


def render(format: Format) -> str | None:
    """Spell a format as a layout; None where an inner digit lies outside of the open digit of some axis.

    The tiles are found one digit at a time: the digits are taken in the order of memory, and each is moved to
    the end together with what is less significant. Cuts of one list of dimensions, left to right, are a tile.

    >>> render(Format("nhwc")), render(Format("nChw16c")), render(Format("ABcd16b16a"))
    ('{1,3,2,0}', '{3,2,1,0:T(16,1,1)}', '{3,2,1,0:T(16,1,1)(16,1,1,1,1,1,1)}')
    """
    if format.rank is None:
        return None
    count = len(format.terms)
    if any(level for _, level in format.order[:count]):
        return None
    physical = [axis for term, _ in format.order[:count] for axis in format.terms[term]]
    dims: list[_Dim] = [(_Part((axis,), 1, None),) for axis in physical]
    tiles: list[_Tile] = []
    pending: dict[int, int | None] = {}
    for digit in format.digits[count:]:
        term, top = format.terms[digit.term], digit.weight * (digit.extent or 1)
        first, place, low = _find(dims, term, digit.weight)
        if pending and first <= max(pending):
            dims = _flush(dims, pending, tiles)
            first, place, low = _find(dims, term, digit.weight)
        pending.update(dict.fromkeys(range(first, place), None))
        pending[place] = top // low
    if pending:
        _flush(dims, pending, tiles)
    minor_to_major = ",".join(str(axis) for axis in reversed(physical))
    tiling = ":T" + "".join(map(_spell, tiles)) if tiles else ""
    text = f"{{{minor_to_major}{tiling}}}"
    return text if parse(text) == format else None


def _find(dims: Sequence[_Dim], term: tuple[int, ...], weight: int) -> tuple[int, int, int]:
    """Where a digit is: its first and last dimension (fused axes lie apart until joined), and its weight."""
    for place, dim in enumerate(dims):
        for part in dim:
            top = None if part.extent is None else part.weight * part.extent
            if part.term in (term, term[-1:]) and part.weight <= weight and (top is None or weight < top):
                return place - len(term) + len(part.term), place, part.weight
    raise AssertionError(f"digit {weight} of {term} is in none of {dims}")


def _flush(dims: list[_Dim], pending: dict[int, int | None], tiles: list[_Tile]) -> list[_Dim]:
    tile = tuple(pending.get(place, 1) for place in range(min(pending), len(dims)))
    pending.clear()
    tiles.append(tile)
    return _apply("", dims, tile)


def _spell(tile: _Tile) -> str:
    return "(" + ",".join("*" if size is None else str(size) for size in tile) + ")"


def names() -> tuple[str, ...]:
    """Orders of up to five dimensions, and the tilings of TPUs."""
    return (
        "{0}", "{1,0}", "{0,1}", "{2,1,0}", "{3,2,1,0}", "{1,3,2,0}", "{3,1,2,0}", "{4,3,2,1,0}",
        "{1,4,3,2,0}",
        "{0:T(128)}", "{1,0:T(8,128)}", "{1,0:T(2,128)}", "{1,0:T(4,128)}", "{1,0:T(8,128)(2,1)}",
        "{1,0:T(8,128)(4,1)}", "{1,0:T(8,128)(2,1,1,1)}", "{1,0:T(32,128)(32,1)}", "{2,1,0:T(8,128)}",
        "{3,2,1,0:T(8,128)}",
    )  # fmt: skip
