"""The kernel of a recurrence as a part of a program: one of several schedules, as a product has.

Sizes of tiles follow from rules that were found on one processor (:mod:`relayout.kernels.recurrent.plan`).
They are the estimate here; tiles of other shapes for the same shares of threads are the other candidates, and
a contest among them is held in the calls of the program (:mod:`relayout.primitives.several`). None of them
changes a bit of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from relayout.forking import locked
from relayout.primitives.products import MEASURABLE
from relayout.primitives.program import Program, Step
from relayout.records import replace

if TYPE_CHECKING:
    from relayout.jit.compile import Module
    from relayout.kernels.recurrent.plan import Steps
    from relayout.runtime.tuning import Trial

__all__ = ["Loop", "Recurring"]


class Loop(NamedTuple):
    """A recurrence as a program of buffers ``src``, ``dst`` and its operands."""

    plan: Steps
    program: Program

    def __str__(self) -> str:
        return str(self.plan)

    def own(self) -> Program:
        """The program; it has no scratch of its own."""
        return replace(self.program, note=str(self))


@dataclass(frozen=True)
class Recurring:
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
    def lowered(self, schedule: str = "") -> Loop:
        """Its program by the schedule that prints so, else by the estimate."""
        from relayout.environment import LOADED
        from relayout.jit.compile import Module, recalled
        from relayout.kernels.recurrent import gradient, module
        from relayout.kernels.recurrent.plan import alternatives
        from relayout.runtime import threads
        from relayout.runtime.sharing import computes_enough

        text: Any = gradient if self.way == "gradient" else module
        several = alternatives(self.plan)
        plan = next((one for one in several if str(one) == schedule), self.plan)

        def written() -> Module:
            return Module(text.module(plan), [text.ENTRY])

        [kernel], _ = recalled(repr((self.way, plan)), LOADED, written, plan.machine)
        parts = min(plan.tasks, threads.count())
        shared = parts > 1 and computes_enough(self.flops, 0)
        return Loop(plan, Program((Step(kernel, "src", "dst", text.OPERANDS, parts, shared),)))

    @locked
    def trial(self) -> Trial[Steps, Loop] | None:
        """The contest among its schedules; None where there is one, or too little to do."""
        from relayout.environment import effort
        from relayout.kernels.recurrent.plan import alternatives, cycles
        from relayout.runtime import threads
        from relayout.runtime.clock import cycles_per_second

        many = threads.count()
        if effort() != "measure" or len(alternatives(self.plan)) < 2:
            return None
        if cycles(self.plan, many) < MEASURABLE * cycles_per_second():
            return None
        return _trial(self, many)


@lru_cache(maxsize=256)
@locked
def _trial(made: Recurring, many: int) -> Trial[Steps, Loop]:
    from relayout.kernels.recurrent.plan import alternatives
    from relayout.runtime.tuning import Trial, here

    listed = alternatives(made.plan)

    def compiled(one: Steps) -> Loop:
        return made.lowered(str(one))

    return Trial(f"{made.problem} {here(many)}", lambda: listed, compiled, many)
