"""Elements under other dims or in another order, parts of values and values put together: no arithmetic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import INT64, Call, Operand, Size, dims_of, promoted, rank
from relayout.importers.torch.operators.table import aten


@aten("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default", "_reshape_copy.default")
def view(call: Call, x: Value, sizes: Sequence[Size]) -> Value:
    dims = dims_of(call.result)
    known = [given if isinstance(given, int) else n for n, given in zip(sizes, dims, strict=True)]
    return call.reshape(x, known, dims)


@aten("view.dtype")
def view_dtype(call: Call, x: Value, dtype: Any) -> Value:
    if x.dtype != dtype:
        raise call.refuse(f"the bits of {x.dtype} read as {dtype}")
    return x


@aten("squeeze.dim", "squeeze.dims", "squeeze.default", "squeeze_copy.dim")
def squeeze(call: Call, x: Value, axes: int | Sequence[int] | None = None) -> Value:
    chosen = range(rank(x)) if axes is None else [axes] if isinstance(axes, int) else axes
    found = [axis for axis in chosen if rank(x) and dims_of(x)[axis] == 1]
    return call.squeeze(x, *found) if found else x


@aten("unsqueeze.default", "unsqueeze_copy.default")
def unsqueeze(call: Call, x: Value, axis: int) -> Value:
    return call.unsqueeze(x, axis)


@aten("permute.default", "permute_copy.default")
def permute(call: Call, x: Value, order: Sequence[int]) -> Value:
    return call.transpose(x, order)


@aten("transpose.int", "transpose_copy.int")
def transpose(call: Call, x: Value, first: int, second: int) -> Value:
    order = list(range(rank(x)))
    if order:
        order[first], order[second] = order[second], order[first]
    return call.transpose(x, order)


@aten("t.default", "t_copy.default", "numpy_T.default", "mT.default")
def t(call: Call, x: Value) -> Value:
    return transpose(call, x, -1, -2) if rank(x) > 1 else x


@aten("expand.default", "expand_copy.default")
def expand(call: Call, x: Value, sizes: Sequence[Size], *_: Any) -> Value:
    return call.expand(x, [1 if isinstance(n, int) and n == -1 else n for n in sizes], call.result.dims)


@aten("repeat.default")
def repeat(call: Call, x: Value, repeats: Sequence[Size]) -> Value:
    new = len(repeats) - rank(x)
    x = call.unsqueeze(x, *range(new)) if new else x
    if all(isinstance(n, int) and n == 1 for n in repeats):
        return x
    return call.emit("Tile", x, call.vector(repeats))


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(call: Call, x: Value, axis: int, start: Size | None, end: Size | None, step: int) -> Value:
    start = 0 if start is None else start
    end = sys.maxsize if end is None else end
    axis %= rank(x)
    length = dims_of(x)[axis]
    if step == 1 and not isinstance(start, Value) and not isinstance(end, Value):
        if start == 0 and end == sys.maxsize:
            return x
        if isinstance(length, int):
            first, last, _ = slice(start, end).indices(length)
            if (first, last) == (0, length):
                return x
            start, end = first, max(first, last)
    return call.slice(x, axis, start, end, step)


@aten("select.int", "select_copy.int")
def select(call: Call, x: Value, axis: int, index: Operand) -> Value:
    return call.emit("Gather", x, call.cast(index, INT64), axis=axis % rank(x))


@aten("narrow.default", "narrow_copy.default")
def narrow(call: Call, x: Value, axis: int, start: int, length: int) -> Value:
    return call.slice(x, axis % rank(x), start, start + length)


@aten("unbind.int", "unbind_copy.int")
def unbind(call: Call, x: Value, axis: int) -> tuple[Value | None, ...]:
    return tuple(select(call, x, axis, index) if used else None for index, used in enumerate(call.used))


@aten("split.Tensor", "split_with_sizes.default", "chunk.default", "split_with_sizes_copy.default")
@aten("split_copy.Tensor", "tensor_split.sections", "tensor_split.indices")
def split(call: Call, x: Value, _: Any, axis: int) -> tuple[Value, ...]:
    """Into parts whose sizes the facts of the results say."""
    parts = [dims_of(one)[axis] for one in call.results]
    if len(parts) == 1:
        return (x,)
    if not all(isinstance(n, int) for n in parts):
        raise call.refuse(f"a split into parts of sizes {parts}, which are not known")
    sizes = call.constant(parts, INT64)
    return call.several("Split", x, sizes, outputs=len(parts), axis=axis % rank(x))


@aten("cat.default", "concatenate.default", "concat.default")
def cat(call: Call, values: Sequence[Value], axis: int) -> Value:
    """Vectors without elements are left out, whatever the rank of the others."""
    some = [one for one in values if one.dims != (0,)] or values[:1]
    if len(some) == 1:
        return call.cast(some[0], call.dtype)
    return call.emit("Concat", *(call.cast(one, call.dtype) for one in some), axis=axis % rank(some[0]))


@aten("stack.default")
def stack(call: Call, values: Sequence[Value], axis: int) -> Value:
    dtype = promoted(*values)
    axis %= rank(values[0]) + 1
    return call.emit("Concat", *(call.unsqueeze(call.cast(one, dtype), axis) for one in values), axis=axis)


@aten("roll.default")
def roll(call: Call, x: Value, shifts: Sequence[int], axes: Sequence[int]) -> Value:
    if not axes:
        flat = roll(call, call.reshape(x, (-1,)), shifts, (0,))
        return call.reshape(flat, dims_of(x), x.dims)  # type: ignore[arg-type]
    for shift, axis in zip(shifts, axes, strict=True):
        length = dims_of(x)[axis]
        if not isinstance(length, int):
            cut = -shift
        elif length == 0 or shift % length == 0:
            continue
        else:
            cut = length - shift % length
        axis %= rank(x)
        ends = [call.slice(x, axis, *part) for part in ((cut, sys.maxsize), (0, cut))]
        x = call.emit("Concat", *ends, axis=axis, dims=x.dims, dtype=x.dtype)
    return x


@aten("flip.default")
def flip(call: Call, x: Value, axes: Sequence[int]) -> Value:
    if not axes:
        return x
    count = len(axes)
    starts, ends = call.ints(*(-1,) * count), call.ints(*(-sys.maxsize,) * count)
    return call.emit("Slice", x, starts, ends, call.ints(*axes), call.ints(*(-1,) * count))


@aten("constant_pad_nd.default", "pad.default")
@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def pad(call: Call, x: Value, amounts: Sequence[Size], *more: Any) -> Value:
    """PyTorch lists the amounts from the last axis on: before and behind it, and so on."""
    name = call.operator.split(".")[1]
    if name == "pad":
        mode, value = more
    elif name == "constant_pad_nd":
        mode, value = "constant", more[0]
    else:
        mode, value = name.partition("_")[0], None
    mode = {"reflection": "reflect", "replication": "edge", "replicate": "edge", "circular": "wrap"}.get(
        mode, mode
    )
    if all(isinstance(n, int) and n == 0 for n in amounts):
        return x
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    axes = range(rank(x) - len(pairs), rank(x))
    pads = call.vector([before for before, _ in pairs] + [behind for _, behind in pairs])
    filled = call.cast(value or 0, x.dtype) if mode == "constant" else None
    return call.emit("Pad", x, pads, filled, call.ints(*axes), mode=mode)


@aten("pixel_shuffle.default")
def pixel_shuffle(call: Call, x: Value, factor: int) -> Value:
    if rank(x) == 4:
        return call.emit("DepthToSpace", x, blocksize=factor, mode="CRD")
    shape = (-1, *dims_of(x)[-3:])
    flat = call.emit("DepthToSpace", call.reshape(x, shape, (None, *shape[1:])), blocksize=factor, mode="CRD")  # type: ignore[arg-type]
    return call.reshape(flat, dims_of(call.result), call.result.dims)  # type: ignore[arg-type]


@aten("channel_shuffle.default", "native_channel_shuffle.default")
def channel_shuffle(call: Call, x: Value, groups: int) -> Value:
    batch, channels, *rest = dims_of(x)
    if not isinstance(channels, int):
        raise call.refuse("channels of an unknown number")
    space = [call.size(x, axis) for axis in range(2, rank(x))]
    parts = [call.size(x, 0), groups, channels // groups, *space]
    apart = call.reshape(x, parts, (batch, groups, channels // groups, *rest))
    order = (0, 2, 1, *range(3, rank(x) + 1))
    return call.reshape(call.transpose(apart, order), [parts[0], channels, *space], x.dims)


@aten("unfold.default")
def unfold(call: Call, x: Value, axis: int, size: int, step: int) -> Value:
    """Windows along an axis: a new axis, the last, is the position within a window."""
    axis %= rank(x)
    length = dims_of(x)[axis]
    if not isinstance(length, int):
        raise call.refuse(f"windows along an axis of unknown size {length}")
    at = np.arange(0, length - size + 1, step)[:, None] + np.arange(size)
    windows = call.emit("Gather", x, call.constant(at, INT64, "windows"), axis=axis)
    order = [*range(axis + 1), *range(axis + 2, rank(x) + 1), axis + 1]
    return call.transpose(windows, order)


@aten("as_strided.default", "as_strided_copy.default")
def as_strided(
    call: Call, x: Value, sizes: Sequence[Size], strides: Sequence[Size], offset: Size | None
) -> Value:
    """Elements picked from memory; what lies there is known if the operand lies in the order of its axes."""
    numbers = [*sizes, *strides, offset or 0]
    if not call.contiguous() or not all(isinstance(n, int) for n in (*numbers, *dims_of(x))):
        raise call.refuse("as_strided of a value that is not contiguous, or of unknown size")
    at = np.full(tuple(sizes), offset or 0, INT64)  # type: ignore[type-var]
    for axis, stride in enumerate(strides):
        at += (np.arange(sizes[axis]) * stride).reshape(-1, *(1,) * (len(sizes) - axis - 1))  # type: ignore[arg-type,operator]
    total = int(np.prod(np.array(dims_of(x), INT64)))
    if at.size and at.max() >= total:
        raise call.refuse(f"as_strided reads element {at.max()} of {total}: what lies beside a view")
    if at.size == total and np.array_equal(at.ravel(), np.arange(total)):
        return call.reshape(x, sizes)
    return call.emit("Gather", call.reshape(x, (total,)), call.constant(at, INT64, "positions"), axis=0)
