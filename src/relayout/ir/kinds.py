"""The kinds of numbers that lanes hold, and casts between them.

:mod:`relayout.ir.registers` says what of which data type they are.

Casts are those of C, where C has an answer: integers keep their low bits, real numbers lose what is behind
the point. What is out of range of an integer becomes the nearest that there is, and NaN becomes 0.
"""

from __future__ import annotations

from typing import Final

from relayout.ir.builder import Builder
from relayout.ir.types import DOUBLE, FLOAT, I1, I8, I16, I32, I64, Type, Value

__all__ = ["KINDS", "cast"]

KINDS: Final[dict[str, Type]] = {
    "bool": I1,
    "u8": I8,
    "s8": I8,
    "s16": I16,
    "s32": I32,
    "s64": I64,
    "f32": FLOAT,
    "f64": DOUBLE,
}
"""The types of lanes."""


def cast(b: Builder, x: Value, source: str, target: str) -> Value:
    """Lanes of one kind as another."""
    if source == target:
        return x
    to, real, unsigned = KINDS[target], x.type.is_float, source in ("bool", "u8")
    if target == "bool":
        return b.fcmp("une", x, 0.0) if real else b.icmp("ne", x, 0)
    if real and to.is_float:
        return b.fpext(x, to) if to.bits > x.type.bits else b.fptrunc(x, to)
    if real and to.bits <= I32.bits and x.type.count:
        return _saturated(b, x, target)
    if real:
        return b.intrinsic("fptoui.sat" if target == "u8" else "fptosi.sat", x, result=x.type.of(to))
    if to.is_float:
        return b.uitofp(x, to) if unsigned else b.sitofp(x, to)
    return b.resize(x, to.bits, not unsigned)


def _saturated(b: Builder, x: Value, target: str) -> Value:
    """Real numbers towards zero as integers of up to 32 bits, where LLVM would saturate lane by lane."""
    bits = KINDS[target].bits
    low, high = (0, 255) if target == "u8" else (-(1 << bits - 1), (1 << bits - 1) - 1)
    x = x if target == "u8" else b.select(b.fcmp("ord", x, x), x, 0.0)
    above = None
    if bits >= x.type.bits:  # the largest integer is no number of f32, and what is above is put in afterwards
        above = b.fcmp("oge", x, float(high + 1))
        x = b.pick("ogt", b.select(above, 0.0, x), float(low))
    else:
        x = b.pick("olt", b.pick("ogt", x, float(low)), float(high))
    found = b.resize(b.fptosi(x, I32), bits)
    return found if above is None else b.select(above, high, found)
