"""Gradients of resampling, in any format: what each element of the source was read for.

Every element of ``diff_src`` gathers what it gets, with the weights of the forward pass, so the sums have one
order, whatever the number of threads.

>>> import relayout as rl
>>> from relayout.primitives import Resampling
>>> forward = Resampling(rl.MemoryDesc((1, 1, 2), "f32", "ncw"), "linear", factors=2)
>>> ResamplingBackward(forward)(rl.tensor([[[1.0, 2, 3, 4]]], "ncw", dtype="f32")).numpy()
array([[[3.25, 6.75]]], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.forking import locked
from relayout.ops.backward import resampling as ops
from relayout.ops.resampling import transposed
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import passed_back
from relayout.primitives.meaning import check_data
from relayout.primitives.resampling import Resampling

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ResamplingBackward"]


class ResamplingBackward(Backward):
    """The gradient of a resampling.

    Parameters
    ----------
    forward : Resampling
        The resampling.
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass; ``any`` is the format of ``dst``, and
        that of ``diff_dst``.

    Raises
    ------
    LayoutError
        The descriptors don't fit together.
    Unsupported
        The forward pass has post-ops, or a gradient is of integers.
    """

    kind = "resampling backward"
    hint = Resampling
    forward: Resampling
    operation: ops.ResamplingBackward

    def __init__(self, forward: Resampling, *, diff_dst: Any = None, diff_src: Any = None) -> None:
        self._made_for(forward)
        diff_dst, diff_src = passed_back(self, diff_dst, diff_src)
        for name, desc in (("diff_dst", diff_dst), ("diff_src", diff_src)):
            check_data(self.kind, name, desc)
        self._settle(ops.ResamplingBackward, {"diff_dst": diff_dst}, {"diff_src": diff_src},
                     algorithm=forward.algorithm)  # fmt: skip

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.banded import banded, rows_of_resampling

        sizes = self.diff_src.dims[2:]
        forward = rows_of_resampling(self.algorithm, sizes, self.diff_dst.dims[2:])
        rows = [transposed(several, size) for several, size in zip(forward, sizes, strict=True)]
        return banded(self.diff_dst, self.diff_src, rows, names=("diff_dst", "diff_src", ""))
