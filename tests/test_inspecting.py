"""What a buffer holds: guesses that reproduce it, and what is said of a buffer that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import relayout as rl
from relayout.cli import application
from strategies import examples, formats, shapes
from test_cli import runner


def distinct(dims: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Values that differ, in no order that a format could have made."""
    count = int(np.prod(dims))
    return (np.random.default_rng(count).permutation(count) + 1).astype(dtype).reshape(dims)


@examples(150)
@given(shapes(), st.data())
def test_every_format_is_found_by_its_digits(dims: tuple[int, ...], data: st.DataObject) -> None:
    format = data.draw(formats(len(dims)))
    layout = rl.Layout(dims, format)
    assume(layout.span <= 50_000)
    x = distinct(dims)
    made = rl.tensor(x, format)
    found = rl.guess(made.buffer, x, dtype="f32")
    assert found
    for match in found:
        assert not match.missing
        for one in match.formats:
            again = rl.tensor(x, one).buffer
            held = made.buffer[match.offset : match.offset + again.size]
            if not match.dirty or one != match.formats[0]:
                where = rl.Layout(dims, one)
                assert rl.from_buffer(held, rl.MemoryDesc(dims, "f32", where)).numpy().tolist() == x.tolist()


@pytest.mark.parametrize(
    ("format", "dims"),
    [
        ("nChw16c", (2, 17, 5, 4)),
        ("OIhw4i16o4i", (64, 64, 3, 3)),
        ("OIhw4i16o4i", (5, 3, 3, 3)),
        ("nhwc", (4, 64, 8, 8)),
        ("chwn", (4, 3, 8, 8)),
        ("os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4", (64, 64, 3, 3)),
        ("i_yxs_os_yxsv2_osv16", (32, 16, 5, 5)),
        ("bs_fs_yx_bsv16_fsv16", (17, 18, 3, 2)),
        ("CHWN4", (5, 6, 4, 3)),
        ("{1,0:T(8,128)(2,1)}", (100, 300)),
        ("COL4_4R2_8C", (64, 64)),
    ],
)
def test_the_format_itself_is_among_those_found(format: str, dims: tuple[int, ...]) -> None:
    x = distinct(dims)
    made = rl.tensor(x, format)
    found = rl.guess(made.buffer.tobytes(), x)
    assert made.desc.format in found.formats
    assert found.best is not None
    assert found.best.exact
    assert found.best.behind == 0


def test_offsets_other_types_and_swapped_bytes() -> None:
    x = distinct((2, 17, 3, 4), np.int32)
    made = rl.tensor(x, "nChw8c").buffer
    behind = rl.guess(b"a header of 19 bytes"[:19] + made.tobytes() + b"tail", x)
    assert behind.best is not None
    assert (str(behind.format), behind.best.offset, behind.best.behind) == ("aBcd8b", 19, 4)
    swapped = rl.guess(made.view(np.int32).byteswap(), x, dtype="s32")
    assert swapped.best is not None
    assert swapped.best.swapped
    y = np.random.default_rng(0).standard_normal((2, 17, 3, 4)).astype(np.float32)
    for kind in ("f64", "bf16", "f16"):
        found = rl.guess(rl.tensor(y, "nChw8c", dtype=kind).buffer.tobytes(), y)
        assert (str(found.format), found.best and found.best.desc.dtype.name) == ("aBcd8b", kind)


@pytest.mark.parametrize(("kind", "scale"), [("s8", 0.03), ("s8", None), ("u8", 0.0125), ("s8", 0.005)])
def test_quantised_values(kind: str, scale: float | None) -> None:
    x = np.random.default_rng(3).standard_normal((2, 17, 12, 9)).astype(np.float32)
    by = np.float32(np.abs(x).max() / 127 if scale is None else scale)
    made = rl.reorder(rl.tensor(x), rl.MemoryDesc(x.shape, kind, "nChw16c"), dst_scale=by)
    match = rl.guess(made.buffer, x).best
    assert match is not None
    assert (str(match.format), match.desc.dtype.name) == ("aBcd16b", kind)
    assert match.scale == pytest.approx(by, rel=0.01)
    again = rl.reorder(rl.tensor(x), rl.MemoryDesc(x.shape, kind, "nChw16c"), dst_scale=match.scale)
    assert np.array_equal(again.buffer, made.buffer)


