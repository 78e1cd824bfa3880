"""The graphs that a trainer runs: each a step with states (:mod:`relayout.graph.step`).

::

    whole        forward, backward, optimiser: parameters, momenta and statistics are replaced
    gradients    forward and backward: gradients are added to sums, parameters stay
    update       the optimiser alone, from these sums
    evaluation   the network as in inference, and its loss: nothing is replaced

The first is what a trainer runs as a rule: a gradient is used while it is still in the caches, and its memory
is used again. A batch in several parts, or who wants to see gradients, takes the second and the third.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.backward import backward, trainable, with_inputs
from relayout.graph.gradients.reverse import Writing
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.inference import inferred, with_dims
from relayout.graph.passes import optimized
from relayout.graph.step import Step
from relayout.graph.training_form import training_form
from relayout.training.losses import LOSS, LOSSES, with_loss
from relayout.training.optimizers import Adam, Optimizer, after

__all__ = ["NORM", "Learning", "total_of"]

NORM: Final = "training/norm"
"""The norm of all gradients, ahead of clipping."""
SUMMED: Final = 8
"""How many numbers a node adds up."""
NEVER_ZERO: Final = 1e-6
"""Is added to the norm, as PyTorch does."""

Sizes = Any
"""Batch, or dims by the names of inputs and sizes; see :func:`relayout.graph.inference.with_dims`."""


def total_of(parameter: str) -> str:
    """What the sum of a parameter's gradients is called."""
    return f"total/{parameter}"


