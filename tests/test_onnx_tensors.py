"""Tensors of ONNX files as arrays: every type, every way to keep elements, files beside the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relayout.errors import LayoutError
from relayout.graph.operators.types import BITS, NUMBERS
from relayout.importers.onnx.external import Folder

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from relayout.importers.onnx.reading import read  # noqa: E402
from relayout.importers.onnx.tensors import array_of, dense  # noqa: E402

NOWHERE = Folder(None)
KINDS = [
    number
    for number in NUMBERS
    if hasattr(helper, "tensor_dtype_to_np_dtype") and number in TensorProto.DataType.values()
]


def values_of(number: int, dims: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Elements of a type, all of them different where it has so many."""
    dtype, count = NUMBERS[number], int(np.prod(dims))
    if number == TensorProto.STRING:
        return np.array([f"text {i} é" for i in range(count)], object).reshape(dims)
    if dtype.kind in "biuc":
        return (np.arange(count) - (0 if dtype.kind in "bu" else count // 2)).astype(dtype).reshape(dims)
    low = -1 if dtype.name.startswith("int") or ("float" in dtype.name and "e8m0" not in dtype.name) else 0
    return (np.arange(count) % 4 // 2 + low).astype(np.float32).astype(dtype).reshape(dims)


@pytest.mark.parametrize("number", KINDS)
@pytest.mark.parametrize("dims", [(), (0, 3), (5,), (2, 3)])
@pytest.mark.parametrize("raw", [True, False])
def test_all_types_in_bytes_and_in_fields(number: int, dims: tuple[int, ...], raw: bool) -> None:
    expected = values_of(number, dims)
    if raw or number == TensorProto.STRING:
        tensor = numpy_helper.from_array(expected, "t")
    else:
        tensor = helper.make_tensor("t", number, dims, expected.reshape(-1))
        assert not tensor.HasField("raw_data")
    got = array_of(tensor, NOWHERE)
    assert (got.dtype, got.shape) == (NUMBERS[number], dims)
    assert got.tolist() == expected.tolist() or got.tobytes() == expected.tobytes()


@given(st.data())
def test_packed_elements_are_the_lowest_bits_first(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([n for n, dtype in NUMBERS.items() if dtype in BITS]))
    count = data.draw(st.integers(0, 9))
    bits = BITS[NUMBERS[number]]
    codes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=count, max_size=count))
    whole = sum(code << (i * bits) for i, code in enumerate(codes))
    packed = whole.to_bytes(-(-count * bits // 8), "little")
    got = array_of(TensorProto(data_type=number, dims=[count], raw_data=packed), NOWHERE)
    name = NUMBERS[number].name
    signed = [code - (1 << bits) if code >> (bits - 1) else code for code in codes]
    if name.startswith(("int", "uint")):
        assert got.astype(int).tolist() == (signed if name.startswith("int") else codes)
    else:
        assert got.view(np.uint8).tolist() == codes


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data_type": 0, "dims": [1]}, "data type 0"),
        ({"data_type": 99, "dims": [1]}, "data type 99"),
        ({"data_type": 1, "dims": [-1]}, "dims -1"),
        ({"data_type": 1, "dims": [2**40, 2**40]}, "fit in memory"),
        ({"data_type": 1, "dims": [2**60]}, "it has 0"),
        ({"data_type": 1, "dims": [2**61 - 1], "raw_data": b"1234"}, "4 are given"),
        ({"data_type": 1, "dims": [2], "raw_data": b"1234"}, "takes 8 bytes; 4 are given"),
        ({"data_type": 1, "dims": [1], "raw_data": b"12345678"}, "takes 4 bytes; 8 are given"),
        ({"data_type": 7, "dims": [2], "int64_data": [1]}, "takes 2 numbers in int64_data; it has 1"),
        ({"data_type": 7, "dims": [1], "int32_data": [1]}, "it has 0"),
        ({"data_type": 8, "dims": [1]}, "takes 1 texts"),
        ({"data_type": 8, "dims": [1], "string_data": [b"\xff"]}, "UTF-8"),
        ({"data_type": 1, "dims": [1] * 65, "float_data": [1]}, "dims"),
    ],
)
def test_tensors_that_are_none(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(LayoutError, match=why) as error:
        array_of(TensorProto(name="w", **fields), NOWHERE)
    assert "'w'" in str(error.value)


def test_segments_are_refused() -> None:
    tensor = TensorProto(name="w", data_type=1, dims=[1], float_data=[1])
    tensor.segment.begin = 0
    with pytest.raises(LayoutError, match="segment"):
        array_of(tensor, NOWHERE)


def sparse(values: Any, indices: Any, dims: Any) -> Any:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values, np.float32), "s"),
        numpy_helper.from_array(np.asarray(indices, np.int64), "i"),
        dims,
    )


