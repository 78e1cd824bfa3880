"""Deconvolution, the transpose of a convolution, in any format.

::

    dst[n, g o, y * stride + r * dilation - padding, x ...] +=
        src[n, g i, y, x] * weights[g, o, i, r, s]

and then scale and bias, with one, two or three spatial axes: each element of the source adds the weights,
times itself, to the destination. :mod:`relayout.primitives.transposed` says how convolutions do that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relayout.errors import LayoutError, counted
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import products as ops
from relayout.primitives.convolution import ImageProducts, filters_of, windows_of
from relayout.primitives.sizes import for_each_axis
from relayout.primitives.transposed import Transposed

__all__ = ["Deconvolution"]


class Deconvolution(ImageProducts):
    """A deconvolution (transposed convolution), made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch, channels, then one to three spatial axes.
    weights : MemoryDesc
        Output channels, input channels, spatial axes (``oihw``), outputs being those of the deconvolution, as
        oneDNN has it (PyTorch and ONNX have the inputs first); with groups these come first (``goihw``), and
        the channels are those of one group.
    bias, dst, scale
        As for :class:`~relayout.primitives.Convolution`.
    strides, dilation : int or sequence of int
        For all spatial axes, or one for each.
    padding : int or sequence
        What the result lacks in front of and behind each spatial axis; for each axis a number or a pair.
    output_padding : int or sequence of int
        Elements that the result has more, behind; where no tap meets them, they are the bias.
    post_ops : sequence
        See :mod:`relayout.ops.post_ops`.

    Raises
    ------
    LayoutError
        Sizes don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((1, 16, 7, 7), "f32", "nhwc")
    >>> weights = rl.MemoryDesc((8, 16, 3, 3), "f32", rl.any)
    >>> Deconvolution(src, weights, strides=2, padding=1, output_padding=1).dst
    MemoryDesc('f32:nhwc:1x8x14x14')
    """

    kind = "deconvolution"
    computes = Transposed
    operation: ops.Deconvolution

    def __init__(
        self,
        src: MemoryDesc,
        weights: MemoryDesc,
        bias: MemoryDesc | None = None,
        dst: MemoryDesc | None = None,
        *,
        scale: MemoryDesc | None = None,
        strides: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        padding: int | Sequence[int | tuple[int, int]] = 0,
        output_padding: int | Sequence[int] = 0,
        post_ops: Any = (),
    ) -> None:
        needed, optional = {"src": src, "weights": weights}, {"bias": bias, "scale": scale}
        filters = filters_of(self.kind, src, weights, {**optional, "dst": dst})
        windows = windows_of(self.kind, filters, strides, dilation, padding)
        more = for_each_axis(self.kind, output_padding, len(filters.kernel), "output_padding", 0)
        sizes = []
        for axis, count in enumerate(src.dims[2:]):
            span = (filters.kernel[axis] - 1) * windows.dilation[axis] + 1
            whole = (count - 1) * windows.strides[axis] + span + more[axis]
            lost = sum(windows.padding[axis])
            if whole < lost and 0 not in (*src.dims, *weights.dims):
                raise LayoutError(
                    f"deconvolution: spatial axis {axis} of src {src} gives {counted(whole, 'element')}; the "
                    f"padding takes {lost} of them away"
                )
            sizes.append(max(0, whole - lost) if count else 0)
        self._of_images(ops.Deconvolution, needed | optional, dst, filters, windows, sizes, post_ops)
