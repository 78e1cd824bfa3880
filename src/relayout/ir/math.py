"""Functions of f32 in vector registers: exp, log, tanh, the activations made of them, and powers.

LLVM has intrinsics for some of these, but they become calls of a library, an element at a time. Here each is
a few dozen instructions that any processor with vectors has: a polynomial, and arithmetic on the exponent as
an integer. Nothing is looked up in tables and nothing branches, so all lanes take the same time.

All functions have the same form. They take the function that is being written, the processor and the name
of a vector ``<count x float>`` (1, 2, 4, 8, 16, 32 or 64 elements; LLVM splits what no register holds), and
give the name of another such vector, or a constant one where the result is the same for all x:

>>> from relayout.ir.writer import Writer
>>> from relayout.targets.machine import machine
>>> w = Writer()
>>> relu(w, machine("x86-64-v3"), "%x", 8)
'%v2'
>>> print(w.text())
  %v1 = fcmp ogt <8 x float> splat (float 0x0000000000000000), %x
  %v2 = select <8 x i1> %v1, <8 x float> splat (float 0x0000000000000000), <8 x float> %x

A :class:`~relayout.errors.LayoutError` says where a count is none of those.

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
  product, the part that was rounded off is carried along and added to ``r`` (:meth:`_Reals.product`).
* ``erf(x) = 1 - exp(-x - x * G(x))`` and the integral of the normal distribution, which gelu needs, is
  ``exp(-x**2 / 2)`` times a quotient of polynomials: the tail is exact where ``1 + erf(x)`` would cancel.

The polynomials are minimax fits made for this module, with coefficients rounded to f32 one after the other,
the rest fitted anew each time.

Traps
=====

* ``select`` after ``fcmp`` is one ``minps`` or ``maxps``, and the order of operands says what NaN becomes:
  :meth:`_Reals.at_most` and :meth:`_Reals.at_least` keep it.
* ``llvm.fma`` becomes a call for each element where the processor has no such instruction. Without it
  products are rounded, and what is rounded off is computed in double.
* What is infinite times what is zero is NaN, and so is infinity minus infinity: arguments are bounded
  *before* they are taken apart.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import frexp, inf, nan
from typing import Final

from relayout.ir.conversions import _Vectors
from relayout.ir.writer import Writer
from relayout.targets.machine import Machine

__all__ = [
    "absolute",
    "clip",
    "elu",
    "erf",
    "exp",
    "gelu_erf",
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "linear",
    "log",
    "mish",
    "nearest",
    "pow_",
    "relu",
    "sigmoid",
    "single",
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


def single(number: float) -> float:
    """The nearest f32; an ``OverflowError`` where that would be infinite and the number is not.

    >>> single(0.1)
    0.10000000149011612
    """
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


class _Reals(_Vectors):
    """Vectors of float; numbers stand for vectors that are filled with them."""

    def text(self, element: str, value: str | float) -> str:
        """Round numbers to f32 where that is asked for; LLVM takes no others."""
        if element == "float" and not isinstance(value, str):
            value = single(value)
        return super().text(element, value)

    @property
    def fuses(self) -> bool:
        """Whether the processor multiplies and adds with one rounding."""
        return self.machine.fuses

    def plus(self, one: str | float, two: str | float) -> str:
        return self.do("fadd", "float", one, two)

    def minus(self, one: str | float, two: str | float) -> str:
        return self.do("fsub", "float", one, two)

    def times(self, one: str | float, two: str | float) -> str:
        return self.do("fmul", "float", one, two)

    def over(self, one: str | float, two: str | float) -> str:
        return self.do("fdiv", "float", one, two)

    def times_plus(
        self, one: str | float, two: str | float, three: str | float, element: str = "float"
    ) -> str:
        """``one * two + three``, rounded once where the processor can."""
        if not self.fuses:
            return self.do("fadd", element, self.do("fmul", element, one, two), three)
        kind, bits = self.of(element), {"float": 32, "double": 64}[element]
        operands = ", ".join(f"{kind} {self.text(element, x)}" for x in (one, two, three))
        return self.w.value(f"call {kind} @llvm.fma.v{self.count}f{bits}({operands})")

    def polynomial(self, x: str, coefficients: Sequence[float], element: str = "float") -> str:
        """Horner's rule, the highest power first."""
        first, second, *rest = coefficients
        y = self.times_plus(x, first, second, element)
        for c in rest:
            y = self.times_plus(y, x, c, element)
        return y

    def product(self, one: str, two: str | float) -> tuple[str, str]:
        """A product and what was rounded off it; neither may overflow."""
        high = self.times(one, two)
        if self.fuses:
            return high, self.times_plus(one, two, self.w.value(f"fneg {self.of('float')} {high}"))
        second = self.widened(two) if isinstance(two, str) else single(two)
        return high, self.lost(self.do("fmul", "double", self.widened(one), second), high)

    def widened(self, x: str) -> str:
        return self.cast("fpext", x, "float", "double")

    def narrowed(self, x: str) -> str:
        return self.cast("fptrunc", x, "double", "float")

    def lost(self, wide: str, x: str) -> str:
        """What a double has more than a float."""
        return self.narrowed(self.do("fsub", "double", wide, self.widened(x)))

    def where(self, condition: str, yes: str | float, no: str | float) -> str:
        return self.select(condition, "float", yes, no)

    def below(self, one: str | float, two: str | float) -> str:
        return self.compare("fcmp olt", "float", one, two)

    def above(self, one: str | float, two: str | float) -> str:
        return self.compare("fcmp ogt", "float", one, two)

    def at_most(self, x: str, bound: float) -> str:
        """The smaller of two; NaN stays."""
        return self.where(self.below(bound, x), bound, x)

    def at_least(self, x: str, bound: float) -> str:
        """The larger of two; NaN stays."""
        return self.where(self.above(bound, x), bound, x)

    def bits(self, x: str) -> str:
        return self.cast("bitcast", x, "float", "i32")

    def real(self, bits: str) -> str:
        return self.cast("bitcast", bits, "i32", "float")

    def magnitude(self, x: str) -> str:
        return self.real(self.do("and", "i32", self.bits(x), ~SIGN))

    def negated(self, x: str) -> str:
        return self.w.value(f"fneg {self.of('float')} {x}")

    def signed(self, x: str, sign: str) -> str:
        """The magnitude of one with the sign of the other."""
        its = self.do("and", "i32", self.bits(sign), SIGN)
        return self.real(self.do("or", "i32", self.bits(self.magnitude(x)), its))

    def root(self, x: str) -> str:
        return self.call("sqrt", "float", x, "float")


