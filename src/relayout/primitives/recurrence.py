"""The kernel of a recurrence as a part of a program: one of several schedules, as a product has.

Sizes of tiles follow from rules that were found on one processor (:mod:`relayout.kernels.recurrent.plan`).
They are the estimate here; tiles of other shapes for the same shares of threads are the other candidates, and
a contest among them is held in the calls of the program (:mod:`relayout.primitives.several`). None of them
changes a bit of a result.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.forking import locked
from relayout.primitives.drafting import kernel_of
from relayout.primitives.program import Program, Step
from relayout.primitives.trials import Compiled, Contested
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.kernels.recurrent.plan import Steps

__all__ = ["Recurring"]


@dataclass(frozen=True)
class Recurring(Contested):
    """A recurrence, forward or backward, with the schedule that costs least by estimate."""

    way: str
    """``recurrent`` or ``gradient``."""
    plan: Steps
    noun: ClassVar[str] = ""

    @property
    def flops(self) -> int:
        """Those of its products."""
        plan = self.plan
        sizes = plan.steps, plan.rows, plan.outputs, plan.cell.gates, plan.units, len(plan.backward)
        return 2 * prod(sizes)

    @property
    def problem(self) -> str:
        """What its contest is about; where its buffers lie makes no difference."""
        plan, cell = self.plan, self.plan.cell
        words = [f"{'backward pass of ' * (self.way == 'gradient')}{cell.kind}", f"{plan.steps} steps"]
        words += [f"{plan.rows} rows", f"{plan.units} units"]
        words += [f"{plan.outputs} outputs"] * (plan.outputs != plan.units)
        words += [f"{len(plan.backward)} directions"] * (len(plan.backward) > 1)
        words += ["for training"] * (self.way != "gradient" and getattr(plan, "kept", None) is not None)
        words += ["with peepholes"] * cell.peephole + ["projected"] * cell.projection
        words += [f"states of {kind}" for kind in (getattr(plan, "rounded", ""),) if kind]
        return ", ".join([*words, *map(str, cell.activations)])

    @locked
    def lowered(self, schedule: str = "") -> Compiled:
        """A program of ``src``, ``dst``, operands, by the schedule that prints so, else by the estimate."""
        from relayout.kernels.recurrent import gradient, module
        from relayout.kernels.recurrent.plan import alternatives
        from relayout.runtime import threads
        from relayout.runtime.sharing import computes_enough

        text: Any = gradient if self.way == "gradient" else module
        several = alternatives(self.plan)
        plan = next((one for one in several if str(one) == schedule), self.plan)
        kernel = kernel_of((self.way, plan), text.ENTRY, lambda _: text.module(plan))
        parts = min(plan.tasks, threads.count())
        shared = parts > 1 and computes_enough(self.flops, 0)
        step = Step(kernel, "src", "dst", text.OPERANDS, parts, shared)
        return Compiled(Program((step,), note=str(plan)))

    @locked
    def schedules(self) -> tuple[tuple[Steps, ...], float]:
        """Tiles of all shapes that may be worth while."""
        from relayout.kernels.recurrent.plan import alternatives, cycles
        from relayout.runtime import threads
        from relayout.runtime.clock import cycles_per_second

        several = alternatives(self.plan)
        return several, cycles(self.plan, threads.count()) / cycles_per_second() if len(several) > 1 else 0.0

    def compiled(self, schedule: Steps) -> Compiled:
        """Its program with other tiles."""
        return self.lowered(str(schedule))
