"""Which kernel a nest gets, how large its tiles are, and which loop threads share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from relayout.kernels.copy.cost import fitting, transposing
from relayout.kernels.copy.plan import LANE_BITS, LINE_BITS, ROWS, Plan, Run, along
from relayout.kernels.copy.problem import Move, moves_bits, order, simplified
from relayout.kernels.copy.schedule import ESTIMATE, Schedule
from relayout.loops.nest import Loop, split
from relayout.targets.machine import LINE
from relayout.targets.processors import count

__all__ = ["feasible", "lowered", "plan", "without_overlap"]

UNEVEN = 1.05  # longest share over the mean share: above that another loop is shared
LONG_ROW_BITS = 1 << 18  # a row as long as that is shared by threads
STRIP_PIXELS = 1 << 10  # threads share pixels in multiples of so many
SHORT_ROW_BYTES = 256  # rows up to that length go in blocks (:func:`_short_rows`)
MOST_INTERLEAVED = 8  # turns of the longest loop that is interleaved or deinterleaved
BUFFER_BITS = 8 * (16 << 10)  # of a buffer from which whole lines leave: half of the smallest L1 cache
STEP_BUFFER_BITS = 8 * (8 << 10)  # of the buffer between the two steps of a ``converted`` plan
JOINED_BITS = 4 * LINE_BITS  # of the destination that short rows complete before their source is read on
TRANSPOSE_BUFFER_BITS = 8 * (4 << 10)  # as BUFFER_BITS, for a transpose, whose source needs L1, too
LONGEST_FILL_BYTES = 1024  # of a row and the zeros behind it that are written together
LONGEST_TABLE = 4096  # elements of a joined run whose offsets are written down one by one


def lowered(found: tuple[Move, ...], how: Schedule = ESTIMATE) -> tuple[Plan, ...]:
    """The kernels of nests: simplified, with zeros and leftovers as nests of their own where need be."""
    parts = (part for nest in found for part in _separable(nest))
    cut = (piece for part in parts for piece in without_overlap(simplified(part)))
    return tuple(plan(piece, how) for piece in cut)


def _separable(nest: Move) -> tuple[Move, ...]:
    """A nest whose zeros can't be written together with its data as two: the data, and the zeros."""
    if not nest.fill:
        return (nest,)
    made = plan(simplified(nest))
    # Tiles with zeros in them are written out one by one.
    short = made.total * nest.write <= 8 * LONGEST_FILL_BYTES
    return (nest,) if short and not nest.adds and made.kind in ("rows", "transpose") else nest.apart()


def plan(nest: Move, how: Schedule = ESTIMATE) -> Plan:
    """Choose the kernel of a nest."""
    inner = next((loop for loop in nest.loops if loop.src == nest.read and not nest.zero), None)
    outer = next((loop for loop in nest.loops if loop.dst == nest.write), None)
    kind = _kind(nest, inner, outer)
    if how.tile and kind in ("interleave", "deinterleave"):
        kind = "transpose"
    halves = nest.read == nest.write == 4 and moves_bits(nest)
    if kind == "transpose" and halves and inner is not None and not inner.extent % 2:
        return plan(_in_pairs(nest, inner), how)
    one = Loop(1, (0,) * len(nest.widths)).stepping(nest.read, nest.write)
    if kind == "elements":
        inner = outer = None
    elif kind == "rows":
        inner = outer
    columns, rows = Run((inner or one,)), Run((outer or one,))
    converted = _converted(nest, columns, rows) if kind == "transpose" else None
    if converted is not None:
        return converted
    left = list(nest.loops)
    if kind == "transpose":
        columns, rows = _joined(nest, columns, rows)
    group = rows.loops[0].extent if nest.fill and not rows.is_straight else 0
    if group and outer is not None:  # its zeros are in the group, too
        left.remove(outer)
    if kind == "rows":
        columns = rows = _repeated(nest, rows)
    for loop in {id(loop): loop for loop in (*columns.loops, *rows.loops)}.values():
        if loop in left:
            left.remove(loop)
        else:  # a part of a loop that was split: what is left of it stays around
            left = [_rest_of(one, loop) for one in left]
    around = tuple(left)
    shared = shared_of(around)
    prefetch = how.prefetch if kind == "transpose" else None
    made = Plan(nest, kind, columns, rows, around, shared, group=group, prefetch=prefetch)
    if kind == "rows":
        row = rows.extent * nest.write // 8
        if not nest.zero and not nest.fill and row <= SHORT_ROW_BYTES:
            made = _short_rows(made, row, how)
        if made.blocked is not None:
            return made
        long = rows.extent * nest.write >= LONG_ROW_BITS and (shared is None or shared.extent < 8)
        if long and not nest.fill:
            return replace(made, shared=rows.loops[-1], unit=1)
        return made if nest.zero or how.buffer is False else _buffered(made)
    if kind == "interleave":
        made = _read_on(made)
        made = made if made.packs or how.buffer is False else _buffered(made)
    if kind in ("interleave", "deinterleave"):
        return _strips(made)
    return _placed(made, how) if kind == "transpose" else made


