"""A training run: forward, backward and the optimiser as one sequence, and the memory of its states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.graph.arrays import checked_inputs, from_tensor, stored
from relayout.graph.backward import backward, trainable, with_inputs
from relayout.graph.graph import Array, Graph, Value
from relayout.graph.inference import inferred, with_dims
from relayout.graph.passes import optimized
from relayout.graph.step import Step, compiled_step, planned_step
from relayout.graph.training_form import STEP, training_form
from relayout.primitives.values import bound
from relayout.reorder import reorder
from relayout.tensor import Tensor, allocate, tensor
from relayout.training.losses import LOSS, LOSSES, with_loss
from relayout.training.optimizers import Optimizer, after

if TYPE_CHECKING:
    from relayout.graph.plan import Plan
    from relayout.primitives.memory import Memory
    from relayout.primitives.runner import Layer

__all__ = ["Trainer", "Training", "training_step"]

PLANNED_FOR = 1
"""Threads, whatever their number is: sums over channels have another order in another format, and so results
would depend on it."""
COUNT = "training/count"
"""How a file calls the number of steps."""


@dataclass(frozen=True, eq=False)
class Training:
    """One step of training, before it is planned.

    Attributes
    ----------
    step : Step
        Forward, backward and the optimiser. Its first result is the loss, then come those of the network.
    begin : mapping of str to ndarray
        What its states begin with.
    parameters, statistics : tuple of str
        The states that are learned, and those that are running statistics.
    """

    step: Step
    begin: Mapping[str, Array]
    parameters: tuple[str, ...]
    statistics: tuple[str, ...]


def training_step(
    graph: Graph,
    loss: str,
    optimizer: Optimizer,
    of: Sequence[str] | None = None,
    batch: Any = None,
    *,
    seed: int = 0,
    dropout: float | None = None,
) -> Training:
    """The joint graph of one step; see :class:`Trainer` for the parameters."""
    parameters = tuple(trainable(graph)) if of is None else tuple(dict.fromkeys(of))
    free = inferred(with_inputs(with_dims(graph, batch), parameters))
    value = LOSS if loss in LOSSES else loss
    form = training_form(with_loss(free, loss) if loss in LOSSES else free, seed=seed, dropout=dropout)
    joint = backward(optimized(with_inputs(form.graph, list(form.updates))), value, parameters)
    scalars = {name: f"training/{name}" for name in optimizer.scalars}
    inputs = [Value(name, (1,), np.dtype(np.float32)) for name in scalars.values()]
    begin = {name: graph.constants[name] for name in (*parameters, *form.updates)}
    states = dict(form.updates)
    nodes, values = list(joint.nodes), dict(joint.values)
    gradients = joint.results[len(joint.results) - len(parameters) :]  # the graph may have one of that name
    for name, gradient in zip(parameters, gradients, strict=True):
        node = optimizer.node(name, gradient, scalars)
        nodes.append(node)
        for kind in optimizer.states:
            own = optimizer.state(name, kind)
            begin[own] = np.zeros(begin[name].shape, begin[name].dtype)
            inputs.append(Value(own, begin[own].shape, begin[own].dtype))
        for own in (name, *(optimizer.state(name, kind) for kind in optimizer.states)):
            states[own] = after(own)
            values[after(own)] = Value(after(own), begin[own].shape, begin[own].dtype)
    whole = joint.replaced(
        inputs=(*joint.inputs, *inputs),
        results=tuple(dict.fromkeys((value, *graph.results, *states.values()))),
        nodes=tuple(nodes),
        values=values,
    )
    return Training(Step(whole, states), begin, parameters, tuple(form.updates))


class Trainer:
    """A network that is trained, step by step.

    Parameters
    ----------
    graph : Graph
        The network as for inference: what :func:`relayout.load` returns, or one built by hand. Its batch
        normalisations take the statistics of the batch, and update their running ones; its dropouts drop.
    loss : str
        ``cross_entropy`` or ``mean_squared_error`` of the first result, with targets as a further input; or
        the name of a value of the graph that is a loss itself.
    optimizer : Optimizer
        :class:`~.optimizers.SGD`, :class:`~.optimizers.Adam` or :class:`~.optimizers.AdamW`.
    of : sequence of str, optional
        The constants that are learned; without it all that training changes
        (:func:`relayout.graph.backward.trainable`).
    batch : int or mapping, optional
        Sizes that the graph leaves open.
    format : str, optional
        The one format that images shall have; None: whatever costs least.
    threads : int, optional
        How many threads may work. Results are the same to the bit.
    seed : int
        Of the masks of dropouts.
    dropout : float, optional
        The ratio of all dropouts; without it each has the graph's.

    Attributes
    ----------
    plan : Plan
        Which formats were chosen: ``trainer.plan.states`` has those of parameters.
    rate : float
        The learning rate of the next steps; a schedule sets it.
    count : int
        Steps that were done.
    parameters, statistics : tuple of str
        What is learned, and the running statistics of batch normalisations.

    Raises
    ------
    LayoutError
        An operator has no gradient, dims are not known, or the loss is none.

    Notes
    -----
    One step at a time: calls of other threads wait. ``trainer[name]`` reads a parameter or another state as
    an array, ``trainer[name] = array`` writes it.
    """

    def __init__(
        self,
        graph: Graph,
        loss: str,
        optimizer: Optimizer,
        of: Sequence[str] | None = None,
        batch: Any = None,
        *,
        format: str | None = None,
        threads: int | None = None,
        seed: int = 0,
        dropout: float | None = None,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise LayoutError(f"an optimiser is SGD, Adam or AdamW, not {type(optimizer).__name__}")
        made = training_step(graph, loss, optimizer, of, batch, seed=seed, dropout=dropout)
        step, self.parameters, self.statistics = made.step, made.parameters, made.statistics
        self.optimizer, self.rate, self.count = optimizer, optimizer.rate, 0
        self.plan: Plan = planned_step(step, format, PLANNED_FOR)
        self._run = compiled_step(step, self.plan, threads)
        self._results = [self.plan.graph.value(name) for name in step.results]
        self._values = {name: Value(name, data.shape, data.dtype) for name, data in made.begin.items()}
        self._given = {f"training/{name}": name for name in optimizer.scalars}
        own = {*step.states, *self._given, STEP}
        self.inputs = tuple(value for value in step.graph.inputs if value.name not in own)
        self._order = [value.name for value in self.plan.graph.inputs]
        self._states: dict[str, Tensor] = {}
        for name, desc in self.plan.states.items():
            self._states[name] = Tensor(desc, allocate(desc))
            self[name] = made.begin[name]
        self._lock = Lock()

    def step(self, *arrays: Any, **named: Any) -> float:
        """One step: the inputs of the network, then the targets. The loss ahead of it, as a number.

        Raises
        ------
        LayoutError
            An array does not fit its input, or targets are no classes.
        """
        return float(self.step_with_results(*arrays, **named)[0])

    def step_with_results(self, *arrays: Any, **named: Any) -> tuple[Array, ...]:
        """As :meth:`step`: the loss, and what the network makes of its inputs, in training form."""
        given = bound([value.name for value in self.inputs], arrays, named, "a step")
        known: dict[str, Any] = dict(
            zip((value.name for value in self.inputs), checked_inputs(self.inputs, given), strict=True)
        )
        with self._lock:
            numbers = self.optimizer.numbers(self.count, self.rate)
            for name, number in self._given.items():
                known[name] = np.array([numbers[number]], np.float32)
            known[STEP] = np.array([self.count], np.int64)
            read = [
                self._states[name] if name in self._states else stored(np.asarray(known[name]))
                for name in self._order
            ]
            made = self._run(*read)
            self.count += 1
        several = made if isinstance(made, tuple) else (made,)
        return tuple(from_tensor(one, value.dtype) for one, value in zip(several, self._results, strict=True))

    # -- states ---------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Array:
        """A parameter, a running statistic or a state of the optimiser, as an array of its own."""
        found = self._tensor(name)
        return np.array(from_tensor(found, self._values[name].dtype))

    def __setitem__(self, name: str, array: Any) -> None:
        target = self._tensor(name)
        (data,) = checked_inputs((self._values[name],), (array,))
        reorder(stored(np.asarray(data)), target.desc, out=target)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def _tensor(self, name: str) -> Tensor:
        if name not in self._states:
            raise LayoutError(f"there is no parameter or state {name!r}; there are {', '.join(self._states)}")
        return self._states[name]

    def trained(self, graph: Graph) -> Graph:
        """A graph, for inference, with what was learned in the place of its constants of those names."""
        found = {name: self[name] for name in (*self.parameters, *self.statistics) if name in graph.constants}
        return graph.replaced(constants={**graph.constants, **found})

    def save(self, path: str | PathLike[str]) -> None:
        """Write all states to a safetensors file, row-major: parameters under their names.

        Raises
        ------
        OSError
            It can't be written.
        """
        with lock():
            from relayout import files
        path = Path(path)
        count = np.array([self.count], np.int64)
        first = True
        for name, array in ((COUNT, count), *((name, self[name]) for name in self)):
            files.write(path, tensor(array), name=name, force=True, only=first)
            first = False

    def load(self, path: str | PathLike[str]) -> None:
        """Take all states from a file that :meth:`save` wrote.

        Raises
        ------
        LayoutError
            One is missing, or has other dims; nothing is changed then.
        """
        with lock():
            from relayout import files
        found: Mapping[str, Array] = {name: files.read(path, name=name).numpy() for name in self}
        count = int(files.read(path, name=COUNT).numpy()[0])
        for name, array in found.items():
            checked_inputs((self._values[name],), (array,))
        for name, array in found.items():
            self[name] = array
        self.count = count

    def layers(self) -> tuple[Layer, ...]:
        """What a step does, in order."""
        return self._run.layers()

    @property
    def memory(self) -> Memory:
        """The memory of values within a step."""
        return self._run.memory

    @property
    def nbytes(self) -> int:
        """Bytes of a trainer: states, constants, and values that are alive at once."""
        return (
            sum(one.buffer.nbytes for one in self._states.values())
            + self._run.constant_bytes
            + self.memory.peak
        )

    def __repr__(self) -> str:
        sides = ", ".join(map(str, self.inputs))
        return f"Trainer({sides} -> loss, {len(self.parameters)} parameters, {self.optimizer})"
