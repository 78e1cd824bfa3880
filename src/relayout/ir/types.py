"""Types of LLVM IR, and values that know theirs.

A :class:`Type` is a scalar or a vector; equal ones are equal, and print as LLVM reads them:

>>> FLOAT, vector(8, FLOAT), vector(8, FLOAT).element
(float, <8 x float>, float)

A :class:`Value` is the text that stands for it in IR, ``%v3`` or a constant. It is a ``str`` with a type, so
it can be put into any line. What a constant is in Python is its ``number``:

>>> x = Value("%x", vector(4, I32))
>>> x, x.type.count, f"add {x.type} {x}, {x}"
(<4 x i32> %x, 4, 'add <4 x i32> %x, %x')
>>> constant(vector(4, I32), 7), constant(FLOAT, 0.1), constant(I64, -1).number
(<4 x i32> splat (i32 7), float 0x3FB99999A0000000, -1)

Numbers are rounded to their type: integers wrap around, reals go to the nearest f32 in ``float``.
"""

from __future__ import annotations

import struct
from functools import cache, cached_property

from relayout.dtypes import single
from relayout.records import dataclass

__all__ = [
    "BFLOAT",
    "DOUBLE",
    "FLOAT",
    "HALF",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "PTR",
    "Type",
    "Value",
    "constant",
    "integer",
    "poison",
    "vector",
]


@dataclass(frozen=True)
class Type:
    """A scalar type, or a vector of one."""

    name: str
    """That of an element: ``i8``, ``float``, ``ptr``."""
    bits: int
    """Those of an element."""
    count: int = 0
    """Elements of a vector; 0: it is none. A vector of one element is another type than its element."""

    @cached_property
    def element(self) -> Type:
        """The type of an element; of a scalar itself."""
        return vector(0, self)

    @cached_property
    def is_integer(self) -> bool:
        """Whether its elements are integers."""
        return self.name[0] == "i"

    @cached_property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return not self.is_integer and self.name != "ptr"

    @property
    def bytes(self) -> int:
        """The bytes of all elements, one after the other."""
        return max(1, self.count) * self.bits // 8

    @cached_property
    def mangled(self) -> str:
        """As the names of overloaded intrinsics spell it.

        >>> vector(8, FLOAT).mangled, I64.mangled, PTR.mangled
        ('v8f32', 'i64', 'p0')
        """
        element = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
        return (f"v{self.count}" if self.count else "") + element.get(self.name, self.name)

    def of(self, element: Type) -> Type:
        """Another element type, as many elements."""
        return vector(self.count, element)

    @cached_property
    def _text(self) -> str:
        return f"<{self.count} x {self.name}>" if self.count else self.name

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


_interned = cache(Type)


def integer(bits: int) -> Type:
    """The integers of so many bits."""
    return _interned(f"i{bits}", bits, 0)


def vector(count: int, element: Type) -> Type:
    """So many elements; those of a vector are its own."""
    return _interned(element.name, element.bits, count)


I1, I8, I16, I32, I64 = map(integer, (1, 8, 16, 32, 64))
HALF, BFLOAT, FLOAT, DOUBLE, PTR = (
    _interned(name, bits, 0)
    for name, bits in (("half", 16), ("bfloat", 16), ("float", 32), ("double", 64), ("ptr", 64))
)


FAR = 1 << 63
"""From there on 64 bits hold another number."""


class Value(str):
    """What stands for a value in IR, with its type."""

    __slots__ = ("number", "type")

    type: Type
    number: int | float | None
    """The number in all lanes of a constant; integers as signed ones. None: it is no constant."""

    def __new__(cls, text: str, type: Type, number: int | float | None = None) -> Value:
        """A name and its type."""
        self = str.__new__(cls, text)
        self.type, self.number = type, number
        return self

    def __repr__(self) -> str:
        return f"{self.type} {self}"


def constant(type: Type, number: int | float) -> Value:
    """A number, in all lanes of a vector.

    Raises
    ------
    TypeError
        The type has no such constants: a pointer, an integer for 0.5.
    OverflowError
        A finite number that ``float`` would hold as infinity.
    """
    if type is I64 and number.__class__ is int and -FAR < number < FAR:  # nearly all are
        return Value(str(number), type, number)
    if type.is_integer:
        if not isinstance(number, int):
            raise TypeError(f"{number!r} is no constant of {type}")
        number = (number + (1 << type.bits >> 1)) % (1 << type.bits) - (1 << type.bits >> 1)
        text = ("false", "true")[number != 0] if type.bits == 1 else str(number)
    elif type.name in ("float", "double"):
        number = single(number) if type.name == "float" else float(number)
        text = f"0x{struct.pack('>d', number).hex().upper()}"
    else:
        raise TypeError(f"{number!r} is no constant of {type}")
    return Value(f"splat ({type.name} {text})" if type.count else text, type, number)


def poison(type: Type) -> Value:
    """A vector whose lanes nobody reads."""
    return Value("poison", type)
