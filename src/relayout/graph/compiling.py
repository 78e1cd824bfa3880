"""From a graph to a run: planned, compiled, and again for each set of sizes that is open before.

The stages, each a function from graph to graph or plan, none of which changes its argument::

    inferred        dims and data types of all values, constants folded
    optimized       fewer nodes: chains, common subexpressions, transposes that meet
    in_integers     quantised parts computed in integers; with_precision: the rest in bf16 or f16
    fused           what follows a sum of products becomes its post-ops
    plan            a way for each node and a format for each value, so that all together cost least
    emitted         primitives, reorders and memory: the sequence that runs

Nodes of which only data tell the sizes cannot be planned: the graph is divided before the first of them, and
what comes behind is computed by definitions. With open sizes all of this happens when arrays are given, and
:data:`KEPT` runs are kept by their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from relayout.errors import LayoutError
from relayout.exchange.mapped import release
from relayout.forking import locked
from relayout.graph.defaults import Others
from relayout.graph.dynamic import decided, divided, undecided
from relayout.graph.graph import Graph, Value
from relayout.graph.inference import inferred
from relayout.graph.lowering.emission import emitted
from relayout.graph.passes import fused, optimized, unfused
from relayout.graph.passes.blockwise import unpermitted, with_blockwise_products
from relayout.graph.passes.integers import in_integers
from relayout.graph.passes.parts import in_parts
from relayout.graph.passes.precision import check_precision, with_precision
from relayout.graph.passes.weights import with_moving_weights
from relayout.graph.plan import Plan, check_algorithm, check_sizes, image_format, lowerable, plan
from relayout.graph.run import Compiled, Run
from relayout.processors import limited
from relayout.records import replace
from relayout.reorder.conversion import check_threads
from relayout.runtime.collection import paused

if TYPE_CHECKING:
    from pathlib import Path

    from relayout.primitives.runner import Layer

__all__ = ["KEPT", "OpenRun", "compiled", "compiled_as", "planned"]

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
    precision: str | None = None,
    algorithm: str = "auto",
) -> Plan:
    """The plan of a graph, for a batch size or other dims; see :meth:`.Graph.plan`."""
    check_threads(threads)
    check_algorithm(algorithm)
    graph = unpermitted(graph) if precision == "f32" else graph
    format, precision = image_format(format), check_precision(precision)
    return _planned(*divided(inferred(graph, batch)), format, threads, precision, algorithm, pins)


def _planned(
    head: Graph,
    tail: Graph | None,
    format: str | None,
    threads: int | None,
    precision: str | None,
    algorithm: str,
    pins: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of the part of a graph that can be planned, with the rest behind it."""
    simple = inferred(optimized(head))
    check_sizes(simple)
    narrow = in_integers(with_blockwise_products(simple))
    moving = with_moving_weights(narrow if narrow is simple else inferred(narrow))
    lowered = inferred(with_precision(moving, precision))
    made = fused(inferred(in_parts(lowered)))
    with limited(threads):
        made = unfused(made, keep=lambda node: lowerable(node, made, format, algorithm))
        found = plan(made, format, pins, algorithm=algorithm)
    return found if tail is None else replace(found, tail=tail)


def compiled(
    graph: Graph,
    format: str | None = None,
    threads: int | None = None,
    batch: Any = None,
    precision: str | None = None,
    algorithm: str = "auto",
) -> Run:
    """Plan a graph and compile it.

    Where inputs have open sizes, this is done when a run is given arrays. What has no memory format (text,
    lists, sizes that only data decide) is left to the definitions of operators.
    """
    check_threads(threads)
    check_algorithm(algorithm)
    graph = unpermitted(graph) if precision == "f32" else graph
    format, precision = image_format(format), check_precision(precision)
    known = inferred(graph, batch)
    whole = all(map(decided, known.inputs)) or not undecided(known)
    how = format, threads, precision, algorithm
    made = _compiled(known, *how) if whole else OpenRun(known, *how)
    if graph.defaults:
        made.defaults = graph.defaults
        same = {"format": format, "threads": threads, "batch": batch, "precision": precision}
        same["algorithm"] = algorithm
        made.with_others = Others(graph, partial(compiled, **same))
    return made


def _compiled(
    known: Graph, format: str | None, threads: int | None, precision: str | None, algorithm: str
) -> Run:
    """A run for the sizes that a graph has, whatever they are."""
    start = perf_counter()
    head, tail = divided(known)
    if not head.nodes and (why := undecided(known)):
        return Run(known.inputs, known.outputs, tail=known, why=why)
    with paused():
        found = _planned(head, tail, format, threads, precision, algorithm)
        middle = perf_counter()
        made = compiled_as(known, found, threads)
    made.seconds = {"plan": middle - start, "compile": perf_counter() - middle}
    return made


def compiled_as(graph: Graph, plan: Plan, threads: int | None = None) -> Run:
    """A graph compiled as it was planned (:func:`planned`), for as many threads."""
    _release(graph)  # of weights, passes have read what they compare
    with limited(threads):
        steps = emitted(plan.graph, plan.chosen).compile(threads)
    head = plan.graph
    part = Compiled(steps, tuple(value.name for value in head.inputs), head.outputs)
    _release(graph)  # what is packed is not read again
    return Run(graph.inputs, graph.outputs, part, plan.tail, plan, undecided(graph))


def _release(graph: Graph) -> None:
    """Hand pages of mapped constants back to the system; who reads them finds them in its cache."""
    for data in graph.constants.values():
        release(data)


class OpenRun(Run):
    """A network whose inputs have open sizes: planned and compiled for those that a call brings.

    What was made is kept for :data:`KEPT` sets of sizes. Behind these, compiling waits until sizes come for
    the second time, and definitions run before: a text that grows by a word in each call never has the same
    sizes again.
    """

    def __init__(
        self,
        graph: Graph,
        format: str | None,
        threads: int | None,
        precision: str | None = None,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(graph.inputs, graph.outputs, tail=graph, why=undecided(graph))
        self._graph = graph
        self._how = format, threads, precision, algorithm
        self._made = lru_cache(maxsize=KEPT)(self._specialized)
        self._seen: dict[Any, int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """The graph; another process plans and compiles for the sizes that it is given."""
        state = {"defaults": self.defaults, "with_others": self.with_others}
        return OpenRun, (self._graph, *self._how), state

    def at(self, *arrays: Any, **named: Any) -> Run:
        """The run for the sizes of these arrays."""
        return self._made(_sizes(self._bound(arrays, named)))

    def save(self, path: str | Path) -> None:
        """Nothing can be saved before sizes are known; what can is the run for some, ``run.at(*arrays)``."""
        raise LayoutError(
            f"a run is saved for sizes that are known, but {self.why}; give them to compile (batch=...), or "
            "save run.at(*arrays)"
        )

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
        return self._by_definition(given)

    @locked
    def _specialized(self, sizes: _Sizes) -> Run:
        given = list(zip(self.inputs, sizes, strict=True))
        typed = tuple(one if size is None else Value(one.name, one.dims, size[1]) for one, size in given)
        dims = {one.name: size[0] for one, size in given if size is not None}
        known = inferred(self._graph.replaced(inputs=typed), dims)
        return _compiled(known, *self._how)


def _sizes(given: list[Any]) -> _Sizes:
    return tuple((one.shape, one.dtype) if isinstance(one, np.ndarray) else None for one in given)
