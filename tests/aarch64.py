"""Kernels for AArch64 run on any Linux, by QEMU in user mode: programs made of a kernel and its memory.

There is no linker here, and none is needed: the sections of an object are laid out one after the other, its
relocations are applied, and a header in front makes it a program. It reads its memory from standard input,
calls the kernel, and writes it to standard output.

Source of the formats: ELF for the Arm 64-bit Architecture (AAELF64), relocation codes.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from relayout.jit.compile import assemble
from relayout.primitives.program import Step
from relayout.targets.machine import Machine

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
"""What runs such programs; None: it is not installed."""

TRIPLE = "aarch64-unknown-linux-gnu"
EDGE = b"\xff"
BASE, HEADER = 0x400000, 0x1000  # where a program lies, and bytes in front of its code
LINE = 64
SYSTEM = struct.pack("<6I", 0xAA0003E8, 0xAA0103E0, 0xAA0203E1, 0xAA0303E2, 0xD4000001, 0xD65F03C0)
"""``i64 system(i64 number, i64, ptr, i64)``: mov x8, x0; x0 to x2 from x1 to x3; svc #0; ret."""
READ, WRITE, EXIT = 63, 64, 93  # numbers of system calls
BITS, EMPTY, TABLE, RELOCATIONS, ALLOCATED = 1, 8, 2, 4, 2  # kinds of sections; that one is loaded
PAGE, ADDED, BRANCHES, WHOLE, DISTANCE = 275, 277, (282, 283), 257, 261
LOADED = {278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # relocations, by how far they are shifted


class Section(NamedTuple):
    """A header of an object's."""

    name: int
    kind: int
    flags: int
    address: int
    at: int
    size: int
    link: int
    info: int
    align: int
    entry: int


def linked(code: bytes) -> bytes:
    """An object as a program that begins at ``_start``."""
    first, count = *struct.unpack_from("<Q", code, 0x28), *struct.unpack_from("<H", code, 0x3C)
    sections = [Section(*struct.unpack_from("<IIQQQQIIQQ", code, first + 64 * k)) for k in range(count)]
    begin = BASE + HEADER
    image, places = bytearray(SYSTEM), {}
    for k, one in enumerate(sections):
        if one.flags & ALLOCATED and one.kind in (BITS, EMPTY):
            image += bytes(-len(image) % max(one.align, LINE))
            places[k] = begin + len(image)
            image += bytes(one.size) if one.kind == EMPTY else code[one.at : one.at + one.size]
    table = next(one for one in sections if one.kind == TABLE)
    names = sections[table.link].at

    def symbol(number: int) -> tuple[str, int]:
        name, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", code, table.at + 24 * number)
        text = code[names + name : code.index(b"\0", names + name)].decode()
        if section == 0 and text not in ("", "system"):
            raise ValueError(f"{text} is undefined")
        return text, begin if section == 0 else places.get(section, 0) + value

    for one in sections:
        if one.kind == RELOCATIONS and one.info in places:
            for at in range(one.at, one.at + one.size, 24):
                offset, what, addend = struct.unpack_from("<QQq", code, at)
                here = places[one.info] + offset
                _apply(image, here - begin, what & 0xFFFFFFFF, symbol(what >> 32)[1] + addend, here)
    start = next(at for name, at in map(symbol, range(table.size // 24)) if name == "_start")
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 1, 7, HEADER, begin, begin, len(image), len(image), HEADER)
    return head.ljust(HEADER, b"\0") + image


def _apply(image: bytearray, at: int, kind: int, value: int, here: int) -> None:
    """One relocation of an instruction, or of a word of data."""
    (word,) = struct.unpack_from("<I", image, at)
    if kind == PAGE:
        pages = (value >> 12) - (here >> 12)
        word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    elif kind == ADDED:
        word |= (value & 0xFFF) << 10
    elif kind in LOADED:
        word |= (value & 0xFFF) >> LOADED[kind] << 10
    elif kind in BRANCHES:
        word |= (value - here) >> 2 & 0x3FFFFFF
    elif kind == WHOLE:
        struct.pack_into("<Q", image, at, value)
        return
    elif kind == DISTANCE:
        word = (value - here) & 0xFFFFFFFF
    else:
        raise ValueError(f"relocation {kind} is not known here")
    struct.pack_into("<I", image, at, word)


def program(kernel: str, places: Mapping[str, int], size: int, step: Step) -> str:
    """The text of ``_start``, which calls the kernel of a step with buffers in one piece of memory.

    ``places`` are those of the buffers, and ``size`` is that of the memory, all of which is written.
    """
    lines, names = [], () if isinstance(step.operands, str) else step.operands
    lines.append(f"  %list = alloca [{len(names)} x ptr], align 16")
    for k, name in enumerate(names):
        lines.append(f"  %place{k} = getelementptr i8, ptr %list, i64 {8 * k}")
        lines.append(f"  %operand{k} = getelementptr i8, ptr @memory, i64 {places[name]}")
        lines.append(f"  store ptr %operand{k}, ptr %place{k}")
    ends = {"src": places[step.source] + step.at[0], "dst": places[step.target] + step.at[1]}
    if isinstance(step.operands, str):
        ends["one"] = places[step.operands]
    lines += [f"  %{name} = getelementptr i8, ptr @memory, i64 {at}" for name, at in ends.items()]
    operands = "%one" if "one" in ends else "%list" if names else "null"
    moves = {"read": (READ, 0), "write": (WRITE, 1)}
    loops = {
        name: f"""  br label %{name}
{name}:
  %{name}.done = phi i64 [0, %{before}], [%{name}.next, %{name}]
  %{name}.at = getelementptr i8, ptr @memory, i64 %{name}.done
  %{name}.left = sub i64 {size}, %{name}.done
  %{name}.some = call i64 @system(i64 {number}, i64 {file}, ptr %{name}.at, i64 %{name}.left)
  %{name}.next = add i64 %{name}.done, %{name}.some
  %{name}.more = icmp slt i64 %{name}.next, {size}
  br i1 %{name}.more, label %{name}, label %{name}.end
{name}.end:"""
        for (name, (number, file)), before in zip(moves.items(), ("entry", "read.end"), strict=True)
    }
    calls = "\n".join(lines)
    return f"""
@memory = internal global [{size} x i8] zeroinitializer, align 64
declare i64 @system(i64, i64, ptr, i64)
define void @_start() {{
entry:
{loops["read"]}
{calls}
  call void @{kernel}(ptr %src, ptr %dst, ptr {operands}, i64 0, i64 1)
{loops["write"]}
  call i64 @system(i64 {EXIT}, i64 0, ptr null, i64 0)
  ret void
}}
"""


class Buffers:
    """Buffers in one piece of memory, bytes of ones between them."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.places, memory = {}, bytearray()
        self.sizes = {name: len(data) for name, data in contents.items()}
        for name, data in contents.items():
            memory += EDGE * LINE
            self.places[name] = len(memory)
            memory += data + EDGE * (-len(data) % LINE)
        self.memory = bytes(memory + EDGE * LINE)

    def __getitem__(self, name: str) -> bytes:
        return self.memory[self.places[name] :][: self.sizes[name]]

    def outside(self) -> bytes:
        """What lies between the buffers."""
        ends, found = 0, b""
        for name, at in self.places.items():
            found += self.memory[ends:at]
            ends = at + self.sizes[name]
        return found + self.memory[ends:]

    def run(self, step: Step, text: str, name: str, machine: Machine, folder: Path) -> None:
        """Run a step, whose kernel ``name`` is in the text of a module."""
        text += program(name, self.places, len(self.memory), step)
        self.memory = run(assemble(text, machine), self.memory, folder)


def run(code: bytes, memory: bytes, folder: Path) -> bytes:
    """What the program that an object is writes, given this memory."""
    assert QEMU is not None
    path = folder / "program"
    path.write_bytes(linked(code))
    path.chmod(0o700)
    done = subprocess.run(
        [QEMU, "-cpu", "max", str(path)], input=memory, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[:500])
    return done.stdout
