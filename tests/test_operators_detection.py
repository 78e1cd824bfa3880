"""Suppression of boxes: sorted by their borders, it keeps what comparing all pairs keeps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from relayout.graph.operators import OPERATORS


def all_pairs(boxes, scores, most, overlap):
    """One image and class, each box compared with all that were kept."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    kept = []
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == most:
            break
        for one in kept:
            sides = np.clip(np.minimum(high[box], high[one]) - np.maximum(low[box], low[one]), 0, None)
            both = sides[0] * sides[1]
            union = np.prod(high[box] - low[box]) + np.prod(high[one] - low[one]) - both
            if both > 0 and both / union > overlap:
                break
        else:
            kept.append(box)
    return kept


corners = st.sampled_from([np.float32(n) for n in (0, 0.5, 1, 2, 3, 5, 8, 1000, 1002, -4)])


@given(
    st.integers(0, 24).flatmap(lambda n: arrays(np.float32, (n, 4), elements=corners)),
    st.integers(0, 2**32 - 1),
    st.integers(0, 30),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_keeps_what_all_pairs_keep(boxes, seed, most, overlap):
    scores = np.random.default_rng(seed).integers(0, 5, len(boxes)).astype(np.float32)
    arguments = np.array(most), np.float32(overlap)
    found = OPERATORS["NonMaxSuppression"](boxes[None], scores[None, None], *arguments, outputs=1)[0]
    np.testing.assert_array_equal(found[:, 2], all_pairs(boxes, scores, most, np.float32(overlap)))


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_boxes_without_numbers_suppress_nobody(strange):
    boxes = np.float32([[0, 0, 2, 2], [0, 0, 2, 2], [0, 0, strange, 2], [5, 5, 6, 6]])
    scores = np.float32([4, 3, 2, 1])[None, None]
    arguments = np.array(4), np.float32(0.5)
    found = OPERATORS["NonMaxSuppression"](boxes[None], scores, *arguments, outputs=1)[0]
    assert found[:, 2].tolist() == [0, 2, 3]
