"""Memory descriptors: oneDNN's recorded answers, and what must hold beyond them.

The recorded answers are those of oneDNN 3.13.2, called through its C API
(tests/vectors/onednn_memory_desc.json).
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import Format, Layout, LayoutError, MemoryDesc, Unsupported, views
from strategies import DTYPES, descriptors, element_places, examples, padding_places, shapes, tag_formats

Vectors = Callable[[str], Any]
Case = dict[str, Any]


# --- recorded answers --------------------------------------------------------------------------------------


def described(case: Case) -> MemoryDesc:
    if "tag" in case:
        return MemoryDesc(case["dims"], "f32", case["tag"])
    return MemoryDesc(case["dims"], "f32", strides=case["strides"])


def fields(desc: MemoryDesc) -> Case:
    """The fields of a descriptor under the names of the recording."""
    return {
        "dims": list(desc.dims),
        "padded_dims": list(desc.padded_dims),
        "offset0": desc.offset0,
        "strides": list(desc.strides),
        "inner_blks": [block for _, block in desc.inner_blocks],
        "inner_idxs": [axis for axis, _ in desc.inner_blocks],
        "size": desc.nbytes,
    }


def differing(desc: MemoryDesc, wanted: Case) -> Case:
    return {
        name: (value, wanted[name])
        for name, value in fields(desc).items()
        if name in wanted and value != wanted[name]
    }


def complaints(cases: list[Case], check: Callable[[Case], Any]) -> list[tuple[Case, Any]]:
    """The cases that a check finds something wrong with, with what it found."""
    found = ((case, check(case)) for case in cases)
    return [(case, wrong) for case, wrong in found if wrong]


def test_every_descriptor_by_tag(vectors: Vectors) -> None:
    cases = vectors("onednn_memory_desc")["md_by_tag"]
    assert len(cases) > 1200

    def check(case: Case) -> Any:
        desc = described(case)
        return differing(desc, case) or (desc.tag != case["tag"] and desc.tag)

    assert complaints(cases, check) == []


def test_every_size_by_data_type(vectors: Vectors) -> None:
    def size(case: Case, dtype: str) -> int | None:
        try:
            return MemoryDesc(case["dims"], dtype, case["tag"]).nbytes
        except LayoutError:
            return None

    def check(case: Case) -> Any:
        sizes = {dtype: size(case, dtype) for dtype in ("f32", "s8", "s4")}
        return {t: s for t, s in sizes.items() if s != case[f"size_{t}"]}

    assert complaints(vectors("onednn_memory_desc")["md_by_tag"], check) == []


def test_every_descriptor_by_strides(vectors: Vectors) -> None:
    cases = vectors("onednn_memory_desc")["md_by_strides"]
    assert {case["status"] for case in cases} == {"success", "invalid_arguments"}

    def check(case: Case) -> Any:
        try:
            desc = MemoryDesc(case["dims"], case["dt"], strides=case["strides"])
        except LayoutError as error:
            return case["status"] == "success" and error
        return case["status"] != "success" or (desc.nbytes != case["size"] and desc.nbytes)

    assert complaints(cases, check) == []


def test_every_permutation_of_axes(vectors: Vectors) -> None:
    def check(case: Case) -> Any:
        try:
            turned = described(case).permute_axes(case["perm"])
        except LayoutError as error:
            return case["status"] == "success" and error
        return case["status"] != "success" or differing(turned, case["out"])

    assert complaints(vectors("onednn_memory_desc")["permute_axes"], check) == []


def test_every_reshape(vectors: Vectors) -> None:
    cases = vectors("onednn_memory_desc")["reshape"]
    warned = []

    def check(case: Case) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                reshaped = described(case).reshape(case["new_dims"])
            except LayoutError as error:
                return case["status"] == "success" and error
        warned.extend((case, warning) for warning in caught)
        return (
            case["status"] != "success"
            or differing(reshaped, case["out"])
            or (not caught and moves_elements(case, reshaped))
        )

    def moves_elements(case: Case, reshaped: MemoryDesc) -> bool:
        if not 0 < prod(case["dims"]) <= 50_000:
            return False
        return bool((places(reshaped.layout).ravel() != places(described(case).layout).ravel()).any())

    assert complaints(cases, check) == []
    assert [(case["tag"], case["dims"], case["new_dims"]) for case, _ in warned] == [
        ("aBcd32b", [16, 1, 32, 16], [128, 64])
    ]


def test_the_reshape_that_onednn_gets_wrong() -> None:
    desc = MemoryDesc((16, 1, 32, 16), "f32", "aBcd32b")
    with pytest.warns(
        RuntimeWarning, match="oneDNN does not notice that axis 1, of size 1, is blocked"
    ) as caught:
        wrong = desc.reshape((128, 64))
    assert caught[0].filename == __file__
    assert (wrong.strides, wrong.inner_blocks) == ((2048, 32), ((1, 32),))
    right = views.reshape(desc.layout, (128, 64))
    assert (places(right).ravel() == places(desc.layout).ravel()).all()
    assert (places(right) != places(wrong.layout)).any()


def places(layout: Layout) -> np.ndarray[Any, Any]:
    return layout.offsets(np.moveaxis(np.indices(layout.dims), 0, -1))


def test_every_part_of_a_tensor(vectors: Vectors) -> None:
    """Where oneDNN answers, so do we; where it does not, the answer is right or refused for a reason."""
    cases = vectors("onednn_memory_desc")["submemory"]
    seen: Counter[tuple[str, bool]] = Counter()

    def check(case: Case) -> Any:
        whole = described(case)
        try:
            part = whole.submemory(case["sub_dims"], case["offsets"])
        except LayoutError as error:
            seen[case["status"], False] += 1
            if case["status"] == "unimplemented" and really_uneven(whole, case):
                return not ("axis" in str(error) and "blocks" in str(error)) and error
            return case["status"] != "invalid_arguments" and error
        seen[case["status"], True] += 1
        if case["status"] == "success":
            return differing(part, case["out"])
        return case["status"] == "invalid_arguments" or not is_the_part(part, whole, case)

    assert complaints(cases, check) == []
    assert seen["unimplemented", True] > 200
    assert seen["unimplemented", False] < 40


def corner_indices(dims: list[int], most: int = 3000) -> Iterator[tuple[int, ...]]:
    """All indices of small sizes; of larger ones, those of each axis with the others at either end."""
    if prod(dims) <= most:
        yield from np.ndindex(*dims)
        return
    for axis, size in enumerate(dims):
        for others in (0, -1):
            for i in range(size):
                yield tuple(i if a == axis else others % d for a, d in enumerate(dims))


def is_the_part(part: MemoryDesc, whole: MemoryDesc, case: Case) -> bool:
    """Whether every element of the part lies where the parent has it, and all its padding is the parent's."""
    if part.dims != tuple(case["sub_dims"]):
        return False
    indices = np.array(list(corner_indices(case["sub_dims"]))).reshape(-1, len(part.dims))
    if not (part.layout.offsets(indices) == whole.layout.offsets(indices + np.array(case["offsets"]))).all():
        return False
    room = zip(part.padded_dims, whole.padded_dims, part.dims, case["offsets"], whole.dims, strict=True)
    return all(
        mine <= theirs - at if at + size == full else mine == size for mine, theirs, size, at, full in room
    )


