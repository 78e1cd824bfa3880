"""What tiles of AMX cost, for the model of sums of products (:mod:`.cost`).

A product of two tiles takes 16 cycles, whatever their sizes, and 52 until its sums can be added to again; a
tile is loaded in 8, and a configuration in 204. So 2 x 2 tiles, loaded once each for 4 products, multiply all
the time; and 7 rows of pixels cost as much as 16. Source: Intel 64 and IA-32 Architectures Optimization
Reference Manual, chapter "Intel Advanced Matrix Extensions". What becomes of the sums of a tile goes
on while the next one multiplies (:mod:`.amx_text`): the longer of both counts. Where operands come from costs
what it does in the other tile. None of this has been measured here: the contest decides.
"""

from __future__ import annotations

from math import ceil

from relayout.ir.amx import ROWS
from relayout.kernels.conv.amx import cutting, products_of, registers, runs_of, split
from relayout.kernels.conv.cost import TILES_TRIED, Facts, Known, Model, pieces_of_extent
from relayout.kernels.conv.direct import Block, Direct
from relayout.kernels.conv.tile import BLOCK

__all__ = ["AmxModel"]

PRODUCT, LATENCY = 16.0, 52.0  # cycles of a product of tiles; until its sums can be added to again
CONFIGURE = 204.0  # cycles of a configuration
LOAD, STORE = 8.0, 16.0  # cycles of a tile that is loaded from the L1 cache, and stored
FINISH = 3.0  # cycles of a vector of results: six operations on two ports
MOST_PIXELS = 3 * ROWS  # of a tile of one vector


class AmxModel(Model):
    """The same for a plan whose tiles are matrices."""

    def __init__(self, nest: Direct, facts: Facts | None = None) -> None:
        super().__init__(nest, facts)
        _, inner = split(nest.loops, nest.arithmetic)
        self.cut = cutting(inner.extent)
        self.products = products_of(nest.loops, nest.arithmetic)  # of each sum
        self.blocks_ = self._blocks()

    def _remembered(self) -> Known:
        return Known()  # runs of pixels depend on the strides of the source

    @property
    def fits(self) -> bool:
        """Whether there are registers enough, and sums in f32 are not too long."""
        return bool(self.blocks_)

    def blocks(self) -> list[Block]:
        """The pixels that a tile may have: the best few by the time that multiplying alone takes."""
        return self.blocks_

    def _blocks(self) -> list[Block]:
        if self.nest.arithmetic.sums == "f32" and self.products > BLOCK:
            return []
        whole = self.width  # of rows of tiles of several rows
        choices = [
            Block(rows, columns)
            for columns in range(1, min(MOST_PIXELS, self.width) + 1)
            for rows in range(1, (min(self.height, MOST_PIXELS // columns) if columns == whole else 1) + 1)
            if registers(self.runs(rows, columns), max(self.groups), self.cut.rest > 0)
        ]

        def cycles(block: Block) -> tuple[float, int]:
            return self.multiplying(block, self.height, self.width), -block.rows * block.columns

        return sorted(choices, key=cycles)[:TILES_TRIED]

    def runs(self, rows: int, columns: int) -> int:
        """Tiles of so many rows of so many pixels."""
        _, _, h, x = self.nest.dims
        return len(runs_of([i * h.src + j * x.src for i in range(rows) for j in range(columns)]))

    def bound(self, threads: int) -> float:
        """Nothing is below zero: tiles of whole rows cost the same whatever part of them is used."""
        return 0.0

    def product(self, runs: int, vectors: int) -> float:
        """Cycles of the products of one piece of the channels."""
        return max(runs * vectors * PRODUCT, (runs + vectors) * LOAD, LATENCY)

    def turn(self, pixels: int, vectors: int) -> float:
        """The same for one step, as the other tile counts them."""
        return self.product(ceil(pixels / ROWS), vectors) * self.products / self.turns

    def multiplying(self, block: Block, rows: int, columns: int) -> float:
        """Cycles of all groups for so many rows of so many pixels."""
        total = 0.0
        runs = self.runs(*block)  # of what is left over, too: some is computed again
        for tall, n in pieces_of_extent(rows, block.rows):
            for wide, m in pieces_of_extent(columns, block.columns):
                for vectors, count in self.groups.items():
                    finished = runs * vectors * STORE + tall * wide * vectors * FINISH
                    products = self.products * self.product(runs, vectors)
                    total += n * m * count * (max(products, finished) + self.facts.call)
                    if self.nest.offset:  # nothing goes on behind the last tile of a group
                        total += count * min(products, finished)
        return total + CONFIGURE * len(self.groups)
