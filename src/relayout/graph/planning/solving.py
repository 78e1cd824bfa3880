"""From a problem to its best plan, or to the reason why there is none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from relayout.graph.planning.elimination import eliminate
from relayout.graph.planning.model import build
from relayout.graph.planning.solution import evaluate

if TYPE_CHECKING:
    from relayout.graph.planning.problem import Problem
    from relayout.graph.planning.solution import Solution

LIMIT = 1 << 20


def solve(problem: Problem, limit: int = LIMIT) -> Solution:
    model = build(problem)
    left = eliminate(model.sizes, model.tables, limit)
    values = left.values({})
    return evaluate(problem, model.choices([values.get(v, 0) for v in range(len(model.sizes))]), model.constant + left.constant, not left.rest and not model.relaxed)
