"""Batch statistics, gradients that are primitives, and steps of optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relayout import primitives
from relayout.errors import LayoutError
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.convolutions import padding_of
from relayout.graph.lowering.expressions import ways_of
from relayout.graph.lowering.ways import Way, moving, numbers, rule
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import Expression, Writing
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


def _vector(operand: Operand) -> MemoryDesc:
    return row_major(operand.dims, operand.dtype)


@rule("relayout.BatchNormalizationTraining")
def batch_normalization_training(case: Case) -> Iterator[Way] | None:
    """In whatever format the data has."""
    src, scale, shift = case.inputs[:3]
    if src is None or scale is None or shift is None or scale.dtype != "f32" or shift.dtype != "f32":
        return None
    if src.dtype not in ("f32", "bf16", "f16") or 0 in src.dims or src.data is not None:
        return None

    def make(site: Site) -> tuple[Value, ...]:
        value = site.value(src)
        made = _batch(case, value.desc)
        return site.add_several(made, value, site.value(scale), site.value(shift))

    def ways() -> Iterator[Way]:
        vectors = {one.name: _vector(one) for one in (scale, shift) if one.data is None}
        for desc in case.formats(src):
            outputs = (desc, *(_vector(scale) for _ in case.outputs[1:]))
            yield Way({src.name: desc, **vectors}, outputs, 2 * moving(desc, desc), make)

    return ways() if len(case.outputs) == 3 else None


def _batch(case: Case, desc: MemoryDesc) -> primitives.BatchNormalization:
    return primitives.BatchNormalization(
        desc,
        epsilon=case.attributes["epsilon"],
        use_scale=True,
        use_shift=True,
        use_global_stats=False,
    )


@rule("relayout.BatchNormalizationGrad")
def batch_normalization_grad(case: Case) -> Iterator[Way] | None:
    """In a format that the data or the gradient has."""
    dy, src, scale, mean, variance = case.inputs[:5]
    if dy is None or src is None or scale is None or mean is None or variance is None:
        return None
    vectors = {one.name: one for one in (scale, mean, variance)}
    if any(one.dtype != "f32" for one in vectors.values()) or dy.data is not None or src.data is not None:
        return None
    if src.dtype not in ("f32", "bf16", "f16") or src.dtype != dy.dtype or 0 in src.dims:
        return None

    def make(site: Site) -> tuple[Value, ...]:
        value, gradient = site.value(src), site.value(dy)
        made = primitives.BatchNormalizationBackward(_batch(case, value.desc), diff_dst=gradient.desc)
        named = {
            "src": value,
            "diff_dst": gradient,
            "mean": site.value(mean),
            "variance": site.value(variance),
            "scale": site.value(scale),
        }
        return site.add_several(made, **named)

    def ways() -> Iterator[Way]:
        read = {name: _vector(one) for name, one in vectors.items() if one.data is None}
        for desc in dict.fromkeys((*case.formats(src), *case.formats(dy))):
            outputs = (desc, *(_vector(scale) for _ in case.outputs[1:]))
            yield Way({src.name: desc, dy.name: desc, **read}, outputs, 2 * moving(desc, desc, desc), make)

    return ways() if len(case.outputs) == 3 else None


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


# -- optimisers ---------------------------------------------------------------------------------------------


@rule("relayout.SGD")
def sgd(case: Case) -> Iterator[Way] | None:
    """A pass for the momentum and one for the parameter, each over the memory of what it replaces."""
    rate, fresh, x, g = case.inputs[:4]
    v, a = case.input(4), case.attributes
    if rate is None or fresh is None or x is None or g is None:
        return None
    decay, momentum = float(a["weight_decay"]), float(a["momentum"])

    def decayed(w: Writing, x: int, g: int) -> int:
        return w.apply("add", g, w.apply("mul", w.number("f32", decay), x)) if decay else g

    def moved() -> Expression:
        w = Writing("f32", "f32", "f32", "f32")  # fresh, x, g, v
        old = w.apply("mul", w.number("f32", momentum), 3)
        w.apply("add", old, w.apply("mul", 0, decayed(w, 1, 2)))
        return w.written()

    def taken() -> Expression:
        w = Writing("f32", "f32", "f32", "f32")  # rate, x, g, v of this step
        step = decayed(w, 1, 2)
        if v is not None:
            step = w.apply("add", step, w.apply("mul", w.number("f32", momentum), 3)) if a["nesterov"] else 3
        w.apply("sub", 1, w.apply("mul", 0, step))
        return w.written()

    def make(site: Site) -> tuple[Value, ...]:
        step, first = (site.ranked(one, len(x.dims)) for one in (rate, fresh))
        parameter, gradient = site.value(x), site.value(g)
        made: tuple[Value, ...] = ()
        last = gradient
        if v is not None:
            last = _pass(site, 1, moved(), first, parameter, gradient, site.value(v))
            made = (last,)
        return (_pass(site, 0, taken(), step, parameter, gradient, last), *made)

    return _ways(case, (x, g, v), (rate, fresh), make)


@rule("relayout.Adam")
def adam(case: Case) -> Iterator[Way] | None:
    """A pass for each average and one for the parameter."""
    rate, widening, kept, x, g, m, v = case.inputs[:7]
    a = case.attributes
    if rate is None or widening is None or kept is None or x is None or g is None or m is None or v is None:
        return None
    decay = 0.0 if a["decoupled"] else float(a["weight_decay"])

    def averaged(beta: float, square: bool) -> Expression:
        w = Writing("f32", "f32", "f32")  # x, g, average
        found = w.apply("add", 1, w.apply("mul", w.number("f32", decay), 0)) if decay else 1
        part = w.apply("mul", w.number("f32", 1 - beta), found)
        part = w.apply("mul", part, found) if square else part
        w.apply("add", w.apply("mul", w.number("f32", beta), 2), part)
        return w.written()

    def taken() -> Expression:
        w = Writing("f32", "f32", "f32", "f32", "f32", "f32")  # rate, widening, kept, x, m, v
        below = w.apply("mul", w.apply(Function("sqrt"), 5), 1)
        below = w.apply("add", below, w.number("f32", float(a["epsilon"])))
        old = w.apply("mul", 3, 2) if a["decoupled"] else 3
        w.apply("sub", old, w.apply("div", w.apply("mul", 0, 4), below))
        return w.written()

    def make(site: Site) -> tuple[Value, ...]:
        scalars = [site.ranked(one, len(x.dims)) for one in (rate, widening, kept)]
        parameter, gradient = site.value(x), site.value(g)
        first = _pass(site, 1, averaged(float(a["beta1"]), False), parameter, gradient, site.value(m))
        second = _pass(site, 2, averaged(float(a["beta2"]), True), parameter, gradient, site.value(v))
        return _pass(site, 0, taken(), *scalars, parameter, first, second), first, second

    return _ways(case, (x, g, m, v), (rate, widening, kept), make)


def _pass(site: Site, k: int, expression: Expression, *values: Value) -> Value:
    """One expression, written into the place of an output."""
    dst, into = site.target(k, site.way.outputs[k])
    made = Pointwise(expression, [value.desc for value in values], dst)
    return site.add(made, *values, into=into)


def _ways(
    case: Case, tensors: tuple[Operand | None, ...], scalars: tuple[Operand, ...], make: Any
) -> Iterator[Way] | None:
    """A way for each format that the parameter may have: all tensors have it."""
    several = [one for one in tensors if one is not None]
    first = several[0]
    if not first.dims or 0 in first.dims or not case.floats_of(*several):
        return None
    if any(one.data is not None for one in (*several, *scalars)) or any(
        one.dtype != "f32" for one in scalars
    ):
        return None

    def ways() -> Iterator[Way]:
        read = {one.name: _vector(one) for one in scalars}
        for desc in dict.fromkeys(found for one in several for found in case.formats(one)):
            tensors = {one.name: desc for one in several}
            cost = moving(*[desc] * (2 * len(several)))
            yield Way({**read, **tensors}, (desc,) * len(case.outputs), cost, make)

    return ways()
