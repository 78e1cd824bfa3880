"""The binary operations: what each is, and the machine code for it.

============================  =================================================================
``add`` ``sub`` ``mul``       as in f32
``div``                       likewise: 1 / 0 is infinity, 0 / 0 is NaN
``max`` ``min``               NaN if either is NaN, as in NumPy and PyTorch
``ge`` ``gt`` ``le`` ``lt``   1 where it is so, 0 elsewhere; with NaN nothing is so,
``eq`` ``ne``                 but for ``ne``
============================  =================================================================

They are used by themselves, as a primitive (:mod:`relayout.primitives.binary`), and as post-ops of others.

>>> defined("max", np.array([1.0, 4.0]), np.array([2.0, 3.0])).tolist()
[2.0, 4.0]
>>> defined("ge", np.array([1.0, 4.0]), np.array([2.0, 3.0])).tolist()
[0.0, 1.0]

The definition is evaluated in double; the code computes in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from relayout.errors import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.ir.builder import Builder
    from relayout.ir.types import Value

__all__ = ["ALGORITHMS", "OPERATIONS", "Algorithm", "check_algorithm", "defined", "emit"]


class Algorithm(NamedTuple):
    """All there is to know of a binary operation: an entry of :data:`OPERATIONS`."""

    define: Any
    """The function of NumPy."""
    emit: Callable[[Builder, Value, Value], Value]
    """The code for two vectors of f32, or of doubles."""
    onnx: str
    """The operator of ONNX that is the same; empty: there is none. Tests compare the definition with it."""
    error: float = 0.5
    """By how many ulp of f32 the code may differ from the definition."""


def _picked(which: str) -> Callable[[Builder, Value, Value], Value]:
    """The first where it compares as ``which`` says, else the second; NaN where either is."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        chosen = b.select(b.fcmp(which, x, y), x, y)  # y, if either is NaN
        return b.select(b.fcmp("uno", x, x), x, chosen)

    return emit


def _compared(which: str) -> Callable[[Builder, Value, Value], Value]:
    """1 where two compare as ``which`` says, 0 elsewhere."""
    return lambda b, x, y: b.uitofp(b.fcmp(which, x, y), x.type.element)


OPERATIONS: Final[dict[str, Algorithm]] = {
    "add": Algorithm(np.add, lambda b, x, y: b.fadd(x, y), "Add"),
    "sub": Algorithm(np.subtract, lambda b, x, y: b.fsub(x, y), "Sub"),
    "mul": Algorithm(np.multiply, lambda b, x, y: b.fmul(x, y), "Mul"),
    "div": Algorithm(np.divide, lambda b, x, y: b.fdiv(x, y), "Div"),
    "max": Algorithm(np.maximum, _picked("ogt"), "Max"),
    "min": Algorithm(np.minimum, _picked("olt"), "Min"),
    "ge": Algorithm(np.greater_equal, _compared("oge"), "GreaterOrEqual"),
    "gt": Algorithm(np.greater, _compared("ogt"), "Greater"),
    "le": Algorithm(np.less_equal, _compared("ole"), "LessOrEqual"),
    "lt": Algorithm(np.less, _compared("olt"), "Less"),
    "eq": Algorithm(np.equal, _compared("oeq"), "Equal"),
    "ne": Algorithm(np.not_equal, _compared("une"), ""),
}
"""All binary operations. An entry is all that one takes: primitives, post-ops and tests find it here."""

ALGORITHMS: Final = tuple(OPERATIONS)
"""The names of those that are part of Relayout."""


def check_algorithm(algorithm: object) -> None:
    """Refuse what is no binary operation.

    Raises
    ------
    LayoutError
        It is none of :data:`OPERATIONS`.
    """
    if not isinstance(algorithm, str) or algorithm not in OPERATIONS:
        raise LayoutError(f"{algorithm!r} is no binary operation; there are {', '.join(OPERATIONS)}")


def defined(algorithm: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The definition, on arrays that broadcast as NumPy's do."""
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[algorithm].define(x, y), np.float64)


def emit(b: Builder, algorithm: str, x: Value, y: Value) -> Value:
    """The code for two vectors of f32, or of doubles."""
    return OPERATIONS[algorithm].emit(b, x, y)
