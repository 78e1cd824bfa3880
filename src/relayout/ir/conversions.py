"""Values on their way through a kernel: vector code for every pair of data types.

A kernel holds elements in vector registers between a load and a store. The functions here write the LLVM IR
that makes elements of another data type of them, with scales, zero points and accumulation if wanted. Which
bits must come out is fixed by :mod:`relayout.convert`, in NumPy; this is the fast side of that definition.

Elements in registers are in *storage form*, integers as wide as the type: ``<16 x i32>`` holds sixteen f32 as
well as sixteen s32. 4-bit elements take a byte each, s4 with its sign extended, u4 with zeros. Converting 16
numbers from s8 to f32, for example, is

>>> from relayout.ir.writer import Writer
>>> from relayout.targets.machine import machine
>>> from relayout.dtypes import dtype
>>> w = Writer()
>>> converted(w, machine("x86-64-v3"), "%x", 16, dtype("s8"), dtype("f32"))
'%v3'
>>> print(w.text())
  %v1 = sext <16 x i8> %x to <16 x i32>
  %v2 = sitofp <16 x i32> %v1 to <16 x float>
  %v3 = bitcast <16 x float> %v2 to <16 x i32>

How 169 pairs are put together
==============================

Integers go to integers by comparisons and a change of width. All else passes through a *carrier*, float or
double, which is reached exactly where that is possible, and left with the one rounding that is allowed:

=========================  ==================================  ===========================================
pair                       onto the carrier                    off the carrier
=========================  ==================================  ===========================================
s64 -> f64                 double, rounded                     nothing
s64 -> f32, f16, bf16, f8  double, rounded to odd in s64       as from f64
any other with f64, s64;   double, exact                       f64: nothing. f32: one instruction. f16,
s32 -> bf16                                                    f8: to odd in float, then as below; bf16
                                                               only where it must. Integers: to the
                                                               nearest, saturated
all others                 float, exact (but for s32, below)   f32: nothing. f16: one instruction, or
                                                               integer arithmetic; bf16 likewise. f8:
                                                               integer arithmetic. Integers: nearest s32,
                                                               saturated, then as from s32
=========================  ==================================  ===========================================

* s32 is rounded on its way to float. For f32 that is the one rounding. What f16 and f8 can hold is below
  2**24, where float is exact.
* Two roundings to nearest are not one: 1 + 2**-8 + 2**-40 (f64) would become the tie 1 + 2**-8 in float, and
  then 1 in bf16. *Rounding to odd* in between keeps the news that something was cut off in the last bit:
  an inexact value becomes the one of its two neighbours whose last bit is set.
* f16 and e5m2 have the same exponent, so that e5m2 is the upper half of f16; likewise bf16 of f32. A pair of
  such types needs only shifts, and rounding at the cut.

:func:`rescaled` puts its steps on the carrier: float or double as :func:`arithmetic_kind` tells.

Quantising without a division
=============================

The definition divides by the destination scale, and a division takes as long as ten other instructions. To
multiply by the reciprocal is not the same: it is rounded, and next to a tie that shows. But with the floats
just below and above 1 / scale, the products enclose the quotient, and so do the rounded products; whatever
grows with its argument, adding a zero point, rounding and saturating, keeps that::

    x / 0.7       x * below     quotient     x * above
    3.4999998     4.9999995  <= 4.9999995 <= 5.0           both ends become 5, and so does the quotient
    1.05          1.4999999  <= 1.5       <= 1.5           1 or 2: it must be divided

If both ends become the same integer, so does what is in between: no bounds of errors are needed. If the ends
of any element differ, which happens to one in some thousand vectors of ordinary numbers, the vector is
divided. Where scales are powers of two the reciprocal is exact, and nothing is ever divided. The worst are
values half-way between two integers again and again: they take twice as long.

The same holds wherever the arithmetic is in double and the result is rounded to something shorter, f32 for
example: a division of doubles takes as long as all the rest of a normalised picture twice over, and both ends
round to the same f32 but once in some hundred million numbers.

Traps
=====

* LLVM folds ``fptrunc`` of an ``fpext``, and a signalling NaN stays one. So no pair widens and narrows
  between the same two types without anything in between. Nor is there an ``fptrunc`` to bf16: on x86 it may
  become an instruction that flushes subnormal numbers, which must be looked for first.
* ``fptrunc`` and ``fpext`` of half become calls of a library where the processor has no instruction for them,
  as x86-64-v2 has not: see :func:`_has_half`. From double to half that is nearly everywhere.
* ``fptosi`` is undefined out of range. x86's ``cvtps2dq`` is not, and it rounds to nearest by itself: what is
  out of range becomes the smallest s32. Below the range that is right, above it the value must be bounded
  first. NaN becomes the smallest s32, too, which is right for unsigned types. Elsewhere ``llvm.fptosi.sat``
  is an instruction.
* ``select`` after ``fcmp`` becomes one ``minps`` or ``maxps``, and the order of operands says what NaN
  becomes: with ``bound < x ? bound : x`` it stays, with ``x > bound ? x : bound`` it becomes the bound.
* Saturating packs on AVX work in lanes of 128 bits. LLVM puts the lanes in order after every one of them; one
  permutation at the end does it for all (:func:`_packed`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError
from relayout.ir.writer import Writer
from relayout.targets.machine import Machine

__all__ = [
    "RECIPROCALS",
    "Steps",
    "arithmetic_kind",
    "converted",
    "encloses",
    "rescaled",
]

F64, F32, F16, BF16, E4M3, E5M2 = map(dtype, ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"))
S64, S32, S16, S8, U8 = map(dtype, ("s64", "s32", "s16", "s8", "u8"))
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
LARGEST_FLOAT_BELOW_2_31: Final = 2**31 - 2**7
LARGEST_DOUBLE_BELOW_2_63: Final = 2.0**63 - 2.0**10
MANTISSA_AND_BIAS: Final = {F16: (10, 15), E4M3: (3, 7), E5M2: (2, 15)}
BF16_HOLDS: Final = (E4M3, E5M2, S8, U8, dtype("s4"), dtype("u4"))
FLOATS: Final = {"float": 32, "double": 64}
RECIPROCALS: Final = "dst_reciprocal_below", "dst_reciprocal_above"


@dataclass(frozen=True)
class Steps:
    """Which attributes take part in a conversion; their values are known when the kernel runs.

    >>> Steps(src_scale=True).any, Steps().any
    (True, False)
    """

    src_zero_point: bool = False
    src_scale: bool = False
    src_shift: bool = False
    beta: bool = False
    dst_scale: bool = False
    dst_zero_point: bool = False

    @property
    def any(self) -> bool:
        """Whether there is anything to do but to convert."""
        return self != Steps()


def arithmetic_kind(src: DType, dst: DType, steps: Steps) -> str:
    """The LLVM type of the steps between two data types, ``"float"`` or ``"double"``.

    It is that of :func:`relayout.convert.arithmetic_types`.

    >>> arithmetic_kind(dtype("s8"), dtype("s32"), Steps(src_scale=True))
    'float'
    >>> arithmetic_kind(dtype("s8"), dtype("s32"), Steps(beta=True))
    'double'
    """
    wide = steps.src_shift or {src, dst} & {F64, S64} or src is S32 or (steps.beta and dst is S32)
    return "double" if wide else "float"


def encloses(src: DType, dst: DType, steps: Steps) -> bool:
    """Whether a quotient is enclosed by two products where that can be done, rather than divided.

    Results must be so much coarser than the arithmetic that the two ends seldom differ.

    >>> [encloses(dtype("f32"), dtype(name), Steps(dst_scale=True)) for name in ("s8", "s16", "f32")]
    [True, False, False]
    >>> encloses(dtype("u8"), dtype("f32"), Steps(src_shift=True, dst_scale=True))
    True
    """
    if not steps.dst_scale:
        return False
    if arithmetic_kind(src, dst, steps) == "double":
        return dst.bits < 64
    return not dst.is_float and dst.bits <= 8


def converted(w: Writer, machine: Machine, value: str, count: int, src: DType, dst: DType) -> str:
    """Write the conversion of a vector; the rules are those of :func:`relayout.convert.convert`.

    What is said here of parameters, result and errors holds for :func:`rescaled`, too.

    Parameters
    ----------
    w : Writer
        The function that is being written.
    machine : Machine
        The processor that the module is compiled for.
    value : str
        Elements of ``src`` in storage form.
    count : int
        How many: 1, 2, 4, 8, 16, 32 or 64. More than a register holds is split by LLVM.
    src, dst : DType
        From which type to which. The same twice is no code at all.

    Returns
    -------
    str
        Elements of ``dst`` in storage form.

    Raises
    ------
    LayoutError
        The count is none of these.

    Examples
    --------
    >>> from relayout.targets.machine import machine
    >>> w = Writer()
    >>> converted(w, machine("x86-64-v3"), "%x", 8, dtype("u8"), dtype("s8"))
    '%v2'
    >>> print(w.text())
      %v1 = icmp ult <8 x i8> %x, splat (i8 127)
      %v2 = select <8 x i1> %v1, <8 x i8> %x, <8 x i8> splat (i8 127)
    """
    v = _Vectors(w, machine, count)
    if src is dst:
        return value
    if not (src.is_float or dst.is_float):
        return _saturated(v, value, src, dst)
    if src is E5M2 and dst is F16:
        return _f16_from_e5m2(v, value)
    if src is F16 and dst is E5M2:
        nan = v.compare("icmp ugt", "i16", v.do("and", "i16", value, 0x7FFF), 0x7C00)
        return v.cast("trunc", v.do("lshr", "i16", _rounded_half(v, value, "i16", nan), 8), "i16", "i8")
    if {src, dst} & {F64, S64} or (src is S32 and dst is BF16):
        if src is S64 and dst is not F64:
            value = _s64_to_odd(v, value)
        return _from_double(v, _to_double(v, value, src), dst)
    real = _to_float(v, value, src)
    if dst is BF16 and src in BF16_HOLDS:
        return _upper_half(v, v.cast("bitcast", real, "float", "i32"))
    return _from_float(v, real, dst)


def rescaled(
    w: Writer,
    machine: Machine,
    value: str,
    count: int,
    src: DType,
    dst: DType,
    steps: Steps,
    operands: Mapping[str, str],
    old: str | None = None,
) -> str:
    """Write a conversion with attributes; the rules are those of :func:`relayout.convert.rescale`.

    Every step that takes part is taken, whether or not its operand turns out to be neutral
    (``keep_neutral=True``). With no steps this is :func:`converted`, which describes all that is not said
    here.

    Parameters
    ----------
    steps : Steps
        Which attributes take part.
    operands : mapping of str to str
        For each of them, by the name of its field, a vector of ``count`` times :func:`arithmetic_kind`,
        already rounded to that type. Perhaps also both :data:`RECIPROCALS`: numbers of that type that
        enclose 1 / dst_scale, the one nearer to zero first. They are used where :func:`encloses` says that
        they pay, and the vector fills a register.
    old : str, optional
        The old elements of the destination, in storage form; read where ``steps.beta``.

    Raises
    ------
    LayoutError
        An operand or the old destination is missing.

    Notes
    -----
    Where both operands of a step are NaN, either's payload may come out. A NaN that a step makes of numbers
    (0 * inf) has the sign that the processor gives it.

    Examples
    --------
    >>> from relayout.targets.machine import machine
    >>> w, cpu, steps = Writer(), machine("x86-64-v3"), Steps(src_zero_point=True, src_scale=True)
    >>> given = {"src_zero_point": "%zero", "src_scale": "%scale"}
    >>> _ = rescaled(w, cpu, "%x", 8, dtype("u8"), dtype("f32"), steps, given)
    >>> print(w.text())
      %v1 = zext <8 x i8> %x to <8 x i32>
      %v2 = sitofp <8 x i32> %v1 to <8 x float>
      %v3 = fsub <8 x float> %v2, %zero
      %v4 = fmul <8 x float> %scale, %v3
      %v5 = bitcast <8 x float> %v4 to <8 x i32>
    """
    if not steps.any:
        return converted(w, machine, value, count, src, dst)
    missing = [name for name, takes_part in vars(steps).items() if takes_part and name not in operands]
    if missing or (steps.beta and old is None):
        what = ", ".join([*missing, *(["old"] if steps.beta and old is None else [])])
        raise LayoutError(f"the steps from {src} to {dst} need operands that are not given: {what}")
    v = _Vectors(w, machine, count)
    kind = arithmetic_kind(src, dst, steps)
    onto, off = (_to_double, _from_double) if kind == "double" else (_to_float, _from_float)
    x = onto(v, value, src)
    if steps.src_zero_point:
        x = v.do("fsub", kind, x, operands["src_zero_point"])
    if steps.src_scale:
        x = v.do("fmul", kind, operands["src_scale"], x)
    if steps.src_shift:
        x = v.do("fsub", kind, x, operands["src_shift"])
    if steps.beta and old is not None:
        x = v.do("fadd", kind, x, v.do("fmul", kind, operands["beta"], onto(v, old, dst)))

    def shifted(x: str) -> str:
        return v.do("fadd", kind, x, operands["dst_zero_point"]) if steps.dst_zero_point else x

    def divided() -> str:
        return off(v, shifted(v.do("fdiv", kind, x, operands["dst_scale"])), dst)

    if not steps.dst_scale:
        return off(v, shifted(x), dst)
    if not all(name in operands for name in RECIPROCALS) or not _fills(v, kind, src, dst, steps):
        return divided()
    ends = [shifted(v.do("fmul", kind, x, operands[name])) for name in RECIPROCALS]
    one, other = _two_integers(v, ends, dst) if kind == "float" else [off(v, end, dst) for end in ends]
    element = f"i{_storage_bits(dst)}"
    differ = v.compare("icmp ne", element, one, other)
    return w.unless(v.any(differ), v.of(element), other, divided)


class _Vectors:
    """Operations on vectors of ``count`` elements.

    ``element`` is an LLVM type (``i8``, ``float``); numbers stand for vectors that are filled with them.
    """

    def __init__(self, w: Writer, machine: Machine, count: int) -> None:
        if count not in COUNTS:
            raise LayoutError(f"vectors have a power of two from 1 to 64 elements, not {count}")
        self.w, self.machine, self.count = w, machine, count

    def of(self, element: str) -> str:
        return f"<{self.count} x {element}>"

    def text(self, element: str, value: str | float) -> str:
        if isinstance(value, str):
            return value
        if element in FLOATS:
            return f"splat ({element} 0x{struct.pack('>d', value).hex().upper()})"
        return f"splat ({element} {value})"

    def do(self, what: str, element: str, one: str | float, two: str | float) -> str:
        operands = f"{self.text(element, one)}, {self.text(element, two)}"
        return self.w.value(f"{what} {self.of(element)} {operands}")

    compare = do

    def cast(self, what: str, x: str, element: str, to: str) -> str:
        return self.w.value(f"{what} {self.of(element)} {x} to {self.of(to)}")

    def resize(self, x: str, bits: int, to: int, extend: str = "zext") -> str:
        if bits == to:
            return x
        return self.cast(extend if bits < to else "trunc", x, f"i{bits}", f"i{to}")

    def select(self, condition: str, element: str, yes: str | float, no: str | float) -> str:
        kind = self.of(element)
        operands = f"{kind} {self.text(element, yes)}, {kind} {self.text(element, no)}"
        return self.w.value(f"select {self.of('i1')} {condition}, {operands}")

    def pick(self, predicate: str, element: str, x: str, bound: float) -> str:
        """The value where it compares so with the bound, the bound elsewhere (and for NaN)."""
        return self.select(self.compare(predicate, element, x, bound), element, x, bound)

    def any(self, condition: str) -> str:
        """Whether a condition holds for any element."""
        lanes = self.w.value(f"bitcast {self.of('i1')} {condition} to i{self.count}")
        return self.w.value(f"icmp ne i{self.count} {lanes}, 0")

    def call(self, name: str, element: str, x: str, result: str) -> str:
        """An intrinsic that makes vectors of ``result`` of vectors of ``element``."""
        short = {"float": "f32", "double": "f64"}.get(element, element)
        suffix = f"v{self.count}{short}"
        if result != element:
            suffix = f"v{self.count}{result}.{suffix}"
        return self.w.value(f"call {self.of(result)} @llvm.{name}.{suffix}({self.of(element)} {x})")


# --- integers to integers ----------------------------------------------------------------------------------


def _storage_bits(kind: DType) -> int:
    return max(8, kind.bits)


def _saturated(v: _Vectors, x: str, src: DType, dst: DType, most: int | None = None) -> str:
    """Integers, cut to the range of the other type; ``most`` is the largest that they can be."""
    most = int(src.max) if most is None else most
    if src is S32 and dst.bits <= 16:
        near = {16: S16, 8: dst, 4: S8 if dst.is_signed else U8}[dst.bits]
        packed = _packed(v, x, near)
        if packed is not None:
            return packed if near is dst else _saturated(v, packed, near, dst, min(most, int(near.max)))
    element, sign = f"i{_storage_bits(src)}", "s" if src.is_signed else "u"
    if dst.min > src.min:
        x = v.pick(f"icmp {sign}gt", element, x, dst.min)
    if dst.max < most:
        x = v.pick(f"icmp {sign}lt", element, x, dst.max)
    return v.resize(x, _storage_bits(src), _storage_bits(dst), "sext" if src.is_signed else "zext")


def _packed(v: _Vectors, x: str, dst: DType) -> str | None:
    """Saturate s32 to s16, s8 or u8 by AVX packs; None where those are not better than what LLVM finds.

    A pack works in lanes of 128 bits. With lanes of four, A B C D being registers of two lanes::

        A0 A1, B0 B1, C0 C1, D0 D1  ->  A0 B0 A1 B1, C0 D0 C1 D1  ->  A0 B0 C0 D0 A1 B1 C1 D1

    so that chunk ``lane * registers + register`` belongs at ``register * lanes + lane``.
    """
    lanes, together = v.machine.vector // 16, 32 // dst.bits
    width = 4 * lanes  # s32 in a register
    if not _is_x86(v.machine) or lanes == 1 or v.count < together * width:
        return None
    parts = _pieces(v, x, "i32", width)
    parts = _pairwise(v, parts, width, "i32", "packssdw")
    if dst.bits == 8:
        parts = _pairwise(v, parts, 2 * width, "i16", "packsswb" if dst.is_signed else "packuswb")
    total, chunk = lanes * together, f"i{128 // together}"
    order = [lane * together + register for register in range(together) for lane in range(lanes)]
    kind, chunks = f"<{together * width} x i{dst.bits}>", f"<{total} x {chunk}>"
    ordered = []
    for part in parts:
        as_chunks = v.w.value(f"bitcast {kind} {part} to {chunks}")
        as_chunks = v.w.shuffle(as_chunks, "poison", chunks, order)
        ordered.append(v.w.value(f"bitcast {chunks} {as_chunks} to {kind}"))
    return _joined(v, ordered, f"i{dst.bits}")


def _pairwise(v: _Vectors, parts: Sequence[str], width: int, element: str, pack: str) -> list[str]:
    bits = int(element[1:])
    kind, result = f"<{width} x {element}>", f"<{2 * width} x i{bits // 2}>"
    name = f"{'avx512' if width * bits == 512 else 'avx2'}.{pack}{'.512' if width * bits == 512 else ''}"
    return [
        v.w.value(f"call {result} @llvm.x86.{name}({kind} {one}, {kind} {two})")
        for one, two in zip(parts[::2], parts[1::2], strict=True)
    ]


def _pieces(v: _Vectors, x: str, element: str, width: int) -> list[str]:
    """Cut a vector into vectors of ``width`` elements; a shorter one is filled up with anything."""
    if width == v.count:
        return [x]
    starts = range(0, v.count, width)
    picks = [[k if k < v.count else -1 for k in range(start, start + width)] for start in starts]
    return [v.w.shuffle(x, "poison", v.of(element), p) for p in picks]


def _joined(v: _Vectors, parts: Sequence[str], element: str) -> str:
    """The first ``count`` elements of equal vectors laid end to end."""
    width = v.count // len(parts)
    while len(parts) > 1:
        kind = f"<{width} x {element}>"
        pairs = zip(parts[::2], parts[1::2], strict=True)
        width *= 2
        parts = [v.w.shuffle(one, two, kind, range(width)) for one, two in pairs]
    return parts[0]


# --- onto the carrier --------------------------------------------------------------------------------------


def _to_double(v: _Vectors, x: str, src: DType) -> str:
    """As double: exact, but for s64, which is rounded to nearest."""
    if src is F64:
        return v.cast("bitcast", x, "i64", "double")
    if src is S64 or src is S32:
        return v.cast("sitofp", x, f"i{src.bits}", "double")
    return v.cast("fpext", _to_float(v, x, src), "float", "double")


def _to_float(v: _Vectors, x: str, src: DType) -> str:
    """As float: exact, but for s32, which is rounded to nearest."""
    if not src.is_float:
        wide = v.resize(x, _storage_bits(src), 32, "sext" if src.is_signed else "zext")
        return v.cast("sitofp", wide, "i32", "float")
    if src is F32:
        return v.cast("bitcast", x, "i32", "float")
    if src is BF16:
        return v.cast("bitcast", v.do("shl", "i32", v.resize(x, 16, 32), 16), "i32", "float")
    if not _has_half(v.machine):
        return _float_by_integers(v, x, src)
    if src is E4M3:
        return _float_from_e4m3(v, x)
    half = v.do("shl", "i16", v.resize(x, 8, 16), 8) if src is E5M2 else x
    return v.cast("fpext", v.cast("bitcast", half, "i16", "half"), "half", "float")


def _float_from_e4m3(v: _Vectors, x: str) -> str:
    """By way of half, whose bias is 8 larger: with exponent and mantissa in place it is the value / 2**8."""
    wide = v.do("shl", "i16", v.resize(x, 8, 16, "sext"), 7)
    bits = v.do("and", "i16", wide, 0xBF80 - 0x10000)
    nan = v.compare("icmp eq", "i16", v.do("and", "i16", wide, 0x3F80), 0x3F80)
    to_nan = v.select(nan, "i16", 0x3F80 ^ 0x7E00, 0)
    half = v.cast("bitcast", v.do("xor", "i16", bits, to_nan), "i16", "half")
    return v.do("fmul", "float", v.cast("fpext", half, "half", "float"), 2.0**8)


def _float_by_integers(v: _Vectors, x: str, src: DType) -> str:
    """As float, from f16 or f8, without half.

    Exponent and mantissa are moved into place and the bias is changed. Subnormal numbers lack the leading 1;
    they get it, as if they had exponent 1, and it is subtracted again.
    """
    mantissa, bias = MANTISSA_AND_BIAS[src]
    wide = v.resize(x, src.bits, 32)
    magnitude = v.do("and", "i32", wide, (1 << (src.bits - 1)) - 1)
    shifted = v.do("shl", "i32", magnitude, 23 - mantissa)
    normal = v.do("add", "i32", shifted, (127 - bias) << 23)
    with_one = v.cast("bitcast", v.do("add", "i32", shifted, (128 - bias) << 23), "i32", "float")
    subnormal = v.cast("bitcast", v.do("fsub", "float", with_one, 2.0 ** (1 - bias)), "float", "i32")
    is_subnormal = v.compare("icmp ult", "i32", magnitude, 1 << mantissa)
    bits = v.select(is_subnormal, "i32", subnormal, normal)
    if src is E4M3:
        bits = v.select(v.compare("icmp eq", "i32", magnitude, 0x7F), "i32", 0x7FC00000, bits)
    else:
        infinity = 31 << mantissa
        special = v.do("or", "i32", shifted, 0x7F800000)
        bits = v.select(v.compare("icmp uge", "i32", magnitude, infinity), "i32", special, bits)
        nan = v.compare("icmp ugt", "i32", magnitude, infinity)
        bits = v.do("or", "i32", bits, v.select(nan, "i32", 0x400000, 0))
    sign = v.do("shl", "i32", v.do("and", "i32", wide, 1 << (src.bits - 1)), 32 - src.bits)
    return v.cast("bitcast", v.do("or", "i32", bits, sign), "i32", "float")


def _f16_from_e5m2(v: _Vectors, x: str) -> str:
    bits = v.do("shl", "i16", v.resize(x, 8, 16), 8)
    nan = v.compare("icmp ugt", "i16", v.do("and", "i16", bits, 0x7FFF), 0x7C00)
    return v.do("or", "i16", bits, v.select(nan, "i16", 0x200, 0))


def _s64_to_odd(v: _Vectors, x: str) -> str:
    """Round s64 to odd at bit 12 where it has more bits than double holds.

    What remains fits in double, and still has more bits than any shorter floating-point type can use.
    """
    cut_off = v.compare("icmp ne", "i64", v.do("and", "i64", x, 0xFFF), 0)
    odd = v.do("or", "i64", v.do("and", "i64", x, ~0xFFF), v.select(cut_off, "i64", 0x1000, 0))
    fits = v.compare("icmp ult", "i64", v.do("add", "i64", x, 2**53), 2**54)
    return v.select(fits, "i64", x, odd)


# --- off the carrier ---------------------------------------------------------------------------------------


def _from_double(v: _Vectors, x: str, dst: DType) -> str:
    """Round double to a type, once."""
    if dst is F64:
        return v.cast("bitcast", x, "double", "i64")
    if dst is F32:
        return v.cast("bitcast", v.cast("fptrunc", x, "double", "float"), "float", "i32")
    if dst is BF16:
        return _bf16_from_double(v, x)
    if dst.is_float:
        return _from_float(v, _float_to_odd(v, x), dst)
    if dst is S64:
        return _nearest_s64(v, x)
    return _integer(v, x, "double", dst)


def _from_float(v: _Vectors, x: str, dst: DType) -> str:
    """Round float to a type, once. To f64 and s64 it is never asked."""
    if not dst.is_float:
        return _integer(v, x, "float", dst)
    if dst is F16 and _has_half(v.machine):
        return v.cast("bitcast", v.cast("fptrunc", x, "float", "half"), "half", "i16")
    bits = v.cast("bitcast", x, "float", "i32")
    if dst is F32:
        return bits
    if dst is BF16:
        return _bf16_at_once(v, x) if _has_bf16(v) else _bf16_by_integers(v, x)
    return _small_by_integers(v, bits, dst)


def _bf16_by_integers(v: _Vectors, x: str) -> str:
    nan = v.compare("fcmp uno", "float", x, x)
    return _upper_half(v, _rounded_half(v, v.cast("bitcast", x, "float", "i32"), "i32", nan))


def _bf16_at_once(v: _Vectors, x: str) -> str:
    """By x86's instruction, which flushes subnormal numbers: vectors with such are done by integers."""
    w, parts = v.w, _pieces(v, x, "float", 16)
    lanes = "poison"
    for k, part in enumerate(parts):
        found = w.value(f"call <16 x i1> @llvm.x86.avx512.fpclass.ps.512(<16 x float> {part}, i32 32)")
        lanes = w.value(f"or <16 x i1> {lanes}, {found}") if k else found
    some = w.value(f"icmp ne i16 {w.value(f'bitcast <16 x i1> {lanes} to i16')}, 0")
    call = "call <32 x bfloat> @llvm.x86.avx512bf16.cvtne2ps2bf16.512"
    pairs = zip(parts[::2], parts[1::2], strict=True)
    halves = [w.value(f"{call}(<16 x float> {two}, <16 x float> {one})") for one, two in pairs]
    short = [w.value(f"bitcast <32 x bfloat> {half} to <32 x i16>") for half in halves]
    return w.unless(some, v.of("i16"), _joined(v, short, "i16"), lambda: _bf16_by_integers(v, x))