# --- lines -------------------------------------------------------------------------------------------------


def absolute(w: Writer, machine: Machine, value: str, count: int) -> str:
    """|x|."""
    return _Reals(w, machine, count).magnitude(value)


def nearest(w: Writer, machine: Machine, value: str, count: int) -> str:
    """The nearest integer, the even one of two."""
    return _Reals(w, machine, count).call("roundeven", "float", value, "float")


def linear(
    w: Writer, machine: Machine, value: str, count: int, scale: float = 1.0, shift: float = 0.0
) -> str:
    """``scale * x + shift``; without a shift, and with a positive scale, -0.0 stays."""
    v = _Reals(w, machine, count)
    if shift == 0 and scale > 0:
        return value if scale == 1 else v.times(value, scale)
    return v.times_plus(value, scale, shift)


def relu(w: Writer, machine: Machine, value: str, count: int, slope: float = 0.0) -> str:
    """max(x, 0) + slope * min(x, 0); -0.0 stays. A slope of 0 makes 0, even of -inf."""
    v = _Reals(w, machine, count)
    if slope == 0:
        return v.at_least(value, 0.0)
    return v.where(v.compare("fcmp oge", "float", value, 0.0), value, v.times(value, slope))


def clip(w: Writer, machine: Machine, value: str, count: int, low: float, high: float) -> str:
    """Bounded by low and high, which may be infinite."""
    v = _Reals(w, machine, count)
    return v.at_most(v.at_least(value, low), high)


# --- exponentials and logarithms ---------------------------------------------------------------------------


def exp(w: Writer, machine: Machine, value: str, count: int) -> str:
    """e**x. Overflows to infinity, underflows gradually."""
    v = _Reals(w, machine, count)
    return _exp(v, v.at_most(v.at_least(value, NOTHING_BELOW), INFINITE_FROM))


def _exp(v: _Reals, x: str, low: str | None = None) -> str:
    """e**(x + low) for bounded x."""
    shifted, r = _reduced(v, x, 2 * 127)
    if low is not None:
        r = v.plus(r, low)
    return _scaled(v, v.polynomial(r, EXP), shifted)


