"""The processor: what kernels are shaped by.

Nothing is wired to one machine. Vector width and features are LLVM's answer for this host, cache sizes the
operating system's. Two thresholds follow from neither: from how many bytes on it pays to write around the
caches (*streaming*), and to wake threads (*sharing*). For this host they are measured, once
(:mod:`relayout.codegen.calibration`); for other processors they are guessed from the caches.

>>> small = machine("x86-64-v3")
>>> small.streams(1 << 10), small.shares(1 << 30)
(False, True)

All of it can be overridden, so that tests generate the code of other machines:

=======================  =================================================================================
``RELAYOUT_CPU``         an LLVM processor name, such as ``x86-64-v2`` or ``znver3``
``RELAYOUT_THREADS``     how many threads may work
``RELAYOUT_STREAMING``   the bytes of source and destination together from which on to write around the
                         caches: 0 is always
``RELAYOUT_SHARING``     the bytes of source and destination together from which on to share the work
=======================  =================================================================================

Traps:

* Both thresholds count source *and* destination. What matters is whether the two fit the caches side by side:
  that held for conversions to narrower and to wider types alike, where the destination alone said nothing.
* Ask :meth:`Machine.streams` and :meth:`Machine.shares` rather than comparing: they know the sizes for which
  the answer is plain, and measure nothing for those.
* What a processor can do is asked anew by each process, although it takes a fifth of a millisecond on virtual
  machines (they answer ``cpuid`` themselves, 10 microseconds each time). To keep the answer one would have to
  know the processor again, and whoever is wrong there runs illegal instructions: home directories are shared
  by machines, a machine's boot id survives its being moved to another processor, and ``/proc/cpuinfo`` leaves
  out some of what LLVM asks, and takes 10 milliseconds to open on some kernels.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

from relayout.codegen import cache
from relayout.codegen.environment import named_number
from relayout.errors import LayoutError, Unsupported
from relayout.forking import lock, locked

__all__ = ["LINE", "Machine", "Thresholds", "bounds", "derived", "host", "keep", "machine", "sizes"]

LINE = 64  # bytes of a cache line on every processor that we generate code for

VERSION = 2  # of how thresholds are measured and kept
LARGEST = 32 << 20  # bytes that are copied to find out about streaming
SHARING = 1 << 18, 1 << 23  # bytes: waking takes 2 to 100 us, a processor copies 10 to 50 bytes a ns

DIGITS = 20  # of a threshold: int() refuses thousands

_known: dict[tuple[str, str], int] = {}  # thresholds


class Thresholds(NamedTuple):
    """From how many bytes on, of source and destination together, something pays."""

    streaming: int
    """To write around the caches."""
    sharing: int
    """To wake other threads."""


class Machine(NamedTuple):
    """A processor as kernels see it; sizes in bytes.

    >>> machine("x86-64-v2").vector, machine("znver3").vector, machine("x86-64-v4").vector
    (16, 32, 64)
    """

    triple: str
    cpu: str
    features: str
    vector: int
    """Bytes of the widest vector registers."""
    l1: int
    l2: int
    l3: int
    thresholds: Thresholds | None = None
    """None: this host's, measured when they are first asked for."""

    @property
    def fuses(self) -> bool:
        """Whether it multiplies and adds in one instruction.

        >>> machine("x86-64-v2").fuses, machine("x86-64-v3").fuses
        (False, True)
        """
        return self.triple.startswith(("aarch64", "arm64")) or (
            self.vector >= 32 and "-fma" not in self.features.split(",")
        )

    @property
    def streaming(self) -> int:
        """Bytes of source and destination together from which on writing around the caches pays.

        Raises
        ------
        LayoutError
            ``RELAYOUT_STREAMING`` is set, and no number of bytes.
        """
        return self._threshold("streaming")

    @property
    def sharing(self) -> int:
        """Bytes of source and destination together from which on waking other threads pays.

        Raises
        ------
        LayoutError
            ``RELAYOUT_SHARING`` is set, and no number of bytes.
        """
        return self._threshold("sharing")

    def streams(self, size: int) -> bool:
        """Whether writing around the caches pays for so many bytes of source and destination together."""
        return self._reaches("streaming", size)

    def shares(self, size: int) -> bool:
        """Whether waking other threads pays for so many bytes of source and destination together."""
        return self._reaches("sharing", size)

    def _threshold(self, what: str) -> int:
        named = _override(what)
        if named is not None:
            return named
        if self.thresholds is not None:
            given: int = getattr(self.thresholds, what)
            return given
        return _threshold(what, self)

    def _reaches(self, what: str, size: int) -> bool:
        """Compare, but measure only if the answer depends on it."""
        if _override(what) is None and self.thresholds is None:
            least, most = bounds(what, self)
            if not least <= size < most:
                return size >= most
        return size >= self._threshold(what)


