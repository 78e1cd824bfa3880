"""From how many bytes on something pays on this host: writing around the caches, and waking threads.

Two questions that no data sheet answers, both about source *and* destination together. What matters is
whether the two fit the caches side by side: that held for conversions to narrower and to wider types alike.
Where more is written than read, reorders ask with twice the destination: a smaller source keeps no more of it
in the caches.

>>> from relayout.targets.machine import machine
>>> small = machine("x86-64-v3")
>>> streams(small, 1 << 10), shares(small, 1 << 30)
(False, True)

For this host they can be measured (:mod:`relayout.runtime.calibration`), and are then kept with the compiled
kernels, under the same rules (:mod:`relayout.jit.cache`). Until then, for other processors, and by
``RELAYOUT_EFFORT=estimate`` they are guessed from the caches. Measuring takes as long as compiling a kernel,
so a first call does not wait for it: sharing is measured when a problem turns out to be called often,
streaming by ``relayout bench calibrate`` alone, since contests among schedules
(:mod:`relayout.reorder.tuning`) try both ways for each problem. Ask :func:`streams` and :func:`shares` rather
than comparing: they know the sizes for which the answer is plain, and look nothing up for those. Both can be
overridden:

=======================  =================================================================================
``RELAYOUT_STREAMING``   the bytes of source and destination together from which on to write around the
                         caches: 0 is always
``RELAYOUT_SHARING``     the bytes of source and destination together from which on to share the work
=======================  =================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relayout.environment import effort, named_number
from relayout.forking import lock, locked
from relayout.jit import cache
from relayout.runtime import threads
from relayout.targets.machine import Machine, answers, derived

if TYPE_CHECKING:
    from relayout.runtime.calibration import Measured

__all__ = ["calibrated", "consulted", "shares", "streams", "threshold"]

VERSION = 2  # of how thresholds are measured and kept
DIGITS = 20  # of a threshold: int() refuses thousands
LONG = 1 << 22  # bytes, read and written, whose copy takes about as long as a thread to wake: 40 microseconds

_known: dict[tuple[str, str], int] = {}


def streams(machine: Machine, size: int, many: int = 1) -> bool:
    """Whether writing around the caches pays for so many bytes of source and destination together.

    Several threads share the way to memory, which one of them can fill by writing around the caches; in the
    last cache they are faster together. So what fits that (:attr:`~relayout.targets.machine.Machine.holds`)
    goes through it, whatever was measured or guessed for one thread.
    """
    free = machine.thresholds is None and _override("streaming") is None
    if many > 1 and free and size < machine.holds:
        return False
    return _reaches("streaming", machine, size, measure=False)


def shares(machine: Machine, size: int, measure: bool = True, times: float = 1) -> bool:
    """Whether waking other threads pays for so many bytes of source and destination together.

    Work that takes some ``times`` as long as a copy of these bytes is worth it sooner. Beyond :data:`LONG` it
    is shared whatever was measured of copies: who comes too late finds nothing to do, and costs a call.

    >>> from relayout.targets.machine import machine
    >>> [shares(machine("x86-64-v3"), 3 << 18, times=times) for times in (1, 8)]
    [False, True]
    """
    if times > 1 and _override("sharing") is None and machine.thresholds is None and size * times >= LONG:
        return True
    return _reaches("sharing", machine, int(size * times), measure)


@locked
def consulted(streamed: int, shared: int) -> list[str]:
    """The entries on disk that both answers depend on, for so many bytes on this host."""
    from relayout.targets.machine import host

    found, machine = [], host()
    if effort() != "measure":
        return []
    for what, size in (("streaming", streamed), ("sharing", shared)):
        least, most = machine.bounds(what)
        if _override(what) is None and machine.thresholds is None and least <= size < most:
            found.append(_entry(what, machine)[0])
    return found


def threshold(what: str, machine: Machine, measure: bool = True) -> int:
    """Bytes of source and destination together from which on ``"streaming"`` or ``"sharing"`` pays.

    Parameters
    ----------
    what : str
        The threshold.
    machine : Machine
        The processor.
    measure : bool
        Whether to measure what nobody has measured yet, which takes 20 to 40 ms; else it is guessed.

    Raises
    ------
    LayoutError
        ``RELAYOUT_STREAMING`` or ``RELAYOUT_SHARING`` is set, and no number of bytes.
    """
    named = _override(what)
    if named is not None:
        return named
    if machine.thresholds is not None:
        given: int = getattr(machine.thresholds, what)
        return given
    return _measured(what, machine, measure)


@locked
def calibrated(what: str, machine: Machine) -> Measured:
    """Measure a threshold now, and keep it for later processes if the answer is clear."""
    from relayout.runtime.calibration import measured

    found = measured(what, machine)
    if found.lasting:
        name, head = _entry(what, machine)
        cache.save(name, f"{head}{found.threshold}".encode())
    return found


def _reaches(what: str, machine: Machine, size: int, measure: bool) -> bool:
    """Compare, but look up and measure only if the answer depends on it."""
    if _override(what) is None and machine.thresholds is None:
        least, most = machine.bounds(what)
        if not least <= size < most:
            return size >= most
    return size >= threshold(what, machine, measure)


def _override(what: str) -> int | None:
    """A threshold that the environment gives."""
    return named_number(
        f"RELAYOUT_{what.upper()}", f"number of bytes; write one in digits, such as {1 << 20}"
    )


def _measured(what: str, machine: Machine, measure: bool) -> int:
    """A threshold of this host: known, kept on disk, or measured now; else a guess."""
    with lock():  # whoever waited here finds an answer
        from relayout.jit.compile import available

        guess: int = getattr(derived(machine.l2, machine.l3), what)
        if effort() != "measure":
            return guess
        identity = _identity(machine)
        if (what, identity) in _known:
            return _known[what, identity]
        if not available() or (what == "sharing" and threads.count() == 1):
            return guess
        found = _kept(what, machine)
        if found is None:
            if not measure:
                return guess
            found = calibrated(what, machine).threshold
        _known[what, identity] = found
        return found


def _identity(machine: Machine) -> str:
    """Everything that a threshold depends on."""
    parts = (VERSION, answers()[-1], machine.triple, machine.cpu, machine.features)
    return " ".join(map(str, (*parts, machine.l1, machine.l2, machine.l3, threads.count())))


def _entry(what: str, machine: Machine) -> tuple[str, str]:
    """The name of a threshold's entry in the cache, and the line that it begins with."""
    identity = _identity(machine)
    return f"{what}-{cache.digest(identity.encode()).hex()}", f"{what} {identity}\n"


def _kept(what: str, machine: Machine) -> int | None:
    """What an earlier process measured; None where there is nothing, or nothing that can be true."""
    name, head = _entry(what, machine)
    data = cache.load(name) or b""
    text = data[len(head) :]
    if not data.startswith(head.encode()) or not text.isdigit() or len(text) > DIGITS:
        return None
    least, most = machine.bounds(what)
    return int(text) if least <= int(text) <= most else None
