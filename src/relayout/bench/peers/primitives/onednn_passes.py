"""oneDNN's normalisations, pooling, softmax and activations, for :mod:`relayout.bench.passes`.

Everything lies in the format that the layer says. Before a gradient is timed the forward primitive, which is
its hint, runs once: it leaves statistics, results and workspaces.
"""

from __future__ import annotations

from ctypes import c_float, c_int64, c_uint
from math import prod
from typing import Any

import numpy as np

from relayout.bench.operands import Floats, Operands
from relayout.bench.passes import EPSILON, Pass
from relayout.bench.peers.dnnl import DIFF_DST, DIFF_SRC, DST, SRC, Dims, Handle, Library, Primitive, Reorder
from relayout.tensor import aligned

__all__ = ["Layer"]

TRAINING, BACKWARD = 64, 128  # dnnl_forward_training, dnnl_backward
SCALE, SHIFT, RELU = 2, 4, 8  # dnnl_use_scale, dnnl_use_shift, dnnl_fuse_norm_relu
ALGORITHMS = {"max": 0x1FF, "average": 0x2FF, "relu": 0x20, "gelu_erf": 0x31, "softmax": 0x30000}
NUMBERS = {"src": SRC, "dst": DST, "diff_src": DIFF_SRC, "diff_dst": DIFF_DST}
NUMBERS |= {"mean": 49, "variance": 50, "scale": 51, "shift": 52, "workspace": 64}
NUMBERS |= {"diff_scale": 255, "diff_shift": 256}
WORKSPACE = 135  # dnnl_query_workspace_md
TAGS = {"nhwc": "acdb", "nchw": "abcd", "nChw16c": "aBcd16b", "abc": "abc"}


class Layer(Primitive):
    """A primitive in both directions; calling it executes the one that is wanted."""

    implementation: str

    def __init__(self, library: Library, work: Pass, operands: Operands) -> None:
        super().__init__(library)
        self.work, self._data = work, dict[str, tuple[Handle, np.ndarray[Any, Any]]]()
        self.src, self.dst = (self.described(dims, "f32", TAGS[work.format]) for dims in self._dims)
        forward, backward = self._descriptors()
        kind, engine = work.kind, library.engine
        hint = self.primitive_desc(f"{kind}_forward", engine, *forward, self.attributes())
        desc = hint
        if work.backward:
            desc = self.primitive_desc(f"{kind}_backward", engine, *backward, hint, self.attributes())
        self.implementation = library.implementation(desc)
        room = library.c.dnnl_primitive_desc_query_md(hint, WORKSPACE, 0)
        if room and library.size(Handle(room)):
            self._data["workspace"] = Handle(room), aligned(library.size(Handle(room)))
        self._fill(operands)
        given = ("src", "mean", "variance", "scale", "workspace")
        self.ready(hint, self._known(*given, "shift", "dst"))
        if work.backward:
            self()
            more = {"softmax": ["dst"], "layer_normalization": ["shift"]}.get(work.kind, [])
            written = ("diff_src", "diff_scale", "diff_shift")
            self.ready(desc, self._known(*given, *more, "diff_dst", *written))

    @property
    def _dims(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.work.src_dims, self.work.dst_dims

    def result(self) -> Floats:
        """What is written, as a plain array."""
        name = "diff_src" if self.work.backward else "dst"
        dims = self._dims[not self.work.backward]
        array = np.empty(dims, np.float32)
        Reorder(self.library, *self._data[name], self._plain(dims), array)()
        return array

    def _plain(self, dims: tuple[int, ...]) -> Handle:
        return self.described(dims, "f32", "abcd"[: len(dims)])

    def _fill(self, operands: Operands) -> None:
        """All data that there may be: those of both directions."""
        work = self.work
        sides = {"src": self.src, "dst": self.dst, "diff_dst": self.dst, "diff_src": self.src}
        for name, desc in sides.items():
            self._data[name] = desc, aligned(self.library.size(desc))
        for name, array in (("src", operands.src), ("diff_dst", operands.diff)):
            if array is not None:
                Reorder(self.library, self._plain(array.shape), array, *self._data[name])()
        if not work.kind.endswith("normalization"):
            return
        for name, array in zip(("scale", "shift"), work.vectors(), strict=True):
            plain = self.described(array.shape, "f32", "a")
            self._data[name] = plain, array
            self._data[f"diff_{name}"] = plain, aligned(array.nbytes)
        dims = self._statistics
        for name in ("mean", "variance"):
            self._data[name] = self._plain(dims), aligned(4 * prod(dims))

    @property
    def _statistics(self) -> tuple[int, ...]:
        """The dims of mean and variance."""
        work = self.work
        if work.kind == "layer_normalization":
            return work.dims[:-1]
        return (work.dims[0], work.groups) if work.kind == "group_normalization" else (work.dims[1],)

    def _known(self, *names: str) -> list[tuple[int, Handle]]:
        """The arguments that there are of these."""
        return [(NUMBERS[name], self.memory(*self._data[name])) for name in names if name in self._data]

    def _descriptors(self) -> tuple[list[Any], list[Any]]:
        """What descriptors are made of, forward and backward."""
        work, src, dst = self.work, self.src, self.dst
        if work.kind.endswith("normalization"):
            flags = c_uint(SCALE + SHIFT + RELU * (work.how == "relu"))
            middle: list[Any] = []
            if work.kind == "layer_normalization":
                middle = [self._plain(self._statistics)]
            elif work.kind == "group_normalization":
                middle = [c_int64(work.groups)]
            after = [*middle, c_float(EPSILON), flags]
            return [TRAINING, src, dst, *after], [BACKWARD, src, dst, src, *after]
        number = ALGORITHMS["softmax" if work.kind == "softmax" else work.how]
        if work.kind == "pooling":
            sizes = (work.stride, work.window, 0, work.padding, work.padding)
            window = [Dims(size, size) for size in sizes]
            return [TRAINING, number, src, dst, *window], [number, src, dst, *window]
        after = [len(work.dims) - 1] if work.kind == "softmax" else [c_float(0), c_float(0)]
        return [TRAINING, number, src, dst, *after], [number, src, dst, src, *after]
