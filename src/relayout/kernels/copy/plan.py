"""How a nest is moved: what has been chosen for it, as plain data that prints itself.

Sizes and strides are bits, as in :mod:`.problem`. :mod:`.choice` makes plans; kernels read them.
"""

from __future__ import annotations

from dataclasses import dataclass

from relayout.kernels.copy.problem import LANES, Move, in_bytes
from relayout.loops.nest import Loop
from relayout.targets.machine import LINE, Machine

__all__ = ["LANE_BITS", "LINE_BITS", "ROWS", "Plan", "Run", "along"]

LANE_BITS = 128  # of a lane: shuffles that stay within one are cheap on every processor
LINE_BITS = 8 * LINE
ROWS = 32  # short rows in a block: lines that they share are then still in the L1 cache


@dataclass(frozen=True)
class Run:
    """Elements that neighbour each other on one side: one loop, or several of which each continues the next.

    ``loops`` has the innermost first.
    """

    loops: tuple[Loop, ...]

    @property
    def extent(self) -> int:
        """Elements."""
        total = 1
        for loop in self.loops:
            total *= loop.extent
        return total

    @property
    def loop(self) -> Loop:
        """The only loop."""
        (loop,) = self.loops
        return loop

    @property
    def is_straight(self) -> bool:
        """Whether the run has one stride on the other side, too."""
        return len(self.loops) == 1

    def places(self, side: str) -> list[int]:
        """Where every element lies on a side, ``"src"`` or ``"dst"``, in bits."""
        found = [0]
        for loop in self.loops:
            stride: int = getattr(loop, side)
            found = [turn * stride + place for turn in range(loop.extent) for place in found]
        return found

    def strides(self, side: str) -> list[int]:
        """All strides on a side, in bits."""
        return [getattr(loop, side) for loop in self.loops]


