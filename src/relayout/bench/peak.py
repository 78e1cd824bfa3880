"""The most that the processor can do: multiplications and additions in registers, and nothing else.

What a convolution takes is held against the time in which the same processor does as many multiplications and
additions without touching memory. That is measured, not looked up: clocks depend on the width of vectors, on
the neighbours and on the day.

The kernel keeps :data:`CHAINS` sums in vector registers and adds a product to each of them in turn::

    sum 1 = sum 1 * a + b        a fused multiply-add (FMA) takes 4 to 5 cycles, and two begin in each;
    sum 2 = sum 2 * a + b        so from 10 sums on none waits for itself
    ...

Sums approach b / (1 - a) = 1: there are neither subnormal numbers nor infinities. Processors without FMA
multiply and add.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from relayout.bench.measure import Spread, Stopwatch, spread
from relayout.errors import LayoutError
from relayout.jit.abi import Kernel
from relayout.jit.compile import available, compiled
from relayout.runtime.threads import run
from relayout.targets.machine import Machine, host
from relayout.tensor import address, aligned

__all__ = ["CHAINS", "Yardstick", "ir", "kernel", "peak", "yardstick"]

CHAINS = 12
FACTOR, SUMMAND = 1 - 2**-10, 2**-10
TURNS = 200_000  # of the loop in one share: about a third of a millisecond, by which clocks have settled
SHARES = 8  # of each thread: who is held up leaves some to others
STEP = 64  # bytes between what shares store: a line each


class Yardstick(NamedTuple):
    """Work of known size."""

    run: Callable[[], object]
    """Does it."""
    flops: int
    """Multiplications and additions of one run."""


def yardstick(threads: int) -> Yardstick:
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
    address_of = kernel().address

    def work() -> None:
        run(address_of, 0, address(target), address(operands), shares, threads)

    return Yardstick(work, 2 * _lanes(host()) * CHAINS * TURNS * shares)


def peak(threads: int, rounds: int = 5) -> Spread:
    """The peak in GFLOP/s (10**9 multiplications and additions a second): median and quartiles.

    >>> peak(1, rounds=1).median > 0
    True
    """
    work = yardstick(threads)
    watch = Stopwatch(work.run)
    return spread([work.flops / watch() / 1e9 for _ in range(rounds)])


@lru_cache(maxsize=1)
def kernel() -> Kernel:
    """The kernel that :func:`ir` is the text of, for this host."""
    return compiled(ir(host()), ["peak"])["peak"]


def _lanes(machine: Machine) -> int:
    return machine.vector // 4


def ir(machine: Machine) -> str:
    """The kernel: one operand, the number of turns; each share stores the total of its sums."""
    lanes = _lanes(machine)
    kind = f"<{lanes} x float>"
    chains = range(CHAINS)
    starts = [f"  %sum{c} = phi {kind} [zeroinitializer, %entry], [%next{c}, %again]" for c in chains]
    product = f"{kind} splat (float {FACTOR!r}), {kind} splat (float {SUMMAND!r})"
    steps = [f"  %next{c} = call {kind} @llvm.fmuladd.v{lanes}f32({kind} %sum{c}, {product})" for c in chains]
    totals = [
        f"  %total{c} = fadd {kind} %{f'total{c - 1}' if c > 1 else 'next0'}, %next{c}" for c in chains[1:]
    ]
    return "\n".join(
        [
            f"declare {kind} @llvm.fmuladd.v{lanes}f32({kind}, {kind}, {kind})",
            "define void @peak(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {",
            "entry:",
            "  %turns = load i64, ptr %operands",
            "  br label %again",
            "again:",
            "  %turn = phi i64 [0, %entry], [%following, %again]",
            *starts,
            *steps,
            "  %following = add i64 %turn, 1",
            "  %more = icmp slt i64 %following, %turns",
            "  br i1 %more, label %again, label %done",
            "done:",
            *totals,
            f"  %place = getelementptr [{STEP} x i8], ptr %target, i64 %part",
            f"  store {kind} %total{CHAINS - 1}, ptr %place, align 4",
            "  ret void",
            "}",
        ]
    )
