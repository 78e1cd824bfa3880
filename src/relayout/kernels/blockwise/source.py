"""Rows of the source, cut into limbs: bytes that add up to their elements.

``void limbs(ptr src, ptr scratch, ptr, i64 part, i64 parts)`` does a share of the rows.

The exponent of a chunk is that of its largest magnitude, which is found among the bits: as integers, they are
in the order of magnitudes, with infinity and NaN on top. Then, for each element::

    q = round(x * 2**(22 - e))          |q| <= 2**22, where 2**e is above the largest magnitude
    limb0 = q mod 256 in -128 .. 127
    limb1 = (q - limb0) / 256           in the same range, and so on

With one limb, ``q = round(x * 127 / largest)``.

A chunk with an infinity or a NaN gets NaN as its factor, so that its row of the result is NaN: a sum in which
infinity takes part has no limbs. Factors are normal numbers: where the largest magnitude is below 2**-104,
elements are rounded to multiples of 2**-126, the smallest of these.
"""

from __future__ import annotations

from relayout.dtypes import dtype
from relayout.ir.builder import Function
from relayout.ir.conversions import from_f32, to_f32
from relayout.ir.kernel import kernel, tasks
from relayout.ir.types import FLOAT, I8, I32, Value, constant, integer, vector
from relayout.ir.vectors import load_pieces, pieces_of, reduce
from relayout.kernels.blockwise.plan import GROUP, NEAR, Plan

__all__ = ["SOURCE", "source_text"]

SOURCE = "limbs"
LEAST = 22  # the smallest exponent, as f32 stores it, whose factors are normal numbers
INFINITE = 0x7F800000
ONE_LIMB = 127.0


def source_text(plan: Plan) -> str:
    """The text of the kernel."""
    b = kernel(SOURCE, plan.machine)
    start, step = plan.src_at
    row_room = plan.chunks * plan.record
    whole = plan.inputs // plan.chunk
    last = plan.inputs - whole * plan.chunk

    def row(number: Value) -> None:
        src, to = b.gep(b.gep(b["src"], start), number, step), b.gep(b["dst"], number, row_room)
        size = plan.chunk * dtype(plan.src).bits // 8
        if whole:
            b.loop(0, whole, 1, lambda c: _chunk(b, plan, b.gep(src, c, size), b.gep(to, c, plan.record)))
        if last:
            _chunk(b, plan, b.gep(src, whole * size), b.gep(to, whole * plan.record), last)

    tasks(b, plan.rows, row)
    return b.text()


def _chunk(b: Function, plan: Plan, src: Value, to: Value, valid: int = 0) -> None:
    """One record; of a chunk with fewer inputs the rest is zero."""
    valid = valid or plan.chunk
    kind = dtype(plan.src)
    width = next(n for n in (plan.lanes, GROUP) if plan.chunk % n == 0)
    width = max(width, GROUP)
    whole = vector(width, I32)
    found: list[Value] = []
    for first in range(0, plan.chunk, width):
        count = min(width, valid - first)
        if count <= 0:
            break
        pieces = pieces_of(0, count, first * kind.bits // 8, kind.bits // 8)
        found.append(to_f32(b, load_pieces(b, vector(width, integer(kind.bits)), src, pieces), kind))
    sizes = [b.and_(b.bits(x), 0x7FFFFFFF) for x in found]
    while len(sizes) > 1:
        pairs = zip(sizes[::2], sizes[1::2], strict=False)
        sizes = [*(b.intrinsic("umax", *pair) for pair in pairs), *sizes[len(sizes) // 2 * 2 :]]
    largest = b.extract(reduce(b, sizes[0], lambda x, y: b.intrinsic("umax", x, y)), 0)
    if plan.limbs == 1:
        bound = b.intrinsic("umax", largest, constant(I32, 1 << 23))
        times = b.call_value(
            FLOAT, "llvm.minnum.f32", b.fdiv(ONE_LIMB, b.real(bound)), constant(FLOAT, 2.0**126)
        )
        factor = b.fdiv(constant(FLOAT, 1.0), times)
    else:
        exponent = b.intrinsic("umax", b.lshr(largest, 23), constant(I32, LEAST))
        times = b.real(b.shl(b.sub(127 + NEAR + 126, exponent), 23))
        factor = b.real(b.shl(b.sub(exponent, NEAR - 1), 23))
    factor = b.select(b.icmp("ult", largest, INFINITE), factor, float("nan"))
    spread = b.splat(times, width)
    totals = [constant(whole, 0)] * (1 if plan.fits else plan.limbs)
    evens = [k + at for k in range(0, width, GROUP) for at in (0, 2, 4, 6, 1, 3, 5, 7)]
    for number in range(plan.chunk // width):
        at = number * width
        if number >= len(found):
            for limb in range(plan.limbs):
                b.store(constant(vector(width, I8), 0), b.gep(to, limb * plan.chunk + at), 1)
            continue
        q = from_f32(b, b.fmul(found[number], spread), dtype("s32"))
        if plan.fits:
            totals = [b.add(totals[0], q)]
        for limb in range(plan.limbs):
            narrow = b.trunc(q, I8)
            if not plan.fits:
                totals[limb] = b.add(totals[limb], b.sext(narrow, I32))
            q = b.ashr(b.add(q, 128), 8) if limb + 1 < plan.limbs else q
            if plan.bits == 4:  # a word of weights has the inputs of even number in its lower halves
                narrow = b.shuffle(narrow, evens)
            b.store(narrow, b.gep(to, limb * plan.chunk + at), 1)
    end = b.gep(to, plan.limbs * plan.chunk)
    b.store(factor, end, 4)
    times_zero = -1 if plan.zeros else -plan.zero
    for limb, total in enumerate(totals):
        made = b.extract(reduce(b, total, b.add), 0)
        b.store(b.mul(made, times_zero), b.gep(end, 4 + 4 * limb), 4)
