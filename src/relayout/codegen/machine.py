"""The processor: what kernels are shaped by.

Nothing is wired to one machine. Vector width and features are LLVM's answer for this host, cache sizes the
operating system's. Both can be overridden, so that tests generate the code of other machines:

``RELAYOUT_CPU``          an LLVM processor name, such as ``x86-64-v2`` or ``znver3``
``RELAYOUT_THREADS``      how many threads may work
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Machine", "host", "machine"]

LINE = 64  # bytes of a cache line on every processor that we generate code for


@dataclass(frozen=True)
class Machine:
    """A processor as kernels see it; sizes in bytes.

    >>> machine("x86-64-v2").vector, machine("x86-64-v3").vector, machine("x86-64-v4").vector
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

    @property
    def streaming(self) -> int:
        """Bytes of a destination from which on writing around the caches pays.

        What the last cache can't hold beside a source.
        """
        return max(self.l2, self.l3 // 4)


@lru_cache(maxsize=1)
def host() -> Machine:
    """The processor this runs on (or that ``RELAYOUT_CPU`` names)."""
    import llvmlite.binding as llvm

    named = os.environ.get("RELAYOUT_CPU")
    if named:
        return machine(named)
    features = llvm.get_host_cpu_features()
    return _machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten(), dict(features))


@lru_cache(maxsize=16)
def machine(cpu: str, triple: str | None = None) -> Machine:
    """A processor by its LLVM name, with this host's caches."""
    import llvmlite.binding as llvm

    levels = {"x86-64-v3": "avx2", "x86-64-v4": "avx512bw"}
    return _machine(triple or llvm.get_process_triple(), cpu, "", {levels.get(cpu, ""): True})


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
            continue
        if kind != "Instruction" and level in "123" and text[-1:] in "KM" and text[:-1].isdigit():
            sizes[int(level)] = int(text[:-1]) << (10 if text[-1] == "K" else 20)
    return sizes[1], sizes[2], sizes[3]


def _line(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()
