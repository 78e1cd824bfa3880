"""Softmax and its logarithm along one axis, in any format.

::

    softmax    dst = exp(src - m) / sum over the axis of exp(src - m)         m = max over the axis of src
    log        dst = src - m - log(sum over the axis of exp(src - m))

The maximum is subtracted so that nothing overflows; mathematically it cancels. Computed in f32, results
differ from those in double precision by less than 1e-6 of their size, however long the axis is (see
:mod:`relayout.kernels.reduce.softmax`), and are rounded once where the destination is narrower. For bf16 and
f16 the exponential has 18 bits: results are within 0.51 (bf16) and 0.54 (f16) units in the last place, where
0.5 is rounding alone. The logarithm is computed as that of f32 is.

* -inf among numbers gives 0, or -inf for the logarithm.
* Rows in which all is -inf, or something is +inf or NaN, become NaN. So they do in PyTorch; oneDNN 3 has an
  algorithm that makes zeros of rows of -inf, which is not offered here.
* The padding of channels takes no part, and that of the destination is zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.ops import softmax as ops
from relayout.ops.formats import check_source, target_of
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["Softmax"]


class Softmax(Primitive):
    """A softmax, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Of at least one axis.
    axis : int
        Along which elements add up to 1; negative numbers count from the last axis.
    dst : MemoryDesc, optional
        Without it the format is that of the source, and so is the data type; f32 where the source holds
        integers. Where both are the same ``out`` may be the source.
    log : bool
        The logarithm of it, which is more than the logarithm of the result: nothing underflows.
    guarded : bool
        0 where the result would be NaN, as for rows in which attention masks all, that is -inf alone.

    Raises
    ------
    LayoutError
        There is no such axis, or dst has other sizes.
    Unsupported
        A data type that is not computed with.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> x = rl.tensor([[0.0, 0.0, -np.inf, 0.0, 0.0]], "ab", "f32")
    >>> Softmax(x.desc)(x).numpy()
    array([[0.25, 0.25, 0.  , 0.25, 0.25]], dtype=float32)
    """

    kind = "softmax"
    operation: ops.Softmax

    def __init__(
        self,
        src: MemoryDesc,
        axis: int = 1,
        dst: MemoryDesc | None = None,
        log: bool = False,
        guarded: bool = False,
    ) -> None:
        check_source("softmax", "src", src)
        rank = len(src.dims)
        number = whole_number(axis, "softmax: axis")
        if not -rank <= number < rank:
            raise LayoutError(f"softmax: src {src} has no axis {number}; its axes are 0 to {rank - 1}")
        dst = target_of(self.kind, src, dst, src.dims, real=True)
        one, log, guarded = {"src": src}, bool(log), bool(guarded)
        self._settle(ops.Softmax, one, {"dst": dst}, axis=number % rank, log=log, guarded=guarded)
        check_alike(self.kind, self.descs)

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import softmax

        return softmax(self)
