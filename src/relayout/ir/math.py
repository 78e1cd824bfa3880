"""Functions of f32 in vector registers: exp, log, tanh, the activations made of them, and powers.

LLVM has intrinsics for some of these, but they become calls of a library, an element at a time. Here each is
a few dozen instructions that any processor with vectors has: a polynomial, and arithmetic on the exponent as
an integer. Nothing is looked up in tables and nothing branches, so all lanes take the same time.

All functions have the same form. They take the builder of the function that is being written and a vector of
float (LLVM splits what no register holds), and give another such vector, or a constant one where the result
is the same for all x:

>>> from relayout.ir.types import vector
>>> b = Builder()
>>> relu(b, Value("%x", vector(8, FLOAT)))
<8 x float> %v2
>>> print(b.body())
  %v1 = fcmp ogt <8 x float> splat (float 0x0000000000000000), %x
  %v2 = select <8 x i1> %v1, <8 x float> splat (float 0x0000000000000000), <8 x float> %x

What comes out
==============

The largest errors that were found (one f32 of every 128, all exponents and signs), in units in the last place
of the exact result, and the instructions for one register, without load and store. v3 and v4 (AVX2, AVX-512)
fuse multiplications and additions, v2 (SSE4.2) does not:

=========================  ========  ========  ====  ====  ====
function                   ulp, v2   v3, v4     v2    v3    v4
=========================  ========  ========  ====  ====  ====
``exp``                    1.2       0.9         34    19    19
``log``                    0.9       0.9         56    42    31
``tanh``                   2.5       2.5         38    26    21
``erf``                    2.0       1.8         55    39    28
``sigmoid``                2.4       2.4         40    25    24
``softplus``, scale 0.7    2.5       3.0         88    59    44
``swish``, scale 1.702     3.4       3.4         59    33    29
``gelu_erf``               3.6       3.4         78    52    40
``gelu_tanh``              3.1       3.1         67    51    46
``mish``                   3.7       3.7         51    34    31
``elu``                    1.0       1.0         34    20    19
``pow_``, -0.75            3.3       3.3          6     4     4
``pow_``, 1.7              1.2       1.0        148   110    83
=========================  ========  ========  ====  ====  ====

The others (``relu``, ``clip``, ``square``, ``sqrt``, ``nearest``, ``absolute``, ``linear``) are one to five
instructions, each rounded to nearest. Where the terms of ``linear``, ``hardsigmoid`` and ``hardswish``
cancel, the error is as large as it would be in the larger term.

* Subnormal numbers count like others, as arguments and as results: nothing is flushed to zero. The products
  of x and a factor (``swish``, ``mish``, ``gelu``) round twice where the factor is subnormal, and may be off
  by 2**-143 there.
* NaN stays NaN, everywhere. (The one exception is a power with the exponent 0, which is 1, as in C.)
* Infinities give the limit, also where a formula would say infinity times zero: ``swish(-inf)`` is 0.
* Functions that are zero at zero give +0.0 for +0.0, so padding of zero bytes stays zero bytes.

How
===

* ``exp(x) = 2**n * exp(r)`` with ``n`` the nearest integer to ``x / ln 2`` and ``|r| <= ln(2) / 2``. Adding
  ``1.5 * 2**23`` rounds to that integer and leaves its bits at the end of the sum, from where a shift makes a
  power of two of them. Two powers of half the exponent are multiplied one after the other: so the product
  runs into infinity and into the subnormal numbers by itself, with one rounding.
* ``log(x) = e * ln(2) + log(1 + f)`` with ``1 + f`` between the roots of 1/2 and 2, from the bits of ``x``.
* Whatever saturates is made of ``exp(-|x|)``, which cannot overflow, and of ``exp(-x) - 1``, which keeps all
  digits near zero: ``tanh(x) = -d / (d + 2)`` with ``d = exp(-2 x) - 1``.
* An error in the argument of exp is an error of as many ulp as the argument is large. Where an argument is a
  product, the part that was rounded off is carried along and added to ``r`` (:func:`_product`).
* ``erf(x) = 1 - exp(-x - x * G(x))`` and the integral of the normal distribution, which gelu needs, is
  ``exp(-x**2 / 2)`` times a quotient of polynomials: the tail is exact where ``1 + erf(x)`` would cancel.

The polynomials are minimax fits made for this module, with coefficients rounded to f32 one after the other,
the rest fitted anew each time.

Traps
=====

* ``select`` after ``fcmp`` is one ``minps`` or ``maxps``, and the order of operands says what NaN becomes:
  :func:`_at_most` and :func:`_at_least` keep it.
* ``llvm.fma`` becomes a call for each element where the processor has no such instruction; ``llvm.fmuladd``
  multiplies and adds there. What is rounded off a product is then computed in double.
* What is infinite times what is zero is NaN, and so is infinity minus infinity: arguments are bounded
  *before* they are taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp, inf, nan
from typing import Final

from relayout.dtypes import single
from relayout.ir.builder import Builder
from relayout.ir.types import DOUBLE, FLOAT, Value, constant

__all__ = [
    "absolute",
    "clip",
    "elu",
    "erf",
    "exp",
    "exp_of_near",
    "gelu_erf",
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "linear",
    "log",
    "lost",
    "mish",
    "nearest",
    "pow_",
    "relu",
    "sigmoid",
    "softplus",
    "sqrt",
    "square",
    "swish",
    "tanh",
]

LARGEST: Final = (2 - 2.0**-23) * 2.0**127
SMALLEST_NORMAL: Final = 2.0**-126
SIGN: Final = -(2**31)
ROUNDS_TO_INTEGER: Final = 1.5 * 2**23
"""Added to a float below 2**22: the sum is a multiple of 1, and its last bits are that integer."""

LOG2_E: Final = 1.4426950408889634
LN2_HIGH: Final = 0.693115234375  # 12 bits, so that products with exponents are exact
LN2_LOW: Final = 3.1946184945309e-05
ROOT_HALF_BITS: Final = 0x3F3504F3

NOTHING_BELOW: Final = -104.0
"""exp of it, and of less, rounds to zero."""
INFINITE_FROM: Final = 89.0

# Polynomials, highest power first.
EXP: Final = (
    *(0.0013838335871696472, 0.00836916547268629, 0.04166810214519501, 0.16666516661643982),
    *(0.4999999403953552, 1.0, 1.0),
)
EXP2: Final = (
    *(0.00015834478836040944, 0.0013418467715382576, 0.009617029689252377, 0.05550272762775421),
    *(0.24022655189037323, 0.6931472420692444, 1.0),
)
EXP_REST: Final = (
    *(0.0013837796868756413, 0.008367089554667473, 0.04166774824261665, 0.16666539013385773),
    0.4999999701976776,
)
"""(exp(r) - 1 - r) / r**2."""
LOG_REST: Final = (
    *(-0.07634470611810684, 0.1276581883430481, -0.13160313665866852, 0.14200924336910248),
    *(-0.16623330116271973, 0.20001260936260223, -0.250008225440979, 0.3333333134651184),
)
"""(log(1 + f) - f + f**2 / 2) / f**3."""
LOG2: Final = (
    *(0.07553790398, -0.14144788211, 0.14495053, -0.14349039375, 0.15878356832, -0.180271025771),
    *(0.206172832268, -0.240454336964, 0.288537394379, -0.360673655316, 0.480898360176),
    *(-0.721347520963, 1.4426950408709),
)
"""log2(1 + f) / f, for double."""
ERF: Final = (
    *(-9.386591955262702e-06, 0.0001188509922940284, -0.0006373345386236906, 0.0016756401164457202),
    *(-0.0001694845996098593, -0.019147826358675957, 0.10277630388736725, 0.6366195678710938),
    0.12837916612625122,
)
"""-log(1 - erf(a)) / a - 1, for a up to 3.95, from where on erf rounds to 1."""
ERF_ONE_FROM: Final = 3.95
NORMAL_A: Final = (0.009646777994930744, 0.090660460293293, 0.39408618211746216, 0.9134266972541809)
NORMAL_B: Final = (2.4360258521483047e-06, 0.024069981649518013, 0.22939106822013855, 0.915995717048645)
"""With these, and with A = a + a**2 * NORMAL_A(a), A / (2 + a * NORMAL_B(a) + sqrt(2 * pi) * A) is
a * exp(a**2 / 2) times the share of the normal distribution below -a, up to 14.6. For large a most of an
error in A cancels, for small a most of A is exact."""
ROOT_2_PI: Final = 2.5066282746310002
NORMAL_NOTHING_FROM: Final = 14.6
GELU_TANH: Final = (1.5957691216057308 * 0.044715, 1.5957691216057308)  # 2 * sqrt(2 / pi)
GELU_TANH_NOTHING_FROM: Final = 10.7
SIMPLE_POWERS: Final = (-0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


def _polynomial(b: Builder, x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule, the highest power first."""
    first, second, *rest = coefficients
    y = b.fmuladd(x, first, second)
    for c in rest:
        y = b.fmuladd(y, x, c)
    return y


