"""Huawei Ascend's formats: ``NC1HWC0``, ``FRACTAL_Z``, ``FRACTAL_NZ`` and their relatives.

The matrix unit of an Ascend processor, the *cube*, multiplies small blocks of fixed size, *fractals*: 16
rows, each of 32 bytes. So the number of elements in a row of a fractal depends on their type. It is called
C0::

    C0 * sizeof(T) = 32 bytes      C0 = 16 for f16 and bf16, 32 for s8 and u8, 8 for f32, 64 for s4

All formats cut axes into a number of blocks (written with 1: C1, M1, N1) and a place in the block (with 0:
C0, M0, N0).

Images and weights
==================

::

    text            axes        digits, with C0 = 16                               oneDNN's letters
    NC1HWC0         N C H W     n, c//16, h, w, c%16                               nChw16c
    NDC1HWC0        N C D H W   n, d, c//16, h, w, c%16                            ndChw16c
    NC1HWC0_C04     N C H W     n, c//4, h, w, c%4           C0 is 4, always       nChw4c
    FRACTAL_Z       O I H W     i//16, h, w, o//16, o%16, i%16                     IhwO16o16i
    FRACTAL_Z_3D    O I D H W   d, i//16, h, w, o//16, o%16, i%16                  dIhwO16o16i

``FRACTAL_Z`` is for weights. Ascend's own pages call their axes N and C too; N is the output channel and C
the input channel. An f16 filter of 2 x 4 x 8 x 8 becomes 64 x 1 x 16 x 16: 64 = 1 * 8 * 8 of (i//16, h, w),
1 of o//16, and one fractal each.

Matrices
========

Two letters, the first for the order of the fractals, the second for the order inside of them: Z walks along
rows, as the pen does, and N along columns::

    FRACTAL_NZ      n//16, m//16, m%16, n%16       feature maps, results of the cube
    FRACTAL_ZZ      m//16, n//16, m%16, n%16       the left operand in the cube's buffer
    FRACTAL_ZN      k//16, n//16, n%16, k%16       the right operand there
    FRACTAL_NN      n//16, m//16, n%16, m%16

The contiguous side of a fractal is C0 long, the other one 16. An f16 tensor of 8 x 100 x 30 in FRACTAL_NZ
is 8 x 2 x 7 x 16 x 16: 30 columns padded to 32, 100 rows to 112. The last two axes are the matrix, here
``row`` and ``col``; what stands in front is a batch, row-major and outermost. How many such axes there are
is known with the rank; without it FRACTAL_NZ is read with one and the others with none. ``NZ``, ``ZZ`` and
``ZN`` are short for them.

Block sizes
===========

A text without numbers waits for the data type; read without one, C0 is 16, as for f16. Numbers make it
explicit::

    NC1HWC0 (C0=32)    NC1HWC0:32    FRACTAL_Z (C0=32,N0=16)    FRACTAL_NZ (M0=16,N0=32)

Some tool chains keep C0 at 16 for f32, as MindSpore's converters do; then write it. A prefix as in
``ACL_FORMAT_NC1HWC0`` is allowed.

What is refused
===============

``C1HWNCoC0`` (depthwise weights) has an axis too many, Co: a value stands only where Co equals C0, on the
diagonal, and zeros everywhere else. A layout can leave room at the end of an axis, but it can't spread an
axis over a diagonal. ``FRACTAL_Z_C04`` pads C to 4, then reads H, W and C as one number and cuts that into
rows of 16; digits pad last, never in the midst of a number. ``FRACTAL_ZN_LSTM`` and ``FRACTAL_ZN_RNN`` pad
each gate by itself.
"""

from __future__ import annotations

import re

from relayout.dtypes import dtype as data_type
from relayout.errors import LayoutError, Unsupported
from relayout.layout.format import Format
from relayout.layout.roles import DOMAINS, data_roles, weights_roles

