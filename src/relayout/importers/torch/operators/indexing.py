"""Elements by index: looked up, and written.

``x[i, :, j]`` becomes one node that reads slices at positions: the axes with an index are brought to the
front, the indices are put side by side in a last axis. Where the result has the axes of the indices is as in
NumPy: in place of the first index if indices stand side by side, in front otherwise.

In ``x[i]`` an index below 0 counts from the end. All other operators refuse it in PyTorch, and so do nodes
with ``from_end=0``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relayout.graph.graph import Value
from relayout.graph.operators.registry import Fact, broadcast
from relayout.importers.torch.call import INT64, Call, Number, Operand, Size, dims_of, rank
from relayout.importers.torch.operators.table import aten


@aten("embedding.default")
def embedding(call: Call, table: Value, index: Value, padding_idx: int = -1, *_: Any) -> Value:
    more: dict[str, Any] = {"padding_idx": padding_idx} if padding_idx >= 0 else {}
    return call.emit("Gather", table, index, axis=0, from_end=0, **more)


@aten("index_select.default")
def index_select(call: Call, x: Value, axis: int, index: Value) -> Value:
    if not rank(x):  # the index is one 0
        found = call.emit("Gather", call.reshape(x, (1,)), index, axis=0, from_end=0)
        return call.reshape(found, ())
    if not rank(index):  # the axis stays, with one element
        index = call.unsqueeze(index, 0)
    return call.emit("Gather", x, index, axis=axis % rank(x), from_end=0)


@aten("gather.default")
def gather(call: Call, x: Value, axis: int, index: Value, *_: Any) -> Value:
    if not rank(x):  # as many times as there are indices, all of which are 0
        return call.emit("Gather", call.reshape(x, (1,)), index, axis=0, from_end=0)
    return call.emit("GatherElements", _cut(call, x, index, axis), index, axis=axis % rank(x), from_end=0)


@aten("scatter.src", "scatter.value", "scatter_add.default")
def scatter(call: Call, x: Value, axis: int, index: Value, source: Operand) -> Value:
    return _scatter(call, x, axis, index, source, "add" if "add" in call.operator else "none")


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_reduce(call: Call, x: Value, axis: int, index: Value, source: Operand, reduce: str) -> Value:
    return _scatter(call, x, axis, index, source, {"add": "add", "multiply": "mul"}[reduce])


@aten("scatter_reduce.two")
def scatter_reduce_two(
    call: Call, x: Value, axis: int, index: Value, source: Value, reduce: str, include: bool
) -> Value:
    kinds = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduce not in kinds or not include:
        raise call.refuse(f"scatter_reduce of {reduce!r}, include_self={include}")
    return _scatter(call, x, axis, index, source, kinds[reduce])


def _scatter(call: Call, x: Value, axis: int, index: Value, source: Operand, reduction: str) -> Value:
    if not isinstance(source, Value):
        sizes = [call.size(index, place) for place in range(rank(index))]
        updates = call.expand(call.cast(source, x.dtype), sizes, index.dims)
    else:
        updates = _cut(call, source, index)
    return call.emit(
        "ScatterElements", x, index, updates, axis=axis % max(rank(x), 1), reduction=reduction, from_end=0
    )


def _cut(call: Call, x: Value, index: Value, but: int | None = None) -> Value:
    """As far as an index goes: PyTorch lets operands be longer, which the graph's operators don't."""
    for axis in range(rank(x)):
        if dims_of(x)[axis] != dims_of(index)[axis] and (but is None or axis != but % rank(x)):
            x = call.slice(x, axis, 0, call.size(index, axis))
    return x


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(call: Call, x: Value, indices: Sequence[Value | None]) -> Value:
    at = {axis: one for axis, one in enumerate(indices) if one is not None}
    if len(at) == 1:
        ((axis, only),) = at.items()
        if only.dtype != np.bool_:
            return call.emit("Gather", x, call.cast(only, INT64), axis=axis)
        return _masked(call, x, axis, only)
    front, order, common, positions = _positions(call, x, at)
    found = call.emit("GatherND", call.transpose(x, order), positions)
    if not front:
        return found
    axes = len(common)
    rest = rank(x) - len(at)
    made = Value(found.name, (None,) * (axes + rest), x.dtype)
    return call.transpose(made, [*range(axes, axes + front), *range(axes), *range(axes + front, axes + rest)])


def _masked(call: Call, x: Value, axis: int, mask: Value) -> Value:
    """The slices at which a mask of one or more axes is true."""
    if rank(mask) == 1:
        return call.emit("Compress", x, mask, axis=axis)
    if axis:
        raise call.refuse(f"a mask of {rank(mask)} axes that begins at axis {axis}")
    places = call.emit("NonZero", mask, dims=(rank(mask), None), dtype=INT64)
    return call.emit("GatherND", x, call.transpose(places, (1, 0)))


def _positions(call: Call, x: Value, at: dict[int, Value]) -> tuple[int, list[int], tuple[Any, ...], Value]:
    """Axes in front of the indices' in the result, the order of axes that brings theirs to the front, their
    common dims, and the positions that they are, side by side in a last axis.
    """
    if any(one.dtype == np.bool_ for one in at.values()):
        raise call.refuse("several indices with a mask among them")
    axes = list(at)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    order = [*axes, *(axis for axis in range(rank(x)) if axis not in at)]
    common = broadcast(*(Fact(one.dims) for one in at.values())) or ()
    known = [call.known(one) for one in at.values()]
    if all(one is not None for one in known):
        data = np.stack(np.broadcast_arrays(*(one for one in known if one is not None)), axis=-1)
        return axes[0] * adjacent, order, common, call.constant(data, INT64, "positions")
    sizes = _sizes(call, list(at.values()), common)
    columns = [
        call.unsqueeze(call.expand(call.cast(one, INT64), sizes, common), len(common)) for one in at.values()
    ]
    side_by_side = columns[0] if len(columns) == 1 else call.emit("Concat", *columns, axis=-1)
    return axes[0] * adjacent, order, common, Value(side_by_side.name, (*common, len(at)), INT64)


def _sizes(call: Call, operands: Sequence[Value], common: tuple[Any, ...]) -> list[Size]:
    """The sizes that operands are broadcast to."""
    sizes: list[Size] = []
    for axis in range(-len(common), 0):
        wide = [one for one in operands if -axis <= rank(one) and dims_of(one)[axis] != 1]
        sizes.append(call.size(wide[0], axis) if wide else 1)
    return sizes


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(
    call: Call, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool
) -> Value:
    at = {axis: one for axis, one in enumerate(indices) if one is not None}
    masks = [one for one in at.values() if one.dtype == np.bool_]
    if masks:
        return _put_masked(call, x, at, masks[0], values, accumulate)
    front, order, common, positions = _positions(call, x, at)
    rest = order[len(at) :]
    dims = (*common, *(dims_of(x)[axis] for axis in rest))
    axes = len(common)
    if (
        front and rank(values) > len(rest) - front
    ):  # the values have the axes in front of the indices' in front
        values = (
            call.unsqueeze(values, *range(len(dims) - rank(values))) if rank(values) < len(dims) else values
        )
        values = call.transpose(
            values, [*range(front, front + axes), *range(front), *range(front + axes, len(dims))]
        )
    sizes = [*_sizes(call, list(at.values()), common), *(call.size(x, axis) for axis in rest)]
    updates = call.expand(call.cast(values, x.dtype), sizes, dims)
    moved = call.transpose(x, order)
    reduction = "add" if accumulate else "none"
    made = call.emit("ScatterND", moved, positions, updates, reduction=reduction)
    back = [order.index(axis) for axis in range(rank(x))]
    return call.transpose(Value(made.name, tuple(dims_of(x)[axis] for axis in order), x.dtype), back)


def _put_masked(
    call: Call, x: Value, at: dict[int, Value], mask: Value, values: Value, accumulate: bool
) -> Value:
    if len(at) > 1 or accumulate or any(n != 1 for n in dims_of(values)):
        raise call.refuse("values written where a mask is true, unless they are one number")
    (axis,) = at
    behind = rank(x) - axis - rank(mask)
    if behind:
        mask = call.unsqueeze(mask, *range(rank(mask), rank(mask) + behind))
    return call.emit("Where", mask, call.reshape(call.cast(values, x.dtype), ()), x)


@aten("index_add.default", "index_copy.default")
def index_add(call: Call, x: Value, axis: int, index: Value, source: Value, alpha: Number = 1) -> Value:
    """Slices along an axis that are added, or put in the place of others."""
    if not rank(x):
        raise call.refuse("slices of a tensor without axes")
    adds = "add" in call.operator
    if rank(index) == 0:
        index = call.unsqueeze(index, 0)
    if adds and alpha != 1:
        source = call.emit("Mul", source, call.constant(alpha, x.dtype), dims=source.dims, dtype=x.dtype)
    _, order, _, positions = _positions(call, x, {axis % rank(x): index})
    made = call.emit(
        "ScatterND", call.transpose(x, order), positions, call.transpose(source, order),
        reduction="add" if adds else "none", from_end=0,
    )  # fmt: skip
    back = [order.index(other) for other in range(rank(x))]
    return call.transpose(Value(made.name, tuple(dims_of(x)[other] for other in order), x.dtype), back)


@aten("masked_select.default")
def masked_select(call: Call, x: Value, mask: Value) -> Value:
    common = broadcast(Fact(x.dims), Fact(mask.dims)) or ()
    sizes = _sizes(call, [x, mask], common)
    flat = [call.reshape(call.expand(one, sizes, common), (-1,), (None,)) for one in (x, mask)]
    return call.emit("Compress", *flat, axis=0)


@aten("nonzero.default")
def nonzero(call: Call, x: Value) -> Value:
    return call.transpose(call.emit("NonZero", x, dims=(rank(x), None), dtype=INT64), (1, 0))


@aten("slice_scatter.default")
def slice_scatter(
    call: Call, x: Value, source: Value, axis: int, start: Size | None, end: Size | None, step: int
) -> Value:
    """What lies in front of the slice, the new part, and what lies behind."""
    axis %= rank(x)
    length = dims_of(x)[axis]
    if isinstance(length, int) and not isinstance(start, Value) and not isinstance(end, Value):
        places = range(length)[slice(start, end, step)]
        if len(places) == length:
            return source
        if step != 1:
            at = np.zeros((len(places), 1), INT64)
            at[:, 0] = places
            order = [axis, *(other for other in range(rank(x)) if other != axis)]
            made = call.emit("ScatterND", call.transpose(x, order), call.constant(at, INT64, "positions"),
                             call.transpose(source, order))  # fmt: skip
            back = [order.index(other) for other in range(rank(x))]
            return call.transpose(
                Value(made.name, tuple(dims_of(x)[other] for other in order), x.dtype), back
            )
        if not places:
            return x
        first, behind = places.start, places.stop
        parts = [call.slice(x, axis, 0, first)] if first else []
        parts.append(call.cast(source, x.dtype))
        parts += [call.slice(x, axis, behind, length)] if behind < length else []
        return call.emit("Concat", *parts, axis=axis)
    raise call.refuse("a slice of unknown bounds that is written to")


@aten("select_scatter.default")
def select_scatter(call: Call, x: Value, source: Value, axis: int, at: int) -> Value:
    axis %= rank(x)
    length = dims_of(x)[axis]
    if not isinstance(length, int):
        raise call.refuse("a place on an axis of unknown size that is written to")
    at %= length
    return slice_scatter(call, x, call.unsqueeze(source, axis), axis, at, at + 1, 1)
