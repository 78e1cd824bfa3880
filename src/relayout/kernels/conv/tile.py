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

**Instructions count, too.** A core takes up six instructions in a cycle (Zen 3), and half as many where a
neighbour is at work on the other thread of the same core. A turn of 12 products with 7 or 8 loads, two or
three requests for weights and three instructions of a loop is more than it gets then: it takes 1.5 times as
long as the multiplications. Four turns in one piece have one loop, and ask for each line of weights once;
they take 1.2 to 1.3. A barrier behind each turn keeps LLVM from loading first all that they need, for which
there are no registers.

Narrow numbers are multiplied two or four at a time (:mod:`.arithmetic`): an element of the source is then a
pair of s16, say, and so is each lane of the weights (:mod:`.dot`). Where the zero of the source is another
number than 0, sums begin with what that adds to them (:mod:`.offsets`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, product
from math import ceil, prod
from typing import Protocol

from relayout.ir.builder import L1, L2, Function
from relayout.ir.kernel import inner
from relayout.ir.types import I1, I32, I64, PTR, Value, constant
from relayout.ir.vectors import Piece, load_pieces, pieces_of
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.dot import Dot
from relayout.loops.nest import Loop
from relayout.records import dataclass
from relayout.targets.machine import LINE, Machine

__all__ = [
    "BLOCK",
    "COUNTS",
    "WORD",
    "Emit",
    "Tile",
    "lanes_of",
    "tile_function",
]

WORD = 4  # bytes of a sum
BLOCK = 4096  # products that are added up before they are added to a total
LEAST_BLOCK = 64  # products of the shortest block
COUNTS = ("plane", "row", "deep", "high")
"""What tiles are told where taps may fall outside: the first plane and row of taps that are inside, and how
many are."""
FIRST = {"deep": "plane", "high": "row"}
UNROLLED = 4  # turns that are written one behind the other where registers are half a line
BARRIER = 'call void asm sideeffect "", "~{memory}"()'
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
        How many bytes ahead weights are prefetched; 0: not at all.
    into : int
        The cache that they are prefetched into, as :meth:`.Builder.prefetch` has it.
    offset : bool
        Whether zeros of the source are another number than 0: then ``offsets`` is one of the further
        arguments.
    centred : bool
        Whether those of the weights are, too.
    rest : tuple of int, optional
        Of a sum over one loop: how many channels don't fill the last step, which comes behind it, and where
        their pixels and their weights lie.
    pitch : int
        If the next tile's pixels follow this one's and are to be prefetched: bytes from one to the next,
        all of which the innermost loop of the sum goes over. 0: nothing is asked for.
    later : int
        How many bytes behind a further pointer, ``later``, are prefetched into the second cache in each turn
        of a sum over one loop; 0: none.
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
    into: int = L1
    pitch: int = 0
    offset: bool = False
    centred: bool = False
    rest: tuple[int, int, int] | None = None
    later: int = 0

    @property
    def counted(self) -> dict[Loop, str]:
        """The loops over rows of taps that may be skipped, and the argument that says how many are not."""
        return {loop: count for loop, count in zip(self.loops, self.counters, strict=False) if count}


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


class Emit(Protocol):
    """What becomes of sums."""

    def __call__(self, b: Function, x: Value, pixel: int, number: int, /) -> Value:
        """What is stored of a vector of sums, of the numbers of its pixel and its vector."""

    def store(self, b: Function, sums: Sequence[tuple[Value, int, int]], /) -> None:
        """Store such vectors, behind ``dst``, each with the numbers of its pixel and its vector."""


def tile_function(name: str, tile: Tile, machine: Machine, extra: Sequence[str], epilogue: Emit) -> str:
    """The text of ``void name(ptr src, ptr weights, ptr dst, extra...)``.

    ``extra`` are the names of further pointers, ``epilogue`` writes what becomes of a sum.
    """
    return _Writer(name, tile, machine, extra).text(epilogue)


class _Writer:
    """Writes one tile."""

    def __init__(self, name: str, tile: Tile, machine: Machine, extra: Sequence[str]) -> None:
        self.tile, self.lanes = tile, lanes_of(machine)
        # of taps at once one turn has as many products as several of others, and LLVM would spill sums
        self.unrolled = UNROLLED if machine.is_avx2 and len(tile.taps) == 1 else 1
        self.behind = 0  # turns of the innermost loop that were written in front of this one, in one piece
        loops = tuple(loop for loop in tile.loops if loop.extent > 1)
        self.counts = tile.counted
        self.columns = loops[len(tile.counters)] if len(tile.outside) > 1 and len(tile.taps) == 1 else None
        self.outside = tile.outside  # for each tap of a turn, where the writer is now
        whole = tile.loops[: len(tile.counters) + 1] if tile.counters or tile.outside else ()
        self.loops = (
            in_blocks(loops, BLOCK // len(tile.taps), whole) if tile.arithmetic.sums == "f32" else ((), loops)
        )
        arguments = dict.fromkeys(("src", "weights", "dst", *extra), PTR)
        arguments |= dict.fromkeys(COUNTS if self.counts else (), I64)
        self.b = inner(name, arguments, machine)
        self.asks: Value | None = None  # where a turn prefetches, if loops carry it along
        self.dot = Dot(self.b, tile.arithmetic, tile.weights_type, self.lanes)
        self.sum, self.factor = self.dot.sum, self.dot.factor

    def text(self, epilogue: Emit) -> str:
        b, tile = self.b, self.tile
        starts = (self.offsets() if tile.offset else self.rows_outside()) * len(tile.src)
        starts = self.paired(starts) if tile.arithmetic.paired else starts
        if tile.centred:  # behind the sums, of each pixel that of its elements
            starts += [constant(self.sum, 0)] * len(tile.src)
        outer, inner = self.loops
        if outer:
            made = self.totals(outer, inner, starts)
        else:
            made = self.nest(inner, b["src"], self.first_row(), starts)
        if tile.rest is not None:
            count, forth, on = tile.rest
            made = self.by_element(b.gep(b["src"], forth), b.gep(b["weights"], on), list(made), count)
        made = self.centred(made) if tile.centred else made
        sums = iter(self.apart(made) if tile.arithmetic.paired else made)
        epilogue.store(b, [(next(sums), p, v) for p in range(len(tile.dst)) for v in range(len(tile.pieces))])
        return b.text()

    def first_row(self) -> Value:
        """The weights of the first row of taps that falls inside."""
        weights = self.b["weights"]
        for loop, count in self.counts.items():
            weights = self.b.gep(weights, self.b[FIRST[count]], loop.steps[1])
        return weights

    def rows_outside(self) -> list[Value]:
        """What rows of taps that fall outside give to each vector: zero times their weights.

        That is zero, unless one of the weights is no number or infinite: it is enough to know the largest.
        """
        b, tile, words = self.b, self.tile, self.sum.of(I32)
        if not self.counts or tile.arithmetic.sums != "f32":
            return [constant(self.sum, 0)] * len(tile.weights)
        loops = [loop for loop in tile.loops if loop not in self.counts]
        places = [b.alloca(words.bytes, words.bytes) for _ in tile.weights]
        for place in places:
            b.store(constant(words, 0), place, words.bytes)

        def largest(left: list[Loop], weights: Value, found: list[Value]) -> list[Value]:
            if left:
                loop = left[0]

                def turn(_: Value, given: list[Value]) -> list[Value]:
                    at, *before = given
                    return [b.gep(at, loop.steps[1]), *largest(left[1:], at, before)]

                return b.repeat(0, loop.extent, 1, [weights, *found], turn, True)[1:]
            found = list(found)
            for (_, place), (v, at) in product(tile.taps, enumerate(tile.weights)):
                bits = b.bits(self.dot.weights(b.gep(weights, place + at)))
                for one in (bits,) if tile.arithmetic.depth == 1 else (bits, b.shl(bits, 16)):
                    size = b.and_(one, 0x7FFFFFFF if tile.arithmetic.depth == 1 else 0x7FFF0000)
                    found[v] = b.intrinsic("umax", found[v], size)
            return found

        def rows(left: list[Loop], weights: Value, inside: Value) -> None:
            if left:
                loop = left[0]

                def turn(number: Value) -> None:
                    count = self.counts[loop]
                    both = b.and_(inside, b.icmp("ult", b.sub(number, b[FIRST[count]]), b[count]))
                    rows(left[1:], b.gep(weights, number, loop.steps[1]), both)

                b.loop(0, loop.extent, 1, turn)
                return

            def outside() -> None:
                before = [b.load(words, place, words.bytes) for place in places]
                for place, one in zip(places, largest(loops, weights, before), strict=True):
                    b.store(one, place, words.bytes)

            b.when(b.not_(inside), outside)

        inside = constant(I64, 1)
        for count in self.counts.values():
            inside = b.mul(inside, b[count])
        some = b.icmp("ne", inside, prod(loop.extent for loop in self.counts))
        b.when(some, lambda: rows(list(self.counts), b["weights"], constant(I1, 1)))
        reals = [b.load(self.sum, place, words.bytes) for place in places]
        return [b.fmul(real, 0.0) for real in reals]

    def offsets(self) -> list[Value]:
        """What sums begin with, of the rows of taps that are inside (:mod:`.offsets`)."""
        b, vectors, size = self.b, len(self.tile.weights), self.sum.bytes
        found = [constant(self.sum, 0)] * vectors

        def rows(left: list[Loop], at: Value, found: list[Value]) -> list[Value]:
            if not left:
                parts = [b.load(self.sum, b.gep(at, v * size), size) for v in range(vectors)]
                return [b.add(*pair) for pair in zip(found, parts, strict=True)] if self.counts else parts
            apart = prod(loop.extent for loop in left[1:]) * vectors * size
            count = self.counts[left[0]]

            def turn(_: Value, given: list[Value]) -> list[Value]:
                return [b.gep(given[0], apart), *rows(left[1:], given[0], given[1:])]

            first = b.gep(at, b[FIRST[count]], apart)
            return b.repeat(0, b[count], 1, [first, *found], turn, True)[1:]

        return rows(list(self.counts), b.gep(b["offsets"], (2 + vectors) * size), found)

    def centred(self, sums: list[Value]) -> list[Value]:
        """Less the zero points of the weights, times the sum of each pixel's elements less their zero."""
        b, tile, size = self.b, self.tile, self.sum.bytes
        pixels, vectors = len(tile.src), len(tile.weights)
        products = tile.arithmetic.depth * len(tile.taps)
        products *= prod(loop.extent for loop in tile.loops if loop not in self.counts)
        products += tile.arithmetic.depth * (tile.rest is not None)
        count = constant(I64, products)
        for name in self.counts.values():
            count = b.mul(count, b[name])
        every = b.splat(b.resize(count, 32), self.lanes)
        one = b.load(self.sum, b.gep(b["offsets"], size), size)
        zero = b.mul(one, every)
        points = [b.load(self.sum, b.gep(b["offsets"], (2 + v) * size), size) for v in range(vectors)]
        found = []
        for p in range(pixels):
            pixel = b.sub(zero, sums[pixels * vectors + p])
            for v, point in enumerate(points):
                found.append(b.add(sums[p * vectors + v], b.mul(pixel, point)))
        return found

    def turns(
        self,
        loop: Loop,
        src: Value,
        weights: Value,
        sums: list[Value],
        body: Callable[[Value, Value, list[Value]], list[Value]],
        several: int = 1,
        asked: tuple[Value, int] | None = None,
    ) -> list[Value]:
        """All turns of a loop: in pieces of several, which divide its extent; one by one if they differ.

        ``asked`` is where the first of them prefetches, and the bytes from there to where the next one does:
        ``body`` finds it in :attr:`asks`.
        """
        b, (forth, on) = self.b, loop.steps
        if loop == self.columns:
            for k, pixels in enumerate(self.tile.outside):
                self.outside = (pixels,)
                sums = body(b.gep(src, k * forth), b.gep(weights, k * on), sums)
            return sums

        def turn(_: Value, given: list[Value]) -> list[Value]:
            s, y, *inside = given
            asks = [] if asked is None else [inside.pop(0)]
            for k in range(several):
                self.behind = k
                if asked is not None:
                    self.asks = b.gep(asks[0], k * asked[1])
                inside = body(b.gep(s, k * forth), b.gep(y, k * on), inside)
                if several > 1:
                    b.line(BARRIER)
                    if self.tile.arithmetic.sums != "f32" and k + 1 < several:
                        inside = [b.opaque(one) for one in inside]
            self.behind, self.asks = 0, None
            if asked is not None:
                asks = [b.gep(asks[0], several * asked[1])]
            return [b.gep(s, several * forth), b.gep(y, several * on), *asks, *inside]

        count = b[self.counts[loop]] if loop in self.counts else loop.extent // several
        asks = [] if asked is None else [asked[0]]
        return b.repeat(0, count, 1, [src, weights, *asks, *sums], turn, True)[2 + len(asks) :]

    def innermost(
        self,
        loop: Loop,
        src: Value,
        weights: Value,
        sums: list[Value],
        body: Callable[[Value, Value, list[Value]], list[Value]],
        asked: tuple[Value, int] | None = None,
    ) -> list[Value]:
        """The turns of the innermost loop, several of them one behind the other."""
        differ = loop in self.counts or loop == self.columns
        several = next(n for n in range(self.unrolled, 0, -1) if loop.extent % n == 0)
        return self.turns(loop, src, weights, sums, body, 1 if differ else several, asked)

    def fresh(self, step: int) -> bool:
        """Whether something that goes on by so many bytes in a turn is in another line than a turn before."""
        return self.behind == 0 or self.behind * step // LINE > (self.behind - 1) * step // LINE

    def totals(self, outer: tuple[Loop, ...], inner: tuple[Loop, ...], starts: list[Value]) -> list[Value]:
        """Long sums in blocks, each summed from zero and then added to a total in memory."""
        b, size = self.b, self.sum.bytes
        places = [b.alloca(size, size) for _ in starts]
        for place, start in zip(places, starts, strict=True):
            b.store(start, place, size)

        def block(left: tuple[Loop, ...], src: Value, weights: Value) -> None:
            if left:

                def turn(s: Value, y: Value, _: list[Value]) -> list[Value]:
                    block(left[1:], s, y)
                    return []

                self.turns(left[0], src, weights, [], turn)
                return
            parts = self.nest(inner, src, weights, [constant(self.sum, 0)] * len(starts))
            for place, part in zip(places, parts, strict=True):
                b.store(b.fadd(b.load(self.sum, place, size), part), place, size)

        block(outer, b["src"], self.first_row())
        return [b.load(self.sum, place, size) for place in places]

    def nest(
        self,
        left: tuple[Loop, ...],
        src: Value,
        weights: Value,
        sums: list[Value],
        later: Value | None = None,
    ) -> list[Value]:
        """The loops of the sum, the outermost first; the sums after them.

        ``later`` is what is read after the pixels of the innermost loop; None: the next tile's.
        """
        if not left:
            tile = self.tile
            by = self.by_pattern if tile.spread else self.by_element
            return (self.by_pairs if tile.arithmetic.paired else by)(src, weights, list(sums))
        loop, ahead = left[0], len(self.tile.src) * self.tile.pitch
        apart = ahead and len(left) == 2 and loop.steps[0] >= ahead

        def body(s: Value, y: Value, inside: list[Value]) -> list[Value]:
            following = self.following(loop, src, s, ahead) if apart else None
            after = self.nest(left[1:], s, y, inside, following)
            if ahead and not left[1:] and self.fresh(loop.steps[0] * len(self.tile.src)):
                if self.asks is not None:
                    self.prefetch(self.asks)
                else:
                    self.prefetch_part(self.b.gep(src, ahead) if later is None else later, src, s)
            return after

        if left[1:]:
            return self.turns(loop, src, weights, sums, body)
        asked = None
        if self.b.opaque_loops and ahead:  # nobody else would find out that such a pointer can be kept
            start = self.b.gep(src, ahead) if later is None else later
            asked = start, loop.steps[0] * len(self.tile.src)
        elif self.b.opaque_loops and self.tile.later:
            asked = self.b["later"], self.tile.later
        return self.innermost(loop, src, weights, sums, body, asked)

    def following(self, loop: Loop, start: Value, here: Value, ahead: int) -> Value:
        """Which pixels are read after those here: of the next turn, or of the next tile."""
        b, forth = self.b, loop.steps[0]
        last = b.icmp("eq", b.ptrtoint(here), b.ptrtoint(b.gep(start, (loop.extent - 1) * forth)))
        return b.select(last, b.gep(start, ahead), b.gep(here, forth))

    def by_element(self, src: Value, weights: Value, sums: list[Value], count: int = 0) -> list[Value]:
        """One turn: an element of each pixel goes to all lanes, for all taps that it belongs to.

        Of neighbours that are multiplied at once there may be fewer, ``count``.
        """
        b, tile = self.b, self.tile
        streams = [[place + at for at in tile.weights] for _, place in tile.taps]
        vectors = [[self.dot.weights(b.gep(weights, at)) for at in tap] for tap in streams]
        self.prefetch_weights(weights, list(chain.from_iterable(streams)))
        if tile.later and self.fresh(tile.later):
            if self.asks is not None:
                b.prefetch(self.asks, L2)
            else:
                gone = b.sub(b.ptrtoint(weights), b.ptrtoint(b["weights"]))
                b.prefetch(b.gep(b["later"], b.udiv(gone, tile.loops[-1].steps[1] // tile.later)), L2)
        uses: dict[int, list[tuple[int, int]]] = {}
        for p, at in enumerate(tile.src):
            for tap, (behind, _) in enumerate(tile.taps):
                outside = self.outside and p in self.outside[tap]
                uses.setdefault(OUTSIDE if outside else at + behind, []).append((p, tap))
        for at in sorted(uses):
            if at == OUTSIDE:
                every = self.nothing()
            elif count:
                every = self.dot.rest(b.gep(src, at), count, self.nothing())
            else:
                every = self.dot.everywhere(b.gep(src, at))
            for p, tap in uses[at]:
                for v, y in enumerate(vectors[tap]):
                    number = p * len(tile.weights) + v
                    sums[number] = self.dot.add(every, y, sums[number])
                if tile.centred:
                    number = len(tile.src) * len(tile.weights) + p
                    sums[number] = self.dot.add(every, self.dot.ones, sums[number])
        return sums

    def by_pairs(self, src: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """One turn: two pixels at once by two channels, and by the next two of a vector.

        Of an odd number of pixels, the last one is both.
        """
        b, tile, count = self.b, self.tile, len(self.tile.weights)
        vectors = [self.dot.halves(b.gep(weights, at)) for at in tile.weights]
        self.prefetch_weights(weights, tile.weights)
        for p in range(0, len(tile.src), 2):
            both = tile.src[p], tile.src[min(p + 1, len(tile.src) - 1)]
            x = self.dot.two(*(b.gep(src, at) for at in both))
            for (v, several), half in product(enumerate(vectors), (0, 1)):
                number = (p + half) * count + v
                sums[number] = self.dot.add(x, several[half], sums[number])
        return sums

    def paired(self, starts: list[Value]) -> list[Value]:
        """What sums begin with, in the order of :meth:`by_pairs`.

        In place of the first pixel's sums are those of both pixels and the first two channels of a vector, in
        place of the other one's those of the last two.
        """
        count = len(self.tile.weights)
        firsts = starts[:count] * (2 * ceil(len(self.tile.src) / 2))
        picks = [0, 1, 0, 1], [2, 3, 2, 3]
        return [self.b.shuffle(x, picks[k // count % 2]) for k, x in enumerate(firsts)]

    def apart(self, sums: list[Value]) -> list[Value]:
        """The sums of pixels, of those of pairs."""
        count = len(self.tile.weights)
        found = []
        for k in range(len(sums)):
            first = k - k // count % 2 * count
            picks = [2, 3, 6, 7] if k // count % 2 else [0, 1, 4, 5]
            found.append(self.b.shuffle(sums[first], picks, sums[first + count]))
        return found

    def nothing(self) -> Value:
        """What counts as zero in the source, in all lanes."""
        if not self.tile.offset:
            return constant(self.factor, 0)
        return self.b.load(self.factor, self.b["offsets"], self.factor.bytes)

    def prefetch_weights(self, weights: Value, streams: Sequence[int]) -> None:
        """Ask for weights that are multiplied later; of several turns in one piece for each line once."""
        ahead, loops = self.tile.ahead, self.loops[1]
        if ahead and (not loops or self.fresh(loops[-1].steps[1])):
            for at in streams:
                self.b.prefetch(self.b.gep(weights, at + ahead), self.tile.into)

    def prefetch(self, pointer: Value) -> None:
        """Prefetch pixels to the L1 cache; to L2 only, it costs 5 to 10 % of all time (Xeon)."""
        self.b.prefetch(pointer, L1)

    def prefetch_part(self, later: Value, start: Value, here: Value) -> None:
        """A little of what is read later in each turn, so that the last one completes it."""
        b = self.b
        gone = b.mul(b.sub(b.ptrtoint(here), b.ptrtoint(start)), len(self.tile.src))
        self.prefetch(b.gep(later, gone))

    def by_pattern(self, src: Value, weights: Value, sums: list[Value]) -> list[Value]:
        """One turn: lanes belong to several groups, each of which has input channels of its own."""
        b, tile = self.b, self.tile
        straight = tuple(range(self.lanes))
        for v, at in enumerate(tile.weights):
            vectors = [self.dot.weights(b.gep(weights, at + step)) for step in tile.steps]
            for p, place in enumerate(tile.src):
                pieces = pieces_of(0, tile.widths[v], 0)
                channels = load_pieces(b, self.sum, b.gep(src, place + tile.shifts[v]), pieces)
                number = p * len(tile.weights) + v
                for picks, y in zip(tile.spread, vectors, strict=True):
                    x = channels if picks == straight else b.shuffle(channels, picks)
                    sums[number] = self.dot.add(x, y, sums[number])
        return sums
