"""What axes mean: one rule for logical orders, and conversions that keep every meaning."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

import relayout as rl
from covering import share
from relayout import Format, Layout, LayoutError, MemoryDesc
from relayout.layout.roles import correspondence, domain_order
from relayout.notation import dialect, dialects
from relayout.reorder.axes import asked_for

# Texts that state an order of index: readings, numbered axes, and shapes that are written out.
STATED = ("@nhwc", "@ohwi", "R4", "ChunkedMemoryLayout", "nhwc-", "n11c-", "nhw-", "dtypes.image", "->")
SIZES = {"n": 2, "c": 5, "h": 3, "w": 4, "d": 2, "g": 2, "o": 6, "i": 5, "t": 3, "l": 1, "dir": 2, "gate": 4}
DATA = {"o": "n", "i": "c"}


@lru_cache(maxsize=1)
def named_formats() -> dict[tuple[object, ...], tuple[str, Format]]:
    """Every format that a dialect lists, once for each order of digits and roles."""
    found: dict[tuple[object, ...], tuple[str, Format]] = {}
    for name in dialects():
        for text in dialect(name).names():
            try:
                format = Format(text, dialect=name)
                if format.rank is not None:
                    format = format.resolve(format.rank, "f32")
            except LayoutError:
                continue
            if format.rank is not None:
                found.setdefault((format, format.roles), (f"{name}:{text}", format))
    return found


def sizes_of(roles: tuple[str, ...] | None, rank: int) -> tuple[int, ...]:
    return tuple(SIZES.get(role, 2 + k) for k, role in enumerate(roles or "?" * rank))


def test_names_of_letters_are_indexed_in_the_order_of_their_domain() -> None:
    seen = 0
    for name in dialects():
        for text in dialect(name).names():
            try:
                roles = Format(text, dialect=name).roles
            except LayoutError:
                continue
            if roles is not None and not any(mark in text for mark in STATED):
                assert roles == domain_order(roles), f"{name}:{text} has the logical order {roles}"
                seen += 1
    assert seen > 400


@pytest.mark.parametrize(
    ("one", "two", "index"),
    [
        ("NHWC4", "NHWC8", (0, 3, 1, 2)),
        ("OHWIo4", "Ohwi4o", (5, 3, 1, 2)),
        ("lstm_weights_dio", "ldio", (0, 1, 3, 2)),
    ],
)
def test_names_of_two_systems_are_indexed_alike(one: str, two: str, index: tuple[int, ...]) -> None:
    dims = tuple(i + 1 for i in index)
    assert Format(one).roles == Format(two).roles
    offsets = [Layout(dims, text).offset(*index) for text in (one, two)]
    assert offsets[0] == offsets[1] or one == "NHWC4"  # rounded up to 4 and to 8


def test_every_pair_of_named_formats_keeps_meaning_or_refuses() -> None:
    """Element (n, c, h, w) = (1, 4, 2, 3) stays that element, in whatever order either side counts.

    Of a third of all pairs, others each time.
    """
    chosen = random.Random(7)
    refused = kept = 0
    for (_, src), (name, dst) in share(
        [*product(named_formats().values(), repeat=2)], random.randrange(3), 3
    ):
        if src.rank != dst.rank or not src.rank:
            continue
        dims = sizes_of(src.roles, src.rank)
        source = MemoryDesc._make(dims, rl.dtype("f32"), Layout(dims, src))
        known = [
            {DATA.get(r, r) if "g" not in roles and "l" not in roles else r: k for k, r in enumerate(roles)}
            for roles in (src.roles or (), dst.roles or ())
        ]
        named = src.roles is not None and dst.roles is not None and len(src.roles) > 1
        matrices = [set(roles or ()) == {"row", "col"} for roles in (src.roles, dst.roles)]
        generic = any(matrices) and not all(matrices)
        if named and src.roles != dst.roles and not generic and set(known[0]) != set(known[1]):
            with pytest.raises(LayoutError, match="mean different things"):
                asked_for(source, dst, source.dtype)
            refused += 1
            continue
        made = asked_for(source, dst, source.dtype)
        assert made.dims == dims
        assert made.layout.roles == (src.roles or dst.roles), name
        places = [known[0][role] for role in known[1]] if named and not generic else range(src.rank)
        theirs = Layout([dims[k] for k in places], dst)
        for _ in range(2):
            index = [chosen.randrange(n) for n in dims]
            assert made.layout.offset(*index) == theirs.offset(*(index[k] for k in places)), name
        kept += 1
    assert kept > 40_000 / 3
    assert refused > 1000 / 3


ORDERS = ["nchw", "nhwc", "NHWC4", "NHWC4@nhwc", "nChw4c", "R4CroutonLayout", "nhwc-8h8w32c", "channels_last"]


@pytest.mark.parametrize(("one", "two"), list(product(ORDERS, repeat=2)))
def test_data_goes_from_role_to_role(one: str, two: str) -> None:
    roles = Format(one).roles
    assert roles is not None
    x = np.arange(120).reshape(sizes_of(roles, 4)).astype(np.float32)
    source = rl.tensor(x, one)
    made = rl.reorder(source, two)
    assert made.layout.roles == roles
    np.testing.assert_array_equal(made.numpy(), x)
    theirs = Format(two).roles
    assert theirs is not None
    y = x.transpose([roles.index(role) for role in theirs])
    assert bytes(made.buffer) == bytes(rl.tensor(y, two).buffer)


@pytest.mark.parametrize(
    ("one", "two"), [("oihw", "OHWIo4"), ("oihw", "OHWIo4@ohwi"), ("OHWIo8i2@ohwi", "oihw")]
)
def test_weights_go_from_role_to_role(one: str, two: str) -> None:
    roles, theirs = Format(one).roles, Format(two).roles
    assert roles is not None
    assert theirs is not None
    w = np.arange(6 * 5 * 3 * 4).reshape(sizes_of(roles, 4)).astype(np.float32)
    packed = rl.reorder(rl.tensor(w, one), two)
    np.testing.assert_array_equal(packed.numpy(), w)
    given = rl.tensor(w.transpose([roles.index(role) for role in theirs]), two)
    assert bytes(packed.buffer) == bytes(given.buffer)


def test_a_descriptor_has_its_own_order() -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 5, 3, 4)
    dst = MemoryDesc((2, 3, 4, 5), "f32", "NHWC4@nhwc")
    made = rl.reorder(rl.tensor(x, "nchw"), dst)
    assert made.desc is dst
    np.testing.assert_array_equal(made.numpy(), x.transpose(0, 2, 3, 1))
    plan = rl.Reorder(rl.tensor(x, "nchw").desc, dst, src_scale=(np.arange(5.0), 1))
    out = rl.tensor(np.zeros(dst.dims, np.float32), dst)
    plan(rl.tensor(x, "nchw"), out)
    np.testing.assert_array_equal(out.numpy(), (x * np.arange(5.0).reshape(5, 1, 1)).transpose(0, 2, 3, 1))
    back = rl.reorder(out, "nchw")
    assert back.dims == (2, 3, 4, 5)
    assert back.layout.roles == ("n", "h", "w", "c")


def test_sizes_are_compared_by_role() -> None:
    src = MemoryDesc((2, 3, 4, 5), "f32", "nchw")
    with pytest.raises(LayoutError, match=r"axis c has 3 .* and 5 .* axes='position'"):
        rl.Reorder(src, MemoryDesc((2, 3, 4, 5), "f32", "NHWC4@nhwc"))
    with pytest.raises(LayoutError, match="same dims"):
        rl.Reorder(src, MemoryDesc((2, 3, 4, 6), "f32", "nchw"))


def test_position_can_be_meant() -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    made = rl.reorder(rl.tensor(x, "nchw"), "NHWC4@nhwc", axes="position")
    assert bytes(made.buffer) == bytes(rl.tensor(x, "NHWC4@nhwc").buffer)
    with pytest.raises(LayoutError, match="'meaning' or 'position'"):
        rl.reorder(x, "nhwc", axes="role")


def test_another_meaning_is_refused_with_both_readings() -> None:
    x = rl.tensor(np.zeros((2, 3, 4), np.float32), "tnc")
    with pytest.raises(LayoutError, match=r"t, n, c .* n, c, w: .* t as n, n as c, c as w"):
        x.reorder("nwc")
    with pytest.raises(LayoutError, match="g as n, o as c, i as d"):
        rl.tensor(np.zeros((1, 2, 3, 4, 5), np.float32), "goihw").reorder("nCdhw8c")
    assert x.reorder("nwc", axes="position").dims == (2, 3, 4)


def test_plans_of_equal_descriptors_that_mean_something_else_are_kept_apart() -> None:
    x = np.arange(81, dtype=np.float32).reshape(3, 3, 3, 3)
    by_role = rl.reorder(rl.tensor(x, "nchw"), "NHWC4@nhwc")
    by_position = rl.reorder(rl.tensor(x, "abcd"), "NHWC4@nhwc")
    assert bytes(by_role.buffer) == bytes(rl.tensor(x.transpose(0, 2, 3, 1), "NHWC4@nhwc").buffer)
    assert bytes(by_position.buffer) == bytes(rl.tensor(x, "NHWC4@nhwc").buffer)


def test_weights_take_formats_of_data_and_stay_weights() -> None:
    w = rl.tensor(np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2), "oihw")
    last = w.reorder("channels_last")
    assert last.layout.roles == ("o", "i", "h", "w")
    assert last.desc == MemoryDesc(w.dims, "f32", "channels_last")
    assert str(last.desc) == "f32:ohwi:2x3x2x2"


def test_letters_take_the_meaning_of_the_other_side() -> None:
    x = rl.tensor(np.zeros((2, 3, 4, 5), np.float32))
    assert x.layout.roles is None
    assert x.reorder("nChw8c").layout.roles == ("n", "c", "h", "w")
    assert x.reorder("nchw").reorder("aBcd8b").layout.roles == ("n", "c", "h", "w")


def test_views_keep_the_meaning_of_their_axes() -> None:
    x = rl.tensor(np.arange(160, dtype=np.float32).reshape(2, 4, 4, 5), "nChw4c")
    assert x.permute(0, 2, 3, 1).layout.roles == ("n", "h", "w", "c")
    assert x[1].layout.roles == ("c", "h", "w")
    assert x[:, ::2, 1:3].layout.roles == ("n", "c", "h", "w")
    assert x.submemory((1, 3, 2, 2), (0, 0, 1, 1)).layout.roles == ("n", "c", "h", "w")
    for unknown in (x[None], x.reshape(8, 4, 5), x.merge(2, 3), x.split(3, 5, 1)):
        assert unknown.layout.roles is None
    turned = x.permute(0, 2, 3, 1).reorder("nchw")
    np.testing.assert_array_equal(turned.numpy(), x.numpy().transpose(0, 2, 3, 1))
    assert bytes(turned.buffer) == np.ascontiguousarray(x.numpy()).tobytes()


@pytest.mark.parametrize("other", [("n", "c"), ("m", "k"), ("c", "n"), ("row", "scale")])
@pytest.mark.parametrize("matrix", [("row", "col"), ("col", "row")])
def test_rows_and_columns_take_any_two_axes_by_position(
    matrix: tuple[str, str], other: tuple[str, str]
) -> None:
    assert correspondence(matrix, other) is None
    assert correspondence(other, matrix) is None


def test_rows_go_to_rows_in_either_order() -> None:
    """Whichever side is indexed (col, row), and whether a format or a descriptor is asked for."""
    x = np.arange(9.0).reshape(3, 3)
    s = rl.tensor(x, "CUBLASLT_ORDER_ROW")
    t = s.transpose()
    assert t.layout.roles == ("col", "row")
    row = MemoryDesc((3, 3), "f64", "CUBLASLT_ORDER_ROW")
    np.testing.assert_array_equal(rl.reorder(t, row).numpy(), x)
    np.testing.assert_array_equal(rl.reorder(s, t.desc).numpy(), x.T)
    np.testing.assert_array_equal(rl.reorder(t, "CUBLASLT_ORDER_COL").numpy(), x.T)
    assert bytes(rl.reorder(t, "CUBLASLT_ORDER_ROW").buffer) == bytes(s.buffer)
    np.testing.assert_array_equal(rl.reorder(t, row, axes="position").numpy(), x.T)


def test_matrices_have_rows_and_columns_whatever_they_mean() -> None:
    with pytest.raises(LayoutError, match=r"n, c .* k, cols"):
        correspondence(("n", "c"), ("k", "cols"))


def test_files_are_converted_by_meaning(tmp_path) -> None:
    x = np.arange(120, dtype=np.float32).reshape(2, 5, 3, 4)
    np.save(tmp_path / "x.npy", x)
    made = rl.files.convert(tmp_path / "x.npy", tmp_path / "y.npy", "NHWC4@nhwc", src_format="nchw")
    assert made.dims == x.shape
    np.testing.assert_array_equal(rl.files.read(tmp_path / "y.npy").numpy(), x)
    np.save(tmp_path / "t.npy", x[0])
    with pytest.raises(LayoutError, match="mean different things"):
        rl.files.convert(tmp_path / "t.npy", tmp_path / "z.npy", "nwc", src_format="tnc")
    rl.files.convert(tmp_path / "t.npy", tmp_path / "z.npy", "nwc", src_format="tnc", axes="position")
    turned = MemoryDesc((2, 3, 4, 5), "f32", "NHWC4@nhwc")
    out = rl.tensor(np.zeros(turned.dims, np.float32), turned)
    rl.files.convert_into(rl.tensor(x, "nchw"), out, slice_bytes=200)
    np.testing.assert_array_equal(out.numpy(), x.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    "text",
    [
        "f32:nhwc -> n, h, w, c:2x3x4x5",
        "f32:2x5x4x3 (n, h, w, c) strides 60x12x3x1",
        "f32:OHWIo4@ohwi:6x3x4x5",
    ],
)
def test_descriptors_on_disk_keep_what_axes_mean(text: str) -> None:
    desc = MemoryDesc(text)
    again = rl.files.descriptor_from_text(rl.files.descriptor_to_text(desc))
    assert again == desc
    assert again.layout.roles == desc.layout.roles is not None
