"""The notations of compilers and accelerator libraries, against their own documentation's formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relayout import AmbiguousFormat, Format, Layout, LayoutError, MemoryDesc, UnknownFormat, Unsupported
from relayout.notation import cublaslt, cudnn, cute, dialect, mlir, mx, qnn, tensorrt, tvm, xla
from strategies import tried

MODULES = (
    "tvm", "tensorrt", "cudnn", "cublaslt", "xla", "qnn",
    "mlir", "cute", "triton", "mx", "x86", "tenstorrent",
)  # fmt: skip
RENDERING = tuple(name for name in MODULES if name != "cute")  # CuTe writes sizes, which a format has not

# Which dialect the entries of the vectors are written in, by the first part of their id.
DIALECT_OF = {
    "tvm": "tvm",
    "trt": "tensorrt",
    "cudnn": "cudnn",
    "cublaslt": "cublaslt",
    "xla": "xla",
    "qualcomm": "qnn",
    "mx": "mx",
    "vnni": "x86",
    "amx": "x86",
    "tenstorrent": "tenstorrent",
}


def entries(vectors: Callable[[str], Any]) -> list[dict[str, Any]]:
    return [e for e in vectors("other_notations")["entries"] if e["id"].split(".")[0] in DIALECT_OF]


def listed(entry: dict[str, Any]) -> list[tuple[int, int, int | None]]:
    """The digits of an entry as (axis, weight, extent); a channel count that is rounded up is two digits."""
    digits: list[tuple[int, int, int | None]] = []
    align = entry.get("pitch_align", {})
    for digit in entry["digits"]:
        axis = entry["logical_dims"].index(digit["dim"])
        multiple = align.get(digit["dim"])
        if isinstance(multiple, int):
            digits += [(axis, multiple, None), (axis, 1, multiple)]
        else:
            digits.append((axis, digit["div"], digit["mod"]))
    return digits


def digits_of(format: Format) -> list[tuple[int, int, int | None]]:
    assert all(len(term) == 1 for term in format.terms)
    return [(format.terms[d.term][0], d.weight, d.extent) for d in format.digits]


# -- the recorded notations -------------------------------------------------------------------------


def test_digits_of_every_entry(vectors: Callable[[str], Any]) -> None:
    seen = 0
    for entry in entries(vectors):
        if entry["kind"] != "digits":
            continue
        name = DIALECT_OF[entry["id"].split(".")[0]]
        format = Format(entry["notation"], dialect=name)
        assert digits_of(format) == listed(entry), entry["id"]
        assert digits_of(Format(entry["notation"])) == listed(entry), f"{entry['id']}, dialect unnamed"
        seen += 1
    assert seen >= 45


def test_examples_of_every_entry(vectors: Callable[[str], Any]) -> None:
    seen = 0
    for entry in entries(vectors):
        if "example" in entry:
            example = entry["example"]
            format = Format(entry["notation"], dialect=DIALECT_OF[entry["id"].split(".")[0]])
            layout = Layout(example["sizes"], format)
            assert layout.offset(*example["index"]) == example["offset"], entry["id"]
            assert layout.index(example["offset"]) == tuple(example["index"])
            seen += 1
    assert seen >= 4


def test_tags_that_onednn_can_say(vectors: Callable[[str], Any]) -> None:
    for entry in entries(vectors):
        if entry.get("onednn_blocking_expressible") and "pitch_align" not in entry:
            format = Format(entry["notation"], dialect=DIALECT_OF[entry["id"].split(".")[0]])
            assert format == Format(entry["onednn_style_tag"]), entry["id"]
        elif entry["kind"] == "digits" and "pitch_align" not in entry:
            assert (
                Format(entry["notation"], dialect=DIALECT_OF[entry["id"].split(".")[0]]).name("onednn")
                is None
            )


# -- what all dialects share ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_listed_names_are_read_and_rendered_again(name: str) -> None:
    module = dialect(name)
    assert module.TITLE
    for text in module.names():
        format = Format(text, dialect=name)
        assert format.rank is not None, text
        again = module.render(format)
        if again is not None:
            assert module.parse(again, format.rank, None) == format, text


@st.composite
def formats(draw: st.DrawFn, blocked: bool = False) -> Format:
    """Formats of any order of digits; ``blocked``: all open digits, then blocks in order of significance."""
    rank = draw(st.integers(1, 5))
    axes = draw(
        st.sampled_from(["abcde"[:rank], {3: "ncw", 4: "nchw", 5: "ncdhw"}.get(rank, "abcde"[:rank])])
    )
    sizes = st.sampled_from([2, 3, 4, 8, 16, 32, 128])
    blocks = draw(st.lists(st.tuples(st.sampled_from(axes), sizes), max_size=5))
    outer = draw(st.permutations(axes))
    if blocked:
        return Format.blocked(axes, outer, blocks)
    ladders: dict[str, list[int]] = {axis: [size for a, size in blocks if a == axis] for axis in axes}
    digits: list[tuple[str, int, int | None]] = []
    for axis, ladder in ladders.items():
        digits += [(axis, prod(ladder[k + 1 :]), size) for k, size in enumerate(ladder)]
        digits.append((axis, prod(ladder), None))
    return Format.from_digits(axes, draw(st.permutations(digits)))


@given(formats(), st.sampled_from(RENDERING))
def test_rendering_any_order_of_digits_reads_back(format: Format, name: str) -> None:
    text = dialect(name).render(format)
    assert text is None or dialect(name).parse(text, format.rank, None) == format


@given(formats(blocked=True), st.sampled_from(RENDERING))
def test_rendering_blocked_formats_reads_back(format: Format, name: str) -> None:
    text = dialect(name).render(format)
    assert text is None or dialect(name).parse(text, format.rank, None) == format
    if name in ("tvm", "xla"):
        assert text is not None  # these two can say every blocked format


@given(
    st.permutations("nchw"),
    st.sampled_from([(), (4,), (16, 2)]),
    st.sampled_from([(), (8,)]),
    st.sampled_from(RENDERING),
)
def test_rendering_fused_axes_reads_back(
    axes: list[str], fused: tuple[int, ...], other: tuple[int, ...], name: str
) -> None:
    pair, single, last = tuple(axes[:2]), axes[2], axes[3]
    digits: list[tuple[str | tuple[str, ...], int, int | None]] = [
        (single, prod(other), None),
        (pair, prod(fused), None),
    ]
    digits += [(last, 1, None)]
    digits += [(single, prod(other[k + 1 :]), size) for k, size in enumerate(other)]
    digits += [(pair, prod(fused[k + 1 :]), size) for k, size in enumerate(fused)]
    format = Format.from_digits("nchw", digits)
    text = dialect(name).render(format)
    assert text is None or dialect(name).parse(text, 4, None) == format
    assert (text is not None) == (name == "xla" and bool(fused))


GRAMMAR = st.text("NCHWDOIKRST0123456789nchwxkw_-/:[]{}(),<>=*@# LTFABEvm.", max_size=40)


@given(st.data(), st.sampled_from(MODULES), st.sampled_from([None, 0, 1, 2, 4, 5]))
@settings(max_examples=tried(300))
def test_junk_is_refused_by_layout_errors_alone(data: st.DataObject, name: str, rank: int | None) -> None:
    module = dialect(name)
    known = data.draw(st.sampled_from(list(module.names())))
    cut = data.draw(st.integers(0, len(known)))
    skipped = data.draw(st.integers(0, 3))
    text = data.draw(
        st.one_of(
            st.text(max_size=30), GRAMMAR, GRAMMAR.map(lambda s: known[:cut] + s + known[cut + skipped :])
        )
    )
    try:
        format = module.parse(text, rank, data.draw(st.sampled_from([None, "f16", "s8"])))
    except LayoutError:
        return
    assert format is None or isinstance(format, Format)


@pytest.mark.parametrize("text", ["NCHW", "NHWC", "NCDHW", "NDHWC", "NCW"])
def test_plain_letters_mean_the_same_everywhere(text: str) -> None:
    assert Format(text) == Format(text.lower())
    assert Format(text).roles == Format(text.lower()).roles
    assert Format(text).waits_for == frozenset()


@pytest.mark.parametrize(
    ("tag", "name", "text"),
    [
        ("nChw16c", "tvm", "NCHW16c"),
        ("OIhw16i16o", "tvm", "OIHW16i16o"),
        ("acdb", "tvm", "ACDB"),
        ("nChw16c", "tensorrt", "kCHW16"),
        ("nCdhw32c", "tensorrt", "kCDHW32"),
        ("nChw8c", "tensorrt", None),
        ("nhwc", "tensorrt", "kHWC"),
        ("ndhwc", "tensorrt", "kDHWC"),
        ("nchw", "tensorrt", "kLINEAR"),
        ("ohwi", "tensorrt", None),
        ("nhwc", "cudnn", "CUDNN_TENSOR_NHWC"),
        ("nChw4c", "cudnn", "CUDNN_TENSOR_NCHW_VECT_C:INT8x4"),
        ("nChw32c", "cudnn", "CUDNN_TENSOR_NCHW_VECT_C:INT8x32"),
        ("nCdhw16c", "cudnn", "NC/16DHW16"),
        ("OIhw16i16o", "cudnn", None),
        ("ba", "cublaslt", "CUBLASLT_ORDER_COL"),
        ("nchw", "cublaslt", None),
        ("AB8a128b", "xla", "{1,0:T(8,128)}"),
        ("AB4a128b2a", "xla", "{1,0:T(8,128)(2,1)}"),
        ("aBCD8b8c32d", "qnn", "R4CroutonLayout"),
        ("aBcd24b", "qnn", "ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0, 1,24>"),
        (
            "nChw16c",
            "mlir",
            "linalg.pack outer_dims_perm = [0, 1, 2, 3] inner_dims_pos = [1] inner_tiles = [16]",
        ),
        ("OIhw4i16o4i", "mlir", None),
        ("AB2a2b16a16b", "tenstorrent", "TILE_LAYOUT"),
        ("Ab4a", "x86", "[K/4][N][4]"),
        ("BA16a16b2a", "x86", "AMX_B_BF16"),
        ("ab", "mx", None),
        ("Ab4a", "triton", None),
    ],
)
def test_translation(tag: str, name: str, text: str | None) -> None:
    assert Format(tag).name(name) == text


# -- TVM --------------------------------------------------------------------------------------------


def test_tvm_letters() -> None:
    assert Format("HWIO", dialect="tvm") == Format("hwio")
    assert Format("OIHW[4o4i]") == Format("OIhw4o4i")
    assert Format("NC16cHW").digits_text() == "nchw -> n, c//16, c%16, h, w"  # a block may stand anywhere
    assert Format("NK16n").roles == ("N", "K")  # no batch
    assert tvm.parse("TILE") is None  # letters without a meaning, and no block that makes it TVM's
    assert Format("nhwc-8h2w32c2w-1d") == Format("nhwc-8h2w32c2w")
    assert Format("n11c-1024c", dialect="tvm").name("tvm") == "nhwc-1024c"


@pytest.mark.parametrize(
    ("text", "words"),
    [("NHW16c", "no axis C"), ("NCHW0c", "size 0")],
)
def test_tvm_refusals(text: str, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        Format(text, dialect="tvm")


def test_tvm_two_dimensional_hexagon_layouts_are_tables() -> None:
    with pytest.raises(Unsupported, match="table of pointers"):
        Format("nhwc-8h2w32c2w-2d")


# -- TensorRT and cuDNN -----------------------------------------------------------------------------


def test_tensorrt_rank_places_the_channels() -> None:
    assert Layout((5, 3, 4), "kHWC").strides == (1, 20, 5)
    assert Layout((40, 3, 4), "kCHW32").padded_dims == (64, 3, 4)
    assert Format("kHWC").resolve(5).digits_text() == "abcde -> a, b, d, e, c"
    assert Format("kLINEAR").resolve(2) == Format("ab")
    with pytest.raises(LayoutError, match="at least 4 axes"):
        Format("kDHWC").resolve(3)


def test_tensorrt_pads_channels_with_room_that_it_owns() -> None:
    x = Layout((2, 3, 2, 2), "kHWC8")
    assert x.padded_dims == (2, 8, 2, 2)
    assert x.offset(0, 2, 0, 1) == 8 + 2
    assert x.is_padding(3)
    assert x.span == 2 * 2 * 2 * 8


@pytest.mark.parametrize(("dtype", "size"), [("f16", 2), ("s8", 1)])
def test_tensorrt_dla_rows_are_64_bytes(dtype: str, size: int) -> None:
    n, c, h, w = 2, 3, 4, 40
    linear = MemoryDesc((n, c, h, w), dtype, "kDLA_LINEAR").layout
    row = -(-w // (64 // size)) * (64 // size)
    image = MemoryDesc((n, c, h, w), dtype, "kDLA_HWC4").layout
    pixels = -(-w // (64 // 4 // size)) * (64 // 4 // size)
    grey = MemoryDesc((n, 1, h, w), dtype, "kDLA_HWC4@grayscale").layout
    for i in itertools.product(range(n), range(c), range(h), (0, 1, 31, 39)):
        assert linear.offset(*i) == ((i[0] * c + i[1]) * h + i[2]) * row + i[3]
        assert image.offset(*i) == ((i[0] * h + i[2]) * pixels + i[3]) * 4 + i[1]
    assert grey.offset(1, 0, 2, 3) == (h + 2) * row + 3
    assert linear.padded_dims == (n, c, h, row)
    assert image.padded_dims == (n, 4, h, pixels)


def test_tensorrt_spellings() -> None:
    for text in ("kCHW32", "kCHW32 = NC/32HW32", "NC/32HW32", "TensorFormat::kCHW32", "TensorFormat.CHW32"):
        assert Format(text) == Format("nChw32c"), text
    assert Format("NHWC8", dialect="tensorrt") == Format("kHWC8")
    with pytest.raises(LayoutError, match="different layouts"):
        Format("kCHW32 = NC/16HW16")
    with pytest.raises(UnknownFormat, match="kCHW"):
        Format("kCHW8", dialect="tensorrt")
    assert tensorrt.parse("NC/8HW8") is None  # no vector of TensorRT's


def test_cudnn_spellings() -> None:
    for text in (
        "CUDNN_TENSOR_NCHW_VECT_C:INT8x32",
        "NCHW_VECT_C:INT8x32",
        "CUDNN_TENSOR_NCHW_VECT_C + INT8x32 (NC/32HW32)",
        "CUDNN_TENSOR_NCHW_VECT_C CUDNN_DATA_INT8x32",
        "NC/32HW32",
    ):
        assert Format(text) == Format("nChw32c"), text
    assert cudnn.parse("CUDNN_TENSOR_NCHW_VECT_C:UINT8x4") == Format("nChw4c")
    assert Format("CUDNN_TENSOR_NHWC").resolve(5) == Format("ndhwc")
    with pytest.raises(AmbiguousFormat, match=r"INT8x4.*INT8x32"):
        Format("CUDNN_TENSOR_NCHW_VECT_C")
    with pytest.raises(Unsupported, match="keeps to itself"):
        Format("CUDNN_TENSOR_REORDERING_INT8x32")
    with pytest.raises(LayoutError, match="not NC/4HW4"):
        Format("CUDNN_TENSOR_NCHW_VECT_C + INT8x32 (NC/4HW4)")


# -- cuBLASLt and MX --------------------------------------------------------------------------------


def test_cublaslt_composite_orders_by_their_formulas() -> None:
    rows, cols = 64, 96
    ampere = Layout((rows, cols), "CUBLASLT_ORDER_COL32_2R_4R4")
    turing = Layout((rows, cols), "COL4_4R2_8C")
    for r, c in itertools.product(range(rows), range(cols)):
        tile = c // 32 * (rows // 32) + r // 32
        row, col = r % 32, c % 32  # cuBLAS gives this formula for an element of a 32 x 32 tile
        assert ampere.offset(r, c) == tile * 1024 + ((row % 8 // 2 * 4 + row // 8) * 2 + row % 2) * 32 + col
        tile = c // 32 * (rows // 8) + r // 8  # 8 x 32 tiles: even rows first; 4 columns of 4 rows together
        assert turing.offset(r, c) == tile * 256 + r % 2 * 128 + c % 32 // 4 * 16 + r % 8 // 2 * 4 + c % 4
    assert cublaslt.parse("COL16") is None


def test_mx_scale_factors_by_their_formula() -> None:
    x = Layout((256, 12), mx.parse("F8_128x4"))
    for r, s in itertools.product(range(256), range(12)):
        assert x.offset(r, s) == (r // 128 * 3 + s // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + s % 4
    assert Format("SwizzleType.SWIZZLE_32_4_4") == Format("CUDNN_TENSOR_REORDERING_F8_128x4") == x.format


# -- XLA --------------------------------------------------------------------------------------------


def linear_index(index: list[int], sizes: list[int], tiles: list[list[int | None]]) -> int:
    """XLA's documentation, on numbers: join, then split off the tile, again and again; at last row-major."""
    for tile in tiles:
        first = len(sizes) - len(tile)
        i, d = index[:first], sizes[:first]
        cut_i: list[int] = []
        cut_d: list[int] = []
        carry_i, carry_d = 0, 1
        for e, n, t in zip(index[first:], sizes[first:], tile, strict=True):
            carry_i, carry_d = carry_i * n + e, carry_d * n
            if t is not None:
                i.append(carry_i // t)
                d.append(-(-carry_d // t))
                cut_i.append(carry_i % t)
                cut_d.append(t)
                carry_i, carry_d = 0, 1
        index, sizes = i + cut_i, d + cut_d
    offset = 0
    for e, n in zip(index, sizes, strict=True):
        offset = offset * n + e
    return offset


@st.composite
def tilings(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int | None]]]:
    rank = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 7), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    count = rank
    tiles: list[list[int | None]] = []
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.integers(1, count))
        tile: list[int | None] = draw(
            st.lists(st.sampled_from([1, 1, 2, 2, 3, 4, 6, None]), min_size=length, max_size=length)
        )
        tile[-1] = tile[-1] or 2
        tiles.append(tile)
        count += length - 2 * tile.count(None)
    return sizes, list(order), tiles


