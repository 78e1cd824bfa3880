"""Softmax and its logarithm along one axis, in any format.

::

    softmax    dst = exp(src - m) / sum over the axis of exp(src - m)         m = max over the axis of src
    log        dst = src - m - log(sum over the axis of exp(src - m))

The maximum is subtracted so that nothing overflows; mathematically it cancels. Computed in f32, results
differ from those in double precision by less than 1e-6 of their size, however long the axis is (see
:mod:`relayout.kernels.reduce.softmax`), and are rounded once where the destination is narrower.

* -inf among numbers gives 0, or -inf for the logarithm.
* Rows in which all is -inf, or something is +inf or NaN, become NaN. So they do in PyTorch; oneDNN 3 has an
  algorithm that makes zeros of rows of -inf, which is not offered here.
* The padding of channels takes no part, and that of the destination is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import whole_number
from relayout.ops.formats import check_source, check_target, following
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.primitives.program import Program

__all__ = ["Softmax"]

FLOPS = 4  # of an element: comparison, difference, exponential, product


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
    >>> import relayout as rl
    >>> x = rl.tensor([[0.0, 0.0, -np.inf, 0.0, 0.0]], "ab", "f32")
    >>> Softmax(x.desc)(x).numpy()
    array([[0.25, 0.25, 0.  , 0.25, 0.25]], dtype=float32)
    """

    kind = "softmax"
    inputs = ("src",)
    _note = ""
    _workings = Primitive._workings | {"_note"}

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
        if dst is None:
            dst = MemoryDesc(src.dims, src.dtype if src.dtype.is_float else "f32", any_format)
        check_target("softmax", dst, src.dims)
        self.axis, self.log, self.guarded = number % rank, bool(log), bool(guarded)
        self.descs = {"src": src, "dst": following(src, dst)}
        check_alike(self.kind, self.descs)
        same = src.dtype is self.dst.dtype and src.layout.same_bytes(self.dst.layout)
        self.in_place = {"dst": ("src",)} if same else {}

    @property
    def flops(self) -> int:
        """Comparisons, differences, exponentials and products."""
        return FLOPS * self.descs["dst"].layout.size

    def _implementation(self) -> str:
        return f"machine code: {self._note}"

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        found = definition(arrays["src"], self.axis, self.log)
        return np.where(np.isnan(found), 0.0, found) if self.guarded else found

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.combining import softmax

        found = softmax(self)
        if found is None:
            return None
        self._note, program = found
        return program


def definition(x: NDArray[np.float64], axis: int, log: bool = False) -> NDArray[np.float64]:
    """The softmax of a logical array, or its logarithm.

    >>> definition(np.log([[1.0, 2.0, 5.0]]), 1)
    array([[0.125, 0.25 , 0.625]])
    """
    if x.size == 0:
        return x
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True)
        e = np.exp(shifted)
        if not log:
            return np.asarray(e / e.sum(axis, keepdims=True))
        # The largest element is 1; adding what there is besides keeps the digits of small sums.
        first = e.argmax(axis)
        rest = e.copy()
        np.put_along_axis(rest, np.expand_dims(first, axis), 0, axis)
        y = shifted - np.log1p(rest.sum(axis, keepdims=True))
        return np.asarray(np.where(np.isnan(e.sum(axis, keepdims=True)), np.nan, y))
