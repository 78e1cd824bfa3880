"""Steps of optimisers: one pass over a parameter, its gradient and its states, each replaced in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from relayout.graph.arrays import stored
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.ops.expressions import Expression, Writing
from relayout.primitives.pointwise import Pointwise

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__: list[str] = []


@rule("relayout.SGD")
def sgd(case: Case) -> Iterator[Way] | None:
    """The parameter, and its momentum if there is one."""
    rate, fresh, x, g = case.inputs[:4]
    v, a = case.input(4), case.attributes
    if rate is None or fresh is None or x is None or g is None:
        return None
    momentum, decay = float(a["momentum"]), float(a["weight_decay"])
    w = Writing(*["f32"] * (5 if v else 3))  # rate, x, g and, with momentum, v, fresh
    step = _decayed(w, decay, 1, 2)
    if v is None:
        expression = w.written(w.apply("sub", 1, w.apply("mul", 0, step)))
        return _ways(case, expression, (rate,), (x, g))
    moved = w.apply("add", _times(w, momentum, 3), w.apply("mul", 4, step))
    taken = w.apply("add", step, _times(w, momentum, moved)) if a["nesterov"] else moved
    expression = w.written(w.apply("sub", 1, w.apply("mul", 0, taken)), moved)
    return _ways(case, expression, (rate,), (x, g, v), (fresh,))


@rule("relayout.Adam")
def adam(case: Case) -> Iterator[Way] | None:
    """The parameter and both averages."""
    rate, widening, kept, x, g, m, v = case.inputs[:7]
    a = case.attributes
    if rate is None or widening is None or kept is None or x is None or g is None or m is None or v is None:
        return None
    decay = 0.0 if a["decoupled"] else float(a["weight_decay"])
    w = Writing(*["f32"] * 7)  # as the inputs
    found = _decayed(w, decay, 3, 4)
    beta1, beta2 = float(a["beta1"]), float(a["beta2"])
    mean = w.apply("add", _times(w, beta1, 5), _times(w, 1 - beta1, found))
    square = w.apply("mul", _times(w, 1 - beta2, found), found)
    square = w.apply("add", _times(w, beta2, 6), square)
    below = w.apply("mul", w.function("sqrt", square), 1)
    below = w.apply("add", below, w.number("f32", float(a["epsilon"])))
    old = w.apply("mul", 3, 2) if a["decoupled"] else 3
    made = w.apply("sub", old, w.apply("div", w.apply("mul", 0, mean), below))
    return _ways(case, w.written(made, mean, square), (rate, widening, kept), (x, g, m, v))


def _times(w: Writing, number: float, x: int) -> int:
    return w.apply("mul", w.number("f32", number), x)


def _decayed(w: Writing, decay: float, x: int, g: int) -> int:
    """The gradient with weight decay as a part of it."""
    return w.apply("add", g, _times(w, decay, x)) if decay else g


def _ways(
    case: Case,
    expression: Expression,
    scalars: Sequence[Operand],
    tensors: Sequence[Operand],
    behind: Sequence[Operand] = (),
) -> Iterator[Way] | None:
    """A way for each format that the parameter may have: all tensors have it.

    What the expression reads are ``scalars``, ``tensors`` and the scalars ``behind``, in this order.
    """
    first, several, numbers = tensors[0], (*scalars, *tensors, *behind), (*scalars, *behind)
    moves = [one for one in tensors if one.data is None]
    if not first.dims or 0 in first.dims or not case.floats_of(*tensors) or first.data is not None:
        return None
    if any(one.data is not None or one.dtype != "f32" for one in numbers):
        return None

    def given(site: Site, one: Operand) -> Value:
        if one.data is None or np.ptp(one.data) or one.data.size == 1:
            return site.ranked(one, len(first.dims))
        alike = one.data.reshape(-1)[:1].reshape((1,) * len(first.dims))  # zeros of what has no gradient
        return site.sequence.constant(stored(alike), f"{case.name}.constant")

    def make(site: Site) -> tuple[Value, ...]:
        src = [given(site, one) for one in several]
        targets = [site.target(k, desc) for k, desc in enumerate(site.way.outputs)]
        descs = [desc for desc, _ in targets]
        if any(not desc.layout.same_bytes(descs[0].layout) for desc in descs):
            targets = [(desc, None) for desc in site.way.outputs]
        made = Pointwise(expression, [one.desc for one in src], [desc for desc, _ in targets])
        into = {name: place["dst"] for name, (_, place) in zip(made.outputs, targets, strict=True) if place}
        return site.add_several(made, *src, into=into)

    def ways() -> Iterator[Way]:
        read = {one.name: row_major(one.dims, one.dtype) for one in numbers}
        for desc in dict.fromkeys(found for one in moves for found in case.formats(one)):
            cost = moving(*[desc] * (len(tensors) + len(case.outputs)))
            yield Way({**read, **{one.name: desc for one in moves}}, (desc,) * len(case.outputs), cost, make)

    return ways()
