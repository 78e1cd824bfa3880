"""In which numbers a sum of products is computed, and by which instruction.

A tile multiplies *some neighbouring input channels at once*, as many as the instruction adds up (its depth)::

    source, weights     as the tile sees them     sums   instruction                   needs
    f32, f16, bf16      f32                       f32    fused multiply-add            -
    bf16, bf16          pairs of bf16             f32    vdpbf16ps                     avx512bf16
    u8, s8              fours of u8 and of s8     s32    vpdpbusd                      avx512vnni
    s8, s8              fours of u8 and of s8     s32    vpdpbusd, the source + 128    avx512vnni
    s8 or u8, s8        pairs of s16              s32    pmaddwd                       -
    s8 or u8, s8, few   f32                       f32    fused multiply-add            -
    u8 or s8, s8,       fours of u8 and of s8     s32    vpdpbusd, four taps           avx512vnni,
    depthwise                                                                          avx512vbmi

The first line that fits is taken, and for depthwise convolutions the last one (:mod:`.depthwise_bytes`). All
sums of integers are exact:

* ``vpdpbusd`` adds four products, each of 17 bits, to 32 bits that wrap around. (Not ``vpdpbusds``, which
  saturates, and not ``vpmaddubsw``, whose sum of two products saturates at 16 bits, unless signs have moved:
  :mod:`.signs`, which takes the line of pairs.) A sum that s32 holds is right, whatever it passed through.
* The instruction takes its first operand as unsigned. A source of s8 is therefore shifted by 128 as it is
  loaded, one XOR with 0x80, and 128 times the sum of the weights is taken off the result. That is what a zero
  point of 128 would ask for, so both are one number, :attr:`Arithmetic.shift`; see :mod:`.offsets`.
* The line of few is for sums that stay below 2**24, up to which f32 has every integer. Groups of few channels
  have no pairs. Others take pairs all the same where these are faster: in registers of 256 bits.

Groups whose channels don't come out even share no step: what is multiplied at once is of one group. Those
that f32 can't add up, or that have zero points, are packed with as many zeros behind each group as complete
its last step.

A sum of extremes can leave s32: of u8 after 65 793 products, of s8 after 131 071. So many have no arithmetic
here, and are left to the definition.

``vdpbf16ps`` adds the odd product, then the even one, and rounds each sum to nearest; it reads subnormal
numbers as zero, and returns zero for them. So a sum of K products differs from that of widened numbers by
K roundings of f32, as any order of adding up does, and by at most
2**-126 (sum of all magnitudes of source and weights + K): nothing, unless everything is that small.

Which channels lie next to each other decides whether a source is read where it lies: a depth of four takes
``nhwc`` and every format with a multiple of four channels side by side. Weights have the digit of the depth
innermost, behind the outputs of a vector: ``OhwI16o4i`` (:mod:`.weights`).
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.kernels.conv.geometry import Geometry, is_spread
from relayout.targets.machine import Machine

__all__ = [
    *("BF16_PAIRS", "FLOATS", "PAIRS", "QUADS", "SHIFTED_QUADS"),
    *("Arithmetic", "Zeros", "arithmetic_of", "dots_of", "without_dots"),
]

LARGEST = {"s8": 128, "u8": 255}  # the largest magnitude of a value
EXACT = 1 << 24  # up to which f32 counts


class Arithmetic(NamedTuple):
    """How many neighbouring input channels are multiplied at once, in which types, and by what."""

    operand: str
    """The type of source elements as the tile reads them; packed rows have it."""
    sums: str
    depth: int
    """Input channels of one step."""
    dot: str = ""
    """The instruction that adds up products of narrow numbers; empty: plain multiplications, of weights that
    are widened to ``operand`` first."""
    shift: int = 0
    """What is added to each element of the source as it is loaded."""

    @property
    def element(self) -> int:
        """Bytes of a source element."""
        return as_dtype(self.operand).bits // 8

    @property
    def tiles(self) -> bool:
        """Whether tiles are multiplied (:mod:`.amx`), and not vectors."""
        return self.dot.startswith("tdp")

    @property
    def paired(self) -> bool:
        """Whether an instruction multiplies two pixels by two output channels."""
        return self.dot.endswith("mmla")

    @property
    def matrices(self) -> bool:
        """Whether an instruction takes several pixels at once."""
        return self.tiles or self.paired

    @property
    def step(self) -> int:
        """Bytes of the neighbouring channels that are multiplied at once."""
        return self.element * self.depth


class Zeros(NamedTuple):
    """Which zero points come with the operands when a kernel runs, as s32.

    One of the source must be a number that the source can hold, if there is padding: what lies outside is it.
    """

    src: bool = False
    """Whether the source has one."""
    weights: int = 0
    """How many the weights have: none, one, or one for each output channel (any larger number)."""
    src_at: int = 0
    """Bytes in front of it; the same for the weights."""
    weights_at: int = 0
    period: int = 0
    """After how many channels those of the weights begin anew; 0: never."""

    def __bool__(self) -> bool:
        return self.src or self.weights > 0


NO_ZEROS = Zeros()
FLOATS = Arithmetic("f32", "f32", 1)
PAIRS = Arithmetic("s16", "s32", 2)
BF16_PAIRS = Arithmetic("bf16", "f32", 2, "vdpbf16ps")
QUADS = Arithmetic("u8", "s32", 4, "vpdpbusd")
SHIFTED_QUADS = Arithmetic("s8", "s32", 4, "vpdpbusd", 128)
SIGNED_QUADS = Arithmetic("s8", "s32", 4, "vpdpbssd")
BF16_TILES = Arithmetic("bf16", "f32", 2, "tdpbf16ps")
U8_TILES = Arithmetic("u8", "s32", 4, "tdpbusd")
S8_TILES = Arithmetic("s8", "s32", 4, "tdpbssd")
NEON_U8 = Arithmetic("u8", "s32", 4, "usdot")
NEON_S8 = Arithmetic("s8", "s32", 4, "sdot")
NEON_SHIFTED_U8 = Arithmetic("u8", "s32", 4, "sdot", -128)
NEON_BF16 = Arithmetic("bf16", "f32", 2, "bfdot")
NEON_U8_PAIRS = Arithmetic("u8", "s32", 8, "usmmla")
NEON_S8_PAIRS = Arithmetic("s8", "s32", 8, "smmla")
NEON_BF16_PAIRS = Arithmetic("bf16", "f32", 4, "bfmmla")


class Choice(NamedTuple):
    """What processors with some instructions multiply by."""

    feature: str
    """By LLVM's name."""
    vector: int
    """Bytes of the registers for which it is meant."""
    how: Arithmetic


