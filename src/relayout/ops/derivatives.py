"""Derivatives of elementwise functions: what a gradient is multiplied by, from the source or the destination.

A :class:`Derivative` says it twice, as a definition in NumPy, for double precision, and as terms of an
expression (:mod:`relayout.ops.expressions`) that make ``diff_src`` of ``diff_dst``, in one pass. Each stands
in the entry of its function, in :data:`relayout.ops.functions.FUNCTIONS`.

================  ==========================================  =====================  =====================
algorithm         f'(x), from the source                      from d, the            oneDNN's name for that
                                                              destination
================  ==========================================  =====================  =====================
``relu``          1 if x > 0 else alpha                       the same of d          ``relu_dst``
``tanh``          1 - tanh(x)^2                               1 - d^2                ``tanh_dst``
``elu``           1 if x > 0 else alpha e^x                   1 if d > 0 else        ``elu_dst``
                                                              d + alpha
``square``        2 x
``abs``           the sign of x; 0 at 0
``sqrt``          1 / (2 sqrt(x))                             1 / (2 d)              ``sqrt_dst``
``linear``        alpha
``soft_relu``     logistic(alpha x)
``hardsigmoid``   alpha if 0 < alpha x + beta < 1 else 0
``hardswish``     0, 2 alpha x + beta, or 1
``logistic``      logistic(x) logistic(-x)                    d (1 - d)              ``logistic_dst``
``exp``           e^x                                         d                      ``exp_dst``
``gelu_tanh``     s + x s (1 - s) 2 u', s = logistic(2 u)
``gelu_erf``      Phi(x) + x phi(x)
``erf``           2 e^(-x^2) / sqrt(pi)
``swish``         s + alpha x s (1 - s), s = logistic(alpha x)
``log``           1 / x
``clip``          1 if alpha < x <= beta else 0
``clip_v2``       1 if alpha < x < beta else 0                the same of d          ``clip_v2_dst``
``pow``           alpha beta x^(beta - 1)
``mish``          t + x (1 - t^2) logistic(x), t = f(x) / x
================  ==========================================  =====================  =====================

``round`` has none. ``relu`` and ``elu`` from the destination want an alpha that is not negative, since
otherwise a destination does not tell on which side of 0 its source was.

Where a derivative is 0 by a condition (``relu``, ``clip``, ``hardsigmoid``, ``hardswish``, ``pow`` with a
``beta`` of 0), so is the gradient, even where ``diff_dst`` is infinite or NaN; else it is their product.
Formulas that would lose digits by ``1 - x`` are taken in another form, and arguments are bounded where
infinity would meet a factor that vanishes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from relayout.ops.expressions import Writing

__all__ = ["Derivative", "clip", "clip_v2", "elu", "elu_dst", "erf", "exp", "exp_dst", "gelu_erf"]
__all__ += [
    "gelu_tanh",
    "hardsigmoid",
    "hardswish",
    "linear",
    "log",
    "logistic",
    "logistic_dst",
    "magnitude",
    "mish",
]
__all__ += ["pow_", "relu", "soft_relu", "sqrt", "sqrt_dst", "square", "swish", "tanh", "tanh_dst"]

FAR = 30.0  # here gelu is x, or 0, in double precision too
FAR_OF_MISH = -100.0, 20.0  # the same for mish, in f32; its squares are within the range
FAR_OF_SWISH = 200.0  # here logistic is 1, or 0, in f32
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715  # of gelu_tanh


class Derivative(NamedTuple):
    """A derivative of an elementwise function."""

    define: Callable[[Any, float, float], Any]
    """In NumPy, for double precision; alpha and beta."""
    write: Callable[[Writing, int, int, float, float], int]
    """The terms: the number of x, that of diff_dst, alpha and beta; the number of diff_src."""
    flat: Callable[[Any, float, float], Any] | None = None
    """In NumPy, where it is 0 by a condition, whatever ``diff_dst`` is; None: nowhere."""


def _times(factor: Callable[[Writing, int, float, float], int]) -> Callable[..., int]:
    """Terms that multiply diff_dst by a factor."""

    def write(w: Writing, x: int, diff: int, a: float, b: float) -> int:
        return w.apply("mul", diff, factor(w, x, a, b))

    return write


def _scaled(w: Writing, x: int, by: float) -> int:
    return x if by == 1 else w.apply("mul", x, w.number("f32", by))


def _where(w: Writing, condition: int, yes: int, no: int) -> int:
    return w.put("select", "f32", condition, yes, no)


def _zero_where(w: Writing, condition: int, otherwise: int) -> int:
    return _where(w, condition, w.number("f32", 0.0), otherwise)


def _bounded(w: Writing, x: int, low: float, high: float) -> int:
    return w.function("clip", x, low, high)


def _sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


# -- from the source, or from the destination alike ---------------------------------------------------------


def _write_relu(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    low = w.apply("le", x, w.number("f32", 0.0))
    return _where(w, low, _scaled(w, diff, a), diff) if a else _zero_where(w, low, diff)


relu = Derivative(lambda x, a, b: np.where(x <= 0, a, 1.0), _write_relu, lambda x, a, b: (x <= 0) & (a == 0))


def _write_elu(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    below = w.apply("mul", diff, _scaled(w, w.function("exp", x), a))
    return _where(w, w.apply("gt", x, w.number("f32", 0.0)), diff, below)


elu = Derivative(lambda x, a, b: np.where(x > 0, 1.0, a * np.exp(x)), _write_elu)


def _write_elu_dst(w: Writing, d: int, diff: int, a: float, b: float) -> int:
    below = w.apply("mul", diff, w.apply("add", d, w.number("f32", a)))
    return _where(w, w.apply("gt", d, w.number("f32", 0.0)), diff, below)


elu_dst = Derivative(lambda d, a, b: np.where(d > 0, 1.0, d + a), _write_elu_dst)


def _bounds(high: str, flat: Callable[[Any, float, float], Any]) -> Derivative:
    """That of a function which stays between two numbers: 1 between them."""

    def write(w: Writing, x: int, diff: int, a: float, b: float) -> int:
        below, above = w.apply("le", x, w.number("f32", a)), w.apply(high, x, w.number("f32", b))
        return _zero_where(w, w.apply("or", below, above), diff)

    return Derivative(lambda x, a, b: np.where(flat(x, a, b), 0.0, 1.0), write, flat)


clip = _bounds("gt", lambda x, a, b: (x <= a) | (x > b))
clip_v2 = _bounds("ge", lambda x, a, b: (x <= a) | (x >= b))


def _hard(w: Writing, x: int, a: float, b: float) -> tuple[int, int]:
    """The scaled and shifted argument, and where it is no more than 0."""
    at = w.apply("fma", x, w.number("f32", a), w.number("f32", b))
    return at, w.apply("le", at, w.number("f32", 0.0))


def _write_hardsigmoid(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    at, below = _hard(w, x, a, b)
    above = w.apply("ge", at, w.number("f32", 1.0))
    return _zero_where(w, w.apply("or", below, above), _scaled(w, diff, a))


def _beyond(x: Any, a: float, b: float) -> Any:
    at = a * x + b
    return (at <= 0) | (at >= 1)


hardsigmoid = Derivative(lambda x, a, b: np.where(_beyond(x, a, b), 0.0, a), _write_hardsigmoid, _beyond)


def _write_hardswish(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    at, below = _hard(w, x, a, b)
    above = w.apply("ge", at, w.number("f32", 1.0))
    between = w.apply("mul", diff, w.apply("fma", x, w.number("f32", a), at))
    return _zero_where(w, below, _where(w, above, diff, between))


def _define_hardswish(x: Any, a: float, b: float) -> Any:
    at = a * x + b
    return np.where(at <= 0, 0.0, np.where(at >= 1, 1.0, a * x + at))


hardswish = Derivative(_define_hardswish, _write_hardswish, lambda x, a, b: a * x + b <= 0)


# -- from the source ----------------------------------------------------------------------------------------


def _both_sides(w: Writing, x: int) -> int:
    """The logistic function of x times that of -x."""
    return w.apply("mul", w.function("logistic", x), w.function("logistic", w.apply("neg", x)))


tanh = Derivative(
    lambda x, a, b: 4 * _sigma(2 * x) * _sigma(-2 * x),
    _times(lambda w, x, a, b: _scaled(w, _both_sides(w, _scaled(w, x, 2.0)), 4.0)),
)
logistic = Derivative(lambda x, a, b: _sigma(x) * _sigma(-x), _times(lambda w, x, a, b: _both_sides(w, x)))
square = Derivative(lambda x, a, b: 2 * x, _times(lambda w, x, a, b: w.apply("add", x, x)))
magnitude = Derivative(lambda x, a, b: np.sign(x), _times(lambda w, x, a, b: w.apply("sign", x)))


def _write_sqrt(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    root = w.function("sqrt", x)
    return w.apply("div", diff, w.apply("add", root, root))


sqrt = Derivative(lambda x, a, b: 1 / (2 * np.sqrt(x)), _write_sqrt)
linear = Derivative(
    lambda x, a, b: np.full(np.shape(x), a), lambda w, x, diff, a, b: w.apply("mul", diff, w.number("f32", a))
)
soft_relu = Derivative(
    lambda x, a, b: _sigma(a * x), _times(lambda w, x, a, b: w.function("logistic", _scaled(w, x, a)))
)
exp = Derivative(lambda x, a, b: np.exp(x), _times(lambda w, x, a, b: w.function("exp", x)))
log = Derivative(lambda x, a, b: 1 / x, lambda w, x, diff, a, b: w.apply("div", diff, x))


def _write_gelu_tanh(w: Writing, x: int, a: float, b: float) -> int:
    x = _bounded(w, x, -FAR, FAR)
    squared = w.apply("mul", x, x)

    def polynomial(constant: float, factor: float) -> int:
        return w.apply("fma", squared, w.number("f32", factor), w.number("f32", constant))

    twice = w.apply("mul", x, polynomial(2 * TANH_SCALE, 2 * TANH_SCALE * TANH_CUBE))
    s = w.function("logistic", twice)
    rest = w.apply("mul", s, w.function("logistic", w.apply("neg", twice)))
    slope = w.apply("mul", x, polynomial(2 * TANH_SCALE, 6 * TANH_SCALE * TANH_CUBE))
    return w.apply("fma", rest, slope, s)


def _define_gelu_tanh(x: Any, a: float, b: float) -> Any:
    x = np.clip(x, -FAR, FAR)
    u, slope = TANH_SCALE * (x + TANH_CUBE * x**3), TANH_SCALE * (1 + 3 * TANH_CUBE * x * x)
    return _sigma(2 * u) + 2 * x * slope * _sigma(2 * u) * _sigma(-2 * u)


gelu_tanh = Derivative(_define_gelu_tanh, _times(_write_gelu_tanh))


def _write_gelu_erf(w: Writing, x: int, a: float, b: float) -> int:
    """The normal distribution is gelu_erf(x) / x; near 0 it is 1/2 in f32."""
    x = _bounded(w, x, -FAR, FAR)
    small = w.apply("lt", w.apply("abs", x), w.number("f32", 1e-20))
    below = _where(w, small, w.number("f32", 0.5), w.apply("div", w.function("gelu_erf", x), x))
    density = w.function("exp", w.apply("mul", w.apply("mul", x, x), w.number("f32", -0.5)))
    return w.apply("fma", _scaled(w, x, 1 / math.sqrt(2 * math.pi)), density, below)


def _define_gelu_erf(x: Any, a: float, b: float) -> Any:
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    x = np.clip(x, -FAR, FAR)
    return erfc(-x / math.sqrt(2)) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


gelu_erf = Derivative(_define_gelu_erf, _times(_write_gelu_erf))


def _write_erf(w: Writing, x: int, a: float, b: float) -> int:
    """What the square is rounded by counts: an error of the argument is one of the exponential."""
    x = _bounded(w, x, -FAR, FAR)
    density = w.function("exp", w.apply("neg", w.apply("mul", x, x)))
    density = w.apply("fma", w.apply("neg", w.apply("lost", x, x)), density, density)
    return _scaled(w, density, 2 / math.sqrt(math.pi))


erf = Derivative(lambda x, a, b: np.exp(-x * x) * 2 / math.sqrt(math.pi), _times(_write_erf))


def _write_swish(w: Writing, x: int, a: float, b: float) -> int:
    at = _bounded(w, _scaled(w, x, a), -FAR_OF_SWISH, FAR_OF_SWISH)
    s = w.function("logistic", at)
    rest = w.apply("mul", s, w.function("logistic", w.apply("neg", at)))
    return w.apply("fma", at, rest, s)


def _define_swish(x: Any, a: float, b: float) -> Any:
    at = np.clip(a * x if a else np.zeros(np.shape(x)), -2 * FAR_OF_SWISH, 2 * FAR_OF_SWISH)
    return _sigma(at) + at * _sigma(at) * _sigma(-at)


swish = Derivative(
    _define_swish,
    lambda w, x, diff, a, b: _times(_write_swish)(w, x, diff, a, b) if a else _scaled(w, diff, 0.5),
)


def _write_pow(w: Writing, x: int, diff: int, a: float, b: float) -> int:
    if b == 0:
        return w.number("f32", 0.0)
    power = diff if b == 1 else w.apply("mul", diff, w.function("pow", x, 1.0, b - 1))
    return _scaled(w, _scaled(w, power, b), a)


def _define_pow(x: Any, a: float, b: float) -> Any:
    if b in (0, 1):
        return np.full(np.shape(x), a * b)
    power = np.power(x, b - 1)
    return a * b * (power if float(b).is_integer() else np.where(x < 0, np.nan, power))


pow_ = Derivative(_define_pow, _write_pow, lambda x, a, b: b == 0)


def _write_mish(w: Writing, x: int, a: float, b: float) -> int:
    """With e = e^x and n = e (e + 2): t is n / (n + 2), and the rest 4 x e (e + 1) / (n + 2)^2."""
    x = _bounded(w, x, *FAR_OF_MISH)
    e, one, two = w.function("exp", x), w.number("f32", 1.0), w.number("f32", 2.0)
    n = w.apply("mul", e, w.apply("add", e, two))
    d = w.apply("add", n, two)
    rest = _scaled(w, w.apply("mul", x, w.apply("mul", e, w.apply("add", e, one))), 4.0)
    return w.apply("div", w.apply("add", n, w.apply("div", rest, d)), d)


def _define_mish(x: Any, a: float, b: float) -> Any:
    low = np.clip(x, -700, FAR_OF_MISH[1])
    e = np.exp(low)
    d = e * (e + 2) + 2
    return np.where(x > FAR_OF_MISH[1], 1.0, (d - 2) / d + 4 * low * e * (e + 1) / d**2)


mish = Derivative(_define_mish, _times(_write_mish))


# -- from the destination -----------------------------------------------------------------------------------


def _less_square(w: Writing, d: int, a: float, b: float) -> int:
    one = w.number("f32", 1.0)
    return w.apply("mul", w.apply("sub", one, d), w.apply("add", one, d))


def _logistic_dst(w: Writing, d: int, a: float, b: float) -> int:
    return w.apply("mul", d, w.apply("sub", w.number("f32", 1.0), d))


tanh_dst = Derivative(lambda d, a, b: 1 - d * d, _times(_less_square))
logistic_dst = Derivative(lambda d, a, b: d * (1 - d), _times(_logistic_dst))
exp_dst = Derivative(lambda d, a, b: d, _times(lambda w, d, a, b: d))
sqrt_dst = Derivative(
    lambda d, a, b: 1 / (2 * d), lambda w, d, diff, a, b: w.apply("div", diff, w.apply("add", d, d))
)
