"""What becomes of a sum before it is stored: scale, bias, post-ops, data type, zeros in the padding.

In this order, as oneDNN has it::

    post_ops(sum * scale + bias)        in f32, then rounded and saturated to the destination's data type

Sums of integers stay integers if nothing is asked for and the destination is s32.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from relayout.codegen.ir import Writer
from relayout.codegen.values import converted
from relayout.dtypes import dtype
from relayout.primitives.functions import Function
from relayout.primitives.kernels.nest import Nest
from relayout.primitives.kernels.tile import WORD, Tile, lanes_of, load_pieces, pieces_of
from relayout.primitives.post_ops import PostOp, Sum

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


class Finish:
    """Writes it, for the vectors of a tile."""

    def __init__(self, tile: Tile, nest: Nest, how: Finishing) -> None:
        self.tile, self.how = tile, how
        self.machine, self.lanes = nest.machine, lanes_of(nest.machine)
        self.integers = tile.arithmetic.sums == "s32"
        self.kind = f"<{self.lanes} x float>"
        self.target = dtype("f32" if nest.scatters else how.dtype)
        self._vectors: dict[tuple[str, int], str] = {}

    def __call__(self, w: Writer, value: str, pixel: int, vector: int) -> tuple[str, int]:
        """The vector to store, as integers of so many bits."""
        how, lanes = self.how, self.lanes
        words = f"<{lanes} x i32>"
        if self.integers and self.target.name == "s32" and not (how.bias or how.scale or how.post_ops):
            return value, 32
        if self.integers:
            value = w.value(f"sitofp {words} {value} to {self.kind}")
        if how.scale:
            value = w.value(f"fmul {self.kind} {value}, {self._operand(w, 'scale', vector)}")
        if how.bias:
            value = w.value(f"fadd {self.kind} {value}, {self._operand(w, 'bias', vector)}")
        dirty = False
        for op in how.post_ops:
            if isinstance(op, Sum):
                old = self._old(w, pixel, vector)
                if op.scale != 1:
                    old = w.value(f"fmul {self.kind} {old}, {_splat(op.scale, lanes)}")
                value = w.value(f"fadd {self.kind} {value}, {old}")
            elif isinstance(op, Function):
                value = op.emit(w, self.machine, value, lanes)
                dirty = dirty or op.at_zero != 0
        valid = self._valid(vector)
        if (dirty or how.scale == 1) and valid < lanes:
            picks = [lane if lane < valid else lanes for lane in range(lanes)]
            value = w.shuffle(value, "zeroinitializer", self.kind, picks)
        bits = w.value(f"bitcast {self.kind} {value} to {words}")
        stored = converted(w, self.machine, bits, lanes, dtype("f32"), self.target)
        return stored, self.target.bits

    def _valid(self, vector: int) -> int:
        """Lanes that are channels."""
        return self.tile.valid if vector == len(self.tile.weights) - 1 else self.lanes

    def _operand(self, w: Writer, name: str, vector: int) -> str:
        """The scales or the biases of a vector, loaded once for all pixels."""
        if (name, vector) not in self._vectors:
            valid, lanes = self._valid(vector), self.lanes
            if name == "scale" and self.how.scale == 1:
                pointer = w.value("load float, ptr %scale, align 4")
                one = w.value(f"insertelement {self.kind} poison, float {pointer}, i32 0")
                made = w.shuffle(one, "poison", self.kind, [0] * lanes)
            else:
                whole = name == "bias" and self.how.bias == "s32"
                pieces = pieces_of(0, valid, vector * lanes * WORD)
                made = load_pieces(w, f"%{name}", pieces, lanes, "i32" if whole else "float")
                if whole:
                    made = w.value(f"sitofp <{lanes} x i32> {made} to {self.kind}")
            self._vectors[name, vector] = made
        return self._vectors[name, vector]

    def _old(self, w: Writer, pixel: int, vector: int) -> str:
        """What the destination held, as f32."""
        at = w.at("%dst", self.tile.dst[pixel])
        bits = self.target.bits
        old = load_pieces(w, at, self.tile.pieces[vector], self.lanes, f"i{bits}", bits // 8)
        wide = converted(w, self.machine, old, self.lanes, self.target, dtype("f32"))
        return w.value(f"bitcast <{self.lanes} x i32> {wide} to {self.kind}")


def _splat(number: float, lanes: int) -> str:
    (single,) = struct.unpack("<f", struct.pack("<f", number))
    (bits,) = struct.unpack("<Q", struct.pack("<d", single))
    return f"<{', '.join([f'float 0x{bits:016X}'] * lanes)}>"
