"""Gradients that are one primitive: of functions, pooling, softmax, losses."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.arrays import stored
from relayout.graph.lowering.case import FLOATS, Case, Operand, label, row_major
from relayout.graph.lowering.chains import following as behind
from relayout.graph.lowering.convolutions import padding_of
from relayout.graph.lowering.expressions import ways_of
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.graph.operators.gradients import LAST, MIXING, OF_PLACE, OF_SEED, OF_STEP, bound
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import Writing
from relayout.ops.formats import following
from relayout.ops.functions import Function
from relayout.primitives.pointwise import Pointwise

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []


@rule("relayout.ReluGrad")
def relu_grad(case: Case) -> Iterator[Way] | None:
    """One pass over both."""
    dy, y = case.inputs[:2]
    if dy is None or y is None or not case.floats or 0 in case.out.dims:
        return None
    w = Writing("f32", "f32")
    zero = w.number("f32", 0.0)
    w.put("select", "f32", w.apply("le", 1, zero), zero, 0)
    return ways_of(case, w.written(), (dy, y))


@rule("relayout.FunctionGrad")
def function_grad(case: Case) -> Iterator[Way] | None:
    """One pass over both."""
    dy, x = case.inputs[:2]
    if dy is None or x is None or not case.floats or 0 in case.out.dims:
        return None
    a, w = case.attributes, Writing("f32", "f32")
    function = Function(a["algorithm"], a["alpha"], a["beta"])
    slope = function.derivative(bool(a["by_result"]))
    if slope.write(w, 1, 0, function.alpha, function.beta) != len(w.operands) + len(w.terms) - 1:
        return None
    return ways_of(case, w.written(), (dy, x))


@rule("relayout.Copy")
def copy(case: Case) -> Iterator[Way] | None:
    """In whatever format it comes."""
    src = case.inputs[0]
    if src is None or src.data is not None:
        return None

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        return site.add(primitives.Reorder(value.desc, dst), value, into=into)

    return (Way({src.name: desc}, (desc,), moving(desc, desc), make) for desc in case.formats(src))


@rule("relayout.MaxPoolGrad", "relayout.AveragePoolGrad")
def pool_grad(case: Case) -> Iterator[Way] | None:
    """From where the maxima were, which are found once more: that takes one pass, and no memory till then."""
    dy, a, out = case.inputs[0], case.attributes, case.out
    src = case.input(1)
    if dy is None or dy.data is not None or not case.floats or 0 in (*dy.dims, *out.dims):
        return None
    if not 3 <= len(out.dims) <= 5:
        return None
    kernel, spatial = numbers(a["kernel_shape"]), len(out.dims) - 2
    strides, dilation = (numbers(a.get(name) or (1,) * spatial) for name in ("strides", "dilations"))
    padding = padding_of(case, kernel, strides, dilation, out.dims[2:])
    if src is not None:  # a size that is rounded up has windows that reach over the end
        sizes = zip(padding, dy.dims[2:], strides, kernel, dilation, out.dims[2:], strict=True)
        padding = tuple(
            (front, max(0, (n - 1) * s + (k - 1) * d + 1 - size - front))
            for (front, _), n, s, k, d, size in sizes
        )
    algorithm = "max" if src is not None else "average_exclude_padding"
    if src is None and a["count_include_pad"]:
        algorithm = "average_include_padding"

    def forward(desc: MemoryDesc, gradient: MemoryDesc) -> primitives.Pooling:
        known = primitives.Pooling(
            desc, algorithm, kernel, strides, padding, dilation, gradient, workspace=src is not None
        )
        if known.dst.dims != dy.dims or (a.get("ceil_mode") and src is None):
            raise LayoutError("windows are counted in another way")
        return known

    try:
        forward(row_major(out.dims, out.dtype), row_major(dy.dims, dy.dtype))
    except LayoutError:
        return None

    def make(site: Site) -> Value:
        gradient = site.value(dy)
        dst, into = site.target(0, site.way.outputs[0])
        place = None if into is None else {"diff_src": into["dst"]}
        if src is None:
            made = primitives.PoolingBackward(forward(dst, gradient.desc))
            return site.add(made, gradient, into=place)
        value = site.value(src)
        known = forward(value.desc, gradient.desc)
        _, places = site.add_several(known, value)
        made = primitives.PoolingBackward(known, diff_src=dst)
        return site.add(made, gradient, places, into=place)

    def ways() -> Iterator[Way]:
        for desc in case.formats(dy):
            target = label(following(desc, MemoryDesc(out.dims, out.dtype, "any")))
            read = {dy.name: desc} if src is None else {dy.name: desc, src.name: target}
            yield Way(read, (target,), moving(desc, target, *read.values()), make)

    return ways()


@rule("relayout.SoftmaxGrad")
def softmax_grad(case: Case) -> Iterator[Way] | None:
    """Along any axis, in a format that the result or the gradient has."""
    dy, y = case.inputs[:2]
    if dy is None or y is None or dy.data is not None or y.data is not None:
        return None
    if not case.floats or 0 in y.dims or not y.dims:
        return None
    axis, log = int(case.attributes["axis"]), bool(case.attributes["log"])

    def make(site: Site) -> Value:
        value, gradient = site.value(y), site.value(dy)
        dst, into = site.target(0, site.way.outputs[0])
        forward = primitives.Softmax(value.desc, axis, log=log)
        made = primitives.SoftmaxBackward(forward, diff_dst=gradient.desc, diff_src=dst)
        return site.add(made, value, gradient, into=None if into is None else {"diff_src": into["dst"]})

    def ways() -> Iterator[Way]:
        for desc in dict.fromkeys((*case.formats(y), *case.formats(dy))):
            apart = desc.layout.is_plain and desc.strides[axis] != 1
            cost = (APART if apart else 1.0) * moving(desc, desc, desc)
            yield Way({y.name: desc, dy.name: desc}, (desc,), cost, make)

    return ways()


APART = 2.0  # times a copy: what goes along an axis whose elements are apart


@rule("relayout.SoftmaxCrossEntropyGrad")
def softmax_cross_entropy_grad(case: Case) -> Iterator[Way] | None:
    """One pass over the logarithms: each knows its class from a table."""
    factors, logarithms, labels = case.inputs[:3]
    if factors is None or logarithms is None or labels is None or logarithms.data is not None:
        return None
    out = case.out
    given = {factors.dtype, logarithms.dtype, out.dtype}
    if not given <= {"f32", "bf16", "f16"} or labels.dtype != "s32" or 0 in out.dims:
        return None
    rank, classes = len(out.dims), out.dims[1]
    table = np.arange(classes, dtype=np.int32).reshape(1, classes, *(1,) * (rank - 2))
    w = Writing("f32", "s32", "s32", "f32")  # logarithms, labels, classes, factors
    hit = w.apply("eq", 1, 2)
    made = w.function("exp", 0) if case.attributes["softmax"] else w.number("f32", 0.0)
    less = w.apply("sub", made, w.number("f32", 1.0))
    w.apply("mul", w.put("select", "f32", hit, less, made), 3)
    expression = w.written()

    def make(site: Site) -> Value:
        def of_labels(operand: Operand) -> Value:
            value = site.value(operand)
            dims = (1,) * rank if prod(operand.dims) == 1 else (out.dims[0], 1, *out.dims[2:])
            return site.reshaped(value, dims)

        src = [
            site.value(logarithms),
            of_labels(labels),
            site.sequence.constant(stored(table), f"{case.name}.classes"),
            of_labels(factors),
        ]
        dst, into = site.target(0, site.way.outputs[0])
        return site.add(Pointwise(expression, [one.desc for one in src], dst), *src, into=into)

    def ways() -> Iterator[Way]:
        small = {one.name: row_major(one.dims, one.dtype) for one in (factors, labels) if one.data is None}
        for desc in case.formats(logarithms):
            yield Way({logarithms.name: desc, **small}, (desc,), moving(desc, desc), make)

    return ways()


@rule("LRN")
def lrn(case: Case) -> Iterator[Way] | None:
    """Windows of channels."""
    src = case.inputs[0]
    if src is None or src.data is not None or not case.floats or case.chain or 0 in src.dims:
        return None

    def build(desc: MemoryDesc, dst: MemoryDesc, _: Any) -> tuple[primitives.LRN, list[Any]]:
        return _lrn(case, desc, dst), []

    return behind(case, src, (), build, times=lambda _: PASSES)


def _lrn(case: Case, src: MemoryDesc, dst: MemoryDesc | None = None) -> primitives.LRN:
    a = case.attributes
    numbers = {"alpha": a["alpha"], "beta": a["beta"], "k": a["bias"]}
    return primitives.LRN(src, dst, size=int(a["size"]), **numbers)


PASSES = 3.0  # times a copy: squares, their means, and the result


@rule("relayout.LRNGrad")
def lrn_grad(case: Case) -> Iterator[Way] | None:
    """Windows of channels, both ways."""
    dy, src = case.inputs[:2]
    if dy is None or src is None or dy.data is not None or src.data is not None:
        return None
    if not case.floats or 0 in src.dims:
        return None

    def make(site: Site) -> Value:
        value, gradient = site.value(src), site.value(dy)
        dst, into = site.target(0, site.way.outputs[0])
        made = primitives.LRNBackward(_lrn(case, value.desc), diff_dst=gradient.desc, diff_src=dst)
        return site.add(made, value, gradient, into=None if into is None else {"diff_src": into["dst"]})

    return (
        Way({src.name: desc, dy.name: desc}, (desc,), 2 * PASSES * moving(desc, desc), make)
        for desc in dict.fromkeys((*case.formats(src), *case.formats(dy)))
    )


@rule("relayout.DropoutMask")
def dropout_mask(case: Case) -> list[Way] | None:
    """Row-major: a place is that of a row and that within it, each from a table."""
    step, a, out = case.inputs[0], case.attributes, case.out
    if step is None or step.data is not None or step.dtype != "s64" or not out.dims or 0 in out.dims:
        return None
    if out.dtype not in FLOATS:
        return None
    rank, row = len(out.dims), out.dims[-1]
    w = Writing("s64", "s64", "s64")  # step, of rows, of a row

    def number(n: int) -> int:
        return w.number("s64", _signed(n))

    key = w.apply("add", w.apply("mul", 0, number(OF_STEP)), number(int(a["seed"]) * OF_SEED))
    x = w.apply("add", w.apply("add", 1, key), 2)
    for bits, factor in MIXING:
        x = w.apply("mul", w.apply("xor", x, w.apply("shr", x, number(bits))), number(factor))
    x = w.apply("xor", x, w.apply("shr", x, number(LAST)))
    kept = w.apply("ge", x, w.number("s64", bound(a["ratio"])))
    w.put("select", "f32", kept, w.number("f32", 1 / (1 - a["ratio"])), w.number("f32", 0.0))
    expression = w.written()

    def table(count: int, times: int, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
        made = np.arange(count, dtype=np.uint64) * np.uint64(times * OF_PLACE % 2**64)
        return np.asarray(made.view(np.int64).reshape(dims))

    def make(site: Site) -> Value:
        tables = (
            table(prod(out.dims[:-1]), row, (*out.dims[:-1], 1)),
            table(row, 1, (*(1,) * (rank - 1), row)),
        )
        src = [site.ranked(step, rank)]
        src += [site.sequence.constant(stored(one), f"{case.name}.places") for one in tables]
        dst, into = site.target(0, site.way.outputs[0])
        return site.add(Pointwise(expression, [one.desc for one in src], dst), *src, into=into)

    target = row_major(out.dims, out.dtype)
    return [Way({step.name: row_major(step.dims, step.dtype)}, (target,), MIXED * moving(target), make)]


MIXED = 4.0  # times writing a mask: what mixing takes besides


def _signed(n: int) -> int:
    """A number modulo 2**64 as s64."""
    return (n + 2**63) % 2**64 - 2**63
