"""Diagrams of these pages that are not pictures of a layout: imports, refinements, values, tiles, figures."""

from __future__ import annotations

from measures import FORMATS, shares

import relayout as rl
from relayout.draw.canvas import FILLS, INK, MUTED, PAPER, RULE, Canvas, fill_of, text_width
from relayout.kernels.copy.network import Network
from relayout.loops.refine import refine


def logo() -> str:
    """A plane cut into blocks, and one of the blocks moved out."""
    canvas = Canvas()
    for row in range(3):
        for column in range(3):
            moved = 8 if (row, column) == (1, 1) else 0
            canvas.box(
                column * 22 + moved, row * 22 + moved, 20, 20, fill=fill_of(row), stroke="none", round=3
            )
    return canvas.document("Relayout", "Nine blocks in three colours.")


def refinement(src: rl.Layout, dst: rl.Layout, axis: int) -> str:
    """One axis, cut at the block borders of both layouts."""
    group = next(g for g in refine(src, dst) if axis in g.axes)
    pieces = sorted(group.pieces or (), key=lambda p: p.starts)
    size, name = group.size, src.axis_names()[axis]
    scale = max(5.6, 320 / size)
    canvas = Canvas()
    title = f"{src.format} to {dst.format}: the axis {name}, {size} numbers"
    canvas.words(0, 13, title, size=14, anchor="start", bold=True)
    borders = {0, size}
    for label, layout, y in (("source", src, 44.0), ("destination", dst, 96.0)):
        blocked = len(layout.ladders[axis]) > 1
        block = layout.ladders[axis][0].weight if blocked else size
        said = f"{label}, {layout.format}: " + (f"blocks of {block}" if blocked else "no blocks")
        canvas.words(0, 39 if y < 50 else 136, said, size=11, anchor="start", fill=MUTED, mono=False)
        borders.update(range(0, size, block))
        for k, start in enumerate(range(0, size, block)):
            end = min(start + block, size)
            canvas.box(start * scale, y, (end - start) * scale, 26, fill=fill_of(k), thickness=0.8)
            text = f"{name}//{block} = {k}" if blocked else name
            if text_width(text, 11) < (end - start) * scale:
                canvas.words((start + end) / 2 * scale, y + 17, text, size=11)
            if start + block > size:  # the last block ends with padding; a part of it is enough to see that
                canvas.hatch(size * scale, y, min(start + block - size, 24) * scale, 26, fill=fill_of(k))
    for border in borders:
        canvas.line([(border * scale, 70), (border * scale, 96)], stroke=INK, thickness=0.8)
    count = f"{len(pieces)} pieces, straight on both sides; steps of source and destination in elements"
    canvas.words(0, 166, count, size=11, anchor="start", fill=MUTED, mono=False)
    for k, piece in enumerate(pieces):
        first = piece.starts[0]
        last = first + sum((loop.extent - 1) * loop.steps[0] for loop in piece.loops)
        loops = ", ".join(f"{n} times ({src}, {dst})" for n, (_, src, dst) in piece.loops)
        canvas.words(0, 186 + k * 18, f"{name} = {first}..{last}", anchor="start", bold=True, size=11)
        canvas.words(110, 186 + k * 18, loops, anchor="start", size=11)
    return canvas.document(title, f"The axis {name} of {size} numbers is cut into {len(pieces)} pieces.")


