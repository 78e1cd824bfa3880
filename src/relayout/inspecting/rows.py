"""Layouts of values that repeat: innermost digits first, until rows of values are rare.

A buffer of s8 has 256 values at most, and each lies in thousands of places. But rows of eight of them hardly
occur twice. So the innermost digit is supposed, its rows are taken as elements of their own, and where all
rows of the logical array are among the rows of the memory, as often at least, the supposition was right::

    memory    a b | a c | b b | ...      rows of 2, if an axis has a digit of extent 2 and stride 1
    logical   the same pairs along that axis, padded with zero where it ends

A row is kept as a hash of 64 bits, of which zero is the row of zeros. Supposed are digits of prime extents,
since a block of 16 is four digits of 2 in a row; first such as continue an axis, then digits that leave out
lower ones (``o//4%8`` inside of ``o%4``), then zeros behind each row (3 channels in a block of 4). As soon as
rows are rare, the rest is :func:`relayout.inspecting.placing.laid_out`.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.inspecting.placing import laid_out, layout_from
from relayout.inspecting.whereabouts import Tokens, Whereabouts
from relayout.layout.layout import Digit, Layout

__all__ = ["holds", "laid_out_in_rows"]

Hashes = NDArray[np.uint64]

PRIMES = (2, 3, 5, 7)
LONGEST = 1 << 12  # elements of a row: longer ones repeat only where there is nothing to be found out
LEFT_OUT = (2, 4, 8, 16, 32, 3)  # numbers that a digit may leave to digits further out
COUNTED = 1 << 14  # rows of which the number is compared
RARE = 0.2  # of the rows must lie in one place for their places to be looked up
WORK = 64  # times that all elements are hashed before the search is given up,
LEAST_WORK, MOST_HASHED = 16, 1 << 26  # ... or so many elements, but so many times at least
SPREAD = np.uint64(0x9E3779B97F4A7C15)
_WEIGHTS = np.random.default_rng(1).integers(1, 2**63, 4096, np.uint64) * np.uint64(2) + np.uint64(1)


class _State(NamedTuple):
    """Rows of the logical array and of the memory, and the digits within them."""

    values: Hashes
    """An axis for each number that is still counted."""
    labels: tuple[tuple[int, int], ...]
    """For each of them the axis of the tensor, and what one step of it counts there."""
    memory: Hashes
    inner: tuple[tuple[int, Digit], ...]
    """The digits within a row, each with its axis."""
    room: int
    """Elements of a row."""
    start: int
    """The first element of the first row."""


class _Digit(NamedTuple):
    """A supposed digit: which number it belongs to, how much it leaves out below, extent, and first row."""

    number: int
    left_out: int
    extent: int
    start: int


class _Work:
    """What a search may still cost."""

    def __init__(self, elements: int) -> None:
        self.left = max(LEAST_WORK * elements, min(WORK * elements, MOST_HASHED))


def holds(values: Tokens, memory: Tokens) -> bool:
    """Whether a memory holds all values, each as often at least: as far as a part of them tells.

    >>> holds(np.array([1, 1, 2], np.uint8), np.array([2, 9, 1], np.uint8))
    False
    """
    return _held(_spread(values), _spread(memory))[0]


def laid_out_in_rows(values: Tokens, memory: Tokens) -> Iterator[Layout]:
    """Layouts that explain a memory of repeated values, likely ones first.

    >>> values = np.tile(np.arange(8, dtype=np.uint8) // 3, 16).reshape(2, 16, 4) ** 2 % 7
    >>> values[0, 3] = 5
    >>> memory = np.ascontiguousarray(values.reshape(2, 2, 8, 4).transpose(0, 1, 3, 2)).reshape(-1)
    >>> layouts = laid_out_in_rows(values, memory)
    >>> any((memory[layout.offsets(np.argwhere(values >= 0))] == values.ravel()).all() for layout in layouts)
    True
    """
    state = _State(
        _spread(values),
        tuple((axis, 1) for axis in range(values.ndim)),
        _spread(memory),
        (),
        1,
        0,
    )
    yield from _descended(state, _Work(max(values.size, memory.size)), values.shape)


def _descended(state: _State, work: _Work, dims: tuple[int, ...]) -> Iterator[Layout]:
    """Suppose one digit more, as long as rows are not rare."""
    joined: dict[tuple[int, int], Hashes] = {}
    for digit in _supposed(state):
        if work.left <= 0:
            return
        rows = joined.get((digit.extent, digit.start))
        if rows is None:
            rows = _joined_memory(state.memory, digit.extent, digit.start)
            joined[digit.extent, digit.start] = rows
            work.left -= rows.size * digit.extent
        values, labels = _joined_values(state, digit)
        work.left -= values.size * digit.extent
        held, rare = _held(values, rows)
        if not held:
            continue
        axis, weight = state.labels[digit.number]
        own = Digit(weight * digit.left_out, digit.extent, state.room)
        further = _State(
            values,
            labels,
            rows,
            (*state.inner, (axis, own)),
            state.room * digit.extent,
            state.start + digit.start * state.room,
        )
        if rare >= RARE:
            work.left -= values.size
            yield from _placed(further, dims)
        if further.room < LONGEST and prod(further.values.shape) > 1:
            yield from _descended(further, work, dims)


def _supposed(state: _State) -> Iterator[_Digit]:
    """Digits that may be the innermost of what is left, likely ones first."""
    last = state.inner[-1][0] if state.inner else None
    numbers = sorted(range(len(state.labels)), key=lambda k: (state.labels[k][0] != last, -k))
    sizes = state.values.shape
    open_numbers = [k for k in numbers if sizes[k] > 1]
    for k in open_numbers:
        for extent in _primes(sizes[k]):
            yield _Digit(k, 1, extent, 0)
    for k in open_numbers:
        for left_out in LEFT_OUT:
            if left_out < sizes[k]:
                yield _Digit(k, left_out, 2, 0)
    closed = [k for k in numbers if sizes[k] == 1]
    if closed:  # zeros behind each element, whichever axis they are padding of
        for extent in PRIMES:
            yield _Digit(closed[0], 1, extent, 0)
    for k in open_numbers:
        yield _Digit(k, 1, 2, 1)


def _primes(size: int) -> list[int]:
    """The usual primes, and those that divide a size."""
    found, left, prime = [p for p in PRIMES if p <= size or p == 2], size, 2
    while prime * prime <= left:
        if left % prime == 0:
            left //= prime
            found.append(prime)
        else:
            prime += 1
    return list(dict.fromkeys([*found, left] if 1 < left <= LONGEST else found))


def _spread(tokens: Tokens) -> Hashes:
    """Numbers of 64 bits that look random, the same for the same tokens, and zero for zero."""
    mixed: Hashes = tokens.astype(np.uint64) * SPREAD
    mixed ^= mixed >> np.uint64(32)
    mixed *= SPREAD
    return mixed


def _hashed(parts: Iterator[Hashes]) -> Hashes:
    total: Hashes | None = None
    for weight, part in zip(_WEIGHTS, parts, strict=False):
        total = part * weight if total is None else total + part * weight
    if total is None:
        raise ValueError("a row has one element at least")
    total ^= total >> np.uint64(29)
    total *= SPREAD
    return total


def _joined_memory(memory: Hashes, extent: int, start: int) -> Hashes:
    count = max(0, memory.size - start) // extent
    rows = memory[start : start + count * extent].reshape(count, extent)
    return _hashed(rows[:, k] for k in range(extent))


def _joined_values(state: _State, digit: _Digit) -> tuple[Hashes, tuple[tuple[int, int], ...]]:
    """The logical array with rows along one of its numbers; one that leaves numbers out becomes two."""
    k, shape = digit.number, state.values.shape
    block = digit.extent * digit.left_out
    count = -(-shape[k] // block)
    padded = state.values
    if count * block != shape[k]:
        wide = [(0, 0)] * len(shape)
        wide[k] = (0, count * block - shape[k])
        padded = np.pad(padded, wide)
    split = padded.reshape(*shape[:k], count, digit.extent, digit.left_out, *shape[k + 1 :])
    parts: list[Hashes] = [split.take([e], axis=k + 1).squeeze(k + 1) for e in range(digit.extent)]
    rows = _hashed(iter(parts))
    axis, weight = state.labels[k]
    above = (axis, weight * block)
    below = ((axis, weight),) if digit.left_out > 1 else ()
    if not below:
        rows = rows.reshape(*shape[:k], count, *shape[k + 1 :])
    return rows, (*state.labels[:k], above, *below, *state.labels[k + 1 :])


def _held(values: Hashes, memory: Hashes) -> tuple[bool, float]:
    """Whether the memory holds all rows, as often at least; and the share of them that lie in one place."""
    flat = values.reshape(-1)
    if not memory.size:
        return False, 0.0
    rate = max(1, max(flat.size, memory.size) // COUNTED).bit_length() - 1
    one, two = _chosen(flat, rate), _chosen(memory, rate)
    if not one.size and rate:
        one, two = _chosen(flat, 0), _chosen(memory, 0)
    if not one.size:
        return True, 0.0  # nothing but zeros
    rows, counts = np.unique(one, return_counts=True)
    there, available = np.unique(two, return_counts=True)
    if not there.size:
        return False, 0.0
    near = np.minimum(np.searchsorted(there, rows), there.size - 1)
    held = (there[near] == rows) & (available[near] >= counts)
    return bool(held.all()), float(np.count_nonzero(available[near] == 1) / one.size)


def _chosen(hashes: Hashes, rate: int) -> Hashes:
    """One in ``2 ** rate`` of all hashes that are not zero: the same ones on both sides."""
    if not rate:
        some: Hashes = hashes[hashes != 0]
    else:
        some = hashes[(hashes < np.uint64(1 << (64 - rate))) & (hashes != 0)]
    return some


def _placed(state: _State, dims: tuple[int, ...]) -> Iterator[Layout]:
    """Layouts of the tensor from layouts of its rows."""
    for rows in laid_out(state.values, Whereabouts(state.memory)):
        ladders: dict[tuple[int, ...], list[Digit]] = {(axis,): [] for axis in range(len(dims))}
        for axis, digit in state.inner:
            ladders[axis,].append(digit)
        for term, ladder in zip(rows.terms, rows.ladders, strict=True):
            axes = tuple(state.labels[k][0] for k in term)
            if len(term) > 1:  # fused axes: nothing of them may be within a row
                if any(ladders.get((axis,), [None]) for axis in axes):
                    break
                for axis in axes:
                    del ladders[axis,]
                ladders[axes] = []
            weight = state.labels[term[-1]][1]
            ladders[axes] += [Digit(d.weight * weight, d.extent, d.stride * state.room) for d in ladder]
        else:
            terms = [(axes, _chained(ladder)) for axes, ladder in ladders.items()]
            try:
                yield layout_from(dims, terms, state.start + rows.offset0 * state.room)
            except LayoutError:
                continue  # digits that are no number


def _chained(ladder: list[Digit]) -> tuple[Digit, ...]:
    """Digits in order of significance, without those of extent 1."""
    kept = sorted((d for d in ladder if d.extent > 1), key=lambda d: -d.weight)
    return tuple(kept)
