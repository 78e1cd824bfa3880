"""The sheet: slices, cache lines, vectors and padding; every cell is read back, elision is said."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout.draw.canvas import text_width
from relayout.draw.lines import Lines
from relayout.draw.orders import swizzled
from relayout.draw.raster import in_dark, png
from relayout.draw.sheet import WIDTH, sheet
from relayout.draw.vector import LINE, line_of, vector_of
from strategies import tried

SVG = "{http://www.w3.org/2000/svg}"

DESCS = [
    rl.MemoryDesc((1, 20, 10, 12), "f32", "nchw"),
    rl.MemoryDesc((1, 17, 4, 4), "f32", "nChw8c"),
    rl.MemoryDesc((32, 32, 3, 3), "s8", "OIhw4i16o4i"),
    rl.MemoryDesc((2, 20, 3, 4), "f16", "b_fs_yx_fsv16"),
    rl.MemoryDesc((32, 32, 1, 1), "s8", "os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4"),
    rl.MemoryDesc((16, 256), "bf16", "{1,0:T(8,128)(2,1)}"),
    rl.MemoryDesc((2, 3, 4, 5, 6), "f32", "ncdhw"),
    rl.MemoryDesc((2, 4, 4, 3, 3, 3), "f32", "goidhw"),
    rl.MemoryDesc((64, 3, 224, 224), "u8", "nhwc"),
    rl.MemoryDesc((1, 1, 2, 4), "s4", "nchw"),
    rl.MemoryDesc((16, 2, 3, 3), "f32", "i_yxs_os_yxsv2_osv16"),
    rl.MemoryDesc((2, 3), "f32", rl.Layout((2, 3), strides=(10, 1), offset=4)),
    rl.MemoryDesc((4, 3), "f32", rl.Layout((4, 3), strides=(0, 1))),
    rl.MemoryDesc((3,), "f64", rl.Layout((3,), strides=(-2,), offset=9)),
    rl.MemoryDesc((), "f32", rl.Layout((), strides=())),
    rl.MemoryDesc((0, 3), "f32", "ab"),
]


def words(picture: str) -> list[str]:
    """All labels of a picture."""
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


def cells(picture: str) -> list[tuple[int, str, str]]:
    """Offset, index and hint of every cell."""
    groups = [g for g in ET.fromstring(picture).iter(f"{SVG}g") if g.get("data-offset")]
    return [
        (int(g.get("data-offset", 0)), g.get("data-index", ""), g.findtext(f"{SVG}title", "")) for g in groups
    ]


def is_inside(picture: str) -> bool:
    """Whether all boxes and labels are within the picture."""
    root = ET.fromstring(picture)
    left, top, width, height = map(float, root.get("viewBox", "").split())
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", 0)), float(box.get("y", 0))
        right, bottom = x + float(box.get("width", 0)), y + float(box.get("height", 0))
        if not (left <= x and right <= left + width + 0.01 and top <= y and bottom <= top + height + 0.01):
            return False
    for text in root.iter(f"{SVG}text"):
        wide = text_width(text.text or "", float(text.get("font-size", 12)))
        shift = {"start": 0, "middle": wide / 2, "end": wide}[text.get("text-anchor", "start")]
        x = float(text.get("x", 0)) - shift
        if not (left <= x and x + wide <= left + width + 0.01):
            return False
    return True


@pytest.mark.parametrize("desc", DESCS, ids=str)
def test_cells_tell_the_truth(desc: rl.MemoryDesc) -> None:
    layout, bits = desc.layout, desc.dtype.bits
    shown = cells(sheet(desc))
    for offset, said, hint in shown:
        if said not in ("padding", "hole"):
            index = tuple(map(int, said.split(","))) if said else ()
            assert layout.offset(*index) == offset
        else:
            assert layout.index(offset) is None
        assert hint.endswith(f"cache line {offset * bits // 512}")
        assert f"offset {offset}, byte {offset * bits / 8:g}" in hint or bits >= 8
    assert bool(shown) == bool(layout.size)


@pytest.mark.parametrize("desc", DESCS, ids=str)
def test_a_sheet_is_bounded_and_nothing_reaches_out_of_it(desc: rl.MemoryDesc) -> None:
    picture = sheet(desc)
    assert is_inside(picture)
    root = ET.fromstring(picture)
    assert float(root.get("width", 0)) < WIDTH + 60
    assert float(root.get("height", 0)) < 1500
    assert len(picture) < 300_000


@pytest.mark.parametrize("dims", [(1, 17, 2, 2), (64, 64, 56, 56), (10**6, 10**6, 3, 3)])
def test_what_is_not_drawn_is_said(dims: tuple[int, ...]) -> None:
    desc = rl.MemoryDesc(dims, "f32", "nChw8c")
    picture = sheet(desc)
    said = words(picture)
    whole = -(-desc.layout.span // 16)
    counted = [int(text.split()[1].replace(",", "")) for text in said if "more cache line" in text]
    drawn = next((text for text in said if text.startswith("drawn: ")), None)
    if counted:
        assert drawn == f"drawn: {whole - sum(counted)} of {whole:,} cache lines"
    else:
        assert drawn is None
    # every index of every axis is in the slices, or named among those that are not
    slices = [text for text in said if text.startswith("not drawn:")]
    drawn_indices = {index for _, index, _ in cells(picture)} - {"padding", "hole"}
    shown = {tuple(map(int, index.split(","))) for index in drawn_indices}
    if len(shown) < desc.layout.size:
        assert slices or counted
    for axis, name in enumerate("nchw"):
        runs = re.findall(rf"\b{name} = (\d+)(?:\.\.(\d+))?", " ".join(slices))
        left_out = sum(int(last or first) - int(first) + 1 for first, last in runs)
        seen = len({index[axis] for index in shown})
        assert left_out == 0 or left_out + seen >= dims[axis]
    assert all("Not drawn" in (ET.fromstring(picture).findtext(f"{SVG}desc") or "") for _ in slices)


def test_no_panel_is_made_of_dots() -> None:
    """What is left out takes a slim row or column, not a cell."""
    picture = sheet(rl.MemoryDesc((64, 64, 224, 224), "f32", "nchw"))
    dots = [text for text in ET.fromstring(picture).iter(f"{SVG}text") if (text.text or "") in ("…", "⋮")]
    assert 0 < len(dots) < 24


@pytest.mark.parametrize(("format", "lines"), [("nchw", 16), ("nhwc", 1), ("nChw16c", 1), ("nChw8c", 2)])
def test_the_vector_takes_as_many_lines_as_are_said(format: str, lines: int) -> None:
    desc = rl.MemoryDesc((1, 32, 8, 8), "f32", format)
    found = vector_of(desc.layout, 32)
    assert found is not None
    assert found.lines == lines == len({line_of(desc.layout.offset(0, c, 0, 0), 32) for c in range(16)})
    picture = sheet(desc)
    plural = "s" * (lines != 1)
    assert f"16 channels of h=0 w=0: in {lines} cache line{plural} of {LINE} bytes." in words(picture)
    # in memory, all of its cells are drawn, whatever else is left out
    memory = Lines(desc.layout, 32, ("n", "c", "h", "w"), wanted=found.offsets)
    assert set(found.offsets) <= set(memory.cells)


def test_the_axis_of_the_vector_can_be_named() -> None:
    desc = rl.MemoryDesc((8, 32, 8, 8), "f32", "chwn")
    assert "8 batch indices of c=0 h=0 w=0: in 1 cache line of 64 bytes." in words(sheet(desc, vector="n"))
    with pytest.raises(rl.LayoutError, match="has no axis 'q' for a vector; it has n, c, h, w"):
        sheet(desc, vector="q")
    assert vector_of(rl.Layout((), strides=()), 32) is None
    # a mere letter means nothing: c and d of abcd are no channels and no depths
    letters = vector_of(rl.Layout((2, 3, 4, 5), "abcd"), 32)
    assert letters is not None
    assert letters.words == "5 indices of d of a=0 b=0 c=0"
    strided = rl.Layout((2, 3, 4, 5), strides=(60, 20, 5, 1))
    assert "3 channels of n=0 h=0 w=0: in 3 cache lines of 64 bytes." in words(sheet(strided, axes="nchw"))
    assert vector_of(rl.Layout((0, 3), "ab"), 32) is None


def test_padding_is_counted() -> None:
    said = words(sheet(rl.MemoryDesc((1, 17, 4, 4), "f32", "nChw8c")))
    assert "1,536 bytes, 448 of them padding (29.2 %)." in said
    assert {"elements 70.8 %", "padding 29.2 %", "padding (zeros)"} <= set(said)
    assert "8,192 bytes, no padding." in words(sheet(rl.MemoryDesc((1, 32, 8, 8), "f32", "nChw16c")))


def test_a_swizzle_is_drawn_and_others_are_not() -> None:
    layout = rl.Layout((32, 32, 1, 1), "os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4")
    (order,) = swizzled(layout)
    assert order.numbers == tuple(sorted(range(32), key=lambda o: layout.offset(o, 0, 0, 0)))
    assert "o in order, and as memory has it" in words(sheet(layout))
    plain = words(sheet(rl.Layout((32, 32, 1, 1), "OIhw4i16o4i")))
    assert not any("as memory has it" in text for text in plain)


@given(
    dims=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    dtype=st.sampled_from(["f64", "f32", "f16", "s8", "s4"]),
    data=st.data(),
)
@settings(max_examples=tried(40), deadline=None)
def test_any_blocked_layout(dims: list[int], dtype: str, data: st.DataObject) -> None:
    axes = "abcdef"[: len(dims)]
    outer = data.draw(st.permutations(axes))
    inner = data.draw(st.lists(st.tuples(st.sampled_from(axes), st.integers(2, 5)), max_size=3))
    layout = rl.Layout(dims, rl.Format.blocked(axes, outer, inner))
    picture = sheet(rl.MemoryDesc(dims, dtype, layout))
    assert is_inside(picture)
    for offset, said, _ in cells(picture):
        if said != "padding":
            assert layout.offset(*map(int, said.split(","))) == offset


def test_text_is_escaped() -> None:
    odd = rl.Format.from_digits(("a<b", "c&d"), [("a<b", 1, None), ("c&d", 1, None)])
    picture = sheet(rl.Layout((2, 3), odd), title='<script>"&')
    assert '<script>"&' in words(picture)
    assert "<script" not in picture
    assert any("a<b=1" in hint for _, _, hint in cells(picture))


def test_a_png_without_fonts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """resvg leaves words out where it finds no font: a picture without labels would be silently wrong."""
    monkeypatch.setattr("relayout.draw.raster._resvg", lambda: lambda **given: b"the same")
    with pytest.raises(rl.errors.Unsupported, match="png files need a font, and resvg finds none"):
        png(sheet(rl.Layout((2, 3), "ab")))


def test_png_is_a_png() -> None:
    pytest.importorskip("resvg_py")
    image = pytest.importorskip("PIL.Image")
    from io import BytesIO

    picture = sheet(rl.Layout((1, 3, 2, 2), "nhwc"))
    root = ET.fromstring(picture)
    try:
        light, dark = (image.open(BytesIO(png(picture, 2, dark))).convert("RGB") for dark in (False, True))
    except rl.errors.Unsupported as error:
        pytest.skip(str(error))  # no fonts
    assert abs(light.width - 2 * float(root.get("width", 0))) <= 2
    assert light.size == dark.size
    assert sum(light.getpixel((40, 40))) > 600 > 300 > sum(dark.getpixel((40, 40)))
    assert "prefers-color-scheme" not in in_dark(picture)
    with pytest.raises(rl.LayoutError, match="the scale must be above 0"):
        png(picture, 0)
    with pytest.raises(rl.LayoutError, match="268,435,456 pixels are the most"):
        png(picture, 1000)


@pytest.mark.parametrize("dims", [(0, 5), (5, 0), (0, 0)])
def test_no_elements_is_said_beside_no_other_words(dims: tuple[int, int]) -> None:
    """A tensor without rows has columns, and their numbers are not written over."""
    texts = ET.fromstring(sheet(rl.Layout(dims, "ab"))).iter(f"{SVG}text")
    placed = [(float(one.get("y", "0")), one.text) for one in texts]
    (said,) = [y for y, text in placed if text == "no elements"]
    assert all(abs(y - said) >= 12 for y, text in placed if text != "no elements")


def test_padding_is_all_only_where_it_is() -> None:
    words = sheet(rl.Layout((1, 1, 3, 3), "ABcd64a64b"))
    assert "padding 99.98 %" in words
    assert "(99.98 %)" in words
    assert "100 %" not in words


def test_titles_of_any_characters() -> None:
    """XML has no way to write a control character or half a surrogate pair."""
    title = "</svg><script>&\"'\x00\x1b\ud800\uffff \U0001f600\t"
    picture = sheet(rl.Layout((2, 3), "ab"), title=title)
    root = ET.fromstring(picture.encode())
    assert (root.findtext(f"{SVG}title") or "").startswith(
        "</svg><script>&\"'\ufffd\ufffd\ufffd\ufffd \U0001f600"
    )