def _bf16_from_double(v: _Vectors, x: str) -> str:
    """By way of the nearest float, unless one of these is half-way between two bf16.

    Only there can a second rounding go wrong, since whatever lies on one side of such a middle stays there in
    float. It happens to one in some thousand vectors, and these are rounded to odd.
    """
    nearest = v.cast("fptrunc", x, "double", "float")
    lower = v.do("and", "i32", v.cast("bitcast", nearest, "float", "i32"), 0xFFFF)
    middle = v.compare("icmp eq", "i32", lower, 0x8000)
    found = _from_float(v, nearest, BF16)
    return v.w.unless(v.any(middle), v.of("i16"), found, lambda: _from_float(v, _float_to_odd(v, x), BF16))


def _float_to_odd(v: _Vectors, x: str) -> str:
    """Round double to odd in float.

    From the nearest float, one step towards zero where that is farther away; then, if anything was cut off,
    the last bit is set. Infinity steps back to the largest number. NaN may lose the last bit of its payload,
    which no shorter type keeps.
    """
    nearest = v.cast("fptrunc", x, "double", "float")
    back = v.cast("fpext", nearest, "float", "double")
    farther = v.compare("fcmp ogt", "double", _magnitude(v, back), _magnitude(v, x))
    inexact = v.compare("fcmp une", "double", back, x)
    bits = v.cast("bitcast", nearest, "float", "i32")
    bits = v.do("add", "i32", bits, v.cast("sext", farther, "i1", "i32"))
    bits = v.do("or", "i32", bits, v.cast("zext", inexact, "i1", "i32"))
    return v.cast("bitcast", bits, "i32", "float")


