"""Elementwise functions, in any format: ``dst[i] = f(src[i])``.

The functions are those of :mod:`relayout.ops.functions`. What this file adds is the tensor around:

>>> import relayout as rl
>>> x = rl.tensor([[-4.0, -1.0, 2.0]], "aB4b", dtype="f32")
>>> made = Eltwise(x.desc, "exp")
>>> y = made(x)
>>> y.numpy().round(3)
array([[0.018, 0.368, 7.389]], dtype=float32)
>>> y.buffer.view("f4")[3]  # padding, where e^0 would be 1
np.float32(0.0)
"""

from __future__ import annotations

from typing import Any

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import elementwise as ops
from relayout.ops.formats import check_source, target_of
from relayout.ops.functions import Function
from relayout.ops.post_ops import post_ops_for
from relayout.primitives.elementwise import Elementwise
from relayout.primitives.meaning import check_alike

__all__ = ["Eltwise"]


class Eltwise(Elementwise):
    """An elementwise function, made once for its descriptors.

    Source and destination may be the same memory, if their descriptors are the same.

    Parameters
    ----------
    src : MemoryDesc
        Any dims.
    algorithm : str or Function
        The name of one of :data:`relayout.ops.functions.ALGORITHMS`, or a function.
    dst : MemoryDesc, optional
        Without it the format and the data type of the source.
    alpha, beta : float
        The numbers of the algorithm, if that is a name.
    post_ops : sequence, optional
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        There is no such function, or the descriptors don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 56, 56), "f32", "nChw16c")
    >>> Eltwise(x, "clip", alpha=0, beta=6)
    Eltwise(src f32:nChw16c:8x64x56x56, dst f32:nChw16c:8x64x56x56, function clip(0, 6))
    """

    kind = "eltwise"
    operation: ops.Eltwise

    def __init__(
        self,
        src: MemoryDesc,
        algorithm: str | Function,
        dst: MemoryDesc | None = None,
        alpha: float = 0.0,
        beta: float = 0.0,
        *,
        post_ops: Any = (),
    ) -> None:
        if not isinstance(algorithm, Function):
            algorithm = Function(algorithm, alpha, beta)
        elif alpha or beta:
            raise LayoutError(f"eltwise: {algorithm!r} has its numbers; alpha and beta go with a name")
        check_source(self.kind, "src", src)
        dst = target_of(self.kind, src, dst, src.dims)
        post_ops = post_ops_for(self.kind, post_ops, dst)
        self._settle(ops.Eltwise, {"src": src}, {"dst": dst}, post_ops, function=algorithm)
        check_alike(self.kind, self.descs)
