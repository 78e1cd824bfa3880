"""A network, compiled: called with arrays, answers with arrays.

What makes one is :mod:`relayout.graph.compiling`, or a file (:mod:`relayout.graph.saving`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from relayout.errors import LayoutError
from relayout.forking import lock
from relayout.graph.arrays import checked_inputs, from_tensor, owned, stored, written
from relayout.reorder.arguments import bound

if TYPE_CHECKING:
    from pathlib import Path

    from relayout.graph.graph import Graph, Value
    from relayout.graph.plan import Plan
    from relayout.primitives.runner import Layer
    from relayout.primitives.runner import Run as Steps
    from relayout.runtime.tuning import Choice

__all__ = ["Compiled", "MemoryUse", "Run"]


class Compiled(NamedTuple):
    """The part of a network that is decided before it runs."""

    steps: Steps
    inputs: tuple[str, ...]
    """The inputs of the network that it reads."""
    outputs: tuple[Value, ...]
    """What it makes: the outputs of the network, or what the rest reads."""


class MemoryUse(NamedTuple):
    """The memory of a run, in bytes."""

    weights: int
    """Constants, in the formats in which they are used; all calls share them."""
    values: int
    """What values and scratch take that are alive at once, most of all; each call under way has its own."""
    values_apart: int
    """What they would take if none shared a place with another one."""

    @property
    def total(self) -> int:
        """Of a run that is called by one thread at a time; inputs and outputs are the caller's."""
        return self.weights + self.values


