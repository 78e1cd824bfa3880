"""The pictures tell the truth: every cell is read back and compared with the layout."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout.draw import svg
from relayout.draw.canvas import Canvas, text_width
from relayout.draw.cells import BASE, CELL_HEIGHT, SEAM
from relayout.draw.colours import shade
from strategies import tried

SVG = "{http://www.w3.org/2000/svg}"

LAYOUTS = [
    rl.Layout((2, 17, 2, 2), "nChw8c"),
    rl.Layout((2, 3, 4, 5), "nhwc"),
    rl.Layout((5, 7), "BA4b4a"),
    rl.Layout((20, 18, 1, 1), "OIhw4i16o4i"),
    rl.Layout((8, 4, 1, 1), "oihw -> o//8, i//2, h, w, o%2, o//2%4, i%2"),
    rl.Layout((16, 2, 3, 3), "i_yxs_os_yxsv2_osv16"),
    rl.Layout((2, 3), strides=(10, 1), offset=4),
    rl.Layout((4, 3), strides=(0, 1)),
    rl.Layout((3,), strides=(-2,), offset=9),
    rl.Layout((), strides=()),
    rl.views.submemory(rl.Layout((1, 32, 2, 2), "nChw16c"), (1, 4, 2, 2), (0, 4, 0, 0)),
]


def cells(picture: str) -> list[tuple[int, str]]:
    """The cells of a picture: their offsets and what they say lies there."""
    groups = ET.fromstring(picture).iter(f"{SVG}g")
    return [(int(g.get("data-offset")), g.get("data-index")) for g in groups if g.get("data-offset")]


def words(picture: str) -> list[str]:
    """All labels of a picture."""
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


def indices(layout: rl.Layout) -> list[tuple[int, ...]]:
    """All logical indices."""
    return list(product(*map(range, layout.dims)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_memory_shows_every_place_once(layout: rl.Layout) -> None:
    shown = cells(svg.memory(layout, rows=1000))
    low, high = layout.bounds()
    assert [offset for offset, _ in shown] == list(range(low, high + 1))
    for offset, said in shown:
        element = layout.index(offset)
        if element is not None:
            assert said == ",".join(map(str, element))
        else:
            assert said == ("padding" if layout.is_padding(offset) else "hole")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_logical_shows_every_element(layout: rl.Layout) -> None:
    shown = cells(svg.logical(layout, most=1000))
    said = {tuple(map(int, s.split(","))) if s else (): k for k, s in shown if s not in ("padding", "hole")}
    assert said == {index: layout.offset(*index) for index in indices(layout)}
    padding = [offset for offset, text in shown if text == "padding"]
    assert all(layout.is_padding(offset) for offset in padding)
    if all(len(term) == 1 for term in layout.terms):
        low, high = layout.bounds()
        assert sorted(padding) == [k for k in range(low, high + 1) if layout.is_padding(k)]


@given(
    dims=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
@settings(max_examples=tried(30), deadline=None)
def test_any_blocked_layout(dims: list[int], data: st.DataObject) -> None:
    axes = "abcd"[: len(dims)]
    outer = data.draw(st.permutations(axes))
    inner = data.draw(st.lists(st.tuples(st.sampled_from(axes), st.integers(2, 3)), max_size=2))
    layout = rl.Layout(dims, rl.Format.blocked(axes, outer, inner))
    offsets = {",".join(map(str, index)): layout.offset(*index) for index in indices(layout)}
    for picture in (svg.memory(layout, rows=5000), svg.logical(layout, most=100)):
        assert {text: k for k, text in cells(picture) if text != "padding"} == offsets
    digits = svg.digits(layout, index=[n - 1 for n in dims])
    assert f"= {layout.offset(*(n - 1 for n in dims))}" in words(digits)[-1]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_labels_are_what_cells_say(layout: rl.Layout) -> None:
    labels = words(svg.logical(layout, most=1000, title=""))
    for offset in (layout.offset(*index) for index in indices(layout)[:20]):
        assert str(offset) in labels


def test_labels_stay_inside_their_cells() -> None:
    picture = ET.fromstring(svg.memory(rl.Layout((1000, 1000), "ab"), rows=6))
    for group in picture.iter(f"{SVG}g"):
        if group.get("data-offset"):
            box, label = group.find(f"{SVG}rect"), group.find(f"{SVG}text")
            assert box is not None
            assert label is not None
            assert text_width(label.text or "", 11) <= float(box.get("width", 0))


def test_everything_stays_inside_the_picture() -> None:
    for picture in (
        svg.memory(LAYOUTS[0]),
        svg.logical(LAYOUTS[0]),
        svg.digits(LAYOUTS[0], index=(1, 16, 1, 1)),
    ):
        root = ET.fromstring(picture)
        x, y, width, height = map(float, root.get("viewBox", "").split())
        for box in root.iter(f"{SVG}rect"):
            left, top = float(box.get("x", 0)), float(box.get("y", 0))
            assert x <= left
            assert left + float(box.get("width", 0)) <= x + width + 0.01
            assert y <= top
            assert top + float(box.get("height", 0)) <= y + height + 0.01
        for text in root.iter(f"{SVG}text"):
            wide = text_width(text.text or "", float(text.get("font-size", 12)))
            shift = {"start": 0, "middle": wide / 2, "end": wide}[text.get("text-anchor", "start")]
            assert x <= float(text.get("x", 0)) - shift
            assert float(text.get("x", 0)) - shift + wide <= x + width


def test_worked_example_of_mkl_dnn() -> None:
    """17 channels stored as 24: the sum in the picture is the offset, digit by digit."""
    labels = words(svg.digits(rl.Layout((2, 17, 5, 4), "nChw8c"), index=(1, 9, 0, 2)))
    assert "offset = 1·480 + 1·160 + 0·32 + 2·8 + 1·1 = 657" in labels
    assert "c = 9 of 17 (room 24)" in labels
    assert labels.count("stride 160") == 1


def test_digits_of_a_format_have_no_sizes() -> None:
    labels = words(svg.digits("OIhw4i16o4i"))
    below = labels[labels.index("w") + 1 :]
    assert [text for text in below if "%" in text or "//" in text][-3:] == ["i//4%4", "o%16", "i%4"]
    assert labels.count("open") == 4
    assert not any("stride" in text for text in labels)


def test_long_memory_is_cut_out() -> None:
    layout = rl.Layout((64, 64, 3, 3), "OIhw4i16o4i")
    picture = svg.memory(layout, columns=16, rows=6)
    offsets = [offset for offset, _ in cells(picture)]
    assert offsets == [*range(64), *range(layout.span - 16, layout.span)]
    assert "⋮  2299 more rows" in words(picture)
    assert len(cells(svg.memory(rl.Layout((10**6, 10**6), "ab"), columns=10**6, rows=3))) < 200
    assert len(cells(svg.logical(rl.Layout((10**6,) * 3, "abc")))) < 1000


@pytest.mark.parametrize(("colour", "count"), [("c//8", 3), ("c%8", 8), ("h", 2), (" c // 4 % 2 ", 2)])
def test_colours_follow_the_digit(colour: str, count: int) -> None:
    layout = rl.Layout((1, 17, 2, 2), "nChw8c")
    root = ET.fromstring(svg.memory(layout, colour=colour))
    for group in root.iter(f"{SVG}g"):
        said = group.get("data-index")
        if not said or said == "padding":
            continue
        n, c, h, w = map(int, said.split(","))
        value = eval(colour.strip(), {"n": n, "c": c, "h": h, "w": w})
        box = group.find(f"{SVG}rect")
        assert box is not None
        assert box.get("fill") == shade(value, count)


def test_padding_is_hatched_and_holes_are_not() -> None:
    padded = svg.memory(rl.Layout((1, 3, 1, 2), "nChw4c"))
    assert padded.count('fill="url(#padding-') == 2 + 1  # two places, one in the legend
    assert "padding (zeros)" in words(padded)
    part = svg.memory(rl.Layout((2, 3), strides=(8, 1)))
    assert part.count('fill="url(#padding') == 0
    assert part.count("stroke-dasharray") == 5 + 1
    assert "other data" in words(part)


def test_mark_frames_one_element() -> None:
    layout = rl.Layout((1, 17, 2, 2), "nChw8c")
    for picture in (svg.memory(layout, mark=(0, 9, 1, 0)), svg.logical(layout, mark=(0, 9, 1, 0))):
        framed = [g for g in ET.fromstring(picture).iter(f"{SVG}g") if len(g.findall(f"{SVG}rect")) == 2]
        assert [g.get("data-index") for g in framed if g.get("data-index") != "padding"] == ["0,9,1,0"]


@given(
    dims=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    block=st.integers(1, 9),
    most=st.integers(1, 30),
    data=st.data(),
)
@settings(max_examples=tried(60), deadline=None)
def test_a_marked_element_is_always_drawn(
    dims: list[int], block: int, most: int, data: st.DataObject
) -> None:
    axes = "abcd"[: len(dims)]
    blocked = data.draw(st.sampled_from(axes))
    layout = rl.Layout(dims, rl.Format.blocked(axes, data.draw(st.permutations(axes)), [(blocked, block)]))
    mark = tuple(data.draw(st.integers(0, size - 1)) for size in dims)
    said = (layout.offset(*mark), ",".join(map(str, mark)))
    for picture in (
        svg.memory(layout, mark=mark, rows=most, columns=data.draw(st.integers(1, 100))),
        svg.logical(layout, mark=mark, most=most),
    ):
        assert said in cells(picture)
        framed = [g for g in ET.fromstring(picture).iter(f"{SVG}g") if len(g.findall(f"{SVG}rect")) == 2]
        assert said[1] in [g.get("data-index") for g in framed]


@pytest.mark.parametrize("mark", [None, (0, 0, 0, 0), (17, 5, 0, 2), (31, 15, 2, 2), (16, 0, 0, 0)])
@pytest.mark.parametrize("rows", [1, 3, 4, 24])
def test_rows_are_drawn_or_counted_as_left_out(mark: tuple[int, ...] | None, rows: int) -> None:
    layout = rl.Layout((32, 16, 3, 3), "OIhw4i16o4i")
    picture = svg.memory(layout, mark=mark, rows=rows)
    counted = [int(text.split()[1]) for text in words(picture) if text.startswith("⋮")]
    assert sum(counted) + len(cells(picture)) // 16 == layout.span // 16
    assert rows < 5 or len(counted) + len(cells(picture)) // 16 <= rows


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_an_offset_is_that_of_its_row_and_its_column(layout: rl.Layout) -> None:
    root = ET.fromstring(svg.memory(layout, rows=1000, title=""))
    heads, rows = {}, {}
    for text in root.iter(f"{SVG}text"):
        label, x, y = text.text or "", float(text.get("x", 0)), float(text.get("y", 0))
        if label.startswith("+"):
            heads[x] = int(label[1:])
        elif text.get("text-anchor") == "end" and label.isdigit():
            rows[y] = int(label)
    for group in root.iter(f"{SVG}g"):
        box = group.find(f"{SVG}rect")
        if group.get("data-offset") and box is not None and heads:
            centre = float(box.get("x", 0)) + float(box.get("width", 0)) / 2
            column = min(heads, key=lambda x: abs(x - centre))
            assert abs(column - centre) < 1
            assert (
                int(group.get("data-offset", 0)) == rows[int(float(box.get("y", 0))) + BASE] + heads[column]
            )


def test_a_picture_speaks_one_dialect() -> None:
    layout = rl.Layout((2, 33, 2, 2), "b_fs_yx_fsv16")
    memory, logical, digits = svg.memory(layout), svg.logical(layout), svg.digits(layout)
    assert "b=1, fs=2, y=1, x=1" in words(memory)
    assert "cell: b,f,y,x" in words(memory)
    assert "b=1 f=47" in words(logical)
    assert {"b: 2", "f: 33 (room 48)", "y: 2", "x: 2"} <= set(words(digits))
    for picture in (memory, logical, digits, svg.digits("b_fs_yx_fsv16")):
        assert not [text for text in words(picture) if re.search(r"\b[nchw]\b", text)]
    # the colour may be named either way
    named = [re.sub("padding-[0-9a-f]+", "", svg.memory(layout, colour=c)) for c in ("f//16", "c//16")]
    assert named[0] == named[1].replace("c//16", "f//16")


def test_numbers_in_padding_are_not_struck_through() -> None:
    root = ET.fromstring(svg.logical(rl.Layout((1, 3, 2, 2), "nChw4c")))
    padding = [g for g in root.iter(f"{SVG}g") if g.get("data-index") == "padding"]
    assert padding
    for group in padding:
        drawn = list(group)
        hatched = max(k for k, part in enumerate(drawn) if "url(#padding-" in part.get("fill", ""))
        plate, label = drawn[hatched + 1 :]
        left, width = float(plate.get("x", 0)), float(plate.get("width", 0))
        assert width >= text_width(label.text or "", 11)
        assert left <= float(label.get("x", 0)) <= left + width


def test_what_is_left_out_takes_little_room() -> None:
    layout = rl.Layout((2, 64, 56, 56), "nChw16c")
    root = ET.fromstring(svg.logical(layout))
    drawn = len([text for text in words(svg.logical(layout)) if text.startswith(("n=0 c=", "n=1 c="))])
    panel = 16 * 26 + 10 + 16
    assert float(root.get("height", 0)) < drawn * panel + 200
    assert words(svg.logical(layout)).count("⋮  c=2..62") == 2
    many = svg.logical(rl.Layout((50, 50, 50, 3, 2), "abcde"))
    assert words(many).count("⋮  further panels are left out") == 4
    assert float(ET.fromstring(many).get("height", 0)) < 27 * 110


def test_path_visits_the_elements_in_order() -> None:
    layout = rl.Layout((4, 4), "BA2a2b")
    root = ET.fromstring(svg.logical(layout, path=True))
    line = next(iter(root.iter(f"{SVG}polyline"))).get("points", "")
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    cell = {}
    for group in root.iter(f"{SVG}g"):
        if group.get("data-offset"):
            box = group.find(f"{SVG}rect")
            assert box is not None
            cell[int(group.get("data-offset", 0))] = (
                float(box.get("x", 0)) - SEAM + CELL_HEIGHT / 2,
                float(box.get("y", 0)) - SEAM + CELL_HEIGHT / 2,
            )
    assert points == [cell[k] for k in sorted(cell)]


def test_names_are_escaped() -> None:
    odd = rl.Format.from_digits(("a<b", "c&d"), [("a<b", 1, None), ("c&d", 1, None)])
    layout = rl.Layout((2, 3), odd)
    for picture in (svg.memory(layout, title='<&">'), svg.logical(layout), svg.digits(layout, index=(1, 2))):
        ET.fromstring(picture)  # is well-formed
    assert '<&">' in words(svg.memory(layout, title='<&">'))
    assert "a<b" in " ".join(words(svg.digits(layout)))


def test_nothing_is_fetched() -> None:
    for picture in (svg.memory(LAYOUTS[0]), svg.logical(LAYOUTS[0]), svg.digits(LAYOUTS[0])):
        rest = picture.replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|href|@import|<script|url\((?!#)", rest)


def test_same_input_same_bytes() -> None:
    for draw in (svg.memory, svg.logical, svg.digits):
        assert draw(LAYOUTS[0]) == draw(rl.Layout((2, 17, 2, 2), "nChw8c"))


def test_descriptors_and_empty_tensors() -> None:
    desc = rl.MemoryDesc((1, 3, 2, 2), "f32", "nhwc")
    assert svg.memory(desc) == svg.memory(desc.layout)
    for picture in (svg.memory(rl.Layout((0, 3), "ab")), svg.logical(rl.Layout((0, 3), "ab"))):
        assert cells(picture) == []
        assert "no elements" in words(picture)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: svg.memory(LAYOUTS[0], colour="q"),
            "colour 'q' is no digit of nChw8c:2x17x2x2; write an axis (n, c, h, w)",
        ),
        (lambda: svg.memory(LAYOUTS[0], colour="c//0"), "must be 1 or more"),
        (lambda: svg.memory(LAYOUTS[0], columns=0), "columns must be 1 or more, got 0"),
        (lambda: svg.logical(LAYOUTS[0], most=-1), "most must be 1 or more, got -1"),
        (lambda: svg.logical(LAYOUTS[0], mark=(0, 17, 0, 0)), "index 17 of axis 1 (c) is out of bounds"),
        (lambda: svg.digits("nChw8c", index=(0, 0, 0, 0)), "which has no sizes; pass a Layout"),
        (lambda: svg.digits("aBx8b"), "no digits before the rank is known"),
        (lambda: svg.memory(rl.MemoryDesc((2, 3), "f32", rl.any)), "has no layout"),
    ],
)
def test_errors(call: object, message: str) -> None:
    with pytest.raises(rl.LayoutError, match=re.escape(message)):
        call()  # type: ignore[operator]


def test_canvas_writes_numbers_in_one_way() -> None:
    canvas = Canvas()
    canvas.box(-0.001, 1 / 3, 1.0, 2.50)
    assert '<rect x="0" y="0.33" width="1" height="2.5"' in canvas.document("t", "d")
