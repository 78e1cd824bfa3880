"""oneDNN through its C API, from the distribution ``onednn-cpu-gomp``.

Only what a reorder needs is declared. Descriptors are made from tags in letters (``aBcd16b``) by
``dnnl_memory_desc_create_with_string_tag``: benchdnn's way, which takes any tag and not only those that have
a number in the headers. The function is exported, though no public header declares it.

A reorder that oneDNN does not implement is answered with a status, mostly when its primitive descriptor is
made, sometimes not before it is executed (zero points along an axis, in 3.2). The peer does not take part in
the case then. Where the results of the two differ on purpose is told in :mod:`relayout.convert`.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.bench.suite import Case
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import address

__all__ = ["OneDNN"]

DISTRIBUTION, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
CPU, IN_ORDER = 1, 1  # dnnl_cpu, dnnl_stream_default_flags
MAX_RANK = 12
TYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6, "f64": 7}
LATER_TYPES = {"f8_e5m2": 9, "f8_e4m3": 10, "s4": 11, "u4": 12}  # refused by versions that don't know them
SIDES = {"src": 1, "dst": 17}  # DNNL_ARG_FROM, DNNL_ARG_TO
SCALES, ZERO_POINTS = 4096, 8192  # DNNL_ARG_ATTR_SCALES, DNNL_ARG_ATTR_ZERO_POINTS

Handle = c_void_p
Destroyers = list[tuple[str, Handle]]


class _Version(ctypes.Structure):
    _fields_ = [("numbers", c_int * 3)]  # major, minor, patch; more follows


class _Argument(ctypes.Structure):
    _fields_ = [("number", c_int), ("memory", c_void_p)]


SIGNATURES: dict[str, list[Any]] = {
    "dnnl_engine_create": [POINTER(Handle), c_int, c_size_t],
    "dnnl_stream_create": [POINTER(Handle), Handle, c_uint],
    "dnnl_stream_wait": [Handle],
    "dnnl_memory_desc_create_with_string_tag": [POINTER(Handle), c_int, POINTER(c_int64), c_int, c_char_p],
    "dnnl_memory_desc_destroy": [Handle],
    "dnnl_memory_create": [POINTER(Handle), Handle, Handle, c_void_p],
    "dnnl_memory_destroy": [Handle],
    "dnnl_primitive_attr_create": [POINTER(Handle)],
    "dnnl_primitive_attr_destroy": [Handle],
    "dnnl_primitive_attr_set_scales_mask": [Handle, c_int, c_int],
    "dnnl_primitive_attr_set_zero_points_mask": [Handle, c_int, c_int],
    "dnnl_reorder_primitive_desc_create": [POINTER(Handle), Handle, Handle, Handle, Handle, Handle],
    "dnnl_primitive_desc_destroy": [Handle],
    "dnnl_primitive_create": [POINTER(Handle), Handle],
    "dnnl_primitive_destroy": [Handle],
    "dnnl_primitive_execute": [Handle, Handle, c_int, POINTER(_Argument)],
}


class _Refused(Exception):
    """A function answered with a status that is not success."""


class _Library:
    """The loaded library, with one engine and one stream."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        for name, arguments in SIGNATURES.items():
            getattr(self.c, name).argtypes = arguments
        self.c.dnnl_memory_desc_get_size.argtypes = [Handle]
        self.c.dnnl_memory_desc_get_size.restype = c_size_t
        self.c.dnnl_version.restype = POINTER(_Version)
        self.version = ".".join(map(str, self.c.dnnl_version().contents.numbers))
        self.engine = self.new("dnnl_engine_create", CPU, 0)
        self.stream = self.new("dnnl_stream_create", self.engine, IN_ORDER)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and look at its status."""
        status = getattr(self.c, name)(*arguments)
        if status:
            raise _Refused(f"{name} answered {status}")

    def new(self, name: str, *arguments: Any) -> Handle:
        """Call a function that makes something."""
        made = Handle()
        self.call(name, byref(made), *arguments)
        return made

    def set_threads(self, count: int) -> None:
        """Say how many threads parallel regions have; OpenMP is found among what the library depends on."""
        self.c.omp_set_num_threads(c_int(count))


@cache
def _library() -> _Library | None:
    """The library of the installed distribution; None where there is none, or it can't be loaded."""
    try:
        paths = [path.locate() for path in files(DISTRIBUTION) or () if path.name == LIBRARY]
        return _Library(str(paths[0])) if paths else None
    except (PackageNotFoundError, OSError, AttributeError):
        return None


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
        except _Refused:
            return None
        return move


