"""The bodies: what each operation computes from the elements of its operands, as vector code.

Each function here makes a :class:`~relayout.kernels.elementwise.map.Body` for an operation, and
:func:`followed_by` one for it and its post-ops::

    function(relu)             x                             f(x)
    binary("max", (2, 1))      x, y                          max(2 x, y), in double
    weighted_sum(3)            x, y, z; numbers a, b, c      a x + b y + c z
    factor(True)               variance, scale; epsilon      scale / sqrt(variance + epsilon)
    normalised(True)           x, mean, factor, shift        (x - mean) factor + shift
    same()                     x                             x

Numbers that often change (the scales of a sum) are read when the kernel runs. Those that belong to the
operation, like a slope, are written into its code, where 1 and 0 cost nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from relayout.ir import math
from relayout.ir.writer import Writer
from relayout.kernels.elementwise.map import Body
from relayout.ops.binary import emitted, keeps_zero
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp
from relayout.targets.machine import Machine

__all__ = ["binary", "factor", "followed_by", "function", "normalised", "same", "weighted_sum"]

FEW_INSTRUCTIONS: Final = (
    *("relu", "square", "abs", "sqrt", "linear", "hardsigmoid", "hardswish", "clip", "clip_v2", "round"),
)


def function(f: Function) -> Body:
    """An elementwise function."""

    def emit(w: Writer, machine: Machine, values: Sequence[str], count: int) -> str:
        return f.emit(w, machine, values[0], count)

    return Body(repr(f), emit, f.at_zero == 0, f.algorithm in FEW_INSTRUCTIONS)


def binary(algorithm: str, scales: tuple[float, float] = (1.0, 1.0)) -> Body:
    """A binary operation; comparisons give 1 and 0, and NaN stays NaN in ``max`` and ``min``.

    With scales everything is in double, where a product of two f32 is exact and never beyond the range: to
    divide by ``4 * 1e38`` in float would be to divide by infinity.
    """

    def emit(w: Writer, machine: Machine, values: Sequence[str], count: int) -> str:
        if scales == (1, 1):
            return emitted(w, algorithm, values[0], values[1], count)
        single, double = (f"<{count} x {element}>" for element in ("float", "double"))
        wide = (w.value(f"fpext {single} {value} to {double}") for value in values)
        x, y = (_scaled(w, value, scale, count, "double") for value, scale in zip(wide, scales, strict=True))
        return w.value(f"fptrunc {double} {emitted(w, algorithm, x, y, count, 'double')} to {single}")

    # Zero times a negative number is -0.0, which is no zero byte.
    return Body(f"{algorithm}{scales}", emit, keeps_zero(algorithm) and min(scales) >= 0, True)


def same() -> Body:
    """The operand itself: for post-ops of what has been computed already."""
    return Body("same", lambda w, machine, values, count: values[0], True, True)


def weighted_sum(count: int, weighted: bool = True) -> Body:
    """The sum of so many operands, each times one of as many numbers if ``weighted``.

    A weighted sum begins with +0.0, so that zeros times negative numbers do not end as -0.0.
    """

    def emit(w: Writer, machine: Machine, values: Sequence[str], lanes: int) -> str:
        operands, scales = values[:count], values[count:]
        if not weighted:
            total = operands[0]
            for operand in operands[1:]:
                total = w.value(f"fadd <{lanes} x float> {total}, {operand}")
            return total
        total = "zeroinitializer"
        for operand, scale in zip(operands, scales, strict=True):
            total = _times_plus(w, machine, operand, scale, total, lanes)
        return total

    return Body(f"sum of {count}{' weighted' if weighted else ''}", emit, True, count <= 4)


def factor(has_scale: bool) -> Body:
    """What batch normalisation multiplies a channel by: of the variance, the scale, and a number, epsilon."""

    def emit(w: Writer, machine: Machine, values: Sequence[str], count: int) -> str:
        variance, *scale, epsilon = values
        kind = f"<{count} x float>"
        root = math.sqrt(w, machine, w.value(f"fadd {kind} {variance}, {epsilon}"), count)
        return w.value(f"fdiv {kind} {scale[0] if has_scale else 'splat (float 1.0)'}, {root}")

    return Body(f"factor{' scaled' if has_scale else ''}", emit, False, True)


def normalised(has_shift: bool) -> Body:
    """Batch normalisation: of the source, the mean, the factor, and the shift.

    The mean is subtracted first, as the definition has it. To multiply first, and add what remains of mean
    and shift, would save nothing here and lose digits where the mean is large.
    """

    def emit(w: Writer, machine: Machine, values: Sequence[str], count: int) -> str:
        x, mean, times, *shift = values
        kind = f"<{count} x float>"
        x = w.value(f"fsub {kind} {x}, {mean}")
        if has_shift:
            return _times_plus(w, machine, x, times, shift[0], count)
        return w.value(f"fmul {kind} {x}, {times}")

    return Body(f"normalised{' shifted' if has_shift else ''}", emit, False, True)


def followed_by(body: Body, operands: int, post_ops: Sequence[PostOp]) -> Body:
    """A body of so many operands, and its post-ops.

    Each post-op that reads a tensor takes one more operand, in the order of the post-ops: a sum the old
    destination, a binary operation its own.
    """
    if not post_ops:
        return body
    more = sum(not isinstance(op, Function) for op in post_ops)

    def emit(w: Writer, machine: Machine, values: Sequence[str], count: int) -> str:
        own = [*values[:operands], *values[operands + more :]]
        others = iter(values[operands : operands + more])
        x = body.emit(w, machine, own, count)
        for op in post_ops:
            if isinstance(op, Function):
                x = op.emit(w, machine, x, count)
            elif isinstance(op, BinaryOp):
                x = emitted(w, op.algorithm, x, next(others), count)
            else:
                old = _scaled(w, next(others), math.single(op.scale), count)
                x = w.value(f"fadd <{count} x float> {x}, {old}")
        return x

    functions = [op for op in post_ops if isinstance(op, Function)]
    return Body(
        " ".join(map(repr, (body.name, *post_ops))),
        emit,
        body.keeps_zero and all(_keeps_zero(op) for op in post_ops),
        body.cheap and all(f.algorithm in FEW_INSTRUCTIONS for f in functions),
    )


def _keeps_zero(op: PostOp) -> bool:
    """Whether a post-op makes +0.0 of +0.0; what a destination held in its padding may be anything."""
    if isinstance(op, Function):
        return op.at_zero == 0
    return isinstance(op, BinaryOp) and keeps_zero(op.algorithm)


def _scaled(w: Writer, value: str, scale: float, count: int, element: str = "float") -> str:
    """A vector times an f32, the sign of zero included."""
    if scale == 1:
        return value
    bits = struct.pack(">d", scale).hex().upper()
    return w.value(f"fmul <{count} x {element}> {value}, splat ({element} 0x{bits})")


def _times_plus(w: Writer, machine: Machine, one: str, two: str, three: str, count: int) -> str:
    """``one * two + three``, rounded once where the processor can."""
    kind = f"<{count} x float>"
    if machine.fuses:
        return w.value(f"call {kind} @llvm.fma.v{count}f32({kind} {one}, {kind} {two}, {kind} {three})")
    return w.value(f"fadd {kind} {w.value(f'fmul {kind} {one}, {two}')}, {three}")
