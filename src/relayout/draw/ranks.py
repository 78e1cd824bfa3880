"""Where the boxes of a graph stand: ranks from top to bottom, an order in each, places from left to right.

The usual three steps. A box stands below everything that leads to it (longest path). An edge that passes
ranks has a bend in each of them, which edges from the same box share, so that all edges join neighbours; the
order of a rank is that of the means of its neighbours, swept down and up, as long as fewer edges cross. Then
each box moves to the mean of its neighbours as far as those beside it allow, which is a regression that keeps
the order.

>>> placed = places([10, 10, 10, 10], [(0, 1), (0, 2), (1, 3), (2, 3)], gap=4)
>>> placed.ranks
[0, 1, 1, 2]
>>> [round(x) for x in placed.x]
[0, -7, 7, 0]
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Places", "apart", "places"]

SWEEPS = 12
BEND = 6.0
"""The width of a bend."""
PULL = 0.25
"""How much a line wants to stay near the box that it comes from."""


class Places(NamedTuple):
    """Where everything stands."""

    ranks: list[int]
    """Of each box, from 0 at the top."""
    x: list[float]
    """The middle of each box."""
    bends: list[list[tuple[int, float]]]
    """Of each edge: rank and middle of what it passes, from top to bottom."""


def places(widths: Sequence[float], edges: Sequence[tuple[int, int]], gap: float = 16) -> Places:
    """Place boxes.

    Parameters
    ----------
    widths : sequence of float
        Of the boxes, each of which stands behind those that lead to it.
    edges : sequence of (int, int)
        From which box to which.
    gap : float, optional
        Between two boxes.
    """
    ranks = _ranks(len(widths), edges)
    sizes, ranked = list(widths), list(ranks)
    links: dict[tuple[int, int], None] = {}
    paths: list[list[int]] = []
    chains: dict[int, list[int]] = {}
    origins = list(range(len(widths)))
    for src, dst in edges:
        chain = chains.setdefault(src, [src])  # edges of one box go down together
        for rank in range(ranks[src] + len(chain), ranks[dst]):
            links[chain[-1], len(sizes)] = None
            chain.append(len(sizes))
            origins.append(src)
            sizes.append(BEND)
            ranked.append(rank)
        path = chain[: ranks[dst] - ranks[src]]
        links[path[-1], dst] = None
        paths.append(path[1:])
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for src, dst in links:
        below[src].append(dst)
        above[dst].append(src)
    rows: list[list[int]] = [[] for _ in range(max(ranked, default=-1) + 1)]
    for one, rank in enumerate(ranked):
        rows[rank].append(one)
    rows = _ordered(rows, above, below)
    x = _moved(rows, sizes, above, below, origins, gap)
    bends = [[(ranked[one], x[one]) for one in path] for path in paths]
    return Places(ranks, x[: len(widths)], bends)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    ranks = [0] * count
    for src, dst in sorted(edges, key=lambda edge: edge[1]):
        ranks[dst] = max(ranks[dst], ranks[src] + 1)
    least = [min((ranks[dst] for src, dst in edges if src == one), default=0) for one in range(count)]
    reached = {dst for _, dst in edges}
    for one in range(count):  # what nothing leads to stands just above what it leads to
        if one not in reached and least[one]:
            ranks[one] = least[one] - 1
    return ranks


def _ordered(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """The rows in the order with the fewest crossings that was met."""
    best, least = [list(row) for row in rows], _crossings(rows, below)
    at: dict[int, float] = {one: k for row in rows for k, one in enumerate(row)}
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for row in rows if down else reversed(rows):
            means = {one: sum(at[n] for n in near[one]) / len(near[one]) for one in row if near[one]}
            row.sort(key=lambda one: means.get(one, at[one]))
            at |= {one: float(k) for k, one in enumerate(row)}
        if (count := _crossings(rows, below)) < least:
            best, least = [list(row) for row in rows], count
    return best


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    found = 0
    for upper, lower in pairwise(rows):
        at = {one: k for k, one in enumerate(lower)}
        ends = [end for one in upper for end in sorted(at[n] for n in below[one])]
        found += sum(a > b for k, b in enumerate(ends) for a in ends[:k])
    return found


def _moved(
    rows: list[list[int]],
    sizes: list[float],
    above: list[list[int]],
    below: list[list[int]],
    origins: list[int],
    gap: float,
) -> list[float]:
    """The middles: each at the mean of its neighbours, as far as the order allows."""
    x = [0.0] * len(sizes)
    offsets: list[list[float]] = []
    for row in rows:
        at, places = 0.0, []
        for k, one in enumerate(row):
            if k:
                at += (sizes[row[k - 1]] + sizes[one]) / 2 + gap
            places.append(at)
        offsets.append(places)
        for one, place in zip(row, places, strict=True):
            x[one] = place - at / 2
    for sweep in range(2 * SWEEPS):
        for k in range(len(rows)) if sweep % 2 == 0 else reversed(range(len(rows))):
            row, wanted, weights = rows[k], [], []
            for one in row:
                near = above[one] + below[one]
                bend = origins[one] != one
                near = [n for n in near if (origins[n] != n) == bend] or near  # straight lines, rows of boxes
                place = sum(x[n] for n in near) / len(near) if near else x[one]
                wanted.append(place + PULL * (x[origins[one]] - place))
                weights.append(1.0 if bend else 8.0)
            for one, place in zip(row, apart(wanted, weights, offsets[k]), strict=True):
                x[one] = place
    return x


def apart(wanted: Sequence[float], weights: Sequence[float], offsets: Sequence[float]) -> list[float]:
    """The places next to those wanted, in the mean of squares, at least as far apart as the offsets.

    >>> apart([0, 0, 50], [1, 1, 1], [0, 10, 20])
    [-5.0, 5.0, 50]
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for place, weight, offset in zip(wanted, weights, offsets, strict=True):
        mean, many = place - offset, 1
        while pools and pools[-1][0] > mean:
            other, heavy, count = pools.pop()
            mean = (mean * weight + other * heavy) / (weight + heavy)
            weight, many = weight + heavy, many + count
        pools.append((mean, weight, many))
    means = [mean for mean, _, many in pools for _ in range(many)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