def _override(what: str) -> int | None:
    """A threshold that the environment gives."""
    return named_number(
        f"RELAYOUT_{what.upper()}", f"number of bytes; write one in digits, such as {1 << 20}"
    )


def derived(l2: int, l3: int) -> Thresholds:
    """Thresholds guessed from the caches, where nothing may be measured.

    Past half of the last cache a source and a destination begin to push each other out. An L3 that is
    reported as larger than 64 MiB serves many processors, of which one never gets all of it. Threads that
    sleep take some 20 microseconds to come, in which one processor gets through about 1 MiB.

    >>> derived(1 << 20, 32 << 20)
    Thresholds(streaming=16777216, sharing=2097152)
    """
    return Thresholds(max(2 * l2, min(l3, 64 << 20) // 2), 2 << 20)


# -- thresholds of this host --------------------------------------------------------------------------------


def bounds(what: str, machine: Machine) -> tuple[int, int]:
    """Between which sizes a threshold lies, whatever will be measured; in bytes.

    What fits the second cache is not streamed: reading it back would cost more than writing it. What is twice
    as large as can be measured quickly is: few processors have that much cache for one thread.

    >>> bounds("sharing", machine("x86-64-v3"))
    (262144, 8388608)
    """
    return (machine.l2, 2 * sizes(what, machine)[-1]) if what == "streaming" else SHARING


def sizes(what: str, machine: Machine) -> list[int]:
    """The sizes that are measured to find a threshold, each twice the one before; in bytes.

    >>> [size >> 10 for size in sizes("sharing", machine("x86-64-v3"))]
    [256, 512, 1024, 2048, 4096, 8192]
    """
    least, most = SHARING
    if what == "streaming":
        least = machine.l2
        most = max(2 * least, min(LARGEST, max(8 * least, 2 * machine.l3)))
    return [least << k for k in range((most // least).bit_length())]


def _threshold(what: str, machine: Machine) -> int:
    """A threshold of this host: known, kept on disk, or measured now."""
    with lock():  # whoever waited here finds an answer
        from relayout.codegen import compile, threads

        identity = _identity(machine)
        if (what, identity) in _known:
            return _known[what, identity]
        if not compile.available() or (what == "sharing" and threads.count() == 1):
            guess: int = getattr(derived(machine.l2, machine.l3), what)
            return guess
        found = _kept(what, machine)
        if found is None:
            from relayout.codegen.calibration import measured

            found = measured(what, machine).threshold
        _known[what, identity] = found
        return found


@locked
def _identity(machine: Machine) -> str:
    """Everything that a threshold depends on."""
    import llvmlite

    from relayout.codegen import threads

    parts = (VERSION, llvmlite.__version__, machine.triple, machine.cpu, machine.features)
    return " ".join(map(str, (*parts, machine.l1, machine.l2, machine.l3, threads.count())))


def _entry(what: str, machine: Machine) -> tuple[str, str]:
    """The name of a threshold's entry in the cache, and the line that it begins with."""
    identity = _identity(machine)
    return f"{what}-{cache.digest(identity.encode()).hex()}", f"{what} {identity}\n"


def keep(what: str, machine: Machine, found: int) -> None:
    """Keep a threshold that was measured, for later processes."""
    name, head = _entry(what, machine)
    cache.save(name, f"{head}{found}".encode())


def _kept(what: str, machine: Machine) -> int | None:
    """What an earlier process measured; None where there is nothing, or nothing that can be true."""
    name, head = _entry(what, machine)
    data = cache.load(name) or b""
    text = data[len(head) :]
    if not data.startswith(head.encode()) or not text.isdigit() or len(text) > DIGITS:
        return None
    least, most = bounds(what, machine)
    return int(text) if least <= int(text) <= most else None


# -- processors ---------------------------------------------------------------------------------------------


@locked
def _llvm() -> Any:
    """LLVM."""
    try:
        import llvmlite.binding as llvm
    except Exception:  # whatever it was: missing() tells
        from relayout.codegen.support import missing

        raise Unsupported(f"there is no machine code for any processor: {missing()}") from None
    return llvm


@lru_cache(maxsize=1)
def host() -> Machine:
    """The processor this runs on (or that ``RELAYOUT_CPU`` names).

    Raises
    ------
    Unsupported
        llvmlite, which knows processors, can't be loaded.
    LayoutError
        ``RELAYOUT_CPU`` names no processor.
    """
    llvm = _llvm()
    named = os.environ.get("RELAYOUT_CPU")
    if named:
        return machine(named)
    features = llvm.get_host_cpu_features()
    return _machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten(), dict(features))


LEVELS = {
    "sse4.2": ("x86-64-v2", "nehalem", "westmere", "sandybridge", "ivybridge", "silvermont", "goldmont"),
    "avx2": (
        *("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake"),
        *("znver1", "znver2", "znver3"),
    ),
    "avx512bw": (
        *("x86-64-v4", "skylake-avx512", "cascadelake", "cooperlake", "icelake-client", "icelake-server"),
        *("tigerlake", "rocketlake", "sapphirerapids", "emeraldrapids", "graniterapids", "znver4"),
    ),
}
"""The widest vectors of x86 processors, by LLVM's names."""


@lru_cache(maxsize=16)
def machine(cpu: str, triple: str | None = None) -> Machine:
    """A processor by its LLVM name, with this host's caches and guessed thresholds."""
    llvm = _llvm()
    triple = triple or llvm.get_process_triple()
    level = ""
    if triple.startswith(("x86_64", "i686")):
        known = next((name for name, cpus in LEVELS.items() if cpu in cpus), None)
        if known is None:  # LLVM would end the process
            names = ", ".join(name for cpus in LEVELS.values() for name in cpus)
            raise LayoutError(f"{cpu!r} is no processor that kernels can be made for; there are {names}")
        level = known
    made = _machine(triple, cpu, "", {level: True})
    return made._replace(thresholds=derived(made.l2, made.l3))


def _machine(triple: str, cpu: str, features: str, has: dict[str, bool]) -> Machine:
    if has.get("avx512bw") and has.get("avx512vl", True):
        vector = 64
        features = ",".join(filter(None, (features, "-prefer-256-bit")))
    else:
        vector = 32 if has.get("avx2") else 16
    return Machine(triple, cpu, features, vector, *_caches())


@lru_cache(maxsize=1)
def _caches() -> tuple[int, int, int]:
    """First, second and last level data cache of the first processor.

    Plain guesses where the system does not tell.
    """
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 8 << 20}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        try:
            level, kind, text = (_line(f"{folder}/{name}") for name in ("level", "type", "size"))
        except OSError:
            break
        if kind != "Instruction" and level in "123" and text[-1:] in "KM" and text[:-1].isdigit():
            sizes[int(level)] = int(text[:-1]) << (10 if text[-1] == "K" else 20)
    return sizes[1], sizes[2], sizes[3]


def _line(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # a third of the time of text
        return file.read().decode().strip()
