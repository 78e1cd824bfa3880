"""clDNN's format names: the memory formats of OpenVINO's GPU plugin.

How a name is built
===================

A name says the digits from the outermost to the innermost, part by part::

    b_fs_yx_fsv16        b     fs      yx     fsv16
                         n,    c//16,  h, w,  c%16              oneDNN: nChw16c

::

    name   = outer ("_" outer)* ("_" inner)* ("__a" axis number)* ["_swizzled_by_" number]
    outer  = axes            bfyx, iyx     open digits, one after another
           | axes "s"        fs, os, yxs   number of the slice; the axis is cut, an inner part says how
           | axis number     x8, o32       padded to a multiple of the number, but left in place
    inner  = axes "sv" number     fsv16    place in the slice ("slice vector")
           | axis "sa" number     osa4     number of the vector in a slice that is cut again ("slice array")

========  ============================================================================================
kind      axes in logical order, the order of the dims, whatever the order of memory
========  ============================================================================================
data      ``b`` batch, ``f`` feature, and of the spatial ``v u w z y x`` none or the last two to six
weights   ``g`` group if there are groups, ``o`` output and ``i`` input feature, none or ``y x`` or ``z y x``
========  ============================================================================================

The inner parts of one axis go from the most to the least significant digit. So all of these follow from
their names::

    bs_fs_yx_bsv16_fsv32            b//16, f//32, y, x, b%16, f%32
    os_is_yx_isa8_osv16_isv4        o//16, i//32, y, x, i//4%8, o%16, i%4
    os_is_yx_osa4_isa8_osv8_isv4    o//32, i//32, y, x, o//8%4, i//4%8, o%8, i%4
    os_y_is_x_osv8_isv2             o//8, y, i//2, x, o%8, i%2
    i_yxs_os_yxsv2_osv16            i, (y x)//2, o//16, (y x)%2, o%16

The last one *fuses* y and x: the number that is cut is ``y * X + x``.

Two suffixes
============

**Alignment.** ``__ai32`` pads i to a multiple of 32 and leaves it in place, just as ``x8`` does with x. In
digits that is a cut whose halves stay together::

    os_iyx_osv32__ai32              o//32, i//32, i%32, y, x, o%32
    os_is_y_x8_osv8_isv4            o//8, i//4, y, x//8, x%8, o%8, i%4

**Swizzle.** ``swizzled_by_4`` renumbers the outputs of each tile of 32 before they are cut: 0, 4, 8, ... 28
come first, then 1, 5, 9, ... so that one lane of the GPU's sub-group ends up with four neighbouring outputs.
The new number of o is ::

    o' = o // 32 * 32 + o % 4 * 8 + o // 4 % 8

and the name is read with o' in the place of o. The digits of o then are in no order of significance, which
no list of blocks can say::

    os_is_yx_osv32_isv4_swizzled_by_2              o//32, i//4, y, x, o%2, o//2%16, i%4
    os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4     o//32, i//32, y, x, o%4, i//4%8, o//4%8, i%4
    is_o32_yx_isv32_swizzled_by_4                  i//32, o//32, o%4, o//4%8, y, x, i%32

A square tile ``osv32_isv32`` under a swizzle is short for ``osa4_isa8_osv8_isv4``: the multiply-add
instruction wants four inputs innermost.

Names that mean something else for 4-bit elements
=================================================

Two 4-bit weights share a byte, so the plugin pairs them: ``os_iyx_osv16`` pairs neighbouring inputs, the
wider two pair outputs that are 16 apart::

    name           8 bits and more         4 bits                            by grammar that is
    os_iyx_osv16   o//16, i, y, x, o%16    o//16, i//2, y, x, o%16, i%2      os_is_yx_osv16_isv2
    os_iyx_osv32   o//32, i, y, x, o%32    o//32, i, y, x, o%16, o//16%2     os_iyx_osv32_swizzled_by_16
    os_iyx_osv64   o//64, i, y, x, o%64    o//64, i, y, x, o//32%2, o%16,    os_iyx_osv64_swizzled_by_16
                                           o//16%2

Such a format waits for the data type: ``Format.resolve(dtype="s4")`` reads it again, and a MemoryDesc does so
by itself. ``os_is_yx_osv32_isv2`` and ``os_is_yx_osv64_isv2`` are made for 4-bit elements only and mean the
same for all. 4-bit ``oiyx`` stays plain; a row of odd length gets one element of *pad* behind it, which is a
matter of sizes and not of the format (:mod:`relayout.notation.cldnn_layout` has pads).

Where the plugin disagrees with itself
======================================

It describes a format three times: by its name, by a table of traits, and by OpenCL code. Where they disagree
the name is taken for the truth. The table knows only the 32 of o in ``os_is_yx_osv32_isv2``; the code of
``os_is_yx_isv8_osv16_isv2`` agrees with the name only if I is a multiple of 16 (elsewhere its elements
collide), and that of ``gs_oi_yxs_gsv4_yxsv4`` only if O = I = 1, as in depthwise weights.

What is no layout
=================

Winograd formats hold transformed values, images are opaque objects with a pitch that the driver chooses,
``b_fs_yx_32fp`` packs single bits, and ``iy_xs_os_xsv2_osv8__ao32`` changes the width of its slices in the
last column if X is odd. They are refused by name, with the reason. ``lstm_weights_dio`` (direction, input,
output) is a layout like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NoReturn

from relayout.errors import UnknownFormat, Unsupported
from relayout.layout.format import Format

TITLE = "OpenVINO GPU (clDNN)"

__all__ = ["TITLE", "attested", "axes_of", "names", "parse", "render"]

# -- axes -----------------------------------------------------------------------------------------------

_DATA_ROLE = {"b": "n", "f": "c", "v": "s6", "u": "s5", "w": "s4", "z": "d", "y": "h", "x": "w"}
_WEIGHTS_ROLE = {"g": "g", "o": "o", "i": "i", "z": "d", "y": "h", "x": "w"}
_SPATIAL: Final = frozenset("vuwzyx")
_DATA_AXES = ("bf", "bfyx", "bfzyx", "bfwzyx", "bfuwzyx", "bfvuwzyx", "bx")  # bx: the matrices of 2021
_WEIGHTS_AXES = ("oi", "oiyx", "oizyx", "goi", "goiyx", "goizyx")
_LOGICAL = {frozenset(axes): axes for axes in (*_DATA_AXES, *_WEIGHTS_AXES)}
_ROLE = {**dict.fromkeys(_DATA_AXES, _DATA_ROLE), **dict.fromkeys(_WEIGHTS_AXES, _WEIGHTS_ROLE)}
_AXES = {tuple(role[axis] for axis in axes): axes for axes, role in _ROLE.items()}

_LSTM_NAME: Final = "lstm_weights_dio"
_LSTM_ROLES = ("l", "dir", "i", "o")  # the first axis always has size 1; o counts the four gates

# -- reading --------------------------------------------------------------------------------------------

_AXIS: Final = "[bfvuwzyxgoi]"
_OUTER: Final = f"(?:{_AXIS}+s?|{_AXIS}[0-9]{{1,6}})"
_INNER: Final = f"{_AXIS}+s[va][0-9]{{1,6}}"
_NAME = re.compile(
    f"({_OUTER}(?:_{_OUTER})*)((?:_{_INNER})*)((?:__a{_AXIS}[0-9]{{1,6}})*)(?:_swizzled_by_([0-9]{{1,3}}))?"
)
_OUTER_PART = re.compile(f"({_AXIS}+)(s|[0-9]+)?")
_INNER_PART = re.compile(f"({_AXIS}+)s[va]([0-9]+)")
_ALIGNED = re.compile("__a(.)([0-9]+)")

_TILE: Final = 32  # outputs that a swizzle renumbers among themselves
_STEPS: Final = (2, 4, 8, 16)
_SQUARE = [("o", _TILE), ("i", _TILE)]

_FOUR_BITS = {
    "os_iyx_osv16": "os_is_yx_osv16_isv2",
    "os_iyx_osv32": "os_iyx_osv32_swizzled_by_16",
    "os_iyx_osv64": "os_iyx_osv64_swizzled_by_16",
}
"""What a name means for 4-bit elements, as the grammar would say it."""

_REFUSED = re.compile(
    r"(?P<winograd>(?:image_2d_weights_)?winograd_\w+)|(?P<image>image_2d_\w+)|(?P<planes>nv12)"
    r"|(?P<bits>\w+_(?:32fp|isv32p))|(?P<any>any)|(?P<custom>custom|format_num)"
)
_REASONS = {
    "winograd": "holds values that are transformed for Winograd convolution: others than the tensor's, and "
    "more of them, so it is no order of its elements. Reorder plain weights (oiyx) or data (byxf) and leave "
    "the transform to the convolution",
    "image": "is an OpenCL 2-D image: texels behind a row pitch that the driver chooses, reached through a "
    "sampler and not by address. For a buffer take byxf (interleaved channels) or oiyx",
    "planes": "is an image in two buffers, brightness and colour, the latter at half the resolution. "
    "Describe each as a tensor of its own: byxf with 1 and with 2 features",
    "bits": "packs 32 features of one bit into a word; elements have at least 4 bits here. Describe the "
    "words instead: an s32 tensor with features / 32 channels",
    "any": "is no format but the wish that the implementation may choose one: that is relayout.any",
    "custom": "is no format but a placeholder in clDNN's enumeration. A custom format is given by an order "
    "and blocks; write those as a oneDNN tag (aBcd16b) or as digits",
}

_Digit = tuple[str, int, "int | None"]  # axes, weight, extent (None: open)


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a name; None if it is none.

    Parameters
    ----------
    text : str
        A name such as ``"b_fs_yx_fsv16"``. It is read by grammar and need not be one that clDNN defines.
    rank : int, optional
        Not used; a name fixes its axes.
    dtype : str, optional
        ``"s4"`` and ``"u4"`` give ``os_iyx_osv16``, ``..32`` and ``..64`` their other meaning.

    Raises
    ------
    Unsupported
        clDNN has the name, but it is no layout (Winograd, images, bits, irregular slices) or no format.
    UnknownFormat
        Built like a name, but the parts contradict each other, such as slices without a width.

    Examples
    --------
    >>> parse("os_is_yx_isa8_osv16_isv4").digits_text()
    'oihw -> o//16, i//32, h, w, i//4%8, o%16, i%4'
    >>> parse("os_iyx_osv32", dtype="s4").digits_text()
    'oihw -> o//32, i, h, w, o%16, o//16%2'
    """
    if text == _LSTM_NAME:
        return Format.blocked(_LSTM_ROLES, ("l", "dir", "i", "o"))
    if text in _FOUR_BITS:
        known = _read(_FOUR_BITS[text] if dtype in ("s4", "u4") else text)
        return known.spelled(text, "openvino", {"dtype"}) if known is not None else None
    return _read(text)


