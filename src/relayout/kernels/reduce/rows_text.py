"""How vectors go through rows, what is visited, and how lanes are combined: the text of :mod:`~.rows`.

A kernel says what becomes of a vector of elements (a :data:`Body`) and how accumulators are combined. Here
are the loops around it: over the tasks, each of which is a few rows or all those of a chunk of neighbours,
over the elements of a row, over its vectors, and the lanes that are left. What comes of padding and of the
last elements is never loaded. Lanes are neighbours within a row (:class:`_Along`) or of several rows
(:class:`_Packed`); a kernel need not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import lcm, prod
from typing import NamedTuple

from relayout.ir.builder import Function
from relayout.ir.kernel import digits, share, tasks
from relayout.ir.lanes import Lanes
from relayout.ir.types import FLOAT, Value, constant, poison, vector
from relayout.ir.vectors import Piece, halves, load_pieces, paired, pieces_of, store_pieces
from relayout.kernels.reduce.rows import Rows
from relayout.kernels.reduce.space import contiguous, neighbours
from relayout.loops.nest import Loop, Nest, split
from relayout.records import replace
from relayout.targets.machine import LINE, Machine

__all__ = ["Body", "Lines", "Values", "Visit", "lines"]

NEAR = 256  # bytes from a row to the next that are fetched together
FEW_TASKS = 2  # for threads to share; before that vectors of a turn are not many
MANY_TERMS = 16  # of an inner loop, from which on it has a sum of its own

Values = list[Value]


class Visit(NamedTuple):
    """A vector of elements."""

    at: tuple[Value, ...]
    """Its addresses in all operands, the source first and the destination last."""
    steps: tuple[int, ...]
    """Bytes from one lane to the next; 0 where all lanes meet the same element."""
    valid: int
    """How many lanes are elements."""
    slot: int
    """Which accumulator is theirs."""
    row: int
    """Of the rows of a task: which one they belong to."""


Body = Callable[[Visit, Values], Values]
Combine = Callable[[Values, Values], Values]
Stage = Callable[[Values, Value], None]


def lines(
    f: Function,
    made: Rows,
    pointers: Sequence[Value],
    lanes: int,
    unroll: int,
    together: int,
    wide: int,
    accumulators: int | None = None,
) -> Iterator[Lines]:
    """How vectors go through all blocks.

    Parameters
    ----------
    f : Function
        What is written.
    pointers : sequence of Value
        The addresses of all operands.
    lanes : int
        Elements of the longest vector.
    unroll : int
        Vectors of one turn, at most.
    together : int
        How many rows are interleaved, at most.
    wide : int
        The same where rows don't stay in the L1 cache: more neighbours come from far away together.
    accumulators : int, optional
        How many the vectors of a turn share, along a row; without it each has its own.
    """
    for block in made.blocks:
        found, width = made.packing(block, lanes), block.widths[0]
        if found is None:
            near = bool(block.loops) and abs(block.loops[-1].src) <= NEAR
            many = _fitting(f.machine, together, made.size * width, together if near else 1)
            for rest, others in _grouped(block, many):
                yield _Along(f, made, pointers, rest, others, lanes, unroll, accumulators or unroll)
        else:
            each, loop = found
            many = _fitting(f.machine, unroll, made.size // each * lanes * width, wide)
            tasks = block.size // loop.extent
            while many > 2 and tasks * loop.extent * each < FEW_TASKS * many * lanes:
                many //= 2
            period = lcm(each, lanes) // each
            most = max(1, many * lanes // each)
            for part, turns in _chunks(block, loop, most // period * period or most):
                yield _Packed(f, made, pointers, part, turns, each, lanes, unroll)


def _fitting(machine: Machine, most: int, size: int, otherwise: int) -> int:
    """How many at a time, each of so many bytes: as many as half of the L1 cache holds, if those are several.

    Otherwise their lines come from further away. Then neighbours are best fetched together, and others apart.
    """
    room = machine.l1 // 2 // size
    return min(most, room) if room > 1 else otherwise


def _chunks(block: Nest, loop: Loop, most: int) -> list[tuple[Nest, Loop]]:
    """A block around at most so many turns of a loop, and these: whole chunks in a loop, and the rest."""
    times, rest = divmod(loop.extent, most)
    others = block.without(loop)
    out = []
    if times:
        chunks = Loop(times, tuple(most * step for step in loop.steps))
        out.append((replace(block, loops=(*others, chunks)), loop.taking(most)))
    if rest:
        left = split(block, loop, times * most)[1]
        out.append((replace(left, loops=others), loop.taking(rest)))
    return out


def _grouped(block: Nest, many: int) -> list[tuple[Nest, Loop]]:
    """A block around groups of rows, and the rows of a group: groups of many, and the rest one by one."""
    one = Loop(1, tuple(0 for _ in block.widths))
    if many == 1 or not block.loops:
        return [(block, one)]
    *outer, inner = block.loops
    times, rest = divmod(inner.extent, many)
    out = []
    if times:
        groups = Loop(times, tuple(many * step for step in inner.steps))
        out.append((replace(block, loops=(*outer, groups)), inner.taking(many)))
    if rest:
        out.append((split(block, inner, times * many)[1], one))
    return out


class Lines:
    """The vectors of a block: what is visited, and how lanes are combined.

    Attributes
    ----------
    count : int
        Lanes of a vector.
    slots : int
        How many vectors have accumulators of their own.
    times : int
        Where those are few: how many turns of the innermost loop around them are taken at once.
    rows : int
        How many rows, or vectors with rows of their own, are computed together.
    terms : int
        How many terms each accumulator adds up.
    """

    count: int
    slots: int
    times: int
    rows: int
    terms: int
    segment: int

    along = False
    """Whether the lanes of a vector are of one row."""

    def __init__(self, f: Function, made: Rows, pointers: Sequence[Value], block: Nest) -> None:
        self.b, self.made, self.block, self.pointers = f, made, block, pointers

    def _accumulate(self, slots: int, unroll: int, terms: int) -> None:
        """Set the number of accumulators; so many are used in one turn, for so many vectors each."""
        self.times = max(1, unroll // slots)
        self.slots = slots * self.times
        self.terms = -(-terms // self.times)

    def tasks(self, task: Callable[[Values], None]) -> None:
        """Write all tasks: one for each turn of the loops around, which is given the addresses."""
        tasks(self.b, self._tasks, lambda number: task(self._begin(number)))

    def staged(self, most: int, stages: Sequence[tuple[Stage, Callable[[], None]]]) -> None:
        """Write all tasks in groups of ``most``: each stage is done for all of a group before the next one.

        A stage is called for each task, with its addresses and its number in the group, and then its second
        part once for the group. What a task waits for at the end of a stage, a sum for instance, is there
        when the next one begins: others were done in between.
        """
        b = self.b
        first, last = share(b, self._tasks)

        def group(begin: Value, given: Values) -> Values:
            end = b.smin(b.add(begin, most), last)
            for each, all_of_them in stages:

                def turn(number: Value, each: Stage = each) -> None:
                    each(self._begin(number), b.sub(number, begin))

                b.loop(begin, end, 1, turn)
                all_of_them()
            return given

        b.repeat(first, last, most, [], group)

    @property
    def _tasks(self) -> int:
        return prod(loop.extent for loop in self.block.loops)

    def _begin(self, number: Value) -> Values:
        """The addresses of a task."""
        b, block = self.b, self.block
        at = [b.gep(x, start) for x, start in zip(self.pointers, block.starts, strict=True)]
        for loop, index in zip(
            block.loops, digits(b, number, [loop.extent for loop in block.loops]), strict=True
        ):
            at = self._moved(at, index, loop.steps)
        return at

    def visit(
        self, at: Values, given: list[Values], body: Body, merge: Combine | None = None
    ) -> list[Values]:
        """Call the body for all elements; values are handed on, apart for each slot.

        With ``merge`` inner loops begin with what was given first, and are merged into the outer ones.
        """
        values, self._merge, self._first = _flat(given), merge, _flat(given)
        for piece in self.made.pieces:
            begin = [self.b.gep(x, start) for x, start in zip(at, piece.starts, strict=True)]
            values = self._nest(piece, self._around(piece), begin, values, body)
        return self._apart(values)

    def totals(
        self, at: Values, terms: int, body: Body, finish: Callable[[Values], Values] = list
    ) -> list[Values]:
        """Sums of so many terms of each element, in all lanes of each row, and what is made of them.

        The body adds the terms of a vector, in f32, to what it is given.
        """

        def together(one: Values, other: Values) -> Values:
            return [self.b.fadd(x, y) for x, y in zip(one, other, strict=True)]

        zero = constant(vector(self.count, FLOAT), 0.0)
        found = self.visit(at, [[zero] * terms for _ in range(self.slots)], body, together)
        return self.combined(found, together, finish)

    def table(self, lanes: Lanes, visit: Visit, operand: int, filler: float | None = None) -> Value:
        """A vector of a table, or its one element in all lanes."""
        if visit.steps[operand]:
            return lanes.load(visit.at[operand], self.count, visit.valid, filler)
        return self.b.splat(self.b.load(vector(1, FLOAT), visit.at[operand]), self.count)

    def revisit(self, at: Values, body: Callable[[Visit], None]) -> None:
        """Call the body for all elements once more, parts that were visited last first: caches have them."""
        self._merge, self._first = None, []

        def called(visit: Visit, given: Values) -> Values:
            body(visit)
            return given

        for piece in reversed(self.made.pieces):
            begin = [self.b.gep(x, start) for x, start in zip(at, piece.starts, strict=True)]
            loops = self._around(piece)
            if len(loops) < 2:
                self._nest(piece, loops, begin, [], called)
                continue

            def turn(i: Value, piece: Nest = piece, begin: Values = begin) -> None:
                first, *inner = self._around(piece)
                last = self.b.sub(first.extent - 1, i)
                self._nest(piece, inner, self._moved(begin, last, first.steps), [], called)

            self.b.loop(0, loops[0].extent, 1, turn)

    def first(self, at: Values, load: Callable[[Value, int, int], Value]) -> Values:
        """The first element of each row in all of its lanes; ``load`` takes an address, lanes, valid ones."""
        raise NotImplementedError

    def combined(
        self, found: list[Values], combine: Combine, finish: Callable[[Values], Values]
    ) -> list[Values]:
        """The values of all slots and lanes of each row as one, in all lanes, and what is made of them."""
        raise NotImplementedError

    def places(self, at: Values) -> Iterator[tuple[int, int, Values]]:
        """Each row's number, a lane in which its values are, and its addresses."""
        raise NotImplementedError

    def single(self, at: Values, operand: int) -> Values:
        """The element of each row of an operand of f32, in all of its lanes; operands as in :meth:`store`."""
        b, n = self.b, self.count
        found = [poison(vector(n, FLOAT)) for _ in range(self.rows)]
        for row, lane, places in self.places(at):
            one = b.load(FLOAT, places[-1 - operand])
            for k in range(row * n + lane, row * n + lane + self.segment):
                found[k // n] = b.insert(found[k // n], one, k % n)
        return found

    def store(self, at: Values, values: Values, operand: int) -> None:
        """One value of each row, to an operand that is counted from the destination backwards."""
        for row, lane, places in self.places(at):
            self.b.store(self.b.extract(values[row], lane), places[-1 - operand])

    # -- the loops of a row ---------------------------------------------------------------------------------

    def _nest(self, piece: Nest, loops: Sequence[Loop], at: Values, values: Values, body: Body) -> Values:
        if not loops:
            return self._run(piece, at, values, body, 0)
        loop, *inner = loops
        if not inner and self.times > 1:
            return self._several(piece, loop, at, values, body)
        apart = self._merge is not None and loop.extent > 1 and self._turns(piece, inner) >= MANY_TERMS

        def turn(i: Value, given: Values) -> Values:
            begin = self._moved(at, i, loop.steps)
            after = self._nest(piece, inner, begin, self._first if apart else given, body)
            return self._merged(given, after) if apart else after

        return self.b.repeat(0, loop.extent, 1, values, turn)

    def _several(self, piece: Nest, loop: Loop, at: Values, values: Values, body: Body) -> Values:
        """The innermost loop, several turns at once, with accumulators of their own."""

        def turns(begin: Values, given: Values, many: int) -> Values:
            for time in range(many):
                given = self._run(piece, list(self._ahead(begin, loop.steps, time)), given, body, time)
            return given

        def turn(i: Value, given: Values) -> Values:
            return turns(self._moved(at, i, loop.steps), given, self.times)

        whole = loop.extent // self.times * self.times
        values = self.b.repeat(0, whole, self.times, values, turn)
        return turns(list(self._ahead(at, loop.steps, whole)), values, loop.extent - whole)

    def _joined(self, found: list[Values], combine: Combine) -> list[Values]:
        """One of several equal parts that accumulators are, for all turns that were taken at once."""
        each = self.slots // self.times
        return [paired(found[k::each], combine) for k in range(each)]

    def _merged(self, old: Values, new: Values) -> Values:
        assert self._merge is not None
        pairs = zip(self._apart(old), self._apart(new), strict=True)
        return _flat([self._merge(one, other) for one, other in pairs])

    def _around(self, piece: Nest) -> tuple[Loop, ...]:
        """The loops around what is visited at a time."""
        return piece.without(contiguous(piece))

    def _turns(self, piece: Nest, loops: Sequence[Loop]) -> int:
        """Terms that the inner part of a piece adds to an accumulator."""
        raise NotImplementedError

    def _run(self, piece: Nest, at: Values, values: Values, body: Body, time: int) -> Values:
        """The vectors of one turn; ``time`` says which of those that are taken at once."""
        raise NotImplementedError

    def _moved(self, at: Sequence[Value], index: Value, steps: Sequence[int]) -> Values:
        return [self.b.gep(x, index, step) for x, step in zip(at, steps, strict=True)]

    def _ahead(self, at: Sequence[Value], steps: Sequence[int], count: int) -> tuple[Value, ...]:
        return tuple(self.b.gep(x, count * step) for x, step in zip(at, steps, strict=True))

    def _apart(self, values: Values) -> list[Values]:
        """Values of each slot."""
        each = len(values) // self.slots
        return [values[k * each : (k + 1) * each] for k in range(self.slots)]

    def _called(self, body: Body, visits: Sequence[Visit], values: Values) -> Values:
        """The body for some vectors."""
        apart = self._apart(values)
        for at in visits:
            apart[at.slot] = body(at, apart[at.slot])
        return _flat(apart)


def _flat(given: Sequence[Values]) -> Values:
    return [value for of in given for value in of]


class _Along(Lines):
    """Lanes along a row; several rows are interleaved, a vector belongs to one of them."""

    along = True

    def __init__(
        self,
        f: Function,
        made: Rows,
        pointers: Sequence[Value],
        block: Nest,
        others: Loop,
        lanes: int,
        unroll: int,
        accumulators: int,
    ) -> None:
        super().__init__(f, made, pointers, block)
        self.others, self.rows = others, others.extent
        self.count = self.segment = min(lanes, 1 << (made.longest - 1).bit_length())
        self.vectors = min(unroll, -(-made.longest // self.count))
        self.each = min(accumulators, self.vectors)  # accumulators of a row
        unroll = min(unroll, accumulators)
        self._accumulate(self.each * self.rows, unroll, -(-made.size // (self.count * self.each)))

    def _turns(self, piece: Nest, loops: Sequence[Loop]) -> int:
        return prod(loop.extent for loop in loops) * -(-neighbours(piece) // (self.count * self.vectors))

    def _run(self, piece: Nest, at: Values, values: Values, body: Body, time: int) -> Values:
        b, n, many, run = self.b, self.count, self.vectors, contiguous(piece)
        steps = run.steps if run else piece.widths
        whole, rest = divmod(run.extent if run else 1, n)
        turns = whole // many

        def visits(begin: Values, sizes: Sequence[int]) -> list[Visit]:
            return [
                Visit(
                    self._ahead(self._ahead(begin, self.others.steps, row), steps, k * n),
                    steps,
                    size,
                    (time * self.rows + row) * self.each + k % self.each,
                    row,
                )
                for row in range(self.rows)
                for k, size in enumerate(sizes)
            ]

        def turn(i: Value, given: Values) -> Values:
            return self._called(body, visits(self._moved(at, i, steps), [n] * many), given)

        values = b.repeat(0, turns * many * n, many * n, values, turn)
        left = [n] * (whole - turns * many) + [rest] * (rest > 0)
        return self._called(body, visits(list(self._ahead(at, steps, turns * many * n)), left), values)

    def first(self, at: Values, load: Callable[[Value, int, int], Value]) -> Values:
        begin = self.b.gep(at[0], self.made.pieces[0].src)
        places = (self.b.gep(begin, row * self.others.src) for row in range(self.rows))
        return [self.b.shuffle(load(place, self.count, 1), [0] * self.count) for place in places]

    def combined(
        self, found: list[Values], combine: Combine, finish: Callable[[Values], Values]
    ) -> list[Values]:
        b, out, found = self.b, [], self._joined(found, combine)
        for row in range(self.rows):
            values = paired(found[row * self.each : (row + 1) * self.each], combine)
            while values[0].type.count > 1:
                lower, upper = zip(*(halves(b, x) for x in values), strict=True)
                values = combine(list(lower), list(upper))
            out.append([b.splat(x, self.count) for x in finish(values)])
        return out

    def places(self, at: Values) -> Iterator[tuple[int, int, Values]]:
        for row in range(self.rows):
            yield row, 0, list(self._ahead(at, self.others.steps, row))


class _Packed(Lines):
    """Lanes along several rows, in segments: a task has as many of them as a chunk."""

    def __init__(
        self,
        f: Function,
        made: Rows,
        pointers: Sequence[Value],
        block: Nest,
        turns: Loop,
        segment: int,
        lanes: int,
        unroll: int,
    ) -> None:
        super().__init__(f, made, pointers, block)
        self.turns, self.segment = turns, segment
        self.valid = segment * turns.extent
        self.count = min(lanes, 1 << (self.valid - 1).bit_length())
        self.rows = -(-self.valid // self.count)
        self._accumulate(self.rows, unroll, made.size // segment)
        self.steps = tuple(step // segment for step in turns.steps)

    def _turns(self, piece: Nest, loops: Sequence[Loop]) -> int:
        return prod(loop.extent for loop in loops)

    def _visits(self, at: Sequence[Value], time: int) -> list[Visit]:
        n, slot = self.count, time * self.rows
        return [
            Visit(self._ahead(at, self.steps, k * n), self.steps, min(n, self.valid - k * n), slot + k, k)
            for k in range(self.rows)
        ]

    def _run(self, piece: Nest, at: Values, values: Values, body: Body, time: int) -> Values:
        return self._called(body, self._visits(at, time), values)

    @property
    def whole(self) -> bool:
        """Whether no segment is in two vectors."""
        return self.count % self.segment == 0

    def first(self, at: Values, load: Callable[[Value, int, int], Value]) -> Values:
        begin = [self.b.gep(x, start) for x, start in zip(at, self.made.pieces[0].starts, strict=True)]
        if not self.whole:
            loaded = [load(visit.at[0], self.count, visit.valid) for visit in self._visits(begin, 0)]
            return [x for [x] in self._in_memory([[x] for x in loaded], lambda one, _: one)]
        picks = [k // self.segment * self.segment for k in range(self.count)]
        return [
            self.b.shuffle(load(visit.at[0], self.count, visit.valid), picks)
            for visit in self._visits(begin, 0)
        ]

    def combined(
        self, found: list[Values], combine: Combine, finish: Callable[[Values], Values]
    ) -> list[Values]:
        b, out, found = self.b, [], self._joined(found, combine)
        if not self.whole:
            return [finish(values) for values in self._in_memory(found, combine)]
        for values in found:
            distance = 1
            while distance < self.segment:
                picks = [k ^ distance for k in range(self.count)]
                values = combine(values, [b.shuffle(x, picks) for x in values])
                distance *= 2
            out.append(finish(values))
        return out

    def _in_memory(self, found: list[Values], combine: Combine) -> list[Values]:
        """The lanes of each segment as one, in all of them, by way of the stack."""
        b, n = self.b, self.count
        element = found[0][0].type.element
        size = element.bits // 8
        rooms = [b.alloca(len(found) * n * size, LINE) for _ in found[0]]
        for k, values in enumerate(found):
            for x, room in zip(values, rooms, strict=True):
                b.store(x, b.gep(room, k * n * size))
        for first in range(0, self.valid, self.segment):
            lanes = range(first, first + self.segment)
            one = paired(
                [[b.load(vector(1, element), b.gep(room, lane * size)) for room in rooms] for lane in lanes],
                combine,
            )
            for x, room in zip(one, rooms, strict=True):
                pieces = pieces_of(0, self.segment, first * size, size)
                store_pieces(b, b.splat(x, 1 << (self.segment - 1).bit_length()), room, pieces)
        return [
            [b.load(vector(n, element), b.gep(room, k * n * size)) for room in rooms]
            for k in range(len(found))
        ]

    def places(self, at: Values) -> Iterator[tuple[int, int, Values]]:
        for k in range(self.turns.extent):
            row, lane = divmod(k * self.segment, self.count)
            yield row, lane, list(self._ahead(at, self.turns.steps, k))

    def store(self, at: Values, values: Values, operand: int) -> None:
        if not self._side_by_side(operand):
            super().store(at, values, operand)
            return
        for x, place, pieces in zip(values, *self._vectors(at, operand), strict=True):
            store_pieces(self.b, x, place, pieces)

    def single(self, at: Values, operand: int) -> Values:
        if not self._side_by_side(operand):
            return super().single(at, operand)
        kind = vector(self.count, FLOAT)
        return [
            load_pieces(self.b, kind, place, pieces)
            for place, pieces in zip(*self._vectors(at, operand), strict=True)
        ]

    def _side_by_side(self, operand: int) -> bool:
        """Whether an operand with an element for each row has them as lanes have rows."""
        return self.segment == 1 and self.turns.steps[-1 - operand] == FLOAT.bits // 8

    def _vectors(self, at: Values, operand: int) -> tuple[Values, list[tuple[Piece, ...]]]:
        """Where the elements of each vector are, and how many."""
        n, size = self.count, FLOAT.bits // 8
        places = [self.b.gep(at[-1 - operand], k * n * size) for k in range(self.rows)]
        return places, [pieces_of(0, min(n, self.valid - k * n), 0, size) for k in range(self.rows)]