def _magnitude(v: _Vectors, x: str) -> str:
    bits = v.do("and", "i64", v.cast("bitcast", x, "double", "i64"), 2**63 - 1)
    return v.cast("bitcast", bits, "i64", "double")


def _integer(v: _Vectors, x: str, kind: str, dst: DType) -> str:
    """Round to integers of at most 32 bits."""
    high = LARGEST_FLOAT_BELOW_2_31 if dst is S32 and kind == "float" else int(dst.max)
    return _saturated(v, _nearest(v, x, kind, dst, high), S32, dst, high if _is_x86(v.machine) else None)


def _fills(v: _Vectors, kind: str, src: DType, dst: DType, steps: Steps) -> bool:
    """Whether a quotient is enclosed and the vector fills a register; one of SSE's packs slowly."""
    size = FLOATS[kind] // 8
    fills = size * v.count >= v.machine.vector and (v.machine.vector >= 32 or not _is_x86(v.machine))
    return fills and encloses(src, dst, steps)


def _two_integers(v: _Vectors, ends: Sequence[str], dst: DType) -> tuple[str, str]:
    """Both ends of what encloses a quotient, as integers; different ones where that must be divided.

    On x86 NaN, and what is above the range of s32, becomes the smallest s32. One end is left so, in the other
    it becomes the largest of ``dst``: they differ then, and nothing more need be done for NaN here.
    """
    if not _is_x86(v.machine):
        one, other = (_integer(v, end, "float", dst) for end in ends)
        return one, other
    high = int(dst.max)
    bounded = v.pick("fcmp olt", "float", ends[1], float(high))
    return (
        _saturated(v, _cvtps2dq(v, ends[0]), S32, dst),
        _saturated(v, _cvtps2dq(v, bounded), S32, dst, high),
    )


