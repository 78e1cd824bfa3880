"""Arrays that a network is given and returns: checked, as tensors, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError, type_name
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.graph.graph import Value

__all__ = ["checked_inputs", "from_tensor", "stored"]


def checked_inputs(values: Sequence[Value], arrays: Sequence[Any]) -> list[Any]:
    """What was given for inputs, as arrays; a LayoutError that says what is wanted where one doesn't fit."""
    if len(values) != len(arrays):
        wanted = ", ".join(map(str, values)) or "none"
        raise LayoutError(f"the network has {len(values)} inputs ({wanted}); {len(arrays)} were given")
    return [_checked(value, array) for value, array in zip(values, arrays, strict=True)]


def _checked(value: Value, given: Any) -> Any:
    if given is None or isinstance(given, (list, dict, str)):
        if value.dtype is not None and value.dims is not None:
            raise LayoutError(f"input {value} takes an array, got {type_name(given)}")
        return given
    array = np.asarray(given)
    fits = value.dims is None or (
        len(value.dims) == array.ndim
        and all(n == m for n, m in zip(value.dims, array.shape, strict=True) if isinstance(n, int))
    )
    if not fits or (value.dtype is not None and array.dtype != value.dtype):
        dims = "x".join(map(str, array.shape)) or "no dims"
        raise LayoutError(f"the network's input is {value}; an array of {array.dtype} {dims} was given")
    return array


def stored(data: NDArray[Any]) -> Tensor:
    """An array as a row-major tensor; truth values are bytes."""
    data = np.ascontiguousarray(data) if data.ndim else data
    return tensor(data.view(np.uint8) if data.dtype == bool else data)


def from_tensor(found: Tensor, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """A tensor as an array of a data type: bytes may be truth values."""
    made = found.numpy()
    return made.view(bool) if dtype == np.dtype(bool) else made
