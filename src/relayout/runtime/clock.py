"""How many cycles this processor runs in a second: what turns a model's cycles into time.

Measured by a chain of additions and exclusive ors: each waits for the one before, and takes one cycle on all
processors that matter. Clocks vary with load and with the width of vectors, by a tenth or two; that is as
precise as models of time are. What was measured first is kept on disk, so that models say the same in all
processes. ``RELAYOUT_EFFORT=estimate`` measures nothing: the clock is :data:`USUAL` then.
"""

from __future__ import annotations

import ctypes
import time

from relayout.environment import effort
from relayout.forking import locked
from relayout.runtime.kept import kept

__all__ = ["USUAL", "cycles_per_second"]

TURNS = 20_000  # of the loop: about a tenth of a millisecond
LINKS = 16  # of the chain in one turn, a cycle each
ROUNDS = 5
STEP = 1e8  # cycles in a second; finer ones are noise
USUAL = 3e9  # cycles in a second where nothing is measured, or can be, since there is no machine code


@kept("clock")
@locked
def cycles_per_second() -> float:
    """The clock, as fast as it was seen to run."""
    from relayout.jit.support import supported

    if effort() != "measure" or not supported():
        return USUAL
    from relayout.jit.compile import compiled

    kernel, operand = compiled(_ir(), ["chain"])["chain"], ctypes.c_int64(3)
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        kernel(0, 0, ctypes.addressof(operand), 0, 1)
        taken.append(time.perf_counter() - start)
    return STEP * max(1, round(TURNS * LINKS / min(taken) / STEP))


def _ir() -> str:
    links = "".join(f"  %x{k + 1} = {('add', 'xor')[k % 2]} i64 %x{k}, %y\n" for k in range(LINKS))
    return f"""
define void @chain(ptr %source, ptr %target, ptr %operands, i64 %part, i64 %parts) {{
entry:
  %y = load i64, ptr %operands
  br label %turn
turn:
  %n = phi i64 [0, %entry], [%next, %turn]
  %x0 = phi i64 [%y, %entry], [%x{LINKS}, %turn]
{links}  %next = add i64 %n, 1
  %more = icmp slt i64 %next, {TURNS}
  br i1 %more, label %turn, label %out
out:
  %kept = or i64 %x{LINKS}, 1
  store i64 %kept, ptr %operands
  ret void
}}"""
