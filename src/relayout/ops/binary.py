"""The binary operations: what each is.

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

The definition is evaluated in double; the code computes in f32 (:mod:`relayout.kernels.functions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.errors import LayoutError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ALGORITHMS", "check_algorithm", "defined", "keeps_zero"]

_DEFINITIONS: Final[Mapping[str, Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "eq": np.equal,
    "ne": np.not_equal,
}
ALGORITHMS: Final = tuple(_DEFINITIONS)
"""The names of all binary operations."""

OF_ZEROS: Final = ("add", "sub", "mul", "max", "min", "gt", "lt", "ne")


def check_algorithm(algorithm: object) -> None:
    """Refuse what is no binary operation.

    Raises
    ------
    LayoutError
        It is none of :data:`ALGORITHMS`.
    """
    if not isinstance(algorithm, str) or algorithm not in _DEFINITIONS:
        raise LayoutError(f"{algorithm!r} is no binary operation; there are {', '.join(ALGORITHMS)}")


def defined(algorithm: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """The definition, on arrays that broadcast as NumPy's do."""
    with np.errstate(all="ignore"):
        return np.asarray(_DEFINITIONS[algorithm](x, y), np.float64)


def keeps_zero(algorithm: str) -> bool:
    """Whether two zeros, both +0.0, give +0.0: padding stays what it is.

    >>> keeps_zero("mul"), keeps_zero("eq")
    (True, False)
    """
    return algorithm in OF_ZEROS
