"""In which numbers a sum of products is computed.

==========================  =======================  ============  ===========================================
source, weights             as the tile sees them    sums          why
==========================  =======================  ============  ===========================================
f32, f16, bf16              f32                      f32           widening is exact
s8, u8; s8                  pairs of s16             s32           exact; two products in one instruction
s8, u8; s8, few products    f32                      f32           exact as well: all sums stay below 2**24
==========================  =======================  ============  ===========================================

The last row is for groups of few channels (depthwise), which have no pairs.

A sum of extremes can leave s32: of u8 after 65 793 products, of s8 after 131 071. So many have no arithmetic
here, and are left to the definition.
"""

from __future__ import annotations

from typing import NamedTuple

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.kernels.conv.geometry import Geometry

__all__ = ["FLOATS", "PAIRS", "Arithmetic", "arithmetic_of"]

LARGEST = {"s8": 128, "u8": 255}  # the largest magnitude of a value
EXACT = 1 << 24  # up to which f32 counts


class Arithmetic(NamedTuple):
    """How many neighbouring input channels are multiplied at once, and in which types."""

    operand: str
    """The type of source elements as the tile reads them; packed rows have it."""
    sums: str
    depth: int
    """Input channels of one step."""

    @property
    def element(self) -> int:
        """Bytes of a source element."""
        return as_dtype(self.operand).bits // 8


FLOATS = Arithmetic("f32", "f32", 1)
PAIRS = Arithmetic("s16", "s32", 2)


def arithmetic_of(src: DType, weights: DType, geometry: Geometry) -> Arithmetic | None:
    """The arithmetic for a source and weights of these types, or None where there is none.

    >>> from relayout import dtype
    >>> g = Geometry(1, 1, 64, 64, (1, 9, 9), (1, 7, 7), (1, 3, 3), *[(1, 1, 1)] * 2, (0, 0, 0))
    >>> arithmetic_of(dtype("u8"), dtype("s8"), g).sums, arithmetic_of(dtype("bf16"), dtype("bf16"), g).sums
    ('s32', 'f32')
    """
    names = src.name, weights.name
    if all(name in ("f32", "f16", "bf16") for name in names):
        return FLOATS
    if src.name not in LARGEST or weights.name != "s8":
        return None
    largest = geometry.inputs * geometry.taps * LARGEST[src.name] * LARGEST["s8"]
    if largest < EXACT:
        return FLOATS
    if largest >= 1 << 31:
        return None
    return PAIRS if geometry.groups == 1 or geometry.inputs % 2 == 0 else None
