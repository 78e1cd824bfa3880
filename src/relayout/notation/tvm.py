"""TVM's layout strings: ``NCHW16c``, and Hexagon's ``nhwc-8h2w32c2w``.

TVM is a compiler for deep learning. Its operators name the layouts of their tensors
(``data_layout="NCHW16c"``), and its layout type (``tir::Layout``) turns the name into index maps in both
directions.

The grammar
===========

::

    layout = (LETTER | number letter)*       NCHW16c, OIHW16i16o, NHWC

Every digit is written where it lies, outermost first. An upper-case letter is an axis (TVM: a primal axis), a
number with a lower-case letter a block of it (a subordinate axis with its factor). As soon as there is a
block ``16c``, the ``C`` means ``c // 16``::

    NCHW16c          n    c//16   h   w   c%16                 nChw16c in oneDNN
    OIHW16i16o       o//16   i//16   h   w   i%16   o%16       OIhw16i16o

A bracket, ``OIHW[4o4i]``, makes one axis of the packed tensor out of several digits; the memory is the same
as without. ``tir::Layout`` inverts one block an axis only, yet TVM's int8 kernels write ``OIHW4i16o4i``.
Several blocks of an axis are therefore read as oneDNN reads them: each is a digit, the outermost is the most
significant.

Which axis is which
===================

The text gives the order of *memory*. The order of the *logical* axes is not in it: ``NHWC`` is a
convolution's input, whose program may index it as n, c, h, w. As everywhere in this package, letters of a
known domain stand in the domain's order (``n c d h w``, ``g o i d h w``), and ``A, B, C, ...`` in
alphabetical order. Other letters (``NK16n``, a packed dense weight) stand as they are written, without a
meaning; such a text is only accepted with a block in it, since otherwise every word in capitals would be a
layout.

Hexagon's own strings
=====================

The kernels for Qualcomm's Hexagon name layouts after the tensor that they index, a hyphen, and the blocks::

    nhwc-8h2w32c2w   ->   n   h//8   w//4   c//32   h%8   w//2%2   c%32   w%2        logical axes n, h, w, c

Here the head *is* the order of the logical axes. A ``1`` in it (``n11c-1024c``) is an axis that must have
size 1. The suffix ``-1d`` says that the tensor is one buffer. With ``-2d`` it is a table of pointers to
blocks, so that an element has no single offset.

Source: TVM's ``tir/data_layout.h``; the Hexagon kernels' index maps in ``topi/hexagon``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format, letters
from relayout.layout.roles import DATA, WEIGHTS
from relayout.notation.onednn import blocked_digits

TITLE = "TVM"

__all__ = ["TITLE", "names", "parse", "render"]

_LAYOUT = re.compile(r"(?:[A-Z]|[0-9]{1,18}[a-z]|\[(?:[0-9]{1,18}[a-z])+\])+")
_DIGIT = re.compile(r"([A-Z])|([0-9]+)([a-z])")
_HEXAGON = re.compile(r"([a-z1]+)-((?:[0-9]{1,18}[a-z])+)(-[12]d)?")
_IMAGE = "nhwc"  # what the ones of n11c stand for
_DOMAINS = {frozenset(roles): roles for roles in (*DATA, *WEIGHTS, ("t", "n", "c"))}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a layout string; None if it is none.

    Raises
    ------
    LayoutError
        A block of an axis that is not in the text, or a block of size 0.
    Unsupported
        A Hexagon layout of two dimensions (a table of blocks).

    Examples
    --------
    >>> parse("OIHW16i16o").digits_text()
    'oihw -> o//16, i//16, h, w, i%16, o%16'
    >>> parse("nhwc-8h2w32c2w").digits_text()
    'nhwc -> n, h//8, w//4, c//32, h%8, w//2%2, c%32, w%2'
    """
    if _LAYOUT.fullmatch(text):
        return _parse_layout(text)
    match = _HEXAGON.fullmatch(text)
    return _parse_hexagon(text, *match.groups()) if match else None


