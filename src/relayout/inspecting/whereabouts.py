"""Where values lie in a memory: the place of each value that occurs exactly once.

A buffer that holds a tensor holds each of its elements, so a value that occurs once in the memory lies where
its element lies. Values that occur twice, and those of padding, are left out.

Two ways, the same answer. A memory of moderate size is sorted once, and each question is a binary search. A
large one is read from front to back for each question, without a copy: a table of 2**20 bits tells in a few
nanoseconds that an element is none of those sought.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Integers", "Places", "Tokens", "Whereabouts"]

Tokens: TypeAlias = NDArray[np.unsignedinteger]
"""Elements as unsigned integers: their bits, or a hash of the bits of several."""
Places: TypeAlias = NDArray[np.int64]
Integers: TypeAlias = NDArray[np.int64]

SORTED = 1 << 22  # elements; a larger memory is streamed
CHUNK = 1 << 20  # elements that are streamed at a time
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: spreads neighbours over the table
TABLE_BITS = 20


class Whereabouts:
    """Where the values of a memory lie.

    >>> import numpy as np
    >>> memory = np.array([7, 8, 9, 8], np.uint32)
    >>> Whereabouts(memory).find(np.array([9, 8, 7, 5], np.uint32))
    array([ 2, -1,  0, -1])
    """

    def __init__(self, memory: Tokens) -> None:
        self.memory = memory
        self._order: Places | None = None
        self._sorted: Tokens | None = None

    def find(self, values: Tokens) -> Places:
        """For each value its place, or -1 where it lies nowhere or at several places."""
        flat = values.reshape(-1)
        if not flat.size or not self.memory.size:
            return np.full(values.shape, -1, np.int64)
        found = self._searched(flat) if self.memory.size <= SORTED else self._streamed(flat)
        return found.reshape(values.shape)

    def counts(self, values: Tokens) -> Integers:
        """For each value how often the memory holds it.

        >>> Whereabouts(np.array([7, 8, 9, 8], np.uint32)).counts(np.array([8, 5, 7], np.uint32))
        array([2, 0, 1])
        """
        sought, which = np.unique(values.reshape(-1), return_inverse=True)
        return np.asarray(self._counted(sought)[0][which.reshape(-1)])

    def _searched(self, values: Tokens) -> Places:
        if self._order is None or self._sorted is None:
            self._order = np.argsort(self.memory, kind="stable")
            self._sorted = self.memory[self._order]
        first = np.searchsorted(self._sorted, values, "left")
        last = len(self._sorted) - 1
        here = self._sorted[np.minimum(first, last)] == values
        twice = (first < last) & (self._sorted[np.minimum(first + 1, last)] == values)
        return np.where(here & ~twice, self._order[np.minimum(first, last)], -1)

    def _streamed(self, values: Tokens) -> Places:
        sought, which = np.unique(values, return_inverse=True)
        count, places = self._counted(sought)
        return np.asarray(np.where(count == 1, places, -1)[which.reshape(-1)])

    def _counted(self, sought: Tokens) -> tuple[Integers, Places]:
        """How often each of some values occurs, and where last; they rise."""
        count, places = np.zeros(len(sought), np.int64), np.full(len(sought), -1, np.int64)
        if not len(sought):
            return count, places
        table = np.zeros(1 << TABLE_BITS, np.bool_)
        table[_slot(sought)] = True
        for start in range(0, self.memory.size, CHUNK):
            part = self.memory[start : start + CHUNK]
            at = np.flatnonzero(table[_slot(part)])
            near = np.minimum(np.searchsorted(sought, part[at]), len(sought) - 1)
            hit = sought[near] == part[at]
            places[near[hit]] = at[hit] + start
            count += np.bincount(near[hit], minlength=len(sought))
        return count, places


def _slot(values: Tokens) -> NDArray[np.uint64]:
    spread: NDArray[np.uint64] = (values.astype(np.uint64) * MULTIPLIER) >> np.uint64(64 - TABLE_BITS)
    return spread
