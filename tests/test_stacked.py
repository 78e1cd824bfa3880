"""Pooling of narrow pictures that are stacked: results are the definition's, and nothing else is touched."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce import stacked
from relayout.kernels.reduce.window import Window, planned
from relayout.primitives import Pooling
from strategies import examples
from test_values import LINUX, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")

AVX2 = "x86-64-v3"
ALGORITHMS = "max", "average_include_padding", "average_exclude_padding"
EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11}

runs_code = pytest.mark.skipif(
    not (machine_code() and can_run(AVX2)), reason="this host has no AVX2, or forbids making machine code"
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def window_of(made: Pooling) -> Window:
    found = planned(*made.operation.reduction, made.src, made.dst, made.axes)
    assert found is not None
    return found


def rounded(x: Any, kind: str) -> Any:
    return np.asarray(x).astype(np.float32).astype(rl.dtype(kind).numpy).astype(np.float64)


def compared(made: Pooling, seed: int) -> None:
    """Bytes and sums of small integers are known to the bit, and so are maxima; others within the bound."""
    random, kind, dims = np.random.default_rng(seed), made.src.dtype.name, made.src.dims
    if kind in ("u8", "s8"):
        least, most = made.src.dtype.min, made.src.dtype.max
        several = [random.integers(least, most + 1, dims), random.choice([least, most], dims)]
    else:
        reals = random.standard_normal(dims).astype(np.float32)
        for value in (np.inf, -np.inf, np.nan, -0.0):
            reals.flat[random.integers(0, reals.size, 3)] = value
        several = [random.integers(-60, 61, dims), reals]
    for k, data in enumerate(several):
        x = rl.tensor(data, "abcd", kind).reorder(made.src)
        got, wanted = np.asarray(made(x).numpy(), np.float64), np.asarray(made.reference(x), np.float64)
        if kind in ("u8", "s8"):
            np.testing.assert_array_equal(got, np.rint(wanted))
        elif k == 0 or made.algorithm == "max":
            np.testing.assert_array_equal(got, rounded(wanted, kind))
        else:
            np.testing.assert_allclose(got, wanted, EPSILON[kind], 1e-6)


@st.composite
def poolings(draw: Any) -> Pooling:
    """Windows that keep the size of a picture, small or large; channels may be neighbours."""
    kind, format = (
        draw(st.sampled_from(("u8", "s8", "bf16", "f16"))),
        draw(st.sampled_from(("nchw", "NCHW4"))),
    )
    kernel, gaps, padding = [], [], []
    for _ in range(2):
        taps, gap = draw(st.sampled_from((1, 2, 3, 3, 5, 7))), draw(st.sampled_from((1, 1, 2)))
        lost = (taps - 1) * gap
        front = draw(st.sampled_from((lost // 2, lost // 2, 0, lost)))
        kernel.append(taps)
        gaps.append(gap)
        padding.append((front, lost - front))
    size = draw(st.sampled_from((1, 2, 3, 7, 13, 28, 61))), draw(st.sampled_from((1, 3, 5, 7, 14, 28, 56)))
    dims = draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 20, 40))), *size
    src, algorithm = rl.MemoryDesc(dims, kind, format), draw(st.sampled_from(ALGORITHMS))
    try:
        return Pooling(src, algorithm, kernel, 1, padding, gaps)
    except rl.LayoutError:  # a window that holds padding only
        return Pooling(src, algorithm, 3, 1, 1)


@runs_code
@examples(60)
@given(poolings(), st.integers(0, 1000))
def test_results_are_the_definitions(made: Pooling, seed: int) -> None:
    compared(made, seed)


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("kind", ["u8", "s8", "bf16", "f16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stacks_and_bands_of_all_sizes(kind: str, algorithm: str, monkeypatch: Any) -> None:
    """Stacks that pictures do not fill, the last of which steps back; and bands, of which the last does."""
    monkeypatch.setattr(machine_, "host", lambda: machine_.machine(AVX2, LINUX))
    for channels, size in (
        (1, (7, 7)),
        (83, (7, 7)),
        (9, (14, 14)),
        (20, (28, 28)),
        (2, (57, 53)),
        (1, (83, 60)),
    ):
        made = Pooling(rl.MemoryDesc((1, channels, *size), kind, "nchw"), algorithm, 3, 1, 1)
        compared(made, channels)


@runs_code
def test_nothing_outside_of_the_buffers_is_touched() -> None:
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Pooling
        arenas = [arena(1 << 17) for _ in range(4)]
        for kind in ("u8", "s8", "bf16", "f16"):
            for algorithm in ("max", "average_include_padding", "average_exclude_padding"):
                for channels, size in ((1, (1, 37)), (5, (7, 7)), (3, (13, 14)), (2, (60, 55)), (1, (2, 16))):
                    for format in ("nchw", "NCHW4"):
                        src = MemoryDesc((1, channels, *size), kind, format)
                        run_between(Pooling(src, algorithm, 3, 1, 1), arenas)
                        run_between(Pooling(src, algorithm, (1, 5), 1, (0, 2)), arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"


@pytest.mark.parametrize(
    ("kind", "format", "size", "algorithm", "wanted"),
    [
        *[(kind, "nchw", 14, how, True) for kind in ("u8", "s8", "bf16", "f16") for how in ALGORITHMS],
        *[("f32", "nchw", 14, how, False) for how in ALGORITHMS],
        ("f16", "nchw", 112, "average_include_padding", True),  # bands
        ("bf16", "nchw", 112, "average_include_padding", False),  # in pairs
        ("u8", "nchw", 32, "max", False),  # rows fill registers
        ("u8", "nchw", 56, "average_include_padding", False),  # rows slide
        ("u8", "nhwc", 14, "max", False),
        ("u8", "nchw", 5, "max", False),  # a picture is shorter than a register
    ],
)
def test_which_windows_are_taken(kind: str, format: str, size: int, algorithm: str, wanted: bool) -> None:
    made = window_of(Pooling(rl.MemoryDesc((2, 64, size, size), kind, format), algorithm, 3, 1, 1))
    assert stacked.suits(made, machine_.machine(AVX2, LINUX)) is wanted
    for cpu, triple in (
        ("znver4", LINUX),
        ("neoverse-n1", "aarch64-unknown-linux-gnu"),
        ("x86-64-v2", LINUX),
    ):
        assert not stacked.suits(made, machine_.machine(cpu, triple))


@runs_code
def test_narrow_pictures_are_not_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window as wide as the picture has all taps once: no reason to make lanes of channels."""
    monkeypatch.setenv("RELAYOUT_CPU", AVX2)
    script = """
        import relayout as rl
        from relayout.primitives import Pooling

        src = rl.MemoryDesc((1, 64, 7, 7), "u8", "nchw")
        print(Pooling(src, "max", 7, 1, 3).implementation)
    """
    assert output_of(script) == "machine code: 32 lanes\n"


@pytest.mark.parametrize(
    "how",
    [
        {"kernel": 3, "strides": 2, "padding": 1},
        {"kernel": 3, "strides": 1, "padding": 0},
        {"kernel": 9, "strides": 1, "padding": 4},
    ],
)
def test_others_are_left_to_other_kernels(how: dict[str, int]) -> None:
    made = window_of(Pooling(rl.MemoryDesc((2, 64, 14, 14), "u8", "nchw"), "max", **how))
    assert not stacked.suits(made, machine_.machine(AVX2, LINUX))


@pytest.mark.parametrize("kind", ["u8", "s8", "bf16", "f16"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("cpu", [AVX2, "znver3", "alderlake"])
def test_code_calls_nothing(kind: str, algorithm: str, cpu: str) -> None:
    machine = machine_.machine(cpu, LINUX)
    made = window_of(Pooling(rl.MemoryDesc((2, 64, 60, 28), kind, "nchw"), algorithm, 3, 1, 1))
    assert stacked.suits(made, machine)
    assert not undefined(compile_.assemble(stacked.module(made, machine), machine))
