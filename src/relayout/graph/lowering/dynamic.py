"""The steps of DynamicQuantizeLinear, an expression each."""

from __future__ import annotations

from collections.abc import Iterable

from relayout.graph.lowering.case import Case
from relayout.graph.lowering.expressions import ways_of
from relayout.graph.lowering.ways import Way, rule
from relayout.graph.operators.dynamic import BYTES, SCALE, ZERO
from relayout.ops.expressions import Writing
from relayout.ops.functions import Function

__all__: list[str] = []

LEVELS = 255.0


@rule(SCALE, ZERO, BYTES)
def steps(case: Case) -> Iterable[Way] | None:
    """A scale, a zero point, or bytes."""
    operands = [one for one in case.inputs if one is not None]
    real = all(one.dtype == "f32" for one in operands[:2])
    if not real or any(one.data is not None for one in operands):
        return None
    w = Writing(*(one.dtype for one in operands))
    if case.operator == SCALE:
        none = w.number("f32", 0.0)
        span = w.apply("sub", w.apply("max", 1, none), w.apply("min", 0, none))
        some = w.put("select", "f32", w.apply("gt", span, none), span, w.number("f32", 1.0))
        w.apply("div", some, w.number("f32", LEVELS))
    elif case.operator == ZERO:
        low = w.apply("min", 0, w.number("f32", 0.0))
        places = w.function("clip", w.apply("div", w.apply("neg", low), 1), 0.0, LEVELS)
        w.put("cast", "u8", w.apply(Function("round"), places))
    else:
        whole = w.apply(Function("round"), w.apply("div", 0, 1))
        w.put("cast", "u8", w.apply("add", whole, w.put("cast", "f32", 2)))
    return ways_of(case, w.written(), operands)
