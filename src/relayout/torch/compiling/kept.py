"""Parts that an earlier process has compiled: neither translated, nor planned, nor compiled again.

What a part becomes follows from its nodes, the options, the processor, the code that does it, and the values
of some weights: those into which something is folded, and small ones. Most of what weights there are is only
moved, whatever its values (:mod:`.lending`). The first process that compiles a part keeps the run
(:mod:`relayout.graph.kept`), without such weights: of them it is written how they are moved, and a later
process moves its own. It looks for the run by two digests::

    nodes: operators, arguments, sizes, strides, options    an entry tells which weights have to be compared
    contents of these                                       the run for them, and what is said of it

So a kept part is never wrong for other weights: those that it holds, or that anything was computed or decided
from, are as they were; all others are the caller's own. That something was *not* done for the values that a
weight had (a factor that would have overflowed was not folded into it) is right for all values. An entry may
tell several choices of weights, since which are only moved depends on values, too; each is looked for.

The second digest takes half a second a gigabyte. So nothing is read where there is no entry yet; while such a
part is compiled, another thread reads the weights that will have to be compared, which nobody can change
before the first call ends. When it has ended (:func:`begin`), the run is written, in a thread of its own, for
which a process that ends waits. Begun any earlier it would take half of the core on which the first results
are computed.

Kept is what took :data:`LONG` to compile, once for each graph: where weights change, an optimiser is at work,
and what it makes now nobody will ask for tomorrow. The rules for folder, trust and room are those of runs
(``RELAYOUT_RUNS_LIMIT``; 0 keeps none).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from relayout.graph import kept
from relayout.graph.run import Run
from relayout.jit import cache
from relayout.runtime.tuning import here
from relayout.torch.compiling.lending import folded, were_moved

__all__ = ["LONG", "Found", "Question", "asked", "begin", "finish"]

VERSION: Final = 2  # of entries; counted up when they change their meaning

CHOICES: Final = 4
"""Of weights to compare, at most, that are remembered of one part."""

LONG: Final = 0.25
"""Seconds that it takes at least to compile what is kept."""

READERS: Final = 4
"""Threads that read weights, at most."""


SMALL: Final = 1 << 18
"""Bytes of weights that are read at once."""


class Found(NamedTuple):
    """A part that was kept."""

    run: Run
    places: tuple[int, ...]
    """The inputs that it reads, by their places."""
    told: Mapping[str, Any]
    """What was said of it."""


@dataclass
class Question:
    """Whether a part is kept.

    Attributes
    ----------
    name : str
        Of what is known without looking at weights.
    seal : bytes
        Of the code and the processor.
    weights : sequence of ndarray
        Those of the part.
    free : set of int
        Those of them whose values may not matter, by their places.
    ready : set of int
        Those of these that are compared nevertheless, most likely.
    """

    name: str
    seal: bytes
    weights: Sequence[Any] = field(repr=False)
    free: AbstractSet[int] = frozenset()
    ready: AbstractSet[int] = frozenset()
    _contents: dict[int, Future[bytes]] = field(default_factory=dict, repr=False)

    def found(self) -> Found | None:
        """The part, if an earlier process has kept it; otherwise weights begin to be read."""
        several = self._known()
        if not several:
            self._read({k for k, _ in enumerate(self.weights)} - self.free | self.ready)
        for compared in several:
            name = self._whole(compared)
            run = kept.recalled(f"run-{name}", self.seal, copied=True)
            data = None if run is None else cache.load(f"part-{name}")
            if run is not None and data is not None:
                told = json.loads(data)
                return Found(run, tuple(told["places"]), told["told"])
        return None

    def keep(self, run: Run, places: Sequence[int], told: Mapping[str, Any]) -> None:
        """Keep a part for later processes, once it has been called."""
        assert run.steps is not None
        schedule = run.steps._schedule
        moved = were_moved([one.nbytes for one in self.weights], schedule.moved.values())
        compared = [k for k, _ in enumerate(self.weights) if k not in self.free or not moved[k]]
        name = self._whole(compared)  # waited for: once the first call has ended, weights may change

        def work() -> None:
            if kept.keep(f"run-{name}", run, self.seal, lambda: _seal() == self.seal):
                text = json.dumps({"places": list(places), "told": told}, separators=(",", ":"))
                cache.save(f"part-{name}", text.encode())
                several = [compared, *(one for one in self._known() if one != compared)][:CHOICES]
                several.sort(key=len, reverse=True)  # who compares more has folded more
                cache.save(f"part-{self.name}", self.seal + json.dumps(several).encode())

        _waiting.append(work)

    def _known(self) -> list[list[int]]:
        """Which weights have to be compared, in order to find a run; there may be several choices."""
        data = cache.load(f"part-{self.name}")
        if data is None or not data.startswith(self.seal):
            return []
        several: list[list[int]] = json.loads(data[len(self.seal) :])
        return several

    def _read(self, places: Iterable[int]) -> None:
        """Begin to read weights."""
        wanted = [k for k in sorted(places) if k not in self._contents]
        made = _contents([self.weights[k] for k in wanted])
        self._contents.update(zip(wanted, made, strict=True))

    def _whole(self, compared: Sequence[int]) -> str:
        """What it is called where these weights are what they are."""
        self._read(compared)
        contents = [self._contents[k].result() for k in compared]
        return cache.digest(f"{self.name} {compared}".encode() + b"".join(contents)).hex()


_waiting: list[Callable[[], None]] = []
"""What writes parts whose first call has not ended."""

_writers: set[threading.Thread] = set()


def begin() -> None:
    """Begin to write what waits for the end of a first call."""
    while True:
        try:
            work = _waiting.pop()
        except IndexError:  # or another thread has begun it
            return
        thread = threading.Thread(target=_written, args=(work,), name="relayout keeps a part")
        _writers.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the process ends
            _writers.discard(thread)


def _written(work: Callable[[], None]) -> None:
    work()
    _writers.discard(threading.current_thread())


def finish() -> None:
    """Wait until all that is being kept is written."""
    begin()
    for one in list(_writers):
        one.join()


def asked(
    nodes: Sequence[Any],
    fixed: Mapping[Any, tuple[str, Any]],
    outputs: Sequence[Any],
    options: Sequence[Any],
    threads: int,
    readers: Mapping[Any, Any] | None = None,
) -> Question | None:
    """The question whether a part is kept; None: nothing is kept here.

    Parameters
    ----------
    nodes : sequence of torch.fx.Node
        All of it, in order.
    fixed : mapping of node to (str, ndarray)
        Its weights.
    outputs : sequence of torch.fx.Node
        Those that are read by others.
    options : sequence
        With which it is compiled.
    threads : int
        For how many threads.
    readers : mapping of node to node
        Those weights whose values may not matter, and what reads each (:func:`.lending.exchangeable`).
    """
    seal = _seal() if kept.limit() and cache.folder() is not None else None
    if seal is None:
        return None
    inside, read = set(nodes), dict.fromkeys(one for node in nodes for one in node.all_input_nodes)
    computed = [
        (node.name, str(node.target), node.args, node.kwargs, _fact(node.meta.get("val"))) for node in nodes
    ]
    given = [
        (node.name, node.op, node in fixed, _fact(node.meta["val"])) for node in read if node not in inside
    ]
    how = VERSION, torch.__version__, here(threads), [str(one) for one in options]
    facts = how, computed, given, [node.name for node in outputs]
    known = readers or {}
    later = folded(known)
    return Question(
        cache.digest(repr(facts).encode()).hex(),
        seal,
        [data for _, data in fixed.values()],
        {k for k, node in enumerate(fixed) if node in known},
        {k for k, node in enumerate(fixed) if node in later},
    )


def _seal() -> bytes | None:
    """What a part ends with that was made by this code; None: the code can't be told from other code."""
    code = kept.code()
    return None if code is None else kept.sealed(("part", code))


