"""The gradients of batch normalisation, in any format: of the source, the scale and the shift.

::

    y          = (src - mean) / sqrt(variance + epsilon)
    diff_shift = sum of diff_dst            over all axes but the channels
    diff_scale = sum of diff_dst y
    diff_src   = scale / sqrt(variance + epsilon) (diff_dst - diff_shift / count - y diff_scale / count)

and without the last two terms where statistics were given to the forward pass. Two sums for each channel are
one pass over ``src`` and ``diff_dst``, the result a second one.

Where the forward pass had a fused ReLU, its ``workspace`` says which gradients it let pass.

>>> import numpy as np
>>> import relayout as rl
>>> from relayout.primitives import BatchNormalization
>>> x = rl.tensor([[[[1.0, 5.0]]], [[[3.0, 8.0]]]], "nchw", dtype="f32")
>>> forward = BatchNormalization(x.desc, use_shift=True, use_global_stats=False)
>>> y, mean, variance = forward(x, np.float32([0.0]))
>>> made = BatchNormalizationBackward(forward)
>>> made.inputs, made.outputs
(('src', 'diff_dst', 'mean', 'variance'), ('diff_src', 'diff_shift'))
>>> made(x, y, mean, variance).diff_src.numpy().ravel().round(3) + 0.0
array([0., 0., 0., 0.], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import normalization as ops
from relayout.primitives.backward.normalizing import NormalizationBackward
from relayout.primitives.batch_normalization import BatchNormalization, besides_channels, over_channels
from relayout.primitives.drafting import joined

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["BatchNormalizationBackward"]


class BatchNormalizationBackward(NormalizationBackward):
    """The gradients of a batch normalisation, made once for its descriptors.

    Its inputs are ``src``, ``diff_dst``, ``mean`` and ``variance``, then ``scale`` and ``workspace`` if the
    forward pass has them; its outputs ``diff_src``, then ``diff_scale`` and ``diff_shift`` if the forward
    pass has a scale, a shift.

    Parameters
    ----------
    forward : BatchNormalization
        With or without given statistics.
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        See :mod:`relayout.primitives.backward.base`.

    Raises
    ------
    LayoutError
        The forward pass has a fused ReLU and no workspace, or dims differ.
    Unsupported
        The forward pass has post-ops, or its source holds integers.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import BatchNormalization
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "bf16", "nhwc")
    >>> forward = BatchNormalization(x, use_scale=True, use_shift=True, use_global_stats=False)
    >>> made = BatchNormalizationBackward(forward)
    >>> made.diff_src, made.diff_scale
    (MemoryDesc('bf16:nhwc:8x64x56x56'), MemoryDesc('f32:a:64'))
    """

    kind = "batch_normalization_backward"
    hint = BatchNormalization
    forward: BatchNormalization
    operation: ops.BatchNormalizationBackward

    def __init__(
        self,
        forward: BatchNormalization,
        *,
        diff_dst: MemoryDesc | Any = None,
        diff_src: MemoryDesc | Any = None,
    ) -> None:
        self._made_for(forward)
        operation = forward.operation
        if operation.fuse_relu and "workspace" not in forward.outputs:
            raise LayoutError(
                f"{self.kind}: the forward primitive has a fused ReLU and does not say what it let pass; "
                "make it with workspace=True"
            )
        vectors = [name for name in ("mean", "variance", "scale") if name in forward.descs]
        masks = ["workspace"] * operation.fuse_relu
        self._decide(
            ops.BatchNormalizationBackward,
            [*vectors, *masks],
            diff_dst,
            diff_src,
            epsilon=operation.epsilon,
            use_global_stats=not operation.training,
        )

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise
        from relayout.primitives.summing import sums

        if not self.use_global_stats and (program := self._in_cache()) is not None:
            return program
        what, dims = self.operation, self.src.dims
        vector = MemoryDesc(dims[1:2], "f32", "a")
        each = over_channels(vector, len(dims))
        outputs = [name if name in self.outputs else "" for name in ("diff_shift", "diff_scale")]
        operands = {"diff_dst": self.diff_dst}
        if "workspace" in self.inputs:
            operands["workspace"] = self.workspace
        steps: list[Program | None] = []
        if any(outputs) or not what.use_global_stats:
            plain = {
                name: self.descs[name].with_layout(self.descs[name].layout.with_roles(None))
                for name in ("src", *operands)
            }
            steps.append(
                sums(
                    plain["src"],
                    besides_channels(self.src),
                    [*outputs, "first sum", "second sum", "factor"],
                    diff_dst=plain["diff_dst"],
                    workspace=plain.get("workspace"),
                    mean=("mean", views.broadcast_to(each.layout, dims)),
                    epsilon=what.epsilon,
                    scale="scale" in self.inputs,
                )
            )
        else:
            given: dict[str, MemoryDesc] = {
                name: vector for name in ("variance", "scale") if name in self.inputs
            }
            steps.append(elementwise(vector, given, what.factor, target="factor"))
        if not what.use_global_stats:
            operands |= {"src": self.src, "mean": each, "first sum": each, "second sum": each}
        operands["factor"] = each
        steps.append(elementwise(self.diff_src, operands, what.result, target="diff_src"))
        note = ", then ".join(filter(None, [steps[0].note if steps[0] else "", "one pass"]))
        more = dict.fromkeys(("first sum", "second sum", "factor"), vector.nbytes)
        return joined(*steps, note=note, scratch=more)

    @locked
    def _in_cache(self) -> Program | None:
        """All in one step, channel by channel, where a channel stays in the L2 cache between both passes."""
        from relayout.kernels.reduce.gradients import Gradient
        from relayout.primitives.backward.rows import row_gradient

        dims, masked = self.src.dims, "workspace" in self.inputs
        vector = MemoryDesc(dims[1:2], "f32", "a")
        each = views.broadcast_to(over_channels(vector, len(dims)).layout, dims)
        scaled = "scale" in self.inputs
        what = Gradient("normalization", self.epsilon, mean=True, workspace=masked, factor=scaled, sums=True)
        names = ("src", "diff_dst", *["workspace"] * masked, "diff_src")
        seen = {
            name: self.descs[name].with_layout(self.descs[name].layout.with_roles(None)) for name in names
        }
        sums = [name if name in self.outputs else f"unused {name}" for name in ("diff_shift", "diff_scale")]
        of_rows = ["mean", "variance", *["scale"] * scaled, *sums]
        found = row_gradient(
            what, seen, besides_channels(self.src), None, [(name, each) for name in of_rows], in_cache=True
        )
        if found is not None:
            unused = {name: vector.nbytes for name in sums if name not in self.outputs}
            found.scratch = {**found.scratch, **unused}
            found.note = f"channels in the cache, {found.note}"
        return found