def test_views_have_strides_and_no_format() -> None:
    x = distinct((3, 4, 5))
    memory = np.zeros(3 * 50, np.float32)
    np.lib.stride_tricks.as_strided(memory, x.shape, (200, 36, 4))[:] = x
    found = rl.guess(memory, x)
    assert found.layout is not None
    assert (found.format, found.layout.strides) == (None, (50, 9, 1))
    assert "no dense format" in str(found)


def test_rows_with_a_pitch_are_blocks_and_strides() -> None:
    x = distinct((3, 4, 5))
    found = rl.guess(np.pad(x, ((0, 0), (0, 1), (0, 8 - 5))), x)
    assert str(found.format) == "aBC5b8c"
    assert "as strides: 40x8x1" in str(found)


def test_ties_are_explained() -> None:
    x = distinct((2, 1, 4, 3))
    found = rl.guess(x, x)
    assert {"abcd", "acdb", "bacd"} <= {str(format) for format in found.formats}
    assert "size 1: where b stands in the order does not show" in str(found)
    x = distinct((2, 8, 4, 3))
    assert "b = 8: a block of 8 holds all of it" in str(rl.guess(rl.tensor(x, "nhwc").buffer, x))


def test_half_of_the_values_repeat() -> None:
    x = np.maximum(np.random.default_rng(1).standard_normal((2, 40, 9, 7)).astype(np.float32), 0)
    x[:, 5] = 0  # a channel that is dead
    assert str(rl.guess(rl.tensor(x, "nChw16c").buffer, x).format) == "aBcd16b"


