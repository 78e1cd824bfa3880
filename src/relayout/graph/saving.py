"""Runs in files: saved when a network is compiled, loaded in a tenth of a second.

::

    "relayout run 1"      16 bytes
    length of the header   8 bytes, little endian
    its digest            32 bytes, BLAKE2b
    8 zeros
    header                JSON: inputs and outputs, steps, what definitions do, sizes of the arrays
    arrays                the weights as kernels read them, each from a multiple of 64 bytes on

The steps are primitives as text, with all formats chosen (:mod:`relayout.primitives.plain`). Whoever loads a
file plans nothing and packs no weights: they are mapped, so that processes share them, and read when they are
used.

**Why no code is in it.** A file may come from anywhere, and code that is run does what it likes. So kernels
are not in the file, nor rows of addresses for them: they come from this machine's own cache, or are compiled.
The text of the steps says what to look for there (:mod:`relayout.primitives.images`); where nothing is found,
constructors make the primitives anew, which check what they are given, and the memory that each step reads
and writes is checked.

So a file runs everywhere. Formats stay as they were chosen: on another processor results are the same, and
``Run.note`` says that another choice may be faster. The first load on a machine compiles kernels, later ones
take them as they are.

Traps:

* A mapped file must not be changed where it lies. :func:`save` does not do that: it writes another file and
  gives it the name.
* The digest is that of the header. Reading all weights to compare them would take longer than all the rest;
  what is damaged there gives other numbers, and no more.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.plain import MAGIC, Reading, Writing
from relayout.graph.run import Compiled, Run
from relayout.jit.cache import digest
from relayout.primitives import plain
from relayout.primitives.custom import Custom
from relayout.primitives.lent import Moved, loan, told
from relayout.primitives.packing import Packing
from relayout.primitives.plain import Functions
from relayout.primitives.runner import Run as Steps
from relayout.primitives.schedule import linked
from relayout.primitives.storages import moved_constants
from relayout.tensor import address, aligned, on_large_pages

if TYPE_CHECKING:
    from relayout.graph.lowering.definition import Picked
    from relayout.primitives.storages import Item

__all__ = ["dumped", "load", "loaded", "mapped", "restored", "save", "write"]

VERSION: Final = 1  # of the format; counted up when it changes its meaning
BEGIN: Final = struct.Struct("<12s4sQ32s8x")
ALIGNED: Final = 64  # bytes: a cache line, and the widest vectors
MOST_HEADER: Final = 1 << 30
Bytes = NDArray[np.uint8]


# -- writing ------------------------------------------------------------------------------------------------


@locked
def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run to a file; see :meth:`.Run.save`."""
    from relayout.files.atomic import replacing

    parts = _written_run(run)
    with replacing(Path(path), True) as file:
        file.writelines(parts)


@locked
def write(run: Run, file: BinaryIO) -> None:
    """Write a run to an open file; see :meth:`.Run.save`.

    Constants that were moved out of memory that was lent (:mod:`relayout.primitives.lent`) are not in it, but
    how they were moved.
    """
    file.writelines(_written_run(run, without_lent=True))


def dumped(run: Run) -> bytes:
    """What :func:`save` writes, for other processes."""
    return b"".join(_written_run(run))


@locked
def _written_run(run: Run, without_lent: bool = False) -> list[Any]:
    """The bytes of the file of a run, in parts; weights are not copied."""
    from relayout.targets.machine import host

    writing = Writing()
    document: dict[str, Any] = {
        "processor": str(host()),
        "inputs": writing.values(run.inputs),
        "outputs": writing.values(run.outputs),
        "why": run.why,
        "tail": None if run.tail is None else writing.graph(run.tail),
        "compiled": None,
    }
    weights: list[Bytes] = []
    if run.compiled is not None:
        schedule = run.compiled.steps._schedule
        text = plain.written(schedule.inputs, schedule.outputs, schedule.items, schedule.constants)
        moved = schedule.moved if without_lent else {}
        weights = [data[: 0 if number in moved else None] for number, data in schedule.constants.items()]
        functions = {str(k): _written(item, writing) for k, item in enumerate(schedule.items) if _calls(item)}
        document["compiled"] = {
            "steps": text,
            "functions": functions,
            "threads": schedule.asked,
            "inputs": list(run.compiled.inputs),
            "outputs": writing.values(run.compiled.outputs),
            "moved": {
                k: [one.array, one.at, str(one.src), str(one.dst)]
                for k, number in enumerate(schedule.constants)
                if (one := moved.get(number)) is not None
            },
        }
        plain.check(plain.read(text, _functions(functions, Reading(writing.arrays))))
    arrays = [*weights, *writing.arrays]
    document["sizes"] = [data.nbytes for data in arrays]
    header = json.dumps(document, separators=(",", ":")).encode()
    begin = BEGIN.pack(MAGIC, b" %-3d" % VERSION, len(header), digest(header))
    parts: list[Any] = [begin + header + bytes(-len(header) % ALIGNED)]
    for data in arrays:
        parts += [data.data, bytes(-data.nbytes % ALIGNED)]
    return parts


