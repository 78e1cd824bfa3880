"""An operation that a Python function computes: its own definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.layout.layout import spell_dims
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation, Spec

__all__ = ["Custom"]


@dataclass(frozen=True, kw_only=True)
class Custom(Operation):
    """``function(*arrays)``: an array, or a tuple of as many as there are outputs, in their data types."""

    kind = "custom"
    name: str
    """What it is called, in errors."""
    function: Callable[..., Any]
    booleans: tuple[str, ...] = ()
    """The names of the inputs and outputs that are truth values, one to a byte."""

    def compute(self, /, **arrays: Reals) -> dict[str, Reals]:
        """The function on arrays of the types that it takes."""
        given = [self.native(one, arrays[one.name]) for one in self.inputs]
        return {name: np.asarray(made, np.float64) for name, made in self.called(given).items()}

    def native(self, one: Spec, array: NDArray[Any]) -> NDArray[Any]:
        """An array in the data type that the function is given."""
        return array.astype(bool if one.name in self.booleans else one.dtype.numpy, copy=False)

    def called(self, given: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What the function returns, by name."""
        made = self.function(*given)
        several = made if isinstance(made, tuple) else (made,)
        if len(several) < len(self.outputs):
            raise LayoutError(f"{self.name} returned {len(several)} arrays, not {len(self.outputs)}")
        found = {}
        for spec, one in zip(self.outputs, several, strict=False):
            found[spec.name] = np.ascontiguousarray(one) if np.ndim(one) else np.asarray(one)
            if found[spec.name].shape != spec.dims:
                dims = spell_dims(found[spec.name].shape)
                raise LayoutError(f"{self.name}: {spec.name} is {dims}, not {spell_dims(spec.dims)}")
        return found