def _parse_layout(text: str) -> Format | None:
    written = _DIGIT.findall(text)
    primal = [letter.lower() for letter, _, _ in written if letter]
    blocks = [(letter, int(size)) for _, size, letter in written if size]
    if not primal or len(set(primal)) != len(primal):
        return None
    place = _axes(primal, blocked=bool(blocks))
    if place is None:
        return None
    weight = dict.fromkeys(primal, 1)
    for letter, size in blocks:
        if letter not in weight:
            raise LayoutError(f"layout {text!r} has a block {size}{letter}, but no axis {letter.upper()}")
        if size == 0:
            raise LayoutError(f"layout {text!r} has a block of size 0; a block must be 1 or more")
        weight[letter] *= size
    digits: list[tuple[str, int, int | None]] = []
    whole = dict(weight)
    for upper, number, lower in written:
        if upper:
            digits.append((place[upper.lower()], whole[upper.lower()], None))
        elif int(number) > 1:
            weight[lower] //= int(number)
            digits.append((place[lower], weight[lower], int(number)))
    return Format.from_digits(tuple(place.values()), digits)


def _axes(primal: list[str], blocked: bool) -> dict[str, str] | None:
    """The logical axes in order: what each letter is called."""
    present = frozenset(primal)
    if present == set(letters(len(primal))):
        return {letter: letter for letter in letters(len(primal))}
    roles = _DOMAINS.get(present)
    if roles is None and blocked and present < set("ncdhw"):
        roles = tuple(role for role in "ncdhw" if role in present)
    if roles is not None:
        return {role: role for role in roles}
    return {letter: letter.upper() for letter in primal} if blocked else None


def _parse_hexagon(text: str, head: str, blocks: str, suffix: str | None) -> Format | None:
    if "1" in head:
        if len(head) != len(_IMAGE) or any(a not in ("1", b) for a, b in zip(head, _IMAGE, strict=True)):
            return None
        head = _IMAGE
    inner = [(letter, int(size)) for _, size, letter in _DIGIT.findall(blocks)]
    if len(set(head)) != len(head) or any(letter not in head for letter, _ in inner):
        return None
    if suffix == "-2d":
        raise Unsupported(
            f"Hexagon layout {text!r} is a table of pointers to blocks, each at its own address, so elements "
            "have no offset in one buffer; the blocks in a row are the layout with '-1d'"
        )
    return Format.blocked(tuple(head), tuple(head), [(a, size) for a, size in inner if size != 1])


def render(format: Format) -> str | None:
    """Spell a format as a layout string, with the letters of its roles if they are known here, else A, B, C.

    None where axes are fused, or where the digits of an axis are not in order of significance.

    >>> render(Format("nChw16c")), render(Format("acdb")), render(Format("OIhw4i16o4i"))
    ('NCHW16c', 'ACDB', 'OIHW4i16o4i')
    """
    if not format.rank or format.rank > 26 or len(format.terms) != format.rank:
        return None
    return next((text for text in _spellings(format) if text and parse(text) == format), None)


def _spellings(format: Format) -> Iterator[str | None]:
    rank = format.rank or 0
    roles = format.roles
    if roles is not None and all(len(role) == 1 and role.isascii() and role.isalpha() for role in roles):
        yield _write(format, "".join(roles).upper())
        yield _write_hexagon(format, "".join(roles))
    yield _write(format, "".join(letters(rank)).upper())


def _write(format: Format, names: str) -> str | None:
    depth = [0] * len(names)
    out = []
    for axis, level in format.order:
        if level == 0:
            out.append(names[axis])
            continue
        depth[axis] += 1
        if level != depth[axis]:
            return None
        out.append(f"{format.radices[axis][level - 1]}{names[axis].lower()}")
    return "".join(out)


def _write_hexagon(format: Format, names: str) -> str | None:
    digits = blocked_digits(format)
    if digits is None or digits[0] != list(range(len(names))) or not digits[1] or not names.islower():
        return None
    return names + "-" + "".join(f"{size}{names[axis]}" for axis, size in digits[1])


def names() -> tuple[str, ...]:
    """The layouts that TVM's operators use most."""
    return (
        "NCW", "NWC", "NCHW", "NHWC", "NCDHW", "NDHWC", "NCHW4c", "NCHW8c", "NCHW16c", "NCHW32c", "NCDHW16c",
        "OIHW", "HWIO", "OHWI", "HWOI", "IOHW", "OIDHW", "DHWIO", "OIHW4i4o", "OIHW8i8o", "OIHW16i16o",
        "OIHW4i16o4i", "OIHW1i16o4i", "OIHW16o", "NC16n", "NK16n",
        "nhwc-8h2w32c2w", "nhwc-8h8w32c", "n11c-1024c", "nhw-32h16w",
    )  # fmt: skip