def _calls(item: Item) -> bool:
    return isinstance(item.primitive, Custom)


@locked
def _written(item: Item, writing: Writing) -> Any:
    """The function of a step as plain data."""
    from relayout.graph.lowering.definition import Picked

    assert isinstance(item.primitive, Custom)
    function = item.primitive.operation.function
    if not isinstance(function, Picked):
        raise LayoutError(f"step {item.name!r}: a {type(function).__name__} can't be written to a file")
    own = function.function
    return writing.data([own.operator, own.attributes, own.given, own.outputs, function.places])


# -- reading ------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Run:
    """The run in a file.

    Raises
    ------
    LayoutError
        The file is none of :meth:`.Run.save`'s, of another version, or damaged.
    OSError
        There is no such file.
    """
    start = perf_counter()
    where = os.fspath(path)
    run = _checked(lambda: mapped(where), where)
    run.seconds = {"plan": 0.0, "compile": perf_counter() - start}
    return run


def restored(data: bytes) -> Run:
    """The run that :func:`dumped` has written: how runs are pickled.

    Raises
    ------
    LayoutError
        It is of another version of the format, or damaged.
    """
    made = aligned(len(data), zeroed=False)
    made[:] = np.frombuffer(data, np.uint8)
    return _checked(lambda: made, "a pickled run")


def _checked(data: Callable[[], Bytes], where: str) -> Run:
    """The run in some bytes; whatever goes wrong is an error about where they are from."""
    try:
        return loaded(data())
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        raise LayoutError(f"{where} is damaged: {error!s:.200}") from None


