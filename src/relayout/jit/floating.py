"""The floating-point state of a thread: kernels compute as defined, whatever the calling thread has set.

A processor rounds to nearest, keeps subnormal numbers and raises no exceptions, unless a thread has set it to
do otherwise: ``torch.set_flush_denormal``, a library that was compiled with ``-ffast-math``, ``fesetround``.
A thread that is made inherits it. So each kernel looks at its thread's control register first, and where that
is not as usual, sets it and restores it behind itself. :func:`guarded` writes this around the kernels of a
module, where they are compiled; to look costs a few nanoseconds a call.

What runs in NumPy is done within :class:`Usual`, which asks the C library to do the same.

=========  ========  ====================================================================
processor  register  usual
=========  ========  ====================================================================
x86-64     MXCSR     0x1F80 but for the lowest six bits, which note what has happened:
                     exceptions masked, to nearest, neither FTZ (0x8000) nor DAZ (0x0040)
AArch64    FPCR      0
=========  ========  ====================================================================
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["USUAL", "Usual", "guarded"]

USUAL = 0x1F80
"""MXCSR of a thread that has set nothing."""

CONTROL = 0xFFC0  # the bits of MXCSR that say how to compute
STATE = 256  # bytes, more than any C library's fenv_t has

HEADS = {
    "x86_64": f"""
  %before = alloca i32
  %usual = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %before)
  %word = load i32, ptr %before
  %control = and i32 %word, {CONTROL}
  %as.usual = icmp eq i32 %control, {USUAL}""",
    "aarch64": """
  %word = call i64 @llvm.aarch64.get.fpcr()
  %as.usual = icmp eq i64 %word, 0""",
}
SETS = {
    "x86_64": (
        f"store i32 {USUAL}, ptr %usual\n  call void @llvm.x86.sse.ldmxcsr(ptr %usual)",
        "call void @llvm.x86.sse.ldmxcsr(ptr %before)",
    ),
    "aarch64": ("call void @llvm.aarch64.set.fpcr(i64 0)", "call void @llvm.aarch64.set.fpcr(i64 %word)"),
}
DECLARATIONS = {
    "x86_64": "declare void @llvm.x86.sse.stmxcsr(ptr)\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)\n",
    "aarch64": "declare i64 @llvm.aarch64.get.fpcr()\ndeclare void @llvm.aarch64.set.fpcr(i64)\n",
}

GUARD = """
define {TYPE} @{NAME}({PARAMETERS}){ATTRIBUTES} {{
entry:{HEAD}
  br i1 %as.usual, label %straight, label %guarded
straight:
  {FIRST}tail call {TYPE} @{BODY}({ARGUMENTS})
  ret {TYPE}{FIRST_VALUE}
guarded:
  {SET}
  {SECOND}call {TYPE} @{BODY}({ARGUMENTS})
  {RESTORE}
  ret {TYPE}{SECOND_VALUE}
}}
"""


WITHIN = """\
guard:{HEAD}
  br i1 %as.usual, label %entry, label %guarded
guarded:
  {SET}
  br label %entry
entry:"""
LEAVE = """\
  br i1 %as.usual, label %leave, label %restored
restored:
  {RESTORE}
  br label %leave
