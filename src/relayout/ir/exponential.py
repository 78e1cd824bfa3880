"""2**x for results that are rounded to 11 bits or fewer: a polynomial of the third or fourth degree.

The exponential of :mod:`relayout.ir.math` is exact to the last bit or two of f32, which takes a polynomial of
the sixth degree, a reduction in two steps, and a correction of its argument. A result that is rounded to bf16
or f16 needs 11 bits, and this one has 18: a relative error of less than 2**-18, which moves a rounded result
by less than a hundredth of its last bit. For bf16, which has 8 bits, the third degree does, with 13 ::

    2**x = 2**n * p(x - n)        n = floor(x), and p a minimax polynomial on [0, 1)

AVX-512 has instructions for both ends: ``vreduceps`` gives ``x - floor(x)``, and ``vscalefps`` multiplies by
``2**floor(x)``. So there are five or six instructions for 16 numbers, and none for special cases:
2**-inf is 0, and NaN stays NaN. Elsewhere the power is made of the bits of an integer.

With registers of 32 bytes each instruction counts twice, so that whoever may have all powers multiplied by
the root of 2 asks for :func:`exp2_and_half`. Its argument is rounded to the nearest integer by a sum whose
last bits are the exponent of the power, and there is one bound: a power whose exponent is 0 is the number 0.
Nine instructions in place of eleven.
Whoever may have them multiplied by any number at all has eight: a polynomial that begins with 1 takes an
addition where another takes a product, whose first factor has to be copied besides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from relayout.ir.builder import Builder
from relayout.ir.types import FLOAT, I16, I32, Value, constant, poison, vector
from relayout.ir.vectors import cut, join
from relayout.targets.machine import LINE, Machine

__all__ = ["ERROR", "LEAST", "LOG2_E", "MONIC", "exp2", "exp2_and_half", "saturates"]

ERROR: Final = {3: 2.0**-13, 4: 2.0**-18}
"""The largest relative error, by the degree of the polynomial."""
LEAST: Final = -126.0
"""The exponent of the smallest normal number of f32."""
LOG2_E: Final = 1.4426950408889634

ROUNDS_TO_INTEGER: Final = 1.5 * 2**23
POLYNOMIALS: Final = {
    3: (0.07802452264047964, 0.226067155427483, 0.6958335404947528, 0.9999252185627154),
    4: (
        *(0.013534167781472206, 0.052011460065841675, 0.2414427548646927, 0.6930038332939148),
        1.0000026226043701,
    ),
}
"""2**r for r from 0 to 1 with the least relative error, by the degree; the highest power first."""

BETWEEN: Final = {
    3: (0.07802452147006989, 0.34310394525527954, 0.9804190993309021, 1.414111852645874),
    4: (
        *(0.013534167781472206, 0.07907979190349579, 0.3397611975669861, 0.9802222847938538),
        1.4142125844955444,
    ),
}
"""The same polynomials for 2**(r + 1/2) and r from -1/2 to 1/2."""

MONIC: Final = {degree: math.ceil(-math.log2(found[0])) for degree, found in BETWEEN.items()}
"""The exponent of a power of two above all that a monic polynomial multiplies by, by the degree."""

REDUCED: Final = "llvm.x86.avx512.mask.reduce.ps.512"
SCALED: Final = "llvm.x86.avx512.mask.scalef.ps.512"
DOWN: Final = 9  # of vreduceps: towards minus infinity, without an exception for what is inexact
CURRENT: Final = 4  # the rounding mode that is set


def exp2(b: Builder, x: Value, least: float | None = None, degree: int = 4) -> Value:
    """2**x for x up to 127, beyond that where it :func:`saturates`; NaN stays NaN.

    Parameters
    ----------
    b : Builder
        The function that is being written.
    x : Value
        A vector of f32.
    least : float, optional
        An exponent from -126 on, below which the result is 0. Without it results become subnormal before they
        become 0, where the processor does that by itself.
    degree : int
        That of the polynomial, 3 or 4; what it costs in precision is :data:`ERROR`.
    """
    whole = saturates(b.machine)
    y = (
        _at_once(b, x, degree)
        if whole
        else _by_bits(b, x, LEAST if least is None else max(LEAST, least), degree)
    )
    return b.select(b.fcmp("olt", x, least), 0.0, y) if whole and least is not None else y


def exp2_and_half(b: Builder, x: Value, degree: int = 4, monic: bool = False) -> Value:
    """2**(x + 1/2) for x up to 126, and 0 where that is no normal number of f32; NaN stays NaN.

    The relative error is :data:`ERROR` here, too. A *monic* polynomial, one that begins with 1, multiplies
    all powers by one more number, which is less than ``2**MONIC[degree]``; x is up to 126 less that exponent.
    """
    bounded = b.select(b.fcmp("ogt", LEAST - 1, x), LEAST - 1, x)
    exponent = b.fadd(bounded, ROUNDS_TO_INTEGER + 127)
    r = b.fsub(bounded, b.fsub(exponent, ROUNDS_TO_INTEGER + 127))
    first, *rest = BETWEEN[degree]
    p = _monic(b, r, [c / first for c in rest]) if monic else _polynomial(b, r, BETWEEN[degree])
    return b.fmul(p, b.real(b.shl(b.bits(exponent), 23)))


def saturates(machine: Machine) -> bool:
    """Whether powers above 2**127 become infinity; elsewhere they must not be asked for.

    >>> from relayout.targets.machine import machine
    >>> [saturates(machine(cpu)) for cpu in ("x86-64-v3", "x86-64-v4")]
    [False, True]
    """
    return machine.vector == LINE and machine.triple.startswith("x86_64")


def _polynomial(b: Builder, r: Value, coefficients: Sequence[float]) -> Value:
    first, second, *rest = coefficients
    y = b.fmuladd(r, first, second)
    for c in rest:
        y = b.fmuladd(y, r, c)
    return y


def _monic(b: Builder, r: Value, coefficients: Sequence[float]) -> Value:
    second, *rest = coefficients
    y = b.fadd(r, second)
    for c in rest:
        y = b.fmuladd(y, r, c)
    return y


def _at_once(b: Builder, x: Value, degree: int) -> Value:
    """By AVX-512's instructions, register by register."""
    lanes, found = vector(16, FLOAT), []
    masked = [poison(lanes), constant(I16, -1), constant(I32, CURRENT)]
    for part in cut(b, x, 16):
        r = b.call_value(lanes, REDUCED, part, constant(I32, DOWN), *masked)
        found.append(b.call_value(lanes, SCALED, _polynomial(b, r, POLYNOMIALS[degree]), part, *masked))
    return join(b, found) if x.type.count >= 16 else cut(b, found[0], x.type.count)[0]


def _by_bits(b: Builder, x: Value, least: float, degree: int) -> Value:
    """Any processor: the sum with a large number has the integer in its last bits."""
    below = b.fcmp("olt", x, least)
    bounded = b.select(below, 0.0, x)
    n = b.intrinsic("floor", bounded)
    power = b.real(b.shl(b.bits(b.fadd(n, ROUNDS_TO_INTEGER + 127)), 23))
    return b.select(below, 0.0, b.fmul(_polynomial(b, b.fsub(bounded, n), POLYNOMIALS[degree]), power))