def values() -> str:
    """What happens to a value between source and destination."""
    canvas = Canvas()
    canvas.words(0, 13, "What happens to a value on its way", size=14, anchor="start", bold=True)
    steps = [
        ("source", "src"),
        ("zero point", "- src_zero_point"),
        ("scale", "x src_scale"),
        ("shift", "- src_shift"),
        ("accumulate", "+ beta x old"),
        ("scale", "/ dst_scale"),
        ("zero point", "+ dst_zero_point"),
        ("round, saturate", "to the type"),
    ]
    width, height, a_row = 148.0, 46.0, 4
    for k, (name, formula) in enumerate(steps):
        x, y = k % a_row * (width + 22), 30 + k // a_row * (height + 28)
        last = k == len(steps) - 1
        canvas.box(x, y, width, height, fill=FILLS[0] if not k else FILLS[3] if last else FILLS[1], round=4)
        canvas.words(x + width / 2, y + 18, name, size=11, mono=False)
        canvas.words(x + width / 2, y + 36, formula, bold=True)
        if not last and (k + 1) % a_row:
            canvas.line(
                [(x + width + 2, y + height / 2), (x + width + 20, y + height / 2)], arrow=True, thickness=1.4
            )
        elif not last:
            turn = y + height + 14
            canvas.line(
                [
                    (x + width / 2, y + height + 2),
                    (x + width / 2, turn),
                    (width / 2, turn),
                    (width / 2, turn + 13),
                ],
                arrow=True,
                thickness=1.4,
            )
    return canvas.document(
        "What happens to a value on its way",
        "Eight steps from source to destination: " + ", ".join(f for _, f in steps) + ".",
    )


def tile() -> str:
    """A plane of floats that is transposed: 20 rows by 10 columns in tiles of 16 by 4."""
    canvas = Canvas()
    rows, columns, down, across = 20, 10, 16, 4
    size, wide = 15.0, 21.0
    right = columns * size + 64
    canvas.words(
        0, 13, "Transposing a plane of 20 rows by 10 columns, f32", size=14, anchor="start", bold=True
    )
    canvas.words(0, 35, "source", size=11, anchor="start", fill=MUTED, mono=False)
    for row in range(rows):
        for column in range(columns):
            inside = row < down and column < across
            fill = fill_of(column) if inside else PAPER
            canvas.box(column * size, 44 + row * size, size, size, fill=fill, stroke=RULE, thickness=0.6)
    back = columns - across
    canvas.hatch(back * size, 44, (2 * across - back) * size, rows * size, fill=MUTED)
    for top, height in ((0, down), (down, rows - down)):
        for left in (0, across, back):
            box = (left * size, 44 + top * size, across * size, height * size)
            canvas.box(*box, thickness=1.4, dashed=left == back)
    below = 44 + rows * size
    for k, text in enumerate(
        ("a row of a tile: 16 bytes", "hatched: written twice", "the last 4 rows: smaller tiles")
    ):
        canvas.words(0, below + 18 + k * 16, text, size=11, anchor="start", fill=MUTED, mono=False)
    canvas.words(right, 35, "destination: the same tile", size=11, anchor="start", fill=MUTED, mono=False)
    for column in range(across):
        y = 44 + column * 52
        for row in range(down):
            canvas.box(right + row * wide, y, wide, 24, fill=fill_of(column), stroke=PAPER, thickness=0.6)
            canvas.words(right + (row + 0.5) * wide, y + 16, str(row), size=10)
        canvas.box(right, y, down * wide, 24, thickness=1.2)
        said = f"column {column}, rows 0 to 15: a whole line of 64 bytes"
        canvas.words(right, y + 37, said, size=11, anchor="start", fill=MUTED, mono=False)
    middle = 44 + down / 2 * size
    canvas.line([(columns * size + 12, middle), (right - 12, middle)], arrow=True, thickness=1.4)
    return canvas.document(
        "Transposing a plane of 20 rows by 10 columns",
        "Tiles of 16 rows by 4 columns. The last tile of each row of tiles begins 2 columns earlier; 4 rows "
        "are left for smaller tiles. Each column of a tile becomes 64 neighbouring bytes.",
    )


def unpacked(registers: list[list[str]], bit: int, together: int) -> list[list[str]]:
    """One stage: halves of registers whose numbers differ in a bit, interleaved."""
    after = list(registers)
    for one in range(len(registers)):
        if one >> bit & 1:
            continue
        two, half = one | 1 << bit, len(registers[one]) // 2
        for number, start in ((one, 0), (two, half)):
            after[number] = [
                element
                for place in range(start, start + half, together)
                for register in (one, two)
                for element in registers[register][place : place + together]
            ]
    return after


