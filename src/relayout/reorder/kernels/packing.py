"""Weights that change their type while they are packed: ``converted``.

Nine taps of a filter are a short run. A transpose that takes such runs one by one converts nine values at a
time, each run with operands of its own; but the taps of all inputs of an output follow each other, and they
have one scale. So this is done in two steps, with a buffer in the first cache between them that holds values
of the narrower type::

    f32 oihw      16 x 144 floats   -> converted, whole vectors ->   16 x 144 bytes
    the buffer    16 x 144 bytes    -> turned over             ->    s8 OIhw4i16o4i, whole lines
"""

from __future__ import annotations

from relayout.codegen.machine import LINE
from relayout.forking import locked
from relayout.reorder.kernels.base import Kernel, Place

__all__ = ["Converted"]


class Converted(Kernel):
    """Two kernels, one after the other, with a buffer between them, a few KiB at a time."""

    @locked
    def prepare(self) -> None:
        """Make the buffer, and both kernels: parts of this one, they write where it writes."""
        from relayout.reorder.kernels.module import kernel_of  # which knows this one, too

        convert, move = self.plan.steps
        self.entry_lines.append(f"  %between = alloca [{self.plan.between // 8} x i8], align {LINE}")
        self.convert = kernel_of(convert)(convert, self.machine, False, f"{self.name}_convert")
        self.move = kernel_of(move)(move, self.machine, self.stream, f"{self.name}_move")
        self.convert._numbers = self._numbers
        for part in (self.convert, self.move):
            part.w, part.routines, part.entry_lines = self.w, self.routines, self.entry_lines
            part.prepare()

    def body(self, place: Place) -> None:
        """Both steps."""
        for part, at in (
            (self.convert, place._replace(dst="%between")),
            (self.move, Place("%between", place.dst, ())),
        ):
            if part.plan.blocked is not None:
                part.blocks(part.plan.blocked, at)
            else:
                part.loops(part.plan.around, at)
