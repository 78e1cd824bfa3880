"""An operation that is a Python function of logical arrays: what networks need and no kernel does.

The function is given arrays in the data types of the descriptors, and may return anything that NumPy makes an
array of. So index and truth values are computed with as they are, which definitions in double precision can't
be (:meth:`.Operation.compute` is given those). A sequence calls it from Python, between its kernels.

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
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.layout.descriptor import MemoryDesc
from relayout.ops import custom as ops
from relayout.ops.checks import check_descs
from relayout.primitives.candidates import DEFINED
from relayout.primitives.native import Native

__all__ = ["Custom"]


class Custom(Native):
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
    operation: ops.Custom

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
        truth = tuple(booleans)
        self._settle(ops.Custom, inputs, outputs, name=kind, function=function, booleans=truth)
        self.kind = kind  # type: ignore[misc]

    def _cost(self) -> tuple[float, str]:
        elements = sum(np.prod(desc.dims, dtype=float) for desc in self.descs.values())
        return CALL_SECONDS + elements / DEFINED, "NumPy"


CALL_SECONDS = 2e-5  # of a call of NumPy between kernels