def _read(text: str) -> Format | None:
    """Read a name by grammar alone."""
    match = _NAME.fullmatch(text)
    if match is None:
        refused = _REFUSED.fullmatch(text)
        if refused is not None:
            raise Unsupported(f"{text!r} {_REASONS[str(refused.lastgroup)]}")
        return None
    outer: list[tuple[str, str]] = _OUTER_PART.findall(match[1])
    inner = [(key, int(size)) for key, size in _INNER_PART.findall(match[2])]
    letters = "".join(key for key, _ in outer)
    logical = _LOGICAL.get(frozenset(letters))
    if logical is None or len(letters) != len(logical):
        if not inner:
            return None
        _complain(
            text,
            f"its outer parts name the axes {' '.join(letters)}; they must name, each once, "
            "b f [[[[v] u] w] z] y x of data or [g] o i [z] y x of weights",
        )
    pads = _ALIGNED.findall(match[3]) + [(key, mark) for key, mark in outer if mark.isdigit()]
    aligned = {axis: int(multiple) for axis, multiple in pads}
    if len(aligned) != len(pads):
        _complain(text, "it aligns an axis twice")
    step = int(match[4]) if match[4] else None
    problem = _contradiction(logical, outer, inner, aligned, step)
    if problem is not None:
        if "_" not in text:
            return None
        _complain(text, problem)
    if "__ao" in match[3] and ("x", "s") in outer:
        raise Unsupported(
            f"{text!r} is irregular: if X is odd, the last column has slices of 32 outputs and the others "
            "have narrower ones, so no digits describe it. Where X is even and O a multiple of 32, the name "
            f"without its suffix, {text.partition('__')[0]!r}, is the same layout"
        )

    role = _ROLE[logical]
    roles = [role[axis] for axis in logical]
    if step is None and not aligned and all(len(key) == 1 for key, _ in inner):
        outermost = [role[axis] for axis in letters]
        return Format.blocked(roles, outermost, [(role[axis], size) for axis, size in inner])
    if step is not None and inner == _SQUARE:
        inner = [("o", step), ("i", _TILE // step), ("o", _TILE // step), ("i", step)]
    digits = _digits(text, outer, inner, aligned)
    if step is not None:
        digits = _swizzled(text, digits, step)
    named = [(tuple(role[axis] for axis in key), weight, extent) for key, weight, extent in digits]
    return Format.from_digits(roles, named)


def _contradiction(
    logical: str,
    outer: Sequence[tuple[str, str]],
    inner: Sequence[tuple[str, int]],
    aligned: dict[str, int],
    step: int | None,
) -> str | None:
    """What is wrong between the parts of a name, or None."""
    sliced = [key for key, mark in outer if mark == "s"]
    widths = [key for key, _ in inner]
    for key in sliced:
        if len(key) > 1 and (key not in logical or not _SPATIAL.issuperset(key)):
            return f"the part {key}s fuses axes, and only neighbouring spatial axes can be, as in yxs"
        if key not in widths:
            return f"the part {key}s slices {key}, but no part {key}sv<width> says how wide the slices are"
    for key in widths:
        if key not in sliced:
            return f"it has slices of {key} in an inner part, but no outer part {key}s that counts them"
    for axis in aligned:
        if axis not in logical or len(axis) > 1:
            return f"it aligns {axis}, which is none of its axes {' '.join(logical)}"
    if 0 in aligned.values() or any(size == 0 for _, size in inner):
        return "a width must be 1 or more"
    if step is not None and step not in _STEPS:
        return f"a swizzle goes by 2, 4, 8 or 16 outputs, not by {step}"
    if step is not None and "o" not in sliced and "o" not in aligned:
        return "a swizzle renumbers the outputs of slices, but o is neither sliced (os) nor aligned (o32)"
    return None


def _digits(
    text: str, outer: Sequence[tuple[str, str]], inner: Sequence[tuple[str, int]], aligned: dict[str, int]
) -> list[_Digit]:
    """The digits of a name, its swizzle left out."""
    left: dict[str, int] = {}
    for key, size in inner:
        left[key] = left.get(key, 1) * size
    digits: list[_Digit] = []
    for part, mark in outer:
        for key in (part,) if mark == "s" and left.get(part) != 1 else part:
            width = left.get(key, 1)
            room = aligned.get(key, width)
            if room % width:
                _complain(text, f"it pads {key} to a multiple of {room}, but slices it by {width}")
            digits.append((key, room, None))
            if room != width:
                digits.append((key, width, room // width))
    for key, size in inner:
        left[key] //= size
        if size != 1:
            digits.append((key, left[key], size))
    return digits


def _swizzled(text: str, digits: Sequence[_Digit], step: int) -> list[_Digit]:
    """Turn digits of o' into digits of o.

    With ``half = 32 // step``, o' is ``o // 32 * 32 + o % step * half + o // step % half``. So below ``half``
    and between ``half`` and 32 a digit of o' is a digit of o of another weight. One that reaches over such a
    border is cut there.
    """
    half = _TILE // step
    out: list[_Digit] = []
    for key, weight, extent in digits:
        if key != "o":
            out.append((key, weight, extent))
            continue
        end = weight * extent if extent is not None else None
        cuts = [cut for cut in (half, _TILE) if weight < cut and (end is None or cut < end)]
        for low, high in zip(reversed([weight, *cuts]), reversed([*cuts, end]), strict=True):
            if (high is not None and high % low) or (low > half and low % half):
                _complain(text, f"its slices of o don't fit a swizzle of {_TILE} outputs in steps of {step}")
            weight_in_o = low if low >= _TILE else low // half if low >= half else low * step
            out.append((key, weight_in_o, high // low if high is not None else None))
    return _joined(out)


def _complain(text: str, why: str) -> NoReturn:
    raise UnknownFormat(f"{text!r} is no format of clDNN: {why}")


# -- writing --------------------------------------------------------------------------------------------

_WRITTEN = {"os_is_osa4_isa8_osv8_isv4_swizzled_by_4": "os_is_osv32_isv32_swizzled_by_4"}


def axes_of(format: Format) -> str | None:
    """The axes of a format by clDNN's letters, in logical order; None where clDNN has no such tensors.

    >>> axes_of(Format("nChw16c")), axes_of(Format("goihw")), axes_of(Format("abcd"))
    ('bfyx', 'goiyx', None)
    """
    return _AXES.get(format.roles) if format.roles is not None else None


def render(format: Format) -> str | None:
    """Spell a format whose axes have roles that clDNN knows; exactly as clDNN does where it has the format.

    Examples
    --------
    >>> render(Format("OIhw16i16o")), render(Format("goihw")), render(Format("aBcd16b"))
    ('os_is_yx_isv16_osv16', 'goiyx', None)
    """
    if format.roles == _LSTM_ROLES:
        return _LSTM_NAME if format == parse(_LSTM_NAME) else None
    logical = axes_of(format)
    if logical is None:
        return None
    keys = ["".join(logical[axis] for axis in term) for term in format.terms]
    digits: list[_Digit] = [(keys[d.term], d.weight, d.extent) for d in format.digits]
    for name in _candidates(digits, logical):
        if _reads_as(name, format):
            return _WRITTEN.get(name, name)
    return None


def _reads_as(name: str, format: Format) -> bool:
    try:
        return _read(name) == format
    except (UnknownFormat, Unsupported):
        return False


def _candidates(digits: list[_Digit], logical: str) -> Iterator[str]:
    """Names that may say the digits: plainly if those of each axis fall in weight, else with a swizzle."""
    keys = {key for key, _, _ in digits}
    weights = [[weight for other, weight, _ in digits if other == key] for key in keys]
    if all(upper > lower for ladder in weights for upper, lower in pairwise(ladder)):
        name = _write(digits, logical)
        if name is not None:
            yield name
        return
    for step in _STEPS:
        restored = _unswizzled(digits, step)
        for join_open in (True, False) if restored is not None else ():
            name = _write(_joined(restored or [], join_open), logical)
            if name is not None:
                yield f"{name}_swizzled_by_{step}"


def _unswizzled(digits: Sequence[_Digit], step: int) -> list[_Digit] | None:
    """Turn digits of o into digits of o', or None where one reaches over a border of the swizzle.

    This is :func:`_swizzled` backwards.
    """
    out: list[_Digit] = []
    for key, weight, extent in digits:
        if key == "o" and weight < _TILE:
            border = step if weight < step else _TILE
            if extent is None or weight * extent > border:
                return None
            weight = weight * (_TILE // step) if weight < step else weight // step
        out.append((key, weight, extent))
    return out


def _joined(digits: Sequence[_Digit], join_open: bool = False) -> list[_Digit]:
    """Join digits of o that stand side by side and continue each other: the cuts that a swizzle makes."""
    out: list[_Digit] = []
    for key, weight, extent in digits:
        if out and key == "o" == out[-1][0] and extent is not None and out[-1][1] == weight * extent:
            above = out[-1][2]
            if above is not None or join_open:
                out[-1] = (key, weight, above * extent if above is not None else None)
                continue
        out.append((key, weight, extent))
    return out


def _write(digits: Sequence[_Digit], logical: str) -> str | None:
    """Spell digits without a swizzle; None where the open digits do not come first."""
    border = max(k for k, digit in enumerate(digits) if digit[2] is None) + 1
    if logical[0] != "b" and border < len(digits):
        # Where i//8 and i%8 end the outer digits, clDNN calls the axis aligned in weights (os_i_osv8__ai8)
        # and sliced in data (bs_fs_fsv8_bsv8).
        (above, *_), (key, weight, _) = digits[border - 1], digits[border]
        border += above == key and weight == 1 and len(key) == 1
    outer: list[str] = []
    aligned: dict[str, int] = {}
    for key, weight, extent in digits[:border]:
        if extent is None:
            outer.append(key)
        elif outer and key == outer[-1] and key not in aligned:
            aligned[key] = weight * extent
        else:
            return None
    inner = [(key, extent) for key, _, extent in digits[border:] if extent is not None]
    sliced = {key for key, _ in inner}
    by_suffix = {key: room for key, room in aligned.items() if key in sliced or key == "i"}
    marks = []
    for key in outer:
        padded = str(aligned[key]) if key in aligned and key not in by_suffix else ""
        marks.append((key, "s" if key in sliced else padded))
    suffixes = "".join(f"__a{key}{room}" for key, room in by_suffix.items())
    return "_".join([*_outer_parts(marks), *_inner_parts(inner)]) + suffixes


def _outer_parts(marks: Sequence[tuple[str, str]]) -> list[str]:
    """Write outer digits as clDNN does: unmarked neighbours share a part, b and o only if f or i follows."""
    if not any(mark for _, mark in marks):
        return ["".join(key for key, _ in marks)]
    parts: list[str] = []
    shared = False  # whether the next unmarked axis goes into the last part
    for k, (key, mark) in enumerate(marks):
        leads = not mark and key in ("b", "o")
        if shared and not mark and not leads:
            parts[-1] += key
        else:
            parts.append(key + mark)
        follower = ("f", "") if key == "b" else ("i", "")
        shared = not mark and (not leads or marks[k + 1 : k + 2] == [follower])
    return parts


def _inner_parts(inner: Sequence[tuple[str, int]]) -> list[str]:
    """Write inner digits: ``sv`` for the last one of each axis, ``sa`` for those above."""
    if list(inner) == [("i", 8), ("o", 16), ("i", 2)]:
        return ["isv8", "osv16", "isv2"]  # the one packing for which clDNN writes sv twice
    last = {key: k for k, (key, _) in enumerate(inner)}
    return [f"{key}s{'v' if last[key] == k else 'a'}{size}" for k, (key, size) in enumerate(inner)]


# -- what there is --------------------------------------------------------------------------------------

_PLAIN = (
    "bfyx byxf yxfb bfxy fbyx fyxb fybx xbfy ybfx byfx bxfy bfzyx bzyxf bfwzyx bfuwzyx bfvuwzyx "
    "oiyx ioyx iyxo oyxi oyix oxiy yxio oizyx iozyx goiyx gioyx goizyx giozyx gyxio"
)
_DOUBLE = {4: (2, 4), 8: (2, 4), 16: (2, 4, 8, 16, 32), 32: (16, 32)}  # widths of b, and with each those of f
_PACKED = (
    ("os_is_{yx}", "isv16_osv16 osv16_isv16 isv8_osv16_isv2 osv8_isv2 osv8_isv4 osv32_isv4"),
    ("os_is_{yx}", "isa8_osv8_isv2 isa8_osv8_isv4 isa8_osv16_isv4 osa2_isa8_osv8_isv2"),
    ("os_is_{yx}", "osa4_isa8_osv8_isv2 osa4_isa8_osv8_isv4 osa4_isa8_osv8_isv4_swizzled_by_4"),
    ("os_is_yx", "osv16_isv4 osv32_isv2 osv64_isv2 osa2_isa8_osv16_isv2 osa2_isa8_osv16_isv4"),
    ("os_is_yx", "osv32_isv4_swizzled_by_2 isa8_osv8_isv4_swizzled_by_4"),
    ("os_is_zyx", "osv32_isv16 osv64_isv16"),
    ("is_os_{yx}", "isv16_osv16 isa8_osv8_isv2 isa8_osv8_isv4"),
    ("is_os_yx", "osa4_isa8_osv8_isv4 isa2_osa8_isv8_osv2 isa4_osa8_isv8_osv4"),
    ("os_{yx}_is", "osv8_isv2 osv8_isv4"),
    ("os_y_is_x", "osv8_isv2 osv8_isv4"),
    ("os_zy_is_x", "osv8_isv2 osv8_isv4"),
    ("o_is_yx", "isv4 isv16"),
    ("os_iyx", "osv8 osv16 osv32 osv64 osv32__ai32"),
    ("os_i", "osv16 osv16__ai8 osv8__ai8"),
    ("os_zyxi", "osv16"),
    ("os_yxi", "osv16"),
    ("i_yxs_os", "yxsv2_osv16"),
    ("os_i_yxs", "osv4_yxsv4"),
    ("os_is_y_x8", "osv8_isv4 osv8_isv4_swizzled_by_4"),
    ("os_is", "osv32_isv32_swizzled_by_4"),
    ("is_o_yx", "isv32"),
    ("is_o32_yx", "isv32_swizzled_by_4"),
    ("g_os_iyx", "osv8 osv16 osv32"),
    ("g_os_is_{yx}", "isv16_osv16 isv8_osv16_isv2 osa4_isa8_osv8_isv2 osa4_isa8_osv8_isv4"),
    ("g_os_is_yx", "osv16_isv4 osv8_isv2 osv8_isv4 isa8_osv8_isv2 isa8_osv8_isv4 osa2_isa8_osv8_isv2"),
    ("g_os_is_yx", "osa2_isa8_osv16_isv2 osa2_isa8_osv16_isv4"),
    ("g_os_is_zyx", "osv16_isv16"),
    ("g_is_os_{yx}", "isv16_osv16"),
    ("g_os_zyx_is", "osv16_isv4 osv16_isv16 osv16_isv32 osv32_isv4 osv32_isv16 osv32_isv32"),
    ("g_os_yx_is", "osv8_isv2 osv8_isv4"),
    ("g_os_y_is_x", "osv8_isv2 osv8_isv4"),
    ("gs_oi{yx}", "gsv16 gsv32"),
    ("gs_oi_yxs", "gsv4_yxsv4 gsv16_yxsv4 gsv32_yxsv4"),
    ("gi_yxs_os", "yxsv2_osv16"),
)  # outer parts of weights, and with each the inner ones


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The formats that clDNN has or had at some time since 2021, those left out that are no layouts."""
    return tuple(_names())


def _names() -> Iterator[str]:
    yield from _PLAIN.split()
    for space in ("yx", "zyx"):
        yield from (f"b_fs_{space}_fsv{f}" for f in (2, 4, 8, 16, 32))
        yield from (f"bs_fs_{space}_bsv{b}_fsv{f}" for b, widths in _DOUBLE.items() for f in widths)
    yield "fs_b_yx_fsv32"
    for axis in "fx":  # 2021 called the second axis of a matrix x
        yield from (f"bs_{axis}s_{axis}sv8_bsv8", f"bs_{axis}s_{axis}sv8_bsv16", f"bs_{axis}_bsv16")
    for outer, packings in _PACKED:
        for space in ("yx", "zyx") if "{yx}" in outer else ("yx",):
            yield from (f"{outer.format(yx=space)}_{inner}" for inner in packings.split())
    yield _LSTM_NAME


def attested(name: str) -> bool:
    """Whether clDNN has a format of this name, or had one at some time since 2021.

    >>> attested("b_fs_yx_fsv16"), attested("b_fs_yx_fsv24")
    (True, False)
    """
    return name in names()
