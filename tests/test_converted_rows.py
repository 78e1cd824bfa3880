"""Short rows that are converted a line at a time write what the definition says, whatever is left over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.kernels.copy.candidates import candidates
from relayout.kernels.copy.problem import moves, simplified
from relayout.targets.machine import machine
from strategies import examples
from test_kernels import compare, compile_
from test_values import can_run

pytestmark = pytest.mark.skipif(not compile_.available(), reason="this host forbids making machine code")

CPUS = [cpu for cpu in ("x86-64-v3", "x86-64-v4") if can_run(cpu)]
PAIRS = (("f32", "u8"), ("f32", "s8"), ("f32", "bf16"), ("u8", "f32"), ("s8", "bf16"), ("bf16", "f32"))


def offered(src: rl.MemoryDesc, dst: rl.MemoryDesc, cpu: str) -> set[str]:
    """The kinds that move the first nest."""
    return {plan.kind for plan in candidates(simplified(moves(src, dst)[0]), machine(cpu))}


@st.composite
def converted(draw: Any) -> tuple[rl.MemoryDesc, rl.MemoryDesc, dict[str, Any]]:
    """Pixels and blocks of channels, numbers of either that divide nothing, and scales."""
    one, two = draw(st.sampled_from(PAIRS))
    formats = draw(st.permutations(("nhwc", "nChw8c", "nChw16c")))[:2]
    channels = draw(st.sampled_from((8, 16, 24, 40, 64, 72, 130, 264)))
    dims = (draw(st.integers(1, 2)), channels, draw(st.integers(1, 9)), draw(st.integers(1, 13)))
    attributes: dict[str, Any] = {}
    for name in ("src_scale", "dst_scale"):
        if draw(st.booleans()):
            values = np.float32([0.3, 0.5, 1.7, 2.0, 0.11])
            attributes[name] = draw(st.sampled_from((0.3, (np.resize(values, channels), 1))))
    if draw(st.booleans()):
        attributes["dst_zero_point"] = draw(st.integers(-5, 9))
    sides = (rl.MemoryDesc(dims, dtype, tag) for dtype, tag in zip((one, two), formats, strict=True))
    return (*sides, attributes)


@examples(60)
@given(converted(), st.sampled_from((None, *CPUS)), st.sampled_from(("lines", "8 rows, lines")))
def test_lines_of_converted_rows_are_those_of_the_definition(drawn: Any, cpu: str | None, wish: str) -> None:
    src, dst, attributes = drawn
    compare(src, dst, given=attributes, cpu=cpu and machine(cpu), wish=wish)


def test_they_are_offered_where_registers_would_be_half_empty() -> None:
    dims = (2, 64, 20, 20)
    sides = rl.MemoryDesc(dims, "f32", "nhwc"), rl.MemoryDesc(dims, "u8", "nChw8c")
    assert "lines" in offered(*sides, "x86-64-v3")
    assert "lines" not in offered(*sides, "x86-64-v2")
    few = (1, 24, 3, 2)  # pixels that make no line
    assert "lines" not in offered(*(rl.MemoryDesc(few, x.dtype, x.format) for x in sides), "x86-64-v3")
