"""The epilogue of a sum, before it is stored: scale, bias, post-ops, data type, zeros in the padding.

In this order, as oneDNN has it::

    post_ops(sum * scale + bias)        in f32, then rounded and saturated to the destination's data type

Sums of integers stay integers if the destination is s32 and nothing but an s32 bias comes in between. In
scratch, from where rows are unpacked, results are f32, or those integers.

A post-op that is a binary operation reads one more tensor, its operand. A tile finds the elements of it that
belong to its sums in four cases (:func:`operand_of`); everything else needs a pass of its own::

    one          a single element             in all lanes, loaded once
    channels     a dense value a channel      loaded as the bias is, once for all pixels
    rows         a dense value a row          in all lanes: so many bytes behind the first, of so many a row;
                                              so a vector may hold no more than one row
    same         laid out as the destination  loaded as the old destination is, so many bytes behind the first

The last two are where the tile stores to the destination itself: then an element of the operand lies as many
elements behind the first as that of the destination does, and bytes are in the ratio of the data types.

What a tile stores behind the last channel is zero, whatever the sums there are: a NaN in the source times a
weight in the padding is no zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError
from relayout.ir.builder import Builder, Function
from relayout.ir.conversions import from_f32, to_f32
from relayout.ir.types import FLOAT, I32, PTR, Type, Value, integer, vector
from relayout.ir.vectors import Piece, join, load_pieces, merged, pieces_of, store_pieces
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.tile import Tile, lanes_of
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.binary import emit as operation
from relayout.ops.functions import Function as Elementwise
from relayout.ops.post_ops import BinaryOp, PostOp, Sum, adds
from relayout.targets.machine import Machine

__all__ = ["ROWS", "Epilogue", "Operand", "Writer", "channels_of", "operand_of"]

ONE, CHANNELS, ROWS, SAME = "one", "channels", "rows", "same"
RELU = Elementwise("relu")
NARROWEST, WIDEST = 4, 16  # registers of x86, in sums


class Operand(NamedTuple):
    """A tensor that a binary operation reads."""

    how: str
    """Where its elements lie: one, channels, rows or same."""
    dtype: str
    at: int
    """Bytes in front of its first element; of one laid out as the destination, how many more than there."""
    row: int = 0
    """Elements of the destination from one row to the next, for a value a row."""
    front: int = 0
    """Elements in front of the destination's first one, for the same."""


def operand_of(desc: MemoryDesc, dst: MemoryDesc, axis: int, direct: bool) -> Operand | None:
    """How a tile reads an operand; None where it can't.

    Parameters
    ----------
    desc : MemoryDesc
        On each axis of the destination's size, or 1.
    dst : MemoryDesc
        The destination.
    axis : int
        That of the channels.
    direct : bool
        Whether tiles store to the destination itself.

    Examples
    --------
    >>> dst = MemoryDesc((2, 32, 4, 4), "s8", "nhwc")
    >>> operand_of(MemoryDesc((1, 32, 1, 1), "f32", "nchw"), dst, 1, True)
    Operand(how='channels', dtype='f32', at=0, row=0, front=0)
    >>> operand_of(MemoryDesc((2, 32, 4, 4), "f32", "nhwc"), dst, 1, True)
    Operand(how='same', dtype='f32', at=0, row=0, front=0)
    >>> operand_of(MemoryDesc((2, 32, 1, 1), "f32", "nchw"), dst, 1, True) is None
    True
    >>> operand_of(MemoryDesc((5, 1), "f32", "ab"), MemoryDesc((5, 48), "f32", "ab"), 1, True)
    Operand(how='rows', dtype='f32', at=0, row=48, front=0)
    """
    layout, size, name = desc.layout, desc.dtype.bits // 8, desc.dtype.name
    count = desc.dims[axis]
    if prod(desc.dims) == 1:
        return Operand(ONE, name, layout.offset0 * size)
    if prod(desc.dims) == count:
        places = layout.offsets([[k if a == axis else 0 for a in range(layout.rank)] for k in range(count)])
        if (places == layout.offset0 + np.arange(count)).all():
            return Operand(CHANNELS, name, layout.offset0 * size)
    if direct and desc.dims == dst.dims and layout.moved(0).same_bytes(dst.layout.moved(0)):
        return Operand(SAME, name, (layout.offset0 - dst.layout.offset0) * size)
    if direct and (row := _row_of(desc, dst, axis)):
        return Operand(ROWS, name, layout.offset0 * size, row, dst.layout.offset0)
    return None


