"""A product by weights in blocks as plain data: what both kernels are written from.

The source is cut into *chunks* of at most 128 inputs, which lie within a block. Of each the scratch has a
record, and of each row one record after the other::

    limb 0 of all inputs | limb 1 | limb 2 | 2**e, and what each sum begins with

A sum begins with minus the zero point times the sum of the limbs. Where all zero points are alike that is
stored; else it is minus the sum alone, and the product multiplies.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.dtypes import dtype
from relayout.targets.machine import Machine

__all__ = ["GROUP", "LIMBS", "Plan", "chunk_of", "weights_text"]

LIMBS = 3  # bytes into which an f32 is cut
MOST = 128  # inputs of a chunk: the fewer, the closer they are to the largest of them
GROUP = 8  # inputs that are read at once: those of a word of 4-bit weights


def chunk_of(block: int, inputs: int) -> int:
    """Inputs of a chunk; 0: blocks of so many can't be cut into chunks.

    >>> [chunk_of(block, 4096) for block in (16, 32, 128, 256, 4096, 20)]
    [16, 32, 128, 128, 128, 0]
    """
    if block >= inputs:  # one block, which ends wherever chunks do
        return min(MOST, -(-inputs // GROUP) * GROUP)
    return next((n for n in range(MOST, 0, -GROUP) if block % n == 0), 0)


def weights_text(bits: int, machine: Machine, axes: str = "ab") -> str:
    """The format of weights, outputs by inputs: a word of each output of a register, side by side.

    >>> from relayout.targets.machine import machine
    >>> weights_text(4, machine("znver4")), weights_text(8, machine("x86-64-v3"))
    ('AB16a8b', 'AB8a4b')
    """
    return f"AB{machine.vector // 4}a{32 // bits}b"


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

    @property
    def lanes(self) -> int:
        """Outputs of a register."""
        return self.machine.vector // 4

    @property
    def groups(self) -> int:
        """Registers of outputs."""
        return -(-self.outputs // self.lanes)

    @property
    def together(self) -> int:
        """How many of them a tile has.

        Two share the words of the source. With one row, which is read at the speed of memory, there is one:
        a single stream of weights is fetched in advance with fewer gaps.
        """
        return 1 if self.rows == 1 else 2

    @property
    def tasks(self) -> int:
        """What threads share."""
        return -(-self.groups // self.together)

    @property
    def word(self) -> int:
        """Inputs whose weights are a word of 32 bits."""
        return 32 // self.bits

    @property
    def words(self) -> int:
        """Words of each output."""
        return -(-self.inputs // self.word)

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
        weights = self.groups * self.words * self.machine.vector
        tables = self.groups * self.lanes * self.blocks * (5 if self.zeros else 4)
        rows = self.rows * (self.inputs * dtype(self.src).bits + self.outputs * dtype(self.dst).bits) // 8
        return weights + tables + rows
