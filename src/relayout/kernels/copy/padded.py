"""Pixels of few channels that get zeros behind them: ``padded``.

Three channels become a block of sixteen, most of which is zeros. Pixels follow each other on both sides, so a
register of them is loaded and converted densely, and spread over as many lines as they are in the end::

    a0 a1 a2 b0 b1 b2 c0 c1 c2 d0 d1 d2 ...   ->   a0 a1 a2 .. .. .. .. ..   b0 b1 b2 .. .. .. .. ..
                                                   c0 c1 c2 .. .. .. .. ..   d0 d1 d2 .. .. .. .. ..

Each line takes one shuffle, with zeros from nowhere; that has to be an instruction of the processor
(:meth:`~relayout.targets.machine.Machine.permutes`). Pixel by pixel (``rows``), each one is converted alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayout.ir.types import integer, poison, vector
from relayout.ir.vectors import load_pieces, pieces_of
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import converting, instructions
from relayout.kernels.copy.pixels import Pixels, in_strips
from relayout.kernels.copy.plan import LINE_BITS, Facts, Plan, Run, costing, left_of, runs, shared_of
from relayout.kernels.copy.problem import Move, in_bytes
from relayout.loops.nest import Loop
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["Padded", "PaddedPlan", "plans"]


@dataclass(frozen=True)
class PaddedPlan(Plan):
    """Several pixels at a time, each with its zeros."""

    kind = "padded"
    pixels: Loop = Loop(1, (0, 0))
    """The pixels: neighbours on both sides."""

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.pixels.extent} pixels of {self.rows.extent} channels in {in_bytes(self.piece)} bytes"

    @property
    def even(self) -> tuple[Loop, ...]:
        """The pixels."""
        return (self.pixels,)

    def completes(self, machine: Machine) -> bool:
        """A vector of pixels, where that is some lines."""
        return machine.vector == LINE and self.pixels_of(machine) * self.piece % LINE_BITS == 0

    def pixels_of(self, machine: Machine) -> int:
        """How many pixels are converted together: as many as fit a register in the end, a power of two.

        >>> from relayout.kernels.copy.candidates import lowered
        >>> from relayout.kernels.copy.problem import moves
        >>> from relayout.layout.descriptor import MemoryDesc
        >>> from relayout.targets.machine import machine
        >>> shape, other = (8, 3, 32, 32), machine("x86-64-v4")
        >>> found = moves(MemoryDesc(shape, "bf16", "nhwc"), MemoryDesc(shape, "bf16", "nChw16c"))
        >>> [plan.pixels_of(other) for plan in lowered(found, "padded", other)]
        [8]
        """
        lanes = 8 * machine.vector // self.nest.write
        return 1 << max(1, lanes // self.rows.extent).bit_length() - 1


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Short rows with zeros behind them that follow each other on both sides."""
    inner, outer = runs(nest)
    if inner is None or inner is not outer or not nest.fill or nest.zero or nest.adds:
        return
    machine, total = facts.machine, inner.extent + nest.fill
    least = 8 * machine.vector // nest.write // 2  # elements: two pixels at least
    if min(nest.read, nest.write) < 8 or inner.extent > least or not machine.permutes(nest.write):
        return
    on = inner.extent * nest.read, total * nest.write
    pixels = next((x for x in nest.loops if (x.src, x.dst) == on and not any(x.tables)), None)
    if pixels is None or total & (total - 1):
        return
    channels = Run((inner,))
    around = left_of(nest, channels, Run((pixels,)))
    made = PaddedPlan(nest, channels, channels, around, shared_of(around), pixels=pixels)
    cost = instructions(1, 1) + converting(nest, LINE) * inner.extent / total
    yield from costing(in_strips(made, pixels), facts, cost)


@writes(PaddedPlan)
class Padded(Pixels):
    """Pixels and the zeros behind them."""

    plan: PaddedPlan

    def body(self, place: Place) -> None:
        """All pixels of a row."""
        self.along(self.plan.pixels, place, self._some, self.plan.pixels_of(self.machine))

    def _some(self, place: Place) -> None:
        """:attr:`per` pixels: dense in a register, then each with its zeros."""
        b, nest, channel = self.b, self.nest, self.plan.rows.loop
        channels, total, many = channel.extent, self.plan.total, self.per
        count = 1 << (many * channels - 1).bit_length()
        kind = vector(count, integer(nest.read))
        pieces = pieces_of(0, many * channels, 0, nest.read // 8)
        made = load_pieces(b, kind, place.src, pieces, 1, poison(kind))
        if self.what is not None:
            lanes = [[k % channels * stride for k in range(count)] for stride in channel.tables]
            made = self.value(made, place, lanes)
        elements = [p * channels + c if c < channels else count for p in range(many) for c in range(total)]
        size = min(8 * self.machine.vector // nest.write, len(elements))
        for first in range(0, len(elements), size):
            line = b.shuffle(made, elements[first : first + size], 0)
            self.put(line, b.gep(place.dst, first * nest.write // 8))
