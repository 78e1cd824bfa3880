"""Gradients of elementwise functions, in any format: ``diff_src[i] = diff_dst[i] f'(src[i])``.

The derivatives are those of :mod:`relayout.ops.derivatives`. Some are known from the destination as well, so
that the source need not be kept until then; oneDNN has names of their own for these
(``eltwise_relu_use_dst_for_bwd``), here it is an argument:

>>> import relayout as rl
>>> from relayout.primitives import Eltwise
>>> x = rl.tensor([[-1.0, 2.0]], "ab", dtype="f32")
>>> forward = Eltwise(x.desc, "relu")
>>> y, diff = forward(x), rl.tensor([[3.0, 4.0]], "ab", dtype="f32")
>>> EltwiseBackward(forward)(x, diff).numpy()
array([[0., 4.]], dtype=float32)
>>> by_dst = EltwiseBackward(forward, use_dst=True)
>>> by_dst.inputs, by_dst(y, diff).numpy()
(('dst', 'diff_dst'), array([[0., 4.]], dtype=float32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.forking import locked
from relayout.ops.backward import elementwise as ops
from relayout.ops.formats import check_source
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import check_gradient, followed
from relayout.primitives.eltwise import Eltwise
from relayout.primitives.meaning import check_alike

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["EltwiseBackward"]


class EltwiseBackward(Backward):
    """The gradient of an elementwise function.

    ``diff_src`` may be the memory of ``diff_dst``, or of ``src``, if their descriptors are the same.

    Parameters
    ----------
    forward : Eltwise
        The function.
    diff_dst, diff_src, src, dst : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass; ``any`` is the format of ``src`` (of
        ``dst``, if that is read).
    use_dst : bool
        Whether the destination is read in place of the source.

    Raises
    ------
    LayoutError
        The descriptors don't fit together.
    Unsupported
        The function has no derivative, or none from the destination; or the gradient is of integers.
    """

    kind = "eltwise backward"
    hint = Eltwise
    forward: Eltwise
    operation: ops.EltwiseBackward

    def __init__(
        self,
        forward: Eltwise,
        *,
        diff_dst: Any = None,
        diff_src: Any = None,
        src: Any = None,
        dst: Any = None,
        use_dst: bool = False,
    ) -> None:
        self._made_for(forward)
        forward.function.derivative(use_dst)  # refuses those without one
        name = "dst" if use_dst else "src"
        kept = self._like(name, dst if use_dst else src, forward.descs[name])
        kept = followed(forward.descs[name], kept)
        check_source(self.kind, name, kept)
        diff_dst = followed(kept, self._like("diff_dst", diff_dst, forward.dst))
        diff_src = followed(kept, self._like("diff_src", diff_src, forward.src, written=True))
        inputs = {name: kept, "diff_dst": diff_dst}
        check_gradient(self.kind, "diff_dst", diff_dst)
        check_gradient(self.kind, "diff_src", diff_src)
        self._settle(ops.EltwiseBackward, inputs, {"diff_src": diff_src},
                     function=forward.function, use_dst=bool(use_dst))  # fmt: skip
        check_alike(self.kind, self.descs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import elementwise

        operands = {name: self.descs[name] for name in self.inputs}
        what = self.operation.expression
        return elementwise(self.diff_src, operands, what, target="diff_src", note=f"{self.function} backward")
