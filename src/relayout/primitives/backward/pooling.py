"""Gradients of pooling, in any format: each window hands on what it got.

::

    max        diff_src[p] = sum of diff_dst[o] over the windows o whose maximum is the element p
    averages   diff_src[p] = sum of diff_dst[o] / (elements of o) over the windows o that p is in

Windows may overlap. Every element of ``diff_src`` gathers what it gets, so the sums have one order, whatever
the number of threads, and nothing is zeroed first. Where the largest element was is what the forward pass has
kept (``Pooling(..., workspace=True)``):

>>> import relayout as rl
>>> from relayout.primitives import Pooling
>>> x = rl.tensor([[[3, 1, 4, 1, 5, 9, 2, 6]]], "ncw", "f32")
>>> forward = Pooling(x.desc, "max", 3, strides=1, workspace=True)
>>> y, workspace = forward(x)
>>> y.numpy()
array([[[4., 4., 5., 9., 9., 9.]]], dtype=float32)
>>> PoolingBackward(forward)(rl.tensor([[[1, 2, 3, 4, 5, 6]]], "ncw", "f32"), workspace).numpy()
array([[[ 0.,  0.,  3.,  0.,  3., 15.,  0.,  0.]]], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.ops.backward import pooling as ops
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import check_gradient, followed
from relayout.primitives.meaning import check_data
from relayout.primitives.pooling import Pooling

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["PoolingBackward"]


class PoolingBackward(Backward):
    """The gradient of a pooling.

    Parameters
    ----------
    forward : Pooling
        The pooling; of maxima one that was made with ``workspace=True``.
    diff_dst, diff_src, workspace : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass. ``any`` is the format of ``dst`` for
        what is read, and that of ``diff_dst`` for ``diff_src``.

    Raises
    ------
    LayoutError
        The forward pass keeps no workspace, or descriptors don't fit together.
    Unsupported
        The forward pass has post-ops, or a gradient is of integers.
    """

    kind = "pooling backward"
    hint = Pooling
    forward: Pooling
    operation: ops.PoolingBackward

    def __init__(
        self, forward: Pooling, *, diff_dst: Any = None, diff_src: Any = None, workspace: Any = None
    ) -> None:
        self._made_for(forward)
        diff_dst = followed(forward.dst, self._like("diff_dst", diff_dst, forward.dst))
        inputs = {"diff_dst": diff_dst}
        if forward.algorithm == "max":
            if "workspace" not in forward.outputs:
                raise LayoutError(
                    f"{self.kind}: the forward pooling keeps no workspace, without which nobody knows which "
                    "elements were the largest; make it with workspace=True"
                )
            kept = forward.descs["workspace"]
            inputs["workspace"] = followed(diff_dst, self._like("workspace", workspace, kept))
            if inputs["workspace"].dtype != kept.dtype:
                raise LayoutError(
                    f"{self.kind}: workspace {inputs['workspace']} must be {kept.dtype}, as the forward pass "
                    "writes it"
                )
        elif workspace is not None:
            raise LayoutError(f"{self.kind}: {forward.algorithm} has no workspace")
        diff_src = followed(diff_dst, self._like("diff_src", diff_src, forward.src, written=True))
        for name, desc in (("diff_dst", diff_dst), ("diff_src", diff_src)):
            check_data(self.kind, name, desc)
            check_gradient(self.kind, name, desc)
        self.axes = forward.axes
        attributes = forward.operation.attributes
        self._settle(ops.PoolingBackward, inputs, {"diff_src": diff_src}, **attributes)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.banded import banded, rows_of_pooling

        aside = self.descs.get("workspace")
        names = "diff_dst", "diff_src", "workspace"
        return banded(self.diff_dst, self.diff_src, rows_of_pooling(self), aside=aside, names=names)
