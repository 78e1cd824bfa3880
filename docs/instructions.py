"""Pictures of the instructions that add up products of narrow numbers, and of the formats that they want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from relayout.draw.canvas import INK, MUTED, PAPER, RULE, Canvas, fill_of

__all__ = ["INSTRUCTIONS"]

CELL, HIGH = 38.0, 26.0
APART = 10.0  # between lanes
LEFT_OUT = 34.0  # the room of lanes that are not drawn


def lanes(
    title: str,
    depth: int,
    count: int,
    spread: tuple[str, Callable[[int, int], str]],
    dense: tuple[str, Callable[[int, int], str]],
    sums: tuple[str, Callable[[int], str]],
    note: str,
) -> str:
    """One instruction on registers: a word in all lanes, neighbouring words, a sum in each lane.

    ``spread`` and ``dense`` are what two registers hold: a heading, and the element at a place of a lane.
    """
    canvas = Canvas()
    canvas.words(0, 13, title, size=14, anchor="start", bold=True)
    shown = [*range(min(count, 4)), *([count - 1] if count > 4 else [])]
    wide = depth * CELL
    places = [k * (wide + APART) + LEFT_OUT * (k == 4) for k in range(len(shown))]
    tops = 46.0, 116.0, 200.0
    for top, (heading, of) in zip(tops, (spread, dense), strict=False):
        canvas.words(0, top - 8, heading, size=11, anchor="start", fill=MUTED, mono=False)
        for left, lane in zip(places, shown, strict=True):
            for k in range(depth):
                canvas.box(left + k * CELL, top, CELL, HIGH, fill=fill_of(k), stroke=PAPER, thickness=0.6)
                canvas.words(left + (k + 0.5) * CELL, top + 17, of(lane, k), size=10)
            canvas.box(left, top, wide, HIGH, thickness=1.2)
    canvas.words(0, tops[2] - 8, sums[0], size=11, anchor="start", fill=MUTED, mono=False)
    for left, lane in zip(places, shown, strict=True):
        for k in range(depth):
            middle = left + (k + 0.5) * CELL
            canvas.line([(middle, tops[0] + HIGH), (middle, tops[1] - 22)], stroke=RULE)
            canvas.wire(middle, tops[1] + HIGH, left + wide / 2, tops[2] - 22, stroke=MUTED, thickness=1)
        canvas.box(left, tops[2], wide, HIGH, thickness=1.2)
        canvas.words(left + wide / 2, tops[2] + 17, sums[1](lane), size=10)
    if len(shown) == 5:
        middle = (places[3] + wide + places[4]) / 2
        for top in tops:
            canvas.words(middle, top + 17, "...", fill=MUTED)
    canvas.words(0, tops[2] + HIGH + 22, note, size=11, anchor="start", fill=MUTED, mono=False)
    return canvas.document(title, f"{spread[0]}; {dense[0]}; {sums[0]}. {note}")


def tiles(
    title: str,
    rows: tuple[str, int],
    inputs: tuple[str, int, int],
    columns: tuple[str, int],
    note: Sequence[str],
) -> str:
    """One instruction on tiles: rows of the source by groups of inputs, and these by outputs.

    ``inputs`` has the number of groups, and how many inputs a group has.
    """
    canvas = Canvas()
    canvas.words(0, 13, title, size=14, anchor="start", bold=True)
    size, top = 11.0, 64.0
    (row, down), (name, groups, depth), (column, across) = rows, inputs, columns
    many = groups * depth
    shown = min(groups, 4)

    def grid(left: float, upper: float, high: int, wide: int, colour: Callable[[int, int], int]) -> None:
        for y in range(high):
            for x in range(wide):
                fill = fill_of(colour(y, x))
                canvas.box(
                    left + x * size, upper + y * size, size, size, fill=fill, stroke=PAPER, thickness=0.6
                )
        canvas.box(left, upper, wide * size, high * size, thickness=1.2)

    def head(left: float, text: str, more: str) -> None:
        canvas.words(left, top - 26, text, size=11, anchor="start", bold=True, mono=False)
        canvas.words(left, top - 10, more, size=11, anchor="start", fill=MUTED, mono=False)

    wide = shown * depth
    head(0, "source", f"{down} {row} by {many} {name}")
    grid(0, top, down, wide, lambda y, x: x % depth)
    if shown < groups:
        canvas.words(wide * size + 14, top + down * size / 2, "...", fill=MUTED)
    middle = wide * size + 34 + 14
    canvas.words(middle - 8, top + down * size / 2 + 4, "x", size=14)
    head(middle + 10, "weights", f"a row: {depth} {name} of each of {across} {column}")
    grid(middle + 10, top, shown, min(across, 8) * depth, lambda y, x: x % depth)
    right = middle + 10 + min(across, 8) * depth * size
    if across > 8:
        canvas.words(right + 14, top + shown * size / 2 + 4, "...", fill=MUTED)
    if shown < groups:
        canvas.words(middle + 20, top + shown * size + 14, "...", fill=MUTED)
    for k in range(min(across, 8) + 1):
        at = middle + 10 + k * depth * size
        canvas.line([(at, top), (at, top + shown * size)], stroke=INK, thickness=0.8)
    canvas.words(right + 44, top + down * size / 2 + 4, "+=", size=14)
    last = right + 70
    head(last, "sums", f"{down} {row} by {across} {column}, 32 bits")
    for y in range(down):
        for x in range(min(across, 16)):
            canvas.box(last + x * size, top + y * size, size, size, fill=PAPER, stroke=RULE, thickness=0.6)
    canvas.box(last, top, min(across, 16) * size, down * size, thickness=1.2)
    for k, text in enumerate(note):
        line = top + max(down, shown) * size + 24 + 16 * k
        canvas.words(0, line, text, size=11, anchor="start", fill=MUTED, mono=False)
    return canvas.document(title, " ".join(note))


def _words(first: str, second: str) -> Callable[[int, int], str]:
    """Labels of elements by lane and place."""
    return lambda lane, k: f"{first}{lane}{second}{k}"


INSTRUCTIONS: dict[str, Callable[[], str]] = {
    "instruction-vpdpbusd": partial(
        lanes,
        "vpdpbusd: four products of bytes in each of 16 lanes",
        4,
        16,
        ("source, u8: four neighbouring channels of a pixel, in all lanes", lambda lane, k: f"c{k}"),
        ("weights, s8: a line of OIhw4i16o4i, 16 outputs with 4 inputs each", _words("o", "i")),
        ("sums, s32: of each output the four products, added to what there is", lambda lane: f"o{lane} +="),
        "Four channels side by side: nhwc, nChw16c, NCHW4, NCHW32. OhwI16o4i has the same lines of weights.",
    ),
    "instruction-vdpbf16ps": partial(
        lanes,
        "vdpbf16ps: two products of bf16 in each of 16 lanes",
        2,
        16,
        ("source, bf16: two channels, in all lanes", lambda lane, k: f"c{k}"),
        ("weights, bf16: a line of OIhw16i16o2i", _words("o", "i")),
        ("sums, f32", lambda lane: f"o{lane} +="),
        "OIhw16i16o2i, OIhw8i16o2i and OhwI16o2i have the same lines.",
    ),
    "instruction-dp4a": partial(
        lanes,
        "dp4a: four products of bytes, in each thread of a graphics processor",
        4,
        32,
        (
            "weights: four inputs of one output, a word that is the same in all threads",
            lambda lane, k: f"i{k}",
        ),
        (
            "source: words of NCHW4 (b_fs_yx_fsv4), 32 neighbouring pixels with 4 channels each",
            _words("x", "c"),
        ),
        ("sums, s32: a pixel a thread, for one output", lambda lane: f"x{lane} +="),
        "The threads of a warp read 32 words that are neighbours: one line of 128 bytes.",
    ),
    "instruction-amx": partial(
        tiles,
        "tdpbusd: a tile of 16 rows by a tile of weights, AMX",
        ("pixels", 16),
        ("inputs", 16, 4),
        ("outputs", 16),
        (
            "Each tile is 16 rows of 64 bytes. A row of weights has four inputs of each output side by side:",
            "BA16a64b4a is that for 64 inputs by 64 outputs, four tiles. A row of the source: 64 channels.",
        ),
    ),
    "instruction-mma": partial(
        tiles,
        "mma.m16n8k32: 16 rows by 8 columns, 32 bytes of each, in a tensor core",
        ("pixels", 16),
        ("inputs", 8, 4),
        ("outputs", 8),
        (
            "A thread holds words of four inputs. NCHW32 (fsv32) has the 32 channels of one instruction",
            "side by side, so that a warp reads its rows as whole lines.",
        ),
    ),
}
