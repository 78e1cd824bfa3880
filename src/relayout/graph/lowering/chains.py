"""Functions and binary operations as post-ops: what a chain of nodes behind another one becomes.

::

    Conv -> Add(residual) -> Relu       Convolution(..., post_ops=[Sum(), relu])

And :func:`following`, the ways of everything that takes formats as they come: an operation whose time is
that of reading and writing is done in whatever format its source has, and its result has the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.graph.graph import Node
from relayout.graph.lowering.case import Case, Operand, label, spellings
from relayout.graph.lowering.ways import Way, moving
from relayout.graph.operators import OPERATORS
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import formats
from relayout.ops.functions import OF_ONNX, Function, of_onnx
from relayout.ops.post_ops import BinaryOp, PostOp, Sum
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__ = ["BINARY", "Step", "chain_of", "finished", "following", "functions_of", "wanted"]

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
        case "LeakyRelu":
            return Function("relu", a["alpha"])
        case "Selu":
            return [Function("elu", a["alpha"]), Function("linear", a["gamma"])]
        case "Neg":
            return Function("linear", -1.0)
        case "Gelu" if a["approximate"] == "tanh":
            return Function("gelu_tanh")
        case "Swish":
            return Function("swish", a["alpha"])
        case "Reciprocal":
            return Function("pow", 1.0, -1.0)
        case "Clip":
            low, high = (*operands[1:], *([None] * 2))[:2]
            low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
            return Function("clip", low, high) if low <= high else None
    if operator in OF_ONNX:
        return of_onnx(operator, a)
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
    site: Site,
    steps: Sequence[Step],
    dst: MemoryDesc,
    sums: bool = False,
    see: Callable[[Value], Value] = lambda value: value,
) -> tuple[list[PostOp], list[Any], dict[str, Any]]:
    """Post-ops for a destination, their operands in order, and what the result is added to, by name.

    ``sums``: whether a value that nobody else reads may be added to in its place; ``see``: as what operands
    are read, if the destination is a view of the result.
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
        if sums and step.op == "add" and not added and site.ends_here(other) and _fills(other, dst):
            value = see(site.value(other))
            if value.desc == dst:
                ops.append(Sum())
                added["dst"] = value
                continue
        value = see(site.ranked(other, len(dst.dims)))
        ops.append(BinaryOp(step.op, value.desc))
        operands.append(value)
    return ops, operands, added


def _fills(operand: Operand, dst: MemoryDesc) -> bool:
    """Whether an operand has as many elements as a destination, along as many axes."""
    return len(operand.dims) == len(dst.dims) and math.prod(operand.dims) == math.prod(dst.dims)


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


def following(
    case: Case,
    src: Operand,
    steps: Sequence[Step],
    build: Callable[[MemoryDesc, MemoryDesc, list[PostOp]], tuple[Primitive, list[Any]]],
    *,
    dims: tuple[int, ...] | None = None,
    times: Callable[[MemoryDesc], float] = lambda _: 1.0,
) -> Iterator[Way]:
    """A way for each format in which a source may come; the result, perhaps of other dims, has its order.

    ``build`` makes the primitive for its source, its destination and post-ops, and says which constants it
    reads besides; ``times``: how much longer than a copy it takes.
    """

    def make(site: Site) -> Value:
        value = site.value(src)
        dst, into = site.target(0, site.way.outputs[0])
        ops, operands, _ = finished(site, steps, dst)
        primitive, constants = build(value.desc, dst, ops)
        return site.add(primitive, value, *constants, *operands, into=into)

    for desc in case.formats(src):
        targets = [desc]
        if dims is not None or case.out.dtype != src.dtype:
            wide = MemoryDesc(dims or src.dims, case.out.dtype, "any")
            targets = [label(formats.following(one, wide)) for one in spellings(desc)]
        for target in dict.fromkeys(targets):
            read = {**wanted(case, steps, target), src.name: desc}
            yield Way(read, (target,), times(desc) * moving(desc, target), make)
