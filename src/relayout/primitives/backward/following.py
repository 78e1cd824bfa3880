"""Formats of gradients where time is that of reading and writing: nothing is chosen, all is followed."""

from __future__ import annotations

from typing import Any

from relayout.errors import Unsupported
from relayout.layout.dense import resized_like
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.formats import check_source, following
from relayout.primitives.backward.base import Backward

__all__ = ["check_gradient", "followed", "passed_back"]


def followed(near: MemoryDesc, desc: MemoryDesc) -> MemoryDesc:
    """A descriptor; where it is ``any``, in the format of another one, whatever the sizes of both.

    >>> import relayout as rl
    >>> followed(rl.MemoryDesc((2, 8, 4, 4), "f32", "nChw8c"), rl.MemoryDesc((2, 8, 9, 9), "bf16", rl.any))
    MemoryDesc('bf16:nChw8c:2x8x9x9')
    """
    if desc.layout is None and near.format is None:
        return desc.with_layout(resized_like(near.layout, desc.dims))
    return following(near, desc)


def passed_back(made: Backward, diff_dst: Any, diff_src: Any) -> tuple[MemoryDesc, MemoryDesc]:
    """The descriptors of ``diff_dst`` and ``diff_src`` where nothing else is read, checked.

    ``any`` is the format of ``dst`` in the forward pass, and that of ``diff_dst``.

    Raises
    ------
    LayoutError
        Dims differ from those of the forward pass.
    Unsupported
        There is no gradient of such a data type.
    """
    src, dst = (made.forward.descs[name] for name in ("src", "dst"))
    diff_dst = followed(dst, made._like("diff_dst", diff_dst, dst))
    diff_src = followed(diff_dst, made._like("diff_src", diff_src, src, written=True))
    for name, desc in (("diff_dst", diff_dst), ("diff_src", diff_src)):
        check_gradient(made.kind, name, desc)
    return diff_dst, diff_src


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
