"""What the text of every plan has in common: the entry, the loop over tasks, the table of vectors.

``void convolution(ptr src, ptr dst, ptr operands, i64 part, i64 parts)`` does a share of a plan's tasks. The
operands are the addresses of the weights, the bias, the scales, the zero points, scratch (a slot for each
part), and of what the post-ops want. A subclass of :class:`Module` writes one task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, gcd
from typing import NamedTuple, Protocol

from relayout.ir.builder import table
from relayout.ir.kernel import kernel, share
from relayout.ir.types import I64, PTR, Value, constant
from relayout.kernels.conv import ENTRY
from relayout.kernels.conv.epilogue import Epilogue
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.sides import Side, offset_code
from relayout.kernels.conv.tile import WORD
from relayout.targets.machine import Machine

__all__ = ["OPERANDS", "Module", "Vectors"]

OPERANDS = ("weights", "bias", "scale", "src_zero_point", "weights_zero_point", "scratch")
"""What the third argument lists the addresses of; those that a convolution has not may be anything. Behind
them come the operands of binary operations."""


class Plan(Protocol):
    """What must be known of a plan."""

    @property
    def geometry(self) -> Geometry: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def src(self) -> Side: ...
    @property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """For each entry of the table of vectors the fields of :class:`Vectors`."""

    @property
    def kinds(self) -> tuple[object, ...]: ...
    @property
    def tasks(self) -> int: ...
    @property
    def slot(self) -> int: ...


class Vectors(NamedTuple):
    """An entry of the table when the kernel runs."""

    kind: Value
    src: Value
    weights: Value
    dst: Value
    channel: Value


class Module:
    """Writes the entry, and keeps the functions that it calls."""

    def __init__(self, plan: Plan, epilogue: Epilogue) -> None:
        self.epilogue, self._plan = epilogue, plan
        self.functions: dict[str, str] = {}
        self.b = kernel(ENTRY, plan.machine, calls=True)

    def text(self) -> str:
        """The text of all functions."""
        b, plan, epilogue = self.b, self._plan, self.epilogue
        *_, ops, part, _ = b.arguments
        given = [b.load(PTR, b.gep(ops, 8 * k)) for k in range(len(OPERANDS))]
        self.weights, bias, scale, self.src_zero, self.weights_zero, scratch = given
        self.bias, self.scale = b.gep(bias, epilogue.bias_at), b.gep(scale, epilogue.scale_at)
        self.operands = epilogue.bases(b, ops, len(OPERANDS))
        self.scratch = b.gep(scratch, part, plan.slot)
        first, end = share(b, plan.tasks)
        some = b.icmp("slt", first, end)
        b.when(some, lambda: self.all_tasks(first, end))
        places = table("places", [number for place in plan.places for number in place])
        return "\n".join([places, *self.functions.values(), b.text()])

    def all_tasks(self, first: Value, end: Value) -> None:
        """Write the loop over the tasks of a part, of which there are some."""
        self.b.loop(first, end, 1, lambda task: self.task(task, first))

    def task(self, task: Value, first: Value) -> None:
        """Write one task; ``first`` is the number of the first one of this part."""
        raise NotImplementedError

    # -- numbers --------------------------------------------------------------------------------------------

    def split(self, number: Value, count: int) -> tuple[Value, Value]:
        """Quotient and remainder."""
        return self.b.udiv(number, count), self.b.urem(number, count)

    def block(self, number: Value, step: int, extent: int) -> tuple[Value, Value]:
        """Where a block begins and ends."""
        if step >= extent:
            return constant(I64, 0), constant(I64, extent)
        start = self.b.mul(number, step)
        return start, self.b.smin(self.b.add(start, step), extent)

    # -- places ---------------------------------------------------------------------------------------------

    def image(self, pointer: Value, side: Side, number: Value) -> Value:
        """Where an image begins."""
        return self.b.gep(self.b.gep(pointer, side.start), offset_code(self.b, number, side.batch))

    def vectors(self, number: Value) -> Vectors:
        """An entry of the table."""
        b, fields = self.b, range(len(Vectors._fields))
        entry = b.gep(Value("@places", PTR), number, 8 * len(fields))
        kind, src, weights, dst, channel = (b.load(I64, b.gep(entry, 8 * k)) for k in fields)
        return Vectors(kind, src, b.gep(self.weights, weights), dst, channel)

    def by_kind(self, place: Vectors, body: Callable[[int], None]) -> None:
        """Write the body for each kind of vectors, and run that of this one."""
        kinds = range(len(self._plan.kinds))
        for k in kinds:
            if len(kinds) == 1:
                body(k)
            else:
                self.b.when(self.b.icmp("eq", place.kind, k), partial(body, k))

    def of_channel(self, channel: Value) -> list[Value]:
        """Where bias and scale of a channel lie."""
        b, at = self.b, self.b.mul(channel, WORD)
        scale = self.scale if self.epilogue.scale == 1 else b.gep(self.scale, at)
        return [b.gep(self.bias, at), scale]

    def call(
        self, name: str, pointers: Sequence[Value], channel: Value, target: Value, counts: Sequence[Value]
    ) -> None:
        """Call a tile that stores from ``target`` on."""
        others = self.epilogue.pointers(self.b, self.operands, channel, target)
        self.b.call(name, *pointers, *others, *counts)

    def taps_inside(self, src: Value, plane: Value, row: Value) -> tuple[Value, list[Value]]:
        """Where the first tap of an output row that falls inside lies; and the :data:`.COUNTS` of a tile."""
        firsts, counts = [], []
        for axis, index in ((0, plane), (1, row)):
            element, first, count = self._inside(axis, index)
            src = self.b.gep(src, element, self._plan.src.steps[axis])
            firsts.append(first)
            counts.append(count)
        return src, [*firsts, *counts]

    def _inside(self, axis: int, index: Value) -> tuple[Value, Value, Value]:
        """The element that the first tap inside falls on, which tap that is, and how many are inside."""
        b, g = self.b, self._plan.geometry
        if g.gaps[axis] > 1:
            return self._between(axis, index)
        taps, gap = g.kernel[axis], g.dilation[axis]
        start = b.sub(b.mul(index, g.strides[axis]), g.padding[axis])
        if g.always_inside(axis):
            return start, constant(I64, 0), constant(I64, taps)
        tap = b.udiv(b.smax(b.sub(gap - 1, start), 0), gap)
        room = b.udiv(b.sub(g.source[axis] - 1, start), gap)
        end = b.smin(b.add(room, 1), taps)
        return b.add(start, b.mul(tap, gap)), tap, b.sub(end, tap)

    def _between(self, axis: int, index: Value) -> tuple[Value, Value, Value]:
        """The same where the source has gaps: of the taps every ``step``-th falls on an element."""
        b, g = self.b, self._plan.geometry
        taps, gap, forth = g.kernel[axis], g.gaps[axis], g.dilation[axis]
        step, on = gap // gcd(gap, forth), forth // gcd(gap, forth)
        start = b.sub(b.mul(index, g.strides[axis]), g.padding[axis])
        far = ceil(g.padding[axis] / gap)  # so that no quotient is negative
        phase, met = b.urem(b.add(start, far * gap), gap), constant(I64, 0)
        for number in range(1, min(step, taps)):
            met = b.select(b.icmp("eq", phase, -number * forth % gap), number, met)
        first = b.sub(b.udiv(b.add(b.add(start, far * gap), b.mul(met, forth)), gap), far)
        count = b.udiv(b.sub(taps + step - 1, met), step)
        tap = b.udiv(b.smax(b.sub(on - 1, first), 0), on)
        end = b.smin(b.add(b.udiv(b.sub(g.source[axis] - 1, first), on), 1), count)
        return b.add(first, b.mul(tap, on)), b.add(met, b.mul(tap, step)), b.sub(end, tap)
