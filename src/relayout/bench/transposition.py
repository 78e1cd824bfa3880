"""The public benchmark of tensor transpositions: 57 cases, by the rule that they follow.

TTC (Springer, Sankaran, Bientinesi: *TTC: A tensor transposition compiler for multiple architectures*, 2016)
introduced it, and HPTT and others report it. There are 19 permutations of 2 to 6 axes, in each of which no
two axes stay neighbours in the same order (they could be fused, and the case would be one of a lower rank).
Each is measured at three shapes of about 200 MiB:

``even``       all axes are about equally long
``source``     the axis that is contiguous in the source is long, at the cost of another
``target``     the axis that is contiguous in the destination is long, at the cost of the same other

Axes are numbered from the *innermost* here, as in column-major BLAS: ``permutation[i] = j`` means that axis j
of the source is axis i of the destination, so ``permutation[0] == 0`` keeps the contiguous axis.

The rule for the sizes, with E elements and rank d:

1. Two axes matter: 0 and ``permutation[0]``, or 1 and ``permutation[1]`` if axis 0 is kept. They get the d-th
   root of E, rounded up to a multiple of 16. The other axes share what is left evenly, rounded down.
2. For the skewed shapes one axis is divided by 6 (by 3 if d is 6): the first that is neither 0 nor, of the
   two, the other one. Of two axes in all it is the one that shall not be long. What is gained goes to axis 0
   (``source``) or to that other one (``target``), rounded down.
3. Axes that are contiguous on either side are rounded up to multiples of 16 in the end: 16 floats are a cache
   line.

>>> [case for case in transpositions() if case.permutation == (0, 2, 1)]
[Transposition(permutation=(0, 2, 1), sizes=(368, 384, 384), shape='even'),
 Transposition(permutation=(0, 2, 1), sizes=(2144, 64, 384), shape='source'),
 Transposition(permutation=(0, 2, 1), sizes=(368, 64, 2307), shape='target')]

HPTT's list has 7264 x 7264 as its first case, for which the rule gives 7248 x 7248; the other 56 agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pow, prod
from string import ascii_lowercase
from typing import NamedTuple

__all__ = ["PERMUTATIONS", "Transposition", "transpositions"]

MIB = 1 << 20
LINE = 16  # elements that contiguous axes are multiples of

PERMUTATIONS = tuple(
    tuple(map(int, digits))
    for digits in (
        *("10", "021", "102", "210"),
        *("0321", "2130", "2031", "1032", "3210"),
        *("04213", "32140", "20413", "13042", "43210"),
        *("032541", "320514", "204153", "325104", "543210"),
    )
)
"""The published choice; for two and three axes these are all that have nothing to fuse."""


class Transposition(NamedTuple):
    """One case; axes are numbered from the innermost."""

    permutation: tuple[int, ...]
    """Axis i of the destination is axis ``permutation[i]`` of the source."""
    sizes: tuple[int, ...]
    """The source's sizes, in elements."""
    shape: str
    """``"even"``, ``"source"`` or ``"target"``: which axis is long."""

    @property
    def dims(self) -> tuple[int, ...]:
        """The sizes as Relayout counts axes: from the outermost, so that the source is row-major."""
        return self.sizes[::-1]

    @property
    def formats(self) -> tuple[str, str]:
        """Source and destination as tags.

        >>> Transposition((0, 2, 1), (16, 32, 48), "even").formats
        ('abc', 'bac')
        """
        rank = len(self.sizes)
        letters = ascii_lowercase[:rank]
        return letters, "".join(letters[rank - 1 - axis] for axis in reversed(self.permutation))


def transpositions(size: int = 200 * MIB, width: int = 4) -> Iterator[Transposition]:
    """Generate the cases for tensors of about ``size`` bytes and elements of ``width`` bytes.

    >>> sum(1 for _ in transpositions())
    57
    """
    for permutation in PERMUTATIONS:
        for shape in ("even", "source", "target"):
            yield Transposition(permutation, _sizes(permutation, shape, size // width), shape)


def _sizes(permutation: tuple[int, ...], shape: str, elements: int) -> tuple[int, ...]:
    rank = len(permutation)
    kept = permutation[0] == 0
    target = permutation[1] if kept else permutation[0]
    sizes = _even({1 if kept else 0, target}, rank, elements)
    if shape != "even":
        long = 0 if shape == "source" else target
        short = next((axis for axis in range(rank) if axis not in (0, target)), target if long == 0 else 0)
        sizes[short] //= 3 if rank == 6 else 6
        sizes[long] = elements // prod(size for axis, size in enumerate(sizes) if axis != long)
    for axis in {0, permutation[0]}:
        sizes[axis] = _whole_lines(sizes[axis])
    return tuple(sizes)


def _even(transposed: set[int], rank: int, elements: int) -> list[int]:
    side = _whole_lines(_root(elements, rank))
    others = rank - len(transposed)
    rest = _root(elements // side ** len(transposed), others) if others else 1
    return [side if axis in transposed else rest for axis in range(rank)]


def _root(number: int, degree: int) -> int:
    """The whole part of a root."""
    root = round(pow(number, 1 / degree))
    return root if root**degree <= number else root - 1


def _whole_lines(size: int) -> int:
    return -(-size // LINE) * LINE
