"""A network, compiled: called with arrays, answers with arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.graph.evaluate import checked_inputs, evaluate
from relayout.graph.graph import Graph
from relayout.graph.inference import inferred
from relayout.graph.lowering.case import elements_of
from relayout.graph.lowering.emission import emitted, stored
from relayout.graph.passes import fused, optimized, unfused
from relayout.graph.plan import Plan, lowerable, plan
from relayout.primitives.values import bound
from relayout.targets.processors import limited
from relayout.tensor import Tensor

if TYPE_CHECKING:
    from relayout.primitives.runner import Layer
    from relayout.primitives.runner import Run as Steps
    from relayout.runtime.tuning import Choice

__all__ = ["Run", "compiled", "planned"]


def planned(
    graph: Graph,
    format: str | None = None,
    threads: int | None = None,
    batch: Any = None,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a graph, for a batch size or other dims; see :meth:`.Graph.plan`."""
    made = fused(inferred(optimized(inferred(graph, batch))))
    with limited(threads):
        return plan(unfused(made, keep=lambda node: lowerable(node, made)), format, pins)


def compiled(graph: Graph, format: str | None = None, threads: int | None = None, batch: Any = None) -> Run:
    """Plan a graph and compile it.

    Where a value has no memory format (text, lists, dims that only a run knows), the definitions of all
    operators are what runs.
    """
    known = inferred(graph, batch)
    try:
        start = perf_counter()
        found = planned(graph, format, threads, batch)
        middle = perf_counter()
        with limited(threads):
            steps = emitted(found.graph, found.chosen).compile(threads)
    except LayoutError as error:
        if all(value.known for value in known.inputs) and not _undecided(known):
            raise
        return Run(known, None, None, str(error))
    made = Run(known, found, steps)
    made.seconds = {"plan": middle - start, "compile": perf_counter() - middle}
    return made


def _undecided(graph: Graph) -> bool:
    """Whether there is a value of which too little is known."""
    names = (name for node in graph.nodes for name in node.outputs if name)
    values = [graph.value(name) for name in names]
    return any(not value.known or elements_of(value.dtype) is None for value in (*values, *graph.inputs))


class Run:
    """A network that is ready to run.

    Attributes
    ----------
    inputs, outputs
        What it takes and returns, each with name, dims and data type.
    plan : Plan or None
        The formats of all values; None: definitions are what runs.
    why : str
        Why there is no plan.
    seconds : mapping of str to float
        How long it took to plan and to compile.
    """

    seconds: Mapping[str, float] = {"plan": 0.0, "compile": 0.0}

    def __init__(self, graph: Graph, plan: Plan | None, steps: Steps | None, why: str = "") -> None:
        self._graph, self.plan, self.steps, self.why = graph, plan, steps, why
        self.inputs = graph.inputs
        self.outputs = graph.outputs

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> tuple[Any, ...]:
        """Run.

        Parameters
        ----------
        *arrays : array_like
            The inputs in their order.
        out : sequence of ndarray, optional
            Where to write the outputs.
        **named : array_like
            Inputs by name.

        Returns
        -------
        tuple of ndarray
            The outputs.
        """
        given = self._bound(arrays, named)
        if self.steps is None:
            made = evaluate(self._graph, *given)
        else:
            found = self.steps(*map(stored, given))
            several = found if isinstance(found, tuple) else (found,)
            made = tuple(_array(one, value.dtype) for one, value in zip(several, self.outputs, strict=True))
        if out is None:
            return made
        for target, one in zip(out, made, strict=True):
            np.copyto(target, one, casting="no")
        return tuple(out)

    def profile(self, *arrays: Any, repeat: int = 3, **named: Any) -> tuple[Layer, ...]:
        """The steps with their times."""
        if self.steps is None:
            raise LayoutError(f"definitions are what runs, and are not timed one by one: {self.why}")
        given = self._bound(arrays, named)
        return self.steps.profile(*map(stored, given), repeat=repeat)

    def tune(self, progress: Callable[[str, Choice | None], object] | None = None) -> None:
        """Find the fastest schedule of each layer by measuring it alone; later processes know it, too.

        Parameters
        ----------
        progress : callable, optional
            Called after each layer with its name, and what is known of its problem.
        """
        if self.steps is not None:
            self.steps.tune(progress)

    def _bound(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        given = bound([value.name for value in self.inputs], arrays, named, "the network")
        return checked_inputs(self.inputs, given)

    def __repr__(self) -> str:
        return f"Run({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"


def _array(found: Tensor, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    made = found.numpy()
    return made.view(bool) if dtype == np.dtype(bool) else made
