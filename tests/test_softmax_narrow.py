"""Softmax to narrow types: the results of f32, rounded once."""

from __future__ import annotations

import numpy as np
import pytest

import relayout as rl
from relayout.primitives import Softmax


@pytest.mark.parametrize("kind", ["bf16", "f16", "s8", "u8"])
@pytest.mark.parametrize("dims", [(3, 33), (2, 64), (5, 197), (2, 3, 1000), (2, 4096), (1, 4100)])
@pytest.mark.parametrize("format", ["row", "column"])
def test_results_are_those_of_f32_rounded_once(kind: str, dims: tuple[int, ...], format: str) -> None:
    text = "abc"[: len(dims)]
    text = text if format == "row" else text[::-1]
    source = "f32" if kind in ("s8", "u8") else kind
    random = np.random.default_rng(len(dims))
    x = rl.tensor(3 * random.standard_normal(dims).astype(np.float32), text, source)
    narrow, wide = (Softmax(x.desc, -1, rl.MemoryDesc(dims, one, text)) for one in (kind, "f32"))
    assert narrow.implementation.startswith("machine code")
    wanted = wide(x).reorder(rl.MemoryDesc(dims, kind, text))
    assert (narrow(x).buffer == wanted.buffer).all()
