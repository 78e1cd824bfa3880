"""What becomes of a sum before it is stored: scale, bias, post-ops, data type, zeros in the padding.

In this order, as oneDNN has it::

    post_ops(sum * scale + bias)        in f32, then rounded and saturated to the destination's data type

Sums of integers stay integers if the destination is s32 and nothing but an s32 bias comes in between. In
scratch, from where rows are unpacked, results are f32, or those integers.

A post-op that is a binary operation reads one more tensor, its operand. A tile finds the elements of it that
belong to its sums in three cases (:func:`operand_of`); everything else needs a pass of its own::

    one          a single element             in all lanes, loaded once
    channels     a dense value a channel      loaded as the bias is, once for all pixels
    same         laid out as the destination  loaded as the old destination is, so many bytes behind the first

The last one is where the tile stores to the destination itself: then an element of the operand lies as many
elements behind the first as that of the destination does, and bytes are in the ratio of the data types.

What a tile stores behind the last channel is zero, whatever the sums there are: a NaN in the source times a
weight in the padding is no zero.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Protocol

import numpy as np

from relayout.dtypes import DType, dtype
from relayout.ir.conversions import converted
from relayout.ir.writer import Writer
from relayout.kernels.conv.arithmetic import Arithmetic
from relayout.kernels.conv.tile import WORD, Piece, Tile, lanes_of, load_pieces, pieces_of
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.binary import emitted
from relayout.ops.post_ops import BinaryOp, PostOp, Sum, adds
from relayout.targets.machine import Machine

__all__ = ["Finish", "Finishing", "Operand", "operand_of"]

ONE, CHANNELS, SAME = "one", "channels", "same"


class Operand(NamedTuple):
    """A tensor that a binary operation reads."""

    how: str
    """Where its elements lie: one, channels or same."""
    dtype: str
    at: int
    """Bytes in front of its first element; of one laid out as the destination, how many more than there."""


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
    Operand(how='channels', dtype='f32', at=0)
    >>> operand_of(MemoryDesc((2, 32, 4, 4), "f32", "nhwc"), dst, 1, True)
    Operand(how='same', dtype='f32', at=0)
    >>> operand_of(MemoryDesc((2, 32, 1, 1), "f32", "nchw"), dst, 1, True) is None
    True
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
    return None


class Finishing(NamedTuple):
    """What happens to sums."""

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

    def bases(self, w: Writer, first: int) -> list[str]:
        """Where the operands begin, whose addresses are in the kernel's list from number ``first`` on."""
        words = [
            w.value(f"load ptr, ptr {w.at('%ops', 8 * (first + k))}, align 8")
            for k in range(len(self.operands))
        ]
        return [w.at(word, operand.at) for word, operand in zip(words, self.operands, strict=True)]

    def pointers(self, w: Writer, bases: Sequence[str], channel: str, target: str) -> list[str]:
        """What a tile gets, whose first channel has this number, and which stores from ``target`` on."""
        found = []
        for base, operand in zip(bases, self.operands, strict=True):
            size, each = dtype(operand.dtype).bits // 8, dtype(self.dtype).bits // 8
            if operand.how == CHANNELS:
                base = w.at(base, w.times(channel, size))
            elif operand.how == SAME:
                here, first = (w.value(f"ptrtoint ptr {pointer} to i64") for pointer in (target, "%dst"))
                gone = w.times(w.value(f"sub i64 {here}, {first}"), size)
                base = w.at(base, gone if each == 1 else w.value(f"sdiv exact i64 {gone}, {each}"))
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


class Setting(Protocol):
    """What must be known of a nest."""

    @property
    def machine(self) -> Machine: ...

    @property
    def weights_type(self) -> str: ...

    @property
    def unpacks(self) -> bool: ...


