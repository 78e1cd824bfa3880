"""A problem as variables and tables: what elimination works on.

::

    variable of an operation    which of its options
    variable of a value         the set of formats in which it exists

A table says what a pair costs: the option that writes a value and the set in which it exists, by
:mod:`relayout.graph.planning.conversions`; or that a pair is not possible: a reader's option wants a format
that is not in the set. A value with one reader needs no variable: its table is of two operations.

A set may be larger than what is wanted, since that never costs less. So tables stay tables of two however
many readers there are, and *a set can contain another set*: in a dense block the value of layer i is read by
the concatenations i, i + 1, ..., n, and its set contains the one of layer i + 1. Each set is then next to one
concatenation and one other set instead of all of them, and what is a clique for the readers becomes a chain.

If conversions may not pass through formats that nobody reads, a larger set can cost less. Then sets are
exactly what is wanted, by tables of three: a set, and the two of which it is the union.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache, reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relayout.graph.planning.conversions import tree_costs
from relayout.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from relayout.graph.planning.problem import Format, Problem, Use

__all__ = ["Model", "Options", "Table", "build"]

Options: TypeAlias = "tuple[tuple[int, ...], ...]"
Table: TypeAlias = "tuple[tuple[int, ...], NDArray[Any]]"

LARGEST = 1 << 10
"""The most sets that a variable may stand for: all of ten formats, those of up to three out of eighteen."""

TREES = 5000
"""The most sets of formats that trees are found for; what a larger one costs is estimated from below."""

_Wanted: TypeAlias = "tuple[frozenset[Format], ...]"


@dataclass(frozen=True, eq=False)
class Model:
    """Variables with so many values each, and tables whose sum is to be least.

    Attributes
    ----------
    sizes : tuple of int
        Of each variable, how many values it has. The first are those of operations.
    options : tuple of tuple of int
        For each operation the indices of the options that its variable's values stand for.
    tables : tuple of (variables, array)
        Variables are ascending; an array has an axis for each.
    constant : float
        What is added to the sum.
    relaxed : bool
        Whether some sets were too many to be told apart. The least sum is then a lower bound.
    """

    sizes: tuple[int, ...]
    options: Options
    tables: tuple[Table, ...]
    constant: float
    relaxed: bool

    def choices(self, values: Sequence[int]) -> tuple[int, ...]:
        """The index of each operation's option, of values of the variables."""
        return tuple(own[values[index]] for index, own in enumerate(self.options))


def build(problem: Problem, options: Options | None = None) -> Model:
    """The model of a problem.

    Parameters
    ----------
    problem : Problem
    options : tuple of tuple of int, optional
        For each operation the indices of the options to choose from; by default all that are possible.
    """
    return _Builder(problem, options).model()


@dataclass(frozen=True)
class _Group:
    """Several readers of values, and the sets of formats that they may want together.

    `universe` are the formats that bits of the sets stand for. If there is a `limit`, the sets have fewer
    formats than that, and behind them is one of all formats, which stands for all larger ones.
    """

    variable: int
    universe: tuple[Format, ...]
    sets: tuple[int, ...]
    limit: int


@dataclass(frozen=True)
class _Part:
    """A variable, the set that each of its values stands for, and the limit as in a group."""

    variable: int
    sets: tuple[int, ...]
    limit: int


