"""Gradients against PyTorch's: some configurations of each kind. ``python tests/gradients.py`` tries many."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from gradients import subjects

SUBJECTS = subjects()


@pytest.mark.parametrize("name", SUBJECTS)
def test_gradients_are_those_of_pytorch(name):
    for number in range(10):
        SUBJECTS[name](random.Random(f"{name} {number}")).check()
