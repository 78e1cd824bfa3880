"""The picture of two formats: every element in the colour of the cache line that it comes from."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

import relayout as rl
from relayout.draw.beside import beside
from relayout.draw.colours import PAPER, PLAIN, shade

SVG = "{http://www.w3.org/2000/svg}"

PAIRS = [
    ("nchw", "nChw16c", (1, 16, 4, 4), "f32"),
    ("nchw", "nChw8c", (1, 17, 4, 4), "f32"),
    ("nhwc", "nchw", (2, 3, 4, 4), "f64"),
    ("oihw", "OIhw4i16o4i", (32, 32, 3, 3), "s8"),
    ("nchw", "nhwc", (1, 64, 56, 56), "f32"),
    ("abcdef", "fedcba", (2, 3, 2, 3, 2, 3), "f16"),
]


def drawn(picture: str) -> list[list[tuple[int, str, str]]]:
    """The cells of both memories: offset, index, colour."""
    halves: list[list[tuple[int, str, str]]] = [[]]
    for group in ET.fromstring(picture).iter(f"{SVG}g"):
        if group.get("data-offset"):
            box = group.find(f"{SVG}rect")
            assert box is not None
            offset = int(group.get("data-offset", 0))
            if halves[-1] and offset < halves[-1][-1][0]:
                halves.append([])
            halves[-1].append((offset, group.get("data-index", ""), box.get("fill", "")))
    return halves


def words(picture: str) -> list[str]:
    """All labels of a picture."""
    return [text.text or "" for text in ET.fromstring(picture).iter(f"{SVG}text")]


@pytest.mark.parametrize(("one", "two", "dims", "dtype"), PAIRS)
def test_colours_say_where_elements_come_from(one: str, two: str, dims: tuple[int, ...], dtype: str) -> None:
    a, b = rl.MemoryDesc(dims, dtype, one), rl.MemoryDesc(dims, dtype, two)
    before, after = drawn(beside(a, b))
    line = 512 // a.dtype.bits
    lines = sorted({offset // line for offset, _, _ in before})
    for half, layout in ((before, a.layout), (after, b.layout)):
        for offset, said, fill in half:
            if said == "padding":
                assert fill == PLAIN
                continue
            index = tuple(map(int, said.split(",")))
            assert layout.offset(*index) == offset
            source = a.layout.offset(*index)
            if source == b.layout.offset(*index):
                assert fill == PLAIN
            elif source // line in lines:
                assert fill == shade(lines.index(source // line), len(lines))
            else:
                assert fill == PAPER


def test_what_moves_is_counted() -> None:
    a, b = rl.MemoryDesc((1, 17, 4, 4), "f32", "nchw"), rl.MemoryDesc((1, 17, 4, 4), "f32", "nChw8c")
    said = words(beside(a, b))
    moved = sum(a.layout.offset(0, c, h, w) != b.layout.offset(0, c, h, w)
                for c in range(17) for h in range(4) for w in range(4))  # fmt: skip
    assert f"{moved} of 272 elements move, {272 - moved} stay (1.84 %). Padding: 0 and 448 bytes." in said
    assert "16 channels of h=0 w=0: in 16 cache lines of 64 bytes in nchw" in said
    assert "16 channels of h=0 w=0: in 2 cache lines of 64 bytes in nChw8c" in said
    assert "drawn: 12 of 24 cache lines" in said


def test_the_same_bytes_have_no_colours() -> None:
    a, b = rl.MemoryDesc((1, 8, 4, 4), "f32", "nChw8c"), rl.MemoryDesc((1, 8, 4, 4), "f32", "nhwc")
    picture = beside(a, b)
    assert "The same bytes: nothing moves." in words(picture)
    assert {fill for half in drawn(picture) for _, _, fill in half} == {PLAIN}


def test_other_types_and_other_sizes() -> None:
    a, b = rl.MemoryDesc((1, 3, 4, 4), "f32", "nchw"), rl.MemoryDesc((1, 3, 4, 4), "s8", "nchw")
    assert "Elements of 32 and 8 bits: every byte is written anew." in words(beside(a, b))
    with pytest.raises(rl.LayoutError, match="the sizes 1x3x4x4 and 1x3x4x5 differ"):
        beside(a, rl.MemoryDesc((1, 3, 4, 5), "f32", "nchw"))
    empty = rl.Layout((0, 3), "ab")
    assert "The same bytes: nothing moves." in words(beside(empty, empty))


def test_names_are_escaped() -> None:
    layout = rl.Layout((2, 3), "ab")
    picture = beside(layout, rl.Layout((2, 3), "ba"), names=("<script>", "a&b"))
    assert "<script" not in picture
    assert "<script> to a&b   2x3   as f32" in words(picture)
