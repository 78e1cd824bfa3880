"""Normalisations, softmax and local response normalisation beside oneDNN's, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import c_float, c_int64, c_uint
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout import primitives
from relayout.bench.peers import dnnl
from relayout.tensor import aligned

LIBRARY = dnnl.library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="oneDNN is not installed")

TRAINING, BACKWARD = 64, 128
GLOBAL, SCALE, SHIFT, RELU = 1, 2, 4, 8
SOFTMAX, RESPONSE = {False: 0x30000, True: 0x30001}, {"across_channels": 0xAFF, "within_channel": 0xBFF}
WORKSPACE = 135  # dnnl_query_workspace_md
NUMBERS = {
    "src": 1,
    "dst": 17,
    "mean": 49,
    "variance": 50,
    "scale": 51,
    "shift": 52,
    "workspace": 64,
    "diff_src": 129,
    "diff_dst": 145,
    "diff_scale": 255,
    "diff_shift": 256,
}
TAGS = {"nchw": "abcd", "nhwc": "acdb", "nChw16c": "aBcd16b", "ab": "ab", "abc": "abc"}


class Pair(dnnl.Primitive):
    """A forward primitive of oneDNN, or the backward primitive that it is the hint of."""

    def __init__(self, kind: str, tag: str, descs: Mapping[str, tuple[int, ...]], arguments: Any) -> None:
        assert LIBRARY is not None
        super().__init__(LIBRARY)
        self.tag, self.dims = tag, descs
        forward, backward = arguments(self)
        engine = LIBRARY.engine
        self.hint = self.primitive_desc(f"{kind}_forward", engine, *forward, self.attributes())
        self.back = self.primitive_desc(f"{kind}_backward", engine, *backward, self.hint, self.attributes())
        room = LIBRARY.c.dnnl_primitive_desc_query_md(self.hint, WORKSPACE, 0)
        self.workspace = dnnl.Handle(room) if room and LIBRARY.size(dnnl.Handle(room)) else None
        self.kept = None if self.workspace is None else aligned(LIBRARY.size(self.workspace))

    def desc(self, name: str) -> Any:
        """The descriptor of an argument: data in the format, all else row-major."""
        dims = self.dims[name]
        plain = "abcd"[: len(dims)]
        return self.described(dims, "f32", TAGS[self.tag] if dims == self.dims["src"] else plain)

    def run(self, desc: Any, given: Mapping[str, np.ndarray], wanted: list[str]) -> dict[str, np.ndarray]:
        """Execute one of both; arrays are logical."""
        data, arguments = {}, []
        for name in (*given, *wanted):
            made = self.desc(name)
            data[name] = aligned(self.library.size(made))
            if name in given:
                dnnl.Reorder(self.library, self._plain(name), self._array(given[name]), made, data[name])()
            arguments.append((NUMBERS[name], self.memory(made, data[name])))
        if self.workspace is not None and self.kept is not None:
            arguments.append((NUMBERS["workspace"], self.memory(self.workspace, self.kept)))
        self.ready(desc, arguments)
        self()
        found = {}
        for name in wanted:
            found[name] = np.empty(self.dims[name], np.float32)
            dnnl.Reorder(self.library, self.desc(name), data[name], self._plain(name), found[name])()
        return found

    def _plain(self, name: str) -> Any:
        dims = self.dims[name]
        return self.described(dims, "f32", "abcd"[: len(dims)])

    def _array(self, x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(x, np.float32)


def compare(kind: str, forward: Any, backward: Any, arguments: Any, format: str) -> None:
    """Both directions of both libraries, from the same numbers."""
    random = np.random.default_rng(0)
    descs = {**forward.descs, **backward.descs}
    dims = {name: desc.dims for name, desc in descs.items()}
    known = {name: random.standard_normal(size).astype(np.float32) for name, size in dims.items()}
    if "variance" in known:
        known["variance"] = np.abs(known["variance"]) + 0.5
    pair = Pair(kind, format, dims, arguments)
    for made, desc in ((forward, pair.hint), (backward, pair.back)):
        outputs = [name for name in made.outputs if name != "workspace"]
        inputs = [name for name in made.inputs if name != "workspace"]
        found = made(
            *(rl.tensor(known[name], made.descs[name].layout, made.descs[name].dtype) for name in made.inputs)
        )
        found = dict(zip(made.outputs, (found,) if len(made.outputs) == 1 else found, strict=True))
        if made is backward and kind == "layer_normalization":
            inputs.append("shift")  # which is not used
        wanted = pair.run(desc, {name: known[name] for name in inputs}, outputs)
        for name in outputs:
            size = np.abs(wanted[name]).max(initial=1)
            np.testing.assert_allclose(
                found[name].numpy(), wanted[name], rtol=2e-5, atol=2e-5 * size, err_msg=name
            )
        known |= {name: one.numpy() for name, one in found.items() if made is forward}


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_normalization(format, own, relu):
    src = rl.MemoryDesc((3, 32, 7, 5), "f32", format)
    forward = primitives.BatchNormalization(
        src, None, 1e-3, use_scale=True, use_shift=True, use_global_stats=not own,
        fuse_relu=relu, workspace=relu,
    )  # fmt: skip
    flags = c_uint(GLOBAL * (not own) + SCALE + SHIFT + RELU * relu)

    def arguments(pair):
        one = pair.desc("src")
        return (TRAINING, one, one, c_float(1e-3), flags), (BACKWARD, one, one, one, c_float(1e-3), flags)

    backward = primitives.BatchNormalizationBackward(forward)
    compare("batch_normalization", forward, backward, arguments, format)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dims", [(6, 40), (3, 5, 33)])
def test_layer_normalization(dims, own):
    src = rl.MemoryDesc(dims, "f32", "abc"[: len(dims)])
    forward = primitives.LayerNormalization(
        src, True, True, epsilon=1e-3, statistics=own, use_global_stats=not own
    )
    flags = c_uint(GLOBAL * (not own) + SCALE + SHIFT)

    def arguments(pair):
        one, mean = pair.desc("src"), pair.desc("mean")
        epsilon = c_float(1e-3)
        return (TRAINING, one, one, mean, epsilon, flags), (BACKWARD, one, one, one, mean, epsilon, flags)

    compare(
        "layer_normalization",
        forward,
        primitives.LayerNormalizationBackward(forward),
        arguments,
        "abc"[: len(dims)],
    )


@pytest.mark.parametrize("format", ["nchw", "nhwc"])
@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("own", [True, False])
def test_group_normalization(format, groups, own):
    if not hasattr(LIBRARY.c, "dnnl_group_normalization_forward_primitive_desc_create"):
        pytest.skip("this version has none")
    src = rl.MemoryDesc((3, 16, 7, 5), "f32", format)
    forward = primitives.GroupNormalization(
        src, True, True, groups=groups, epsilon=1e-3, statistics=own, use_global_stats=not own
    )
    flags = c_uint(GLOBAL * (not own) + SCALE + SHIFT)

    def arguments(pair):
        one, count, epsilon = pair.desc("src"), c_int64(groups), c_float(1e-3)
        return (TRAINING, one, one, count, epsilon, flags), (BACKWARD, one, one, one, count, epsilon, flags)

    backward = primitives.GroupNormalizationBackward(forward)
    compare("group_normalization", forward, backward, arguments, format)


@pytest.mark.parametrize("format", ["nchw", "nhwc"])
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("axis", [1, 3])
def test_softmax(format, log, axis):
    forward = primitives.Softmax(rl.MemoryDesc((3, 20, 4, 7), "f32", format), axis, log=log)

    def arguments(pair):
        one = pair.desc("src")
        return (TRAINING, SOFTMAX[log], one, one, axis), (SOFTMAX[log], one, one, one, axis)

    compare("softmax", forward, primitives.SoftmaxBackward(forward), arguments, format)


@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw16c"])
@pytest.mark.parametrize("algorithm", RESPONSE)
def test_lrn(format, algorithm):
    src = rl.MemoryDesc((2, 32, 9, 8), "f32", format)
    forward = primitives.LRN(src, algorithm=algorithm, size=5, alpha=0.25, beta=0.75, k=1.5)
    kind, numbers = RESPONSE[algorithm], (c_int64(5), c_float(0.25), c_float(0.75), c_float(1.5))

    def arguments(pair):
        one = pair.desc("src")
        return (TRAINING, kind, one, one, *numbers), (kind, one, one, one, *numbers)

    compare("lrn", forward, primitives.LRNBackward(forward), arguments, format)