@given(tilings())
@settings(max_examples=tried(200))
def test_xla_tiling_is_the_documented_index_formula(
    case: tuple[list[int], list[int], list[list[int | None]]],
) -> None:
    sizes, order, tiles = case
    spelled = "".join("(" + ",".join("*" if t is None else str(t) for t in tile) + ")" for tile in tiles)
    text = "{" + ",".join(map(str, order)) + (f":T{spelled}" if tiles else "") + "}"
    try:
        format = xla.parse(text)
    except Unsupported:
        return
    assert format is not None
    layout = Layout(sizes, format)
    physical = order[::-1]
    for index in itertools.product(*map(range, sizes)):
        wanted = linear_index([index[a] for a in physical], [sizes[a] for a in physical], tiles)
        assert layout.offset(*index) == wanted, (text, sizes, index)
    again = xla.render(format)
    assert again is None or xla.parse(again) == format


def test_xla_documented_tilings() -> None:
    assert Layout((3, 5), "F32[3,5]{1,0:T(2,2)}").offset(2, 3) == 17
    assert Layout((8, 8), "{1,0:T(2,4)(2,1,1,1)}").offset(6, 5) == 51
    assert Format("{1,3,2,0}", dialect="xla") == Format("nhwc")
    joined = Layout((2, 7, 8, 11, 10), "f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}")
    assert joined.offset(1, 6, 7, 10, 9) == (55 * 37 + 36) * 6 + 1 * 3 + 1
    assert xla.render(joined.format) == "{4,3,2,1,0:T(*,*,2,*,3)}"
    assert Format("{1,0:T(-1,8)}") == Format("{1,0:T(*,8)}")
    assert Format("{1,0:D(D,D)T(8,128)E(4)S(1)}") == Format("{1,0:T(8,128)}")
    assert Format("{1,0:T(8,128)(2,1,1,1)}").name("xla") == "{1,0:T(8,128)(2,1,1,1)}"
    shorter = Format("{1,0:T(8,128)(4)(2,1)}")  # tiles of fewer dimensions than there are
    assert shorter.digits_text() == "ab -> a//8, b//128, a%8, b//8%16, b%4, b//4%2"
    assert Format("{}").rank == 0


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("{1,1}", LayoutError, "must name 2 dimensions"),
        ("f32[3]{1,0}", LayoutError, "shape has 1"),
        ("{1,0:T(2,4)} on 8x8x8", LayoutError, "shape has 3"),
        ("{0:T(8,128)}", LayoutError, "2 sizes, but there are only 1"),
        ("{1,0:T(8,*)}", LayoutError, "no right neighbour"),
        ("{1,0:T(0,8)}", LayoutError, "size of 0"),
        ("{1,0:T8}", LayoutError, "behind the colon"),
        ("{1,0:T(8,128)(3,1)}", Unsupported, "middle of an axis"),
        ("{1,0:T(2,2)(*,2,1,1)}", Unsupported, "tiled already"),
        ("{1,0:D(D,C)}", Unsupported, "sparse"),
        ("{1,0:T(8,128)L(1024)}", Unsupported, "tail padding"),
    ],
)
def test_xla_refusals(text: str, error: type[LayoutError], words: str) -> None:
    with pytest.raises(error, match=words):
        Format(text)


