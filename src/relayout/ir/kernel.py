"""The function that a kernel is: ``void name(ptr src, ptr dst, ptr ops, i64 part, i64 parts)``.

It does share number ``part`` of ``parts`` shares of its tasks; ``ops`` points at a list of further addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from relayout.ir.builder import Builder, Function, Operand
from relayout.ir.types import I64, PTR, Type, Value
from relayout.targets.machine import LINE, Machine

__all__ = ["digits", "inner", "kernel", "operands", "share", "streaming", "tasks"]


SELDOM = "noinline optnone"
"""Attributes of a function that LLVM compiles without passes that make code faster.

Forty lines of loops around calls take it as long as a tile whose text is five times as long: two hundred
passes look at each loop. Without most of them there are six instructions more for each call."""


def kernel(name: str, machine: Machine, linkage: str = "", calls: bool = False) -> Function:
    """The function, without its lines.

    With ``calls`` all work is done by functions that it calls, so how it is compiled is not seen in what that
    takes; with AVX2, where that was measured, it is compiled in haste.

    >>> from relayout.targets.machine import machine
    >>> SELDOM in kernel("all", machine("x86-64-v3"), calls=True).text()
    True
    >>> SELDOM in kernel("all", machine("x86-64-v4"), calls=True).text()
    False
    """
    arguments = {"src": PTR, "dst": PTR, "ops": PTR, "part": I64, "parts": I64}
    hastily = calls and machine.is_avx2
    return Function(name, arguments, machine, linkage, SELDOM if hastily else "", opaque_loops=hastily)


def inner(
    name: str, arguments: Mapping[str, Type], machine: Machine, attributes: str = "noinline"
) -> Function:
    """A function that a kernel calls and that does the work, without its lines.

    With AVX2, where that was measured, its loops hide from LLVM how they go on: they are written as they
    shall become.

    >>> from relayout.targets.machine import machine
    >>> [inner("tile", {"src": PTR}, machine(f"x86-64-v{k}")).opaque_loops for k in (3, 4)]
    [True, False]
    """
    return Function(name, arguments, machine, "internal", attributes, opaque_loops=machine.is_avx2)


def streaming(name: str, machine: Machine, stream: bool, write: Callable[[Function, bool], None]) -> str:
    """The text of a kernel that may store around the caches: ``write`` is told whether it does.

    It is written twice then. Only a destination that begins on a line has whole lines, and those of one that
    is the source, too, are in the caches already.
    """
    if not stream:
        f = kernel(name, machine)
        write(f, False)
        return f.text()
    texts, ways = [], (f"{name}_cached", f"{name}_streamed")
    for way in ways:
        f = kernel(way, machine, "internal")
        write(f, way == ways[1])
        texts.append(f.text())
    f = kernel(name, machine)
    src, dst = (f.ptrtoint(one) for one in f.arguments[:2])
    past = f.and_(f.icmp("eq", f.and_(dst, LINE - 1), 0), f.icmp("ne", src, dst))
    for way, when in zip(ways, (f.not_(past), past), strict=True):
        f.when(when, partial(f.call, way, *f.arguments))
    return "\n".join([*texts, f.text()])


def operands(f: Function, count: int) -> list[Value]:
    """The first of the further addresses."""
    return [f.load(PTR, f.gep(f["ops"], 8 * k), 8) for k in range(count)]


def share(f: Function, total: Operand) -> tuple[Value, Value]:
    """The tasks of a part of a kernel with so many: from the first to the one behind the last."""
    part, parts = f.arguments[3:]
    following = f.add(part, 1)
    first, last = (f.udiv(f.mul(number, total), parts) for number in (part, following))
    return first, last


def tasks(f: Function, total: int, task: Callable[[Value], None]) -> None:
    """Do a part's share of so many tasks."""
    first, last = share(f, total)

    def turn(i: Value, given: list[Value]) -> list[Value]:
        task(i)
        return given

    f.repeat(first, last, 1, [], turn)


def digits(b: Builder, number: Value, extents: Sequence[int]) -> list[Value]:
    """A number taken apart, the last digit the fastest.

    >>> b = Builder()
    >>> digits(b, Value("%i", I64), [3, 1, 5])
    [i64 %v2, i64 0, i64 %v1]
    >>> print(b.body())
      %v1 = urem i64 %i, 5
      %v2 = udiv i64 %i, 5
    """
    out: list[Value] = []
    for k, extent in reversed(list(enumerate(extents))):
        if all(other == 1 for other in extents[:k]):
            out.append(number if extent > 1 else b.mul(number, 0))
            continue
        out.append(b.urem(number, extent))
        number = b.udiv(number, extent)
    return out[::-1]
