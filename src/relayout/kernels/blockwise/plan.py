"""A product by weights in blocks as plain data: what both kernels are written from.

The source is cut into *chunks* of at most 128 inputs, which lie within a block. Of each the scratch has a
record, and of each row one record after the other::

    limb 0 of all inputs | limb 1 | limb 2 | 2**e, and what each sum begins with

A sum begins with minus the zero point times the sum of the limbs. Where all zero points are alike that is
stored; else it is minus the sum alone, and the product multiplies. Where sums of all limbs are added up as
whole numbers (:attr:`Plan.fits`), the first of them begins with what is for all.

Weights have several registers of outputs *side by side*: ``AB64a8b`` has a word of each of 64 outputs, four
registers, before the next eight inputs. So words of the source, each spread over a register, are loaded once
for all four; and what is read is one stream of memory, the longer the better it is fetched in advance.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.targets.machine import Machine

__all__ = ["GROUP", "LIMBS", "NEAR", "Plan", "chunk_of", "lines_of", "side_of", "weights_text"]

LIMBS = 3  # bytes into which an f32 is cut
NEAR = 22  # bits of an element in front of its point, as limbs hold it
MOST = 128  # inputs of a chunk: the fewer, the closer they are to the largest of them
GROUP = 8  # inputs that are read at once: those of a word of 4-bit weights
SIDES = 4, 2, 1  # registers of outputs that may be side by side
PADDED = 16  # at most one register in so many is padding
MOST_ROWS = 4  # of a tile
MANY_REGISTERS = 32  # three quarters of which hold sums of as many outputs as are side by side, and two rows


def chunk_of(block: int, inputs: int) -> int:
    """Inputs of a chunk; 0: blocks of so many can't be cut into chunks.

    >>> [chunk_of(block, 4096) for block in (16, 32, 128, 256, 4096, 20)]
    [16, 32, 128, 128, 128, 0]
    """
    if block >= inputs:  # one block, which ends wherever chunks do
        return min(MOST, -(-inputs // GROUP) * GROUP)
    return next((n for n in range(MOST, 0, -GROUP) if block % n == 0), 0)


def side_of(outputs: int, machine: Machine) -> int:
    """How many registers of outputs are best side by side: the more, unless much of it were padding.

    Three sums for each of four registers take 12 of 32; where there are 16, two are side by side.

    >>> from relayout.targets.machine import machine
    >>> [side_of(n, machine("znver4")) for n in (48, 64, 80, 4096, 4100)]
    [1, 4, 1, 4, 4]
    >>> side_of(4096, machine("x86-64-v3"))
    2
    """
    groups = -(-outputs // (machine.vector // 4))
    most = machine.registers // 8
    return next(n for n in SIDES if n <= most and -(-groups // n) * n <= groups + groups // PADDED)


def weights_text(bits: int, machine: Machine, side: int = 1) -> str:
    """The format of weights, outputs by inputs: a word of each output of some registers, side by side.

    >>> from relayout.targets.machine import machine
    >>> weights_text(4, machine("znver4"), 4), weights_text(8, machine("x86-64-v3"))
    ('AB64a8b', 'AB8a4b')
    """
    return f"AB{side * machine.vector // 4}a{32 // bits}b"


def lines_of(machine: Machine, side: int, axes: int) -> str:
    """The format of scales, zero points and biases: those of some registers of outputs side by side.

    >>> from relayout.targets.machine import machine
    >>> lines_of(machine("znver4"), 4, 2), lines_of(machine("znver4"), 1, 1)
    ('Ab64a', 'A16a')
    """
    return f"A{'b' * (axes - 1)}{side * machine.vector // 4}a"


class Plan(NamedTuple):
    """The product."""

    machine: Machine
    rows: int
    inputs: int
    outputs: int
    bits: int
    """Of a weight."""
    block: int
    """Inputs that share a scale."""
    limbs: int
    """Bytes into which the source is cut."""
    src: str
    dst: str
    """Data types."""
    src_at: tuple[int, int]
    """Bytes in front of the first row, and from row to row."""
    dst_at: tuple[int, int]
    zeros: bool
    """Whether zero points are read; else they are half of the range."""
    bias: bool
    scale: str = "f32"
    """The data type of scales."""
    side: int = 1
    """Registers of outputs that are side by side in memory."""

    @property
    def lanes(self) -> int:
        """Outputs of a register."""
        return self.machine.vector // 4

    @property
    def groups(self) -> int:
        """Registers of outputs side by side, how often."""
        return -(-self.outputs // (self.lanes * self.side))

    @property
    def tile(self) -> tuple[int, int]:
        """Registers of outputs, and rows, whose sums are made at a time.

        One row takes all outputs that are side by side. More rows do, too, where there are registers for all
        sums: then weights are read once, in the order in which they lie. Else two registers of outputs share
        the words of the source, and some rows the weights that have been taken apart: a dozen sums hide the
        latency of the instruction, and leave registers for what is multiplied.
        """
        if self.rows == 1:
            return self.side, 1
        registers = self.machine.registers
        together, room = min(self.side, 2), registers * 3 // 8
        if registers >= MANY_REGISTERS:
            together, room = self.side, registers * 3 // 4
        return together, max(1, min(room // (together * self.limbs), MOST_ROWS, self.rows))

    @property
    def word(self) -> int:
        """Inputs whose weights are a word of 32 bits."""
        return 32 // self.bits

    @property
    def words(self) -> int:
        """Words of each output."""
        return -(-self.inputs // self.word)

    @property
    def line(self) -> int:
        """Bytes of the words of all outputs that are side by side."""
        return self.side * self.machine.vector

    @property
    def chunk(self) -> int:
        """Inputs that share an exponent."""
        return chunk_of(self.block, self.inputs)

    @property
    def chunks(self) -> int:
        """How many there are; the last may be shorter."""
        return -(-self.inputs // self.chunk)

    @property
    def each(self) -> int:
        """Chunks of a block."""
        return self.chunks if self.block >= self.inputs else self.block // self.chunk

    @property
    def blocks(self) -> int:
        """Blocks of an output."""
        return -(-self.chunks // self.each)

    @property
    def fits(self) -> bool:
        """Whether the sums of all limbs of a chunk are one whole number below 2**31.

        An element is at most 2**22, a weight of 4 bits 8 from the usual zero point. Then a chunk begins with
        one number in place of one for each limb.
        """
        largest = self.chunk * self.zero << NEAR
        return self.limbs == LIMBS and not self.zeros and largest < 1 << 31

    @property
    def record(self) -> int:
        """Bytes that the scratch has for a chunk."""
        return self.limbs * self.chunk + 16

    @property
    def room(self) -> int:
        """Bytes of the scratch."""
        return self.rows * self.chunks * self.record

    @property
    def zero(self) -> int:
        """The zero point where none is read."""
        return 1 << (self.bits - 1)

    @property
    def size(self) -> int:
        """Bytes that the product reads and writes."""
        weights = self.groups * self.words * self.line
        tables = (
            self.groups * self.side * self.lanes * self.blocks * (dtype(self.scale).bits // 8 + self.zeros)
        )
        rows = self.rows * (self.inputs * dtype(self.src).bits + self.outputs * dtype(self.dst).bits) // 8
        return weights + tables + rows
