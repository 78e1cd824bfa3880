"""Arm Compute Library's fixed weight formats: ``OHWIo8``, ``OHWIo8i4``.

The fastest matrix kernels of Arm's library want convolution weights in blocks that suit the processor. So
that a framework can prepare them once, the library names the blocks in its enumeration ``WeightFormat``::

    OHWI o<interleave> [i<block>] [_bf16]

    OHWIo8       o//8, h, w, i, o%8               8 output channels interleaved
    OHWIo8i4     o//8, h, w, i//4, o%8, i%4       and of each, 4 input channels together

Read ``OHWIo8i4`` as a kernel does: for a group of 8 output channels, for each place (h, w) of the filter,
for each 4 input channels, there are 8 x 4 numbers side by side, which its inner loop loads at once. O is
padded to a multiple of the interleave and I to one of the block, with zeros; the enumeration keeps both in
fields of 12 and 4 bits, so the interleave is at most 4095 and the block at most 15. ``_bf16`` says that f32
weights are passed as bf16; the place of the elements is the same.

Trap: in a text like ``OHWIo8i4`` the number stands *behind* its letter. oneDNN writes the number in front:
``8o4i``.

As in every dialect, letters with a meaning are indexed in the order of their domain, o, i, h, w, whatever the
order of memory (:mod:`relayout.layout.roles`). For weights that a program indexes as O, H, W, I, as Arm's own
tensors are, there is the reading ``OHWIo8i4@ohwi``: the same memory. Plain ``OHWI`` is read with its prefix
only, ``WeightFormat::OHWI``, since many systems use these four letters.
"""

from __future__ import annotations

import re
from math import prod

from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format
from relayout.layout.roles import weights_roles

TITLE = "Arm Compute Library"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_PREFIX = r"((?:arm_compute::|arm_gemm::)?WeightFormat::)"
_TEXT = re.compile(rf"{_PREFIX}?OHWI(?:o([0-9]{{1,6}})(?:i([0-9]{{1,6}}))?)?(_bf16)?(@oihw|@ohwi)?")
_OPEN = re.compile(rf"{_PREFIX}(ANY|UNSPECIFIED)")
_OHWI = ("o", "h", "w", "i")
_MAX_INTERLEAVE, _MAX_BLOCK = 0xFFF, 0xF


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a weight format.

    Raises
    ------
    LayoutError
        The interleave is not 2 .. 4095, or the block not 2 .. 15.
    Unsupported
        ``WeightFormat::ANY`` and ``UNSPECIFIED``, which leave the choice to the library.

    Examples
    --------
    >>> parse("OHWIo8i4").digits_text()
    'oihw -> o//8, h, w, i//4, o%8, i%4'
    >>> parse("OHWIo8i4") == Format("OhwI8o4i")
    True
    >>> parse("OHWIo8i4@ohwi").digits_text()
    'ohwi -> o//8, h, w, i//4, o%8, i%4'
    """
    if _OPEN.fullmatch(text):
        raise Unsupported(
            f"{text!r} names no layout: it leaves the choice to the library; "
            "ask it with has_opt_impl and write the answer"
        )
    match = _TEXT.fullmatch(text)
    if match is None or (match[2] is None and (match[1] is None or match[4])):
        return None
    interleave, block = (None if number is None else int(number) for number in match.group(2, 3))
    for what, number, most in (("interleave", interleave, _MAX_INTERLEAVE), ("block", block, _MAX_BLOCK)):
        if number is not None and not 2 <= number <= most:
            raise LayoutError(f"{text!r}: the {what} is {number}; it must be 2 to {most}")
    return _make(_OHWI if match[5] == "@ohwi" else weights_roles(2), interleave or 1, block or 1)


def _make(axes: tuple[str, ...], interleave: int, block: int) -> Format:
    inner = [(axis, size) for axis, size in (("o", interleave), ("i", block)) if size > 1]
    return Format.blocked(axes, _OHWI, inner)


def render(format: Format) -> str | None:
    """Spell convolution weights, with the reading where the logical axes are O, H, W, I.

    >>> render(Format("acl:OHWIo4i2@ohwi")), render(Format("Ohwi16o")), render(Format("ohwi"))
    ('OHWIo4i2@ohwi', 'OHWIo16', 'WeightFormat::OHWI')
    """
    roles = format.roles
    if roles is None or roles not in (_OHWI, weights_roles(2)):
        return None
    interleave, block = (
        (prod(format.radices[roles.index(axis)]) for axis in "oi") if len(format.terms) == 4 else (0, 0)
    )
    if (
        not (1 <= interleave <= _MAX_INTERLEAVE and 1 <= block <= _MAX_BLOCK)
        or _make(roles, interleave, block) != format
    ):
        return None
    if interleave == 1 and block > 1:
        return None
    name = "WeightFormat::OHWI" if interleave == 1 else f"OHWIo{interleave}"
    return name + (f"i{block}" if block > 1 else "") + ("@ohwi" if roles == _OHWI else "")


def names() -> tuple[str, ...]:
    """The members of the enumeration."""
    plain = tuple(f"OHWIo{interleave}" for interleave in (2, 4, 8, 16, 32, 64, 128))
    return plain + tuple(
        f"OHWIo{interleave}i{block}"
        for block, least in ((2, 4), (4, 4), (8, 2))
        for interleave in (2, 4, 8, 16, 32, 64)
        if interleave >= least
    )


def attested(name: str) -> bool:
    """Whether the enumeration has this weight format; the reading behind it does not count.

    >>> attested("OHWIo8i4@oihw"), attested("OHWIo24")
    (True, False)
    """
    match = _TEXT.fullmatch(name)
    if match is None:
        return False
    sizes = (f"o{match[2]}" if match[2] else "") + (f"i{match[3]}" if match[3] else "")
    return not sizes or f"OHWI{sizes}" in names()