@dataclass(frozen=True, eq=False)
class Learning:
    """What is learned from what, and how.

    Attributes
    ----------
    graph : Graph
        The network, as for inference.
    loss : str
        One of :data:`.LOSSES`, or a value of the graph.
    parameters : tuple of str
        The constants that are learned.
    optimizers : tuple of Optimizer
        The first is that of all parameters but those of groups.
    groups : mapping of str to int
        For parameters with another optimiser which of them it is.
    clip : float or None
        The norm that all gradients together have at most.
    parts : int
        In how many parts a batch comes.
    seed, dropout
        Of dropouts.
    """

    graph: Graph
    loss: str
    parameters: tuple[str, ...]
    optimizers: tuple[Optimizer, ...]
    groups: Mapping[str, int]
    clip: float | None = None
    parts: int = 1
    seed: int = 0
    dropout: float | None = None

    @classmethod
    def of(
        cls,
        graph: Graph,
        loss: str,
        optimizer: Optimizer,
        of: Sequence[str] | None,
        groups: Mapping[str, Optimizer],
        master: bool = False,
        **settings: Any,
    ) -> Learning:
        """Look up what is learned, and by which optimiser: that of the first group whose pattern fits."""
        parameters = tuple(trainable(graph)) if of is None else tuple(dict.fromkeys(of))
        missing = [name for name in parameters if name not in graph.constants]
        if missing:
            raise LayoutError(f"the graph has no constant {missing[0]!r}")
        if not parameters:
            raise LayoutError("there is nothing to learn: the graph has no constant that training changes")
        chosen: dict[str, int] = {}
        for k, pattern in enumerate(groups, 1):
            fitting = [name for name in parameters if fnmatchcase(name, pattern)]
            if not fitting:
                raise LayoutError(f"no parameter fits {pattern!r}; there are {', '.join(parameters)}")
            chosen = {**dict.fromkeys(fitting, k), **chosen}
        if master:
            graph = _with_masters(graph, parameters)
        made = cls(graph, loss, parameters, (optimizer, *groups.values()), chosen, **settings)
        for name in parameters:
            one, _ = made.optimizer(name)
            if graph.constants[name].dtype == np.float16 and isinstance(one, Adam):
                raise LayoutError(
                    f"{name!r} has 16 bits, f16, in which {type(one).__name__}'s averages of squares vanish; "
                    "keep it in f32: master=True"
                )
        return made

    @property
    def value(self) -> str:
        """The loss as a value."""
        return LOSS if self.loss in LOSSES else self.loss

    def optimizer(self, parameter: str) -> tuple[Optimizer, dict[str, str]]:
        """A parameter's, and the inputs that are given its numbers."""
        k = self.groups.get(parameter, 0)
        return self.optimizers[k], dict(self._scalars(k))

    def numbers(self, count: int, rate: float) -> dict[str, float]:
        """The numbers of the step that ``count`` others came before, by input; rates of groups go along."""
        found = {}
        base = self.optimizers[0].rate
        for k, one in enumerate(self.optimizers):
            own = one.rate * rate / base if base else one.rate
            made = one.numbers(count, own if k else rate)
            found.update({called: made[number] for number, called in self._scalars(k)})
        return found

    def _scalars(self, k: int) -> list[tuple[str, str]]:
        where = f"training/{k}" if k else "training"
        return [(number, f"{where}/{number}") for number in self.optimizers[k].scalars]

    def begin(self, name: str) -> Any:
        """What a state begins with."""
        found = self.graph.constants.get(name)
        if found is not None:
            return found
        like = self.graph.constants[name.partition("/")[2]]
        return np.zeros(like.shape, like.dtype)

    def without(self, names: Collection[str]) -> Learning:
        """The same without the memory of some constants: their dims and data types are left."""
        hollow = {
            name: np.broadcast_to(np.zeros((), data.dtype), data.shape) if name in names else data
            for name, data in self.graph.constants.items()
        }
        return replace(self, graph=self.graph.replaced(constants=hollow))

    # -- graphs ---------------------------------------------------------------------------------------------

    def whole(self, sizes: Sizes) -> Step:
        """Forward, backward and the optimiser. The results: the loss, those of the network."""
        joint, statistics, gradients = self._joint(sizes)
        writing = Writing(joint._known, joint.constants)
        states, inputs, more = self._updated(writing, gradients)
        states |= statistics
        results = (self.value, *self.graph.results, *more, *states.values())
        return _step(joint, writing, inputs, results, states)

    def gradients(self, sizes: Sizes) -> Step:
        """Forward and backward; a part of each gradient is added to its sum."""
        joint, statistics, gradients = self._joint(sizes)
        writing = Writing(joint._known, joint.constants)
        states = {name: name for name in self.parameters} | statistics
        inputs = []
        for name in self.parameters:
            known, total = joint.value(name), total_of(name)
            inputs.append(Value(total, known.dims, known.dtype))
            writing.values[total] = inputs[-1]
            part = gradients[name]
            if self.parts > 1:
                part = writing("Mul", part, writing.number(1 / self.parts, part))
            writing.append(Node("Add", (total, part), (after(total),), {}, after(total)))
            states[total] = after(total)
        results = (self.value, *self.graph.results, *states.values())
        return _step(joint, writing, inputs, results, states)

    def update(self) -> Step:
        """The optimiser, from sums of gradients."""
        data = {name: self.graph.constants[name] for name in self.parameters}
        known = [Value(name, one.shape, one.dtype) for name, one in data.items()]
        totals = [Value(total_of(name), one.shape, one.dtype) for name, one in data.items()]
        bare = Graph((*known, *totals), (), ())
        writing = Writing(bare._known, {})
        states, inputs, more = self._updated(writing, {name: total_of(name) for name in self.parameters})
        states |= {one.name: one.name for one in totals}
        if not more:  # a sequence has to have a result
            writing.append(Node("relayout.Copy", (inputs[0].name,), ("training/done",), {}, "training/done"))
            more = ["training/done"]
        return _step(bare, writing, inputs, (*more, *states.values()), states)

    def evaluation(self, sizes: Sizes, statistics: Sequence[str]) -> Step:
        """The network as in inference, and its loss."""
        states = (*self.parameters, *statistics)
        known = _scaled(inferred(with_dims(self.graph, sizes)))
        made = inferred(self._with_loss(inferred(with_inputs(known, states))))
        results = tuple(dict.fromkeys((self.value, *self.graph.results)))
        return Step(made.replaced(results=results), {name: name for name in states})

    def _with_loss(self, graph: Graph) -> Graph:
        return with_loss(graph, self.loss) if self.loss in LOSSES else graph

    def _joint(self, sizes: Sizes) -> tuple[Graph, dict[str, str], dict[str, str]]:
        """Forward and backward, with parameters as inputs; what replaces running statistics; gradients."""
        free = inferred(with_inputs(with_dims(self.graph, sizes), self.parameters))
        form = training_form(self._with_loss(free), seed=self.seed, dropout=self.dropout)
        simple = optimized(with_inputs(form.graph, list(form.updates)))
        joint = backward(simple, self.value, self.parameters)
        gradients = joint.results[len(joint.results) - len(self.parameters) :]
        return joint, dict(form.updates), dict(zip(self.parameters, gradients, strict=True))

    def _updated(
        self, writing: Writing, gradients: Mapping[str, str]
    ) -> tuple[dict[str, str], list[Value], list[str]]:
        """Append what replaces parameters; their states, new inputs, and further results."""
        more = []
        if self.clip is not None:
            gradients = self._clipped(writing, gradients, self.clip)
            more.append(NORM)
        one = np.dtype(np.float32)
        every = [called for k in range(len(self.optimizers)) for _, called in self._scalars(k)]
        inputs = [Value(called, (1,), one) for called in every]
        writing.values.update((value.name, value) for value in inputs)
        states: dict[str, str] = {}
        for name, gradient in gradients.items():
            optimizer, scalars = self.optimizer(name)
            known = writing.values[name]
            own = [optimizer.state(name, kind) for kind in optimizer.states]
            inputs += [Value(state, known.dims, known.dtype) for state in own]
            states.update((state, after(state)) for state in (name, *own))
            writing.nodes.append(optimizer.node(name, gradient, scalars))
            for state in (name, *own):
                writing.values[after(state)] = Value(after(state), known.dims, known.dtype)
        return states, inputs, more

    def _clipped(self, writing: Writing, gradients: Mapping[str, str], most: float) -> dict[str, str]:
        """The gradients by their norm, where that is more than what is allowed."""
        single = np.dtype(np.float32)
        parts = [
            writing("ReduceSumSquare", _cast(writing, one, single), keepdims=0) for one in gradients.values()
        ]
        while len(parts) > 1:
            parts = [
                writing("Sum", *parts[k : k + SUMMED]) if parts[k + 1 :] else parts[k]
                for k in range(0, len(parts), SUMMED)
            ]
        writing.append(Node("Sqrt", (parts[0],), (NORM,), {}, NORM))
        below = writing("Add", NORM, writing.number(NEVER_ZERO, NORM))
        scale = writing("Min", writing("Div", writing.number(most, NORM), below), writing.number(1.0, NORM))
        return {
            name: writing("Mul", one, _cast(writing, scale, writing.dtype(one)))
            for name, one in gradients.items()
        }


