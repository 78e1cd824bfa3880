"""Averages of bf16 and f16 in windows that share elements: quotients are those of a division."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import relayout as rl
from covering import share
from fences import output_of
from relayout.kernels.reduce import window
from relayout.kernels.reduce.overlapping import form_of, reciprocal
from relayout.primitives import Pooling
from test_values import LINUX, NEEDS, can_run, undefined

machine_ = importlib.import_module("relayout.targets.machine")
compile_ = importlib.import_module("relayout.jit.compile")

FORMATS = {"nhwc": 4, "nChw8c": 4, "nChw16c": 4, "nchw": 4, "ncdhw": 5}
SIZES = ((9, 37), (5, 16), (35, 56))
WINDOWS = (
    *((3, 1, 1), (2, 2, 0), (3, 2, 1), (2, 1, 1), (2, 1, 0), (3, 1, 0)),
    *((5, 1, 2), (4, 2, 1), (5, 2, 2), (3, 3, 0), (1, 1, 0), (4, 1, 1), (3, 2, 0)),
)
ALGORITHMS = "average_include_padding", "average_exclude_padding"
EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11}

pytestmark = [
    pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def rounded(x: Any, kind: str) -> Any:
    return np.asarray(x).astype(np.float32).astype(rl.dtype(kind).numpy).astype(np.float64)


def agrees(kind: str, format: str, size: tuple[int, int], windows: Sequence[tuple[int, int, int]]) -> None:
    """Sums of small integers are exact, so all bits are known; others are held against the bound."""
    random = np.random.default_rng(size[0])
    dims = (2, 20, *size) if FORMATS[format] == 4 else (2, 3, 4, *size)
    fitting = [how for how in windows if how[0] <= min(dims[2:])]
    for number, algorithm in enumerate(ALGORITHMS, size[0] + len(format)):
        for how in share(fitting, number):
            integers = random.integers(-300, 300, dims).astype(np.float32)
            reals = random.standard_normal(dims).astype(np.float32)
            for value in (np.inf, -np.inf, np.nan):
                reals.flat[random.integers(0, reals.size, 4)] = value
            for data in (integers, reals):
                x = rl.tensor(data, "abcde"[: len(dims)], kind).reorder(rl.MemoryDesc(dims, kind, format))
                made = Pooling(x.desc, algorithm, *how)
                assert made.implementation.startswith("machine code")
                got, wanted = np.asarray(made(x).numpy(), np.float64), made.reference(x)
                if data is integers:
                    np.testing.assert_array_equal(got, rounded(wanted, kind))
                else:
                    np.testing.assert_allclose(got, wanted, EPSILON[kind], 1e-6)


@pytest.mark.turns(2)
@pytest.mark.parametrize(("kind", "size"), [*(("bf16", size) for size in SIZES), ("f16", SIZES[0])])
@pytest.mark.parametrize("format", FORMATS)
def test_averages_are_the_definitions(kind: str, format: str, size: tuple[int, int]) -> None:
    agrees(kind, format, size, WINDOWS if size == SIZES[0] else WINDOWS[:3])


@pytest.mark.turns(2)
@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rows_of_padding_count_where_there_is_one_row_of_results(
    kind: str, format: str, algorithm: str
) -> None:
    """Which rows of the only window are elements is known then; what lies beside them belongs to others."""
    random = np.random.default_rng(3)
    for size, kernel, padding in (
        ((1, 37), (3, 3), (1, 1)),
        ((2, 30), (4, 3), (1, 1)),
        ((2, 30), (3, 3), ((1, 0), (1, 1))),
        ((2, 30), (3, 3), ((0, 1), 0)),
    ):
        dims, deep = (2, 20, *size), FORMATS[format] == 5
        if deep:  # one plane, of which the same holds
            dims, kernel, padding = (*dims[:2], 1, *size), (3, *kernel), (1, *padding)
        x = rl.tensor(random.integers(-300, 300, dims), "abcde"[: len(dims)], kind)
        x = x.reorder(rl.MemoryDesc(dims, kind, format))
        made = Pooling(x.desc, algorithm, kernel, 1, padding)
        np.testing.assert_array_equal(made(x).numpy().astype(float), rounded(made.reference(x), kind))


@pytest.mark.parametrize("kind", EPSILON)
@pytest.mark.parametrize("format", ["nhwc", "nchw"])
def test_windows_astride_a_row_are_zero(kind: str, format: str) -> None:
    """One window along an axis, with gaps, both of whose rows are padding."""
    x = rl.tensor(np.ones((1, 16, 1, 40)), "abcd", kind).reorder(rl.MemoryDesc((1, 16, 1, 40), kind, format))
    made = Pooling(x.desc, "average_include_padding", (2, 3), 1, (1, 1), (2, 1))
    assert made.dst.dims[2] == 1
    assert not made(x).numpy().astype(float).any()


def test_nothing_outside_of_the_buffers_is_touched() -> None:
    """Windows that are larger than the picture, and rows of padding, too."""
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Pooling
        arenas = [arena(1 << 17) for _ in range(4)]
        for format in ("nchw", "nhwc", "nChw8c"):
            for height, kernel, padding in (
                (1, 3, 1), (1, (2, 3), ((1, 0), 0)), (1, (4, 2), ((3, 3), 0)), (2, (4, 3), 1), (7, 3, 1)
            ):
                for width in (16, 37):
                    src = MemoryDesc((2, 9, height, width), "bf16", format)
                    run_between(Pooling(src, "average_include_padding", kernel, 1, padding), arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"


@pytest.mark.turns(2)
@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@pytest.mark.parametrize("format", FORMATS)
def test_code_for_other_processors_agrees_too(cpu: str, format: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(machine_, "host", lambda: machine_.machine(cpu))
    agrees("bf16", format, (9, 37), WINDOWS[:4])


TARGETS = [(cpu, LINUX) for cpu in (*NEEDS, "znver4")] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_code_for_all_processors_is_made(cpu: str, triple: str, kind: str) -> None:
    machine = machine_.machine(cpu, triple)
    for format in ("nchw", "nhwc", "nChw16c"):
        made = Pooling(rl.MemoryDesc((1, 64, 40, 70), kind, format), "average_exclude_padding", 3, 1, 1)
        plan = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
        assert plan is not None
        assert undefined(compile_.assemble(window.module(plan, machine), machine)) == set()


def test_which_windows_share() -> None:
    machine = machine_.machine("x86-64-v3")
    for format, how, form in (
        ("nhwc", (3, 1, 1), "channels"),
        ("nchw", (3, 1, 1), "pixels"),
        ("nhwc", (7, 7, 0), ""),  # all taps would be written out
        ("nhwc", (2, 3, 0), ""),  # nothing is shared, and elements are left out
    ):
        made = Pooling(rl.MemoryDesc((1, 64, 28, 28), "bf16", format), "average_exclude_padding", *how)
        plan = window.planned(*made.operation.reduction, made.src, made.dst, made.axes)
        assert plan is not None
        [block] = plan.blocks
        found = form_of(plan, plan.scheme(block, 8), plan.axes, block.length, machine)
        assert found == form


def test_two_parts_of_a_reciprocal_are_a_quotient() -> None:
    """Of all divisors that are used; the sum of both parts is near enough for one rounding."""
    for n in range(1, 257):
        near, rest = map(Fraction, reciprocal(n))
        assert near < Fraction(1, n)
        assert rest >= 0
        assert abs((near + rest) * n - 1) < Fraction(1, 2**44)