# -- QNN, MLIR --------------------------------------------------------------------------------------


@given(
    st.permutations(range(4)), st.lists(st.tuples(st.integers(0, 3), st.sampled_from([2, 4, 8])), max_size=5)
)
def test_qnn_pairs_are_read_from_right_to_left(order: list[int], chunks: list[tuple[int, int]]) -> None:
    pairs = [(axis, 0) for axis in order] + chunks
    text = "ChunkedMemoryLayout<4, " + ", ".join(f"{axis},{size}" for axis, size in pairs) + ">"
    sizes = (3, 17, 9, 40)
    layout = Layout(sizes, text)
    chunk = [prod(size for a, size in chunks if a == axis) for axis in range(4)]
    for index in ((0, 0, 0, 0), (2, 16, 8, 39), (1, 5, 7, 33), (2, 9, 4, 1)):
        rest, offset, room = list(index), 0, 1
        for axis, size in reversed(pairs):
            counted = size or -(-sizes[axis] // chunk[axis])
            offset += rest[axis] % counted * room
            rest[axis] //= counted
            room *= counted
        assert layout.offset(*index) == offset


def test_qnn_names() -> None:
    assert Format("R4Crouton2Layout") == Format("nhwc-8h2w32c2w")
    assert Format("R5FlatMemoryLayout") == Format("abcde")
    assert Format("R4CroutonLayout").roles == ("n", "h", "w", "c")
    assert (
        qnn.render(Format("nchw")) == "ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0>"
    )  # axis 3 is no channel there
    assert qnn.render(Format("abcd")) == "R4FlatMemoryLayout"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ChunkedMemoryLayout<2, 0,0, 1,0, 1>", "pairs"),
        ("ChunkedMemoryLayout<2, 0,0, 1,0, 2,4>", "none of the 2 axes"),
        ("ChunkedMemoryLayout<2, 0,0, 1,4>", "one pair with size 0"),
        ("ChunkedMemoryLayout<2, 0,0, 1,4, 1,0>", "nothing is left for the pair outside"),
        ("R4CroutonLayout = ChunkedMemoryLayout<4, 0,0, 1,0, 2,0, 3,0>", "R4CroutonLayout is"),
    ],
)
def test_qnn_refusals(text: str, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        Format(text)


@given(st.data())
def test_mlir_pack_is_pad_reshape_transpose(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    order = data.draw(st.permutations(range(rank)))
    tiled = data.draw(st.lists(st.integers(0, rank - 1), unique=True, max_size=rank))
    tiles = [data.draw(st.integers(2, 4)) for _ in tiled]
    text = f"linalg.pack outer_dims_perm={order} inner_dims_pos={tiled} inner_tiles={tiles}"
    layout = Layout(sizes, text)
    values = np.arange(1, prod(sizes) + 1).reshape(sizes)
    size_of = dict(zip(tiled, tiles, strict=True))
    split, outer, inner = [], {}, {}
    padding = []
    for axis, size in enumerate(sizes):
        tile = size_of.get(axis, 1)
        padding.append((0, -size % tile))
        outer[axis], inner[axis] = len(split), len(split) + 1
        split += [-(-size // tile), tile]
    packed = np.pad(values, padding).reshape(split)
    packed = packed.transpose(
        [outer[a] for a in order]
        + [inner[a] for a in tiled]
        + [inner[a] for a in set(range(rank)) - set(tiled)]
    )
    flat = packed.ravel()
    assert layout.span == flat.size
    for index in np.ndindex(*sizes):
        assert flat[layout.offset(*index)] == values[index]
    assert (
        mlir.render(mlir.parse(text))
        == f"linalg.pack outer_dims_perm = {list(order)} inner_dims_pos = {tiled} inner_tiles = {tiles}"
    )


def test_mlir_rank() -> None:
    text = "inner_dims_pos = [1] inner_tiles = [16]"
    assert Format(f"linalg.pack %a {text}").rank is None
    assert Format(f"linalg.pack %a {text}").resolve(4) == Format("nChw16c")
    types = "tensor<2x?x5x4xf32> -> tensor<2x?x5x4x16xf32>"
    whole = f"%0 = linalg.pack %a padding_value(%p : f32) {text} into %b : {types}"
    assert Format(whole) == Format("nChw16c")
    assert Format(
        f"linalg.unpack %b {text} into %a : tensor<2x2x5x4x16xf32> -> tensor<2x32x5x4xf32>"
    ) == Format("nChw16c")


@pytest.mark.parametrize(
    ("attributes", "error", "words"),
    [
        ("inner_dims_pos = [1]", LayoutError, "needs inner_dims_pos"),
        ("outer_dims_perm = [0, 0] inner_dims_pos = [1] inner_tiles = [4]", LayoutError, "no permutation"),
        ("outer_dims_perm = [0, 1] inner_dims_pos = [2] inner_tiles = [4]", LayoutError, "beyond the 2 axes"),
        ("outer_dims_perm = [0, 1] inner_dims_pos = [1, 1] inner_tiles = [4, 4]", LayoutError, "twice"),
        (
            "outer_dims_perm = [0, 1] inner_dims_pos = [1] inner_tiles = [4, 4]",
            LayoutError,
            "2 inner_tiles for 1",
        ),
        ("outer_dims_perm = [0, 1] inner_dims_pos = [1] inner_tiles = [0]", LayoutError, "size 0"),
        ("outer_dims_perm = [0, 1] inner_dims_pos = [1] inner_tiles = [%t]", Unsupported, "run time"),
    ],
)
def test_mlir_refusals(attributes: str, error: type[LayoutError], words: str) -> None:
    with pytest.raises(error, match=words):
        Format(f"linalg.pack {attributes}")


# -- CuTe -------------------------------------------------------------------------------------------

leaf = st.tuples(st.sampled_from([1, 2, 3, 4]), st.integers(0, 40))
mode = st.recursive(leaf, lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=4)


def written(tree: Any, part: int) -> str:
    return (
        str(tree[part]) if isinstance(tree, tuple) else "(" + ",".join(written(t, part) for t in tree) + ")"
    )


def size_of(tree: Any) -> int:
    return tree[0] if isinstance(tree, tuple) else prod(size_of(t) for t in tree)


def crd2idx(coordinate: int, tree: Any) -> int:
    """CuTe's map from a mode's coordinate to the offset: the leftmost mode is the fastest."""
    if isinstance(tree, tuple):
        return coordinate * tree[1]
    total = 0
    for inner in tree:
        total += crd2idx(coordinate % size_of(inner), inner)
        coordinate //= size_of(inner)
    return total


@given(st.lists(mode, min_size=1, max_size=3))
def test_cute_layouts_are_cutes_coordinates(modes: list[Any]) -> None:
    layout = cute.layout(f"{written(modes, 0)}:{written(modes, 1)}")
    assert layout.dims == tuple(size_of(tree) for tree in modes)
    for index in itertools.product(*(range(min(n, 5)) for n in layout.dims)):
        assert layout.offset(*index) == sum(crd2idx(i, tree) for i, tree in zip(index, modes, strict=True))
    again = cute.layout(cute.spell(layout))
    assert again.same_bytes(layout)
    assert cute.spell(again) == cute.spell(layout)


@given(formats(), st.data())
def test_cute_formats_are_the_dense_layouts(format: Format, data: st.DataObject) -> None:
    blocks = [prod(radices) for radices in format.radices]
    dims = [
        block * data.draw(st.integers(2, 3)) for block in blocks
    ]  # two steps at least, so that the stride shows
    dense = Layout(dims, format)
    assert Format(cute.spell(dense), dialect="cute") == format
    assert cute.layout(cute.spell(dense)) == dense
    assert cute.layout(cute.spell(dense)).format == format


def test_cute_texts() -> None:
    assert Format("(_4,_8):(_8,_1)") == Format("ab")
    assert Format("8:1") == Format("a")
    assert cute.layout("(4,8):(8,0)").offset(3, 7) == 24
    assert Format("(1,8):(0,1)") == Format("ab")
    for text, error, words in (
        ("(4,8):(10,1)", Unsupported, "holes"),
        ("(4,8):(8,0)", Unsupported, "holes"),
        ("Swizzle<3,4,3> o (8,64):(64,1)", Unsupported, "exclusive or"),
        ("Sw<3,4,3> o _0 o (_8,_64):(_64,_1)", Unsupported, "exclusive or"),
        ("(4,8):(8)", LayoutError, "2 modes, the strides 1"),
        ("((2,4),8):(1,2)", LayoutError, "nested in the same way"),
        ("(4,,8):(8,1)", LayoutError, "can't read"),
        ("(4,8:(8,1)", LayoutError, "can't read"),
        ("(0,8):(8,1)", LayoutError, "size of 0"),
        ("(" * 40 + "4" + ")" * 40 + ":1", LayoutError, "can't read"),
    ):
        with pytest.raises(error, match=words):
            Format(text, dialect="cute")
    with pytest.raises(Unsupported, match="padding"):
        cute.spell(Layout((3, 3), "Ab2a"))


# -- Triton, x86, Tenstorrent -----------------------------------------------------------------------


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8))
def test_triton_bases_are_bits_of_the_offset(axes: list[int]) -> None:
    sizes = [1, 1, 1]
    bases = []
    for axis in axes:  # any interleaving of the bits of three axes
        bases.append([sizes[axis] if a == axis else 0 for a in range(3)])
        sizes[axis] *= 2
    layout = Layout(sizes, f"#ttg.shared_linear<{{offset = {bases}}}, alignment = 16>")
    for offset in range(2 ** len(bases)):
        index = tuple(sum(v[a] for k, v in enumerate(bases) if offset >> k & 1) for a in range(3))
        assert layout.offset(*index) == offset


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#ttg.blocked<{sizePerThread = [1, 4], order = [1, 0]}>", "register"),
        ("#triton_gpu.blocked<{sizePerThread = [1, 4], order = [1, 0]}>", "register"),
        ("LinearLayout", "register"),
        ("#ttg.nvmma_shared<{swizzlingByteWidth = 128}>", "exclusive or"),
        ("#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>", "maxPhase = 8"),
        ("#ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0], [2, 2]]}, alignment = 16>", r"\[2, 2\]"),
        (
            "#ttg.shared_linear<{offset = [[0, 1], [1, 0]], block = [[2, 0]]}, alignment = 16>",
            "several blocks",
        ),
        ("#blocked", "defines elsewhere"),
    ],
)
def test_triton_refusals(text: str, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        Format(text)


def test_triton_bases_must_cover_every_bit() -> None:
    with pytest.raises(LayoutError, match="weight"):
        Format("#ttg.shared_linear<{offset = [[0, 1], [0, 4]]}, alignment = 16>")


def test_x86_packings() -> None:
    assert Format("VNNI4") == Format("[K/4][N][4]") == Format("[ K / 4 ][N] [4]") == Format("Ab4a")
    assert Format("[N/16][K/4][16][4]") == Format("BA16b4a")
    assert Format("AMX_B_INT8") == Format("16 rows x 64 bytes: B tile 64(K)x16(N)") == Format("BA16a16b4a")
    assert Format("[K/4][N][4]").roles == ("k", "cols")
    with pytest.raises(AmbiguousFormat, match="of K or of N"):
        Format("[N/16][K/16][16][16]")
    for text in ("[K/4][4]", "[K/4][N][2]", "[K/4][N]", "[K/0][N]", "[K/4][N][4][4]"):
        with pytest.raises(LayoutError):
            Format(text)


def test_tenstorrent_tiles() -> None:
    x = Layout((64, 64), "TILE_LAYOUT")
    assert x.offset(17, 3) == 531
    assert x.offset(33, 0) == 2 * 1024 + 16
    assert Layout((2, 3, 20, 40), "TILE_LAYOUT").padded_dims == (2, 3, 32, 64)
    assert (
        Format("TILE_LAYOUT").resolve(3).digits_text()
        == "abc -> a, b//32, c//32, b//16%2, c//16%2, b%16, c%16"
    )
    assert Format("TILE_LAYOUT 16x32") == Format("TILE_LAYOUT 16x32 with 16x16 faces") == Format("AB2b16a16b")
    assert Format("ROW_MAJOR_LAYOUT").resolve(3) == Format("abc")
    for text in ("TILE_LAYOUT 24x32", "TILE_LAYOUT 32x32 with 8x8 faces"):
        with pytest.raises(LayoutError, match="tile"):
            Format(text)
    with pytest.raises(LayoutError, match="last two axes"):
        Format("TILE_LAYOUT").resolve(1)