def _nearest(v: _Vectors, x: str, kind: str, dst: DType, high: int) -> str:
    """The nearest s32, where ``high`` is the largest for ``dst``, and NaN becomes 0 or what saturates to 0.

    For types smaller than s32 the result may lie beyond their range, where :func:`_saturated` cuts it.
    """
    if not _is_x86(v.machine):
        if dst is S32 and high < S32.max:
            x = v.select(v.compare("fcmp ogt", kind, x, float(high)), kind, float(high), x)
        return v.call("fptosi.sat", kind, v.call("roundeven", kind, x, kind), "i32")
    if kind == "float":
        above = v.compare("fcmp ogt", kind, x, float(high))
        found = _cvtps2dq(v, v.select(above, kind, float(high), x))
        return v.select(v.compare("fcmp ord", kind, x, x), "i32", found, 0) if dst.is_signed else found
    if dst.is_signed:
        x = v.select(v.compare("fcmp ord", kind, x, x), kind, x, 0.0)
    else:
        x = v.pick("fcmp ogt", kind, x, -0.0)  # LLVM makes two instructions of it with +0.0
    x = v.pick("fcmp olt", kind, x, float(high))
    return v.call("lrint", kind, v.pick("fcmp ogt", kind, x, -(2.0**31)), "i32")


