"""From two arrays and a number of bytes to a plan: which blocks, how many passes, how long.

A source, a format and chunks for the destination are given; :mod:`.search` goes through the shapes of blocks.
One pass that reads every chunk once is taken if the memory allows it. If it does not, one pass that reads
some chunks several times is compared with two passes through an intermediate store. The number of tasks at a
time is chosen with that: fewer tasks may each have more memory.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from math import prod
from operator import index as as_index
from pathlib import Path
from typing import Any, Final

from relayout.dtypes import DTypeLike
from relayout.errors import LayoutError, TooLarge, Unsupported, described, spelled_bytes
from relayout.files.conversion import Normalise, destination
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import plain
from relayout.reorder.attributes import Attributes
from relayout.stores import search
from relayout.stores.codecs import chosen
from relayout.stores.collected import PARTS
from relayout.stores.folder import Folder
from relayout.stores.grid import Cells, digit_names, stored_shape
from relayout.stores.lazy import LazyTensor
from relayout.stores.opening import open as open_store
from relayout.stores.plans import Pass, Plan
from relayout.stores.rates import Rates, assumed
from relayout.stores.run import WORK, Run
from relayout.stores.store import Address, Fingerprint
from relayout.stores.task import Schedule
from relayout.stores.zarr import Zarr, new_metadata

__all__ = ["BASE", "TooLittle", "as_bytes", "convert", "plan"]

BASE: Final = 160 << 20
"""Bytes that the interpreter, NumPy, Zarr and compiled kernels take, which count for the memory.