def mapped(path: str) -> Bytes:
    """The bytes of a file, which is mapped."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "this is no regular file, so it can't be mapped", path)
        if not found.st_size:
            raise LayoutError("the file is empty")
        return np.frombuffer(mmap.mmap(file, found.st_size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(file)


def loaded(data: Bytes, copied: bool = False) -> Run:
    """The run in the bytes of a file; ``copied``: with weights in memory of their own, on large pages."""
    document, arrays = _parts(data)
    part, count = document["compiled"], 0
    if part is not None:
        count = len(json.loads(part["steps"])["constants"])
    reading, compiled = Reading(arrays[count:]), None
    if part is not None:
        steps = _linked(part, arrays[:count], reading, copied)
        compiled = Compiled(steps, tuple(map(str, part["inputs"])), reading.values(part["outputs"]))
    tail = None if document["tail"] is None else reading.graph(document["tail"])
    run = Run(
        reading.values(document["inputs"]),
        reading.values(document["outputs"]),
        compiled,
        tail,
        why=str(document["why"]),
    )
    _check(run)
    run.note = _note(str(document["processor"]))
    return run


def _parts(data: Bytes) -> tuple[dict[str, Any], list[Bytes]]:
    """The header of a file, and its arrays."""
    if data.size < BEGIN.size or bytes(data[: len(MAGIC)]) != MAGIC:
        raise LayoutError("this is no saved run")
    _, version, length, seal = BEGIN.unpack(data[: BEGIN.size].tobytes())
    if version != b" %-3d" % VERSION:
        raise LayoutError(
            f"the run is of version {version.decode(errors='replace').strip()} of the format, and this is "
            f"Relayout for version {VERSION}; save it again"
        )
    end = BEGIN.size + length
    if length > MOST_HEADER or end > data.size:
        raise LayoutError(f"the file is truncated: its header has {length} bytes, the file {data.size}")
    header = data[BEGIN.size : end].tobytes()
    if digest(header) != seal:
        raise LayoutError("the header is damaged")
    document = json.loads(header)
    arrays, at = [], _ended(end)
    for size in document["sizes"]:
        if type(size) is not int or not 0 <= size <= data.size - at:
            raise LayoutError(f"the file is truncated: an array of {size!r:.40} bytes begins at byte {at}")
        arrays.append(data[at : at + size])
        at = _ended(at + size)
    if at != data.size:
        raise LayoutError(f"the arrays end at byte {at}, the file at {data.size}")
    return document, arrays


def _ended(at: int) -> int:
    """The next multiple of the alignment."""
    return -(-at // ALIGNED) * ALIGNED


def _linked(part: dict[str, Any], weights: Sequence[Bytes], reading: Reading, copied: bool) -> Steps:
    """The steps, ready to run."""
    text, threads = part["steps"], part["threads"]
    if threads is not None and (type(threads) is not int or threads < 1):
        raise LayoutError(f"{threads!r:.40} is no number of threads")
    steps = plain.read(text, _functions(part["functions"], reading))
    moved = {int(k): _moved(one) for k, one in part.get("moved", {}).items()}
    stored = [data for k, data in enumerate(weights) if k not in moved]
    with Packing() as packing:
        constants = dict(zip(moved, _lent(moved.values(), packing), strict=True))
        others = (k for k in range(len(weights)) if k not in moved)
        constants |= zip(others, _copies(stored) if copied else map(_aligned, stored), strict=True)
        if steps.sizes != [constants[k].size for k in range(len(weights))]:
            raise LayoutError("the weights are not of the sizes that the steps want")
        made = linked(
            steps.inputs,
            steps.outputs,
            steps.items,
            {k: constants[k] for k in range(len(weights))},
            threads,
            text=text,
            check=lambda: plain.check(steps),
        )
    made.moved = moved
    return Steps(made)


def _moved(written: Any) -> Moved:
    """How a constant is moved, as it is written."""
    array, at, src, dst = written
    if type(array) is not int or type(at) is not int:
        raise LayoutError("what is moved lies nowhere")
    if type(src) is not str or type(dst) is not str:
        raise LayoutError("what is moved has no descriptors")
    return Moved(array, at, told(src), told(dst))


def _lent(several: Iterable[Moved], packing: Packing) -> list[Bytes]:
    """Constants out of memory that is lent."""
    lender, wanted = loan(), []
    for one in several:
        given = None if lender is None else lender.tensor(one)
        if given is None or one.src.dims != one.dst.dims or one.src.dtype != one.dst.dtype:
            raise LayoutError("constants lie in memory that nobody has lent")
        wanted.append((given, one.dst, "a constant"))
    return moved_constants(wanted, packing)


def _copies(several: Sequence[Bytes]) -> list[Bytes]:
    """The same bytes in memory that is read faster than a mapped file (:func:`.on_large_pages`)."""
    made = on_large_pages([data.size for data in several])
    for room, data in zip(made, several, strict=True):
        room[:] = data
    return made


def _aligned(data: Bytes) -> Bytes:
    """The array itself where it begins on a cache line, as in a file whose map begins on a page."""
    if data.size and address(data) % ALIGNED == 0:
        return data
    made = aligned(data.size, zeroed=False)
    made[:] = data
    return made


@locked
def _functions(written: dict[str, Any], reading: Reading) -> Functions:
    """For the number of a step the function that it calls."""
    known: dict[int, Picked] = {}
    if not written:
        return known.__getitem__
    from relayout.graph.lowering.definition import Defined, Picked
    from relayout.graph.operators import OPERATORS

    def made(k: str) -> Picked:
        operator, attributes, given, outputs, places = reading.data(written[k])
        if operator not in OPERATORS:
            raise LayoutError(f"there is no operator {operator!r:.60}")
        if not isinstance(attributes, dict) or not all(isinstance(name, str) for name in attributes):
            raise LayoutError(f"{operator} has no attributes")
        if not all(one is None or isinstance(one, (np.ndarray, int)) for one in given):
            raise LayoutError(f"{operator} reads what is no array")
        if not all(type(place) is int and 0 <= place < outputs for place in places):
            raise LayoutError(f"{operator} has no results {places!r:.60}")
        return Picked(Defined(operator, attributes, given, outputs), list(places))

    known.update((int(k), made(k)) for k in written)
    return known.__getitem__


def _check(run: Run) -> None:
    """Whether inputs and outputs are those of the parts."""
    given = {value.name for value in run.inputs}
    made = {value.name for value in run.outputs}
    if run.compiled is not None:
        steps = run.compiled.steps._schedule
        if not given.issuperset(run.compiled.inputs) or len(run.compiled.inputs) != len(steps.inputs):
            raise LayoutError("the steps read what is no input")
        if len(run.compiled.outputs) != len(steps.outputs):
            raise LayoutError(f"{len(run.compiled.outputs)} results are named, the steps have others")
        given |= {value.name for value in run.compiled.outputs}
        if run.tail is None and len(run.outputs) != len(steps.outputs):
            raise LayoutError(f"the run has {len(made)} outputs, its steps have {len(steps.outputs)}")
    elif run.tail is None:
        raise LayoutError("the run has no steps")
    if run.tail is not None:
        if not given.issuperset(value.name for value in run.tail.inputs):
            raise LayoutError("what runs behind the steps reads what nobody makes")
        if len(run.tail.results) != len(run.outputs):
            raise LayoutError("what runs behind the steps has other outputs")


@locked
def _note(processor: str) -> str:
    """What a user should know of where a run was saved."""
    from relayout.targets.machine import host

    if processor == str(host()):
        return ""
    return (
        f"its formats were chosen for another processor ({processor:.80}); results are the same, and "
        "compiling the model here may make it faster"
    )