TITLE = "Ascend"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_NUMBER = r"[0-9]{1,9}"
_TEXT = re.compile(
    rf"(?:(?:ACL_)?FORMAT_|ACL_)?([A-Z][A-Za-z0-9_]*)\s*(?::\s*({_NUMBER})|\(([A-Za-z0-9=,\s]*)\))?"
)
_SETTING = re.compile(rf"([A-Z]0)\s*=\s*({_NUMBER})")
_CUBE = 16  # rows of a fractal, and C0 of f16
_ROW_BITS = 8 * 32  # of a row of a fractal
_ROWS = tuple(_ROW_BITS // bits for bits in (4, 8, 16, 32))  # elements of such a row

_CHANNELS = {"NC1HWC0": ("n", "c", "h", "w"), "NDC1HWC0": ("n", "d", "c", "h", "w")}
_WEIGHTS = {"FRACTAL_Z": ("i", "h", "w", "o"), "FRACTAL_Z_3D": ("d", "i", "h", "w", "o")}
_MATRICES = {
    "FRACTAL_NZ": 3,
    "FRACTAL_ZZ": 2,
    "FRACTAL_ZN": 2,
    "FRACTAL_NN": 2,
}  # and the rank if none is given
_SHORT = {"NZ": "FRACTAL_NZ", "ZZ": "FRACTAL_ZZ", "ZN": "FRACTAL_ZN"}
# Meanings that rule a matrix out. Not "n": in other dialects it is a batch or the columns of a matrix.
_NOT_MATRICES = {role for domain in DOMAINS for role in domain} - {"n"}
_REFUSED = {
    "C1HWNCoC0": "it holds values only where Co equals C0, on a diagonal; digits can't spread an axis",
    "FRACTAL_Z_C04": "it pads channels before it reads height, width, channel as one number; digits pad last",
    "FRACTAL_ZN_LSTM": "it pads each gate by itself, and digits pad an axis at its end only",
    "FRACTAL_ZN_RNN": "it pads each gate by itself, and digits pad an axis at its end only",
}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a format; without C0 it waits for the data type, and a matrix format waits for the rank.

    Raises
    ------
    LayoutError
        Block sizes that the format doesn't have or that are below 2; a matrix format for fewer than two axes.
    Unsupported
        Formats that are no order of digits.

    Examples
    --------
    >>> parse("NC1HWC0") == Format("nChw16c"), parse("NC1HWC0", dtype="s8") == Format("nChw32c")
    (True, True)
    >>> parse("FRACTAL_Z").digits_text()
    'oihw -> i//16, h, w, o//16, o%16, i%16'
    >>> parse("FRACTAL_NZ (M0=16,N0=32)", rank=2).digits_text()
    'row col -> col//32, row//16, row%16, col%32'
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    name = _SHORT.get(match[1], match[1])
    if name in _REFUSED:
        raise Unsupported(f"Ascend's {name} is no layout: {_REFUSED[name]}")
    if name == "NC1HWC0_C04" and match[2] is match[3] is None:
        return _channels("NC1HWC0", 4)
    if name in _CHANNELS:
        sizes = _sizes(text, match, {"C0": "C0"})
        return _channels(name, sizes.get("C0") or _c0(dtype)).spelled(text, "ascend", _waits(sizes, "C0"))
    if name in _WEIGHTS:
        sizes = _sizes(text, match, {"C0": "C0", "N0": "N0"})
        made = _weights(name, sizes.get("C0") or _c0(dtype), sizes.get("N0", _CUBE))
        return made.spelled(text, "ascend", _waits(sizes, "C0"))
    return _read_matrix(text, match, name, rank, dtype) if name in _MATRICES else None


def _read_matrix(text: str, match: re.Match[str], name: str, rank: int | None, dtype: str | None) -> Format:
    rows = "K0" if name == "FRACTAL_ZN" else "M0"
    contiguous, other = (rows, "N0") if name.endswith("N") else ("N0", rows)
    sizes = _sizes(text, match, {"C0": contiguous, "M0": rows, "K0": rows, "N0": "N0"})
    axes = _MATRICES[name] if rank is None else rank
    if axes < 2:
        raise LayoutError(f"{text!r} is a format of matrices, which have two axes or more, got {axes}")
    known = {contiguous: _c0(dtype), other: _CUBE, **sizes}
    return _matrix(name, axes, known[rows], known["N0"]).spelled(
        text, "ascend", {"rank"} | _waits(sizes, contiguous)
    )


def _sizes(text: str, match: re.Match[str], keys: dict[str, str]) -> dict[str, int]:
    """Read sizes, ``:16`` or ``(C0=16,N0=16)``; ``keys`` maps what may be set to its meaning."""
    pairs = [("C0", match[2])] if match[2] else []
    for part in [] if match[3] is None else match[3].split(","):
        setting = _SETTING.fullmatch(part.strip())
        if setting is None or setting[1] not in keys:
            raise LayoutError(
                f"can't read {part.strip()!r} in {text!r}; its block sizes are written {_example(keys)}"
            )
        pairs.append((setting[1], setting[2]))
    found: dict[str, int] = {}
    for key, number in pairs:
        if keys[key] in found:
            raise LayoutError(f"{text!r} sets {keys[key]} twice")
        if int(number) < 2:
            raise LayoutError(f"{text!r}: {key} is {number}; a block must have 2 elements or more")
        found[keys[key]] = int(number)
    return found


def _example(keys: dict[str, str]) -> str:
    return "(" + ",".join(f"{key}=16" for key in dict.fromkeys(keys.values())) + ")"


def _waits(sizes: dict[str, int], key: str) -> set[str]:
    return set() if key in sizes else {"dtype"}


def _c0(dtype: str | None) -> int:
    return _CUBE if dtype is None else _ROW_BITS // data_type(dtype).bits


def _channels(name: str, c0: int) -> Format:
    outer = _CHANNELS[name]
    return Format.blocked(data_roles(len(outer) - 2), outer, [("c", c0)])


def _weights(name: str, c0: int, n0: int) -> Format:
    outer = _WEIGHTS[name]
    return Format.blocked(weights_roles(len(outer) - 2), outer, [("o", n0), ("i", c0)])


def _matrix(name: str, rank: int, m0: int, n0: int) -> Format:
    batch = ("b",) if rank == 3 else tuple(f"b{k}" for k in range(rank - 2))
    fractals, within = name[-2], name[-1]
    outer = ("row", "col") if fractals == "Z" else ("col", "row")
    inner = [("row", m0), ("col", n0)] if within == "Z" else [("col", n0), ("row", m0)]
    return Format.blocked((*batch, "row", "col"), (*batch, *outer), inner)


def render(format: Format) -> str | None:
    """Spell a format with its block sizes written out.

    Formats whose axes have no meaning are read as matrices.

    >>> render(Format("nChw32c")), render(Format("IhwO16o16i")), render(Format("BA16a16b"))
    ('NC1HWC0 (C0=32)', 'FRACTAL_Z (C0=16,N0=16)', 'FRACTAL_NZ (M0=16,N0=16)')
    """
    rank, roles = format.rank, format.roles
    if rank is None or rank < 2:
        return None
    blocks = format.blocks
    for name, outer in _CHANNELS.items():
        if roles == data_roles(len(outer) - 2) and blocks[1] > 1 and format == _channels(name, blocks[1]):
            return f"{name} (C0={blocks[1]})"
    for name, outer in _WEIGHTS.items():
        if (
            roles == weights_roles(len(outer) - 2)
            and min(blocks[:2]) > 1
            and format == _weights(name, blocks[1], blocks[0])
        ):
            return f"{name} (C0={blocks[1]},N0={blocks[0]})"
    m0, n0 = blocks[-2:]
    if min(m0, n0) < 2 or _NOT_MATRICES.intersection(roles or ()):
        return None
    for name in _MATRICES:
        if format == _matrix(name, rank, m0, n0):
            return f"{name} ({'K0' if name == 'FRACTAL_ZN' else 'M0'}={m0},N0={n0})"
    return None


def names() -> tuple[str, ...]:
    """The formats without block sizes, and the usual sizes."""
    return (
        *_CHANNELS, *_WEIGHTS, *_MATRICES, "NC1HWC0_C04",
        "NC1HWC0 (C0=16)", "NC1HWC0 (C0=32)", "FRACTAL_Z (C0=16,N0=16)", "FRACTAL_Z (C0=32,N0=16)",
        "FRACTAL_NZ (M0=16,N0=16)", "FRACTAL_NZ (M0=16,N0=32)", "FRACTAL_ZN (K0=16,N0=16)",
    )  # fmt: skip


def attested(name: str) -> bool:
    """Whether a fractal has these sizes: 32 bytes of some data type by 16, or 4 channels of an image.

    >>> attested("NC1HWC0 (C0=32)"), attested("NC1HWC0 (C0=24)"), attested("FRACTAL_NZ (M0=16,N0=32)")
    (True, False, True)
    """
    match = _TEXT.fullmatch(name)
    if match is None:
        return False
    format = _SHORT.get(match[1], match[1])
    sizes = {key: int(size) for key, size in _SETTING.findall(match[3] or "")}
    if match[2]:
        sizes["C0"] = int(match[2])
    if format in _CHANNELS or format in _WEIGHTS:
        c0 = sizes.get("C0", _CUBE)
        return sizes.get("N0", _CUBE) == _CUBE and (c0 in _ROWS or (c0 == 4 and format == "NC1HWC0"))
    rows = sizes.get("M0", sizes.get("K0", _CUBE))
    columns = sizes.get("N0", sizes.get("C0", _CUBE))
    contiguous, other = (rows, columns) if format.endswith("N") else (columns, rows)
    return other == _CUBE and contiguous in _ROWS
