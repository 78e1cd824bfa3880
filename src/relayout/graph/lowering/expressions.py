"""Operations on truth values, integers and f64, and those that mix types: masks, positions, casts.

A node becomes an :class:`~relayout.ops.expressions.Expression`; constants of one element become numbers in
it. What is done in f32 alone is left to :mod:`.pointwise`, whose functions know post-ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.dtypes import dtype as as_dtype
from relayout.graph.lowering.case import Case, Operand, label, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.expressions import OPERATIONS, Expression, Writing, kind_of
from relayout.primitives.pointwise import Pointwise

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__ = ["expressed", "expression_of"]

SAME: Final = {
    "Add": "add",
    "Sum": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "Max": "max",
    "Min": "min",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "Not": "not",
    **{f"Bitwise{name}": name.lower() for name in ("And", "Or", "Xor", "Not")},
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "Neg": "neg",
    "Abs": "abs",
    "Sign": "sign",
    "Floor": "floor",
    "Ceil": "ceil",
    "IsNaN": "isnan",
}
"""Operators that are one operation, of as many inputs as there are."""
OTHERS: Final = ("Where", "Cast", "CastLike", "Clip", "Mod", "PRelu", "IsInf", "Relu", "Trilu", "Pow", "Mean")
ROUNDED: Final = ("f64", "f32", "f16", "bf16")
"""Real numbers that a cast may make: f8 has rules of its own."""


def kind_of_operand(operand: Operand) -> str | None:
    """What registers hold of its elements."""
    try:
        return kind_of(as_dtype(operand.dtype), operand.kind.kind == "b")
    except ValueError:
        return None


def expression_of(
    operator: str, attributes: Mapping[str, Any], inputs: Sequence[Operand | None], out: Operand
) -> tuple[Expression, list[Operand]] | None:
    """What a node computes, and what it reads; None where no expression says it."""
    given = [one for one in inputs if one is not None]
    if operator == "Trilu":
        given = _triangle(attributes, inputs)
    read = [one for one in given if one.data is None or one.data.size != 1]
    known = [kind_of_operand(one) for one in read]
    kinds = [kind for kind in known if kind is not None]
    target = kind_of_operand(out)
    if target is None or len(kinds) < len(known) or not read:
        return None
    w, places, moved = Writing(*kinds), [], iter(range(len(read)))
    for one in inputs if operator != "Trilu" else given:
        if one is None:
            places.append(-1)
        elif one.data is None or one.data.size != 1:
            places.append(next(moved))
        else:
            kind = kind_of_operand(one)
            if kind is None:
                return None
            number: Any = one.data.reshape(-1)[0]
            places.append(w.number(kind, bool(number) if kind == "bool" else number.item()))
    try:
        write: Write = WRITERS.get(operator, _same)
        if write(w, operator, attributes, places, target, out) is None:
            return None
        made = w.written()
    except ValueError:  # an operation that these kinds have not
        return None
    return (made, read) if made.kind == target or (made.kind, target) == ("f64", "f32") else None


Write = Callable[[Writing, str, Mapping[str, Any], list[int], str, Operand], "int | None"]


def _same(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    if operator not in SAME:
        return None
    name = SAME[operator]
    takes = OPERATIONS[name].takes
    if takes == 1:
        return w.apply(name, x[0])
    found = x[0]
    for other in x[1:]:
        found = w.apply(name, found, other)
    return found if len(x) > 1 else None


def _where(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    return w.put("select", target, *x)


def _cast(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    source = w.kind(x[0])
    if out.dtype not in ROUNDED and target in ("f32", "f64"):
        return None
    if source == "f64" and target == "f32" and out.dtype != "f32":
        return x[0]  # rounded once, when it is stored
    return w.put("cast", target, x[0])


def _clip(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    found, low, high = (*x, -1, -1)[:3]
    found = found if low < 0 else w.apply("max", found, low)
    return found if high < 0 else w.apply("min", found, high)


def _mod(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    return w.apply("rem" if a.get("fmod") else "mod", *x)


def _prelu(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    below = w.apply("lt", x[0], w.number(target, 0))
    return w.put("select", target, below, w.apply("mul", x[0], x[1]), x[0])


def _infinite(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    both = a.get("detect_negative", 1), a.get("detect_positive", 1)
    if not any(both):
        return None
    if all(both):
        return w.apply("isinf", x[0])
    sign = float("inf") if both[1] else -float("inf")
    return w.apply("eq", x[0], w.number(w.kind(x[0]), sign))


def _relu(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    return w.apply("max", x[0], w.number(target, 0))


def _power(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    exponent = w.terms[x[1] - len(w.operands)].number if x[1] >= len(w.operands) else None
    if exponent not in (1, 2, 3, 4):
        return None
    found = x[0]
    for _ in range(int(exponent) - 1):
        found = w.apply("mul", found, x[0])
    return found


def _mean(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    found = x[0]
    for other in x[1:]:
        found = w.apply("add", found, other)
    return w.apply("div", found, w.number(target, float(len(x)))) if target in ("f32", "f64") else None


def _trilu(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    return w.put("select", target, x[1], x[0], w.number(target, False if target == "bool" else 0))


def _triangle(attributes: Mapping[str, Any], inputs: Sequence[Operand | None]) -> list[Operand]:
    """What a Trilu keeps, as a mask behind what it reads; nothing, where that is not known."""
    x, diagonal = inputs[0], inputs[1] if len(inputs) > 1 else None
    if x is None or len(x.dims) < 2 or (diagonal is not None and diagonal.data is None):
        return []
    k = 0 if diagonal is None or diagonal.data is None else int(diagonal.data.reshape(-1)[0])
    ones = np.ones(x.dims[-2:], bool)
    kept = np.triu(ones, k) if attributes.get("upper", 1) else np.tril(ones, k)
    return [x, Operand(f"{x.name}.triangle", kept.shape, "u8", kept.dtype, kept)] if kept.size > 1 else []


def _softsign(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    below = w.apply("add", w.number(target, 1), w.apply("abs", x[0]))
    return w.apply("div", x[0], below)


def _thresholded(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    passed = w.apply("gt", x[0], w.number(target, float(a.get("alpha", 1.0))))
    return w.put("select", target, passed, x[0], w.number(target, 0))


def _shrink(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    if target not in ("f32", "f64"):
        return None
    far, bias = float(a.get("lambd", 0.5)), float(a.get("bias", 0.0))
    above, below = w.apply("gt", x[0], w.number(target, far)), w.apply("lt", x[0], w.number(target, -far))
    less = w.apply("sub", x[0], w.number(target, bias)) if bias else x[0]
    more = w.apply("add", x[0], w.number(target, bias)) if bias else x[0]
    rest = w.put("select", target, above, less, w.number(target, 0))
    return w.put("select", target, below, more, rest)


def _celu(w: Writing, operator: str, a: Any, x: list[int], target: str, out: Operand) -> int | None:
    """``alpha (exp(x / alpha) - 1)`` below 0: what Elu is there, of a source that is stretched."""
    alpha = float(a.get("alpha", 1.0))
    if target != "f32" or alpha <= 0:
        return None
    stretched = x[0] if alpha == 1 else w.apply("mul", x[0], w.number(target, 1 / alpha))
    found = w.function("elu", w.apply("min", stretched, w.number(target, 0)), 1.0)
    found = found if alpha == 1 else w.apply("mul", found, w.number(target, alpha))
    return w.put("select", target, w.apply("lt", x[0], w.number(target, 0)), found, x[0])


WRITERS: Final[dict[str, Write]] = {
    "Softsign": _softsign,
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink,
    "Celu": _celu,
    "Where": _where,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "Mod": _mod,
    "PRelu": _prelu,
    "IsInf": _infinite,
    "Relu": _relu,
    "Pow": _power,
    "Mean": _mean,
    "Trilu": _trilu,
}


@rule("And", "Or", "Xor", "Not", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Equal", "Greater")
@rule("GreaterOrEqual", "Less", "LessOrEqual", "Sign", "Floor", "Ceil", "IsNaN", "IsInf", "Where", "Sum")
@rule("Mod", "Mean", "PRelu", "Trilu", "CastLike", "Softsign", "ThresholdedRelu", "Shrink", "Celu")
def expressed(case: Case) -> Iterator[Way] | None:
    """The ways of a node that an expression says."""
    if case.chain or 0 in case.out.dims:
        return None
    inputs = case.inputs[:1] if case.operator in ("Cast", "CastLike") else case.inputs
    found = expression_of(case.operator, case.attributes, inputs, case.out)
    if found is None:
        return None
    return ways_of(case, *found)


def ways_of(
    case: Case, expression: Expression, operands: Sequence[Operand], numbers: Sequence[float] = ()
) -> Iterator[Way] | None:
    """A way for each format in which the first operand of the result's dims may come.

    ``numbers`` are the last operands of the expression (:class:`~relayout.primitives.pointwise.Pointwise`).
    """
    out = case.out
    rank = len(out.dims)
    if not any(one.data is None for one in operands) or any(len(one.dims) > rank for one in operands):
        return None
    large = next((one for one in operands if one.data is None and one.dims == out.dims), None)

    def make(site: Site) -> Value:
        src = [site.ranked(one, rank) for one in operands]
        like = site.way.outputs[0]
        dst, into = site.target(0, like)
        made = Pointwise(expression, [value.desc for value in src], dst, numbers)
        return site.add(made, *src, into=into)

    def ways() -> Iterator[Way]:
        for desc in case.formats(large) if large is not None else [row_major(out.dims, out.dtype)]:
            target = label(MemoryDesc(out.dims, out.dtype, desc.layout))
            read = {}
            for one in operands:
                if one.data is None:
                    whole = one.dims == out.dims
                    same = label(MemoryDesc(one.dims, one.dtype, desc.layout)) if whole else None
                    read[one.name] = same or case.formats(one)[0]
            yield Way(read, (target,), moving(*read.values(), target), make)

    return ways()