def _row_of(desc: MemoryDesc, dst: MemoryDesc, axis: int) -> int:
    """The step between the rows of a destination for each of which an operand has a value; 0: it has not."""
    wide = [a for a, n in enumerate(dst.dims) if n > 1 and a != axis]
    if len(wide) != 1 or desc.dims != tuple(n if a in wide else 1 for a, n in enumerate(dst.dims)):
        return 0
    if not (desc.layout.is_plain and dst.layout.is_plain and desc.strides[wide[0]] == 1):
        return 0
    row = dst.strides[wide[0]]
    return row if dst.strides[axis] == 1 and row >= dst.dims[axis] else 0


class Epilogue(NamedTuple):
    """What becomes of sums, as plain data."""

    dtype: str
    """The data type of the destination."""
    bias: str = ""
    """The data type of the bias, f32 or s32; empty: there is none."""
    scale: int = 0
    """How many scales there are: none, one, or one for each output channel (any larger number)."""
    post_ops: tuple[PostOp, ...] = ()
    bias_at: int = 0
    """Bytes in front of the first bias; the same for scales."""
    scale_at: int = 0
    period: int = 0
    """After how many channels biases and scales begin anew; 0: never."""
    operands: tuple[Operand, ...] = ()
    """Those of the binary operations among the post-ops, in their order."""

    @property
    def adds(self) -> bool:
        """Whether what the destination held is added."""
        return adds(self.post_ops)

    @property
    def names(self) -> tuple[str, ...]:
        """What a tile calls the addresses of the operands."""
        return tuple(f"operand{k}" for k in range(len(self.operands)))

    @property
    def by_row(self) -> bool:
        """Whether an operand has a value for each row; then a vector may hold no more than one of them."""
        return any(operand.how == ROWS for operand in self.operands)

    def bases(self, b: Builder, ops: Value, first: int) -> list[Value]:
        """Where the operands begin, whose addresses are in the kernel's list from number ``first`` on."""
        return [
            b.gep(b.load(PTR, b.gep(ops, 8 * (first + k))), operand.at)
            for k, operand in enumerate(self.operands)
        ]

    def pointers(self, f: Function, bases: Sequence[Value], channel: Value, target: Value) -> list[Value]:
        """What a tile gets, whose first channel has this number, and which stores from ``target`` on."""
        found = []
        for base, operand in zip(bases, self.operands, strict=True):
            size, each = dtype(operand.dtype).bits // 8, dtype(self.dtype).bits // 8
            if operand.how == CHANNELS:
                base = f.gep(base, channel, size)
            elif operand.how == ROWS:
                gone = f.sub(f.sub(f.ptrtoint(target), f.ptrtoint(f["dst"])), operand.front * each)
                base = f.gep(base, f.udiv(gone, operand.row * each), size)
            elif operand.how == SAME:
                gone = f.mul(f.sub(f.ptrtoint(target), f.ptrtoint(f["dst"])), size)
                base = f.gep(base, f.sdiv_exact(gone, each))
            found.append(base)
        return found

    def stays_whole(self, weights: str) -> bool:
        """Whether all is done in integers, for weights of a type."""
        between = self.scale or self.post_ops or self.bias not in ("", "s32")
        return weights == "s8" and self.dtype == "s32" and not between

    def unpacked(self, weights: str) -> DType:
        """The type of results in scratch."""
        return dtype("s32" if self.stays_whole(weights) else "f32")


class Vectors(Protocol):
    """What must be known of a tile, if it is no :class:`.tile.Tile`."""

    @property
    def arithmetic(self) -> Arithmetic: ...

    @property
    def dst(self) -> tuple[int, ...]:
        """Where each pixel lies."""

    @property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """How each vector is stored."""

    @property
    def channels(self) -> tuple[tuple[int, ...], ...]:
        """The channel of each lane, counted from the first of its vector; -1: padding."""


class Outputs(NamedTuple):
    """That, and nothing else."""

    arithmetic: Arithmetic
    dst: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    channels: tuple[tuple[int, ...], ...]


class Setting(Protocol):
    """What an epilogue asks of a plan."""

    @property
    def machine(self) -> Machine: ...

    @property
    def weights_type(self) -> str: ...

    @property
    def unpacks(self) -> bool: ...


