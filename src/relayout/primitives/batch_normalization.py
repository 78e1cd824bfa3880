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

from math import prod
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import dense_like
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops import normalization as ops
from relayout.ops.formats import check_source, following, not_negative, target_of
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.meaning import check_alike, check_data
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
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
    workspace : bool
        Whether there is a further output ``workspace``, u8 in the format of the destination: 1 where the ReLU
        let a result pass, 0 where it did not. The way back needs it.
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
    operation: ops.BatchNormalization

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
        workspace: bool = False,
        post_ops: Any = (),
    ) -> None:
        check_source(self.kind, "src", src)
        if len(src.dims) < 2:
            raise LayoutError(
                f"batch_normalization: src {src} needs at least 2 axes, batch and channels first"
            )
        dst = target_of(self.kind, src, dst, src.dims)
        check_data(self.kind, "src", src)
        post_ops = post_ops_for(self.kind, post_ops, dst)
        found = ("mean", "variance")
        vectors = [*found * use_global_stats, *["scale"] * use_scale, *["shift"] * use_shift]
        channels = MemoryDesc(src.dims[1:2], "f32", "a")
        inputs = {"src": src, **dict.fromkeys(vectors, channels)}
        outputs = {"dst": dst, **dict.fromkeys(found * (not use_global_stats), channels)}
        if workspace:
            if not fuse_relu:
                raise LayoutError(
                    "batch_normalization: only a fused ReLU has a workspace; fuse_relu is False"
                )
            outputs["workspace"] = following(dst, MemoryDesc(dst.dims, "u8", any_format))
        attributes = {
            "epsilon": not_negative("batch_normalization: epsilon", epsilon),
            "fuse_relu": bool(fuse_relu),
        }
        self._settle(ops.BatchNormalization, inputs, outputs, post_ops, **attributes)
        check_alike(self.kind, self.descs)

    def _moved_besides(self) -> int:
        """The source is read for either statistic, and squared differences are written and read."""
        src = self.descs["src"]
        statistics = 2 * src.nbytes + 2 * 4 * prod(src.dims)
        return super()._moved_besides() + statistics * self.operation.training

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise, joined

        if "workspace" in self.outputs:
            return None
        vectors: dict[str, MemoryDesc]
        vectors = {name: self.descs[name] for name in ("variance", "scale") if name in self.descs}
        factors = MemoryDesc(self.src.dims[1:2], "f32", "a")
        first = elementwise(factors, vectors, self.operation.factor, target="factor")
        each = _over_channels(factors, len(self.src.dims))
        operands = {"src": self.src, "mean": each, "factor": each}
        if "shift" in self.inputs:
            operands["shift"] = each
        after = (*[ops.RELU] * self.operation.fuse_relu, *self.post_ops)
        second = elementwise(self.dst, operands, self.operation.normalised, post_ops=after)
        found: tuple[Program | None, ...] = ()
        note = "factors of the channels, then one pass"
        if self.operation.training:
            found, note = self._statistics(each), f"mean, then variance, {note}"
        program = joined(*found, first, second, note=note)
        if program is not None:
            program.scratch = {**program.scratch, "factor": factors.nbytes}
        return program

    @locked
    def _statistics(self, each: MemoryDesc) -> tuple[Program | None, ...]:
        """The programs that write mean and variance: averages, by the kernel of pooling."""
        from relayout.primitives.lowering import elementwise

        squares = MemoryDesc(self.src.dims, "f32", dense_like(self.src.layout))
        differences = {"src": self.src, "mean": each}
        square = elementwise(squares, differences, ops.SQUARED_DIFFERENCE, target="squares")
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
    return None if found is None else renamed(found, names)


def _over_channels(vector: MemoryDesc, rank: int) -> MemoryDesc:
    """A value for each channel with as many axes as the source."""
    layout = views.unsqueeze(vector.layout, 0)
    while layout.rank < rank:
        layout = views.unsqueeze(layout, layout.rank)
    return MemoryDesc(layout.dims, vector.dtype, layout)
