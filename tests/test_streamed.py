"""Results that are written around the caches, and masks that are written with them: the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout import primitives
from relayout.bench.ours_passes import _forward
from relayout.bench.passes import Pass
from relayout.jit.compile import available
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor, allocate

pytestmark = pytest.mark.skipif(not available(), reason="this host forbids machine code")

DIMS = (3, 40, 9, 8)
CASES = [
    *(Pass("one", "batch_normalization", DIMS, format) for format in ("nhwc", "nchw", "nChw16c")),
    *(Pass("two", "batch_normalization", DIMS, format, "relu") for format in ("nhwc", "nchw", "nChw16c")),
    Pass("three", "batch_normalization", (3, 64, 9, 8), "nChw16c", "relu"),
    Pass("four", "layer_normalization", (3, 5, 96), "abc"),
    Pass("five", "group_normalization", (3, 64, 9, 8), "nhwc", groups=4),
    Pass("six", "eltwise", DIMS, "nChw16c", "gelu_erf"),
    Pass("seven", "eltwise", (3, 64, 9, 8), "nhwc", "relu"),
    Pass("eight", "softmax", (3, 5, 96), "abc"),
]


def everything(work: Pass, offset: int, threads: int) -> dict[str, bytes]:
    """All results of both directions, each ``offset`` bytes behind a line; what lies around is looked at."""
    random = np.random.default_rng(0)
    forward = _forward(work)
    back = getattr(primitives, f"{type(forward).__name__}Backward")(forward)
    known: dict[str, Tensor] = {}
    for made in (forward, back):
        assert made.implementation.startswith("machine code")
        for name in made.inputs:
            if name not in known:
                array = random.standard_normal(made.descs[name].dims).astype(np.float32)
                known[name] = rl.tensor(array).reorder(made.descs[name])
        rooms, out = {}, {}
        for name in made.outputs:
            desc = made.descs[name]
            rooms[name] = allocate(MemoryDesc((desc.required_bytes + 192,), "u8", "a"))
            rooms[name][:] = 0xA5
            out[name] = Tensor(desc, rooms[name][64 + offset : 64 + offset + desc.required_bytes])
        made(*(known[name] for name in made.inputs), out=out, threads=threads)
        known |= out
        for name, room in rooms.items():
            size = made.descs[name].required_bytes
            assert (room[: 64 + offset] == 0xA5).all()
            assert (room[64 + offset + size :] == 0xA5).all()
    return {name: bytes(one.buffer) for name, one in known.items()}


@pytest.mark.parametrize("work", CASES, ids=str)
def test_the_same_bytes(work, monkeypatch):
    monkeypatch.setenv("RELAYOUT_STREAMING", str(1 << 40))
    expected = everything(work, 0, 1)
    monkeypatch.setenv("RELAYOUT_STREAMING", "0")
    for offset, threads in ((0, 1), (0, 2), (16, 1)):
        assert everything(work, offset, threads) == expected


@pytest.mark.parametrize("format", ["nhwc", "nchw", "nChw16c", "nChw8c"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("channels", [5, 32])
def test_masks(format, dtype, channels):
    """By the definition, in every format; padding is zero."""
    src = MemoryDesc((2, channels, 3, 5), dtype, format)
    made = primitives.BatchNormalization(
        src, use_scale=True, use_shift=True, use_global_stats=False, fuse_relu=True, workspace=True
    )
    random = np.random.default_rng(1)
    x = rl.tensor(random.standard_normal(src.dims).astype(np.float32)).reorder(src)
    scale, shift = random.standard_normal((2, channels)).astype(np.float32)
    garbage = {name: Tensor(made.descs[name], allocate(made.descs[name])) for name in made.outputs}
    for one in garbage.values():
        one.buffer[:] = 0x7B
    found = made(x, scale, shift, out=garbage)
    expected = made.reference(x, scale, shift)
    kept, close = found.workspace, np.abs(expected.dst) < 1e-4
    assert (close | (kept.numpy() == expected.workspace)).all()
    assert kept.numpy().sum() == kept.buffer.sum() == (kept.buffer != 0).sum()
