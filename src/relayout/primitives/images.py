"""Images of sequences on disk: what linking has found, for later processes.

An image (:mod:`relayout.primitives.schedule`) has no addresses, only numbers of kernels and constants. So
another process takes it as it is: it lowers nothing, and makes no plan and no text of a kernel. Code of
kernels is not in it; these are named as entries of the cache, and where one of them has gone, so has the
image.

What an image says is done without another look, out of bounds if it says so. So images lie where compiled
kernels do and under the same rules (:mod:`relayout.jit.cache`): only what this user's processes have written
is read. The name of an image is the digest of everything that it was made from: the primitives as text
(:mod:`relayout.primitives.plain`), the processor, the number of threads, the source code, the settings of the
environment, and the choices that measuring has made (:func:`relayout.runtime.tuning.state`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from relayout.environment import LOADED, effort
from relayout.forking import locked
from relayout.jit import cache
from relayout.primitives.memory import Memory
from relayout.primitives.program import Fault
from relayout.processors import limited
from relayout.runtime.tuning import here, state
from relayout.tensor import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from relayout.jit.abi import Kernel

__all__ = ["Image", "keep", "recalled"]

VERSION = 2  # of entries; counted up when they change their meaning


class Image(NamedTuple):
    """What linking finds."""

    memory: Memory
    sizes: list[int]
    """Bytes of the storages in the arena."""
    items: list[tuple[int, int, bool, str]]
    """For each item its first row, the one behind its last, whether Python calls it, and how it is done."""
    bases: NDArray[np.int64]
    words: NDArray[np.int64]
    fixed: list[Kernel | NDArray[np.uint8]]
    faults: list[tuple[int, int, Fault]]
    """What items may find wrong: their numbers, and where in the arena they say so."""


@locked
def _name(text: str, threads: int) -> str | None:
    """The name of an entry; None: nothing is compiled here, or the source code does not tell what is made."""
    from relayout.jit.compile import available
    from relayout.runtime.thresholds import threshold
    from relayout.targets.machine import host

    code = cache.sources(LOADED) if available() else None
    if code is None:
        return None
    with limited(threads):  # as the primitives are lowered, whoever asks
        limits = [threshold(what, host(), measure=False) for what in ("streaming", "sharing")]
    facts = (VERSION, here(threads), str(host()), limits, effort(), state(), code)
    return f"image-{cache.digest(f'{facts!r} {text}'.encode()).hex()}"


@locked
def recalled(text: str, threads: int, constants: Sequence[NDArray[np.uint8]]) -> Image | None:
    """The image of what a text describes, if it is kept, and all of its kernels.

    Parameters
    ----------
    text : str
        What is linked.
    threads : int
        How many threads may work.
    constants : sequence of ndarray
        Its constants.
    """
    from relayout.jit.compile import named
    from relayout.targets.machine import host

    name = _name(text, threads)
    data = cache.load(name) if name is not None else None
    if data is None:
        return None
    line, _, rest = data.partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    words = np.frombuffer(rest, np.int64, 2 * head["words"]).reshape(2, -1)
    tail = np.frombuffer(rest, np.uint8)[words.nbytes :]
    fixed: list[Kernel | NDArray[np.uint8]] = []
    for kind, *what in head["fixed"]:
        if kind == "kernel":
            kernel = named(what[0], what[1], host())
            if kernel is None:
                return None
            fixed.append(kernel)
        else:
            fixed.append(constants[what[0]] if kind == "constant" else _aligned(tail[slice(*what)]))
    offsets, *rest_of = head["memory"]
    items = [tuple(item) for item in head["items"]]
    faults = [
        (k, at, Fault(buffer, kind, tuple(map(tuple, axes))))
        for k, at, (buffer, kind, axes) in head["faults"]
    ]
    return Image(Memory(tuple(offsets), *rest_of), head["sizes"], items, words[0], words[1], fixed, faults)


def keep(text: str, threads: int, image: Image, constants: Sequence[NDArray[np.uint8]]) -> None:
    """Keep an image for later processes, unless code in it has no name on disk."""
    name = _name(text, threads)
    places = {id(data): k for k, data in enumerate(constants)}
    fixed: list[list[Any]] = []
    tail = bytearray()
    for one in image.fixed:
        if isinstance(one, np.ndarray):
            if id(one) in places:
                fixed.append(["constant", places[id(one)]])
            else:
                fixed.append(["data", len(tail), len(tail) + one.nbytes])
                tail += one.tobytes()
        else:
            fixed.append(["kernel", one.engine.key, one.name])
    if name is None or any(kind == "kernel" and not what[0] for kind, *what in fixed):
        return
    head = {
        "memory": image.memory,
        "sizes": image.sizes,
        "items": image.items,
        "words": len(image.words),
        "fixed": fixed,
        "faults": image.faults,
    }
    words = image.bases.tobytes() + image.words.tobytes()
    cache.save(name, json.dumps(head, separators=(",", ":")).encode() + b"\n" + words + bytes(tail))


def _aligned(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy that begins on a cache line."""
    made = aligned(data.nbytes, zeroed=False)
    made[:] = data
    return made
