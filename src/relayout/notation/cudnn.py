"""cuDNN's tensor formats: ``CUDNN_TENSOR_NCHW``, ``CUDNN_TENSOR_NHWC`` and ``CUDNN_TENSOR_NCHW_VECT_C``.

cuDNN is NVIDIA's library of deep-learning primitives. Its ``cudnnTensorFormat_t`` has three values. Two are
plain; the third cuts the channels into vectors, and how long a vector is stands in the *data type*::

    CUDNN_TENSOR_NCHW                      n   c   h   w
    CUDNN_TENSOR_NHWC                      n   h   w   c
    CUDNN_TENSOR_NCHW_VECT_C : INT8x4      n   c//4    h   w   c%4       an "element" of the tensor is 4 bytes
    CUDNN_TENSOR_NCHW_VECT_C : INT8x32     n   c//32   h   w   c%32      UINT8x4 lies like INT8x4

The documentation writes such layouts as ``NC/32HW32``: N, C/32, H, W, and 32 channels innermost. That
spelling is general (the backend interface takes any vector count), so ``NC/16HW16`` is read too.

The names say NCHW, but mean any number of spatial axes: ``CUDNN_TENSOR_NHWC`` of a tensor with five axes is
NDHWC. They are read with four axes until the rank is known. Filters are described by the same three values,
with K (outputs) for N.

Reordered tensors
=================

``CUDNN_TENSOR_REORDERING_F8_128x4`` is the order of the scale factors of block-scaled types, told in
:mod:`relayout.notation.mx`. The others (``INT8x32`` filters, ``F16x16``) are internal to the library, which
does not say where elements lie.

Source: cuDNN's developer guide, "Core Concepts"; ``cudnn_graph.h``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from relayout.errors import AmbiguousFormat, LayoutError, Unsupported
from relayout.layout.format import Format, letters
from relayout.layout.roles import DATA, WEIGHTS, data_roles
from relayout.notation import mx
from relayout.notation.onednn import blocked_digits

TITLE = "cuDNN"

__all__ = ["TITLE", "names", "parse", "render"]

_PLAIN = re.compile(r"N(CD?HW|D?HWC)")
_SLASH = re.compile(r"NC/([0-9]{1,9})(D?HW)\1")
_ENUM = re.compile(r"CUDNN_TENSOR_(NCHW|NHWC)")
_VECT = re.compile(
    r"(?:CUDNN_TENSOR_)?NCHW_VECT_C(?:(?:\s*[:+]\s*|\s+)(?:CUDNN_DATA_)?U?INT8x(4|32))?"
    r"(?:\s*\((NC/[0-9D]+HW[0-9]+)\))?"
)
_REORDERING = re.compile(r"CUDNN_TENSOR_REORDERING_(INT8x32|F16x16)")
_TYPES = {4: "INT8x4", 32: "INT8x32"}


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a tensor format; None if it is none.

    Raises
    ------
    AmbiguousFormat
        ``NCHW_VECT_C`` without the data type that says how long a vector is.
    Unsupported
        A reordering that cuDNN keeps to itself.
    LayoutError
        Fewer than three axes, or a remark in brackets that contradicts the data type.

    Examples
    --------
    >>> parse("CUDNN_TENSOR_NCHW_VECT_C:INT8x4").digits_text()
    'nchw -> n, c//4, h, w, c%4'
    >>> parse("CUDNN_TENSOR_NHWC", rank=5).digits_text()
    'ncdhw -> n, d, h, w, c'
    """
    if match := _PLAIN.fullmatch(text):
        return _data(len(match[1]) + 1, match[1].endswith("C"))
    if match := _SLASH.fullmatch(text):
        length = int(match[1])
        if length == 0:
            raise LayoutError(f"{text!r} has vectors of 0 channels; a vector has 1 or more")
        return _data(len(match[2]) + 2, vector=length)
    if match := _ENUM.fullmatch(text):
        return _data(_rank(text, rank), match[1] == "NHWC").spelled(text, "cudnn", ("rank",))
    if match := _VECT.fullmatch(text):
        return _vect(text, match[1], match[2], rank).spelled(text, "cudnn", ("rank",))
    if match := _REORDERING.fullmatch(text):
        raise Unsupported(
            f"{text} is an order that cuDNN keeps to itself (cudnnReorderFilterAndBias makes it): it is not "
            "known where elements lie"
        )
    return mx.parse(text) if text.startswith("CUDNN_TENSOR_REORDERING_F8") else None


def _vect(text: str, length: str | None, remark: str | None, rank: int | None) -> Format:
    if length is None:
        readings = ", ".join(f"'{text}:{kind}' (c%{size} innermost)" for size, kind in _TYPES.items())
        raise AmbiguousFormat(
            f"in {text!r} the data type says how many channels make a vector; write one of {readings}"
        )
    format = _data(_rank(text, rank), vector=int(length))
    said = parse(remark) if remark else None
    if remark and (said is None or said != _data(said.rank or 4, vector=int(length))):
        raise LayoutError(f"in {text!r} the data type has vectors of {length}, which is not {remark}")
    return format


def _rank(text: str, rank: int | None) -> int:
    if rank is not None and rank < 3:
        raise LayoutError(
            f"cuDNN's {text} has N, C and at least one spatial axis, but the tensor has {rank} axes"
        )
    return 4 if rank is None else rank


def _data(rank: int, channels_last: bool = False, vector: int = 1) -> Format:
    axes = data_roles(rank - 2) if rank <= 5 else letters(rank)
    batch, channel, *space = axes
    outer = (batch, *space, channel) if channels_last else axes
    return Format.blocked(axes, outer, [(channel, vector)] if vector > 1 else [])


def render(format: Format) -> str | None:
    """Spell a format of data, of filters, or of axes without meaning.

    >>> render(Format("nhwc")), render(Format("nChw32c")), render(Format("nChw16c"))
    ('CUDNN_TENSOR_NHWC', 'CUDNN_TENSOR_NCHW_VECT_C:INT8x32', 'NC/16HW16')
    """
    if format.rank == 2 and format == mx.parse("F8_128x4"):
        return "CUDNN_TENSOR_REORDERING_F8_128x4"
    if format.rank is None or format.rank < 3 or format.roles not in (None, *DATA, *WEIGHTS[:4]):
        return None
    if format == _data(format.rank):
        return "CUDNN_TENSOR_NCHW"
    if format == _data(format.rank, channels_last=True):
        return "CUDNN_TENSOR_NHWC"
    digits = blocked_digits(format)
    length = digits[1][0][1] if digits and len(digits[1]) == 1 else 1
    if length == 1 or format != _data(format.rank, vector=length):
        return None
    if length in _TYPES:
        return f"CUDNN_TENSOR_NCHW_VECT_C:{_TYPES[length]}"
    space = {4: "HW", 5: "DHW"}.get(format.rank)
    return f"NC/{length}{space}{length}" if space and length < 10**9 else None


def names() -> Iterable[str]:
    """The values of cuDNN's enumeration, and the letters of its documentation."""
    yield from ("CUDNN_TENSOR_NCHW", "CUDNN_TENSOR_NHWC")
    yield from (f"CUDNN_TENSOR_NCHW_VECT_C:{kind}" for kind in _TYPES.values())
    yield from ("NC/4HW4", "NC/32HW32", "CUDNN_TENSOR_REORDERING_F8_128x4")
