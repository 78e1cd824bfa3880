"""Sums, means, extremes and the like along axes; running sums; the largest elements and sorting."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import INT64, Call, Number, Operand, dims_of, rank
from relayout.importers.torch.operators.table import aten

INT32: Final = np.dtype(np.int32)


def reduced(call: Call, operator: str, x: Value, axes: Any = None, keep: bool = False) -> Value:
    """Reduced along some axes; all of them where none are named."""
    if axes is None or axes == []:
        axes = range(rank(x))
    chosen = (
        sorted(axis % max(rank(x), 1) for axis in ([axes] if isinstance(axes, int) else axes))
        if rank(x)
        else []
    )
    if not chosen and not rank(x):
        return call.emit(operator, x, keepdims=0) if operator in ("ReduceL1", "ReduceL2") else x
    dims: list[Any] = list(dims_of(x))
    for axis in reversed(chosen):
        dims[axis : axis + 1] = [1] if keep else []
    return call.emit(operator, x, call.ints(*chosen), keepdims=int(keep), dims=tuple(dims), dtype=x.dtype)


@aten("sum.default", "mean.default")
def total(call: Call, x: Value, *_: Any) -> Value:
    return along(call, x)


@aten("sum.dim_IntList", "mean.dim")
def along(call: Call, x: Value, axes: Any = None, keep: bool = False, *_: Any) -> Value:
    operator = "ReduceSum" if "sum" in call.operator else "ReduceMean"
    return reduced(call, operator, call.cast(x, call.dtype), axes, keep)


@aten("amax.default", "amin.default")
def extreme(call: Call, x: Value, axes: Any, keep: bool) -> Value:
    return reduced(call, "ReduceMax" if "max" in call.operator else "ReduceMin", x, axes, keep)


@aten("max.default", "min.default")
def extreme_of_all(call: Call, x: Value) -> Value:
    return reduced(call, "ReduceMax" if "max" in call.operator else "ReduceMin", x)


@aten("max.dim", "min.dim")
def extreme_and_position(call: Call, x: Value, axis: int, keep: bool) -> tuple[Value | None, Value | None]:
    kind = "Max" if "max" in call.operator else "Min"
    if not rank(x):
        return x, call.constant(0, INT64)
    value = reduced(call, f"Reduce{kind}", x, axis, keep) if call.used[0] else None
    position = call.emit(f"Arg{kind}", x, axis=axis % rank(x), keepdims=int(keep)) if call.used[1] else None
    return value, position


@aten("argmax.default", "argmin.default")
def position(call: Call, x: Value, axis: int | None, keep: bool) -> Value:
    operator = "ArgMax" if "max" in call.operator else "ArgMin"
    if axis is None or not rank(x):
        flat = call.emit(operator, call.reshape(x, (-1,), (None,)), axis=0, keepdims=0, dims=(), dtype=INT64)
        return call.reshape(flat, (1,) * rank(x)) if keep else flat
    return call.emit(operator, x, axis=axis % rank(x), keepdims=int(keep))


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def truth(call: Call, x: Value, axes: Any = None, keep: bool = False) -> Value:
    numbers = call.cast(call.cast(x, np.dtype(np.bool_)), INT32)
    operator = "ReduceMax" if "any" in call.operator else "ReduceMin"
    return call.cast(reduced(call, operator, numbers, axes, keep), call.dtype)


@aten("prod.default")
def product_of_all(call: Call, x: Value, *_: Any) -> Value:
    return reduced(call, "ReduceProd", call.cast(x, call.dtype))


@aten("prod.dim_int")
def product(call: Call, x: Value, axis: int, keep: bool, *_: Any) -> Value:
    return reduced(call, "ReduceProd", call.cast(x, call.dtype), axis, keep)


@aten("logsumexp.default")
def logsumexp(call: Call, x: Value, axes: Any, keep: bool) -> Value:
    return reduced(call, "ReduceLogSumExp", call.cast(x, call.dtype), axes, keep)


@aten("linalg_vector_norm.default")
def norm(call: Call, x: Value, order: Number, axes: Any, keep: bool, *_: Any) -> Value:
    x = call.cast(x, call.dtype)
    if order in (1, 2):
        return reduced(call, f"ReduceL{int(order)}", x, axes, keep)
    magnitude = Value(call.emit("Abs", x).name, x.dims, x.dtype)
    if abs(order) == float("inf"):
        return reduced(call, "ReduceMax" if order > 0 else "ReduceMin", magnitude, axes, keep)
    powers = Value(call.emit("Pow", magnitude, call.constant(order, x.dtype)).name, x.dims, x.dtype)
    return call.emit("Pow", reduced(call, "ReduceSum", powers, axes, keep), call.constant(1 / order, x.dtype))


@aten("var.correction", "std.correction")
def variance(call: Call, x: Value, axes: Any, correction: Number | None, keep: bool) -> Value:
    made = _variance(call, x, axes, correction, keep)
    return call.emit("Sqrt", made) if "std" in call.operator else made


@aten("var_mean.correction")
def variance_and_mean(
    call: Call, x: Value, axes: Any, correction: Number | None, keep: bool
) -> tuple[Value, Value]:
    return _variance(call, x, axes, correction, keep), reduced(call, "ReduceMean", x, axes, keep)


def _variance(call: Call, x: Value, axes: Any, correction: Number | None, keep: bool) -> Value:
    chosen = range(rank(x)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    sizes = [dims_of(x)[axis] for axis in chosen]
    if not all(isinstance(n, int) for n in sizes):
        raise call.refuse(f"a variance over unknown sizes {tuple(sizes)}")
    count = int(np.prod(np.array(sizes, int)))
    centred = call.emit("Sub", x, reduced(call, "ReduceMean", x, chosen, True))
    squares = Value(call.emit("Mul", centred, centred).name, x.dims, x.dtype)
    total = reduced(call, "ReduceSum", squares, chosen, keep)
    left = max(count - (1 if correction is None else correction), 0)
    return call.emit("Div", total, call.constant(left, x.dtype))


@aten("cumsum.default")
def cumsum(call: Call, x: Value, axis: int, *_: Any) -> Value:
    if not rank(x):
        return call.cast(x, call.dtype)
    return call.emit("CumSum", call.cast(x, call.dtype), call.constant(axis, INT64))


@aten("topk.default")
def topk(call: Call, x: Value, count: Operand, axis: int, largest: bool, ordered: bool) -> tuple[Value, ...]:
    wanted = call.ints(count) if isinstance(count, int) else call.vector([call.cast(count, INT64)])
    return call.several(
        "TopK", x, wanted, outputs=2, axis=axis % max(rank(x), 1), largest=int(largest), sorted=int(ordered)
    )


@aten("sort.default")
def sort(call: Call, x: Value, axis: int, descending: bool) -> tuple[Value, ...]:
    """All elements are the largest ones, in order; of equal ones the first comes first."""
    if not rank(x):
        return x, call.constant(0, INT64)
    count = call.vector([call.size(x, axis)])
    return call.several("TopK", x, count, outputs=2, axis=axis % rank(x), largest=int(descending), sorted=1)


@aten("sort.stable")
def sort_stable(call: Call, x: Value, _: bool | None, axis: int, descending: bool) -> tuple[Value, ...]:
    return sort(call, x, axis, descending)
