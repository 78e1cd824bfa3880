"""TensorRT's tensor formats: ``kLINEAR``, ``kCHW32``, ``kHWC8``, ``kDLA_HWC4``.

TensorRT runs networks on NVIDIA's GPUs and on the DLA cores of its Jetson boards. The inputs and outputs of
an engine, and the tensors that plug-ins see, have a ``TensorFormat``. NVIDIA calls the channels that lie side
by side a *vector* and has two ways to cut C into vectors.

The grammar
===========

::

    kCHW<v>    vector-major: planes of vectors of v channels    n  c//v  h  w  c%v   kCHW2 kCHW4 kCHW16 kCHW32
    kHWC<v>    vector-minor: all channels of a pixel together,  n  h  w  c//v  c%v   kHWC kHWC8 kHWC16
               their number rounded up to a multiple of v
    kCDHW<v>, kDHWC<v>    the same with depth                n  c//v  d  h  w  c%v   kCDHW32 kDHWC kDHWC8
    kLINEAR    row-major

The batch axis (and any in front of it) is not in the name: the channels are the third axis from the end,
with D the fourth. So ``kCHW32`` fits every tensor of three axes or more. It is read as N, C, H, W until the
rank is known.

In ``kHWC8`` the digits ``c//8`` and ``c%8`` stand next to each other. That moves no element; it rounds the
number of channels up, which is exactly NVIDIA's ``[N][H][W][(C+7)/8*8]``. The room between C and the multiple
of 8 is padding that the tensor owns: zeros.

In documentation one also meets the letters ``NC/32HW32`` (= ``kCHW32``) and ``NHWC8`` (= ``kHWC8``); they
have four axes (five with D).

The DLA counts bytes
====================

On the DLA every row starts at a multiple of 64 bytes, so the padding depends on the data type::

    kDLA_LINEAR     [N][C][H][roundUp(W, 64/size)]                 f16: w//32, w%32    s8: w//64, w%64
    kDLA_HWC4       [N][H][roundUp(W, 64/C'/size)][C']             f16: w//8,  w%8     s8: w//16, w%16

C' is 4 for images of 3 or 4 channels. For grey images (C = 1) it is 1: write ``kDLA_HWC4@grayscale``. As long
as the data type is not known, the two names stand for their order of axes alone, without the padding.

Source: ``NvInferRuntimeBase.h`` of TensorRT.
"""

from __future__ import annotations

import re
from functools import lru_cache

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted
from relayout.layout.format import Format, letters
from relayout.layout.roles import data_roles

TITLE = "TensorRT"

__all__ = ["TITLE", "names", "parse", "render"]

_ROW_BITS = 64 * 8  # rows of DLA tensors start at multiples of 64 bytes
_LENGTHS = {"CHW": (2, 4, 16, 32), "CDHW": (32,), "HWC": (1, 8, 16), "DHWC": (1, 8)}  # the vectors that exist
_NAME = re.compile(
    r"(?:k|TensorFormat(?:::k|\.))(LINEAR|(DLA_LINEAR|DLA_HWC4)(?:@(color|grayscale))?|[CDHW]+[0-9]{0,2})"
)
_VECTOR = re.compile(r"([CDHW]+)([0-9]*)")
_LETTERS = re.compile(r"NC/([0-9]{1,2})(D?HW)\1|N(C)(D?HW)|N(D?HWC)([0-9]{0,2})")

