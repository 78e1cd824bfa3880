"""Definitions in the data types of the arguments, for what double precision can't be believed with.

Most primitives are defined on logical arrays in double precision. Indices, masks and what a function of
Python returns are truth values and integers of 64 bits: a :class:`Native` primitive is given arrays in the
data types of its descriptors, and returns such.

NumPy's truth values are bytes in memory: :attr:`Native.booleans` names the arguments that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.jit.floating import Usual
from relayout.layout.layout import spell_dims
from relayout.primitives.primitive import Primitive
from relayout.reorder import reorder
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Native"]


class Native(Primitive):
    """A primitive whose definition is given arrays as they are.

    Attributes
    ----------
    booleans : tuple of str
        The names of those arguments that are truth values, one to a byte.
    """

    booleans: tuple[str, ...] = ()

    def _natively(self, *arrays: NDArray[Any]) -> Any:
        """The result, or a tuple of several, for the inputs in their order."""
        raise NotImplementedError

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> Mapping[str, NDArray[np.float64]]:
        given = [self._native(name, arrays[name]) for name in self.inputs]
        return {name: np.asarray(made, np.float64) for name, made in self._called(given).items()}

    def _define(self, tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        with Usual():
            made = self._called([self._native(name, tensors[name].numpy()) for name in self.inputs])
            for name, target in targets.items():
                data = made[name].view(np.uint8) if made[name].dtype == bool else made[name]
                reorder(tensor(data, dtype=target.dtype), target.desc, axes="position", out=target)

    def _native(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An array in the data type that the definition is given."""
        return array.astype(bool if name in self.booleans else self.descs[name].dtype.numpy, copy=False)

    def _called(self, given: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What the definition returns, by name."""
        made = self._natively(*given)
        several = made if isinstance(made, tuple) else (made,)
        if len(several) < len(self.outputs):
            raise LayoutError(f"{self.kind} returned {len(several)} arrays, not {len(self.outputs)}")
        found = {}
        for name, one in zip(self.outputs, several, strict=False):
            found[name] = np.ascontiguousarray(one) if np.ndim(one) else np.asarray(one)
            if found[name].shape != self.descs[name].dims:
                dims = spell_dims(self.descs[name].dims)
                raise LayoutError(f"{self.kind}: {name} is {spell_dims(found[name].shape)}, not {dims}")
        return found
