"""Drawings for the terminal say what layouts say."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from rich.console import Console

import relayout as rl
from relayout.draw import text as draw
from strategies import element_places, examples, has_clean_padding, layouts, padding_places

LINE = re.compile(r"i = (\d+)(?: \.\. (\d+))? *=> (?:\[(.*?)\]|(padding|hole)) *(?:== \[(.*?)\])?$")


def numbers(text):
    return tuple(int(part.split("=")[1]) for part in text.split(";"))


def drawn(thing, width=80):
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(thing)
    return captured.get()


class TestListing:
    @examples(60)
    @given(layouts())
    def test_says_where_everything_lies(self, layout):
        if not has_clean_padding(layout) or not layout.is_injective() or layout.bounds()[0] < 0:
            return
        elements, padding = {}, set()
        for line in map(str, draw.listing(layout, 0)[1:]):
            first, last, index, kind, _ = LINE.fullmatch(line).groups()
            if index is not None:
                elements[numbers(index) if index else ()] = int(first)
            elif kind == "padding":
                padding.update(range(int(first), int(last or first) + 1))
        assert padding == padding_places(layout)
        assert sorted(elements.values()) == sorted(element_places(layout).ravel().tolist())
        assert all(layout.offset(*index) == offset for index, offset in elements.items())

    @examples(60)
    @given(layouts())
    def test_digits_add_up(self, layout):
        digits = draw.memory_order(layout)
        for place in draw.places(layout):
            total = sum(value * digit.stride for value, digit in zip(place.digits, digits, strict=True))
            assert layout.offset0 + total == place.offset

    def test_openvinos_page(self):
        """The tensor of OpenVINO's page on memory formats, with its names of digits."""
        lines = [str(line) for line in draw.listing(rl.Layout((2, 2, 2, 2), "b_fs_yx_fsv16"), 0)]
        assert lines[0] == "i = [b, f, y, x] == [b, fs, y, x, fsv]"
        assert len(lines) == 1 + 16 + 8
        known = {}
        for line in lines[1:]:
            first, last, index, kind, digits = LINE.fullmatch(line).groups()
            if index:
                known[int(first)] = (numbers(index), numbers(digits))
            else:
                assert kind == "padding"
                assert int(last) - int(first) == 13
                assert digits.endswith("fsv=2..15")
        assert known[0] == ((0, 0, 0, 0), (0, 0, 0, 0, 0))
        assert known[17] == ((0, 1, 0, 1), (0, 0, 0, 1, 1))
        assert known[32] == ((0, 0, 1, 0), (0, 0, 1, 0, 0))
        assert known[113] == ((1, 1, 1, 1), (1, 0, 1, 1, 1))

    def test_depthwise_terminals_get_numbers_without_names(self):
        lines = [str(line) for line in draw.listing(rl.Layout((2, 2, 2, 2), "b_fs_yx_fsv16"), 0, width=50)]
        assert lines[2] == "         1 = [0, 1, 0, 0] == [0, 0, 0, 0,  1]"
        assert max(map(len, lines)) <= 50

    def test_limits_and_holes(self):
        lines = [str(line) for line in draw.listing(rl.Layout((2, 2), strides=(10, 1)), 3)]
        assert lines[3].split() == ["i", "=", "2", "..", "9", "=>", "hole"]
        assert lines[4] == "… 2 more places, to 11"

    def test_big_tensors_cost_nothing(self):
        layout = rl.Layout((1 << 20, 1000, 224, 224), "nChw16c")
        assert (
            str(draw.listing(layout, 2)[-1]) == f"… {layout.span - 2:,} more places, to {layout.span - 1:,}"
        )
        assert str(draw.grid(layout, 2)[-1]).endswith("more rows")

    @pytest.mark.parametrize("dims", [(0,), (2, 0, 3)])
    def test_empty_tensors(self, dims):
        layout = rl.Layout(dims, "abc"[: len(dims)])
        assert [str(line) for line in draw.listing(layout, 0)] == ["no elements, no places"]
        assert [str(line) for line in draw.grid(layout, 0)] == ["no elements, no places"]

    def test_scalars(self):
        layout = rl.MemoryDesc((), "f32", strides=()).layout
        assert str(draw.listing(layout, 0)[1]) == "i = 0 => [] == []"
        assert str(draw.formula(layout)) == "0"


