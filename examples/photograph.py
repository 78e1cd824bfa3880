"""Convert a photograph from nhwc bytes to nChw16c floats and back, explained: ``make run``.

A decoded picture is u8 in ``nhwc``: the three colours of a pixel lie side by side. Convolution kernels on
processors with 512-bit vectors want f32 in ``nChw16c``: sixteen channels of a pixel side by side, here three
and thirteen of padding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

import relayout as rl

HERE = Path(__file__).parent
OUT = HERE.parent / "out"
console = Console()


def main() -> None:
    """Read, convert, look, convert back, compare, write."""
    picture = np.asarray(Image.open(HERE / "data" / "chelsea.png").convert("RGB"))
    height, width, colours = picture.shape
    dims = (1, colours, height, width)  # logical axes are always n, c, h, w; nhwc is only where they lie
    photo = rl.from_buffer(picture.tobytes(), rl.MemoryDesc(dims, "u8", "nhwc"))
    console.print(f"[bold]1. The photograph[/]  chelsea.png, {width} x {height} pixels")
    describe(photo)

    blocked, times = called_twice(lambda: rl.reorder(photo, "nChw16c", dtype="f32", src_scale=1 / 255))
    console.print(
        f"\n[bold]2. Reordered[/] to nChw16c, u8 -> f32, scaled by 1/255, by one call of rl.reorder\n{times}"
    )
    describe(blocked)

    n, c, h, w = 0, 1, 150, 225
    console.print(f"\n[bold]3. One value[/]: green at row {h}, column {w}")
    table = Table("tensor", "offset (elements)", "value")
    for name, tensor in (("photo, nhwc", photo), ("blocked, nChw16c", blocked)):
        offset = tensor.layout.offset(n, c, h, w)
        value = tensor.buffer.view(tensor.dtype.numpy)[offset]
        table.add_row(name, str(offset), f"{value:.6g}")
    console.print(table)
    pixel = blocked.buffer.view(np.float32)[blocked.layout.offset(n, 0, h, w) :][:16]
    values = " ".join(f"{value:.3f}" if value else "0" for value in pixel)
    console.print(f"   that pixel's block of 16 channels, 3 of them used:\n   {values}", highlight=False)

    back, times = called_twice(lambda: rl.reorder(blocked, "nhwc", dtype="u8", dst_scale=1 / 255))
    console.print(f"\n[bold]4. And back[/] to nhwc u8\n{times}")
    same = bytes(back.buffer) == picture.tobytes()
    console.print(f"   all {picture.size} bytes equal: [bold]{'yes' if same else 'NO'}[/]")
    if not same:
        raise SystemExit("the round trip changed the picture")
    OUT.mkdir(exist_ok=True)
    Image.fromarray(back.numpy()[0].transpose(1, 2, 0)).save(OUT / "chelsea-there-and-back.png")
    console.print(f"   written to {OUT.name}/chelsea-there-and-back.png")

    console.print("\n[bold]5. How others call it[/]")
    names = Table("", "oneDNN", "OpenVINO", "TVM", "PyTorch", "digits")
    for tensor in (photo, blocked):
        names.add_row(
            str(tensor.desc.dtype),
            *(tensor.desc.name(d) or "-" for d in ("onednn", "openvino", "tvm", "pytorch")),
            tensor.layout.format.digits_text() if tensor.layout.format else "-",
        )
    console.print(names)
    console.print("\nNext: [bold].venv/bin/relayout show nChw8c 1,17,2,2[/]")


def called_twice(call: Callable[[], rl.Tensor]) -> tuple[rl.Tensor, str]:
    """Make a call twice and say how long each took.

    The first one compiles its machine code, or loads it from the cache, unless an earlier call has done so.
    """
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    first, second = (f"{1e3 * taken:.2f} ms" for taken in seconds)
    return result, f"   {second} for the second of two calls ({first} for the first)"


def describe(tensor: rl.Tensor) -> None:
    """Print what a descriptor says."""
    desc = tensor.desc
    facts = Table(box=None, show_header=False, padding=(0, 1, 0, 3))
    facts.add_row("descriptor", str(desc))
    facts.add_row("padded dims", str(desc.padded_dims))
    facts.add_row("strides", f"{desc.strides} elements, between blocks")
    facts.add_row(
        "inner blocks", ", ".join(f"{size} of axis {axis}" for axis, size in desc.inner_blocks) or "none"
    )
    facts.add_row("bytes", f"{desc.nbytes:,}, {desc.layout.density:.0%} of them data")
    console.print(facts)


if __name__ == "__main__":
    main()
