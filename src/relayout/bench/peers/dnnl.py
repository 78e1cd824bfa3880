"""oneDNN's C API, from the distribution ``onednn-cpu-gomp``: what reorders and primitives need of it.

Descriptors are made from tags in letters (``aBcd16b``) by
``dnnl_memory_desc_create_with_string_tag``: benchdnn's way, which takes any tag and not only those that have
a number in the headers. The function is exported, though no public header declares it.

What oneDNN does not implement it answers with a status, mostly when a primitive descriptor is made, sometimes
not before the primitive is executed. Either is :class:`Refused` here.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from typing import Any

from numpy.typing import NDArray

from relayout.layout.format import letters
from relayout.tensor import address

__all__ = [
    "BIAS",
    "DIFF_DST",
    "DIFF_SRC",
    "DIFF_WEIGHTS",
    "DST",
    "SRC",
    "WEIGHTS",
    "Dims",
    "Handle",
    "Library",
    "Primitive",
    "Refused",
    "Reorder",
    "library",
]

DISTRIBUTION, LIBRARY = "onednn-cpu-gomp", "libdnnl.so.3"
CPU, IN_ORDER = 1, 1  # dnnl_cpu, dnnl_stream_default_flags
ANY = 1  # dnnl_format_tag_any
MAX_RANK = 12
TYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6, "f64": 7}
LATER_TYPES = {"f8_e5m2": 9, "f8_e4m3": 10, "s4": 11, "u4": 12}  # refused by versions that don't know them
SRC, DST, WEIGHTS, BIAS = 1, 17, 33, 41  # DNNL_ARG_SRC and so on
IMPLEMENTATION = 8  # dnnl_query_impl_info_str
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS = 129, 145, 161
CHOSEN = {
    SRC: 129,
    DIFF_SRC: 130,
    WEIGHTS: 131,
    DIFF_WEIGHTS: 132,
    DST: 133,
    DIFF_DST: 134,
}  # dnnl_query_src_md and so on
RANK, STRIDES, BLOCKS, BLOCK_SIZES, BLOCK_AXES = 256, 14, 263, 264, 265  # questions to a memory descriptor

Handle = c_void_p
Dims = c_int64 * MAX_RANK
Destroyers = list[tuple[str, Handle]]


class _Version(ctypes.Structure):
    _fields_ = [("numbers", c_int * 3)]  # major, minor, patch; more follows


class _Argument(ctypes.Structure):
    _fields_ = [("number", c_int), ("memory", c_void_p)]


_DIMS = POINTER(c_int64)
SIGNATURES: dict[str, list[Any]] = {
    "dnnl_engine_create": [POINTER(Handle), c_int, c_size_t],
    "dnnl_stream_create": [POINTER(Handle), Handle, c_uint],
    "dnnl_stream_wait": [Handle],
    "dnnl_memory_desc_create_with_string_tag": [POINTER(Handle), c_int, _DIMS, c_int, c_char_p],
    "dnnl_memory_desc_create_with_tag": [POINTER(Handle), c_int, _DIMS, c_int, c_int],
    "dnnl_memory_desc_query": [Handle, c_int, c_void_p],
    "dnnl_memory_desc_destroy": [Handle],
    "dnnl_memory_create": [POINTER(Handle), Handle, Handle, c_void_p],
    "dnnl_memory_destroy": [Handle],
    "dnnl_primitive_attr_create": [POINTER(Handle)],
    "dnnl_primitive_attr_destroy": [Handle],
    "dnnl_primitive_attr_set_scales_mask": [Handle, c_int, c_int],
    "dnnl_primitive_attr_set_zero_points_mask": [Handle, c_int, c_int],
    "dnnl_reorder_primitive_desc_create": [POINTER(Handle), Handle, Handle, Handle, Handle, Handle],
    "dnnl_convolution_forward_primitive_desc_create": [
        *(POINTER(Handle), Handle, c_int, c_int, Handle, Handle, Handle, Handle),
        *(_DIMS, _DIMS, _DIMS, _DIMS, Handle),
    ],
    "dnnl_convolution_backward_data_primitive_desc_create": [
        *(POINTER(Handle), Handle, c_int, Handle, Handle, Handle),
        *(_DIMS, _DIMS, _DIMS, _DIMS, Handle, Handle),
    ],
    "dnnl_convolution_backward_weights_primitive_desc_create": [
        *(POINTER(Handle), Handle, c_int, Handle, Handle, Handle, Handle),
        *(_DIMS, _DIMS, _DIMS, _DIMS, Handle, Handle),
    ],
    "dnnl_inner_product_forward_primitive_desc_create": [
        *(POINTER(Handle), Handle, c_int, Handle, Handle, Handle, Handle, Handle)
    ],
    "dnnl_matmul_primitive_desc_create": [POINTER(Handle), Handle, Handle, Handle, Handle, Handle, Handle],
    "dnnl_primitive_desc_query": [Handle, c_int, c_int, c_void_p],
    "dnnl_primitive_desc_destroy": [Handle],
    "dnnl_primitive_create": [POINTER(Handle), Handle],
    "dnnl_primitive_destroy": [Handle],
    "dnnl_primitive_execute": [Handle, Handle, c_int, POINTER(_Argument)],
}


class Refused(Exception):
    """A function answered with a status that is not success."""


class Library:
    """The loaded library, with one engine and one stream."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        for name, arguments in SIGNATURES.items():
            getattr(self.c, name).argtypes = arguments
        self.c.dnnl_memory_desc_get_size.argtypes = [Handle]
        self.c.dnnl_memory_desc_get_size.restype = c_size_t
        self.c.dnnl_primitive_desc_query_md.argtypes = [Handle, c_int, c_int]
        self.c.dnnl_primitive_desc_query_md.restype = Handle
        self.c.dnnl_version.restype = POINTER(_Version)
        self.version = ".".join(map(str, self.c.dnnl_version().contents.numbers))
        self.engine = self.new("dnnl_engine_create", CPU, 0)
        self.stream = self.new("dnnl_stream_create", self.engine, IN_ORDER)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and look at its status."""
        status = getattr(self.c, name)(*arguments)
        if status:
            raise Refused(f"{name} answered {status}")

    def new(self, name: str, *arguments: Any) -> Handle:
        """Call a function that makes something."""
        made = Handle()
        self.call(name, byref(made), *arguments)
        return made

    def set_threads(self, count: int) -> None:
        """Say how many threads parallel regions have; OpenMP is found among what the library depends on."""
        self.c.omp_set_num_threads(c_int(count))

    def size(self, desc: Handle) -> int:
        """Bytes that a memory descriptor takes."""
        return int(self.c.dnnl_memory_desc_get_size(desc))

    def chosen(self, primitive_desc: Handle, argument: int) -> Handle:
        """The memory descriptor that a primitive descriptor chose for an argument; the latter owns it."""
        return Handle(self.c.dnnl_primitive_desc_query_md(primitive_desc, CHOSEN[argument], 0))

    def implementation(self, primitive_desc: Handle) -> str:
        """What oneDNN calls the implementation, such as ``brgconv:avx512_core``."""
        name = c_char_p()
        self.call("dnnl_primitive_desc_query", primitive_desc, IMPLEMENTATION, 0, byref(name))
        return (name.value or b"").decode()

    def tag(self, desc: Handle) -> str:
        """The tag of a dense layout in letters: ``acdb``, ``aBcd16b``."""
        rank, blocks = c_int(), c_int()
        strides, sizes, axes = POINTER(c_int64)(), POINTER(c_int64)(), POINTER(c_int64)()
        answers = {RANK: rank, STRIDES: strides, BLOCKS: blocks, BLOCK_SIZES: sizes, BLOCK_AXES: axes}
        for question, answer in answers.items():
            self.call("dnnl_memory_desc_query", desc, question, byref(answer))
        names = letters(rank.value)
        inner = [(axes[block], sizes[block]) for block in range(blocks.value)]
        blocked = {axis for axis, _ in inner}
        outer = sorted(range(rank.value), key=lambda axis: -strides[axis])
        return "".join(names[axis].upper() if axis in blocked else names[axis] for axis in outer) + "".join(
            f"{size}{names[axis]}" for axis, size in inner
        )


@cache
def library() -> Library | None:
    """The library of the installed distribution; None where there is none, or it can't be loaded."""
    try:
        paths = [path.locate() for path in files(DISTRIBUTION) or () if path.name == LIBRARY]
        return Library(str(paths[0])) if paths else None
    except (PackageNotFoundError, OSError, AttributeError):
        return None


