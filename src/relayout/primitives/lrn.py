"""Local response normalisation, in any format: windows of channels, or of pixels.

::

    dst = src / (k + alpha mean of src^2)^beta        over the window around each element

A window has ``size`` channels, or ``size`` pixels along each spatial axis; what lies outside of the tensor
counts as zero, and the mean is always that of all places of a window. This is oneDNN's formula, and ONNX's
and PyTorch's for channels.

The mean of squares is the kernel of pooling, what becomes of it one pass element by element.

>>> import relayout as rl
>>> x = rl.tensor([[[[1.0]], [[2.0]], [[3.0]]]], "nchw", "f32")
>>> LRN(x.desc, size=3, alpha=3.0, beta=1.0, k=0.0)(x).numpy().ravel()
array([0.2       , 0.14285715, 0.23076923], dtype=float32)
"""

from __future__ import annotations

from typing import Any

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.ops import lrn as ops
from relayout.ops.formats import check_source, finite, target_of
from relayout.primitives.meaning import check_alike, check_data
from relayout.primitives.primitive import Primitive

__all__ = ["LRN"]


class LRN(Primitive):
    """A local response normalisation, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch and channels first, then any number of axes, but for ``within_channel`` at least one.
    dst : MemoryDesc, optional
        Without it the format of the source, and its data type; f32 where the source holds integers.
    algorithm : str
        ``across_channels`` or ``within_channel``.
    size : int
        Channels of a window, or pixels along each axis; 1 or more. (size - 1) // 2 of them are in front of
        the element.
    alpha, beta, k : float
        See above; k is ``bias`` in ONNX.

    Raises
    ------
    LayoutError
        There is no such algorithm, a size below 1, or descriptors don't fit together.
    Unsupported
        A data type that is not computed with.

    Examples
    --------
    >>> import relayout as rl
    >>> x = rl.MemoryDesc((8, 64, 55, 55), "f32", "nChw16c")
    >>> LRN(x, size=5, alpha=1e-4, beta=0.75, k=2.0).dst
    MemoryDesc('f32:nChw16c:8x64x55x55')
    """

    kind = "lrn"
    operation: ops.LRN

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc | None = None,
        *,
        algorithm: str = "across_channels",
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
    ) -> None:
        check_source(self.kind, "src", src)
        check_data(self.kind, "src", src)
        if algorithm not in ops.ALGORITHMS:
            raise LayoutError(f"lrn: {algorithm!r} is no algorithm; there are {', '.join(ops.ALGORITHMS)}")
        least = 2 + (algorithm == "within_channel")
        if len(src.dims) < least:
            raise LayoutError(f"lrn: src {src} needs at least {least} axes, batch and channels first")
        if (window := whole_number(size, "lrn: size")) < 1:
            raise LayoutError(f"lrn: size must be 1 or more, got {size}")
        numbers = {"alpha": alpha, "beta": beta, "k": k}
        what: dict[str, Any] = {"algorithm": algorithm, "size": window}
        what |= {name: finite(f"lrn: {name}", number) for name, number in numbers.items()}
        dst = target_of(self.kind, src, dst, src.dims, real=True)
        self._settle(ops.LRN, {"src": src}, {"dst": dst}, **what)
        check_alike(self.kind, self.descs)
