"""The gradient of softmax and of its logarithm along one axis, in any format.

::

    softmax    diff_src = dst (diff_dst - sum over the axis of diff_dst dst)
    log        diff_src = diff_dst - exp(dst) sum over the axis of diff_dst

What the forward pass wrote is all that is read of it.

>>> import relayout as rl
>>> from relayout.primitives import Softmax
>>> forward = Softmax(rl.MemoryDesc((1, 2), "f32", "ab"))
>>> y, d = (rl.tensor([row], "ab", "f32") for row in ([0.25, 0.75], [1.0, 0.0]))
>>> SoftmaxBackward(forward)(y, d).numpy()
array([[ 0.1875, -0.1875]], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import Unsupported
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import softmax as ops
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.normalizing import gradients
from relayout.primitives.meaning import check_alike
from relayout.primitives.softmax import Softmax

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["SoftmaxBackward"]

DATA = ("dst", "diff_dst", "diff_src")


class SoftmaxBackward(Backward):
    """The gradient of a softmax, made once for its descriptors.

    Its inputs are ``dst`` and ``diff_dst``, its output is ``diff_src``.

    Parameters
    ----------
    forward : Softmax
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        See :mod:`relayout.primitives.backward.base`.

    Raises
    ------
    LayoutError
        Dims differ from those of the forward pass.
    Unsupported
        The forward pass reads or writes integers, or is a guarded logarithm: the zeros that it wrote in the
        place of NaN can't be told from others.

    Examples
    --------
    >>> import relayout as rl
    >>> from relayout.primitives import Softmax
    >>> made = SoftmaxBackward(Softmax(rl.MemoryDesc((8, 1000), "bf16", "ab"), log=True))
    >>> made.inputs, made.diff_src
    (('dst', 'diff_dst'), MemoryDesc('bf16:ab:8x1000'))
    """

    kind = "softmax_backward"
    hint = Softmax
    forward: Softmax
    operation: ops.SoftmaxBackward

    def __init__(
        self, forward: Softmax, *, diff_dst: MemoryDesc | Any = None, diff_src: MemoryDesc | Any = None
    ) -> None:
        self._made_for(forward)
        what = forward.operation
        if what.log and what.guarded:
            raise Unsupported(
                f"{self.kind}: the forward primitive is a guarded logarithm, whose zeros in the place of NaN "
                "have no gradient that the result would tell"
            )
        diff_dst, diff_src = gradients(self, diff_dst, diff_src, "dst")
        inputs = {"dst": forward.dst, "diff_dst": diff_dst}
        self._settle(ops.SoftmaxBackward, inputs, {"diff_src": diff_src}, axis=what.axis, log=what.log)
        check_alike(self.kind, self.descs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.kernels.reduce.gradients import Gradient
        from relayout.primitives.backward.rows import row_gradient

        what = self.operation
        kind = Gradient("log_softmax" if what.log else "softmax")
        return row_gradient(kind, {name: self.descs[name] for name in DATA}, [what.axis])
