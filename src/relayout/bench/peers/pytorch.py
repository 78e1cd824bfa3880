"""PyTorch: ``copy_`` between strided views that share our buffers.

Pure moves and conversions between floating-point types are one ``copy_``. Quantising is written out with
operations that round as ours do (``div_``, ``add_``, ``round_``, ``clamp_``): ``torch.quantize_per_tensor``
multiplies by the reciprocal of the scale and allocates its result, so it would be another computation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.bench.peers.strided import STEPS, Copy, copies, saturates
from relayout.bench.suite import Case

__all__ = ["PyTorch"]

TYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "s64": "int64",
    "s32": "int32",
    "s16": "int16",
    "s8": "int8",
    "u8": "uint8",
}
"""Our names, and PyTorch's."""

OPERATIONS = dict(zip(STEPS, ("sub", "mul", "div", "add"), strict=True))


@cache
def _torch() -> Any:
    return import_module("torch")


class PyTorch:
    """PyTorch on the CPU."""

    name = "PyTorch"

    def available(self) -> str | None:
        """PyTorch's version."""
        return str(_torch().__version__) if find_spec("torch") is not None else None

    def prepare(
        self, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int
    ) -> Callable[[], object] | None:
        """Copy view by view."""
        found = copies(case)
        if found is None or {case.src_dtype, case.dst_dtype} - set(TYPES):
            return None
        torch = _torch()
        torch.set_num_threads(threads)
        one, two = (
            torch.from_numpy(data).view(getattr(torch, TYPES[kind]))
            for data, kind in ((source, case.src_dtype), (target, case.dst_dtype))
        )
        actions = [_action(case, copy, one, two) for copy in found]
        if case.target.layout.has_padding:
            actions.insert(0, two.zero_)
        return actions[0] if len(actions) == 1 else lambda: [action() for action in actions]


def _action(case: Case, copy: Copy, source: Any, target: Any) -> Callable[[], object]:
    torch = _torch()
    taken = source.as_strided(copy.shape, copy.src_strides, copy.src)
    given = target.as_strided(copy.shape, copy.dst_strides, copy.dst)
    dst = case.target.dtype
    clamps = saturates(case)
    if not copy.operands and not clamps:
        return lambda: given.copy_(taken)
    between = given if dst == "f32" else torch.empty(copy.shape, dtype=torch.float32)
    steps = [
        (getattr(torch, OPERATIONS[name]), torch.from_numpy(operand))
        for name, operand in copy.operands.items()
    ]

    def quantise() -> None:
        values = taken
        for operation, operand in steps:
            values = operation(values, operand, out=between)
        if clamps:
            rounded = values if values.dtype == between.dtype else between.copy_(values)
            torch.round(rounded, out=between).clamp_(dst.min, dst.max)
        if between is not given:
            given.copy_(between)

    return quantise