def really_uneven(whole: MemoryDesc, case: Case) -> bool:
    """Whether on some axis the offsets of the part, counted one by one, have no digits."""
    from relayout.layout.canonical import fit

    for axis, (size, at) in enumerate(zip(case["sub_dims"], case["offsets"], strict=True)):
        line = np.zeros((size, whole.rank), dtype=int)
        line[:, axis] = np.arange(at, at + size)
        if size and fit(whole.layout.offsets(line).tolist()) is None:
            return True
    return False


# --- what must hold beyond the recording -------------------------------------------------------------------


@examples(150)
@given(descriptors())
def test_a_tag_says_the_whole_layout(desc: MemoryDesc) -> None:
    if desc.tag is not None:
        dense = MemoryDesc(desc.dims, desc.dtype, desc.tag)
        assert dense.layout.moved(desc.offset0).same_bytes(desc.layout)
        if desc.offset0 == 0:
            assert dense == desc
            assert hash(dense) == hash(desc)


@examples(100)
@given(st.data())
def test_dense_strides_have_a_tag(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    order = data.draw(st.permutations("abcde"[: len(dims)]))
    desc = MemoryDesc(dims, "f32", "".join(order))
    by_strides = MemoryDesc(dims, "f32", strides=desc.strides)
    assert by_strides == desc
    assert by_strides.tag is not None
    assert MemoryDesc(dims, "f32", by_strides.tag) == desc


@examples(150)
@given(descriptors())
def test_required_bytes_hold_every_element(desc: MemoryDesc) -> None:
    low, high = desc.layout.bounds()
    assert low >= 0
    assert desc.required_bytes == (high + 1) * desc.dtype.bits // 8
    if desc.format is not None and desc.offset0 == 0 and 1 not in desc.dims:
        assert desc.nbytes == desc.required_bytes == desc.layout.span * desc.dtype.bits // 8


@examples(100)
@given(descriptors(), st.data())
def test_permute_axes_is_undone_by_the_inverse(desc: MemoryDesc, data: st.DataObject) -> None:
    perm = data.draw(st.permutations(range(desc.rank)))
    turned = desc.permute_axes(perm)
    assert all(turned.dims[place] == desc.dims[axis] for axis, place in enumerate(perm))
    assert (element_places(turned.layout) == element_places(desc.layout).transpose(np.argsort(perm))).all()
    assert turned.permute_axes(sorted(range(desc.rank), key=perm.__getitem__)) == desc


@examples(150)
@given(descriptors(), st.data())
def test_reshape_keeps_the_elements_in_row_major_order(desc: MemoryDesc, data: st.DataObject) -> None:
    dims = data.draw(
        st.sampled_from(
            [(desc.layout.size,), (1, *desc.dims), (*desc.dims, 1), tuple(d for d in desc.dims if d != 1)]
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            reshaped = desc.reshape(dims)
        except (LayoutError, RuntimeWarning):
            return
    assert (element_places(reshaped.layout).ravel() == element_places(desc.layout).ravel()).all()
    assert padding_places(reshaped.layout) == padding_places(desc.layout)


@examples(100)
@given(descriptors())
def test_descriptors_pickle_copy_and_hash(desc: MemoryDesc) -> None:
    for twin in (pickle.loads(pickle.dumps(desc)), copy.copy(desc), copy.deepcopy(desc)):
        assert twin == desc
        assert hash(twin) == hash(desc)
        assert str(twin) == str(desc)


@examples(100)
@given(descriptors(), descriptors())
def test_equal_descriptors_hash_alike_and_have_the_same_bytes(one: MemoryDesc, two: MemoryDesc) -> None:
    if one == two:
        assert hash(one) == hash(two)
        assert one.layout.same_bytes(two.layout)


@examples(60)
@given(st.data())
def test_mkldnns_view_computes_the_same_offsets(data: st.DataObject) -> None:
    dims = data.draw(shapes())
    rank = len(dims)
    axes = data.draw(st.lists(st.integers(0, rank - 1), max_size=2, unique=True))
    names = "abcde"[:rank]
    format = Format.blocked(
        names,
        data.draw(st.permutations(names)),
        [(names[a], data.draw(st.sampled_from((4, 8)))) for a in axes],
    )
    desc = MemoryDesc(dims, "f32", format)
    view = desc.mkldnn()
    assert view.padding_dims == desc.padded_dims
    for index in np.ndindex(*dims):
        place = view.offset_padding
        for i, block, between, within in zip(
            index, view.block_dims, view.strides_between, view.strides_within, strict=True
        ):
            place += i // block * between + i % block * within
        assert place == desc.layout.offset(*index)


# --- worked examples ---------------------------------------------------------------------------------------


def test_mkldnns_worked_example_of_17_channels() -> None:
    n, c, h, w = 2, 17, 5, 4
    view = MemoryDesc((n, c, h, w), "f32", "nChw8c").mkldnn()
    assert view.block_dims == (1, 8, 1, 1)
    assert view.padding_dims == (n, 24, h, w)
    assert view.strides_between == (24 * h * w, h * w * 8, w * 8, 8)
    assert view.strides_within == (1, 1, 1, 1)
    assert view.offset_padding_to_data == (0, 0, 0, 0)
    assert view.offset_padding == 0
    weights = MemoryDesc((32, 16, 3, 3), "f32", "OIhw8i16o").mkldnn()
    assert (weights.block_dims, weights.strides_within) == ((16, 8, 1, 1), (1, 16, 1, 1))
    with pytest.raises(Unsupported, match=r"axis 1 has two levels of blocks; MKL-DNN 0\.95 describes one"):
        MemoryDesc((32, 16, 3, 3), "f32", "OIhw4i16o4i").mkldnn()


def test_equality_is_onednns() -> None:
    def by(strides: tuple[int, ...]) -> MemoryDesc:
        return MemoryDesc((2, 1, 3), "f32", strides=strides)

    assert by((3, 3, 1)) == by((3, 77, 1))  # strides of axes of size 1 are ignored
    assert hash(by((3, 3, 1))) == hash(by((3, 77, 1)))
    assert by((3, 3, 1)) != by((4, 3, 1))
    assert MemoryDesc((2, 8), "f32", "aB8b") != MemoryDesc(
        (2, 8), "f32", "ab"
    )  # though the bytes are the same
    assert MemoryDesc((2, 8), "f32", "aB8b").layout.same_bytes(Layout((2, 8), "ab"))
    assert MemoryDesc((2, 8), "f32", "ab") != MemoryDesc((2, 8), "s8", "ab")
    assert MemoryDesc((2, 1), "f32", "aB8b") != MemoryDesc((2, 1), "f32", strides=(8, 8))
    assert MemoryDesc((2, 8), "f32", "nc") == MemoryDesc((2, 8), "f32", "ab")
    assert MemoryDesc((2, 8), "f32", "ab") != "f32:ab:2x8"


def test_parts_share_the_parents_memory() -> None:
    desc = MemoryDesc((1, 64, 2, 2), "f32", "nChw16c")
    part = desc.submemory((1, 4, 2, 2), (0, 36, 0, 0))
    assert (part.offset0, part.strides, part.inner_blocks) == (2 * 64 + 4, (256, 1, 32, 16), ())
    assert part.required_bytes == (2 * 64 + 3 * 16 + 8) * 4
    assert part.tag is None
    assert part.format_kind == "blocked"


def test_layouts_that_onednn_cannot_hold() -> None:
    desc = MemoryDesc(
        (32, 4), "f32", Layout((32, 4), "o//32, i, o%2, o//2%16".replace("o", "a").replace("i", "b"))
    )
    assert desc.format_kind == "digits"
    assert desc.strides == (128, 32)
    assert desc.nbytes == desc.required_bytes == 32 * 4 * 4
    with pytest.raises(
        Unsupported, match=r"has digits that are no inner blocks of oneDNN; see Layout\.digits"
    ):
        desc.inner_blocks  # noqa: B018
    with pytest.raises(
        Unsupported, match=r"is none of oneDNN's blocked layouts; relayout\.views\.reshape works on any"
    ):
        desc.reshape((128,))
    assert desc == MemoryDesc((32, 4), "f32", desc.layout)
    assert desc.permute_axes((1, 0)).permute_axes((1, 0)) == desc


def test_twelve_axes_and_no_more() -> None:
    assert MemoryDesc((1,) * 11 + (5,), "f32", "abcdefghijkl").nbytes == 20
    with pytest.raises(LayoutError, match="are 13 axes; memory descriptors have at most 12"):
        MemoryDesc((1,) * 13, "f32", "abcdefghijklm")
    with pytest.raises(LayoutError, match="are 13 axes"):
        MemoryDesc((1,) * 12, "f32", "abcdefghijkl").reshape((1,) * 13)


def test_beyond_two_to_the_31() -> None:
    desc = MemoryDesc((2**20, 3001, 2**10), "f32", "aBc16b")
    assert desc.nbytes == 2**20 * 3008 * 2**10 * 4
    assert (
        desc.submemory((1, 9, 2**10), (2**20 - 1, 2992, 0)).offset0
        == (2**20 - 1) * 3008 * 2**10 + 187 * 16 * 2**10
    )
    assert desc.reshape((2**10, 2**10, 3001, 2**10)).strides == (
        2**10 * 3008 * 2**10,
        3008 * 2**10,
        16 * 2**10,
        16,
    )
    assert MemoryDesc(desc.dims, "s4", "aBc16b").nbytes == desc.nbytes // 8


@pytest.mark.parametrize(
    ("dtype", "dims", "nbytes"), [("s4", (3,), 2), ("u4", (2, 4), 4), ("s4", (0, 4), 0), ("u4", (1, 1), 1)]
)
def test_half_bytes(dtype: str, dims: tuple[int, ...], nbytes: int) -> None:
    desc = MemoryDesc(dims, dtype, "ab"[: len(dims)])
    assert desc.nbytes == desc.required_bytes == nbytes


def test_rows_of_half_bytes_start_on_bytes() -> None:
    message = (
        "axis 0 of ab:2x3 has stride 3; a row of s4 elements must start on a whole byte, so every stride "
    )
    with pytest.raises(LayoutError, match=message):
        MemoryDesc((2, 3), "s4", "ab")
    assert MemoryDesc((2, 3), "s4", strides=(4, 1)).required_bytes == 4
    assert MemoryDesc((2, 3), "s4", Layout((2, 3), "ab")).nbytes == 3  # packed across rows, if one insists


def test_any_and_undef() -> None:
    for desc in (MemoryDesc((2, 3), "f32", rl.any), MemoryDesc((2, 3), "f32", "any")):
        assert (desc.format_kind, desc.tag, desc.nbytes, desc.offset0, desc.padded_dims) == (
            "any",
            "any",
            0,
            0,
            (2, 3),
        )
        assert (desc.format, desc.name("openvino"), str(desc)) == (None, None, "f32:any:2x3")
        assert desc.reshape((3, 2)) == MemoryDesc((3, 2), "f32", rl.any)
        assert desc.permute_axes((1, 0)) == MemoryDesc((3, 2), "f32", rl.any)
        assert pickle.loads(pickle.dumps(desc)) == desc
        for name in ("strides", "inner_blocks"):
            with pytest.raises(LayoutError, match=r"f32:any:2x3 has no .* before its format is decided"):
                getattr(desc, name)
        with pytest.raises(LayoutError, match="f32:any:2x3 has no part before its format is decided"):
            desc.submemory((1, 1), (0, 0))
        with pytest.raises(LayoutError, match="f32:any:2x3 has no strides before"):
            desc.mkldnn()
    nothing = MemoryDesc((), "f32", rl.undef)
    assert (nothing.format_kind, nothing.tag, nothing.nbytes) == ("undef", None, 0)
    assert nothing != MemoryDesc((), "f32", rl.any)
    assert (repr(rl.any), repr(rl.undef)) == ("relayout.any", "relayout.undef")
    assert copy.deepcopy(rl.any) is rl.any
    assert pickle.loads(pickle.dumps(rl.undef)) is rl.undef


def test_formats_keep_what_their_axes_mean() -> None:
    assert MemoryDesc((4, 3, 2, 2), "f32", Format("nchw")).name("openvino") == "bfyx"
    assert MemoryDesc((4, 3, 2, 2), "f32", Format("oihw")).name("openvino") == "oiyx"
    assert MemoryDesc((4, 3, 2, 2), "f32", "oihw").name("openvino") == "oiyx"


@pytest.mark.parametrize("dtype", [*DTYPES, "s4", "u4"])
def test_every_data_type(dtype: str) -> None:
    desc = MemoryDesc((2, 4), dtype, "ab")
    assert desc.dtype == dtype
    assert desc.nbytes == 8 * rl.dtype(dtype).bits // 8
    assert repr(desc) == f"MemoryDesc('{dtype}:ab:2x4')"


def test_numpys_types_and_integers_are_understood() -> None:
    desc = MemoryDesc(np.array([2, 3]), np.float32, "ab")
    assert desc == MemoryDesc((2, 3), "f32", "ab")
    assert all(type(size) is int for size in (*desc.dims, *desc.strides))
    assert MemoryDesc([np.int64(2), 3], np.dtype("int8"), strides=np.array([3, 1])).nbytes == 6


def test_a_descriptor_is_frozen() -> None:
    desc = MemoryDesc((2, 3), "f32", "ab")
    with pytest.raises(AttributeError, match="a MemoryDesc is frozen; dims can't be set"):
        desc.dims = (3, 2)  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del desc.layout


# --- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "strides", "message"),
    [
        (((2, 3), "f32"), None, "needs exactly one of format and strides, got neither"),
        (
            ((2, 3), "f32", "ab"),
            (3, 1),
            r"needs exactly one of format and strides, got format 'ab' and strides \(3, 1\)",
        ),
        (((2, 3), "f32", "ab"), np.array([3, 1]), r"got format 'ab' and strides array\(\[3, 1\]\)"),
        (((2, 3), "f32", [3, 1]), None, r"got list \[3, 1\]; strides are given by name: strides=\.\.\."),
        (((2, 3), "f32", "abc"), None, "format abc has 3 axes, but 2 dims were given"),
        (((2, 3), "f32", Layout((3, 2), "ab")), None, "the layout ab:3x2 has dims 3x2, not 2x3"),
        (((2, -3), "f32", "ab"), None, "dims 2x-3: axis 1 has size -3; a size can't be negative"),
        (((2.0, 3), "f32", "ab"), None, r"dims must be whole numbers, one an axis, got \(2.0, 3\)"),
        ((6, "f32", "a"), None, "dims must be whole numbers, one an axis, got 6"),
        (((2**40, 2**40), "f32", "ab"), None, r"are more than 2\*\*63 - 1 elements"),
        (((2, 3), "f33", "ab"), None, "f33"),
        (
            ((2, 3), "f32", "undef"),
            None,
            r"'undef' says that there is no format yet, .* MemoryDesc takes relayout\.undef",
        ),
        (
            ((2, 3), "f32"),
            (2, 1),
            "strides 2x1 of dims 2x3: axis 0 steps 2 elements, but axis 1 within it covers 3",
        ),
        (
            ((2, 3, 4), "f32"),
            (12, 5, 1),
            "axis 0 steps 12 elements, but axis 1 within it covers 15; elements would overlap",
        ),
        (((2, 3), "f32"), (-3, 1), "stride -3 of axis 0 is negative; memory descriptors only count upwards"),
        (((2, 3), "f32"), (3,), r"1 stride \(3,\) for 2 dims 2x3"),
        (((2, 3), "f32"), (3.0, 1), r"strides must be whole numbers, one an axis, got \(3.0, 1\)"),
        (
            ((2, 3), "f32"),
            (2**63, 1),
            r"strides: the number of axis 0 takes 64 bits; the limit is 2\*\*63 - 1",
        ),
    ],
)
def test_what_makes_no_descriptor(arguments: tuple[Any, ...], strides: Any, message: str) -> None:
    MemoryDesc((2, 3), "f32", "ab")  # what was described before must not decide
    with pytest.raises(LayoutError, match=message):
        MemoryDesc(*arguments, strides=strides)


@pytest.mark.parametrize("name", ["any", "undef"])
def test_any_and_undef_are_no_formats(name: str) -> None:
    with pytest.raises(
        LayoutError, match=rf"'{name}' says that there is no format yet, .* MemoryDesc takes relayout\.{name}"
    ):
        Format(name)
    with pytest.raises(LayoutError, match="no format yet"):
        Layout((2, 3), name)


D = MemoryDesc((2, 17, 5, 4), "f32", "nChw8c")


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (
            lambda: D.submemory((2, 17), (0, 0)),
            "a part of nChw8c:2x17x5x4 needs 4 dims and offsets, got 2 and 2",
        ),
        (lambda: D.submemory(D.dims, (1, 0, 0, 0)), r"axis 0: the part 1\.\.3 does not lie within 0\.\.2"),
        (lambda: D.submemory(D.dims, (0, 0, 0, "x")), "offsets must be whole numbers"),
        (
            lambda: D.submemory((2, 14, 5, 4), (0, 3, 0, 0)),
            r"elements 3\.\.16 \(step 1\) of axis 1 of .* blocks of 8 are cut at uneven",
        ),
        (
            lambda: D.permute_axes((0, 1, 2)),
            r"perm \(0, 1, 2\) is no permutation of the axes 0\.\.3 of f32:nChw8c",
        ),
        (lambda: D.permute_axes((0, 1, 2, 2)), "is no permutation of the axes"),
        (lambda: D.permute_axes(3), "perm must be whole numbers, one an axis, got 3"),  # type: ignore[arg-type]
        (lambda: D.reshape((2, 17, 5)), "has 680 elements; it can't be reshaped to 2x17x5, which are 170"),
        (
            lambda: D.reshape((34, 5, 4)),
            "f32:nChw8c:2x17x5x4 can't be reshaped to 34x5x4: axes 0 and 1 would be regrouped, but stride",
        ),
        (lambda: D.reshape((2, 17, -1)), "axis 2 has size -1; a size can't be negative"),
        (
            lambda: MemoryDesc((4, 6), "f32", "aB2b").reshape((4, 2, 3)),
            "axis 1 is blocked and would be regrouped",
        ),
        (
            lambda: MemoryDesc((4, 1), "f32", "aB2b").reshape((4,)),
            "axis 1 of size 1 is padded to 2 and can't disappear",
        ),
        (
            lambda: MemoryDesc((4, 6), "f32", strides=(8, 1)).reshape((24,)),
            "stride 8 is not 6 x 1, so they are not dense and in sequence",
        ),
        (
            lambda: MemoryDesc((), "f32", rl.undef).reshape((1,)),
            "can't be reshaped to 1: there are no axes on one side",
        ),
        (
            lambda: MemoryDesc((2,), "f32", Layout((2,), strides=(-1,))).required_bytes,
            "reaches 1 element in front of its buffer",
        ),
    ],
)
def test_what_no_operation_does(operation: Callable[[], Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        operation()


@examples(40)
@given(st.data())
def test_every_format_of_tags_gives_a_blocked_descriptor(data: st.DataObject) -> None:
    dims = data.draw(shapes(zeros=True))
    desc = MemoryDesc(dims, "f32", data.draw(tag_formats(len(dims))))
    assert desc.format_kind == "blocked"
    assert desc.padded_dims == desc.layout.padded_dims
    assert (desc.nbytes == 0) == (0 in dims)


@pytest.mark.parametrize(("dims", "tag", "new"), [((2, 32), "aB32b", (2,)), ((2, 32, 3), "aBc32b", (2, 3))])
def test_reshape_refuses_to_drop_a_blocked_axis(dims, tag, new):
    """A part of one channel of a block: oneDNN would hand the block to whichever axis is next."""
    whole = MemoryDesc(dims, "f32", tag)
    part = whole.submemory((dims[0], 1, *dims[2:]), (0,) * len(dims))
    with pytest.raises(LayoutError, match=r"axis 1, which would disappear, is blocked by 32"):
        part.reshape(new)
    assert views.reshape(part.layout, new).dims == new


def test_truth_values_are_no_sizes():
    with pytest.raises(rl.LayoutError, match="whole numbers"):
        rl.MemoryDesc((True, 3), "f32", "ab")


@pytest.mark.parametrize(
    ("strides", "text"),
    [
        ((60, 20, 5, 1), "f32:abcd:2x3x4x5"),
        ((60, 1, 15, 3), "f32:acdb:2x3x4x5"),
        ((64, 1, 15, 3), "f32:2x3x4x5 strides 64x1x15x3"),
        ((0, 20, 5, 1), "f32:2x3x4x5 strides 0x20x5x1"),
    ],
)
def test_strides_of_a_dense_order_are_named(strides, text):
    desc = MemoryDesc((2, 3, 4, 5), "f32", strides=strides)
    assert str(desc) == text
    assert desc.strides == strides
    assert MemoryDesc(text) == desc
