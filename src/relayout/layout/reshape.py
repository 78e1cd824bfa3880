"""oneDNN's reshape of a memory descriptor.

Sizes are read from the right and paired into the shortest groups of equal product. Four things can happen to
a pair:

====================  =======================================================================================
old sizes -> new      what it means
====================  =======================================================================================
``1 -> (none)``       an axis of size 1 without padding disappears
``(none) -> 1``       an axis of size 1 appears; its stride is what lies right of it
``n -> n``            the axis is kept with its stride, its blocks and its padding
``n, m -> k, l, ..``  the axes are regrouped, which only dense, sequential axes without blocks allow
====================  =======================================================================================

One case slips through oneDNN's checks: a blocked axis of size 1 *within* a regrouped run. The descriptor that
it returns then describes other elements. The same descriptor is returned here, with a warning.

:func:`relayout.views.reshape` goes further (it can merge across strides); this is the rule that oneDNN's
users know.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from relayout.errors import LayoutError, Unsupported, counted
from relayout.layout.layout import Layout, blocked_layout, spell_dims

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["onednn_reshape"]


class Pair(NamedTuple):
    """Old axes ``old.start .. old.stop`` hold the same elements as new axes ``new.start .. new.stop``."""

    old: range
    new: range


def onednn_reshape(desc: MemoryDesc, dims: tuple[int, ...]) -> MemoryDesc:
    """Describe the same elements under other sizes, or raise as oneDNN does."""
    if desc.format_kind == "undef" or not desc.dims or not dims:
        raise LayoutError(f"{desc} can't be reshaped to {spell_dims(dims)}: there are no axes on one side")
    if prod(d or 1 for d in desc.dims) != prod(d or 1 for d in dims):
        raise LayoutError(
            f"{desc} has {counted(prod(desc.dims), 'element')}; it can't be reshaped to {spell_dims(dims)}, "
            f"which are {prod(dims)}"
        )
    if desc.layout is None:
        return desc._make(dims, desc.dtype, None, "any")
    if desc.format_kind != "blocked":
        raise Unsupported(f"{desc} is none of oneDNN's blocked layouts; relayout.views.reshape works on any")
    return desc._make(dims, desc.dtype, _reshaped(desc, dims))


def _reshaped(desc: MemoryDesc, dims: tuple[int, ...]) -> Layout:
    strides, padded = [0] * len(dims), list(dims)
    place: dict[int, int] = {}  # old axis -> new axis, for those that keep their blocks
    regrouped: set[int] = set()
    for old, new in _pairs(desc, dims):
        if not old:
            strides[new[0]] = _stride_right_of(desc, old.start)
        elif len(old) == 1 and len(new) == 1:
            place[old[0]] = new[0]
            strides[new[0]], padded[new[0]] = desc.strides[old[0]], desc.padded_dims[old[0]]
        elif new:
            _check_regroup(desc, old, dims)
            regrouped.update(old)
            step = desc.strides[old[-1]]
            for axis in reversed(new):
                strides[axis] = step
                step *= dims[axis]
    for axis, block in desc.inner_blocks:
        if axis not in place and axis not in regrouped:
            raise LayoutError(
                f"{desc} can't be reshaped to {spell_dims(dims)}: axis {axis}, which would disappear, is "
                f"blocked by {block}; relayout.views.reshape can do it"
            )
    inner = [(place.get(axis, axis), block) for axis, block in desc.inner_blocks]
    return blocked_layout(dims, padded, strides, inner, desc.offset0)


def _pairs(desc: MemoryDesc, dims: tuple[int, ...]) -> Iterator[Pair]:
    sizes, room = desc.dims, desc.padded_dims
    i, o = len(sizes), len(dims)

    def refuse(why: str) -> LayoutError:
        return LayoutError(f"{desc} can't be reshaped to {spell_dims(dims)}: {why}")

    while i or o:
        if i and sizes[i - 1] == 1:
            if room[i - 1] == 1:
                yield Pair(range(i - 1, i), range(o, o))
            elif o and dims[o - 1] == 1:
                o -= 1
                yield Pair(range(i - 1, i), range(o, o + 1))
            else:
                raise refuse(f"axis {i - 1} of size 1 is padded to {room[i - 1]} and can't disappear")
            i -= 1
        elif o and dims[o - 1] == 1:
            o -= 1
            yield Pair(range(i, i), range(o, o + 1))
        elif not i or not o:
            raise refuse("the sizes don't pair up from the right")
        else:
            first, start = i - 1, o - 1
            have, want = sizes[first], dims[start]
            while have != want:
                if have < want:
                    first -= 1
                    have = have * sizes[first] if first >= 0 else 0
                else:
                    start -= 1
                    want = want * dims[start] if start >= 0 else 0
                if not have or not want:
                    raise refuse("no groups of sizes have the same product from the right")
            yield Pair(range(first, i), range(start, o))
            i, o = first, start


def _stride_right_of(desc: MemoryDesc, axis: int) -> int:
    """The stride of a new axis of size 1: what the old axis ``axis`` right of it covers."""
    if axis == desc.rank:
        return prod(block for _, block in desc.inner_blocks)
    covered = desc.strides[axis] * desc.dims[axis]
    for blocked, block in desc.inner_blocks:
        if blocked == axis:
            covered //= block
    return covered


def _check_regroup(desc: MemoryDesc, old: range, dims: tuple[int, ...]) -> None:
    sizes, strides = desc.dims, desc.strides
    where = f"{desc} can't be reshaped to {spell_dims(dims)}: "
    for axis in old[:0:-1]:
        if sizes[axis] * strides[axis] != strides[axis - 1]:
            raise LayoutError(
                f"{where}axes {axis - 1} and {axis} would be regrouped, but stride {strides[axis - 1]} is "
                f"not {sizes[axis]} x {strides[axis]}, so they are not dense and in sequence"
            )
    blocked = {axis for axis, _ in desc.inner_blocks}
    if old[0] in blocked:
        raise LayoutError(f"{where}axis {old[0]} is blocked and would be regrouped")
    if desc.padded_dims[old[0]] != sizes[old[0]]:
        raise LayoutError(
            f"{where}axis {old[0]} is padded to {desc.padded_dims[old[0]]} and would be regrouped"
        )
    slipped = blocked.intersection(old)
    if slipped and max(slipped) >= len(dims):
        raise LayoutError(f"{where}axis {max(slipped)} is blocked and would be regrouped")
    if slipped:
        warnings.warn(
            f"{where.removesuffix(': ')} by its own rule; oneDNN does not notice that axis {min(slipped)}, "
            "of size 1, is blocked, and answers with a descriptor of other elements; so does this. Use "
            "relayout.views.reshape",
            RuntimeWarning,
            stacklevel=5,
        )
