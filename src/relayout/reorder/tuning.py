"""Measured choice for reorders: which plans are fastest for a problem, found out in its first calls.

A problem is two descriptors, the attributes that take part, and a number of threads. All plans of a problem
share its :class:`~relayout.runtime.tuning.Trial`, a contest among the
:func:`~relayout.kernels.copy.candidates.wishes`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from relayout.reorder.native import native
from relayout.runtime import threads
from relayout.runtime.tuning import Choice, Trial, here, kept

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.reorder.conversion import Conversion
    from relayout.reorder.native import Native, Shape

__all__ = ["known", "problem_of", "trial"]


def problem_of(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None = None) -> str:
    """The problem on one line, with everything about the machine that the answer may depend on."""
    attributes = " ".join(name if axis is None else f"{name}@{axis}" for name, axis in shape)
    words = f"{src} -> {dst}", attributes, here(threads.count(many))
    return " ".join(" ".join(filter(None, words)).split())


def known(plan: Conversion) -> Choice | None:
    """What contests have found about the problem of a plan."""
    part = plan.attributes.taking_part(plan.src.dtype, plan.dst.dtype)
    return kept(problem_of(plan.src, plan.alike, part.shape, plan.threads))


@lru_cache(maxsize=512)
def trial(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None) -> Trial[str, Native]:
    """The contest about a problem."""
    problem = problem_of(src, dst, shape, many)

    def made(wish: str) -> Native | None:
        return native(src, dst, shape, wish, many)

    return Trial(problem, lambda: _listed(src, dst, shape, many), made, threads.count(many))


def _listed(src: MemoryDesc, dst: MemoryDesc, shape: Shape, many: int | None = None) -> list[str]:
    """What gives different plans; nothing where the NumPy engine does the work."""
    first = native(src, dst, shape, many=many)
    if first is None:
        return []
    first.calibrate()  # kernels that are made from here on find the answer
    return first.wishes()
