"""How often ``relayout.guess`` finds the format of a buffer: random formats, random dims, distinct values.

::

    python tests/guesses.py              500 cases
    python tests/guesses.py 2000 7       2000 cases, another seed

A case draws a dialect, a format that it lists, and dims; a quarter of the cases are formats that nobody
lists: oneDNN's tags with up to four blocks, of which often two are of one axis. The buffer is at most 1 MB of
f32. Three counts, each stricter than the one before:

``placed``   a match puts every element where it lies
``exact``    its padding ends where the buffer ends, too, so it is the same bytes
``itself``   the very format is among those that are named
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from math import prod
from random import Random
from typing import NamedTuple

import numpy as np

import relayout as rl
from relayout.layout.format import letters
from relayout.notation import dialect, dialects

MOST = 1 << 18  # elements of a buffer
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 28, 30, 32, 33, 48, 56, 64, 96, 100, 112, 128, 224, 255, 256)
BLOCKS = (2, 3, 4, 8, 16, 32)
TRIES = 100


class Case(NamedTuple):
    """A format with sizes, and where it comes from."""

    source: str
    format: rl.Format
    dims: tuple[int, ...]

    @property
    def layout(self) -> rl.Layout:
        """The dense layout."""
        return rl.Layout(self.dims, self.format)


@lru_cache
def listed(name: str) -> tuple[str, ...]:
    """The formats that a dialect lists and that are layouts."""
    return tuple(text for text in dialect(name).names() if is_layout(text, name))


def is_layout(text: str, name: str) -> bool:
    """Whether a text names a layout, at least for some number of axes."""
    try:
        rl.Format(text, name)
    except rl.LayoutError:
        return False
    return True


def draw_format(rng: Random) -> tuple[str, rl.Format]:
    """A format and its source."""
    if rng.random() < 0.25:
        rank = rng.randint(1, 5)
        names = letters(rank)
        inner = [(rng.choice(names), rng.choice(BLOCKS)) for _ in range(rng.randint(1, 4))]
        return "made up", rl.Format.blocked(names, rng.sample(names, rank), inner)
    name = rng.choice([name for name in dialects() if listed(name)])
    format = rl.Format(rng.choice(listed(name)), name)
    while format.rank is None:
        with suppress(rl.LayoutError):  # of a rank that it has not
            format = format.resolve(rng.randint(1, 5), "f32")
    with suppress(rl.LayoutError):  # of other data types than f32
        return name, format.resolve(format.rank, "f32")
    return draw_format(rng)


def draw(rng: Random) -> Case:
    """A case whose buffer is not too big."""
    while True:
        source, format = draw_format(rng)
        for _ in range(TRIES):
            case = Case(source, format, tuple(rng.choice(SIZES) for _ in range(format.rank or 0)))
            if prod(case.layout.padded) <= MOST:
                return case


def main(count: int, seed: int) -> None:
    """Draw, guess and count."""
    rng = Random(seed)
    counts: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    taken: list[float] = []
    for _ in range(count):
        case = draw(rng)
        size = prod(case.dims)
        values = np.random.default_rng(size).permutation(size).astype(np.float32).reshape(case.dims) + 1
        buffer = rl.reorder(values, rl.MemoryDesc(case.dims, "f32", case.format), axes="position").buffer
        start = time.perf_counter()
        found = rl.guess(buffer.tobytes(), values)
        taken.append(time.perf_counter() - start)
        told = {
            "placed": any(match.exact and not match.missing for match in found),
            "exact": any(match.desc.layout.same_bytes(case.layout) for match in found),
            "itself": case.format in found.formats,
        }
        counts.update(name for name, yes in told.items() if yes)
        if not told["exact"]:
            missed[case.source] += 1
            print(f"  {case.source}: {case.layout} -> {found.best and found.best.desc}")
    for name in ("placed", "exact", "itself"):
        print(f"{name:<8}{counts[name]:6} of {count}   {100 * counts[name] / count:.1f} %")
    taken.sort()
    print(f"seconds  median {taken[len(taken) // 2]:.3f}, slowest {taken[-1]:.3f}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    main(*(given + [500, 0][len(given) :]))
