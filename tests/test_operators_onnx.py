"""Definitions against the ONNX project's own cases for single nodes, and against its schemas."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from onnx_nodes import Case, assert_agrees, cases
from relayout.graph.operators import OPERATORS

KNOWN = [case for case in cases() if case.operators <= set(OPERATORS) and case.newest]


@pytest.mark.parametrize("case", KNOWN, ids=repr)
def test_cases_of_the_suite(case: Case) -> None:
    for got, expected in zip(case.run(), case.outputs, strict=True):
        assert_agrees(got, expected, case.rtol, case.atol)