leave:
  ret void
}}"""


def guarded(ir: str, names: Sequence[str], triple: str) -> str:
    r"""A module whose functions of these names compute in the usual state.

    Each becomes an internal function behind one that has its name, and its attributes. One that computes
    nothing itself and that LLVM may not change (``optnone``) looks at the state at its own beginning: one
    function less to compile. On processors that are not known here the module stays as it is.

    >>> ir = "define void @k(ptr noalias %x, i64 %n) {\n  ret void\n}"
    >>> print(guarded(ir, ["k"], "aarch64-unknown-linux-gnu"))
    define internal void @k.body(ptr noalias %x, i64 %n) {
      ret void
    }
    define void @k(ptr noalias %x, i64 %n) {
    entry:
      %word = call i64 @llvm.aarch64.get.fpcr()
      %as.usual = icmp eq i64 %word, 0
      br i1 %as.usual, label %straight, label %guarded
    straight:
      tail call void @k.body(ptr %x, i64 %n)
      ret void
    guarded:
      call void @llvm.aarch64.set.fpcr(i64 0)
      call void @k.body(ptr %x, i64 %n)
      call void @llvm.aarch64.set.fpcr(i64 %word)
      ret void
    }
    declare i64 @llvm.aarch64.get.fpcr()
    declare void @llvm.aarch64.set.fpcr(i64)
    <BLANKLINE>
    """
    family = triple.split("-")[0].replace("arm64", "aarch64")
    if family not in HEADS or not names:
        return ir
    guards = []
    for name in names:
        head = re.search(rf"^define (\w+) @{re.escape(name)}\(([^)]*)\)([^{{]*)", ir, re.MULTILINE)
        if head is None:
            raise ValueError(f"the module defines no function {name}")
        if "optnone" in head[3] and (inside := _guarded_inside(ir, head, family)) is not None:
            ir = inside
            continue
        ir = f"{ir[: head.start()]}define internal {head[1]} @{name}.body({head[2]}){ir[head.end(2) + 1 :]}"
        words = [parameter.split() for parameter in head[2].split(",")]
        guards.append(
            GUARD.format(
                NAME=name,
                BODY=f"{name}.body",
                PARAMETERS=head[2],
                ATTRIBUTES=head[3].rstrip(),
                TYPE=head[1],
                **_results(head[1]),
                ARGUMENTS=", ".join(f"{first} {last}" for first, *_, last in words),
                HEAD=HEADS[family],
                SET=SETS[family][0],
                RESTORE=SETS[family][1],
            )
        )
    return "".join([ir, *guards, DECLARATIONS[family]])


def _guarded_inside(ir: str, head: re.Match[str], family: str) -> str | None:
    """The module with the guard in a function itself; None where that function has to stay as it is.

    What it allocates must be allocated in its first block, and it must end in one place.
    """
    start, end = head.end(), ir.index("\n}", head.end())
    body = ir[start:end]
    before, _, last = body.rpartition("\n")
    if head[1] != "void" or last != "  ret void" or "ret void" in before or " = alloca " in body:
        return None
    if not body.startswith("{\nentry:\n"):
        return None
    begin = WITHIN.format(HEAD=HEADS[family], SET=SETS[family][0])
    leave = LEAVE.format(RESTORE=SETS[family][1])
    return f"{ir[:start]}{{\n{begin}{before.removeprefix('{' + chr(10) + 'entry:')}\n{leave}{ir[end + 2 :]}"


def _results(kind: str) -> dict[str, str]:
    """What becomes of the answer of a function of this type on either way."""
    names = {"FIRST": "%usually", "SECOND": "%otherwise"}
    if kind == "void":
        return dict.fromkeys((*names, *(f"{way}_VALUE" for way in names)), "")
    assigned = {way: f"{name} = " for way, name in names.items()}
    return assigned | {f"{way}_VALUE": f" {name}" for way, name in names.items()}


class Usual:
    """A block of Python in which this thread computes as usual, where the C library can be asked for that.

    It can on Linux and macOS; elsewhere the block runs in the state that there is.

    >>> with Usual():
    ...     1.0 + 2.0**-60
    1.0
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before: Any = None
        functions = _functions()
        if functions is not None:
            read, write, default = functions
            self._before = ctypes.create_string_buffer(STATE)
            read(self._before)
            write(default)

    def __exit__(self, *_: object) -> None:
        functions = _functions()
        if functions is not None and self._before is not None:
            functions[1](self._before)


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[Any], int], Callable[[Any], int], Any] | None:
    """C's ``fegetenv``, ``fesetenv`` and ``FE_DFL_ENV``; None where they are not known."""
    if not sys.platform.startswith(("linux", "darwin")):
        return None
    try:
        process = ctypes.CDLL(None)
        read, write = process.fegetenv, process.fesetenv
        # -1 in glibc and musl, on all processors that are known here
        address = (
            -1 if sys.platform != "darwin" else ctypes.addressof(ctypes.c_char.in_dll(process, "_FE_DFL_ENV"))
        )
    except (AttributeError, OSError, ValueError):
        return None
    return read, write, ctypes.c_void_p(address)
