"""Arithmetic, functions of one element, choices and casts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relayout.errors import LayoutError
from relayout.graph.gradients.reverse import Reverse, gradient

__all__: list[str] = []


@gradient("Add", "Sum")
def add(r: Reverse) -> list[str | None]:
    """Of each summand the gradient of the sum."""
    return [r.summed(r.dy, x) if r.wants(k) else None for k, x in enumerate(r.inputs)]


@gradient("Mean")
def mean(r: Reverse) -> list[str | None]:
    """Of each its share."""
    dy = r.times(r.dy, 1 / len(r.inputs))
    return [r.summed(dy, x) if r.wants(k) else None for k, x in enumerate(r.inputs)]


@gradient("Sub")
def sub(r: Reverse) -> Sequence[str | None]:
    """``dy`` and ``-dy``."""
    x, y = r.inputs
    return r.summed(r.dy, x) if r.wants(0) else None, r("Neg", r.summed(r.dy, y)) if r.wants(1) else None


@gradient("Mul")
def mul(r: Reverse) -> Sequence[str | None]:
    """``dy y`` and ``dy x``."""
    x, y = r.inputs
    return (
        r.summed(r("Mul", r.dy, y), x) if r.wants(0) else None,
        r.summed(r("Mul", r.dy, x), y) if r.wants(1) else None,
    )


@gradient("Div")
def div(r: Reverse) -> Sequence[str | None]:
    """``dy / y`` and ``-dy (x / y) / y``."""
    x, y = r.inputs
    share = r("Div", r.dy, y)
    return (
        r.summed(share, x) if r.wants(0) else None,
        r("Neg", r.summed(r("Mul", share, r.y), y)) if r.wants(1) else None,
    )


@gradient("Neg")
def neg(r: Reverse) -> str:
    """``-dy``."""
    return str(r("Neg", r.dy))


@gradient("Pow")
def power(r: Reverse) -> Sequence[str | None]:
    """``dy y x^(y - 1)``, which is 0 where y is, and ``dy x^y log x``, which is 0 where x is not positive."""
    x, exponent = r.inputs
    first = second = None
    if r.wants(0):
        less = r("Pow", x, r("Sub", exponent, r.writing.number(1, exponent)))
        factor = exponent if r.writing.dtype(exponent) == r.writing.dtype(x) else r("CastLike", exponent, x)
        made = r("Mul", r("Mul", r.dy, factor), less)
        constant = r.writing.constants.get(exponent)
        if constant is None or not constant.all():
            flat = r("Equal", exponent, r.writing.number(0, exponent))
            made = r("Where", flat, r.number(0), made)
        first = r.summed(made, x)
    if r.wants(1):
        zero = r.writing.number(0, r.y)
        taken = r("Where", r("Greater", x, zero), r("Log", x), zero)
        second = r.summed(r("Mul", r("Mul", r.dy, r.y), taken), exponent)
    return first, second


@gradient("Max", "Min")
def extreme(r: Reverse) -> list[str | None]:
    """To whichever is the result; in equal shares where several are."""
    zero, one = r.writing.number(0, r.y), r.writing.number(1, r.y)
    chosen = [r("Where", r("Equal", x, r.y), one, zero) for x in r.inputs]
    count = chosen[0]
    for other in chosen[1:]:
        count = r("Add", count, other)
    share = r("Div", r.dy, count)
    return [
        r.summed(r("Mul", share, here), x) if r.wants(k) else None
        for k, (x, here) in enumerate(zip(r.inputs, chosen, strict=True))
    ]


@gradient("Where")
def where(r: Reverse) -> Sequence[str | None]:
    """Each gets what was taken from it."""
    condition, x, y = r.inputs
    zero = r.writing.number(0, r.y)
    return (
        None,
        r.summed(r("Where", condition, r.dy, zero), x) if r.wants(1) else None,
        r.summed(r("Where", condition, zero, r.dy), y) if r.wants(2) else None,
    )


@gradient("Identity")
def identity(r: Reverse) -> str:
    """``dy``."""
    return r.dy


@gradient("Cast", "CastLike")
def cast(r: Reverse) -> str:
    """``dy`` in the data type that came in."""
    return str(r("CastLike", r.dy, r.x))


@gradient("Clip")
def clip(r: Reverse) -> str:
    """``dy`` where nothing was cut off: bounds themselves are within."""
    zero, found = r.number(0), r.dy
    for place, compare in ((1, "GreaterOrEqual"), (2, "LessOrEqual")):
        if r.input(place):
            found = r("Where", r(compare, r.x, r.input(place)), found, zero)
    return found


@gradient("Mod")
def remainder(r: Reverse) -> Sequence[str | None]:
    """``dy`` where it has a slope; by the divisor there is none here."""
    if r.wants(1):
        raise LayoutError("a Mod has no gradient by its divisor")
    return r.summed(r.dy, r.x), None


@gradient("Floor", "Ceil", "Round", "Sign")
def step(r: Reverse) -> None:
    """None: they are flat wherever they have a slope."""


@gradient("Dropout")
def dropout(r: Reverse) -> str:
    """``dy``: what is not in training form changes nothing."""
    return r.dy


def _function(operator: str) -> Callable[[Callable[[Reverse], str]], Callable[[Reverse], str]]:
    """A function of one element by its slope."""

    def enter(slope: Callable[[Reverse], str]) -> Callable[[Reverse], str]:
        gradient(operator)(lambda r: str(r("Mul", r.dy, slope(r))))
        return slope

    return enter


_function("Exp")(lambda r: r.y)
_function("Reciprocal")(lambda r: r("Neg", r("Mul", r.y, r.y)))
_function("Sin")(lambda r: r("Cos", r.x))
_function("Cos")(lambda r: r("Neg", r("Sin", r.x)))
_function("Sinh")(lambda r: r("Cosh", r.x))
_function("Cosh")(lambda r: r("Sinh", r.x))
_function("Abs")(lambda r: r("Sign", r.x))
_function("Tan")(lambda r: r("Add", r("Mul", r.y, r.y), r.number(1)))
_function("Atan")(lambda r: r("Reciprocal", r("Add", r("Mul", r.x, r.x), r.number(1))))
_function("Atanh")(lambda r: r("Reciprocal", r("Sub", r.number(1), r("Mul", r.x, r.x))))


@_function("Asinh")
def _asinh(r: Reverse) -> str:
    return str(r("Reciprocal", r("Sqrt", r("Add", r("Mul", r.x, r.x), r.number(1)))))


@_function("Asin")
def _asin(r: Reverse) -> str:
    return str(r("Reciprocal", r("Sqrt", r("Sub", r.number(1), r("Mul", r.x, r.x)))))


_function("Acos")(lambda r: r("Neg", _asin(r)))


@_function("Acosh")
def _acosh(r: Reverse) -> str:
    return str(r("Reciprocal", r("Sqrt", r("Sub", r("Mul", r.x, r.x), r.number(1)))))


@gradient("Log")
def logarithm(r: Reverse) -> str:
    """``dy / x``."""
    return str(r("Div", r.dy, r.x))