def _strips(made: Plan) -> Plan:
    """Pixels of a few pictures: threads share the pixels, in whole lines."""
    pixels = made.rows.loop if made.kind == "deinterleave" else made.columns.loop
    many = made.shared is not None and made.shared.extent >= 8
    if many or made.inside >= 0 or pixels.extent * min(made.nest.read, made.nest.write) < LONG_ROW_BITS:
        return made
    return replace(made, shared=pixels, unit=STRIP_PIXELS)


def shared_of(around: Sequence[Loop]) -> Loop | None:
    """The loop that threads share: the outermost with turns enough for all, else that of most equal shares.

    All nests of a reorder are then cut alike, and no two threads write to one line.
    """
    enough = 4 * count()
    outer = next((loop for loop in around if loop.extent >= enough), None)
    return outer or min(around, key=lambda loop: _waiting(loop, 1), default=None)


def _waiting(loop: Loop | None, unit: int) -> float:
    """How much longer than with equal shares it takes to share a loop, cut at multiples of a unit."""
    threads = count()
    units = -(-loop.extent // unit) if loop is not None else 1
    return -(-units // threads) * threads / units


def _rest_of(loop: Loop, part: Loop) -> Loop:
    """What is left around of a loop whose inner ``part`` a run has taken."""
    if loop.steps != part.steps or loop.extent % part.extent:
        return loop
    return loop.outside(part.extent)


def _kind(nest: Move, inner: Loop | None, outer: Loop | None) -> str:
    if nest.zero:
        return "rows" if outer is not None else "elements"
    if inner is None and outer is None:
        return "elements"
    if inner is outer:
        return "rows"
    if inner is None or outer is None:
        longer = inner or outer
        return "transpose" if longer is not None and longer.extent >= 4 else "elements"
    if not nest.fill:
        line = LINE_BITS // min(nest.read, nest.write)
        if (
            inner.extent <= MOST_INTERLEAVED
            and outer.src == inner.extent * nest.read
            and outer.extent >= line
        ):
            return "deinterleave"
        planes = inner.dst == outer.extent * nest.write
        few = outer.extent <= MOST_INTERLEAVED or (outer.extent == LANE_BITS // 8 and _of_bytes(nest, outer))
        if planes and few and (inner.extent >= line or _packs(nest, inner, outer)):
            return "interleave"
    if max(outer.extent + nest.fill, inner.extent) < 2:
        return "elements"
    return "transpose"


def _of_bytes(nest: Move, outer: Loop) -> bool:
    """Whether bytes are moved, from rows that do not collide in the L1 cache."""
    early = nest.read < nest.write and any(outer.tables)  # converted behind loads, to something wider
    stay = 3 * outer.extent <= 2 * fitting(Run((outer,)))  # the destination has a share, too
    return min(nest.read, nest.write) == 8 and not early and not nest.adds and stay


def _packs(nest: Move, inner: Loop, outer: Loop) -> bool:
    """Whether short rows, two, four or eight of them, can be interleaved: they fill a lane."""
    narrow, few = min(nest.read, nest.write), outer.extent
    even = inner.extent & -inner.extent
    return narrow >= 8 and not few & (few - 1) and even * few * narrow >= LANE_BITS


def _read_on(made: Plan) -> Plan:
    """A plan for short rows with the loop that reads on in the source nearly innermost.

    A line of each row is used up at once, then those of the rows that follow in the destination, until that
    has some lines in one place. Only then the same rows are read on. Where a turn does not even complete a
    line, the turns that do come first.
    """
    nest, around, size = made.nest, list(made.around), made.footprint
    on = next((loop for loop in around if loop.src == made.columns.extent * nest.read), None)
    meets = next((loop for loop in around if loop.dst == size), None)
    if on is None or on is meets:
        return made
    whole = size % LINE_BITS == 0
    line = _part(on, LINE_BITS // on.src) if whole else None
    lines = _part(meets, (JOINED_BITS if whole else LINE_BITS) // size) if meets is not None else None
    if not whole and (lines is None or lines.extent * size % LINE_BITS):
        return made
    around = [_rest_of(loop, lines) if loop is meets and lines else loop for loop in around if loop is not on]
    rest = on if line is None else _rest_of(on, line)
    around = [loop for loop in (*around, rest, lines, line) if loop is not None and loop.extent > 1]
    return replace(made, around=tuple(around), shared=shared_of(around))


def _part(loop: Loop, most: int) -> Loop:
    """The innermost turns of a loop, as many of them as divide it."""
    return loop.taking(next(n for n in range(max(1, min(most, loop.extent)), 0, -1) if not loop.extent % n))


def _converted(nest: Move, columns: Run, rows: Run) -> Plan | None:
    """A plan to convert whole runs on their way into a buffer, where a transpose would convert short ones.

    None where that does not pay: f32 to bf16 is as fast either way.
    """
    bits = nest.write
    wide = nest.conversion is not None and nest.read >= 4 * bits >= 32
    if not wide or columns.extent >= LANE_BITS // 8 or nest.fill or nest.adds:
        return None
    line = _in_turn(nest, "dst", bits, LINE_BITS // bits)
    run = _in_turn(nest, "src", nest.read, STEP_BUFFER_BITS // bits, line)
    if not run:
        return None
    others = [loop for loop in line if all(loop.steps != part.steps for part in run)]
    into, out, size = [], [], bits
    for loop in (*run, *sorted(others, key=lambda loop: abs(loop.src))):
        into.append(loop.stepping(dst=size))
        out.append(Loop(loop.extent, (size, loop.dst)))
        size *= loop.extent
    first = replace(nest, starts=(0,) * len(nest.starts), loops=tuple(into))
    last = Move((0, 0), tuple(out), (bits, bits))
    steps = tuple(replace(plan(simplified(step)), shared=None) for step in (first, last))
    if steps[0].rows.extent < LANE_BITS // 8:
        return None
    around = nest.loops
    for part in (*run, *others):
        around = tuple(_rest_of(loop, part) for loop in around)
    around = tuple(loop for loop in around if loop.extent > 1)
    return Plan(nest, "converted", columns, rows, around, shared_of(around), steps=steps)


def _in_turn(nest: Move, side: str, bits: int, most: int, box: Sequence[Loop] = ()) -> list[Loop]:
    """Loops that follow each other on a side, or parts of them, of so many elements at most with a box.

    Those that are in the box already count once; there may be more of one here.
    """
    found: list[Loop] = []
    while True:
        step = bits * math.prod(loop.extent for loop in found)
        loop = next((loop for loop in nest.loops if getattr(loop, side) == step), None)
        if loop is None or any(x.steps == loop.steps for x in found):
            return found
        others = {x.steps: x.extent for x in (*box, *found) if x.steps != loop.steps}
        part = _part(loop, most // math.prod(others.values()))
        if part.extent > 1:
            found.append(part)
        if part.extent < loop.extent:
            return found


def _joined(nest: Move, columns: Run, rows: Run) -> tuple[Run, Run]:
    """Runs that are too short for a line go on into the loops that continue them.

    The nine taps of a filter are a run of nine elements, but those of all filters of an output follow each
    other: ``oihw`` to ``hwio`` turns over runs of ``i`` and ``hw`` together.
    """
    free = [loop for loop in nest.loops if loop not in columns.loops and loop not in rows.loops]
    joined = _continued(_with_zeros(nest, rows) if nest.fill else rows, "dst", nest.write, free)
    if not (nest.fill and joined.is_straight):
        rows = joined
    taken = {(loop.src, loop.dst) for loop in rows.loops}  # or a part of it
    free = [loop for loop in free if (loop.src, loop.dst) not in taken]
    return _continued(columns, "src", nest.read, free), rows


def _with_zeros(nest: Move, rows: Run) -> Run:
    """A short row and the zeros behind it as one row of a power of two; as it was where that can't be.

    The zeros are rows of a tile like others, loaded from nowhere. They are not converted, so that must have
    been done behind loads.
    """
    group = rows.extent + nest.fill
    converted = nest.conversion is not None and nest.read <= nest.write
    if group & (group - 1) or converted or nest.tables or min(nest.read, nest.write) < 8:
        return rows
    return Run((rows.loop.taking(group),))


def _continued(run: Run, side: str, bits: int, free: list[Loop]) -> Run:
    """A run and the loops, or parts of them, that follow it, until it has whole lines."""
    line = LINE_BITS // bits
    while run.extent % line and run.extent < 4 * line:
        step = run.extent * bits
        after = next((loop for loop in free if getattr(loop, side) == step), None)
        if after is None or any(after.tables) or any(t for loop in run.loops for t in loop.tables):
            break
        enough = next(
            (n for n in range(2, after.extent) if not after.extent % n and not n * run.extent % line), 0
        )
        taken = after.taking(enough) if enough else after
        if run.extent * taken.extent > LONGEST_TABLE:
            break
        run = Run((*run.loops, taken))
        if enough:
            break
        free = [loop for loop in free if loop is not after]
    return run


def _in_pairs(nest: Move, inner: Loop) -> Move:
    """4-bit elements moved two at a time: bytes of the source are transposed, then taken apart."""
    pairs = Loop(inner.extent // 2, (8, *(2 * step for step in inner.steps[1:])))
    loops = tuple(pairs if loop is inner else loop for loop in nest.loops)
    return replace(nest, widths=(8, *nest.widths[1:]), loops=loops, conversion=None, pair=inner.dst)


def _repeated(nest: Move, rows: Run) -> Run:
    """A row of few elements, each with operands of its own, goes on into the rows that follow it.

    Pixels of three channels with a scale for each channel are such rows.
    """
    if not any(along(nest, rows)) or any(nest.tables) or nest.fill:
        return rows
    inner = rows.loop
    whole = all(
        stride in (0, 1) and (not stride or table.entries == inner.extent)
        for table in (nest.conversion.tables if nest.conversion else ())
        if table.number is not None
        for stride in (inner.tables[table.number],)
    )
    after = next((loop for loop in nest.loops if _goes_on(inner, loop, nest) and not any(loop.tables)), None)
    odd = inner.extent // math.gcd(inner.extent, LINE)
    return Run((inner, after)) if whole and after is not None and odd <= MOST_INTERLEAVED else rows


def _goes_on(inner: Loop, loop: Loop, nest: Move) -> bool:
    return (loop.src, loop.dst) == (inner.extent * nest.read, inner.extent * nest.write)


def _buffered(made: Plan) -> Plan:
    """A plan whose innermost loops write a dense piece of the destination, which leaves in whole lines."""
    if made.footprint % LINE_BITS == 0 and made.kind == "rows":
        return made
    around = list(made.around)
    size, inside = made.footprint, 0
    while around[: len(around) - inside]:
        at = len(around) - inside - 1
        loop = around[at]
        if loop.dst != size:
            break
        most = BUFFER_BITS // size
        enough = next((n for n in range(min(most, loop.extent), 1, -1) if not loop.extent % n), 0)
        if not enough:
            break
        inside, size = inside + 1, size * enough
        if enough != loop.extent:
            around[at : at + 1] = [loop.outside(enough), loop.taking(enough)]
            break
    outer = around[: len(around) - inside]
    if (
        size % LINE_BITS
        or size > BUFFER_BITS
        or any(loop.dst % LINE_BITS for loop in outer)
        or made.nest.dst % LINE_BITS
    ):
        return made
    shared = shared_of(outer)
    if made.shared is not None and (shared is None or shared.extent < min(made.shared.extent, 8)):
        return made
    return replace(made, around=tuple(around), shared=shared, inside=inside)


def _bounced(made: Plan) -> int:
    """How many columns of a transpose pass through a buffer at a time: dense ones that are no lines."""
    nest, run = made.nest, made.columns
    row = made.total * nest.write
    if nest.adds or nest.pair or made.blocked is not None or nest.dst % LINE_BITS:
        return 0
    if any(loop.dst % LINE_BITS for loop in made.around):
        return 0
    if not run.is_straight:
        dense = sorted(run.places("dst")) == list(range(0, run.extent * row, row))
        size = run.extent * row
        return (
            run.extent if dense and size % LINE_BITS == 0 and size <= BUFFER_BITS and row % LINE_BITS else 0
        )
    if run.loop.dst != row or row % LINE_BITS == 0:
        return 0
    even = LINE_BITS // math.gcd(row, LINE_BITS)  # so many make whole lines of the destination
    part = LANE_BITS if made.rows.extent <= fitting(made.rows) else LINE_BITS  # or else they are used up
    strip = LINE_BITS // min(nest.read, made.mid) if made.kind == "staged" else LANE_BITS // made.mid
    some = math.lcm(even, max(1, part // nest.read), strip)
    most = min(run.extent, BUFFER_BITS // row) // some * some
    most = min(most, max(some, TRANSPOSE_BUFFER_BITS // row // some * some))
    if run.loop is not made.shared:
        return most
    return some if most and run.extent % some == 0 and made.unit % some == 0 else 0


def _placed(made: Plan, how: Schedule) -> Plan:
    """A transpose with the loop that threads share, staged where its source rows collide."""
    made = _turned(made, how)
    return made if how.buffer is False else replace(made, bounced=_bounced(made))


def _cheapest(made: Plan, how: Schedule) -> tuple[bool, int]:
    """Whether a transpose is staged, and how many of its rows are worked on together: what costs least.

    Where values become narrower, the stage is where whole vectors of them are converted.
    """
    nest, columns, rows = made.nest, made.columns, made.rows
    line = LINE_BITS // max(8, nest.write)
    narrows = nest.conversion is not None and not made.late and columns.extent >= 16
    can = not nest.fill and not nest.pair and rows.is_straight
    useful = columns.extent >= LINE_BITS // nest.read and rows.extent >= 16
    stages = (how.stage,) if how.stage is not None else (True,) if narrows else (False, True)[: 1 + useful]
    blocks = (how.rows,) if how.rows else tuple(line << k for k in range(4))
    ways = [(stage and can, block) for stage in stages for block in blocks]
    return min(ways, key=lambda way: transposing(nest, columns, rows, way[1], way[0]))


def _turned(made: Plan, how: Schedule) -> Plan:
    nest, columns, rows = made.nest, made.columns, made.rows
    far = rows.loops[0].src
    stage, block = _cheapest(made, how)
    made = replace(made, kind="staged" if stage else made.kind, block=block)
    column = LINE_BITS // min(nest.read, nest.write)
    if columns.is_straight and columns.extent >= 2 * column and _waiting(made.shared, 1) > UNEVEN:
        fitting = columns.extent % (16 * column) == 0
        unit = 4 * column if made.kind == "staged" and fitting else column
        if _waiting(columns.loop, unit) < _waiting(made.shared, 1):
            return replace(made, shared=columns.loop, unit=unit)
    smaller = any(abs(loop.src) < abs(far) for loop in made.around)
    whole = rows.is_straight and not nest.fill and rows.extent >= 2 * made.block
    if made.kind == "transpose" and whole and (smaller if how.sweep is None else how.sweep):
        # Whole source rows are used up, block by block.
        outer = _outside(made.around, (*columns.loops, *rows.loops))
        return replace(made, blocked=rows.loop, outer=outer)
    return made


def _short_rows(made: Plan, row: int, how: Schedule) -> Plan:
    """Go through short rows in blocks where they neighbour each other in the destination only.

    Lines are then still in the cache when their other parts are wanted. Rows of whole lines need
    no blocks: a line of the source is read on at once.
    """
    bits = made.rows.extent * made.nest.read
    blocked = next(
        (loop for loop in made.around if loop.dst == 8 * row and loop.src > bits and loop.extent > ROWS), None
    )
    if blocked is None or not any(loop.src < blocked.src for loop in made.around):
        return made
    if row % LINE == 0 and blocked.extent % max(1, JOINED_BITS // (8 * row)) == 0:
        return _read_on(made)
    around = tuple(loop for loop in made.around if loop is not blocked)
    usual = ROWS if blocked.extent > 2 * ROWS else blocked.extent
    block = min(how.rows or usual, blocked.extent)
    shared, unit = shared_of(around), 1
    if shared is None or shared.extent < max(8, blocked.extent // 64):
        shared, unit = blocked, block
    kind = "lines" if row in (8, 16, 32) and made.nest.conversion is None else "rows"
    outer = _outside(around, (*made.rows.loops, blocked))
    return replace(
        made, kind=kind, around=around, shared=shared, unit=unit, blocked=blocked, outer=outer, block=block
    )


def _outside(around: Sequence[Loop], inside: Sequence[Loop]) -> int:
    """How many loops around step over all that the ones behind and those ``inside`` touch, on both sides."""
    for k in range(len(around), 0, -1):
        loop = around[k - 1]
        rest = (*around[k:], *inside)
        spans = [sum(abs(getattr(x, side)) * (x.extent - 1) for x in rest) for side in ("src", "dst")]
        if abs(loop.src) > spans[0] and abs(loop.dst) > spans[1]:
            return k
    return 0


# -- what kernels ask of a nest -----------------------------------------------------------------------------


def feasible(nest: Move) -> bool:
    """Whether all addresses are whole bytes: 4-bit elements are taken in pairs."""
    if nest.pair and any(bits % 8 for bits in (nest.src, nest.pair, *(loop.src for loop in nest.loops))):
        return False
    if nest.read >= 8 and nest.write >= 8:
        return True
    made = plan(nest)
    if made.kind == "transpose" and min(made.columns.extent, made.total) < 2:
        return False  # single elements
    rows = made.kind == "rows"
    sides = ((nest.read, made.columns, "src", 0), (nest.write, made.rows, "dst", nest.fill))
    for bits, run, side, more in sides:
        if bits >= 8 or (side == "src" and nest.zero):
            continue
        strides = [getattr(loop, side) for loop in nest.loops if loop not in run.loops]
        contiguous = run.is_straight and getattr(run.loop, side) == bits
        odd = (run.extent + more) % 2 or (rows and run.extent % 2)
        if not contiguous or odd or getattr(nest, side) % 8 or any(stride % 8 for stride in strides):
            return False
    return made.kind in ("rows", "transpose", "staged")


def without_overlap(nest: Move) -> tuple[Move, ...]:
    """A nest that adds to the destination, cut so that tiles come out even.

    Tails are done by stepping back, and what is written twice must not be added twice.
    """
    if not nest.adds:
        return (nest,)
    made = plan(nest)
    runs = {
        "deinterleave": (made.rows,),
        "interleave": (made.columns,),
        "transpose": (made.columns, made.rows),
        "staged": (made.columns, made.rows),
    }
    for loop in (loop for run in runs.get(made.kind, ()) for loop in run.loops if loop in nest.loops):
        even = LINE_BITS // max(8, min(nest.read, nest.write))
        while even > loop.extent:
            even //= 2
        whole = loop.extent // even * even
        if whole != loop.extent:
            return tuple(part for half in split(nest, loop, whole) for part in without_overlap(order(half)))
    return (nest,)
