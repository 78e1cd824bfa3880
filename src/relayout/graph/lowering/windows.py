"""Pooling, reductions along axes, softmax: what makes one element of many and keeps the format that it gets.

None of them prefers a format by itself. So each is offered in all formats that its source may have, and the
result follows (:func:`.chains.following`): blocked channels stay blocked, channels last stay last. What
differs is how the operator's attributes become those of a primitive:

* ONNX rounds sizes of windows up with ``ceil_mode``, and what that adds behind the image does not count in an
  average. A primitive has padding only, so such an average with counted padding is left to the definition.
* A global pooling is a pooling whose window is the image.
* ``ReduceL1``, ``ReduceL2`` and ``ReduceSumSquare`` are sums of what a function makes of the elements
  (:data:`BEFORE`); dropping the reduced axes is a view of the result that keeps them.
* Softmax runs at the speed of a copy along an axis whose elements lie together, and at half of it elsewhere
  (:data:`APART`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relayout import primitives
from relayout.graph.lowering.case import Case, label
from relayout.graph.lowering.chains import chain_of, following
from relayout.graph.lowering.convolutions import padding_of
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain
from relayout.ops.formats import following as like
from relayout.ops.reductions import REDUCTIONS

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.ops.post_ops import PostOp
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__ = ["windows_of"]

NAMES = {
    **{one.onnx: name for name, one in REDUCTIONS.items() if one.onnx},
    "ReduceMean": "mean",
    "ReduceL1": "sum",
    "ReduceL2": "sum",
    "ReduceSumSquare": "sum",
}
"""The reduction that each operator is, for all elements as they are or as :data:`BEFORE` makes them."""

BEFORE = {"ReduceL1": "abs", "ReduceL2": "square", "ReduceSumSquare": "square"}
"""What becomes of each element first."""


@rule("MaxPool", "AveragePool")
def pooling(case: Case) -> Iterator[Way] | None:
    """A pooling without the places of maxima; of bytes, which have no post-ops, their maxima."""
    src, steps = case.inputs[0], chain_of(case)
    if src is None or steps is None or 0 in (*src.dims, *case.out.dims):
        return None
    bytewise = case.operator == "MaxPool" and src.dtype in ("u8", "s8") and src.kind.kind != "b" and not steps
    if not (case.floats or bytewise):
        return None
    if len([one for one in case.outputs if one.name]) > 1 or len(src.dims) > 5:
        return None
    found = windows_of(case, case.operator)
    if found is None:
        return None
    algorithm, kernel, strides, pads, dilation = found

    def build(desc: MemoryDesc, dst: MemoryDesc, ops: list[PostOp]) -> tuple[Primitive, list[Any]]:
        return primitives.Pooling(desc, algorithm, kernel, strides, pads, dilation, dst, post_ops=ops), []

    return following(case, src, steps, build, dims=case.out.dims)


Numbers = tuple[int, ...]


def windows_of(
    case: Case, operator: str
) -> tuple[str, Numbers, Numbers, list[tuple[int, int]], Numbers] | None:
    """The algorithm of a pooling, its kernel, strides, padding, dilation; None where no primitive does it."""
    src = case.inputs[0]
    assert src is not None
    a, spatial = case.attributes, len(src.dims) - 2
    kernel = numbers(a["kernel_shape"])
    strides, dilation = (numbers(a.get(name) or (1,) * spatial) for name in ("strides", "dilations"))
    padding = padding_of(case, kernel, strides, dilation)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    ends = tuple(
        max(0, (out - 1) * s + r - size - front)
        for out, s, r, size, (front, _) in zip(
            case.out.dims[2:], strides, reach, src.dims[2:], padding, strict=True
        )
    )
    longer = any(end > behind for end, (_, behind) in zip(ends, padding, strict=True))
    fronts = [front for front, _ in padding]
    if any(n >= r for pads in (fronts, ends) for n, r in zip(pads, reach, strict=True)):
        return None
    algorithm = "max" if operator == "MaxPool" else "average_exclude_padding"
    if operator == "AveragePool" and a["count_include_pad"] and any(map(any, padding)):
        if longer:  # what a rounded-up size adds does not count
            return None
        algorithm = "average_include_padding"
    return algorithm, kernel, strides, list(zip(fronts, ends, strict=True)), dilation


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pooling(case: Case) -> Iterator[Way] | None:
    """A pooling of whole images."""
    src, steps = case.inputs[0], chain_of(case)
    if src is None or steps is None or not case.floats or 0 in src.dims or not 3 <= len(src.dims) <= 5:
        return None
    algorithm = "max" if case.operator == "GlobalMaxPool" else "average_include_padding"

    def build(desc: MemoryDesc, dst: MemoryDesc, ops: list[PostOp]) -> tuple[Primitive, list[Any]]:
        return primitives.Pooling(desc, algorithm, src.dims[2:], dst=dst, post_ops=ops), []

    return following(case, src, steps, build, dims=case.out.dims)


@rule(*NAMES)
def reduction(case: Case) -> Iterator[Way] | None:
    """A reduction along axes that are known."""
    src, axes = case.inputs[0], case.input(1)
    if src is None or not case.floats_of(src, case.out) or case.chain or 0 in src.dims:
        return None
    if axes is not None and axes.data is None:
        return None
    rank = len(src.dims)
    along = () if axes is None or axes.data is None else tuple(int(k) % rank for k in axes.data.reshape(-1))
    if not along:
        if case.attributes["noop_with_empty_axes"]:
            return None
        along = tuple(range(rank))
    kept = tuple(1 if k in along else n for k, n in enumerate(src.dims))
    left = [k for k in range(rank) if k not in along]
    drops = not case.attributes["keepdims"]

    def make(site: Site) -> Value:
        value = site.value(src)
        before = BEFORE.get(case.operator)
        if before is not None:
            value = site.add(primitives.Eltwise(value.desc, before), value)
        made = primitives.Reduction(value.desc, NAMES[case.operator], along)
        found = site.add(made, value)
        if case.operator == "ReduceL2":
            found = site.add(primitives.Eltwise(found.desc, "sqrt"), found)
        return site.reshaped(found, case.out.dims) if drops else found

    def ways() -> Iterator[Way]:
        for desc in case.formats(src):
            target = label(like(desc, MemoryDesc(kept, case.out.dtype, "any")))
            if drops:
                strides = [target.layout.strides[k] for k in left] if target.layout.is_plain else None
                if strides is None:
                    continue
                layout = Layout(case.out.dims, plain(len(left)), strides=strides)
                target = label(MemoryDesc(case.out.dims, case.out.dtype, layout))
            yield Way({src.name: desc}, (target,), moving(desc, target), make)

    return ways()


@rule("Softmax", "LogSoftmax")
def softmax(case: Case) -> Iterator[Way] | None:
    """Along any axis, in any format."""
    src = case.inputs[0]
    if src is None or not case.floats or case.chain or 0 in src.dims or not src.dims:
        return None
    if case.guard not in (None, 0.0):
        return None
    axis, log, guarded = int(case.attributes["axis"]), case.operator == "LogSoftmax", case.guard is not None

    def build(desc: MemoryDesc, dst: MemoryDesc, _: list[PostOp]) -> tuple[Primitive, list[Any]]:
        return primitives.Softmax(desc, axis, dst, log, guarded), []

    return following(case, src, (), build, times=lambda desc: 1.0 if abs(desc.strides[axis]) == 1 else APART)


APART = 2.0  # times a copy: what goes along an axis whose elements are apart
