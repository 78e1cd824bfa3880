"""Inner product (a fully connected layer): every output is a sum over all inputs of an image.

::

    dst[n, o] = bias[o] + sum over c, z, y, x of src[n, c, z, y, x] * weights[o, c, z, y, x]

A source with spatial axes is not flattened first: with ``any`` the weights get the order in which the source
lies in memory, so that both are read straight on. In fact it is a convolution whose filter is as large as the
image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayout.errors import LayoutError
from relayout.kernels.conv.geometry import Geometry, in_three
from relayout.layout.dense import CHANNELS_LAST
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import products as ops
from relayout.ops.checks import check_descs
from relayout.ops.formats import with_formats
from relayout.primitives.convolution import formats_of_images
from relayout.primitives.meaning import check_data, check_weights
from relayout.primitives.product_primitive import ProductPrimitive, vectors_of
from relayout.primitives.products import Products, weights_format

__all__ = ["InnerProduct"]


class InnerProduct(ProductPrimitive):
    """An inner product, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        Batch, channels, and none to three spatial axes.
    weights : MemoryDesc
        Output channels, then the axes of the source but its batch.
    bias : MemoryDesc, optional
        One value for each output channel: f32, s32, or bf16 or f16, which are converted first.
    dst : MemoryDesc, optional
        Batch and output channels; without it the format is ``any`` and the data type that of the source.
    scale, src_zero_point, weights_zero_point, dst_scale, dst_zero_point, post_ops
        As for :class:`~relayout.primitives.convolution.Convolution`.

    Raises
    ------
    LayoutError
        Sizes don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> src = rl.MemoryDesc((8, 512, 7, 7), "f32", "nhwc")
    >>> fc = InnerProduct(src, rl.MemoryDesc((1000, 512, 7, 7), "f32", rl.any))
    >>> fc.dst, fc.flops
    (MemoryDesc('f32:nc:8x1000'), 401408000)
    """

    kind = "inner product"

    def __init__(
        self,
        src: MemoryDesc,
        weights: MemoryDesc,
        bias: MemoryDesc | None = None,
        dst: MemoryDesc | None = None,
        *,
        scale: MemoryDesc | None = None,
        src_zero_point: MemoryDesc | None = None,
        weights_zero_point: MemoryDesc | None = None,
        dst_scale: MemoryDesc | None = None,
        dst_zero_point: MemoryDesc | None = None,
        post_ops: Any = (),
    ) -> None:
        needed, optional = {"src": src, "weights": weights}, {"bias": bias, "scale": scale}
        optional |= {"src_zero_point": src_zero_point, "weights_zero_point": weights_zero_point}
        optional |= {"dst_scale": dst_scale, "dst_zero_point": dst_zero_point}
        check_descs(self.kind, needed, {**optional, "dst": dst})
        if not 2 <= len(src.dims) <= 5:
            raise LayoutError(f"inner product: src {src} must have 2 to 5 axes, batch and channels first")
        if weights.dims[1:] != src.dims[1:]:
            raise LayoutError(
                f"inner product: weights {weights} must have the sizes of src {src} behind the first axis"
            )
        check_data(self.kind, "src", src)
        check_weights(self.kind, "weights", weights, len(src.dims) - 2)
        outputs = weights.dims[0]
        size, one = in_three(src.dims[2:]), (1, 1, 1)
        self.geometry = Geometry(src.dims[0], 1, src.dims[1], outputs, size, one, size, one, one, (0, 0, 0))
        dims = src.dims[0], outputs
        self._complete(ops.InnerProduct, needed | optional, dst, dims, outputs, post_ops)

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products:
        src, weights, dst = (descs[name] for name in ("src", "weights", "dst"))
        return Products(self.geometry, src, weights, dst, post_ops=self.post_ops, **vectors_of(descs))

    def _formats(self, name: str) -> tuple[str, ...]:
        desc = self.descs[name]
        return formats_of_images(desc) if len(desc.dims) > 2 else ("nc",)

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided; the weights take the order of the source."""
        spatial = len(given["src"].dims) - 2
        given = with_formats(given, {"src": CHANNELS_LAST[len(given["src"].dims)]})
        src = given["src"]
        wanted = weights_format(self._as_products(given))
        if wanted is None:
            wanted = ("oi", "oiw", "oihw", "oidhw")[spatial]
        elif spatial and src.layout.is_plain and "O" in wanted:
            axes = sorted(range(1, spatial + 2), key=lambda axis: -src.strides[axis])
            letters = "oi" + "dhw"[3 - spatial :]
            inner = wanted.lstrip("OdhwIi")
            if "I" not in wanted:  # pairs of channels stay together
                wanted = "O" + "".join(letters[axis] for axis in axes) + inner
        return with_formats(given, {"weights": wanted, "dst": "nc"}, "a")
