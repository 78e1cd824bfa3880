"""Plans and texts for registers of 64 bytes, run by a processor whose registers have 32.

LLVM cuts wide vectors in halves by itself; only instructions that are named must be written as something
else. :func:`halved` does so for those of AVX-512 that kernels name without asking for an extension, and
:func:`widen` makes a process take itself for such a machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["Unknown", "halved", "widen"]


class Unknown(Exception):
    """An instruction that is not written as anything else here."""


NAMED = re.compile(r"@(llvm\.x86\.avx512[a-z0-9_.]*)")
HALVES = {
    "pmaddw.d.512": ("i32", ("i16", "i16"), "avx2.pmadd.wd"),
    "pmaddubs.w.512": ("i16", ("i8", "i8"), "avx2.pmadd.ub.sw"),
    "pmul.hr.sw.512": ("i16", ("i16", "i16"), "avx2.pmul.hr.sw"),
    "packssdw.512": ("i16", ("i32", "i32"), "avx2.packssdw"),
    "packusdw.512": ("i16", ("i32", "i32"), "avx2.packusdw"),
    "packsswb.512": ("i8", ("i16", "i16"), "avx2.packsswb"),
    "packuswb.512": ("i8", ("i16", "i16"), "avx2.packuswb"),
    "pshuf.b.512": ("i8", ("i8", "i8"), "avx2.pshuf.b"),
    "mask.cvtps2dq.512": ("i32", ("float",), "avx.cvt.ps2dq.256"),
}
"""What is the same on each half: the type of the result's elements, those of the operands, and the name."""
MASKED = {"mask.cvtps2dq.512": ("<16 x i32>", "i16", "i32")}  # further parameters, which change nothing

FLOOR = "declare <16 x float> @llvm.floor.v16f32(<16 x float>)"
WHOLE = {
    "mask.reduce.ps.512": (
        """define internal <16 x float> @reduce(<16 x float> %x, i32, <16 x float>, i16, i32) alwaysinline {
  %floor = call <16 x float> @llvm.floor.v16f32(<16 x float> %x)
  %rest = fsub <16 x float> %x, %floor
  %some = fcmp ord <16 x float> %rest, zeroinitializer
  %found = select <16 x i1> %some, <16 x float> %rest, <16 x float> zeroinitializer
  ret <16 x float> %found
}""",
        "@reduce",
    ),
    "mask.scalef.ps.512": (
        """declare <16 x float> @llvm.maxnum.v16f32(<16 x float>, <16 x float>)
declare <16 x float> @llvm.minnum.v16f32(<16 x float>, <16 x float>)
define internal <16 x float> @scaled(<16 x float> %x, <16 x float> %y, <16 x float>, i16, i32) alwaysinline {
  %floor = call <16 x float> @llvm.floor.v16f32(<16 x float> %y)
  %least = call <16 x float> @llvm.maxnum.v16f32(<16 x float> %floor, <16 x float> splat (float -252.0))
  %most = call <16 x float> @llvm.minnum.v16f32(<16 x float> %least, <16 x float> splat (float 254.0))
  %power = fptosi <16 x float> %most to <16 x i32>
  %one = ashr <16 x i32> %power, splat (i32 1)
  %two = sub <16 x i32> %power, %one
  %one.biased = add <16 x i32> %one, splat (i32 127)
  %two.biased = add <16 x i32> %two, splat (i32 127)
  %one.bits = shl <16 x i32> %one.biased, splat (i32 23)
  %two.bits = shl <16 x i32> %two.biased, splat (i32 23)
  %one.factor = bitcast <16 x i32> %one.bits to <16 x float>
  %two.factor = bitcast <16 x i32> %two.bits to <16 x float>
  %once = fmul <16 x float> %x, %one.factor
  %twice = fmul <16 x float> %once, %two.factor
  ret <16 x float> %twice
}""",
        "@scaled",
    ),
}
"""``x`` without its floor, as kernels ask for it, 0 of infinities; ``x`` times two to the floor of ``y``."""


def halved(ir: str) -> str:
    """A module without instructions of AVX-512.

    >>> print(halved("%v = call <64 x i8> @llvm.x86.avx512.pshuf.b.512(<64 x i8> %a, <64 x i8> %b)")[:72])
    %v = call <64 x i8> @halves.pshuf.b.512(<64 x i8> %a, <64 x i8> %b)
    decl
    """
    for name in sorted(set(NAMED.findall(ir))):
        short = name.removeprefix("llvm.x86.avx512.")
        ir = re.sub(rf"^declare .*@{re.escape(name)}\(.*$", "", ir, flags=re.MULTILINE)
        if short in HALVES:
            made, function = _by_halves(short), f"@halves.{short}"
        elif short in WHOLE:
            made, function = WHOLE[short]
            made = f"{FLOOR}\n{made}"
        else:
            raise Unknown(name)
        ir = ir.replace(f"@{name}(", f"{function}(")
        known = set(re.findall(r"^declare .*?(@[^(]*)\(", ir, re.MULTILINE))
        lines = [
            line
            for line in made.splitlines()
            if not (line.startswith("declare") and re.findall(r"@[^(]*", line)[0] in known)
        ]
        ir = "\n".join([ir, *lines, ""])
    return ir


def _by_halves(short: str) -> str:
    """The definition of an instruction that does the same to both halves."""
    result, operands, half = HALVES[short]
    bits = {"i8": 8, "i16": 16, "i32": 32, "float": 32}
    count = 512 // bits[result]
    wide = [f"<{512 // bits[one]} x {one}>" for one in operands]
    low = [f"<{256 // bits[one]} x {one}>" for one in operands]
    returned = f"<{count // 2} x {result}>"
    given = ", ".join([*(f"{one} %x{k}" for k, one in enumerate(wide)), *MASKED.get(short, ())])
    lines = [
        f"declare {returned} @llvm.x86.{half}({', '.join(low)})",
        f"define internal <{count} x {result}> @halves.{short}({given}) alwaysinline {{",
    ]
    for side in (0, 1):
        for k, one in enumerate(operands):
            some = 256 // bits[one]
            places = _numbers(range(side * some, (side + 1) * some))
            lines.append(
                f"  %x{k}.{side} = shufflevector {wide[k]} %x{k}, {wide[k]} poison, <{some} x i32> {places}"
            )
        each = ", ".join(f"{one} %x{k}.{side}" for k, one in enumerate(low))
        lines.append(f"  %y{side} = call {returned} @llvm.x86.{half}({each})")
    joined = f"shufflevector {returned} %y0, {returned} %y1, <{count} x i32> {_numbers(range(count))}"
    return "\n".join([*lines, f"  %y = {joined}", f"  ret <{count} x {result}> %y", "}"])


def _numbers(some: Sequence[int]) -> str:
    return f"<{', '.join(f'i32 {k}' for k in some)}>"


def widen() -> None:
    """Let this process have registers of 64 bytes, before it has asked for its machine."""
    from relayout.jit import compile as compile_
    from relayout.targets import machine as machines

    wide, guarded = machines.host()._replace(vector=64), compile_._guarded

    def without(module: compile_.Module, machine: machines.Machine) -> compile_.Module:
        made = guarded(module, machine)
        return made._replace(ir=halved(made.ir))

    machines.host = lambda: wide  # type: ignore[assignment]
    machines.Machine.permutes = lambda self, bits: False  # type: ignore[method-assign]
    compile_._guarded = without
