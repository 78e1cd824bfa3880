"""Optimisers: nodes that replace parameters, and the numbers that these nodes are given in each step.

Formulas are PyTorch's (:mod:`relayout.graph.operators.optimizers`), computed in f32. What depends on how many
steps there were, or on a schedule, is computed in Python, in double precision, and given as one number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from numbers import Real

from relayout.errors import LayoutError
from relayout.graph.graph import Node

__all__ = ["SGD", "Adam", "AdamW", "Optimizer"]


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all optimisers have: a learning rate, which a trainer may change for each step."""

    rate: float = 1e-3

    def __post_init__(self) -> None:
        for name, number in self.__dict__.items():
            several = number if isinstance(number, tuple) else (number,)
            if not all(isinstance(one, Real) and 0 <= float(one) < inf for one in several):
                raise LayoutError(
                    f"{type(self).__name__}: {name} {number!r} must be a number, 0 or more, finite"
                )

    @property
    @abstractmethod
    def states(self) -> tuple[str, ...]:
        """What there is besides each parameter, of its dims: ``momentum``."""

    @property
    @abstractmethod
    def scalars(self) -> tuple[str, ...]:
        """The numbers of a step, by name."""

    @abstractmethod
    def numbers(self, count: int, rate: float) -> Mapping[str, float]:
        """The numbers of the step that ``count`` others came before."""

    @abstractmethod
    def node(self, parameter: str, gradient: str, scalars: Mapping[str, str]) -> Node:
        """The node that replaces a parameter: its outputs are next values, the parameter's first."""

    def state(self, parameter: str, name: str) -> str:
        """What a state of a parameter is called."""
        return f"{name}/{parameter}"

    def _made(self, operator: str, parameter: str, gradient: str, inputs: list[str], **given: float) -> Node:
        states = [self.state(parameter, name) for name in self.states]
        outputs = tuple(after(name) for name in (parameter, *states))
        read = (*inputs, parameter, gradient, *states)
        return Node(operator, read, outputs, given, f"update/{parameter}")


def after(name: str) -> str:
    """What the next value of a state is called."""
    return f"{name}/next"


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if that is not 0.

    Parameters
    ----------
    rate : float
        The learning rate.
    momentum, dampening, weight_decay : float
        As those of ``torch.optim.SGD``.
    nesterov : bool
        Nesterov's momentum; needs momentum and no dampening.

    Examples
    --------
    >>> SGD(0.1, momentum=0.9).states
    ('momentum',)
    >>> SGD(0.1, nesterov=True)
    Traceback (most recent call last):
    relayout.errors.LayoutError: SGD: Nesterov's momentum needs a momentum, and no dampening
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (not self.momentum or self.dampening):
            raise LayoutError("SGD: Nesterov's momentum needs a momentum, and no dampening")

    @property
    def states(self) -> tuple[str, ...]:
        """The momentum, if there is one."""
        return ("momentum",) if self.momentum else ()

    @property
    def scalars(self) -> tuple[str, ...]:
        """The rate, and how much of the gradient goes into the momentum."""
        return "rate", "fresh"

    def numbers(self, count: int, rate: float) -> Mapping[str, float]:
        """The first gradient is the first momentum, whatever the dampening."""
        return {"rate": rate, "fresh": 1 - self.dampening if count else 1.0}

    def node(self, parameter: str, gradient: str, scalars: Mapping[str, str]) -> Node:
        """A step of one parameter."""
        return self._made(
            "relayout.SGD",
            parameter,
            gradient,
            [scalars["rate"], scalars["fresh"]],
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=int(self.nesterov),
        )


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, with weight decay as a part of the gradient.

    Parameters
    ----------
    rate : float
        The learning rate.
    betas : pair of float
        Of the averages of gradients and of their squares.
    epsilon, weight_decay : float
        As those of ``torch.optim.Adam``.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    decoupled = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise LayoutError(
                f"{type(self).__name__}: betas {self.betas} must be two numbers from 0 on, less than 1"
            )

    @property
    def states(self) -> tuple[str, ...]:
        """Averages of the gradient and of its square."""
        return "mean", "square"

    @property
    def scalars(self) -> tuple[str, ...]:
        """The rate and the factor of roots, both corrected for how few steps there were, and what is kept."""
        return "rate", "widening", "kept"

    def numbers(self, count: int, rate: float) -> Mapping[str, float]:
        """Corrections for averages that began with 0."""
        first, second = (1 - beta ** (count + 1) for beta in self.betas)
        return {"rate": rate / first, "widening": 1 / sqrt(second), "kept": 1 - rate * self.weight_decay}

    def node(self, parameter: str, gradient: str, scalars: Mapping[str, str]) -> Node:
        """A step of one parameter."""
        return self._made(
            "relayout.Adam",
            parameter,
            gradient,
            [scalars[name] for name in self.scalars],
            beta1=self.betas[0],
            beta2=self.betas[1],
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
            decoupled=int(self.decoupled),
        )


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks parameters, and is no part of the gradient (``torch.optim.AdamW``)."""

    weight_decay: float = 0.01

    decoupled = True
