"""Integer operations whose result is known while they are written.

>>> from relayout.ir.types import I8, Value
>>> x = Value("%x", I8)
>>> folded("add", x, constant(I8, 0)), folded("mul", constant(I8, 100), constant(I8, 2))
(i8 %x, i8 -56)
>>> folded("add", x, x) is None, compared("ult", constant(I8, -1), constant(I8, 1))
(True, False)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final

from relayout.ir.types import Value, constant

__all__ = ["compared", "folded"]

Operation = Callable[[int, int], int]

SIGNED: Final[Mapping[str, Operation]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "ashr": operator.rshift,
}
"""What operations do to signed numbers, before they wrap around."""
UNSIGNED: Final[Mapping[str, Operation]] = {
    "udiv": operator.floordiv,
    "urem": operator.mod,
    "lshr": operator.rshift,
}
NEUTRAL: Final = {
    **dict.fromkeys(("add", "sub", "or", "xor", "shl", "lshr", "ashr"), 0),
    **dict.fromkeys(("mul", "udiv", "sdiv"), 1),
    "and": -1,
}
"""The second operand with which the result is the first."""
COMMUTE: Final = ("add", "mul", "and", "or", "xor")
ORDERS: Final = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


def folded(name: str, one: Value, two: Value) -> Value | None:
    """The result of an operation on two values of one type; None where it must be computed.

    Raises
    ------
    ZeroDivisionError
        A division by 0.
    ValueError
        A shift by as many bits as there are, or more.
    """
    a, b, bits = one.number, two.number, one.type.bits
    if b is None and name in COMMUTE:
        one, a, b = two, b, a
    if not isinstance(b, int):
        return None
    if name.endswith(("div", "rem")) and not b:
        raise ZeroDivisionError(f"{name} of {one!r} by 0")
    if name.endswith(("shl", "shr")) and not 0 <= b < bits:
        raise ValueError(f"{name} of {one!r} by {b}")
    if b == NEUTRAL.get(name):
        return one
    if (b == 0 and name in ("mul", "and")) or (b == 1 and name.endswith("rem")):
        return constant(one.type, 0)
    if isinstance(a, int) and name in SIGNED:
        return constant(one.type, SIGNED[name](a, b))
    if isinstance(a, int) and name in UNSIGNED:
        return constant(one.type, UNSIGNED[name](a % (1 << bits), b % (1 << bits)))
    return None


def compared(predicate: str, one: Value, two: Value) -> bool | None:
    """What a comparison says of two constants; None where one is none."""
    a, b = one.number, two.number
    if a is None or b is None:
        return None
    if predicate[0] == "u":
        a, b = (x % (1 << one.type.bits) for x in (a, b))
    order = ORDERS.get(predicate[1:])
    return order(a, b) if order else (a == b) == (predicate == "eq")
