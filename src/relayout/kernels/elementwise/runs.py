"""The iteration space of an operation that works element by element: runs of rows, and a nest around them.

An elementwise operation has operands that are indexed alike, the destination last. Their common refinement
(:mod:`relayout.loops`) is a nest with a step for each, in the order of the destination. Three kinds of
operands fall out of that, with no case of their own::

    dst nhwc 2x3x4x4      loop       a (nhwc)   b (nchw)   c (a value for each channel)   dst
                          n          192        192        0                              192
                          h, w        12          4        0                               12     bytes
                          c            4         64        4                                4

*  ``a`` is laid out as the destination is: it has the same steps, and all loops would fuse into one.
*  ``c`` broadcasts: it does not move where it repeats itself.
*  ``b`` is laid out otherwise. Neighbours in the destination are not neighbours in ``b``, which is what
   :func:`unsuited` finds; such an operand is reordered first, and the kernel never gathers.

The innermost part is a *run*: rows that follow each other in the destination without a gap. ::

    nhwc, 3 channels:            c0 c1 c2 c0 c1 c2 c0 c1 c2 ...      rows of 3; c starts anew with each
    nChw8c, 3 of 8 channels:     c0 c1 c2 .  .  .  .  .  c0 ...      rows of 3 and 5 zeros

Whether rows are short (a pattern of vectors repeats, and operands that start anew are loaded once for the
whole run) or long (one row is a run) is decided by how many vectors the pattern takes.

Padding of the destination must be zeros afterwards. There are three ways, the best that is possible is taken:

*  Where an operation makes zero of zeros and all operands have padding of the same shape, the padding is
   computed like everything else, which leaves one loop over all bytes.
*  Padding that follows the data of a row is a part of the row, and its lanes are set to zero.
*  What is left are runs of their own, that only write zeros.

All steps and starts are bytes; what a run counts are elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.loops.nest import Loop, Nest, coalesce, order
from relayout.loops.padding import Padded, Tail, padded
from relayout.loops.refine import pieces
from relayout.records import dataclass, replace

__all__ = ["Run", "Vectors", "runs", "unsuited"]

LONGEST_FILL = 64  # elements of padding that belong to a row; blocks are no longer
LONGEST_PATTERN = 64  # elements of a row that is loaded once and shuffled
ENOUGH_SHARES = 64  # once there are so many, work is cut no finer
CHUNK_BYTES = 1 << 14  # of a long run that are one share


class Vectors(NamedTuple):
    """How a kernel wants a run cut."""

    lanes: int
    """Elements of a vector."""
    together: int
    """Vectors of one turn."""
    pattern: int
    """The longest pattern of short rows, in vectors."""


@dataclass(frozen=True)
class Run:
    """``turns`` rows, one behind the other in the destination, and the loops around them.

    Each row is ``valid`` elements and then zeros, ``total`` elements together.
    """

    around: Nest
    """In bytes. With one operand nothing is computed, and zeros are written."""
    turns: int
    valid: int
    total: int
    steps: tuple[int, ...]
    """Bytes from one element of a row to the next, for each operand but the last: the size of one, or 0."""
    again: tuple[bool, ...]
    """Whether an operand starts anew with each row."""
    whole: tuple[bool, ...]
    """Whether an operand has the padding of a row, too, so that ``total`` elements may be read."""
    shared: int = 0
    """So many of the outermost loops are shared among threads."""
    unit: int = 1
    """Elements of one turn of the run: some vectors, and whole rows where they are short."""
    chunk: int = 0
    """Elements of the run that are one share, some units; 0: the run is not cut."""

    @property
    def elements(self) -> int:
        """All, zeros included."""
        return self.turns * self.total

    @property
    def counts(self) -> tuple[int, ...]:
        """Turns of all that is shared."""
        outer = tuple(loop.extent for loop in self.around.loops[: self.shared])
        return (*outer, -(-self.elements // self.chunk)) if self.chunk else outer

    def __str__(self) -> str:
        loops = f"{self.around}  " if self.around.loops else ""
        zeros = f" and {self.total - self.valid} zeros" if self.total > self.valid else ""
        rows = f"{self.turns} rows of " if self.turns > 1 else ""
        return f"{'zeros ' if self.around.zero else ''}{loops}{rows}{self.valid}{zeros}"


def runs(
    dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool, vectors: Vectors
) -> tuple[Run, ...] | None:
    """All runs of an operation, or None where there would be too many.

    Parameters
    ----------
    dst, operands : MemoryDesc
        Of equal dims; operands repeat themselves where their strides are 0.
    keeps_zero : bool
        Whether the operation makes zero of zeros.
    vectors : Vectors
        How runs are cut.

    Examples
    --------
    >>> x = MemoryDesc((2, 20, 4, 4), "f32", "nChw16c")
    >>> for run in runs(x, [x], True, Vectors(8, 4, 8)):
    ...     print(run)
    1024
    >>> for run in runs(x, [x], False, Vectors(8, 4, 8)):
    ...     print(run)
    0->0: 2x(2048,2048)  256
    1024->1024: 2x(2048,2048)  16 rows of 4 and 12 zeros
    """
    layouts = _layouts(dst, operands, keeps_zero)
    found = padded(layouts)
    if found is None:
        return None
    size = dst.dtype.bits // 8
    widths = [operand.dtype.bits // 8 for operand in (*operands, dst)]
    made = [_run(nest.scaled([size]), None, layouts) for nest in found.zeros]
    for nest in found.data:
        several = nest.apart() if nest.fill > LONGEST_FILL else (nest,)
        made += [_run(one.scaled([size] if one.zero else widths), found.tail, layouts) for one in several]
    return tuple(_shared(_cut(run, size, vectors), size) for run in made)


def unsuited(dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool) -> list[int]:
    """The numbers of the operands that are cut where the destination is not, or have other neighbours.

    >>> x, y = (MemoryDesc((2, 3, 4, 4), "f32", text) for text in ("nhwc", "nchw"))
    >>> unsuited(x, [x, y], True)
    [1]
    """
    bad = []
    for k, operand in enumerate(operands):
        both = _layouts(dst, [operand], keeps_zero)
        alone, found = padded(both[-1:]), padded(both)
        if alone is None:
            continue
        if found is None or _loops(found) != _loops(alone):
            bad.append(k)
            continue
        made = (_run(nest, found.tail, both) for nest in found.data)
        if any(run.valid > 1 and run.steps[0] not in (0, 1) for run in made):
            bad.append(k)
    return bad


def _layouts(dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool) -> list[Layout]:
    """What is visited, the destination last: their room, where padding may be computed like the rest."""
    found = [operand.layout for operand in (*operands, dst)]
    target = found[-1]
    if keeps_zero and all(s.terms == target.terms and s.padded == target.padded for s in found):
        return [layout.room() for layout in found]
    return found


def _loops(found: Padded) -> list[list[tuple[int, int]]]:
    """The loops of the destination."""
    return [[(loop.extent, loop.dst) for loop in nest.loops if loop.extent > 1] for nest in found.data]


def _run(nest: Nest, tail: Tail | None, layouts: Sequence[Layout]) -> Run:
    """The single row of a nest, and the loops around it in the order of the destination."""
    nest = coalesce(order(nest, lambda loop: abs(loop.dst)))
    row = nest.row
    loops = nest.without(row)
    if row is None or row.extent == 1:
        row = Loop(1, nest.widths)
    sources = nest.widths[:-1]
    whole = tuple(tail is None or _has_tail(tail, s, layouts[-1]) for s in layouts[: len(sources)])
    if not nest.fill:
        whole = (True,) * len(sources)
    around = replace(nest, loops=loops, fill=0)
    again = (False,) * len(sources)
    return Run(around, 1, row.extent, row.extent + nest.fill, row.steps[:-1], again, whole)


def _has_tail(tail: Tail, layout: Layout, target: Layout) -> bool:
    """Whether an operand has room for the padding that follows rows of the destination, in the same place."""
    axes = target.terms[tail.term]
    if axes not in layout.terms:
        return False
    t = layout.terms.index(axes)
    first, end = tail.piece.starts[0], target.term_size(tail.term) + tail.zeros
    return layout.padded[t] >= end and [
        loop.steps for piece in pieces([layout.ladders[t]], first, end) or () for loop in piece.loops
    ] == [(1, 1)]


def _cut(run: Run, size: int, vectors: Vectors) -> Run:
    """A run and its unit; short rows that follow each other become one run."""
    lanes, together = vectors.lanes, vectors.together
    plain = replace(run, unit=lanes * together)
    if run.around.zero or not run.around.loops or run.total == 1:
        return plain
    *outer, loop = run.around.loops
    pattern = lcm(run.total, lanes)
    fits = pattern <= vectors.pattern * lanes and (run.total % lanes == 0 or run.total <= LONGEST_PATTERN)
    if not fits or loop.dst != run.total * size:
        return plain
    for step, inner, whole in zip(loop.steps[:-1], run.steps, run.whole, strict=True):
        if step and not (whole and inner and step == run.total * inner):
            return plain
    return replace(
        run,
        around=replace(run.around, loops=tuple(outer)),
        turns=loop.extent,
        again=tuple(not step for step in loop.steps[:-1]),
        unit=pattern * max(1, together * lanes // pattern),
    )


def _shared(run: Run, size: int) -> Run:
    """What threads share: outer loops until there are shares enough, then parts of the run."""
    shared, count = 0, 1
    while shared < len(run.around.loops) and count < ENOUGH_SHARES:
        count *= run.around.loops[shared].extent
        shared += 1
    chunk = max(1, CHUNK_BYTES // (size * run.unit)) * run.unit
    long = count < ENOUGH_SHARES and run.elements >= 2 * chunk
    return replace(run, shared=shared, chunk=chunk if long else 0)