def _with_masters(graph: Graph, parameters: Sequence[str]) -> Graph:
    """The graph whose parameters of 16 bits are f32, cast ahead of whatever reads them."""
    low = {name: data for name in parameters if (data := graph.constants[name]).dtype.itemsize == 2}
    writing = Writing(
        graph._known, {**graph.constants, **{name: data.astype(np.float32) for name, data in low.items()}}
    )
    cast = {name: _cast(writing, name, data.dtype) for name, data in low.items()}
    nodes = tuple(
        replace(node, inputs=tuple(cast.get(name, name) for name in node.inputs)) for node in graph.nodes
    )
    values = {name: one for name, one in writing.values.items() if name not in writing.constants}
    results = tuple(cast.get(name, name) for name in graph.results)
    return graph.replaced(
        nodes=(*writing.nodes, *nodes), results=results, constants=writing.constants, values=values
    )


def _scaled(graph: Graph) -> Graph:
    """The graph whose batch normalisations are factors and summands of channels, computed by nodes."""
    writing = Writing(graph._known, graph.constants)
    for node in graph.nodes:
        if node.operator != "BatchNormalization":
            writing.append(node)
            continue
        x, scale, shift, mean, variance = node.inputs
        epsilon = writing.number(float(node.attributes.get("epsilon", 1e-5)), variance)
        factor = writing("Div", scale, writing("Sqrt", writing("Add", variance, epsilon)))
        summand = writing("Sub", shift, writing("Mul", mean, factor))
        dims = writing.constant(np.asarray((-1, *[1] * (len(writing.dims(x)) - 2)), np.int64))
        made = writing("Mul", x, writing("Reshape", factor, dims))
        last = writing("Reshape", summand, dims)
        writing.append(Node("Add", (made, last), node.outputs[:1], {}, node.name))
    values = {name: one for name, one in writing.values.items() if name not in writing.constants}
    return graph.replaced(nodes=tuple(writing.nodes), constants=writing.constants, values=values)


def _cast(writing: Writing, name: str, dtype: Any) -> str:
    """A value in another data type; itself, if it has that."""
    if writing.dtype(name) == dtype:
        return name
    return str(writing("CastLike", name, writing.constant(np.zeros((), dtype))))


def _step(
    graph: Graph, writing: Writing, inputs: Sequence[Value], results: Sequence[str], states: Mapping[str, str]
) -> Step:
    """A graph with what was appended, and with further inputs."""
    taken = {*(value.name for value in inputs), *writing.constants}
    made = graph.replaced(
        inputs=(*graph.inputs, *inputs),
        results=tuple(dict.fromkeys(name for name in results if states.get(name) != name)),
        nodes=(*graph.nodes, *writing.nodes),
        constants=writing.constants,
        values={name: value for name, value in writing.values.items() if name not in taken},
    )
    return Step(made, states)