def _reduced(v: _Reals, x: str, bias: int) -> tuple[str, str]:
    """``n + bias`` in the last bits of a float, and ``r``, where x is ``n * ln(2) + r``."""
    shifted = v.times_plus(x, LOG2_E, ROUNDS_TO_INTEGER + bias)
    n = v.minus(shifted, ROUNDS_TO_INTEGER + bias)
    return shifted, v.times_plus(n, -LN2_LOW, v.times_plus(n, -LN2_HIGH, x))


def _scaled(v: _Reals, y: str, shifted: str) -> str:
    """``y * 2**n``; n + 254 is in the last bits, and its halves are the biased exponents of two factors."""
    both = v.bits(shifted)
    one = v.do("lshr", "i32", both, 1)
    other = v.do("sub", "i32", both, one)
    for half in (one, other):
        y = v.times(y, v.real(v.do("shl", "i32", half, 23)))
    return y


def _exp_minus_1(v: _Reals, x: str) -> str:
    """e**x - 1 for x from -87 to 0, accurate near 0."""
    shifted, r = _reduced(v, x, 127)
    y = v.times_plus(v.times(r, r), v.polynomial(r, EXP_REST), r)
    power = v.real(v.do("shl", "i32", v.bits(shifted), 23))
    return v.times_plus(y, power, v.plus(power, -1.0))


def _decay(v: _Reals, x: str, scale: float = 1.0) -> str:
    """e**-|scale * x|."""
    scale = abs(single(scale))
    a = v.at_most(v.magnitude(x), min(-NOTHING_BELOW / scale, LARGEST) if scale else LARGEST)
    if _is_power_of_two(scale):
        return _exp(v, v.times(a, -scale) if scale != 1 else v.negated(a))
    return _exp(v, *v.product(a, -scale))


def _is_power_of_two(number: float) -> bool:
    return frexp(number)[0] == 0.5


def log(w: Writer, machine: Machine, value: str, count: int) -> str:
    """The natural logarithm: -inf for zeros of both signs, NaN for what is negative."""
    v = _Reals(w, machine, count)
    exponent, f = _taken_apart(v, value)
    invalid = v.where(v.compare("fcmp oeq", "float", value, 0.0), -inf, nan)
    return _log(v, v.where(v.compare("fcmp ugt", "float", value, 0.0), exponent, invalid), f)


def _taken_apart(v: _Reals, x: str) -> tuple[str, str]:
    """``e`` and ``f`` for a positive ``x = 2**e * (1 + f)``; infinity and NaN for e where x is that."""
    tiny = v.below(x, SMALLEST_NORMAL)
    bits = v.bits(v.where(tiny, v.times(x, 2.0**23), x))
    above = v.do("sub", "i32", bits, ROOT_HALF_BITS)
    exponent = v.cast("sitofp", v.do("ashr", "i32", above, 23), "i32", "float")
    exponent = v.plus(exponent, v.where(tiny, -23.0, 0.0))
    mantissa = v.do("sub", "i32", bits, v.do("and", "i32", above, -(2**23)))
    return v.where(v.below(x, inf), exponent, x), v.minus(v.real(mantissa), 1.0)


def _log(v: _Reals, exponent: str, f: str) -> str:
    """``exponent * ln(2) + log(1 + f)``."""
    square = v.times(f, f)
    rest = v.times_plus(v.times(square, f), v.polynomial(f, LOG_REST), v.times(exponent, LN2_LOW))
    rest = v.times_plus(square, -0.5, rest)
    return v.times_plus(exponent, LN2_HIGH, v.plus(f, rest))


def softplus(w: Writer, machine: Machine, value: str, count: int, scale: float = 1.0) -> str:
    """log(1 + e**(scale * x)) / scale; with -1 it is the logarithm of sigmoid. The scale is not 0.

    It is max(x, 0) + log(1 + e**-|scale * x|) / scale, or min where the scale is negative. What underflows in
    f32 before it is divided by a small scale is 0.
    """
    v, scale = _Reals(w, machine, count), single(scale)
    e = _decay(v, value, scale)
    large = v.above(e, 2**0.5 - 1)
    f = v.where(large, v.times_plus(e, 0.5, -0.5), e)
    y = _log(v, v.where(large, 1.0, 0.0), f)
    size = abs(scale)
    if size != 1:
        exact = _is_power_of_two(size) and 1 / size <= LARGEST
        y = v.times(y, 1 / size) if exact else v.over(y, size)
    return v.plus(v.at_least(value, 0.0), y) if scale > 0 else v.minus(v.at_most(value, 0.0), y)


