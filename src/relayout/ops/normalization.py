"""Normalisations: batch, layer and group; RMS and instance normalisation among them.

All take the mean and the variance out of sets of elements, and differ in the sets::

    batch      a set for each channel: all images, all pixels
    layer      a set for each row: the last axes; RMS takes only the mean square out
    group      a set for each image and group of channels
    instance   a group for each channel

Variances are those of the elements themselves, divided by their number, not by one less (PyTorch's
``unbiased=False``, ONNX, oneDNN). ``scale`` and ``shift`` belong to channels, or to places within a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from math import prod

import numpy as np

from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function, Reals
from relayout.ops.operation import Operation
from relayout.records import dataclass

__all__ = [
    "BatchNormalization",
    "GroupNormalization",
    "LayerNormalization",
    "Normalization",
    "definition",
    "factor",
    "from_statistics",
]

RELU = Function("relu")
FLOPS = 8  # of an element of a row: two differences, a square, two sums, three for the result
STEEP = 512.0  # the slope of a line of which no byte but one has a result that is no bound
OUTSIDE = 2.0**20  # an intercept from which no slope up to that leads back to bytes


@dataclass(frozen=True, kw_only=True)
class BatchNormalization(Operation):
    """Each channel has its mean and variance taken out: given ones, or in training its own.

    ::

        dst[n, c, ...] = scale[c] (src[n, c, ...] - mean[c]) / sqrt(variance[c] + epsilon) + shift[c]

    With an output ``workspace`` also where a ReLU behind it lets results pass: 1, or else 0.
    """

    kind = "batch_normalization"
    epsilon: float
    fuse_relu: bool = False
    """Whether negative results become 0, before the post-ops."""

    @property
    def training(self) -> bool:
        """Whether mean and variance are those of the source, and results."""
        return any(one.name == "mean" for one in self.outputs)

    @property
    def overwritable(self) -> tuple[str, ...]:
        """The source, and what post-ops read."""
        vectors = ("mean", "variance", "scale", "shift")
        return tuple(one.name for one in self.inputs if one.name not in vectors)

    @property
    def flops(self) -> int:
        """Three operations for each element; two without a shift. Statistics take four more."""
        return (2 + self._reads("shift") + 4 * self.training) * super().flops

    def compute(self, *, src: Reals, **vectors: Reals) -> dict[str, Reals]:
        """Channel by channel."""
        if self.training:
            over = tuple(axis for axis in range(src.ndim) if axis != 1)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN
                vectors |= {"mean": src.mean(over), "variance": src.var(over)}
        of = {name: vector.reshape(-1, *(1 for _ in src.shape[2:])) for name, vector in vectors.items()}
        with np.errstate(all="ignore"):
            x = (src - of["mean"]) / np.sqrt(of["variance"] + self.epsilon)
        y = x * of.get("scale", 1.0) + of.get("shift", 0.0)
        passed = (y > 0).astype(np.float64)
        return {**vectors, "dst": RELU.definition(y) if self.fuse_relu else y, "workspace": passed}

    def _reads(self, name: str) -> bool:
        return any(one.name == name for one in self.inputs)

    @property
    def factor(self) -> Expression:
        """What a channel is multiplied by: of the variance, and the scale where there is one."""
        return factor(self.epsilon, self._reads("scale"))

    @property
    def normalised(self) -> Expression:
        """Of the source, the mean, the factor, and the shift where there is one.

        The mean is subtracted first, as the definition has it. To multiply first, and add what remains of
        mean and shift, would save nothing here and lose digits where the mean is large.
        """
        return self._normalised().written()

    @property
    def line(self) -> Expression | None:
        """Slope and intercept of each channel, where source and destination are bytes; else None.

        Of the variance, the mean, and scale and shift as far as there are any. A byte has few digits, so that
        ``slope * x + intercept`` loses none of the result's, as long as the intercept is small: less than
        ``2**-8`` of a step where the slope is at most :data:`STEEP`. Results of a steeper line are the least
        or the largest of all, but for that of one byte at most. It gets a line with that slope through its
        own result. So all results are numbers, of less than 22 bits.
        """
        src, dst = self.inputs[0].dtype, self.outputs[0].dtype
        if any(kind.is_float or kind.bits != 8 for kind in (src, dst)):
            return None
        scaled, shifted = self._reads("scale"), self._reads("shift")
        w = Writing("f32", "f32", *["f32"] * (scaled + shifted))
        zero, mean = w.number("f32", 0.0), 1
        root = w.apply(Function("sqrt"), w.apply("add", 0, w.number("f32", self.epsilon)))
        factor = w.apply("div", 2 if scaled else w.number("f32", 1.0), root)
        shift = 2 + scaled if shifted else zero

        def clipped(x: int, low: float, high: float) -> int:
            return w.apply("min", w.apply("max", x, w.number("f32", low)), w.number("f32", high))

        def negative(x: int) -> int:
            return w.apply("neg", x)

        slope = clipped(factor, -STEEP, STEEP)
        usual = clipped(w.apply("fma", negative(mean), slope, shift), -OUTSIDE, OUTSIDE)
        crossing = w.apply("sub", mean, w.apply("div", shift, factor))
        byte = w.apply("floor", w.apply("add", crossing, w.number("f32", 0.5)))
        byte = clipped(byte, float(src.min), float(src.max))
        result = w.apply("fma", w.apply("sub", byte, mean), factor, shift)
        result = w.put("select", "f32", w.apply("isnan", result), zero, result)  # 0 * infinity
        result = clipped(result, float(dst.min) - STEEP / 4, float(dst.max) + STEEP / 4)
        other = w.apply("fma", byte, negative(slope), result)
        finite = w.apply("lt", w.apply("abs", shift), w.number("f32", math.inf))
        steep = w.apply("and", finite, w.apply("gt", w.apply("abs", factor), w.number("f32", STEEP)))
        intercept = w.put("select", "f32", steep, other, usual)
        strange = w.apply("or", w.apply("isnan", slope), w.apply("isnan", intercept))
        slope, intercept = (w.put("select", "f32", strange, zero, x) for x in (slope, intercept))
        return w.written(slope, intercept)

    @property
    def on_line(self) -> Expression:
        """Of the source, slope and intercept: the result."""
        return Expression.of(("f32",) * 3, [("fma", "f32", (0, 1, 2))], near=True)

    @property
    def passed(self) -> Expression:
        """Whether that is positive, of the same operands."""
        w = self._normalised()
        w.apply("gt", len(w.operands) + len(w.terms) - 1, w.number("f32", 0.0))
        return w.written()

    @property
    def rectified(self) -> Expression:
        """The result behind a ReLU, and whether that let it pass, of the same operands."""
        w = self._normalised()
        y = len(w.operands) + len(w.terms) - 1
        return w.written(w.apply(RELU, y), w.apply("gt", y, w.number("f32", 0.0)))

    def _normalised(self) -> Writing:
        shifted = self._reads("shift")
        w = Writing(*["f32"] * (3 + shifted))
        x = w.apply("sub", 0, 1)
        w.apply(*("fma", x, 2, 3) if shifted else ("mul", x, 2))
        return w


@dataclass(frozen=True, kw_only=True)
class Normalization(Operation):
    """A normalisation of rows, whatever these are."""

    epsilon: float
    rms: bool = False
    """Whether rows are divided by the root of their mean square, and nothing is subtracted."""
    use_global_stats: bool = False
    """Whether mean and variance are given, and not those of the source."""

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Dims that the source is seen with, those of scale and shift, and the axes of a row among them."""
        raise NotImplementedError

    @property
    def table(self) -> tuple[int, ...]:
        """The dims of scale and shift."""
        raise NotImplementedError

    @property
    def overwritable(self) -> tuple[str, ...]:
        """The source; post-ops may read what they need when a first pass has written results."""
        return ("src",)

    @property
    def flops(self) -> int:
        """Differences, products and sums."""
        return FLOPS * prod(self.inputs[0].dims)

    def compute(
        self, *, src: Reals, scale: Reals | None = None, shift: Reals | None = None, **given: Reals
    ) -> dict[str, Reals]:
        """Row by row."""
        dims, table, axes = self.rows
        with np.errstate(all="ignore"):  # what is infinite or no number goes on as such
            if self.use_global_stats:
                row = tuple(1 if axis in axes else size for axis, size in enumerate(dims))
                mean = given.get("mean", np.zeros(row)).reshape(row)
                variance = given["variance"].reshape(row)
                y = (src.reshape(dims) - mean) / np.sqrt(variance + self.epsilon)
            else:
                y, mean, variance = definition(src.reshape(dims), axes, self.epsilon, self.rms)
            if scale is not None:
                y = y * scale.reshape(table)
            if shift is not None:
                y = y + shift.reshape(table)
        found = {"dst": y, "mean": mean, "variance": variance}
        return {one.name: found[one.name].reshape(one.dims) for one in self.outputs}


