"""Draw the pictures and write the tables of these pages, from the library itself.

    python docs/draw.py            write docs/pictures/*.svg and the tables inside the pages
    python docs/draw.py --check    write nothing; fail if anything would change

Nothing on a page that the library can say is written by hand: a picture is a call of
:mod:`relayout.draw.svg`, and a table between ``<!-- table: name -->`` and ``<!-- end of table -->`` is a
function of ``tables.py``. A test runs the check.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from diagrams import architecture, formats, logo, network, propagation, refinement, tile, values
from gallery import GALLERY
from instructions import INSTRUCTIONS
from tables import TABLES

import relayout as rl
from relayout.draw import svg
from relayout.stores.grid import chunk_layout

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PICTURES = DOCS / "pictures"

MATRIX = (3, 4)
IMAGES = (2, 3, 2, 4)
SEVENTEEN = rl.Layout((1, 17, 2, 2), "nChw8c")
PART = rl.views.submemory(rl.Layout((4, 8), "ab"), (2, 3), (1, 2))
CHANNELS = rl.views.submemory(rl.Layout((1, 32, 2, 2), "nChw16c"), (1, 4, 2, 2), (0, 4, 0, 0))
HALF = rl.views.slice_axis(rl.Layout((1, 4, 2, 2), "nhwc"), 1, 0, 2)
SWIZZLED = "oi -> o//8, i//2, o%2, o//2%4, i%2"


def walk(format: str, colour: str, title: str | None = None) -> str:
    """The way through an 8 x 8 matrix."""
    return svg.logical(rl.Layout((8, 8), format), path=True, colour=colour, title=title or format)


def chunks(format: str, sizes: tuple[int, ...]) -> str:
    """The digits of a store."""
    desc = rl.MemoryDesc((64, 256, 128, 128), "f32", format)
    layout, outer = chunk_layout(desc, sizes)
    title = f"{desc} in chunks of {'x'.join(map(str, sizes))}"
    return svg.digits(layout, axes=layout.axis_names(), outer=outer, title=title)


DRAWINGS: dict[str, Callable[[], str]] = {
    "logo": logo,
    "architecture": architecture,
    "formats": formats,
    # strides
    "matrix": lambda: svg.logical(rl.Layout(MATRIX, "ab"), colour="a", mark=(1, 2)),
    "matrix-ab": lambda: svg.memory(rl.Layout(MATRIX, "ab"), colour="a", mark=(1, 2)),
    "matrix-ba": lambda: svg.memory(rl.Layout(MATRIX, "ba"), colour="a", mark=(1, 2)),
    # plain orders of images
    "images": lambda: svg.logical(rl.Layout(IMAGES, "nchw"), colour="c"),
    "images-nchw": lambda: svg.memory(rl.Layout(IMAGES, "nchw"), colour="c", separator=""),
    "images-nhwc": lambda: svg.memory(rl.Layout(IMAGES, "nhwc"), colour="c", separator=""),
    "images-chwn": lambda: svg.memory(rl.Layout(IMAGES, "chwn"), colour="c", separator=""),
    # blocks, digits, padding
    "block": lambda: svg.memory(rl.Layout((1, 16, 2, 2), "nChw8c"), mark=(0, 9, 1, 0)),
    "block-digits": lambda: svg.digits("nChw8c"),
    "digits": lambda: svg.digits(rl.Layout((2, 17, 5, 4), "nChw8c"), index=(1, 9, 0, 2)),
    "seventeen": lambda: svg.logical(SEVENTEEN, mark=(0, 9, 1, 0)),
    "seventeen-memory": lambda: svg.memory(SEVENTEEN, mark=(0, 9, 1, 0)),
    # chunks
    "chunks-nchw": lambda: chunks("nchw", (2, 64, 64, 128)),
    "chunks-blocked": lambda: chunks("nChw16c", (1, 8, 128, 128, 16)),
    "fsv16": lambda: svg.memory(rl.Layout((2, 2, 2, 2), "b_fs_yx_fsv16"), colour="b", separator=""),
    # weights
    "weights": lambda: svg.digits(rl.Layout((32, 16, 3, 3), "OIhw4i16o4i"), index=(17, 5, 0, 2)),
    "weights-small": lambda: svg.memory(
        rl.Layout((4, 8), rl.Format.blocked("oi", "oi", [("i", 2), ("o", 4), ("i", 4)])),
        columns=16,
        colour="o",
    ),
    "amx": lambda: svg.digits("AMX_B_INT8"),
    # ways through a matrix
    "walk-ab": lambda: walk("ab", "a//4"),
    "walk-ba": lambda: walk("ba", "b//4"),
    "walk-strips": lambda: walk("Ba4b", "b//4"),
    "walk-tiles": lambda: walk("AB4a4b", "a//4"),
    "walk-tiles-turned": lambda: walk("BA4b4a", "b//4"),
    "walk-z": lambda: walk("AB2a2b2a2b", "a//4", "AB2a2b2a2b"),
    "walk-swizzle": lambda: walk("ab -> a%2, a//2, b", "a%2", "a%2, a//2, b"),
    # swizzles and fused axes
    "swizzle-digits": lambda: svg.digits("os_is_yx_osv32_isv4_swizzled_by_2"),
    "swizzle": lambda: svg.memory(
        rl.Layout((8, 4), SWIZZLED), columns=8, colour="o%2", title="o//8, i//2, o%2, o//2%4, i%2 in memory"
    ),
    "fused": lambda: svg.digits(rl.Layout((16, 2, 3, 3), "i_yxs_os_yxsv2_osv16"), index=(3, 1, 2, 1)),
    # parts of tensors, half bytes
    "part": lambda: svg.memory(
        PART, columns=8, colour="a", title="rows 1..2, columns 2..4 of a 4 x 8 matrix, in memory"
    ),
    "channels": lambda: svg.memory(
        CHANNELS, axes="nchw", columns=16, colour="h", title="channels 4..7 of nChw16c:1x32x2x2, in memory"
    ),
    "nibbles": lambda: svg.memory(
        rl.Layout((1, 1, 2, 3), "NCHW@lowbit"),
        columns=2,
        colour="h",
        title="NCHW@lowbit 1x1x2x3: a row is a byte",
    ),
    # PyTorch
    "torch-contiguous": lambda: svg.memory(
        rl.Layout((1, 3, 2, 4), "nchw"), title="contiguous_format, 1x3x2x4"
    ),
    "torch-channels-last": lambda: svg.memory(
        rl.Layout((1, 3, 2, 4), "nhwc"), title="channels_last, 1x3x2x4"
    ),
    "torch-sliced": lambda: svg.memory(
        HALF, axes="nchw", columns=4, colour="c", title="x[:, :2] of a channels_last tensor 1x4x2x2"
    ),
    # reorder
    "refinement": lambda: refinement(
        rl.Layout((1, 100, 7, 7), "nChw48c"), rl.Layout((1, 100, 7, 7), "nChw32c"), 1
    ),
    "refinement-17": lambda: refinement(
        rl.Layout((1, 17, 2, 2), "nchw"), rl.Layout((1, 17, 2, 2), "nChw8c"), 1
    ),
    "values": values,
    "tile": tile,
    "network": network,
    "propagation": propagation,
    **GALLERY,
    **INSTRUCTIONS,
}


def files() -> dict[Path, str]:
    """All pictures, and all pages with their tables, as they should be."""
    made = {PICTURES / f"{name}.svg": draw() for name, draw in DRAWINGS.items()}
    for page in sorted([*DOCS.rglob("*.md"), ROOT / "README.md"]):
        made[page] = with_tables(page.read_text(encoding="utf-8"))
    return made


def with_tables(text: str) -> str:
    """The text of a page with its tables written anew."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{TABLES[match[2]]().strip()}\n\n{match[3]}"

    return re.sub(r"(<!-- table: ([a-z0-9-]+) -->).*?(<!-- end of table -->)", fill, text, flags=re.DOTALL)


def main() -> int:
    """Write what differs; with ``--check`` only name it."""
    stale = [
        path
        for path, text in files().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    left = set(PICTURES.glob("*.svg")) - set(files())
    if "--check" in sys.argv:
        for path in sorted([*stale, *left]):
            print(f"{path.relative_to(ROOT)} is not what the code draws; run docs/draw.py")
        return bool(stale or left)
    PICTURES.mkdir(exist_ok=True)
    for path, text in files().items():
        if path in stale:
            path.write_text(text, encoding="utf-8")
    for path in left:
        path.unlink()
    print(f"{len(DRAWINGS)} pictures, {len(stale)} files written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