class Writer:
    """Writes an epilogue: the code from a vector of sums to what a tile stores."""

    def __init__(self, tile: Tile | Vectors, nest: Setting, how: Epilogue, lanes: int = 0) -> None:
        self.tile, self.how = tile, how
        self.machine, self.lanes = nest.machine, lanes or lanes_of(nest.machine)
        self.integers = tile.arithmetic.sums == "s32"
        self.whole = how.stays_whole(nest.weights_type)
        self.target = how.unpacked(nest.weights_type) if nest.unpacks else dtype(how.dtype)
        self.channels = (
            channels_of(len(tile.weights), tile.valid, self.lanes)
            if isinstance(tile, Tile)
            else tile.channels
        )
        if how.by_row and any(_repeats(several) for several in self.channels):
            raise LayoutError("a value for each row is added to vectors of several rows: each must hold one")
        self._vectors: dict[tuple[str, int], Value] = {}

    def __call__(self, b: Function, x: Value, pixel: int, number: int) -> Value:
        """The vector to store, in storage form, of a vector of sums."""
        if self.whole:
            x = self._whole(b, x, pixel, number)
        else:
            x = from_f32(b, self._real(b, x, pixel, number), self.target)
        return b.bits(self._without_padding(b, x, number))

    @property
    def together(self) -> int:
        """How many vectors are narrowed at once: on x86 as many as become one register of results.

        Packs take two registers, and their results lie in another order. So four registers of sums become one
        of bytes by three packs and a permutation. Without AVX-512 one by itself takes as many; with it one
        instruction, which works as long as two. Where an instruction rounds to bf16, what it would get wrong
        is looked for in two registers at once; with four LLVM would spill sums.
        """
        narrow = self.target.name in ("s8", "u8", "bf16")
        wide = self.lanes > NARROWEST and not self.machine.is_arm
        return 32 // self.target.bits if narrow and wide and not self.whole else 1

    def store(self, b: Function, sums: Sequence[tuple[Value, int, int]]) -> None:
        """Store vectors of sums, given with the numbers of their pixels and of their vectors."""
        several = self.together
        if several > 1 and self.lanes == WIDEST:  # what is stored side by side becomes whole lines
            sums = sorted(sums, key=lambda one: self._begins(one[1], one[2]))
        for first in range(0, len(sums), several):
            here = sums[first : first + several]
            if len(here) == 1:
                x, pixel, number = here[0]
                x = self(b, x, pixel, number)
                store_pieces(b, x, b.gep(b["dst"], self.tile.dst[pixel]), self.tile.pieces[number])
                continue
            made = [
                self._without_padding(b, self._real(b, x, pixel, number), number) for x, pixel, number in here
            ]
            made += made[-1:] * (several - len(made))
            pieces = [
                piece._replace(lane=piece.lane + k * self.lanes, offset=piece.offset + self.tile.dst[pixel])
                for k, (_, pixel, number) in enumerate(here)
                for piece in self.tile.pieces[number]
            ]
            stored = from_f32(b, join(b, made), self.target)
            store_pieces(b, stored, b["dst"], merged(pieces, self.target.bits // 8))

    def _begins(self, pixel: int, number: int) -> int:
        """Where a vector is stored."""
        pieces = self.tile.pieces[number]
        return self.tile.dst[pixel] + (pieces[0].offset if pieces else 0)

    def _without_padding(self, b: Function, x: Value, number: int) -> Value:
        """Zeros in place of what is stored in lanes that are no channels."""
        lanes, channels = self.lanes, self.channels[number]
        stored = (
            k for piece in self.tile.pieces[number] for k in range(piece.lane, piece.lane + piece.lanes)
        )
        if any(channels[lane] < 0 for lane in stored):
            picks = [lanes if channel < 0 else lane for lane, channel in enumerate(channels)]
            x = b.shuffle(x, picks, 0.0 if x.type.element is FLOAT else 0)
        return x

    def _whole(self, b: Function, x: Value, pixel: int, number: int) -> Value:
        """Integers, and never anything else; where sums are f32 these are small enough to be exact."""
        if not self.integers:
            x = b.fptosi(x, I32)
        return b.intrinsic("sadd.sat", x, self._operand(b, "bias", number)) if self.how.bias else x

    def _real(self, b: Function, x: Value, pixel: int, number: int) -> Value:
        """What is rounded to the type of the destination, in f32."""
        if self.integers:
            x = b.sitofp(x, FLOAT)
        if self.how.scale:
            x = b.fmul(x, self._operand(b, "scale", number))
        if self.how.bias:
            x = b.fadd(x, self._operand(b, "bias", number))
        operands = iter(range(len(self.how.operands)))
        ops = self.how.post_ops
        if self.target.name == "u8" and ops and ops[-1] == RELU:  # saturating does the same, to NaN as well
            ops = ops[:-1]
        for op in ops:
            if isinstance(op, Sum):
                old = self._stored(b, "dst", self.target, pixel, number)
                x = b.fadd(x, old if op.scale == 1 else b.fmul(old, op.scale))
            elif isinstance(op, BinaryOp):
                x = operation(b, op.algorithm, x, self._other(b, next(operands), pixel, number))
            else:
                x = op.emit(b, x)
        return x

    def _operand(self, b: Function, name: str, number: int) -> Value:
        """The scales or the biases of a vector, loaded once for all pixels."""
        if (name, number) not in self._vectors:
            if name == "scale" and self.how.scale == 1:
                made = self._everywhere(b, "scale", dtype("f32"))
            else:
                kind = I32 if name == "bias" and (self.whole or self.how.bias == "s32") else FLOAT
                made = self._of_channels(b, name, kind, number)
                made = b.sitofp(made, FLOAT) if kind is I32 and not self.whole else made
            self._vectors[name, number] = made
        return self._vectors[name, number]

    def _other(self, b: Function, which: int, pixel: int, number: int) -> Value:
        """The operand of a binary operation, as f32."""
        operand, name = self.how.operands[which], self.how.names[which]
        kind = dtype(operand.dtype)
        if operand.how == SAME:
            return self._stored(b, name, kind, pixel, number)
        if operand.how == ROWS:
            rows = self.tile.dst[pixel] // (operand.row * (self.target.bits // 8))
            return self._everywhere(b, name, kind, rows)
        if (name, number) not in self._vectors:
            if operand.how == ONE:
                made = self._everywhere(b, name, kind)
            else:
                made = to_f32(b, self._of_channels(b, name, integer(kind.bits), number), kind)
            self._vectors[name, number] = made
        return self._vectors[name, number]

    def _everywhere(self, b: Function, name: str, kind: DType, place: int = 0) -> Value:
        """One element in all lanes."""
        one = b.load(vector(1, integer(kind.bits)), b.gep(b[name], place * (kind.bits // 8)))
        return b.splat(to_f32(b, one, kind), self.lanes)

    def _of_channels(self, b: Function, name: str, element: Type, number: int) -> Value:
        """The values of the channels of a vector."""
        channels, lanes, size = self.channels[number], self.lanes, element.bits // 8
        count = max(channels) + 1
        count = min(count, self.how.period or count)
        pieces = pieces_of(0, count, number * lanes * size, size)
        made = load_pieces(b, vector(lanes, element), b[name], pieces)
        picks = [lane if channel < 0 else channel % count for lane, channel in enumerate(channels)]
        return made if picks == list(range(lanes)) else b.shuffle(made, picks)

    def _stored(self, b: Function, name: str, kind: DType, pixel: int, number: int) -> Value:
        """Elements of a tensor of some type from where, in the destination, a vector is stored; as f32."""
        size, each = kind.bits // 8, self.target.bits // 8
        at = b.gep(b[name], self.tile.dst[pixel] * size // each)
        pieces = [piece._replace(offset=piece.offset * size // each) for piece in self.tile.pieces[number]]
        return to_f32(b, load_pieces(b, vector(self.lanes, integer(kind.bits)), at, pieces), kind)


def channels_of(vectors: int, valid: int, lanes: int) -> tuple[tuple[int, ...], ...]:
    """The channel of each lane of so many vectors, the last of which has so many channels; -1: padding.

    >>> channels_of(2, 3, 4)
    ((0, 1, 2, 3), (0, 1, 2, -1))
    """
    counts = [lanes] * (vectors - 1) + [valid]
    return tuple(tuple(lane if lane < count else -1 for lane in range(lanes)) for count in counts)


def _repeats(channels: Sequence[int]) -> bool:
    """Whether some channel is there twice, of two pixels or images; padding does not count.

    >>> _repeats((0, 1, 2, -1, -1)), _repeats((0, 1, 0, 1))
    (False, True)
    """
    there = [channel for channel in channels if channel >= 0]
    return len(set(there)) < len(there)
