"""The elementwise functions: what each is, and the machine code for it.

A :class:`Function` is a name and up to two numbers, as oneDNN's eltwise algorithms have them (the names are
those of oneDNN 3, without ``eltwise_``; ``erf`` is ONNX's). It is used by itself, as a primitive, and as a
post-op of others.

>>> leaky = Function("relu", 0.1)
>>> print(leaky)
relu(0.1)
>>> leaky.definition(np.array([-2.0, 3.0])).round(6).tolist()
[-0.2, 3.0]

===============  ======================================  ==============================================
algorithm        f(x)                                    alpha, beta
===============  ======================================  ==============================================
``relu``         x if x >= 0 else alpha x                slope of the negative side
``tanh``         tanh(x)
``elu``          x if x >= 0 else alpha (e^x - 1)        it falls to -alpha
``square``       x^2
``abs``          abs(x)
``sqrt``         square root of x
``linear``       alpha x + beta                          scale, shift
``soft_relu``    log(1 + e^(alpha x)) / alpha            scale of the argument, not 0: 1 is softplus, -1
                                                         the logarithm of ``logistic``
``hardsigmoid``  max(0, min(1, alpha x + beta))          scale, shift: 1/6 and 1/2 in PyTorch
``hardswish``    x max(0, min(1, alpha x + beta))        scale, shift: 1/6 and 1/2 in PyTorch and ONNX
``logistic``     1 / (1 + e^-x)
``exp``          e^x
``gelu_tanh``    x (1 + tanh(c (x + 0.044715 x^3))) / 2
                 with c = sqrt(2 / pi)
``gelu_erf``     x (1 + erf(x / sqrt(2))) / 2
``erf``          2 / sqrt(pi) times the integral         not among oneDNN's
                 of e^(-t^2) from 0 to x
``swish``        x / (1 + e^(-alpha x))                  scale of the argument: 1 is SiLU
``log``          natural logarithm of x
``clip``         max(alpha, min(beta, x))                lower and upper bound, alpha <= beta
``clip_v2``      the same                                the same: the two differ in their derivatives
``pow``          alpha x^beta                            scale, exponent
``round``        nearest integer, the even one of two
``mish``         x tanh(log(1 + e^x))
===============  ======================================  ==============================================

Both numbers are f32, and 0 where they are not given, as in oneDNN; ``soft_relu`` needs its alpha, therefore.
A number for an algorithm that takes none is an error here, where oneDNN ignores it.

The definition is written in NumPy and evaluated in double; the fast code computes in f32
(:mod:`relayout.ir.math`). Both agree, but for rounding, on these points, which formulas leave open:

* NaN gives NaN, in ``relu`` and ``clip`` too. So it is in PyTorch; oneDNN's documentation does not say, and
  what its kernels do has differed between versions and processors. (``pow`` with beta 0 is alpha, even so.)
* Where infinity meets a factor that vanishes there, the limit counts: ``swish(-inf)`` is 0. (oneDNN's own
  reference computes infinity times zero, which is NaN.) In the same spirit ``relu`` with alpha 0 makes 0 of
  -inf.
* ``relu``, ``abs`` and ``linear`` neither lose subnormal numbers nor (``relu``, ``linear`` with a positive
  alpha and no beta) the sign of -0.0.
* Where f(0) is zero, f(+0.0) is +0.0: padding that consists of zero bytes stays what it is.
* ``pow`` multiplies by alpha last: where x^beta is beyond the range of f32, alpha does not bring it back.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import single
from relayout.errors import LayoutError, Unsupported
from relayout.ir import math as code
from relayout.ops import derivatives
from relayout.ops.derivatives import Derivative
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.ir.builder import Builder
    from relayout.ir.types import Value

__all__ = ["ALGORITHMS", "FUNCTIONS", "OF_ONNX", "Algorithm", "Function", "Reals", "of_onnx"]

Reals: TypeAlias = NDArray[np.float64]
"""Arrays of definitions, which are evaluated in double precision."""
OVERFLOWS: Final = (1 - 2.0**-25) * 2.0**128
"""From here on f32 rounds to infinity."""


class Algorithm(NamedTuple):
    """All there is to know of a function: an entry of :data:`FUNCTIONS`."""

    takes: int
    """How many of alpha and beta."""
    define: Callable[..., Any]
    """In NumPy, for double precision: of x and of as many of alpha and beta as it takes."""
    emit: Callable[..., Value]
    """The code for a vector of f32: of a builder, x, and again as many."""
    error: Mapping[tuple[float, ...], float]
    """By how many ulp of f32 the code may differ from the definition, for some alpha and beta; tests sweep
    all f32 with each of these. Where terms cancel, ulp are those of the terms."""
    onnx: tuple[str, ...] = ()
    """The operator of ONNX that is the same, for the first of these numbers, and the names that alpha and
    beta have there as attributes; empty: there is none. Tests compare the definition with it."""
    cheap: bool = False
    """Whether the code is a few instructions, no polynomial: then memory sets the pace, not arithmetic."""
    slope: Derivative | None = None
    """Its derivative, from the source; None: there is none, or nobody has said it."""
    slope_of_dst: Derivative | None = None
    """The same from the destination, where oneDNN has that, too."""


def _gated(x: Reals, gate: Any) -> Reals:
    """A product that vanishes where the second factor does, even if x is infinite."""
    return np.where(gate == 0, np.copysign(0.0, x), x * gate)


def _logistic(x: Reals | float) -> Any:
    return 1 / (1 + np.exp(-x))


def _softplus(x: Reals) -> Any:
    return np.logaddexp(0.0, x)


def _hardsigmoid(x: Reals, alpha: float, beta: float) -> Any:
    return np.clip(alpha * x + beta, 0, 1)


def _relu(x: Reals, alpha: float) -> Any:
    return np.where(x < 0, alpha * x if alpha else 0.0, x)


def _elu(x: Reals, alpha: float) -> Any:
    return np.where(x < 0, alpha * np.expm1(x), x)


def _linear(x: Reals, alpha: float, beta: float) -> Any:
    return alpha * x if alpha > 0 and beta == 0 else alpha * x + beta


def _gelu_tanh(x: Reals) -> Any:
    """Since (1 + tanh(u)) / 2 is logistic(2 u), which has no digits to lose where u is negative."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return _gated(x, _logistic(2 * u))


