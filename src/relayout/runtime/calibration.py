"""Thresholds that no data sheet tells: measured once on each machine, in some tens of milliseconds.

Two questions, both about source and destination together, in bytes:

``streaming``
    From which size on do stores past the caches pay? They save reading each line of the destination before
    it is overwritten, and bringing it home later. But whoever reads the result next finds it in no cache. So
    what is timed is a copy *and one reading of the result*. The copy alone would say too little: on one
    server (2 MiB of L2, a large L3 shared by many processors) streaming took 0.7 of its time from 3 MiB on,
    and up to 12 MiB the next operation, a sum, a ReLU or a matrix product, lost more than that won.

``sharing``
    From which size on does a copy by all threads beat one thread? The others sleep when it begins: a process
    that reorders a tensor has been doing something else.

Both are read off a table of sizes, each twice the one before. Streaming on that server::

    size    plain   streamed
    4 MiB    1.00       1.31
    8 MiB    1.00       1.23
    16 MiB   1.00       1.04
    32 MiB   1.00       0.88     <- the threshold: it wins here, and loses at no larger size

How to measure on a machine that others use, too: the two ways take turns; each goes twice, as the first finds
the caches as the other left them; the shortest time of several rounds over all sizes counts, so that a
disturbance has to last all rounds to be seen; and no other size is begun when time is up (:data:`SECONDS`).
Small sizes come first, as they cost least.

When: as :mod:`.thresholds` says, for sizes between the bounds
(:meth:`relayout.targets.machine.Machine.bounds`), never at import; where an earlier process has measured,
this module is not even loaded. Results are kept with the compiled kernels, under the same rules
(:mod:`relayout.jit.cache`): an entry for each threshold, processor, cache sizes, number of threads and
version. Two processes at once measure both, and the last one's is kept. Where the cache is off or can't be
used, each process measures for itself, once: such a process compiles all of its kernels anew as well, and a
wrong threshold would cost it more for as long as it runs.
Where machine code is forbidden there is nothing to measure, and :func:`relayout.targets.machine.derived`
guesses.

Traps:

* A call that gives up the interpreter's lock may wait 5 ms to have it back. The long calls here keep it.
* A page that is touched for the first time costs more than copying it, so buffers are written before. (To a
  destination that *is* fresh no threshold applies: its lines come into the caches when the system zeroes
  them, and plain stores were faster at every size that was tried, from 5 to 64 MiB.)
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from relayout.forking import lock, locked
from relayout.jit import compile
from relayout.runtime import threads
from relayout.runtime.limits import AWAKE
from relayout.runtime.sharing import PARTS
from relayout.targets.machine import LINE, Machine, derived, host

if TYPE_CHECKING:
    from relayout.ir.builder import Function
    from relayout.ir.types import Value
    from relayout.jit.abi import Kernel

__all__ = ["Figure", "Measured", "crossover", "measured"]

WINS, LOSES = 0.95, 1.05  # times the other way: clearly faster, clearly slower
SECONDS: Final = {"streaming": 0.03, "sharing": 0.03}
"""For how long other sizes are begun."""
ROUNDS: Final = {"streaming": 4, "sharing": 8}

UNROLL = 4  # lines of one turn
PREFETCH_BYTES = 8 * LINE  # bytes ahead that are prefetched, as in kernels that copy rows


class Figure(NamedTuple):
    """The shortest times of a size, in seconds."""

    size: int
    """Bytes of source and destination together."""
    without: float
    """With plain stores; on one thread."""
    with_it: float
    """With streaming stores; on all threads."""


class Measured(NamedTuple):
    """A threshold in bytes, and what it was read off."""

    threshold: int
    figures: tuple[Figure, ...]
    lasting: bool = True
    """Whether it says something about the machine; False: about what else ran on it just now."""


def crossover(figures: Sequence[Figure]) -> int | None:
    """The smallest size at which something wins clearly, and from which on it never loses; None: none.

    >>> crossover([Figure(1, 1.0, 1.3), Figure(2, 1.0, 0.9), Figure(4, 2.0, 1.2)])
    2
    >>> crossover([Figure(1, 1.0, 0.9), Figure(2, 1.0, 1.3), Figure(4, 2.0, 2.0)])
    """
    found = None
    for size, without, with_it in sorted(figures, reverse=True):
        if with_it > LOSES * without:
            break
        if with_it < WINS * without:
            found = size
    return found


# -- measuring ----------------------------------------------------------------------------------------------


def measured(what: str, machine: Machine) -> Measured:
    """Measure a threshold now.

    Parameters
    ----------
    what : str
        ``"streaming"`` or ``"sharing"``.
    machine : Machine
        What this host is.

    Returns
    -------
    Measured
        Where streaming wins at no size that was measured, the threshold is the upper end of its bounds.
        Where threads win at none, the other processors were busy just now: the guess serves, and should not
        be kept.
    """
    with lock():  # nobody else measures, and no child is forked meanwhile
        figures = _streaming(machine) if what == "streaming" else _sharing(machine)
    found = crossover(figures)
    if found is None and what == "sharing":
        return Measured(derived(machine.l2, machine.l3).sharing, figures, lasting=False)
    return Measured(found or machine.bounds(what)[1], figures)


def _streaming(machine: Machine) -> tuple[Figure, ...]:
    names = "plain_and_read", "streamed_and_read"
    kernels, tried = _kernels(machine, *names), machine.sizes("streaming")
    holding = ctypes.PYFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)  # the interpreter's lock
    plain, streamed = (holding(kernels[name].address) for name in names)
    buffers, best = _Buffers(tried[-1]), _Best()
    for size in _turns("streaming", tried):
        addresses = buffers.of(size)
        for way, kernel in enumerate((plain, streamed)):
            for _ in range(2):
                best.note(size, way, kernel, *addresses, 0, 1)
    return best.figures()


@locked
def _sharing(machine: Machine) -> tuple[Figure, ...]:
    kernel, tried, many = _kernels(machine, "plain")["plain"], machine.sizes("sharing"), threads.count()
    buffers, best = _Buffers(tried[-1]), _Best()
    threads.run(kernel.address, *buffers.of(tried[0]), PARTS * many, many)  # makes the threads
    for size in _turns("sharing", tried):
        addresses = buffers.of(size)
        for _ in range(2):
            best.note(size, 0, kernel, *addresses, 0, 1)
        for _ in range(2):
            _wait(1.25 * AWAKE)  # until the others sleep, and expect nothing
            best.note(size, 1, threads.run, kernel.address, *addresses, PARTS * many, many)
    return best.figures()


def _turns(what: str, tried: Sequence[int]) -> Iterator[int]:
    """All sizes, again and again, until time is up."""
    end = time.perf_counter() + SECONDS[what]
    for _ in range(ROUNDS[what]):
        for size in tried:
            if time.perf_counter() > end:
                return
            yield size


def _wait(seconds: float) -> None:
    """Without sleeping, so that this processor stays as it is."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class _Best:
    """The shortest times of two ways, for each size."""

    def __init__(self) -> None:
        self._seconds: dict[int, list[float]] = {}

    def note(self, size: int, way: int, work: Callable[..., object], *arguments: int) -> None:
        """Time a call."""
        start = time.perf_counter()
        work(*arguments)
        taken = time.perf_counter() - start
        known = self._seconds.setdefault(size, [float("inf"), float("inf")])
        known[way] = min(known[way], taken)

    def figures(self) -> tuple[Figure, ...]:
        """The sizes for which there was time."""
        return tuple(Figure(size, *pair) for size, pair in self._seconds.items())


