"""Large conversions beside programs that rechunk arrays: time, and memory of all processes together.

The problem is the same for all: a Zarr array of version 2 whose chunks lie along one axis becomes one whose
chunks lie along another, transposed on the way or not; or chunks stay where they are, and only what is in
them is transposed, which reads and writes everything once. Each contestant is a script in a process of its
own (:mod:`relayout.bench.peers.rechunking`), may start as many workers as the others, and is told the same
memory. What it took is seen from outside:

*time*      what the script measured, without imports and without the start of a cluster, and what the system
            needs afterwards to bring everything to the disk: who leaves that to later is not faster. The
            source is in the system's memory for all, as far as that holds it, or (``cold``) for none
*memory*    the sum over all its processes, every :data:`INTERVAL` seconds, each page counted once
            (proportional set size, where the system has it)
*bytes*     every element of the result is compared with the definition, after the time was taken

Who fails within the memory, or does not end, gets twice as much until it has ended or :data:`TRIES` are over;
the result says how much it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError

__all__ = [
    "CONTESTANTS",
    "Contestant",
    "Outcome",
    "Problem",
    "check",
    "compete",
    "problems",
    "resident",
    "write_result",
    "write_source",
]

INTERVAL: Final = 0.05
"""Seconds between two looks at the memory of a contestant."""

TRIES: Final = 4
"""How often a contestant that fails is given twice the memory."""

PATIENCE: Final = 1800.0
"""Seconds after which a contestant that has not ended is ended."""

SCRIPTS: Final = Path(__file__).parent / "peers" / "rechunking"


class Problem(NamedTuple):
    """An array in chunks, and the chunks that it gets."""

    name: str
    dims: tuple[int, ...]
    """Of the source; its elements are f32."""
    source_chunks: tuple[int, ...]
    axes: tuple[int, ...] | None
    """The order of the axes of the result; None: the same."""
    chunks: tuple[int, ...]
    """Those of the result."""
    formats: tuple[str, str]
    """What Relayout calls source and result."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return 4 * prod(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return self.dims if self.axes is None else tuple(self.dims[a] for a in self.axes)


class Contestant(NamedTuple):
    """A script, and what its problem says besides."""

    name: str
    script: str
    options: Mapping[str, Any]
    here: bool
    """Whether it runs in this environment; the others have one of their own."""
    copies: str = ""
    """What it only copies, for comparison: the ``"source"``, or the ``"result"``; empty: it converts."""


CONTESTANTS: Final = (
    # The bytes as they are, and chunks that are decoded and encoded again with the same codecs.
    Contestant("copy of files", "with_copy.py", {"method": "files"}, True, copies="source"),
    Contestant("copy by codecs", "with_copy.py", {"method": "codecs"}, True, copies="source"),
    # The result in the same way. Elements in another order compress otherwise, and take another time for it.
    Contestant("copy of result", "with_copy.py", {"method": "codecs"}, True, copies="result"),
    Contestant("Relayout", "with_relayout.py", {}, True),
    Contestant("Relayout on Dask", "with_relayout.py", {"engine": "dask"}, True),
    Contestant("rechunker", "with_rechunker.py", {}, False),
    Contestant("dask p2p", "with_dask.py", {"method": "p2p"}, True),
    Contestant("dask tasks", "with_dask.py", {"method": "tasks"}, True),
    Contestant("cubed", "with_cubed.py", {"executor": "threads"}, False),
    Contestant("cubed processes", "with_cubed.py", {"executor": "processes"}, False),
)


class Outcome(NamedTuple):
    """What a contestant did with a problem."""

    problem: str
    contestant: str
    seconds: float
    """Of the conversion, and until everything is on the disk; not a number: it failed."""
    syncing: float
    """Of that, the part after the script has ended."""
    memory: int
    """Bytes, of all processes together, at most."""
    given: int
    """Bytes that it was told to keep to."""
    versions: Mapping[str, str]
    error: str
    """Why there is no result; empty: there is one, and all of it is right."""


