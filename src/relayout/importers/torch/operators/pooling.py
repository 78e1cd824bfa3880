"""Pooling: windows that move, and adaptive windows, of which the number is given."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from relayout.graph.graph import Value
from relayout.importers.torch.call import Call, dims_of, rank
from relayout.importers.torch.operators.products import several
from relayout.importers.torch.operators.table import aten

DIMS = {"1d": 1, "2d": 2, "3d": 3}


def _axes(call: Call) -> int:
    """Over how many axes: the operator's name says it."""
    return next(count for text, count in DIMS.items() if text in call.operator)


def _unbatched(call: Call, x: Value, axes: int) -> Value:
    return call.unsqueeze(x, 0) if rank(x) == axes + 1 else x


def _pool(
    call: Call, x: Value, operator: str, window: Any, stride: Any, padding: Any, ceil: bool, **more: Any
) -> Value:
    axes = _axes(call)
    kernel = several(window, axes)
    batched = _unbatched(call, x, axes)
    made = call.emit(
        operator, batched, kernel_shape=kernel, strides=several(stride, axes) if stride else kernel,
        pads=several(padding, axes) * 2, ceil_mode=int(ceil), dims=(1, *dims_of(call.result)), **more,
    )  # fmt: skip
    return made if batched is x else call.squeeze(made, 0)


@aten("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(call: Call, x: Value, window: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    if any(call.used[1:]):
        raise call.refuse("the positions that max pooling returns")
    made = _pool(call, x, "MaxPool", window, stride, padding, ceil, dilations=several(dilation, _axes(call)))
    return made if len(call.results) == 1 else (made, None)


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    call: Call, x: Value, window: Any, stride: Any, padding: Any, ceil: bool, count_padding: bool,
    divisor: int | None = None,
) -> Value:  # fmt: skip
    made = _pool(
        call,
        x,
        "AveragePool",
        window,
        stride,
        padding,
        ceil,
        count_include_pad=int(count_padding or divisor is not None),
    )
    if divisor is None:
        return made
    if ceil:
        raise call.refuse("average pooling with both ceil_mode and a divisor")
    return call.emit("Mul", made, call.constant(prod(several(window, _axes(call))) / divisor, x.dtype))


@aten("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
@aten("_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(call: Call, x: Value, sizes: Sequence[int | None]) -> Value:
    return _adaptive(call, x, sizes, "Average")


@aten("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def adaptive_max_pool(call: Call, x: Value, sizes: Sequence[int | None]) -> Any:
    if any(call.used[1:]):
        raise call.refuse("the positions that max pooling returns")
    return _adaptive(call, x, sizes, "Max"), None


def _adaptive(call: Call, x: Value, sizes: Sequence[int | None], kind: str) -> Value:
    """Windows that are alike where the sizes divide; else each axis is cut into its windows by slices.

    Window ``i`` of ``out`` along an axis of size ``n`` goes from ``floor(i n / out)`` to
    ``ceil((i + 1) n / out)``. The mean over a box of elements is the mean along one axis after the other.
    """
    axes = _axes(call)
    batched = _unbatched(call, x, axes)
    space = dims_of(batched)[2:]
    wanted = dims_of(call.result)[-axes:]
    if wanted == space and None not in space:
        return x
    if all(n == 1 for n in wanted):
        made = call.emit(f"Global{kind}Pool", batched, dims=(1, *dims_of(call.result)))
        return made if batched is x else call.squeeze(made, 0)
    pairs = [
        (n, out) for n, out in zip(space, wanted, strict=True) if isinstance(n, int) and isinstance(out, int)
    ]
    if len(pairs) < axes:
        raise call.refuse(f"adaptive pooling from {space}, of which something is not known, to {wanted}")
    if all(n % out == 0 for n, out in pairs):
        kernel = tuple(n // out for n, out in pairs)
        made = call.emit(
            f"{kind}Pool", batched, kernel_shape=kernel, strides=kernel, dims=(1, *dims_of(call.result))
        )
        return made if batched is x else call.squeeze(made, 0)
    reduce = "ReduceMean" if kind == "Average" else "ReduceMax"
    made = x
    for place, (n, out) in enumerate(pairs):
        axis = rank(x) - axes + place
        windows = [
            call.emit(
                reduce,
                call.slice(made, axis, i * n // out, -(-(i + 1) * n // out)),
                call.ints(axis),
                keepdims=1,
            )
            for i in range(out)
        ]
        dims = tuple(out if other == axis else size for other, size in enumerate(dims_of(made)))
        made = Value(call.emit("Concat", *windows, axis=axis).name, dims, x.dtype)
    return made
