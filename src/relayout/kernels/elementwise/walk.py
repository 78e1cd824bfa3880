"""How an operation that works element by element walks through its tensors: loops with a stride for each.

An elementwise operation has a destination and operands that are indexed alike. The destination says in which
order the elements come: its digits, cut where its sizes leave tails (:func:`relayout.reorder.problem.nests`),
are loops, and each operand has a step for every one of them. Three kinds of operands fall out of that, with
no case of their own::

    dst nhwc 2x3x4x4      loop       dst   a (nhwc)   b (nchw)   c (a value for each channel)
                          n           192     192        192       0
                          h, w         12      12          4       0        steps in bytes
                          c             4       4         64       4

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
*  What is left are walks of their own, that only write zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm, prod
from typing import NamedTuple

from relayout.layout.canonical import merge, trim
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Digit, Layout
from relayout.reorder.problem import BitLoop, Nest, nests

__all__ = ["Loop", "Run", "Vectors", "Walk", "unsuited", "walks"]

LONGEST_FILL = 64  # elements of padding that belong to a row; blocks are no longer
LONGEST_PATTERN = 64  # elements of a row that is loaded once and shuffled
ENOUGH = 64  # shares of work from which on it is cut no finer
CHUNK = 1 << 14  # bytes of a long run that are one share


class Vectors(NamedTuple):
    """How a kernel wants a run cut."""

    lanes: int
    """Elements of a vector."""
    together: int
    """Vectors of one turn."""
    pattern: int
    """The longest pattern of short rows, in vectors."""


class Loop(NamedTuple):
    """``extent`` turns, each so many bytes further in the destination and in each operand."""

    extent: int
    dst: int
    steps: tuple[int, ...]

    def continues(self, inner: Loop) -> bool:
        """Whether its next turn goes on where the inner loop has ended, everywhere."""
        n = inner.extent
        return self.dst == n * inner.dst and self.steps == tuple(n * step for step in inner.steps)


class Run(NamedTuple):
    """``turns`` rows, one behind the other in the destination.

    Each is ``valid`` elements and then zeros, ``total`` elements together.
    """

    turns: int
    valid: int
    total: int
    steps: tuple[int, ...]
    """Bytes from one element of a row to the next, for each operand: the size of one, or 0."""
    again: tuple[bool, ...]
    """Whether an operand starts anew with each row."""
    whole: tuple[bool, ...]
    """Whether an operand has the padding of a row, too, so that ``total`` elements may be read."""

    @property
    def elements(self) -> int:
        """All, zeros included."""
        return self.turns * self.total


@dataclass(frozen=True)
class Walk:
    """Loops, outermost first, around a run. All numbers are bytes, but for counts of elements."""

    dst: int
    """Where it begins."""
    starts: tuple[int, ...]
    """The same in each operand."""
    loops: tuple[Loop, ...]
    run: Run
    zero: bool = False
    """Nothing is computed; zeros are written."""
    shared: int = 0
    """So many of the outermost loops are shared among threads."""
    unit: int = 1
    """Elements of one turn of the run: some vectors, and whole rows where they are short."""
    chunk: int = 0
    """Elements of the run that are one share, some units; 0: the run is not cut."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Turns of all that is shared."""
        outer = tuple(loop.extent for loop in self.loops[: self.shared])
        return (*outer, -(-self.run.elements // self.chunk)) if self.chunk else outer

    def __str__(self) -> str:
        loops = "  ".join(f"{n}x({', '.join(map(str, (dst, *steps)))})" for n, dst, steps in self.loops)
        run = self.run
        zeros = f" and {run.total - run.valid} zeros" if run.total > run.valid else ""
        rows = f"{run.turns} rows of " if run.turns > 1 else ""
        return f"{'zeros ' if self.zero else ''}{loops}{'  ' if loops else ''}{rows}{run.valid}{zeros}"


def walks(
    dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool, vectors: Vectors
) -> tuple[Walk, ...] | None:
    """All walks of an operation, or None where there would be too many, or an operand has no steps.

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
    >>> for walk in walks(x, [x], True, Vectors(8, 4, 8)):
    ...     print(walk)
    1024
    >>> for walk in walks(x, [x], False, Vectors(8, 4, 8)):
    ...     print(walk)
    2x(2048, 2048)  256
    2x(2048, 2048)  16 rows of 4 and 12 zeros
    """
    found = _found(dst, operands, keeps_zero)
    if found is None:
        return None
    size = dst.dtype.bits // 8
    out = []
    for walk in found:
        if walk is None:
            return None
        out.append(_shared(_cut(walk, size, vectors), size))
    return tuple(out)


def unsuited(dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool) -> list[int]:
    """The numbers of the operands that are not neighbours where the destination is, or have no steps at all.

    >>> x, y = (MemoryDesc((2, 3, 4, 4), "f32", text) for text in ("nhwc", "nchw"))
    >>> unsuited(x, [x, y], True)
    [1]
    """
    bad = []
    for k, operand in enumerate(operands):
        size = operand.dtype.bits // 8
        found = _found(dst, [operand], keeps_zero)
        if found is not None and any(
            walk is None or (walk.run.valid > 1 and walk.run.steps[0] not in (0, size))
            for walk in found
            if walk is None or not walk.zero
        ):
            bad.append(k)
    return bad


# -- from nests to walks ------------------------------------------------------------------------------------


def _found(dst: MemoryDesc, operands: Sequence[MemoryDesc], keeps_zero: bool) -> list[Walk | None] | None:
    """Walks whose runs are single rows; None in place of one for which an operand has no steps."""
    target, sources = dst.layout, [operand.layout for operand in operands]
    if keeps_zero and all(s.terms == target.terms and s.padded == target.padded for s in sources):
        target, sources = target.room(), [source.room() for source in sources]
    desc = MemoryDesc(target.dims, dst.dtype, target)
    numbers = [(f"term {t}", term[0]) for t, term in enumerate(target.terms)]
    found = nests(desc, desc, numbers)
    if found is None:
        return None
    sizes = [operand.dtype.bits // 8 for operand in operands]
    out: list[Walk | None] = []
    for nest in found:
        several = nest.apart() if nest.fill > LONGEST_FILL else (nest,)
        out += [_zeros(one) if one.zero else _walk(one, target, sources, sizes) for one in several]
    return out


def _zeros(nest: Nest) -> Walk:
    """A walk that writes zeros."""
    loops = _fused([Loop(loop.extent, loop.dst // 8, ()) for loop in nest.loops if loop.extent > 1])
    row, rest = _row(loops, nest.write // 8, ())
    return Walk(nest.dst // 8, (), rest, _one_row(row, row.extent, ()), zero=True)


def _walk(nest: Nest, target: Layout, sources: Sequence[Layout], sizes: Sequence[int]) -> Walk | None:
    """A nest of the destination with the steps of all operands; None where one has none."""
    kept = [loop for loop in nest.loops if loop.extent > 1]
    starts, steps = [], []
    for source, size in zip(sources, sizes, strict=True):
        place = _placed(source, target.terms, nest.tables, kept)
        if place is None:
            return None
        starts.append(place[0] * size)
        steps.append([step * size for step in place[1]])
    loops = [Loop(loop.extent, loop.dst // 8, tuple(of[k] for of in steps)) for k, loop in enumerate(kept)]
    element = nest.write // 8
    if not nest.fill:
        row, rest = _row(_fused(loops), element, sizes)
        return Walk(nest.dst // 8, tuple(starts), rest, _one_row(row, row.extent, (True,) * len(sizes)))
    fill = _fill(nest, target)
    inner = next((loop for loop in loops if loop.dst == element), Loop(1, element, tuple(sizes)))
    rest = tuple(_fused([loop for loop in loops if loop is not inner]))
    whole = tuple(_in_sequence(source, fill.term, target.terms, fill.first, fill.total) for source in sources)
    return Walk(nest.dst // 8, tuple(starts), rest, _one_row(inner, fill.total, whole))


def _row(loops: list[Loop], element: int, sizes: Sequence[int]) -> tuple[Loop, tuple[Loop, ...]]:
    """The innermost loop if the destination has no gaps there, else a loop of one turn; and all others."""
    if loops and loops[-1].dst == element:
        return loops[-1], tuple(loops[:-1])
    return Loop(1, element, tuple(sizes)), tuple(loops)


def _one_row(loop: Loop, total: int, whole: tuple[bool, ...]) -> Run:
    return Run(1, loop.extent, total, loop.steps, (False,) * len(loop.steps), whole)


class _Fill(NamedTuple):
    """The number of a term with which a row begins, and the elements of the row, zeros included."""

    term: int
    first: int
    total: int


def _fill(nest: Nest, layout: Layout) -> _Fill:
    """The term whose padding follows the rows of a nest."""
    for t, room in enumerate(layout.padded):
        first = nest.tables[t]
        total = layout.term_size(t) - first + nest.fill
        if room > layout.term_size(t) and _in_sequence(layout, t, layout.terms, first, total):
            return _Fill(t, first, total)
    raise AssertionError(f"no term of {layout} has the zeros of {nest}")


def _in_sequence(layout: Layout, term: int, terms: Sequence[tuple[int, ...]], first: int, total: int) -> bool:
    """Whether a layout has room for so many numbers of a term, one behind the other."""
    ladder = _ladder(layout, terms[term])
    where = layout.terms.index(terms[term]) if terms[term] in layout.terms else None
    if ladder is None or where is None or layout.padded[where] < first + total:
        return False
    places = [_offset(ladder, first + k) for k in range(total)]
    return places == list(range(places[0], places[0] + total))


def _offset(ladder: Sequence[Digit], number: int) -> int:
    return sum(number // weight % extent * stride for weight, extent, stride in ladder)


def _ladder(layout: Layout, term: tuple[int, ...]) -> tuple[Digit, ...] | None:
    """The digits of a term of the destination; None where another layout has it in other terms."""
    if term in layout.terms:
        return layout.ladders[layout.terms.index(term)]
    for own, ladder in zip(layout.terms, layout.ladders, strict=True):
        if set(own) & set(term):
            size = prod(layout.dims[a] for a in own)
            if any(digit.stride for digit in trim(ladder, size)):
                return None
    return ()


def _placed(
    layout: Layout, terms: Sequence[tuple[int, ...]], numbers: Sequence[int], loops: Sequence[BitLoop]
) -> tuple[int, list[int]] | None:
    """Where a layout has the first element of a nest, and its step for each loop, in elements.

    ``numbers`` are those of the terms with which the nest begins; each loop's ``tables`` are their steps.
    None where the place is not a sum of steps: a loop runs over a border between two blocks.
    """
    start, steps = layout.offset0, [0] * len(loops)
    for t, term in enumerate(terms):
        ladder = _ladder(layout, term)
        if ladder is None:
            return None
        start += _offset(ladder, numbers[t])
        mine = [(k, loop.extent, loop.tables[t]) for k, loop in enumerate(loops) if loop.tables[t]]
        reached = numbers[t] + sum((extent - 1) * step for _, extent, step in mine)
        digits = merge(trim(ladder, reached + 1))
        for digit in digits:
            below = numbers[t] % digit.weight
            below += sum((extent - 1) * step for _, extent, step in mine if step < digit.weight)
            across = any(step % digit.weight for _, _, step in mine if step >= digit.weight)
            if digit.weight > 1 and (below >= digit.weight or across):
                return None
        for k, _, step in mine:
            digit = next((d for d in digits if d.weight <= step), Digit(1, 1, 0))
            steps[k] += step // digit.weight * digit.stride
    return start, steps


def _fused(loops: list[Loop]) -> list[Loop]:
    """Loops in the order of the destination, outermost first, those joined that continue each other."""
    out: list[Loop] = []
    for loop in sorted(loops, key=lambda loop: abs(loop.dst)):
        if out and loop.continues(out[-1]):
            out[-1] = Loop(out[-1].extent * loop.extent, out[-1].dst, out[-1].steps)
        else:
            out.append(loop)
    return out[::-1]


# -- runs ---------------------------------------------------------------------------------------------------


def _cut(walk: Walk, size: int, vectors: Vectors) -> Walk:
    """A run and its unit; short rows that follow each other become one run."""
    run, lanes, together = walk.run, vectors.lanes, vectors.together
    plain = replace(walk, unit=lanes * together)
    if walk.zero or not walk.loops or run.total == 1:
        return plain
    loop = walk.loops[-1]
    pattern = lcm(run.total, lanes)
    fits = pattern <= vectors.pattern * lanes and (run.total % lanes == 0 or run.total <= LONGEST_PATTERN)
    if not fits or loop.dst != run.total * size:
        return plain
    for step, inner, whole in zip(loop.steps, run.steps, run.whole, strict=True):
        if step and not (whole and inner and step == run.total * inner):
            return plain
    run = run._replace(turns=loop.extent, again=tuple(not step for step in loop.steps))
    unit = pattern * max(1, together * lanes // pattern)
    return replace(walk, loops=walk.loops[:-1], run=run, unit=unit)


def _shared(walk: Walk, size: int) -> Walk:
    """What threads share: outer loops until there are shares enough, then parts of the run."""
    shared, count = 0, 1
    while shared < len(walk.loops) and count < ENOUGH:
        count *= walk.loops[shared].extent
        shared += 1
    chunk = max(1, CHUNK // (size * walk.unit)) * walk.unit
    long = count < ENOUGH and walk.run.elements >= 2 * chunk
    return replace(walk, shared=shared, chunk=chunk if long else 0)
