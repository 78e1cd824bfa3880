"""Values on their way through a kernel: vector code for every pair of data types.

A kernel holds elements in vector registers between a load and a store. The functions here write the LLVM IR
that makes elements of another data type of them, with scales, zero points and accumulation if wanted. Which
bits must come out is fixed by :mod:`relayout.convert`, in NumPy; this is the fast side of that definition.

Elements in registers are in *storage form*, integers as wide as the type: ``<16 x i32>`` holds sixteen f32 as
well as sixteen s32. 4-bit elements take a byte each, s4 with its sign extended, u4 with zeros. Converting 16
numbers from s8 to f32, for example, is

>>> from relayout.ir.builder import Builder
>>> from relayout.targets.machine import machine
>>> b = Builder(machine("x86-64-v3"))
>>> convert(b, Value("%x", vector(16, I8)), dtype("s8"), dtype("f32"))
<16 x i32> %v3
>>> print(b.body())
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

:func:`rescale` puts its steps on the carrier: float or double as :func:`arithmetic_type` tells.

Quantising without a division
=============================

The definition divides by the destination scale, and a division takes as long as ten other instructions. To
multiply by the reciprocal is not the same: it is rounded, and next to a tie that shows.

In float the reciprocal is given as two numbers, its first digits and those that follow. With a fused
multiply-add the product has the bits of the quotient, but for one number of 2**23 at most, and that is known
when a scale is given: :mod:`relayout.reorder.quotients` has the proof, and looks at it.

What must be divided becomes NaN then: a scale for which that one number matters has a rest of NaN. NaN is
looked for in what becomes of it, the smallest s32, which costs two instructions for 64 numbers; so are
numbers beyond s32. Whatever is found is divided, vector by vector.

In double, where results are rounded to something shorter, f32 for example, there are no bits to spare for
that. But the products with the doubles just below and above 1 / scale enclose the quotient, and whatever
grows with its argument, adding a zero point, rounding and saturating, keeps that. If both ends become the
same, so does what is in between: no bounds of errors are needed. Else the vector is divided, once in some
hundred million numbers. Where scales are powers of two the reciprocal is exact, and nothing is ever divided.
A division of doubles takes as long as all the rest of a normalised picture twice over.

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
* To find NaN among f32 that become bf16 takes three instructions of eleven. With AVX2, where there is no
  instruction that rounds, two registers are looked through by one comparison, and none is expected to have
  one (:func:`_bf16_by_integers`).
* Saturating packs on AVX work in lanes of 128 bits. LLVM puts the lanes in order after every one of them; one
  permutation at the end does it for all (:func:`_packed`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Final

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError
from relayout.ir.builder import Builder
from relayout.ir.types import (
    BFLOAT,
    DOUBLE,
    FLOAT,
    HALF,
    I1,
    I8,
    I16,
    I32,
    I64,
    Type,
    Value,
    constant,
    integer,
    poison,
    vector,
)
from relayout.ir.vectors import cut, join
from relayout.records import dataclass, replace
from relayout.targets.machine import Machine

__all__ = [
    "LEARNT",
    "LINES",
    "MIDDLES",
    "MISSING",
    "RECIPROCALS",
    "Steps",
    "arithmetic_type",
    "check_count",
    "convert",
    "deals",
    "flushed",
    "follows_lines",
    "from_f32",
    "multiplies",
    "on_lines",
    "rescale",
    "rounds_up",
    "to_f32",
]

F64, F32, F16, BF16, E4M3, E5M2 = map(dtype, ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"))
S64, S32, S16, S8, U8 = map(dtype, ("s64", "s32", "s16", "s8", "u8"))
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)
LARGEST_FLOAT_BELOW_2_31: Final = 2**31 - 2**7
LARGEST_DOUBLE_BELOW_2_63: Final = 2.0**63 - 2.0**10
MANTISSA_AND_BIAS: Final = {F16: (10, 15), E4M3: (3, 7), E5M2: (2, 15)}
BF16_HOLDS: Final = (E4M3, E5M2, S8, U8, dtype("s4"), dtype("u4"))
RECIPROCALS: Final = "dst_reciprocal_first", "dst_reciprocal_second"
"""Two numbers for each scale of the destination: in double they enclose its reciprocal, in float they are the
digits of it."""

LINES: Final = "line_slope", "line_slope_rest", "line_start", "line_start_rest"
"""Numbers in f32 for each line on which bytes lie: see :mod:`relayout.reorder.lines`."""
MISSING: Final = "line_missing"
"""A number in f32, NaN if there is not a line for all bytes."""
MIDDLES: Final = "bf16_middles"
"""A number in f32, NaN if the result of some byte lies in the middle of two bf16, and the lower is even."""
LEARNT: Final = *LINES, MISSING, MIDDLES
"""What is found out about bytes when the values of attributes are given."""


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


def arithmetic_type(src: DType, dst: DType, steps: Steps) -> Type:
    """The type of the steps between two data types, float or double.

    It is that of :func:`relayout.convert.arithmetic_types`.

    >>> arithmetic_type(dtype("s8"), dtype("s32"), Steps(src_scale=True))
    float
    >>> arithmetic_type(dtype("s8"), dtype("s32"), Steps(beta=True))
    double
    """
    wide = steps.src_shift or {src, dst} & {F64, S64} or src is S32 or (steps.beta and dst is S32)
    return DOUBLE if wide else FLOAT


def multiplies(src: DType, dst: DType, steps: Steps) -> bool:
    """Whether kernels multiply by :data:`RECIPROCALS` rather than divide, where they can.

    Results must be coarser than the arithmetic: a product seldom tells too little then.

    >>> [multiplies(dtype("f32"), dtype(name), Steps(dst_scale=True)) for name in ("s8", "s16", "f32")]
    [True, False, False]
    >>> multiplies(dtype("u8"), dtype("f32"), Steps(src_shift=True, dst_scale=True))
    True
    """
    if not steps.dst_scale:
        return False
    if arithmetic_type(src, dst, steps) is DOUBLE:
        return dst.bits < 64
    return not dst.is_float and dst.bits <= 8


def follows_lines(src: DType, dst: DType, steps: Steps) -> bool:
    """Whether results of bytes are few numbers on a line, which f32 finds, where the steps are in f64.

    >>> u8, f32, shift = dtype("u8"), dtype("f32"), Steps(src_shift=True)
    >>> follows_lines(u8, f32, shift), follows_lines(f32, f32, shift), follows_lines(u8, f32, Steps())
    (True, False, False)
    """
    narrow = src in (U8, S8) and dst in (F32, F16, BF16)
    return narrow and arithmetic_type(src, dst, steps) is DOUBLE and not steps.beta


def rounds_up(src: DType, dst: DType, steps: Steps) -> bool:
    """Whether bf16 is rounded by adding half a unit, where no byte's result is to be rounded otherwise.

    Of what is rounded to the nearest, only what lies in the middle of two is rounded to the even one, and
    which of 256 results do so is known when the values of attributes are given
    (:func:`relayout.reorder.lines.middles`).

    >>> u8, bf16, scale = dtype("u8"), dtype("bf16"), Steps(src_zero_point=True, src_scale=True)
    >>> rounds_up(u8, bf16, scale), rounds_up(dtype("s16"), bf16, scale), rounds_up(u8, bf16, Steps())
    (True, False, False)
    """
    return src in (U8, S8) and dst is BF16 and _scales_integers(src, steps)


def on_lines(
    b: Builder,
    value: Value,
    src: DType,
    dst: DType,
    operands: Mapping[str, Value],
    missing: Value,
    others: Callable[[], Value],
) -> Value:
    """Write the conversion of bytes that lie on lines.

    Parameters are those of :func:`convert`; and

    Parameters
    ----------
    operands : mapping of str to Value
        Vectors of f32: those of :data:`LINES`.
    missing : Value
        The number :data:`MISSING`.
    others : callable
        Writes the conversion step by step.
    """
    x, (slope, more, start, rest) = _to_float(b, value, src), (operands[name] for name in LINES)
    y = b.fadd(b.fma(x, slope, start), b.fma(x, more, rest))
    pairs = dst is BF16 and _pairs_up(b, y)
    found = _bf16_rounded_up(b, y, False) if pairs else _from_float(b, y, dst)
    return b.unless(b.fcmp("uno", missing, missing), found, others)


def deals(machine: Machine, src: DType, dst: DType, steps: Steps) -> int:
    """From how many registers of 32 bits packs make one, where :func:`rescale` may leave their order; else 0.

    That is with AVX2, which has no instruction that picks bytes of several lanes.

    >>> from relayout.targets.machine import machine
    >>> avx2, f32 = machine("x86-64-v3"), dtype("f32")
    >>> [deals(avx2, f32, dtype(name), Steps()) for name in ("s8", "bf16", "f16")]
    [4, 2, 0]
    >>> deals(machine("x86-64-v4"), f32, dtype("s8"), Steps())
    0
    """
    packs = dst is BF16 or (not dst.is_float and dst.bits <= 8)
    if not (machine.is_avx2 and packs) or arithmetic_type(src, dst, steps) is DOUBLE:
        return 0
    return 32 // max(8, dst.bits) if src.is_float or dst is BF16 or steps.any else 0


def convert(b: Builder, value: Value, src: DType, dst: DType, dealt: bool = False) -> Value:
    """Write the conversion of a vector; the rules are those of :func:`relayout.convert.convert`.

    What is said here of parameters, result and errors holds for :func:`rescale`, too.

    Parameters
    ----------
    b : Builder
        The function that is being written, with the processor that it is compiled for.
    value : Value
        Elements of ``src`` in storage form: 1, 2, 4, 8, 16, 32 or 64. More than a register holds is split by
        LLVM. Integers that become floats may be as wide as 32 bits already.
    src, dst : DType
        From which type to which. The same twice is no code at all.
    dealt : bool
        Where :func:`deals` says of how many registers: whether the result may stay in the order in which
        packs leave it. Each of its registers has the first lanes of these, one behind the other, then the
        second ones. So nothing has to be put in order if whoever gives the elements deals them out to
        registers accordingly, or goes on with lanes.

    Returns
    -------
    Value
        Elements of ``dst`` in storage form.

    Raises
    ------
    LayoutError
        There are not so many elements.

    Examples
    --------
    >>> from relayout.targets.machine import machine
    >>> b = Builder(machine("x86-64-v3"))
    >>> convert(b, Value("%x", vector(8, I8)), dtype("u8"), dtype("s8"))
    <8 x i8> %v2
    >>> print(b.body())
      %v1 = icmp ult <8 x i8> %x, splat (i8 127)
      %v2 = select <8 x i1> %v1, <8 x i8> %x, <8 x i8> splat (i8 127)
    """
    check_count(value)
    if src is dst:
        return value
    if not (src.is_float or dst.is_float):
        return _saturated(b, value, src, dst)
    if src is E5M2 and dst is F16:
        return _f16_from_e5m2(b, value)
    if src is F16 and dst is E5M2:
        nan = b.icmp("ugt", b.and_(value, 0x7FFF), 0x7C00)
        return b.trunc(b.lshr(_rounded_half(b, value, nan), 8), I8)
    if {src, dst} & {F64, S64} or (src is S32 and dst is BF16):
        if src is S64 and dst is not F64:
            value = _s64_to_odd(b, value)
        return _from_double(b, _to_double(b, value, src), dst)
    real = _to_float(b, value, src)
    if dst is BF16 and src in BF16_HOLDS:
        return _upper_half(b, b.bits(real), dealt)
    return _from_float(b, real, dst, dealt)


def rescale(
    b: Builder,
    value: Value,
    src: DType,
    dst: DType,
    steps: Steps,
    operands: Mapping[str, Value],
    old: Value | None = None,
    divisor: Callable[[], Value] | None = None,
    dealt: bool = False,
    middles: Value | None = None,
) -> Value:
    """Write a conversion with attributes; the rules are those of :func:`relayout.convert.rescale`.

    Every step that takes part is taken, whether or not its operand turns out to be neutral
    (``keep_neutral=True``). With no steps this is :func:`convert`, which describes all that is not said
    here.

    Parameters
    ----------
    steps : Steps
        Which attributes take part.
    operands : mapping of str to Value
        For each of them, by the name of its field, a vector of :func:`arithmetic_type`, already rounded to
        that type. Scales and zero points are finite. Perhaps also both :data:`RECIPROCALS`, as
        :mod:`relayout.reorder.quotients` makes them of dst_scale. They are used where :func:`multiplies` says
        that they pay, and the vector fills a register.
    old : Value, optional
        The old elements of the destination, in storage form; read where ``steps.beta``.
    divisor : callable, optional
        Writes what loads the operand "dst_scale", which is not given then: few vectors need it.
    middles : Value, optional
        The number :data:`MIDDLES`.

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
    >>> b, steps = Builder(machine("x86-64-v3")), Steps(src_zero_point=True, src_scale=True)
    >>> given = {name: Value(f"%{name}", vector(8, FLOAT)) for name in ("src_zero_point", "src_scale")}
    >>> _ = rescale(b, Value("%x", vector(8, I8)), dtype("u8"), dtype("f32"), steps, given)
    >>> print(b.body())
      %v1 = zext <8 x i8> %x to <8 x i32>
      %v2 = sitofp <8 x i32> %v1 to <8 x float>
      %v3 = fsub <8 x float> %v2, %src_zero_point
      %v4 = fmul <8 x float> %src_scale, %v3
      %v5 = bitcast <8 x float> %v4 to <8 x i32>
    """
    if not steps.any:
        return convert(b, value, src, dst, dealt)
    given = {*operands} | ({"dst_scale"} if divisor else set())
    missing = [name for name, takes_part in vars(steps).items() if takes_part and name not in given]
    if missing or (steps.beta and old is None):
        what = ", ".join([*missing, *(["old"] if steps.beta and old is None else [])])
        raise LayoutError(f"the steps from {src} to {dst} need operands that are not given: {what}")
    check_count(value)
    kind = arithmetic_type(src, dst, steps)
    onto = _to_double if kind is DOUBLE else _to_float
    off = _from_double if kind is DOUBLE else partial(_from_float, dealt=dealt)
    x = onto(b, value, src)
    if steps.src_zero_point:
        x = b.fsub(x, operands["src_zero_point"])
    if steps.src_scale:
        x = b.fmul(operands["src_scale"], x)
    if steps.src_shift:
        x = b.fsub(x, operands["src_shift"])
    if steps.beta and old is not None:
        x = b.fadd(x, b.fmul(operands["beta"], onto(b, old, dst)))

    def shifted(x: Value) -> Value:
        return b.fadd(x, operands["dst_zero_point"]) if steps.dst_zero_point else x

    def divided() -> Value:
        scale = divisor() if divisor else operands["dst_scale"]
        return off(b, shifted(b.fdiv(x, scale)), dst)

    if not steps.dst_scale:
        if dst is BF16 and _has_bf16(b, x) and _scales_integers(src, steps) and kind is FLOAT:
            return _bf16_at_once(b, x, operands["src_scale"])
        if dst is BF16 and _pairs_up(b, x) and _scales_integers(src, steps) and kind is FLOAT:
            if middles is None:
                return _bf16_in_pairs(b, x, dealt)
            usual = _bf16_rounded_up(b, x, dealt)
            return b.unless(b.fcmp("uno", middles, middles), usual, lambda: _bf16_in_pairs(b, x, dealt))
        return off(b, shifted(x), dst)
    if not all(name in operands for name in RECIPROCALS) or not _fills(b, x, src, dst, steps):
        return divided()
    if kind is DOUBLE:
        one, other = (off(b, shifted(b.fmul(x, operands[name])), dst) for name in RECIPROCALS)
        return b.unless(b.any(b.icmp("ne", one, other)), other, divided)
    first, rest = (operands[name] for name in RECIPROCALS)
    rare, found = _usual_integers(b, shifted(b.fma(x, first, b.fmul(x, rest))), dst, dealt)
    return b.unless(rare, found, divided)


def to_f32(b: Builder, value: Value, src: DType) -> Value:
    """Elements in storage form as vectors of f32 to compute with."""
    return b.real(convert(b, value, src, F32))


def from_f32(b: Builder, x: Value, dst: DType, flushes: bool = False, near: bool = False) -> Value:
    """Vectors of f32 that were computed with, in storage form.

    With ``flushes`` bf16 that would be subnormal may become 0, which saves to look for them. With ``near``
    all of them are known to be numbers that s32 can hold, which saves a bound in front of integers.
    """
    if near and not dst.is_float and dst.bits <= 8 and _is_x86(b.machine):
        return _saturated(b, _cvtps2dq(b, x), S32, dst)
    if flushes and dst is BF16 and _has_bf16(b, x):
        return _bf16_flushed(b, x)
    return convert(b, b.bits(x), F32, dst)


def check_count(x: Value) -> None:
    """Refuse vectors that are not of a power of two of elements."""
    if x.type.count not in COUNTS:
        raise LayoutError(f"vectors have a power of two from 1 to 64 elements, not {x.type.count}")


# --- integers to integers ----------------------------------------------------------------------------------


def _storage_bits(kind: DType) -> int:
    return max(8, kind.bits)


def _saturated(
    b: Builder, x: Value, src: DType, dst: DType, most: int | None = None, dealt: bool = False
) -> Value:
    """Integers, cut to the range of the other type; ``most`` is the largest that they can be."""
    most = int(src.max) if most is None else most
    if src is S32 and dst.bits <= 16:
        near = {16: S16, 8: dst, 4: S8 if dst.is_signed else U8}[dst.bits]
        packed = _packed(b, x, near, dealt)
        if packed is not None:
            return packed if near is dst else _saturated(b, packed, near, dst, min(most, int(near.max)))
    sign = "s" if src.is_signed else "u"
    if dst.min > src.min:
        x = b.pick(f"{sign}gt", x, dst.min)
    if dst.max < most:
        x = b.pick(f"{sign}lt", x, dst.max)
    return b.resize(x, _storage_bits(dst), src.is_signed)


def _packed(b: Builder, x: Value, dst: DType, dealt: bool = False) -> Value | None:
    """Saturate s32 to s16, s8 or u8 by AVX packs; None where those are not better than what LLVM finds."""
    parts = _packs(b, x, dst)
    if parts is None:
        return None
    return join(b, parts) if dealt else _in_order(b, parts, dst)


def _packs(b: Builder, x: Value, dst: DType) -> list[Value] | None:
    """Registers of s16, s8 or u8 by AVX packs, not yet in order; None where these are of no use.

    A pack works in lanes of 128 bits. With lanes of four, A B C D being registers of two lanes::

        A0 A1, B0 B1, C0 C1, D0 D1  ->  A0 B0 A1 B1, C0 D0 C1 D1  ->  A0 B0 C0 D0 A1 B1 C1 D1
    """
    width = b.machine.vector // 4  # s32 in a register
    if not _is_x86(b.machine) or width == 4 or x.type.count < 32 // dst.bits * width:
        return None
    parts = _pairwise(b, cut(b, x, width), "packssdw")
    return _pairwise(b, parts, _pack_to(dst)) if dst.bits == 8 else parts


def _packs_to_bytes(b: Builder, x: Value) -> bool:
    """Whether as many words fill a register of bytes."""
    return x.type.count >= b.machine.vector > 16


def _pack_to(dst: DType) -> str:
    """The pack of s16 to bytes."""
    return "packsswb" if dst.is_signed else "packuswb"


def _in_order(b: Builder, parts: Sequence[Value], dst: DType) -> Value:
    """What packs have made, in order: chunk ``lane * registers + register`` belongs at the place
    ``register * lanes + lane``.
    """
    lanes, together = b.machine.vector // 16, 32 // dst.bits
    order = [lane * together + register for register in range(together) for lane in range(lanes)]
    chunks = vector(lanes * together, integer(128 // together))
    ordered = [b.shuffle(b.bitcast(part, chunks), order) for part in parts]
    return join(b, [b.bitcast(part, parts[0].type) for part in ordered])


def _pairwise(b: Builder, parts: Sequence[Value], pack: str) -> list[Value]:
    kind = parts[0].type
    name = f"llvm.x86.avx512.{pack}.512" if kind.bytes == 64 else f"llvm.x86.avx2.{pack}"
    result = vector(2 * kind.count, integer(kind.bits // 2))
    return [b.call_value(result, name, one, two) for one, two in zip(parts[::2], parts[1::2], strict=True)]


# --- onto the carrier --------------------------------------------------------------------------------------


def _to_double(b: Builder, x: Value, src: DType) -> Value:
    """As double: exact, but for s64, which is rounded to nearest."""
    if src is F64:
        return b.real(x)
    if src is S64 or src is S32:
        return b.sitofp(x, DOUBLE)
    return b.fpext(_to_float(b, x, src), DOUBLE)


def _to_float(b: Builder, x: Value, src: DType) -> Value:
    """As float: exact, but for s32, which is rounded to nearest."""
    if not src.is_float:
        wide = b.resize(x, 32, src.is_signed)
        return b.sitofp(wide, FLOAT)
    if src is F32:
        return b.real(x)
    if src is BF16:
        return b.real(b.shl(b.resize(x, 32), 16))
    if not _has_half(b.machine):
        return _float_by_integers(b, x, src)
    if src is E4M3:
        return _float_from_e4m3(b, x)
    half = b.shl(b.resize(x, 16), 8) if src is E5M2 else x
    return b.fpext(b.real(half), FLOAT)


def _float_from_e4m3(b: Builder, x: Value) -> Value:
    """By way of half, whose bias is 8 larger: with exponent and mantissa in place it is the value / 2**8."""
    wide = b.shl(b.resize(x, 16, True), 7)
    bits = b.and_(wide, 0xBF80 - 0x10000)
    nan = b.icmp("eq", b.and_(wide, 0x3F80), 0x3F80)
    to_nan = b.select(nan, 0x3F80 ^ 0x7E00, 0, x.type.of(I16))
    half = b.real(b.xor(bits, to_nan))
    return b.fmul(b.fpext(half, FLOAT), 2.0**8)


def _float_by_integers(b: Builder, x: Value, src: DType) -> Value:
    """As float, from f16 or f8, without half.

    Exponent and mantissa are moved into place and the bias is changed. Subnormal numbers lack the leading 1;
    they get it, as if they had exponent 1, and it is subtracted again.
    """
    mantissa, bias = MANTISSA_AND_BIAS[src]
    wide = b.resize(x, 32)
    magnitude = b.and_(wide, (1 << (src.bits - 1)) - 1)
    shifted = b.shl(magnitude, 23 - mantissa)
    normal = b.add(shifted, (127 - bias) << 23)
    with_one = b.real(b.add(shifted, (128 - bias) << 23))
    subnormal = b.bits(b.fsub(with_one, 2.0 ** (1 - bias)))
    is_subnormal = b.icmp("ult", magnitude, 1 << mantissa)
    bits = b.select(is_subnormal, subnormal, normal)
    if src is E4M3:
        bits = b.select(b.icmp("eq", magnitude, 0x7F), 0x7FC00000, bits)
    else:
        infinity = 31 << mantissa
        special = b.or_(shifted, 0x7F800000)
        bits = b.select(b.icmp("uge", magnitude, infinity), special, bits)
        nan = b.icmp("ugt", magnitude, infinity)
        bits = b.or_(bits, b.select(nan, 0x400000, 0, x.type.of(I32)))
    sign = b.shl(b.and_(wide, 1 << (src.bits - 1)), 32 - src.bits)
    return b.real(b.or_(bits, sign))


def _f16_from_e5m2(b: Builder, x: Value) -> Value:
    bits = b.shl(b.resize(x, 16), 8)
    nan = b.icmp("ugt", b.and_(bits, 0x7FFF), 0x7C00)
    return b.or_(bits, b.select(nan, 0x200, 0, x.type.of(I16)))


def _s64_to_odd(b: Builder, x: Value) -> Value:
    """Round s64 to odd at bit 12 where it has more bits than double holds.

    What remains fits in double, and still has more bits than any shorter floating-point type can use.
    """
    cut_off = b.icmp("ne", b.and_(x, 0xFFF), 0)
    odd = b.or_(b.and_(x, ~0xFFF), b.select(cut_off, 0x1000, 0, x.type.of(I64)))
    fits = b.icmp("ult", b.add(x, 2**53), 2**54)
    return b.select(fits, x, odd)


# --- off the carrier ---------------------------------------------------------------------------------------


def _from_double(b: Builder, x: Value, dst: DType) -> Value:
    """Round double to a type, once."""
    if dst is F64:
        return b.bits(x)
    if dst is F32:
        return b.bits(b.fptrunc(x, FLOAT))
    if dst is BF16:
        return _bf16_from_double(b, x)
    if dst.is_float:
        return _from_float(b, _float_to_odd(b, x), dst)
    if dst is S64:
        return _nearest_s64(b, x)
    return _integer(b, x, dst)


def _from_float(b: Builder, x: Value, dst: DType, dealt: bool = False) -> Value:
    """Round float to a type, once. To f64 and s64 it is never asked."""
    if not dst.is_float:
        return _integer(b, x, dst, dealt)
    if dst is F16 and _has_half(b.machine):
        return b.bits(b.fptrunc(x, HALF))
    bits = b.bits(x)
    if dst is F32:
        return bits
    if dst is BF16:
        return _bf16_at_once(b, x) if _has_bf16(b, x) else _bf16_by_integers(b, x, dealt)
    return _small_by_integers(b, bits, dst)


def _bf16_by_integers(b: Builder, x: Value, dealt: bool = False) -> Value:
    """By adding to the bits; whole registers of AVX2 and AVX-512 are looked at for NaN, two at a time.

    A comparison tells NaN in either of its operands. So there is one for 16 numbers, where making those quiet
    takes six instructions.
    """
    if not _pairs_up(b, x):
        return _bf16_of_any(b, x, dealt)
    parts = cut(b, x, b.machine.vector // 4)
    nan = [b.fcmp("uno", one, two) for one, two in zip(parts[::2], parts[1::2], strict=True)]
    usual = _bf16_in_pairs(b, x, dealt)
    return b.unless(b.any(reduce(b.or_, nan)), usual, lambda: _bf16_of_any(b, x, dealt))


def _bf16_of_any(b: Builder, x: Value, dealt: bool) -> Value:
    """By adding to the bits, NaN made quiet."""
    nan = b.fcmp("uno", x, x)
    return _upper_half(b, _rounded_half(b, b.bits(x), nan), dealt)


def _pairs_up(b: Builder, x: Value) -> bool:
    """Whether bf16 is made of two registers of float: by AVX2, and AVX-512 that can't round to it."""
    by_adding = b.machine.vector == 64 and not b.machine.has("avx512bf16") and _is_x86(b.machine)
    return (b.machine.is_avx2 or by_adding) and x.type.count >= b.machine.vector // 2


