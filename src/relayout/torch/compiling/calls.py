"""What PyTorch calls in the place of a graph: finds the program for weights and sizes, or makes it.

Weights are known when a graph is called, and so are sizes that were left open (``dynamic=True``,
``mark_dynamic``, or a batch that has changed once). A program belongs to one set of weights, one set of sizes
and a number of threads. For each set of weights those for the last :attr:`.Options.kept` sizes are kept;
behind these, sizes are compiled when they come for the second time, and PyTorch runs the graph before.

Programs of weights that are no more go with them. Where weights change all the time, packing them anew costs
more than it brings: after :data:`HASTY` times in a row that a program was called less than :data:`FEW` times,
weights are read in each call from then on. Those that can't be watched, complex ones for example, are read so
from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import torch

from relayout.forking import lock
from relayout.runtime.collection import paused
from relayout.torch.compiling import kept
from relayout.torch.compiling.options import Options
from relayout.torch.compiling.program import Program, programmed
from relayout.torch.compiling.report import Report
from relayout.torch.compiling.sizes import opened, sized
from relayout.torch.compiling.weights import Watched, watchable

__all__ = ["FEW", "HASTY", "SETS", "Calls"]

SETS: Final = 64
"""Sets of weights: the layers of a model that share one graph."""

FEW: Final = 8
HASTY: Final = 4
REMEMBERED: Final = 1000
"""Sizes of which is known that they have been given before."""


@dataclass(eq=False)
class _Entry:
    weights: Watched
    sizes: tuple[Any, ...]
    threads: int
    program: Program
    calls: int = 0


class Calls:
    """A graph as PyTorch calls it: with a list of all arguments, which is emptied.

    Parameters
    ----------
    module : torch.fx.GraphModule
        The graph, of ATen's operators.
    weights : sequence of int
        The places of arguments that are parameters or buffers, and that the graph does not write to.
    options : Options
    report : Report
        Gets what is made.
    kind : str
        Which pass of a training step it is: ``"forward"``, ``"backward"``; empty: none.
    """

    def __init__(
        self, module: Any, weights: Sequence[int], options: Options, report: Report, kind: str = ""
    ) -> None:
        self._boxed_call = True  # of the instance: what wraps the backward pass copies only these
        self.module, self.options, self.report, self.kind = module, options, report, kind
        self._weights = tuple(weights) if options.freeze else ()
        self._picked = _picking(self._weights)
        self._open = opened(module)
        others = [k for k, _ in enumerate(_placeholders(module)) if k not in set(weights)]
        self._others = _picking(others)
        self._entries: tuple[_Entry, ...] = ()
        self._seen: set[tuple[Any, ...]] = set()
        self._hasty = 0
        self._steady = True  # no weights have changed until now

    def __call__(self, arguments: list[Any]) -> Any:
        """What the graph returns."""
        given = list(arguments)
        arguments.clear()
        if (found := self._found(given)) is not None:
            return found(given)
        try:
            made = self._made(given)
            return self.module.forward(*given) if made is None else made(given)
        finally:
            kept.begin()

    def _found(self, given: list[Any]) -> Program | None:
        weights, threads = self._picked(given), self.options.threads or torch.get_num_threads()
        sizes = _sizes(self._others(given)) if self._open else ()
        for entry in self._entries:
            if entry.sizes == sizes and entry.threads == threads and entry.weights.are(weights):
                if entry.weights.unchanged(weights):
                    entry.calls += 1
                    return entry.program
                with lock():
                    self._steady = False
                    self._hasty = self._hasty + 1 if entry.calls < FEW else 0
                    self._entries = tuple(one for one in self._entries if not one.weights.are(weights))
                return None
        return None

    def _made(self, given: list[Any]) -> Program | None:
        """The program for these arguments, compiled; None: PyTorch runs the graph."""
        with lock():
            steady = () if self._hasty >= HASTY else tuple(k for k in self._weights if watchable(given[k]))
            if steady != self._weights:
                self._weights, self._picked, self._entries = steady, _picking(steady), ()
            found = self._found(given)
            if found is not None:
                return found
            weights, threads = self._picked(given), self.options.threads or torch.get_num_threads()
            sizes = _sizes(self._others(given)) if self._open else ()
            alike = [one for one in self._entries if one.weights.are(weights)]
            if len(alike) >= self.options.kept:
                if sizes not in self._seen:
                    if len(self._seen) < REMEMBERED:
                        self._seen.add(sizes)
                    return None
                self._drop(alike[-1])
            module = sized(self.module, given) if self._open else self.module
            with paused():
                program = programmed(
                    module,
                    dict(zip(self._weights, weights, strict=True)),
                    self.options,
                    threads,
                    exact=bool(self.kind),
                    lasting=self._steady,
                )
            self.report.graphs.append(replace(program.report, kind=self.kind))
            entry = _Entry(Watched(weights, self._forget), sizes, threads, program)
            self._entries = (entry, *self._entries)[: SETS * self.options.kept]
            return program

    def _drop(self, entry: _Entry) -> None:
        self._entries = tuple(one for one in self._entries if one is not entry)

    def _forget(self) -> None:
        """Drop the programs of weights that are no more."""
        self._entries = tuple(one for one in self._entries if one.weights.alive)


def _placeholders(module: Any) -> list[Any]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _picking(places: Sequence[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that takes these from a list."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda given: tuple(given[k] for k in places)


def _sizes(given: Sequence[Any]) -> tuple[Any, ...]:
    return tuple((one.shape, one.stride()) if isinstance(one, torch.Tensor) else one for one in given)