class Run:
    """A network that is ready to run.

    Parameters
    ----------
    inputs, outputs : tuple of Value
        What it takes and returns.
    compiled : Compiled, optional
        The part that is decided before it runs.
    tail : Graph, optional
        What definitions do behind that; everything, where nothing is compiled.
    plan : Plan, optional
        How the first part was planned.
    why : str
        Why not all of the network is planned.

    Attributes
    ----------
    inputs, outputs
        What it takes and returns, each with name, dims and data type.
    why : str
        Why not all of the network is planned.
    note : str
        What a user should know of how it was loaded; empty: nothing.
    seconds : mapping of str to float
        How long it took to plan and to compile.
    defaults : mapping of str to Value or None
        Inputs that have a value in the model, and may be given another by name: the network is compiled anew
        for it (:mod:`relayout.graph.defaults`).

    Examples
    --------
    >>> import numpy as np
    >>> from relayout.graph import Graph, Node, Value
    >>> graph = Graph((Value("x", (2, 3), np.dtype("f4")),), ("y",), (Node("Relu", ("x",), ("y",)),))
    >>> run = graph.compile()
    >>> run
    Run(x f32 2x3 -> y f32 2x3)
    >>> (y,) = run(np.array([[-1, 2, -3], [4, -5, 6]], "f4"))
    >>> y.tolist(), run.why
    ([[0.0, 2.0, 0.0], [4.0, 0.0, 6.0]], '')
    """

    seconds: Mapping[str, float] = {"plan": 0.0, "compile": 0.0}
    note = ""
    defaults: Mapping[str, Value | None] = {}
    with_others: Callable[[Mapping[str, Any]], Run] | None = None
    """What makes the run with other values in the place of defaults."""

    def __init__(
        self,
        inputs: tuple[Value, ...],
        outputs: tuple[Value, ...],
        compiled: Compiled | None = None,
        tail: Graph | None = None,
        plan: Plan | None = None,
        why: str = "",
    ) -> None:
        self.inputs, self.outputs, self.why = inputs, outputs, why
        self.compiled, self.tail = compiled, tail
        self._plan: Plan | Callable[[], Plan] | None = plan

    @property
    def plan(self) -> Plan | None:
        """The formats of all values that are decided before the network runs.

        None: there are none, or the run was loaded from a file. A run that was kept is planned when somebody
        asks.
        """
        with lock():
            if callable(self._plan):
                self._plan = self._plan()
            return self._plan

    def planned_by(self, plan: Callable[[], Plan]) -> None:
        """Let a function say how the run was planned, if somebody asks."""
        self._plan = plan

    @property
    def steps(self) -> Steps | None:
        """The kernels; None: definitions are what runs."""
        return None if self.compiled is None else self.compiled.steps

    @property
    def memory(self) -> MemoryUse:
        """The memory that it needs, inputs and outputs apart; nothing is known of what definitions need."""
        if self.steps is None:
            return MemoryUse(0, 0, 0)
        memory = self.steps.memory
        return MemoryUse(self.steps.constant_bytes, memory.peak, memory.total)

    def __call__(self, /, *arrays: Any, out: Any = None, **named: Any) -> tuple[Any, ...]:
        """Run.

        Parameters
        ----------
        *arrays : ndarray, Tensor or torch.Tensor
            The inputs in their order, of the data types that :attr:`inputs` say; any strides and formats.
        out : sequence of ndarray, optional
            Where to write the outputs, one array for each, of its dims and data type; one output may be given
            its array alone. If one does not fit, none is written.
        **named : ndarray, Tensor or torch.Tensor
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
        others = {name: named.pop(name) for name in self.defaults if name in named}
        if others and self.with_others is not None:
            return self.with_others(others)(*arrays, out=out, **named)
        given = self._bound(arrays, named)
        made = self._run(given)
        return made if out is None else written(self.outputs, made, out)

    def profile(self, *arrays: Any, repeat: int = 3, **named: Any) -> tuple[Layer, ...]:
        """The steps with their times."""
        if self.steps is None:
            raise LayoutError(f"definitions are what runs, and are not timed one by one: {self.why}")
        return self.steps.profile(*map(stored, self._read(self._bound(arrays, named))), repeat=repeat)

    def save(self, path: str | Path) -> None:
        """Write it to a file, from which :func:`relayout.load` makes a run without planning anything.

        The file has the primitives as text, their formats chosen, and the weights as they are packed; no
        code. See :mod:`relayout.graph.saving`.

        Raises
        ------
        LayoutError
            Sizes of inputs are open; or a step was given what has no text.
        """
        with lock():
            from relayout.graph.saving import save
        save(self, path)

    def __copy__(self) -> Run:
        """Itself: nothing about a run changes."""
        return self

    def __deepcopy__(self, known: Any) -> Run:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What :meth:`save` writes, without code: another process compiles nothing that is on disk."""
        with lock():
            from relayout.graph.saving import dumped, restored
        return restored, (dumped(self),), {"defaults": self.defaults, "with_others": self.with_others}

    def tune(self, progress: Callable[[str, Choice | None], object] | None = None) -> None:
        """Find the fastest schedule of each layer by measuring it alone; later processes know it, too.

        Parameters
        ----------
        progress : callable, optional
            Called after each layer with its name, and what is known of its problem; once for each of these.
        """
        if self.steps is not None:
            self.steps.tune(progress)

    def _run(self, given: list[Any]) -> tuple[Any, ...]:
        if self.compiled is None:
            return self._by_definition(given)
        found = self.compiled.steps(*map(stored, self._read(given)))
        several = found if isinstance(found, tuple) else (found,)
        values = self.compiled.outputs
        made = tuple(from_tensor(one, value.dtype) for one, value in zip(several, values, strict=True))
        if self.tail is None:
            return made
        known = dict(zip((value.name for value in self.inputs), given, strict=True))
        known |= zip((value.name for value in values), made, strict=True)
        return self._by_definition([known[value.name] for value in self.tail.inputs])

    def _by_definition(self, given: list[Any]) -> tuple[Any, ...]:
        with lock():
            from relayout.graph.evaluate import evaluate
        assert self.tail is not None
        return owned(evaluate(self.tail, *given), given)

    def _read(self, given: list[Any]) -> list[Any]:
        """Those of the inputs that the planned part takes."""
        assert self.compiled is not None
        if len(self.compiled.inputs) == len(self.inputs):
            return given
        read = set(self.compiled.inputs)
        return [array for value, array in zip(self.inputs, given, strict=True) if value.name in read]

    def _bound(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        given = bound([value.name for value in self.inputs], arrays, named, "the network")
        return checked_inputs(self.inputs, given)

    def __repr__(self) -> str:
        return f"Run({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"
