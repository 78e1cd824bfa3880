"""Gather and scatter: elements, rows or slices by index.

Which axis goes where says an :class:`~relayout.ops.indexing.Indexing`. Rows of an embedding:

>>> import numpy as np
>>> import relayout as rl
>>> from relayout.ops.indexing import taken
>>> words = rl.tensor(np.arange(12, dtype=np.float32).reshape(4, 3), "ab")
>>> places = rl.tensor(np.array([3, -3]), "a")
>>> rows = Gather(taken(2, 1, 0), words.desc, places.desc)
>>> rows(words, places).numpy()
array([[ 9., 10., 11.],
       [ 3.,  4.,  5.]], dtype=float32)
>>> rows(words, rl.tensor(np.array([0, 4]), "a"))
Traceback (most recent call last):
relayout.errors.LayoutError: gather: index 4 of axis 0, which has 4 elements
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.dtypes import DType
from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops import indexing as ops
from relayout.ops.checks import check_descs, check_written
from relayout.ops.indexing import Indexing
from relayout.primitives.drafting import Draft, if_possible, moving_step
from relayout.primitives.native import Native

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["ADDED", "Gather", "Scatter"]

INDICES = ("s64", "s32")
ADDED = ("f32", "bf16", "f16", "s64", "s32", "s16", "s8", "u8")
"""The data types that a scatter adds; those of 16 bits in f32, rounded once."""


class Gather(Native):
    """The elements that indices name.

    Parameters
    ----------
    how : Indexing
        What indices are; see :func:`~relayout.ops.indexing.taken`, ``elements`` and ``points`` beside it.
    data, indices : MemoryDesc
        In any formats; those with blocks are done by definition. Indices are s64 or s32.
    dst : MemoryDesc, optional
        Of the data type of the data; without it row-major.

    Raises
    ------
    LayoutError
        The descriptors don't fit together. At a call: an index names no element; the results are of no use
        then, but nothing outside of the data has been read.
    """

    kind = "gather"
    operation: ops.Gather

    def __init__(
        self, how: Indexing, data: MemoryDesc, indices: MemoryDesc, dst: MemoryDesc | None = None
    ) -> None:
        _check(self.kind, how, data, indices)
        dims = how.dims(data.dims, indices.dims)
        dst = dst or MemoryDesc(dims, data.dtype, row_major(dims))
        if dst.layout is None or dst.dims != dims or dst.dtype != data.dtype:
            raise LayoutError(f"gather: dst {dst} must be {data.dtype} {spell_dims(dims)}, in a format")
        check_written(self.kind, dst)
        self._settle(ops.Gather, {"data": data, "indices": indices}, {"dst": dst}, how=how)

    @locked
    def _lower(self) -> Program | None:
        return _program(self, self.dst, False)


class Scatter(Native):
    """Data with those elements replaced that indices name, or added to.

    Of several updates of one element the last one stays.

    Parameters
    ----------
    how : Indexing
    data, indices, updates : MemoryDesc
    dst : MemoryDesc, optional
        Of the dims and the data type of the data; without it, its descriptor.
    adds : bool
        Whether updates are added.

    Raises
    ------
    LayoutError
        The descriptors don't fit together. At a call: an index names no element.
    """

    kind = "scatter"
    operation: ops.Scatter

    def __init__(
        self,
        how: Indexing,
        data: MemoryDesc,
        indices: MemoryDesc,
        updates: MemoryDesc,
        dst: MemoryDesc | None = None,
        *,
        adds: bool = False,
    ) -> None:
        _check(self.kind, how, data, indices)
        dst = dst or data
        dims = how.dims(data.dims, indices.dims)
        check_descs(self.kind, {"updates": updates, "dst": dst}, {})
        for name, desc, wanted in (("updates", updates, dims), ("dst", dst, data.dims)):
            if desc.layout is None or desc.dims != wanted or desc.dtype != data.dtype:
                what = f"{data.dtype} {spell_dims(wanted)}, in a format"
                raise LayoutError(f"scatter: {name} {desc} must be {what}")
        check_written(self.kind, dst)
        given = {"data": data, "indices": indices, "updates": updates}
        self._settle(ops.Scatter, given, {"dst": dst}, how=how, adds=adds)

    @if_possible
    def _lower(self) -> Program | None:
        if self.adds and self.dst.dtype.name not in ADDED:
            return None
        if self.adds and self.dst.dtype.name in ("bf16", "f16"):
            return self._in_f32()
        draft = Draft()
        draft.reorder(self.data, self.dst, "data", "dst")
        draft.append(_program(self, self.updates, True))
        return draft.program("rows by index")

    def _in_f32(self) -> Program:
        """Converted, added up, and rounded."""

        def wide(name: str) -> MemoryDesc:
            dims = self.descs[name].dims
            return MemoryDesc(dims, "f32", row_major(dims))

        dst, updates, draft = wide("dst"), wide("updates"), Draft()
        names = {"updates": draft.read(self.updates, updates, "updates", "updates in f32")}
        names["dst"] = draft.write(self.dst, dst, "dst", "sums")
        draft.reorder(self.data, dst, "data", names["dst"])
        sums = Scatter(self.how, dst, self.indices, updates, dst, adds=True)
        draft.append(_program(sums, updates, True), names)
        return draft.program("rows by index, in f32")


def _check(kind: str, how: Indexing, data: MemoryDesc, indices: MemoryDesc) -> None:
    check_descs(kind, {"data": data, "indices": indices}, {})
    for name, desc in (("data", data), ("indices", indices)):
        if desc.layout is None:
            raise LayoutError(f"{kind}: {name} {desc} needs a format: it is taken as it was written")
    if indices.dtype.name not in INDICES:
        raise LayoutError(f"{kind}: indices {indices} must be {' or '.join(INDICES)}")
    if not how.fits(data.dims, indices.dims):
        raise LayoutError(f"{kind}: indices {indices} don't go with data {data} as {how}")


@locked
def _program(made: Gather | Scatter, other: MemoryDesc, scatter: bool) -> Program | None:
    """The kernel, and what it says of indices that are wrong."""
    from relayout.environment import LOADED
    from relayout.jit.compile import Module, recalled
    from relayout.kernels.copy.indexed import FAULT, indexed, module
    from relayout.primitives.program import Fault, Program, Step
    from relayout.targets.machine import host

    data: MemoryDesc = made.dst if scatter else made.data
    kind: DType = data.dtype
    if kind.bits < 8:
        return None
    layouts = data.layout, made.indices.layout, other.layout
    problem = indexed(made.how, *layouts, kind.bits // 8, made.indices.dtype.bits // 8, ordered=scatter)
    if problem is None:
        return None
    adds = kind.name if scatter and made.adds else ""
    machine = host()
    key = repr(("indexed", problem, scatter, adds))
    [kernel], _ = recalled(key, LOADED, lambda: Module(*module(problem, scatter, adds, machine)), machine)
    named = ("updates", "dst") if scatter else ("data", "dst")
    axes = tuple((axis, data.dims[axis]) for axis in made.how.coordinates)
    read = "indices", "fault"
    if scatter:  # in order, since of several updates of one element the last one stays
        step = Step(kernel, *named, read)
    else:
        step = moving_step(kernel, *named, read, 2 * other.nbytes)
    return Program((step,), {"fault": FAULT}, faults=(Fault("fault", made.kind, axes),), note="rows by index")
