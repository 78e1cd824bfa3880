"""Both ways between numbers and bytes, each as one expression: QuantizeLinear and DequantizeLinear.

Scales and zero points are constants, of the whole tensor or along an axis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.graph.lowering.case import Case, Operand
from relayout.graph.lowering.expressions import ways_of
from relayout.graph.lowering.requantizing import BYTES
from relayout.graph.lowering.ways import Way, rule
from relayout.ops.expressions import Expression, Writing
from relayout.ops.functions import Function

__all__: list[str] = []


def _spread(data: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """A number, or one for each index of an axis, as it broadcasts."""
    return data.reshape(()) if data.size == 1 else data.reshape(-1, *(1,) * (rank - axis - 1))


def _constants(case: Case, x: Operand) -> tuple[Operand, Operand] | None:
    """Scale and zero point as f32 operands, both constant; None where they are of blocks, or move."""
    scale, zero = case.constant(1), case.constant(2)
    if scale is None or (zero is None and case.input(2) is not None) or case.attributes["block_size"]:
        return None
    if scale.dtype != np.float32:
        return None
    rank = len(x.dims)
    axis = int(case.attributes["axis"]) % max(rank, 1)
    if scale.size > 1 and (scale.ndim != 1 or scale.size != x.dims[axis]):
        return None
    real = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    both = []
    for name, data in (("scale", scale), ("zero", real)):
        data = np.ascontiguousarray(_spread(data.astype(np.float32), axis, rank))
        both.append(Operand(f"{case.name}.{name}", data.shape, "f32", data.dtype, data))
    return both[0], both[1]


@rule("QuantizeLinear")
def quantised(case: Case) -> Iterable[Way] | None:
    """Numbers as bytes: divided by the scale, rounded, plus the zero point, saturated."""
    x = case.inputs[0]
    found = None if x is None else _constants(case, x)
    if x is None or found is None or x.dtype != "f32" or case.out.dtype not in BYTES or x.data is not None:
        return None
    if case.attributes["precision"] not in (0, 1):
        return None
    w = Writing("f32", "f32", "f32")
    scale, zero = _numbered(found)
    whole = w.apply("add", w.apply(Function("round"), w.apply("div", 0, scale)), zero)
    made = w.put("cast", case.out.dtype, whole)
    return _pointwise(case, w, made, x, found)


@rule("DequantizeLinear")
def dequantised(case: Case) -> Iterable[Way] | None:
    """Bytes as numbers: less the zero point, times the scale."""
    x = case.inputs[0]
    found = None if x is None else _constants(case, x)
    if x is None or found is None or x.dtype not in BYTES or case.out.dtype != "f32" or x.data is not None:
        return None
    w = Writing(x.dtype, "f32", "f32")
    scale, zero = _numbered(found)
    made = w.apply("mul", w.apply("sub", w.put("cast", "f32", 0), zero), scale)
    return _pointwise(case, w, made, x, found)


def _numbered(found: tuple[Operand, Operand]) -> tuple[int, int]:
    """The places of scale and zero point among the operands of an expression: those of tensors come first."""
    tensors = [one.scalar is None for one in found]
    return (2, 1) if tensors == [False, True] else (1, 2)


def _pointwise(
    case: Case, w: Writing, made: int, x: Operand, found: tuple[Operand, Operand]
) -> Iterable[Way] | None:
    expression: Expression = w.written()
    assert made == len(w.operands) + len(w.terms) - 1
    tensors = [one for one in found if one.scalar is None]
    return ways_of(case, expression, [x, *tensors], [one.scalar for one in found if one.scalar is not None])
