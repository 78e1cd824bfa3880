"""Weights that change their type while they are packed: ``converted``.

Nine taps of a filter are a short run. A transpose that takes such runs one by one converts nine values at a
time, each run with operands of its own; but the taps of all inputs of an output follow each other, and they
have one scale. So this is done in two steps, with a buffer in the L1 cache between them that holds values
of the narrower type::

    f32 oihw      16 x 144 floats   -> converted, whole vectors ->   16 x 144 bytes
    the buffer    16 x 144 bytes    -> transposed              ->    s8 OIhw4i16o4i, whole lines
"""

from __future__ import annotations

from collections.abc import Callable

from relayout.kernels.copy.base import Kernel, Place
from relayout.kernels.copy.plan import Plan
from relayout.targets.machine import LINE, Machine

__all__ = ["Converted", "Maker"]

Maker = Callable[[Plan, Machine, bool, str], Kernel]
"""Makes what writes the kernel of a plan: for a machine, streaming or not, under a name."""


class Converted(Kernel):
    """Two kernels, one after the other, with a buffer between them, a few KiB at a time."""

    def __init__(
        self, kernel_of: Callable[[Plan], Maker], plan: Plan, machine: Machine, streaming: bool, name: str
    ) -> None:
        super().__init__(plan, machine, streaming, name)
        self.kernel_of = kernel_of

    def prepare(self) -> None:
        """Make the buffer, and both kernels: parts of this one, they write where it writes."""
        convert, move = self.plan.steps
        self.between = self.b.alloca(self.plan.between // 8, LINE)
        self.convert = self.kernel_of(convert)(convert, self.machine, False, f"{self.name}_convert")
        self.move = self.kernel_of(move)(move, self.machine, self.stream, f"{self.name}_move")
        self.convert._numbers = self._numbers
        for part in (self.convert, self.move):
            part.b, part.shared, part.routines = self.b, self.shared, self.routines
            part.prepare()

    def body(self, place: Place) -> None:
        """Both steps."""
        for part, at in (
            (self.convert, place._replace(dst=self.between)),
            (self.move, Place(self.between, place.dst)),
        ):
            part.whole(at)
