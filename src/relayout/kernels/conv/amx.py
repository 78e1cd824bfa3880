"""The tile of processors with AMX: pixels by output channels, in registers that are matrices.

What the other tile (:mod:`.tile`) does with vectors, this one does with :mod:`tiles <relayout.ir.amx>`, which
hold 16 times as much::

                        B0: k rows of 16 output channels    B1: the next 16
    A0: 16 pixels       C00 += A0 @ B0                      C01 += A0 @ B1
    A1: 16 pixels       C10 += A1 @ B0                      C11 += A1 @ B1

A row of A is a pixel's neighbouring channels, up to 64 bytes of them, and lies in memory as it does for the
other tile: in a source of ``nhwc``, or in packed rows. Pixels need only lie the same distance apart. A row of
B is a vector of weights as the other tile loads it. So both read the same weights in the same formats, and
those of 16 rows behind each other (``OIhw16i16o4i``) are the fastest: a tile is then one piece of 1 KiB.

* **Tails.** Pixels that are left over are computed together with the ones in front of them, a second time;
  only the new ones are stored. Where there are none in front, A and C are lower. Channels that are left over
  make A narrower and B lower. Tiles of these sizes are configured, and nothing is read that isn't there. The
  innermost loop of the sum is cut evenly, 18 steps into 9 and 9; where it can't be (17), the last steps have
  tiles of their own, if registers are left.
* **Configuration.** It belongs to a thread and to a kernel's call: the first tile that is computed sets it, a
  tile of other sizes changes it, and the end of the call releases it (:mod:`.amx_text`). To change it empties
  all tiles, and takes as long as some ten products.
* **Sums** go through memory: C is stored to the stack, from where the epilogue takes vector by vector. It
  does so behind the products of the *next* tile, which don't wait for it: three functions for each tile, and
  who calls which when is in :mod:`.amx_text`.

bf16 is added up in an order of its own: of a tile the even and the odd channels apart, then both, then what
there was. So the sums of plans with AMX differ in their last bits from those of others, and from those that
cut the sum in other pieces (:func:`order_of`). Sums of bytes are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, prod
from typing import NamedTuple

from relayout.ir.amx import ROW, ROWS, TILES, Shape, Tiles
from relayout.ir.builder import Function
from relayout.ir.types import FLOAT, I32, PTR, Value, vector
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.tile import Emit, Tile
from relayout.loops.nest import Loop
from relayout.targets.machine import Machine

__all__ = [
    *("EMULATED", "KINDS", "SUMS", "Cutting", "Registers"),
    *("cutting", "order_of", "products_of", "registers", "runs_of", "shapes_of", "split"),
    *("finishing_function", "products_function", "storing_function"),
]

GROUP = 4  # bytes of neighbouring channels that are multiplied at once
EMULATED = "amx"
"""The argument of a function whose tiles are emulated: where these are."""
LANES = ROW // GROUP
TOGETHER = 4  # pixels whose results are stored at once
MOST_SUMS = 4  # tiles of sums: two sources by two weights
SUMS = MOST_SUMS * ROWS * ROW
"""Bytes of the sums of a tile, at most."""


class Cutting(NamedTuple):
    """The innermost loop of a sum in pieces of at most 16 steps."""

    steps: int
    """Of a piece: the rows of B."""
    pieces: int
    rest: int
    """Steps behind the last piece."""


def cutting(extent: int) -> Cutting:
    """A loop in as few pieces as there can be, all of the same size if possible.

    >>> cutting(64), cutting(18), cutting(17), cutting(3)
    (Cutting(steps=16, pieces=4, rest=0), Cutting(steps=9, pieces=2, rest=0), \
Cutting(steps=16, pieces=1, rest=1), Cutting(steps=3, pieces=1, rest=0))
    """
    pieces = ceil(extent / ROWS)
    if extent % pieces == 0:
        return Cutting(extent // pieces, pieces, 0)
    return Cutting(ROWS, extent // ROWS, extent % ROWS)


def split(loops: Sequence[Loop], arithmetic: Arithmetic) -> tuple[tuple[Loop, ...], Loop]:
    """The outer loops of a sum, and the one over the rows of B: neighbouring channels, or a single step."""
    loops = tuple(loop for loop in loops if loop.extent > 1)
    if loops and loops[-1].src == arithmetic.step:
        return loops[:-1], loops[-1]
    return loops, Loop(1, (GROUP, ROW))


def order_of(loops: Sequence[Loop], arithmetic: Arithmetic) -> tuple[object, ...]:
    """In which order sums are added up."""
    outer, inner = split(loops, arithmetic)
    return arithmetic.dot, cutting(inner.extent), prod(loop.extent for loop in outer)


def products_of(loops: Sequence[Loop], arithmetic: Arithmetic) -> int:
    """How many products of tiles one sum takes, one after the other."""
    outer, inner = split(loops, arithmetic)
    cut = cutting(inner.extent)
    return prod(loop.extent for loop in outer) * (cut.pieces + (cut.rest > 0))


class Run(NamedTuple):
    """The rows of A: pixels that lie the same distance apart."""

    start: int
    """Where the first one lies."""
    stride: int
    pixels: tuple[int, ...]
    """The number of each; -1 for what lies between two rows of an image, and is computed for nothing."""

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.pixels)


def runs_of(places: Sequence[int]) -> list[Run]:
    """Pixels in runs of at most 16, of about the same length.

    Where rows of an image are short, and so close that fewer runs go over their ends, they do.

    >>> runs_of([0, 8, 16, 100, 108, 116])
    [Run(start=0, stride=8, pixels=(0, 1, 2)), Run(start=100, stride=8, pixels=(3, 4, 5))]
    >>> runs_of([0, 8, 16, 40, 48, 56])
    [Run(start=0, stride=8, pixels=(0, 1, 2, -1, -1, 3, 4, 5))]
    >>> [run.rows for run in runs_of(range(0, 28 * 64, 64))]
    [14, 14]
    """
    found: list[Run] = []
    first = 0
    while first < len(places):
        end = first + 1  # of this run
        stride = places[end] - places[first] if end < len(places) else ROW
        while end < len(places) and places[end] - places[end - 1] == stride:
            end += 1
        found += _evenly(places[first], stride, range(first, end))
        first = end
    stride = min((two - one for one, two in pairwise(places)), default=0)
    if stride <= 0 or any((place - places[0]) % stride for place in places):
        return found
    numbers = {(place - places[0]) // stride: pixel for pixel, place in enumerate(places)}
    across = _evenly(places[0], stride, [numbers.get(k, -1) for k in range(max(numbers) + 1)])
    return across if len(across) < len(found) else found


def _evenly(start: int, stride: int, pixels: Sequence[int]) -> list[Run]:
    """Neighbours in as few runs as there can be."""
    count = ceil(len(pixels) / ROWS)
    ends = [len(pixels) * k // count for k in range(count + 1)]
    return [Run(start + at * stride, stride, tuple(pixels[at:end])) for at, end in pairwise(ends)]


class Registers(NamedTuple):
    """Which tile is what: sums, run by run; sources and weights; those of the rest of the channels."""

    sums: tuple[tuple[int, ...], ...]
    sources: tuple[int, ...]
    weights: tuple[int, ...]
    last_sources: tuple[int, ...]
    last_weights: tuple[int, ...]


def registers(runs: int, vectors: int, rest: bool) -> Registers | None:
    """The tiles for so many runs of pixels by vectors of channels; None if there are too few.

    >>> registers(2, 2, False)
    Registers(sums=((0, 1), (2, 3)), sources=(4, 5), weights=(6, 7), last_sources=(), last_weights=())
    >>> registers(2, 2, True) is None, registers(3, 1, False).weights, registers(1, 2, True).last_weights
    (True, (6,), (6, 7))
    """
    counts = (runs * vectors, runs, vectors, runs * rest, vectors * rest)
    if sum(counts) > TILES:
        return None
    numbers = iter(range(TILES))
    sums, *others = (tuple(next(numbers) for _ in range(count)) for count in counts)
    return Registers(tuple(sums[k * vectors : (k + 1) * vectors] for k in range(runs)), *others)


def shapes_of(tile: Tile) -> tuple[Shape, ...]:
    """The sizes that :func:`products_function` wants tiles to have when it is called."""
    runs, names = runs_of(tile.src), _registers(tile)
    _, inner = split(tile.loops, tile.arithmetic)
    cut = cutting(inner.extent)
    shapes = [Shape(0, 0)] * TILES
    for k, run in enumerate(runs):
        for number in names.sums[k]:
            shapes[number] = Shape(run.rows, ROW)
        shapes[names.sources[k]] = Shape(run.rows, cut.steps * GROUP)
        if cut.rest:
            shapes[names.last_sources[k]] = Shape(run.rows, cut.rest * GROUP)
    for number in names.weights:
        shapes[number] = Shape(cut.steps, ROW)
    for number in names.last_weights:
        shapes[number] = Shape(cut.rest, ROW)
    return tuple(shapes)


def products_function(name: str, tile: Tile, machine: Machine, emulated: bool) -> str:
    """The text of ``void name(ptr src, ptr weights)``: the products, after which the tiles hold the sums.

    They must be configured. Where they are ``emulated``, their memory is one more argument.
    """
    b, tiles = _begun(name, ("src", "weights"), machine, emulated)
    runs = runs_of(tile.src)
    outer, inner = split(tile.loops, tile.arithmetic)
    cut = cutting(inner.extent)
    names = _registers(tile)
    for row in names.sums:
        for number in row:
            tiles.zero(number)

    def multiply(src: Value, weights: Value, sources: Sequence[int], others: Sequence[int]) -> None:
        """One piece: each source is loaded just before it is needed."""
        for number, at in zip(others, tile.weights, strict=True):
            tiles.load(number, b.gep(weights, at), inner.steps[1])
        for run, number, totals in zip(runs, sources, names.sums, strict=True):
            tiles.load(number, b.gep(src, run.start), run.stride)
            for total, other in zip(totals, others, strict=True):
                tiles.multiply(KINDS[tile.arithmetic.dot], total, number, other)

    def nest(left: Sequence[Loop], src: Value, weights: Value) -> None:
        if not left:
            return
        loop = left[0]

        def turn(_: Value, given: list[Value]) -> list[Value]:
            at, along = given
            if len(left) > 1:
                nest(left[1:], at, along)
            else:
                multiply(at, along, names.sources, names.weights)
            return [b.gep(at, loop.steps[0]), b.gep(along, loop.steps[1])]

        src, weights = b.repeat(0, loop.extent, 1, [src, weights], turn, True)
        if len(left) == 1 and cut.rest:
            multiply(src, weights, names.last_sources, names.last_weights)

    step = inner.steps
    each = Loop(cut.pieces, (cut.steps * step[0], cut.steps * step[1]))
    nest((*outer, each), b["src"], b["weights"])
    return b.text()


def storing_function(name: str, tile: Tile, machine: Machine, emulated: bool) -> str:
    """The text of ``void name(ptr room)``: sums leave the tiles, pixel by pixel, for :data:`SUMS` bytes."""
    b, tiles = _begun(name, ("room",), machine, emulated)
    count, first = len(tile.weights), 0
    for run, row in zip(runs_of(tile.src), _registers(tile).sums, strict=True):
        for v, number in enumerate(row):
            tiles.store(number, b.gep(b["room"], (first * count + v) * ROW), count * ROW)
        first += run.rows
    return b.text()


def finishing_function(name: str, tile: Tile, machine: Machine, extra: Sequence[str], epilogue: Emit) -> str:
    """The text of ``void name(ptr room, ptr dst, extra...)``: what becomes of the sums in ``room``.

    Of the pixels that were computed the last ones are stored, as many as there are places.
    """
    b, _ = _begun(name, ("room", "dst", *extra), machine, False)
    computed = [pixel for run in runs_of(tile.src) for pixel in run.pixels]
    count = len(tile.weights)
    sums = vector(LANES, FLOAT if tile.arithmetic.sums == "f32" else I32)
    starts = [
        b.load(sums, b.gep(b["offsets"], (2 + count + v) * ROW), ROW) for v in range(count * tile.offset)
    ]
    before = len(tile.src) - len(tile.dst)  # pixels that have been stored by another tile

    def loaded(p: int, v: int) -> Value:
        at = computed.index(before + p)
        x = b.load(sums, b.gep(b["room"], (at * count + v) * ROW), ROW)
        return b.add(x, starts[v]) if starts else x

    pixels = range(len(tile.dst))
    for some in (pixels[k : k + TOGETHER] for k in pixels[::TOGETHER]):
        epilogue.store(b, [(loaded(p, v), p, v) for p in some for v in range(len(tile.pieces))])
    return b.text()


def _begun(name: str, arguments: Sequence[str], machine: Machine, emulated: bool) -> tuple[Function, Tiles]:
    """A function, and what writes operations on tiles in it."""
    several = (*arguments, EMULATED) if emulated else arguments
    b = Function(name, dict.fromkeys(several, PTR), machine, "internal", "noinline")
    return b, Tiles(b, b[EMULATED] if emulated else None)


def _registers(tile: Tile) -> Registers:
    """Which tiles it takes; there are enough, or the plan would not have it."""
    _, inner = split(tile.loops, tile.arithmetic)
    found = registers(len(runs_of(tile.src)), len(tile.weights), cutting(inner.extent).rest > 0)
    assert found is not None
    return found


KINDS = {"tdpbf16ps": "bf16", "tdpbusd": "u8s8", "tdpbssd": "s8s8"}
"""What the tiles of an arithmetic hold."""