class _Builder:
    def __init__(self, problem: Problem, options: Options | None) -> None:
        self.problem = problem
        self.uses = problem.uses  # which checks the problem, too
        self.options = options or tuple(tuple(problem.possible(one)) for one in problem.operations)
        self.sizes = [len(own) for own in self.options]
        self.tables: list[Table] = []
        self.constant = 0.0
        self.relaxed = False
        self.demands: list[tuple[int, _Wanted]] = []
        """Operation, and the formats in which each of its options wants a value."""
        self.numbers: dict[tuple[int, _Wanted], int] = {}
        self.groups: dict[frozenset[int], _Group] = {}

    def model(self) -> Model:
        """Operations first, then values with several readers, then what values cost."""
        if not all(self.options):  # what is forced leaves an operation none
            return Model(tuple(self.sizes), self.options, (), math.inf, False)
        for index, (operation, own) in enumerate(zip(self.problem.operations, self.options, strict=True)):
            self._add((index,), np.array([operation.options[i].cost for i in own], float))
        read = {use.value: self._readers(use) for use in self.uses.values()}
        self._group({several for several in read.values() if len(several) > 1})
        self._values(read)
        return Model(tuple(self.sizes), self.options, tuple(self.tables), self.constant, self.relaxed)

    def _add(self, scope: tuple[int, ...], table: NDArray[Any]) -> None:
        """Enter a table; variables with one value only are none."""
        if any(self.sizes[v] == 1 for v in scope):
            table = table.reshape([self.sizes[v] for v in scope if self.sizes[v] > 1])
            scope = tuple(v for v in scope if self.sizes[v] > 1)
        if not scope:
            self.constant += float(table)
            return
        ascending = sorted(range(len(scope)), key=scope.__getitem__)
        self.tables.append((tuple(scope[i] for i in ascending), table.transpose(ascending)))

    def _readers(self, use: Use) -> frozenset[int]:
        """The demands on a value, as numbers: one for each operation that reads it."""
        found = []
        for index in use.readers:
            operation = self.problem.operations[index]
            places = [i for i, name in enumerate(operation.inputs) if name == use.value]
            if len(places) == 1:
                place = places[0]
                wanted = tuple(_single(operation.options[i].inputs[place]) for i in self.options[index])
            else:
                wanted = tuple(
                    frozenset([operation.options[i].inputs[p] for p in places]) for i in self.options[index]
                )
            number = self.numbers.setdefault((index, wanted), len(self.demands))
            if number == len(self.demands):
                self.demands.append((index, wanted))
            found.append(number)
        return frozenset(found)

    def _group(self, several: set[frozenset[int]]) -> None:
        """A variable for each set of demands; small ones first, since large ones contain them.

        What sets have in common is a set, too: values of a dense block may have readers of their own.
        """
        sharing: dict[int, list[frozenset[int]]] = defaultdict(list)
        for demands in sorted(several, key=sorted):
            for demand in demands:
                sharing[demand].append(demands)
        for holding in sharing.values():
            several |= {a & b for a, b in pairwise(holding) if len(a & b) > 1}
        keys: list[frozenset[int]] = []
        groups: list[_Group] = []
        holders: dict[int, list[int]] = defaultdict(list)  # for each demand the groups that have it
        for demands in sorted(several, key=lambda d: (len(d), sorted(d))):
            common: dict[int, int] = defaultdict(int)
            for demand in demands:
                for group in holders[demand]:
                    common[group] += 1
            whole = [group for group, count in common.items() if count == len(keys[group])]
            left, inner = set(demands), list[_Group]()
            for group in sorted(whole, key=lambda g: (-len(keys[g]), g)):
                if keys[group] <= left:
                    inner.append(groups[group])
                    left -= keys[group]
            for demand in demands:
                holders[demand].append(len(keys))
            keys.append(demands)
            groups.append(self._new_group([self.demands[number] for number in sorted(left)], inner))
        self.groups = dict(zip(keys, groups, strict=True))

    def _new_group(self, members: list[tuple[int, _Wanted]], inner: list[_Group]) -> _Group:
        universe: dict[Format, None] = {}
        for _, wanted in members:
            for formats in wanted:
                universe |= dict.fromkeys(formats if len(formats) == 1 else sorted(formats, key=repr))
        for group in inner:
            universe |= dict.fromkeys(group.universe)
        bit = {format: 1 << i for i, format in enumerate(universe)}
        parts = [_Part(operation, tuple(_masks(wanted, bit)), 0) for operation, wanted in members]
        for group in inner:
            own = tuple(_translated(group.sets, group.universe, bit))
            parts.append(_Part(group.variable, own, group.limit))
        if self.problem.through:
            union = self._union(parts)
            for part in parts:
                self._add((union.variable, part.variable), _within(union.sets, part.sets))
        else:
            union = parts[0]
            for part in parts[1:]:
                both = union, part
                union = self._union(both)
                scope = union.variable, both[0].variable, part.variable
                self._add(scope, _exactly(union.sets, union.limit, both[0].sets, part.sets))
        return _Group(union.variable, tuple(universe), union.sets, union.limit)

    def _union(self, parts: Sequence[_Part]) -> _Part:
        """A new variable for the unions of one set of each part."""
        limit = min((part.limit for part in parts if part.limit), default=0)
        choices = tuple(frozenset(part.sets[:-1] if part.limit else part.sets) for part in parts)
        everything = reduce(or_, (mask for part in parts for mask in part.sets))
        sets, limit = _unions(choices, limit, everything)
        self.sizes.append(len(sets))
        self.relaxed |= limit > 0
        return _Part(len(self.sizes) - 1, sets, limit)

    def _values(self, read: dict[str, frozenset[int]]) -> None:
        """The tables of values: those whose trees have the same shape are computed together."""
        waiting = defaultdict(list)
        for use in self.uses.values():
            demands = read[use.value]
            if len(use.formats) == 1 or (not demands and use.pin is None):
                continue
            bit = {format: 1 << i for i, format in enumerate(use.formats[: use.wanted])}
            pin = 0 if use.pin is None else bit[use.pin]
            reader, limit = -1, 0
            if not demands:
                masks = [pin]
            elif len(demands) == 1:
                reader, wanted = self.demands[next(iter(demands))]
                masks = [mask | pin for mask in _masks(wanted, bit)]
            else:
                group = self.groups[demands]
                reader, limit = group.variable, group.limit
                masks = [mask | pin for mask in _translated(group.sets, group.universe, bit)]
            most = max((mask.bit_count() for mask in (masks[:-1] if limit else masks)), default=0)
            while most > 1 and sum(math.comb(use.wanted, size) for size in range(most + 1)) > TREES:
                most -= 1
            shape = len(use.formats), use.wanted, most, use.writer is None
            waiting[shape].append((use, masks, reader, limit))
        for (count, ends, most, given), several in waiting.items():
            direct = np.array([self._direct(use) for use, *_ in several])
            size = count + given
            sets, costs = tree_costs(direct.reshape(-1, size, size), ends, most, self.problem.through)
            row = {bits: index for index, bits in enumerate(sets)}
            largest = [index for index, bits in enumerate(sets) if bits.bit_count() == most]
            for (use, masks, reader, limit), own in zip(several, costs, strict=True):
                table = own[[row.get(mask, -1) for mask in masks]]
                for index, mask in enumerate(masks):
                    several_sets = limit and index == len(masks) - 1
                    if not several_sets and mask in row:
                        continue
                    self.relaxed = True
                    if not self.problem.through:
                        table[index] = 0
                    elif several_sets:
                        table[index] = own[largest].min(axis=0)
                    else:  # at least what any of its parts costs
                        table[index] = own[[i for i in largest if sets[i] & ~mask == 0]].max(axis=0)
                if use.writer is None:
                    table = table[:, count]
                    scope: tuple[int, ...] = (reader,)
                else:
                    operation, place = use.writer
                    options = self.problem.operations[operation].options
                    at = {format: i for i, format in enumerate(use.formats)}
                    table = table[:, [at[options[i].outputs[place]] for i in self.options[operation]]]
                    scope = (reader, operation)
                if reader < 0:
                    table, scope = table[0], scope[1:]
                self._add(scope, table)

    def _direct(self, use: Use) -> list[list[float]]:
        """What conversions cost; for values that are given, from nothing too, in a row more."""
        cost = self.problem.conversion
        rows = [[cost(use.value, src, dst) for dst in use.formats] for src in use.formats]
        if use.writer is None:
            places = [place for place, format in enumerate(use.formats) if format in use.given]
            rows.append([min(rows[place][dst] for place in places) for dst in range(len(rows))])
            rows = [[*row, 0.0 if index == len(row) else math.inf] for index, row in enumerate(rows)]
        return rows


