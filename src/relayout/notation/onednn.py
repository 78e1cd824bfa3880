"""oneDNN's format tags, and MKL-DNN's before them.

The grammar
===========

::

    tag    = outer blocks          nChw16c, OIhw4i16o4i, aBcd16b, acdb
    outer  = letter+               every axis once, outermost first; upper case = this axis is blocked
    blocks = (number letter)*      outermost first

Behind the outer axes stand the blocks. ``OIhw4i16o4i`` is: blocks of 16 output channels, blocks of 16 input
channels (4 x 4), height, width, and within a block: 4 groups of input channels, 16 output channels, 4 input
channels.

The letters are either ``a, b, c, ...``, which name the logical axes by position, or they have a meaning,
which fixes the logical order *by domain*, whatever the order in which they are written:

===========================  =====================  ============================================
domain                       logical order          examples
===========================  =====================  ============================================
data                         n c [[d] h] w          ``nchw`` = abcd, ``nhwc`` = acdb
convolution weights          [g] o i [[d] h] w      ``hwio`` = cdba, ``goihw`` = abcde
recurrent data, states       t n c; l d n c         ``tnc`` = abc, ``ntc`` = bac
recurrent weights            l d i g o; l d i o     ``ldigo`` = abcde, ``ldgoi`` = abdec
recurrent bias               l d g o                ``ldgo`` = abcd
===========================  =====================  ============================================

With ``l`` in the tag ``d`` is the direction and ``g`` the gate; elsewhere they are depth and group. The gates
lie in the order that the cell defines: LSTM input, forget, candidate, output; GRU update, reset, output; a
vanilla cell has one.

Where the header deviates
=========================

Every one of oneDNN's 873 tags and all but two of its 798 aliases follow from this grammar. Two do not:
``gIOhw2i8o16i2o`` and ``gIOdhw2i8o16i2o`` are defined with the outer order g, O, I. As users mean what their
binary does, so does this module. In four aliases (``OhwI24o`` and its like) an upper-case ``I`` has no block;
it is read as a plain ``i``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from relayout.errors import AmbiguousFormat, LayoutError
from relayout.layout.format import Format, letters
from relayout.layout.roles import DOMAINS
from relayout.notation.onednn_tags import is_tag

TITLE = "oneDNN"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_TAG = re.compile(r"([A-Za-z]+)((?:[0-9]{1,9}[a-z])*)")
_BLOCK = re.compile(r"([0-9]{1,9})([a-z])")
_LETTER_OF = {"dir": "d", "gate": "g"}
_DEVIATING = {"gIOhw2i8o16i2o": "gOIhw2i8o16i2o", "gIOdhw2i8o16i2o": "gOIdhw2i8o16i2o"}


@lru_cache(maxsize=256)
def _spell(roles: tuple[str, ...]) -> str:
    return "".join(_LETTER_OF.get(role, role) for role in roles)


_BY_LETTERS = {frozenset(_spell(roles)): roles for roles in DOMAINS}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a tag; None if it is none.

    >>> parse("OIhw4i16o4i").digits_text()
    'oihw -> o//16, i//16, h, w, i//4%4, o%16, i%4'
    """
    if text in ("any", "undef"):
        raise LayoutError(
            f"{text!r} says that there is no format yet, so there are no digits; MemoryDesc takes "
            f"relayout.{text}"
        )
    match = _TAG.fullmatch(_DEVIATING.get(text, text))
    if match is None:
        return None
    outer, tail = match.groups()
    low = outer.lower()
    axes = _axes(low)
    if axes is None:
        return None
    blocks = [(letter, int(size)) for size, letter in _BLOCK.findall(tail)]
    upper = _upper(outer)
    blocked = {letter for letter, _ in blocks}
    if blocked != upper and not (blocked and blocked < upper and upper - blocked == {"i"}):
        return None
    if 0 in [size for _, size in blocks]:
        raise LayoutError(f"tag {text!r} has a block of size 0; a block must be 1 or more")
    place = _places(axes)
    return Format.blocked(
        axes, [place[letter] for letter in low], [(place[letter], size) for letter, size in blocks]
    )


@lru_cache(maxsize=1024)
def _upper(outer: str) -> frozenset[str]:
    """The letters that stand in upper case, in lower case."""
    return frozenset(letter.lower() for letter in outer if letter.isupper())


@lru_cache(maxsize=256)
def _places(axes: tuple[str, ...]) -> dict[str, str]:
    """The axis of every letter."""
    return dict(zip(_spell(axes), axes, strict=True))


