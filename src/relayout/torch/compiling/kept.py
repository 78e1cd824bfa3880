"""Parts that an earlier process has compiled: neither translated, nor planned, nor packed again.

What a part becomes follows from its nodes, the weights, the options, the processor and the code that does it.
The first process that compiles one keeps the run, weights and all, as :meth:`.Graph.compile` does for
networks of files (:mod:`relayout.graph.kept`). Later ones look for it by two digests::

    nodes: operators, arguments, sizes, strides, options    an entry of some bytes says that there are runs
    contents of the weights                                  the run for these, and what is said of it

The second takes half a second a gigabyte. So nothing is read where there is no entry yet; while such a part
is compiled, another thread reads its weights, which nobody can change before the first call ends. When it has
ended (:func:`begin`), the run is written, in a thread of its own, for which a process that ends waits. Begun
any earlier it would take half of the core on which the first results are computed.

Kept is what took :data:`LONG` to compile, once for each graph: where weights change, an optimiser is at work,
and what it makes now nobody will ask for tomorrow. The rules for folder, trust and room are those of runs
(``RELAYOUT_RUNS_LIMIT``; 0 keeps none).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from relayout.graph import kept
from relayout.graph.run import Run
from relayout.jit import cache
from relayout.runtime.tuning import here

__all__ = ["LONG", "Found", "Question", "asked", "begin", "finish"]

VERSION: Final = 1  # of entries; counted up when they change their meaning

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
    """

    name: str
    seal: bytes
    weights: Sequence[Any] = field(repr=False)
    _contents: Future[bytes] | None = field(default=None, repr=False)

    def found(self) -> Found | None:
        """The part, if an earlier process has kept it; otherwise its weights begin to be read."""
        known = cache.load(f"part-{self.name}") == self.seal
        self._contents = _contents(self.weights)
        if not known:
            return None
        name = self._whole()
        run = kept.recalled(f"run-{name}", self.seal, copied=True)
        data = None if run is None else cache.load(f"part-{name}")
        if run is None or data is None:
            return None
        told = json.loads(data)
        return Found(run, tuple(told["places"]), told["told"])

    def keep(self, run: Run, places: Sequence[int], told: Mapping[str, Any]) -> None:
        """Keep a part for later processes, once it has been called."""
        name = self._whole()  # waited for: once the first call has ended, weights may change

        def work() -> None:
            if kept.keep(f"run-{name}", run, self.seal, lambda: _seal() == self.seal):
                text = json.dumps({"places": list(places), "told": told}, separators=(",", ":"))
                cache.save(f"part-{name}", text.encode())
                cache.save(f"part-{self.name}", self.seal)

        _waiting.append(work)

    def _whole(self) -> str:
        """What it is called with these weights."""
        assert self._contents is not None
        return cache.digest(self.name.encode() + self._contents.result()).hex()


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
    return Question(cache.digest(repr(facts).encode()).hex(), seal, [data for _, data in fixed.values()])


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


def _contents(weights: Sequence[Any]) -> Future[bytes]:
    """The digest of arrays, which are read in the background."""
    made: Future[bytes] = Future()

    def work() -> None:
        try:
            count = min(READERS, torch.get_num_threads())
            with ThreadPoolExecutor(count, "relayout reads weights") as several:
                made.set_result(b"".join(several.map(_content, weights)))
        except BaseException as error:  # raised where somebody waits for it
            made.set_exception(error)

    if sum(one.nbytes for one in weights) > SMALL:
        threading.Thread(target=work, name="relayout reads weights", daemon=True).start()
    else:
        made.set_result(b"".join(map(_content, weights)))
    return made


def _content(array: Any) -> bytes:
    """The digest of an array."""
    whole = np.ascontiguousarray(array)
    made = hashlib.sha256(repr((array.shape, array.strides, str(array.dtype))).encode())
    made.update(memoryview(whole.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]
    return made.digest()