CHOICES = {
    ("bf16", "bf16"): (
        Choice("avx512bf16", 64, BF16_PAIRS),
        Choice("bf16", 16, NEON_BF16_PAIRS),
        Choice("bf16", 16, NEON_BF16),
        Choice("amx-bf16", 64, BF16_TILES),
    ),
    ("u8", "s8"): (
        Choice("avx512vnni", 64, QUADS),
        Choice("avxvnni", 32, QUADS),
        Choice("i8mm", 16, NEON_U8_PAIRS),
        Choice("i8mm", 16, NEON_U8),
        Choice("dotprod", 16, NEON_SHIFTED_U8),
        Choice("amx-int8", 64, U8_TILES),
    ),
    ("s8", "s8"): (
        Choice("avx512vnni", 64, SHIFTED_QUADS),
        Choice("avxvnniint8", 32, SIGNED_QUADS),
        Choice("avxvnni", 32, SHIFTED_QUADS),
        Choice("i8mm", 16, NEON_S8_PAIRS),
        Choice("dotprod", 16, NEON_S8),
        Choice("amx-int8", 64, S8_TILES),
    ),
}
"""For the types of source and weights. The first that a processor has decides the format of weights that are
to be chosen; all that it has and that read a format are measured."""


def arithmetic_of(
    src: DType, weights: DType, geometry: Geometry, machine: Machine, zeros: Zeros = NO_ZEROS
) -> Arithmetic | None:
    """The arithmetic for a source and weights of these types, or None where there is none.

    >>> from relayout import dtype
    >>> from relayout.targets.machine import machine
    >>> g = Geometry(1, 1, 64, 64, (1, 9, 9), (1, 7, 7), (1, 3, 3), *[(1, 1, 1)] * 2, (0, 0, 0))
    >>> for cpu in ("x86-64-v3", "znver4"):
    ...     for name in ("u8", "bf16"):
    ...         made = arithmetic_of(dtype(name), dtype("s8" if name == "u8" else name), g, machine(cpu))
    ...         print(cpu, made.operand, made.sums, made.depth, made.dot or "-")
    x86-64-v3 s16 s32 2 -
    x86-64-v3 f32 f32 1 -
    znver4 u8 s32 4 vpdpbusd
    znver4 bf16 f32 2 vdpbf16ps
    """
    names = src.name, weights.name
    if all(name in ("f32", "f16", "bf16") for name in names):
        return next(iter(dots_of(src, weights, geometry, machine)), FLOATS)
    if src.name not in LARGEST or weights.name != "s8":
        return None
    largest = _largest(src, geometry, zeros)
    if largest >= 1 << 31:
        return None
    if dots := dots_of(src, weights, geometry, machine, zeros):
        return dots[0]
    found = _plain(largest, geometry, machine, zeros)
    if found is not None:
        return found
    alone = geometry._replace(groups=1)  # each group is completed by itself
    several = (how for how in dots_of(src, weights, alone, machine, zeros) if not how.matrices)
    return next(several, PAIRS)


