"""What a conversion does, as text: both sides, their common refinement, every pass after it, the kernels."""

from __future__ import annotations

from math import prod

from relayout.errors import spelled_seconds
from relayout.layout.layout import plain
from relayout.loops.refine import refine
from relayout.reorder.conversion import Conversion
from relayout.reorder.predict import Prediction, copy_seconds, note

__all__ = ["explained", "predicted"]


def predicted(made: Conversion) -> Prediction:
    """The bytes that are moved, and the seconds that a copy of as many takes now."""
    read, written = made.moved()
    seconds = copy_seconds(read, written, made.threads) if written else 0.0
    if written:
        note(read + written, seconds, made.threads)
    return Prediction(read, written, seconds)


def explained(made: Conversion) -> str:
    """The text of ``Reorder.explain``."""
    made.compiled()
    groups = refine(made.src.layout, made.alike.layout)
    rows = []
    for group in groups:
        names = " ".join(plain(len(made.src.dims)).axis_names()[a] for a in group.axes)
        if group.pieces is None:
            rows.append((names, f"0..{group.size - 1}", "no common nest: table of offsets"))
        for k, piece in enumerate(group.pieces or ()):
            turns = [(loop.extent, *loop.steps) for loop in piece.loops]
            loops = "; ".join(f"{extent}x{step}: {src}, {dst}" for extent, step, src, dst in turns)
            last = piece.starts[0] + sum((extent - 1) * step for extent, step, _, _ in turns)
            rows.append((names if k == 0 else "", f"{piece.starts[0]}..{last}", loops))
    kernels = made.kernels
    if kernels is not None:
        how = "machine code: " + ", ".join(kernels.kinds)
    elif all(group.pieces is not None for group in groups):
        count = prod(len(group.pieces or ()) for group in groups)
        how = f"NumPy, strided copies: {count} piece{'s' * (count != 1)}"
    else:
        how = "NumPy, gather by tables of offsets"
    sides = [
        f"{side:<12} {desc!s:<23} {desc.nbytes} bytes"
        for side, desc in (("source", made.src), ("destination", made.dst))
    ]
    lines = [*sides, f"attributes   {made.attributes}", f"engine       {how}"]
    if kernels is not None and kernels.departs:
        lines.append(f"schedule     {kernels.wish}, which was measured to be fastest")
    lines += [_prediction(made), ""]
    table = [("axis", "numbers", "loops (extent x step: source stride, destination stride)"), *rows]
    widths = [max(len(row[k]) for row in table) for k in range(2)]
    lines += [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in table]
    if kernels is not None:
        lines += ["", *kernels.explain()]
    return "\n".join(lines)


def _prediction(made: Conversion) -> str:
    """What is read and written, and how long a copy of that takes now."""
    read, written = made.moved()
    line = f"predicted    {read} bytes read, {written} written"
    if made.kernels is None or not read:
        return line
    return f"{line}: about {spelled_seconds(predicted(made).seconds)} at the speed of memcpy"