@lru_cache(maxsize=4096)
def _single(format: Format) -> frozenset[Format]:
    return frozenset((format,))


def _masks(wanted: Iterable[frozenset[Format]], bit: dict[Format, int]) -> list[int]:
    return [sum(bit[format] for format in formats) for formats in wanted]


def _translated(sets: Iterable[int], universe: Sequence[Format], bit: dict[Format, int]) -> list[int]:
    """Sets of formats that have other bits elsewhere."""
    bits = [bit[format] for format in universe]
    if bits == [1 << i for i in range(len(bits))]:
        return list(sets)
    return [sum(own for i, own in enumerate(bits) if mask >> i & 1) for mask in sets]


@lru_cache(maxsize=1024)
def _unions(choices: tuple[frozenset[int], ...], limit: int, everything: int) -> tuple[tuple[int, ...], int]:
    """All unions of one set out of each choice; with a limit those with fewer formats, and everything.

    There is a limit where one is given and where unions are too many.
    """
    found = {0}
    for sets in dict.fromkeys(choices):
        for _ in range(choices.count(sets)):
            larger = {a | b for a in found for b in sets}
            if limit:
                larger = {mask for mask in larger if mask.bit_count() < limit}
            while len(larger) > LARGEST:
                limit = max(mask.bit_count() for mask in larger)
                larger = {mask for mask in larger if mask.bit_count() < limit}
            if larger == found:
                break
            found = larger
    ordered = sorted(found, key=lambda mask: (mask.bit_count(), mask))
    if limit:
        ordered.append(everything)
    return tuple(ordered), limit


@lru_cache(maxsize=4096)
def _within(sets: tuple[int, ...], wanted: tuple[int, ...]) -> NDArray[Any]:
    """Zero where a set (row) contains what is wanted (column), infinite elsewhere."""
    dtype = np.int64 if max(sets).bit_length() < 63 else object
    outside = np.array(wanted, dtype)[None, :] & ~np.array(sets, dtype)[:, None]
    return np.where(outside == 0, 0.0, math.inf)


@lru_cache(maxsize=1024)
def _exactly(sets: tuple[int, ...], limit: int, a: tuple[int, ...], b: tuple[int, ...]) -> NDArray[Any]:
    """Zero where a set is the union of two others, infinite elsewhere."""
    row = {mask: index for index, mask in enumerate(sets[:-1] if limit else sets)}
    table = np.full((len(sets), len(a), len(b)), math.inf)
    for i, left in enumerate(a):
        for j, right in enumerate(b):
            table[row.get(left | right, -1), i, j] = 0
    return table
