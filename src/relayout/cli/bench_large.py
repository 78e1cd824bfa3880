"""``relayout bench large``: conversions of stores beside programs that rechunk arrays."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from relayout.cli.arguments import examples
from relayout.cli.bench import bench
from relayout.cli.options import Output, misuse, output_options
from relayout.cli.progress import progress_bar

__all__ = ["large"]


@bench.command(
    short_help="Conversions of stores beside rechunker, dask and cubed.",
    epilog=examples(
        "relayout bench large --size 256MB    a look, without other environments",
        "relayout bench large --python ~/peers/bin/python    8 GB, beside everybody",
        "relayout bench large --case nhwc --contestant p2p",
    ),
)
@click.option("--size", default="8GB", show_default=True, metavar="BYTES", help="Of the array.")
@click.option(
    "--memory",
    default="512MB",
    show_default=True,
    metavar="BYTES",
    help="What all workers of a contestant may take together.",
)
@click.option("--chunk", default="16MB", show_default=True, metavar="BYTES", help="About, of a chunk.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=2, show_default=True, help="Threads, or processes."
)
@click.option("--codec", type=click.Choice(["none", "zstd"]), default="none", show_default=True)
@click.option("--case", "texts", multiple=True, metavar="TEXT", help="Only problems with TEXT in their name.")
@click.option(
    "--contestant", "names", multiple=True, metavar="TEXT", help="Only contestants with TEXT in their name."
)
@click.option(
    "--python",
    metavar="PATH",
    help="An interpreter that has rechunker and cubed, which may need other versions of what is here.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, exists=True),
    help="Where the stores are written: four times the size. [default: that of temporary files]",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=1),
    default=1800,
    show_default=True,
    help="Seconds for a contestant.",
)
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="How often who fails is tried, with twice the memory each time.",
)
@output_options
def large(
    size: str,
    memory: str,
    chunk: str,
    workers: int,
    codec: str,
    texts: tuple[str, ...],
    names: tuple[str, ...],
    python: str | None,
    folder: str | None,
    patience: float,
    tries: int,
    output: Output,
) -> None:
    """Convert a Zarr array into other chunks, beside programs that rechunk.

    Each contestant is a process of its own with the same number of workers and the same memory. Its time is
    that of the conversion and of bringing everything to the disk; its memory is that of all its processes
    together, looked at from outside. Who fails gets twice as much memory. Each element of each result is
    compared with what it must be.
    """
    from rich.table import Table

    from relayout.bench import rechunking
    from relayout.bench.load import Load
    from relayout.bench.particulars import particulars
    from relayout.errors import spelled_bytes
    from relayout.stores.planning import as_bytes

    with misuse():
        nbytes, room, piece = as_bytes(size), as_bytes(memory), as_bytes(chunk)
    problems = [one for one in rechunking.problems(nbytes, piece) if all(text in one.name for text in texts)]
    known = rechunking.CONTESTANTS
    contestants = [one for one in known if not names or any(text in one.name for text in names)]
    if not problems or not contestants:
        what, there = (
            ("problem", rechunking.problems(nbytes, piece)) if not problems else ("contestant", known)
        )
        raise click.UsageError(
            f"no {what} has that in its name: {', '.join(one.name for one in there)}",
            click.get_current_context(),
        )
    console, load, machine = output.console(), Load(), particulars("relayout")
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()))
    found: list[rechunking.Outcome] = []
    where = Path(tempfile.mkdtemp(prefix="relayout-large-", dir=folder))
    try:
        with progress_bar(len(problems) * (len(contestants) + 1), output) as progress:
            for problem in problems:
                progress(f"{problem.name}: source")
                source = where / "source.zarr"
                rechunking.write_source(problem, source, None if codec == "none" else codec)
                for contestant in contestants:
                    progress(f"{problem.name}: {contestant.name}")
                    found.append(
                        rechunking.compete(
                            *(problem, contestant, source, where / "work"),
                            memory=room, workers=workers, python=python, tries=tries, patience=patience,
                        )
                    )  # fmt: skip
                shutil.rmtree(source)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    others = load.others()
    for problem in problems:
        begin = f"{problem.name}, {spelled_bytes(problem.nbytes)}: f32 of {list(problem.dims)}"
        console.print(f"{begin} in chunks {list(problem.source_chunks)} to chunks {list(problem.chunks)}")
        table = Table()
        table.add_column("contestant", no_wrap=True)
        for name in ("seconds", "memory", "of", "Relayout's time", ""):
            table.add_column(name, justify="left" if not name else "right")
        own = [one for one in found if one.problem == problem.name]
        ours = next((one.seconds for one in own if one.contestant == "Relayout" and not one.error), None)
        for one in own:
            table.add_row(
                one.contestant,
                "" if one.error else f"{one.seconds:.1f}",
                spelled_bytes(one.memory),
                spelled_bytes(one.given),
                "" if one.error or ours is None else f"{one.seconds / ours:.2f}",
                one.error,
            )
        console.print(table)
    output.json(
        {
            "machine": machine,
            "cores_used_by_others": others,
            "size": nbytes,
            "memory": room,
            "workers": workers,
            "codec": codec,
            "problems": [one._asdict() for one in problems],
            "figures": [{**one._asdict(), "seconds": None if one.error else one.seconds} for one in found],
        }
    )
