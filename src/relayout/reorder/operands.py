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
from relayout.reorder.lines import lines, middles
from relayout.reorder.quotients import enclosing, reciprocals

if TYPE_CHECKING:
    from relayout.dtypes import DType
    from relayout.kernels.copy.problem import Table
    from relayout.reorder.attributes import Attributes

__all__ = ["fit", "packed", "rows_of"]

LINE, MIDDLE = "line", "middle"  # in place of the name of an attribute: what all of them make of bytes
LARGEST_DIVISOR = {"f32": 2.0**100, "f64": 2.0**1000}
"""By the type of the arithmetic: whose reciprocals are neither lost nor subnormal."""


@locked
def rows_of(tables: Sequence[Table]) -> tuple[Row, ...]:
    """Where a kernel with these tables looks for values."""
    from relayout.ir.conversions import LINES, MIDDLES, MISSING, RECIPROCALS
    from relayout.kernels.copy.problem import LANES

    rows: list[Row] = []
    for table in tables:
        name, bound = table.name, PLAIN
        for instead, several in ((LINE, (*LINES, MISSING)), (MIDDLE, (MIDDLES,)), ("dst_scale", RECIPROCALS)):
            if table.name in several:
                name, bound = instead, several.index(table.name)
        rows.append((name, bound, table.offset, table.end, table.entries + LANES))
    return tuple(rows)


def fit(rows: Sequence[Row], attributes: Attributes, src: DType, dst: DType) -> bool:
    """Whether kernels can take these values: what they multiply by the reciprocals of must have some."""
    divisor = attributes.dst_scale
    if divisor is None or all(bound == PLAIN or name in (LINE, MIDDLE) for name, bound, *_ in rows):
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
    pair: tuple[NDArray[Any], NDArray[Any]] | None = None
    found: list[NDArray[np.float32]] = []
    for name, bound, begin, end, count in rows:
        entries = block[begin:end].view(arithmetic.numpy)[:count]
        if name in (LINE, MIDDLE):
            found = found or _learnt(name, attributes, src, dst, scales)
            block[begin:end].view(np.float32)[:count] = np.resize(found[bound], count)
            continue
        values = np.float64(attributes.beta) if name == "beta" else getattr(attributes, name).values
        if name in ("beta", "src_scale", "dst_scale"):
            values = convert(values, scales)
        if bound != PLAIN:
            pair = pair or _reciprocals(attributes, convert(values, arithmetic), dst)
            values = pair[bound]
        entries[:] = np.resize(convert(values, arithmetic), entries.shape)
    return block


def _types(attributes: Attributes, src: DType, dst: DType) -> tuple[DType, DType]:
    """The type of the arithmetic, and that of scales."""
    return arithmetic_types(src, dst, accumulate=attributes.reads_destination, shifted=attributes.is_shifted)


def _learnt(
    name: str, attributes: Attributes, src: DType, dst: DType, scales: DType
) -> list[NDArray[np.float32]]:
    """The lines on which bytes lie, and whether one is missing; or whether results are in middles."""
    steps = {}
    for step in ("src_zero_point", "src_scale", "src_shift", "dst_scale", "dst_zero_point"):
        one = getattr(attributes, step)
        if one is not None:
            steps[step] = convert(one.values, scales) if step.endswith("scale") else one.values
    if name == LINE:
        return lines(src, dst, **steps)
    return [middles(src, **{step: convert(values, "f32") for step, values in steps.items()})]


def _reciprocals(
    attributes: Attributes, scales: NDArray[Any], dst: DType
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers in place of each scale of the destination, by which kernels find a quotient."""
    if scales.dtype != np.float32:
        return enclosing(scales)
    divisor, added = attributes.dst_scale, attributes.dst_zero_point
    if added is None:
        return reciprocals(scales, np.float32(0), dst)
    points = convert(added.values, "f32")
    if divisor is None or divisor.axis != added.axis:  # any scale may meet any zero point
        points = np.unique(points)[None]
    return reciprocals(scales, points, dst)
