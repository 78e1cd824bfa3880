"""Arrays that a network is given and returns: checked, as tensors, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError, counted, type_name
from relayout.exchange import pytorch
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.graph.graph import Value

__all__ = ["checked_inputs", "from_tensor", "owned", "stored", "written"]


def checked_inputs(values: Sequence[Value], arrays: Sequence[Any]) -> list[Any]:
    """What was given for inputs, as arrays; a LayoutError that says what is wanted where one doesn't fit."""
    if len(values) != len(arrays):
        wanted = ", ".join(map(str, values)) or "none"
        raise LayoutError(
            f"the network has {counted(len(values), 'input')} ({wanted}); got {counted(len(arrays), 'array')}"
        )
    return [_checked(value, array) for value, array in zip(values, arrays, strict=True)]


def _checked(value: Value, given: Any) -> Any:
    if given is None or isinstance(given, (list, dict, str)):
        if value.dtype is not None and value.dims is not None:
            raise LayoutError(f"input {value} takes an array, got {type_name(given)}")
        return given
    array = _array(value, given)
    fits = value.dims is None or (
        len(value.dims) == array.ndim
        and all(n == m for n, m in zip(value.dims, array.shape, strict=True) if isinstance(n, int))
    )
    if not fits or (value.dtype is not None and array.dtype != value.dtype):
        dims = "x".join(map(str, array.shape)) or "no dims"
        raise LayoutError(f"the network's input is {value}; an array of {array.dtype} {dims} was given")
    return array


def _array(value: Value, given: Any) -> Any:
    """What was given for an input, as an array that shares its memory where it can be."""
    if pytorch.is_tensor(given) and given.dtype.is_floating_point:
        return tensor(given).numpy()  # bf16 too, which NumPy can't ask for, and what autograd looks at
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LayoutError(f"input {value} takes an array, not {type_name(given)}: {error}") from None


def stored(data: NDArray[Any]) -> Tensor:
    """An array as a row-major tensor; truth values are bytes."""
    data = np.ascontiguousarray(data) if data.ndim else data
    return tensor(data.view(np.uint8) if data.dtype == bool else data)


def from_tensor(found: Tensor, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """A tensor as an array of a data type: bytes may be truth values."""
    made = found.numpy()
    return made.view(bool) if dtype == np.dtype(bool) else made


def written(values: Sequence[Value], made: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """``out`` with the results in it; a LayoutError where one does not fit, before any is written."""
    targets = (out,) if isinstance(out, np.ndarray) else out
    if not isinstance(targets, (list, tuple)) or len(targets) != len(made):
        count = f", {len(targets)} of them" if isinstance(targets, (list, tuple)) else ""
        wanted = ", ".join(map(str, values))
        raise LayoutError(f"out takes an array for each output ({wanted}), got {type_name(out)}{count}")
    for value, target, one in zip(values, targets, made, strict=True):
        if not isinstance(target, np.ndarray) or not isinstance(one, np.ndarray):
            kind = one if isinstance(target, np.ndarray) else target
            raise LayoutError(f"out: the output {value} needs an array, and there is {type_name(kind)}")
        if target.shape != one.shape or target.dtype != one.dtype or not target.flags.writeable:
            dims = "x".join(map(str, target.shape)) or "no dims"
            only = "" if target.flags.writeable else ", which can only be read"
            raise LayoutError(
                f"out: the output is {value}; an array of {target.dtype} {dims}{only} was given"
            )
    for target, one in zip(targets, made, strict=True):
        np.copyto(target, one, casting="no")
    return tuple(targets)


def owned(made: Sequence[Any], given: Sequence[Any]) -> tuple[Any, ...]:
    """The results of definitions, as those of kernels are: each has memory of its own."""
    seen = [one for one in given if isinstance(one, np.ndarray)]
    found = []
    for one in made:
        own = one
        if isinstance(own, np.ndarray):
            if not own.flags.writeable or any(np.may_share_memory(own, other) for other in seen):
                own = own.copy()
            seen.append(own)
        found.append(own)
    return tuple(found)
