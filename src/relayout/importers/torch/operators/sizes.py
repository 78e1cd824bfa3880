"""Symbolic sizes: whole numbers that are known only when the network runs, as int64 values without axes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from relayout.graph.graph import Value
from relayout.importers.torch.call import INT64, Call, Operand, Size
from relayout.importers.torch.operators.table import TABLE, aten

FLOAT64: Final = np.dtype(np.float64)
ARITHMETIC: Final = {"add": "Add", "sub": "Sub", "mul": "Mul", "mod": "Mod", "truediv": "Div", "pow": "Pow"}
COMPARISONS: Final = {
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
    "eq": "Equal",
}


@aten("sym_size.int")
def sym_size(call: Call, x: Value, axis: int) -> Size:
    return call.size(x, axis)


@aten("item.default", "_local_scalar_dense.default")
def item(call: Call, x: Value) -> Value:
    return call.reshape(x, ())


def _arithmetic(operator: str) -> Any:
    def translate(call: Call, x: Operand, y: Operand) -> Value:
        return call.emit(operator, call.cast(x, call.dtype), call.cast(y, call.dtype))

    return translate


def _comparison(operator: str) -> Any:
    def translate(call: Call, x: Operand, y: Operand) -> Value:
        whole = all(one.dtype == INT64 if isinstance(one, Value) else isinstance(one, int) for one in (x, y))
        common = INT64 if whole else FLOAT64
        return call.emit(operator, call.cast(x, common), call.cast(y, common))

    return translate


def floordiv(call: Call, x: Operand, y: Operand) -> Value:
    first, second = call.cast(x, INT64), call.cast(y, INT64)
    return call.emit("Div", call.emit("Sub", first, call.emit("Mod", first, second)), second)


def _cast(call: Call, x: Operand) -> Value:
    return call.cast(x, call.dtype)


TABLE.update((f"_operator.{name}", _arithmetic(operator)) for name, operator in ARITHMETIC.items())
TABLE.update((f"_operator.{name}", _comparison(operator)) for name, operator in COMPARISONS.items())
TABLE["_operator.floordiv"] = floordiv
TABLE.update(
    (name, _arithmetic(operator)) for name, operator in (("torch.sym_max", "Max"), ("torch.sym_min", "Min"))
)
TABLE.update((name, _cast) for name in ("torch.sym_float", "torch.sym_int"))
