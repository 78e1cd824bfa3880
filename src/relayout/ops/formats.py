"""What ``any`` stands for where a primitive takes formats as they come, and what such a primitive accepts.

Operations whose time is that of reading and writing gain nothing from a format of their own: whatever they
would save, the reorder costs more. So they take what the operation before them wrote, and write the same:

>>> import relayout as rl
>>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
>>> following(x, rl.MemoryDesc(x.dims, "s8", rl.any))
MemoryDesc('s8:nChw16c:8x64x56x56')
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relayout.errors import LayoutError, Unsupported, type_name
from relayout.layout.dense import dense_like, row_major
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import spell_dims
from relayout.ops.checks import alike, check_descs, check_written

__all__ = [
    "TYPES",
    "check_source",
    "check_target",
    "finite",
    "following",
    "not_negative",
    "overwritable",
    "target_of",
    "with_formats",
]

TYPES = ("f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "s32", "s8", "u8")
"""Data types that are computed with, in f32: integers beyond 2**24 are rounded."""


def check_source(kind: str, name: str, desc: MemoryDesc) -> None:
    """Refuse a source without a format, or of a type that is not computed with.

    Raises
    ------
    LayoutError
        It has no format: there is nothing to follow.
    Unsupported
        Its data type is none of :data:`TYPES`.
    """
    check_descs(kind, {name: desc}, {})
    if desc.layout is None:
        raise LayoutError(f"{kind}: {name} {desc} needs a format: it is taken as it was written")
    _check_type(kind, name, desc)


def check_target(kind: str, desc: MemoryDesc, dims: Sequence[int]) -> None:
    """Refuse a destination of other sizes, of a type that is not computed with, or with shared places."""
    check_descs(kind, {"dst": desc}, {})
    if desc.dims != tuple(dims):
        raise LayoutError(f"{kind}: dst {desc} must be {spell_dims(dims)}")
    _check_type(kind, "dst", desc)
    check_written(kind, desc)


def following(src: MemoryDesc, dst: MemoryDesc) -> MemoryDesc:
    """The destination; where it is ``any``, in the format of the source.

    A source that is dense in no format, a part of something larger for instance, is followed in the order of
    its digits; one of other sizes and without a format can't be followed, and the result is row-major.
    """
    if not isinstance(dst, MemoryDesc):
        raise LayoutError(f"dst must be a MemoryDesc, not {type_name(dst)}")
    if dst.layout is not None:
        return dst
    if src.format is not None:
        return MemoryDesc(dst.dims, dst.dtype, src.format)
    same = src.dims == dst.dims
    layout = dense_like(src.layout) if same else row_major(dst.dims)
    return MemoryDesc(dst.dims, dst.dtype, layout)


def with_formats(
    descs: Mapping[str, MemoryDesc], formats: Mapping[str, Any], others: str | None = None
) -> dict[str, MemoryDesc]:
    """Descriptors of which each ``any`` has the format of its name, or that of all ``others``.

    Without a format of either kind it stays ``any``.

    >>> import relayout as rl
    >>> x, y = rl.MemoryDesc((2, 3), "f32", rl.any), rl.MemoryDesc((2, 3), "f32", "ab")
    >>> with_formats({"src": x, "weights": x, "dst": y}, {"src": "ba", "dst": "ba"})["src"]
    MemoryDesc('f32:ba:2x3')
    """
    found = {name: formats.get(name, others) for name, desc in descs.items() if desc.layout is None}
    return {
        name: desc if found.get(name) is None else MemoryDesc(desc.dims, desc.dtype, found[name])
        for name, desc in descs.items()
    }


def target_of(
    kind: str, src: MemoryDesc, dst: MemoryDesc | None, dims: Sequence[int], real: bool = False
) -> MemoryDesc:
    """The destination, checked, in the format of the source where it has none.

    Parameters
    ----------
    kind : str
        The primitive, for errors.
    src, dst : MemoryDesc
        Without a destination the data type is that of the source.
    dims : sequence of int
        What the destination's dims must be.
    real : bool
        Whether results of integers are f32, if there is no destination.

    Examples
    --------
    >>> import relayout as rl
    >>> target_of("softmax", rl.MemoryDesc((2, 3), "s8", "ba"), None, (2, 3), real=True)
    MemoryDesc('f32:ba:2x3')
    """
    if dst is None:
        dst = MemoryDesc(tuple(dims), "f32" if real and not src.dtype.is_float else src.dtype, any_format)
    check_descs(kind, {"dst": dst}, {})
    if dst.layout is None and dst.dims == tuple(dims):
        dst = following(src, dst)
    check_target(kind, dst, dims)
    return dst


def finite(what: str, given: Any) -> float:
    """A number as f32; ``what`` it is begins the message if it is none, or f32 makes infinity or 0 of it.

    >>> finite("sum: scale", 0.1)
    0.10000000149011612
    """
    try:
        with np.errstate(over="ignore"):
            number = float(np.float32(given))
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number) or (number == 0 and given != 0):
        raise LayoutError(f"{what} must be a finite number within the range of f32, not {given!r}")
    return number


def not_negative(what: str, given: Any) -> float:
    """A finite number of which there is a root, as f32."""
    number = finite(what, given)
    if number < 0:
        raise LayoutError(f"{what} must not be negative; it is {given}")
    return number


def overwritable(descs: Mapping[str, MemoryDesc], output: str = "dst") -> dict[str, tuple[str, ...]]:
    """The inputs that an output may be: every element in the same place, and of the same type.

    >>> x, y = MemoryDesc((2, 3), "f32", "ab"), MemoryDesc((2, 3), "f32", "ba")
    >>> overwritable({"src0": x, "src1": y, "dst": x})
    {'dst': ('src0',)}
    """
    dst = descs[output]
    return {output: tuple(name for name, desc in descs.items() if name != output and alike(desc, dst))}


def _check_type(kind: str, name: str, desc: MemoryDesc) -> None:
    if desc.dtype.name not in TYPES:
        raise Unsupported(f"{kind}: {name} {desc} is {desc.dtype}; there are {', '.join(TYPES)}")
