"""Blocks of channels become larger or smaller: ``blocks``.

From ``nChw8c`` to ``nChw16c``, pieces of 16 or 32 bytes lie together on both sides, and two loops around them
change places. To store a piece is to store a half or a quarter of a line. Here a register holds as many
pieces of each block as are a line, and lines are put together by a shuffle for each::

    block 0   a0 a1 a2 a3     ->     a0 b0 a1 b1        pieces of 16 bytes: two lines on either side
    block 1   b0 b1 b2 b3            a2 b2 a3 b3

and back, from right to left. That is :mod:`.interleave` and :mod:`.deinterleave` of elements wider than
words: registers are loaded and stored whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from relayout.ir.types import Value
from relayout.kernels.copy.base import Place, writes
from relayout.kernels.copy.cost import elsewhere, instructions
from relayout.kernels.copy.pixels import Pixels, in_strips
from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, Facts, Plan, Run, costing, left_of, shared_of
from relayout.kernels.copy.problem import Move
from relayout.kernels.copy.rows import rows_of
from relayout.loops.nest import Loop
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = ["Blocks", "BlocksPlan", "plans"]

MOST = 4  # blocks, each of which has a register
CLAIMED_BYTES = 8 * LINE  # that are written between asking for a line and writing it


@dataclass(frozen=True)
class BlocksPlan(Plan):
    """Pieces of several blocks, in turn on one side."""

    kind = "blocks"
    can_claim = True
    blocks: Loop = Loop(1, ())
    """From a block to the next."""
    along: Loop = Loop(1, ())
    """From a piece of a block to the next."""

    @property
    def merges(self) -> bool:
        """Whether blocks become larger."""
        return self.blocks.dst == self.piece

    @property
    def together(self) -> int:
        """Pieces of a block that are a line."""
        return LINE_BITS // self.piece

    def described(self) -> Iterator[str]:
        """How many of what."""
        yield f"{self.along.extent} pieces of {self.piece // 8} bytes of {self.blocks.extent} blocks"

    def completes(self, machine: Machine) -> bool:
        """All lines, if each block begins on one."""
        return self.merges or self.blocks.dst % LINE_BITS == 0


def plans(nest: Move, facts: Facts) -> Iterator[Plan]:
    """Two loops that go on after each other, in another order on either side, around pieces of lanes."""
    found = rows_of(nest) if nest.conversion is None and not (nest.zero or nest.fill) else None
    if found is None or facts.machine.vector != LINE:
        return
    rows, piece = found[0].rows, found[0].piece
    if nest.write < 8 or not rows.is_straight or piece not in (LANE_BITS, 2 * LANE_BITS):
        return
    for side, other in (("dst", "src"), ("src", "dst")):  # where blocks meet, and where they do not
        blocks = next((x for x in nest.loops if getattr(x, side) == piece and x.extent <= MOST), None)
        if blocks is None:
            continue
        turn = blocks.extent * piece
        along = next((x for x in nest.loops if getattr(x, side) == turn and getattr(x, other) == piece), None)
        if along is None or along.extent * piece < LINE_BITS:
            continue
        around = left_of(nest, rows, Run((blocks,)), Run((along,)))
        made = BlocksPlan(nest, rows, rows, around, shared_of(around), blocks=blocks, along=along)
        far = 0.0 if made.merges else elsewhere(abs(blocks.dst) // 8)
        yield from costing(in_strips(made, along), facts, instructions(1, 1) + far)
        return  # both loops may be short: to name one of them is enough


@writes(BlocksPlan)
class Blocks(Pixels):
    """Lines of pieces, from one order to the other."""

    plan: BlocksPlan

    def body(self, place: Place) -> None:
        """All pieces of the blocks."""
        self.along(self.plan.along, place, self._some, self.plan.together)

    def _some(self, place: Place) -> None:
        """:attr:`per` pieces of every block."""
        plan, b = self.plan, self.b
        row, many, per = plan.rows.extent, plan.blocks.extent, self.per
        size = per * plan.piece // 8
        apart = [self.moved(place, k, plan.blocks) for k in range(many)]
        meet = [
            place._replace(src=b.gep(place.src, k * size), dst=b.gep(place.dst, k * size))
            for k in range(many)
        ]
        given, made = (apart, meet) if plan.merges else (meet, apart)
        registers = [self.load(at, per * row, []) for at in given]
        for k, at in enumerate(made):
            if plan.merges:
                pieces = [((k * per + j) % many, (k * per + j) // many) for j in range(per)]
            else:
                pieces = [divmod(j * many + k, per) for j in range(per)]
            self.store_raw(self._put_together(registers, pieces), at.dst)
            for ahead in range(0, size if plan.claims else 0, LINE):
                self.claim(b.gep(at.dst, CLAIMED_BYTES + ahead))

    def _put_together(self, registers: list[Value], pieces: list[tuple[int, int]]) -> Value:
        """A register of pieces: of which register each is, and of which place there."""
        row = self.plan.rows.extent
        return self.picked(registers, [(k, place * row + e) for k, place in pieces for e in range(row)])
