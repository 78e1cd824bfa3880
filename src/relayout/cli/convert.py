"""``relayout convert``: from file to file."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from relayout.cli.arguments import DIMS, DTYPE, FORMAT, NUMBERS, examples, whole_number
from relayout.cli.described import completed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayout.files import Normalise
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["convert"]

PATIENCE = 1.0  # seconds before a progress bar appears


@click.command(
    short_help="Convert files: npy, npz, safetensors, raw, png, jpeg.",
    epilog=examples(
        "relayout convert cat.png cat.npy --to nChw16c --dtype f32 --src-scale 1/255",
        "relayout convert cat.npy back.png --src-scale 255",
        "relayout convert x.npy y.npy --from nhwc --to nchw",
        "relayout convert dump.bin x.npy --from nChw8c --dims 1,17,56,56 --in-dtype f32 --to nchw",
        "relayout convert w.safetensors w.bin --name conv1.weight --from oihw --to OIhw16i16o --dtype bf16",
        "relayout convert cat.jpg cat.npy --to nchw --dtype f32 --src-scale 1/255 \\",
        "    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
    ),
)
@click.argument("source", metavar="IN", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path())
@click.option(
    "--from",
    "src_format",
    type=FORMAT,
    help="Format of the input, if neither descriptor nor kind of file say it.",
)
@click.option(
    "--to", "dst_format", type=FORMAT, help="Format of the output. [default: as the input; pictures: nhwc]"
)
@click.option("--dtype", type=DTYPE, help="Data type of the output. [default: as the input; pictures: u8]")
@click.option(
    "--dims",
    type=DIMS,
    help="Logical sizes of the input, for raw bytes and blocked arrays without descriptor.",
)
@click.option(
    "--in-dtype", "src_dtype", type=DTYPE, help="Data type of the input, where the file can't say it."
)
@click.option("--name", help="The array in an npz or safetensors file.")
@click.option(
    "--src-scale",
    "--scale",
    type=NUMBERS,
    help="Multiplies the input: 0.5, 1/255, one for each channel, or @file.npy.",
)
@click.option(
    "--src-zero-point", "--zero-point", type=NUMBERS, help="Subtracted from the input, before its scale."
)
@click.option("--mean", type=NUMBERS, help="Subtracted after the scale of the input.")
@click.option("--std", type=NUMBERS, help="Divides after the mean was subtracted.")
@click.option(
    "--denormalize", "back", is_flag=True, help="Undo --mean and --std instead: times std, plus mean."
)
@click.option("--dst-scale", type=NUMBERS, help="Divides the output.")
@click.option("--dst-zero-point", type=NUMBERS, help="Added to the output, after its scale.")
@click.option(
    "--axis", help="The axis that lists of numbers lie along, by number or letter. [default: c, or o]"
)
@click.option("--threads", type=click.IntRange(min=1), help="How many threads may work.")
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@click.option("--no-progress", is_flag=True, help="No progress bar.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def convert(
    source: str,
    target: str,
    src_format: str | None,
    dst_format: str | None,
    dtype: str | None,
    dims: tuple[int, ...] | None,
    src_dtype: str | None,
    name: str | None,
    src_scale: Any,
    src_zero_point: Any,
    mean: Any,
    std: Any,
    back: bool,
    dst_scale: Any,
    dst_zero_point: Any,
    axis: str | None,
    threads: int | None,
    force: bool,
    no_progress: bool,
    quiet: bool,
) -> None:
    """Convert a file to another memory format, data type or kind of file. Files may be larger than memory.

    Kinds: .npy .npz .safetensors .bin .raw .png .jpg. An array has one axis for each digit of its format,
    outermost first: [N, H, W, C] for nhwc, [N, C/8, H, W, 8] for nChw8c. What an array can't express is
    kept in a descriptor, inside the file or beside it (OUT.layout.json), so that --from is needed only for
    files from other programs, and for row-major arrays, which have none. A picture is u8 nhwc of sizes
    1, C, H, W.

    out = (scale * (in - zero_point) - mean) / std / dst_scale + dst_zero_point, rounded half to even and
    saturated for integers
    """
    from relayout import files

    src_format, dims, src_dtype = completed(src_format, dims, src_dtype)
    tensor = files.read_to_convert(source, dst_format, src_format, dims=dims, dtype=src_dtype, name=name)
    desc = files.destination_for(target, tensor.desc, dst_format, dtype)
    where = _Axis(tensor.desc, desc, axis)
    attributes = {
        key: where.attribute(key, value)
        for key, value in (
            ("src_scale", src_scale),
            ("dst_scale", dst_scale),
            ("src_zero_point", src_zero_point),
            ("dst_zero_point", dst_zero_point),
        )
        if value is not None
    }
    normalise = where.normalise(mean, std, back)
    with (
        _killable(),
        files.create(target, desc, name=name, force=force) as out,
        _bar(target, no_progress) as progress,
    ):
        files.convert_into(tensor, out, threads=threads, progress=progress, normalise=normalise, **attributes)
    if not quiet:
        _report(source, tensor.desc, target, desc)


class _Axis:
    """The axis that lists of numbers lie along."""

    def __init__(self, src: MemoryDesc, dst: MemoryDesc, given: str | None) -> None:
        self.src, self.dst, self.given = src, dst, given

    def number(self, what: str) -> int:
        """Its number, found by the meaning of the axes if it was not given."""
        roles = [desc.layout.format.roles for desc in (self.src, self.dst) if desc.layout.format is not None]
        known = next((r for r in roles if r is not None), ())
        wanted = [self.given] if self.given is not None else ["c", "o"]
        for name in wanted:
            if name in known:
                return known.index(name)
            axis = whole_number(name)
            if axis is not None and -self.src.rank <= axis < self.src.rank:
                return axis % self.src.rank
        if self.given is not None:
            raise click.UsageError(
                f"there is no axis {self.given} in {self.src}; its axes are 0 to {self.src.rank - 1}"
                + (f" or {', '.join(known)}" if known else ""),
                click.get_current_context(),
            )
        raise click.UsageError(
            f"{what} has several numbers; say along which axis: --axis", click.get_current_context()
        )

    def attribute(self, what: str, values: Sequence[float]) -> Any:
        """A number, or numbers along the axis."""
        point = what.endswith("zero_point")
        numbers = [int(v) if point and float(v).is_integer() else float(v) for v in values]
        return numbers[0] if len(numbers) == 1 else (numbers, self.number("--" + what.replace("_", "-")))

    def normalise(
        self, mean: Sequence[float] | None, std: Sequence[float] | None, back: bool
    ) -> Normalise | None:
        """Mean and deviation, or None."""
        if mean is None and std is None:
            if back:
                raise click.UsageError(
                    "--denormalize undoes --mean and --std; give one of them", click.get_current_context()
                )
            return None
        import numpy as np

        from relayout.errors import LayoutError
        from relayout.files import Normalise

        means, deviations = (
            np.asarray(v, np.float32)
            for v in ([0.0] if mean is None else mean, [1.0] if std is None else std)
        )
        if not np.all(np.isfinite(means)) or not np.all(np.isfinite(deviations)) or not np.all(deviations):
            raise LayoutError("mean and std must be finite, and std can't be 0")
        several = means.size > 1 or deviations.size > 1
        return Normalise(means, deviations, self.number("--mean or --std") if several else 0, back)


@contextmanager
def _killable() -> Iterator[None]:
    """Let a polite kill clean up as Ctrl-C does."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # not in the main thread, so signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar(target: str, unwanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, if that is a terminal and if it takes long."""
    if unwanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(target, total=None)
    start = time.monotonic()
    shown = False

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - start > PATIENCE:
            bar.start()
            shown = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if shown:
            bar.stop()


def _report(source: str, src: MemoryDesc, target: str, dst: MemoryDesc) -> None:
    from pathlib import Path

    from relayout.files import physical_shape
    from relayout.files.beside import path_beside

    shape = physical_shape(dst)
    array = (
        f", array {list(shape)}"
        if shape is not None and Path(target).suffix in (".npy", ".npz", ".safetensors")
        else ""
    )
    beside = path_beside(Path(target))
    described = f", described in {target}.layout.json" if beside.exists() else ""
    click.echo(f"{source}  {src}\n{target}  {dst}{array}{described}")
