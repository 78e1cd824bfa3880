"""The bodies: what each operation computes from the elements of its operands, as vector code.

Each function here makes a :class:`~relayout.kernels.elementwise.map.Body` for an operation, and
:func:`followed_by` one for it and its post-ops::

    function(relu)             x                             f(x)
    binary("max", (2, 1))      x, y                          max(2 x, y), in double
    weighted_sum(3)            x, y, z; numbers a, b, c      a x + b y + c z
    factor(True)               variance, scale; epsilon      scale / sqrt(variance + epsilon)
    normalised(True)           x, mean, factor, shift        (x - mean) factor + shift
    same()                     x                             x
    expression(e)              what e reads                  the last term of e, in its types

Numbers that often change (the scales of a sum) are read when the kernel runs. Those that belong to the
operation, like a slope, are written into its code, where 1 and 0 cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.dtypes import single
from relayout.ir import math
from relayout.ir.builder import Builder
from relayout.ir.types import DOUBLE, FLOAT, Value, constant
from relayout.kernels.elementwise.map import Body
from relayout.ops.binary import emit as operation
from relayout.ops.binary import keeps_zero
from relayout.ops.expressions import Expression
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp

__all__ = ["binary", "expression", "factor", "followed_by", "function", "normalised", "same", "weighted_sum"]


def function(f: Function) -> Body:
    """An elementwise function."""

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        return f.emit(b, values[0])

    return Body(repr(f), emit, f.at_zero == 0, f.cheap)


def binary(algorithm: str, scales: tuple[float, float] = (1.0, 1.0)) -> Body:
    """A binary operation; comparisons give 1 and 0, and NaN stays NaN in ``max`` and ``min``.

    With scales everything is in double, where a product of two f32 is exact and never beyond the range: to
    divide by ``4 * 1e38`` in float would be to divide by infinity.
    """

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        if scales == (1, 1):
            return operation(b, algorithm, *values)
        x, y = (b.fmul(b.fpext(value, DOUBLE), scale) for value, scale in zip(values, scales, strict=True))
        return b.fptrunc(operation(b, algorithm, x, y), FLOAT)

    # Zero times a negative number is -0.0, which is no zero byte.
    return Body(f"{algorithm}{scales}", emit, keeps_zero(algorithm) and min(scales) >= 0, True)


def same() -> Body:
    """The operand itself: for post-ops of what has been computed already."""
    return Body("same", lambda b, values: values[0], True, True)


def expression(e: Expression) -> Body:
    """An expression on elements of any types."""
    return Body(f"expression {e}", e.emit, e.keeps_zero, e.cheap, e.operands, e.kind)


def weighted_sum(count: int, weighted: bool = True) -> Body:
    """The sum of so many operands, each times one of as many numbers if ``weighted``.

    A weighted sum begins with +0.0, so that zeros times negative numbers do not end as -0.0.
    """

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        operands, scales = values[:count], values[count:]
        if not weighted:
            total = operands[0]
            for operand in operands[1:]:
                total = b.fadd(total, operand)
            return total
        total = constant(operands[0].type, 0.0)
        for operand, scale in zip(operands, scales, strict=True):
            total = b.fmuladd(operand, scale, total)
        return total

    return Body(f"sum of {count}{' weighted' if weighted else ''}", emit, True, count <= 4)


def factor(has_scale: bool) -> Body:
    """What batch normalisation multiplies a channel by: of the variance, the scale, and a number, epsilon."""

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        variance, *scale, epsilon = values
        root = math.sqrt(b, b.fadd(variance, epsilon))
        return b.fdiv(scale[0] if has_scale else 1.0, root)

    return Body(f"factor{' scaled' if has_scale else ''}", emit, False, True)


def normalised(has_shift: bool) -> Body:
    """Batch normalisation: of the source, the mean, the factor, and the shift.

    The mean is subtracted first, as the definition has it. To multiply first, and add what remains of mean
    and shift, would save nothing here and lose digits where the mean is large.
    """

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        x, mean, times, *shift = values
        x = b.fsub(x, mean)
        return b.fmuladd(x, times, shift[0]) if has_shift else b.fmul(x, times)

    return Body(f"normalised{' shifted' if has_shift else ''}", emit, False, True)


def followed_by(body: Body, operands: int, post_ops: Sequence[PostOp]) -> Body:
    """A body of so many operands, and its post-ops.

    Each post-op that reads a tensor takes one more operand, in the order of the post-ops: a sum the old
    destination, a binary operation its own.
    """
    if not post_ops:
        return body
    more = sum(not isinstance(op, Function) for op in post_ops)

    def emit(b: Builder, values: Sequence[Value]) -> Value:
        own = [*values[:operands], *values[operands + more :]]
        others = iter(values[operands : operands + more])
        x = body.emit(b, own)
        for op in post_ops:
            if isinstance(op, Function):
                x = op.emit(b, x)
            elif isinstance(op, BinaryOp):
                x = operation(b, op.algorithm, x, next(others))
            else:
                old = next(others)
                x = b.fadd(x, old if op.scale == 1 else b.fmul(old, single(op.scale)))
        return x

    cheap = all(op.cheap for op in post_ops if isinstance(op, Function))
    return Body(
        " ".join(map(repr, (body.name, *post_ops))),
        emit,
        body.keeps_zero and all(_keeps_zero(op) for op in post_ops),
        body.cheap and cheap,
    )


def _keeps_zero(op: PostOp) -> bool:
    """Whether a post-op makes +0.0 of +0.0; what a destination held in its padding may be anything."""
    if isinstance(op, Function):
        return op.at_zero == 0
    return isinstance(op, BinaryOp) and keeps_zero(op.algorithm)