def _plain(largest: int, geometry: Geometry, machine: Machine, zeros: Zeros) -> Arithmetic | None:
    """What multiplies bytes, whose sums have such a magnitude, without instructions that are made for it."""
    spread = is_spread(geometry, machine.vector // 4)
    fits = largest < EXACT and (spread or not zeros)  # sums in f32
    paired = geometry.groups == 1 or geometry.inputs % 2 == 0
    if fits and (spread or not paired or geometry.inputs == 1 or not _pairs_gain(machine)):
        return FLOATS
    return PAIRS if paired else None


def _pairs_gain(machine: Machine) -> bool:
    """Whether products of pairs, and their sums, take less time than as many in f32.

    A processor of 256 bits adds words on more ports than it multiplies floats on: four and two (Zen 3), or
    three and two (Haswell to Skylake), so that a product of two pairs of 16 bits and its sum take no longer
    than one fused multiply-add, and do twice as much. In 512 bits all ports do all three, which is a draw.
    """
    return machine.is_avx2


def without_dots(
    how: Arithmetic, src: DType, geometry: Geometry, machine: Machine, zeros: Zeros = NO_ZEROS
) -> list[Arithmetic]:
    """What else does the same where there is no plan with an instruction for narrow numbers.

    >>> from relayout import dtype
    >>> from relayout.targets.machine import machine
    >>> matrices = Geometry(8, 12, 197, 64, *[(1, 1, 1)] * 6)
    >>> without_dots(BF16_PAIRS, dtype("bf16"), matrices, machine("x86-64-v4")) == [FLOATS]
    True
    """
    if not how.dot:
        return []
    if how.sums == "f32":
        return [FLOATS]
    found = _plain(_largest(src, geometry, zeros), geometry, machine, zeros)
    return [] if found is None else [found]


def _largest(src: DType, geometry: Geometry, zeros: Zeros) -> int:
    """The largest magnitude of a sum of bytes."""
    one = 255 if zeros.src else LARGEST[src.name]
    return geometry.inputs * geometry.taps * one * (255 if zeros.weights else LARGEST["s8"])


def dots_of(
    src: DType, weights: DType, geometry: Geometry, machine: Machine, zeros: Zeros = NO_ZEROS
) -> list[Arithmetic]:
    """Every arithmetic of a processor's instructions for sums of narrow products.

    Those that take several pixels at once know no zero points of weights.

    >>> from relayout import dtype
    >>> from relayout.targets.machine import machine
    >>> one = Geometry(1, 1, 64, 64, *[(1, 1, 1)] * 6)
    >>> for cpu, triple in (("sapphirerapids", "x86_64-linux"), ("neoverse-v1", "aarch64-linux")):
    ...     for names in ("u8", "s8"), ("s8", "s8"), ("bf16", "bf16"):
    ...         found = dots_of(*map(dtype, names), one, machine(cpu, triple))
    ...         print(cpu, *names, "by", *(how.dot for how in found))
    sapphirerapids u8 s8 by vpdpbusd tdpbusd
    sapphirerapids s8 s8 by vpdpbusd tdpbssd
    sapphirerapids bf16 bf16 by vdpbf16ps tdpbf16ps
    neoverse-v1 u8 s8 by usmmla usdot
    neoverse-v1 s8 s8 by smmla sdot
    neoverse-v1 bf16 bf16 by bfmmla bfdot
    """
    found: dict[tuple[int, bool], Arithmetic] = {}  # by what decides about formats and code
    for feature, size, how in CHOICES.get((src.name, weights.name), ()):
        knows = not (zeros.weights and how.matrices)
        if machine.vector == size and machine.has(feature) and _divides(geometry, how, machine) and knows:
            found.setdefault((how.depth, how.tiles), how)
    return list(found.values())


def _divides(geometry: Geometry, how: Arithmetic, machine: Machine) -> bool:
    """Whether channels that are multiplied at once are of one group.

    Where they don't come out even they are packed, or the last ones are read one by one (matrix products).
    """
    if is_spread(geometry, machine.vector // 4):
        return False
    if geometry.groups == 1 or geometry.inputs % how.depth == 0:
        return True
    return geometry.taps == 1 and geometry.inputs > how.depth and not how.matrices
