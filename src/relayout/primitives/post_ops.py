"""Post-ops: what follows a computation in the same pass, element by element, before the result is stored.

A list of them is applied in order to ``x``, the value that was computed, in f32 ::

    Sum(scale)                    x + scale * what dst held
    Function("relu")              f(x), see relayout.primitives.functions

as oneDNN has it: a residual block ends with ``(Sum(), Function("relu"))``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from relayout.codegen.math import single
from relayout.errors import LayoutError
from relayout.primitives.functions import Function

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["PostOp", "Sum", "adds", "applied", "post_ops_of"]


@dataclass(frozen=True)
class Sum:
    """Add what the destination held.

    >>> print(Sum(0.5))
    sum(0.5)
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        try:
            finite = isfinite(single(self.scale))
        except (OverflowError, struct.error):
            finite = False
        if not finite:
            raise LayoutError(f"the scale of a sum is a finite number that f32 can hold, not {self.scale!r}")

    def __str__(self) -> str:
        return "sum" if self.scale == 1 else f"sum({self.scale:g})"


PostOp = Sum | Function


def post_ops_of(given: object) -> tuple[PostOp, ...]:
    """Post-ops as a tuple; a text is the name of a function.

    >>> post_ops_of(["relu"])
    (Function('relu'),)
    """
    if given is None:
        return ()
    several = given if isinstance(given, (tuple, list)) else (given,)
    made = tuple(Function(one) if isinstance(one, str) else one for one in several)
    for one in made:
        if not isinstance(one, (Sum, Function)):
            raise LayoutError(f"{one!r} is no post-op; there are Sum and Function")
    if sum(isinstance(one, Sum) for one in made) > 1:
        raise LayoutError("there may be one Sum among the post-ops")
    return made


def adds(post_ops: Sequence[PostOp]) -> bool:
    """Whether what the destination held takes part.

    >>> adds(post_ops_of("relu")), adds((Sum(),))
    (False, True)
    """
    return any(isinstance(op, Sum) for op in post_ops)


def applied(
    post_ops: Sequence[PostOp], x: NDArray[np.float64], old: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The definition: post-ops on logical arrays in double precision; ``old`` is what dst held."""
    for op in post_ops:
        if isinstance(op, Function):
            x = op.definition(x)
        elif old is None:
            raise LayoutError("a sum adds to the old destination, but there is none")
        else:
            x = x + op.scale * old
    return x