def _product(b: Builder, one: Value, two: Value | float) -> tuple[Value, Value]:
    """A product and what was rounded off it; neither may overflow."""
    high = b.fmul(one, two)
    if b.machine.fuses:
        return high, b.fmuladd(one, two, b.fneg(high))
    second = b.fpext(two, DOUBLE) if isinstance(two, Value) else single(two)
    return high, _lost(b, b.fmul(b.fpext(one, DOUBLE), second), high)


def lost(b: Builder, one: Value, two: Value) -> Value:
    """What is rounded off a product, on any processor: ``fma(x, y, -(x * y))``."""
    return _product(b, one, two)[1]


def _lost(b: Builder, wide: Value, x: Value) -> Value:
    """What a double has more than a float."""
    return b.fptrunc(b.fsub(wide, b.fpext(x, DOUBLE)), FLOAT)


def _at_most(b: Builder, x: Value, bound: float) -> Value:
    """The smaller of two; NaN stays."""
    return b.select(b.fcmp("olt", bound, x), bound, x)


def _at_least(b: Builder, x: Value, bound: float) -> Value:
    """The larger of two; NaN stays."""
    return b.select(b.fcmp("ogt", bound, x), bound, x)


def _magnitude(b: Builder, x: Value) -> Value:
    return b.real(b.and_(b.bits(x), ~SIGN))


