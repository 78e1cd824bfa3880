"""Operands: the values of attributes as kernels read them.

A kernel finds scales, zero points and shifts in one block of memory, a table for each of them, in the type of
the arithmetic. A row (:data:`relayout.reorder.kept.Row`) says where one is. Rows are kept with the kernel, so
that whoever calls it needs none of what it was made by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.convert import arithmetic_types, convert
from relayout.forking import locked
from relayout.reorder.kept import PLAIN, Row

if TYPE_CHECKING:
    from relayout.dtypes import DType
    from relayout.kernels.copy.problem import Table
    from relayout.reorder.attributes import Attributes

__all__ = ["fit", "packed", "rows_of"]

LARGEST_DIVISOR = {"f32": 2.0**100, "f64": 2.0**1000}
"""By the type of the arithmetic: whose reciprocals are neither lost nor subnormal."""


@locked
def rows_of(tables: Sequence[Table]) -> tuple[Row, ...]:
    """Where a kernel with these tables looks for values."""
    from relayout.ir.conversions import RECIPROCALS
    from relayout.kernels.copy.problem import LANES

    rows: list[Row] = []
    for table in tables:
        bound = RECIPROCALS.index(table.name) if table.name in RECIPROCALS else PLAIN
        name = table.name if bound == PLAIN else "dst_scale"
        rows.append((name, bound, table.offset, table.end, table.entries + LANES))
    return tuple(rows)


def fit(rows: Sequence[Row], attributes: Attributes, src: DType, dst: DType) -> bool:
    """Whether kernels can take these values: what they multiply by the reciprocals of must have some."""
    divisor = attributes.dst_scale
    if divisor is None or all(bound == PLAIN for _, bound, *_ in rows):
        return True
    size, most = (
        np.abs(divisor.values.astype(np.float64)),
        LARGEST_DIVISOR[_types(attributes, src, dst)[0].name],
    )
    return bool((size > 1 / most).all() and (size < most).all())


def packed(rows: Sequence[Row], attributes: Attributes, src: DType, dst: DType) -> NDArray[np.uint8]:
    """The block of values."""
    arithmetic, scales = _types(attributes, src, dst)
    block = np.zeros(rows[-1][3], np.uint8)
    fused = any(name == "dst_zero_point" for name, *_ in rows)
    for name, bound, begin, end, count in rows:
        entries = block[begin:end].view(arithmetic.numpy)[:count]
        values = np.float64(attributes.beta) if name == "beta" else getattr(attributes, name).values
        if name in ("beta", "src_scale", "dst_scale"):
            values = convert(values, scales)
        if bound != PLAIN:
            values = _reciprocals(convert(values, arithmetic), fused)[bound]
        entries[:] = np.resize(convert(values, arithmetic), entries.shape)
    return block


def _types(attributes: Attributes, src: DType, dst: DType) -> tuple[DType, DType]:
    """The type of the arithmetic, and that of scales."""
    return arithmetic_types(src, dst, accumulate=attributes.reads_destination, shifted=attributes.is_shifted)


def _reciprocals(scales: NDArray[Any], fused: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers of the scales' type that enclose 1 / scale, the one nearer to zero first; where it is exact,
    twice the same. Those of f32 are neighbours; for f64 nothing wider tells on which side the nearest lies,
    and so it is enclosed by its own two.

    ``fused`` says that kernels do not round products. Those of f32 are then one step farther apart, by which
    products enclose the rounded quotient, too: a step is more than half of a unit in the last place.
    """
    nearest = scales.dtype.type(1) / scales
    below, above = _nearer(nearest), _farther(nearest)
    if scales.dtype == np.float32:
        one = nearest.astype(np.float64) * scales  # exact, and more than 1 where the reciprocal is too large
        below, above = np.where(one > 1, below, nearest), np.where(one < 1, above, nearest)
        if fused:
            below, above = _nearer(below), _farther(above)
    exact = np.abs(np.frexp(scales)[0]) == 0.5
    return np.where(exact, nearest, below), np.where(exact, nearest, above)


def _nearer(numbers: NDArray[Any]) -> NDArray[Any]:
    """The next numbers towards zero."""
    return np.asarray(np.nextafter(numbers, np.zeros_like(numbers)))


def _farther(numbers: NDArray[Any]) -> NDArray[Any]:
    """The next numbers away from zero."""
    return np.asarray(np.nextafter(numbers, np.copysign(np.inf, numbers).astype(numbers.dtype)))