@pytest.mark.parametrize(
    ("format", "dims"),
    [
        ("nChw16c", (2, 17, 28, 28)),
        ("NCHW4", (1, 3, 40, 40)),
        ("nhwc", (2, 24, 20, 20)),
        ("OIhw4i16o4i", (64, 32, 3, 3)),
        ("os_is_yx_osa4_isa8_osv8_isv4_swizzled_by_4", (64, 64, 3, 3)),
    ],
)
def test_values_that_all_repeat(format: str, dims: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(-128, 128, dims).astype(np.int8)
    made = rl.tensor(x, format)
    found = rl.guess(made.buffer, x)
    assert made.desc.format in found.formats
    assert found.best is not None
    assert found.best.exact


def test_halves_of_bytes() -> None:
    x = np.random.default_rng(0).integers(-8, 8, (64, 64, 3, 3)).astype(rl.dtype("s4").numpy)
    made = rl.tensor(x, "OIhw8i16o2i")
    assert made.desc.format in rl.guess(made.buffer, x).formats


def test_one_value_tells_nothing() -> None:
    x = np.ones((2, 3, 4), np.float32)
    assert "can't be told apart" in str(rl.guess(x, x))
    assert rl.guess(x[:1, :1, :1], x[:1, :1, :1]).best is not None


def test_a_format_that_is_close_is_mentioned() -> None:
    x = distinct((2, 17, 5, 4))
    wrong = rl.tensor(x, "nChw8c").buffer.copy()
    wrong[200] ^= 1
    assert "aBcd8b:2x17x5x4 comes close, but 1 of 680 elements differ" in str(rl.guess(wrong, x))


def test_listed_formats_are_tried_where_values_show_no_digits() -> None:
    x = np.random.default_rng(0).integers(0, 2, (16, 64, 16, 16)).astype(np.uint8)
    found = rl.guess(rl.tensor(x, "nChw16c").buffer, x)
    assert str(found.format) == "aBcd16b"
    small = np.array([[1, 2], [2, 3]], np.float32)
    assert rl.guess(small, small).best is not None
    twice = distinct((8, 16, 4, 4))
    assert str(rl.guess(np.concatenate([twice.ravel(), twice.ravel()]), twice).format) == "abcd"
    odd = rl.tensor(x, rl.Format("abcd -> b//3, a, c, d//2, b%3, d%2")).buffer
    assert rl.guess(odd, x).format is not None or "values repeat" in rl.guess(odd, x).reason


def test_what_lies_behind_a_tensor_is_no_padding() -> None:
    x = distinct((8, 16, 4, 4))
    other = x.transpose(0, 2, 3, 1) + 10_000
    found = rl.guess(np.concatenate([x.ravel(), other.ravel()]), x)
    assert str(found.format) == "abcd"
    assert (found.best.padding, found.best.dirty, found.best.behind) == (0, 0, 8192)


def test_nothing_is_claimed_of_junk() -> None:
    x = distinct((2, 17, 5, 4))
    rng = np.random.default_rng(0)
    for size in (0, 1, 100, 5000):
        junk = rng.integers(0, 256, size).astype(np.uint8)
        assert not rl.guess(junk, x)
        assert "no format found" in str(rl.guess(junk, x))
    wrong = rl.tensor(x, "nChw8c").buffer.copy()
    wrong[200] ^= 1
    assert not rl.guess(wrong, x)


def test_bad_input_is_refused() -> None:
    with pytest.raises(rl.LayoutError, match="no elements"):
        rl.guess(b"1234", np.zeros((0, 3), np.float32))
    with pytest.raises(rl.LayoutError, match="the dims must agree"):
        rl.verify(b"1234", rl.MemoryDesc((2, 3), "f32", "ab"), np.zeros((3, 2), np.float32))
    with pytest.raises(rl.LayoutError, match="no layout yet"):
        rl.verify(b"1234", rl.MemoryDesc((2, 3), "f32", "any"), np.zeros((2, 3), np.float32))
    with pytest.raises(rl.LayoutError):
        rl.guess(b"1234", np.array(["text"]))
    with pytest.raises(rl.LayoutError, match="a scalar"):
        rl.guess(b"1234", 3.0)


def test_large_integers_are_said_exactly() -> None:
    wanted = np.arange(2**60, 2**60 + 100)
    found = rl.verify(wanted + 1, rl.MemoryDesc((100,), "s64", "a"), wanted)
    assert f"{2**60} expected, {2**60 + 1} found" in str(found)
    assert "in place of all" not in str(found)
    assert found.to_json()["first"]["found"] == 2**60 + 1


def test_a_scalar_that_is_wrong() -> None:
    held = rl.tensor(np.float32(3))
    assert rl.verify(held.buffer, held.desc, np.float32(3))
    found = rl.verify(held.buffer, held.desc, np.float32(4))
    assert "element () at place 0, byte 0: 4 expected, 3 found" in str(found)
    assert found.instead is None


def test_nothing_is_claimed_where_all_elements_are_nan() -> None:
    x = np.full((8, 8), np.nan, np.float32)
    assert "all elements are nan" in rl.guess(x, x).reason


# --- verify ------------------------------------------------------------------------------------------------


@pytest.fixture
def dump() -> tuple[np.ndarray, rl.MemoryDesc, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((2, 17, 5, 4)).astype(np.float32)
    made = rl.tensor(x, "nChw8c")
    return made.buffer.copy(), made.desc, x


def test_a_buffer_as_it_should_be(dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, desc, x = dump
    found = rl.verify(buffer, desc, x)
    assert found
    assert (found.exact, found.padding, found.first, found.instead) == (True, 280, None, None)
    assert "all 680 elements are in their places" in str(found)


def test_padding_that_is_not_zero(dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, desc, x = dump
    place = 2 * 160 + 3  # channel 19
    buffer.view(np.float32)[place] = 1
    found = rl.verify(buffer, desc, x)
    assert (bool(found), found.holds, found.dirty, found.first_dirty) == (False, True, 1, place)


def test_patterns(dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, desc, x = dump

    def told(change: Any) -> str:
        wrong = buffer.copy()
        change(wrong.view(np.float32))
        return str(rl.verify(wrong, desc, x))

    def scaled(values: np.ndarray) -> None:
        values[160:320] *= 2

    def rows(values: np.ndarray) -> None:
        values.reshape(2, 3, 5, 4, 8)[:, :, 1::2] = 0

    def channel(values: np.ndarray) -> None:
        values.reshape(2, 3, 5, 4, 8)[..., 7] += 1

    def swapped(values: np.ndarray) -> None:
        values[:] = values.byteswap()

    text = told(scaled)
    assert "160 of 680 elements differ" in text
    assert "element (0, 8, 0, 0) at place 160, byte 640" in text
    assert "c = 8 to 15: c//8 = 1" in text
    assert "each is 2 times what was expected" in text
    assert "every second h (1, 3, ...)" in told(rows)
    assert "zeros in place of all" in told(rows)
    assert "c%8 = 7" in told(channel)
    assert "bytes of each element are swapped" in told(swapped)
    assert "memory: all that lies in the bytes 640 to 1,279" in text

    def shifted(values: np.ndarray) -> None:
        values[40:] = values[:-40].copy()

    assert "lie 40 elements (160 bytes) further on" in told(shifted)
    assert "one element" in told(lambda values: values.__setitem__(0, 9))


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (4096, 8192, "all that lies in the bytes 4,096 to 8,191 (page 1, counted from 0), and nothing else"),
        (5000, 9000, "all that lies in the bytes 5,000 to 8,999, and nothing else"),
        (640, 704, "all that lies in the bytes 640 to 703 (cache line 10, counted from 0), and nothing else"),
    ],
)
def test_a_range_of_bytes_that_was_overwritten(low: int, high: int, said: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 64, 9, 7)).astype(np.float32)
    made = rl.tensor(x, "nChw16c")
    buffer = made.buffer.copy()
    buffer.view(np.uint8)[low:high] = 0
    found = rl.verify(buffer, made.desc, x)
    assert found.different == (high - low) // 4
    assert f"memory: {said}" in found.patterns
    assert found.damaged
    assert found.to_json()["damaged"] is True
    assert "the format is right" in str(found)
    assert "comes close" not in str(found)


def test_damage_in_several_pieces_and_by_values_that_agree_here_and_there() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 64, 8, 8)).astype(np.float32)
    made = rl.tensor(x, "nChw16c")
    buffer = made.buffer.copy()
    buffer.view(np.uint8)[[*range(4096, 4160), *range(8200, 8210 + 2)]] = 255
    assert "2 pieces, and nothing else: the bytes 4,096 to 4,159 (cache line 64" in str(
        rl.verify(buffer, made.desc, x)
    )
    sparse = np.where(rng.random(x.shape) < 0.7, 0, x).astype(np.float32)
    made = rl.tensor(sparse, "nChw16c")
    buffer = made.buffer.copy()
    buffer.view(np.uint8)[4096:8192] = 0
    assert "where every element has the same value" in str(rl.verify(buffer, made.desc, sparse))
    buffer.view(np.float32)[1024:2048] = np.where(
        rng.random(1024) < 0.4, made.buffer.view("f4")[1024:2048], 7
    )
    assert "of the 1,0" in str(rl.verify(buffer, made.desc, sparse)).split("all of them lie in")[1]