def _signed(b: Builder, x: Value, sign: Value) -> Value:
    """The magnitude of one with the sign of the other."""
    its = b.and_(b.bits(sign), SIGN)
    return b.real(b.or_(b.bits(_magnitude(b, x)), its))


# --- lines -------------------------------------------------------------------------------------------------


def absolute(b: Builder, x: Value) -> Value:
    """|x|."""
    return _magnitude(b, x)


def nearest(b: Builder, x: Value) -> Value:
    """The nearest integer, the even one of two."""
    return b.intrinsic("roundeven", x)


def linear(b: Builder, x: Value, scale: float = 1.0, shift: float = 0.0) -> Value:
    """``scale * x + shift``; without a shift, and with a positive scale, -0.0 stays."""
    if shift == 0 and scale > 0:
        return x if scale == 1 else b.fmul(x, scale)
    return b.fmuladd(x, scale, shift)


def relu(b: Builder, x: Value, slope: float = 0.0) -> Value:
    """max(x, 0) + slope * min(x, 0); -0.0 stays. A slope of 0 makes 0, even of -inf."""
    if slope == 0:
        return _at_least(b, x, 0.0)
    return b.select(b.fcmp("oge", x, 0.0), x, b.fmul(x, slope))


def clip(b: Builder, x: Value, low: float, high: float) -> Value:
    """Bounded by low and high, which may be infinite."""
    return _at_most(b, _at_least(b, x, low), high)


# --- exponentials and logarithms ---------------------------------------------------------------------------


def exp(b: Builder, x: Value) -> Value:
    """e**x. Overflows to infinity, underflows gradually."""
    return _exp(b, _at_most(b, _at_least(b, x, NOTHING_BELOW), INFINITE_FROM))


def exp_of_near(b: Builder, x: Value) -> Value:
    """e**x where that is a normal number, and NaN of NaN: for arguments from -87.3 to 88."""
    shifted, r = _reduced(b, x, 127)
    return b.fmul(_polynomial(b, r, EXP), b.real(b.shl(b.bits(shifted), 23)))


def _exp(b: Builder, x: Value, low: Value | None = None) -> Value:
    """e**(x + low) for bounded x."""
    shifted, r = _reduced(b, x, 2 * 127)
    if low is not None:
        r = b.fadd(r, low)
    return _scaled(b, _polynomial(b, r, EXP), shifted)


