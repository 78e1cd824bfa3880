"""The table of translations, and how an entry is made.

A translation is a function of a :class:`~relayout.importers.torch.call.Call` and of the operator's
arguments, all of them, in the order of its schema: tensors and symbolic sizes as values, lists as lists, data
types as NumPy's. It writes nodes, and returns the value that the operator returns, or a tuple of them ::

    @aten("leaky_relu.default")
    def leaky_relu(call: Call, x: Value, slope: float) -> Value:
        return call.emit("LeakyRelu", x, alpha=slope)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

__all__ = ["IGNORED", "TABLE", "Translate", "aten"]

Translate: TypeAlias = Callable[..., Any]
F = TypeVar("F", bound=Translate)

TABLE: Final[dict[str, Translate]] = {}
"""Translations by the name of the operator with its overload, such as ``"aten.add.Tensor"``."""

IGNORED: Final = frozenset({
    "aten._assert_tensor_metadata.default",
    "aten._assert_scalar.default",
    "aten._assert_async.msg",
    "aten.sym_constrain_range_for_size.default",
    "aten.sym_constrain_range.default",
})  # fmt: skip
"""Checks; what they say of sizes, the facts of values say too."""


def aten(*names: str) -> Callable[[F], F]:
    """Enter a translation under names of ATen."""

    def enter(translate: F) -> F:
        TABLE.update((f"aten.{name}", translate) for name in names)
        return translate

    return enter
