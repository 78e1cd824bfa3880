"""MegEngine's formats: ``NCHW4``, ``NHWCD4``, ``KCRSc4k4``, ``C11RSc8``, ``NCHW44@weights``.

MegEngine has two vocabularies.

**Tensor formats** (``TensorFormats``) say where the axes of one tensor lie, and follow a grammar: capital
letters are the axes in memory order, outermost first; an axis that a lower-case letter with a number
follows is blocked, and the blocks stand behind, in order::

    NCHWc4      n, c//4, h, w, c%4               data: N C H W are batch, channel, height, width
    KCRSc4k4    o//4, i//4, h, w, i%4, o%4       weights: [G] K C R S are group, output, input, height, width
    C11RSc4     g//4, 1, 1, h, w, g%4            channel-wise weights: C groups of 1 output, 1 input

The letters mean roles, and roles fix the logical order: data is indexed ``n c h w``, weights ``[g] o i h
w``, whatever the memory order is. As the unit axes of channel-wise weights carry nothing, ``C11RSc4`` may
be used with 5 axes (C, 1, 1, R, S), which it has when nothing is said, with 4 (C, 1, R, S) and with 3 (C,
R, S).

**Convolution formats** (``Convolution.Format``) say how source, weights *and* destination of an operation
lie (:func:`~relayout.notation.megengine_convolution.convolution_formats`). Those that mean one layout for
data have become names of data formats: ``NCHW4`` is ``NCHWc4``, ``CHWN4`` is ``CHWNc4``, and ``NHWCD4`` is
``NHCWc4``, so not what one might think. ``NCHW44`` is ambiguous: its data is ``NCHWc4``, its weights are
``[K//4, C//4, R, S, C%4, K%4]``. It needs a reading behind it::

    NCHW44@data    NCHW44@weights    NCHW44@group    NCHW44@channelwise

Names that pair two layouts (``NCHW4_NCHW32``) and Winograd formats are refused with the reason.

**4-bit elements**: MegEngine starts every row on a whole byte (``LOWBITS_ALIGNED_TO_BYTE``).
``NCHW@lowbit`` says so: ``n, c, h, w//2, w%2``. ``row_major`` and ``column_major`` are the two orders of a
tensor whose axes have no meaning.

Reading is more generous than writing: blocks of any size are read, but only formats that MegEngine has a
name for are spelled. Its blocks have 4, 8, 32 or 64 elements, so ``nChw16c`` has no name here.

Beside this module: :mod:`~relayout.notation.megengine_physical` has shapes, strides in bytes and images,
:mod:`~relayout.notation.megengine_relayout` the modes of ``RelayoutFormat``,
:mod:`~relayout.notation.megengine_padding` padding by group.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from relayout.dtypes import dtype as as_dtype
from relayout.errors import AmbiguousFormat, LayoutError, UnknownFormat, Unsupported
from relayout.forking import lock
from relayout.layout.format import Format, letters
from relayout.layout.roles import data_roles, weights_roles
from relayout.notation.megengine_convolution import (
    ConvolutionFormats,
    convolution_formats,
    convolution_names,
    data_format,
)
from relayout.notation.megengine_padding import byte_rows
from relayout.notation.onednn import blocked_digits

TITLE = "MegEngine"

__all__ = [
    "TITLE",
    "attested",
    "convolution_formats",
    "lowbit_aligned",
    "names",
    "parse",
    "render",
    "unit_axes",
    "without_lowbit",
]

_TENSOR = re.compile(r"([A-Z1]+)((?:[a-z][1-9][0-9]{0,8})*)")
_BLOCK = re.compile(r"([a-z])([0-9]+)")
_DATA = ("NCHW", "NHWC", "CHWN", "NHCW", "NCDHW", "NDHWC")
_WEIGHTS = ("KCRS", "KRSC", "CRSK")
_CHANNELWISE = {"C1RS": 1, "C11RS": 2}
_CHANNELWISE_ROLES = {3: ("g", "h", "w"), 4: ("g", "i", "h", "w"), 5: weights_roles(2, groups=True)}
_WEIGHTS_ROLE = {"G": "g", "K": "o", "C": "i", "R": "h", "S": "w"}
_WEIGHTS_LETTER = {role: letter for letter, role in _WEIGHTS_ROLE.items()}

_B = "(?:4|8|32|64)"
_NAMED = re.compile(
    rf"NCHW(c{_B})?|NHWC|NCDHW|NDHWC|(CHWN|NHCW)c{_B}"
    rf"|G?KCRS(c{_B}(k{_B})?|k{_B}(c{_B})?)?|G?KRSC(k{_B}(c{_B})?)?|G?CRSKc{_B}|C1RSc{_B}|C11RSc{_B}"
)
_USER_NAMES = {**{f"NCHWc{b}": f"NCHW{b}" for b in (4, 8, 32, 64)}, "CHWNc4": "CHWN4", "NHCWc4": "NHWCD4"}

_READINGS = {"data": "src", "weights": "weights", "group": "group", "channelwise": "channelwise"}
_LOWBIT = re.compile(r"lowbit([124])?")
_MODE = re.compile(r"(?:NCHW|NHWC|CHWN|INTER)[A-Z0-9]*_[A-Z0-9_]+")


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a format; None if it is none of MegEngine's.

    >>> parse("GKCRSk4c4").digits_text()
    'goihw -> g, o//4, i//4, h, w, o%4, i%4'
    >>> parse("NHWCD4").digits_text()
    'nchw -> n, h, c//4, w, c%4'
    >>> parse("C1RSc4", rank=3).digits_text()
    'ghw -> g//4, h, w, g%4'
    """
    if text in ("row_major", "column_major"):
        return _matrix_order(text, rank)
    base, at, reading = text.partition("@")
    lowbit = _LOWBIT.fullmatch(reading)
    if lowbit is not None:
        return _with_lowbit(base, text, int(lowbit[1] or 4), rank, dtype)
    if at:
        return _reading(base, reading, rank)
    return _tensor(base, rank) or _convolution(base)


