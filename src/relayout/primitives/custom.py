"""An operation that is a Python function of logical arrays: what networks need and no kernel does.

The function is given arrays in the data types of the descriptors, and may return anything that NumPy makes an
array of. So index and truth values are computed with as they are, which definitions in double precision can't
be (:meth:`.Primitive._definition` is given those). A sequence calls it from Python, between its kernels.

>>> from functools import partial
>>> import numpy as np
>>> import relayout as rl
>>> x = rl.MemoryDesc((2, 3), "f32", "ba")
>>> cumulated = Custom(partial(np.cumsum, axis=1), {"x": x}, {"y": rl.MemoryDesc((2, 3), "f32", "ab")})
>>> cumulated(rl.tensor(np.ones((2, 3), "f4"), "ba")).numpy()
array([[1., 2., 3.],
       [1., 2., 3.]], dtype=float32)

NumPy's truth values are bytes: where a function takes or returns them, ``booleans`` names the argument, and
its descriptor is of ``u8``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.jit.floating import Usual
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops.checks import check_descs
from relayout.primitives.candidates import DEFINED
from relayout.primitives.primitive import Primitive
from relayout.reorder import reorder
from relayout.tensor import Tensor, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Custom"]


class Custom(Primitive):
    """A Python function as a primitive.

    Parameters
    ----------
    function : callable
        ``function(*arrays)`` returns an array, or a tuple of as many as there are outputs.
    inputs, outputs : mapping of str to MemoryDesc
        Descriptors by name, all formats decided.
    booleans : sequence of str
        The names of those that are truth values, one to a byte.
    kind : str, optional
        What it is called.

    Raises
    ------
    LayoutError
        ``booleans`` names what is no argument. At a call: the function returns another number of arrays, or
        arrays of other dims.
    """

    kind = "custom"

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Mapping[str, MemoryDesc],
        outputs: Mapping[str, MemoryDesc],
        *,
        booleans: tuple[str, ...] = (),
        kind: str = "custom",
    ) -> None:
        check_descs(kind, {**inputs, **outputs}, {})
        if not {*booleans} <= {*inputs, *outputs}:
            raise LayoutError(f"{kind}: {', '.join(map(str, booleans))} are not all arguments")
        self.function, self.booleans = function, booleans
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.descs = {**inputs, **outputs}
        self.kind = kind  # type: ignore[misc]

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
        """An array in the data type that the function is given."""
        return array.astype(bool if name in self.booleans else self.descs[name].dtype.numpy, copy=False)

    def _called(self, given: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """What the function returns, by name."""
        made = self.function(*given)
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

    def _cost(self) -> tuple[float, str]:
        elements = sum(np.prod(desc.dims, dtype=float) for desc in self.descs.values())
        return CALL_SECONDS + elements / DEFINED, "NumPy"


CALL_SECONDS = 2e-5  # of a call of NumPy between kernels
