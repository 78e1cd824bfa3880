"""Bytes on lines: normalised pictures in three instructions of f32, to the bits of the definition."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from elementwise import machine_code
from relayout.convert import rescale
from relayout.reorder import lines as of
from relayout.reorder.reference import reorder_by_definition
from strategies import examples
from test_values import can_run

machine_ = importlib.import_module("relayout.targets.machine")
native_ = importlib.import_module("relayout.reorder.native")

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
runs_code = pytest.mark.skipif(not (machine_code() and can_run("x86-64-v3")), reason="this host has no AVX2")
CPUS = [cpu for cpu in ("x86-64-v3", "x86-64-v4", "host") if can_run(cpu)]
"""Registers of two widths, and whatever picks bytes anywhere."""
numbers = st.floats(1e-4, 300, allow_subnormal=False) | st.sampled_from((1.0, 1 / 255, 0.5, 255.0))


def made_for(cpu: str) -> Any:
    """What stands in for ``host``."""
    here = machine_.host() if cpu == "host" else machine_.machine(cpu)
    return lambda: here


@st.composite
def steps(draw: Any, channels: int) -> dict[str, Any]:
    """A shift, and perhaps others: numbers, or one for each channel."""

    def some(values: Any) -> Any:
        if draw(st.booleans()):
            return draw(values)
        return np.array(draw(st.lists(values, min_size=channels, max_size=channels)))

    found = {"src_shift": some(numbers | st.floats(-300, -1e-3))}
    if draw(st.booleans()):
        found["src_scale"] = some(numbers)
    if draw(st.booleans()):
        found["dst_scale"] = some(numbers)
    if draw(st.integers(0, 3)) == 0:
        found["src_zero_point"] = some(st.integers(-5, 130))
    return found


@examples(100)
@given(steps(3), st.sampled_from(("u8", "s8")), st.sampled_from(("f32", "bf16", "f16")))
def test_lines_are_the_definition_or_missing(found: dict[str, Any], kind: str, result: str) -> None:
    src, dst = rl.dtype(kind), rl.dtype(result)
    for name in ("src_scale", "dst_scale"):
        if name in found:
            found[name] = np.float32(found[name])
    slope, more, start, rest, missing = of.lines(src, dst, **found)
    if np.isnan(missing[0]):
        return
    x = np.arange(*of.BYTES[kind])
    p = (x * slope.astype(np.float64)[:, None] + start[:, None]).astype(np.float32)
    t = (x.astype(np.longdouble) * more[:, None] + rest[:, None]).astype(np.float32)
    given = {name: np.reshape(np.asarray(value), (-1, 1)) for name, value in found.items()}
    wanted = rescale(np.broadcast_to(x.astype(src.numpy), p.shape), src, dst, **given)
    made = rl.convert.convert(p + t, dst)
    np.testing.assert_array_equal(made.view(f"u{dst.numpy.itemsize}"), wanted.view(f"u{dst.numpy.itemsize}"))


def test_most_pictures_have_lines() -> None:
    random, there = np.random.default_rng(0), 0
    for _ in range(100):
        made = of.lines(
            rl.dtype("u8"),
            rl.dtype("f32"),
            src_scale=np.float32(1 / 255),
            src_shift=random.uniform(0.3, 0.7, 3),
            dst_scale=random.uniform(0.1, 0.4, 3).astype(np.float32),
        )
        there += not np.isnan(made[-1][0])
    assert there > 95
    for kind in ("f32", "bf16", "f16"):
        made = of.lines(
            rl.dtype("u8"),
            rl.dtype(kind),
            src_scale=np.float32(1 / 255),
            src_shift=MEAN,
            dst_scale=np.float32(STD),
        )
        assert made[-1][0] == 0


@st.composite
def pictures(draw: Any) -> tuple[rl.Tensor, rl.MemoryDesc, dict[str, Any]]:
    """All bytes, in any two formats, and attributes."""
    channels = draw(st.sampled_from((1, 2, 3, 4, 8, 20)))
    dims = (
        draw(st.integers(1, 2)),
        channels,
        draw(st.integers(1, 9)),
        draw(st.sampled_from((1, 7, 16, 33, 70))),
    )
    kind, result = draw(st.sampled_from(("u8", "s8"))), draw(st.sampled_from(("f32", "bf16", "f16")))
    formats = st.sampled_from(("nchw", "nhwc", "nChw8c", "nChw16c", "NCHW4"))
    low, high = of.BYTES[kind]
    data = np.random.default_rng(draw(st.integers(0, 99))).integers(low, high, dims)
    x = rl.tensor(data, "abcd", kind).reorder(rl.MemoryDesc(dims, kind, draw(formats)))
    axes = {name: (value, 1) if np.ndim(value) else value for name, value in draw(steps(channels)).items()}
    return x, rl.MemoryDesc(dims, result, draw(formats)), axes


@runs_code
@examples(80)
@given(pictures(), st.booleans(), st.sampled_from(CPUS))
def test_kernels_have_the_bits_of_the_definition(drawn: Any, missing: bool, cpu: str) -> None:
    x, desc, attributes = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", made_for(cpu))
        if missing:
            patch.setattr(of, "NUDGES", [])
        found = rl.reorder(x, desc, **attributes)
        plan = rl.Reorder(x.desc, desc, **attributes)
    wanted = np.zeros(desc.nbytes, np.uint8)
    reorder_by_definition(x.desc, x.buffer.view(np.uint8), desc, wanted, plan.attributes)
    np.testing.assert_array_equal(found.buffer.view(np.uint8), wanted)


scales = st.floats(2.0**-20, 2.0**20, width=32) | st.sampled_from((0.75, 0.7, 1.25, 3.0, 1 / 255, 2.0**-130))


@st.composite
def scaled(draw: Any, channels: int) -> dict[str, Any]:
    """A scale, perhaps negative, and perhaps a zero point: numbers, or one for each channel."""

    def some(values: Any) -> Any:
        if draw(st.booleans()):
            return draw(values)
        return np.array(draw(st.lists(values, min_size=channels, max_size=channels)))

    found = {"src_scale": draw(st.sampled_from((1, -1))) * some(scales)}
    if draw(st.booleans()):
        found["src_zero_point"] = some(st.integers(-300, 300))
    return found


@examples(100)
@given(scaled(3), st.sampled_from(("u8", "s8")))
def test_half_a_unit_rounds_what_is_in_no_middle(found: dict[str, Any], kind: str) -> None:
    given_ = {name: np.atleast_1d(value).astype(np.float32) for name, value in found.items()}
    missing = of.middles(rl.dtype(kind), **given_)
    x = np.arange(*of.BYTES[kind])
    columns = {name: value.reshape(-1, 1) for name, value in given_.items()}
    rows = max(len(value) for value in given_.values())
    wanted = rescale(
        np.broadcast_to(x.astype(kind.replace("s8", "i1").replace("u8", "u1")), (rows, x.size)),
        rl.dtype(kind),
        rl.dtype("bf16"),
        **columns,
    )
    made = (x.astype(np.float32) - columns.get("src_zero_point", np.float32(0))) * columns["src_scale"]
    bits = ((np.broadcast_to(made, wanted.shape).view(np.uint32) + np.uint32(0x8000)) >> 16).astype(np.uint16)
    assert np.isnan(missing[0]) != (bits == wanted.view(np.uint16)).all()


@st.composite
def quantised(draw: Any) -> tuple[rl.Tensor, rl.MemoryDesc, dict[str, Any]]:
    """Bytes in any two formats, to bf16, with a scale."""
    x, desc, _ = draw(pictures())
    axes = {
        name: (value, 1) if np.ndim(value) else value for name, value in draw(scaled(desc.dims[1])).items()
    }
    return x, rl.MemoryDesc(desc.dims, "bf16", desc.format), axes


@runs_code
@examples(80)
@given(quantised(), st.sampled_from(CPUS))
def test_kernels_round_bytes_to_bf16_as_the_definition_does(drawn: Any, cpu: str) -> None:
    x, desc, attributes = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_, "host", made_for(cpu))
        found = rl.reorder(x, desc, **attributes)
        plan = rl.Reorder(x.desc, desc, **attributes)
    wanted = np.zeros(desc.nbytes, np.uint8)
    reorder_by_definition(x.desc, x.buffer.view(np.uint8), desc, wanted, plan.attributes)
    np.testing.assert_array_equal(found.buffer.view(np.uint8), wanted)


def test_products_by_few_digits_lie_in_middles() -> None:
    kinds = (("u8", 0.75), ("u8", 0.5), ("s8", 0.7), ("s8", 1.0))
    assert [bool(np.isnan(of.middles(rl.dtype(kind), np.float32([scale]))[0])) for kind, scale in kinds] == [
        True,
        False,
        False,
        False,
    ]
