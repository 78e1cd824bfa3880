"""Networks of files that an earlier process has compiled: known unread, and run unplanned.

To read an ONNX file, simplify the network, plan its formats and pack its weights takes longer than to run it
a few times. So the first process that compiles the network of a file keeps the run, as :meth:`.Run.save`
writes it, and later ones take that::

    rl.load("model.onnx")    a small entry says what the network takes and returns; the file is not opened
    .compile(batch=8)        the run that was kept for these sizes, threads and formats; weights are mapped
    .nodes, .constants       the file, read when somebody asks

**When a run is the right one.** It was made from a file, by code, on a processor. A file is known by device,
inode, size, and both times (``mtime``, and ``ctime``, which nobody sets back); those with external data are,
too. Code is known in the same way, file by file, and so is the ``onnx`` package, whose functions operators
may be made of. All of that is in a digest at the end of each run. What was changed within the last seconds is
not kept, since times of files are rounded. Neither is what a process does to the code that it has imported
known; an experiment that does switches this off.

**Where it lies.** In the folder ``runs`` of the cache (:mod:`relayout.jit.cache`), under the same rules: only
what this user's processes have written is believed, and what is damaged is thrown away and made anew. A run
is as large as its weights. :data:`LIMIT` bytes are kept in all, or ``RELAYOUT_RUNS_LIMIT``; 0 keeps none.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from operator import methodcaller
from typing import Any, Final, NamedTuple

from relayout.environment import LOADED, named_number
from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.graph import Graph, Value
from relayout.graph.plain import Reading, Writing
from relayout.graph.run import Run
from relayout.jit import cache

__all__ = ["LIMIT", "FileGraph", "code", "graph_of", "keep", "limit", "recalled", "sealed", "stored_bytes"]

VERSION: Final = 1  # of entries; counted up when they change their meaning

LIMIT: Final = 4 << 30
"""Bytes of all runs; one takes half of that at most."""

FREE: Final = 4
"""How often a run has to fit into what is free on the disk."""

FIELDS: Final = ("nodes", "constants", "values")
"""What only reading the file tells."""

Read = Callable[[str], "tuple[Graph, Iterable[str]]"]
"""Reads a file: the graph, and the files beside it that it has read."""


class _File(NamedTuple):
    """A file, and which version of it."""

    path: str
    stamp: tuple[int, ...]


class _Facts(NamedTuple):
    """What a graph was made from."""

    files: tuple[_File, ...]
    code: str

    def hold(self) -> bool:
        """Whether all of that still is as it was."""
        return all(_stamp(one.path) == one.stamp for one in self.files) and code() == self.code


class FileGraph(Graph):
    """The graph of a file, which is read when somebody asks for what only it has.

    Parameters
    ----------
    known : Graph
        All of it; or its inputs, results, name and defaults.
    outputs : tuple of Value
        What is known of what it returns.
    facts
        What it was made from; None: nothing of it can be kept.
    read : callable, optional
        What makes the rest.
    """

    _facts: _Facts | None

    def __init__(
        self,
        known: Graph,
        outputs: tuple[Value, ...],
        facts: _Facts | None,
        read: Callable[[], Graph] | None = None,
    ) -> None:
        own: dict[str, Any] = {"inputs": known.inputs, "results": known.results, "name": known.name}
        own |= {"defaults": known.defaults, "_outputs": outputs, "_facts": facts, "_read": read}
        own["_again"] = read is not None
        if read is None:
            own |= {name: getattr(known, name) for name in FIELDS}
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS:
            raise AttributeError(f"a Graph has no attribute {name!r}")
        self._fill()
        return self.__dict__[name]

    @locked
    def _fill(self) -> None:
        read = self.__dict__["_read"]
        if read is not None:
            graph = read()
            self.__dict__.update({name: getattr(graph, name) for name in FIELDS}, _read=None)

    @property
    def outputs(self) -> tuple[Value, ...]:
        """What is known of what it returns: name, dims, data type."""
        found: tuple[Value, ...] = self.__dict__["_outputs"]
        return found

    def replaced(self, **changes: Any) -> Graph:  # type: ignore[override]  # it is no file's any longer
        """The same graph with some attributes replaced."""
        names = ("inputs", "results", *FIELDS, "name", "defaults")
        return Graph(**{name: changes.get(name, getattr(self, name)) for name in names})

    def __reduce__(self) -> tuple[Any, ...]:
        return Graph, tuple(getattr(self, name) for name in self.__dataclass_fields__)

    @locked
    def compile(
        self,
        format: str | None = None,
        threads: int | None = None,
        batch: Any = None,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> Run:
        """Plan the network and compile it, or take the run that an earlier process has kept.

        See :meth:`.Graph.compile`.
        """
        how = format, threads, batch, precision, algorithm
        name = self._name(*how)
        if name is not None and self.__dict__["_again"]:
            run = recalled(name, sealed(self._facts))
            if run is not None:
                run.planned_by(lambda: self.plan(format, threads, batch, None, precision, algorithm))
                if self.defaults:
                    from relayout.graph.defaults import Others

                    run.defaults = self.defaults
                    run.with_others = Others(self, methodcaller("compile", *how))
                return run
        run = super().compile(*how)
        if name is not None and run.steps is not None:
            self._keep(name, run)
        return run

    @locked
    def _name(
        self, format: str | None, threads: int | None, batch: Any, precision: str | None, algorithm: str
    ) -> str | None:
        """What the run for these arguments is called; None: it is none to keep."""
        from relayout.graph.passes.precision import check_precision
        from relayout.ops.products import check_algorithm
        from relayout.reorder.conversion import check_threads
        from relayout.runtime.threads import count
        from relayout.runtime.tuning import here

        check_threads(threads)
        precision = check_precision(precision)
        check_algorithm(algorithm)
        if self._facts is None or not limit():
            return None
        inputs = self.inputs
        if batch is not None:
            from relayout.graph.inference import with_dims

            inputs = with_dims(Graph(inputs, (), ()), batch).inputs
        if not all(value.known for value in inputs):
            return None
        sizes = [(value.name, value.dims, str(value.dtype)) for value in inputs]
        what = (self._facts.files[0].path, format, threads, here(count()), sizes, precision, algorithm)
        return f"run-{cache.digest(repr(what).encode()).hex()}"

    def _keep(self, name: str, run: Run) -> None:
        """Keep a run for later processes."""
        facts = self._facts
        if facts is not None and keep(name, run, sealed(facts), facts.hold):
            cache.save(_entry(facts.files[0].path), json.dumps(self._told(facts)).encode())

    def _told(self, facts: _Facts) -> dict[str, Any]:
        """What an entry says of the graph."""
        writing = Writing()
        return {
            "version": VERSION,
            "files": facts.files,
            "code": facts.code,
            "inputs": writing.values(self.inputs),
            "outputs": writing.values(self.outputs),
            "results": self.results,
            "name": self.name,
            "defaults": {
                name: None if value is None else writing.values((value,))[0]
                for name, value in self.defaults.items()
            },
        }


@locked
def graph_of(path: str | os.PathLike[str], read: Read) -> Graph:
    """The graph in a file: what an earlier process has said of it, or what reading it says.

    Parameters
    ----------
    path : path
        The file.
    read : callable
        Reads it: given its path, returns the graph and the other files that belong to it.
    """
    began = time.time_ns()
    given = os.fspath(path)
    where = os.path.abspath(given) if isinstance(given, str) and limit() else ""
    stamp = _stamp(where) if where and cache.folder() is not None else None
    if stamp is None:
        return read(given)[0]
    found = _told(where, stamp)
    if found is not None:
        return _unread(found, given, read)
    graph, others = read(given)
    files = [_File(where, stamp)]
    for one in others:
        beside = os.path.abspath(one)
        files.append(_File(beside, _stamp(beside) or ()))
    own = code()
    young = any(not one.stamp or max(one.stamp[3:5]) > began - cache.SETTLED for one in files)
    facts = None if young or own is None or _stamp(where) != stamp else _Facts(tuple(files), own)
    return FileGraph(graph, graph.outputs, facts) if facts is not None else graph


def _unread(told: Mapping[str, Any], path: str, read: Read) -> Graph:
    """A graph of which is known what an entry says."""
    values = Reading(()).values
    facts = _facts(told)
    defaults = {name: None if one is None else values((one,))[0] for name, one in told["defaults"].items()}
    results = tuple(map(str, told["results"]))
    known = Graph(values(told["inputs"]), results, (), name=str(told["name"]), defaults=defaults)

    def rest() -> Graph:
        if all(_stamp(one.path) == one.stamp for one in facts.files):
            graph = read(path)[0]
            if all(_stamp(one.path) == one.stamp for one in facts.files):
                return graph
        raise LayoutError(f"{path!r} is another file than the one that was loaded; load it again")

    return FileGraph(known, values(told["outputs"]), facts, rest)


def _told(path: str, stamp: tuple[int, ...]) -> Mapping[str, Any] | None:
    """What an entry says of a file, if all that it was made from is as it was."""
    data = cache.load(_entry(path))
    if data is None:
        return None
    try:
        found: dict[str, Any] = json.loads(data)
        facts = _facts(found)
        same = found["version"] == VERSION and facts.files[0] == (path, stamp) and facts.hold()
    except (ValueError, LookupError, TypeError):  # another version's
        return None
    return found if same else None


def _facts(told: Mapping[str, Any]) -> _Facts:
    return _Facts(tuple(_File(path, tuple(stamp)) for path, stamp in told["files"]), told["code"])


def _entry(path: str) -> str:
    """The name of what is known of a file: one for each path, so that they don't pile up."""
    return f"model-{cache.digest(os.fsencode(path)).hex()}"


