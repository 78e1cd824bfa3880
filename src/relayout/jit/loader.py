"""Object code as LLVM writes it, linked, so that it runs without LLVM: ELF for x86-64, on Linux.

Importing LLVM takes longer than everything else that a process does before the first call of a kernel which
is on disk, and all that LLVM would do there is copy a few sections and fill in addresses. What does not
depend on the process is done once, by the process that has made the object::

    object code      relocations            one map of memory
    .text            PLT32 memcpy    -->    .text, and a jump for each function of the system     may be run
    .rodata.cst64    PC32 .text             --- page ---
    .symtab                                 .rodata.cst64, and a table of addresses (GOT)         may be read

What is loaded are the sections that take part when the code runs. Tables for unwinding are left out: nothing
is thrown through kernels. A relocation says that bytes at a place become an address, or the distance to one.
Code reaches whatever is within 2 GiB, its own constants above all. The C library is farther off: a call of
one of its functions goes to a jump beside the code, which takes the address from the table. (Linkers call the
two PLT and GOT.) What can be run can't be written to (:mod:`relayout.jit.pages`).

A kernel takes a page of code and one of constants: 8 KiB and two maps, or 4 KiB and one where it has no
constants. LLVM takes 64 KiB and two maps.

This is no linker: it knows what the code generator writes for ``reloc="pic"`` and the small code model.
For anything else, for names that the process does not have, and for damaged bytes :func:`link` answers None,
and LLVM is asked. So whatever an object says is compared with its bounds before it is believed.

The format is described by the System V ABI (chapters 4 and 5) and its supplement for AMD64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from relayout.jit.pages import WORD, linked, page, process

__all__ = ["link"]

HEAD = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, align, entry
SYMBOL = struct.Struct("<IBBHQQ")  # name, binding and type, visibility, section, value, size
RELOCATION = struct.Struct("<QIIq")  # offset, type, symbol, addend

MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
OBJECT, X86_64 = 1, 62  # the kind of file, and of processor
PROGBITS, SYMTAB, STRTAB, RELA, NOTE, REL, UNWIND = 1, 2, 3, 4, 7, 9, 0x70000001  # types of sections
WRITE, ALLOC, EXECUTE = 1, 2, 4  # flags of sections
KNOWN = ALLOC | EXECUTE | 0x10 | 0x20  # and those of constants that linkers may merge
UNDEFINED = 0  # as a symbol's section
GLOBAL = 1  # binding
PLAIN = range(4)  # types of symbols: none, object, function, section

R_64, R_PC32, R_PLT32 = 1, 2, 4
R_GOT = 9, 41, 42  # GOTPCREL, and the two that a linker may replace by something shorter
WIDTHS = {R_64: 8, R_PC32: 4, R_PLT32: 4} | dict.fromkeys(R_GOT, 4)

JUMP = b"\xff\x25"  # jmp *distance(%rip)
LARGEST = 1 << 26  # bytes of an object that is loaded here; kernels have thousands

Row = tuple[int, ...]
Relocation = tuple[int, int, int, int, int]  # section, offset, type, symbol, addend


class Unknown(Exception):
    """The object is damaged, or has something that is not known here."""


def link(data: bytes) -> bytes | None:
    """Linked code, from the bytes of an object; None where LLVM has to be asked."""
    if process() is None:
        return None
    try:
        return _linked(_Object(data))
    except (Unknown, struct.error):
        return None


def _need(holds: object) -> None:
    if not holds:
        raise Unknown


# -- reading ------------------------------------------------------------------------------------------------


class _Object:
    """What an object says, as far as its bounds go; whether it makes sense is seen where it is used."""

    def __init__(self, data: bytes) -> None:
        _need(HEAD.size <= len(data) <= LARGEST)
        magic, kind, processor, _, _, _, table, _, _, _, _, entry, count, _ = HEAD.unpack_from(data)
        _need(magic.startswith(MAGIC) and (kind, processor, entry) == (OBJECT, X86_64, SECTION.size))
        self.data = data
        self.sections: list[Row] = _rows(SECTION, self._cut(table, count * SECTION.size))
        tables = [row for row in self.sections if row[1] == SYMTAB]
        _need(len(tables) == 1 and tables[0][6] < count)
        self.symbols: list[Row] = _rows(SYMBOL, self.content(tables[0]))
        self._names = self.content(self.sections[tables[0][6]])

    def _cut(self, offset: int, size: int) -> bytes:
        _need(offset + size <= len(self.data))
        return self.data[offset : offset + size]

    def content(self, section: Row) -> bytes:
        """The bytes of a section."""
        return self._cut(section[4], section[5])

    def name(self, symbol: Row) -> str:
        """The name of a symbol: it ends with a zero."""
        end = self._names.find(b"\0", symbol[0])
        _need(end > symbol[0])
        found = self._names[symbol[0] : end]
        _need(found.isascii() and len(found.split()) == 1)
        return found.decode()

    def parts(self) -> list[int]:
        """The sections that take part when the code runs."""
        found = []
        for k, (_, kind, flags, _, _, size, _, _, align, _) in enumerate(self.sections):
            if not flags & ALLOC or kind in (NOTE, UNWIND) or not size:
                continue
            _need(kind == PROGBITS and not flags & ~KNOWN and align & (align - 1) == 0 and align <= page())
            found.append(k)
        return found

    def relocations(self, parts: Iterable[int]) -> list[Relocation]:
        """The relocations of these sections."""
        wanted, found = set(parts), []
        for row in self.sections:
            if row[1] not in (RELA, REL) or row[7] not in wanted:
                continue
            _need(row[1] == RELA)
            size = self.sections[row[7]][5]
            for offset, kind, symbol, addend in _rows(RELOCATION, self.content(row)):
                _need(kind in WIDTHS and offset + WIDTHS[kind] <= size and 0 < symbol < len(self.symbols))
                found.append((row[7], offset, kind, symbol, addend))
        return found


def _rows(form: struct.Struct, table: bytes) -> list[Row]:
    return list(form.iter_unpack(table))


# -- loading ------------------------------------------------------------------------------------------------


def _linked(found: _Object) -> bytes:
    """Code and constants are placed, and distances are filled in."""
    parts = found.parts()
    relocations = found.relocations(parts)
    outer = {
        symbol: _outer(found, symbol)
        for _, _, _, symbol, _ in relocations
        if found.symbols[symbol][3] == UNDEFINED
    }
    jumps = dict.fromkeys(row[3] for row in relocations if row[2] == R_PLT32 and row[3] in outer)
    listed = dict.fromkeys([*jumps, *(row[3] for row in relocations if row[2] in R_GOT)])

    image, places = bytearray(), dict[int, int]()
    runs = [k for k in parts if found.sections[k][2] & EXECUTE]
    for k in runs:
        places[k] = _add(image, found.content(found.sections[k]), found.sections[k][8])
    stubs = {symbol: _add(image, bytes(WORD), WORD) for symbol in jumps}  # of which a jump uses six
    border = _add(image, b"", page())
    for k in parts:
        if k not in places:
            places[k] = _add(image, found.content(found.sections[k]), found.sections[k][8])
    table = {symbol: _add(image, bytes(WORD), WORD) for symbol in listed}
    _need(runs)

    within, outside = [], []
    for symbol, at in stubs.items():
        image[at : at + WORD] = JUMP + struct.pack("<ixx", table[symbol] - (at + len(JUMP) + 4))
    words = [(at, symbol, 0) for symbol, at in table.items()]
    for section, offset, kind, symbol, addend in relocations:
        at = places[section] + offset
        if kind == R_64:
            words.append((at, symbol, addend))
        elif kind in R_GOT:
            struct.pack_into("<i", image, at, table[symbol] + addend - at)
        else:
            _need(symbol in stubs or symbol not in outer)  # data of the system is too far away
            target = stubs[symbol] if symbol in stubs else _place(found, places, symbol)
            struct.pack_into("<i", image, at, target + addend - at)
    for at, symbol, addend in words:
        if symbol in outer:
            outside.append((outer[symbol], at))
        else:
            within.append(at)
            addend += _place(found, places, symbol)
        struct.pack_into("<Q", image, at, addend % (1 << 64))
    functions = [
        (found.name(row), _place(found, places, k))
        for k, row in enumerate(found.symbols)
        if row[1] >> 4 == GLOBAL and row[3] in runs
    ]
    return linked(image, border, functions, within, outside)


def _add(image: bytearray, content: bytes, align: int) -> int:
    """Append to the image; where it is."""
    image += bytes(-len(image) % (align or 1))
    at = len(image)
    image += content
    _need(len(image) <= LARGEST)
    return at


def _place(found: _Object, places: dict[int, int], symbol: int) -> int:
    """Where a symbol is, from the beginning of the map."""
    _, info, _, section, value, _ = found.symbols[symbol]
    _need(section in places and info & 15 in PLAIN and value <= found.sections[section][5])
    return places[section] + value


def _outer(found: _Object, symbol: int) -> str:
    """The name of a function that the process has from elsewhere."""
    _, info, _, _, _, _ = row = found.symbols[symbol]
    _need(info >> 4 == GLOBAL and info & 15 in PLAIN)
    name = found.name(row)
    _need(hasattr(process(), name))
    return name
