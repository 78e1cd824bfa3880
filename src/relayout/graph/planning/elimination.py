"""The least sum of tables, by eliminating one variable after the other.

To eliminate a variable, the tables that have it are added up, and the sum is minimised over it: what remains
is a table of the variables next to it, the least cost of everything behind for each combination of their
values. Its size decides what elimination costs, so the variable whose sum is smallest comes next. In chains,
branches that join again and skips that nest, tables of three or four variables are enough.

This is exact, and known as bucket elimination or non-serial dynamic programming (Bertele and Brioschi, 1972).
Where the next sum would be too large elimination stops; :mod:`relayout.graph.planning.search` goes on with
the rest.

>>> tables = [((0,), np.array([0.0, 2.0])), ((0, 1), np.array([[5.0, 9.0], [1.0, 7.0]]))]
>>> least = eliminate((2, 2), tables, limit=100)
>>> least.constant, least.rest, least.values({})
(3.0, [], {1: 0, 0: 1})
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from relayout.graph.planning.model import Table

TOTAL = 1 << 28
"""The most entries of all sums together: adding them up takes a second or two."""

__all__ = ["Eliminated", "eliminate", "joined", "order"]


@dataclass(frozen=True, eq=False)
class Eliminated:
    """What elimination leaves.

    Attributes
    ----------
    constant : float
        The least sum of all that is eliminated.
    buckets : list of (variable, tables)
        In the order of elimination, the tables that had the variable.
    rest : list of tables
        Those whose variables are left.
    """

    constant: float
    buckets: list[tuple[int, list[Table]]]
    rest: list[Table]

    def values(self, given: Mapping[int, int]) -> dict[int, int]:
        """The best value of each variable, for values of those that are left."""
        values = dict(given)
        for variable, tables in reversed(self.buckets):
            total: Any = 0.0
            for scope, table in tables:
                total = total + table[tuple(slice(None) if v == variable else values[v] for v in scope)]
            values[variable] = int(np.argmin(total))
        return values


def eliminate(sizes: Sequence[int], tables: Iterable[Table], limit: int) -> Eliminated:
    """Eliminate variables as long as no sum of tables has more than so many entries.

    Parameters
    ----------
    sizes : sequence of int
        How many values each variable has.
    tables : iterable of (variables, array)
        Variables are ascending.
    limit : int
        The most entries of a sum.
    """
    held: dict[int, dict[int, Table]] = defaultdict(dict)  # of each variable the tables that have it
    number = 0
    constant = 0.0
    for table in tables:
        for variable in table[0]:
            held[variable][number] = table
        if not table[0]:
            constant += float(table[1])
        number += 1
    buckets = []
    for variable in order(sizes, (scope for scope, _ in _once(held)), limit):
        own = held.pop(variable)
        buckets.append((variable, list(own.values())))
        scope, total = joined(sizes, buckets[-1][1], variable)
        for key, (others, _) in own.items():
            for other in others:
                if other != variable:
                    del held[other][key]
        left = total.min(axis=0)
        if not scope:
            constant += float(left)
            continue
        for other in scope:
            held[other][number] = scope, left
        number += 1
    return Eliminated(constant, buckets, list(_once(held)))


def _once(held: Mapping[int, Mapping[int, Table]]) -> Iterable[Table]:
    """Every table once, in the order of their numbers."""
    return [table for _, table in sorted({k: t for own in held.values() for k, t in own.items()}.items())]


def joined(sizes: Sequence[int], tables: Sequence[Table], first: int) -> tuple[tuple[int, ...], NDArray[Any]]:
    """The sum of tables: one variable is the first axis, the others, ascending, are those behind."""
    several = {v for scope, _ in tables for v in scope}
    several.discard(first)
    others = tuple(sorted(several))
    entries = sizes[first]
    for v in others:
        entries *= sizes[v]
    total: Any = None
    own = False  # whether the sum has its memory to itself and all axes
    for scope, table in sorted(tables, key=lambda t: -t[1].size):
        at = scope.index(first)
        if at:
            table = np.moveaxis(table, at, 0)
        if len(scope) <= len(others):
            table = table.reshape([sizes[first], *(sizes[v] if v in scope else 1 for v in others)])
        if total is None:
            total = table
        elif own:
            total += table
        else:
            total = total + table
            own = total.size == entries
    return others, total


def order(sizes: Sequence[int], scopes: Iterable[tuple[int, ...]], limit: float) -> list[int]:
    """Variables in an order of elimination, as far as sums of tables have no more entries than a limit.

    First the variable whose elimination leaves the smallest table, always. Where that gets stuck, the one
    that connects the fewest variables anew, which looks further ahead and takes longer.

    Parameters
    ----------
    sizes : sequence of int
        How many values each variable has.
    scopes : iterable of tuple of int
        The variables of each table.
    limit : int, or infinity
        The most entries of a sum. With infinity the order has all variables.
    """
    near: dict[int, set[int]] = defaultdict(set)
    for scope in scopes:
        for variable in scope:
            near[variable].update(scope)
    first = _smallest_table(sizes, {v: set(around) for v, around in near.items()}, limit)
    if len(first) == len(near):
        return first
    second = _fewest_connections(sizes, near, limit)
    return second if len(second) > len(first) else first


def _smallest_table(sizes: Sequence[int], near: dict[int, set[int]], limit: float) -> list[int]:
    """The order by sizes; ``near`` has each variable beside its neighbours, and is used up."""
    weight = {variable: math.prod(sizes[v] for v in near[variable]) for variable in sorted(near)}
    heap = [(entries // sizes[variable], variable) for variable, entries in weight.items()]
    heapq.heapify(heap)
    spent, total = 0, TOTAL if math.isfinite(limit) else math.inf
    found = []
    while heap:
        left, variable = heapq.heappop(heap)
        entries = left * sizes[variable]
        if weight.get(variable) != entries or entries > limit or spent + entries > total:
            continue
        spent += entries
        found.append(variable)
        del weight[variable]
        clique = near.pop(variable)
        clique.discard(variable)
        for other in clique:
            around = near[other]
            around |= clique
            around.discard(variable)
            entries = 1
            for v in around:
                entries *= sizes[v]
            if entries != weight[other]:
                weight[other] = entries
                heapq.heappush(heap, (entries // sizes[other], other))
    return found


def _fewest_connections(sizes: Sequence[int], near: dict[int, set[int]], limit: float) -> list[int]:
    """The order by weighted fill: connections count by the logarithms of their variables' sizes."""
    logs = [math.log(size) for size in sizes]

    def fill(variable: int) -> float:
        around = sorted(near[variable])
        return math.fsum(
            logs[a] * logs[b] for i, a in enumerate(around) for b in around[i + 1 :] if b not in near[a]
        )

    score = {variable: fill(variable) for variable in sorted(near)}
    heap = [(value, variable) for variable, value in score.items()]
    heapq.heapify(heap)
    spent, total = 0, TOTAL if math.isfinite(limit) else math.inf
    found = []
    while heap:
        value, variable = heapq.heappop(heap)
        if score.get(variable) != value:
            continue
        entries = math.prod(sizes[v] for v in near[variable])
        if entries > limit or spent + entries > total:
            continue
        spent += entries
        found.append(variable)
        del score[variable]
        clique = near.pop(variable)
        clique.discard(variable)
        changed = set(clique)
        for other in clique:
            near[other] |= clique
            near[other].discard(variable)
            changed |= near[other]
        for other in sorted(changed):
            value = fill(other)
            if value != score[other]:
                score[other] = value
                heapq.heappush(heap, (value, other))
    return found
