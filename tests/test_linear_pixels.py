"""Linear resampling in f32 where pixels are neighbours: columns are permuted to where results lie."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import relayout as rl
from covering import share
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce import linear_pixels
from relayout.primitives import Resampling
from test_nearest import bits
from test_pooling import called
from test_values import can_run

machine_ = importlib.import_module("relayout.targets.machine")

TOLERANCE = {"f32": 1e-5, "bf16": 2.0**-7, "f16": 2.0**-9, "u8": 0}

pytestmark = [
    pytest.mark.skipif(not (machine_code() and can_run("x86-64-v3")), reason="this host has no AVX2"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def avx2(monkeypatch: Any) -> None:
    """Code for AVX2, also where there are wider registers."""
    monkeypatch.setattr(machine_, "host", lambda: machine_.machine("x86-64-v3"))


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize(("format", "channels"), [("nchw", 3), ("nhwc", 1), ("nhwc", 3), ("NCHW4", 8)])
def test_results_are_the_definitions(kind: str, format: str, channels: int) -> None:
    random = np.random.default_rng(1)
    for number, width in enumerate((2, 3, 8, 9, 17, 70), list(TOLERANCE).index(kind) + channels):
        for out in share((width, 2 * width + 1, 2 * width, 3 * width + 2), number):
            dims = (1, channels, 3, width)
            src, dst = (rl.MemoryDesc((*dims[:2], h, w), kind, format) for h, w in ((3, width), (7, out)))
            made = Resampling(src, "linear", dst)
            data = random.integers(0, 256, dims) if kind == "u8" else random.standard_normal(dims)
            if kind != "u8":
                for value in (np.nan, np.inf, -np.inf):
                    data.flat[random.integers(data.size)] = value
            x = rl.tensor(data, "abcd", kind).reorder(src)
            wanted = np.asarray(made.reference(x), np.float64)
            found = called(made, x)
            assert made.implementation.startswith("machine code")
            if kind == "u8":  # rounded once
                assert (np.abs(found - wanted) <= 0.5 + 1e-4).all()
            else:
                np.testing.assert_allclose(found, wanted, TOLERANCE[kind], TOLERANCE[kind])


def test_what_lies_on_an_element_is_that_element() -> None:
    """Three times as long, every third result is an element: all its bits, if it is a number."""
    data = bits((1, 1, 1, 40), "bf16", 0)
    data = np.where(np.isfinite(data.astype(np.float32)), data, np.zeros_like(data))
    made = Resampling(rl.MemoryDesc(data.shape, "bf16", "nchw"), "linear", factors=(1, 3))
    found = made(rl.tensor(data, "nchw", "bf16")).numpy()
    np.testing.assert_array_equal(found[..., 1::3].view(np.uint16), data.view(np.uint16))


def test_it_is_the_kernel_that_is_meant() -> None:
    for kind, format in (("bf16", "nchw"), ("f16", "nchw"), ("f32", "nhwc"), ("u8", "nhwc")):
        made = Resampling(rl.MemoryDesc((1, 3, 20, 20), kind, format), "linear", factors=2.3)
        assert made.implementation == "machine code: columns, then rows, in f32"


def test_steps_name_all_places() -> None:
    thrice = [(k // 3, 0.25, min(9, k // 3 + 1), 0.75) for k in range(30)]
    for each in (1, 3):
        for pairs in (False, True):
            for step in linear_pixels.steps(thrice, each, 2, pairs):
                assert step.first + 2 * step.many <= 60 * each
                assert len(step.data) == 256
                assert max(step.bases) < 40 * each


def test_nothing_outside_of_the_buffers_is_touched() -> None:
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Resampling
        arenas = [arena(1 << 17) for _ in range(4)]
        for format in ("nchw", "nhwc", "NCHW4"):
            for width in (2, 7, 9, 16, 33):
                for kind in ("bf16", "f32"):
                    for factor in (1, 1.5, 2):
                        src = MemoryDesc((1, 3, 2, width), kind, format)
                        run_between(Resampling(src, "linear", factors=factor), arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"
