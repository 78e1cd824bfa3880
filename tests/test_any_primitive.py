"""Any primitive of any sizes: what its definition says, every byte of it, and no byte beside it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn import KINDS, Draw
from elementwise import check, machine_code, values
from fences import output_of
from relayout import LayoutError
from strategies import examples

ROUNDED = {
    "softmax": 2e-6,
    "layer_normalization": 3e-5,
    "batch_normalization_backward": 1e-4,
    "group_normalization_backward": 1e-4,
    "layer_normalization_backward": 1e-4,
}
"""By how much results in f32 may differ that are not sums of quarters."""


def slack_of(kind):
    """That of a kind of primitives."""
    return ROUNDED.get(kind.replace(" ", "_"), 0.0)


@pytest.mark.turns(2)
@examples(30)
@pytest.mark.parametrize("kind", [*sorted(KINDS), "pooling", "resampling"])
@given(seed=st.integers(0, 1 << 32))
def test_it_does_what_its_definition_says(kind, seed):
    try:
        made = KINDS[kind](Draw(Random(seed)))
    except LayoutError:  # no window fits, say
        return
    check(made, seed % 1000, slack=slack_of(kind))


OPEN = {
    *("convolution_backward_data", "convolution_backward_weights"),
    *("deconvolution", "deconvolution_backward_weights"),
    "batch_normalization",
}
"""Whether padding is multiplied is left open (docs/primitives.md); and what the mean of infinities is."""
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0])
STATISTICS = {"mean", "variance"}
"""They stay finite, too: an infinite mean is none of finite elements, and where it leads to is left open."""
CELLS = {"gru", "lstm"}
"""Their weights stay finite: a state that f32 rounds to 0 times an infinite one is NaN."""


def with_special(made, kind, rng):
    """What a primitive reads, with a few or many numbers that are none."""
    found = {}
    for k, name in enumerate(made.inputs):
        desc = made.descs[name]
        found[name] = np.asarray(values(name, desc, k), np.float64)
        if desc.dtype.is_float and name not in STATISTICS and rng.random() < 0.7:
            among = SPECIAL if rng.random() < 0.7 else SPECIAL[rng.integers(4)]
            if kind in CELLS and name.startswith("weights"):
                among = SPECIAL[[0, 3]]
            there = rng.random(desc.dims) < rng.choice([0.01, 0.1, 0.5])
            found[name] = np.where(there, rng.choice(np.atleast_1d(among), desc.dims), found[name])
    return found


@pytest.mark.turns(2)
@examples(20)
@pytest.mark.parametrize("kind", sorted({*KINDS} - OPEN))
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nan_and_infinity_go_where_the_definition_says(kind, seed):
    try:
        made = KINDS[kind](Draw(Random(seed)))
    except LayoutError:
        return
    check(made, seed % 1000, with_special(made, kind, np.random.default_rng(seed)), slack_of(kind))


@pytest.mark.skipif(not machine_code(), reason="this host forbids making machine code")
def test_nothing_outside_of_the_buffers_is_touched():
    """All buffers, scratch too, begin behind, then end at, a page that can't be touched."""
    script = f"""
        import sys
        from random import Random
        from drawn import drawn
        from fences import arena, run_between

        arenas, seed = [arena(1 << 20) for _ in range(24)], {Random().getrandbits(32)}
        for k in range(60):
            made = drawn(Random(f"{{seed}} {{k}}"))
            print(type(made).__name__)
            print(seed, k, file=sys.stderr)
            if made._compiled() is not None:
                run_between(made, arenas)
    """
    assert len({*output_of(script).split()}) > 5