def _fact(value: Any) -> Any:
    """What is known of a result."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype
    if isinstance(value, (list, tuple)):
        return [_fact(one) for one in value]
    return value


def _contents(weights: Sequence[Any]) -> list[Future[bytes]]:
    """The digests of arrays, which are read in the background."""
    made: list[Future[bytes]] = [Future() for _ in weights]

    def one(array: Any, future: Future[bytes]) -> None:
        try:
            future.set_result(_content(array))
        except BaseException as error:  # raised where somebody waits for it
            future.set_exception(error)

    def work() -> None:
        try:
            count = min(READERS, torch.get_num_threads())
            with ThreadPoolExecutor(count, "relayout reads weights") as several:
                list(several.map(one, weights, made))
        except BaseException as error:  # there are no threads: raised where somebody waits
            for future in made:
                if not future.done():
                    future.set_exception(error)

    if sum(one.nbytes for one in weights) > SMALL:
        threading.Thread(target=work, name="relayout reads weights", daemon=True).start()
    else:
        list(map(one, weights, made))
    return made


def _content(array: Any) -> bytes:
    """The digest of an array."""
    whole = np.ascontiguousarray(array)
    made = hashlib.sha256(repr((array.shape, array.strides, str(array.dtype))).encode())
    made.update(memoryview(whole.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
    return made.digest()
