"""What the text of every plan has in common: the entry, the loop over tasks, the table of vectors.

``void convolution(ptr src, ptr dst, ptr operands, i64 part, i64 parts)`` does a share of a plan's tasks. The
operands are the addresses of the weights, the bias, the scales, scratch (a slot for each part), and of what
the post-ops want. A subclass of :class:`Module` writes one task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from relayout.ir.writer import Writer
from relayout.kernels.conv.epilogue import Finishing
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.sides import Side, offset_code
from relayout.kernels.conv.tile import WORD
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "OPERANDS", "Module", "Vectors"]

ENTRY = "convolution"
OPERANDS = ("weights", "bias", "scale", "scratch")
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
    """An entry of the table when the kernel runs; names of values."""

    kind: str
    src: str
    weights: str
    dst: str
    channel: str


class Module:
    """Writes the entry, and keeps the functions that it calls."""

    def __init__(self, plan: Plan, finishing: Finishing) -> None:
        self.finishing, self._plan = finishing, plan
        self.functions: dict[str, str] = {}
        self.w = Writer(plan.machine)

    def text(self) -> str:
        """The text of all functions."""
        w, plan = self.w, self._plan
        self.weights, bias, scale, scratch = (
            w.value(f"load ptr, ptr {w.at('%ops', 8 * k)}, align 8") for k in range(len(OPERANDS))
        )
        self.bias, self.scale = w.at(bias, self.finishing.bias_at), w.at(scale, self.finishing.scale_at)
        self.operands = self.finishing.bases(w, len(OPERANDS))
        self.scratch = w.at(scratch, w.times("%part", plan.slot))
        following = w.value("add i64 %part, 1")
        lo, hi = (self.share(part, plan.tasks, "%parts") for part in ("%part", following))
        some = w.value(f"icmp slt i64 {lo}, {hi}")
        w.when(some, lambda: w.loop(lo, hi, 1, lambda task: self.task(task, lo)))
        entry = (
            f"define void @{ENTRY}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts) {{\n"
            f"entry:\n{w.text()}\n  ret void\n}}\n"
        )
        numbers = [f"i64 {number}" for place in plan.places for number in place]
        table = f"@places = internal constant [{len(numbers)} x i64] [{', '.join(numbers)}], align 64\n"
        return "\n".join([table, *self.functions.values(), entry])

    def task(self, task: str, first: str) -> None:
        """Write one task; ``first`` is the number of the first one of this part."""
        raise NotImplementedError

    # -- numbers --------------------------------------------------------------------------------------------

    def share(self, part: str, total: int, parts: int | str) -> str:
        """Where a part of some tasks begins."""
        return self.w.value(f"udiv i64 {self.w.value(f'mul i64 {part}, {total}')}, {parts}")

    def split(self, number: str, count: int) -> tuple[str, str]:
        """Quotient and remainder."""
        w = self.w
        if count == 1:
            return number, "0"
        return w.value(f"udiv i64 {number}, {count}"), w.value(f"urem i64 {number}, {count}")

    def block(self, number: str, step: int, extent: int) -> tuple[str, str]:
        """Where a block begins and ends."""
        if step >= extent:
            return "0", str(extent)
        start = self.times(number, step)
        return start, self.least(self.w.value(f"add i64 {start}, {step}"), str(extent))

    def least(self, one: str, other: str) -> str:
        """The smaller number."""
        return self.w.value(f"call i64 @llvm.smin.i64(i64 {one}, i64 {other})")

    def times(self, index: str, factor: int) -> str:
        """A product, folded where the index is 0."""
        return "0" if index == "0" else str(self.w.times(index, factor))

    # -- places ---------------------------------------------------------------------------------------------

    def image(self, pointer: str, side: Side, number: str) -> str:
        """Where an image begins."""
        w = self.w
        at = w.at(pointer, side.start)
        return w.at(at, offset_code(w, number, side.batch) if number != "0" else 0)

    def vectors(self, number: str) -> Vectors:
        """An entry of the table."""
        w, fields = self.w, range(len(Vectors._fields))
        entry = w.at("@places", w.times(number, 8 * len(fields)))
        kind, src, weights, dst, channel = (
            w.value(f"load i64, ptr {w.at(entry, 8 * k)}, align 8") for k in fields
        )
        return Vectors(kind, src, w.at(self.weights, weights), dst, channel)

    def by_kind(self, place: Vectors, body: Callable[[int], None]) -> None:
        """Write the body for each kind of vectors, and run that of this one."""
        kinds = range(len(self._plan.kinds))
        for k in kinds:
            if len(kinds) == 1:
                body(k)
            else:
                here = self.w.value(f"icmp eq i64 {place.kind}, {k}")
                self.w.when(here, lambda k=k: body(k))  # type: ignore[misc]

    def of_channel(self, channel: str) -> list[str]:
        """Where bias and scale of a channel lie."""
        at = self.w.value(f"mul i64 {channel}, {WORD}")
        scale = self.scale if self.finishing.scale == 1 else self.w.at(self.scale, at)
        return [self.w.at(self.bias, at), scale]

    def call(self, name: str, pointers: list[str], channel: str, target: str, counts: list[str]) -> None:
        """Call a tile that stores from ``target`` on."""
        others = self.finishing.pointers(self.w, self.operands, channel, target)
        given = [*(f"ptr {one}" for one in (*pointers, *others)), *(f"i64 {count}" for count in counts)]
        self.w.line(f"call void @{name}({', '.join(given)})")

    def taps_inside(self, src: str, plane: str, row: str) -> tuple[str, list[str]]:
        """Where the first tap of an output row that falls inside lies; and the :data:`.COUNTS` of a tile."""
        w, plan = self.w, self._plan
        firsts, counts = [], []
        for axis, index in ((0, plane), (1, row)):
            element, first, count = self._inside(axis, index)
            src = w.at(src, w.times(element, plan.src.steps[axis]))
            firsts.append(first)
            counts.append(count)
        return src, [*firsts, *counts]

    def _inside(self, axis: int, index: str) -> tuple[str, str, str]:
        """The element that the first tap inside falls on, which tap that is, and how many are inside."""
        w, g = self.w, self._plan.geometry
        taps, gap = g.kernel[axis], g.dilation[axis]
        start = w.value(f"sub i64 {w.times(index, g.strides[axis])}, {g.padding[axis]}")
        if g.always_inside(axis):
            return start, "0", str(taps)
        missing = w.value(f"sub i64 {gap - 1}, {start}")
        tap = w.value(f"udiv i64 {w.value(f'call i64 @llvm.smax.i64(i64 {missing}, i64 0)')}, {gap}")
        room = w.value(f"udiv i64 {w.value(f'sub i64 {g.source[axis] - 1}, {start}')}, {gap}")
        end = self.least(w.value(f"add i64 {room}, 1"), str(taps))
        element = w.value(f"add i64 {start}, {w.times(tap, gap)}")
        return element, tap, w.value(f"sub i64 {end}, {tap}")
