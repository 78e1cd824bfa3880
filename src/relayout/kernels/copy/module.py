"""All kernels of a reorder as one function, or two.

``void reorder(ptr source, ptr destination, ptr operands, i64 part, i64 parts)`` does one of so many equal
shares of the work: of every nest, the part of its shared loop that falls to it. Parts are independent of each
other. What is left over where a loop has no equal shares, or only one turn, falls to the parts in turn, nest
after nest.

Where a kernel streams, it is there twice: lines are completed only where the destination begins on one.
Where only some of the lines leave around the caches, the other kernel moves the others. And there is a second
function then, ``cached``, in which none streams: for destinations whose lines are in the caches anyhow,
because the system has just handed them out, zeroed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from relayout.ir.builder import Builder
from relayout.ir.kernel import kernel as kernel_function
from relayout.ir.types import I64, Value, constant
from relayout.kernels.copy import tiles, zeros
from relayout.kernels.copy.base import writer
from relayout.kernels.copy.plan import WHOLE, Plan
from relayout.targets.machine import LINE, Machine

__all__ = ["CACHED", "ENTRY", "KERNELS", "embedded", "module"]

ENTRY = "reorder"
CACHED = "cached"
TOGETHER_BYTES = 8192  # bytes that several kernels write, one after the other, while their lines stay in L1
KERNELS = tiles, zeros
"""The modules whose kernels write plans of others (:data:`~.base.WRITERS`): nobody else imports them."""


def module(plans: Sequence[Plan], machine: Machine) -> tuple[str, list[str]]:
    """The IR of a reorder, and the functions in it: :data:`ENTRY`, and :data:`CACHED` where that differs."""
    texts = []
    streamed = []
    for k, plan in enumerate(plans):
        texts.append(writer(plan, machine, False, f"move{k}").function())
        if plan.stream:
            streamed.append(k)
            texts.append(writer(plan, machine, True, f"stream{k}").function())
    texts.append(_entry(ENTRY, plans, machine, streamed))
    if streamed:
        texts.append(_entry(CACHED, plans, machine, []))
    names = [ENTRY, CACHED] if streamed else [ENTRY]
    return "\n".join(texts), names


def embedded(name: str, plans: Sequence[Plan], machine: Machine) -> str:
    """A reorder inside another module: ``void name(ptr src, ptr dst, ptr ops, i64 part, i64 parts)``.

    It does everything at once, whatever the last two arguments say, and writes around no cache.
    """
    texts, f = [], kernel_function(name, machine, "internal")
    for k, plan in enumerate(plans):
        texts.append(writer(plan, machine, False, f"{name}{k}").function())
        f.call(f"{name}{k}", *f.arguments[:3], constant(I64, 0), constant(I64, plan.extent))
    return "\n".join([*texts, f.text()])


def _entry(name: str, plans: Sequence[Plan], machine: Machine, streamed: list[int]) -> str:
    f = kernel_function(name, machine)
    src, dst, ops, part, parts = f.arguments
    on_line = f.icmp("eq", f.and_(f.ptrtoint(dst), LINE - 1), 0)
    off_line = f.not_(on_line)

    def whole(k: int, first: Value, end: Value) -> None:
        if k not in streamed:
            f.call(f"move{k}", src, dst, ops, first, end)
        elif plans[k].quarters < WHOLE:
            middle = f.select(on_line, _middle(f, part, parts, first, end, plans[k]), end)
            for kernel, start, stop in ((f"move{k}", first, middle), (f"stream{k}", middle, end)):
                f.when(f.icmp("slt", start, stop), partial(f.call, kernel, src, dst, ops, start, stop))
        else:
            for kernel, when in ((f"stream{k}", on_line), (f"move{k}", off_line)):
                f.when(when, partial(f.call, kernel, src, dst, ops, first, end))

    groups = _together(plans)
    deal = _dealt(f, part, parts) if len(groups) > 1 else _spread(f, part, parts)
    for numbers in groups:
        plan = plans[numbers[0]]
        share = deal(-(-plan.extent // plan.unit))
        first, end = (f.smin(f.mul(unit, plan.unit), plan.extent) for unit in share)
        turns = max(1, TOGETHER_BYTES * plan.extent // max(1, sum(plans[k].nest.bytes for k in numbers)))

        def some(i: Value, numbers: Sequence[int] = numbers, turns: int = turns, end: Value = end) -> None:
            for k in numbers:
                whole(k, i, f.smin(f.add(i, turns), end))

        work = (
            partial(f.loop, first, end, turns, some)
            if len(numbers) > 1
            else partial(whole, numbers[0], first, end)
        )
        f.when(f.icmp("slt", first, end), work)
    return f.text()


def _middle(f: Builder, part: Value, parts: Value, first: Value, end: Value, plan: Plan) -> Value:
    """From where on a share leaves around the caches: its end, its beginning, or somewhere between.

    Of several parts, which threads take as they come, some leave as a whole and some do not. So one thread
    may wait for memory while another one has the caches to itself.
    """
    units, quarters = -(-plan.extent // plan.unit), plan.quarters
    through = f.udiv(f.mul(f.sub(end, first), WHOLE - quarters), WHOLE * plan.unit)
    number = f.select(f.icmp("sle", parts, units), part, f.udiv(first, plan.unit))  # among those with work
    leaves = f.icmp("slt", f.and_(f.mul(number, quarters), WHOLE - 1), quarters)
    alone = f.icmp("eq", parts, 1)
    return f.select(alone, f.add(first, f.mul(through, plan.unit)), f.select(leaves, first, end))


def _spread(f: Builder, part: Value, parts: Value) -> Callable[[int], tuple[Value, Value]]:
    """Shares of the only nest: from which unit on to which one, those that are one unit longer in between."""
    following = f.add(part, 1)

    def share(units: int) -> tuple[Value, Value]:
        first, end = (f.udiv(f.mul(number, units), parts) for number in (part, following))
        return first, end

    return share


def _dealt(f: Builder, part: Value, parts: Value) -> Callable[[int], tuple[Value, Value]]:
    """Shares of one nest after the other: those of a nest that are one unit longer follow the last nest's.

    Nests for what is left over have few units, often one. If each nest were shared by itself, all of these
    would fall to the same part.
    """
    following = f.add(part, 1)
    begins: Value = constant(I64, 0)  # the part that gets the next unit that is left over

    def share(units: int) -> tuple[Value, Value]:
        nonlocal begins
        each, over = f.udiv(constant(I64, units), parts), f.urem(constant(I64, units), parts)
        after = f.add(begins, over)
        again = f.smax(f.sub(after, parts), 0)  # behind the last part comes the first one

        def start(number: Value, begins: Value = begins) -> Value:
            before = f.smin(f.smax(f.sub(number, begins), 0), over)
            return f.add(f.mul(number, each), f.add(before, f.smin(number, again)))

        found = start(part), start(following)
        begins = f.select(f.icmp("slt", after, parts), after, again)
        return found

    return share


def _together(plans: Sequence[Plan]) -> list[list[int]]:
    """Plans by number, those together of which some turns of the shared loop are done after the others.

    They move parts of the same images or pixels, of blocks with data and of blocks with less of it, say. So
    their lines are still in a cache when the next plan wants the rest of them.
    """
    found: list[list[int]] = []
    for k, plan in enumerate(plans):
        last = plans[found[-1][0]] if found else plan
        if found and last.unit == plan.unit == 1 and last.extent == plan.extent > 1:
            found[-1].append(k)
        else:
            found.append([k])
    return found
