"""Rows of words into blocks of eight rows: one function for all sizes, which it is told when it is called.

Other kernels of reorders are made for a problem, with its sizes as constants. Weights of a network are packed
once, in dozens of sizes, so that making code for each would take longer than moving them. What differs is
data: how many blocks and columns there are, from one row to the next, and tables of where blocks and columns
go. Eight columns of eight rows at a time are turned over in registers (:class:`~.network.Network`), in two
halves, each row's four words a lane::

    row 0   a0 b0 c0 d0 | row 4   a4 b4 c4 d4          a0 a1 a2 a3 | a4 a5 a6 a7     column a
    row 1   a1 b1 c1 d1 | row 5   a5 b5 c5 d5    ->    b0 b1 b2 b3 | b4 b5 b6 b7            b
    ..                                                 ..

The last eight columns may be some of those before, written again.
"""

from __future__ import annotations

from functools import lru_cache

from relayout.ir.kernel import kernel, share
from relayout.ir.types import I64, PTR, Value, integer, vector
from relayout.ir.vectors import join_lanes
from relayout.kernels.copy.network import Network
from relayout.kernels.copy.plan import LANE_BITS, WORD_BITS
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "OPERANDS", "ROWS", "module"]

ENTRY = "rows_into_blocks"
OPERANDS = ("blocks", "columns", "stride", "places", "targets")
"""Words that the third argument lists. ``stride``: bytes from one row of the source to the next. ``places``
and ``targets``: addresses of tables, where each block begins and where each column goes from there, in bytes.
"""
ROWS = 8  # of a block, and columns of a turn; there are no fewer
WORD = WORD_BITS // 8


@lru_cache(maxsize=4)
def module(machine: Machine) -> str:
    """The text: the function :data:`ENTRY`."""
    f = kernel(ENTRY, machine)
    src, dst, ops, *_ = f.arguments
    blocks, columns, stride = (f.load(I64, f.gep(ops, 8 * k)) for k in range(3))
    places, targets = (f.load(PTR, f.gep(ops, 8 * k)) for k in (3, 4))
    lane = vector(LANE_BITS // WORD_BITS, integer(WORD_BITS))
    network = Network(WORD_BITS, lane.count, ROWS)

    def some(rows: list[Value], block: Value, first: Value) -> None:
        """The columns of one turn."""
        for begin in range(0, ROWS, lane.count):
            column = f.add(first, begin)
            parts = [f.load(lane, f.gep(row, column, WORD), WORD) for row in rows]
            loaded = [join_lanes(f, [parts[k] for k in lanes]) for lanes in network.rows]
            for k, value in enumerate(network.transposed(f, loaded.__getitem__)):
                target = f.load(I64, f.gep(targets, f.add(column, k), 8))
                f.store(value, f.gep(block, target), WORD)

    def one(number: Value) -> None:
        """A block."""
        row = f.gep(src, f.mul(f.mul(number, stride), ROWS))
        rows = [row]
        for _ in range(1, ROWS):
            rows.append(f.gep(rows[-1], stride))
        block = f.gep(dst, f.load(I64, f.gep(places, number, 8)))
        f.loop(0, columns, ROWS, lambda first: some(rows, block, f.smin(first, last)))

    last = f.sub(columns, ROWS)
    begin, end = share(f, blocks)
    f.when(f.icmp("slt", begin, end), lambda: f.loop(begin, end, 1, one))
    return f.text()