The same number in every process, so that a conversion which is resumed is planned alike. Workers of a cluster
are asked what they take (:func:`relayout.dask.for_workers`)."""

SPARE: Final = 2
"""Tasks at a time beyond one for each processor: some wait for the disk."""

ALIKE: Final = 1.05
"""The ratio of two predicted times up to which the plan of less memory is taken."""

CHUNK: Final = 8 << 20
"""Bytes of a chunk of the destination, where nothing suggests another size."""

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12} | {
    "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40
}  # fmt: skip


class TooLittle(TooLarge):
    """No block fits into the memory."""

    needed = 0
    """Bytes of a process that are enough for a task at a time."""


def as_bytes(given: int | str) -> int:
    """A number of bytes, as a number or as people write it.

    >>> as_bytes("2GB"), as_bytes("512MiB"), as_bytes("1.5g"), as_bytes(10**9)
    (2000000000, 536870912, 1500000000, 1000000000)
    """
    if isinstance(given, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?|)b?\s*", given.lower())
        if match is not None:
            return int(float(match[1]) * _UNITS[match[2]])
    elif isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    raise LayoutError(f"memory is a number of bytes such as '2GB' or '512MiB', got {described(given)}")


def plan(
    source: LazyTensor | str | os.PathLike[str],
    path: str | os.PathLike[str],
    format: str | Format | None = None,
    *,
    dtype: DTypeLike | None = None,
    chunks: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    memory: int | str = "2GB",
    base: int | None = None,
    threads: int | None = None,
    workers: int = 1,
    kind: str | None = None,
    codecs: str = "same",
    zarr_format: int = 3,
    missing: str = "fill",
    axes: str = "meaning",
    normalise: Normalise | None = None,
    rates: Rates | None = None,
    passes: int | None = None,
    partial: bool = True,
    **attributes: Any,
) -> Plan:
    """Plan the conversion of an array in a store into another store. Nothing is written.

    Parameters
    ----------
    source : LazyTensor or path
        What is converted.
    path : str or Path
        The folder that is made.
    format : str or Format, optional
        The format of the destination, whose physical array has an axis for each digit; without one that of
        the source.
    dtype : optional
        The data type of the destination; without one that of the source.
    chunks : sequence of int, optional
        The sizes of a chunk of the destination's physical array; -1: the whole axis. Without them a chunk
        holds the same elements as one of the source, as far as its format allows it.
    shards : sequence of int, optional
        The sizes of a shard, multiples of those of a chunk (Zarr 3). Shards are what is written as one.
    memory : int or str
        What the process may take, all in all: ``"2GB"``, ``"512MiB"``.
    base : int, optional
        The bytes of that which the process takes before it has a task; without it those that a process of
        this package takes at most (:data:`BASE`).
    threads : int, optional
        How many tasks may run at the same time, at most. Without it two more than there are processors.
        Fewer do where the memory is too little for that.
    workers : int
        How many processes there will be, each with so much memory and so many threads
        (:func:`relayout.dask.for_workers` says these four for a cluster).
    kind : str, optional
        ``"zarr"``, or ``"npy"`` or ``"bin"`` for a folder of such files. Without it Zarr if the path ends in
        ``.zarr``, else npy.
    codecs : str
        How chunks are compressed (Zarr): ``"same"`` as those of the source, ``"none"``, ``"zstd"``,
        ``"gzip"``, ``"blosc"``, with a level as in ``"zstd:3"`` and a checksum as in ``"zstd+crc32c"``.
    zarr_format : int
        The version of Zarr, 2 or 3.
    missing : str
        What chunks of the source that are not there mean: ``"fill"``, the fill value, as Zarr has it, or
        ``"error"``.
    axes, normalise, **attributes
        What becomes of the values, and how axes are matched, as :func:`relayout.files.convert` takes it.
    rates : Rates, optional
        What predicted times are made of; without them they are measured on some chunks of the source, as soon
        as somebody asks for a time.
    passes : int, optional
        1 or 2, if it is not to be chosen.
    partial : bool
        Whether several tasks may write parts of one file, at different places. On one machine they may; those
        of several machines must not, since network file systems keep whole pages of a file.

    Raises
    ------
    LayoutError
        Something does not fit: the format, the chunks, the memory; or source and destination lie within each
        other.
    OSError
        The source can't be read.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "x.npy")
    ...     np.save(path, np.zeros((4, 32, 8, 8), np.float32))
    ...     made = plan(rl.open(path, format="nchw"), path.with_name("y.chunks"), "nChw16c", memory="1GB")
    ...     made.total, made.bytes_read, made.bytes_written
    (1, 32768, 32768)
    """
    lazy = source if isinstance(source, LazyTensor) else open_store(source)
    if "://" in os.fspath(path):
        raise Unsupported(
            f"{os.fspath(path)}: a destination is a folder; mount the store, or copy it afterwards"
        )
    where = os.path.abspath(path)
    _check_apart(lazy.address.path, where)
    desc = _destination(lazy, format, dtype, axes)
    made = _attributes(lazy, desc, normalise, attributes)
    target, coded = _target(lazy, where, desc, chunks, shards, kind, codecs, zarr_format)
    found = lazy.stored.fingerprint()
    complete, absent = _completeness(lazy, found, missing)
    room, base = as_bytes(memory), BASE if base is None else _count("base", base)
    passes = None if passes is None else _count("passes", passes, 2)
    many = (os.cpu_count() or 1) + SPARE if threads is None else _count("threads", threads)
    left = room - base - lazy.stored.held
    workers = _count("workers", workers)
    made_target = target.open()
    sides = lazy.cells, Cells(desc, made_target.chunks, made_target.plain)
    _check_uncut(*sides)
    chosen = _chosen(lazy, desc, sides, left, (many, workers), passes, partial)
    if chosen is None:
        parts = _without_shards(lazy)
        if parts is not None:  # chunk by chunk, which takes more requests
            lazy, sides = parts, (parts.cells, sides[1])
            chosen = _chosen(lazy, desc, sides, left, (many, workers), passes, partial)
    if chosen is None:
        raise _too_little(sides, room, base + lazy.stored.held)
    count, shapes, middle = chosen
    stops = [(lazy.address, sides[0]), (target, sides[1])]
    if middle is not None:
        stops.insert(1, (_between(where, middle), middle))
    notes = [note for note in (absent, lazy.stored.note, coded) if note]
    count = min(count, max(1, *(shape.blocks for shape in shapes)))
    passing = _passes(stops, shapes, desc, made, (found.newest, complete), where)
    return Plan(
        *(lazy.address, target, passing, found, room, base, count, rates, tuple(notes), many),
        *(workers, lazy.stored.held, partial),
    )


def convert(
    source: LazyTensor | str | os.PathLike[str],
    path: str | os.PathLike[str],
    format: str | Format | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    engine: Any = None,
    progress: Any = None,
    **options: Any,
) -> Run:
    """Convert an array in a store into another store: :func:`plan`, then :meth:`Plan.run`.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "x.npy")
    ...     np.save(path, np.arange(6, dtype=np.float32).reshape(2, 3))
    ...     _ = convert(path, path.with_name("y.chunks"), "ba", dtype="s8")
    ...     rl.open(path.with_name("y.chunks"))[1]
    array([3, 4, 5], dtype=int8)
    """
    made = plan(source, path, format, **options)
    return made.run(resume=resume, force=force, engine=engine, progress=progress)


# -- workings -------------------------------------------------------------------------------------------


def _count(what: str, given: Any, most: int | None = None) -> int:
    """A number of things, at least 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1 or (most and given > most):
        which = f"from 1 to {most}" if most else "of 1 or more"
        raise LayoutError(f"{what} is a number {which}, got {described(given)}")
    return given


