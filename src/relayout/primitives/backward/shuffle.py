"""The gradient of a shuffle, in any format: the shuffle that puts everything back.

>>> import relayout as rl
>>> from relayout.primitives import Shuffle
>>> x = rl.tensor([[0.0, 1, 2, 3, 4, 5]], "ab", dtype="f32")
>>> forward = Shuffle(x.desc, 1, 3)
>>> ShuffleBackward(forward)(forward(x)).numpy()
array([[0., 1., 2., 3., 4., 5.]], dtype=float32)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.ops.backward import shuffle as ops
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import passed_back
from relayout.primitives.meaning import check_alike
from relayout.primitives.shuffle import Shuffle, shuffled

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ShuffleBackward"]


class ShuffleBackward(Backward):
    """The gradient of a shuffle.

    Parameters
    ----------
    forward : Shuffle
        The shuffle.
    diff_dst, diff_src : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass; ``any`` is the format of ``dst``, and
        that of ``diff_dst``.

    Raises
    ------
    LayoutError
        The descriptors don't fit together.
    Unsupported
        A gradient is of integers.
    """

    kind = "shuffle backward"
    hint = Shuffle
    forward: Shuffle
    operation: ops.ShuffleBackward

    def __init__(self, forward: Shuffle, *, diff_dst: Any = None, diff_src: Any = None) -> None:
        self._made_for(forward)
        diff_dst, diff_src = passed_back(self, diff_dst, diff_src)
        self._settle(ops.ShuffleBackward, {"diff_dst": diff_dst}, {"diff_src": diff_src},
                     axis=forward.axis, group_size=forward.group_size)  # fmt: skip
        check_alike(self.kind, self.descs)

    def _lower(self) -> Program | None:
        size = self.operation.inverse.group_size
        return shuffled(self.diff_dst, self.diff_src, self.axis, size, ("diff_dst", "diff_src"))
