"""A network, compiled: called with arrays, answers with arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, type_name
from relayout.exchange.mapped import release
from relayout.forking import locked
from relayout.graph.dynamic import decided, divided, undecided
from relayout.graph.evaluate import checked_inputs, evaluate
from relayout.graph.graph import Graph, Value
from relayout.graph.inference import inferred
from relayout.graph.lowering.emission import emitted, stored
from relayout.graph.passes import fused, optimized, unfused
from relayout.graph.passes.parts import in_parts
from relayout.graph.plan import Plan, lowerable, plan
from relayout.primitives.values import bound
from relayout.reorder.conversion import check_threads
from relayout.targets.processors import limited
from relayout.tensor import Tensor

if TYPE_CHECKING:
    from relayout.primitives.runner import Layer
    from relayout.primitives.runner import Run as Steps
    from relayout.runtime.tuning import Choice

__all__ = ["OpenRun", "Run", "compiled", "planned"]

KEPT: Final = 8
"""For how many sets of sizes a network with open ones is kept compiled: each has packed weights and scratch
of its own."""

REMEMBERED: Final = 1000
"""Sets of sizes of which is known that they have been given before."""

_Sizes: TypeAlias = "tuple[tuple[tuple[int, ...], np.dtype[Any]] | None, ...]"
"""Dims and data type of each array that is given; None for what is none."""


def planned(
    graph: Graph,
    format: str | None = None,
    threads: int | None = None,
    batch: Any = None,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a graph, for a batch size or other dims; see :meth:`.Graph.plan`."""
    check_threads(threads)
    head, tail = divided(inferred(graph, batch))
    made = fused(inferred(in_parts(inferred(optimized(head)))))
    with limited(threads):
        found = plan(unfused(made, keep=lambda node: lowerable(node, made)), format, pins)
    return found if tail is None else replace(found, tail=tail)


def compiled(graph: Graph, format: str | None = None, threads: int | None = None, batch: Any = None) -> Run:
    """Plan a graph and compile it.

    Where inputs have open sizes, this is done when a run is given arrays. What has no memory format (text,
    lists, sizes that only data decide) is left to the definitions of operators.
    """
    check_threads(threads)
    known = inferred(graph, batch)
    if all(map(decided, known.inputs)) or not undecided(known):
        return _compiled(known, format, threads)
    return OpenRun(known, format, threads)


def _compiled(known: Graph, format: str | None, threads: int | None) -> Run:
    """A run for the sizes that a graph has, whatever they are."""
    if not divided(known)[0].nodes and undecided(known):
        return Run(known, None, None, undecided(known))
    start = perf_counter()
    found = planned(known, format, threads)
    middle = perf_counter()
    with limited(threads):
        steps = emitted(found.graph, found.chosen).compile(threads)
    made = Run(known, found, steps, undecided(known))
    made.seconds = {"plan": middle - start, "compile": perf_counter() - middle}
    for data in known.constants.values():  # what is packed is not read again
        release(data)
    return made