def _bf16_in_pairs(b: Builder, x: Value, dealt: bool) -> Value:
    """What is no NaN, from two registers of float at a time.

    Their upper and their lower halves are packed first, and rounding is done for 16 numbers at once: one is
    added if the lower half is more than 2**15, or just that and the upper half is odd. In other words, if it
    has its highest bit even with one less, where the upper half is even.

    AVX-512 adds to some lanes and not to others: three operations for a register, and no packs.
    """
    made = []
    parts = [b.bits(part) for part in cut(b, x, b.machine.vector // 4)]
    if not b.machine.is_avx2:
        return _upper_halves(b, [_to_even(b, part) for part in parts])
    for pair in zip(parts[::2], parts[1::2], strict=True):
        (upper,) = _pairwise(b, [b.lshr(part, 16) for part in pair], "packusdw")
        (lower,) = _pairwise(b, [b.and_(part, 0xFFFF) for part in pair], "packusdw")
        even = b.and_(b.xor(upper, -1), 1)
        up = b.ashr(b.intrinsic("usub.sat", lower, even), 15)
        made.append(b.sub(upper, up))
    return join(b, made) if dealt else _in_order(b, made, S16)


def _bf16_rounded_up(b: Builder, x: Value, dealt: bool) -> Value:
    """What is no NaN, and lies in no middle below which bf16 is even, two registers of float at a time.

    That takes five instructions for 16 numbers, and :func:`_bf16_in_pairs` takes ten.
    """
    parts = cut(b, x, b.machine.vector // 4)
    if not b.machine.is_avx2:
        return _upper_halves(b, [b.add(b.bits(part), 0x8000) for part in parts])
    parts = [b.lshr(b.add(b.bits(part), 0x8000), 16) for part in parts]
    made = [_pairwise(b, list(pair), "packusdw")[0] for pair in zip(parts[::2], parts[1::2], strict=True)]
    return join(b, made) if dealt else _in_order(b, made, S16)


def _to_even(b: Builder, bits: Value) -> Value:
    """The bits of f32 with half a unit of bf16 added, or one less where the upper half is even."""
    odd = b.icmp("ne", b.and_(bits, 0x10000), 0)
    return b.select(odd, b.add(bits, 0x8000), b.add(bits, 0x7FFF))


def _upper_halves(b: Builder, parts: Sequence[Value]) -> Value:
    """Those of registers of words: one permutation for two, where LLVM makes five operations of shifts."""
    made, halves = [], vector(2 * parts[0].type.count, I16)
    for one, two in zip(parts[::2], parts[1::2], strict=True):
        upper = range(1, 2 * halves.count, 2)
        made.append(b.shuffle(b.bitcast(one, halves), upper, b.bitcast(two, halves)))
    return join(b, made)


def _scales_integers(src: DType, steps: Steps) -> bool:
    """Whether results are multiples of the source's scale: subnormal only if that is."""
    return not src.is_float and replace(steps, src_zero_point=False) == Steps(src_scale=True)


def _bf16_at_once(b: Builder, x: Value, scale: Value | None = None) -> Value:
    """By x86's instruction, which flushes subnormal numbers: vectors with such are done by integers.

    ``scale``: what none of the numbers but 0 is smaller than; often that is one number, looked at once.
    """
    subnormal = constant(I32, 32)
    found = [
        b.call_value(vector(16, I1), "llvm.x86.avx512.fpclass.ps.512", part, subnormal)
        for part in cut(b, x if scale is None else scale, 16)
    ]
    some = b.any(reduce(b.or_, found))
    return b.unless(some, _bf16_flushed(b, x), lambda: _bf16_by_integers(b, x))


def _bf16_flushed(b: Builder, x: Value) -> Value:
    """By the instruction alone."""
    parts = cut(b, x, 16)
    if len(parts) == 1:
        halves = [b.call_value(vector(16, BFLOAT), "llvm.x86.avx512bf16.cvtneps2bf16.512", x)]
    else:
        halves = [
            b.call_value(vector(32, BFLOAT), "llvm.x86.avx512bf16.cvtne2ps2bf16.512", two, one)
            for one, two in zip(parts[::2], parts[1::2], strict=True)
        ]
    return join(b, [b.bits(half) for half in halves])


def _bf16_from_double(b: Builder, x: Value) -> Value:
    """By way of the nearest float, unless one of these is half-way between two bf16.

    Only there can a second rounding go wrong, since whatever lies on one side of such a middle stays there in
    float. It happens to one in some thousand vectors, and these are rounded to odd.
    """
    nearest = b.fptrunc(x, FLOAT)
    lower = b.and_(b.bits(nearest), 0xFFFF)
    middle = b.icmp("eq", lower, 0x8000)
    found = _from_float(b, nearest, BF16)
    return b.unless(b.any(middle), found, lambda: _from_float(b, _float_to_odd(b, x), BF16))


def _float_to_odd(b: Builder, x: Value) -> Value:
    """Round double to odd in float.

    From the nearest float, one step towards zero where that is farther away; then, if anything was cut off,
    the last bit is set. Infinity steps back to the largest number. NaN may lose the last bit of its payload,
    which no shorter type keeps.
    """
    nearest = b.fptrunc(x, FLOAT)
    back = b.fpext(nearest, DOUBLE)
    farther = b.fcmp("ogt", _magnitude(b, back), _magnitude(b, x))
    inexact = b.fcmp("une", back, x)
    bits = b.bits(nearest)
    bits = b.add(bits, b.sext(farther, I32))
    bits = b.or_(bits, b.zext(inexact, I32))
    return b.real(bits)


def _magnitude(b: Builder, x: Value) -> Value:
    bits = b.and_(b.bits(x), 2**63 - 1)
    return b.real(bits)


def _integer(b: Builder, x: Value, dst: DType, dealt: bool = False) -> Value:
    """Round to integers of at most 32 bits."""
    high = LARGEST_FLOAT_BELOW_2_31 if dst is S32 and x.type.bits == 32 else int(dst.max)
    most = high if _is_x86(b.machine) else None
    return _saturated(b, _nearest(b, x, dst, high), S32, dst, most, dealt)


def _fills(b: Builder, x: Value, src: DType, dst: DType, steps: Steps) -> bool:
    """Whether a quotient may be a product, and the vector fills a register; one of SSE's packs slowly."""
    fills = x.type.bytes >= b.machine.vector and (b.machine.vector >= 32 or not _is_x86(b.machine))
    fused = b.machine.fuses or arithmetic_type(src, dst, steps) is DOUBLE
    return fills and fused and multiplies(src, dst, steps)


def _usual_integers(b: Builder, x: Value, dst: DType, dealt: bool = False) -> tuple[Value, Value]:
    """Whether any number is unusual; and the integers of at most 8 bits that become of all others.

    On x86 NaN, and what is beyond s32, becomes the smallest s32, and the smallest s16 when it is packed. So
    whatever that becomes is unusual, even if it would have been right.
    """
    if not _is_x86(b.machine):
        return b.any(b.fcmp("uno", x, x)), _integer(b, x, dst)
    near, found = S8 if dst.is_signed else U8, _cvtps2dq(b, x)
    halves = _packs(b, found, S16) if _packs_to_bytes(b, x) else None
    if not halves:
        return b.any(b.icmp("eq", found, int(S32.min))), _saturated(b, found, S32, dst, dealt=dealt)
    if b.machine.is_avx2:  # one comparison for all
        smallest = [b.icmp("eq", reduce(partial(b.intrinsic, "smin"), halves), int(S16.min))]
    else:
        smallest = [b.icmp("eq", half, int(S16.min)) for half in halves]
    parts = _pairwise(b, halves, _pack_to(near))
    packed = join(b, parts) if dealt else _in_order(b, parts, near)
    found = packed if near is dst else _saturated(b, packed, near, dst)
    return b.any(reduce(b.or_, smallest)), found


def _nearest(b: Builder, x: Value, dst: DType, high: int) -> Value:
    """The nearest s32, where ``high`` is the largest for ``dst``, and NaN becomes 0 or what saturates to 0.

    For types smaller than s32 the result may lie beyond their range, where :func:`_saturated` cuts it.
    """
    if not _is_x86(b.machine):
        if dst is S32 and high < S32.max:
            x = b.select(b.fcmp("ogt", x, float(high)), float(high), x)
        return b.intrinsic("fptosi.sat", b.intrinsic("roundeven", x), result=x.type.of(I32))
    if x.type.bits == 32:
        above = b.fcmp("ogt", x, float(high))
        found = _cvtps2dq(b, b.select(above, float(high), x))
        return b.select(b.fcmp("ord", x, x), found, 0) if dst.is_signed else found
    if dst.is_signed:
        x = b.select(b.fcmp("ord", x, x), x, 0.0)
    else:
        x = b.pick("ogt", x, -0.0)  # LLVM makes two instructions of it with +0.0
    x = b.pick("olt", x, float(high))
    return b.intrinsic("lrint", b.pick("ogt", x, -(2.0**31)), result=x.type.of(I32))


def _nearest_s64(b: Builder, x: Value) -> Value:
    """Double to the nearest s64; the largest of them is no double, so it is put in afterwards."""
    if not _is_x86(b.machine):
        return b.intrinsic("fptosi.sat", b.intrinsic("roundeven", x), result=x.type.of(I64))
    above = b.fcmp("oge", x, 2.0**63)
    bounded = b.pick("olt", x, LARGEST_DOUBLE_BELOW_2_63)
    bounded = b.pick("ogt", bounded, -(2.0**63))
    bounded = b.select(b.fcmp("ord", x, x), bounded, 0.0)
    return b.select(above, 2**63 - 1, b.intrinsic("lrint", bounded, result=x.type.of(I64)))


def _cvtps2dq(b: Builder, x: Value) -> Value:
    """The nearest s32 by x86's instruction: what is below the range becomes the smallest."""
    width = max(4, min(b.machine.vector // 4, x.type.count))
    name = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256", 16: "avx512.mask.cvtps2dq.512"}[width]
    words = vector(width, I32)
    masked = [poison(words), constant(I16, -1), constant(I32, 4)] if width == 16 else []  # all, as usual
    parts = [b.call_value(words, f"llvm.x86.{name}", part, *masked) for part in cut(b, x, width)]
    return join(b, parts) if x.type.count >= width else cut(b, parts[0], x.type.count)[0]


def _rounded_half(b: Builder, bits: Value, nan: Value) -> Value:
    """Round at the middle of an f32 or f16: the upper half of the result is the bf16 or e5m2.

    Adding one less than half a unit, and one more if the last bit that stays is set, carries into the upper
    half exactly where rounding to nearest even goes up, into the exponent too. A NaN is made quiet instead.
    """
    half = bits.type.bits // 2
    quiet = {32: 0x400000, 16: 0x200}[bits.type.bits]
    odd = b.and_(b.lshr(bits, half), 1)
    rounded = b.add(b.add(bits, (1 << (half - 1)) - 1), odd)
    return b.select(nan, b.or_(bits, quiet), rounded)


def _upper_half(b: Builder, bits: Value, dealt: bool = False) -> Value:
    """The upper 16 bits of 32."""
    packed = _packed(b, b.ashr(bits, 16), S16, dealt)
    return packed or b.trunc(b.lshr(bits, 16), I16)


def _small_by_integers(b: Builder, bits: Value, dst: DType) -> Value:
    """Round the bits of f32 to f16 or f8.

    Normal numbers are rounded as in :func:`_rounded_half`. For subnormal ones a power of two is added, so
    large that the last bit of the sum is worth the smallest number of ``dst``; the addition rounds. What is
    too large, NaN included, becomes 65536, which rounds to infinity, or 480 for e4m3, whose pattern is NaN.
    """
    mantissa, bias = MANTISSA_AND_BIAS[dst]
    cut = 23 - mantissa
    magnitude = b.and_(bits, 0x7FFFFFFF)
    bounded = b.pick("ult", magnitude, 0x43F00000 if dst is E4M3 else 0x47800000)
    odd = b.and_(b.lshr(bounded, cut), 1)
    change_of_bias = (bias - 127) << 23
    rounded = b.add(bounded, change_of_bias + (1 << (cut - 1)) - 1)
    normal = b.lshr(b.add(rounded, odd), cut)
    exponent = 24 - bias - mantissa
    power = b.fadd(b.real(bounded), 2.0**exponent)
    subnormal = b.sub(b.bits(power), (exponent + 127) << 23)
    is_subnormal = b.icmp("ult", bounded, (128 - bias) << 23)
    result = b.select(is_subnormal, subnormal, normal)
    if dst is not E4M3:
        payload = b.and_(b.lshr(bits, cut), (1 << mantissa) - 1)
        quiet = b.or_(payload, 63 << (mantissa - 1))
        result = b.select(b.icmp("ugt", magnitude, 0x7F800000), quiet, result)
    sign = b.and_(b.lshr(bits, 32 - dst.bits), 1 << (dst.bits - 1))
    result = b.or_(result, sign)
    packed = _packed(b, result, U8) if dst.bits == 8 else None
    return packed or b.resize(result, dst.bits)


# --- processors --------------------------------------------------------------------------------------------


def _is_x86(machine: Machine) -> bool:
    return machine.triple.startswith("x86_64")


def _has_half(machine: Machine) -> bool:
    """Whether float and half are converted by instructions (x86: F16C, which comes with AVX2)."""
    if _is_x86(machine):
        return machine.vector >= 32 or "+f16c" in machine.features.split(",")
    return machine.triple.startswith(("aarch64", "arm64"))


def _has_bf16(b: Builder, x: Value) -> bool:
    return flushed(b.machine, x.type.count)


def flushed(machine: Machine, count: int) -> bool:
    """Whether so many f32 become bf16 by an instruction, for which subnormal numbers are 0."""
    return machine.vector == 64 and count >= 16 and machine.has("avx512bf16")
