"""Rows by index: what gathers read and scatters write, checked one by one.

The loops of :class:`~relayout.ops.indexing.Indexing` are those of a nest with three operands: the data, where
indices lie, and the other tensor. Innermost are loops in which the index does not change: what is moved for
each index. Rows of an embedding, 6 of 1000 by 64 f32::

    6x(0,8,256)    an index each
    row of 256     bytes, moved as vectors

An index is checked before it is used: one that names no element moves nothing, and leaves its axis and itself
in the *fault*, two words that who calls looks at (:class:`relayout.primitives.program.Fault`).

Shares of threads are turns of the outermost loops. A scatter is one share, so that of several updates of one
element the last one stays.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from relayout.ir.builder import Function
from relayout.ir.kernel import digits, kernel, share
from relayout.ir.types import FLOAT, I8, I64, PTR, Value, constant, integer, vector
from relayout.ir.vectors import runs
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, joined
from relayout.ops.indexing import Indexing
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "FAULT", "Coordinate", "Indexed", "indexed", "module"]

ENTRY = "indexed"
FAULT = 16  # bytes of a fault: which coordinate, from 1 on, and the index
ENOUGH_SHARES = 64  # once there are so many, work is cut no finer
UNROLLED = 8  # vectors of a row that are moved without a loop


class Coordinate(NamedTuple):
    """One axis of the data that indices name."""

    at: int
    """Bytes from where the indices of a point begin."""
    size: int
    """Of the axis."""
    step: int
    """Bytes from one element to the next along it."""


@dataclass(frozen=True)
class Indexed:
    """The loops, in bytes: data, indices, other.

    Attributes
    ----------
    starts : tuple of int
        Where each of the three begins.
    loops : tuple of Loop
        Around an index, outermost first.
    inner : tuple of Loop
        What is moved for each.
    row : int
        Bytes of which are moved at once.
    coordinates : tuple of Coordinate
    index : int
        Bytes of an index.
    from_end : bool
        Whether indices below 0 count from the end.
    """

    starts: tuple[int, ...]
    loops: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    row: int
    coordinates: tuple[Coordinate, ...]
    index: int
    from_end: bool = True

    def __str__(self) -> str:
        around = "  ".join(f"{n}x({','.join(map(str, steps))})" for n, steps in (*self.loops, *self.inner))
        return f"{around or 'one'}  row of {self.row}"


def indexed(
    how: Indexing, data: Layout, indices: Layout, other: Layout, element: int, index: int, ordered: bool
) -> Indexed | None:
    """The loops for layouts without blocks; None where one has any. Elements and indices of so many bytes.

    They go through the other tensor as it lies in memory; ``ordered``: row by row, as updates are counted.
    """
    if not all(layout.is_plain for layout in (data, indices, other)):
        return None
    sizes = element, index, element
    loops = []
    for k, (d, i) in enumerate(how.axes):
        steps = data.strides[d] if d >= 0 else 0, indices.strides[i] if i >= 0 else 0, other.strides[k]
        scaled = tuple(step * size for step, size in zip(steps, sizes, strict=True))
        loops.append(Loop(other.dims[k], scaled))
    made = _in_turn(loops) if ordered else sorted(joined(loops), key=lambda loop: -abs(loop.steps[2]))
    inner: list[Loop] = []
    while made and not made[-1].steps[1]:
        inner.insert(0, made.pop())
    row = element
    if inner and inner[-1].steps[0] == inner[-1].steps[2] == element:
        row *= inner.pop().extent
    step = indices.strides[-1] * index if how.listed else 0
    coordinates = tuple(
        Coordinate(k * step, data.dims[axis], data.strides[axis] * element)
        for k, axis in enumerate(how.coordinates)
    )
    starts = tuple(layout.offset0 * size for layout, size in zip((data, indices, other), sizes, strict=True))
    return Indexed(starts, tuple(made), tuple(inner), row, coordinates, index, how.from_end)


def _in_turn(loops: list[Loop]) -> list[Loop]:
    """Loops joined with their neighbours only, so that they visit everything in the same order."""
    made: list[Loop] = []
    for loop in loops:
        if loop.extent == 1:
            continue
        if made and made[-1].continues(loop):
            made[-1] = loop.taking(made[-1].extent * loop.extent)
        else:
            made.append(loop)
    return made


def module(problem: Indexed, scatter: bool, adds: str, machine: Machine) -> tuple[str, list[str]]:
    """The text, and the function in it.

    It is called with the data and the other tensor, for a ``scatter`` with the other one and the data; its
    operands are the indices and the fault. ``adds``: the type of elements that are added to; empty: they are
    replaced.
    """
    return _Writing(problem, scatter, adds, machine).text(), [ENTRY]


class _Writing:
    def __init__(self, problem: Indexed, scatter: bool, adds: str, machine: Machine) -> None:
        self.problem, self.scatter, self.adds, self.machine = problem, scatter, adds, machine
        self.b: Function = kernel(ENTRY, machine)

    def text(self) -> str:
        b, loops = self.b, self.problem.loops
        src, dst, ops, *_ = b.arguments
        indices, self.fault = (b.load(PTR, b.gep(ops, 8 * k), 8) for k in range(2))
        data, other = (dst, src) if self.scatter else (src, dst)
        begins = [
            b.gep(at, start) for at, start in zip((data, indices, other), self.problem.starts, strict=True)
        ]
        shared, count = 0, 1
        while shared < len(loops) and count < ENOUGH_SHARES and not self.scatter:
            count *= loops[shared].extent
            shared += 1
        extents = [loop.extent for loop in loops[:shared]]

        def task(number: Value) -> None:
            at = begins
            for loop, turn in zip(loops, digits(b, number, extents), strict=False):
                at = self._moved(loop, turn, at)
            self._loops(loops[shared:], at, self._index)

        first, last = share(b, prod(extents))
        b.when(b.icmp("slt", first, last), lambda: b.loop(first, last, 1, task))
        return b.text()

    def _moved(self, loop: Loop, turn: Value, at: list[Value]) -> list[Value]:
        return [self.b.gep(one, turn, step) for one, step in zip(at, loop.steps, strict=True)]

    def _loops(self, loops: tuple[Loop, ...], at: list[Value], body: object) -> None:
        """Some loops around what is done at an address of each operand."""
        if not loops:
            body(at)  # type: ignore[operator]
            return
        self.b.loop(
            0, loops[0].extent, 1, lambda turn: self._loops(loops[1:], self._moved(loops[0], turn, at), body)
        )

    def _index(self, at: list[Value]) -> None:
        """Check what is named by an index, and move it."""
        b, (data, list_, other) = self.b, at
        good = constant(integer(1), 1)
        for k, (offset, size, step) in enumerate(self.problem.coordinates):
            given = b.load(integer(8 * self.problem.index), b.gep(list_, offset), 1)
            given = b.resize(given, 64, True)
            place = given  # below 0 it is beyond the end of any axis, as a number without a sign
            if self.problem.from_end:
                place = b.select(b.icmp("slt", given, 0), b.add(given, size), given)
            inside = b.icmp("ult", place, size)
            b.when(b.not_(inside), lambda k=k, given=given: self._failed(k, given))  # type: ignore[misc]
            good = inside if k == 0 else b.and_(good, inside)
            data = b.gep(data, place, step)
        b.when(good, lambda: self._loops(self.problem.inner, [data, list_, other], self._row))

    def _failed(self, k: int, given: Value) -> None:
        self.b.store(constant(I64, k + 1), self.fault)
        self.b.store(given, self.b.gep(self.fault, 8))

    def _row(self, at: list[Value]) -> None:
        """Move a row: whole vectors in a loop where it is long, then what is left."""
        data, _, other = at
        source, target = (other, data) if self.scatter else (data, other)
        b, row, turn = self.b, self.problem.row, self.machine.vector
        if self.adds:
            self._added(source, target)
            return
        whole = row // turn * turn if row > UNROLLED * turn else 0
        if whole:
            b.loop(0, whole, turn, lambda i: self._copy(b.gep(source, i), b.gep(target, i), turn))
        rest = range(whole, row, turn)
        for first in rest:
            for at_, size in runs(min(turn, row - first)):
                self._copy(b.gep(source, first + at_), b.gep(target, first + at_), size)

    def _copy(self, source: Value, target: Value, size: int) -> None:
        """Bytes, as many as a power of two."""
        type = integer(8 * size) if size <= 8 else vector(size, I8)
        self.b.store(self.b.load(type, source, 1), target, 1)

    def _added(self, source: Value, target: Value) -> None:
        """Add element by element."""
        b = self.b
        real = self.adds == "f32"
        type = FLOAT if real else integer(int(self.adds[1:]))
        size = type.bits // 8

        def one(i: Value) -> None:
            new, old = (b.load(type, b.gep(pointer, i), 1) for pointer in (source, target))
            b.store((b.fadd if real else b.add)(old, new), b.gep(target, i), 1)

        b.loop(0, self.problem.row, size, one)