def _tensor(text: str, rank: int | None) -> Format | None:
    """Read a tensor format by its grammar."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return None
    head, tail = match.groups()
    blocks = [(letter.upper(), int(size)) for letter, size in _BLOCK.findall(tail)]
    blocked = [letter for letter, _ in blocks]
    if len(set(blocked)) != len(blocked):
        return None
    if head in _CHANNELWISE:
        if blocked not in ([], ["C"]):
            return None
        axes = _CHANNELWISE_ROLES.get(rank or 0, _CHANNELWISE_ROLES[3 + _CHANNELWISE[head]])
        made = Format.blocked(axes, axes, [("g", size) for _, size in blocks if size != 1])
        return made.spelled(text, "megengine", ("rank",))
    if head in _DATA:
        axes, role = data_roles(len(head) - 2), {letter: letter.lower() for letter in head}
    elif head.removeprefix("G") in _WEIGHTS:
        axes, role = weights_roles(2, groups=head[0] == "G"), _WEIGHTS_ROLE
    else:
        return None
    if not set(blocked) <= set(head):
        return None
    return Format.blocked(
        axes,
        [role[letter] for letter in head],
        [(role[letter], size) for letter, size in blocks if size != 1],
    )


def _convolution(text: str) -> Format | None:
    """Read a convolution format as the data that it stands for, if it stands for one layout."""
    data = data_format(text)
    if data is not None and text not in ("NCHW44", "NCHW88"):
        return _tensor(data, None)
    if text not in convolution_names() and not text.endswith("_WINOGRAD"):
        if _MODE.fullmatch(text):
            _refuse_mode(text)
        return None
    try:
        formats = convolution_formats(text)
    except UnknownFormat:
        return None
    if formats.src != formats.dst:
        weights = f", with weights in {formats.weights!r}" if formats.weights else ""
        raise Unsupported(
            f"{text!r} is no layout: it reads data in {formats.src!r} and writes {formats.dst!r}{weights}; "
            "use the format of the tensor that you mean"
        )
    choices = "; ".join(
        f"'{text}@{reading}' is {_described(name)}" for reading, name in _readings_of(formats).items()
    )
    raise AmbiguousFormat(
        f"{text!r} is a convolution format, whose data and weights lie differently. "
        f"Write the one that is meant: {choices}"
    )


def _refuse_mode(text: str) -> None:
    with lock():
        from relayout.notation.megengine_modes import relayout_formats

    try:
        source, destination = relayout_formats(text)
    except LayoutError:
        return
    raise Unsupported(
        f"{text!r} is no layout: it converts {source!r} to {destination!r}. Use one of those formats, or "
        "relayout.notation.megengine_relayout.relayout_mode, which knows its groups and its padding"
    )


def _readings_of(formats: ConvolutionFormats) -> dict[str, str]:
    named = {reading: getattr(formats, field) for reading, field in _READINGS.items()}
    return {reading: name for reading, name in named.items() if name is not None}


def _described(name: str) -> str:
    known = _tensor(name, None)
    return f"{name} ({known.digits_text()})" if known is not None else name


def _reading(base: str, reading: str, rank: int | None) -> Format | None:
    """Read ``NCHW44@weights``: one tensor of a convolution format."""
    if reading not in _READINGS or base not in convolution_names():
        return None
    if reading == "data" and base not in ("NCHW44", "NCHW88", "NCHW44_DOT"):
        return _convolution(base)
    return _tensor(_name_of_reading(base, reading), rank)


def _name_of_reading(base: str, reading: str) -> str:
    choices = _readings_of(convolution_formats(base))
    if reading not in choices:
        has = ", ".join(f"'{base}@{known}' ({name})" for known, name in choices.items())
        raise Unsupported(
            f"MegEngine has no {reading} format for the convolution format {base!r}; it has {has}"
        )
    name = choices[reading]
    quantized = _readings_of(convolution_formats(base, quantized=True))[reading]
    if name != quantized:
        raise AmbiguousFormat(
            f"'{base}@{reading}' is {name} for floating-point and {quantized} for quantized weights; "
            "write that name"
        )
    return name


def _with_lowbit(base: str, text: str, bits: int, rank: int | None, dtype: str | None) -> Format | None:
    """Read ``NCHW@lowbit``: rows of 4-bit (2-bit, 1-bit) elements that start on whole bytes."""
    known = _tensor(base, rank) or _convolution(base)
    if known is None:
        return None
    if dtype is not None and as_dtype(dtype).bits != bits:
        raise LayoutError(
            f"{text!r} lays out elements of {bits} bits, {8 // bits} to a byte, but {dtype} has "
            f"{as_dtype(dtype).bits} bits; write {base!r}"
        )
    return byte_rows(known, bits).spelled(text, "megengine", known.waits_for | {"dtype"})


def _matrix_order(text: str, rank: int | None) -> Format:
    if rank is None:
        return Format.waiting(text, "megengine", ("rank",))
    axes = letters(rank)
    return Format.blocked(axes, axes if text == "row_major" else axes[::-1])


def lowbit_aligned(format: Format | str, bits: int = 4) -> Format:
    """Return a format in which every row of low-bit elements starts on a whole byte.

    MegEngine's physical format ``LOWBITS_ALIGNED_TO_BYTE``, which all its quantized low-bit types have: the
    innermost extent is rounded up to ``8 / bits`` elements. That is a digit: ``w`` becomes ``w//2, w%2``.

    Parameters
    ----------
    format : Format or str
        The format as elements of whole bytes would have it.
    bits : int
        Width of an element: 1, 2 or 4.

    Raises
    ------
    LayoutError
        Elements of so many bits don't share bytes.
    Unsupported
        The innermost block ends inside a byte.

    Examples
    --------
    >>> from relayout import Layout
    >>> rows = lowbit_aligned("NCHW")
    >>> rows, rows.digits_text()
    (Format('NCHW@lowbit'), 'nchw -> n, c, h, w//2, w%2')
    >>> Layout((1, 2, 3, 5), rows).strides  # in elements: rows of 5 take 6, that is 3 bytes
    (36, 18, 6, 2)
    """
    known = Format(format)
    made = byte_rows(known, bits)
    if made == known:
        return known
    name = render(known)
    if name is None:
        return made
    return made.spelled(f"{name}@lowbit{'' if bits == 4 else bits}", "megengine", ("dtype",))


def without_lowbit(format: Format) -> tuple[Format, int]:
    """Split ``NCHW@lowbit`` into the format and the number of elements in a byte (1: not aligned).

    >>> without_lowbit(Format("NCHW@lowbit"))
    (Format('NCHW'), 2)
    """
    base, _, reading = (format.text or "").partition("@")
    lowbit = _LOWBIT.fullmatch(reading)
    if lowbit is None or format.dialect != "megengine":
        return format, 1
    return Format(base, "megengine"), 8 // int(lowbit[1] or 4)


def unit_axes(format: Format) -> int:
    """Count the unit axes that a channel-wise format writes: 2 in ``C11RSc4``, 1 in ``C1RSc4``, 0 in others.

    >>> unit_axes(Format("C11RSc4")), unit_axes(Format("NCHW88@channelwise")), unit_axes(Format("KCRSc4"))
    (2, 2, 0)
    """
    if format.dialect != "megengine" or format.text is None:
        return 0
    base, _, reading = format.text.partition("@")
    match = _TENSOR.fullmatch(_name_of_reading(base, reading) if reading in _READINGS else base)
    return _CHANNELWISE.get(match[1], 0) if match is not None else 0


def render(format: Format) -> str | None:
    """Spell a format as MegEngine's users do, or None where MegEngine has no name for it.

    >>> [render(Format(text)) for text in ("nChw4c", "nChw16c", "OIhw8i8o", "aBcd4b")]
    ['NCHW4', None, 'KCRSc8k8', None]
    """
    digits = blocked_digits(format)
    if digits is None or format.roles is None:
        return None
    outer, inner = digits
    spelled = _spell(format.roles, outer, inner)
    if spelled is None and inner == [(outer[-1], 2)]:
        rows = _spell(format.roles, outer, [])
        return f"{rows}@lowbit" if rows is not None else None
    return spelled


def _spell(roles: tuple[str, ...], outer: list[int], inner: list[tuple[int, int]]) -> str | None:
    if roles in (data_roles(2), data_roles(3)):
        letter = {role: role.upper() for role in roles}
    elif roles in (weights_roles(2), weights_roles(2, groups=True)):
        letter = _WEIGHTS_LETTER
    elif roles == _CHANNELWISE_ROLES[4]:
        letter = {}
    else:
        return None
    if inner and roles[inner[0][0]] == "g" and outer == sorted(outer):
        # Blocks of groups exist for channel-wise weights only, which call the group C.
        units = {4: "1", 5: "11"}.get(len(roles), "")
        name = f"C{units}RS" + "".join(f"c{size}" for _, size in inner)
    elif letter:
        blocks = "".join(f"{letter[roles[axis]].lower()}{size}" for axis, size in inner)
        name = "".join(letter[roles[axis]] for axis in outer) + blocks
    else:
        return None
    return _USER_NAMES.get(name, name) if _NAMED.fullmatch(name) else None


def names() -> Iterator[str]:
    """The data formats by their usual names, the tensor formats, the readings of what is ambiguous."""
    yield from ("NCHW", "NHWC", "NCHW4", "NCHW8", "NCHW32", "NCHW64", "CHWN4", "NHWCD4", "NCDHW", "NDHWC")
    yield from ("NCHWc4", "NCHWc8", "NCHWc32", "NCHWc64", "CHWNc4", "NHCWc4")
    for group in ("", "G"):
        yield from (
            f"{group}{name}"
            for name in ("KCRS", "KCRSc4", "KCRSc4k4", "KCRSk4c4", "KCRSc8k8", "KRSCk4", "KRSCk4c4")
        )
    yield from ("KRSC", "KRSCk8", "KCRSc32", "KCRSc64", "CRSKc4", "C11RS", "C11RSc4", "C11RSc8", "C1RSc4")
    for name in ("NCHW44", "NCHW88", "NCHW44_DOT"):
        yield from (f"{name}@{reading}" for reading in _readings_of(convolution_formats(name)))
    yield from ("NCHW@lowbit", "NHWC@lowbit", "row_major", "column_major")


def attested(name: str) -> bool:
    """Whether MegEngine has a tensor format or a convolution format of this name, its reading left out.

    >>> attested("KCRSc8k8"), attested("NCHW4@lowbit"), attested("KCRSk8c8")
    (True, True, False)
    """
    return name in names() or name.partition("@lowbit")[0] in names()
