"""Why a plan converts: what the best plan would cost without each of its conversions.

A conversion makes a copy of a value in a format. Without it means that no conversion makes that copy, from
whatever source: the best plan then has other options for some operations, or converts another value. What it
costs is found by solving the problem once more for each conversion, so nothing has to be believed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayout.errors import spelled_seconds
from relayout.graph.planning.problem import Infeasible
from relayout.graph.planning.search import SAME
from relayout.graph.planning.solution import shortened
from relayout.graph.planning.solving import solve
from relayout.layout.images import format_name
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.graph.planning.solution import Conversion, Solution

__all__ = ["Explanation", "Proof", "explain"]


@dataclass(frozen=True, eq=False)
class Proof:
    """A conversion, and the best plan that has to do without it.

    Attributes
    ----------
    conversion : Conversion
    without : Solution or None
        None: there is no such plan.
    loss : float
        By how many seconds every plan without it is slower, at least; infinite where there is none. Less
        than 0 where a plan without it is faster.
    instead : tuple of Conversion
        What that plan converts and this one does not.
    """

    conversion: Conversion
    without: Solution | None
    loss: float
    instead: tuple[Conversion, ...] = ()

    @property
    def text(self) -> str:
        """What happens without it."""
        if self.without is None:
            return "nothing else is possible"
        if self.loss == 0:
            others = dict.fromkeys(one.value for one in self.instead if one.value != self.conversion.value)
            what = shortened(", ".join(others), 30) if others else "the same value to another format"
            return "as cheap without it" + (f", converting {what}" if self.instead else "")
        more = "more" if self.loss > 0 else "less"
        return f"without it {spelled_seconds(self.without.cost)} ({spelled_seconds(abs(self.loss))} {more})"


@dataclass(frozen=True, eq=False)
class Explanation:
    """The proofs of all conversions of a plan."""

    solution: Solution
    proofs: tuple[Proof, ...]

    def __str__(self) -> str:
        lines = [str(self.solution).partition("\n")[0]]
        for proof in self.proofs:
            one = proof.conversion
            src, dst = shortened(format_name(one.src), 14), shortened(format_name(one.dst), 14)
            head = f"{shortened(one.value, 20)}: {src} to {dst}, {spelled_seconds(one.cost)}"
            lines.append(f"{head}; {proof.text}")
            lines.append("    " + shortened(one.reason, 76))
        return "\n".join(lines)


def explain(solution: Solution) -> Explanation:
    """Why a plan has the conversions that it has.

    Parameters
    ----------
    solution : Solution
        It is compared with the best plans that lack one of its conversions. If it is the best one itself, no
        conversion loses anything.

    Returns
    -------
    Explanation
        It prints itself, two lines for a conversion.
    """
    return Explanation(solution, tuple(_proof(solution, conversion) for conversion in solution.conversions))


def _proof(solution: Solution, conversion: Conversion) -> Proof:
    try:
        without = solve(solution.problem.without(conversion.value, conversion.dst))
    except Infeasible:
        return Proof(conversion, None, math.inf)
    loss = without.bound - solution.cost
    if without.exact and abs(loss) <= SAME * (abs(without.cost) + abs(solution.cost)):
        loss = 0.0  # sums of doubles in another order
    elif loss < 0 and without.cost >= solution.cost:
        loss = 0.0  # the bound is not good enough to tell
    known = {(one.value, one.dst) for one in solution.conversions}
    instead = tuple(one for one in without.conversions if (one.value, one.dst) not in known)
    return Proof(conversion, without, loss, instead)
