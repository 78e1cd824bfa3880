"""Matrix operands for x86's dot-product and tile instructions: ``[K/4][N][4]``, ``VNNI4``, ``AMX_B_INT8``.

VNNI, AVX512-BF16 and AMX multiply in groups: one 32-bit lane holds four int8 or two bf16 values that are
*neighbours along K*, and an instruction adds up their products. So the right-hand matrix B, of K rows and N
columns, is packed beforehand: k rows are interleaved into one ::

    [K/4][N][4]      k//4   n   k%4        int8       VNNI4
    [K/2][N][2]      k//2   n   k%2        bf16, f16  VNNI2

An AMX tile register has 16 rows of 64 bytes. A row of a tile of B holds 16 columns, each with a group of 4
(int8) or 2 (bf16) values along K; that makes 64 x 16 or 32 x 16 elements a tile. In memory the tiles follow
one another, here down K first (which is a library's choice; the 1 KiB tile is the hardware's)::

    AMX_B_INT8       n//16   k//64   k//4%16   n%16   k%4       oneDNN: BA16a16b4a
    AMX_B_BF16       n//16   k//32   k//2%16   n%16   k%2               BA16a16b2a

The bracket notation
====================

Libraries document packed operands as C arrays. ``[K/4]`` is an axis cut into blocks of 4 (ceil(K / 4) of
them), ``[N]`` a whole axis, and a bare number the block that belongs to the axis divided by it:
``[N/16][K/4][16][4]`` is n//16, k//4, n%16, k%4. Where both axes are divided by the same number, a bare
number could mean either, and the text is refused.

The logical axes are K, N, with the roles ``k`` and ``cols``: N is not a batch.

Source: Intel's instruction set reference (VPDPBUSD, VDPBF16PS, TDPBSSD); oneDNN's "pack32" of its
micro-kernels.
"""

from __future__ import annotations

import re
from math import prod

from relayout.errors import AmbiguousFormat, LayoutError
from relayout.layout.format import Format

TITLE = "x86 VNNI and AMX"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_AXES = ("k", "cols")
_ROLE = {"K": "k", "N": "cols"}
_LETTER = ("K", "N")
_ROWS = 16  # rows of a tile register, and groups of columns in one
_BRACKETS = re.compile(r"(?:\s*\[\s*(?:[KN](?:\s*/\s*[0-9]{1,9})?|[0-9]{1,9})\s*\])+\s*")
_ITEM = re.compile(r"\[(?:([KN])(?:/([0-9]+))?|([0-9]+))\]")
_VNNI = re.compile(r"(?:VNNI|vnni)-?([248])")
_TILE = re.compile(r"16 rows x 64 bytes: B tile (64|32)\(K\)x16\(N\)")
_AMX = {"AMX_B_INT8": 4, "AMX_B_BF16": 2, "AMX_B_FP16": 2}  # elements of a 32-bit lane


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a packing of the right-hand matrix; None if it is none.

    Raises
    ------
    AmbiguousFormat
        In brackets, both axes are divided by the same number.
    LayoutError
        In brackets, an axis is missing or a number belongs to no axis.

    Examples
    --------
    >>> parse("VNNI4") == parse("[K/4][N][4]") == Format("Ab4a")
    True
    >>> parse("AMX_B_BF16").digits_text()
    'k cols -> cols//16, k//32, k//2%16, cols%16, k%2'
    """
    if _BRACKETS.fullmatch(text):
        return _brackets(text)
    if match := _VNNI.fullmatch(text):
        return Format.blocked(_AXES, _AXES, [("k", int(match[1]))])
    if match := _TILE.fullmatch(text):
        return _tiles(int(match[1]) // _ROWS)
    return _tiles(_AMX[text]) if text in _AMX else None


def _tiles(group: int) -> Format:
    return Format.blocked(_AXES, ("cols", "k"), [("k", _ROWS), ("cols", _ROWS), ("k", group)])


def _brackets(text: str) -> Format:
    items = _ITEM.findall("".join(text.split()))
    outer = [(letter, int(divisor or 1)) for letter, divisor, _ in items if letter]
    inner = [int(number) for _, _, number in items if number]
    if sorted(letter for letter, _ in outer) != ["K", "N"]:
        raise LayoutError(f"packing {text!r} must name K and N once each, e.g. [K/4][N][4]")
    divided = {divisor: letter for letter, divisor in outer if divisor > 1}
    if 0 in inner or any(divisor == 0 for _, divisor in outer):
        raise LayoutError(f"packing {text!r} has a block of size 0; a block must be 1 or more")
    if len(divided) == 1 and all(divisor > 1 for _, divisor in outer):
        raise AmbiguousFormat(
            f"in {text!r} a bare number can be a block of K or of N, which are divided by the same number; "
            "write the digits, e.g. 'kn -> n//16, k//16, k%16, n%16'"
        )
    if sorted(inner) != sorted(divided):
        raise LayoutError(
            f"packing {text!r}: the bare numbers {inner} must be the divisors {sorted(divided)}, each once"
        )
    digits: list[tuple[str, int, int | None]] = []
    for letter, divisor, number in items:
        if letter:
            digits.append((_ROLE[letter], int(divisor or 1), None))
        else:
            digits.append((_ROLE[divided[int(number)]], 1, int(number)))
    return Format.from_digits(_AXES, digits)


def render(format: Format) -> str | None:
    """Spell a matrix format as an AMX operand or in brackets; None where neither can say it.

    >>> render(Format("Ab2a")), render(Format("BA16a16b4a")), render(Format("ab"))
    ('[K/2][N][2]', 'AMX_B_INT8', '[K][N]')
    """
    if format.rank != 2 or len(format.terms) != 2:
        return None
    named = next((name for name, group in _AMX.items() if _tiles(group) == format), None)
    if named is not None:
        return named
    blocks = [prod(radices) for radices in format.radices]
    if any(
        len(radices) > 1 or not 1 <= block < 10**9
        for radices, block in zip(format.radices, blocks, strict=True)
    ):
        return None
    if any(radices == (1,) for radices in format.radices) or (blocks[0] == blocks[1] > 1):
        return None
    written = []
    for axis, level in format.order:
        over = f"/{blocks[axis]}" if blocks[axis] > 1 else ""
        written.append(f"[{blocks[axis]}]" if level else f"[{_LETTER[axis]}{over}]")
    return "".join(written)


def names() -> tuple[str, ...]:
    """The packings of 8- and 16-bit operands."""
    return ("[K/4][N][4]", "[K/2][N][2]", "[N/16][K/4][16][4]", "VNNI4", "VNNI2", *_AMX)


def attested(name: str) -> bool:
    """Whether an instruction takes its operand so: groups of 2 or 4 along K, or tiles of them.

    >>> attested("[K/4][N][4]"), attested("[K/16][N][16]")
    (True, False)
    """
    format = parse(name)
    return format is not None and any(parse(known) == format for known in names())
