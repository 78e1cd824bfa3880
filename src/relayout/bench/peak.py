"""The most that the processor can do: multiplications and additions in registers, and nothing else.

What a convolution takes is held against the time in which the same processor does as many multiplications and
additions without touching memory. That is measured, not looked up: clocks depend on the width of vectors, on
the neighbours and on the day.

The kernel keeps as many sums in vector registers as there is room for (:func:`chains`) and adds a product to
each of them in turn::

    sum 1 = sum 1 * a + b        a fused multiply-add (FMA) takes 4 to 5 cycles, and two begin in each;
    sum 2 = sum 2 * a + b        so from 10 sums on none waits for itself
    ...

Other instructions take longer: with 12 sums ``vdpbf16ps`` reaches 0.92 of what it does with 16 on Zen 5.

Sums approach b / (1 - a) = 1: there are neither subnormal numbers nor infinities. Processors without FMA
multiply and add.

Narrow numbers have peaks of their own: those of the instruction that adds up two or four products to a sum
(:mod:`relayout.kernels.conv.arithmetic`), in the same way. What the registers hold does not matter to it.
Where there are tiles (:mod:`relayout.ir.amx`), the peak is theirs: of four of sums, to each of which the
product of two others is added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from relayout.bench.measure import Spread, Stopwatch, spread
from relayout.dtypes import DType
from relayout.errors import LayoutError
from relayout.ir import amx
from relayout.ir.builder import Function
from relayout.ir.types import I64, PTR, Value, constant
from relayout.jit.abi import Kernel
from relayout.jit.compile import available, compiled
from relayout.kernels.conv.amx import KINDS, registers
from relayout.kernels.conv.arithmetic import CHOICES, FLOATS, Arithmetic, arithmetic_of, dots_of
from relayout.kernels.conv.dot import Dot, declared
from relayout.kernels.conv.geometry import Geometry
from relayout.kernels.conv.tile import lanes_of
from relayout.runtime.threads import run
from relayout.targets.machine import Machine, host
from relayout.tensor import address, aligned

__all__ = [
    *("FMA", "INSTRUCTIONS", "Yardstick"),
    *("chains", "instruction_of", "ir", "kernel", "peak", "yardstick"),
]

FACTOR, SUMMAND = 1 - 2**-10, 2**-10
TURNS = 200_000  # of the loop in one share: about a third of a millisecond, by which clocks have settled
SHARES = 8  # of each thread: who is held up leaves some to others
STEP = 64  # bytes between what shares store: a line each


FMA = "fma"
INSTRUCTIONS: dict[str, Arithmetic] = {
    FMA: FLOATS,
    **{choice.how.dot: choice.how for several in CHOICES.values() for choice in several},
}
"""What has a peak: instructions, and the arithmetic that they are of."""


class Yardstick(NamedTuple):
    """Work of known size."""

    run: Callable[[], object]
    """Does it."""
    flops: int
    """Multiplications and additions of one run."""


def instruction_of(src: DType, weights: DType) -> str:
    """The instruction that products of these types are held against, on this host.

    >>> from relayout import dtype
    >>> instruction_of(dtype("f32"), dtype("f32"))
    'fma'
    """
    plain = Geometry.of_matrices(1, 64, 64)
    dots = dots_of(src, weights, plain, host())
    if not dots:
        how = arithmetic_of(src, weights, plain, host())
        return how.dot if how is not None and how.dot else FMA
    return next((how.dot for how in dots if how.tiles), dots[0].dot)


def yardstick(threads: int, instruction: str = FMA) -> Yardstick:
    """Multiplications and additions on so many threads, at the speed of the processor.

    Raises
    ------
    LayoutError
        This host forbids machine code.
    """
    if not available():
        raise LayoutError("the processor's peak is measured with machine code, which this host forbids")
    shares = SHARES * threads
    target, operands = aligned(shares * STEP), np.array([TURNS], np.int64)
    address_of = kernel(instruction).address
    turn = flops_of_a_turn(INSTRUCTIONS[instruction], host())

    def work() -> None:
        run(address_of, 0, address(target), address(operands), shares, threads)

    return Yardstick(work, turn * TURNS * shares)


def chains(machine: Machine) -> int:
    """Sums that are added to in turn: the registers, but for a few.

    >>> from relayout.targets.machine import machine
    >>> [chains(machine(cpu, "x86_64-unknown-linux-gnu")) for cpu in ("znver3", "znver5")]
    [12, 28]
    """
    return machine.registers - 4


def flops_of_a_turn(how: Arithmetic, machine: Machine) -> int:
    """Multiplications and additions of one turn of the loop.

    >>> from relayout.targets.machine import machine
    >>> xeon = machine("sapphirerapids", "x86_64-unknown-linux-gnu")
    >>> [flops_of_a_turn(INSTRUCTIONS[name], xeon) for name in ("fma", "vpdpbusd", "tdpbusd")]
    [896, 3584, 131072]
    """
    if how.tiles:
        return 4 * 2 * amx.ROWS * amx.ROWS * amx.ROWS * how.depth
    return 2 * how.depth * lanes_of(machine) * chains(machine)


def peak(threads: int, rounds: int = 5, instruction: str = FMA) -> Spread:
    """The peak in GFLOP/s (10**9 multiplications and additions a second): median and quartiles.

    >>> peak(1, rounds=1).median > 0
    True
    """
    work = yardstick(threads, instruction)
    watch = Stopwatch(work.run)
    return spread([work.flops / watch() / 1e9 for _ in range(rounds)])


@lru_cache(maxsize=len(INSTRUCTIONS))
def kernel(instruction: str = FMA) -> Kernel:
    """The kernel that :func:`ir` is the text of, for this host."""
    return compiled(ir(host(), instruction), ["peak"])["peak"]


def ir(machine: Machine, instruction: str = FMA) -> str:
    """The kernel: one operand, the number of turns; each share stores the total of its sums."""
    how, lanes = INSTRUCTIONS[instruction], lanes_of(machine)
    names = ("source", "target", "operands")
    f = Function("peak", dict.fromkeys(names, PTR) | dict.fromkeys(("part", "parts"), I64), machine)
    if how.tiles:
        return _of_tiles(f, how)
    dot = Dot(f, how, how.operand, lanes)
    real = instruction == FMA

    def turn(_: Value, sums: list[Value]) -> list[Value]:
        if real:
            return [f.fmuladd(total, FACTOR, constant(dot.sum, SUMMAND)) for total in sums]
        words = constant(dot.factor, 0x01010101)
        return [dot.add(words, words, total) for total in sums]

    turns = f.load(I64, f["operands"])
    total, *others = f.repeat(0, turns, 1, [constant(dot.sum, 0)] * chains(machine), turn, True)
    for other in others:
        total = f.fadd(total, other) if how.sums == "f32" else f.add(total, other)
    f.store(total, f.gep(f["target"], f["part"], STEP), 4)
    return f"{declared(how, lanes)}\n{f.text()}"


def _of_tiles(f: Function, how: Arithmetic) -> str:
    """The same with tiles, which stay zero."""
    tiles, names = amx.Tiles(f), registers(2, 2, False)
    assert names is not None
    tiles.configure(Value("@sizes", PTR))

    def turn(_: Value) -> None:
        for row, source in zip(names.sums, names.sources, strict=True):
            for total, other in zip(row, names.weights, strict=True):
                tiles.multiply(KINDS[how.dot], total, source, other)

    f.loop(0, f.load(I64, f["operands"]), 1, turn)
    tiles.release()
    return f"{amx.configuration('sizes', [amx.Shape(amx.ROWS, amx.ROW)] * amx.TILES)}\n{f.text()}"
