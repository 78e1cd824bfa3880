"""The building block: a register tile that adds up products.

Everything that computes much (convolution, inner product, matrix product) is a sum of products, and nearly
all of its time is spent in one loop::

                      weights: ``vectors`` of output channels, side by side in lanes
                      |
    for k:        w0, w1 = weights[k]
        pixel 0:  x = source[0, k] in all lanes     sum[0,0] += x * w0     sum[0,1] += x * w1
        pixel 1:  x = source[1, k] in all lanes     sum[1,0] += x * w0     sum[1,1] += x * w1
        ...

The sums never leave their registers, and each value that is loaded is used several times: a vector of weights
once for each pixel, an element of the source once for each vector. That is what lets the processor multiply
in every cycle.

The tile knows nothing of formats. Where a pixel lies in the source and in the destination is a list of
offsets; how the sum walks through source and weights is a list of loops with two strides, since ``k`` counts
rows and columns of a filter, blocks of input channels and the channels in them. So any source will do: an
element of it is loaded and spread over all lanes, wherever it lies. Only the weights must have neighbouring
output channels side by side. The destination is written in *pieces* of a vector, as long as its format keeps
output channels together: whole vectors for ``nhwc`` and ``nChw16c``, four lanes at a time for ``NCHW4``.

**Taps of a row share pixels.** What is tap 0 of one output is tap 1 of the one before it. If one turn does
all taps of a row, 14 pixels are loaded for 36 products, 12 pixels by 3 taps, and not for 12. Processors that
could load often enough are nevertheless faster with fewer loads, by 8 %.

Groups of fewer channels than lanes (depthwise and ResNeXt's convolutions) take one more shuffle: lanes of
several groups are computed at once, so what a lane is multiplied by differs from group to group. A vector of
neighbouring input channels is loaded, and spread by a pattern.

Integers are multiplied two at a time (:mod:`.arithmetic`): an element of the source is then a pair of s16,
and so is each lane of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from math import prod

from relayout.dtypes import dtype
from relayout.ir.conversions import converted
from relayout.ir.vectors import Piece, pieces_of
from relayout.ir.writer import Writer
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.loops.nest import Loop
from relayout.targets.machine import Machine

__all__ = [
    "COUNTS",
    "WORD",
    "Piece",
    "Tile",
    "lanes_of",
    "load_pieces",
    "pieces_of",
    "registers_of",
    "store_pieces",
    "tile_function",
]

WORD = 4  # bytes of a sum
BLOCK = 4096  # products that are added up before they are added to a total
LEAST_BLOCK = 64
COUNTS = ("%plane", "%row", "%deep", "%high")
"""What tiles are told where taps may fall outside: the first plane and row of taps that are inside, and how
many are."""
FIRST = {"%deep": "%plane", "%high": "%row"}
OUTSIDE = -(1 << 62)  # the place of what falls outside, before all others: there products are zero


@dataclass(frozen=True)
class Tile:
    """What one call of the tile computes.

    Attributes
    ----------
    arithmetic : Arithmetic
    weights_type : str
        The data type of the weights.
    src, dst : tuple of int
        Where each pixel lies, in bytes behind the first one.
    weights : tuple of int
        Where each vector of weights lies, in bytes behind the first one.
    pieces : tuple of tuple of Piece
        How each vector is stored.
    valid : int
        How many lanes of the last vector are channels; the rest is padding and becomes zero.
    loops : tuple of Loop
        The sum, outermost first.
    taps : tuple of (int, int)
        What one turn of the innermost loop adds up: for each tap where its pixels and where its weights lie,
        in bytes behind the first one's. Taps of a row share pixels, each of which is loaded once.
    counters : tuple of str
        Of the first loops, over planes and rows of taps: the argument (:data:`COUNTS`) that says how many of
        the turns fall inside; empty: all of them.
    outside : tuple of tuple of int
        For each column of taps the pixels whose element falls outside and counts as zero; empty: none. The
        columns are the taps of a turn, or the loop behind those that are counted.
    spread : tuple of tuple of int
        Empty: an element of the source goes to all lanes. Else patterns: step ``k`` of the innermost sum
        takes lanes ``spread[k]`` of the vector of input channels at the pixel.
    steps : tuple of int
        Of a spread: where the weights of each step lie, in bytes.
    widths : tuple of int
        Of a spread: how many input channels there are for each vector, and
    shifts : tuple of int
        where they begin, in bytes behind the pixel.
    ahead : int
        How many bytes ahead weights are asked for; 0: not at all.
    pitch : int
        If the next tile's pixels follow this one's and are to be asked for early: bytes from one to the next,
        all of which the innermost loop of the sum goes over. 0: nothing is asked for.
    """

    arithmetic: Arithmetic
    weights_type: str
    src: tuple[int, ...]
    dst: tuple[int, ...]
    weights: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    valid: int
    loops: tuple[Loop, ...]
    taps: tuple[tuple[int, int], ...] = ((0, 0),)
    counters: tuple[str, ...] = ()
    outside: tuple[tuple[int, ...], ...] = ()
    spread: tuple[tuple[int, ...], ...] = ()
    steps: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()
    ahead: int = 0
    pitch: int = 0


def in_blocks(
    loops: Sequence[Loop], most: int = BLOCK, whole: Sequence[Loop] = ()
) -> tuple[tuple[Loop, ...], tuple[Loop, ...]]:
    """A long sum as loops around blocks, and the loops of a block; a short one as no loops and itself.

    The rounding errors of a sum grow with its length, so that of 20 million ones in f32 is 2**24. In blocks
    they grow with the length of a block, and with the number of blocks. Loops that are to stay ``whole`` are
    not divided between the two.

    >>> in_blocks([Loop(25088, (4, 64))])
    ((Loop(extent=7, steps=(14336, 229376)),), (Loop(extent=3584, steps=(4, 64)),))
    """
    total, at = 1, len(loops)
    while at and total * loops[at - 1].extent <= most:
        at -= 1
        total *= loops[at].extent
    if not at:
        return (), tuple(loops)
    loop = loops[at - 1]
    some = max(n for n in range(1, most // total + 1) if loop.extent % n == 0)
    if loop in whole:
        some = 1
    if some * total < LEAST_BLOCK:
        return (), tuple(loops)
    inner = (loop.taking(some),) if some > 1 else ()
    return (*loops[: at - 1], loop.outside(some)), (*inner, *loops[at:])


def lanes_of(machine: Machine) -> int:
    """Sums that a vector register holds."""
    return machine.vector // WORD


def registers_of(machine: Machine) -> int:
    """How many vector registers a processor has."""
    return 32 if machine.vector == 64 or machine.triple.startswith("aarch64") else 16


Finish = Callable[[Writer, str, int, int], "tuple[str, int]"]
"""Writer, a vector of sums, the numbers of its pixel and its vector: what is stored, and its bits."""


def tile_function(name: str, tile: Tile, machine: Machine, extra: Sequence[str], finish: Finish) -> str:
    """The text of ``void name(ptr src, ptr weights, ptr dst, extra...)``.

    ``extra`` are the names of further pointers, ``finish`` says what becomes of a sum.
    """
    return _Writer(tile, machine).function(name, extra, finish)


class _Writer:
    """Writes one tile."""

    def __init__(self, tile: Tile, machine: Machine) -> None:
        self.tile, self.machine = tile, machine
        self.lanes = lanes_of(machine)
        self.kind = f"<{self.lanes} x {'float' if tile.arithmetic.sums == 'f32' else 'i32'}>"
        self.w = Writer(machine)
        loops = tuple(loop for loop in tile.loops if loop.extent > 1)
        self.counts = {loop: count for loop, count in zip(tile.loops, tile.counters, strict=False) if count}
        self.columns = loops[len(tile.counters)] if tile.outside and len(tile.taps) == 1 else None
        self.outside = tile.outside  # for each tap of a turn, where the writer is now
        whole = tile.loops[: len(tile.counters) + 1] if tile.counters or tile.outside else ()
        self.loops = (
            in_blocks(loops, BLOCK // len(tile.taps), whole) if tile.arithmetic.sums == "f32" else ((), loops)
        )

    def function(self, name: str, extra: Sequence[str], finish: Finish) -> str:
        w, tile = self.w, self.tile
        vectors = len(tile.weights)
        starts = self.rows_outside() * len(tile.src)
        outer, inner = self.loops
        if outer:
            sums = self.totals(outer, inner, starts)
        else:
            sums = self.nest(inner, "%src", self.first_row(), starts)
        for p, place in enumerate(tile.dst):
            for v, pieces in enumerate(tile.pieces):
                value, bits = finish(w, sums[p * vectors + v], p, v)
                store_pieces(w, value, w.at("%dst", place), pieces, self.lanes, bits)
        arguments = ", ".join(f"ptr {pointer}" for pointer in ("%src", "%weights", "%dst", *extra))
        if self.counts:
            arguments += "".join(f", i64 {count}" for count in COUNTS)
        return f"define internal void @{name}({arguments}) noinline {{\nentry:\n{w.text()}\n  ret void\n}}\n"

    def first_row(self) -> str:
        """The weights of the first row of taps that falls inside."""
        weights = "%weights"
        for loop, count in self.counts.items():
            weights = self.w.at(weights, self.w.times(FIRST[count], loop.steps[1]))
        return weights

    def rows_outside(self) -> list[str]:
        """What rows of taps that fall outside give to each vector: zero times their weights.

        That is zero, unless one of the weights is no number or infinite: it is enough to know the largest.
        """
        w, tile, words = self.w, self.tile, f"<{self.lanes} x i32>"
        if not self.counts:
            return ["zeroinitializer"] * len(tile.weights)
        loops = [loop for loop in tile.loops if loop not in self.counts]
        align = f"align {self.machine.vector}"
        places = [w.value(f"alloca {words}, {align}") for _ in tile.weights]
        for place in places:
            w.line(f"store {words} zeroinitializer, ptr {place}, {align}")

        def largest(left: list[Loop], weights: str, found: list[str]) -> list[str]:
            if left:
                carried = [("ptr", weights), *((words, one) for one in found)]
                loop = left[0]
                return w.carry(
                    loop.extent,
                    carried,
                    lambda given: [w.at(given[0], loop.steps[1]), *largest(left[1:], given[0], given[1:])],
                )[1:]
            found = list(found)
            for (_, place), (v, at) in product(tile.taps, enumerate(tile.weights)):
                value = self.load_weights(w.at(weights, place + at))
                value = w.value(f"bitcast {self.kind} {value} to {words}")
                size = w.value(f"and {words} {value}, {_words(self.lanes, 0x7FFFFFFF)}")
                found[v] = w.value(
                    f"call {words} @llvm.umax.v{self.lanes}i32({words} {found[v]}, {words} {size})"
                )
            return found

        def rows(left: list[Loop], weights: str, inside: str) -> None:
            if left:
                loop = left[0]

                def turn(number: str) -> None:
                    gone = w.value(f"sub i64 {number}, {FIRST[self.counts[loop]]}")
                    here = w.value(f"icmp ult i64 {gone}, {self.counts[loop]}")
                    both = w.value(f"and i1 {inside}, {here}")
                    rows(left[1:], w.at(weights, w.times(number, loop.steps[1])), both)

                w.loop(0, loop.extent, 1, turn)
                return

            def outside() -> None:
                before = [w.value(f"load {words}, ptr {place}, {align}") for place in places]
                for place, one in zip(places, largest(loops, weights, before), strict=True):
                    w.line(f"store {words} {one}, ptr {place}, {align}")

            w.when(w.value(f"xor i1 {inside}, true"), outside)

        inside = "1"
        for loop in self.counts:
            inside = w.value(f"mul i64 {inside}, {self.counts[loop]}")
        some = w.value(f"icmp ne i64 {inside}, {prod(loop.extent for loop in self.counts)}")
        w.when(some, lambda: rows(list(self.counts), "%weights", "true"))
        reals = [w.value(f"load {self.kind}, ptr {place}, {align}") for place in places]
        return [w.value(f"fmul {self.kind} {real}, zeroinitializer") for real in reals]

    def turns(
        self,
        loop: Loop,
        src: str,
        weights: str,
        sums: list[str],
        body: Callable[[str, str, list[str]], list[str]],
    ) -> list[str]:
        """All turns of a loop; one by one where they differ."""
        w = self.w
        if loop == self.columns:
            for k, pixels in enumerate(self.tile.outside):
                self.outside = (pixels,)
                sums = body(w.at(src, k * loop.steps[0]), w.at(weights, k * loop.steps[1]), sums)
            return sums

        def turn(given: list[str]) -> list[str]:
            s, y, *inside = given
            after = body(s, y, inside)
            return [*(w.at(at, step) for at, step in zip((s, y), loop.steps, strict=True)), *after]

        carried = [("ptr", src), ("ptr", weights), *((self.kind, value) for value in sums)]
        return w.carry(self.counts.get(loop, loop.extent), carried, turn)[2:]

    def totals(self, outer: tuple[Loop, ...], inner: tuple[Loop, ...], starts: list[str]) -> list[str]:
        """Long sums in blocks, each summed from zero and then added to a total in memory."""
        w, kind = self.w, self.kind
        places = [w.value(f"alloca {kind}, align {self.machine.vector}") for _ in starts]
        for place, start in zip(places, starts, strict=True):
            w.line(f"store {kind} {start}, ptr {place}, align {self.machine.vector}")

        def block(left: tuple[Loop, ...], src: str, weights: str) -> None:
            if left:

                def turn(s: str, y: str, _: list[str]) -> list[str]:
                    block(left[1:], s, y)
                    return []

                self.turns(left[0], src, weights, [], turn)
                return
            parts = self.nest(inner, src, weights, ["zeroinitializer"] * len(starts))
            for place, part in zip(places, parts, strict=True):
                before = w.value(f"load {kind}, ptr {place}, align {self.machine.vector}")
                after = w.value(f"fadd {kind} {before}, {part}")
                w.line(f"store {kind} {after}, ptr {place}, align {self.machine.vector}")

        block(outer, "%src", self.first_row())
        return [w.value(f"load {kind}, ptr {place}, align {self.machine.vector}") for place in places]

    def nest(self, left: tuple[Loop, ...], src: str, weights: str, sums: list[str]) -> list[str]:
        """The loops of the sum, the outermost first; the sums after them."""
        if not left:
            return (self.by_pattern if self.tile.spread else self.by_element)(src, weights, list(sums))
        asks = self.tile.pitch and not left[1:]

        def body(s: str, y: str, inside: list[str]) -> list[str]:
            after = self.nest(left[1:], s, y, inside)
            if asks:
                self.ask_for_next(src, s)
            return after

        return self.turns(left[0], src, weights, sums, body)

    def by_element(self, src: str, weights: str, sums: list[str]) -> list[str]:
        """One turn: an element of each pixel goes to all lanes, for all taps that it belongs to."""
        w, tile = self.w, self.tile
        streams = [[place + at for at in tile.weights] for _, place in tile.taps]
        vectors = [[self.load_weights(w.at(weights, at)) for at in tap] for tap in streams]
        for at in chain.from_iterable(streams) if tile.ahead else ():
            self.ask_for(w.at(weights, at + tile.ahead))
        uses: dict[int, list[tuple[int, int]]] = {}
        for p, at in enumerate(tile.src):
            for tap, (behind, _) in enumerate(tile.taps):
                outside = self.outside and p in self.outside[tap]
                uses.setdefault(OUTSIDE if outside else at + behind, []).append((p, tap))
        for at in sorted(uses):
            every = "zeroinitializer" if at == OUTSIDE else self.load_everywhere(w.at(src, at))
            for p, tap in uses[at]:
                for v, y in enumerate(vectors[tap]):
                    number = p * len(tile.weights) + v
                    sums[number] = self.add_product(every, y, sums[number])
        return sums

    def ask_for(self, pointer: str) -> None:
        """Have a line brought to the first cache; to the second one only, it costs 5 to 10 % of all time."""
        self.w.line(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 3, i32 1)")

    def ask_for_next(self, start: str, here: str) -> None:
        """A little of the next tile in each turn, so that all of it has been asked for after the last one."""
        w, pixels = self.w, len(self.tile.src)
        first, now = (w.value(f"ptrtoint ptr {pointer} to i64") for pointer in (start, here))
        gone = w.times(w.value(f"sub i64 {now}, {first}"), pixels)
        self.ask_for(w.at(w.at(start, pixels * self.tile.pitch), gone))

    def by_pattern(self, src: str, weights: str, sums: list[str]) -> list[str]:
        """One turn: lanes belong to several groups, each of which has input channels of its own."""
        w, tile = self.w, self.tile
        straight = tuple(range(self.lanes))
        for v, at in enumerate(tile.weights):
            vectors = [self.load_weights(w.at(weights, at + step)) for step in tile.steps]
            for p, place in enumerate(tile.src):
                pieces = pieces_of(0, tile.widths[v], 0)
                channels = load_pieces(w, w.at(src, place + tile.shifts[v]), pieces, self.lanes)
                number = p * len(tile.weights) + v
                for picks, y in zip(tile.spread, vectors, strict=True):
                    x = channels if picks == straight else w.shuffle(channels, "poison", self.kind, picks)
                    sums[number] = self.add_product(x, y, sums[number])
        return sums

    def load_everywhere(self, pointer: str) -> str:
        """An element of the source (or a pair) in all lanes."""
        w, element = self.w, self.kind.split()[-1][:-1]
        x = w.value(f"load {element}, ptr {pointer}, align {self.tile.arithmetic.element}")
        one = w.value(f"insertelement {self.kind} poison, {element} {x}, i32 0")
        every = w.shuffle(one, "poison", self.kind, [0] * self.lanes)
        if self.tile.arithmetic.depth == 1:
            return every
        return w.value(f"bitcast {self.kind} {every} to <{2 * self.lanes} x i16>")

    def load_weights(self, pointer: str) -> str:
        """A vector of weights, widened to what is multiplied."""
        w, kind = self.w, dtype(self.tile.weights_type)
        count = self.lanes * self.tile.arithmetic.depth
        raw = w.value(f"load <{count} x i{kind.bits}>, ptr {pointer}, align {kind.bits // 8}")
        wide = converted(w, self.machine, raw, count, kind, dtype(self.tile.arithmetic.operand))
        if self.tile.arithmetic.depth == 2:
            return wide
        return w.value(f"bitcast <{count} x i32> {wide} to {self.kind}")

    def add_product(self, x: str, y: str, total: str) -> str:
        """``total + x * y`` in each lane."""
        w, kind, lanes = self.w, self.kind, self.lanes
        if self.tile.arithmetic.depth == 1:
            if self.machine.fuses:
                return w.value(f"call {kind} @llvm.fma.v{lanes}f32({kind} {x}, {kind} {y}, {kind} {total})")
            return w.value(f"fadd {kind} {w.value(f'fmul {kind} {x}, {y}')}, {total}")
        pair = f"<{2 * lanes} x i16>"
        known = PAIR_PRODUCTS.get(lanes) if _is_x86(self.machine) else None
        if known is not None:
            both = w.value(f"call {kind} @{known}({pair} {x}, {pair} {y})")
            return w.value(f"add {kind} {total}, {both}")
        for half in (0, 1):
            picks = range(half, 2 * lanes, 2)
            factors = [
                w.value(f"sext <{lanes} x i16> {w.shuffle(value, 'poison', pair, picks)} to {kind}")
                for value in (x, y)
            ]
            total = w.value(f"add {kind} {total}, {w.value(f'mul {kind} {factors[0]}, {factors[1]}')}")
        return total


PAIR_PRODUCTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
"""Products of pairs, added up: what x86 processors have for it, by the number of sums."""


def _words(lanes: int, number: int) -> str:
    return f"<{', '.join([f'i32 {number}'] * lanes)}>"


def _is_x86(machine: Machine) -> bool:
    return machine.triple.startswith("x86_64")


# -- vectors in pieces --------------------------------------------------------------------------------------


def load_pieces(
    w: Writer, pointer: str, pieces: Sequence[Piece], lanes: int, element: str = "float", align: int = WORD
) -> str:
    """A vector from its pieces; lanes that are in none are zero, and nothing else is read."""
    kind = f"<{lanes} x {element}>"
    if [(piece.lane, piece.lanes) for piece in pieces] == [(0, lanes)]:
        return w.value(f"load {kind}, ptr {w.at(pointer, pieces[0].offset)}, align {align}")
    whole = "zeroinitializer"
    for piece in pieces:
        at = w.at(pointer, piece.offset)
        part = w.value(f"load <{piece.lanes} x {element}>, ptr {at}, align {align}")
        inside = range(piece.lane, piece.lane + piece.lanes)
        wide = [k - piece.lane if k in inside else -1 for k in range(lanes)]
        grown = w.shuffle(part, "poison", f"<{piece.lanes} x {element}>", wide)
        whole = w.shuffle(whole, grown, kind, [lanes + k if k in inside else k for k in range(lanes)])
    return whole


def store_pieces(w: Writer, value: str, pointer: str, pieces: Sequence[Piece], lanes: int, bits: int) -> None:
    """Store the lanes that are in a piece; elements are integers of so many bits."""
    kind = f"<{lanes} x i{bits}>"
    for piece in pieces:
        part, at = value, w.at(pointer, piece.offset)
        if piece.lanes != lanes:
            part = w.shuffle(value, "poison", kind, range(piece.lane, piece.lane + piece.lanes))
        w.line(f"store <{piece.lanes} x i{bits}> {part}, ptr {at}, align {bits // 8}")