def test_sparse_tensors_by_number_and_by_place() -> None:
    expected = np.zeros((2, 3), np.float32)
    expected[0, 2], expected[1, 1] = 5, 7
    assert dense(sparse([5, 7], [2, 4], [2, 3]), NOWHERE).tolist() == expected.tolist()
    assert dense(sparse([5, 7], [[0, 2], [1, 1]], [2, 3]), NOWHERE).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("values", "indices", "dims", "why"),
    [
        ([1], [6], [2, 3], "outside"),
        ([1], [-1], [2, 3], "outside"),
        ([1], [[0, 3]], [2, 3], "outside"),
        ([1], [1, 2], [2, 3], "indices"),
        ([1], [[1]], [2, 3], "indices"),
        ([1], [0], [2**20, 2**20], "written out"),
    ],
)
def test_sparse_tensors_that_are_none(values: Any, indices: Any, dims: Any, why: str) -> None:
    with pytest.raises(LayoutError, match=why):
        dense(sparse(values, indices, dims), NOWHERE)


# ---- files beside the model


def external(location: str, **entries: int) -> Any:
    tensor = TensorProto(name="w", data_type=1, dims=[2], data_location=1)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_data_in_files_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "w.bin").write_bytes(np.float32([1, 2, 3, 4]).tobytes())
    folder = Folder(tmp_path)
    got = array_of(external("inner/w.bin", offset=4, length=8), folder)
    assert got.tolist() == [2, 3]
    assert not got.flags.writeable
    again = array_of(external("inner/w.bin", offset=4), folder)
    assert np.shares_memory(got, again)
    assert array_of(external("inner/w.bin", offset=3), folder).flags.aligned


def test_data_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """The file has no blocks but its last one, and only what is read of it becomes memory."""
    size = 5 * 2**30
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(size - 1)
        file.seek(size - 1)
        file.write(b"\x07")
    tensor = external("w.bin", offset=size - 2**32)
    tensor.data_type, tensor.dims[:] = TensorProto.INT8, [2**16, 2**16]
    got = array_of(tensor, Folder(tmp_path))
    assert got.shape == (2**16, 2**16)
    assert got[-1, -1] == 7
    assert not got[0].any()


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "/etc/hostname",
        "inner/../../secret",
        "C:\\secret",
        "..\\secret",
        "\\\\host\\secret",
        "a\0b",
    ],
)
def test_paths_that_lead_outside(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "model").mkdir()
    with pytest.raises(LayoutError, match="outside of the model's folder"):
        array_of(external(location), Folder(tmp_path / "model"))


@pytest.mark.parametrize("place", ["link", "folder/secret"])
def test_links(place: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    model = tmp_path / "model"
    model.mkdir()
    os.symlink(tmp_path / "secret", model / "link")
    os.symlink(tmp_path, model / "folder")
    with pytest.raises(LayoutError, match="symbolic link"):
        array_of(external(place), Folder(model))


def test_links_within_the_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(8))
    os.symlink("weights", tmp_path / "link")
    assert array_of(external("link"), Folder(tmp_path)).nbytes == 8


def test_a_cache_of_links(tmp_path: Path) -> None:
    """As the hub of Hugging Face keeps downloads: a model and its data are links to files named by hashes."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main" / "onnx"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    tensor = external("model.onnx_data")
    out = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    model = helper.make_model(helper.make_graph([], "g", [], [out], [tensor]))
    (blobs / "1f").write_bytes(model.SerializeToString())
    (blobs / "2e").write_bytes(bytes(8))
    for name, blob in {"model.onnx": "1f", "model.onnx_data": "2e"}.items():
        os.symlink(os.path.join("..", "..", "..", "blobs", blob), snapshot / name)
    (made,) = read(snapshot / "model.onnx").constants.values()
    assert made.nbytes == 8
    (snapshot / "model.onnx_data").unlink()
    (tmp_path / "secret").write_bytes(bytes(8))
    os.symlink(tmp_path / "secret", snapshot / "model.onnx_data")
    with pytest.raises(LayoutError, match="link leads outside of the model's folder"):
        read(snapshot / "model.onnx")


def test_files_that_are_missing_short_or_none(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(7))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    folder = Folder(tmp_path)
    cases = {
        "missing": "'missing', which can't be read",
        "short": "'short', which is only 7 bytes",
        "empty": "only 0 bytes",
        "folder": "no regular file",
        "pipe": "no regular file",
        "": "does not say in which",
    }
    for location, why in cases.items():
        with pytest.raises(LayoutError, match=why):
            array_of(external(location), folder)
    (tmp_path / "whole").write_bytes(bytes(8))
    for entries, why in (
        ({"offset": -1}, "must be a number of bytes"),
        ({"offset": 10**30}, "must be a number of bytes"),
        ({"offset": 4}, "only 8 bytes"),
        ({"length": 4}, "takes 8 bytes; 4 are given"),
        ({"length": 10**17}, "only 8 bytes"),
    ):
        with pytest.raises(LayoutError, match=why):
            array_of(external("whole", **entries), folder)
    with pytest.raises(LayoutError, match="came without a folder"):
        array_of(external("whole"), NOWHERE)


def test_float_types_of_files_are_ml_dtypes() -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[2], int32_data=[0x3F80, 0xC000])
    assert array_of(tensor, NOWHERE).tolist() == [1, -2]
    assert array_of(tensor, NOWHERE).dtype == ml_dtypes.bfloat16