def test_zeros_that_agree_in_every_format_do_not_speak_for_one() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random((1, 64, 8, 8)) < 0.9, 0, rng.standard_normal((1, 64, 8, 8))).astype(np.float32)
    buffer = rl.tensor(x, "nhwc").buffer.copy()
    buffer.view(np.uint8)[100:200] = 9
    found = rl.verify(buffer, rl.MemoryDesc(x.shape, "f32", "nChw16c"), x)
    assert found.different < x.size // 2
    assert not found.damaged


def test_swapped_bytes_of_which_some_are_nan() -> None:
    x = np.random.default_rng(0).standard_normal((1, 64, 8, 8)).astype(np.float32)
    assert np.isnan(x.byteswap()).sum() > x.size // 1000
    made = rl.tensor(x, "nChw16c")
    found = rl.verify(made.buffer.view(np.float32).byteswap(), made.desc, x)
    assert "values: the bytes of each element are swapped" in found.patterns


def test_the_other_format_is_named(dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, _, x = dump
    found = rl.verify(buffer, rl.MemoryDesc(x.shape, "f32", "nchw"), x)
    assert found.instead is not None
    assert str(found.instead.format) == "aBcd8b"


def test_a_dump_that_was_cut_off(dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, desc, x = dump
    short = buffer[: buffer.size - 1001]
    found = rl.verify(short, desc, x)
    assert (found.different, bool(found), found.missing > 0) == (0, False, True)
    partial = rl.guess(short, x)
    assert partial.best is not None
    assert (str(partial.format), partial.best.missing) == ("aBcd8b", found.missing)


def test_nan_and_infinity() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    made = rl.tensor(x, "aB16b")
    assert rl.verify(made.buffer, made.desc, x)
    assert str(rl.guess(made.buffer, x).format) == "aB16b"


def test_commands(tmp_path: Path, dump: tuple[np.ndarray, rl.MemoryDesc, np.ndarray]) -> None:
    buffer, _, x = dump
    np.save(tmp_path / "x.npy", x)
    path = tmp_path / "dump.bin"
    path.write_bytes(b"12345678" + buffer.tobytes())
    like = ["--like", str(tmp_path / "x.npy"), "--skip", "8"]

    def told(*words: str) -> tuple[int, str]:
        done = runner().invoke(application, [*words, str(path), *like], prog_name="relayout")
        assert done.stderr == ""
        return done.exit_code, done.stdout

    assert told("guess", "-q") == (0, "aBcd8b\n")
    code, text = told("guess", "--json")
    assert json.loads(text)["matches"][0]["formats"][0]["names"]["activations"]["onednn"] == "nChw8c"
    assert told("verify", "-q", "--format", "nChw8c") == (0, "")
    code, text = told("verify", "--format", "nhwc", "--json")
    assert code == 1
    assert json.loads(text)["instead"]["matches"][0]["formats"][0]["format"] == "aBcd8b"


# --- cost --------------------------------------------------------------------------------------------------


def touched(desc: rl.MemoryDesc) -> dict[str, tuple[int, int, int]]:
    return {one.name: (one.elements, one.lines, one.colliding) for one in rl.cost(desc).accesses}


def test_lines_that_accesses_touch() -> None:
    far, near = (rl.MemoryDesc((1, 64, 64, 64), "f32", format) for format in ("nchw", "nhwc"))
    assert touched(far)["channels"][:2] == (64, 64)
    assert touched(far)["channels"][2] > 0  # 16 KiB apart: all in one set
    assert touched(near)["channels"] == (64, 4, 0)
    assert touched(far)["row"] == (64, 4, 0)


@examples(40)
@given(shapes(min_rank=4, max_rank=4), st.data())
def test_lines_are_those_of_the_offsets(dims: tuple[int, ...], data: st.DataObject) -> None:
    desc = rl.MemoryDesc(dims, "f32", data.draw(formats(4)))
    for one in rl.cost(desc).accesses:
        assert one.least <= one.lines <= one.elements
        assert one.runs <= one.elements
        assert one.pages <= one.lines
    middle = [(size - 1) // 2 for size in dims]
    row = [(*middle[:3], k) for k in range(dims[3])]
    lines = {desc.layout.offset(*index) * 4 // 64 for index in row}
    assert rl.cost(desc).accesses[0].lines == len(lines)


def test_an_access_that_is_too_long_says_how_much_of_it_is_counted() -> None:
    found = rl.cost(rl.MemoryDesc((1, 200_000, 4, 4), "f32", "nchw"))
    channels = next(one for one in found.accesses if one.name == "channels")
    assert (channels.elements, channels.of) == (65_536, 200_000)
    assert "channels: counted for 65,536 of its 200,000 elements" in str(found)
    assert "counted for" not in str(rl.cost(rl.MemoryDesc((1, 64, 4, 4), "f32", "nchw")))


def test_what_a_conversion_moves() -> None:
    src = rl.MemoryDesc((1, 17, 4, 4), "f32", "nchw")
    found = rl.cost(src, rl.MemoryDesc((1, 17, 4, 4), "bf16", "nChw16c"))
    assert found.conversion is not None
    assert (found.conversion.read, found.conversion.written) == (17 * 16 * 4, 32 * 16 * 2)
    assert found.conversion.seconds > 0
    same = rl.cost(
        rl.MemoryDesc((1, 16, 4, 4), "f32", "nChw16c"), rl.MemoryDesc((1, 16, 4, 4), "f32", "nhwc")
    )
    assert "same bytes, no conversion needed" in str(same)
    padded = rl.cost(rl.MemoryDesc((1, 17, 4, 4), "f32", "nChw16c"))
    assert (padded.padding, padded.padding_share, padded.alignment) == (15 * 16, 15 / 32, 64)
    with pytest.raises(rl.LayoutError, match="no layout yet"):
        rl.cost(rl.MemoryDesc((1, 17, 4, 4), "f32", "any"))


def test_the_command_cost() -> None:
    done = runner().invoke(application, ["cost", "nChw16c", "1,17,4,4", "--to", "nhwc", "--json"])
    told = json.loads(done.stdout)
    assert (told["bytes"], told["padding"], told["conversion"]["written"]) == (2048, 240, 1088)
    assert runner().invoke(application, ["cost", "-q", "nchw", "1,2,3,4"]).stdout == "96\n"
    assert runner().invoke(application, ["cost", "nchw", "1,2,3"]).exit_code == 4