def _nearest_s64(v: _Vectors, x: str) -> str:
    """Double to the nearest s64; the largest of them is no double, so it is put in afterwards."""
    if not _is_x86(v.machine):
        return v.call("fptosi.sat", "double", v.call("roundeven", "double", x, "double"), "i64")
    above = v.compare("fcmp oge", "double", x, 2.0**63)
    bounded = v.pick("fcmp olt", "double", x, LARGEST_DOUBLE_BELOW_2_63)
    bounded = v.pick("fcmp ogt", "double", bounded, -(2.0**63))
    bounded = v.select(v.compare("fcmp ord", "double", x, x), "double", bounded, 0.0)
    return v.select(above, "i64", 2**63 - 1, v.call("lrint", "double", bounded, "i64"))


def _cvtps2dq(v: _Vectors, x: str) -> str:
    """The nearest s32 by x86's instruction: what is below the range becomes the smallest."""
    width = max(4, min(v.machine.vector // 4, v.count))
    parts = _pieces(v, x, "float", width)
    names = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}
    masked = ", <16 x i32> poison, i16 -1, i32 4" if width == 16 else ""  # all lanes, rounded as usual
    call = f"call <{width} x i32> @llvm.x86.{names[width]}"
    parts = [v.w.value(f"{call}(<{width} x float> {part}{masked})") for part in parts]
    if v.count < width:
        return v.w.shuffle(parts[0], "poison", f"<{width} x i32>", range(v.count))
    return _joined(v, parts, "i32")


def _rounded_half(v: _Vectors, bits: str, element: str, nan: str) -> str:
    """Round at the middle of an f32 or f16: the upper half of the result is the bf16 or e5m2.

    Adding one less than half a unit, and one more if the last bit that stays is set, carries into the upper
    half exactly where rounding to nearest even goes up, into the exponent too. A NaN is made quiet instead.
    """
    half = int(element[1:]) // 2
    quiet = {"i32": 0x400000, "i16": 0x200}[element]
    odd = v.do("and", element, v.do("lshr", element, bits, half), 1)
    rounded = v.do("add", element, v.do("add", element, bits, (1 << (half - 1)) - 1), odd)
    return v.select(nan, element, v.do("or", element, bits, quiet), rounded)


def _upper_half(v: _Vectors, bits: str) -> str:
    """The upper 16 bits of 32."""
    packed = _packed(v, v.do("ashr", "i32", bits, 16), S16)
    return packed or v.cast("trunc", v.do("lshr", "i32", bits, 16), "i32", "i16")


def _small_by_integers(v: _Vectors, bits: str, dst: DType) -> str:
    """Round the bits of f32 to f16 or f8.

    Normal numbers are rounded as in :func:`_rounded_half`. For subnormal ones a power of two is added, so
    large that the last bit of the sum is worth the smallest number of ``dst``; the addition rounds. What is
    too large, NaN included, becomes 65536, which rounds to infinity, or 480 for e4m3, whose pattern is NaN.
    """
    mantissa, bias = MANTISSA_AND_BIAS[dst]
    cut = 23 - mantissa
    magnitude = v.do("and", "i32", bits, 0x7FFFFFFF)
    bounded = v.pick("icmp ult", "i32", magnitude, 0x43F00000 if dst is E4M3 else 0x47800000)
    odd = v.do("and", "i32", v.do("lshr", "i32", bounded, cut), 1)
    change_of_bias = (bias - 127) << 23
    rounded = v.do("add", "i32", bounded, change_of_bias + (1 << (cut - 1)) - 1)
    normal = v.do("lshr", "i32", v.do("add", "i32", rounded, odd), cut)
    exponent = 24 - bias - mantissa
    power = v.do("fadd", "float", v.cast("bitcast", bounded, "i32", "float"), 2.0**exponent)
    subnormal = v.do("sub", "i32", v.cast("bitcast", power, "float", "i32"), (exponent + 127) << 23)
    is_subnormal = v.compare("icmp ult", "i32", bounded, (128 - bias) << 23)
    result = v.select(is_subnormal, "i32", subnormal, normal)
    if dst is not E4M3:
        payload = v.do("and", "i32", v.do("lshr", "i32", bits, cut), (1 << mantissa) - 1)
        quiet = v.do("or", "i32", payload, 63 << (mantissa - 1))
        result = v.select(v.compare("icmp ugt", "i32", magnitude, 0x7F800000), "i32", quiet, result)
    sign = v.do("and", "i32", v.do("lshr", "i32", bits, 32 - dst.bits), 1 << (dst.bits - 1))
    result = v.do("or", "i32", result, sign)
    packed = _packed(v, result, U8) if dst.bits == 8 else None
    return packed or v.resize(result, 32, dst.bits)


# --- processors --------------------------------------------------------------------------------------------


def _is_x86(machine: Machine) -> bool:
    return machine.triple.startswith("x86_64")


def _has_half(machine: Machine) -> bool:
    """Whether float and half are converted by instructions (x86: F16C, which comes with AVX2)."""
    if _is_x86(machine):
        return machine.vector >= 32 or "+f16c" in machine.features.split(",")
    return machine.triple.startswith(("aarch64", "arm64"))


def _has_bf16(v: _Vectors) -> bool:
    """Whether whole registers of float become bf16 by an instruction."""
    return v.machine.vector == 64 and v.count >= 32 and "+avx512bf16" in v.machine.features.split(",")