class _Buffers:
    """A source and a destination that have been written, in memory that goes back to the system at once.

    On large pages where the system grants them, like NumPy's arrays.
    """

    def __init__(self, size: int) -> None:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANON} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._memory = mmap.mmap(-1, size, **private)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._half = size // 2
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._operands = (ctypes.c_int64 * 2)()
        ctypes.memset(self._start, 1, size)

    def of(self, size: int) -> tuple[int, int, int]:
        """Addresses of a source and a destination of so many bytes together, and of the kernels' operands."""
        self._operands[0] = size // 2
        return self._start, self._start + self._half, ctypes.addressof(self._operands)


# -- kernels ------------------------------------------------------------------------------------------------


def _kernels(machine: Machine, *names: str) -> dict[str, Kernel]:
    """Those of the kernels that are named: ``plain``, and two that read their destination afterwards.

    Their operands are two i64: bytes of the source, a multiple of a turn; and a place for what was read.
    """
    return compile.compiled(_ir(names), names, machine)


def _ir(names: Sequence[str]) -> str:
    plain, streamed = partial(_copied, False), partial(_copied, True)
    loops = {"plain": (plain,), "plain_and_read": (plain, _read), "streamed_and_read": (streamed, _read)}
    return "\n".join(_function(name, *loops[name]) for name in names)


@locked
def _function(name: str, *bodies: Callable[[Function, Value], None]) -> str:
    """One loop after the other over all turns of a share; a body gets how many bytes are behind it."""
    from relayout.ir.kernel import kernel, share
    from relayout.ir.types import I64

    f, turn = kernel(name, host()), UNROLL * LINE
    first, end = (f.mul(x, turn) for x in share(f, f.udiv(f.load(I64, f.arguments[2]), turn)))

    def loops() -> None:
        for body in bodies:
            f.loop(first, end, turn, partial(body, f))

    f.when(f.icmp("slt", first, end), loops)
    return f.text()


@locked
def _copied(streamed: bool, f: Function, done: Value) -> None:
    from relayout.ir.builder import L2
    from relayout.ir.types import I64, vector

    src, dst = (f.gep(x, done) for x in f.arguments[:2])
    for k in range(0, UNROLL * LINE, LINE):
        x = f.load(vector(LINE // 8, I64), f.gep(src, k), LINE)
        f.prefetch(f.gep(src, k + PREFETCH_BYTES), L2)
        f.store(x, f.gep(dst, k), LINE, streamed)


@locked
def _read(f: Function, done: Value) -> None:
    from relayout.ir.types import I64, vector

    total, *lines = (
        f.load(vector(LINE // 8, I64), f.gep(f.gep(f.arguments[1], done), k), LINE)
        for k in range(0, UNROLL * LINE, LINE)
    )
    for line in lines:
        total = f.xor(total, line)
    f.store(f.extract(total, 0), f.gep(f.arguments[2], 8))