_Digit = tuple[str, int, "int | None"]


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a tensor format; None if it is none. ``rank`` is 4 (5 with D) until it is known.

    Raises
    ------
    LayoutError
        The tensor has too few axes for the format, or the two sides of ``kCHW32 = NC/32HW32`` disagree.

    Examples
    --------
    >>> parse("kCHW32").digits_text(), parse("kHWC8", rank=3).digits_text()
    ('nchw -> n, c//32, h, w, c%32', 'chw -> h, w, c//8, c%8')
    >>> parse("kDLA_LINEAR", dtype="f16").digits_text()
    'nchw -> n, c, h, w//32, w%32'
    """
    name, equals, meaning = (side.strip() for side in text.partition("="))
    format = _parse_one(name, rank, dtype)
    if not equals or format is None:
        return format
    other = _parse_one(meaning, None, dtype)
    if other is not None and other != _parse_one(name, other.rank, dtype):
        raise LayoutError(
            f"in {text!r} the two sides are different layouts: {format.digits_text()} and "
            f"{other.digits_text()}"
        )
    return format if other is not None else None


def _parse_one(text: str, rank: int | None, dtype: str | None) -> Format | None:
    match = _NAME.fullmatch(text)
    if match is None:
        return _parse_letters(text)
    name, dla, image = match.groups()
    if dla:
        width = _ROW_BITS // as_dtype(dtype).bits if dtype else 1
        return _dla(text, dla, image == "grayscale", width, rank).spelled(text, "tensorrt", ("rank", "dtype"))
    if name == "LINEAR":
        axes = _axes(4 if rank is None else rank, 2)
        return Format.blocked(axes, axes).spelled(text, "tensorrt", ("rank",))
    vector = _VECTOR.fullmatch(name)
    order, length = (vector[1], int(vector[2] or 1)) if vector else ("", 0)
    if length not in _LENGTHS.get(order, ()):
        return None
    return _vectors(text, order, length, rank).spelled(text, "tensorrt", ("rank",))


def _parse_letters(text: str) -> Format | None:
    match = _LETTERS.fullmatch(text)
    if match is None:
        return None
    major, space, plain, plain_space, minor, length = match.groups()
    order = f"C{space or plain_space}" if major or plain else minor
    size = int(major or length or 1)
    rank = len(order) + 1
    if size == 1:
        return _vectors(text, order, 1, rank)
    return _vectors(text, order, size, rank) if size in _LENGTHS[order] else None


@lru_cache(maxsize=256)  # rendering compares with all of them
def _vectors(text: str, order: str, length: int, rank: int | None) -> Format:
    """Vectors of ``length`` channels: their axis is that many from the end as the order has letters."""
    spatial = len(order) - 1
    rank = spatial + 2 if rank is None else rank
    axes = _axes(rank, spatial, text)
    head, channel, space = axes[: rank - spatial - 1], axes[rank - spatial - 1], axes[rank - spatial :]
    leading: list[_Digit] = [(axis, 1, None) for axis in head]
    outer: list[_Digit] = [(channel, length, None)]
    inner: list[_Digit] = [(channel, 1, length)] if length > 1 else []
    plane: list[_Digit] = [(axis, 1, None) for axis in space]
    middle = outer + plane + inner if order.startswith("C") else plane + outer + inner
    return Format.from_digits(axes, leading + middle)


def _dla(text: str, name: str, grey: bool, width: int, rank: int | None) -> Format:
    axes = _axes(4 if rank is None else rank, 2, text)
    *head, channel, height, column = axes
    leading: list[_Digit] = [(axis, 1, None) for axis in head]
    channels: list[_Digit] = [(channel, 1, None)]
    if name == "DLA_HWC4" and not grey and width > 1:
        channels = [(channel, 4, None), (channel, 1, 4)]
        width //= 4
    columns: list[_Digit] = [(column, width, None), (column, 1, width)] if width > 1 else [(column, 1, None)]
    row: list[_Digit] = [(height, 1, None), *columns]
    plane = channels + row if name == "DLA_LINEAR" else row + channels
    return Format.from_digits(axes, leading + plane)


def _axes(rank: int, spatial: int, text: str = "kLINEAR") -> tuple[str, ...]:
    """The axes of a tensor whose channels are in front of its last ``spatial`` axes."""
    if text == "kLINEAR":
        return data_roles(rank - 2) if 3 <= rank <= 5 else letters(rank)
    if rank < spatial + 1:
        raise LayoutError(
            f"TensorRT's {text} needs at least {counted(spatial + 1, 'axis')}, the tensor has {rank}"
        )
    roles = data_roles(spatial)
    return {len(roles): roles, len(roles) - 1: roles[1:]}.get(rank, letters(rank))


def render(format: Format) -> str | None:
    """Spell a format of data, or of axes without meaning; row-major is always ``kLINEAR``.

    The formats of the DLA have no way back: the digits depend on the data type, which a format does not know.

    >>> render(Format("nhwc")), render(Format("nChw16c")), render(Format("nChw8c"))
    ('kHWC', 'kCHW16', None)
    """
    if not format.rank:
        return None
    if format == parse("kLINEAR", format.rank):
        return "kLINEAR"
    for order, lengths in _LENGTHS.items():
        for length in lengths:
            if len(order) > format.rank:
                continue
            made = _vectors("", order, length, format.rank)
            if made == format and format.roles in (None, made.roles):
                return f"k{order}{length if length > 1 else ''}"
    return None


def names() -> tuple[str, ...]:
    """All of TensorRT's formats."""
    vectors = (f"k{order}{v if v > 1 else ''}" for order, lengths in _LENGTHS.items() for v in lengths)
    return ("kLINEAR", *vectors, "kDLA_LINEAR", "kDLA_HWC4", "kDLA_HWC4@grayscale")
