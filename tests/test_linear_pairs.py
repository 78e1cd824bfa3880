"""Linear resampling in f32 between pairs of rows, with AVX2: all formats, ratios and ends of rows."""

from __future__ import annotations

import importlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce import linear, linear_pairs
from relayout.ops.resampling import Matrices
from relayout.primitives import Resampling
from relayout.primitives.banded import rows_of_resampling
from relayout.tensor import Tensor, address, allocate
from strategies import examples
from test_pooling import called
from test_values import can_run

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")
axis = importlib.import_module("relayout.kernels.reduce.axis")
window = importlib.import_module("relayout.kernels.reduce.window")

TOLERANCE = {"f32": 1e-5, "bf16": 2.0**-7, "f16": 2.0**-9}
FORMATS = (
    ("nchw", 2),
    *(("nhwc", channels) for channels in (1, 2, 3, 4, 5, 8, 9, 16, 20, 24, 32, 40, 64)),
    *(("nChw8c", channels) for channels in (8, 12)),
    ("nChw16c", 32),
    ("NCHW4", 8),
)

pytestmark = [
    pytest.mark.skipif(not (machine_code() and can_run("x86-64-v3")), reason="this host has no AVX2"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def avx2() -> Any:
    """Code for AVX2, also where there are wider registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", lambda: machine_.machine("x86-64-v3"))
        yield


def corners(size: int, out: int) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The rows of an axis whose first and last elements are the corners."""
    found = []
    for k in range(out):
        at = Fraction(k * (size - 1), max(1, out - 1))
        left, rest = int(at), at - int(at)
        found.append(((left, float(1 - rest)), (left + 1, float(rest))) if rest else ((left, 1.0),))
    return tuple(found)


@st.composite
def resamplings(draw: Any) -> Resampling:
    """All data types and formats; up, down, just twice, and by corners."""
    kind, target = draw(st.sampled_from(("f32", "bf16", "f16", "u8", "s8"))), None
    if draw(st.integers(0, 3)) == 0:
        target = draw(st.sampled_from(("f32", "bf16", "u8")))
    format, channels = draw(st.sampled_from(FORMATS))
    size = [draw(st.integers(1, 6)), draw(st.sampled_from((1, 2, 3, 7, 8, 9, 16, 17, 33, 70)))]
    factors = [
        draw(st.sampled_from((Fraction(2), *map(Fraction, (0.3, 0.5, 0.7, 1, 1.4, 2, 3.1))))) for _ in "hw"
    ]
    out = [max(1, int(n * by)) for n, by in zip(size, factors, strict=True)]
    rule: Any = "linear"
    if draw(st.integers(0, 2)) == 0:
        rule = Matrices(tuple(corners(n, m) for n, m in zip(size, out, strict=True)))
    images = draw(st.sampled_from((1, 2)))
    src = rl.MemoryDesc((images, channels, *size), kind, format)
    dst = rl.MemoryDesc((images, channels, *out), target or kind, draw(st.sampled_from((format, rl.any))))
    return Resampling(src, rule, dst)


@examples(150)
@given(resamplings(), st.integers(0, 99))
def test_results_are_the_definitions(made: Resampling, seed: int) -> None:
    random, kind = np.random.default_rng(seed), made.src.dtype
    if kind.is_float:
        data = random.standard_normal(made.src.dims)
        if made.dst.dtype.is_float:
            for value in (np.nan, np.inf, -np.inf):
                data.flat[random.integers(data.size)] = value
    else:
        data = random.integers(int(kind.min), int(kind.max) + 1, made.src.dims)
    x = rl.tensor(data, "abcd", kind).reorder(made.src)
    wanted, found = np.asarray(made.reference(x), np.float64), called(made, x)
    assert made.implementation.startswith("machine code")
    if made.dst.dtype.is_float:
        tolerance = max(TOLERANCE[made.dst.dtype.name], TOLERANCE.get(kind.name, 0) if kind.is_float else 0)
        np.testing.assert_allclose(found, wanted, tolerance, tolerance)
    else:  # rounded once
        low, high = int(made.dst.dtype.min), int(made.dst.dtype.max)
        assert (np.abs(found - np.clip(wanted, low, high)) <= 0.5 + 1e-4).all()


def planned(made: Resampling) -> linear.Linear:
    """The numbers of a resampling."""
    rows = rows_of_resampling(made.algorithm, made.src.dims[2:], made.dst.dims[2:])
    axes = [axis.Axis(n, m) for n, m in zip(made.src.dims[2:], made.dst.dims[2:], strict=True)]
    found = linear.planned(window.planned("sum", "", made.src, made.dst, axes), *rows, machine_.host())
    assert found is not None
    return found


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize(("format", "channels"), [("nchw", 2), ("nhwc", 2), ("nhwc", 8), ("nhwc", 16)])
def test_twice_the_size_has_the_bits_of_the_general_way(
    kind: str, format: str, channels: int, monkeypatch: Any
) -> None:
    """Weights that are constants, and columns in front of the first, change nothing."""
    src = rl.MemoryDesc((1, channels, 5, 21), kind, format)
    made = Resampling(src, "linear", factors=2)
    x = rl.tensor(np.random.default_rng(0).standard_normal(src.dims), "abcd", kind).reorder(src)
    texts, results = [], []
    for doubled in (linear_pairs.doubled, lambda size: ()):
        monkeypatch.setattr(linear_pairs, "doubled", doubled)
        monkeypatch.setattr(linear, "doubled", doubled)
        texts.append(linear.module(planned(made), machine_.host()))
        kernel, y = (
            compile_.compiled(texts[-1], [linear.ENTRY])[linear.ENTRY],
            Tensor(made.dst, allocate(made.dst)),
        )
        kernel(address(x.buffer), address(y.buffer), 0, 0, 1)
        results.append(y.buffer.copy())
    assert texts[0] != texts[1]
    np.testing.assert_array_equal(*results)


def test_rows_that_are_long_are_made_one_by_one() -> None:
    """Columns of two of them would not stay in the L1 and L2 caches, nor perhaps on the stack."""
    for channels, width, wanted in ((64, 56, 2), (64, 128, 2), (64, 129, 1), (1, 70, 2)):
        src = rl.MemoryDesc((1, channels, 2, width), "f32", "nhwc")
        made = planned(Resampling(src, "linear", factors=2))
        assert linear_pairs.together(made) == wanted


def test_nothing_outside_of_the_buffers_is_touched() -> None:
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Resampling
        arenas = [arena(1 << 18) for _ in range(4)]
        for format, channels in (("nchw", 2), ("nhwc", 2), ("nhwc", 20), ("nChw8c", 12)):
            for width in (1, 2, 9, 33):
                for kind in ("bf16", "f32", "f16", "u8"):
                    for factor in (0.5, 1.3, 2):
                        src = MemoryDesc((1, channels, 3, width), kind, format)
                        if width * factor >= 1:
                            run_between(Resampling(src, "linear", factors=factor), arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"