# --- sigmoid and what is made of it ------------------------------------------------------------------------


def sigmoid(w: Writer, machine: Machine, value: str, count: int, scale: float = 1.0) -> str:
    """1 / (1 + e**-(scale * x))."""
    v = _Reals(w, machine, count)
    negative = v.below(value, 0.0) if scale >= 0 else v.above(value, 0.0)
    return _logistic(v, negative, _decay(v, value, scale))


def _logistic(v: _Reals, negative: str, e: str) -> str:
    """1 / (1 + e**-y), from e**-|y|."""
    return v.over(v.where(negative, e, 1.0), v.plus(e, 1.0))


def swish(w: Writer, machine: Machine, value: str, count: int, scale: float = 1.0) -> str:
    """``x / (1 + e**-(scale * x))``."""
    gate = sigmoid(w, machine, value, count, scale)
    return _gated(_Reals(w, machine, count), value, gate, scale)


def _gated(v: _Reals, x: str, gate: str, slope: float = 1.0) -> str:
    """``x * gate``, and 0 where an infinite x meets the zero that the gate falls to on one side."""
    if slope:
        x = v.at_least(x, -LARGEST) if slope > 0 else v.at_most(x, LARGEST)
    return v.times(x, gate)


def gelu_tanh(w: Writer, machine: Machine, value: str, count: int) -> str:
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2``: x times a logistic function.

    The cubic is computed in double: rounded to f32 it would cost up to a hundred ulp in the tail.
    """
    v = _Reals(w, machine, count)
    a = v.widened(v.at_most(v.magnitude(value), GELU_TANH_NOTHING_FROM))
    cubic, slope = GELU_TANH
    wide = v.times_plus(v.do("fmul", "double", a, a), -cubic, -slope, "double")
    wide = v.do("fmul", "double", wide, a)
    y = v.narrowed(wide)
    return _gated(v, value, _logistic(v, v.below(value, 0.0), _exp(v, y, v.lost(wide, y))))


def mish(w: Writer, machine: Machine, value: str, count: int) -> str:
    """``x * tanh(log(1 + e**x))``.

    The gate is (u * u - 1) / (u * u + 1) with u = 1 + e**x. For positive x both are divided by e**(2 x).
    """
    v = _Reals(w, machine, count)
    e = _decay(v, value)
    negative, twice = v.below(value, 0.0), v.plus(e, e)
    above = v.where(negative, v.times_plus(e, e, twice), v.plus(twice, 1.0))
    below = v.plus(above, v.where(negative, 2.0, v.times(twice, e)))
    return _gated(v, value, v.over(above, below))


def hardsigmoid(
    w: Writer, machine: Machine, value: str, count: int, scale: float = 1 / 6, shift: float = 0.5
) -> str:
    """``scale * x + shift``, bounded by 0 and 1."""
    v = _Reals(w, machine, count)
    return v.at_least(v.at_most(v.times_plus(value, scale, shift), 1.0), 0.0)


def hardswish(
    w: Writer, machine: Machine, value: str, count: int, scale: float = 1 / 6, shift: float = 0.5
) -> str:
    """:func:`hardsigmoid` times x."""
    v = _Reals(w, machine, count)
    return _gated(v, value, hardsigmoid(w, machine, value, count, scale, shift), scale)


# --- tanh, erf, and what is made of them -------------------------------------------------------------------


def tanh(w: Writer, machine: Machine, value: str, count: int) -> str:
    """The hyperbolic tangent."""
    v = _Reals(w, machine, count)
    twice = v.times(v.at_most(v.magnitude(value), 20.0), -2.0)
    y = _exp_minus_1(v, twice)
    return v.signed(v.over(y, v.plus(y, 2.0)), value)


def erf(w: Writer, machine: Machine, value: str, count: int) -> str:
    """The error function."""
    v = _Reals(w, machine, count)
    a = v.at_most(v.magnitude(value), ERF_ONE_FROM)
    minus = v.negated(a)
    return v.signed(_exp_minus_1(v, v.times_plus(minus, v.polynomial(a, ERF), minus)), value)


def gelu_erf(w: Writer, machine: Machine, value: str, count: int) -> str:
    """``x * (1 + erf(x / sqrt(2))) / 2``: x times the share of the normal distribution below x.

    It is max(x, 0) - a * (share below -a) with a = |x|.
    """
    v = _Reals(w, machine, count)
    a = v.at_most(v.magnitude(value), NORMAL_NOTHING_FROM)
    square, rest = v.product(a, a)
    above = v.times_plus(square, v.polynomial(a, NORMAL_A), a)
    below = v.times_plus(above, ROOT_2_PI, v.times(a, v.polynomial(a, NORMAL_B)))
    part = v.negated(v.over(above, v.plus(below, 2.0)))
    decay = _exp(v, v.times(square, -0.5), v.times(rest, -0.5))
    return v.times_plus(part, decay, v.at_least(value, 0.0))


def elu(w: Writer, machine: Machine, value: str, count: int, scale: float = 1.0) -> str:
    """max(x, 0) + scale * (e**min(x, 0) - 1)."""
    v = _Reals(w, machine, count)
    y = _exp_minus_1(v, v.at_least(v.at_most(value, 0.0), -40.0))
    return v.where(v.compare("fcmp oge", "float", value, 0.0), value, v.times(y, scale) if scale != 1 else y)


# --- powers ------------------------------------------------------------------------------------------------


def sqrt(w: Writer, machine: Machine, value: str, count: int) -> str:
    """The square root, rounded to nearest: -0.0 for -0.0, NaN for what is negative."""
    return _Reals(w, machine, count).root(value)


def square(w: Writer, machine: Machine, value: str, count: int) -> str:
    """``x * x``."""
    return _Reals(w, machine, count).times(value, value)


def pow_(w: Writer, machine: Machine, value: str, count: int, exponent: float, scale: float = 1.0) -> str:
    """``scale * x**exponent``, both of them finite constants (rounded to f32).

    Small integers and quarters are made of products and roots. All others are ``2**(exponent * log2(x))``,
    with the logarithm in double.

    The power is 1 for the exponent 0, even of NaN. Of negative numbers, -inf among them, only integral powers
    are numbers; else it is NaN. (C's ``pow`` has numbers for -inf.)
    """
    v = _Reals(w, machine, count)
    exponent = single(exponent)
    if exponent == 0:
        return v.text("float", scale)
    if exponent == -1:
        return v.over(scale, value)
    y = (_simple_power if exponent in SIMPLE_POWERS else _power)(v, value, exponent)
    if scale == 1:
        return y
    y = v.times(y, scale)
    return y if scale > 0 else v.plus(y, 0.0)  # +0.0 for +0.0


def _simple_power(v: _Reals, x: str, exponent: float) -> str:
    """One of the powers that are a few products and square roots."""
    if exponent >= 1 and exponent != 1.5:
        square = v.times(x, x) if exponent > 1 else x
        return square if exponent <= 2 else v.times(square, x if exponent == 3 else square)
    x = v.plus(x, 0.0)  # no -0.0, whose root is -0.0
    root = v.root(x)
    if exponent == 1.5:
        return v.times(x, root)
    if exponent < 0:
        root = v.over(1.0, root)
    if abs(exponent) == 0.5:
        return root
    return v.root(root) if abs(exponent) == 0.25 else v.times(root, v.root(root))


def _power(v: _Reals, x: str, exponent: float) -> str:
    """Any power, by logarithm and exponential to the base of 2.

    The logarithm of 0 is -inf here, and that of inf is inf: what becomes of them is right in the end.
    """
    a = v.magnitude(x)
    e, f = _taken_apart(v, a)
    e, f = v.widened(v.where(v.compare("fcmp oeq", "float", a, 0.0), -inf, e)), v.widened(f)
    y = v.times_plus(v.polynomial(f, LOG2, "double"), f, e, "double")
    y = v.do("fmul", "double", y, exponent)
    for predicate, bound in (("fcmp olt", 130.0), ("fcmp ogt", -152.0)):
        outside = v.compare(predicate, "double", bound, y)
        y = v.select(outside, "double", bound, y)
    shifted = v.plus(v.narrowed(y), ROUNDS_TO_INTEGER + 2 * 127)
    rest = v.lost(y, v.minus(shifted, ROUNDS_TO_INTEGER + 2 * 127))
    y = _scaled(v, v.polynomial(rest, EXP2), shifted)
    if not exponent.is_integer():
        return v.where(v.below(x, 0.0), nan, y)
    return v.signed(y, x) if exponent % 2 else y
