"""Functions and binary operations, and the chains of them that other operations do as post-ops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout import primitives
from relayout.graph.graph import Node
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.graph.operators import OPERATORS
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp, Sum

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.values import Value

__all__ = ["Step", "chain_of", "finished", "functions_of"]

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}
SWAPS = ("add", "mul", "max", "min")
"""Operations whose operands may change places."""


def functions_of(operator: str, given: dict[str, Any], operands: Sequence[Any]) -> list[Function] | None:
    """The functions that an operator of one moving operand is; None: no functions say it.

    ``operands`` has a number for each constant of one element, and None for what moves.
    """
    found = _function(operator, given, operands)
    return found if found is None or isinstance(found, list) else [found]


def _function(operator: str, a: dict[str, Any], operands: Sequence[Any]) -> Function | list[Function] | None:
    match operator:
        case "Relu":
            return Function("relu")
        case "LeakyRelu":
            return Function("relu", a["alpha"])
        case "Sigmoid":
            return Function("logistic")
        case "Tanh" | "Exp" | "Log" | "Sqrt" | "Abs" | "Round" | "Mish":
            return Function(operator.lower())
        case "Elu":
            return Function("elu", a["alpha"])
        case "Selu":
            return [Function("elu", a["alpha"]), Function("linear", a["gamma"])]
        case "Neg":
            return Function("linear", -1.0)
        case "Softplus":
            return Function("soft_relu", 1.0)
        case "HardSigmoid":
            return Function("hardsigmoid", a["alpha"], a["beta"])
        case "HardSwish":
            return Function("hardswish", 1 / 6, 0.5)
        case "Gelu":
            return Function("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf")
        case "Swish":
            return Function("swish", a["alpha"])
        case "Reciprocal":
            return Function("pow", 1.0, -1.0)
        case "Clip":
            low, high = (*operands[1:], *([None] * 2))[:2]
            low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
            return Function("clip", low, high) if low <= high else None
    return _with_number(operator, operands)


def _with_number(operator: str, operands: Sequence[Any]) -> Function | None:
    """A binary operation one of whose operands is a number."""
    if len(operands) != 2 or (operands[0] is None) == (operands[1] is None):
        return None
    first = operands[0] is None
    number = operands[1] if first else operands[0]
    if not math.isfinite(number) or abs(number) > np.finfo(np.float32).max:
        return None
    match operator:
        case "Add":
            return Function("linear", 1.0, number)
        case "Sub":
            return Function("linear", 1.0, -number) if first else Function("linear", -1.0, number)
        case "Mul":
            return Function("linear", number)
        case "Div" if first and number and abs(math.frexp(number)[0]) == 0.5:
            return Function("linear", 1 / number)
        case "Div" if not first:
            return Function("pow", number, -1.0)
        case "Pow" if first:
            return Function("square") if number == 2 else Function("pow", 1.0, number)
        case "Max":
            return Function("clip", number, math.inf)
        case "Min":
            return Function("clip", -math.inf, number)
    return None


@dataclass(frozen=True)
class Step:
    """One post-op: a function, or a binary operation with an operand."""

    op: Function | str
    operand: Operand | None = None


def chain_of(case: Case) -> list[Step] | None:
    """The post-ops that a chain is; None: no post-ops say it."""
    steps: list[Step] = []
    for node, operands in case.chain:
        made = _steps(node, operands, case.out)
        if made is None:
            return None
        steps += made
    return steps


def _steps(node: Node, operands: Sequence[Operand | None], out: Operand) -> list[Step] | None:
    attributes = {**OPERATORS[node.operator].attributes, **node.attributes}
    unary = functions_of(node.operator, attributes, [one and one.scalar for one in operands])
    others = [one for one in operands if one is not None and one.scalar is None]
    if unary is not None and not others:
        return [Step(one) for one in unary]
    name = BINARY.get(node.operator, "")
    if not name or len(operands) != 2 or len(others) != 1:
        return None
    if operands[0] is not None and name not in SWAPS:
        return None
    (other,) = others
    fits = len(other.dims) <= len(out.dims) and other.dtype in ("f32", out.dtype)
    aligned = zip(reversed(other.dims), reversed(out.dims), strict=False)
    return [Step(name, other)] if fits and all(n in (1, m) for n, m in aligned) else None


def finished(
    site: Site, steps: Sequence[Step], dst: MemoryDesc, sums: bool = False
) -> tuple[list[PostOp], list[Any], dict[str, Any]]:
    """Post-ops for a destination, their operands in order, and what the result is added to, by name.

    ``sums``: whether a value that nobody else reads may be added to in its place.
    """
    ops: list[PostOp] = []
    operands: list[Any] = []
    added: dict[str, Any] = {}
    for step in steps:
        if isinstance(step.op, Function):
            ops.append(step.op)
            continue
        other = step.operand
        assert other is not None
        if sums and step.op == "add" and not added and site.ends_here(other) and other.dims == dst.dims:
            value = site.value(other)
            if value.desc == dst:
                ops.append(Sum())
                added["dst"] = value
                continue
        value = site.ranked(other, len(dst.dims))
        ops.append(BinaryOp(step.op, value.desc))
        operands.append(value)
    return ops, operands, added


def wanted(case: Case, steps: Sequence[Step], dst: MemoryDesc) -> dict[str, MemoryDesc]:
    """The formats in which operands of post-ops are read: as the destination, where they have its dims."""
    found = {}
    for step in steps:
        other = step.operand
        if other is not None and other.data is None:
            whole = other.dims == dst.dims
            found[other.name] = (
                MemoryDesc(dst.dims, other.dtype, dst.layout) if whole else case.formats(other)[0]
            )
    return found


@rule(
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Abs", "Round", "Mish", "Elu", "Selu", "Neg"
)
@rule("Softplus", "HardSigmoid", "HardSwish", "Gelu", "Swish", "Reciprocal", "Clip", "Pow")
@rule(*BINARY)
def pointwise(case: Case) -> Iterator[Way] | None:
    """A function, or a binary operation, and the chain behind it."""
    steps = chain_of(case)
    if not case.floats or steps is None:
        return None
    operands = [one for one in case.inputs if one is not None]
    moving_ones = [one for one in operands if one.data is None]
    numbers = [None if one is None or one.data is None else one.scalar for one in case.inputs]
    rest = [one for one in operands[1:] if one.data is not None and one.scalar is None]
    if len(moving_ones) == 1 and not rest and moving_ones[0].dims == case.out.dims:
        head = functions_of(case.operator, dict(case.attributes), numbers)
        if head is not None:
            return _functions(case, moving_ones[0], [*(Step(one) for one in head), *steps])
    name = BINARY.get(case.operator)
    if name is None or len(operands) != 2 or not moving_ones:
        return None
    return _binary(case, name, operands[0], operands[1], steps)


def _functions(case: Case, src: Operand, steps: Sequence[Step]) -> Iterator[Way]:
    first, rest = steps[0].op, steps[1:]
    assert isinstance(first, Function)

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, value.desc)
        ops, operands, _ = finished(site, rest, dst)
        return site.add(
            primitives.Eltwise(value.desc, first, dst=dst, post_ops=ops), value, *operands, into=into
        )

    for desc in case.formats(src):
        yield Way({**wanted(case, rest, desc), src.name: desc}, (desc,), moving(desc, desc), make)


def _binary(case: Case, name: str, one: Operand, two: Operand, steps: Sequence[Step]) -> Iterator[Way] | None:
    out = case.out
    large = next((x for x in (one, two) if x.dims == out.dims and x.data is None), None)
    if large is None:
        return _outer(case, name, one, two, steps)
    if max(len(one.dims), len(two.dims)) != len(out.dims):
        return None

    def make(site: Site) -> Value:
        src = [site.ranked(x, len(out.dims)) for x in (one, two)]
        like = src[0 if large is one else 1].desc
        dst, into = site.target(0, like)
        ops, operands, _ = finished(site, steps, dst)
        made = primitives.Binary(name, src[0].desc, src[1].desc, dst, post_ops=ops)
        return site.add(made, *src, *operands, into=into)

    def ways() -> Iterator[Way]:
        for desc in case.formats(large):
            read = {large.name: desc}
            for other in (one, two):
                if other.data is None and other is not large and other.name != large.name:
                    whole = other.dims == out.dims
                    read[other.name] = desc if whole else case.formats(other)[0]
            both = [desc, desc, desc] if one.dims == two.dims else [desc, desc]
            yield Way({**wanted(case, steps, desc), **read}, (desc,), moving(*both), make)

    return ways()


def _outer(case: Case, name: str, one: Operand, two: Operand, steps: Sequence[Step]) -> Iterator[Way]:
    """Neither operand has the dims of the result: one of them is written out first."""
    out = case.out
    target = row_major(out.dims, out.dtype)

    def make(site: Site) -> Value:
        src = [site.ranked(x, len(out.dims)) for x in (one, two)]
        view = site.viewed(src[0], lambda layout: views.broadcast_to(layout, out.dims))
        wide = site.add(primitives.Reorder(view.desc, target), view)
        dst, into = site.target(0, target)
        ops, operands, _ = finished(site, steps, dst)
        made = primitives.Binary(name, wide.desc, src[1].desc, dst, post_ops=ops)
        return site.add(made, wide, src[1], *operands, into=into)

    read = {x.name: case.formats(x)[0] for x in (one, two) if x.data is None}
    yield Way({**wanted(case, steps, target), **read}, (target,), 2 * moving(target, target), make)


@rule("BatchNormalization")
def batch_normalization(case: Case) -> Iterator[Way] | None:
    """One that stands alone, with given statistics: a factor and a summand for each channel."""
    steps = chain_of(case)
    src, given = case.inputs[0], [case.constant(k) for k in range(1, 5)]
    if src is None or steps is None or not case.floats or case.attributes["training_mode"]:
        return None
    if any(one is None for one in given) or len(src.dims) < 2:
        return None
    scale, shift, mean, variance = (np.asarray(one, np.float64) for one in given)
    factor = scale / np.sqrt(variance + case.attributes["epsilon"])
    dims = (1, len(factor), *([1] * (len(src.dims) - 2)))
    factors, summands = ((x.reshape(dims)).astype(np.float32) for x in (factor, shift - mean * factor))

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, value.desc)
        each = MemoryDesc(dims, "f32", any_format)
        ops, operands, _ = finished(site, steps, dst)
        made = primitives.Binary(
            "mul", value.desc, site.plain(factors), dst, post_ops=[BinaryOp("add", each), *ops]
        )
        return site.add(made, value, factors, summands, *operands, into=into)

    def ways() -> Iterator[Way]:
        for desc in case.formats(src):
            yield Way({**wanted(case, steps, desc), src.name: desc}, (desc,), moving(desc, desc), make)

    return ways()
