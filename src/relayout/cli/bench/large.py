"""``relayout bench large``: conversions of stores beside programs that rechunk arrays."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from relayout.cli.arguments import DIMS, examples
from relayout.cli.bench.group import bench
from relayout.cli.options import Output, misuse, output_options
from relayout.cli.progress import progress_bar

if TYPE_CHECKING:
    from rich.console import Console

    from relayout.bench.rechunking import Contestant, Outcome, Problem
    from relayout.bench.scaling import Scaled

__all__ = ["large"]


@bench.command(
    short_help="Conversions of stores beside rechunker, dask and cubed.",
    epilog=examples(
        "relayout bench large --size 256MB    a look, without other environments",
        "relayout bench large --python ~/peers/bin/python    8 GB, beside everybody",
        "relayout bench large --case nhwc --contestant p2p",
        "relayout bench large --engine dask --workers 1,2,4 --memory 2GB",
    ),
)
@click.option("--size", default="8GB", show_default=True, metavar="BYTES", help="Size of the array.")
@click.option(
    "--memory",
    default="512MB",
    show_default=True,
    metavar="BYTES",
    help="What all workers of a contestant may take together.",
)
@click.option("--chunk", default="16MB", show_default=True, metavar="BYTES", help="Size of a chunk, about.")
@click.option(
    "--workers",
    type=DIMS,
    default="2",
    show_default=True,
    help="Threads, or processes; with --engine several numbers, one after another.",
)
@click.option(
    "--engine",
    type=click.Choice(["dask"]),
    help="Measure how a cluster of Dask scales with its workers instead.",
)
@click.option(
    "--batch", type=click.IntRange(min=1), help="With --engine: blocks in a task. [default: about a second]"
)
@click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True)
@click.option(
    "--case",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Only problems with TEXT in their name, or of that name.",
)
@click.option(
    "--contestant", "names", multiple=True, metavar="TEXT", help="Only contestants with TEXT in their name."
)
@click.option(
    "--python",
    metavar="PATH",
    help="Interpreter of an environment that has rechunker and cubed.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, exists=True),
    help="Folder for the stores, four times the size. [default: that of temporary files]",
)
@click.option("--cold", is_flag=True, help="Drop the source from the page cache first.")
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=1800,
    show_default=True,
    help="Seconds that a contestant may take.",
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How often a contestant that fails is tried, with twice the memory each time.",
)
@output_options
def large(
    size: str,
    memory: str,
    chunk: str,
    workers: tuple[int, ...],
    engine: str | None,
    batch: int | None,
    codec: str,
    texts: tuple[str, ...],
    names: tuple[str, ...],
    python: str | None,
    folder: str | None,
    cold: bool,
    patience: float,
    tries: int,
    output: Output,
) -> None:
    """Convert a Zarr array into other chunks, beside programs that rechunk.

    Each contestant is a process of its own with the same number of workers and the same memory. Its time is
    that of the conversion and of bringing everything to the disk, whoever waits for that; "left to write" is
    the part of it after the contestant has ended. Its memory is that of all its processes together, looked at
    from outside. Who fails gets twice as much memory. Each element of each result is compared with what it
    must be.

    Three contestants convert nothing: "copy of files" copies the bytes as they are, "copy by codecs" decodes
    each chunk and encodes it again, "copy of result" does that with what is to be made. Nobody can do without
    that; a conversion that decodes and encodes takes as long as the mean of the latter two.

    With --engine dask only Relayout converts, on a scheduler and workers of this machine, each a process:
    seconds, blocks and tasks a second, and what part of the time the scheduler and this process compute.
    """
    from relayout.bench import rechunking
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.stores.planning import as_bytes

    with misuse():
        nbytes, room, piece = as_bytes(size), as_bytes(memory), as_bytes(chunk)
    if not workers or any(count < 1 for count in workers) or (engine is None and len(workers) > 1):
        raise click.UsageError(
            "--workers is a number of 1 or more; with --engine dask it may be several: 1,2,4",
            click.get_current_context(),
        )
    every, known = rechunking.problems(nbytes, piece), rechunking.CONTESTANTS
    named = [one for one in every if all(text == one.name for text in texts)]  # one name may be in another
    named = named or [one for one in every if all(text in one.name for text in texts)]
    problems = _some("problem", every, named)
    own = [one for one in known if not names or any(text in one.name for text in names)]
    contestants = _some("contestant", known, own)
    console, load, machine = output.console(), Load(), particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    told: dict[str, Any] = {
        "machine": machine, "size": nbytes, "memory": room, "codec": codec, "workers": workers,
    }  # fmt: skip
    setting = Setting(room, workers, batch, None if codec == "none" else codec, folder)
    if engine is not None:
        figures = [one._asdict() for one in _scaled(problems, setting, console, output)]
    else:
        told["cold"] = cold
        how = {"python": python, "tries": tries, "patience": patience, "cold": cold}
        found = _raced(problems, contestants, setting, how, output)
        _tables(problems, found, cold, console)
        figures = [{**one._asdict(), "seconds": None if one.error else one.seconds} for one in found]
    told["cores_used_by_others"] = load.others()
    output.json({**told, "problems": [one._asdict() for one in problems], "figures": figures})


N = TypeVar("N", "Problem", "Contestant")


def _some(what: str, known: Sequence[N], found: Sequence[N]) -> Sequence[N]:
    """What was found among the known ones; it is refused to do nothing."""
    if not found:
        raise click.UsageError(
            f"no {what} has that in its name: {', '.join(one.name for one in known)}",
            click.get_current_context(),
        )
    return found


class Setting(NamedTuple):
    """What all conversions of a scaling have in common."""

    memory: int
    workers: tuple[int, ...]
    batch: int | None
    codec: str | None
    folder: str | None


def _raced(
    problems: Sequence[Problem],
    contestants: Sequence[Contestant],
    setting: Setting,
    how: Mapping[str, Any],
    output: Output,
) -> list[Outcome]:
    """Let each contestant convert each problem, as :func:`.rechunking.compete` has it."""
    from relayout.bench import rechunking

    found = []
    where = Path(tempfile.mkdtemp(prefix="relayout-large-", dir=setting.folder))
    source, result = where / "source.zarr", where / "result.zarr"
    given = {"memory": setting.memory, "workers": setting.workers[0], **how}
    try:
        with progress_bar(len(problems) * (len(contestants) + 1), output) as progress:
            for problem in problems:
                progress(f"{problem.name}: source")
                rechunking.write_source(problem, source, setting.codec)
                for contestant in contestants:
                    progress(f"{problem.name}: {contestant.name}")
                    copies = contestant.copies == "result"
                    if copies:
                        rechunking.write_result(problem, result, setting.codec)
                    read = result if copies else source
                    found.append(rechunking.compete(problem, contestant, read, where / "work", **given))
                    if copies:
                        shutil.rmtree(result)
                shutil.rmtree(source)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    return found


def _scaled(problems: Sequence[Problem], setting: Setting, console: Console, output: Output) -> list[Scaled]:
    """Convert each problem on clusters of different size, and print a table for each."""
    from rich.table import Table

    from relayout.bench import rechunking
    from relayout.bench.scaling import scale
    from relayout.errors import spelled_bytes

    found: list[Scaled] = []
    where = Path(tempfile.mkdtemp(prefix="relayout-large-", dir=setting.folder))
    try:
        with progress_bar(len(problems) * (len(setting.workers) + 1), output) as progress:
            for problem in problems:
                progress(f"{problem.name}: source")
                rechunking.write_source(problem, where / "source.zarr", setting.codec)
                for count in setting.workers:
                    progress(f"{problem.name}: {count} workers")
                    found.append(
                        scale(
                            *(problem, where / "source.zarr", where / "work"),
                            workers=count, memory=setting.memory, batch=setting.batch,
                        )
                    )  # fmt: skip
                shutil.rmtree(where / "source.zarr")
    finally:
        shutil.rmtree(where, ignore_errors=True)
    for problem in problems:
        own = [one for one in found if one.problem == problem.name]
        first = next((one for one in own if one.seconds), own[0])  # that had room enough
        console.print(
            f"{problem.name}, {spelled_bytes(problem.nbytes)} in {first.blocks} blocks, {first.tasks} "
            f"tasks of {spelled_bytes(first.task_bytes)} each"
        )
        table = Table()
        for name in (
            "workers",
            "seconds",
            "times",
            "blocks/s",
            "tasks/s",
            "scheduler",
            "client",
            "memory each",
        ):
            table.add_column(name, justify="right")
        table.add_column("")
        for one in own:
            if not one.seconds:
                table.add_row(str(one.workers), *[""] * 7, one.error)
                continue
            table.add_row(
                str(one.workers),
                f"{one.seconds:.1f}",
                f"{first.seconds / one.seconds:.2f}",
                f"{one.blocks / one.seconds:.1f}",
                f"{one.tasks / one.seconds:.1f}",
                f"{one.scheduler / one.seconds:.1%}",
                f"{one.client / one.seconds:.1%}",
                spelled_bytes(one.memory),
                one.error,
            )
        console.print(table)
    return found


def _tables(problems: Sequence[Problem], found: Sequence[Outcome], cold: bool, console: Console) -> None:
    """Print a table for each problem."""
    from rich.table import Table

    from relayout.errors import spelled_bytes

    for problem in problems:
        begin = f"{problem.name}, {spelled_bytes(problem.nbytes)}: f32 of {list(problem.dims)}"
        state = "only on the disk" if cold else "in the system's memory, as far as it fits"
        console.print(f"Times are until everything is on the disk; the source is {state}.")
        console.print(f"{begin} in chunks {list(problem.source_chunks)} to chunks {list(problem.chunks)}")
        table = Table()
        table.add_column("contestant", no_wrap=True)
        for name in ("seconds", "left to write", "memory", "of", "Relayout's time", ""):
            table.add_column(name, justify="left" if not name else "right")
        own = [one for one in found if one.problem == problem.name]
        ours = next((one.seconds for one in own if one.contestant == "Relayout" and not one.error), None)
        for one in own:
            table.add_row(
                one.contestant,
                "" if one.error else f"{one.seconds:.1f}",
                "" if one.error else f"{one.syncing:.1f}",
                spelled_bytes(one.memory),
                spelled_bytes(one.given),
                "" if one.error or ours is None else f"{one.seconds / ours:.2f}",
                one.error,
            )
        console.print(table)
