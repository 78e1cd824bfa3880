"""What NumPy and PyTorch can say of a blocked format: strided views of split digits.

Neither knows ``nChw16c``. But whoever uses them can: split the channels into blocks and channels of a block
(``reshape``), permute, copy. In general that is one strided copy for each piece of the common refinement of
both layouts (:mod:`relayout.loops.refine`), after zeros were written where there is padding. Loops are
ordered as the destination has them, which is the order in which both libraries are fastest.

Attributes take several operations with a buffer between them, each rounded as :mod:`relayout.convert` says::

    between = (source - zero point) * scale / scale + zero point
    between = between, rounded and clamped          where the destination is of integers
    destination = between
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.bench.suite import Case
from relayout.loops.nest import Loop, Nest, order, view
from relayout.loops.refine import nests, refine, table_along
from relayout.records import replace

__all__ = ["STEPS", "Copy", "copies", "saturates"]

WIDE = {"f64", "s64", "s32"}
MOST = 16  # strided copies that somebody would write down for one reorder

STEPS = ("src_zero_point", "src_scale", "dst_scale", "dst_zero_point")
"""Attributes in the order in which they are applied."""


class Copy(NamedTuple):
    """One strided copy; strides and offsets count elements."""

    shape: tuple[int, ...]
    src: int
    src_strides: tuple[int, ...]
    dst: int
    dst_strides: tuple[int, ...]
    operands: dict[str, NDArray[np.float32]]
    """The values of each attribute in the order of :data:`STEPS`; they broadcast against the shape."""


def copies(case: Case) -> list[Copy] | None:
    """The strided copies that a reorder consists of.

    None where these would not be the same: half bytes, conversions that f32 is too narrow for, too many
    pieces.

    >>> [copy] = copies(Case("mine", (2, 32, 3, 3), "nchw", "nChw16c", "f32", "f32"))
    >>> copy.shape, copy.src_strides, copy.dst_strides
    ((2, 2, 3, 3, 16), (288, 144, 3, 1, 9), (288, 144, 48, 16, 1))
    """
    src, dst = case.source, case.target
    converts = case.attributes or src.dtype != dst.dtype
    if case.has_nibbles or (converts and {case.src_dtype, case.dst_dtype} & WIDE):
        return None
    given = case.attribute_values()
    tables = {name: given[name] for name in STEPS if isinstance(given.get(name), tuple)}
    between = (table_along(src.dims, axis) for _, axis in tables.values())
    layouts = (src.layout, *between, dst.layout)
    groups = refine(*layouts)
    found = nests(groups, [layout.offset0 for layout in layouts], MOST)
    if found is None or any(len(group.axes) > 1 for group in groups):
        return None
    return [_copy(nest, given, list(tables)) for nest in found]


def saturates(case: Case) -> bool:
    """Whether values must be rounded and clamped before they are stored as integers."""
    src, dst = case.source.dtype, case.target.dtype
    if dst.is_float:
        return False
    return bool(src.is_float or case.attributes or src.min < dst.min or src.max > dst.max)


def _copy(nest: Nest, given: Mapping[str, Any], tables: Sequence[str]) -> Copy:
    """A nest as a copy, with the values of attributes along its loops."""
    nest = order(nest, lambda loop: loop.dst)
    if not nest.loops:  # an array without axes would not broadcast
        nest = replace(nest, loops=(Loop(1, (0,) * len(nest.starts)),))
    operands = {}
    for name in (name for name in STEPS if name in given):
        if name in tables:
            values = np.asarray(given[name][0], np.float32)
            operands[name] = view(nest, values, 1 + tables.index(name))
        else:
            operands[name] = np.full(1, given[name], np.float32)
    return Copy(
        tuple(loop.extent for loop in nest.loops),
        nest.src,
        tuple(loop.src for loop in nest.loops),
        nest.dst,
        tuple(loop.dst for loop in nest.loops),
        operands,
    )