def _destination(
    lazy: LazyTensor, format: str | Format | None, dtype: DTypeLike | None, axes: str
) -> MemoryDesc:
    if format is not None:
        to = Format(format)
        to = to if to.rank is not None else to.resolve(lazy.desc.rank, lazy.dtype.name)
        if (
            axes == "meaning"
            and to.roles is not None
            and lazy.desc.layout.roles is None
            and lazy.desc.rank > 1
        ):
            raise LayoutError(
                f"{lazy.address.spelled} holds an array of shape {list(lazy.grid.shape)}, and nothing says "
                f"what its axes mean, so it can't be converted to {format}; say the format it is in: --from "
                "nchw, --from nhwc, ... (rl.open(path, format=...))"
            )
    desc = destination(lazy.desc, format, dtype, axes)
    stored_shape(desc)  # there is one
    return desc


def _attributes(
    lazy: LazyTensor, desc: MemoryDesc, normalise: Normalise | None, given: dict[str, Any]
) -> Attributes:
    """What becomes of the values; what can't be done with a new destination is refused."""
    made = Attributes.make(lazy.dims, **given)
    if normalise is not None:
        made = normalise.attributes(lazy.desc, made)
    made.check_range(lazy.dtype, desc.dtype)
    made = made.taking_part(lazy.dtype, desc.dtype)
    if made.reads_destination:
        raise LayoutError("beta adds to an old destination, and that of a plan is new")
    _check_carried(lazy, desc, made)
    return made


def _completeness(lazy: LazyTensor, found: Fingerprint, missing: str) -> tuple[bool, str]:
    """Whether all chunks of the source are there, and what is said about it; refused if they must be."""
    if missing not in ("fill", "error"):
        raise LayoutError(f"missing chunks are 'fill' or 'error', got {described(missing)}")
    complete = found.chunks == lazy.grid.total
    absent = "" if complete or found.chunks < 0 else _missing(lazy, found)
    if missing == "error" and not complete:
        absent = absent or "nobody knows which chunks are there"
        raise LayoutError(f"{absent}; missing='error' (--missing error) refuses that")
    return complete, absent


def _between(where: str, cells: Cells) -> Address:
    """The store between two passes."""
    told = {"create": Folder.create(cells.whole, cells.stored.chunks, "bin")}
    return Address("folder", str(Path(where, WORK, "between")), "", json.dumps(told, sort_keys=True))


def _passes(
    stops: Sequence[tuple[Address, Cells]],
    shapes: Sequence[search.Shape],
    desc: MemoryDesc,
    attributes: Attributes,
    source: tuple[int, bool],
    where: str,
) -> tuple[Pass, ...]:
    """The passes from store to store; ``source``: its newest time, and whether all its chunks are there."""
    passing, first = [], 0
    # Values are converted in the pass that leaves less to be written in between.
    early = len(stops) > 2 and stops[1][1].whole.dtype is desc.dtype
    for number, shape in enumerate(shapes):
        (one, a), (two, b) = stops[number], stops[number + 1]
        last = number == len(shapes) - 1
        collected = str(Path(where, WORK, PARTS)) if last else two.path
        passing.append(
            Pass(
                *(one, two, desc.dims, shape.block, shape.by_target, first),
                attributes if early == (not last) else Attributes(),
                *(source if number == 0 else (0, True)),
                *(shape.reads * a.stored_bytes, shape.writes * b.stored_bytes),
                *(shape.reads, shape.runs or shape.writes),
                shape.memory,
                shape.work,
                a.stored.total,
                collected if shape.runs else "",
                shape.assembled,
            )
        )
        first += shape.blocks
    return tuple(passing)


def _check_carried(lazy: LazyTensor, desc: MemoryDesc, attributes: Attributes) -> None:
    """Elements of types that are none of ours are moved, and not converted."""
    if lazy.stored.element != lazy.dtype.name and (desc.dtype is not lazy.dtype or not attributes.is_plain):
        raise Unsupported(
            f"{lazy.address.spelled} holds {lazy.stored.element}, whose elements Relayout moves and does not "
            "convert; leave out dtype and scales, or say which of its types they stand for (--in-dtype)"
        )


