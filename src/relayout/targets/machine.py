"""The processor: what kernels are shaped by.

Nothing is wired to one machine. Vector width and features are LLVM's answer for this host, cache sizes the
operating system's. ``RELAYOUT_CPU`` names another processor, as LLVM spells it (``x86-64-v2``, ``znver3``),
so that tests generate the code of other machines. What no data sheet tells, from how many bytes on it pays to
write around the caches or to wake threads, is measured (:mod:`relayout.runtime.thresholds`).

LLVM takes longer to import than a kernel to load, and says of this host what it has said in each process
before: :func:`answers` finds that on disk, where kernels are (:mod:`relayout.jit.remembered`).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.processors import caches
from relayout.targets.permission import TILE_FEATURES, may_use_tiles

__all__ = [
    *("LINE", "Machine", "Thresholds"),
    *("answers", "asked", "derived", "host", "llvm", "machine"),
]

LINE = 64  # bytes of a cache line on every processor that we generate code for
NO_LIMIT = "-prefer-256-bit"  # said to LLVM of processors with AVX-512: it may use all of their registers
NO_SSE4A = "-sse4a"  # to LLVM of AMD's: its insertions have no AVX form, and cost 360 cycles among those
LARGEST = 32 << 20  # bytes that are copied to find out about streaming
OWN_L3 = 64 << 20  # bytes of an L3 cache that a process may have to itself; a larger one serves many others
SHARING = 1 << 18, 1 << 23  # bytes: waking takes 2 to 100 us, a processor copies 10 to 50 bytes a ns


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
    """Bytes of its caches: those of a core, and L3 as it is reported, shared by however many cores."""
    thresholds: Thresholds | None = None
    """None: this host's, measured when they are first asked for."""
    emulates: tuple[str, ...] = ()
    """Features that it has not, and whose instructions kernels are to write as what they do: for tests."""

    @property
    def fuses(self) -> bool:
        """Whether it multiplies and adds in one instruction.

        >>> machine("x86-64-v2").fuses, machine("x86-64-v3").fuses
        (False, True)
        """
        return self.is_arm or (self.vector >= 32 and "-fma" not in self.features.split(","))

    @property
    def claims(self) -> bool:
        """Whether it pays to ask for a line some time before it is written, as far as its name tells.

        Processors fetch what is read in advance, but what is written mostly not: on an Intel Xeon, kernels
        that ask for lines are up to a third faster. AMD's Zen cores gain nothing, and lose up to 20 % from
        their L3 cache. A contest among schedules tries the other way, too.

        >>> machine("sapphirerapids").claims, machine("znver4").claims
        (True, False)
        """
        return not self.cpu.startswith("znver")

    @property
    def halves(self) -> bool:
        """Whether it works on its widest registers in two halves, as far as its name tells.

        AMD's Zen 4 does. Wide vectors save instructions there, but no time, and cost some where lanes are put
        together: an insertion into 64 bytes takes as long as two into 32, and there are three instead of one.

        >>> machine("sapphirerapids").halves, machine("znver4").halves
        (False, True)
        """
        return self.vector == LINE and self.cpu == "znver4"

    @property
    def fetches(self) -> bool:
        """Whether it can read weights from memory while it computes with others, as far as its name tells.

        The weights of a whole network come from memory. On Zen 5 those that are asked for into the L2 cache
        while the ones before them are used cost next to nothing, as long as some dozens of pixels use them:
        layers with cold weights take as long as with hot ones, 4 to 16 % less than without. On an Intel Xeon
        misses to memory occupy the buffers that misses of the L1 cache need, and layers took 1.09 times as
        long.

        >>> machine("sapphirerapids").fetches, machine("znver5").fetches
        (False, True)
        """
        return self.cpu == "znver5"

    @property
    def jumps(self) -> bool:
        """Whether it goes from one place of a cache to another at no cost, as far as its name tells.

        On an Intel Xeon transposes gain where they read and write on, line after line: the next ones are
        fetched in advance. AMD's Zen 3 has its caches so near that the order hardly matters, up to some MB.

        >>> machine("sapphirerapids").jumps, machine("znver3").jumps
        (False, True)
        """
        return self.cpu == "znver3"

    @property
    def is_avx2(self) -> bool:
        """Whether it is an x86 whose widest registers are those of AVX2: sixteen of half a cache line.

        Their shuffles pick bytes within lanes of 128 bits. A processor with AVX-512 is none, even where
        kernels use half of its registers.

        >>> names = "x86-64-v2", "x86-64-v3", "znver3", "znver4"
        >>> [machine(name).is_avx2 for name in names]
        [False, True, True, False]
        >>> machine("znver4")._replace(vector=32).is_avx2
        False
        """
        return self.vector == LINE // 2 and not self.is_arm and NO_LIMIT not in self.features.split(",")

    @property
    def registers(self) -> int:
        """How many vector registers it has.

        >>> machine("x86-64-v3").registers, machine("x86-64-v4").registers
        (16, 32)
        """
        return 32 if self.is_arm or self.vector == LINE else 16

    @property
    def is_arm(self) -> bool:
        """Whether it is of the AArch64 family.

        >>> machine("neoverse-n1", "aarch64-unknown-linux-gnu").is_arm, machine("x86-64-v3").is_arm
        (True, False)
        """
        return self.triple.startswith(("aarch64", "arm64"))

    def has(self, feature: str) -> bool:
        """Whether it has some instructions, by LLVM's name of the feature.

        Of a processor that is asked for by name LLVM does not say so; :data:`PRODUCTS` does, for instructions
        that add up products of narrow numbers, and permutations of bytes.

        >>> machine("znver4").has("avx512vnni"), machine("x86-64-v4").has("avx512vnni")
        (True, False)
        >>> machine("sapphirerapids").has("amx-int8"), machine("alderlake").has("avxvnni")
        (True, True)
        """
        if feature in self.emulates:
            return True
        told = {name[1:]: name[0] == "+" for name in self.features.split(",") if name}
        return told.get(feature, self.cpu in PRODUCTS.get(feature, ()))

    def permutes(self, bits: int) -> bool:
        """Whether one instruction puts elements of so many bits of its widest registers in any order.

        >>> [machine("x86-64-v3").permutes(16), *(machine("x86-64-v4").permutes(bits) for bits in (8, 16))]
        [False, False, True]
        """
        return self.vector == 64 and (bits > 8 or self.has("avx512vbmi"))

    @property
    def holds(self) -> int:
        """Bytes that stay in its last cache from call to call, when several threads work on them together.

        All of an L3 cache that they have to themselves; half of what they may have of a larger one, which
        others use, too.

        >>> here = machine("znver4")
        >>> here._replace(l3=32 << 20).holds >> 20, here._replace(l3=480 << 20).holds >> 20
        (32, 32)
        """
        return self.l3 if self.l3 <= OWN_L3 else OWN_L3 // 2

    def bounds(self, what: str) -> tuple[int, int]:
        """Between which sizes a threshold lies, whatever will be measured; in bytes.

        What fits the L2 cache is not streamed: reading it back would cost more than writing it. What is
        twice as large as can be measured quickly is: few processors have that much cache for one thread.

        >>> machine("x86-64-v3").bounds("sharing")
        (262144, 8388608)
        """
        return (self.l2, 2 * self.sizes(what)[-1]) if what == "streaming" else SHARING

    def sizes(self, what: str) -> list[int]:
        """The sizes that are measured to find a threshold, each twice the one before; in bytes.

        >>> [size >> 10 for size in machine("x86-64-v3").sizes("sharing")]
        [256, 512, 1024, 2048, 4096, 8192]
        """
        least, most = SHARING
        if what == "streaming":
            least = self.l2
            most = max(2 * least, min(LARGEST, max(8 * least, 2 * self.l3)))
        return [least << k for k in range((most // least).bit_length())]


def derived(l2: int, l3: int) -> Thresholds:
    """Thresholds guessed from the caches, where nothing may be measured.

    Past half of the last cache a source and a destination begin to push each other out. An L3 that is
    reported as larger than 64 MiB serves many processors, of which one never gets all of it. Threads that
    sleep take some 20 microseconds to come, in which one processor gets through about 1 MiB.

    >>> derived(1 << 20, 32 << 20)
    Thresholds(streaming=16777216, sharing=2097152)
    """
    return Thresholds(max(2 * l2, min(l3, OWN_L3) // 2), 2 << 20)


# -- processors ---------------------------------------------------------------------------------------------


@locked
def llvm() -> Any:
    """LLVM, as llvmlite binds it.

    Raises
    ------
    Unsupported
        llvmlite can't be loaded; the message says why, and what to do about it.
    """
    from relayout.targets.light import standing_in

    try:
        with standing_in():
            import llvmlite.binding
    except ImportError as error:
        why = f"llvmlite, which relayout needs, can't be imported ({error}); try pip install llvmlite"
        raise Unsupported(why) from None
    except Exception as error:  # OSError where its library is damaged or of another system
        raise Unsupported(
            f"llvmlite is installed, but can't be loaded ({type(error).__name__}: {error}); "
            "try pip install --force-reinstall llvmlite"
        ) from None
    return llvmlite.binding


@locked
def asked() -> tuple[str, ...]:
    """What LLVM says of this host and of itself.

    Returns
    -------
    tuple of str
        The triple; the processor; its features, such as ``+avx2,-avx512f``; versions of llvmlite and LLVM.

    Raises
    ------
    Unsupported
        llvmlite can't be loaded.
    """
    library = llvm()
    import llvmlite

    return (
        library.get_process_triple(),
        library.get_host_cpu_name(),
        library.get_host_cpu_features().flatten(),
        f"{llvmlite.__version__} {library.llvm_version_info}",
    )


@lru_cache(maxsize=1)
@locked
def answers() -> tuple[str, ...]:
    """The same, from an earlier process where there was one."""
    from relayout.jit.remembered import recalled

    return recalled() or asked()


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
    named = os.environ.get("RELAYOUT_CPU")
    if named:
        return _permitted(machine(named))
    triple, cpu, features, _ = answers()
    features = features.replace("+sse4a", NO_SSE4A)
    has = {name[1:]: name[0] == "+" for name in features.split(",") if name}
    return _permitted(_machine(triple, cpu, features, has))


def _permitted(made: Machine) -> Machine:
    """A processor that code is to run on, without tiles where the system forbids them."""
    if not made.has("amx-tile") or may_use_tiles():
        return made
    kept = [name for name in made.features.split(",") if name and name[1:] not in TILE_FEATURES]
    return made._replace(features=",".join([*kept, *(f"-{name}" for name in TILE_FEATURES)]))


LEVELS = {
    "sse4.2": ("x86-64-v2", "nehalem", "westmere", "sandybridge", "ivybridge", "silvermont", "goldmont"),
    "avx2": (
        *("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake", "raptorlake", "meteorlake"),
        *("znver1", "znver2", "znver3"),
        *("arrowlake", "arrowlake-s", "lunarlake", "sierraforest", "grandridge"),
    ),
    "avx512bw": (
        *("x86-64-v4", "skylake-avx512", "cascadelake", "cooperlake", "icelake-client", "icelake-server"),
        *("tigerlake", "rocketlake", "sapphirerapids", "emeraldrapids", "graniterapids", "znver4", "znver5"),
    ),
}
"""The widest vectors of x86 processors, by LLVM's names."""

XEONS = "sapphirerapids", "emeraldrapids", "graniterapids"
NEW_CORES = "arrowlake", "arrowlake-s", "lunarlake", "sierraforest", "grandridge"
MATRICES = (
    *("neoverse-v1", "neoverse-v2", "neoverse-v3", "neoverse-n2", "neoverse-n3", "neoverse-512tvb", "grace"),
    *("cortex-a710", "cortex-a715", "cortex-a720", "cortex-x2", "cortex-x3", "cortex-x4"),
    *("ampere1", "ampere1a", "ampere1b", "apple-m2", "apple-m3", "apple-m4"),
)
PRODUCTS = {
    "avx512vnni": (
        *("cascadelake", "cooperlake", "icelake-client", "icelake-server", "tigerlake", "rocketlake"),
        *("znver4", "znver5", *XEONS),
    ),
    "avx512vbmi": ("icelake-client", "icelake-server", "tigerlake", "rocketlake", "znver4", "znver5", *XEONS),
    "avx512bf16": ("cooperlake", "znver4", "znver5", *XEONS),
    "avx512fp16": XEONS,
    "avxvnni": ("alderlake", "raptorlake", "meteorlake", "znver5", *NEW_CORES, *XEONS),
    "avxvnniint8": NEW_CORES,
    "amx-tile": XEONS,
    "amx-int8": XEONS,
    "amx-bf16": XEONS,
    "dotprod": ("neoverse-n1", "cortex-a76", "cortex-a77", "cortex-a78", "cortex-x1", "apple-m1", *MATRICES),
    "i8mm": MATRICES,
    "bf16": MATRICES,
}
"""Which of these processors add up products of narrow numbers, and with what, or permute bytes of wide
registers (``avx512vbmi``); by LLVM's names of features."""


@lru_cache(maxsize=16)
def machine(cpu: str, triple: str | None = None) -> Machine:
    """A processor by its LLVM name, with this host's caches and guessed thresholds."""
    triple = triple or llvm().get_process_triple()
    level = ""
    if triple.startswith(("x86_64", "i686")):
        known = next((name for name, cpus in LEVELS.items() if cpu in cpus), None)
        if known is None:  # LLVM would end the process
            names = ", ".join(name for cpus in LEVELS.values() for name in cpus)
            raise LayoutError(f"{cpu!r} is no processor that kernels can be made for; there are {names}")
        level = known
    # Nobody else but AMD has SSE4A anyhow, so that code with it would not run on most hosts.
    made = _machine(triple, cpu, NO_SSE4A if level else "", {level: True})
    return made._replace(thresholds=derived(made.l2, made.l3))


def _machine(triple: str, cpu: str, features: str, has: dict[str, bool]) -> Machine:
    if has.get("avx512bw") and has.get("avx512vl", True):
        vector = 64
        features = ",".join(filter(None, (features, NO_LIMIT)))
    else:
        vector = 32 if has.get("avx2") else 16
    return Machine(triple, cpu, features, vector, *caches())