def network() -> str:
    """Four rows of four floats, transposed by two stages of unpacking."""
    canvas = Canvas()
    made = Network(32, 4, 4)
    canvas.words(0, 13, "Four rows of four floats become four columns", size=14, anchor="start", bold=True)
    states = [[[f"{'abcd'[row]}{column}" for column in range(4)] for (row,) in made.rows]]
    for stage, bit in enumerate(made.stages):
        states.append(unpacked(states[-1], bit, 1 << stage))
    cell, apart, height = 34.0, 92.0, 26.0
    heads = ("rows of the source", "interleaved one by one", "interleaved two by two")
    for k, (head, registers) in enumerate(zip(heads, states, strict=True)):
        left = k * (4 * cell + apart)
        canvas.words(left, 40, head, size=11, anchor="start", fill=MUTED, mono=False)
        for number, register in enumerate(registers):
            y = 50 + number * 46
            for place, element in enumerate(register):
                canvas.box(left + place * cell, y, cell, height, fill=fill_of(int(element[1])), thickness=0.8)
                canvas.words(left + (place + 0.5) * cell, y + 17, element)
            canvas.box(left, y, 4 * cell, height, thickness=1.4)
            if k < len(made.stages):
                bit = 1 << made.stages[k]
                pair = number & ~bit
                for target in (pair, pair | bit):
                    ends = [
                        (left + 4 * cell + 6, y + height / 2),
                        (left + 4 * cell + apart - 6, 50 + target * 46 + height / 2),
                    ]
                    canvas.line(ends, arrow=True, stroke=MUTED)
            else:
                canvas.words(
                    left + 4 * cell + 12, y + 17, f"column {register[0][1]}", size=11, anchor="start"
                )
    return canvas.document(
        "Four rows of four floats become four columns",
        "Two stages, each with four instructions that interleave the halves of two registers.",
    )


# name: column and row of its box, columns that it spans, title, text below
PARTS = {
    "cli": (0, 0, 4, "cli", "the command relayout"),
    "files": (0, 1, 1, "files", "npy, safetensors, png"),
    "bench": (1, 1, 1, "bench", "cases, peers, ratios"),
    "importers": (2, 1, 1, "importers", "ONNX, torch.export"),
    "draw": (3, 1, 1, "draw", "svg, text"),
    "networks": (1, 2, 1, "networks", "ResNets"),
    "graph": (1, 3, 2, "graph", "operators, planner, run"),
    "primitives": (0, 4, 3, "primitives", "operation, candidates, executable; sequences"),
    "reorder": (0, 5, 3, "reorder", "rl.reorder, plans, NumPy engine"),
    "runtime": (0, 6, 1, "runtime", "threads, calls, tuning"),
    "kernels": (1, 6, 1, "kernels", "copy, reduce, conv, ..."),
    "tensor": (2, 6, 1, "tensor.py", "descriptor and buffer"),
    "notation": (3, 6, 1, "notation", "one module a dialect"),
    "jit": (0, 7, 1, "jit", "compile, cache"),
    "ops": (1, 7, 1, "ops", "what operations mean"),
    "loops": (2, 7, 1, "loops", "nests, passes"),
    "targets": (0, 8, 1, "targets", "processors"),
    "ir": (1, 8, 1, "ir", "typed builder"),
    "layout": (2, 8, 2, "layout", "what a layout is, views, the normal form"),
    "pytorch": (3, 9, 1, "pytorch", "stride rules"),
    "base": (0, 10, 4, "dtypes.py, convert.py, errors.py", "data types, values, messages"),
}
ARROWS = [
    ("cli", "files", 0),
    ("cli", "bench", 1),
    ("cli", "importers", 2),
    ("cli", "draw", 3),
    ("files", "primitives", 0),
    ("bench", "networks", 1),
    ("networks", "graph", 1),
    ("importers", "graph", 2),
    ("graph", "primitives", 1),
    ("primitives", "reorder", 1),
    ("reorder", "runtime", 0),
    ("reorder", "kernels", 1),
    ("reorder", "tensor", 2),
    ("draw", "notation", 3),
    ("runtime", "jit", 0),
    ("kernels", "ops", 1),
    ("tensor", "loops", 2),
    ("jit", "targets", 0),
    ("ops", "ir", 1),
    ("loops", "layout", 2),
    ("notation", "layout", 3),
    ("pytorch", "base", 3),
    ("layout", "base", 2),
    ("ir", "base", 1),
    ("targets", "base", 0),
]
"""Who imports whom, and in which column the arrow is drawn; what is below may be imported, too."""
ASIDE = [
    *(("kernels", "loops"), ("kernels", "targets"), ("runtime", "ir"), ("ir", "targets")),
    *(("ops", "layout"), ("reorder", "ops"), ("draw", "loops"), ("bench", "importers")),
]
"""Imports whose arrows would cross others, and are not drawn."""