class Run:
    """A network that is ready to run.

    Attributes
    ----------
    inputs, outputs
        What it takes and returns, each with name, dims and data type.
    plan : Plan or None
        The formats of all values that are decided before the network runs; None: there are none.
    why : str
        Why not all of the network is planned.
    seconds : mapping of str to float
        How long it took to plan and to compile.
    """

    seconds: Mapping[str, float] = {"plan": 0.0, "compile": 0.0}

    def __init__(self, graph: Graph, plan: Plan | None, steps: Steps | None, why: str = "") -> None:
        self._graph, self.plan, self.steps, self.why = graph, plan, steps, why
        self.inputs = graph.inputs
        self.outputs = graph.outputs

    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> tuple[Any, ...]:
        """Run.

        Parameters
        ----------
        *arrays : array_like
            The inputs in their order.
        out : sequence of ndarray, optional
            Where to write the outputs, one array for each, of its dims and data type; one output may be given
            its array alone. If one does not fit, none is written.
        **named : array_like
            Inputs by name.

        Returns
        -------
        tuple of ndarray
            The outputs, in memory of their own or in ``out``.

        Raises
        ------
        LayoutError
            An array does not fit an input or an output; the message says what is wanted.
        """
        given = self._bound(arrays, named)
        made = self._run(given)
        return made if out is None else _written(self.outputs, made, out)

    def profile(self, *arrays: Any, repeat: int = 3, **named: Any) -> tuple[Layer, ...]:
        """The steps with their times."""
        if self.steps is None:
            raise LayoutError(f"definitions are what runs, and are not timed one by one: {self.why}")
        return self.steps.profile(*map(stored, self._read(self._bound(arrays, named))), repeat=repeat)

    def tune(self, progress: Callable[[str, Choice | None], object] | None = None) -> None:
        """Find the fastest schedule of each layer by measuring it alone; later processes know it, too.

        Parameters
        ----------
        progress : callable, optional
            Called after each layer with its name, and what is known of its problem.
        """
        if self.steps is not None:
            self.steps.tune(progress)

    def _run(self, given: list[Any]) -> tuple[Any, ...]:
        if self.steps is None or self.plan is None:
            return _evaluated(self._graph, given)
        found = self.steps(*map(stored, self._read(given)))
        several = found if isinstance(found, tuple) else (found,)
        head = self.plan.graph.outputs
        made = tuple(_array(one, value.dtype) for one, value in zip(several, head, strict=True))
        if self.plan.tail is None:
            return made
        known = dict(zip((value.name for value in self.inputs), given, strict=True))
        known |= zip((value.name for value in head), made, strict=True)
        return _evaluated(self.plan.tail, [known[value.name] for value in self.plan.tail.inputs])

    def _read(self, given: list[Any]) -> list[Any]:
        """Those of the inputs that the planned part takes."""
        if self.plan is None or len(self.plan.graph.inputs) == len(given):
            return given
        read = {value.name for value in self.plan.graph.inputs}
        return [array for value, array in zip(self.inputs, given, strict=True) if value.name in read]

    def _bound(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        given = bound([value.name for value in self.inputs], arrays, named, "the network")
        return checked_inputs(self.inputs, given)

    def __repr__(self) -> str:
        return f"Run({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"


class OpenRun(Run):
    """A network whose inputs have open sizes: planned and compiled for those that a call brings.

    What was made is kept for :data:`KEPT` sets of sizes. Behind these, compiling waits until sizes come for
    the second time, and definitions run before: a text that grows by a word in each call never has the same
    sizes again.
    """

    def __init__(self, graph: Graph, format: str | None, threads: int | None) -> None:
        super().__init__(graph, None, None, undecided(graph))
        self._format, self._threads = format, threads
        self._made = lru_cache(maxsize=KEPT)(self._specialized)
        self._seen: dict[Any, int] = {}

    def at(self, *arrays: Any, **named: Any) -> Run:
        """The run for the sizes of these arrays."""
        return self._made(_sizes(self._bound(arrays, named)))

    def profile(self, *arrays: Any, repeat: int = 3, **named: Any) -> tuple[Layer, ...]:
        """The steps for the sizes of these arrays, with their times."""
        return self.at(*arrays, **named).profile(*arrays, repeat=repeat, **named)

    def _run(self, given: list[Any]) -> tuple[Any, ...]:
        sizes = _sizes(given)
        times = self._seen.pop(sizes, 0)
        self._seen[sizes] = times + 1
        if len(self._seen) > REMEMBERED:
            first, *_ = list(self._seen)  # at once: other threads may change it
            self._seen.pop(first, None)
        if times or len(self._seen) <= KEPT:
            return self._made(sizes)._run(given)
        return _evaluated(self._graph, given)

    @locked
    def _specialized(self, sizes: _Sizes) -> Run:
        inputs = tuple(
            value if one is None else Value(value.name, *one)
            for value, one in zip(self.inputs, sizes, strict=True)
        )
        forgotten = {name: Value(name, None, one.dtype) for name, one in self._graph.values.items()}
        return _compiled(
            inferred(self._graph.replaced(inputs=inputs, values=forgotten)), self._format, self._threads
        )


def _sizes(given: list[Any]) -> _Sizes:
    return tuple((one.shape, one.dtype) if isinstance(one, np.ndarray) else None for one in given)


def _evaluated(graph: Graph, given: Sequence[Any]) -> tuple[Any, ...]:
    """The results of definitions, as those of kernels are: each has memory of its own."""
    seen = [one for one in given if isinstance(one, np.ndarray)]
    found = []
    for one in evaluate(graph, *given):
        made = one
        if isinstance(made, np.ndarray):
            if not made.flags.writeable or any(np.may_share_memory(made, other) for other in seen):
                made = made.copy()
            seen.append(made)
        found.append(made)
    return tuple(found)


def _written(values: Sequence[Value], made: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """``out`` with the results in it; a LayoutError where one does not fit, before any is written."""
    targets = (out,) if isinstance(out, np.ndarray) else out
    if not isinstance(targets, (list, tuple)) or len(targets) != len(made):
        count = f", {len(targets)} of them" if isinstance(targets, (list, tuple)) else ""
        wanted = ", ".join(map(str, values))
        raise LayoutError(f"out takes an array for each output ({wanted}), got {type_name(out)}{count}")
    for value, target, one in zip(values, targets, made, strict=True):
        if not isinstance(target, np.ndarray) or not isinstance(one, np.ndarray):
            kind = one if isinstance(target, np.ndarray) else target
            raise LayoutError(f"out: the output {value} needs an array, and there is {type_name(kind)}")
        if target.shape != one.shape or target.dtype != one.dtype or not target.flags.writeable:
            dims = "x".join(map(str, target.shape)) or "no dims"
            only = "" if target.flags.writeable else ", which can only be read"
            raise LayoutError(
                f"out: the output is {value}; an array of {target.dtype} {dims}{only} was given"
            )
    for target, one in zip(targets, made, strict=True):
        np.copyto(target, one, casting="no")
    return tuple(targets)


def _array(found: Tensor, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    made = found.numpy()
    return made.view(bool) if dtype == np.dtype(bool) else made
