"""PyTorch's three memory formats, and the two different questions asked of a tensor's strides.

The formats
===========

=====================  ==========  ================  ====================================================
name                   axes        memory order      strides
=====================  ==========  ================  ====================================================
``contiguous_format``  any number  as written        ``(C*H*W, H*W, W, 1)`` for dims (N, C, H, W)
``channels_last``      4           N, H, W, C        ``(H*W*C, 1, W*C, C)`` for dims (N, C, H, W)
``channels_last_3d``   5           N, D, H, W, C     ``(D*H*W*C, 1, H*W*C, W*C, C)`` for (N, C, D, H, W)
=====================  ==========  ================  ====================================================

The dims stay (N, C, H, W) whatever the format is: a channels-last tensor is indexed ``x[n, c, h, w]`` like
any other, only its strides differ.

Two questions, two answers
==========================

A tensor has sizes and strides and nothing else, so its format must be *read off* them. PyTorch does so in
two ways:

:func:`is_contiguous` asks **where the elements lie**. It is exact: it walks the axes in the format's memory
order and wants each stride to be the product of the sizes before it. An axis of size 1 is never stepped
along, so its stride is not looked at; hence a tensor can be contiguous in two formats at once.

:func:`suggest_memory_format` asks **what the owner meant**. It must choose one format, and so it looks at
what the other does not: the strides of size-1 axes, which place no elements but may carry a hint. And it
ignores what the other insists on: gaps between the elements may be there. Convolutions, pooling and
``.to()`` go by this answer.

For most tensors the answers agree. They part in two places, and there channels-last gets lost:

>>> dims = (8, 64, 1, 1)                           # after global average pooling: H == W == 1
>>> plain, last = (64, 1, 1, 1), (64, 1, 64, 64)
>>> [is_contiguous(dims, s, f) for s in (plain, last) for f in ("contiguous_format", "channels_last")]
[True, True, True, True]
>>> suggest_memory_format(dims, plain), suggest_memory_format(dims, last)
('contiguous_format', 'channels_last')

>>> dims, strides = (8, 64, 7, 7), (6272, 1, 896, 128)       # 64 of 128 channels, sliced
>>> is_contiguous(dims, strides, "channels_last"), suggest_memory_format(dims, strides)
(False, 'channels_last')

The rules are those of PyTorch 2.13 (``c10/core/MemoryFormat.h``, ``c10/core/Contiguity.h``), odd corners
included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relayout.errors import LayoutError
from relayout.pytorch.geometry import (
    Dims,
    Strides,
    checked_dims,
    checked_format,
    checked_geometry,
    checked_strides,
)

__all__ = [
    "channels_last_of_rank",
    "is_contiguous",
    "packed_strides",
    "rank_of",
    "strides_for",
    "suggest_memory_format",
]

# The axes of each channels-last format in memory order, fastest first.
_MEMORY_ORDER = {"channels_last": (1, 3, 2, 0), "channels_last_3d": (1, 4, 3, 2, 0)}
_AXIS_NAMES = {"channels_last": "N, C, H, W", "channels_last_3d": "N, C, D, H, W"}


def rank_of(memory_format: str) -> int | None:
    """Return the only number of axes that a format takes, or None where it takes any.

    >>> rank_of("channels_last"), rank_of("contiguous_format")
    (4, None)
    """
    order = _MEMORY_ORDER.get(memory_format)
    return None if order is None else len(order)


def channels_last_of_rank(rank: int) -> str | None:
    """Return the channels-last format that takes tensors of this rank, or None where PyTorch has none.

    >>> channels_last_of_rank(5)
    'channels_last_3d'
    """
    return next((name for name, order in _MEMORY_ORDER.items() if len(order) == rank), None)


def strides_for(dims: Iterable[int], memory_format: object) -> Strides:
    """Return the strides of a new tensor: what ``torch.empty(dims, memory_format=...)`` gets.

    Parameters
    ----------
    dims : sequence of int
        The sizes, in PyTorch's order of axes (N, C, H, W), also for channels-last.
    memory_format : str
        ``"contiguous_format"``, ``"channels_last"`` or ``"channels_last_3d"``.

    Returns
    -------
    tuple of int
        Strides in elements.

    Raises
    ------
    LayoutError
        The format does not take this number of axes, or a stride does not fit 64 bits.

    Notes
    -----
    For sizes of 0 the formats part: contiguous strides count an empty axis as 1, channels-last strides as 0.

    Examples
    --------
    >>> strides_for((2, 3, 4, 5), "channels_last")
    (60, 1, 15, 3)
    >>> strides_for((2, 0, 4, 5), "contiguous_format"), strides_for((2, 0, 4, 5), "channels_last")
    ((20, 20, 5, 1), (0, 1, 0, 0))
    >>> strides_for((3, 4, 5), "channels_last")
    Traceback (most recent call last):
        ...
    relayout.errors.LayoutError: channels_last takes 4 axes (N, C, H, W) but dims (3, 4, 5) have 3: ...
    """
    sizes = checked_dims(dims)
    name = checked_format(memory_format)
    if name == "contiguous_format":
        return packed_strides([max(size, 1) for size in sizes], range(len(sizes) - 1, -1, -1))
    order = _MEMORY_ORDER[name]
    if len(sizes) != len(order):
        raise LayoutError(
            f"{name} takes {len(order)} axes ({_AXIS_NAMES[name]}) but dims {sizes} have {len(sizes)}: "
            + _advice_on_rank(name, len(sizes))
        )
    return packed_strides(sizes, order)


def _advice_on_rank(name: str, rank: int) -> str:
    if fitting := channels_last_of_rank(rank):
        return f"use {fitting}"
    if rank == len(_MEMORY_ORDER[name]) - 1:
        return f"PyTorch has no batch-less {name}, give the batch an axis of size 1 (unsqueeze(0))"
    return "use contiguous_format, which takes any number"


def packed_strides(dims: Sequence[int], order: Iterable[int]) -> Strides:
    """Return strides without gaps for axes that follow each other in memory as ``order`` says, fastest first.

    >>> packed_strides((2, 3, 4), (1, 2, 0))
    (12, 1, 3)
    """
    strides, step = [0] * len(dims), 1
    for axis in order:
        strides[axis] = step
        step *= dims[axis]
    return checked_strides(strides)


def is_contiguous(
    dims: Iterable[int], strides: Iterable[int], memory_format: object = "contiguous_format"
) -> bool:
    """Tell whether the elements lie without gaps in the order of the format.

    This is ``x.is_contiguous(memory_format=...)``. Strides of size-1 axes do not count. A tensor without
    elements is always contiguous in ``contiguous_format``; in the channels-last formats it must have the
    right strides. A format that does not take this rank answers False, not an error.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.
    memory_format : str
        ``"contiguous_format"``, ``"channels_last"`` or ``"channels_last_3d"``.

    Examples
    --------
    >>> is_contiguous((2, 3, 4, 5), (60, 1, 15, 3), "channels_last")
    True
    >>> grey = (2, 1, 4, 5), (20, 999, 5, 1)                       # C == 1: its stride is never used
    >>> is_contiguous(*grey), is_contiguous(*grey, "channels_last")
    (True, True)
    """
    sizes, steps = checked_geometry(dims, strides)
    name = checked_format(memory_format)
    if name == "contiguous_format":
        return 0 in sizes or _is_packed(sizes, steps, range(len(sizes) - 1, -1, -1))
    order = _MEMORY_ORDER[name]
    return len(sizes) == len(order) and _is_packed(sizes, steps, order)


def _is_packed(dims: Dims, strides: Strides, order: Iterable[int]) -> bool:
    expected = 1
    for axis in order:
        if dims[axis] != 1:
            if strides[axis] != expected:
                return False
            expected *= dims[axis]
    return True


def suggest_memory_format(dims: Iterable[int], strides: Iterable[int], *, exact: bool = False) -> str:
    """Return the one format that PyTorch takes these strides for.

    This is ``suggest_memory_format`` of the C++ tensor. It answers a channels-last format where, in the
    order C, W, H, N, no stride is smaller than the axes before it demand, *size-1 axes included*: their
    strides are the hint that tells formats apart which place every element alike. Gaps are allowed.
    ``contiguous_format`` is the answer to everything else, to sliced, transposed and empty tensors too, so
    it does not mean that the tensor is contiguous.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.
    exact : bool
        Answer a channels-last format only if all strides are those of a new tensor, size-1 axes included.
        PyTorch asks so where a kernel reads packed memory without looking at strides (Apple's MPS).

    Returns
    -------
    str
        ``"contiguous_format"``, ``"channels_last"`` (4 axes) or ``"channels_last_3d"`` (5 axes): text, which
        does not equal ``torch.channels_last``; ``getattr(torch, answer)`` is PyTorch's object.

    Examples
    --------
    >>> suggest_memory_format((2, 3, 4, 5), (60, 1, 15, 3))
    'channels_last'
    >>> suggest_memory_format((2, 3, 4, 5), (120, 1, 30, 6))       # sliced, but the same order
    'channels_last'
    >>> suggest_memory_format((2, 3, 4, 5), (120, 1, 30, 6), exact=True)
    'contiguous_format'
    >>> suggest_memory_format((1, 3, 4, 5), (3, 1, 15, 3))         # the stride of a batch of 1 hides it
    'contiguous_format'
    """
    sizes, steps = checked_geometry(dims, strides)
    name = channels_last_of_rank(len(sizes))
    if name is None or not _ascends(sizes, steps, _MEMORY_ORDER[name]):
        return "contiguous_format"
    if exact and steps != strides_for(sizes, name):
        return "contiguous_format"
    return name


def _ascends(dims: Dims, strides: Strides, order: tuple[int, ...]) -> bool:
    channel = strides[1]
    if channel == 0 or 0 in dims:
        return False
    least = 0
    for axis in order:
        if strides[axis] < least:
            return False
        # (N, 1, 1, 1) with equal strides comes from either format, sliced: PyTorch decides for contiguous.
        if axis == 0 and least == channel:
            return False
        least = strides[axis] * dims[axis]
    return True