def _gelu_erf(x: Reals) -> Any:
    """Since 1 + erf(u) is erfc(-u)."""
    erfc = np.vectorize(math.erfc, otypes=[np.float64])
    return _gated(x, erfc(-x / math.sqrt(2)) / 2)


def _pow(x: Reals, alpha: float, beta: float) -> Any:
    power = np.power(x, beta)
    power = np.where(np.abs(power) < OVERFLOWS, power, power * math.inf)
    return alpha * (power if beta.is_integer() else np.where(x < 0, np.nan, power)) + 0.0


FUNCTIONS: Final[dict[str, Algorithm]] = {
    "relu": Algorithm(
        1,
        _relu,
        code.relu,
        {(): 0.5, (0.1,): 0.5, (-2,): 0.5},
        ("Relu",),
        cheap=True,
        slope=derivatives.relu,
        slope_of_dst=derivatives.relu,
    ),
    "tanh": Algorithm(
        0, np.tanh, code.tanh, {(): 2.5}, ("Tanh",), slope=derivatives.tanh, slope_of_dst=derivatives.tanh_dst
    ),
    "elu": Algorithm(
        1,
        _elu,
        code.elu,
        {(1,): 2, (-0.3,): 2.5},
        ("Elu", "alpha"),
        slope=derivatives.elu,
        slope_of_dst=derivatives.elu_dst,
    ),
    "square": Algorithm(0, np.square, code.square, {(): 0.5}, cheap=True, slope=derivatives.square),
    "abs": Algorithm(0, np.abs, code.absolute, {(): 0.5}, ("Abs",), cheap=True, slope=derivatives.magnitude),
    "sqrt": Algorithm(
        0,
        np.sqrt,
        code.sqrt,
        {(): 0.5},
        ("Sqrt",),
        cheap=True,
        slope=derivatives.sqrt,
        slope_of_dst=derivatives.sqrt_dst,
    ),
    "linear": Algorithm(
        2, _linear, code.linear, {(-3, 0.7): 1, (0.1,): 0.5}, cheap=True, slope=derivatives.linear
    ),
    "soft_relu": Algorithm(
        1,
        lambda x, a: _softplus(a * x) / a,
        code.softplus,
        {(1,): 2, (-1,): 2, (0.7,): 2.5},
        ("Softplus",),
        slope=derivatives.soft_relu,
    ),
    "hardsigmoid": Algorithm(
        2,
        _hardsigmoid,
        code.hardsigmoid,
        {(1 / 6, 0.5): 1},
        ("HardSigmoid", "alpha", "beta"),
        cheap=True,
        slope=derivatives.hardsigmoid,
    ),
    "hardswish": Algorithm(
        2,
        lambda x, a, b: _gated(x, _hardsigmoid(x, a, b)),
        code.hardswish,
        {(1 / 6, 0.5): 2, (-1 / 6, 0.5): 2},
        ("HardSwish",),
        cheap=True,
        slope=derivatives.hardswish,
    ),
    "logistic": Algorithm(
        0,
        _logistic,
        code.sigmoid,
        {(): 2.5},
        ("Sigmoid",),
        slope=derivatives.logistic,
        slope_of_dst=derivatives.logistic_dst,
    ),
    "exp": Algorithm(
        0, np.exp, code.exp, {(): 1.5}, ("Exp",), slope=derivatives.exp, slope_of_dst=derivatives.exp_dst
    ),
    "gelu_tanh": Algorithm(0, _gelu_tanh, code.gelu_tanh, {(): 3}, slope=derivatives.gelu_tanh),
    "gelu_erf": Algorithm(0, _gelu_erf, code.gelu_erf, {(): 4}, ("Gelu",), slope=derivatives.gelu_erf),
    "erf": Algorithm(
        0, np.vectorize(math.erf, otypes=[np.float64]), code.erf, {(): 2}, ("Erf",), slope=derivatives.erf
    ),
    "swish": Algorithm(
        1,
        lambda x, a: _gated(x, _logistic(a * x if a else 0.0)),
        code.swish,
        {(1,): 3, (-1.702,): 3.5, (0,): 0.5},
        slope=derivatives.swish,
    ),
    "log": Algorithm(0, np.log, code.log, {(): 1}, ("Log",), slope=derivatives.log),
    "clip": Algorithm(2, np.clip, code.clip, {(-1, 6): 0}, cheap=True, slope=derivatives.clip),
    "clip_v2": Algorithm(
        2,
        np.clip,
        code.clip,
        {(0, math.inf): 0},
        cheap=True,
        slope=derivatives.clip_v2,
        slope_of_dst=derivatives.clip_v2,
    ),
    "pow": Algorithm(
        2,
        _pow,
        lambda b, x, alpha, beta: code.pow_(b, x, beta, alpha),
        {(1, -0.75): 3.5, (-2, 1.7): 2, (3, 2): 1.5, (7, 0): 0},
        slope=derivatives.pow_,
    ),
    "round": Algorithm(0, np.rint, code.nearest, {(): 0.5}, ("Round",), cheap=True),
    "mish": Algorithm(
        0, lambda x: _gated(x, np.tanh(_softplus(x))), code.mish, {(): 4}, ("Mish",), slope=derivatives.mish
    ),
}
"""All functions. An entry is all that one takes: primitives, post-ops and tests find it here."""

