"""Which kernels of a problem are taken: those that were measured to be fastest, or else the estimate.

What earlier processes have found out (:mod:`relayout.reorder.tuning`) is kept with the kernels that it was
about, so that a process which only calls them neither reads choices nor loads what contests are held with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from relayout.environment import effort, settings
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import count
from relayout.reorder import kept
from relayout.reorder.native import Native, Shape, consulted, native

if TYPE_CHECKING:
    from relayout.runtime.tuning import Trial

__all__ = ["Awaited", "at_hand", "chosen"]

MEASURED = 1 << 17  # bytes of source and destination from which on plans are measured


class Awaited:
    """A contest among schedules that is not due yet: nothing is loaded for it before.

    It stands for the :class:`~relayout.runtime.tuning.Trial` that the problem has then.
    """

    __slots__ = ("_begin", "_left", "_trial", "_work")

    def __init__(self, left: int, begin: Callable[[], Trial[str, Native]]) -> None:
        self._left, self._begin = left, begin
        self._trial: Trial[str, Native] | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to measure."""
        return self._trial is not None and self._trial.done

    @property
    def winner(self) -> Native | None:
        """What won; None before the contest is over."""
        return self._trial.winner if self._trial is not None else None

    def call(self, run: Callable[[Native], object]) -> bool:
        """Do one call by the schedule whose turn it is; False: it is left to the caller."""
        self._left -= 1
        return self._left < 0 and self._begun().call(run)

    def hold(self, work: Callable[[], object]) -> None:
        """Hold all of the contest now."""
        self._left = 0
        self._begun().hold(work)

    @locked
    def _begun(self) -> Trial[str, Native]:
        if self._trial is None:
            self._trial = self._begin()
        return self._trial


def chosen(
    src: MemoryDesc, dst: MemoryDesc, shape: Shape = (), many: int | None = None
) -> tuple[Native | None, Trial[str, Native] | Awaited | None]:
    """The kernels to take with so many threads, and the contest that is still to be held.

    Without kernels the NumPy engine does it; without a contest nothing is to be measured, or it is known.
    """
    if effort() != "measure" or 0 in src.dims or not measurable(src, dst):
        return native(src, dst, shape, many=many), None
    kernels, trial = _chosen(src, dst, shape, many, (count(), *settings()))
    if trial is not None and trial.done:
        return trial.winner or kernels, None
    return kernels, trial


def at_hand(src: MemoryDesc, dst: MemoryDesc, shape: Shape = (), many: int | None = None) -> bool:
    """Whether earlier processes have left the kernels, so that :func:`chosen` makes none."""
    contested = effort() == "measure" and measurable(src, dst)
    what, threads = (_fastest(many), count()) if contested else ("", count(many))
    return kept.recalled(kept.name(src, dst, shape, what, (threads, *settings()))) is not None


def _fastest(many: int | None) -> str:
    return f"fastest, {many} threads"


def measurable(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether a call takes long enough for plans to be told apart by a clock."""
    return src.required_bytes + dst.required_bytes >= MEASURED


@lru_cache(maxsize=512)
@locked
def _chosen(
    src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None, settings: tuple[Any, ...]
) -> tuple[Native | None, Trial[str, Native] | Awaited | None]:
    name = kept.name(src, dst, shape, _fastest(many), settings)
    record = kept.recalled(name)
    if record is not None:
        made = Native.recalled(src, dst, shape, record, many)
        return made, Awaited(record.left, lambda: _begun(src, dst, shape, many)) if record.left else None
    from relayout.reorder.tuning import problem_of, trial
    from relayout.runtime.tuning import BEGIN, entry

    said = kept.consulted([entry(problem_of(src, dst, shape, many))] if name else ())
    held = trial(src, dst, shape, many)
    kernels = held.winner or native(src, dst, shape, held.first, many)
    if kernels is not None and name and held.winner is None:
        said += consulted(src, dst)
        kept.keep(name, kernels, said, 0 if held.done else BEGIN, held.lasts)
    return kernels, held


@locked
def _begun(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None) -> Trial[str, Native]:
    """The contest of a problem that has been called often by now."""
    from relayout.reorder.tuning import trial

    held = trial(src, dst, shape, many)
    held.due()
    return held