@dataclass(frozen=True)
class Plan:
    """How a nest is moved: the kernel, its loops, and the loop that threads share."""

    nest: Move
    kind: str
    columns: Run
    """I: contiguous in the source."""
    rows: Run
    """O: contiguous in the destination (for ``rows`` the same as I)."""
    around: tuple[Loop, ...]
    """The loops around, outermost first."""
    shared: Loop | None = None
    """The loop that threads share: one of ``around``, or I of a transpose; None: too small to share."""
    unit: int = 1
    """Where the shared loop may be cut: at multiples of this."""
    blocked: Loop | None = None
    """The loop that is worked through in blocks, around the others; None: no need."""
    outer: int = 0
    """So many of the loops around stay outside of the blocks: they step over all that these touch."""
    inside: int = -1
    """When streaming: what so many of the innermost loops write passes through a buffer; -1: nothing."""
    bounced: int = 0
    """A transpose: so many columns pass through a buffer at a time, to be stored in whole lines; 0: none."""
    steps: tuple[Plan, ...] = ()
    """What is done one after the other, with a buffer in between; both are whole, nobody shares them."""
    block: int = 64
    """Rows that are worked on together, of a transpose or of short ones in blocks."""
    prefetch: bool | None = None
    """A transpose: whether its source rows are prefetched; None: where they are far apart."""
    group: int = 0
    """A transpose of joined rows in groups of so many, each of which ends with zeros; 0: there are none."""

    def __str__(self) -> str:
        words = [self.kind]
        if self.kind in ("transpose", "staged"):
            joined = " joined" if len(self.columns.loops) + len(self.rows.loops) > 2 else ""
            words.append(f"{self.total} rows by {self.columns.extent} columns{joined}")
            if self.group:
                words.append(f"zeros {self.nest.fill} rows of {self.group}")
        elif self.kind in ("interleave", "deinterleave"):
            planes = self.kind == "interleave"
            pixels, channels = (self.columns, self.rows) if planes else (self.rows, self.columns)
            words.append(f"{pixels.extent} pixels of {channels.extent} channels")
        elif self.kind == "converted":
            words.append(f"{self.between // self.mid} elements at a time: {'; '.join(map(str, self.steps))}")
        elif self.kind in ("rows", "lines"):
            words.append(f"{in_bytes(self.total * self.nest.write)} bytes each")
        if self.nest.conversion is not None and not self.steps:
            words.append(
                f"moved as u{self.mid}, converted {'before stores' if self.late else 'behind loads'}"
            )
        if self.around:
            words.append("within " + " ".join(f"{loop.extent}x" for loop in self.around))
        if self.shared is not None:
            words.append(f"threads share {self.shared.extent}x")
        return ", ".join(words)

    @property
    def extent(self) -> int:
        """Turns of the shared loop."""
        return self.shared.extent if self.shared is not None else 1

    @property
    def between(self) -> int:
        """Bits of the buffer between two steps."""
        return 8 * self.steps[0].nest.bytes

    @property
    def total(self) -> int:
        """Elements of a row of the destination, zeros included."""
        return self.rows.extent + (0 if self.group else self.nest.fill)

    @property
    def late(self) -> bool:
        """Whether values are converted before stores rather than behind loads."""
        nest, what = self.nest, self.nest.conversion
        if what is None:
            return False
        if what.accumulates:
            return True
        if self.kind == "interleave":
            return nest.read < nest.write and not any(along(nest, self.rows))
        if self.kind == "deinterleave" and any(along(nest, self.columns)):
            return True
        return nest.read <= nest.write

    @property
    def mid(self) -> int:
        """Bits of an element while it is moved about in registers."""
        return max(8, self.nest.read if self.late else self.nest.write)

    @property
    def is_padded(self) -> bool:
        """Whether a row and the zeros behind it are one vector: a power of two, at least half of it zeros."""
        total = self.total
        even = 4 not in (self.nest.read, self.nest.write) or self.rows.extent % 2 == 0
        fits = total & (total - 1) == 0 and total <= LANES and self.nest.fill >= self.rows.extent
        return (
            self.kind == "rows"
            and self.rows.is_straight
            and bool(self.nest.fill)
            and fits
            and even
            and not self.nest.adds
        )

    @property
    def packs(self) -> bool:
        """Whether it interleaves whole lines of the destination at a time, for any vectors."""
        few = self.rows.extent
        return self.kind == "interleave" and not few & (few - 1) and self.footprint % LINE_BITS == 0

    @property
    def footprint(self) -> int:
        """Bits of the destination that the loops :attr:`inside` (or the body alone) write side by side."""
        inner = self.around[len(self.around) - max(self.inside, 0) :]
        total = self.total * self.nest.write
        if self.kind == "interleave":
            total *= self.columns.extent
        for loop in inner:
            total *= loop.extent
        return total

    def streams(self, machine: Machine) -> bool:
        """Whether the kernel completes whole lines of the destination, if that begins on a line."""
        nest = self.nest
        if nest.adds:
            return False
        outside = self.around[: len(self.around) - max(self.inside, 0)]
        if nest.dst % LINE_BITS or any(loop.dst % LINE_BITS for loop in outside):
            return False
        if self.steps:
            return self.steps[-1].streams(machine)
        if self.kind == "lines" or self.inside >= 0 or self.bounced:
            return True
        if self.kind == "rows":
            if self.blocked is not None:
                return self.block * self.blocked.dst % LINE_BITS == 0  # whole blocks leave, in whole lines
            row = self.total if self.is_padded else self.rows.extent
            return row * nest.write >= LINE_BITS
        whole = all(stride % LINE_BITS == 0 for stride in self.columns.strides("dst"))
        if self.kind in ("transpose", "staged"):
            return whole and self.total * nest.write >= LINE_BITS
        if self.kind == "deinterleave":
            return whole and machine.vector == LINE
        return self.kind == "interleave" and (machine.vector == LINE or self.packs)


def along(nest: Move, run: Run) -> list[int]:
    """The strides of a run in the tables of operands."""
    return [stride for loop in run.loops for stride in loop.tables]
