"""Data types: names, equality with NumPy's types, errors, and 4-bit elements in bytes."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relayout.dtypes import DTYPES, DType, dtype, pack, unpack
from relayout.errors import LayoutError

SCALARS = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8_e4m3": ml_dtypes.float8_e4m3fn,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "s64": np.int64,
    "s32": np.int32,
    "s16": np.int16,
    "s8": np.int8,
    "u8": np.uint8,
    "s4": ml_dtypes.int4,
    "u4": ml_dtypes.uint4,
}
BITS = dict(zip(SCALARS, (64, 32, 16, 16, 8, 8, 64, 32, 16, 8, 8, 4, 4), strict=True))


def test_there_are_thirteen_types() -> None:
    assert [t.name for t in DTYPES] == list(SCALARS)


@pytest.mark.parametrize("name", SCALARS)
def test_one_object_for_every_way_to_name_it(name: str) -> None:
    t, scalar = dtype(name), SCALARS[name]
    ways = (
        t,
        name,
        name.upper(),
        f" {name} ",
        scalar,
        np.dtype(scalar),
        np.dtype(scalar).name,
        np.zeros(1, scalar).dtype,
    )
    assert all(dtype(way) is t for way in ways)
    assert t.numpy == np.dtype(scalar)
    assert t.bits == BITS[name]
    assert pickle.loads(pickle.dumps(t)) is t
    assert copy.deepcopy(t) is t
    assert (str(t), repr(t), f"{t:>8}") == (name, f"DType({name!r})", f"{name:>8}")


@pytest.mark.parametrize("name", SCALARS)
def test_ranges_are_those_of_numpy_and_ml_dtypes(name: str) -> None:
    t, scalar = dtype(name), SCALARS[name]
    info = ml_dtypes.finfo(scalar) if t.is_float else ml_dtypes.iinfo(scalar)
    assert (t.min, t.max) == (
        (float if t.is_float else int)(info.min),
        (float if t.is_float else int)(info.max),
    )
    assert t.is_signed == (t.min < 0)


@pytest.mark.parametrize("name", SCALARS)
def test_equality_in_both_directions(name: str) -> None:
    t = dtype(name)
    for other_name, scalar in SCALARS.items():
        same = other_name == name
        other = np.dtype(scalar)
        assert (t == other) is same
        assert (other == t) is same
        assert (t == scalar) is same
        assert (scalar == t) is same
        assert (t == other_name) is same
        assert (other_name == t) is same
        assert (t == dtype(other_name)) is same
        assert (t != other) is not same
    assert hash(t) == hash(name)
    assert {name: 1}[t] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    "other", [None, 3, "float32", "x", [], np.bool_, np.uint16, np.dtype(">f4"), np.dtype("O"), float]
)
def test_inequality_with_anything_else(other: object) -> None:
    assert dtype("f32") != other
    assert other != dtype("f32")


@pytest.mark.parametrize("name", SCALARS)
def test_stands_where_numpy_takes_a_type(name: str) -> None:
    t = dtype(name)
    assert np.dtype(t) == t.numpy  # type: ignore[call-overload]
    assert np.zeros(3, t).dtype == t.numpy  # type: ignore[call-overload]
    assert np.ones(3, np.float32).astype(t).dtype == t  # type: ignore[call-overload]


SYNONYMS = {
    "f64": "double float64 fp64 torch.float64 torch.double numpy.float64 F64",
    "f32": "float32 fp32 single torch.float32 torch.float tf.float32 FLOAT32 <f4 =f4",
    "f16": "float16 fp16 half torch.float16 torch.half F16",
    "bf16": "bfloat16 torch.bfloat16 BF16 ml_dtypes.bfloat16",
    "f8_e4m3": "float8_e4m3fn f8e4m3 F8_E4M3 torch.float8_e4m3fn f8E4M3FN e4m3",
    "f8_e5m2": "float8_e5m2 f8e5m2 F8_E5M2 torch.float8_e5m2 e5m2",
    "s64": "int64 i64 I64 torch.int64 torch.long",
    "s32": "int32 i32 torch.int",
    "s16": "int16 i16 torch.short",
    "s8": "int8 i8 |i1",
    "u8": "uint8 U8 |u1",
    "s4": "int4 i4",
    "u4": "uint4",
}


def test_names_of_other_systems() -> None:
    assert SYNONYMS.keys() == SCALARS.keys()
    for name, words in SYNONYMS.items():
        for word in words.split():
            assert dtype(word) is dtype(name), word


def test_python_and_platform_types_as_numpy_reads_them() -> None:
    assert dtype(float) is dtype("f64")
    assert dtype(np.longlong) is dtype("s64")
    assert dtype(np.intc) is dtype("s32")


def test_a_torch_type_is_read_by_its_text() -> None:
    torch_like = type("dtype", (), {"__module__": "torch", "__str__": lambda self: "torch.bfloat16"})
    assert dtype(torch_like()) is dtype("bf16")


REFUSED = [
    ("flaot32", "did you mean 'float32'"),
    ("uint16", "convert it to a signed type"),
    ("bool", "u8"),
    (bool, "u8"),
    (np.bool_, "u8"),
    ("torch.bool", "u8"),
    ("f8", "f8_e4m3 and f8_e5m2"),
    ("f4", "count bits here"),
    ("i2", "count bits here"),
    ("float", "name the width"),
    ("int", "name the width"),
    ("float8_e4m3", "infinities"),
    (ml_dtypes.float8_e4m3, "infinities"),
    (ml_dtypes.float8_e4m3fnuz, "float8_e4m3fn"),
    (ml_dtypes.int2, "int2"),
    (np.uint16, "uint16"),
    (np.complex64, "complex64"),
    (np.dtype(">f4"), "byteorder"),
    (">i4", "byteorder"),
    ("<f3", "<f3"),
    (np.dtype([("a", "f4")]), "void"),
    (np.dtype("U1"), "str32 is no data type. The"),
    (np.dtype("V4"), "void32 is no data type. The"),
    (np.floating, "floating"),
    (object, "object"),
    (dict, "dict"),
    ("", "''"),
    ("torch.", "torch"),
    (None, "None"),
    (3, "3"),
    ([1], "[1]"),
    (b"f32", "b'f32'"),
    (np.zeros((9, 9)), "ndarray"),
]


@pytest.mark.parametrize(("given", "hint"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_a_refusal_says_why_and_lists_the_names(given: object, hint: str) -> None:
    with pytest.raises(LayoutError) as caught:
        dtype(given)
    assert hint in str(caught.value)
    assert "foreign order" in str(caught.value) or "f64, f32, f16, bf16, f8_e4m3" in str(caught.value)


@example("<01")
@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(LayoutError):
        assert isinstance(dtype(text), DType)


def test_a_type_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="f32"):
        dtype("f32").bits = 3  # type: ignore[misc]


def test_the_module_imports_neither_numpy_nor_ml_dtypes() -> None:
    code = "import sys, relayout.errors; sys.modules.pop('numpy', None); before = set(sys.modules)\n"
    code += "import relayout.dtypes as d; t = d.dtype('bf16'); t == 'bf16', t.nbytes(3), t.max\n"
    code += "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
    code += "print(sorted(new & {'numpy', 'ml_dtypes', 'difflib'}))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


# 4-bit elements in bytes


@pytest.mark.parametrize("name", ["s4", "u4"])
@given(data=st.data())
def test_even_elements_are_low_halves(name: str, data: st.DataObject) -> None:
    t = dtype(name)
    values = data.draw(st.lists(st.integers(int(t.min), int(t.max)), max_size=9))
    packed = pack(np.array(values, np.int64), t)
    nibbles = [v % 16 for v in values] + [0] * (len(values) % 2)
    assert packed.dtype == np.uint8
    assert packed.tolist() == [
        low + 16 * high for low, high in zip(nibbles[0::2], nibbles[1::2], strict=True)
    ]
    assert packed.size == t.nbytes(len(values))
    back = unpack(packed, t, len(values))
    assert back.dtype == t
    assert back.astype(np.int64).tolist() == values
    assert pack(back, t).tolist() == packed.tolist()


def test_the_unused_half_is_not_read() -> None:
    assert unpack(np.array([0x21, 0xF3, 0x77], np.uint8), "u4", 3).tolist() == [1, 2, 3]


def test_pack_takes_any_shape_and_stride() -> None:
    values = np.arange(24, dtype=np.int8).reshape(4, 6)[::-2, ::3] % 16
    assert pack(values, "u4").tolist() == pack(values.ravel(), "u4").tolist()
    assert pack(np.array(5), "u4").tolist() == [5]
    assert pack([], "s4").tolist() == []
    assert unpack(np.arange(20, dtype=np.uint8)[::2], "u4", 4).tolist() == [0, 0, 2, 0]


@pytest.mark.parametrize("name", [n for n, b in BITS.items() if b > 4])
def test_whole_bytes_are_viewed(name: str) -> None:
    t = dtype(name)
    values = np.arange(6).reshape(2, 3).astype(t.numpy)
    packed = pack(values, t)
    assert packed.tobytes() == values.tobytes()
    assert np.array_equal(unpack(packed, t, 6), values.ravel())
    assert np.shares_memory(unpack(packed, t, 5), packed)


def test_pack_and_unpack_refuse_what_does_not_fit() -> None:
    with pytest.raises(LayoutError, match=r"16 does not fit in u4 \(0 to 15\)"):
        pack(np.array([1, 16]), "u4")
    with pytest.raises(LayoutError, match=r"-9 does not fit in s4"):
        pack(np.array([-9], np.int8), "s4")
    with pytest.raises(LayoutError, match="-1 does not fit in u4"):
        pack(np.array([-1]).astype(ml_dtypes.int4).astype(np.int8), "u4")
    with pytest.raises(LayoutError, match="float64"):
        pack(np.array([1.5]), "u4")
    with pytest.raises(LayoutError, match="elements of f32 as float32, got float64"):
        pack(np.array([1.5]), "f32")
    with pytest.raises(LayoutError, match="5 elements of s4 need 3 bytes, but the buffer has 2"):
        unpack(np.zeros(2, np.uint8), "s4", 5)
    with pytest.raises(LayoutError, match="1-D array of uint8"):
        unpack(np.zeros(2, np.int8), "s4", 1)
    with pytest.raises(LayoutError, match="-1 elements"):
        unpack(np.zeros(2, np.uint8), "s4", -1)
