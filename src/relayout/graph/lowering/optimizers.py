"""Steps of optimisers: one pass over a parameter, its gradient and its states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function
from relayout.primitives.pointwise import Pointwise

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []


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
        read = {one.name: row_major(one.dims, one.dtype) for one in scalars}
        for desc in dict.fromkeys(found for one in several for found in case.formats(one)):
            tensors = {one.name: desc for one in several}
            cost = moving(*[desc] * (2 * len(several)))
            yield Way({**read, **tensors}, (desc,) * len(case.outputs), cost, make)

    return ways()
