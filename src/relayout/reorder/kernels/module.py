"""All kernels of a reorder as one function.

``void reorder(ptr source, ptr destination, ptr operands, i64 part, i64 parts)`` does one of so many equal
shares of the work: of every nest, the part of its shared loop that falls to it. Parts are independent of each
other. A nest too small to share is done by part 0.

Where a kernel streams, it is there twice: lines are completed only where the destination begins on one.
"""

from __future__ import annotations

from collections.abc import Sequence

from relayout.codegen.ir import Writer
from relayout.codegen.machine import LINE, Machine
from relayout.codegen.values import DECLARATIONS
from relayout.reorder.kernels.base import Kernel
from relayout.reorder.kernels.choice import Plan
from relayout.reorder.kernels.pixels import Deinterleave, Interleave
from relayout.reorder.kernels.rows import Elements, Lines, Rows
from relayout.reorder.kernels.tiles import Staged, Transpose

__all__ = ["ENTRY", "KINDS", "module"]

ENTRY = "reorder"
KINDS: dict[str, type[Kernel]] = {
    "rows": Rows,
    "lines": Lines,
    "transpose": Transpose,
    "staged": Staged,
    "interleave": Interleave,
    "deinterleave": Deinterleave,
    "elements": Elements,
}
FOOTER = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
!0 = !{i32 1}
"""


def module(plans: Sequence[Plan], machine: Machine, streaming: bool) -> str:
    """The IR of a reorder: its kernels, and the function that shares them out."""
    texts = []
    streamed = []
    for k, plan in enumerate(plans):
        kernel = KINDS[plan.kind]
        texts.append(kernel(plan, machine, False, f"move{k}").function())
        if streaming and plan.streams(machine):
            streamed.append(k)
            texts.append(kernel(plan, machine, True, f"stream{k}").function())
    return "\n".join([*texts, _entry(plans, streamed), FOOTER, DECLARATIONS])


def _entry(plans: Sequence[Plan], streamed: list[int]) -> str:
    w = Writer()
    number = w.value("ptrtoint ptr %dst to i64")
    beyond = w.value(f"and i64 {number}, {LINE - 1}")
    on_line = w.value(f"icmp eq i64 {beyond}, 0")
    for k, plan in enumerate(plans):
        units = -(-plan.extent // plan.unit)
        lo, hi = (_cut(w, plan, units, part) for part in ("%part", w.value("add i64 %part, 1")))
        some = w.value(f"icmp slt i64 {lo}, {hi}")
        given = f"(ptr %src, ptr %dst, ptr %ops, i64 {lo}, i64 {hi})"
        if k not in streamed:
            w.when(some, lambda k=k, given=given: w.line(f"call void @move{k}{given}"))  # type: ignore[misc]
            continue
        for name, right in ((f"stream{k}", on_line), (f"move{k}", w.value(f"xor i1 {on_line}, true"))):
            now = w.value(f"and i1 {some}, {right}")
            w.when(now, lambda name=name, given=given: w.line(f"call void @{name}{given}"))  # type: ignore[misc]
    head = f"define void @{ENTRY}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts)"
    return f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"


def _cut(w: Writer, plan: Plan, units: int, part: str) -> str:
    """Where a part of the shared loop begins (or the one before it ends)."""
    share = w.value(f"mul i64 {part}, {units}")
    share = w.value(f"udiv i64 {share}, %parts")
    turns = w.value(f"mul i64 {share}, {plan.unit}")
    return w.value(f"call i64 @llvm.smin.i64(i64 {turns}, i64 {plan.extent})")
