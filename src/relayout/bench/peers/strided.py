"""What NumPy and PyTorch can say of a blocked format: strided views of split digits.

Neither knows ``nChw16c``. But whoever uses them can: split the channels into blocks and channels of a block
(``reshape``), permute, copy. In general that is one strided copy for each piece of the common refinement of
both layouts (:mod:`relayout.layout.refine`), after zeros were written where there is padding. Loops are
ordered as the destination has them, which is the order in which both libraries are fastest.

Attributes take several operations with a buffer between them, each rounded as :mod:`relayout.convert` says::

    between = (source - zero point) * scale / scale + zero point
    between = between, rounded and clamped          where the destination is of integers
    destination = between
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.bench.suite import Case
from relayout.layout.refine import Group, Loop, Piece, refine

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
    groups = refine(src.layout, dst.layout)
    if any(g.pieces is None or len(g.axes) > 1 for g in groups):
        return None
    if prod(len(g.pieces or ()) for g in groups) > MOST:
        return None
    return list(_copies(case, groups))


def saturates(case: Case) -> bool:
    """Whether values must be rounded and clamped before they are stored as integers."""
    src, dst = case.source.dtype, case.target.dtype
    if dst.is_float:
        return False
    return bool(src.is_float or case.attributes or src.min < dst.min or src.max > dst.max)


def _copies(case: Case, groups: tuple[Group, ...]) -> Iterator[Copy]:
    given = case.attribute_values()
    for pieces in product(*(g.pieces or () for g in groups)):
        loops = [
            (loop, group.axes[0])
            for group, piece in zip(groups, pieces, strict=True)
            for loop in piece.loops
            if loop.extent > 1
        ]
        loops.sort(key=lambda pair: -pair[0].dst)
        loops = loops or [(Loop(1, 1, 0, 0), 0)]  # an array without axes would not broadcast
        starts = {group.axes[0]: piece for group, piece in zip(groups, pieces, strict=True)}
        yield Copy(
            tuple(loop.extent for loop, _ in loops),
            case.source.offset0 + sum(piece.src for piece in pieces),
            tuple(loop.src for loop, _ in loops),
            case.target.offset0 + sum(piece.dst for piece in pieces),
            tuple(loop.dst for loop, _ in loops),
            {name: _operand(given[name], loops, starts) for name in STEPS if name in given},
        )


def _operand(given: Any, loops: list[tuple[Loop, int]], starts: dict[int, Piece]) -> NDArray[np.float32]:
    """An attribute's values along the loops of a copy; other axes have size 1."""
    if not isinstance(given, tuple):
        return np.full(1, given, np.float32)
    values, axis = given
    index = np.array(starts[axis].start)
    for loop, of in loops:
        steps = np.arange(loop.extent) * loop.step if of == axis else np.zeros(1, np.int64)
        index = index[..., None] + steps
    operand: NDArray[np.float32] = np.asarray(values, np.float32)[index]
    return operand
