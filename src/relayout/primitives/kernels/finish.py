"""What becomes of a sum before it is stored: scale, bias, post-ops, data type, zeros in the padding.

In this order, as oneDNN has it::

    post_ops(sum * scale + bias)        in f32, then rounded and saturated to the destination's data type

Sums of integers stay integers if the destination is s32 and nothing but an s32 bias comes in between. In
scratch, from where rows are scattered, results are f32, or those integers.

What a tile stores behind the last channel is zero, whatever the sums there are: a NaN in the source times a
weight in the padding is no zero.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from relayout.codegen.ir import Writer
from relayout.codegen.machine import Machine
from relayout.codegen.values import converted
from relayout.dtypes import DType, dtype
from relayout.primitives.functions import Function
from relayout.primitives.kernels.arithmetic import Arithmetic
from relayout.primitives.kernels.tile import WORD, Piece, Tile, lanes_of, load_pieces, pieces_of
from relayout.primitives.post_ops import PostOp, Sum, adds

__all__ = ["Finish", "Finishing"]


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

    @property
    def adds(self) -> bool:
        """Whether what the destination held is added."""
        return adds(self.post_ops)

    def stays_whole(self, weights: str) -> bool:
        """Whether all is done in integers, for weights of a type."""
        between = self.scale or self.post_ops or self.bias not in ("", "s32")
        return weights == "s8" and self.dtype == "s32" and not between

    def scattered(self, weights: str) -> DType:
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
    def scatters(self) -> bool: ...


class Finish:
    """Writes it, for the vectors of a tile."""

    def __init__(self, tile: Tile | Vectors, nest: Setting, how: Finishing) -> None:
        self.tile, self.how = tile, how
        self.machine, self.lanes = nest.machine, lanes_of(nest.machine)
        self.integers = tile.arithmetic.sums == "s32"
        self.whole = how.stays_whole(nest.weights_type)
        self.kind, self.words = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        self.target = how.scattered(nest.weights_type) if nest.scatters else dtype(how.dtype)
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
        for op in how.post_ops:
            if isinstance(op, Sum):
                old = self._old(w, pixel, vector)
                if op.scale != 1:
                    old = w.value(f"fmul {self.kind} {old}, {_splat(op.scale, lanes)}")
                value = w.value(f"fadd {self.kind} {value}, {old}")
            elif isinstance(op, Function):
                value = op.emit(w, self.machine, value, lanes)
        bits = w.value(f"bitcast {self.kind} {value} to {self.words}")
        return converted(w, self.machine, bits, lanes, dtype("f32"), self.target)

    def _operand(self, w: Writer, name: str, vector: int) -> str:
        """The scales or the biases of a vector, loaded once for all pixels."""
        if (name, vector) not in self._vectors:
            channels, lanes = self.channels[vector], self.lanes
            if name == "scale" and self.how.scale == 1:
                pointer = w.value("load float, ptr %scale, align 4")
                one = w.value(f"insertelement {self.kind} poison, float {pointer}, i32 0")
                made = w.shuffle(one, "poison", self.kind, [0] * lanes)
            else:
                whole = name == "bias" and self.how.bias == "s32"
                count = max(channels) + 1
                count = min(count, self.how.period or count)
                pieces = pieces_of(0, count, vector * lanes * WORD)
                made = load_pieces(w, f"%{name}", pieces, lanes, "i32" if whole else "float")
                picks = [lane if channel < 0 else channel % count for lane, channel in enumerate(channels)]
                if picks != list(range(lanes)):
                    made = w.shuffle(made, "poison", self.words if whole else self.kind, picks)
                if whole and not self.whole:
                    made = w.value(f"sitofp {self.words} {made} to {self.kind}")
            self._vectors[name, vector] = made
        return self._vectors[name, vector]

    def _old(self, w: Writer, pixel: int, vector: int) -> str:
        """What the destination held, as f32."""
        at = w.at("%dst", self.tile.dst[pixel])
        bits = self.target.bits
        old = load_pieces(w, at, self.tile.pieces[vector], self.lanes, f"i{bits}", bits // 8)
        wide = converted(w, self.machine, old, self.lanes, self.target, dtype("f32"))
        return w.value(f"bitcast <{self.lanes} x i32> {wide} to {self.kind}")


def _neighbours(tile: Tile, lanes: int) -> tuple[tuple[int, ...], ...]:
    """The channels of lanes that lie side by side."""
    counts = [lanes] * (len(tile.weights) - 1) + [tile.valid]
    return tuple(tuple(lane if lane < count else -1 for lane in range(lanes)) for count in counts)


def _splat(number: float, lanes: int) -> str:
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    (bits,) = struct.unpack("<Q", struct.pack("<d", single))
    return f"<{', '.join([f'float 0x{bits:016X}'] * lanes)}>"
