"""Concatenation along an axis, in any formats; in place where sources already lie where they belong.

A part of a tensor is a tensor: oneDNN calls it a sub-memory. To concatenate is to reorder each source into
its part of the destination, and no more is needed for any pair of formats::

    dst    nChw16c, 48 channels     [ 0 ... 15 | 16 ... 31 | 32 ... 47 ]
    parts  16 and 32 channels       [ src0     ] [ src1                ]

Better still is to have the producers write into the parts at once. :attr:`Concat.parts` are the descriptors
for that; a source that is its part of the destination, in the same memory, is left where it is:

>>> import numpy as np
>>> import relayout as rl
>>> dst = rl.MemoryDesc((1, 48, 2, 2), "f32", "nChw16c")
>>> dims = (1, 16, 2, 2), (1, 32, 2, 2)
>>> both = Concat([rl.MemoryDesc(d, "f32", "nChw16c") for d in dims], 1, dst)
>>> result = rl.tensor(np.zeros(dst.dims, np.float32), dst)
>>> x, y = result.parts(1, (16, 32))
>>> in_place = Concat(both.parts, 1, dst)
>>> in_place(x, y, out=result) is result  # nothing was moved
True

Where blocks don't come out even (17 channels in blocks of 16, and then more) a part is no tensor of its own:
its elements have no strides. The sources are put together in a format without those blocks then, and that is
reordered as a whole, which takes twice as long. There are no parts to write into either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.layout.layout import Layout, plain, spell_dims, whole_number
from relayout.ops.checks import check_descs, check_written
from relayout.ops.formats import following
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive
from relayout.primitives.program import Program, Step
from relayout.reorder import reorder
from relayout.tensor import Tensor, allocate, located

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Concat"]


class Concat(Primitive):
    """A concatenation, made once for its descriptors.

    Parameters
    ----------
    srcs : sequence of MemoryDesc
        At least one, all of the same dims but for ``axis``, of any data types. The arguments are called
        ``src0``, ``src1``, ...
    axis : int
        Along which axis; negative ones count from the end.
    dst : MemoryDesc, optional
        Without it the format and the data type of the first source.

    Raises
    ------
    LayoutError
        There are no sources, or the descriptors don't fit together.

    Examples
    --------
    >>> import relayout as rl
    >>> srcs = [rl.MemoryDesc((1, channels, 8, 8), "f32", "nChw8c") for channels in (32, 24)]
    >>> made = Concat(srcs, 1)
    >>> made.dst, [part.offset0 for part in made.parts]
    (MemoryDesc('f32:nChw8c:1x56x8x8'), [0, 2048])
    """

    kind = "concat"
    _without: dict[frozenset[str], Program] | None = None
    """Programs without the steps of some sources."""
    _workings = Primitive._workings | {"_without"}

    def __init__(self, srcs: Sequence[MemoryDesc], axis: int, dst: MemoryDesc | None = None) -> None:
        if not isinstance(srcs, (list, tuple)) or not srcs:
            raise LayoutError(f"concat: srcs is a list of descriptors, not {srcs!r}")
        self.inputs = tuple(f"src{k}" for k in range(len(srcs)))
        check_descs(self.kind, dict(zip(self.inputs, srcs, strict=True)), {"dst": dst})
        self.axis = _axis(axis, srcs[0])
        for name, src in zip(self.inputs, srcs, strict=True):
            _check_source(name, src, srcs[0], self.axis)
        sizes = [src.dims[self.axis] for src in srcs]
        dims = (*srcs[0].dims[: self.axis], sum(sizes), *srcs[0].dims[self.axis + 1 :])
        if dst is None:
            dst = MemoryDesc(dims, srcs[0].dtype, any_format)
        dst = following(srcs[0], dst)
        if dst.dims != dims:
            raise LayoutError(f"concat: dst {dst} must be {spell_dims(dims)}")
        check_written(self.kind, dst)
        self.descs = {**dict(zip(self.inputs, srcs, strict=True)), "dst": dst}
        check_alike(self.kind, self.descs)
        self._parts = _parts(dst, self.axis, sizes)
        self._whole: MemoryDesc | None = None  # where the sources are put together if there are no parts
        if self._parts is None:
            self._whole = MemoryDesc(dims, dst.dtype, _unblocked(dst.layout, self.axis))
        self._shifts = _shifts(srcs, self._parts or ())

    @property
    def parts(self) -> tuple[MemoryDesc, ...]:
        """The descriptors of the sources' parts of the destination's memory.

        Raises
        ------
        LayoutError
            Blocks don't come out even, so that a part is no tensor.
        """
        if self._parts is None:
            sizes = " + ".join(str(self.descs[name].dims[self.axis]) for name in self.inputs)
            raise LayoutError(
                f"concat: {sizes} elements cut blocks of axis {self.axis} of {self.dst} at uneven places, so "
                "no source has a part of its own"
            )
        return self._parts

    @property
    def flops(self) -> int:
        """None."""
        return 0

    def _implementation(self) -> str:
        return "machine code: reorders into parts" if self._whole is None else "machine code: reorders, twice"

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.concatenate([arrays[name] for name in self.inputs], self.axis)

    # -- calling --------------------------------------------------------------------------------------------

    def __call__(self, *given: Any, out: Any = None, threads: int | None = None, **named: Any) -> Tensor:
        """Concatenate, as for all primitives; sources that are their parts of ``out`` stay where they are."""
        tensors = self._bound(given, named)
        target = self._target(out)
        known = {name: located(one)[1] for name, one in (*tensors.items(), ("dst", target))}
        self._check_apart(known)
        there = self._there(known)
        program = self._compiled()
        if program is None:
            self._define({name: one for name, one in tensors.items() if name not in there}, target)
        else:
            self._moving(program, there)(known, threads)
        return out if isinstance(out, Tensor) else target

    def _there(self, addresses: Mapping[str, int]) -> frozenset[str]:
        """The sources that are their parts of the destination."""
        begin = addresses["dst"]
        return frozenset(name for name, shift in self._shifts.items() if addresses[name] == begin + shift)

    def _check_apart(self, addresses: Mapping[str, int]) -> None:
        """No source may overlap the destination, but for those that are their parts of it."""
        spans, begin, there = self._reach(), addresses["dst"], self._there(addresses)
        low, high = (begin + end for end in spans["dst"])
        for name in self.inputs:
            start, stop = (addresses[name] + end for end in spans[name])
            if start < high and low < stop and name not in there:
                raise LayoutError(f"concat: {name} and the destination overlap in memory")

    def _moving(self, program: Program, there: frozenset[str]) -> Program:
        """The program without the steps of sources that are in place."""
        if not there:
            return program
        if self._without is None:
            self._without = {}
        if there not in self._without:
            steps = tuple(step for step in program.steps if step.source not in there)
            self._without[there] = Program(steps, program.scratch, program.constants)
        return self._without[there]

    def _define(self, tensors: Mapping[str, Tensor], target: Tensor) -> None:
        """By the reorders of any host: exact for all data types, which double precision is not for s64."""
        whole, parts = target, self._parts
        if parts is None:
            assert self._whole is not None
            whole = Tensor(self._whole, allocate(self._whole))
            parts = _parts(self._whole, self.axis, [self.descs[name].dims[self.axis] for name in self.inputs])
            assert parts is not None
        for name, part in zip(self.inputs, parts, strict=True):
            if name in tensors:
                reorder(tensors[name], part, out=Tensor(part, whole.buffer))
        if whole is not target:
            reorder(whole, target.desc, out=target)

    # -- lowering -------------------------------------------------------------------------------------------

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import reorder_step

        whole = self._whole
        into = self.dst if whole is None else whole
        name = "dst" if whole is None else "whole"
        parts = _parts(into, self.axis, [self.descs[source].dims[self.axis] for source in self.inputs])
        assert parts is not None
        steps: list[Step | None] = [
            reorder_step(self.descs[source], part, source, name)
            for source, part in zip(self.inputs, parts, strict=True)
        ]
        if whole is not None:
            steps.append(reorder_step(whole, self.dst, "whole", "dst"))
        found = [step for step in steps if step is not None]
        if len(found) < len(steps):
            return None
        return Program(tuple(found), {} if whole is None else {"whole": whole.required_bytes})


def _axis(given: int, src: MemoryDesc) -> int:
    axis = whole_number(given, "concat: axis")
    rank = len(src.dims)
    if not -rank <= axis < rank:
        raise LayoutError(f"concat: src0 {src} has {rank} axes; there is no axis {axis}")
    return axis % rank


def _check_source(name: str, src: MemoryDesc, first: MemoryDesc, axis: int) -> None:
    if src.layout is None:
        raise LayoutError(f"concat: {name} {src} needs a format: it is taken as it was written")
    rest, others = (d.dims[:axis] + d.dims[axis + 1 :] for d in (src, first))
    if len(src.dims) != len(first.dims) or rest != others:
        raise LayoutError(
            f"concat: {name} is {spell_dims(src.dims)} and src0 {spell_dims(first.dims)}; they may differ on "
            f"axis {axis} only"
        )


def _parts(dst: MemoryDesc, axis: int, sizes: Sequence[int]) -> tuple[MemoryDesc, ...] | None:
    """The parts of a destination; None where one is no tensor, or nobody would zero the padding."""
    parts = []
    covered = 0
    try:
        for end, size in zip(accumulate(sizes), sizes, strict=True):
            layout = views.slice_axis(dst.layout, axis, end - size, end)
            parts.append(MemoryDesc(layout.dims, dst.dtype, layout))
            if size:
                covered = end - size + layout.padded_dims[axis]
    except LayoutError:
        return None
    return tuple(parts) if covered == dst.padded_dims[axis] or 0 in dst.dims else None


def _shifts(srcs: Sequence[MemoryDesc], parts: Sequence[MemoryDesc]) -> dict[str, int]:
    """How many bytes behind the destination a source begins that is its part; for those that are like it."""
    found = {}
    for k, (src, part) in enumerate(zip(srcs, parts, strict=False)):
        alike = src.dtype == part.dtype and src.layout.moved(0).same_bytes(part.layout.moved(0))
        bits = (part.offset0 - src.offset0) * part.dtype.bits
        if alike and bits % 8 == 0 and 0 not in src.dims:
            found[f"src{k}"] = bits // 8
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
