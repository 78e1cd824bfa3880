"""Large files: weights that stay there. The parser's own reading of the whole message is the definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout.exchange.mapped import map_for_reading
from relayout.importers.onnx import reading
from relayout.importers.onnx.lean import LEAST, lean
from strategies import tried

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


KINDS = "f4", "i8", "u1", "f2"


def model(weights: dict[str, Any], name: str = "g") -> Any:
    """A sum of the input and all weights."""
    x = helper.make_tensor_value_info("x", 1, [])
    nodes, last = [], "x"
    for key in weights:
        nodes += [helper.make_node("Cast", [key], [f"{key}f"], to=1)]
        nodes += [helper.make_node("ReduceSum", [f"{key}f"], [f"{key}s"], keepdims=0)]
        nodes += [helper.make_node("Add", [last, f"{key}s"], [f"{key}t"])]
        last = f"{key}t"
    y = helper.make_tensor_value_info(last, 1, [])
    tensors = [numpy_helper.from_array(data, key) for key, data in weights.items()]
    graph = helper.make_graph(nodes, name, [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def as_bytes(found: Any) -> np.ndarray:
    return np.frombuffer(found.SerializeToString(), np.uint8)


@settings(max_examples=tried(50), deadline=None)
@given(
    st.lists(st.integers(0, 3 * LEAST), max_size=5),
    st.text(max_size=3),
    st.sampled_from(["f4", "i8", "u1", "f2"]),
)
def test_what_is_left_and_what_is_held_are_the_whole(sizes: list[int], name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.integers(0, 99, size).astype(dtype) for k, size in enumerate(sizes)}
    made = model(weights, name)
    found = lean(as_bytes(made))
    assert found is not None
    again = onnx.ModelProto.FromString(found.message)
    held = [k for k, data in enumerate(weights.values()) if data.nbytes >= LEAST]
    assert sorted(found.held) == held
    for k, one in enumerate(again.graph.initializer):
        assert one.HasField("raw_data") == (k not in held)
        if k in held:
            one.raw_data = found.held[k].tobytes()
    assert again == made


@settings(max_examples=tried(200), deadline=None)
@given(st.data())
def test_a_damaged_message_is_left_to_the_parser_or_read_the_same(data: Any) -> None:
    good = as_bytes(model({"w": np.arange(600, dtype="f4"), "v": np.arange(3)}))
    bad = good.copy()
    for _ in range(data.draw(st.integers(1, 3))):
        bad[data.draw(st.integers(0, min(200, bad.size - 1)))] = data.draw(st.integers(0, 255))
    bad = bad[: data.draw(st.integers(0, bad.size))]
    found = lean(bad)
    if found is None:
        return
    try:
        whole = onnx.ModelProto.FromString(bad.tobytes())
    except Exception:
        with pytest.raises(Exception):  # noqa: B017  both refuse it, by whatever error
            onnx.ModelProto.FromString(found.message)
        return
    again = onnx.ModelProto.FromString(found.message)
    for k, piece in found.held.items():
        again.graph.initializer[k].raw_data = piece.tobytes()
    assert again.SerializeToString(deterministic=True) == whole.SerializeToString(deterministic=True)


@pytest.mark.parametrize("what", ["two graphs", "raw data twice", "empty"])
def test_what_is_not_simple_is_left_to_the_parser(what: str) -> None:
    made = model({"w": np.arange(600, dtype="f4")})
    if what == "two graphs":
        data = as_bytes(made).tobytes() + onnx.ModelProto(graph=made.graph).SerializeToString()
    elif what == "empty":
        data = b""
    else:
        tensor = made.graph.initializer[0].SerializeToString() + bytes([9 << 3 | 2, 0])
        graph = bytes([5 << 3 | 2, len(tensor) & 0x7F | 0x80, len(tensor) >> 7]) + tensor
        data = bytes([7 << 3 | 2, len(graph) & 0x7F | 0x80, len(graph) >> 7]) + graph
    assert lean(np.frombuffer(data, np.uint8)) is None


@pytest.mark.parametrize("offset", range(4))
def test_a_large_file_is_mapped_and_means_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int
) -> None:
    """Weights at any offset of the file, so unaligned ones, are packed from there."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((32, 16, 3, 3)).astype("f4")
    x = helper.make_tensor_value_info("x", 1, [1, 16, 9, 9])
    y = helper.make_tensor_value_info("y", 1, [1, 32, 9, 9])
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    graph = helper.make_graph([node], "g" * (1 + offset), [x], [y], [numpy_helper.from_array(w, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    image = rng.standard_normal((1, 16, 9, 9)).astype("f4")
    [expected] = rl.load(path).compile(threads=1)(image)
    monkeypatch.setattr(reading, "MAPPED", 0)
    graph = rl.load(path)
    np.testing.assert_array_equal(graph.constants["w"], w)
    assert not graph.constants["w"].flags.owndata
    run = graph.compile(threads=1)
    [found] = run(image)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(graph.evaluate(image)[0], expected, atol=1e-4)


def test_tensors_that_are_too_short_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = model({"w": np.arange(600, dtype="f4")})
    made.graph.initializer[0].dims[0] = 601
    path = tmp_path / "model.onnx"
    onnx.save(made, path)
    monkeypatch.setattr(reading, "MAPPED", 0)
    with pytest.raises(rl.LayoutError, match="'w' of 601 float32 takes 2404 bytes; 2400 are given"):
        rl.load(path)
    assert lean(map_for_reading(path)) is not None