def _target(
    lazy: LazyTensor,
    where: str,
    desc: MemoryDesc,
    chunks: Sequence[int] | None,
    shards: Sequence[int] | None,
    kind: str | None,
    codecs: str,
    version: int,
) -> tuple[Address, str]:
    """Where the new array is and what it is to be; and what there is to say about its codecs."""
    shape = stored_shape(desc)
    kind = kind or ("zarr" if where.lower().endswith(".zarr") else "npy")
    sizes = _sizes(desc, shape, "chunks", chunks) if chunks is not None else _like(lazy, desc)
    whole = None
    if shards is not None:  # the last one may reach beyond the array, as it is made of whole chunks
        cut = [-(-size // chunk) * chunk for size, chunk in zip(shape, sizes, strict=True)]
        whole = _sizes(desc, cut, "shards", shards)
    foreign = lazy.stored.element if lazy.stored.element != lazy.dtype.name else ""
    note = ""
    if kind == "zarr":
        like = lazy.stored if isinstance(lazy.stored, Zarr) else None
        told: Any = new_metadata(
            desc, sizes, shards=whole, codecs=codecs, like=like, version=version, element=foreign
        )
        note = chosen(codecs, like and like.array, version, desc.dtype.bits // 8)[1]
    elif kind in ("npy", "bin"):
        if whole is not None or codecs not in ("same", "none"):
            raise LayoutError(f"a folder of {kind} files has neither shards nor codecs; write Zarr (x.zarr)")
        told = Folder.create(desc, sizes, kind, foreign)
    else:
        raise LayoutError(f"stores are written as zarr, npy or bin, and not as {described(kind)}")
    address = Address(
        "zarr" if kind == "zarr" else "folder", where, "", json.dumps({"create": told}, sort_keys=True)
    )
    return address, note


def _sizes(desc: MemoryDesc, most: Sequence[int], what: str, given: Sequence[int]) -> tuple[int, ...]:
    """Sizes of chunks that were given; ``most``: what is no more than the whole axis."""
    shape = stored_shape(desc)
    try:
        given = [as_index(size) for size in given]
    except TypeError:
        raise LayoutError(f"{what} are whole numbers, one for each digit, got {described(given)}") from None
    if len(given) != len(shape) or any(size < 1 and size != -1 for size in given):
        names = ", ".join(digit_names(desc))
        raise LayoutError(
            f"{what} {','.join(map(str, given))}: the array has the shape {list(shape)}, an axis for each "
            f"digit ({names}), and a size of 1 or more (or -1, all of it) is needed for each"
        )
    return tuple(
        max(1, size if g == -1 else min(g, max(1, size))) for g, size in zip(given, most, strict=True)
    )


def _like(lazy: LazyTensor, desc: MemoryDesc) -> tuple[int, ...]:
    """Chunks of the same elements as those of the source, as near as the format comes to it."""
    shape = stored_shape(desc)
    sizes = list(shape)
    for position, digit in enumerate(desc.layout.digits):
        term = desc.layout.terms[digit.term]
        if len(term) == 1 and desc.layout.order[position][1] == 0:
            cell = lazy.cells.grid.chunks[term[0]]
            sizes[position] = max(1, min(shape[position], -(-cell // digit.weight)))
    width = desc.dtype.bits // 8
    while prod(sizes) * width > 4 * CHUNK:  # blocks of 16 channels for one
        longest = max(range(len(sizes)), key=lambda k: sizes[k] if desc.layout.order[k][1] == 0 else 0)
        if sizes[longest] == 1:
            break
        sizes[longest] = -(-sizes[longest] // 2)
    return tuple(max(1, size) for size in sizes)


def _chosen(
    lazy: LazyTensor,
    desc: MemoryDesc,
    sides: tuple[Cells, Cells],
    room: int,
    crew: tuple[int, int],
    passes: int | None,
    partial: bool,
) -> tuple[int, list[search.Shape], Cells | None] | None:
    """How many tasks at a time, the blocks of each pass, and the store in between.

    ``crew`` are the threads of a process, and the processes.
    """
    found: list[tuple[float, int, tuple[int, list[search.Shape], Cells | None]]] = []
    source, target = sides
    threads, workers = crew
    processors = max(1, threads - SPARE)  # more tasks at a time than that only wait for the disk

    def offer(count: int, shapes: list[search.Shape], middle: Cells | None) -> None:
        stops = [source, *([middle] if middle is not None else []), target]
        seconds = sum(
            shape.seconds(assumed(stops[k].plain, stops[k + 1].plain), min(count, processors) * workers)
            for k, shape in enumerate(shapes)
        )
        found.append((seconds, count * max(shape.memory for shape in shapes), (count, shapes, middle)))

    for count in sorted({threads, processors, max(1, processors // 2), 1}, reverse=True):
        most = room // count
        at_once = count * workers
        single = None if passes == 2 else search.fastest(source, target, most, at_once)
        if single is not None:
            offer(count, [single], None)
            if single.reads == source.stored.total and passes is None:  # everything is read and written once
                if single.blocks >= at_once:
                    break  # which fewer tasks at a time can't do better
                continue
        if partial and passes != 2:
            parts = search.scattered(source, target, most, at_once)
            if parts is not None:
                offer(count, [parts], None)
        if passes == 1:
            continue
        kind = min(lazy.dtype, desc.dtype, key=lambda one: one.bits)
        if partial and passes is None and not (target.plain and target.direct):  # encoded afterwards
            middle = Cells(MemoryDesc(desc.dims, kind, desc.format), target.stored.chunks, True)
            parts = search.scattered(source, middle, most, at_once)
            second = None if parts is None else search.fastest(middle, target, most, at_once)
            if parts is not None and second is not None:
                offer(count, [parts, second], middle)
        for chunk in search.between(source, target, most)[:8]:
            middle = Cells(MemoryDesc(desc.dims, kind, plain(desc.rank)), chunk, True)
            two = [search.fastest(a, b, most, at_once) for a, b in ((source, middle), (middle, target))]
            shapes = [shape for shape in two if shape is not None]
            if len(shapes) == 2:
                offer(count, shapes, middle)
    if not found:
        return None
    # Of those that are alike the one with least memory; of these the one with more tasks at a time.
    alike = ALIKE * min(seconds for seconds, *_ in found)
    return min((one for one in found if one[0] <= alike), key=lambda one: (one[1], -one[2][0]))[2]


def _too_little(sides: tuple[Cells, Cells], room: int, base: int) -> TooLittle:
    source, target = sides
    needed = base + Schedule((), 1, 1).memory(source, target)
    made = TooLittle(
        f"{spelled_bytes(room)} of memory are too little: a chunk of the source takes "
        f"{spelled_bytes(source.nbytes)}, one of the destination {spelled_bytes(target.nbytes)}, both more "
        f"than once while they are encoded, and the process {spelled_bytes(base)}; "
        f"{spelled_bytes(needed)} are enough, and less is for smaller chunks"
    )
    made.needed = needed
    return made


def _check_uncut(source: Cells, target: Cells) -> None:
    """Fused axes are in one piece, on both sides."""
    for one, two, side in ((source, target, "destination"), (target, source, "source")):
        for axis, unit in enumerate(one.units):
            if unit == 0 and two.grid.counts[axis] > 1:
                raise Unsupported(
                    f"axis {axis} is fused with others in {one.whole}, so it can't be cut, and the chunks of "
                    f"the {side} cut it in {two.grid.counts[axis]}; choose chunks that do not"
                )


def _check_apart(source: str, target: str) -> None:
    if "://" in source:
        return
    one, two = os.path.realpath(source), os.path.realpath(target)
    if one == two:
        raise LayoutError(f"source and destination are the same: {target}")
    for inner, outer, what in (
        (two, one, "destination lies within the source"),
        (one, two, "source lies within the destination"),
    ):
        if os.path.isdir(outer) and inner.startswith(outer + os.sep):
            raise LayoutError(f"the {what}: {source}, {target}")


def _without_shards(lazy: LazyTensor) -> LazyTensor | None:
    """The same array by the chunks within its shards; None: it has none."""
    stored = lazy.stored
    if not isinstance(stored, Zarr) or not stored.array.shards or lazy.address.details.get("inner"):
        return None
    said = {**lazy.address.details, "inner": True}
    return LazyTensor(lazy.address._replace(said=json.dumps(said, sort_keys=True)).open())


def _missing(lazy: LazyTensor, found: Fingerprint) -> str:
    return (
        f"{lazy.grid.total - found.chunks} of {lazy.grid.total} chunks of {lazy.address.spelled} are not "
        "there, and are read as its fill value"
    )
