"""Several results by name: as they are returned, and as ``out`` names their places.

>>> found = results(("dst", "workspace"), (1, 2))
>>> found.workspace, found
(2, Results(dst=1, workspace=2))
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, counted, type_name
from relayout.tensor import Tensor, as_array

__all__ = ["by_name", "logical", "results"]


def by_name(what: str, names: Sequence[str], out: Any) -> dict[str, Any]:
    """What was given as ``out`` for each of some outputs: one, a mapping by name, or a sequence.

    >>> by_name("pooling", ("dst", "workspace"), {"workspace": 1})
    {'workspace': 1}
    """
    if out is None:
        return {}
    listed = ", ".join(names)
    if isinstance(out, Mapping):
        unknown = [name for name in out if name not in names]
        if unknown:
            raise LayoutError(f"{what} has no output {unknown[0]!r}; it has {listed}")
        found = dict(out)
    else:
        several = out if isinstance(out, (tuple, list)) else [out]
        if several is not out and len(names) > 1:
            raise LayoutError(
                f"{what} has {len(names)} outputs, {listed}, so out must be a mapping by name, or a tuple "
                f"or list of as many tensors, not one {type_name(out)}"
            )
        if len(several) != len(names):
            raise LayoutError(
                f"{what} has {counted(len(names), 'output')}, {listed}, but out has {len(several)}"
            )
        found = dict(zip(names, several, strict=True))
    return {name: one for name, one in found.items() if one is not None}


def results(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    """One result as itself, several as a named tuple; it can be pickled."""
    several = tuple(values)
    return several[0] if len(names) == 1 else _results_type(names)._make(several)


@lru_cache(maxsize=256)
def _results_type(names: tuple[str, ...]) -> Any:
    def again(self: tuple[Any, ...]) -> tuple[Any, ...]:
        return results, (names, tuple(self))

    return type("Results", (namedtuple("Results", names),), {"__slots__": (), "__reduce__": again})


def logical(data: Any) -> NDArray[np.float64]:
    """A logical array in double precision."""
    array = data.numpy() if isinstance(data, Tensor) else as_array(data, lasting=False)
    return np.asarray(array.astype(np.float64))
