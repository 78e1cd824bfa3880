"""Batch normalisation with statistics that are given, or those of the source, in any format.

::

    dst[n, c, ...] = scale[c] (src[n, c, ...] - mean[c]) / sqrt(variance[c] + epsilon) + shift[c]

What a channel is multiplied by is computed first, for all channels; then it is one pass over the source.
In training the statistics are those of the source, over all axes but the channels, and further results; the
variance is the mean of squared differences from the mean (biased, as in oneDNN), taken in two passes so that
no digits are lost where the mean is large:

    mean[c] = average over n, ... of src[n, c, ...]
    variance[c] = average over n, ... of (src[n, c, ...] - mean[c])^2

>>> import numpy as np
>>> import relayout as rl
>>> x = rl.tensor([[[[1.0, 5.0]]], [[[3.0, 7.0]]]], "nchw", dtype="f32")
>>> made = BatchNormalization(x.desc, epsilon=0)
>>> made(x, np.float32([4]), np.float32([5])).numpy().ravel().round(3)
array([-1.342,  0.447, -0.447,  1.342], dtype=float32)

In a network this follows a convolution nearly always, and then costs nothing: multiply the weights by what a
channel is multiplied by, and change the bias (:mod:`relayout.networks` does that when it loads weights).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import dense_like
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.formats import check_source, check_target, finite, following, overwritable
from relayout.ops.functions import Function
from relayout.ops.post_ops import adds, applied, operands_of, post_ops_for
from relayout.primitives.meaning import check_alike, check_data
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.primitives.program import Program

__all__ = ["BatchNormalization"]


class BatchNormalization(Primitive):
    """A batch normalisation, made once for its descriptors.

    Its inputs are ``src``, ``mean`` and ``variance``, then ``scale`` and ``shift`` if they are used: dense
    vectors of f32 with a value for each channel. In training ``mean`` and ``variance`` are outputs, behind
    ``dst``. Source and destination may be the same memory, if their descriptors are the same.

    Parameters
    ----------
    src : MemoryDesc
        Batch and channels first, then any number of axes.
    dst : MemoryDesc, optional
        Without it the format and the data type of the source.
    epsilon : float
        What is added to the variance; not negative.
    use_scale, use_shift : bool
        Whether there is a scale, a shift.
    use_global_stats : bool
        Whether mean and variance are given; if not, they are computed from the source, as in training.
    fuse_relu : bool
        Whether negative results become 0 (oneDNN's ``fuse_norm_relu``), before the post-ops.
    post_ops : sequence, optional
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        The descriptors or numbers don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
    >>> made = BatchNormalization(x, use_scale=True, use_shift=True)
    >>> made.inputs, made.mean
    (('src', 'mean', 'variance', 'scale', 'shift'), MemoryDesc('f32:a:64'))
    >>> BatchNormalization(x, use_global_stats=False).outputs
    ('dst', 'mean', 'variance')
    """

    kind = "batch_normalization"

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc | None = None,
        epsilon: float = 1e-5,
        *,
        use_scale: bool = False,
        use_shift: bool = False,
        use_global_stats: bool = True,
        fuse_relu: bool = False,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        if len(src.dims) < 2:
            raise LayoutError(
                f"batch_normalization: src {src} needs at least 2 axes, batch and channels first"
            )
        if dst is None:
            dst = MemoryDesc(src.dims, src.dtype, any_format)
        dst = following(src, dst)
        check_target(self.kind, dst, src.dims)
        check_data(self.kind, "src", src)
        self.epsilon = _epsilon(epsilon)
        relu = (Function("relu"),) if fuse_relu else ()
        self.post_ops = (*relu, *post_ops_for(self.kind, post_ops, dst))
        self.training = not use_global_stats
        found = ("mean", "variance")
        vectors = [*found * use_global_stats, *["scale"] * use_scale, *["shift"] * use_shift]
        operands = operands_of(self.post_ops)
        self.inputs = ("src", *vectors, *operands)
        self.outputs = ("dst", *found) if self.training else ("dst",)
        channels = MemoryDesc(src.dims[1:2], "f32", "a")
        self.descs = {"src": src, **dict.fromkeys((*vectors, *found), channels), **operands, "dst": dst}
        check_alike(self.kind, self.descs)
        near = {"src": src, **operands, "dst": dst}
        self.accumulates = ("dst",) * adds(self.post_ops)
        self.in_place = {} if self.accumulates else overwritable(near)

    @property
    def flops(self) -> int:
        """Three operations for each element; two without a shift. Statistics take four more."""
        return (2 + ("shift" in self.inputs) + 4 * self.training) * super().flops

    def _implementation(self) -> str:
        found = "mean, then variance, " if self.training else ""
        return f"machine code: {found}factors of the channels, then one pass"

    def _moved_besides(self) -> int:
        """The source is read for either statistic, and squared differences are written and read."""
        between = 4 * prod(self.src.dims)
        return super()._moved_besides() + (2 * self.src.nbytes + 2 * between) * self.training

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> Mapping[str, NDArray[np.float64]]:
        if self.training:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN
                over = tuple(axis for axis in range(len(self.src.dims)) if axis != 1)
                found = {"mean": arrays["src"].mean(over), "variance": arrays["src"].var(over)}
            return found | {"dst": self._normalised({**arrays, **found})}
        return {"dst": self._normalised(arrays)}

    def _normalised(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        shape = (-1, *(1 for _ in self.src.dims[2:]))
        vectors = ("mean", "variance", "scale", "shift")
        of = {name: arrays[name].reshape(shape) for name in vectors if name in arrays}
        with np.errstate(all="ignore"):
            x = (arrays["src"] - of["mean"]) / np.sqrt(of["variance"] + self.epsilon)
        x = x * of.get("scale", 1.0) + of.get("shift", 0.0)
        return applied(self.post_ops, x, arrays)

    @locked
    def _lower(self) -> Program | None:
        from relayout.kernels.elementwise.bodies import factor, normalised
        from relayout.primitives.lowering import elementwise, joined

        vectors: dict[str, MemoryDesc]
        vectors = {name: self.descs[name] for name in ("variance", "scale") if name in self.descs}
        factors = MemoryDesc(self.src.dims[1:2], "f32", "a")
        first = elementwise(factors, vectors, factor("scale" in vectors), (self.epsilon,), target="factor")
        each = _over_channels(factors, len(self.src.dims))
        operands = {"src": self.src, "mean": each, "factor": each}
        if "shift" in self.inputs:
            operands["shift"] = each
        second = elementwise(self.dst, operands, normalised("shift" in operands), post_ops=self.post_ops)
        made = joined(*self._statistics(each) if self.training else (), first, second)
        if made is not None:
            made.scratch = {**made.scratch, "factor": factors.nbytes}
        return made

    @locked
    def _statistics(self, each: MemoryDesc) -> Sequence[Program | None]:
        """The programs that write mean and variance: averages, by the kernel of pooling."""
        from relayout.kernels.elementwise.bodies import binary
        from relayout.primitives.lowering import elementwise

        squares = MemoryDesc(self.src.dims, "f32", dense_like(self.src.layout))
        differences = {"src": self.src, "mean": each}
        square = elementwise(
            squares, differences, binary("sub"), post_ops=(Function("square"),), target="squares"
        )
        if square is not None:
            square.scratch = {**square.scratch, "squares": squares.required_bytes}
        return _average(self.src, "src", "mean"), square, _average(squares, "squares", "variance")


@locked
def _average(src: MemoryDesc, source: str, vector: str) -> Program | None:
    """The average of each channel: one window over the batch and all spatial axes."""
    from relayout.primitives.combining import pooling
    from relayout.primitives.lowering import renamed
    from relayout.primitives.pooling import Pooling

    try:
        layout = views.permute(src.layout.with_roles(None), (1, 0, *range(2, len(src.dims))))
        layout = views.unsqueeze(layout, 0)
        while layout.rank > 5:
            layout = views.merge_axes(layout, 2, 3)
    except LayoutError:  # axes that don't lie as one
        return None
    dst = _over_channels(MemoryDesc(src.dims[1:2], "f32", "a"), layout.rank)
    whole = MemoryDesc(layout.dims, src.dtype, layout)
    found = pooling(Pooling(whole, "average_include_padding", layout.dims[2:], dst=dst))
    names = {"src": source, "dst": vector, "source": f"source of {vector}", "target": f"target of {vector}"}
    return None if found is None else renamed(found[1], names)


def _over_channels(vector: MemoryDesc, rank: int) -> MemoryDesc:
    """A value for each channel with as many axes as the source."""
    layout = views.unsqueeze(vector.layout, 0)
    while layout.rank < rank:
        layout = views.unsqueeze(layout, layout.rank)
    return MemoryDesc(layout.dims, vector.dtype, layout)


def _epsilon(given: float) -> float:
    """A number as f32 that a root can be taken of."""
    epsilon = finite("batch_normalization: epsilon", given)
    if epsilon < 0:
        raise LayoutError(f"batch_normalization: epsilon must not be negative; it is {given}")
    return epsilon
