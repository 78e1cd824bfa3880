"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relayout.graph.operators.axes import axis_in, only
from relayout.graph.operators.registry import Array, operator, same
from relayout.graph.operators.types import narrow, wide


def _cumulative(name: str, function: Callable[..., Any], neutral: int) -> None:
    @operator(name, infer=same)
    def define(x: Array, axis: Array, /, *, exclusive: int = 0, reverse: int = 0) -> Array:
        along = axis_in(int(only(axis, "axis")), x.ndim)
        y = np.moveaxis(wide(x), along, 0)
        y = y[::-1] if reverse else y
        if exclusive:
            y = np.concatenate([np.full_like(y[:1], neutral), y[:-1]])
        y = function(y, axis=0, dtype=y.dtype)
        return narrow(np.moveaxis(y[::-1] if reverse else y, 0, along), x.dtype)


_cumulative("CumSum", np.cumsum, 0)
_cumulative("CumProd", np.cumprod, 1)
