"""Expressions as operations, in the data types of their arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.ops.expressions import Expression
from relayout.ops.native import Native
from relayout.records import dataclass

__all__ = ["Pointwise"]


@dataclass(frozen=True, kw_only=True)
class Pointwise(Native):
    """``dst[i]`` is the expression of the inputs at i, with broadcasting; an output for each result."""

    kind = "pointwise"
    expression: Expression
    numbers: tuple[float, ...] = ()
    """The last operands of the expression, f32, the same for all elements."""

    def natively(self, *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The expression on arrays, in the data types of the outputs."""
        made = self.expression.definition(*arrays, *map(np.float32, self.numbers))
        several = made if isinstance(made, tuple) else (made,)
        wide = (np.broadcast_to(one, out.dims) for one, out in zip(several, self.outputs, strict=True))
        return tuple(
            one if one.dtype == bool else one.astype(out.dtype.numpy)
            for one, out in zip(wide, self.outputs, strict=True)
        )

    @property
    def overwritable(self) -> tuple[str, ...]:
        """All inputs."""
        return tuple(one.name for one in self.inputs)
