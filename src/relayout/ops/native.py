"""Operations that are defined in the data types of their arguments, not in double precision.

Indices and truth values are computed with as they are: double precision would round integers of 64 bits. What
NumPy holds as truth values are bytes in memory, so :attr:`Native.booleans` says which arguments those are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, counted
from relayout.layout.layout import spell_dims
from relayout.ops.functions import Reals
from relayout.ops.operation import Operation, Spec
from relayout.records import dataclass

__all__ = ["Native"]


@dataclass(frozen=True, kw_only=True)
class Native(Operation):
    """What :meth:`natively` says of arrays as they are."""

    booleans: tuple[str, ...] = ()
    """The names of the inputs and outputs that are truth values, one to a byte."""

    def natively(self, *arrays: Any) -> Any:
        """The result, or a tuple of several, for the inputs in their order and in their data types."""
        raise NotImplementedError

    @property
    def called(self) -> str:
        """The name, in errors."""
        return self.kind

    def compute(self, /, **arrays: Reals) -> dict[str, Reals]:
        """The definition on arrays of the types that it takes."""
        given = [self.native(one, arrays[one.name]) for one in self.inputs]
        return {name: np.asarray(made, np.float64) for name, made in self.results(given).items()}

    def native(self, one: Spec, array: NDArray[Any]) -> NDArray[Any]:
        """An array in the data type that the definition is given."""
        return array.astype(bool if one.name in self.booleans else one.dtype.numpy, copy=False)

    def results(self, given: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What the definition returns, by name."""
        made = self.natively(*given)
        several = made if isinstance(made, tuple) else (made,)
        if len(several) < len(self.outputs):
            raise LayoutError(
                f"{self.called} returned {counted(len(several), 'array')}, not {len(self.outputs)}"
            )
        found = {}
        for spec, one in zip(self.outputs, several, strict=False):
            found[spec.name] = np.ascontiguousarray(one) if np.ndim(one) else np.asarray(one)
            if found[spec.name].shape != spec.dims:
                dims = spell_dims(found[spec.name].shape)
                raise LayoutError(f"{self.called}: {spec.name} is {dims}, not {spell_dims(spec.dims)}")
        return found
