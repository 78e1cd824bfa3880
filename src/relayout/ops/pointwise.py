"""Expressions as operations, in the data types of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from relayout.ops.expressions import Expression
from relayout.ops.native import Native

__all__ = ["Pointwise"]


@dataclass(frozen=True, kw_only=True)
class Pointwise(Native):
    """``dst[i]`` is the expression of the inputs at i, with broadcasting."""

    kind = "pointwise"
    expression: Expression
    numbers: ClassVar[tuple[float, ...]] = ()

    def natively(self, *arrays: NDArray[Any]) -> NDArray[Any]:
        """The expression on arrays, in the data type of the output."""
        (out,) = self.outputs
        made = np.broadcast_to(self.expression.definition(*arrays), out.dims)
        return made if made.dtype == bool else made.astype(out.dtype.numpy)

    @property
    def overwritable(self) -> tuple[str, ...]:
        """All inputs."""
        return tuple(one.name for one in self.inputs)