class TestGrid:
    def test_plain(self):
        lines = [str(line) for line in draw.grid(rl.Layout((1, 2, 2, 3), "nhwc"), 0)]
        assert lines == [
            "offset │ h │ w c:   0   1   2   3   4   5",
            "     0 │ 0 │ c,w= 0,0 1,0 0,1 1,1 0,2 1,2",
            "     6 │ 1 │ c,w= 0,0 1,0 0,1 1,1 0,2 1,2",
        ]

    def test_padding_and_limit(self):
        lines = [str(line) for line in draw.grid(rl.Layout((1, 17, 2, 2), "nChw8c"), 9)]
        assert lines[0] == "offset │ c//8 h w │ c%8:  0  1  2  3  4  5  6  7"
        assert lines[5] == "    32 │    1 0 0 │   c=  8  9 10 11 12 13 14 15"
        assert lines[9] == "    64 │    2 0 0 │   c= 16  ·  ·  ·  ·  ·  ·  ·"
        assert lines[10] == "… 3 more rows"

    def test_ascii(self):
        marks = draw.Marks.fit_for(ascii_only=True)
        for line in draw.grid(rl.Layout((1, 500, 2, 2), "nChw64c"), 3, width=40, marks=marks):
            assert str(line).isascii()

    @pytest.mark.parametrize("width", [40, 80, 120])
    def test_fits_the_terminal(self, width):
        for line in draw.grid(rl.Layout((2, 300, 7, 7), "nchw"), 5, width=width):
            assert len(str(line)) <= width
        for line in draw.grid(rl.Layout((2, 300, 7, 7), "nChw64c"), 5, width=width):
            assert len(str(line)) <= width

    @examples(60)
    @given(layouts())
    def test_rows_begin_where_they_say(self, layout):
        try:
            lines = [str(line) for line in draw.grid(layout, 0, width=100_000)][1:]
        except rl.LayoutError:
            assert not draw.nested(draw.memory_order(layout))
            return
        offsets = [int(line.split("│")[0]) for line in lines if "│" in line]
        assert offsets == sorted(offsets)
        if len(offsets) and layout.is_injective() and has_clean_padding(layout):
            cells = " ".join(line.rpartition("=")[2] for line in lines).split()
            assert sum(cell != "·" for cell in cells) == layout.size
            assert sum(cell == "·" for cell in cells) == len(padding_places(layout))

    def test_strides_that_interleave(self):
        layout = rl.Layout((3, 4), strides=(3, 2))
        with pytest.raises(rl.LayoutError, match="interleave"):
            draw.grid(layout, 0)
        assert len(draw.listing(layout, 0)) > 12


class TestWords:
    @pytest.mark.parametrize(
        ("format", "dims", "axes", "digits"),
        [
            ("nChw8c", (1, 17, 2, 2), "n c h w", "n c//8 h w c%8"),
            ("aBcd8b", (1, 17, 2, 2), "a b c d", "a b//8 c d b%8"),
            ("bfyx", (1, 17, 2, 2), "b f y x", "b f y x"),
            ("os_is_yx_osv32_isv4", (64, 8, 3, 3), "o i y x", "os is y x osv isv"),
            ("i_yxs_os_yxsv2_osv16", (64, 8, 3, 3), "o i y x", "i yxs os yxsv osv"),
            (
                "os_is_yx_osv32_isv4_swizzled_by_2",
                (64, 8, 3, 3),
                "o i y x",
                "o//32 i//4 y x o%2 o//2%16 i%4",
            ),
        ],
    )
    def test_names_are_those_of_the_dialect(self, format, dims, axes, digits):
        assert draw.labels(rl.Layout(dims, format)) == (tuple(axes.split()), tuple(digits.split()))

    @examples(60)
    @given(layouts())
    def test_the_formula_is_the_layout(self, layout):
        formula = str(draw.formula(layout))
        names = layout.axis_names()
        if any(len(term) > 1 for term in layout.terms) or 0 in layout.dims:
            return
        index = [size - 1 for size in layout.dims]
        values = dict(zip(names, index, strict=True))
        assert eval(formula, {"__builtins__": {}}, values) == layout.offset(*index)

    def test_the_table(self):
        text = drawn(draw.digits_table(rl.MemoryDesc((2, 17, 5, 4), "f32", "nChw8c")))
        rows = [line.split() for line in text.splitlines()]
        assert rows[2] == ["c//8", "block", "of", "8", "channels", "8", "3", "160", "640"]
        assert rows[5] == ["c%8", "channel", "within", "its", "block", "1", "8", "1", "4"]

    def test_half_bytes(self):
        text = drawn(draw.digits_table(rl.MemoryDesc((2, 4), "u4", "ab")))
        assert text.splitlines()[2].split()[-1] == "0.5"

    def test_facts(self):
        known = dict(draw.facts(rl.MemoryDesc((1, 17, 2, 2), "f32", "nChw8c")))
        assert known["elements"].startswith("68 ")
        assert known["places"].startswith("96 = 1x24x2x2; 28 of them padding")
        assert known["axis c"] == "17 channels in 3 blocks of 8: the last 7 of 24 are padding"
        assert known["bytes"].startswith("384 as f32")
        assert "holes" in dict(draw.facts(rl.MemoryDesc((4, 5), "f32", strides=(8, 1))))
        assert "shared" in dict(draw.facts(rl.MemoryDesc((4, 5), "f32", strides=(0, 1))))

    def test_names(self):
        names = draw.names_of(rl.Format("nChw16c"))
        assert names["onednn"] == "nChw16c"
        assert names["openvino"] == "b_fs_yx_fsv16"
        assert "digits" not in names
        assert "OpenVINO GPU b_fs_yx_fsv16" in str(draw.names_text(rl.Format("nChw16c")))
