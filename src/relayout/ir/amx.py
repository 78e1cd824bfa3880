"""AMX: products of small matrices that lie in tiles, eight registers of up to 16 rows of 64 bytes.

A thread first says how large each tile is (:func:`configuration`); that zeroes all of them. A tile is then
loaded from rows that lie any stride apart, and one instruction multiplies two of them and adds the product to
a third::

    C, m rows of n sums            tile  tileload: rows of memory, a stride apart; what lies beyond is zero
    C += A @ B     A: m rows of k groups of 4 bytes       sources: 4 neighbouring channels, or 2 of 16 bits
                   B: k rows of n groups of 4 bytes       weights: the same for each output channel

So a group of A meets a group of B, which is what formats like ``OIhw16i16o4i`` put side by side: a tile of B
is then one piece of 1 KiB. Products of bytes are added up in s32, those of bf16 in f32, in an order of their
own (:func:`_of_reals`).

:class:`Tiles` writes such code in two ways: as instructions, and as calls of functions in plain IR
(:func:`emulation`) that do the same with 8 KiB of memory. So the kernels that use tiles are tested on
processors without them. What the processor refuses (tiles whose sizes don't fit together, tiles that are not
configured) ends the process here as there.

The pseudocode is in Intel's Software Developer's Manual, volume 2: LDTILECFG, TILELOADD, TDPBSSD, TDPBF16PS.

>>> from relayout.ir.builder import Function
>>> f = Function("product", {"one": PTR, "two": PTR, "to": PTR})
>>> tiles = Tiles(f)
>>> tiles.load(4, f["one"], 64); tiles.load(6, f["two"], 64)
>>> tiles.zero(0); tiles.multiply("u8s8", 0, 4, 6); tiles.store(0, f["to"], 64)
>>> print(f.text())
define void @product(ptr %one, ptr %two, ptr %to) {
entry:
  call void @llvm.x86.tileloadd64(i8 4, ptr %one, i64 64)
  call void @llvm.x86.tileloadd64(i8 6, ptr %two, i64 64)
  call void @llvm.x86.tilezero(i8 0)
  call void @llvm.x86.tdpbusd(i8 0, i8 4, i8 6)
  call void @llvm.x86.tilestored64(i8 0, ptr %to, i64 64)
  ret void
}
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from relayout.ir.builder import Builder, Function, Operand
from relayout.ir.types import FLOAT, I8, I16, I32, I64, PTR, Value, constant, vector
from relayout.targets.machine import Machine

__all__ = ["PRODUCTS", "ROW", "ROWS", "STATE", "TILES", "Shape", "Tiles", "configuration", "emulation"]

TILES, ROWS, ROW = 8, 16, 64  # registers, rows of each, bytes of a row
GROUP = 4  # bytes that meet: of a row of A with those of a row of B
LANES = ROW // GROUP  # sums of a row
SIZES_AT, ROWS_AT = (
    16,
    48,
)  # bytes of a configuration in front of the bytes of rows (u16), and the rows (u8)
STATE = TILES * ROWS * ROW + ROW
"""Bytes in which the emulation keeps tiles, and behind them their configuration."""

PRODUCTS = {
    "bf16": "tdpbf16ps",
    "s8s8": "tdpbssd",
    "s8u8": "tdpbsud",
    "u8s8": "tdpbusd",
    "u8u8": "tdpbuud",
}
"""What tiles hold, A and B, and the instruction that multiplies them."""


class Shape(NamedTuple):
    """The size of a tile that is used; (0, 0): it is not."""

    rows: int
    bytes: int


def configuration(name: str, shapes: Sequence[Shape]) -> str:
    """The text of a constant that :meth:`Tiles.configure` takes.

    >>> text = configuration("two", [Shape(16, 64), Shape(3, 8)])
    >>> text.split('"')[0], text.count("00")
    ('@two = internal constant [64 x i8] c', 59)
    """
    image = bytearray(ROW)
    image[0] = 1  # the palette: tiles of 16 rows of 64 bytes
    for k, (rows, size) in enumerate(shapes):
        if not (0 <= rows <= ROWS and 0 <= size <= ROW and (rows > 0) == (size > 0)) or k >= TILES:
            raise ValueError(f"tile {k} can't have {rows} rows of {size} bytes")
        image[SIZES_AT + 2 * k], image[ROWS_AT + k] = size, rows
    text = "".join(f"\\{byte:02X}" for byte in image)
    return f'@{name} = internal constant [{ROW} x i8] c"{text}", align {ROW}\n'


class Tiles:
    """Writes operations on tiles, which are named by their numbers.

    Parameters
    ----------
    b : Builder
    state : Value, optional
        An address of :data:`STATE` bytes of this thread: then operations are calls of the
        :func:`emulation`, which the module must have.
    """

    def __init__(self, b: Builder, state: Value | None = None) -> None:
        self.b, self.state = b, state

    def configure(self, pointer: Value) -> None:
        """Give all tiles the sizes of a :func:`configuration`, and zero them."""
        self._do("ldtilecfg", (), pointer)

    def release(self) -> None:
        """Make all tiles unused; a system need not save them any more when it changes threads."""
        self._do("tilerelease", ())

    def zero(self, tile: int) -> None:
        """Zero a tile."""
        self._do("tilezero", (tile,))

    def load(self, tile: int, pointer: Value, stride: Operand) -> None:
        """Read the rows of a tile, so many bytes apart."""
        self._do("tileloadd64", (tile,), pointer, self._stride(stride))

    def store(self, tile: int, pointer: Value, stride: Operand) -> None:
        """Write them."""
        self._do("tilestored64", (tile,), pointer, self._stride(stride))

    def multiply(self, kind: str, total: int, one: int, two: int) -> None:
        """Add the product of two tiles to a third; ``kind`` is one of :data:`PRODUCTS`."""
        self._do(PRODUCTS[kind], (total, one, two))

    def _stride(self, stride: Operand) -> Value:
        return stride if isinstance(stride, Value) else constant(I64, stride)

    def _do(self, name: str, tiles: Sequence[int], *others: Value) -> None:
        if self.state is None:
            self.b.call(f"llvm.x86.{name}", *(constant(I8, tile) for tile in tiles), *others)
        else:
            self.b.call(f"amx.{name}", self.state, *(constant(I64, tile) for tile in tiles), *others)


# -- the emulation ------------------------------------------------------------------------------------------


def emulation(machine: Machine) -> str:
    """The text of the functions that do what the instructions do."""
    others = (_configure, _release, _zero, _load, _store)
    return "\n".join([*(one(machine) for one in others), *(_multiply(kind, machine) for kind in PRODUCTS)])


def _function(name: str, tiles: int, machine: Machine, *others: str) -> Function:
    """A function of the state, so many tiles, and pointers and numbers."""
    kinds = {"pointer": PTR, "stride": I64}
    arguments = {"state": PTR, **{f"tile{k}": I64 for k in range(tiles)}, **{n: kinds[n] for n in others}}
    return Function(f"amx.{name}", arguments, machine, "internal", "noinline")


def _tile(f: Function, tile: Value) -> Value:
    """Where a tile begins."""
    return f.gep(f["state"], tile, ROWS * ROW)


def _shape(f: Function, tile: Value) -> tuple[Value, Value]:
    """The rows of a tile and their bytes; the end of the process where there are none."""
    at = f.gep(f["state"], TILES * ROWS * ROW)
    size = f.zext(f.load(I16, f.gep(f.gep(at, SIZES_AT), tile, 2)), I64)
    rows = f.zext(f.load(I8, f.gep(f.gep(at, ROWS_AT), tile)), I64)
    _refuse(f, f.icmp("eq", rows, 0))
    return rows, size


def _refuse(f: Function, condition: Value) -> None:
    """End the process, as an undefined instruction does."""
    f.when(condition, lambda: f.call("llvm.trap"))


def _fill(f: Function, at: Value, size: int) -> None:
    """Zero so many bytes, whole rows."""
    f.loop(0, size, ROW, lambda i: f.store(constant(vector(LANES, I32), 0), f.gep(at, i)))


def _configure(machine: Machine) -> str:
    f = _function("ldtilecfg", 0, machine, "pointer")
    _fill(f, f["state"], TILES * ROWS * ROW)
    kind = vector(ROW, I8)
    f.store(f.load(kind, f["pointer"]), f.gep(f["state"], TILES * ROWS * ROW))
    return f.text()


def _release(machine: Machine) -> str:
    f = _function("tilerelease", 0, machine)
    _fill(f, f["state"], STATE)
    return f.text()


def _zero(machine: Machine) -> str:
    f = _function("tilezero", 1, machine)
    _shape(f, f["tile0"])
    _fill(f, _tile(f, f["tile0"]), ROWS * ROW)
    return f.text()


def _load(machine: Machine) -> str:
    """Nothing is read beyond the bytes of a row."""
    f = _function("tileloadd64", 1, machine, "pointer", "stride")
    rows, size = _shape(f, f["tile0"])
    to = _tile(f, f["tile0"])
    _fill(f, to, ROWS * ROW)
    _copy(f, (f["pointer"], f["stride"]), (to, constant(I64, ROW)), rows, size)
    return f.text()


def _store(machine: Machine) -> str:
    f = _function("tilestored64", 1, machine, "pointer", "stride")
    rows, size = _shape(f, f["tile0"])
    _copy(f, (_tile(f, f["tile0"]), constant(I64, ROW)), (f["pointer"], f["stride"]), rows, size)
    return f.text()


def _copy(
    f: Function, source: tuple[Value, Value], target: tuple[Value, Value], rows: Value, size: Value
) -> None:
    """Rows from places a stride apart to others."""

    def row(i: Value) -> None:
        came, goes = (f.gep(at, f.mul(i, stride)) for at, stride in (source, target))
        f.loop(0, size, 1, lambda k: f.store(f.load(I8, f.gep(came, k)), f.gep(goes, k)))

    f.loop(0, rows, 1, row)


def _multiply(kind: str, machine: Machine) -> str:
    """For each row of A and of C: go over its groups, and over the rows of B that they meet."""
    f = _function(PRODUCTS[kind], 3, machine)
    c, a, b = (_tile(f, f[f"tile{k}"]) for k in range(3))
    (rows, size), (a_rows, a_size), (b_rows, b_size) = (_shape(f, f[f"tile{k}"]) for k in range(3))
    groups = f.udiv(a_size, GROUP)
    for one, two in ((rows, a_rows), (size, b_size), (groups, b_rows), (f.mul(groups, GROUP), a_size)):
        _refuse(f, f.icmp("ne", one, two))
    write = _of_reals if kind == "bf16" else _of_bytes
    sums = vector(LANES, FLOAT if kind == "bf16" else I32)
    inside = f.zext(_lanes_below(f, f.udiv(size, GROUP)), I32)  # in other lanes of C is zero

    def row(m: Value) -> None:
        at, source = f.gep(c, m, ROW), f.gep(a, m, ROW)
        made = write(f, kind, f.load(sums, at), source, b, groups)
        f.store(f.mul(f.bits(made), inside), at)

    f.loop(0, rows, 1, row)
    return f.text()


def _lanes_below(f: Function, count: Value) -> Value:
    """Which lanes of a vector have a number less than this."""
    lanes = constant(vector(LANES, I64), 0)
    for k in range(LANES):
        lanes = f.insert(lanes, k, k)
    return f.icmp("ult", lanes, f.splat(count, LANES))


def _of_bytes(f: Function, kind: str, total: Value, source: Value, b: Value, groups: Value) -> Value:
    """Sums of four products in s32, which wrap around and never saturate."""
    signs = kind[0] == "s", kind[2] == "s"

    def turn(k: Value, given: list[Value]) -> list[Value]:
        (added,) = given
        weights = f.load(vector(ROW, I8), f.gep(b, k, ROW))
        for byte in range(GROUP):
            one = f.load(I8, f.gep(f.gep(source, k, GROUP), byte))
            two = f.shuffle(weights, range(byte, ROW, GROUP))
            one, two = (f.resize(x, 32, signed) for x, signed in zip((one, two), signs, strict=True))
            added = f.add(added, f.mul(f.splat(one, LANES), two))
        return [added]

    return f.repeat(0, groups, 1, [total], turn)[0]


def _of_reals(f: Function, kind: str, total: Value, source: Value, b: Value, groups: Value) -> Value:
    """Products of pairs: the first of each are added up from zero, and so are the second, rounded once each.

    Then both are added, and that is added to what there was. Subnormal numbers count as zero, in every
    operand and every result.
    """
    zero = constant(total.type, 0)

    def turn(k: Value, given: list[Value]) -> list[Value]:
        pairs = f.load(vector(2 * LANES, I16), f.gep(b, k, ROW))
        made = []
        for half, added in enumerate(given):
            one = f.load(I16, f.gep(f.gep(source, k, GROUP), 2 * half))
            two = f.shuffle(pairs, range(half, 2 * LANES, 2))
            x, y = (_usual(f, f.real(f.shl(f.zext(word, I32), 16))) for word in (f.splat(one, LANES), two))
            made.append(_usual(f, f.intrinsic("fma", x, y, added)))
        return made

    first, second = f.repeat(0, groups, 1, [zero, zero], turn)
    return _usual(f, f.fadd(_usual(f, total), _usual(f, f.fadd(first, second))))


def _usual(f: Function, x: Value) -> Value:
    """The same, but zero with its sign where it is subnormal."""
    words = f.bits(x)
    small = f.icmp("eq", f.and_(words, 0x7F800000), 0)
    return f.real(f.select(small, f.and_(words, 0x80000000), words))
