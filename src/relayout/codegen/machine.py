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
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from relayout.errors import LayoutError

__all__ = ["LINE", "Machine", "Thresholds", "derived", "host", "machine"]

LINE = 64  # bytes of a cache line on every processor that we generate code for


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
        from relayout.codegen.calibration import threshold

        return threshold(what, self)

    def _reaches(self, what: str, size: int) -> bool:
        """Compare, but measure only if the answer depends on it."""
        if _override(what) is None and self.thresholds is None:
            from relayout.codegen.calibration import bounds

            least, most = bounds(what, self)
            if not least <= size < most:
                return size >= most
        return size >= self._threshold(what)


def _override(what: str) -> int | None:
    """A threshold that the environment gives."""
    name = f"RELAYOUT_{what.upper()}"
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise LayoutError(f"{name}={text!r} is no number of bytes; write one in digits, such as {1 << 20}")
    return int(text)


def derived(l2: int, l3: int) -> Thresholds:
    """Thresholds guessed from the caches, where nothing may be measured.

    Past half of the last cache a source and a destination begin to push each other out. An L3 that is
    reported as larger than 64 MiB serves many processors, of which one never gets all of it. Threads that
    sleep take some 20 microseconds to come, in which one processor gets through about 1 MiB.

    >>> derived(1 << 20, 32 << 20)
    Thresholds(streaming=16777216, sharing=2097152)
    """
    return Thresholds(max(2 * l2, min(l3, 64 << 20) // 2), 2 << 20)


@lru_cache(maxsize=1)
def host() -> Machine:
    """The processor this runs on (or that ``RELAYOUT_CPU`` names)."""
    import llvmlite.binding as llvm

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
    import llvmlite.binding as llvm

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
