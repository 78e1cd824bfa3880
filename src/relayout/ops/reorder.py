"""Reorder: the same elements, scaled and shifted."""

from __future__ import annotations

from typing import Any

import numpy as np

from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = ["Reorder"]


@dataclass(frozen=True, kw_only=True)
class Reorder(Operation):
    """``dst = ((src - src_zero_point) src_scale - src_shift + beta dst) / dst_scale + dst_zero_point``."""

    kind = "reorder"
    values: Any
    """The attributes of the formula, :class:`relayout.reorder.attributes.Attributes`."""
    axes: tuple[int, ...]
    """For each axis of the source that of the destination."""

    @property
    def accumulates(self) -> tuple[str, ...]:
        """The destination, where some of the old one is added."""
        return ("dst",) if self.values.reads_destination else ()

    @property
    def flops(self) -> int:
        """None: elements are moved."""
        return 0

    def compute(self, *, src: Reals, dst: Reals | None = None) -> Reals:
        """Before results are rounded to the data type, and saturated."""
        made, rank, x = self.values, src.ndim, src
        parts = {name: getattr(made, name).along(rank) for name, _ in made.shape if name != "beta"}
        x = (x - parts.get("src_zero_point", 0)) * parts.get("src_scale", 1) - parts.get("src_shift", 0)
        if dst is not None:
            x = x + made.beta * dst.transpose(self.axes)
        x = x / parts.get("dst_scale", 1) + parts.get("dst_zero_point", 0)
        return np.asarray(x.transpose(np.argsort(self.axes)))
