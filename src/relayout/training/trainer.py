"""A training run: forward, backward and the optimiser as one sequence, and the memory of its states.

What a run goes on with from step to step are its *states*: parameters, running statistics, what optimisers
remember, sums of gradients. They lie in the formats that were planned for them, as long as the trainer lives;
a step reads and writes them in place. What it computes with is made of graphs (:mod:`~.steps`), each planned
and compiled when it is first wanted::

    step       states, arrays  ->  loss, results, states        forward, backward, optimiser
    update     states          ->  states                       the optimiser alone, after several parts
    gradients  states, arrays  ->  loss, results, sums          one part of a step, or for who asks
    evaluate   states, arrays  ->  loss, results                forward, as in inference

Arrays of other sizes get a graph of their own, over the same states. Formats are planned for one thread, so
that sums have one order, and results are the same to the bit however many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.arrays import checked_inputs, from_tensor, stored
from relayout.graph.graph import Array, Graph, Value
from relayout.graph.step import Step, compiled_step, planned_step
from relayout.graph.training_form import STEP
from relayout.reorder import reorder
from relayout.reorder.arguments import bound
from relayout.tensor import Tensor, allocate
from relayout.training import kept
from relayout.training.optimizers import Optimizer
from relayout.training.schedules import Schedule
from relayout.training.steps import NORM, Learning, total_of

if TYPE_CHECKING:
    from relayout.graph.plan import Plan
    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.memory import Memory
    from relayout.primitives.runner import Layer

__all__ = ["Trainer"]

PLANNED_FOR = 1
"""Threads, whatever their number is: sums over channels have another order in another format, and so results
would depend on it."""


class _Part:
    """A step with states, planned and compiled."""

    def __init__(
        self, step: Step, formats: Mapping[str, MemoryDesc], format: str | None, threads: int | None
    ) -> None:
        self.plan = planned_step(step, format, PLANNED_FOR, formats)
        self.run = compiled_step(step, self.plan, threads)
        self.inputs = tuple(value for value in step.graph.inputs if value.name not in step.states)
        self.results = [self.plan.graph.value(name) for name in step.results]
        self.values = {name: step.graph.value(name) for name in step.states}
        self._order = [value.name for value in self.plan.graph.inputs]

    def __call__(self, states: Mapping[str, Tensor], known: Mapping[str, Any]) -> dict[str, Array]:
        """Run it over the memory of the states; its results by name."""
        read = [states[name] if name in states else stored(np.asarray(known[name])) for name in self._order]
        made = self.run(*read)
        several = made if isinstance(made, tuple) else (made,)
        return {
            value.name: from_tensor(one, value.dtype)
            for one, value in zip(several, self.results, strict=bool(self.results))
        }


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
        Sizes that the graph leaves open. Steps with others are compiled when they come.
    format : str, optional
        The one format that images shall have; None: whatever costs least.
    threads : int, optional
        How many threads may work. Results are the same to the bit.
    seed : int
        Of the masks of dropouts.
    dropout : float, optional
        The ratio of all dropouts; without it each has the graph's.
    groups : mapping of str to Optimizer, optional
        Optimisers of some parameters, by patterns of their names: ``{"*.bias": SGD(0.1)}`` is one without
        weight decay. The first pattern that fits counts.
    clip : float, optional
        The norm that all gradients together may have; larger ones are scaled down to it, as by
        ``torch.nn.utils.clip_grad_norm_``.
    accumulate : int
        In how many parts a step goes through its arrays, which have so many times ``batch`` rows. Gradients
        are their mean; memory is that of a part.
    master : bool
        Keep parameters of 16 bits, and what optimisers know of them, in f32. The network still computes with
        16 bits. Without it updates are rounded to them, and small ones are lost, as PyTorch has it.

    Attributes
    ----------
    plan : Plan
        Which formats were chosen: ``trainer.plan.states`` has those of parameters.
    rate : float
        The learning rate of the next step. It is set to another one, or to a function of the number of steps
        done (:mod:`.schedules`); rates of groups keep their ratios to it.
    count : int
        Steps that were done.
    norm : float or None
        The norm of all gradients in the last step, ahead of clipping; None without ``clip``.
    parameters, statistics : tuple of str
        What is learned, and the running statistics of batch normalisations.
    inputs : tuple of Value
        What a step takes.

    Raises
    ------
    LayoutError
        An operator has no gradient, dims are not known, or the loss is none.

    Notes
    -----
    One step at a time: calls of other threads wait. ``trainer[name]`` reads a parameter or another state as
    an array, ``trainer[name] = array`` writes it. A trainer is pickled by its graph and its states.
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
        groups: Mapping[str, Optimizer] | None = None,
        clip: float | None = None,
        accumulate: int = 1,
        master: bool = False,
    ) -> None:
        groups = dict(groups or {})
        for one in (optimizer, *groups.values()):
            if not isinstance(one, Optimizer):
                raise LayoutError(f"an optimiser is SGD, Adam or AdamW, not {type(one).__name__}")
        if clip is not None and not 0 < clip < float("inf"):
            raise LayoutError(f"gradients are clipped to a norm above 0, not to {clip}")
        if type(accumulate) is not int or accumulate < 1:
            raise LayoutError(f"a step has 1 part or more, not {accumulate!r}")
        settings = {"clip": clip, "parts": accumulate, "seed": seed, "dropout": dropout}
        learning = Learning.of(graph, loss, optimizer, of, groups, master, **settings)
        self.optimizer, self.count = optimizer, 0
        self.norm: float | None = None
        self.rate = optimizer.rate
        self.parameters, self._learning = learning.parameters, learning
        self._options: dict[str, Any] = {"format": format, "threads": threads}
        self._made_of: dict[str, Any] = {
            "loss": loss,
            "optimizer": optimizer,
            "of": self.parameters,
            "batch": batch,
            "groups": groups,
            "seed": seed,
            "dropout": dropout,
            "clip": clip,
            "accumulate": accumulate,
            "master": master,
            **self._options,
        }
        self._lock = RLock()
        self._states: dict[str, Tensor] = {}
        self._values: dict[str, Value] = {}
        self._parts: dict[Any, _Part] = {}
        whole = learning.whole if accumulate == 1 else learning.gradients
        first = self._part("step", whole, batch)
        if accumulate > 1:
            self._part("update", learning.update)
        self.plan: Plan = first.plan
        self.statistics = tuple(
            name for name in first.values if name in graph.constants and name not in self.parameters
        )
        own = {STEP, *learning.numbers(0, 0.0)}
        self.inputs = tuple(value for value in first.inputs if value.name not in own)
        self._learning = learning.without(self._values)  # what is learned lies in states now

    # -- steps ----------------------------------------------------------------------------------------------

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self._rate(self.count) if callable(self._rate) else self._rate

    @rate.setter
    def rate(self, rate: float | Schedule) -> None:
        self._rate = rate

    def step(self, *arrays: Any, **named: Any) -> float:
        """One step: the inputs of the network, then the targets. The loss ahead of it, as a number.

        Raises
        ------
        LayoutError
            An array does not fit its input, or targets are no classes.
        """
        return float(self.step_with_results(*arrays, **named)[0].item())

    def step_with_results(self, *arrays: Any, **named: Any) -> tuple[Array, ...]:
        """As :meth:`step`: the loss, and what the network makes of its inputs, in training form."""
        with self._lock:
            given = self._given(arrays, named, self._learning.parts)
            numbers = self._numbers()
            if self._learning.parts == 1:
                made = self._run("step", self._learning.whole, given, numbers)
            else:
                made = self._summed(given)
                norms = self._parts["update",](self._states, numbers)
                made |= {NORM: norms[NORM]} if NORM in norms else {}
            self.count += 1
            norm = made.pop(NORM, None)
            self.norm = None if norm is None else float(norm)
        return tuple(made.values())

    def evaluate(self, *arrays: Any, **named: Any) -> tuple[Array, ...]:
        """The loss and the results of the network as in inference, without changing anything.

        Batch normalisations take their running statistics, dropouts drop nothing. Takes what a step takes.
        """
        with self._lock:

            def made(sizes: Any) -> Step:
                return self._learning.evaluation(sizes, self.statistics)

            return tuple(self._run("evaluate", made, self._given(arrays, named), {}).values())

    def gradients(self, *arrays: Any, **named: Any) -> dict[str, Array]:
        """The gradient of each parameter in the step that is next, which is not done.

        Ahead of clipping and weight decay. Takes what a step takes.
        """
        with self._lock:
            given = self._given(arrays, named, self._learning.parts)
            before = {name: self[name] for name in self.statistics}
            self._summed(given)
            for name, array in before.items():
                self[name] = array
            return {name: self._read(total_of(name)) for name in self.parameters}

    def _numbers(self) -> dict[str, Array]:
        numbers = self._learning.numbers(self.count, self.rate)
        return {name: np.array([number], np.float32) for name, number in numbers.items()}

    def _given(
        self, arrays: tuple[Any, ...], named: Mapping[str, Any], parts: int = 1
    ) -> list[dict[str, Any]]:
        """What was given, for each part."""
        names = [value.name for value in self.inputs]
        given = bound(names, arrays, named, "a step")
        if parts == 1:
            return [dict(zip(names, given, strict=True))]
        split = []
        for value, one in zip(self.inputs, given, strict=True):
            array = np.asarray(one)
            rows = value.dims[0] if value.dims else None
            if not isinstance(rows, int) or array.shape[:1] != (rows * parts,):
                raise LayoutError(
                    f"a step in {parts} parts takes {parts} times {value}; an array of "
                    f"{'x'.join(map(str, array.shape)) or 'no dims'} was given"
                )
            split.append(array.reshape(parts, rows, *array.shape[1:]))
        return [dict(zip(names, several, strict=True)) for several in zip(*split, strict=True)]

    def _summed(self, given: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
        """Sum up the gradients of all parts; means of losses, and results one behind the other."""
        kind = "step" if self._learning.parts > 1 else "gradients"
        for name in self.parameters:
            if total_of(name) in self._states:
                self._states[total_of(name)].buffer[:] = 0
        several = [
            self._run(kind, self._learning.gradients, [one], {}, place) for place, one in enumerate(given)
        ]
        if len(several) == 1:
            return several[0]
        return {
            name: np.concatenate(parts) if parts[0].ndim else np.mean(parts, dtype=parts[0].dtype)
            for name, parts in ((name, [one[name] for one in several]) for name in several[0])
        }

    def _run(
        self,
        kind: str,
        made: Any,
        given: Sequence[Mapping[str, Any]],
        numbers: Mapping[str, Any],
        place: int = 0,
    ) -> dict[str, Array]:
        (known,) = given
        part = self._sized(kind, made, known)
        wanted = [value for value in part.inputs if value.name in known]
        arrays = checked_inputs(wanted, [known[value.name] for value in wanted])
        count = np.array([self.count * self._learning.parts + place], np.int64)
        checked = dict(zip((value.name for value in wanted), arrays, strict=True))
        return part(self._states, {STEP: count, **numbers, **checked})

    def _sized(self, kind: str, made: Callable[[Any], Step], given: Mapping[str, Any]) -> _Part:
        """The part for the sizes of some arrays."""
        shapes = {name: tuple(np.shape(given[name])) for name in given}
        usual = {value.name: value.dims or () for value in self.inputs}
        rows = {(usual[name][:1], shape[:1]) for name, shape in shapes.items()}
        sizes = {value.name: shapes[value.name] for value in self._learning.graph.inputs if not value.known}
        if shapes == usual or len(rows) > len({one for one, _ in rows}) or not sizes:
            return self._part(kind, made, self._made_of["batch"])  # where what doesn't fit is told
        return self._part(kind, made, sizes)

    @locked
    def _part(self, kind: str, made: Callable[..., Step], *sizes: Any) -> _Part:
        key = (kind, *(tuple(sorted(one.items())) if isinstance(one, Mapping) else one for one in sizes))
        if key not in self._parts:
            formats = {name: one.desc for name, one in self._states.items()}
            part = self._parts[key] = _Part(made(*sizes), formats, **self._options)
            for name, desc in part.plan.states.items():
                if name not in self._states:
                    self._states[name] = Tensor(desc, allocate(desc))
                    self._values[name] = part.values[name]
                    self._write(name, self._learning.begin(name))
        return self._parts[key]

    # -- states ---------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Array:
        """A parameter, a running statistic or a state of the optimiser, as an array of its own."""
        return self._read(self._known(name))

    def __setitem__(self, name: str, array: Any) -> None:
        (data,) = checked_inputs((self._values[self._known(name)],), (array,))
        self._write(name, data)

    def __iter__(self) -> Iterator[str]:
        totals = {total_of(name) for name in self.parameters}
        return (name for name in self._states if name not in totals)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    def _known(self, name: str) -> str:
        if name not in self:
            raise LayoutError(f"there is no parameter or state {name!r}; there are {', '.join(self)}")
        return name

    def _read(self, name: str) -> Array:
        return np.array(from_tensor(self._states[name], self._values[name].dtype))

    def _write(self, name: str, data: Any) -> None:
        target = self._states[name]
        reorder(stored(np.asarray(data)), target.desc, out=target)

    def trained(self, graph: Graph) -> Graph:
        """A graph, for inference, with what was learned in the place of its constants of those names."""
        several = {name: graph.constants.get(name) for name in (*self.parameters, *self.statistics)}
        found = {name: self[name].astype(one.dtype) for name, one in several.items() if one is not None}
        return graph.replaced(constants={**graph.constants, **found})

    def save(self, path: str | PathLike[str]) -> None:
        """Write all states to a safetensors file, row-major: parameters under their names.

        The file is written whole, or what was there stays.

        Raises
        ------
        OSError
            It can't be written.
        """
        with self._lock:
            numbers = {kept.COUNT: np.int64(self.count), kept.RATE: np.float64(self.rate)}
            kept.write(path, {name: self._states[name] for name in self}, numbers)

    def load(self, path: str | PathLike[str]) -> None:
        """Take all states from a file that :meth:`save` wrote; a schedule stays.

        Raises
        ------
        LayoutError
            One is missing, or has other dims; nothing is changed then.
        OSError
            The file can't be read.
        """
        found, numbers = kept.read(path, {name: self._values[name] for name in self})
        with self._lock:
            for name, one in found.items():
                reorder(one, self._states[name].desc, out=self._states[name])
            self.count = int(numbers[kept.COUNT])
            if kept.RATE in numbers and not callable(self._rate):
                self._rate = float(numbers[kept.RATE])

    def __reduce__(self) -> tuple[Any, ...]:
        """The graph with what was learned, the settings, and other states."""
        with self._lock:
            graph = self.trained(self._learning.graph)
            settings = {**self._made_of, "master": False}  # the graph has them as they are kept
            others = {name: self[name] for name in self if name not in graph.constants}
            return _restored, (graph, settings, others, self.count, self._rate)

    # -- what it is -----------------------------------------------------------------------------------------

    def layers(self) -> tuple[Layer, ...]:
        """What a step does, in order."""
        return tuple(layer for one in self._stepping() for layer in one.run.layers())

    @property
    def memory(self) -> Memory:
        """The memory of values within a step, or within one of its parts."""
        return self._stepping()[0].run.memory

    @property
    def nbytes(self) -> int:
        """Bytes of a trainer: states, constants, and values that are alive at once."""
        states = sum(one.buffer.nbytes for one in self._states.values())
        constants = sum(one.run.constant_bytes for one in self._parts.values())
        return int(states + constants + max(one.run.memory.peak for one in self._parts.values()))

    def _stepping(self) -> list[_Part]:
        """What a step runs."""
        several = [one for key, one in self._parts.items() if key[0] in ("step", "update")]
        return several[:2] if self._learning.parts > 1 else several[:1]

    def __repr__(self) -> str:
        sides = ", ".join(map(str, self.inputs))
        return f"Trainer({sides} -> loss, {len(self.parameters)} parameters, {self.optimizer})"


def _restored(
    graph: Graph, settings: Mapping[str, Any], states: Mapping[str, Array], count: int, rate: Any
) -> Trainer:
    """A trainer that was pickled."""
    made = Trainer(graph, **settings)
    for name, array in states.items():
        made[name] = array
    made.count, made.rate = count, rate
    return made
