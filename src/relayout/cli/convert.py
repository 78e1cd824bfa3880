"""``relayout convert``: from file to file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from relayout.cli.arguments import DIMS, DTYPE, FORMAT, NUMBERS, examples, whole_number
from relayout.cli.described import completed
from relayout.cli.info import IN_KIND
from relayout.cli.large import Large, convert_store, large_options, means_store
from relayout.cli.options import STANDARD, Output, axes_option, misuse, no_progress_option, output_options
from relayout.cli.streams import killable, readable, writable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from relayout.files import Normalise
    from relayout.layout.descriptor import MemoryDesc

__all__ = ["convert"]

SEVERAL = (".npz", ".safetensors")
CHECKPOINTS = (".pt", ".pth")
OUT_KINDS = ("npy", "npz", "safetensors", "bin", "png", "jpg")
PATIENCE = 1.0  # seconds before a progress bar appears


@click.command(
    short_help="Convert files and stores: npy, npz, safetensors, Zarr, raw, png, jpeg.",
    epilog=examples(
        "relayout convert cat.png cat.npy --to nChw16c --dtype f32 --src-scale 1/255",
        "relayout convert cat.npy back.png --src-scale 255",
        "relayout convert x.npy y.npy --from nhwc --to nchw",
        "relayout convert dump.bin x.npy --from nChw8c --dims 1,17,56,56 --in-dtype f32 --to nchw",
        "relayout convert w.safetensors w.bin --name conv1.weight --from oihw --to OIhw16i16o --dtype bf16",
        "relayout convert model.pt model.safetensors --name '*.weight' --dtype bf16",
        "relayout convert big.zarr out.zarr --from nchw --to nChw16c --memory 2GB --dry-run",
        "relayout convert big.zarr out.zarr --from nchw --to nhwc --chunks 1,256,256,64 --resume",
        "relayout convert cat.jpg cat.npy --to nchw --dtype f32 --src-scale 1/255 \\",
        "    --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225",
    ),
)
@click.argument("source", metavar="IN", type=click.Path(allow_dash=True, readable=False))
@click.argument("target", metavar="OUT", type=click.Path(allow_dash=True, readable=False))
@click.option(
    "--from",
    "src_format",
    type=FORMAT,
    help="Format of the input, if neither descriptor nor kind of file says so.",
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
@click.option(
    "--name",
    "names",
    multiple=True,
    help="The array in a file of several, or a pattern: 'layer*.weight'. May be given several times.",
)
@click.option(
    "--only", is_flag=True, help="Leave out the other arrays: those of IN, and of an OUT that exists."
)
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
@axes_option
@click.option("--threads", type=click.IntRange(min=1), help="How many threads may work.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace OUT if it exists. Arrays that only OUT has stay in it (see --only).",
)
@large_options
@no_progress_option
@IN_KIND
@click.option(
    "--out-kind",
    type=click.Choice(OUT_KINDS),
    help="Kind of file on standard output. [default: as the input; npy where that can't hold it]",
)
@output_options
def convert(
    source: str,
    target: str,
    src_format: str | None,
    dst_format: str | None,
    dtype: str | None,
    dims: tuple[int, ...] | None,
    src_dtype: str | None,
    names: tuple[str, ...],
    only: bool,
    src_scale: Any,
    src_zero_point: Any,
    mean: Any,
    std: Any,
    back: bool,
    dst_scale: Any,
    dst_zero_point: Any,
    axis: str | None,
    axes: str,
    threads: int | None,
    force: bool,
    chunks: tuple[int, ...] | None,
    shards: tuple[int, ...] | None,
    memory: str | None,
    codecs: str | None,
    zarr_format: str | None,
    missing: str | None,
    dry_run: bool,
    resume: bool,
    engine: str | None,
    scheduler: str | None,
    no_progress: bool,
    in_kind: str | None,
    out_kind: str | None,
    output: Output,
) -> None:
    """Convert a file or store to another memory format, data type or kind of file. Both may be larger than
    memory.

    Kinds: .npy .npz .safetensors .bin .raw .png .jpg, and .pt .pth (PyTorch, input only); - is standard
    input or output. Of several arrays those that match --name are converted; if OUT can hold several (.npz
    .safetensors), the others are copied unchanged, and so are integers that match a pattern where --dtype
    is a floating type.

    An array has one axis for each digit of its format,
    outermost first: [N, H, W, C] for nhwc, [N, C/8, H, W, 8] for nChw8c. What an array can't express is
    kept in a descriptor, inside the file or beside it (OUT.layout.json), so that --from is needed only for
    files from other programs, and for row-major arrays, which have none. A picture is u8 nhwc of sizes
    1, C, H, W.

    Stores are arrays in chunks: Zarr (OUT.zarr), folders of npy files (OUT.chunks), and as IN the index of
    a checkpoint in safetensors files. One is converted block by block within --memory, into a store of the
    array that has an axis for each digit. What was interrupted goes on with --resume; until it is complete
    OUT can't be opened.

    out = (scale * (in - zero_point) - mean) / std / dst_scale + dst_zero_point, rounded half to even and
    saturated for integers
    """
    src_format, dims, src_dtype = completed(src_format, dims, src_dtype)
    given = _Given(
        src_format, dst_format, dtype, dims, src_dtype, names, only, src_scale, src_zero_point, mean, std,
        back, dst_scale, dst_zero_point, axis, axes, threads, force,
    )  # fmt: skip
    large = Large(*(chunks, shards, memory, codecs, zarr_format, missing, resume, dry_run, engine, scheduler))
    if means_store(source, target):
        convert_store(
            *(source, target, large), src_format=src_format, dst_format=dst_format, dims=dims,
            src_dtype=src_dtype, dtype=dtype, names=names, axes=axes, threads=threads, force=force,
            attributes=given.attributes, shown=output.shows_progress and not no_progress, output=output,
        )  # fmt: skip
        return
    if large.given is not None:
        raise click.UsageError(
            f"{large.given} is for stores: OUT.zarr or OUT.chunks, or an IN that is one",
            click.get_current_context(),
        )
    _check_kinds(source, target)
    if target == STANDARD:
        output.take_standard_output("OUT")
    described = None not in (src_format, dims, src_dtype)
    with (
        killable(),
        readable(source, None if in_kind is None else f".{in_kind}", raw=described) as read,
        writable(target, f".{out_kind or _as_input(read, given)}") as written,
    ):
        suffixes = written.suffix.lower(), read.suffix.lower()
        many = suffixes[0] in SEVERAL and suffixes[1] in (*SEVERAL, *CHECKPOINTS)
        told = (_many if many else _one)(given, read, written, output.shows_progress and not no_progress)
        if target == STANDARD:
            _check_complete(written, output)
    if target == STANDARD:  # the descriptor lay beside a file that is gone
        told["converted"] = [{**each, "descriptor": None} for each in told["converted"]]
    report = {"source": source, "target": target, **told}
    output.json(report)
    _report(report, output)


class _Given(NamedTuple):
    """The options of a conversion."""

    src_format: str | None
    dst_format: str | None
    dtype: str | None
    dims: tuple[int, ...] | None
    src_dtype: str | None
    names: tuple[str, ...]
    only: bool
    src_scale: Any
    src_zero_point: Any
    mean: Any
    std: Any
    back: bool
    dst_scale: Any
    dst_zero_point: Any
    axis: str | None
    axes: str
    threads: int | None
    force: bool

    @property
    def scaled(self) -> bool:
        """Whether it is said how numbers of one range become numbers of another."""
        return any(
            option is not None
            for option in (
                *(self.src_scale, self.dst_scale, self.src_zero_point, self.dst_zero_point),
                *(self.mean, self.std),
            )
        )

    @property
    def changes(self) -> bool:
        """Whether anything but the kind of file is to change."""
        asked = (
            *(self.src_format, self.dst_format, self.dtype, self.dims, self.src_dtype, self.src_scale),
            *(self.src_zero_point, self.mean, self.std, self.dst_scale, self.dst_zero_point),
        )
        return self.back or any(option is not None for option in asked)

    def attributes(self, src: MemoryDesc, dst: MemoryDesc) -> tuple[Normalise | None, dict[str, Any]]:
        """Mean and deviation, scales and zero points, for the axes of one array."""
        where = _Axis(src, dst, self.axis)
        if self.axis is not None:
            if not self.scaled:
                raise click.UsageError(
                    "--axis says where lists of numbers lie, and there are none (--src-scale, --mean, ...)",
                    click.get_current_context(),
                )
            where.number("--axis")
        found = {
            key: where.attribute(key, value)
            for key, value in (
                ("src_scale", self.src_scale),
                ("dst_scale", self.dst_scale),
                ("src_zero_point", self.src_zero_point),
                ("dst_zero_point", self.dst_zero_point),
            )
            if value is not None
        }
        return where.normalise(self.mean, self.std, self.back), found


def _one(given: _Given, source: Path, target: Path, shown: bool) -> dict[str, Any]:
    """Convert one array."""
    from relayout import files

    files.check_can_be_written(target)  # before anything is asked about the source
    if given.names and not {source.suffix.lower(), target.suffix.lower()} & {*SEVERAL, *CHECKPOINTS}:
        raise click.UsageError(
            "--name is for files that hold arrays by name, and neither of these does",
            click.get_current_context(),
        )
    name = files.one_of(source, given.names)
    tensor = files.read_to_convert(
        *(source, given.dst_format, given.src_format), dims=given.dims, dtype=given.src_dtype, name=name
    )
    desc = files.destination_for(
        *(target, tensor.desc, given.dst_format, given.dtype, given.axes), scaled=given.scaled
    )
    normalise, attributes = given.attributes(tensor.desc, desc)
    with (
        files.create(target, desc, name=name, force=given.force, only=given.only) as out,
        _bar(target, shown) as progress,
    ):
        files.convert_into(
            *(tensor, out), axes="position", threads=given.threads, progress=progress, normalise=normalise,
            **attributes,
        )  # fmt: skip
    return {"converted": [_told(name, tensor.desc, desc, target)], "copied": []}


def _many(given: _Given, source: Path, target: Path, shown: bool) -> dict[str, Any]:
    """Convert many arrays into one file."""
    from relayout import files

    plan = files.plan_arrays(
        *(source, target, given.dst_format), names=given.names or None, only=given.only,
        src_format=given.src_format, dims=given.dims, src_dtype=given.src_dtype, dtype=given.dtype,
        changes=given.changes, axes=given.axes, scaled=given.scaled,
    )  # fmt: skip
    plan = plan.with_attributes(lambda job: given.attributes(job.src, job.desc))
    with _bar(target, shown) as progress:
        plan.run(force=given.force, threads=given.threads, progress=progress)
    told = [_told(job.name, job.src, job.desc, target) for job in plan.jobs]
    return {"converted": told, "copied": list(plan.rest), "not_applicable": dict(plan.skipped)}


class _Axis:
    """The axis that lists of numbers lie along."""

    def __init__(self, src: MemoryDesc, dst: MemoryDesc, given: str | None) -> None:
        self.src, self.dst, self.given = src, dst, given

    def number(self, what: str) -> int:
        """Its number, found by the meaning of the axes if it was not given."""
        known = next((r for r in (self.src.layout.roles, self.dst.layout.roles) if r is not None), ())
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
            np.asarray(v, np.float64)
            for v in ([0.0] if mean is None else mean, [1.0] if std is None else std)
        )
        if not np.all(np.isfinite(means)) or not np.all(np.isfinite(deviations)) or not np.all(deviations):
            raise LayoutError("mean and std must be finite, and std can't be 0")
        several = means.size > 1 or deviations.size > 1
        means, deviations = (v if v.size > 1 else v.reshape(()) for v in (means, deviations))
        return Normalise(means, deviations, self.number("--mean or --std") if several else 0, back)


def _check_kinds(source: str, target: str) -> None:
    """A file name that ends in no kind of file is misuse."""
    from relayout import files

    with misuse():
        for path in (source, target):
            if path != STANDARD:
                files.check_kind(path)


def _as_input(source: Path, given: _Given) -> str:
    """The kind of file on standard output where none is chosen: the input's, if it can hold the result."""
    kind = source.suffix.lower().removeprefix(".")
    pictured = given.dst_format in (None, "nhwc") and given.dtype in (None, "u8")
    if kind in ("png", "jpg") and not pictured:
        return "npy"
    return kind if kind in OUT_KINDS else "npy"


