"""Schedules: the learning rate of a step by its number, for ``trainer.rate``.

Any function from the number of steps done to a rate is one. Those here are data, so a trainer with one can be
pickled.

>>> [round(Cosine(0.4, 4)(step), 3) for step in range(5)]
[0.4, 0.341, 0.2, 0.059, 0.0]
>>> [round(Cosine(0.4, 6, warmup=2)(step), 3) for step in range(4)]
[0.2, 0.4, 0.4, 0.341]
>>> [Stepwise(1, 30, 0.5)(step) for step in (0, 29, 30, 60)]
[1.0, 1.0, 0.5, 0.25]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import TypeAlias

from relayout.errors import LayoutError

__all__ = ["Cosine", "Schedule", "Stepwise"]

Schedule: TypeAlias = "Callable[[int], float]"


@dataclass(frozen=True)
class Cosine:
    """Half a wave down from a rate to an end, behind steps in which it grows.

    Parameters
    ----------
    rate : float
        The highest.
    steps : int
        How many steps there are; the rate stays at its end afterwards.
    warmup : int
        In how many of them it grows: the k-th has k / warmup of the rate.
    end : float
        The last rate.

    Examples
    --------
    >>> rate = Cosine(0.1, steps=100, warmup=10)
    >>> [round(rate(step), 3) for step in (0, 9, 55, 100)]
    [0.01, 0.1, 0.05, 0.0]
    """

    rate: float
    steps: int
    warmup: int = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.steps:
            raise LayoutError(
                f"warmup is {self.warmup} of {self.steps} steps; it must be 0 to {self.steps - 1}"
            )

    def __call__(self, step: int) -> float:
        """The rate of the step that so many others came before."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        done = min((step - self.warmup) / (self.steps - self.warmup), 1.0)
        return self.end + (self.rate - self.end) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True)
class Stepwise:
    """A rate that is multiplied by a factor after every so many steps.

    Parameters
    ----------
    rate, factor : float
        The first rate, and what it is multiplied by.
    every : int
        After how many steps.

    Examples
    --------
    >>> rate = Stepwise(0.1, every=30)
    >>> [round(rate(step), 4) for step in (0, 29, 30, 60)]
    [0.1, 0.1, 0.01, 0.001]
    """

    rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise LayoutError(f"every is {self.every} steps; it must be 1 or more")

    def __call__(self, step: int) -> float:
        """The rate of the step that so many others came before."""
        return self.rate * self.factor ** (step // self.every)
