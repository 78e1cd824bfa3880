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

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from relayout.errors import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.ir.builder import Builder
    from relayout.ir.types import Value

__all__ = ["ALGORITHMS", "check_algorithm", "defined", "emit", "keeps_zero"]


class _Operation(NamedTuple):
    define: Any
    """The function of NumPy."""
    emit: Callable[[Builder, Value, Value], Value]
    """The code for two vectors of f32, or of doubles."""
    keeps_zero: bool
    """Whether two zeros, both +0.0, give +0.0."""


def _picked(which: str) -> Callable[[Builder, Value, Value], Value]:
    """The first where it compares as ``which`` says, else the second; NaN where either is."""

    def emit(b: Builder, x: Value, y: Value) -> Value:
        chosen = b.select(b.fcmp(which, x, y), x, y)  # y, if either is NaN
        return b.select(b.fcmp("uno", x, x), x, chosen)

    return emit


def _compared(which: str) -> Callable[[Builder, Value, Value], Value]:
    """1 where two compare as ``which`` says, 0 elsewhere."""
    return lambda b, x, y: b.uitofp(b.fcmp(which, x, y), x.type.element)


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    "add": _Operation(np.add, lambda b, x, y: b.fadd(x, y), True),
    "sub": _Operation(np.subtract, lambda b, x, y: b.fsub(x, y), True),
    "mul": _Operation(np.multiply, lambda b, x, y: b.fmul(x, y), True),
    "div": _Operation(np.divide, lambda b, x, y: b.fdiv(x, y), False),
    "max": _Operation(np.maximum, _picked("ogt"), True),
    "min": _Operation(np.minimum, _picked("olt"), True),
    "ge": _Operation(np.greater_equal, _compared("oge"), False),
    "gt": _Operation(np.greater, _compared("ogt"), True),
    "le": _Operation(np.less_equal, _compared("ole"), False),
    "lt": _Operation(np.less, _compared("olt"), True),
    "eq": _Operation(np.equal, _compared("oeq"), False),
    "ne": _Operation(np.not_equal, _compared("une"), True),
}
ALGORITHMS: Final = tuple(_OPERATIONS)
"""The names of all binary operations."""


def check_algorithm(algorithm: object) -> None:
    """Refuse what is no binary operation.

    Raises
    ------
    LayoutError
        It is none of :data:`ALGORITHMS`.
    """
    if not isinstance(algorithm, str) or algorithm not in _OPERATIONS:
        raise LayoutError(f"{algorithm!r} is no binary operation; there are {', '.join(ALGORITHMS)}")


def defined(algorithm: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The definition, on arrays that broadcast as NumPy's do."""
    with np.errstate(all="ignore"):
        return np.asarray(_OPERATIONS[algorithm].define(x, y), np.float64)


def emit(b: Builder, algorithm: str, x: Value, y: Value) -> Value:
    """The code for two vectors of f32, or of doubles."""
    return _OPERATIONS[algorithm].emit(b, x, y)


def keeps_zero(algorithm: str) -> bool:
    """Whether two zeros, both +0.0, give +0.0: padding stays what it is.

    >>> keeps_zero("mul"), keeps_zero("eq")
    (True, False)
    """
    return _OPERATIONS[algorithm].keeps_zero
