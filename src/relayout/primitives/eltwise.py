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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.formats import check_source, check_target, following, overwritable
from relayout.ops.functions import Function
from relayout.ops.post_ops import adds, applied, operands_of, post_ops_for
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relayout.primitives.program import Program

__all__ = ["Eltwise"]


class Eltwise(Primitive):
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
    Eltwise(clip(0, 6): src f32:nChw16c:8x64x56x56, dst f32:nChw16c:8x64x56x56)
    """

    kind = "eltwise"

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
        if isinstance(algorithm, Function):
            if alpha or beta:
                raise LayoutError(f"eltwise: {algorithm!r} has its numbers; alpha and beta go with a name")
            self.function = algorithm
        else:
            self.function = Function(algorithm, alpha, beta)
        check_source(self.kind, "src", src)
        if dst is None:
            dst = MemoryDesc(src.dims, src.dtype, any_format)
        dst = following(src, dst)
        check_target(self.kind, dst, src.dims)
        self.post_ops = post_ops_for(self.kind, post_ops, dst)
        operands = operands_of(self.post_ops)
        self.inputs = ("src", *operands)
        self.descs = {"src": src, **operands, "dst": dst}
        check_alike(self.kind, self.descs)
        self.accumulates = ("dst",) * adds(self.post_ops)
        self.in_place = {} if self.accumulates else overwritable(self.descs)

    def _implementation(self) -> str:
        return f"machine code: {self.function}"

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return applied(self.post_ops, self.function.definition(arrays["src"]), arrays)

    @locked
    def _lower(self) -> Program | None:
        from relayout.kernels.elementwise.bodies import function
        from relayout.primitives.lowering import elementwise

        return elementwise(self.dst, {"src": self.src}, function(self.function), post_ops=self.post_ops)

    def __repr__(self) -> str:
        return f"Eltwise({self.function}: src {self.src}, dst {self.dst})"
