"""Gradients of normalisations.

What goes out is the same for all of them, for a row (of batch normalisation: a channel) with mean m and
variance v, where ``g`` is what comes in times the scale::

    y = (x - m) / sqrt(v + epsilon)
    diff_x = (g - mean(g) - y mean(g y)) / sqrt(v + epsilon)

Both means are there because m and v depend on x. Given statistics do not: then ``diff_x`` is
``g / sqrt(v + epsilon)``; the mean square of RMS normalisation leaves the second one. Scale and shift get
``sum(diff_dst y)`` and ``sum(diff_dst)``, over all that they were used for.
"""

from __future__ import annotations

from math import prod

import numpy as np

from relayout.ops import normalization as forward
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = [
    "BatchNormalizationBackward",
    "GroupNormalizationBackward",
    "LayerNormalizationBackward",
    "RowsBackward",
]

FLOPS = 12  # of an element: two differences, a product and two sums for sums; five for the result


@dataclass(frozen=True, kw_only=True)
class BatchNormalizationBackward(Operation):
    """The gradients of a batch normalisation; with an input ``workspace`` also of the ReLU behind it."""

    kind = "batch_normalization_backward"
    epsilon: float
    use_global_stats: bool

    @property
    def flops(self) -> int:
        """Sums and the result."""
        return FLOPS * super().flops

    def compute(
        self,
        *,
        src: Reals,
        diff_dst: Reals,
        mean: Reals,
        variance: Reals,
        scale: Reals | None = None,
        workspace: Reals | None = None,
    ) -> dict[str, Reals]:
        """Channel by channel."""
        over = tuple(axis for axis in range(src.ndim) if axis != 1)
        count = np.float64(prod(src.shape[axis] for axis in over))

        def each(vector: Reals) -> Reals:
            return vector.reshape(-1, *(1 for _ in src.shape[2:]))

        g = diff_dst if workspace is None else np.where(workspace != 0, diff_dst, 0.0)
        with np.errstate(all="ignore"):
            root = np.sqrt(each(variance) + self.epsilon)
            y = (src - each(mean)) / root
            diff_shift, diff_scale = g.sum(over), (g * y).sum(over)
            diff_src = g
            if not self.use_global_stats:
                diff_src = g - each(diff_shift) / count - y * each(diff_scale) / count
            diff_src = diff_src / root * (1.0 if scale is None else each(scale))
        return {"diff_src": diff_src, "diff_scale": diff_scale, "diff_shift": diff_shift}

    def _reads(self, name: str) -> bool:
        return any(one.name == name for one in self.inputs)

    @property
    def factor(self) -> Expression:
        """What a channel's gradients are multiplied by: of the variance, and the scale where there is one."""
        return forward.factor(self.epsilon, self._reads("scale"))

    @property
    def result(self) -> Expression:
        """What is written.

        Of ``diff_dst``, the workspace if there is one; without given statistics of the source, the mean, and
        both sums as :class:`relayout.kernels.reduce.sums.Merged` has them; and of the factor.
        """
        masked, own = self._reads("workspace"), not self.use_global_stats
        w = Writing("f32", *["u8"] * masked, *["f32"] * (4 * own + 1))
        g, after = 0, 1 + masked
        if masked:
            passed = w.apply("ne", 1, w.number("u8", 0))
            g = w.put("select", "f32", passed, 0, w.number("f32", 0.0))
        if own:
            x = w.apply("mul", w.apply("sub", after, after + 1), after + 3)
            g = w.apply("sub", w.apply("sub", g, after + 2), x)
            after += 4
        w.apply("mul", g, after)
        return w.written()


def root(epsilon: float) -> Expression:
    """What differences from a mean are multiplied by, of the variance."""
    return forward.factor(epsilon, False)


class RowsBackward(forward.Normalization):
    """The gradients of a normalisation of rows."""

    @property
    def overwritable(self) -> tuple[str, ...]:
        """Nothing: sums of ``diff_dst`` may be taken when the result has been written."""
        return ()

    @property
    def flops(self) -> int:
        """Sums and the result."""
        return FLOPS * prod(self.inputs[0].dims)

    def compute(  # type: ignore[override]
        self,
        *,
        src: Reals,
        diff_dst: Reals,
        variance: Reals,
        mean: Reals | None = None,
        scale: Reals | None = None,
    ) -> dict[str, Reals]:
        """Row by row."""
        dims, table, axes = self.rows
        row = tuple(1 if axis in axes else size for axis, size in enumerate(dims))
        count = np.float64(prod(dims[axis] for axis in axes))
        x, d = src.reshape(dims), diff_dst.reshape(dims)
        with np.errstate(all="ignore"):
            root = np.sqrt(variance.reshape(row) + self.epsilon)
            y = (x if mean is None else x - mean.reshape(row)) / root
            g = d if scale is None else d * scale.reshape(table)
            found = g
            if not self.use_global_stats:
                found = g - y * ((g * y).sum(axes, keepdims=True) / count)
            if mean is not None and not self.use_global_stats:
                found = found - g.sum(axes, keepdims=True) / count
        sums = {"diff_src": found / root, "diff_scale": d * y, "diff_shift": d}
        shape = (1,) * (len(dims) - len(table)) + table
        over = tuple(axis for axis, size in enumerate(shape) if size == 1)
        for name in ("diff_scale", "diff_shift"):
            sums[name] = sums[name].sum(over)
        return {one.name: sums[one.name].reshape(one.dims) for one in self.outputs}


@dataclass(frozen=True, kw_only=True)
class LayerNormalizationBackward(RowsBackward, forward.LayerNormalization):
    """The gradients of a layer or RMS normalisation."""

    kind = "layer_normalization_backward"


@dataclass(frozen=True, kw_only=True)
class GroupNormalizationBackward(RowsBackward, forward.GroupNormalization):
    """The gradients of a group or instance normalisation."""

    kind = "group_normalization_backward"
