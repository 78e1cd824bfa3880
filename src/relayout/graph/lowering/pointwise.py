"""What happens to each element: functions, binary operations, batch normalisations that stand alone.

Such an operator takes whatever format its largest operand has, and gives it to the result. Three cases::

    relu(x), x * 2, clip(x, 0, 6)       one tensor that moves: a function, its chain as post-ops
    x + y, x * scale[c]                 the operand with the result's dims leads, the other one is repeated
    row[1, n] + column[m, 1]            neither has them: one is written out first, plain or channels last

What is none of these (comparisons, choices, integers, several functions of one tensor) becomes an expression
(:mod:`~.expressions`). A batch normalisation with given statistics is a factor and a summand for each
channel, computed here in float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout import primitives
from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.chains import BINARY, Step, chain_of, finished, following, functions_of, wanted
from relayout.graph.lowering.expressions import expressed
from relayout.graph.lowering.ways import Way, moving, rule
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import OF_ONNX, Function
from relayout.ops.post_ops import BinaryOp, PostOp

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site
    from relayout.primitives.primitive import Primitive
    from relayout.primitives.values import Value

__all__: list[str] = []


@rule(*OF_ONNX, "LeakyRelu", "Selu", "Neg", "Swish", "Reciprocal", "Clip", "Pow", *BINARY)
def pointwise(case: Case) -> Iterable[Way] | None:
    """A function, or a binary operation, and the chain behind it."""
    steps = chain_of(case)
    if not case.floats or steps is None:
        return expressed(case)
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
        return expressed(case)
    return _binary(case, name, operands[0], operands[1], steps)


def _functions(case: Case, src: Operand, steps: Sequence[Step]) -> Iterator[Way]:
    first, rest = steps[0].op, steps[1:]
    assert isinstance(first, Function)
    return following(
        case, src, rest, lambda desc, dst, ops: (primitives.Eltwise(desc, first, dst=dst, post_ops=ops), [])
    )


def _binary(case: Case, name: str, one: Operand, two: Operand, steps: Sequence[Step]) -> Iterator[Way] | None:
    out = case.out
    large = next((x for x in (one, two) if x.dims == out.dims and x.data is None), None)
    if large is None and 0 not in out.dims:
        return _outer(case, name, one, two, steps)
    if large is None or max(len(one.dims), len(two.dims)) != len(out.dims):
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
    """Neither operand has the dims of the result: one of them is written out first.

    Row-major, or with channels last, as what it meets may be.
    """
    out = case.out

    def make(site: Site) -> Value:
        target = site.way.outputs[0]
        src = [site.ranked(x, len(out.dims)) for x in (one, two)]
        view = site.viewed(src[0], lambda layout: views.broadcast_to(layout, out.dims))
        wide = site.add(primitives.Reorder(view.desc, target), view)
        dst, into = site.target(0, target)
        ops, operands, _ = finished(site, steps, dst)
        made = primitives.Binary(name, wide.desc, src[1].desc, dst, post_ops=ops)
        return site.add(made, wide, src[1], *operands, into=into)

    read = {x.name: case.formats(x)[0] for x in (one, two) if x.data is None}
    targets = [row_major(out.dims, out.dtype)]
    if len(out.dims) > 2:
        tag = "a" + "".join(chr(ord("a") + k) for k in range(2, len(out.dims))) + "b"
        targets.append(MemoryDesc(out.dims, out.dtype, tag))
    for target in targets:
        cost = 2 * moving(target, target)
        yield Way({**wanted(case, steps, target), **read}, (target,), cost, make)


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

    def build(desc: MemoryDesc, dst: MemoryDesc, ops: list[PostOp]) -> tuple[Primitive, list[Any]]:
        each = MemoryDesc(dims, "f32", any_format)
        add = BinaryOp("add", each)
        made = primitives.Binary("mul", desc, row_major(dims, "f32"), dst, post_ops=[add, *ops])
        return made, [factors, summands]

    return following(case, src, steps, build)