def _reduced(b: Builder, x: Value, bias: int) -> tuple[Value, Value]:
    """``n + bias`` in the last bits of a float, and ``r``, where x is ``n * ln(2) + r``."""
    shifted = b.fmuladd(x, LOG2_E, ROUNDS_TO_INTEGER + bias)
    n = b.fsub(shifted, ROUNDS_TO_INTEGER + bias)
    return shifted, b.fmuladd(n, -LN2_LOW, b.fmuladd(n, -LN2_HIGH, x))


def _scaled(b: Builder, y: Value, shifted: Value) -> Value:
    """``y * 2**n``; n + 254 is in the last bits, and its halves are the biased exponents of two factors."""
    both = b.bits(shifted)
    one = b.lshr(both, 1)
    other = b.sub(both, one)
    for half in (one, other):
        y = b.fmul(y, b.real(b.shl(half, 23)))
    return y


def _exp_minus_1(b: Builder, x: Value) -> Value:
    """e**x - 1 for x from -87 to 0, accurate near 0."""
    shifted, r = _reduced(b, x, 127)
    y = b.fmuladd(b.fmul(r, r), _polynomial(b, r, EXP_REST), r)
    power = b.real(b.shl(b.bits(shifted), 23))
    return b.fmuladd(y, power, b.fadd(power, -1.0))


def _decay(b: Builder, x: Value, scale: float = 1.0) -> Value:
    """e**-|scale * x|."""
    scale = abs(single(scale))
    a = _at_most(b, _magnitude(b, x), min(-NOTHING_BELOW / scale, LARGEST) if scale else LARGEST)
    if _is_power_of_two(scale):
        return _exp(b, b.fmul(a, -scale) if scale != 1 else b.fneg(a))
    return _exp(b, *_product(b, a, -scale))


def _is_power_of_two(number: float) -> bool:
    return frexp(number)[0] == 0.5


def log(b: Builder, x: Value) -> Value:
    """The natural logarithm: -inf for zeros of both signs, NaN for what is negative."""
    exponent, f = _taken_apart(b, x)
    invalid = b.select(b.fcmp("oeq", x, 0.0), -inf, nan, x.type)
    return _log(b, b.select(b.fcmp("ugt", x, 0.0), exponent, invalid), f)


def _taken_apart(b: Builder, x: Value) -> tuple[Value, Value]:
    """``e`` and ``f`` for a positive ``x = 2**e * (1 + f)``; infinity and NaN for e where x is that."""
    tiny = b.fcmp("olt", x, SMALLEST_NORMAL)
    bits = b.bits(b.select(tiny, b.fmul(x, 2.0**23), x))
    above = b.sub(bits, ROOT_HALF_BITS)
    exponent = b.sitofp(b.ashr(above, 23), FLOAT)
    exponent = b.fadd(exponent, b.select(tiny, -23.0, 0.0, x.type))
    mantissa = b.sub(bits, b.and_(above, -(2**23)))
    return b.select(b.fcmp("olt", x, inf), exponent, x), b.fsub(b.real(mantissa), 1.0)


def _log(b: Builder, exponent: Value, f: Value) -> Value:
    """``exponent * ln(2) + log(1 + f)``."""
    square = b.fmul(f, f)
    rest = b.fmuladd(b.fmul(square, f), _polynomial(b, f, LOG_REST), b.fmul(exponent, LN2_LOW))
    rest = b.fmuladd(square, -0.5, rest)
    return b.fmuladd(exponent, LN2_HIGH, b.fadd(f, rest))


def softplus(b: Builder, x: Value, scale: float = 1.0) -> Value:
    """log(1 + e**(scale * x)) / scale; with -1 it is the logarithm of sigmoid. The scale is not 0.

    It is max(x, 0) + log(1 + e**-|scale * x|) / scale, or min where the scale is negative. What underflows in
    f32 before it is divided by a small scale is 0.
    """
    scale = single(scale)
    e = _decay(b, x, scale)
    large = b.fcmp("ogt", e, 2**0.5 - 1)
    f = b.select(large, b.fmuladd(e, 0.5, -0.5), e)
    y = _log(b, b.select(large, 1.0, 0.0, x.type), f)
    size = abs(scale)
    if size != 1:
        exact = _is_power_of_two(size) and 1 / size <= LARGEST
        y = b.fmul(y, 1 / size) if exact else b.fdiv(y, size)
    return b.fadd(_at_least(b, x, 0.0), y) if scale > 0 else b.fsub(_at_most(b, x, 0.0), y)