@lru_cache(maxsize=1024)
def _axes(low: str) -> tuple[str, ...] | None:
    """The logical axes that the outer letters imply, or None."""
    names = letters(min(len(low), 26))
    if len(set(low)) != len(low):
        return None
    if set(low) == set(names):
        return names
    roles = _BY_LETTERS.get(frozenset(low))
    if (
        roles is None
        and "d" in low
        and set(low) < set("tldnchwgoi")
        and not {"h", "w"} <= set(low)
        and len(low) > 2
    ):
        raise AmbiguousFormat(
            f"in {low!r} the letter d can be depth (with h and w: ncdhw, oidhw) or direction (with l: ldnc, "
            "ldigo), and neither set of axes is complete; write all axes of one, or use letters a, b, c, ... "
            "for axes without meaning"
        )
    return roles


def render(format: Format) -> str | None:
    """Spell a format as a tag, with meaningful letters where its axes have a meaning that oneDNN shares.

    >>> render(Format("b_fs_yx_fsv16")), render(Format("aBcd16b"))
    ('nChw16c', 'aBcd16b')
    """
    digits = blocked_digits(format)
    if digits is None or not format.rank or format.rank > 26:
        return None
    outer, inner = digits
    roles = format.roles
    spelled = _write(_spell(roles), outer, inner) if roles in DOMAINS and roles is not None else None
    if spelled is None or spelled in _DEVIATING:
        spelled = _write("".join(letters(format.rank)), outer, inner)
    return spelled


def blocked_digits(format: Format) -> tuple[list[int], list[tuple[int, int]]] | None:
    """The outer axes and the inner blocks ``(axis, size)`` of a format, or None if it is not built like that.

    Built like that means: first every open digit, then the others, those of each axis in order of
    significance.
    """
    if len(format.terms) != format.rank:
        return None
    outer = [term for term, level in format.order[: format.rank] if level == 0]
    if len(outer) != format.rank:
        return None
    depth = dict.fromkeys(outer, 0)
    inner = []
    for term, level in format.order[format.rank :]:
        if level != depth[term] + 1:
            return None
        depth[term] = level
        inner.append((term, format.radices[term][level - 1]))
    return outer, inner


def _write(names: str, outer: list[int], inner: list[tuple[int, int]]) -> str:
    blocked = {axis for axis, _ in inner}
    head = "".join(names[a].upper() if a in blocked else names[a] for a in outer)
    return head + "".join(f"{size}{names[axis]}" for axis, size in inner)


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The usual tags: plain orders, blocked activations, blocked and packed weights, recurrent tensors."""
    return tuple(name for name in dict.fromkeys(_usual()) if attested(name))


def _usual() -> Iterator[str]:
    yield from ("x", "nc", "cn", "tn", "nt", "tnc", "ntc", "ldnc", "ldigo", "ldgoi", "ldio", "ldoi", "ldgo")
    for space in ("w", "hw", "dhw"):
        yield from (f"nc{space}", f"n{space}c", f"c{space}n")
        yield from (f"oi{space}", f"io{space}", f"o{space}i", f"{space}io", f"{space}oi", f"i{space}o")
        yield from (f"goi{space}", f"gio{space}", f"go{space}i", f"{space}igo")
        yield from (f"nC{space}{block}c" for block in (4, 8, 16, 32))
        yield from (f"NC{space}{n}n{c}c" for n, c in ((16, 16), (32, 16), (32, 32), (40, 16), (40, 32)))
        for group in ("", "g"):
            yield from (f"{group}Oi{space}{o}o" for o in (4, 8, 16, 32))
            yield from (f"{group}O{space}i{o}o" for o in (4, 8, 16, 24, 32, 48, 64))
            for packing in (
                "4i4o", "4o4i", "8i8o", "8o8i", "16i16o", "16o16i",
                "8i16o2i", "8o16i2o", "16i16o2i", "4i16o4i", "2i8o4i",
                "16i16o4i", "16i32o4i", "16i48o4i", "16i64o4i", "4o8i8o4i", "2o8i16o2i",
            ):  # fmt: skip
                yield f"{group}OI{space}{packing}"
            yield from (
                f"{group}O{space}I{packing}" for packing in ("16o2i", "16o4i", "8o4i", "4i16o4i", "16i16o4i")
            )
        yield from (f"Goi{space}{g}g" for g in (4, 8, 16, 32))
    for packing in ("16i16o", "16i32o4i", "16i64o4i", "16i64o2i", "8i16o2i", "4i16o4i", "8i8o"):
        yield f"OI{packing}"
    for rank in range(1, 7):
        yield "".join(letters(rank))
    yield from ("ba", "acb", "acdb", "acdeb", "aBcd8b", "aBcd16b", "ABcd16b16a", "BA16a64b4a", "AB16b64a4b")


def attested(name: str) -> bool:
    """Whether oneDNN's enumeration has this tag; one with meaningful letters counts as its a, b, c.

    >>> attested("nChw16c"), attested("nChw24c")
    (True, False)
    """
    format = parse(name)
    tag = render(format.with_roles(None)) if format is not None else None
    return tag is not None and is_tag(tag)
