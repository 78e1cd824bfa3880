"""oneDNN's reorder primitive, through its C API (:mod:`relayout.bench.peers.dnnl`).

A reorder that oneDNN does not implement it refuses, mostly when its primitive descriptor is made, sometimes
not before it is executed (zero points along an axis, in 3.2). The peer does not take part in the case then.
Where the results of the two differ on purpose is told in :mod:`relayout.convert`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.bench.peers.dnnl import DST, SRC, Handle, Library, Primitive, Refused
from relayout.bench.peers.dnnl import library as _library
from relayout.bench.suite import Case
from relayout.layout.descriptor import MemoryDesc

__all__ = ["OneDNN"]

SIDES = {"src": SRC, "dst": DST}
SCALES, ZERO_POINTS = 4096, 8192  # DNNL_ARG_ATTR_SCALES, DNNL_ARG_ATTR_ZERO_POINTS


class OneDNN:
    """oneDNN's reorder primitive."""

    name = "oneDNN"

    def available(self) -> str | None:
        """The version that the library reports, which is not that of the distribution."""
        library = _library()
        return None if library is None else library.version

    def prepare(
        self, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8], threads: int
    ) -> Callable[[], object] | None:
        """Make a primitive; None where oneDNN answers that it has none."""
        library = _library()
        if library is None:
            return None
        library.set_threads(threads)
        try:
            move = _Move(library, case, source, target)
            move()
        except Refused:
            return None
        return move


class _Move(Primitive):
    """A reorder primitive with its arguments."""

    def __init__(
        self, library: Library, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8]
    ) -> None:
        super().__init__(library)
        descs = [self._desc(desc) for desc in (case.source, case.target)]
        attr = self.attributes()
        arguments = [
            (number, self.memory(desc, data))
            for number, desc, data in zip(SIDES.values(), descs, (source, target), strict=True)
        ]
        for name, given in case.attribute_values().items():
            arguments.append(self._attribute(attr, name, given))
        engine = library.engine
        self.ready(self.primitive_desc("reorder", descs[0], engine, descs[1], engine, attr), arguments)

    def _desc(self, desc: MemoryDesc) -> Handle:
        if desc.tag is None:
            raise Refused(f"{desc} has no tag")
        made = self.described(desc.dims, desc.dtype.name, desc.tag)
        size = self.library.size(made)
        if size != desc.required_bytes:
            raise Refused(f"{desc} takes {size} bytes there and {desc.required_bytes} here")
        return made

    def _attribute(self, attr: Handle, name: str, given: Any) -> tuple[int, Handle]:
        """Announce an attribute; its values are an argument when the primitive is executed."""
        values, axis = given if isinstance(given, tuple) else (given, None)
        scale = name.endswith("scale")
        data = np.ascontiguousarray(np.atleast_1d(values), np.float32 if scale else np.int32)
        side, mask = SIDES[name[:3]], 0 if axis is None else 1 << axis
        setter = f"dnnl_primitive_attr_set_{'scales' if scale else 'zero_points'}_mask"
        self.library.call(setter, attr, side, mask)
        desc = self.described((data.size,), "f32" if scale else "s32", "a")
        return (SCALES if scale else ZERO_POINTS) | side, self.memory(desc, data)