def problems(nbytes: int, chunk: int = 16 << 20) -> tuple[Problem, ...]:
    """The problems for arrays of about so many bytes, in chunks of about ``chunk`` bytes.

    >>> [(one.name, one.dims, one.source_chunks, one.chunks) for one in problems(1 << 24, 1 << 20)]
    [('rows to columns', (2048, 2048), (128, 2048), (2048, 128)),
     ('nchw to nhwc', (16, 64, 64, 64), (1, 64, 64, 64), (16, 32, 8, 64)),
     ('nchw to nhwc in place', (16, 64, 64, 64), (1, 64, 64, 64), (1, 64, 64, 64))]
    """
    side = 1 << max(4, (max(nbytes, 1 << 12) // 4).bit_length() // 2)
    rows = max(1, nbytes // 4 // side)
    cut = max(1, min(rows, chunk // 4 // side))
    columns = max(1, min(side, chunk // 4 // rows))
    matrix = Problem("rows to columns", (rows, side), (cut, side), None, (rows, columns), ("ab", "ab"))
    channels, height = 64, 64
    image = 4 * channels * height * height
    images = max(1, nbytes // image)
    group = max(1, chunk // image)
    lines = max(1, chunk // (4 * images * channels * (height // 2)))
    pictures = Problem(
        "nchw to nhwc",
        (images, channels, height, height),
        (min(images, group), channels, height, height),
        (0, 2, 3, 1),
        (images, height // 2, min(height, lines), channels),
        ("nchw", "nhwc"),
    )
    alone = pictures._replace(  # each chunk of the result is one of the source
        name="nchw to nhwc in place", chunks=(pictures.source_chunks[0], height, height, channels)
    )
    return matrix, pictures, alone


# -- data ---------------------------------------------------------------------------------------------------


def _values(dims: Sequence[int], start: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float32]:
    """A box of the array that all problems convert: each element is its number, as far as f32 counts."""
    number = np.zeros((1,) * len(dims), np.uint32)  # of which the lower 24 bits are wanted
    for axis, (first, size) in enumerate(zip(start, sizes, strict=True)):
        line = np.arange(first, first + size, dtype=np.int64) * prod(dims[axis + 1 :]) & 0xFFFFFF
        number = number + line.astype(np.uint32).reshape([-1 if k == axis else 1 for k in range(len(dims))])
    number &= 0xFFFFFF
    return number.astype(np.float32)


def _boxes(shape: Sequence[int], chunks: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for start in product(*(range(0, size, step) for size, step in zip(shape, chunks, strict=True))):
        yield start, tuple(min(c, n - s) for s, c, n in zip(start, chunks, shape, strict=True))


def write_source(problem: Problem, path: Path, codec: str | None = None) -> None:
    """Write the array of a problem as a Zarr store of version 2; ``codec``: None, or ``"zstd"``."""
    _write(path, problem.dims, problem.source_chunks, codec, lambda *box: _values(problem.dims, *box))


def write_result(problem: Problem, path: Path, codec: str | None = None) -> None:
    """Write what a conversion of the problem has to make, in the same way."""
    _write(path, problem.shape, problem.chunks, codec, lambda *box: _expected(problem, *box))


def _write(
    path: Path,
    shape: Sequence[int],
    chunks: Sequence[int],
    codec: str | None,
    values: Callable[[Sequence[int], Sequence[int]], NDArray[np.float32]],
) -> None:
    import zarr
    from numcodecs import Zstd

    made = zarr.create_array(
        path,
        shape=tuple(shape),
        chunks=tuple(chunks),
        dtype="f4",
        zarr_format=2,
        compressors=Zstd(1) if codec == "zstd" else None,
    )
    for start, sizes in _boxes(shape, chunks):
        made[tuple(slice(s, s + n) for s, n in zip(start, sizes, strict=True))] = values(start, sizes)


def _expected(problem: Problem, start: Sequence[int], sizes: Sequence[int]) -> NDArray[np.float32]:
    """A box of the result."""
    order = range(len(problem.dims)) if problem.axes is None else problem.axes
    back = [list(order).index(axis) for axis in range(len(problem.dims))]
    values = _values(problem.dims, [start[k] for k in back], [sizes[k] for k in back])
    turned: NDArray[np.float32] = values.transpose(tuple(order))
    return turned


def check(problem: Problem, path: Path, source: Path) -> str:
    """What is wrong with a result; empty: nothing, each element is where it belongs.

    Its codecs must be those of the source. Otherwise a contestant would be timed for another task: the
    default of a library may compress what the others write as it is.
    """
    import zarr

    try:
        found = zarr.open_array(path, mode="r")
    except (OSError, ValueError, KeyError) as error:
        return f"no array: {error}"
    if found.shape != problem.shape or found.chunks != problem.chunks or found.dtype != np.float32:
        return f"an array of {found.dtype} of {found.shape} in chunks {found.chunks}"
    wanted = zarr.open_array(source, mode="r").compressors
    if found.compressors != wanted:
        by, theirs = (codecs or "nothing" for codecs in (found.compressors, wanted))
        return f"chunks compressed by {by}, those of the source by {theirs}"
    for start, sizes in _boxes(problem.shape, problem.chunks):
        values = found[tuple(slice(s, s + n) for s, n in zip(start, sizes, strict=True))]
        if not np.array_equal(values, _expected(problem, start, sizes)):
            return f"wrong elements in the chunk at {start}"
    return ""


# -- one contestant -----------------------------------------------------------------------------------------


def compete(
    problem: Problem,
    contestant: Contestant,
    source: Path,
    folder: Path,
    *,
    memory: int,
    workers: int,
    python: str | None = None,
    tries: int = TRIES,
    patience: float = PATIENCE,
    cold: bool = False,
) -> Outcome:
    """Let one contestant convert one problem, with more memory where it fails.

    Parameters
    ----------
    problem, contestant
        Who, and what.
    source : Path
        The store that :func:`write_source` has written; for who copies the result, :func:`write_result`.
    folder : Path
        Where the result and everything in between goes; removed afterwards.
    memory : int
        Bytes that all workers together may take.
    workers : int
        Threads or processes, whatever it works with.
    python : str, optional
        The interpreter of an environment that has the peers which this one does not have.
    cold : bool
        Whether the source is on the disk only when a contestant begins; otherwise all find it in the system's
        memory, as far as that holds it.
    """
    interpreter = sys.executable if contestant.here or python is None else python
    outcome: Outcome | None = None
    for _ in range(tries):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _prepare(source, cold)
        try:
            outcome = _once(problem, contestant, source, folder, memory, workers, interpreter, patience)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not outcome.error or "No module named" in outcome.error:
            break
        memory *= 2
    if outcome is None:
        raise LayoutError(f"a contestant is tried once or more, not {tries} times")
    return outcome


def _once(
    problem: Problem,
    contestant: Contestant,
    source: Path,
    folder: Path,
    memory: int,
    workers: int,
    interpreter: str,
    patience: float,
) -> Outcome:
    if contestant.copies == "source":
        same = problem.formats[0], problem.formats[0]
        problem = problem._replace(axes=None, chunks=problem.source_chunks, formats=same)
    elif contestant.copies:
        problem = problem._replace(formats=(problem.formats[1], problem.formats[1]))
    task = {
        "source": str(source),
        "target": str(folder / "result.zarr"),
        "temporary": str(folder),
        "axes": problem.axes,
        "chunks": problem.chunks,
        "from": problem.formats[0],
        "to": problem.formats[1],
        "memory": memory,
        "workers": workers,
        **contestant.options,
    }
    os.sync()  # what others have left to write is not theirs
    script = subprocess.Popen(
        [interpreter, str(SCRIPTS / contestant.script), json.dumps(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    with _watched(script.pid) as watch:
        try:
            out, err = script.communicate(timeout=patience)
            error = "" if script.returncode == 0 else _last(err)
        except subprocess.TimeoutExpired:
            error = f"not ended after {patience:.0f} s"
            _kill(script)
            out, err = script.communicate()
        finally:
            _kill(script)  # whoever it has started and left behind, too
    begin = time.perf_counter()
    os.sync()
    syncing = time.perf_counter() - begin
    told = _told(out) if not error else {}
    if not error:
        error = check(problem, folder / "result.zarr", source)
    seconds = told.get("seconds", float("nan")) + syncing
    name, versions = contestant.name, told.get("versions", {})
    return Outcome(problem.name, name, seconds, syncing, watch.most, memory, versions, error)


def _prepare(source: Path, cold: bool) -> None:
    """Have a source in the system's memory, or only on the disk: for all contestants alike."""
    os.sync()
    if cold and not hasattr(os, "posix_fadvise"):
        raise LayoutError("this system can't be told to forget files, so there is no cold source")
    room = memoryview(bytearray(1 << 20))
    for path in source.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                if cold:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while file.readinto(room):
                        pass


def _told(out: str) -> dict[str, Any]:
    for line in reversed(out.splitlines()):
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if isinstance(told, dict):
                return told
    return {}


def _last(err: str) -> str:
    """The line of a traceback that says why."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Killed" in line or "xceeded" in line]
    return (telling or lines or ["it ended without a word"])[-1][:300]


def _kill(script: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(script.pid, signal.SIGKILL)  # the session that was made for it


# -- memory -------------------------------------------------------------------------------------------------


class _Watch:
    """The memory of a process and all that descend from it, looked at from a thread."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most = pid, 0
        self.ended = threading.Event()

    def look(self) -> None:
        while not self.ended.wait(INTERVAL):
            self.most = max(self.most, sum(map(_memory, _family(self.pid))))


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[_Watch]:
    watch = _Watch(pid)
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def _family(pid: int) -> list[int]:
    """A process and its descendants, as far as they are still there."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                text = Path(f"/proc/{one}/task/{thread}/children").read_text()
                found += map(int, text.split())
    return found


def _memory(pid: int) -> int:
    """Bytes; pages that several processes share count for each in part, where the system says so."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return resident(pid)


def resident(pid: int, most: bool = False) -> int:
    """The resident set of a process in bytes, or the largest that it had; 0 where the system does not say."""
    key = "VmHWM:" if most else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) * 1024
    return 0
