"""Functions of 16 bits as tables: 65536 results, looked up one by one.

Registers of 32 bytes hold eight f32. An activation function takes twenty to sixty instructions for them, and
to come from bf16 and to go back to it takes a dozen more. A result that is looked up takes three: its index
is cut out of a word of the processor, and what lies there is inserted into a register ::

    load        four elements of 16 bits, as one number of 64
    shift, cut  an index                                            for each of them
    vpinsrw     the result at this index, into a lane

The table has 128 KiB, but numbers that are computed with lie within a few powers of two: 128 bf16 in each,
so that what is looked up mostly stays in the L1 cache; 1024 f16 do in the L2 cache. It is computed by the
kernel that would have been used otherwise, so the bits are the same.

Instructions that gather are not used: they take longer than the loads that they are made of, and on many
processors of Intel much longer.
"""

from __future__ import annotations

from relayout.ir.builder import Function
from relayout.ir.kernel import share, streaming
from relayout.ir.types import I16, I64, Value, poison, vector
from relayout.ir.vectors import join
from relayout.targets.machine import Machine

__all__ = ["ENTRY", "MOST_COMPUTED", "TABLE", "module", "suits"]

ENTRY = "words"
TABLE = 1 << 16  # elements, and how many values 16 bits have
MOST_COMPUTED = TABLE  # elements of a tensor that is not looked up, as the table itself
LANES = 16  # elements of a register of 32 bytes
TOGETHER = 2  # registers of one turn
WORD = 4  # elements that are loaded as one number


def suits(machine: Machine) -> bool:
    """Whether registers are so short that this is faster than to compute.

    >>> from relayout.targets.machine import machine
    >>> [suits(machine(cpu)) for cpu in ("x86-64-v2", "x86-64-v3", "znver4")]
    [False, True, False]
    """
    return machine.is_avx2


def module(count: int, machine: Machine, stream: bool) -> str:
    """The text of the kernel for so many neighbouring elements; its operands are the table."""
    return streaming(ENTRY, machine, stream, lambda f, past: _write(f, count, past))


def _write(f: Function, count: int, past: bool) -> None:
    src, dst, unit = f["src"], f["dst"], TOGETHER * LANES
    whole = count // unit
    if whole:
        first, last = share(f, whole)

        def turn(i: Value) -> None:
            at, to = f.gep(src, i, 2 * unit), f.gep(dst, i, 2 * unit)
            found = [_register(f, f.gep(at, 2 * LANES * k)) for k in range(TOGETHER)]
            for k, x in enumerate(found):
                f.store(x, f.gep(to, 2 * LANES * k), 2 * LANES if past else 2, past)

        f.when(f.icmp("slt", first, last), lambda: f.loop(first, last, 1, turn))

    def rest() -> None:
        def one(i: Value) -> None:
            index = f.zext(f.load(I16, f.gep(src, i, 2), 2), I64)
            f.store(_found(f, index), f.gep(dst, i, 2), 2)

        f.loop(whole * unit, count, 1, one)

    if count % unit:
        f.when(f.icmp("eq", f["part"], 0), rest)


def _register(f: Function, at: Value) -> Value:
    """The results of so many elements as fill a register."""
    halves = []
    for half in range(0, LANES, LANES // 2):
        made = poison(vector(LANES // 2, I16))
        for first in range(half, half + LANES // 2, WORD):
            word = f.load(I64, f.gep(at, 2 * first), 2)
            for k in range(WORD):
                index = f.and_(f.lshr(word, 16 * k), 0xFFFF) if k < WORD - 1 else f.lshr(word, 16 * k)
                made = f.insert(made, _found(f, index), first - half + k)
        halves.append(made)
    return join(f, halves)


def _found(f: Function, index: Value) -> Value:
    return f.load(I16, f.gep(f["ops"], index, 2), 2)
