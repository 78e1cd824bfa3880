"""Functions of a byte as tables: 256 results, looked up 64 at a time.

Whatever is computed of one operand of 8 bits, with a result of 8 bits, is a table of 256 bytes, and an
activation function of u8 is one like a rescaling is. Processors with AVX512-VBMI hold the table in four
registers::

    bit 7 of the index     which two registers
    bits 6 to 0            which of their 128 bytes        vpermi2b, one instruction for 64 bytes

Two permutations and a choice take 64 bytes, where widening to f32, computing, rounding and narrowing take
some dozens of instructions. The table is computed by the kernel that would have been used otherwise, so the
bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from relayout.ir.builder import Builder, Function
from relayout.ir.kernel import share, streaming
from relayout.ir.types import I8, Value, vector
from relayout.ir.vectors import runs
from relayout.targets.machine import LINE, Machine

__all__ = ["ENTRY", "LEAST", "TABLE", "looked_up", "module", "suits"]

ENTRY = "bytes"
TABLE = 256  # bytes, and how many values a byte has
LEAST = 4 * TABLE  # bytes from which on a table is worth making
TOGETHER = 4  # registers of one turn
PERMUTED = "llvm.x86.avx512.vpermi2var.qi.512"

Turn: TypeAlias = Callable[[Value, Value, int], None]


def suits(machine: Machine) -> bool:
    """Whether the processor looks up 64 bytes at once.

    >>> from relayout.targets.machine import machine
    >>> suits(machine("x86-64-v4"))
    False
    """
    return machine.permutes(8)


def module(size: int, machine: Machine, stream: bool) -> str:
    """The text of the kernel for so many neighbouring bytes; its operands are the table."""
    return streaming(ENTRY, machine, stream, lambda f, past: _write(f, size, past))


def looked_up(b: Builder, table: Sequence[Value], x: Value) -> Value:
    """The results of 64 bytes, of four registers that hold those of all 256."""
    low, high = (b.call_value(x.type, PERMUTED, table[k], x, table[k + 1]) for k in (0, 2))
    return b.select(b.icmp("slt", x, 0), high, low)


def _write(f: Function, size: int, past: bool) -> None:
    wide = vector(LINE, I8)
    table = [f.load(wide, f.gep(f["ops"], k * LINE), 1) for k in range(TABLE // LINE)]

    def turn(src: Value, dst: Value, count: int) -> None:
        found = [f.load(wide, f.gep(src, k * LINE), 1) for k in range(count)]
        for k, x in enumerate(found):
            f.store(looked_up(f, table, x), f.gep(dst, k * LINE), LINE if past else 1, past)

    src, dst, unit = f["src"], f["dst"], TOGETHER * LINE
    whole = size // unit
    if whole:
        first, last = share(f, whole)
        some = f.icmp("slt", first, last)
        f.when(
            some,
            lambda: f.loop(
                first, last, 1, lambda i: turn(f.gep(src, i, unit), f.gep(dst, i, unit), TOGETHER)
            ),
        )
    if size % unit:
        f.when(f.icmp("eq", f["part"], 0), lambda: _rest(f, size, whole * unit, turn, table))


def _rest(f: Function, size: int, done: int, turn: Turn, table: Sequence[Value]) -> None:
    """What is left over: whole registers, then pieces of powers of two."""
    for at, count in runs(size - done):
        for start in range(done + at, done + at + count, LINE):
            src, dst, many = f.gep(f["src"], start), f.gep(f["dst"], start), min(LINE, count)
            if many == LINE:
                turn(src, dst, 1)
                continue
            x = f.load(vector(many, I8), src, 1)
            x = f.shuffle(x, [k if k < many else -1 for k in range(LINE)])
            made = looked_up(f, table, x)
            f.store(f.shuffle(made, range(many)), dst, 1)
