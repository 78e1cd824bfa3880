"""Elements in another arrangement: blocks of an image as channels, reversed sequences, triangles, windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.errors import LayoutError, counted
from relayout.graph.operators.axes import Dim, axes_in, axis_in, numbers, only
from relayout.graph.operators.movement import zero
from relayout.graph.operators.registry import Array, Fact, operator, same

ORDERS = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}
"""How the axes of blocks in the channels are ordered: outermost, or innermost."""


def _scaled(n: Dim, up: int, down: int) -> Dim:
    """A size times ``up``, divided by ``down``."""
    if not isinstance(n, int):
        return n if up == down else None
    if n * up % down:
        raise LayoutError(f"size {n} is no multiple of {down}")
    return n * up // down


def _to_space(x: Fact, *, blocksize: int, **_: Any) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    n, c, h, w = x.dims
    b = blocksize
    return Fact((n, _scaled(c, 1, b * b), _scaled(h, b, 1), _scaled(w, b, 1)), x.dtype)


def _to_depth(x: Fact, *, blocksize: int, **_: Any) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    n, c, h, w = x.dims
    b = blocksize
    return Fact((n, _scaled(c, b * b, 1), _scaled(h, 1, b), _scaled(w, 1, b)), x.dtype)


def _order(mode: str) -> tuple[int, ...]:
    if mode not in ORDERS:
        raise LayoutError(f"mode is 'DCR' or 'CRD', got {mode!r}")
    return ORDERS[mode]


@operator("DepthToSpace", infer=_to_space)
def depth_to_space(x: Array, /, *, blocksize: int, mode: str = "DCR") -> Any:
    """Channels as the pixels of blocks; DCR: the block is the outer part of the channels, CRD: the inner."""
    dims = _to_space(Fact(x.shape), blocksize=blocksize).dims
    n, c, h, w = x.shape
    depth, b = c // blocksize**2, blocksize
    blocks = (n, b, b, depth, h, w) if mode == "DCR" else (n, depth, b, b, h, w)
    return x.reshape(blocks).transpose(_order(mode)).reshape(dims)


@operator("SpaceToDepth", infer=_to_depth)
def space_to_depth(x: Array, /, *, blocksize: int, mode: str = "DCR") -> Any:
    """The inverse of DepthToSpace."""
    dims = _to_depth(Fact(x.shape), blocksize=blocksize).dims
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // blocksize, blocksize, w // blocksize, blocksize)
    return blocks.transpose(np.argsort(_order(mode))).reshape(dims)


@operator("ReverseSequence", infer=same)
def reverse_sequence(x: Array, sequence_lens: Array, /, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """The first elements of each sequence reversed, as many as its length says."""
    batch, time = axes_in((batch_axis, time_axis), x.ndim)
    if sequence_lens.shape != (x.shape[batch],) or (sequence_lens > x.shape[time]).any():
        raise LayoutError(
            f"lengths {sequence_lens.tolist()} don't fit sizes {x.shape[batch]}, {x.shape[time]}"
        )

    def along(numbers: Array, axis: int) -> Array:
        return numbers.reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim)))

    at, lengths = along(np.arange(x.shape[time]), time), along(sequence_lens, batch)
    return np.take_along_axis(x, np.where(at < lengths, lengths - 1 - at, at), time)


def _windows(dims: Sequence[int], shape: Sequence[int], axes: Sequence[int] | None) -> dict[int, int]:
    along = axes_in(range(len(dims)) if axes is None else axes, len(dims))
    if len(along) != len(shape):
        raise LayoutError(f"there must be a size for each axis: {len(shape)} sizes for {len(along)} axes")
    return dict(zip(along, shape, strict=True))


def _windowed(x: Fact, shape: Fact, *, axes: tuple[int, ...] | None = None) -> Fact:
    if x.dims is None:
        return Fact(None, x.dtype)
    wanted = numbers(shape)
    if wanted is None:
        chosen = axes_in(range(len(x.dims)) if axes is None else axes, len(x.dims))
        return Fact(tuple(None if axis in chosen else n for axis, n in enumerate(x.dims)), x.dtype)
    sizes = _windows((0,) * len(x.dims), wanted, axes)
    return Fact(tuple(sizes.get(axis, n) for axis, n in enumerate(x.dims)), x.dtype)


@operator("CenterCropPad", infer=_windowed)
def center_crop_pad(x: Array, shape: Array, /, *, axes: tuple[int, ...] | None = None) -> Array:
    """A window around the centre, with zeros where it is larger; what is odd is left over on the right."""
    sizes = _windows(x.shape, shape.tolist(), axes)
    made = np.full([sizes.get(axis, n) for axis, n in enumerate(x.shape)], zero(x.dtype), x.dtype)
    source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, n in sizes.items():
        common, old = min(n, x.shape[axis]), x.shape[axis]
        source[axis] = slice((old - common) // 2, (old - common) // 2 + common)
        target[axis] = slice((n - common) // 2, (n - common) // 2 + common)
    made[tuple(target)] = x[tuple(source)]
    return made


@operator("Trilu", infer=same)
def trilu(x: Array, k: Array | None = None, /, *, upper: int = 1) -> Array:
    """The triangle on and above the k-th diagonal, or on and below it; zero elsewhere."""
    if x.ndim < 2:
        raise LayoutError(f"the input must hold matrices, and has {counted(x.ndim, 'axis')}")
    diagonal = 0 if k is None else int(only(k, "k"))
    return np.triu(x, diagonal) if upper else np.tril(x, diagonal)


@operator("TensorScatter", infer=same)
def tensor_scatter(
    past_cache: Array,
    update: Array,
    write_indices: Array | None = None,
    /,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Any:
    """The cache with new entries along an axis, from a position of each batch on; circular: modulo."""
    axis = axis_in(axis, past_cache.ndim)
    size, count = past_cache.shape[axis], update.shape[axis]
    if mode not in ("linear", "circular"):
        raise LayoutError(f"mode is 'linear' or 'circular', got {mode!r}")
    if not axis or count > size:
        raise LayoutError(f"{count} entries can't be written along axis {axis} of size {size}")
    batch = past_cache.shape[0]
    first = np.zeros(batch, np.int64) if write_indices is None else write_indices
    at = first[:, None] + np.arange(count)
    at = at % size if mode == "circular" else at
    if ((at < 0) | (at >= size)).any():
        raise LayoutError(
            f"{count} entries from positions {first.tolist()} on reach beyond axis {axis} of size {size}"
        )
    made = past_cache.copy()
    np.moveaxis(made, axis, 1)[np.arange(batch)[:, None], at] = np.moveaxis(update, axis, 1)
    return made
