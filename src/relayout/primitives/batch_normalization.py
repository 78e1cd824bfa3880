"""Batch normalisation with statistics that are given, or those of the source, in any format.

::

    dst[n, c, ...] = scale[c] (src[n, c, ...] - mean[c]) / sqrt(variance[c] + epsilon) + shift[c]

What a channel is multiplied by is computed first, for all channels; then it is one pass over the source.
In training the statistics are those of the source, over all axes but the channels, and further results; the
variance is the mean of squared differences from the mean (biased, as in oneDNN). Both are taken in one pass,
without losing digits where the mean is large (see :mod:`relayout.kernels.reduce.sums`):

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

from functools import partial
from typing import Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops import normalization as ops
from relayout.ops.expressions import Expression
from relayout.ops.formats import check_source, following, not_negative, target_of
from relayout.ops.functions import Function
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.drafting import Draft, if_possible, joined, kernel_step
from relayout.primitives.meaning import check_alike, check_data
from relayout.primitives.primitive import Primitive
from relayout.primitives.program import Program
from relayout.records import replace

__all__ = ["BatchNormalization", "besides_channels", "over_channels"]


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
        let a result pass, 0 where it did not. The backward pass needs it.
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
        """The source is read once more for its statistics."""
        return super()._moved_besides() + self.descs["src"].nbytes * self.operation.training

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise
        from relayout.primitives.summing import sums

        if self.operation.training and (program := self._in_cache()) is not None:
            return program
        if (line := self.operation.line) is not None and "workspace" not in self.outputs:
            return self._on_lines(line)
        vectors: dict[str, MemoryDesc]
        vectors = {name: self.descs[name] for name in ("variance", "scale") if name in self.descs}
        factors = MemoryDesc(self.src.dims[1:2], "f32", "a")
        first = elementwise(factors, vectors, self.operation.factor, target="factor")
        each = over_channels(factors, len(self.src.dims))
        operands = {"src": self.src, "mean": each, "factor": each}
        if "shift" in self.inputs:
            operands["shift"] = each
        after = (*[ops.RELU] * self.operation.fuse_relu, *self.post_ops)
        found: tuple[Program | None, ...] = ()
        note = "factors of the channels, then one pass"
        if self.operation.training:
            seen = self.src.with_layout(self.src.layout.with_roles(None))
            statistics = sums(seen, besides_channels(self.src), ("mean", "variance"))
            found, note = (statistics,), f"{statistics.note if statistics else ''}, {note}"
        if "workspace" not in self.outputs:
            last = [elementwise(self.dst, operands, self.operation.normalised, post_ops=after)]
        elif not self.post_ops and self.workspace.layout.same_bytes(self.dst.layout):
            both, kept = self.operation.rectified, {"workspace": self.workspace}
            last = [elementwise(self.dst, operands, both, further=kept)]
        else:  # the mask first, before the source may be written over
            passed = self.operation.passed
            last = [elementwise(self.workspace, operands, passed, target="workspace")]
            last.append(elementwise(self.dst, operands, self.operation.normalised, post_ops=after))
        return joined(*found, first, *last, note=note, scratch={"factor": factors.nbytes})

    @locked
    def _on_lines(self, line: Expression) -> Program | None:
        """Bytes of bytes: a line for each channel, then one instruction for an element.

        A mean that is subtracted would take another one, and numbers of any size a third, that bounds them.
        """
        from relayout.primitives.lowering import elementwise
        from relayout.primitives.summing import sums

        vector = MemoryDesc(self.src.dims[1:2], "f32", "a")
        names = ["variance", "mean", *(name for name in ("scale", "shift") if name in self.inputs)]
        vectors = {name: self.descs[name] for name in names}
        steps = [elementwise(vector, vectors, line, target="slope", further={"intercept": vector})]
        each = over_channels(vector, len(self.src.dims))
        after = (*[ops.RELU] * self.operation.fuse_relu, *self.post_ops)
        operands = {"src": self.src, "slope": each, "intercept": each}
        steps.append(elementwise(self.dst, operands, self.operation.on_line, post_ops=after))
        note = "lines of the channels, then one pass"
        if self.operation.training:
            seen = self.src.with_layout(self.src.layout.with_roles(None))
            statistics = sums(seen, besides_channels(self.src), ("mean", "variance"))
            steps.insert(0, statistics)
            note = f"{statistics.note if statistics else ''}, {note}"
        scratch = dict.fromkeys(("slope", "intercept"), vector.nbytes)
        return joined(*steps, note=note, scratch=scratch)

    @locked
    @if_possible
    def _in_cache(self) -> Program | None:
        """All in one step, channel by channel, where a channel stays in the L2 cache between both passes."""
        from relayout.kernels.reduce.normalization import ENTRY, UNROLL, WIDE, Normalized, module, planned
        from relayout.primitives.summing import leaves, stays
        from relayout.targets.machine import host

        what, dims, masked = self.operation, self.src.dims, "workspace" in self.outputs
        functions = tuple(one for one in self.post_ops if isinstance(one, Function))
        if functions != self.post_ops or (masked and functions):
            return None
        functions = (*[ops.RELU] * what.fuse_relu, *functions)
        tables = [name for name in ("scale", "shift") if name in self.inputs]
        scale, shift = (name in tables for name in ("scale", "shift"))
        normal = Normalized(False, what.epsilon, scale, shift, True, True, functions, masked)
        each = over_channels(MemoryDesc(dims[1:2], "f32", "a"), len(dims))
        of_channels = views.broadcast_to(each.layout, dims)
        src, dst = (desc.with_layout(desc.layout.with_roles(None)) for desc in (self.src, self.dst))
        axes = besides_channels(src)
        kept = self.workspace.layout.with_roles(None) if masked else None
        found = planned(normal, src, dst, axes, [of_channels] * len(tables), [of_channels] * 2, kept)
        machine, size = host(), src.nbytes + dst.nbytes
        if found is None:
            return None
        found = replace(found, stream=leaves(found.rows, size))
        again, written = src.dtype.bits // 8, dst.dtype.bits // 8 + masked
        if not stays(found.rows, WIDE * UNROLL[machine.vector], again + written, again):
            return None
        masks, draft = ["workspace"] * masked, Draft()
        for name in (*masks, "dst"):
            draft.zeros(self.descs[name], name)
        key, operands = ("normalization", found), (*tables, *masks, "mean", "variance")
        draft.add(kernel_step(key, ENTRY, partial(module, found), "src", "dst", size, operands))
        return draft.program(f"channels in the cache, {found.lanes(machine)} lanes")


def besides_channels(desc: MemoryDesc) -> tuple[int, ...]:
    """All axes but the second one."""
    return tuple(axis for axis in range(len(desc.dims)) if axis != 1)


def over_channels(vector: MemoryDesc, rank: int) -> MemoryDesc:
    """A value for each channel with as many axes as the source."""
    layout = views.unsqueeze(vector.layout, 0)
    while layout.rank < rank:
        layout = views.unsqueeze(layout, layout.rank)
    return vector.with_layout(layout)
