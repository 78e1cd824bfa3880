"""Resampling by the nearest element moves bits: whatever they are, in any format, from and to any size."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from covering import share
from elementwise import machine_code
from fences import output_of
from relayout.kernels.reduce import nearest, steps
from relayout.ops.resampling import Matrices, places
from relayout.primitives import Resampling
from relayout.primitives.banded import rows_of_resampling
from strategies import examples
from test_pooling import FORMATS, called
from test_values import LINUX, NEEDS, can_run, undefined

compile_ = importlib.import_module("relayout.jit.compile")
machine_ = importlib.import_module("relayout.targets.machine")

runs_code = pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # signaling NaN
KINDS = "u8", "s8", "bf16", "f16", "f32"
SIZES = 1, 2, 5, 7, 14, 16, 21, 33
FACTORS = 0.4, 0.5, 1, 1.5, 2, 2, 3, 3.3, 8


def bits(dims, kind, seed):
    """Elements whose bits are any: NaN of all kinds, subnormal numbers, zeros of both signs."""
    made = rl.dtype(kind)
    whole = np.random.default_rng(seed).integers(0, 256, (*dims, made.bits // 8), np.uint8)
    return whole.view(made.numpy)[..., 0]


def moved(data, made, rows):
    """What the definition says, in bits."""
    for axis, several in enumerate(rows, 2):
        data = data.take([row[0][0] for row in several], axis)
    return np.ascontiguousarray(data).view(np.uint8)


def agrees(made, seed):
    """The same bits, and nothing written where no element is."""
    data = bits(made.src.dims, made.src.dtype.name, seed)
    plain = "abcde"[: data.ndim]
    x = rl.tensor(data, plain, made.src.dtype).reorder(made.src)
    called(made, x)
    found = made(x).reorder(rl.MemoryDesc(made.dst.dims, made.dst.dtype, plain))
    rows = rows_of_resampling(made.algorithm, made.src.dims[2:], made.dst.dims[2:])
    assert bytes(found.buffer) == moved(data, made, rows).tobytes()


@st.composite
def resamplings(draw, kinds=KINDS):
    """A resampling along one to three axes, by the usual rule or by any."""
    spatial = draw(st.sampled_from((1, 2, 2, 2, 3)))
    format, kind = draw(st.sampled_from(FORMATS[spatial])), draw(st.sampled_from(kinds))
    dims = [draw(st.integers(1, 2)), draw(st.sampled_from((1, 3, 4, 8, 20, 64, 300)))]
    dims += [draw(st.sampled_from(SIZES if spatial < 3 else SIZES[:4])) for _ in range(spatial)]
    out = [max(1, int(n * draw(st.sampled_from(FACTORS)))) for n in dims[2:]]
    src = rl.MemoryDesc(dims, kind, format)
    dst = rl.MemoryDesc((*dims[:2], *out), kind, draw(st.sampled_from((rl.any, format, FORMATS[spatial][0]))))
    if draw(st.booleans()):
        return Resampling(src, "nearest", dst)
    axes = []
    for size, many in zip(dims[2:], out, strict=True):
        found = draw(st.lists(st.integers(0, size - 1), min_size=many, max_size=many))
        axes.append(tuple(((place, 1.0),) for place in draw(st.sampled_from((found, sorted(found))))))
    return Resampling(src, Matrices(tuple(axes)), dst)


@runs_code
@examples(60)
@given(resamplings(), st.integers(0, 99))
def test_bits_are_moved_as_the_definition_says(made, seed):
    assert "machine code" in made.implementation
    agrees(made, seed)


@runs_code
@pytest.mark.parametrize("kind", ["bf16", "f16", "f32"])
def test_a_row_shorter_than_a_lane_is_moved_and_not_multiplied_by_1(kind):
    """No kernel of moves suits it, and products by 1 make a signaling NaN a quiet one."""
    desc = rl.MemoryDesc((1, 20, 2), kind, "ncw")
    for rows in ((((0, 1.0),), ((0, 1.0),)), (((1, 1.0),), ((0, 1.0),))):
        made = Resampling(desc, Matrices((rows,)), desc)
        for seed in range(8):
            agrees(made, seed)


@pytest.mark.turns(2)
@runs_code
@pytest.mark.parametrize("kind", ["u8", "bf16"])
@pytest.mark.parametrize("format", ["nchw", "nhwc", "NCHW4", "nChw8c", "nChw16c", "CHWN4"])
def test_rows_of_all_lengths(format, kind):
    """Rows as long as a lane, a register, a turn, and one more or less; pictures that are one row."""
    sizes = ((3, 1), (3, 7), (20, 15), (3, 17), (3, 65), (2, 130), (1, 700))
    for number, (channels, width) in enumerate(sizes):
        for out in share((2 * width + 1, (2 + number % 2) * width), number + len(format) + len(kind)):
            src = rl.MemoryDesc((1, channels, 3, width), kind, format)
            made = Resampling(src, "nearest", rl.MemoryDesc((1, channels, 7, out), kind, format))
            agrees(made, width)


@runs_code
def test_it_is_the_kernel_that_is_meant():
    moves = [Resampling(rl.MemoryDesc((1, 64, 7, 7), "u8", f), "nearest", factors=2) for f in FORMATS[2]]
    kinds = [made.implementation for made in moves if made.implementation != "machine code: rows as they are"]
    assert not kinds or not machine_.host().is_avx2


@pytest.mark.parametrize("cpu", [cpu for cpu in NEEDS if can_run(cpu)])
@pytest.mark.parametrize("format", ["nchw", "nhwc", "nChw8c"])
def test_code_for_other_processors_agrees_too(cpu, format, monkeypatch):
    monkeypatch.setattr(machine_, "host", lambda: machine_.machine(cpu))
    for kind in ("u8", "bf16"):
        for factor in (0.5, 1.5, 2):
            agrees(Resampling(rl.MemoryDesc((2, 12, 9, 37), kind, format), "nearest", factors=factor), 0)


TARGETS = [(cpu, LINUX) for cpu in NEEDS] + [("neoverse-n1", "aarch64-unknown-linux-gnu")]


@pytest.mark.parametrize(("cpu", "triple"), TARGETS)
def test_code_for_all_processors_calls_no_library(cpu, triple):
    machine = machine_.machine(cpu, triple)
    rows = [[((place, 1.0),) for ((place, _),) in places("nearest", 9, 18)]] * 2
    for format in ("nhwc", "nChw16c", "nChw8c"):
        src, dst = (rl.MemoryDesc((1, 20, n, n), "u8", format) for n in (9, 18))
        made = nearest.planned(src, dst, rows)
        assert nearest.suits(made, machine)
        assert undefined(compile_.assemble(nearest.module(made, machine), machine)) == set()


@runs_code
def test_nothing_outside_of_the_buffers_is_touched():
    script = """
        from fences import arena, run_between
        from relayout.layout.descriptor import MemoryDesc
        from relayout.primitives import Resampling
        arenas = [arena(1 << 18) for _ in range(4)]
        for format in ("nchw", "nhwc", "NCHW4", "nChw8c", "nChw16c"):
            for width in (1, 7, 16, 17, 130):
                for kind in ("u8", "bf16"):
                    for factor in (0.5, 1.5, 2):
                        src = MemoryDesc((1, 6, 2, width), kind, format)
                        if int(width * factor):
                            run_between(Resampling(src, "nearest", factors=factor), arenas)
        print("done")
    """
    assert output_of(script).strip() == "done"


def test_steps_cover_a_row():
    for total in range(1, 400):
        for turns in (steps.Turns(2, 2), steps.Turns(4, 2, 6), steps.Turns(8, 4)):
            first = steps.starts(total, 32, turns)
            covered = {place for start in first for place in range(start, start + 32)}
            assert covered >= set(range(total))
            assert total < 32 or max(covered) < total
            if len(first) > max(turns.held, turns.written_out):
                assert len(first) % turns.several == 0
