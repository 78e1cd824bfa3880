"""What moves between two layouts: counted without visiting the elements, compared with visiting them all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout.loops import difference as module
from relayout.loops.difference import Moved, difference
from strategies import examples, layouts, shapes


def moved(a, b):
    """The elements that lie elsewhere, one by one."""
    return [
        Moved(index, a.offset(*index), b.offset(*index))
        for index in np.ndindex(*a.dims)
        if a.offset(*index) != b.offset(*index)
    ]


@examples(300)
@given(st.data())
def test_agrees_with_a_walk_over_all_elements(data):
    dims = data.draw(shapes(zeros=True))
    a, b = (data.draw(layouts(dims)) for _ in range(2))
    found, expected = difference(a, b, 5), moved(a, b)
    assert found.moved == len(expected)
    assert found.first == tuple(expected[:5])
    assert found.same_bytes == a.same_bytes(b)
    assert found.elements == a.size
    if found.same_bytes:
        assert not expected


@examples(100)
@given(st.data())
def test_never_says_a_wrong_number_where_it_may_count_only_a_little(data):
    dims = data.draw(shapes())
    a, b = (data.draw(layouts(dims)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTED", 3)
        patch.setattr(module, "SCANNED", 2)
        found, expected = difference(a, b, 5), moved(a, b)
    assert found.moved in (None, len(expected))
    assert set(found.first) <= set(expected)


def test_tensors_that_nobody_could_visit():
    dims = (512, 512, 512, 512)
    found = difference(rl.Layout(dims, "abcd"), rl.Layout(dims, "dcba"), 1)
    assert found.moved == 512**4 - 512**2  # those with a = d and b = c stay
    assert found.first == (Moved((0, 0, 0, 1), 1, 512**3),)
    long = (10**12,)
    found = difference(rl.Layout(long, "a"), rl.Layout(long, "a", offset=1), 2)
    assert (found.moved, found.first) == (10**12, (Moved((0,), 0, 1), Moved((1,), 1, 2)))


def test_other_sizes_are_refused():
    with pytest.raises(rl.LayoutError, match="same dims"):
        difference(rl.Layout((2, 3), "ab"), rl.Layout((3, 2), "ab"))
