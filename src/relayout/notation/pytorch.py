"""PyTorch's memory formats: ``contiguous_format``, ``channels_last``, ``channels_last_3d``.

A PyTorch tensor is sizes and strides; its axes have no names and no letters. A *memory format* is a short
name for a way of choosing the strides, and there are three:

======================  ======  =======================  ==========================
name                    rank    axes in memory           oneDNN
======================  ======  =======================  ==========================
``contiguous_format``   any     in their logical order   ``a``, ``ab``, ``abc``, ...
``channels_last``       4       N, H, W, C               ``acdb``, ``nhwc``
``channels_last_3d``    5       N, D, H, W, C            ``acdeb``, ``ndhwc``
======================  ======  =======================  ==========================

The logical order stays N, C, [D,] H, W whatever the memory format: ``x.shape`` of a channels-last tensor
reads (N, C, H, W), and only ``x.stride()`` tells. A tensor of 8 x 64 x 7 x 7 in ``channels_last`` has the
strides (3136, 1, 448, 64): one step of the channel is one element, one step of the width is 64.

Because PyTorch has no names for axes, a format is spelled here by its digits alone: weights ``ohwi`` are
``channels_last`` as much as images ``nhwc`` are, and so PyTorch treats them. A channels-last order of three
axes has no name. Nothing is padded and nothing is blocked.

Accepted are the bare names, Python's ``torch.channels_last`` and C++'s ``MemoryFormat::ChannelsLast``.

What is refused, and why
========================

``preserve_format`` is a rule and not a format: the result gets strides after those of the input
(:mod:`relayout.pytorch` has the rule). ``torch.sparse_coo`` and its like are no dense layouts.
``torch._mkldnn`` (``x.to_mkldnn()``) is opaque: the library chooses the format, usually ``nChw8c`` or
``nChw16c``, and PyTorch can't tell which. If you know the tag, append it: ``mkldnn:nChw16c``.
"""

from __future__ import annotations

import re

from relayout.errors import Unsupported
from relayout.layout.format import Format, letters
from relayout.layout.roles import data_roles
from relayout.notation import onednn

TITLE = "PyTorch"

__all__ = ["TITLE", "names", "parse", "render"]

_NAME = re.compile(r"(?:torch\.)?(contiguous_format|channels_last_3d|channels_last|preserve_format)")
_CPP = re.compile(r"(?:(?:at|c10)::)?MemoryFormat::(Contiguous|ChannelsLast3d|ChannelsLast|Preserve)")
_FROM_CPP = {
    "Contiguous": "contiguous_format",
    "ChannelsLast": "channels_last",
    "ChannelsLast3d": "channels_last_3d",
    "Preserve": "preserve_format",
}
_MKLDNN = re.compile(r"(?:torch\._?)?mkldnn(?::(.*))?")
_SPARSE = re.compile(r"torch\.(sparse_(?:coo|csr|csc|bsr|bsc)|jagged)")


def parse(text: str, rank: int | None = None, dtype: str | None = None) -> Format | None:
    """Read a memory format; ``contiguous_format`` waits for the rank.

    Raises
    ------
    Unsupported
        ``preserve_format``, sparse layouts, and mkldnn's opaque one.

    Examples
    --------
    >>> parse("torch.channels_last").digits_text()
    'nchw -> n, h, w, c'
    >>> parse("contiguous_format", rank=3) == Format("abc")
    True
    """
    match = _NAME.fullmatch(text)
    cpp = _CPP.fullmatch(text)
    name = match[1] if match else _FROM_CPP[cpp[1]] if cpp else None
    if name is None:
        return _other_layout(text)
    if name == "preserve_format":
        raise Unsupported(
            f"{text!r} is a rule, not a format: the result gets its strides after those of the input; "
            "relayout.pytorch.empty_like(dims, strides) applies the rule"
        )
    if name == "contiguous_format":
        if rank is None:
            return Format.waiting(text, "pytorch", ("rank",))
        return Format.blocked(letters(rank), letters(rank))
    roles = data_roles(3 if name == "channels_last_3d" else 2)
    return Format.blocked(roles, ("n", *roles[2:], "c"))


def _other_layout(text: str) -> Format | None:
    """Values of ``torch.layout`` that are no strides: refused, unless mkldnn's tag is given."""
    sparse = _SPARSE.fullmatch(text)
    if sparse:
        raise Unsupported(
            f"{text!r} is no dense layout: its elements lie where their indices say, not where a formula does"
        )
    mkldnn = _MKLDNN.fullmatch(text)
    if mkldnn is None:
        return None
    if mkldnn[1]:
        return onednn.parse(mkldnn[1].strip())
    raise Unsupported(
        f"{text!r} is opaque: the library chooses the format, usually nChw8c or nChw16c, and PyTorch can't "
        "tell which; if you know it, write its tag, e.g. 'mkldnn:nChw16c'"
    )


def render(format: Format) -> str | None:
    """Spell a format by its digits alone, since PyTorch's axes have no names.

    >>> render(Format("nhwc")), render(Format("ohwi")), render(Format("abc")), render(Format("nwc"))
    ('channels_last', 'channels_last', 'contiguous_format', None)
    """
    rank = format.rank
    if rank is None:
        return None
    for name in names():
        found = parse(name, rank)
        if found == format:
            return name
    return None


def names() -> tuple[str, ...]:
    """All three."""
    return ("contiguous_format", "channels_last", "channels_last_3d")
