"""What stands beside products of integers: the vectors that a kernel reads, and what becomes of its sums.

An operator of :mod:`relayout.graph.operators.integers` is a primitive with vectors and post-ops::

    sums          of products of (x - zero point) and (w - zero point)           Vectors: zero points
    sums          * scale + bias, for each channel                               Vectors: scale, bias
    a residual    in steps of its own, an offset, bounds                         Epilogue

A zero point of the source that is known is a part of the bias, and so is that of the result, unless it is
odd; factors of a residual are tensors of one element. So convolutions of one shape share one kernel, whatever
their scales are. A zero point that is found in each run is taken off the sums, which are integers then: in
f32, sums above 2**24 would lose bits.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.graph.lowering.case import Case, Operand, row_major
from relayout.graph.lowering.chains import Step
from relayout.layout.descriptor import MemoryDesc, any_format
from relayout.ops.functions import Function
from relayout.ops.post_ops import BinaryOp, PostOp
from relayout.records import dataclass

if TYPE_CHECKING:
    from relayout.graph.lowering.emission import Site

__all__ = ["BYTES", "Epilogue", "Vectors", "Zeros", "vector_descs"]

BYTES = ("u8", "s8")

Zeros = tuple[MemoryDesc | None, MemoryDesc | None]
"""The zero points of source and weights. With them fewer formats have kernels, so costs depend on them."""


def vector_descs(zeros: Zeros, scale: int = 1, bias: int = 0) -> dict[str, Any]:
    """The descriptors of vectors by the names that primitives have for them; of so many elements."""
    return {
        "bias": MemoryDesc((bias,), "f32", "a") if bias else None,
        "scale": MemoryDesc((scale,), "f32", "a"),
        "src_zero_point": zeros[0],
        "weights_zero_point": zeros[1],
    }


@dataclass(frozen=True)
class Vectors:
    """The constants of a product of integers besides its weights, as kernels read them.

    Attributes
    ----------
    scale, bias : numpy.ndarray
        In f32, one for all output channels or one for each.
    src_zero_point, weights_zero_point : numpy.ndarray, optional
        In s32, as far as they are not a part of the bias.
    moving : Operand, optional
        The zero point of the source, if it is found in each run.
    """

    scale: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    src_zero_point: NDArray[np.int32] | None
    weights_zero_point: NDArray[np.int32] | None
    moving: Operand | None

    @classmethod
    def of(cls, case: Case, weights: NDArray[Any], axes: tuple[int, ...], padded: bool) -> Vectors:
        """Those of a node.

        Parameters
        ----------
        axes : tuple of int
            The axes of the weights that are summed over.
        padded : bool
            Whether there is padding: it has the value of the source's zero point, which is then no part of
            the bias.
        """
        scale, bias, offset = (case.constant(place) for place in (2, 3, 6))
        assert scale is not None
        zero, moving = int(case.attributes["zero_point"]), case.input(7)
        scale = np.ascontiguousarray(scale.reshape(-1), np.float32)
        sums = weights.astype(np.int64).sum(axis=axes)
        if offset is not None:
            sums = sums - offset.astype(np.int64) * (weights.size // max(len(sums), 1))
        known = bool(padded and zero and moving is None)
        whole = np.zeros(1) if bias is None else bias.astype(np.float64).reshape(-1)
        if not known:
            whole = whole - sums.astype(np.float64) * scale * float(zero)
        return cls(
            scale,
            np.ascontiguousarray(whole, np.float32) if whole.any() else None,
            np.array([zero], np.int32) if known else None,
            None if offset is None else np.ascontiguousarray(offset.reshape(-1), np.int32),
            moving,
        )

    @property
    def zeros(self) -> Zeros:
        """What the zero points are."""
        weights = self.weights_zero_point
        found = self.src_zero_point is not None or self.moving is not None
        return (
            MemoryDesc((1,), "s32", "a") if found else None,
            None if weights is None else MemoryDesc(weights.shape, "s32", "a"),
        )

    @property
    def read(self) -> dict[str, MemoryDesc]:
        """How a zero point that moves is read."""
        zero = self.moving
        return {} if zero is None else {zero.name: row_major(zero.dims, zero.dtype)}

    def descs(self, outputs: int) -> dict[str, Any]:
        """What a primitive with so many output channels is made with."""
        return vector_descs(self.zeros, self.scale.size, 0 if self.bias is None else outputs)

    def values(self, site: Site, outputs: int) -> list[Any]:
        """What it reads behind its weights, in the order of its inputs."""
        bias = None if self.bias is None else np.ascontiguousarray(np.broadcast_to(self.bias, outputs))
        moving = None if self.moving is None else site.reshaped(site.value(self.moving), (1,))
        zero = self.src_zero_point if moving is None else moving
        return [one for one in (bias, self.scale, zero, self.weights_zero_point) if one is not None]


@dataclass(frozen=True)
class Epilogue:
    """What becomes of scaled sums.

    Attributes
    ----------
    added : Operand, optional
        A residual, with its factors.
    inner : (float, float), optional
        The bounds of the sums, rounded, before it is added.
    offset : int
        An odd zero point of the result, added once it is rounded.
    low, high : float
        The bounds of the result.
    """

    added: Operand | None
    factors: NDArray[Any] | None
    inner: tuple[float, float] | None
    offset: int
    low: float
    high: float

    @classmethod
    def of(cls, case: Case) -> Epilogue:
        """That of a node."""
        a = case.attributes
        bounds = float(a["low"]), float(a["high"])
        return cls(case.input(4), case.constant(5), a["inner"], int(a["offset"]), *bounds)

    @property
    def steps(self) -> list[Step]:
        """The residual, as far as formats go."""
        return [] if self.added is None else [Step("add", self.added)]

    def post_ops(self, rank: int, added: MemoryDesc | None = None) -> tuple[list[PostOp], list[Any]]:
        """The post-ops, and their operands: constants, and None for the residual."""
        ops: list[PostOp] = []
        given: list[Any] = []
        one = MemoryDesc((1,) * rank, "f32", any_format)
        if added is not None and self.factors is not None:
            if self.inner is not None:
                ops += [Function("round"), Function("clip", *map(float, self.inner))]
            ops += [BinaryOp("mul", one), BinaryOp("add", one), BinaryOp("add", added), BinaryOp("mul", one)]
            first, summand, last = (factor.reshape((1,) * rank) for factor in np.float32(self.factors))
            given = [first, summand, None, last]
        if self.offset:
            ops += [Function("round"), Function("linear", 1.0, float(self.offset))]
        if (self.low, self.high) != (-inf, inf):
            ops.append(Function("clip", self.low, self.high))
        return ops, given
