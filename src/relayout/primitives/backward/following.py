"""Formats of gradients where time is that of reading and writing: nothing is chosen, all is followed."""

from __future__ import annotations

from relayout.errors import Unsupported
from relayout.layout.dense import resized_like
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.formats import check_source, following

__all__ = ["check_gradient", "followed"]


def followed(near: MemoryDesc, desc: MemoryDesc) -> MemoryDesc:
    """A descriptor; where it is ``any``, in the format of another one, whatever the sizes of both.

    >>> import relayout as rl
    >>> followed(rl.MemoryDesc((2, 8, 4, 4), "f32", "nChw8c"), rl.MemoryDesc((2, 8, 9, 9), "bf16", rl.any))
    MemoryDesc('bf16:nChw8c:2x8x9x9')
    """
    if desc.layout is None and near.format is None:
        return MemoryDesc(desc.dims, desc.dtype, resized_like(near.layout, desc.dims))
    return following(near, desc)


def check_gradient(kind: str, name: str, desc: MemoryDesc) -> None:
    """Refuse a gradient of a type that is not computed with, or of integers.

    Raises
    ------
    Unsupported
        Its data type holds no real numbers, or none that are computed with.
    """
    check_source(kind, name, desc)
    if not desc.dtype.is_float:
        raise Unsupported(f"{kind}: {name} {desc} must be real numbers: a gradient is rarely an integer")
