"""All kernels of a reorder as one function, or two.

``void reorder(ptr source, ptr destination, ptr operands, i64 part, i64 parts)`` does one of so many equal
shares of the work: of every nest, the part of its shared loop that falls to it. Parts are independent of each
other. A nest too small to share is done by the last part.

Where a kernel streams, it is there twice: lines are completed only where the destination begins on one. And
there is a second function then, ``cached``, in which none streams: for destinations whose lines are in the
caches anyhow, because the system has just handed them out, zeroed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from relayout.ir.writer import Writer
from relayout.kernels.copy.base import Kernel
from relayout.kernels.copy.packing import Converted, Maker
from relayout.kernels.copy.pixels import Deinterleave, Interleave
from relayout.kernels.copy.plan import Plan
from relayout.kernels.copy.rows import Elements, Lines, Rows
from relayout.kernels.copy.tiles import Staged, Transpose
from relayout.kernels.copy.zeros import Hollow
from relayout.targets.machine import LINE, Machine

__all__ = ["CACHED", "ENTRY", "KINDS", "embedded", "kernel_of", "module"]

ENTRY = "reorder"
CACHED = "cached"
KINDS: dict[str, type[Kernel]] = {
    "rows": Rows,
    "lines": Lines,
    "transpose": Transpose,
    "staged": Staged,
    "interleave": Interleave,
    "deinterleave": Deinterleave,
    "elements": Elements,
}


def kernel_of(plan: Plan) -> Maker:
    """What writes the kernel of a plan."""
    if plan.steps:
        return partial(Converted, kernel_of)
    return Hollow if plan.group else KINDS[plan.kind]


def module(plans: Sequence[Plan], machine: Machine, streaming: bool) -> tuple[str, list[str]]:
    """The IR of a reorder, and the functions in it: :data:`ENTRY`, and :data:`CACHED` where that differs."""
    texts = []
    streamed = []
    for k, plan in enumerate(plans):
        kernel = kernel_of(plan)
        texts.append(kernel(plan, machine, False, f"move{k}").function())
        if streaming and plan.streams(machine):
            streamed.append(k)
            texts.append(kernel(plan, machine, True, f"stream{k}").function())
    texts.append(_entry(ENTRY, plans, streamed))
    if streamed:
        texts.append(_entry(CACHED, plans, []))
    names = [ENTRY, CACHED] if streamed else [ENTRY]
    return "\n".join(texts), names


def embedded(name: str, plans: Sequence[Plan], machine: Machine) -> str:
    """A reorder inside somebody else's module: ``void name(ptr src, ptr dst, ptr ops, i64 part, i64 parts)``.

    It does everything at once, whatever the last two arguments say, and writes around no cache.
    """
    texts, w = [], Writer()
    for k, plan in enumerate(plans):
        kernel = kernel_of(plan)
        texts.append(kernel(plan, machine, False, f"{name}{k}").function())
        w.line(f"call void @{name}{k}(ptr %src, ptr %dst, ptr %ops, i64 0, i64 {plan.extent})")
    head = f"define internal void @{name}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts)"
    return "\n".join([*texts, f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"])


def _entry(name: str, plans: Sequence[Plan], streamed: list[int]) -> str:
    w = Writer()
    number = w.value("ptrtoint ptr %dst to i64")
    beyond = w.value(f"and i64 {number}, {LINE - 1}")
    on_line = w.value(f"icmp eq i64 {beyond}, 0")
    off_line = w.value(f"xor i1 {on_line}, true")
    following = w.value("add i64 %part, 1")
    for k, plan in enumerate(plans):
        units = -(-plan.extent // plan.unit)
        lo, hi = (_cut(w, plan, units, part) for part in ("%part", following))
        some = w.value(f"icmp slt i64 {lo}, {hi}")
        ways = [(f"move{k}", some)]
        if k in streamed:
            ways = [
                (kernel, w.value(f"and i1 {some}, {right}"))
                for kernel, right in ((f"stream{k}", on_line), (f"move{k}", off_line))
            ]
        for kernel, when in ways:
            call = f"call void @{kernel}(ptr %src, ptr %dst, ptr %ops, i64 {lo}, i64 {hi})"
            w.when(when, partial(w.line, call))
    head = f"define void @{name}(ptr %src, ptr %dst, ptr %ops, i64 %part, i64 %parts)"
    return f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"


def _cut(w: Writer, plan: Plan, units: int, part: str) -> str:
    """Where a part of the shared loop begins (or the one before it ends)."""
    share = w.value(f"mul i64 {part}, {units}")
    share = w.value(f"udiv i64 {share}, %parts")
    turns = w.value(f"mul i64 {share}, {plan.unit}")
    return w.value(f"call i64 @llvm.smin.i64(i64 {turns}, i64 {plan.extent})")
