"""``relayout convert`` and ``relayout show`` for stores: arrays in chunks, larger than memory."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from relayout.cli.arguments import DIMS
from relayout.cli.options import STANDARD, Output

if TYPE_CHECKING:
    from relayout.files import Normalise
    from relayout.layout.descriptor import MemoryDesc
    from relayout.stores import LazyTensor, Plan, Run
    from relayout.stores.task import Done

__all__ = ["Large", "convert_store", "large_options", "means_store"]


class Large(NamedTuple):
    """What the options of stores say; None: nothing."""

    chunks: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    memory: str | None
    codecs: str | None
    zarr_format: str | None
    missing: str | None
    resume: bool
    dry_run: bool
    engine: str | None
    scheduler: str | None

    @property
    def given(self) -> str | None:
        """An option that was given; None: none was."""
        for name, value in self._asdict().items():
            if value not in (None, False):
                return "--" + name.replace("_", "-")
        return None


def large_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of ``convert`` that are for stores."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--chunks",
        type=DIMS,
        help="Store: sizes of a chunk of OUT, one for each digit of its format; -1 is the whole axis. "
        "[default: the same elements as a chunk of IN]",
    ),
    click.option("--shards", type=DIMS, help="Store: sizes of a shard, multiples of those of a chunk."),
    click.option(
        "--memory",
        metavar="BYTES",
        help="Store: what the process (of a cluster: all workers together) may take: 512MB, 2GB. "
        "[default: 2GB; of a cluster: what its workers may]",
    ),
    click.option(
        "--codecs",
        metavar="NAME[:LEVEL][+crc32c]",
        help="Store: how chunks are compressed: none, zstd:3, gzip, blosc+crc32c. [default: as in IN]",
    ),
    click.option("--zarr-format", type=click.Choice(["2", "3"]), help="Store: version of Zarr. [default: 3]"),
    click.option(
        "--missing",
        type=click.Choice(["fill", "error"]),
        help="Store: what chunks that are not there mean. [default: fill, the fill value]",
    ),
    click.option("--dry-run", is_flag=True, help="Store: print the plan, and do nothing."),
    click.option("--resume", is_flag=True, help="Store: go on with a conversion that was interrupted."),
    click.option(
        "--engine", type=click.Choice(["threads", "dask"]), help="Store: who runs it. [default: threads]"
    ),
    click.option(
        "--scheduler", metavar="ADDRESS", help="Store: the scheduler of Dask, or its file. [default: threads]"
    ),
)


def means_store(source: str, target: str) -> bool:
    """Whether a conversion is one of stores: OUT is one by its name, or IN is one."""
    if STANDARD in (source, target):
        return False
    if target.rstrip("/").lower().endswith((".zarr", ".chunks")):
        return True
    from relayout.stores.opening import is_store

    return is_store(source)


def convert_store(
    source: str,
    target: str,
    large: Large,
    *,
    src_format: str | None,
    dst_format: str | None,
    dims: tuple[int, ...] | None,
    src_dtype: str | None,
    dtype: str | None,
    names: tuple[str, ...],
    axes: str,
    threads: int | None,
    force: bool,
    attributes: Callable[[MemoryDesc, MemoryDesc], tuple[Normalise | None, dict[str, Any]]],
    shown: bool,
    output: Output,
) -> None:
    """Convert an array in a store into another store."""
    from relayout import stores
    from relayout.files.conversion import destination

    context = click.get_current_context()
    if len(names) > 1 or any(set("*?[") & set(name) for name in names):
        raise click.UsageError("of a store one array is converted at a time: give one --name", context)
    if large.resume and (force or large.dry_run):
        raise click.UsageError(
            "--resume goes on with what is there; it goes without --force and --dry-run", context
        )
    if large.scheduler is not None and large.engine != "dask":
        raise click.UsageError("--scheduler is that of Dask: --engine dask", context)
    suffix = os.path.splitext(target.rstrip("/"))[1].lower()
    if suffix not in ("", ".zarr", ".chunks"):
        raise click.UsageError(
            f"a store is converted into a store: OUT.zarr, or OUT.chunks, a folder of npy files; {target} is "
            "neither. relayout.open(path).read() reads an array that fits into memory",
            context,
        )
    lazy = stores.open(*(source, names[0] if names else None), format=src_format, dims=dims, dtype=src_dtype)
    room = _room(large, threads, _begun(target) if large.resume else {})
    desc = destination(lazy.desc, dst_format, dtype, axes)
    normalise, found = attributes(lazy.desc, desc)
    plan = stores.plan(
        lazy, target, dst_format, dtype=dtype, chunks=large.chunks, shards=large.shards, **room,
        codecs=large.codecs or "same", zarr_format=int(large.zarr_format or 3),
        missing=large.missing or "fill", axes=axes, normalise=normalise,
        **found,
    )  # fmt: skip
    _check_room(large, plan)
    # A time is among it, and rates are measured for that.
    told = _told(lazy, plan) if output.json_to is not None else {}
    if large.dry_run:
        output.json({**told, "done": False})
        output.echo(plan.explain())
        return
    begin = time.perf_counter()
    with (
        _started(plan, large.resume, force) as run,
        _bar(run, target, shown) as progress,
    ):
        _engine(large)(run, progress=progress, **_options(large))
        run.commit()
    took = {"seconds": time.perf_counter() - begin, "resident": _resident()}
    output.json({**told, "done": True, "resumed": run.resumed, "missing": run.missing, **took})
    _report(source, target, lazy, plan, run, output)


def _begun(target: str) -> dict[str, int]:
    """Memory, threads and the like of the conversion that was begun, so that it is planned alike."""
    from relayout.stores.run import begun

    told, keys = begun(Path(target)), ("memory", "base", "threads", "workers", "partial")
    return {key: told[key] for key in keys if isinstance(told.get(key), int)}


def _room(large: Large, threads: int | None, asked: dict[str, int]) -> dict[str, Any]:
    """What to plan with: as it was begun, as it was given, or what the workers have."""
    if large.engine != "dask" or large.scheduler is None:
        given = {"memory": large.memory, "threads": threads}
        alone = {"memory": "2GB", "partial": large.engine != "dask"}
        return {**alone, **asked, **{key: value for key, value in given.items() if value}}
    if asked:  # blocks must be the same; whether these workers have room for them is looked at later
        return {"partial": False, **asked}
    made: dict[str, Any] = _dask("for_workers")(large.scheduler, large.memory)
    return made if threads is None else {**made, "threads": threads}


def _check_room(large: Large, plan: Plan) -> None:
    """Refuse to go on with blocks that are too large for the memory that is given now."""
    from relayout.errors import LayoutError, spelled_bytes

    if not large.resume or large.memory is None or large.engine != "dask" or large.scheduler is None:
        return
    part = _dask("for_workers")(large.scheduler, large.memory)["memory"]
    needed = plan.fixed + max(one.memory for one in plan.passes)
    if needed > part:
        raise LayoutError(
            f"{large.memory} are {spelled_bytes(part)} for each worker, and the blocks that the conversion "
            f"was begun with take {spelled_bytes(needed)} in a worker; resume it with fewer workers or more "
            "memory, or begin again (--force)"
        )


@contextmanager
def _started(plan: Plan, resume: bool, force: bool) -> Iterator[Run]:
    """A plan at work; what is done again is told."""
    from relayout.stores.run import ChunksGone

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ChunksGone)
        run = plan.start(resume=resume, force=force)
    for warning in caught:
        if issubclass(warning.category, ChunksGone):
            click.echo(f"Warning: {warning.message}", err=True)
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    with run:
        yield run


def _dask(name: str) -> Callable[..., Any]:
    """A function of ``relayout.dask``; Dask may not be there."""
    import relayout.dask

    found: Callable[..., Any] = getattr(relayout.dask, name)
    return found


def _engine(large: Large) -> Callable[..., None]:
    if large.engine != "dask":
        from relayout.stores import workers

        return workers.run
    return _dask("run")


def _options(large: Large) -> dict[str, Any]:
    return {} if large.engine != "dask" else {"scheduler": large.scheduler}


@contextmanager
def _bar(run: Run, target: str, shown: bool) -> Iterator[Callable[[Done], None] | None]:
    """A progress bar with the rate and the time that is left."""
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from relayout.files.spelling import spelled

    columns = (
        TextColumn("{task.description}"),
        BarColumn(20),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    plan = run.plan
    width = plan.passes[0].source.open().desc.dtype.bits / 8
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = sum(prod(one.dims) for one in plan.passes)
        before = sum(plan.pass_of(number).elements(number) for number in run.done)
        name = spelled(Path(target).name)
        task = bar.add_task(name, total=total * width, completed=int(before * width))
        yield lambda done: bar.update(task, advance=done.elements * width)


def _told(lazy: LazyTensor, plan: Plan) -> dict[str, Any]:
    from relayout.files.descriptor import descriptor_to_json

    target = plan.target.open()
    return {
        "source": lazy.address.spelled,
        "target": plan.target.spelled,
        "from": descriptor_to_json(lazy.desc),
        "to": descriptor_to_json(target.desc),
        "chunks": {"from": list(lazy.chunks), "to": list(target.chunks)},
        "passes": [
            {
                "block": list(one.block),
                "tasks": one.blocks.total,
                "bytes_read": one.bytes_read,
                "bytes_written": one.bytes_written,
                "requests_read": one.requests_read,
                "times_read": one.times_read,
                "pieces": one.work.moves,
                "requests_written": one.requests_written,
                "memory": one.memory,
            }
            for one in plan.passes
        ],
        "threads": plan.threads,
        "workers": plan.workers,
        "peak_memory": plan.peak,
        "predicted_seconds": plan.seconds,
        "notes": list(plan.notes),
    }


def _resident() -> int | None:
    """The largest resident set of this process, measured by the system; None: it does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _report(source: str, target: str, lazy: LazyTensor, plan: Plan, run: Run, output: Output) -> None:
    from relayout.errors import counted
    from relayout.files.spelling import spelled

    made = plan.target.open()
    output.echo(f"{spelled(source)}  {lazy.desc}, {counted(lazy.grid.total, 'chunk')} of {list(lazy.chunks)}")
    output.echo(
        f"{spelled(target)}  {made.desc}, {counted(made.grid.total, 'chunk')} of {list(made.chunks)}"
        + (f", {made.codecs}" if made.codecs else "")
    )
    if run.resumed:
        output.echo(f"{run.resumed} of {plan.total} blocks had been done before")
    if run.redone:
        output.echo(f"{run.redone} of {plan.total} blocks were done again, as their chunks were gone")
    for note in plan.notes:
        output.echo(note)