class _Move:
    """A reorder primitive with its arguments."""

    def __init__(
        self, library: _Library, case: Case, source: NDArray[np.uint8], target: NDArray[np.uint8]
    ) -> None:
        self.library = library
        self.buffers = [source, target]  # alive as long as memory objects point to them
        self.made: Destroyers = []
        weakref.finalize(self, _destroy, library, self.made)
        descs = [self._desc(desc) for desc in (case.source, case.target)]
        attr = self._new("dnnl_primitive_attr", "dnnl_primitive_attr_create")
        arguments = [
            (number, self._memory(desc, data))
            for number, desc, data in zip(SIDES.values(), descs, (source, target), strict=True)
        ]
        for name, given in case.attribute_values().items():
            arguments.append(self._attribute(attr, name, given))
        engine = library.engine
        made = (descs[0], engine, descs[1], engine, attr)
        desc = self._new("dnnl_primitive_desc", "dnnl_reorder_primitive_desc_create", *made)
        self.primitive = self._new("dnnl_primitive", "dnnl_primitive_create", desc)
        self.count = len(arguments)
        self.arguments = (_Argument * self.count)(*(_Argument(n, m.value) for n, m in arguments))

    def __call__(self) -> None:
        """Move everything."""
        self.library.call(
            "dnnl_primitive_execute", self.primitive, self.library.stream, self.count, self.arguments
        )
        self.library.call("dnnl_stream_wait", self.library.stream)

    def _new(self, kind: str, name: str, *arguments: Any) -> Handle:
        made = self.library.new(name, *arguments)
        self.made.append((f"{kind}_destroy", made))
        return made

    def _desc(self, desc: MemoryDesc) -> Handle:
        if desc.tag is None:
            raise _Refused(f"{desc} has no tag")
        made = self._described(desc.dims, desc.dtype.name, desc.tag)
        size = self.library.c.dnnl_memory_desc_get_size(made)
        if size != desc.required_bytes:
            raise _Refused(f"{desc} takes {size} bytes there and {desc.required_bytes} here")
        return made

    def _described(self, dims: Sequence[int], dtype: str, tag: str) -> Handle:
        number = (TYPES | LATER_TYPES).get(dtype)
        if number is None:
            raise _Refused(f"no data type {dtype}")
        sizes = (c_int64 * MAX_RANK)(*dims)
        create = "dnnl_memory_desc_create_with_string_tag"
        return self._new("dnnl_memory_desc", create, len(dims), sizes, number, tag.encode())

    def _memory(self, desc: Handle, data: NDArray[Any]) -> Handle:
        return self._new("dnnl_memory", "dnnl_memory_create", desc, self.library.engine, address(data))

    def _attribute(self, attr: Handle, name: str, given: Any) -> tuple[int, Handle]:
        """Announce an attribute; its values are an argument when the primitive is executed."""
        values, axis = given if isinstance(given, tuple) else (given, None)
        scale = name.endswith("scale")
        data = np.ascontiguousarray(np.atleast_1d(values), np.float32 if scale else np.int32)
        self.buffers.append(data.view(np.uint8))
        side, mask = SIDES[name[:3]], 0 if axis is None else 1 << axis
        setter = f"dnnl_primitive_attr_set_{'scales' if scale else 'zero_points'}_mask"
        self.library.call(setter, attr, side, mask)
        desc = self._described((data.size,), "f32" if scale else "s32", "a")
        return (SCALES if scale else ZERO_POINTS) | side, self._memory(desc, data)


def _destroy(library: _Library, made: Destroyers) -> None:
    for name, handle in reversed(made):
        getattr(library.c, name)(handle)
