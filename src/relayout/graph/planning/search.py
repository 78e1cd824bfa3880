"""A bound and a good answer where exact elimination takes too much.

Three parts, each of use by itself:

* *Mini-buckets* (Dechter and Rish, 2003): a sum of tables that is too large is cut into several, which are
  minimised apart. Each takes the value of the variable that suits it, so what comes out is a lower bound.
  Before that the parts are made to agree on what each value costs at least, which raises the bound.
* *Neighbourhoods*: some variables keep their values, the others are eliminated exactly. What comes out never
  costs more.
* *Branching*: a variable is set to each of its values, and what remains is bounded or, where it has become
  small enough, solved. The branch whose bound is lowest comes next. If none is left below the best answer,
  that is proven; after a number of branches the lowest bound is what is known.

All of it is deterministic: there is no clock, and the numbers at random have a fixed seed.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from relayout.graph.planning.elimination import eliminate, joined, order
from relayout.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from relayout.graph.planning.model import Table

__all__ = ["Found", "search"]

NEIGHBOURHOODS = 40
"""How many are tried in a row without finding anything better; fewer if there are many variables."""

BRANCHES = 120
"""How many branches are looked at, after which a bound has to do; fewer if there are many variables."""

WORK = 12_000
"""How many variables the neighbourhoods in a row, and the branches, may have together."""

SAME = 1e-11
"""Costs that differ by less than this part are taken as equal: sums of doubles in another order do."""


@dataclass(frozen=True, eq=False)
class Found:
    """Values of variables, their cost, and what no values fall short of."""

    values: dict[int, int]
    cost: float
    bound: float


def search(sizes: Sequence[int], tables: Sequence[Table], limit: int) -> Found:
    """Good values for all variables that the tables have.

    Parameters
    ----------
    sizes : sequence of int
        How many values each variable has.
    tables : sequence of (variables, array)
        What elimination left; variables are ascending.
    limit : int
        The most entries of a sum.

    Returns
    -------
    Found
        Values cost more than the bound unless they are proven best. Where nothing possible was found, or
        where nothing is possible, the cost or also the bound is infinite.
    """
    # What is not possible costs more than everything that is: so a step towards what is possible is better.
    finite = math.fsum(float(np.abs(t[np.isfinite(t)]).max(initial=0)) for _, t in tables)
    huge = 1e4 * (finite + 1e-30)
    tables = [(scope, np.where(np.isfinite(t), t, huge)) for scope, t in tables]

    bound, values, hard = _bounded(sizes, tables, limit)
    values = _improved(sizes, tables, limit, values)
    best, count = _cost(tables, values), 0
    heap: list[tuple[float, int, dict[int, int], int]] = [] if hard is None else [(bound, 0, {}, hard)]
    while heap and count < min(BRANCHES, WORK // len(values)):
        lowest, _, given, hard = heapq.heappop(heap)
        if lowest >= best - SAME * abs(best):
            heap = []
            break
        for value in range(sizes[hard]):
            branch = {**given, hard: value}
            count += 1
            bound, own, next_hard = _bounded(sizes, _conditioned(tables, branch), limit)
            own |= branch
            cost = _cost(tables, own)
            if cost < best:
                values = _improved(sizes, tables, limit, own)
                best = _cost(tables, values)
            if next_hard is not None and bound < best - SAME * abs(best):
                heapq.heappush(heap, (max(bound, lowest), count, branch, next_hard))
    bound = min([best, *(entry[0] for entry in heap)])
    return Found(values, math.inf if best >= huge / 2 else best, math.inf if bound >= huge / 2 else bound)


def _cost(tables: Sequence[Table], values: Mapping[int, int]) -> float:
    return math.fsum(float(table[tuple(values[v] for v in scope)]) for scope, table in tables)


def _conditioned(tables: Sequence[Table], given: Mapping[int, int]) -> list[Table]:
    """The tables that are left of others when some variables have values."""
    left = []
    for scope, table in tables:
        if any(v in given for v in scope):
            table = table[tuple(given.get(v, slice(None)) for v in scope)]
            scope = tuple(v for v in scope if v not in given)
        left.append((scope, np.asarray(table)))
    return left


def _improved(
    sizes: Sequence[int], tables: Sequence[Table], limit: int, values: dict[int, int]
) -> dict[int, int]:
    """Values that no neighbourhood among those tried makes better."""
    chance = random.Random(1)
    best, since = _cost(tables, values), 0
    while since < min(NEIGHBOURHOODS, WORK // max(1, len(values))):
        share = chance.choice((0.02, 0.05, 0.1, 0.2))
        kept = {v: value for v, value in values.items() if chance.random() < share}
        left = eliminate(sizes, _conditioned(tables, kept), limit)
        found = left.values(kept | {v: values[v] for scope, _ in left.rest for v in scope})
        cost = _cost(tables, found)
        since += 1
        if cost < best - SAME * abs(best):
            best, values, since = cost, found, 0
    return values


def _bounded(
    sizes: Sequence[int], tables: Sequence[Table], limit: int
) -> tuple[float, dict[int, int], int | None]:
    """A lower bound, values that it leads to, and a variable that makes it hard; None if all is exact."""
    held: dict[int, dict[int, Table]] = defaultdict(dict)
    bound, number = 0.0, 0
    for number, (scope, table) in enumerate(tables):
        if not scope:
            bound += float(table)
        for variable in scope:
            held[variable][number] = scope, table
    easy = order(sizes, (scope for scope, _ in tables), limit)
    rest = order(sizes, _left(tables, easy), math.inf)
    buckets = []
    splits: dict[int, int] = defaultdict(int)
    for variable in (*easy, *rest):
        own = held.pop(variable)
        buckets.append((variable, [*own.values()]))
        for key, (scope, _) in own.items():
            for other in scope:
                if other != variable:
                    del held[other][key]
        parts = _parts(sizes, [*own.values()], limit)
        if len(parts) > 1:
            for part in parts:
                for scope, _ in part:
                    for v in scope:
                        splits[v] += 1
        sums = [joined(sizes, part, variable) for part in parts]
        least = [total.reshape(sizes[variable], -1).min(axis=1) for _, total in sums]
        mean = sum(least[1:], least[0]) / len(least)
        for (scope, total), own_least in zip(sums, least, strict=True):
            if len(sums) > 1:
                total = total + (mean - own_least).reshape([-1] + [1] * len(scope))
            message = total.min(axis=0)
            number += 1
            if not scope:
                bound += float(message)
            for other in scope:
                held[other][number] = scope, message
    values: dict[int, int] = {}
    for variable, several in reversed(buckets):
        total = np.zeros(sizes[variable])
        for scope, table in several:
            total = total + table[tuple(slice(None) if v == variable else values[v] for v in scope)]
        values[variable] = int(np.argmin(total))
    if not splits:
        return bound, values, None
    return bound, values, max(splits, key=lambda v: (splits[v] / math.log1p(sizes[v]), -v))


def _left(tables: Sequence[Table], eliminated: Sequence[int]) -> list[tuple[int, ...]]:
    """The variables of each table that is left when some variables are eliminated."""
    near: dict[int, set[int]] = defaultdict(set)
    for scope, _ in tables:
        for v in scope:
            near[v].update(scope)
    gone = set()
    for variable in eliminated:
        gone.add(variable)
        clique = near.pop(variable) - {variable}
        for other in clique:
            near[other] |= clique
            near[other].discard(variable)
    return [tuple(sorted(around)) for around in near.values()]


def _parts(sizes: Sequence[int], tables: list[Table], limit: int) -> list[list[Table]]:
    """Tables in parts whose sums have no more entries than a limit."""
    parts: list[tuple[set[int], list[Table]]] = []
    for table in sorted(tables, key=lambda t: -t[1].size):
        for known, part in parts:
            if math.prod(sizes[v] for v in known.union(table[0])) <= limit:
                known |= set(table[0])
                part.append(table)
                break
        else:
            parts.append((set(table[0]), [table]))
    return [part for _, part in parts]
