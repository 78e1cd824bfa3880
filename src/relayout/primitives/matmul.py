"""Matrix product, one or many of them.

::

    dst[b, m, n] = bias[n] + sum over k of src[b, m, k] * weights[b, k, n]

With two axes there is one product; with three the first axis counts them, and weights that have 1 there serve
all. Matrices lie as they like: rows or columns first, with strides, in blocks. For weights that are
used often ``any`` asks for the order that is read fastest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relayout.errors import LayoutError
from relayout.kernels.conv.geometry import Geometry
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops import products as ops
from relayout.ops.checks import check_descs
from relayout.ops.formats import with_formats
from relayout.primitives.product_primitive import ProductPrimitive, vectors_of
from relayout.primitives.products import Products, weights_format

__all__ = ["Matmul"]


class Matmul(ProductPrimitive):
    """A matrix product, made once for its descriptors.

    Parameters
    ----------
    src : MemoryDesc
        ``m`` rows of ``k``; a third axis in front counts matrices.
    weights : MemoryDesc
        ``k`` rows of ``n``, with as many axes.
    bias : MemoryDesc, optional
        One value for each column of the result: f32, s32, or bf16 or f16, which are converted first.
    dst : MemoryDesc, optional
        ``m`` rows of ``n``; without it the format is ``any`` (rows) and the data type that of the source.
    scale, src_zero_point, weights_zero_point, dst_scale, dst_zero_point, post_ops
        As for :class:`~relayout.primitives.convolution.Convolution`; scales, and zero points of weights, are
        those of columns.

    Raises
    ------
    LayoutError
        Sizes don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> tokens = rl.MemoryDesc((197, 768), "f32", "ab")
    >>> product = Matmul(tokens, rl.MemoryDesc((768, 3072), "f32", rl.any), post_ops="gelu_erf")
    >>> product.dst, product.flops
    (MemoryDesc('f32:ab:197x3072'), 929562624)
    """

    kind = "matrix product"

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
        rank = len(src.dims)
        if rank not in (2, 3) or len(weights.dims) != rank:
            raise LayoutError(
                f"matrix product: src {src} and weights {weights} must both have two axes, or three with the "
                "number of matrices first"
            )
        *_, m, k = src.dims
        *_, rows, n = weights.dims
        if rows != k:
            raise LayoutError(
                f"matrix product: src {src} has rows of {k}, weights {weights} have {rows} rows"
            )
        many = src.dims[0] if rank == 3 else 1
        if rank == 3 and weights.dims[0] not in (1, many):
            raise LayoutError(
                f"matrix product: {many} matrices of src {src} and {weights.dims[0]} of weights {weights}; "
                "there must be as many, or one"
            )
        self.sizes = many, m, k, n
        self._complete(ops.Matmul, needed | optional, dst, (*src.dims[:-1], n), n, post_ops)

    def _as_products(self, descs: Mapping[str, MemoryDesc]) -> Products | None:
        """The same as a convolution of one tap: rows are images, columns channels, and matrices groups.

        None where several matrices don't lie as one: blocks of one of their axes end in padding.
        """
        try:
            return self._as_one(descs)
        except LayoutError:
            return None

    def _as_one(self, descs: Mapping[str, MemoryDesc]) -> Products:
        many, _, k, n = self.sizes
        src, dst = (_as_rows(descs[name]) for name in ("src", "dst"))
        weights = _as_filters(descs["weights"])
        groups = weights.dims[0] if len(weights.dims) == 3 else 1
        if groups == 1 and many > 1:  # all matrices meet the same weights: their rows are those of one matrix
            src, dst = (_all_rows(descs[name]) for name in ("src", "dst"))
        geometry = Geometry.of_matrices(src.dims[0], k, n, groups)
        grouped = len(weights.dims) == 3
        return Products(
            geometry,
            src,
            weights,
            dst,
            grouped=grouped,
            post_ops=self.post_ops,
            repeats=True,
            whole=descs["dst"],
            **vectors_of(descs),
        )

    def _formats(self, name: str) -> tuple[str, ...]:
        return ("ab", "ba") if len(self.descs[name].dims) == 2 else ("abc", "acb")

    def _decided(self, given: Mapping[str, MemoryDesc]) -> dict[str, MemoryDesc]:
        """The descriptors with every ``any`` decided: rows for source and destination."""
        rows = "ab" if len(given["src"].dims) == 2 else "abc"
        found = with_formats(given, {"src": rows, "dst": rows})
        weights = found["weights"]
        if weights.layout is None:
            made = self._as_products(found)
            text = weights_format(made) if made is not None else None
            if made is None or text is None:
                found["weights"] = MemoryDesc(weights.dims, weights.dtype, rows)
            else:
                filters = MemoryDesc(made.weights.dims, weights.dtype, text)
                found["weights"] = filters.permute_axes((0, 2, 1) if len(rows) == 3 else (1, 0))
        return with_formats(found, {}, "a")


def _as_rows(desc: MemoryDesc) -> MemoryDesc:
    """Rows by all columns: those of several matrices are put side by side."""
    if len(desc.dims) == 2 or desc.layout is None:
        return desc
    layout = views.merge_axes(views.permute(desc.layout, (1, 0, 2)), 1, 2)
    return desc.with_layout(layout)


def _all_rows(desc: MemoryDesc) -> MemoryDesc:
    """The rows of all matrices by their columns."""
    layout = views.merge_axes(desc.layout, 0, 1)
    return desc.with_layout(layout)


def _as_filters(desc: MemoryDesc) -> MemoryDesc:
    """Output channels, then input channels; of several matrices groups first."""
    order = (0, 2, 1) if len(desc.dims) == 3 else (1, 0)
    if desc.layout is None:
        return MemoryDesc(tuple(desc.dims[axis] for axis in order), desc.dtype, any_format)
    layout = views.permute(desc.layout, order)
    return desc.with_layout(layout)