@dataclass(frozen=True, kw_only=True)
class LayerNormalization(Normalization):
    """Rows are the elements along the last axes; scale and shift have a value for each element of a row."""

    kind = "layer_normalization"
    axes: tuple[int, ...]

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """The source as it is."""
        return self.inputs[0].dims, self.table, self.axes

    @property
    def table(self) -> tuple[int, ...]:
        """Those of a row."""
        return self.inputs[0].dims[self.axes[0] :]


@dataclass(frozen=True, kw_only=True)
class GroupNormalization(Normalization):
    """Rows are the channels of a group with their pixels; scale and shift have a value for each channel."""

    kind = "group_normalization"
    groups: int

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Images, groups, channels of a group, pixels."""
        images, channels, *pixels = self.inputs[0].dims
        each = self.groups, channels // self.groups
        return (images, *each, *pixels), (*each, *(1 for _ in pixels)), tuple(range(2, 3 + len(pixels)))

    @property
    def table(self) -> tuple[int, ...]:
        """The channels."""
        return self.inputs[0].dims[1:2]


def from_statistics(vectors: Sequence[str]) -> Expression:
    """What given statistics make of a source, or of a gradient that comes in.

    Its operands are that, and vectors among mean, factor, scale and shift, in this order.

    >>> print(from_statistics(("mean", "factor", "shift")))
    f32 a, f32 b, f32 c, f32 d; e = sub a b; f = mul e c; g = add f d
    """
    w, x = Writing("f32", *["f32"] * len(vectors)), 0
    steps = {"mean": "sub", "factor": "mul", "scale": "mul", "shift": "add"}
    for k, name in enumerate(vectors):
        x = w.apply(steps[name], x, 1 + k)
    return w.written()


def factor(epsilon: float, scaled: bool) -> Expression:
    """What differences from a mean are multiplied by: of the variance, and a scale if there is one."""
    w = Writing("f32", *["f32"] * scaled)
    root = w.apply(Function("sqrt"), w.apply("add", 0, w.number("f32", epsilon)))
    w.apply("div", 1 if scaled else w.number("f32", 1.0), root)
    return w.written()


def definition(
    x: Reals, axes: Sequence[int], epsilon: float, rms: bool = False
) -> tuple[Reals, Reals, Reals]:
    """An array whose rows are normalised, and the mean and the variance of each row, which keep the axes.

    The variance is that of all elements, divided by their number. Of ``rms`` it is the mean square, and
    nothing is subtracted.

    >>> y, mean, variance = definition(np.array([[1.0, 3.0]]), (1,), 0.0)
    >>> y, mean, variance
    (array([[-1.,  1.]]), array([[2.]]), array([[1.]]))
    """
    count = prod(x.shape[axis] for axis in axes)
    with np.errstate(all="ignore"):
        mean = x.sum(tuple(axes), keepdims=True) / np.float64(count)
        d = x if rms else x - mean
        variance = (d * d).sum(tuple(axes), keepdims=True) / np.float64(count)
        return d / np.sqrt(variance + epsilon), mean, variance
