"""NumPy: assignment between strided views. It has one thread, whatever others are allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from relayout.bench.peers.strided import STEPS, Copy, copies, saturates
from relayout.bench.suite import Case
from relayout.dtypes import DType

__all__ = ["NumPy"]

OPERATIONS: dict[str, np.ufunc] = dict(zip(STEPS, (np.subtract, np.multiply, np.divide, np.add), strict=True))


class NumPy:
    """NumPy, with the types of ml_dtypes."""

    name = "NumPy"

    def available(self) -> str | None:
        """NumPy's version."""
        return str(np.__version__)

    def prepare(
        self, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int
    ) -> Callable[[], object] | None:
        """Assign view by view."""
        found = copies(case)
        if found is None:
            return None
        actions: list[Callable[[], object]] = [_assignment(case, copy, source, target) for copy in found]
        if case.target.layout.has_padding:
            actions.insert(0, lambda: target.fill(0))
        return actions[0] if len(actions) == 1 else lambda: [action() for action in actions]


def _assignment(
    case: Case, copy: Copy, source: NDArray[np.uint8], target: NDArray[np.uint8]
) -> Callable[[], object]:
    src, dst = case.source.dtype, case.target.dtype
    bits = src == dst and not copy.operands
    taken = _view(source, src, bits, copy.src, copy.shape, copy.src_strides)
    given = _view(target, dst, bits, copy.dst, copy.shape, copy.dst_strides)
    clamps = saturates(case)
    if not copy.operands and not clamps:
        return lambda: np.copyto(given, taken, casting="unsafe")
    between = given if dst == "f32" else np.empty(copy.shape, np.float32)

    def quantise() -> None:
        values: NDArray[Any] = taken
        for name, operand in copy.operands.items():
            values = OPERATIONS[name](values, operand, out=between)
        if clamps:
            np.rint(values, out=between)
            np.clip(between, dst.min, dst.max, out=between)
        if between is not given:
            np.copyto(given, between, casting="unsafe")

    return quantise


def _view(
    data: NDArray[np.uint8],
    kind: DType,
    bits: bool,
    start: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> NDArray[Any]:
    width = kind.bits // 8
    elements = data.view(f"u{width}" if bits else kind.numpy)
    return as_strided(elements[start:], shape, [s * width for s in strides])
