"""Combinations of parameters that are tried have every pair among them."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covering import covering, share
from strategies import examples


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 3))
@examples(60)
def test_all_of_any_few_axes_are_there(sizes, strength):
    axes = [[f"{letter}{k}" for k in range(size)] for letter, size in zip("abcde", sizes, strict=False)]
    found = covering(*axes, strength=strength, thorough=False)
    assert len(set(found)) == len(found)
    assert found == [case for case in product(*axes) if case in found]  # in order, and of the axes' values
    for places in combinations(range(len(axes)), min(strength, len(axes))):
        chosen = {tuple(case[place] for place in places) for case in found}
        assert chosen == set(product(*(axes[place] for place in places)))


@pytest.mark.parametrize(
    ("sizes", "most"), [((2, 2, 2), 5), ((4, 4, 4, 4, 4), 28), ((5, 2, 2), 10), ((7, 3, 2, 2, 2), 22)]
)
def test_they_are_few(sizes, most):
    assert len(covering(*map(range, sizes), thorough=False)) <= most
    assert len(covering(*map(range, sizes), strength=1, thorough=False)) == max(sizes)


def test_all_combinations_where_all_are_asked_for():
    assert covering("ab", "cd", "ef", thorough=True) == list(product("ab", "cd", "ef"))


def test_shares_make_the_whole():
    assert [share("abcde", k, 3, thorough=False) for k in (3, 4, 5)] == ["ad", "be", "c"]
    assert share("abcde", 1, thorough=True) == "abcde"