@contextmanager
def _bar(target: Path, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, if it takes long."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    from relayout.files.spelling import spelled

    bar = Progress(console=Console(stderr=True, markup=False), transient=True)
    task = bar.add_task(spelled(target.name), total=None)
    start = time.monotonic()
    visible = False

    def progress(done: int, total: int) -> None:
        nonlocal visible
        if not visible and time.monotonic() - start > PATIENCE:
            bar.start()
            visible = True
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if visible:
            bar.stop()


def _check_complete(written: Path, output: Output) -> None:
    """Refuse to send data without its descriptor, which lies beside the file; raw bytes never have it.

    An array that is only permuted, as nhwc is, is right for whoever knows the order; a note says it.
    """
    from relayout.errors import Unsupported
    from relayout.files import descriptor_from_text, physical_shape
    from relayout.files.beside import path_beside
    from relayout.files.elements import by_dtype

    beside = path_beside(written)
    if written.suffix != ".npy" or not beside.exists():
        return
    desc = descriptor_from_text(beside.read_bytes())
    shape = physical_shape(desc)
    if shape is None or len(shape) != desc.rank or by_dtype[desc.dtype.name].descr is None:
        raise Unsupported(
            "an npy file on standard output has no place for the descriptor of this format or data type; "
            "send another kind of file (--out-kind npz, --out-kind safetensors)"
        )
    if not output.quiet:
        click.echo(
            f"relayout: note: the array {list(shape)} is in {desc.format}, which an npy file on standard "
            "output can't say",
            err=True,
        )


def _told(name: str | None, src: MemoryDesc, dst: MemoryDesc, target: Path) -> dict[str, Any]:
    """What became of an array, as JSON."""
    from relayout.files import descriptor_to_json, physical_shape
    from relayout.files.beside import path_beside

    suffix = target.suffix.lower()
    shape = physical_shape(dst) if suffix in (".npy", *SEVERAL) else None
    beside = path_beside(target)
    return {
        "name": name or "",
        "from": {"text": _text(src), **descriptor_to_json(src)},
        "to": {"text": _text(dst), **descriptor_to_json(dst)},
        "array": None if shape is None else list(shape),
        "descriptor": str(beside) if suffix not in SEVERAL and beside.exists() else None,
    }


def _text(desc: MemoryDesc) -> str:
    """A descriptor with the name of its format under which it is stored, as ``relayout info`` shows it."""
    from relayout.files import descriptor_from_json, descriptor_to_json

    stored = str(descriptor_from_json(descriptor_to_json(desc)))
    return str(desc) if " " in stored else stored  # digits are no name


def _shown(target: str, told: dict[str, Any]) -> str:
    """The file of a descriptor, relative as the target was given; that of a link is where it leads to."""
    from relayout.files.spelling import spelled

    near = f"{target}.layout.json"
    is_near = os.path.exists(near) and os.path.samefile(near, told["descriptor"])
    return spelled(near if is_near else told["descriptor"])


def _report(report: dict[str, Any], output: Output) -> None:
    from relayout.files.spelling import spelled

    source, target = spelled(report["source"]), spelled(report["target"])
    several = len(report["converted"]) != 1 or report["copied"]
    for each in report["converted"]:
        array = "" if each["array"] is None else f", array {each['array']}"
        described = "" if each["descriptor"] is None else f", described in {_shown(report['target'], each)}"
        if several:
            output.echo(f"{spelled(each['name'])}  {each['from']['text']} -> {each['to']['text']}{array}")
        else:
            output.echo(f"{source}  {each['from']['text']}\n{target}  {each['to']['text']}{array}{described}")
    for name, kind in report.get("not_applicable", {}).items():
        output.echo(f"{spelled(name)}  {kind}: copied, since a pattern means floating-point arrays here")
    if several:
        copied = len(report["copied"])
        output.echo(f"{source} -> {target}: {len(report['converted'])} converted, {copied} copied unchanged")