def architecture() -> str:
    """Which part imports which: every arrow points down."""
    canvas = Canvas()
    canvas.words(0, 13, "Imports point downwards", size=14, anchor="start", bold=True)
    width, gap, height, step = 158.0, 16.0, 44.0, 70.0
    for upper, lower, column in ARROWS:
        x = column * (width + gap) + width / 2
        canvas.line(
            [(x, 30 + PARTS[upper][1] * step + height), (x, 30 + PARTS[lower][1] * step - 3)],
            arrow=True,
            stroke=MUTED,
            thickness=1.6,
        )
    for column, row, span, name, text in PARTS.values():
        x, y, wide = column * (width + gap), 30 + row * step, span * width + (span - 1) * gap
        canvas.box(x, y, wide, height, fill=fill_of(9 - row), round=4)
        canvas.words(x + wide / 2, y + 19, name, bold=True, size=13)
        canvas.words(x + wide / 2, y + 35, text, size=11, mono=False)
    return canvas.document(
        "Imports point downwards", "; ".join(f"{a} imports {b}" for a, b, _ in ARROWS) + "."
    )


NETWORKS = ("ResNet-50, batch 1", "ResNet-50, batch 8", "ResNeXt-101, batch 1", "MobileNetV2, batch 1")


def formats() -> str:
    """How fast convolutions are in each format, as a part of the best one."""
    figures = shares()
    canvas = Canvas()
    title = "Speed of convolutions in each format, relative to the fastest one"
    canvas.words(0, 13, title, size=14, anchor="start", bold=True)
    canvas.words(0, 33, "one thread; longer is faster", size=11, anchor="start", fill=MUTED, mono=False)
    left, wide, apart, high, top = 66.0, 112.0, 52.0, 20.0, 76.0
    bottom, said = top + high * len(FORMATS), []
    for row, name in enumerate(FORMATS):
        canvas.words(left - 8, top + row * high + 12, name, size=11, anchor="end")
    for column, network in enumerate(NETWORKS):
        x = left + column * (wide + apart)
        speeds = {name: figures[network, 1][f"Relayout {name}"] for name in FORMATS}
        best = max(speeds.values())
        what, _, batch = network.partition(", ")
        canvas.words(x, top - 22, what, size=12, anchor="start", bold=True)
        canvas.words(x, top - 8, batch, size=11, anchor="start", fill=MUTED)
        for row, share in enumerate(speeds.values()):
            y, part = top + row * high, share / best
            fastest = f"{part:.2f}" == "1.00"  # as it is written
            canvas.box(x, y, wide, high - 4, fill=RULE, stroke="none", opacity=0.35)
            canvas.box(x, y, part * wide, high - 4, fill=FILLS[3 if fastest else 0], stroke="none")
            canvas.words(x + wide + 6, y + 12, f"{part:.2f}", size=11, anchor="start", bold=fastest)
        canvas.line([(x, top - 4), (x, bottom)], stroke=MUTED, thickness=0.8)
        said.append(f"{network}: " + ", ".join(f"{name} {speeds[name] / best:.2f}" for name in FORMATS))
    x = left
    for fill, text in ((FILLS[3], "fastest for this network"), (FILLS[0], "others")):
        canvas.box(x, bottom + 12, 14, 14, fill=fill, stroke="none")
        canvas.words(x + 20, bottom + 23, text, size=11, anchor="start", mono=False)
        x += 34 + text_width(text, 11)
    return canvas.document(title, "; ".join(said) + ".")


