"""Definitions against the ONNX project's own cases for single nodes, and against its schemas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", minversion="1.23")

from onnx import defs, helper

from onnx_nodes import (
    Case,
    assert_agrees,
    assert_inferred,
    attributes_of,
    cases,
    facts,
    operator_name,
    single,
)
from relayout.graph.operators import OPERATORS, Fact

RANDOM = {"Bernoulli"}
"""Operators whose results the suite has drawn without a seed."""

KNOWN = [
    case
    for case in cases()
    if case.operators <= set(OPERATORS) and case.newest and not (case.operators & RANDOM)
]


@pytest.mark.parametrize("case", KNOWN, ids=repr)
def test_cases_of_the_suite(case: Case) -> None:
    for got, expected in zip(case.run(), case.outputs, strict=True):
        assert_agrees(got, expected, case.rtol, case.atol)


SINGLE = [case for case in KNOWN if single(case) is not None]

DEPENDS_ON_VALUES = {
    *("Compress", "NonZero", "Unique", "StringNormalizer", "StringSplit"),
    *("If", "Loop", "Scan"),
    *("ConcatFromSequence", "SequenceAt", "Optional", "OptionalGetElement", "OptionalHasElement"),
    *("ImageDecoder", "NonMaxSuppression"),
}
"""Operators whose results have dims that only running them says, or are sequences or come from there."""

TAKES_SHAPES = {
    *("CenterCropPad", "ConstantOfShape", "Expand", "OneHot", "Pad", "Range", "Reshape", "Slice", "Split"),
    *("Squeeze", "Tile", "TopK", "Unsqueeze", *(name for name in OPERATORS if name.startswith("Reduce"))),
    *("AffineGrid", "BlackmanWindow", "Col2Im", "DFT", "HammingWindow", "HannWindow", "MaxUnpool"),
    *("MelWeightMatrix", "Resize", "STFT"),
}
"""Operators that read sizes or axes: nothing is known of the dims of their results without these values."""


def inferred(case: Case, **given: Any) -> list[tuple[Fact, Any]]:
    """What inference says of each output, beside the output."""
    node, known = single(case), case.known
    assert node is not None
    said = OPERATORS[operator_name(node)].inferred(
        *facts(node, known, **given), outputs=len(node.output), **attributes_of(node)[0]
    )
    return [(fact, got) for fact, name, got in zip(said, node.output, case.run(), strict=False) if name]


@pytest.mark.parametrize("case", SINGLE, ids=repr)
def test_inference(case: Case) -> None:
    """With constants, with dims alone, and with sizes that have names instead of numbers."""
    name = operator_name(single(case))
    for fact, got in inferred(case, data=True):
        assert_inferred(fact, got, whole=isinstance(got, np.ndarray) and name not in DEPENDS_ON_VALUES)
    for fact, got in inferred(case, data=False):
        assert_inferred(
            fact, got, whole=isinstance(got, np.ndarray) and name not in DEPENDS_ON_VALUES | TAKES_SHAPES
        )
    for named in (range(8), (0,), (1,), (2,)):
        for data in (True, False):
            for fact, got in inferred(case, data=data, named=named):
                assert_inferred(fact, got, whole=False)


CALLED_OTHERWISE = {
    "captured": "inner graphs are closed, which ONNX's are not",
    "padding_idx": "in training a row of an embedding may stay as it is, which ONNX can't say",
    "from_end": "operators of PyTorch refuse indices below 0, which ONNX has no way to ask for",
    "source_bits": "products may round their source, as accuracy levels of ONNX Runtime permit",
}
"""Attributes that ONNX has not, with the reason."""

SAYS_NOTHING = {"x", "i", "input", "data", "input_data", "input_sequence"}
"""Names of inputs that may have another one here."""


def plain(value: Any) -> Any:
    """A default as definitions have them."""
    if isinstance(value, list):
        return tuple(map(plain, value))
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("name", sorted(name for name in OPERATORS if not name.startswith("relayout.")))
def test_entries_agree_with_the_newest_schema(name: str) -> None:
    domain, _, operator = name.rpartition(".")
    schema, entry = defs.get_schema(operator, domain=domain), OPERATORS[name]
    several = [
        one.name for one in schema.inputs if one.option != defs.OpSchema.FormalParameterOption.Variadic
    ]
    assert len(entry.inputs) == max(len(several), min(schema.min_input, 1))
    for ours, theirs in zip(entry.inputs, several, strict=False):
        assert ours == theirs.lower() or theirs.lower() in SAYS_NOTHING
    assert entry.variadic == (len(several) < len(schema.inputs) or "captured" in entry.attributes)
    assert entry.required == min(schema.min_input, len(entry.inputs))
    attributes = {one: value for one, value in entry.attributes.items() if one not in CALLED_OTHERWISE}
    assert set(attributes) == set(schema.attributes)
    for one, value in attributes.items():
        given = schema.attributes[one]
        if given.required:
            assert value is ..., one
            continue
        default = given.default_value
        expected = plain(helper.get_attribute_value(default)) if default.type else None
        if isinstance(expected, float):
            assert np.float32(value) == np.float32(expected), one
        else:
            assert value == expected, one