# --- sigmoid and what is made of it ------------------------------------------------------------------------


def sigmoid(b: Builder, x: Value, scale: float = 1.0) -> Value:
    """1 / (1 + e**-(scale * x))."""
    negative = b.fcmp("olt", x, 0.0) if scale >= 0 else b.fcmp("ogt", x, 0.0)
    return _logistic(b, negative, _decay(b, x, scale))


def _logistic(b: Builder, negative: Value, e: Value) -> Value:
    """1 / (1 + e**-y), from e**-|y|."""
    return b.fdiv(b.select(negative, e, 1.0), b.fadd(e, 1.0))


def swish(b: Builder, x: Value, scale: float = 1.0) -> Value:
    """``x / (1 + e**-(scale * x))``."""
    gate = sigmoid(b, x, scale)
    return _gated(b, x, gate, scale)


def _gated(b: Builder, x: Value, gate: Value, slope: float = 1.0) -> Value:
    """``x * gate``, and 0 where an infinite x meets the zero that the gate falls to on one side."""
    if slope:
        x = _at_least(b, x, -LARGEST) if slope > 0 else _at_most(b, x, LARGEST)
    return b.fmul(x, gate)


def gelu_tanh(b: Builder, x: Value) -> Value:
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``: x times a logistic function.

    The cubic is computed in double: rounded to f32 it would cost up to a hundred ulp in the tail.
    """
    a = b.fpext(_at_most(b, _magnitude(b, x), GELU_TANH_NOTHING_FROM), DOUBLE)
    cubic, slope = GELU_TANH
    wide = b.fmuladd(b.fmul(a, a), -cubic, -slope)
    wide = b.fmul(wide, a)
    y = b.fptrunc(wide, FLOAT)
    return _gated(b, x, _logistic(b, b.fcmp("olt", x, 0.0), _exp(b, y, _lost(b, wide, y))))


def mish(b: Builder, x: Value) -> Value:
    """``x * tanh(log(1 + e**x))``.

    The gate is (u * u - 1) / (u * u + 1) with u = 1 + e**x. For positive x both are divided by e**(2 x).
    """
    e = _decay(b, x)
    negative, twice = b.fcmp("olt", x, 0.0), b.fadd(e, e)
    above = b.select(negative, b.fmuladd(e, e, twice), b.fadd(twice, 1.0))
    below = b.fadd(above, b.select(negative, 2.0, b.fmul(twice, e)))
    return _gated(b, x, b.fdiv(above, below))


def hardsigmoid(b: Builder, x: Value, scale: float = 1 / 6, shift: float = 0.5) -> Value:
    """``scale * x + shift``, bounded by 0 and 1."""
    return _at_least(b, _at_most(b, b.fmuladd(x, scale, shift), 1.0), 0.0)


def hardswish(b: Builder, x: Value, scale: float = 1 / 6, shift: float = 0.5) -> Value:
    """:func:`hardsigmoid` times x."""
    return _gated(b, x, hardsigmoid(b, x, scale, shift), scale)


# --- tanh, erf, and what is made of them -------------------------------------------------------------------


def tanh(b: Builder, x: Value) -> Value:
    """The hyperbolic tangent."""
    twice = b.fmul(_at_most(b, _magnitude(b, x), 20.0), -2.0)
    y = _exp_minus_1(b, twice)
    return _signed(b, b.fdiv(y, b.fadd(y, 2.0)), x)


def erf(b: Builder, x: Value) -> Value:
    """The error function."""
    a = _at_most(b, _magnitude(b, x), ERF_ONE_FROM)
    minus = b.fneg(a)
    return _signed(b, _exp_minus_1(b, b.fmuladd(minus, _polynomial(b, a, ERF), minus)), x)


def gelu_erf(b: Builder, x: Value) -> Value:
    """``x * (1 + erf(x / sqrt(2))) / 2``: x times the share of the normal distribution below x.

    It is max(x, 0) - a * (share below -a) with a = |x|.
    """
    a = _at_most(b, _magnitude(b, x), NORMAL_NOTHING_FROM)
    square, rest = _product(b, a, a)
    above = b.fmuladd(square, _polynomial(b, a, NORMAL_A), a)
    below = b.fmuladd(above, ROOT_2_PI, b.fmul(a, _polynomial(b, a, NORMAL_B)))
    part = b.fneg(b.fdiv(above, b.fadd(below, 2.0)))
    decay = _exp(b, b.fmul(square, -0.5), b.fmul(rest, -0.5))
    return b.fmuladd(part, decay, _at_least(b, x, 0.0))


def elu(b: Builder, x: Value, scale: float = 1.0) -> Value:
    """max(x, 0) + scale * (e**min(x, 0) - 1)."""
    y = _exp_minus_1(b, _at_least(b, _at_most(b, x, 0.0), -40.0))
    return b.select(b.fcmp("oge", x, 0.0), x, b.fmul(y, scale) if scale != 1 else y)


# --- powers ------------------------------------------------------------------------------------------------


def sqrt(b: Builder, x: Value) -> Value:
    """The square root, rounded to nearest: -0.0 for -0.0, NaN for what is negative."""
    return b.intrinsic("sqrt", x)


def square(b: Builder, x: Value) -> Value:
    """``x * x``."""
    return b.fmul(x, x)


def pow_(b: Builder, x: Value, exponent: float, scale: float = 1.0) -> Value:
    """``scale * x**exponent``, both of them finite constants (rounded to f32).

    Small integers and quarters are made of products and roots. All others are ``2**(exponent * log2(x))``,
    with the logarithm in double.

    The power is 1 for the exponent 0, even of NaN. Of negative numbers, -inf among them, only integral powers
    are numbers; else it is NaN. (C's ``pow`` has numbers for -inf.)
    """
    exponent = single(exponent)
    if exponent == 0:
        return constant(x.type, scale)
    if exponent == -1:
        return b.fdiv(scale, x)
    y = (_simple_power if exponent in SIMPLE_POWERS else _power)(b, x, exponent)
    if scale == 1:
        return y
    y = b.fmul(y, scale)
    return y if scale > 0 else b.fadd(y, 0.0)  # +0.0 for +0.0


def _simple_power(b: Builder, x: Value, exponent: float) -> Value:
    """One of the powers that are a few products and square roots."""
    if exponent >= 1 and exponent != 1.5:
        square = b.fmul(x, x) if exponent > 1 else x
        return square if exponent <= 2 else b.fmul(square, x if exponent == 3 else square)
    x = b.fadd(x, 0.0)  # no -0.0, whose root is -0.0
    root = b.intrinsic("sqrt", x)
    if exponent == 1.5:
        return b.fmul(x, root)
    if exponent < 0:
        root = b.fdiv(1.0, root)
    if abs(exponent) == 0.5:
        return root
    return b.intrinsic("sqrt", root) if abs(exponent) == 0.25 else b.fmul(root, b.intrinsic("sqrt", root))


def _power(b: Builder, x: Value, exponent: float) -> Value:
    """Any power, by logarithm and exponential to the base of 2.

    The logarithm of 0 is -inf here, and that of inf is inf: what becomes of them is right in the end.
    """
    a = _magnitude(b, x)
    e, f = _taken_apart(b, a)
    e, f = b.fpext(b.select(b.fcmp("oeq", a, 0.0), -inf, e), DOUBLE), b.fpext(f, DOUBLE)
    y = b.fmuladd(_polynomial(b, f, LOG2), f, e)
    y = b.fmul(y, exponent)
    for predicate, bound in (("olt", 130.0), ("ogt", -152.0)):
        outside = b.fcmp(predicate, bound, y)
        y = b.select(outside, bound, y)
    shifted = b.fadd(b.fptrunc(y, FLOAT), ROUNDS_TO_INTEGER + 2 * 127)
    rest = _lost(b, y, b.fsub(shifted, ROUNDS_TO_INTEGER + 2 * 127))
    y = _scaled(b, _polynomial(b, rest, EXP2), shifted)
    if not exponent.is_integer():
        return b.select(b.fcmp("olt", x, 0.0), nan, y)
    return _signed(b, y, x) if exponent % 2 else y