class Finish:
    """Writes it, for the vectors of a tile."""

    def __init__(self, tile: Tile | Vectors, nest: Setting, how: Finishing) -> None:
        self.tile, self.how = tile, how
        self.machine, self.lanes = nest.machine, lanes_of(nest.machine)
        self.integers = tile.arithmetic.sums == "s32"
        self.whole = how.stays_whole(nest.weights_type)
        self.kind, self.words = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        self.target = how.unpacked(nest.weights_type) if nest.unpacks else dtype(how.dtype)
        self.channels = _neighbours(tile, self.lanes) if isinstance(tile, Tile) else tile.channels
        self._vectors: dict[tuple[str, int], str] = {}

    def __call__(self, w: Writer, value: str, pixel: int, vector: int) -> tuple[str, int]:
        """The vector to store, as integers of so many bits."""
        lanes, bits = self.lanes, self.target.bits
        made = (self._whole if self.whole else self._real)(w, value, pixel, vector)
        channels = self.channels[vector]
        stored = (
            lane for piece in self.tile.pieces[vector] for lane in range(piece.lane, piece.lane + piece.lanes)
        )
        if any(channels[lane] < 0 for lane in stored):
            picks = [lanes if channel < 0 else lane for lane, channel in enumerate(channels)]
            made = w.shuffle(made, "zeroinitializer", f"<{lanes} x i{bits}>", picks)
        return made, bits

    def _whole(self, w: Writer, value: str, pixel: int, vector: int) -> str:
        """Integers, and never anything else; where sums are f32 these are small enough to be exact."""
        if not self.integers:
            value = w.value(f"fptosi {self.kind} {value} to {self.words}")
        if not self.how.bias:
            return value
        bias = self._operand(w, "bias", vector)
        call = f"@llvm.sadd.sat.v{self.lanes}i32({self.words} {value}, {self.words} {bias})"
        return w.value(f"call {self.words} {call}")

    def _real(self, w: Writer, value: str, pixel: int, vector: int) -> str:
        """By way of f32."""
        how, lanes = self.how, self.lanes
        if self.integers:
            value = w.value(f"sitofp {self.words} {value} to {self.kind}")
        if how.scale:
            value = w.value(f"fmul {self.kind} {value}, {self._operand(w, 'scale', vector)}")
        if how.bias:
            value = w.value(f"fadd {self.kind} {value}, {self._operand(w, 'bias', vector)}")
        operands = iter(range(len(how.operands)))
        for op in how.post_ops:
            if isinstance(op, Sum):
                old = self._stored(w, "%dst", self.target, pixel, vector)
                if op.scale != 1:
                    old = w.value(f"fmul {self.kind} {old}, {_splat(op.scale, lanes)}")
                value = w.value(f"fadd {self.kind} {value}, {old}")
            elif isinstance(op, BinaryOp):
                other = self._other(w, next(operands), pixel, vector)
                value = emitted(w, op.algorithm, value, other, lanes)
            else:
                value = op.emit(w, self.machine, value, lanes)
        bits = w.value(f"bitcast {self.kind} {value} to {self.words}")
        return converted(w, self.machine, bits, lanes, dtype("f32"), self.target)

    def _operand(self, w: Writer, name: str, vector: int) -> str:
        """The scales or the biases of a vector, loaded once for all pixels."""
        if (name, vector) not in self._vectors:
            if name == "scale" and self.how.scale == 1:
                made = self._everywhere(w, "%scale", dtype("f32"))
            elif name == "bias" and self.whole:
                made = self._of_channels(w, "%bias", "i32", WORD, vector)
            elif name == "bias" and self.how.bias == "s32":
                made = self._of_channels(w, "%bias", "i32", WORD, vector)
                made = w.value(f"sitofp {self.words} {made} to {self.kind}")
            else:
                made = self._of_channels(w, f"%{name}", "float", WORD, vector)
            self._vectors[name, vector] = made
        return self._vectors[name, vector]

    def _other(self, w: Writer, number: int, pixel: int, vector: int) -> str:
        """The operand of a binary operation, as f32."""
        operand, name = self.how.operands[number], self.how.names[number]
        kind = dtype(operand.dtype)
        if operand.how == SAME:
            return self._stored(w, f"%{name}", kind, pixel, vector)
        if (name, vector) not in self._vectors:
            if operand.how == ONE:
                made = self._everywhere(w, f"%{name}", kind)
            else:
                raw = self._of_channels(w, f"%{name}", f"i{kind.bits}", kind.bits // 8, vector)
                made = self._as_floats(w, raw, kind, self.lanes)
            self._vectors[name, vector] = made
        return self._vectors[name, vector]

    def _everywhere(self, w: Writer, pointer: str, kind: DType) -> str:
        """One element in all lanes."""
        raw = w.value(f"load <1 x i{kind.bits}>, ptr {pointer}, align {kind.bits // 8}")
        one = self._as_floats(w, raw, kind, 1)
        return w.shuffle(one, "poison", "<1 x float>", [0] * self.lanes)

    def _of_channels(self, w: Writer, pointer: str, element: str, size: int, vector: int) -> str:
        """The values of the channels of a vector, so many bytes each."""
        channels, lanes = self.channels[vector], self.lanes
        count = max(channels) + 1
        count = min(count, self.how.period or count)
        pieces = pieces_of(0, count, vector * lanes * size, size)
        made = load_pieces(w, pointer, pieces, lanes, element, size)
        picks = [lane if channel < 0 else channel % count for lane, channel in enumerate(channels)]
        if picks != list(range(lanes)):
            made = w.shuffle(made, "poison", f"<{lanes} x {element}>", picks)
        return made

    def _stored(self, w: Writer, pointer: str, kind: DType, pixel: int, vector: int) -> str:
        """Elements of a tensor of some type from where, in the destination, a vector is stored; as f32."""
        size, each = kind.bits // 8, self.target.bits // 8
        at = w.at(pointer, self.tile.dst[pixel] * size // each)
        pieces = [piece._replace(offset=piece.offset * size // each) for piece in self.tile.pieces[vector]]
        raw = load_pieces(w, at, pieces, self.lanes, f"i{kind.bits}", size)
        return self._as_floats(w, raw, kind, self.lanes)

    def _as_floats(self, w: Writer, raw: str, kind: DType, count: int) -> str:
        """So many elements of another data type as f32."""
        wide = converted(w, self.machine, raw, count, kind, dtype("f32"))
        return w.value(f"bitcast <{count} x i32> {wide} to <{count} x float>")


def _neighbours(tile: Tile, lanes: int) -> tuple[tuple[int, ...], ...]:
    """The channels of lanes that lie side by side."""
    counts = [lanes] * (len(tile.weights) - 1) + [tile.valid]
    return tuple(tuple(lane if lane < count else -1 for lane in range(lanes)) for count in counts)


def _splat(number: float, lanes: int) -> str:
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    (bits,) = struct.unpack("<Q", struct.pack("<d", single))
    return f"<{', '.join([f'float 0x{bits:016X}'] * lanes)}>"
