"""The definition of reorder: by logical index, an element at a time in meaning if not in speed.

    for every logical index i:      dst[offset_dst(i)] = value(src[offset_src(i)])
    for every offset p of padding:  dst[p] = 0
    everything else of the destination is not touched

This file is slow on purpose. It asks the layouts only where an element lies (``Layout.offset``) and what is
padding (``Layout.is_padding``), shares nothing with the engines, and is what they are compared with.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import rescale
from relayout.dtypes import DType, pack, unpack
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.attributes import Attributes

__all__ = ["reorder_by_definition"]


def reorder_by_definition(
    src: MemoryDesc,
    src_bytes: NDArray[np.uint8],
    dst: MemoryDesc,
    dst_bytes: NDArray[np.uint8],
    attributes: Attributes,
) -> None:
    """Write the destination, element by element."""
    if 0 in src.dims:
        return
    source = _elements(src_bytes, src.dtype)
    target = _elements(dst_bytes, dst.dtype)
    indices = list(product(*map(range, src.dims)))
    values = source[[src.layout.offset(*i) for i in indices]].reshape(src.dims)
    places = [dst.layout.offset(*i) for i in indices]
    parts: dict[str, Any] = {
        name: made.along(len(src.dims)) if made is not None else None
        for name, made in (
            ("src_scale", attributes.src_scale),
            ("dst_scale", attributes.dst_scale),
            ("src_zero_point", attributes.src_zero_point),
            ("dst_zero_point", attributes.dst_zero_point),
            ("src_shift", attributes.src_shift),
        )
    }
    old = target[places].reshape(src.dims) if attributes.reads_destination else None
    moved = rescale(
        values,
        src.dtype,
        dst.dtype,
        beta=attributes.beta,
        old=old,
        keep_neutral=attributes.settled,
        **parts,
    )
    target[places] = moved.ravel()
    low, high = dst.layout.bounds()
    target[[p for p in range(low, high + 1) if dst.layout.is_padding(p)]] = 0
    if dst.dtype.bits < 8:
        dst_bytes[:] = pack(target, dst.dtype)[: dst_bytes.size]


def _elements(data: NDArray[np.uint8], kind: DType) -> NDArray[np.generic]:
    """The physical elements, one to an array item."""
    if kind.bits < 8:
        return unpack(data, kind, data.size * 2)
    item = kind.bits // 8
    return data[: data.size // item * item].view(kind.numpy)
