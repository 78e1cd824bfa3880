"""Bytes picked within lanes by AVX2's instruction: what :mod:`.apart` and :mod:`.together` have in common.

The picks stand in a table that the kernel reads, since of a shuffle that it knows LLVM looks for something
better: it took seconds for some kernels, and for one ten minutes did not do.
"""

from __future__ import annotations

from collections.abc import Mapping

from relayout.ir.builder import numbers_of, table
from relayout.ir.types import PTR, Value
from relayout.ir.vectors import picked_in_lanes
from relayout.kernels.copy.base import Kernel
from relayout.kernels.copy.plan import LANE_BITS

__all__ = ["LANE", "Picking"]

LANE = LANE_BITS // 8
ZERO = 0x80  # where a byte is picked from that is to be zero


class Picking(Kernel):
    """A kernel with a table of picks, which is written down when all of them are known."""

    def prepare(self) -> None:
        """Name the table; it has no picks yet."""
        self.picks: dict[bytes, int] = {}
        self.picks_at = Value(f"@{self.name}_picks", PTR)

    def write_down(self) -> None:
        """Write the table: to be called at the end of the body."""
        name = self.picks_at.removeprefix("@")
        self.routines[name] = table(name, numbers_of(b"".join(self.picks)))

    def picked(self, x: Value, given: Mapping[int, int]) -> Value:
        """Bytes of every lane: where each one goes, and where it comes from; all others are zero."""
        lane = bytes(given.get(at, ZERO) for at in range(LANE))
        number = self.picks.setdefault(lane * (x.type.bytes // LANE), len(self.picks))
        picks = self.b.load(x.type, self.b.gep(self.picks_at, number * x.type.bytes), x.type.bytes)
        return picked_in_lanes(self.b, x, picks)
