"""MNN's packed channels: ``NC4HW4``.

MNN, Alibaba's inference engine, keeps activations in packs of channels, and all of its backends call that
``NC4HW4``. The name promises N outermost. In recent versions memory is otherwise: the *packs* lie outermost
and N behind them::

    NC4HW4            c//4, n, h, w, c%4      CPU and most backends (also written C4NHW4)
    NC4HW4@opencl     n, c//4, h, w, c%4      OpenCL buffers, old versions: what the name says, nChw4c

For N = 1, the usual case on a phone, both are the same bytes, and so the difference is found late. In a
tensor of 2 x 8 x 1 x 1 the element (n, c) = (1, 0) lies at 4 in the first and at 8 in the second.

The pack is 4 with NEON and SSE, 8 with AVX2 and for f16 on Arm, 16 with AVX-512 and on Intel's OpenCL; the
backends still say NC4HW4 but lay out ``NC8HW8`` or ``NC16HW16``, and here the name must tell. Channels are
padded with zeros to whole packs.

MindSpore Lite uses the same names, with N outermost. Without a dialect in front such a text is ambiguous:
write ``mnn:NC8HW8``.
"""

from __future__ import annotations

import re

from relayout.layout.format import Format
from relayout.layout.roles import data_roles

TITLE = "MNN"

__all__ = ["TITLE", "names", "parse", "render"]

_TEXT = re.compile(r"(?:MNN_DATA_FORMAT_)?NC(4|8|16)HW\1(?:\s*(@opencl)|\s*\(physically C\1NHW\1[^()]*\))?")
_PHYSICAL = re.compile(r"C(4|8|16)NHW\1")
_PACKS = (4, 8, 16)


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read ``NC4HW4``, its physical name ``C4NHW4``, or the reading ``NC4HW4@opencl``.

    >>> parse("NC4HW4").digits_text()
    'nchw -> c//4, n, h, w, c%4'
    >>> parse("NC4HW4@opencl") == Format("nChw4c")
    True
    """
    match = _TEXT.fullmatch(text)
    if match:
        return _make(int(match[1]), batch_outermost=match[2] is not None)
    match = _PHYSICAL.fullmatch(text)
    return _make(int(match[1]), batch_outermost=False) if match else None


def _make(pack: int, batch_outermost: bool) -> Format:
    outer = ("n", "c", "h", "w") if batch_outermost else ("c", "n", "h", "w")
    return Format.blocked(data_roles(2), outer, [("c", pack)])


def render(format: Format) -> str | None:
    """Spell packed channels, with the reading where N is outermost.

    >>> render(Format("mnn:NC8HW8")), render(Format("nChw4c")), render(Format("nChw32c"))
    ('NC8HW8', 'NC4HW4@opencl', None)
    """
    if format.roles != data_roles(2):
        return None
    for pack in _PACKS:
        if format == _make(pack, batch_outermost=False):
            return f"NC{pack}HW{pack}"
        if format == _make(pack, batch_outermost=True):
            return f"NC{pack}HW{pack}@opencl"
    return None


def names() -> tuple[str, ...]:
    """All packs in both readings."""
    return tuple(f"NC{pack}HW{pack}{reading}" for pack in _PACKS for reading in ("", "@opencl"))
