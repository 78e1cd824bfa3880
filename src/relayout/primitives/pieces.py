"""Concatenation and split: tensors that are parts of another one along an axis.

Either is a reorder for each part. Where blocks don't come out even, a part of the whole is no tensor: its
elements have no strides. The whole is taken in a format without those blocks then, with one more reorder.
A part that already is in its place in the whole's memory is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import ClassVar

from relayout.errors import LayoutError, counted
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain, whole_number
from relayout.ops import pieces as ops
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.primitive import Primitive
from relayout.primitives.program import Program
from relayout.records import replace
from relayout.reorder import reorder
from relayout.reorder.arguments import check_apart
from relayout.tensor import Tensor, allocate, located

__all__ = ["Pieces", "axis_of"]


class Pieces(Primitive):
    """What :class:`~.concat.Concat` and :class:`~.split.Split` share: one argument is made of the others."""

    whole: ClassVar[str] = "dst"
    """The name of the argument that the others are parts of."""
    operation: ops.Concat | ops.Split
    _without: dict[frozenset[str], Program] | None = None
    """Programs without the steps of some parts."""
    _workings = Primitive._workings | {"_without"}

    def _cut(self) -> None:
        """Find the parts; the last thing that constructors do."""
        whole = self.descs[self.whole]
        self._parts = self._parts_of(whole)
        self._between: MemoryDesc | None = None  # the whole without blocks, if it has no parts
        if self._parts is None:
            self._between = whole.with_layout(_unblocked(whole.layout, self.operation.axis))
        self._shifts = _shifts(self._pieces, self._parts or ())

    @property
    def _pieces(self) -> dict[str, MemoryDesc]:
        return {name: desc for name, desc in self.descs.items() if name != self.whole}

    def _parts_of(self, whole: MemoryDesc) -> tuple[MemoryDesc, ...] | None:
        sizes = [desc.dims[self.operation.axis] for desc in self._pieces.values()]
        return _parts(whole, self.operation.axis, sizes, self.whole in self.outputs)

    @property
    def parts(self) -> tuple[MemoryDesc, ...]:
        """The descriptors of the parts in the memory of the whole.

        Raises
        ------
        LayoutError
            Blocks don't come out even, so that a part is no tensor.
        """
        if self._parts is None:
            sizes = " + ".join(str(desc.dims[self.operation.axis]) for desc in self._pieces.values())
            raise LayoutError(
                f"{self.kind}: {sizes} elements cut blocks of axis {self.operation.axis} of "
                f"{self.descs[self.whole]} at uneven places, so not every part is a tensor of its own"
            )
        return self._parts

    @property
    def _empty(self) -> bool:
        """Empty parts are left out, such as the keys of the past when a decoder begins."""
        return 0 in self.descs[self.whole].dims

    def _moved_besides(self) -> int:
        return 0 if self._between is None else 2 * self._between.nbytes

    # -- calling --------------------------------------------------------------------------------------------

    def _there(self, addresses: Mapping[str, int]) -> frozenset[str]:
        """The parts that are in their places."""
        begin = addresses[self.whole]
        return frozenset(name for name, shift in self._shifts.items() if addresses[name] == begin + shift)

    def _check_apart(self, addresses: Mapping[str, int]) -> None:
        """Nothing may overlap the whole but parts in their places."""
        there = self._there(addresses)
        apart = {name: one for name, one in self._reach().items() if name not in there}
        written = [name for name in self.outputs if name in apart]
        check_apart(apart, addresses, written, {}, self.kind)

    def _needed(self, program: Program, addresses: Mapping[str, int]) -> Program:
        """The program without the steps of parts that are in their places."""
        there = self._there(addresses)
        if not there:
            return program
        if self._without is None:
            self._without = {}
        if there not in self._without:
            steps = tuple(step for step in program.steps if not there & {step.source, step.target})
            self._without[there] = replace(program, steps=steps)
        return self._without[there]

    def _define(self, tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """By the reorders of any host: exact for all data types, which double precision is not for s64."""
        known = {**tensors, **targets}
        there = self._there({name: located(one)[1] for name, one in known.items()})
        given = whole = known[self.whole]
        if self._between is not None:
            whole = Tensor(self._between, allocate(self._between))
        joins, parts = self.whole in self.outputs, self._parts_of(whole.desc)
        assert parts is not None
        if whole is not given and not joins:
            reorder(given, whole.desc, out=whole)
        for name, part in zip(self._pieces, parts, strict=True):
            ends = known[name], Tensor(part, whole.buffer)
            source, target = ends if joins else ends[::-1]
            if name not in there:
                reorder(source, target.desc, out=target)
        if whole is not given and joins:
            reorder(whole, given.desc, out=given)

    @locked
    @if_possible
    def _lower(self) -> Program | None:
        joins, given = self.whole in self.outputs, self.descs[self.whole]
        draft, whole, name = Draft(), given, self.whole
        if self._between is not None:
            whole = self._between
            name = (draft.write if joins else draft.read)(given, whole, self.whole, "between")
        parts = self._parts_of(whole)
        assert parts is not None
        for (piece, desc), part in zip(self._pieces.items(), parts, strict=True):
            if 0 in desc.dims:
                continue
            ends = (desc, piece), (part, name)
            (src, source), (dst, target) = ends if joins else ends[::-1]
            draft.reorder(src, dst, source, target)
        return draft.program("reorders of parts" if self._between is None else "reorders, twice")


def axis_of(kind: str, given: int, name: str, desc: MemoryDesc) -> int:
    """The number of an axis, counted from the front."""
    axis = whole_number(given, f"{kind}: axis")
    rank = len(desc.dims)
    if not -rank <= axis < rank:
        raise LayoutError(f"{kind}: {name} {desc} has {counted(rank, 'axis')}; there is no axis {axis}")
    return axis % rank


def _parts(
    whole: MemoryDesc, axis: int, sizes: Sequence[int], written: bool
) -> tuple[MemoryDesc, ...] | None:
    """The parts of a tensor; None where one is no tensor, or it is written and nobody zeroes its padding."""
    parts = []
    covered = 0
    try:
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            layout = views.slice_axis(whole.layout, axis, end - size, end)
            parts.append(whole.with_layout(layout))
            if size:
                covered = end - size + layout.padded_dims[axis]
    except LayoutError:
        return None
    covers = covered == whole.padded_dims[axis] or 0 in whole.dims
    return tuple(parts) if covers or not written else None


def _shifts(pieces: Mapping[str, MemoryDesc], parts: Sequence[MemoryDesc]) -> dict[str, int]:
    """For pieces that are like their parts: how many bytes behind the whole one begins that is its part."""
    found = {}
    for (name, piece), part in zip(pieces.items(), parts, strict=False):
        alike = piece.dtype == part.dtype and piece.layout.moved(0).same_bytes(part.layout.moved(0))
        bits = (part.offset0 - piece.offset0) * part.dtype.bits
        if alike and bits % 8 == 0 and 0 not in piece.dims:
            found[name] = bits // 8
    return found


def _unblocked(layout: Layout, axis: int) -> Layout:
    """A dense layout without padding in which any part is a tensor; axes in the order of their strides."""
    steps = {a: layout.rank - a for a in range(layout.rank)}
    if all(len(term) == 1 for term in layout.terms):
        for (a,), ladder in zip(layout.terms, layout.ladders, strict=True):
            steps[a] = abs(ladder[-1 if a == axis else 0].stride)
    strides, room = [0] * layout.rank, 1
    for a in sorted(steps, key=lambda a: steps[a]):
        strides[a] = room
        room *= layout.dims[a]
    return Layout._strided(layout.dims, plain(layout.rank), strides, 0, None)
