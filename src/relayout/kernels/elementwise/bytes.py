"""Functions of a byte as tables: 256 results, looked up 64 or 32 at a time.

Whatever is computed of one operand of 8 bits, with a result of 8 bits, is a table of 256 bytes, and an
activation function of u8 is one like a rescaling is. Processors with AVX512-VBMI hold the table in four
registers::

    bit 7 of the index     which two registers
    bits 6 to 0            which of their 128 bytes        vpermi2b, one instruction for 64 bytes

Two permutations and a choice take 64 bytes, where widening to f32, computing, rounding and narrowing take
some dozens of instructions. The table is computed by the kernel that would have been used otherwise, so the
bits are the same.

AVX2 looks up 16 bytes at a time, ``vpshufb``, which makes 0 of an index with bit 7. So the table is sixteen
rows, of which only differences are kept: row k xor row k - 1. An index x is in row ``x >> 4``; the results
are the differences of all rows up to that one, combined by xor. ::

    x - 0     differs[0]      every x from 0 to 127
    x - 16    differs[1]      every x from 16 on: those below have bit 7 now, and get 0
    x - 32    differs[2]      ...

The subtraction saturates, so that what is below zero stays there; the upper half of the table is the same
for ``x ^ 128``. That is 47 instructions for 32 bytes. A function of a few instructions takes less by way of
f32, unless it is a :class:`Clamp`: bounds, and an addition. That is what ReLU and clip are of quantised
numbers, mostly, and it takes three instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from relayout.ir.builder import Builder, Function
from relayout.ir.kernel import share, streaming
from relayout.ir.types import I8, Value, constant, vector
from relayout.ir.vectors import picked_in_lanes, runs
from relayout.targets.machine import LINE, Machine

__all__ = [
    "ENTRY",
    "LEAST",
    "TABLE",
    "Clamp",
    "by_rows",
    "clamp",
    "differences",
    "looked_up",
    "module",
    "suits",
]

ENTRY = "bytes"
TABLE = 256  # bytes, and how many values a byte has
LEAST = 4 * TABLE  # bytes from which on a table is worth making
TOGETHER = 4  # registers of one turn
ROW = 16  # bytes that vpshufb looks up
PERMUTED = "llvm.x86.avx512.vpermi2var.qi.512"

Turn: TypeAlias = Callable[[Value, Value, int], None]


def suits(machine: Machine) -> bool:
    """Whether the processor looks up a register of bytes at once.

    >>> from relayout.targets.machine import machine
    >>> [suits(machine(cpu)) for cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4")]
    [False, True, False, True]
    """
    return machine.permutes(8) or by_rows(machine)


def by_rows(machine: Machine) -> bool:
    """Whether that is 16 bytes of a table at a time, which functions of few instructions do without.

    >>> from relayout.targets.machine import machine
    >>> [by_rows(machine(cpu)) for cpu in ("x86-64-v3", "znver4")]
    [True, False]
    """
    return machine.is_avx2


class Clamp(NamedTuple):
    """A function of a byte that bounds it, and then adds a number, modulo 256."""

    low: int
    high: int
    more: int
    signed: bool
    """How bytes are compared; bounds are given as bytes without a sign."""

    @property
    def operands(self) -> bytes:
        """What the kernel reads."""
        return bytes((self.low, self.high, self.more))


def clamp(table: Sequence[int]) -> Clamp | None:
    """A function, by its 256 results, as bounds and an addition; None where it is something else.

    >>> clamp([max(k, 7) for k in range(256)])
    Clamp(low=7, high=255, more=0, signed=False)
    >>> clamp([k if k < 128 else 0 for k in range(256)])
    Clamp(low=0, high=127, more=0, signed=True)
    >>> clamp([k * k % 256 for k in range(256)]) is None
    True
    """
    for signed in (False, True):
        order = [*range(128, 256), *range(128)] if signed else list(range(256))
        steps = [k for k in range(1, 256) if table[order[k]] != table[order[k - 1]]]
        low, high = (steps[0] - 1, steps[-1]) if steps else (0, 0)
        more = (table[order[low]] - order[low]) % 256
        if all(table[x] == (order[min(max(k, low), high)] + more) % 256 for k, x in enumerate(order)):
            return Clamp(order[low], order[high], more, signed)
    return None


def differences(table: bytes) -> bytes:
    """The rows of a table, each but that of 0 and that of 128 as what it differs by from the one before.

    >>> list(differences(bytes(k // 16 for k in range(256)))[::16])
    [0, 1, 3, 1, 7, 1, 3, 1, 8, 1, 3, 1, 7, 1, 3, 1]
    """
    before = bytes(table[k - ROW] if k % (TABLE // 2) >= ROW else 0 for k in range(TABLE))
    return bytes(one ^ other for one, other in zip(table, before, strict=True))


def module(size: int, machine: Machine, stream: bool, bounds: Clamp | None = None) -> str:
    """The text of the kernel for so many neighbouring bytes.

    Its operands are the table, where the processor looks up rows its :func:`differences`; or those of a
    :class:`Clamp`, of which the text depends on nothing but the sign.
    """
    return streaming(ENTRY, machine, stream, lambda f, past: _write(f, size, past, _found(f, bounds)))


def looked_up(b: Builder, table: Sequence[Value], x: Value) -> Value:
    """The results of 64 bytes, of four registers that hold those of all 256."""
    low, high = (b.call_value(x.type, PERMUTED, table[k], x, table[k + 1]) for k in (0, 2))
    return b.select(b.icmp("slt", x, 0), high, low)


Finding: TypeAlias = Callable[[list[Value]], Iterable[Value]]
"""What makes results of some registers of bytes."""


def _found(f: Function, bounds: Clamp | None) -> Finding:
    """How results are found; what is in registers from now on is loaded."""
    if bounds is not None:
        return _clamped(f, bounds.signed)
    if by_rows(f.machine):
        return lambda given: _by_rows(f, f["ops"], given)
    table = [f.load(vector(LINE, I8), f.gep(f["ops"], k * LINE), 1) for k in range(TABLE // LINE)]
    return lambda given: (looked_up(f, table, x) for x in given)


def _clamped(f: Function, signed: bool) -> Finding:
    """Bytes that are bounded, and added to."""
    low, high, more = (f.splat(f.load(I8, f.gep(f["ops"], k)), f.machine.vector) for k in range(3))
    smaller, larger = (f"{'s' if signed else 'u'}{name}" for name in ("min", "max"))

    def found(given: list[Value]) -> list[Value]:
        return [f.add(f.intrinsic(smaller, f.intrinsic(larger, x, low), high), more) for x in given]

    return found


def _by_rows(b: Builder, table: Value, given: list[Value]) -> list[Value]:
    """The results of some registers of 32 bytes, by the differences of the rows of a table.

    Rows are loaded for all registers; each load fills both lanes.
    """
    kind = given[0].type
    out: list[Value] = []
    for half in (0, TABLE // 2):
        left = [b.xor(x, -128) if half else x for x in given]
        for first in range(half, half + TABLE // 2, ROW):
            row = b.load(vector(ROW, I8), b.gep(table, first), ROW)
            row = b.shuffle(row, [*range(ROW)] * (kind.count // ROW))
            if first > half:
                left = [b.intrinsic("ssub.sat", x, constant(kind, ROW)) for x in left]
            picked = [picked_in_lanes(b, row, x) for x in left]
            out = [b.xor(x, y) for x, y in zip(out, picked, strict=True)] if out else picked
    return out


def _write(f: Function, size: int, past: bool, find: Finding) -> None:
    step = f.machine.vector
    wide = vector(step, I8)

    def turn(src: Value, dst: Value, count: int) -> None:
        found = find([f.load(wide, f.gep(src, k * step), 1) for k in range(count)])
        for k, x in enumerate(found):
            f.store(x, f.gep(dst, k * step), step if past else 1, past)

    src, dst, unit = f["src"], f["dst"], TOGETHER * step
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
        f.when(f.icmp("eq", f["part"], 0), lambda: _rest(f, size, whole * unit, turn, find))


def _rest(f: Function, size: int, done: int, turn: Turn, find: Finding) -> None:
    """What is left over: whole registers, then pieces of powers of two."""
    step = f.machine.vector
    for at, count in runs(size - done):
        for start in range(done + at, done + at + count, step):
            src, dst, many = f.gep(f["src"], start), f.gep(f["dst"], start), min(step, count)
            if many == step:
                turn(src, dst, 1)
                continue
            x = f.load(vector(many, I8), src, 1)
            [made] = find([f.shuffle(x, [k if k < many else -1 for k in range(step)])])
            f.store(f.shuffle(made, range(many)), dst, 1)
