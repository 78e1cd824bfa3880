"""Rockchip's RKNN: ``NC1HWC2``, the native layout of its neural processors.

RKNN's run time names three formats: ``RKNN_TENSOR_NCHW``, ``RKNN_TENSOR_NHWC``, and the one in which the
processor itself reads and writes. The latter cuts the channels into C1 packs of C2, ``c = C2 * (c // C2) +
c % C2``::

    RKNN_TENSOR_NC1HWC2 (C2=16)      n, c//16, h, w, c%16      oneDNN's nChw16c

C2 depends on the chip and on the data type (on the RK3588: 16 for int8, 8 for float16) and can be read from
the tensor's own attributes, where ``dims`` is (N, C1, H, W, C2). The name alone is therefore ambiguous.
Write C2 behind it, in one of these ways::

    NC1HWC2 (C2=16)    NC1HWC2:16    RKNN_TENSOR_NC1HWC2 (C2=16)

The logical axes are N, C, H, W, as in the model. Channels are padded to whole packs. ``RKNN_TENSOR_NHWC``
needs its prefix here, since other systems mean other things by the bare letters.

The row pitch
=============

``w_stride`` is a number of the buffer, not of the format: rows may be longer than W. Strides say that. A
width of 30 with a ``w_stride`` of 32:

>>> from relayout import Layout
>>> x = Layout((1, 24, 4, 30), "NC1HWC2 (C2=16)", strides=(2 * 4 * 32 * 16, 4 * 32 * 16, 32 * 16, 16))
>>> x.offset(0, 16, 1, 2)
2592
"""

from __future__ import annotations

import re

from relayout.errors import AmbiguousFormat, LayoutError, Unsupported
from relayout.layout.format import Format
from relayout.layout.roles import data_roles

TITLE = "RKNN"

__all__ = ["TITLE", "attested", "names", "parse", "render"]

_TEXT = re.compile(
    r"(?:RKNN_TENSOR_)?NC1HWC2\s*(?::\s*([0-9]{1,9})|\(\s*(?:C2\s*=\s*)?([0-9]{1,9})\s*\))?"
    r"(?:[\s,]+(w_stride\s*=.*))?"
)
_PACKS = ("4", "8", "16")  # channels, depending on the chip and the data type
_PLAIN = {"RKNN_TENSOR_NCHW": "nchw", "RKNN_TENSOR_NHWC": "nhwc"}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read one of the three formats.

    Raises
    ------
    AmbiguousFormat
        NC1HWC2 without C2.
    Unsupported
        A ``w_stride`` in the text; it belongs to the strides of a layout.

    Examples
    --------
    >>> parse("NC1HWC2:16") == Format("nChw16c"), parse("RKNN_TENSOR_NHWC") == Format("nhwc")
    (True, True)
    """
    if text in _PLAIN:
        return Format.blocked(data_roles(2), _PLAIN[text])
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    if match[3]:
        raise Unsupported(
            f"{text!r}: w_stride is the pitch of a buffer, no part of a format; give it as strides, "
            "Layout(dims, 'NC1HWC2 (C2=16)', strides=...)"
        )
    if match[1] is None and match[2] is None:
        raise AmbiguousFormat(
            f"in {text!r} C2 depends on the chip and the data type; read it from dims[4] of the tensor's "
            "attributes and write it: 'NC1HWC2 (C2=16)' (RK3588, s8), 'NC1HWC2 (C2=8)' (RK3588, f16)"
        )
    block = int(match[1] or match[2])
    if block < 2:
        raise LayoutError(f"{text!r}: C2 is {block}; a pack must have 2 channels or more")
    return _packed(block)


def _packed(block: int) -> Format:
    return Format.blocked(data_roles(2), data_roles(2), [("c", block)])


def render(format: Format) -> str | None:
    """Spell images of four axes.

    >>> render(Format("nChw8c")), render(Format("nhwc")), render(Format("oihw"))
    ('RKNN_TENSOR_NC1HWC2 (C2=8)', 'RKNN_TENSOR_NHWC', None)
    """
    if format.roles != data_roles(2):
        return None
    for name, outer in _PLAIN.items():
        if format == Format.blocked(data_roles(2), outer):
            return name
    block = format.blocks[1]
    return f"RKNN_TENSOR_NC1HWC2 (C2={block})" if block > 1 and format == _packed(block) else None


def names() -> tuple[str, ...]:
    """The plain formats, and the packs of 4, 8 and 16."""
    return (*_PLAIN, *(f"RKNN_TENSOR_NC1HWC2 (C2={block})" for block in _PACKS))


def attested(name: str) -> bool:
    """Whether a chip is known to have packs of this size: 4, 8 or 16.

    >>> attested("RKNN_TENSOR_NC1HWC2 (C2=8)"), attested("RKNN_TENSOR_NC1HWC2 (C2=24)")
    (True, False)
    """
    match = _TEXT.fullmatch(name)
    return name in _PLAIN or (match is not None and (match[1] or match[2]) in _PACKS)