STEPS = ("Convolution", "Eltwise relu", "Pooling max", "Convolution")
"""The forward pass of the picture, from left to right."""
GRADIENTS = (
    "ConvolutionBackwardWeights",
    "EltwiseBackward",
    "PoolingBackward",
    "ConvolutionBackwardData",
)
"""What computes gradients of them; the first layer needs none of its source."""
SAVED = ("src", "dst", "workspace", "weights")
"""What each of these reads of the forward pass."""


def propagation() -> str:
    """Formats of a forward pass, and of the gradients that come back: a row for each pass."""
    canvas = Canvas()
    title = "One format for activations and gradients, two for weights"
    canvas.words(0, 13, title, size=14, anchor="start", bold=True)
    wide, high, apart, top, below = 214.0, 40.0, 92.0, 62.0, 206.0
    blocked, packed, turned = FILLS[0], FILLS[3], FILLS[1]
    plain = FILLS[2]
    for k, (name, gradient, saved) in enumerate(zip(STEPS, GRADIENTS, SAVED, strict=True)):
        x = 40.0 + k * (wide + apart)
        middle = x + wide / 2
        for y, text in ((top, name), (below, gradient)):
            canvas.box(x, y, wide, high, fill=PAPER, thickness=1.2)
            canvas.words(middle, y + 24, text, size=12, bold=True, mono=False)
        is_last = k == len(STEPS) - 1
        format = "nchw" if k == 0 else "nChw16c"
        canvas.line([(x - apart + 4, top + 20), (x - 4, top + 20)], arrow=True, stroke=MUTED, thickness=1.2)
        _tag(canvas, x - apart / 2, top + 6, format, plain if k == 0 else blocked)
        if k:
            start = x - 4, below + 20
            canvas.line([start, (x - apart + 4, below + 20)], arrow=True, stroke=MUTED, thickness=1.2)
            _tag(canvas, x - apart / 2, below + 6, "nChw16c", blocked)
        canvas.line([(middle, top + high + 4), (middle, below - 4)], arrow=True, stroke=MUTED)
        if is_last:
            _tag(canvas, middle, top + high + 26, "Ohwi16o", packed)
            canvas.box(middle - 40, top + high + 40, 80, 22, fill=INK, stroke="none")
            canvas.words(middle, top + high + 55, "reorder", size=11, fill=PAPER, mono=False)
            _tag(canvas, middle, below - 24, "Ihwo16i", turned)
        else:
            canvas.words(middle + 8, (top + high + below) / 2 + 4, saved, size=11, anchor="start")
    end = 40.0 + len(STEPS) * (wide + apart)
    canvas.line(
        [
            (end - apart + 4, top + 20),
            (end - 40, top + 20),
            (end - 40, below + 20),
            (end - apart + 4, below + 20),
        ],
        arrow=True,
        stroke=MUTED,
        thickness=1.2,
    )
    canvas.words(end - 32, (top + below + high) / 2 + 4, "loss", size=12, anchor="start", mono=False)
    canvas.line(
        [(40 + wide / 2, below + high + 4), (40 + wide / 2, below + high + 34)], arrow=True, stroke=MUTED
    )
    _tag(canvas, 40 + wide / 2 + 46, below + high + 12, "Ohwi16o", packed)
    canvas.words(40 + wide / 2, below + high + 50, "diff_weights", size=11)
    return canvas.document(
        title,
        "Forward: nchw, then nChw16c from layer to layer. Backward: nChw16c; "
        "the weights of the second convolution are reordered from Ohwi16o to Ihwo16i; "
        "diff_weights of the first are Ohwi16o.",
    )


def _tag(canvas: Canvas, middle: float, y: float, text: str, fill: str) -> None:
    """A format on its colour."""
    wide = text_width(text, 11) + 10
    canvas.box(middle - wide / 2, y - 9, wide, 17, fill=fill, stroke="none")
    canvas.words(middle, y + 4, text, size=11)