# -- what things are made from ------------------------------------------------------------------------------


def _stamp(path: str) -> tuple[int, ...] | None:
    """What changes when a regular file does; None where that can't be told."""
    if os.name != "posix":  # elsewhere ctime is when a file was made
        return None
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=1)
def _package() -> tuple[str, ...]:
    """The folders with code of this package."""
    return tuple(sorted(where for where, _, names in os.walk(cache.PACKAGE) if "__init__.py" in names))


def code() -> str | None:
    """The digest of what tells versions of this package's files apart; None where only reading them does."""
    found: list[Any] = []
    for where in _package():
        try:
            with os.scandir(where) as files:
                several = [(file.name, file.stat()) for file in files if file.name.endswith(".py")]
        except OSError:
            return None
        if any(cache.young(one, LOADED) for _, one in several):
            return None
        facts = [(name, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in several]
        found.append((where, sorted(facts)))
    for name in ("onnx", "torch", "numpy"):
        spec = find_spec(name)
        found.append(None if spec is None or spec.origin is None else (spec.origin, _stamp(spec.origin)))
    return cache.digest(repr(found).encode()).hex()


# -- runs on disk -------------------------------------------------------------------------------------------


@locked
def sealed(facts: object) -> bytes:
    """What a run ends with that was made from these facts, on this processor."""
    from relayout.runtime.kept import generation
    from relayout.targets.machine import host

    return cache.digest(repr((VERSION, facts, str(host()), generation())).encode())


@locked
def keep(name: str, run: Run, seal: bytes, holds: Callable[[], bool]) -> bool:
    """Keep a run for later processes, where it can be written and there is room.

    Parameters
    ----------
    name : str
        What it is called: a prefix and a digest.
    run : Run
    seal : bytes
        What it was made from (:func:`sealed`).
    holds : callable
        Asked at the end, whether all of that still is as it was.

    Returns
    -------
    bool
        Whether it is kept.
    """
    where, size, most = _folder(), stored_bytes(run), limit()
    if where is None or 2 * size > most or not _has_room(where, FREE * size):
        return False
    import tempfile

    from relayout.graph.saving import write

    part = ""
    try:
        handle, part = tempfile.mkstemp(prefix=f"{name}.", dir=where)
        with os.fdopen(handle, "wb") as file:
            write(run, file)
            file.write(seal)
            file.flush()
            os.fsync(file.fileno())  # weights have no digest: half of them must not outlive a crash
        if holds():
            os.replace(part, f"{where}/{name}")
            part = ""
            cache.shrink(where, most)
            return True
    except (OSError, LayoutError):  # a full disk; a step that has no text
        pass
    finally:
        if part:
            with contextlib.suppress(OSError):
                os.unlink(part)
    return False


def stored_bytes(run: Run) -> int:
    """Bytes of the weights of a run that are kept with it: those that are not moved out of lent memory."""
    if run.steps is None:
        return 0
    schedule = run.steps._schedule
    return sum(data.nbytes for number, data in schedule.constants.items() if number not in schedule.moved)


@locked
def recalled(name: str, seal: bytes, copied: bool = False) -> Run | None:
    """A run that was kept, if it was made from what the seal says; a damaged one is removed.

    Parameters
    ----------
    name, seal
        As it was kept (:func:`keep`).
    copied : bool
        Whether its weights are read at once, into memory of the process; otherwise they are mapped.
    """
    from relayout.graph.saving import loaded, mapped

    where = _folder()
    if where is None:
        return None
    path = f"{where}/{name}"
    begin = time.perf_counter()
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or not cache.ours(found):
            return None
        data = mapped(path)
        if data[-len(seal) :].tobytes() != seal:
            return None
        run = loaded(data[: -len(seal)], copied)
        if abs(time.time() - found.st_mtime) > cache.DAY:
            os.utime(path)
    except OSError:
        return None
    except (LayoutError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError):
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None
    run.seconds = {"plan": 0.0, "compile": time.perf_counter() - begin}
    return run


def _folder() -> str | None:
    """The folder of runs, made if need be; None where it can't be trusted."""
    above = cache.folder()
    if above is None:
        return None
    path = f"{above}/runs"
    with contextlib.suppress(OSError):
        os.mkdir(path, 0o700)
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return path if stat.S_ISDIR(found.st_mode) and cache.ours(found) else None


def limit() -> int:
    """Bytes of all runs.

    Raises
    ------
    LayoutError
        ``RELAYOUT_RUNS_LIMIT`` is no number of bytes.
    """
    what = f"number of bytes; write one in digits, such as {LIMIT}, or 0 to keep no runs"
    found = named_number("RELAYOUT_RUNS_LIMIT", what)
    return LIMIT if found is None else found


def _has_room(where: str, size: int) -> bool:
    """Whether so many bytes are free on the disk."""
    found = os.statvfs(where)
    return found.f_bavail * found.f_frsize >= size
