"""What is printed reads back as the same thing: formats, layouts, descriptors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import relayout as rl
from relayout import Format, Layout, LayoutError, MemoryDesc
from relayout.notation import dialect, dialects
from strategies import examples, layouts, view_steps

NAMES = {"Format": Format, "Layout": Layout, "MemoryDesc": MemoryDesc}


def read(printed: str) -> Any:
    return eval(printed, NAMES)


def same(one: Layout, two: Layout) -> bool:
    return one == two and one.roles == two.roles and (one.order == two.order or one.format is None)


@pytest.mark.parametrize("name", dialects())
def test_formats(name: str) -> None:
    for text in dialect(name).names():
        try:
            format = Format(text, dialect=name)
        except LayoutError:
            continue
        again = read(repr(format))
        assert again == format, text
        assert again.roles == format.roles, text
        for rank in range(1, 7):
            if format.rank is None and "rank" in format.waits_for:
                try:
                    known = format.resolve(rank)
                except LayoutError:
                    continue
                assert read(repr(known)) == known


def test_a_name_of_two_systems_says_whose_it_is() -> None:
    assert repr(Format("mnn:NC4HW4")) == "Format('mnn:NC4HW4')"
    assert repr(Format("mindspore:NC4HW4")) == "Format('mindspore:NC4HW4')"
    desc = MemoryDesc((1, 8, 2, 2), "f32", "mnn:NC4HW4")
    assert str(desc) == "f32:mnn:NC4HW4:1x8x2x2"
    assert read(repr(desc)) == desc


def test_a_name_that_depends_on_the_data_type_is_read_for_it() -> None:
    for kind in ("f32", "s4"):
        desc = MemoryDesc((16, 8, 2, 2), kind, "os_iyx_osv16")
        assert read(repr(desc)) == desc
        assert same(read(repr(desc.layout)), desc.layout)


@examples(200)
@given(layouts())
def test_layouts(layout: Layout) -> None:
    again = read(repr(layout))
    assert same(again, layout), repr(layout)
    desc = MemoryDesc._make(layout.dims, rl.dtype("f32"), layout)
    assert read(repr(desc)) == desc
    assert same(read(repr(desc)).layout, layout)


@examples(200)
@given(layouts(), st.data())
def test_views(layout: Layout, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        layout = data.draw(view_steps(layout)).try_on(layout)
        assert same(read(repr(layout)), layout), repr(layout)


@pytest.mark.parametrize(
    "text",
    [
        "f32:nChw8c:2x17x5x4",
        "s8:any:2x3",
        "u8:ab:2x3+7",
        "f32:scalar",
        "bf16:2x3 strides 10x1",
        "f32:(4,8):(8,1):4x8",
    ],
)
def test_descriptors(text: str) -> None:
    assert str(MemoryDesc(text)) == text
    assert MemoryDesc(str(MemoryDesc(text))) == MemoryDesc(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no layout"),
        ("nchw", "no layout"),
        ("2x3", "neither a format nor strides"),
        ("nchw:2x3", "4 axes"),
        ("ab:2x3 strides 3x1", "has a format and strides"),
        ("2x3 strides 3", "1 stride "),
        ("2x3 (n) strides 3x1", "2 axes, 1 roles"),
        ("2x3 (n, n) strides 3x1", "role of its own"),
        ("2x3 [a%2*3]", "cover each"),
        ("2x3 [a%2*3, b*1]", "no digit"),
        ("2x3 [a%2*3, z%3*1]", "none of the axes"),
        ("2x4 [a%2*4, b//3%2*2, b%2*1]", "weight 3"),
        ("2x5 [a%2*4, b%3*1]", "padded"),
        ("9" * 30 + "x2 strides 1x1", "2\\*\\*63"),
        ("x" * 20_000, "no layout"),
    ],
)
def test_what_is_no_layout_says_why(text: str, reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        Layout(text)


def test_a_text_stands_alone() -> None:
    with pytest.raises(LayoutError, match="says all of a layout"):
        Layout("nchw:1x2x3x4", "nchw")
    with pytest.raises(LayoutError, match="says all of a descriptor"):
        MemoryDesc("f32:nchw:1x2x3x4", "f32")
