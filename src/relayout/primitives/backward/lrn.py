"""The gradient of local response normalisation, in any format.

::

    w        = k + alpha mean of src^2                                     over the window around each element
    diff_src = diff_dst w^-beta
               - 2 alpha beta src mean of (diff_dst src w^(-beta - 1))     over the window turned round

>>> import relayout as rl
>>> from relayout.primitives import LRN
>>> x = rl.tensor([[[[1.0]], [[2.0]], [[3.0]]]], "nchw", "f32")
>>> made = LRNBackward(LRN(x.desc, size=3, alpha=3.0, beta=1.0, k=0.0))
>>> made(x, rl.tensor([[[[1.0]], [[0.0]], [[0.0]]]], "nchw", "f32")).numpy().ravel().round(2)
array([ 0.12, -0.16,  0.  ], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import lrn as ops
from relayout.ops.expressions import Expression
from relayout.ops.functions import Function
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.normalizing import gradients
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.lowering import elementwise
from relayout.primitives.lrn import LRN, add_mean, in_f32
from relayout.primitives.meaning import check_alike
from relayout.primitives.program import Program

__all__ = ["LRNBackward"]


class LRNBackward(Backward):
    """The gradient of a local response normalisation, made once for its descriptors.

    Its inputs are ``src`` and ``diff_dst``, its output is ``diff_src``.

    Parameters
    ----------
    forward : LRN
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        See :mod:`relayout.primitives.backward.base`.

    Raises
    ------
    LayoutError
        Dims differ from those of the forward pass.
    Unsupported
        The source holds integers.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import LRN
    >>> made = LRNBackward(LRN(rl.MemoryDesc((8, 64, 55, 55), "f32", "nhwc")))
    >>> made.inputs, made.diff_src
    (('src', 'diff_dst'), MemoryDesc('f32:nhwc:8x64x55x55'))
    """

    kind = "lrn_backward"
    hint = LRN
    forward: LRN
    operation: ops.LRNBackward

    def __init__(
        self, forward: LRN, *, diff_dst: MemoryDesc | Any = None, diff_src: MemoryDesc | Any = None
    ) -> None:
        self._made_for(forward)
        diff_dst, diff_src = gradients(self, diff_dst, diff_src)
        inputs = {"src": forward.src, "diff_dst": diff_dst}
        self._settle(ops.LRNBackward, inputs, {"diff_src": diff_src}, **forward.operation.attributes)
        check_alike(self.kind, self.descs)

    @if_possible
    def _lower(self) -> Program:
        what, src, draft = self.operation, self.src, Draft()
        near = in_f32(src)
        square = Expression.of(("f32",), [(Function("square"), "f32", (0,))])
        gradients = {"diff_dst": self.diff_dst, "src": src, "mean square": near}
        add_mean(draft, src, {"src": src}, square, what, "mean square")
        add_mean(draft, src, gradients, what.part, what, "mean part", turned=True)
        draft.append(
            elementwise(self.diff_src, {**gradients, "mean part": near}, what.result, target="diff_src")
        )
        return draft.program("the means of squares and of products of windows, then one pass")
