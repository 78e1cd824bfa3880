"""Answers that take long to find out, kept for later processes.

To ask a convolution what it costs in nine pairs of formats takes tens of milliseconds, and a network has
dozens of them. The answers depend on the problem, the machine and the source code alone, so they lie beside
the compiled kernels on disk, under the same rules (:mod:`relayout.jit.cache`). Answers of the two efforts are
kept apart: by ``RELAYOUT_EFFORT=estimate`` they follow from guessed facts of the machine, not from measured
ones.

What is measured is kept here for another reason, too: no two measurements agree, and what is planned by them
should not differ from process to process.

Noise must not fix a measurement for ever. It only ever slows things down: so a copy that is seen to be
clearly faster than the speed that is kept (:func:`relayout.reorder.predict.note`) proves that the machine was
busy then. Everything kept is forgotten in that case, with what follows from it, and measured again when it is
needed: a *generation* that is part of all keys changes (:func:`forget`). ``relayout bench calibrate`` forgets
in any case, as on a machine that has become slower.

>>> @kept("doctest")
... def answer(number):
...     return [number, {"twice": 2 * number}]
>>> answer(3), answer(3)
([3, {'twice': 6}], [3, {'twice': 6}])
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

from relayout.environment import LOADED, effort
from relayout.jit import cache
from relayout.runtime import threads
from relayout.runtime.tuning import here

__all__ = ["forget", "generation", "kept"]

VERSION = 1  # of what is kept; counted up when it changes its meaning
KEPT = 4096  # answers in memory

Ask = TypeVar("Ask", bound=Callable[..., Any])


_memories: list[Callable[[], None]] = []
"""What empties the memory of each question."""

GENERATION = "cost-generation"  # the entry that says which measurements count


@lru_cache(maxsize=1)
def generation() -> str:
    """Which measurements count: those since everything was forgotten."""
    return (cache.load(GENERATION) or b"").hex()


def forget() -> None:
    """Ask and measure everything again from now on, in later processes too."""
    cache.save(GENERATION, os.urandom(8))
    generation.cache_clear()
    for clear in _memories:
        clear()


def kept(name: str) -> Callable[[Ask], Ask]:
    """Remember what a function of plain values returns, which must be what JSON can say.

    Parameters
    ----------
    name : str
        Of the question, different from all others.
    """

    def remember(ask: Ask) -> Ask:
        @lru_cache(maxsize=KEPT)
        def known(many: int, by: str, given: tuple[Any, ...]) -> Any:
            code = cache.sources(LOADED)
            if code is None:
                return ask(*given)
            words = repr((name, VERSION, given, here(many), by, code, generation()))
            key = f"cost-{cache.digest(words.encode()).hex()}"
            data = cache.load(key)
            if data is not None:
                try:
                    return json.loads(data)
                except ValueError:  # what another program has left there
                    pass
            found = ask(*given)
            cache.save(key, json.dumps(found).encode())
            return found

        _memories.append(known.cache_clear)

        @wraps(ask)
        def asked(*given: Any) -> Any:
            return known(threads.count(), effort(), given)

        asked.clear = known.cache_clear  # type: ignore[attr-defined]
        return asked  # type: ignore[return-value]

    return remember