class Primitive:
    """A primitive with its arguments; it is executed by calling it.

    Whoever derives from it makes descriptors and memory objects with the methods here, then says
    :meth:`ready`. All of it is destroyed along with the object.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self.buffers: list[NDArray[Any]] = []  # alive as long as memory objects point to them
        self._made: Destroyers = []
        weakref.finalize(self, _destroy, library, self._made)

    def __call__(self) -> None:
        """Execute it, and wait for its end."""
        self.library.call(
            "dnnl_primitive_execute", self._primitive, self.library.stream, self._count, self._arguments
        )
        self.library.call("dnnl_stream_wait", self.library.stream)

    def ready(self, primitive_desc: Handle, arguments: Sequence[tuple[int, Handle]]) -> None:
        """Make the primitive of a descriptor; arguments are numbers and memory objects."""
        self._primitive = self.new("dnnl_primitive", "dnnl_primitive_create", primitive_desc)
        self._count = len(arguments)
        self._arguments = (_Argument * self._count)(*(_Argument(n, m.value) for n, m in arguments))

    def new(self, kind: str, name: str, *arguments: Any) -> Handle:
        """Call a function that makes something of a kind (``dnnl_memory``), and own it."""
        made = self.library.new(name, *arguments)
        self._made.append((f"{kind}_destroy", made))
        return made

    def primitive_desc(self, kind: str, *arguments: Any) -> Handle:
        """A primitive descriptor; ``kind`` is what its function is called after, as ``matmul``."""
        name = f"dnnl_{kind}_primitive_desc_create"
        return self.new("dnnl_primitive_desc", name, *arguments)

    def described(self, dims: Sequence[int], dtype: str, tag: str) -> Handle:
        """A memory descriptor; with the tag "any" the primitive descriptor chooses the layout."""
        number = (TYPES | LATER_TYPES).get(dtype)
        if number is None:
            raise Refused(f"no data type {dtype}")
        by = "tag" if tag == "any" else "string_tag"
        create = f"dnnl_memory_desc_create_with_{by}"
        given = ANY if tag == "any" else tag.encode()
        return self.new("dnnl_memory_desc", create, len(dims), Dims(*dims), number, given)

    def memory(self, desc: Handle, data: NDArray[Any]) -> Handle:
        """A memory object on a buffer, which is kept."""
        self.buffers.append(data)
        return self.new("dnnl_memory", "dnnl_memory_create", desc, self.library.engine, address(data))

    def attributes(self) -> Handle:
        """Attributes that say nothing yet."""
        return self.new("dnnl_primitive_attr", "dnnl_primitive_attr_create")


class Reorder(Primitive):
    """A reorder without attributes, between memory descriptors and buffers."""

    def __init__(
        self, library: Library, taken: Handle, source: NDArray[Any], given: Handle, target: NDArray[Any]
    ) -> None:
        super().__init__(library)
        engine = library.engine
        made = self.primitive_desc("reorder", taken, engine, given, engine, self.attributes())
        self.ready(made, [(SRC, self.memory(taken, source)), (DST, self.memory(given, target))])


def _destroy(library: Library, made: Destroyers) -> None:
    for name, handle in reversed(made):
        getattr(library.c, name)(handle)
