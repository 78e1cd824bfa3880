"""Depthwise convolutions of bytes, four taps in an instruction: the plan.

The products of a depthwise convolution lie in memory where no instruction wants them. ``vpdpbusd`` adds four
products of *neighbouring bytes*, but neighbours are channels, which are not to be added; taps of a channel
lie a pixel apart. So bytes are brought together first. Of 16 channels, the four pixels of a row that four
taps fall on become one register, a *quad*, with one permutation of bytes::

    pixel 0:  a0 b0 c0 d0 ...        quad:  a0 a1 a2 a3 | b0 b1 b2 b3 | c0 c1 c2 c3 | ...
    pixel 1:  a1 b1 c1 d1 ...
    pixel 2:  a2 b2 c2 d2 ...        sum of a  +=  a0 w0 + a1 w1 + a2 w2 + a3 * 0
    pixel 3:  a3 b3 c3 d3 ...

A filter of three taps uses three of the four places, and its quad serves two neighbouring outputs: one has
the weights ``w0 w1 w2 0``, the other ``0 w0 w1 w2``. These *arrangements* of weights are prepared in scratch
(:class:`.depthwise.Depthwise`), and a filter of 3x3 takes three instructions for 16 outputs, and half as many
permutations, in place of nine multiplications in f32 and of the conversions of what they multiply. More than
four taps fall on several quads, which do not overlap then.

Sums are exact, in s32: a product has 17 bits at most, and nothing saturates in between. That is what sums in
f32 are, too (they stay below 2**24), so both plans give the same bits.

**Zero points.** With z for the zero point of the source, and 128 more where it is signed (``vpdpbusd`` reads
it as unsigned, so its bytes are shifted by 128 as they are loaded)::

    sum over taps of (x - z) w  =  sum of x w  -  z * sum of w

Columns of taps that fall outside read z as their pixel, so that they are 0 in the end; rows of taps that fall
outside are left out, and so are their weights in the last sum, of which there is one a row.

Of the rest :mod:`.depthwise` tells: spans, tasks, prefetching. Not taken here, but there: dilated columns,
gaps, several images in a vector, zero points of weights, processors without ``vpdpbusd`` and ``vpermi2b`` in
registers of 512 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from relayout.ir.vectors import pieces_of
from relayout.kernels.conv.arithmetic import FLOATS, QUADS, SHIFTED_QUADS
from relayout.kernels.conv.cost import Facts
from relayout.kernels.conv.depthwise import (
    MOST_KINDS,
    MOST_SPANS,
    MOST_TAPS,
    Depthwise,
    Kind,
    run_of,
    with_tasks,
)
from relayout.kernels.conv.direct import Place
from relayout.kernels.conv.geometry import Span, few_borders, rows_have_taps, spans
from relayout.kernels.conv.planning import Problem
from relayout.kernels.conv.sides import Side, places_of, side_of
from relayout.kernels.conv.weights import Weights, weights_of
from relayout.records import dataclass
from relayout.targets.machine import Machine

__all__ = ["FOUR", "LANES", "DepthwiseBytes", "Quad", "depthwise_bytes", "quads"]

FOUR = 4  # taps of an instruction
LANES = 16  # sums of a register
WIDTHS = 32, 16  # channels of a vector; with 64 the weights of a row of taps would not fit the registers
SUMS = 16  # registers of sums of a tile


class Quad(NamedTuple):
    """Four pixels of a row, and the outputs that they belong to."""

    at: int
    """The first pixel, counted from where the first tap of the first output falls."""
    uses: tuple[tuple[int, tuple[int, ...]], ...]
    """The outputs, and which tap each pixel is of each; -1: none."""


@lru_cache(maxsize=256)
def quads(taps: int, stride: int, outputs: int) -> tuple[Quad, ...]:
    """The quads of some neighbouring outputs, for filters of so many columns.

    Up to four taps, an output has one quad, and as many outputs share it as have all taps in it.

    >>> for quad in quads(3, 1, 3):
    ...     print(quad)
    Quad(at=0, uses=((0, (0, 1, 2, -1)), (1, (-1, 0, 1, 2))))
    Quad(at=2, uses=((2, (0, 1, 2, -1)),))
    >>> [quad.at for quad in quads(3, 2, 3)], [quad.at for quad in quads(5, 1, 4)]
    ([0, 2, 4], [0, 4])
    """
    step = max(FOUR + 1 - taps, 1) if taps <= FOUR else FOUR
    found: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for output in range(outputs):
        begin = output * stride
        for at in range(begin - begin % step, begin + taps, FOUR):
            places = (at + k - begin for k in range(FOUR))
            found.setdefault(at, []).append((output, tuple(k if 0 <= k < taps else -1 for k in places)))
    return tuple(Quad(at, tuple(found[at])) for at in sorted(found))


@dataclass(frozen=True)
class DepthwiseBytes(Depthwise):
    """How a depthwise convolution of bytes is done; tasks and loops are those of the other kind."""

    width: int = LANES
    """Channels of a vector, but perhaps of the last one."""
    apart: int = 0
    """Bytes from 16 channels to the next ones of the weights as they come."""

    manner = "four taps in an instruction"

    @property
    def units(self) -> int:
        """Registers of sums of a vector."""
        return self.width // LANES

    @property
    def offset(self) -> bool:
        """Whether zeros of the source are another number than 0 when they are multiplied."""
        return self.zeros.src or self.arithmetic.shift != 0

    @property
    def arrangements(self) -> tuple[tuple[int, ...], ...]:
        """In which orders weights are prepared."""
        pixels = max(span.pixels for span in self.spans)
        found = quads(self.geometry.kernel[2], self.geometry.strides[2], pixels)
        return tuple(dict.fromkeys(order for quad in found for _, order in quad.uses))

    @property
    def line(self) -> int:
        """Bytes of a register of each unit of a vector."""
        return self.units * self.machine.vector

    @property
    def steps(self) -> tuple[int, int, int]:
        """From plane to plane and from row to row of prepared weights; columns are arranged."""
        row = (len(self.arrangements) + self.offset) * self.line
        return self.geometry.kernel[1] * row, row, 0

    @property
    def prepares(self) -> bool:
        """Always."""
        return True

    @property
    def prepared(self) -> int:
        """Of all rows of taps the arrangements, and what sums begin with; then the same of all rows."""
        return self.geometry.kernel[0] * self.steps[0] + self.offset * self.line

    def share(self, span: Span) -> int:
        """What a vector asks for in a row: its share of the pixels under a tile."""
        return span.pixels * self.geometry.strides[2] * self.width

    def row(self, facts: Facts) -> float:
        """About how many cycles a row of a vector takes."""
        kernel, pixels = self.geometry.kernel, self.spans[0].pixels
        made = quads(kernel[2], self.geometry.strides[2], pixels)
        each = sum(SHUFFLES + len(quad.uses) for quad in made) / pixels
        return (
            self.geometry.target[2] * self.units * (kernel[0] * kernel[1] * each + EPILOGUE) / facts.products
        )

    @property
    def abreast(self) -> int:
        """Channels of a vector."""
        return self.width


SHUFFLES = 1  # instructions that make a register of a quad
EPILOGUE = 1  # what making bytes of sums takes more than storing f32


def depthwise_bytes(
    problem: Problem, machine: Machine, threads: int, facts: Facts
) -> Iterator[tuple[DepthwiseBytes, float]]:
    """Plans of a depthwise convolution of bytes, and about how many cycles each takes; longest runs first.

    There are none for other problems, for formats that keep fewer than 16 channels together, and for other
    processors.
    """
    src, weights, dst, geometry, arithmetic, grouped, *_ = problem
    if machine.vector != LANES * 4 or not (machine.has("avx512vnni") and machine.permutes(8)):
        return
    if src.dtype.name not in ("u8", "s8") or weights.dtype.name != "s8" or arithmetic != FLOATS:
        return
    if geometry.groups == 1 or not geometry.inputs == geometry.outputs == 1 or not geometry.flops:
        return
    if max(geometry.gaps) > 1 or (geometry.dilation[2] > 1 and geometry.kernel[2] > 1):
        return
    if problem.zeros.weights or geometry.kernel[2] > MOST_TAPS:
        return
    if not (few_borders(geometry) and rows_have_taps(geometry)):
        return
    found = weights_of(weights, geometry, arithmetic, LANES, grouped)
    source, target = side_of(src), side_of(dst)
    if found is None or source is None or target is None or not (source.is_plain and target.is_plain):
        return
    apart = {two - one for one, two in zip(found.vectors, found.vectors[1:], strict=False)}
    for width in WIDTHS:
        made = _vectors(geometry.groups, found, source, target, dst.dtype.bits // 8, width)
        if made is not None and (width == LANES or len(apart) <= 1):
            break
    else:
        return
    row = spans(geometry, SUMS * LANES // width)
    if len(row) > MOST_SPANS:
        return
    kinds, places = made
    plan = DepthwiseBytes(
        geometry,
        SHIFTED_QUADS if src.dtype.name == "s8" else QUADS,
        machine,
        source,
        target,
        src.dtype,
        found,
        kinds,
        places,
        together=1,
        images=1,
        spans=row,
        turns_in_rows=False,
        run=run_of([place.src for place in places], width),
        rows=1,
        tall=1,
        ahead=0,
        zeros=problem.zeros,
        width=width,
        apart=apart.pop() if len(apart) == 1 else 0,
    )
    yield from with_tasks(plan, src.nbytes + dst.nbytes, threads, facts)


def _vectors(
    total: int, weights: Weights, source: Side, target: Side, size: int, width: int
) -> tuple[tuple[Kind, ...], tuple[Place, ...]] | None:
    """All vectors of so many channels, results of ``size`` bytes; None where channels lie apart.

    The last vector has as many lanes as its channels need.
    """
    came, goes = (places_of(side.channels, side.room) for side in (source, target))
    kinds: list[Kind] = []
    places: list[Place] = []
    for first in range(0, total, width):
        valid = min(width, total - first)
        stored = min(width, target.room - first) if first + valid == total else valid
        lanes = width if max(valid, stored) > LANES else LANES
        if not (_dense(came[first : first + valid], 1) and _dense(goes[first : first + stored], size)):
            return None
        order = tuple(range(lanes))
        channels = tuple(lane if lane < valid else -1 for lane in order)
        loads, stores = pieces_of(0, valid, 0, 1), pieces_of(0, stored, 0, size)
        kind = Kind(loads, order, stores, channels, (0,) * lanes, order)
        if kind not in kinds:
            kinds.append(kind)
        vector = weights.vectors[first // LANES]
        places.append(Place(kinds.index(kind), came[first], vector, goes[first], first))
    return (tuple(kinds), tuple(places)) if len(kinds) <= MOST_KINDS else None


def _dense(places: tuple[int, ...], size: int) -> bool:
    """Whether channels of so many bytes lie side by side."""
    return places[-1] - places[0] == (len(places) - 1) * size and list(places) == sorted(places)
