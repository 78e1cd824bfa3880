"""What it costs that a value exists in a set of formats: small Steiner trees.

A value is written in one format; its readers want a set of them. The conversions that are made are edges of
a tree that leads from what is written to all that is wanted, through other formats where that is cheaper. Its
least cost is that of a minimal Steiner arborescence (Dreyfus and Wagner, 1971)::

    cost[{t}, r] = length of the shortest path from r to t
    cost[W, r]   = min over formats j and cuts of W into A and B of  path(r, j) + cost[A, j] + cost[B, j]

If only formats may be made that somebody reads, the tree spans what it connects::

    cost[{t}, r] = direct(r, t)
    cost[W, r]   = min over cuts of W into A and B, and j in A, of  direct(r, j) + cost[A - j, j] + cost[B, r]

Formats are few, so the table of all sets is small. :func:`tree_costs` fills it for many values at once, and
:func:`tree` finds the edges for one value and one set.

>>> direct = np.array([[[0, 5, 5], [9, 0, 1], [9, 9, 0]]], float)
>>> sets, costs = tree_costs(direct, 3, 3)
>>> dict(zip(sets, costs[0, :, 0].tolist()))     # from format 0: to 1 costs 5, to 1 and 2 costs 5 + 1
{0: 0.0, 1: 0.0, 2: 5.0, 4: 5.0, 3: 5.0, 5: 5.0, 6: 6.0, 7: 6.0}
>>> tree(direct[0].tolist(), [0], [1, 2])
[(0, 1), (1, 2)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["paths", "shortest", "subsets", "tree", "tree_costs"]

MOST = 8
"""For up to so many formats to be made `tree` finds the best tree; the work for n of them grows as 3**n."""


@lru_cache(maxsize=256)
def subsets(count: int, most: int) -> tuple[int, ...]:
    """All sets of at most so many of the first ``count`` formats, as bits, small sets first."""
    return tuple(
        sum(1 << i for i in chosen) for size in range(most + 1) for chosen in combinations(range(count), size)
    )


@lru_cache(maxsize=256)
def _cuts(count: int, most: int) -> tuple[tuple[slice, NDArray[np.intp], NDArray[np.intp]], ...]:
    """For each size from 2 on: the rows of sets of that size, and the rows of both parts for each cut."""
    rows = {bits: row for row, bits in enumerate(subsets(count, most))}
    found = []
    start = 1 + count
    for size in range(2, most + 1):
        left: list[list[int]] = []
        right: list[list[int]] = []
        for chosen in combinations(range(count), size):
            whole = sum(1 << i for i in chosen)
            first = 1 << chosen[0]
            # Each cut once: the part on the left has the first format.
            parts = [
                first | sum(1 << i for i in more)
                for others in range(size - 1)
                for more in combinations(chosen[1:], others)
            ]
            left.append([rows[part] for part in parts])
            right.append([rows[whole ^ part] for part in parts])
        found.append((slice(start, start + len(left)), np.array(left), np.array(right)))
        start += len(left)
    return tuple(found)


@lru_cache(maxsize=256)
def _first(count: int, most: int) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
    """For each size from 2 on: the formats of each set, and the rows of the sets without them."""
    rows = {bits: row for row, bits in enumerate(subsets(count, most))}
    found = []
    for size in range(2, most + 1):
        formats = [*combinations(range(count), size)]
        bits = [sum(1 << i for i in chosen) for chosen in formats]
        less = [[rows[own ^ 1 << i] for i in chosen] for own, chosen in zip(bits, formats, strict=True)]
        found.append((np.array(formats), np.array(less)))
    return tuple(found)


def paths(direct: NDArray[Any]) -> NDArray[Any]:
    """The lengths of the shortest paths between all formats, for many values: values x formats x formats."""
    path = direct.astype(np.float64)
    for j in range(path.shape[1]):
        np.minimum(path, path[:, :, j, None] + path[:, None, j, :], out=path)
    return path


def tree_costs(
    direct: NDArray[Any], count: int, most: int, through: bool = True
) -> tuple[tuple[int, ...], NDArray[Any]]:
    """The least cost of making each set of formats out of each format, for many values.

    Parameters
    ----------
    direct : ndarray
        Values x formats x formats: from the second axis' format to the third's, 0 on the diagonal.
    count : int
        The first so many formats may be wanted; conversions pass through the others.
    most : int
        The size of the largest sets.
    through : bool, optional
        Whether conversions pass through formats that are not in the set.

    Returns
    -------
    tuple of int
        The sets, as :func:`subsets` lists them.
    ndarray
        Values x sets x formats: the cost if a value is written in that format.
    """
    path = paths(direct) if through else direct.astype(np.float64)
    sets = subsets(count, most)
    costs = np.empty((len(path), len(sets), path.shape[1]))
    costs[:, 0] = 0
    if most:
        costs[:, 1 : 1 + count] = path.transpose(0, 2, 1)[:, :count]
    # What a root pays for a set if one conversion leads there; for single formats that is all.
    branch = None if through else costs.copy()
    for size, (rows, left, right) in enumerate(_cuts(count, most)):
        if branch is None:
            best = _least_sum(costs, costs, left, right)
            for r in range(path.shape[1]):
                costs[:, rows, r] = (best + path[:, None, r, :]).min(axis=2)
            continue
        formats, less = _first(count, most)[size]
        for r in range(path.shape[1]):
            branch[:, rows, r] = (path[:, r, formats] + costs[:, less, formats]).min(axis=2)
        costs[:, rows] = np.minimum(branch[:, rows], _least_sum(branch, costs, left, right))
    return sets, costs


def _least_sum(
    a: NDArray[Any], b: NDArray[Any], left: NDArray[np.intp], right: NDArray[np.intp]
) -> NDArray[Any]:
    """The least sum of both parts over all cuts."""
    best: NDArray[Any] = a[:, left[:, 0]] + b[:, right[:, 0]]
    for cut in range(1, left.shape[1]):
        np.minimum(best, a[:, left[:, cut]] + b[:, right[:, cut]], out=best)
    return best


def tree(
    direct: Sequence[Sequence[float]], given: Sequence[int], wanted: Sequence[int]
) -> list[tuple[int, int]]:
    """The conversions that make the wanted formats at least cost, each behind what it reads.

    Parameters
    ----------
    direct : sequence of sequences of float
        Costs, from row to column; infinite where there is no conversion.
    given : sequence of int
        The formats in which the value is there.
    wanted : sequence of int
        The formats that it is read in.

    Returns
    -------
    list of tuple of int
        Source and destination of each conversion; empty, too, where what is wanted can't be made.
    """
    missing = [format for format in wanted if format not in given]
    if not missing:
        return []
    n, root = len(direct), len(direct)
    # A root from which all that is given is there for nothing, and is never made again.
    edges = [[math.inf if i in given else cost for i, cost in enumerate(row)] + [math.inf] for row in direct]
    edges.append([0.0 if i in given else math.inf for i in range(n)] + [0.0])
    for i in range(n):
        edges[i][i] = 0.0
    path, before = shortest(edges)
    if len(missing) > MOST:
        return _nearest_first(path, before, root, missing)
    # The rows of a table of Dreyfus and Wagner, with what each minimum was made of.
    costs = {1 << t: [path[r][target] for r in range(n + 1)] for t, target in enumerate(missing)}
    made: dict[tuple[int, int], tuple[int, int]] = {}
    for bits in subsets(len(missing), len(missing))[1 + len(missing) :]:
        first = bits & -bits
        rest = bits ^ first
        joined = [(math.inf, 0)] * (n + 1)
        part = (rest - 1) & rest
        while True:  # all subsets of the rest but itself
            a, b = costs[first | part], costs[rest ^ part]
            joined = [min(known, (x + y, first | part)) for known, x, y in zip(joined, a, b, strict=True)]
            if not part:
                break
            part = (part - 1) & rest
        costs[bits] = [0.0] * (n + 1)
        for r in range(n + 1):
            cost, at = min((path[r][j] + joined[j][0], j) for j in range(n + 1))
            costs[bits][r], made[bits, r] = cost, (at, joined[at][1])
    whole = (1 << len(missing)) - 1
    if math.isinf(costs[whole][root]):
        return []
    chosen: set[tuple[int, int]] = set()

    def take(bits: int, at: int) -> None:
        if bits & (bits - 1) == 0:
            chosen.update(_walk(before, at, missing[bits.bit_length() - 1]))
            return
        place, part = made[bits, at]
        chosen.update(_walk(before, at, place))
        take(part, place)
        take(bits ^ part, place)

    take(whole, root)
    return _ordered(chosen, root, {*missing})


def shortest(edges: Sequence[Sequence[float]]) -> tuple[list[list[float]], list[list[int]]]:
    """Lengths of the shortest paths between all formats, and the format before the last of each."""
    n = len(edges)
    path = [[*row] for row in edges]
    before = [[i] * n for i in range(n)]
    for j in range(n):
        for i in range(n):
            for k in range(n):
                if path[i][j] + path[j][k] < path[i][k]:
                    path[i][k], before[i][k] = path[i][j] + path[j][k], before[j][k]
    return path, before


def _walk(before: list[list[int]], src: int, dst: int) -> list[tuple[int, int]]:
    """The edges of the shortest path, the last one first."""
    edges = []
    while dst != src:
        edges.append((before[src][dst], dst))
        dst = before[src][dst]
    return edges


def _nearest_first(
    path: list[list[float]], before: list[list[int]], root: int, missing: list[int]
) -> list[tuple[int, int]]:
    """A tree that is not always the cheapest: what is nearest to it joins it next."""
    there, left, chosen = {root}, {*missing}, set[tuple[int, int]]()
    while left:
        cost, src, dst = min((path[a][b], a, b) for a in there for b in left)
        if math.isinf(cost):
            return []
        for edge in _walk(before, src, dst):
            chosen.add(edge)
            there.update(edge)
        left -= there
    return _ordered(chosen, root, {*missing})


def _ordered(chosen: set[tuple[int, int]], root: int, wanted: set[int]) -> list[tuple[int, int]]:
    """The edges that lead from the root to what is wanted, each format made once.

    Edges that cost nothing may have been taken twice over: a tree is what remains of them.
    """
    reached, order = {root}, []
    left = sorted(chosen)
    while found := next(((a, b) for a, b in left if a in reached and b not in reached), None):
        reached.add(found[1])
        order.append(found)
    needed = set(wanted)
    kept = []
    for src, dst in reversed(order):
        if dst in needed:
            needed.add(src)
            kept.append((src, dst))
    return [edge for edge in reversed(kept) if edge[0] != root]