ALGORITHMS: Final = tuple(FUNCTIONS)
"""The names of those that are part of Relayout."""

OF_ONNX: Final = {one.onnx[0]: name for name, one in FUNCTIONS.items() if one.onnx}
"""The functions that are operators of ONNX, by these: what networks compute by kernels (:func:`of_onnx`)."""


@dataclass(frozen=True)
class Function:
    """An elementwise function.

    Parameters
    ----------
    algorithm : str
        One of :data:`ALGORITHMS`; the module's docstring has the formulas.
    alpha, beta : float, optional
        Its numbers; rounded to f32. They are finite, but for the bounds of ``clip`` and ``clip_v2``.

    Raises
    ------
    LayoutError
        There is no such algorithm, or it does not take these numbers.

    Examples
    --------
    >>> relu6 = Function("clip", 0, 6)
    >>> relu6
    Function('clip', 0, 6)
    >>> relu6 == Function("clip", 0.0, 6.0), relu6.at_zero, Function("exp").at_zero
    (True, 0.0, 1.0)
    >>> Function("tanh", 2)
    Traceback (most recent call last):
    relayout.errors.LayoutError: tanh takes neither alpha nor beta, but alpha is 2
    """

    algorithm: str
    alpha: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, str) or self.algorithm not in FUNCTIONS:
            raise LayoutError(
                f"{self.algorithm!r} is no elementwise function; there are {', '.join(FUNCTIONS)}"
            )
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, _number(self.algorithm, name, getattr(self, name)))
        takes = FUNCTIONS[self.algorithm].takes
        if (takes < 1 and self.alpha) or (takes < 2 and self.beta):
            name, value = ("alpha", self.alpha) if takes < 1 and self.alpha else ("beta", self.beta)
            what = ("neither alpha nor beta", "alpha, but no beta")[takes]
            raise LayoutError(f"{self.algorithm} takes {what}, but {name} is {_short(value)}")
        if self.algorithm == "soft_relu" and self.alpha == 0:
            raise LayoutError("soft_relu divides by alpha, which is 0; the usual soft_relu has alpha 1")
        if self.algorithm in ("clip", "clip_v2") and self.beta < self.alpha:
            raise LayoutError(
                f"{self.algorithm} bounds by alpha from below and by beta from above, but beta "
                f"{_short(self.beta)} is less than alpha {_short(self.alpha)}"
            )

    @property
    def _taken(self) -> tuple[float, ...]:
        """Those of alpha and beta that the function takes."""
        return (self.alpha, self.beta)[: FUNCTIONS[self.algorithm].takes]

    @property
    def _numbers(self) -> list[str]:
        """The same as text; none where they are all 0."""
        return [_short(n) for n in self._taken] if self.alpha or self.beta else []

    def __str__(self) -> str:
        numbers = ", ".join(self._numbers)
        return f"{self.algorithm}({numbers})" if numbers else self.algorithm

    def __repr__(self) -> str:
        return f"Function({', '.join([repr(self.algorithm), *self._numbers])})"

    def definition(self, x: NDArray[Any]) -> Reals:
        """What the function is, computed in double and slowly.

        Parameters
        ----------
        x : ndarray
            Numbers of any real type.

        Returns
        -------
        ndarray
            float64, of the same shape. Nothing is rounded to f32, and what f32 cannot hold is not infinite.
        """
        with np.errstate(all="ignore"):
            y = FUNCTIONS[self.algorithm].define(np.asarray(x, np.float64), *self._taken)
        return np.asarray(y, np.float64)

    def derivative(self, of_dst: bool = False) -> Derivative:
        """How gradients pass it, from the source or from the destination.

        >>> Function("square").derivative().define(3.0, 0, 0)
        6.0

        Raises
        ------
        Unsupported
            It has no derivative, or the destination does not tell it.
        """
        entry = FUNCTIONS[self.algorithm]
        found = entry.slope_of_dst if of_dst else entry.slope
        if found is None:
            known = [name for name, one in FUNCTIONS.items() if (one.slope_of_dst if of_dst else one.slope)]
            where = " from the destination" if of_dst else ""
            raise Unsupported(f"{self.algorithm} has no derivative{where}; {', '.join(known)} have one")
        if of_dst and self.algorithm in ("relu", "elu") and self.alpha < 0:
            raise Unsupported(
                f"{self} is negative on both sides of 0, so its destination does not tell its derivative"
            )
        return found

    def emit(self, b: Builder, x: Value) -> Value:
        """The code for a vector of f32.

        >>> from relayout.ir.builder import Builder
        >>> from relayout.ir.types import FLOAT, Value, vector
        >>> b = Builder()
        >>> _ = Function("linear", 2.0).emit(b, Value("%x", vector(8, FLOAT)))
        >>> print(b.body())
          %v1 = fmul <8 x float> %x, splat (float 0x4000000000000000)
        """
        return FUNCTIONS[self.algorithm].emit(b, x, *self._taken)

    @property
    def cheap(self) -> bool:
        """Whether the code is a few instructions.

        >>> Function("relu").cheap, Function("exp").cheap
        (True, False)
        """
        return FUNCTIONS[self.algorithm].cheap

    @property
    def at_zero(self) -> float:
        """f(0). Where it is 0, padding of zeros may be computed with and remains zero.

        >>> [name for name in ("relu", "tanh", "logistic", "log") if Function(name).at_zero == 0]
        ['relu', 'tanh']
        """
        return float(self.definition(np.zeros(1))[0])


def _number(algorithm: str, name: str, given: Any) -> float:
    """A parameter as f32, with one zero."""
    try:
        number = single(given) + 0.0
    except (OverflowError, struct.error):
        raise LayoutError(f"{name} of {algorithm} is a number that f32 can hold, not {given!r}") from None
    if math.isnan(number) or (math.isinf(number) and not algorithm.startswith("clip")):
        raise LayoutError(f"{name} of {algorithm} is a finite number, not {given!r}")
    return number


def _short(number: float) -> str:
    """The shortest decimal that rounds to an f32."""
    text = str(np.float32(number))
    return text.removesuffix(".0")


def of_onnx(operator: str, attributes: Mapping[str, float]) -> Function:
    """The function that an operator of :data:`OF_ONNX` is, for all of its attributes.

    >>> print(of_onnx("Elu", {"alpha": 0.5}), of_onnx("Softplus", {}))
    elu(0.5) soft_relu(1)
    """
    entry = FUNCTIONS[OF_ONNX[operator]]
    numbers = tuple(attributes[name] for name in entry.onnx[1:]) or next(iter(entry.error))
    return Function(OF_ONNX[operator], *numbers)
