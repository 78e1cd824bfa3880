"""What vector registers hold of elements in memory: truth values, integers, real numbers.

A *kind* says what the lanes of a vector are. Integers and f64 are held as they lie in memory, the shorter
floating-point types as f32, and truth values, which are bytes in memory, as conditions::

    kind                  lanes     in memory
    bool                  i1        a byte, true where it is not 0
    s64 s32 s16 s8 u8     i64 ...   the same
    f32                   float     f32, f16, bf16, f8: rounded when they are stored
    f64                   double    f64, and all of those: rounded once

:func:`loaded` and :func:`stored` go between memory and registers, :func:`.kinds.cast` from one to another:

>>> from relayout.dtypes import dtype
>>> from relayout.ir.kinds import cast
>>> from relayout.ir.types import vector
>>> b = Builder()
>>> byte = Value("%x", vector(8, I8))
>>> stored(b, cast(b, loaded(b, byte, dtype("u8"), "bool"), "bool", "s32"), dtype("s32"), "s32")
<8 x i32> %v2
>>> print(b.body())
  %v1 = icmp ne <8 x i8> %x, splat (i8 0)
  %v2 = zext <8 x i1> %v1 to <8 x i32>
"""

from __future__ import annotations

from relayout.dtypes import DType, dtype
from relayout.ir.builder import Builder
from relayout.ir.conversions import convert, from_f32, to_f32
from relayout.ir.types import DOUBLE, I8, Value

__all__ = ["loaded", "stored"]


def loaded(b: Builder, x: Value, source: DType, kind: str) -> Value:
    """What has been loaded, integers as wide as the data type, as a kind."""
    if kind == "bool":
        return b.icmp("ne", x, 0)
    if kind == "f32":
        return to_f32(b, x, source)
    if kind == "f64":
        return b.real(x) if source.name == "f64" else b.fpext(to_f32(b, x, source), DOUBLE)
    return x


def stored(b: Builder, x: Value, target: DType, kind: str, near: bool = False) -> Value:
    """What is to be stored: integers as wide as the data type.

    With ``near`` real numbers are known to be numbers that s32 can hold.
    """
    if kind == "bool":
        return b.zext(x, I8)
    if kind == "f32":
        return from_f32(b, x, target, near=near)
    if kind == "f64":
        return convert(b, b.bits(x), dtype("f64"), target)
    return x
