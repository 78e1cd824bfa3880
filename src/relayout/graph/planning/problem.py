"""What the planner is asked: operations with options, values between them, and what conversions cost.

Nothing here knows tensors. A format is any label that can be hashed, a cost is a number of seconds, and an
operation is a list of options: *read these values in these formats, write those in those, at this cost*.

>>> conv = Operation("conv", ("x",), ("y",), (
...     Option("plain", ("nchw",), ("nchw",), 9e-6),
...     Option("blocked", ("nChw8c",), ("nChw8c",), 2e-6),
... ))
>>> problem = Problem(
...     operations=(conv,),
...     conversions={("x", "nchw", "nChw8c"): 1e-6, ("y", "nChw8c", "nchw"): 1e-6},
...     sources={"x": {"nchw"}},
...     pins={"y": "nchw"},
... )
>>> problem.conversion("x", "nchw", "nChw8c"), problem.conversion("x", "nChw8c", "nchw")
(1e-06, inf)

Three rules tell how formats of a value count:

* A value is written once, in the format of its writer's option (or given in those of `sources`). Copies in
  other formats are made by conversions; each is paid once, and all readers share it.
* A copy can be the source of another conversion: A to B to C may cost less than A to C. Whether B may be a
  format that nobody reads is the problem's to say (`through`).
* `pins` say in which format a value has to exist in the end, as outputs of a network do; `forced` say that a
  value is read in this format only, as a user may demand.

A constant is packed ahead of time for nothing: it is given in every format that somebody reads. An input
whose format may be chosen is an operation without inputs whose options cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import cache, cached_property
from typing import TYPE_CHECKING, TypeAlias

from relayout.errors import LayoutError, counted
from relayout.records import dataclass, field, replace

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Conversions", "Format", "Infeasible", "Operation", "Option", "Problem", "Use"]

Format: TypeAlias = Hashable
Conversions: TypeAlias = (
    "Mapping[tuple[str, Format, Format], float | None] | Callable[[str, Format, Format], float | None]"
)


class Infeasible(LayoutError):
    """No choice of formats is possible; the message names an operation and a value where it fails."""


@dataclass(frozen=True)
class Option:
    """One way to run an operation.

    Attributes
    ----------
    name : str
        For those who read the plan.
    inputs, outputs : tuple of format
        One for each value that the operation reads, and for each that it writes.
    cost : float
        Seconds.
    """

    name: str
    inputs: tuple[Format, ...]
    outputs: tuple[Format, ...]
    cost: float


@dataclass(frozen=True)
class Operation:
    """What is run in one of several ways.

    Attributes
    ----------
    name : str
        Unique in its problem.
    inputs, outputs : tuple of str
        Names of values. A value may be read twice.
    options : tuple of Option
        What is not possible is not there.
    intensive : bool
        Whether it computes much for each element, as convolutions and matrix products do. Only the greedy
        baseline asks for it.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    options: tuple[Option, ...]
    intensive: bool = False


@dataclass(frozen=True)
class Use:
    """Who writes and who reads a value, and the formats that it can have.

    Attributes
    ----------
    value : str
    writer : tuple of int, or None
        Index of the operation, and which of its outputs; None for values that are given.
    given : tuple of format
        The formats in which it is given.
    readers : tuple of int
        Indices of operations, each once, ascending.
    pin : format or None
        The format in which it must exist in the end.
    formats : tuple of format
        Those in which it is read or pinned, then the others. A conversion may pass through any of them.
    wanted : int
        How many of them are read or pinned.
    """

    value: str
    writer: tuple[int, int] | None
    given: tuple[Format, ...]
    readers: tuple[int, ...]
    pin: Format | None
    formats: tuple[Format, ...]
    wanted: int


@dataclass(frozen=True, eq=False)
class Problem:
    """Operations whose formats are to be chosen.

    Attributes
    ----------
    operations : tuple of Operation
        Each behind those whose results it reads.
    conversions : mapping or callable
        ``(value, src, dst)`` to seconds; None, or no entry, where there is no such conversion. A mapping may
        have formats that nobody reads or writes: conversions pass through them where that is cheaper.
    pins : mapping of str to format
        Formats in which values have to exist in the end, beside others.
    sources : mapping of str to collection of formats
        The values that no operation writes. They exist in all of these formats.
    forced : mapping of str to format
        Values that are read in this format only.
    through : bool
        Whether conversions may pass through formats that nobody reads.

    Raises
    ------
    LayoutError
        Where names are not unique or unknown, the order is wrong, an option has another number of formats
        than its operation has values, or a cost is no number.
    """

    operations: tuple[Operation, ...]
    conversions: Conversions
    pins: Mapping[str, Format] = field(default_factory=dict)
    sources: Mapping[str, Collection[Format]] = field(default_factory=dict)
    forced: Mapping[str, Format] = field(default_factory=dict)
    through: bool = True

    def conversion(self, value: str, src: Format, dst: Format) -> float:
        """What it costs to make ``dst`` out of ``src``: 0 where both are one, infinite where it can't be."""
        if src == dst:
            return 0.0
        cost = self._price((value, src, dst))
        if cost is None:
            return math.inf
        if not cost >= 0:
            raise LayoutError(
                f"value {value!r}: the conversion of {src} to {dst} costs {cost}, not 0 or more"
            )
        return float(cost)

    def possible(self, operation: Operation) -> list[int]:
        """Indices of the options that what is forced leaves, without those that another one outdoes."""
        best: dict[tuple[tuple[Format, ...], tuple[Format, ...]], int] = {}
        forced = self.forced
        demanded = [(i, forced[v]) for i, v in enumerate(operation.inputs) if v in forced] if forced else ()
        for index, option in enumerate(operation.options):
            if any(option.inputs[i] != format for i, format in demanded):
                continue
            key = option.inputs, option.outputs
            other = best.setdefault(key, index)
            if option.cost < operation.options[other].cost:
                best[key] = index
        return sorted(best.values())

    @cached_property
    def _price(self) -> Callable[[tuple[str, Format, Format]], float | None]:
        """What conversions cost, by one key; a callable is asked once for each."""
        known = self.conversions
        return known.get if isinstance(known, Mapping) else cache(lambda key: known(*key))

    @cached_property
    def uses(self) -> Mapping[str, Use]:
        """Who writes and reads each value: in the order of writing, what is given first."""
        return _uses(self)

    def replaced(self, **changes: object) -> Self:
        """The same problem with some attributes replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def without(self, value: str, dst: Format) -> Self:
        """The same problem where no conversion makes ``dst`` of a value."""
        known = self.conversions
        if isinstance(known, Mapping):
            return self.replaced(
                conversions={key: c for key, c in known.items() if key[0] != value or key[2] != dst}
            )

        def conversions(name: str, src: Format, target: Format) -> float | None:
            return None if name == value and target == dst else self._price((name, src, target))

        return self.replaced(conversions=conversions)


def _uses(problem: Problem) -> dict[str, Use]:
    writers, readers = _checked(problem)
    passed: dict[str, set[Format]] = {}
    if problem.through and isinstance(problem.conversions, Mapping):
        for value, src, dst in problem.conversions:
            several = passed.get(value)
            if several is None:
                passed[value] = {src, dst}
            else:
                several.add(src)
                several.add(dst)
    found = {}
    for value, writer in writers.items():
        formats: dict[Format, None] = {}  # a set in the order of first appearance
        for index in readers[value]:
            operation = problem.operations[index]
            places = [i for i, name in enumerate(operation.inputs) if name == value]
            for option in operation.options:
                for place in places:
                    formats[option.inputs[place]] = None
        if value in problem.forced:
            formats = {f: None for f in formats if f == problem.forced[value]}
        pin = problem.pins.get(value)
        if pin is not None:
            formats[pin] = None
        wanted = len(formats)
        given: tuple[Format, ...] = ()
        if writer is None:
            given = tuple(sorted(problem.sources[value], key=_order))
            formats |= dict.fromkeys(given)
        else:
            operation = problem.operations[writer[0]]
            formats |= {option.outputs[writer[1]]: None for option in operation.options}
        others = passed.get(value, set()) - formats.keys()
        formats |= dict.fromkeys(sorted(others, key=_order))
        found[value] = Use(value, writer, given, tuple(readers[value]), pin, tuple(formats), wanted)
    return found


def _order(format: Format) -> tuple[str, str]:
    """Sets come in any order: what is decided must not depend on it."""
    return type(format).__name__, repr(format)


def _checked(problem: Problem) -> tuple[dict[str, tuple[int, int] | None], dict[str, list[int]]]:
    """The writer and the readers of each value."""
    writers: dict[str, tuple[int, int] | None] = dict.fromkeys(sorted(problem.sources))
    readers: dict[str, list[int]] = {value: [] for value in writers}
    names = set()
    for value, given in problem.sources.items():
        if isinstance(given, str) or not given:
            raise LayoutError(f"value {value!r} is given in formats {given!r}: that has to be a set of them")
    for index, operation in enumerate(problem.operations):
        name = operation.name
        if name in names:
            raise LayoutError(f"there are two operations {name!r}: names have to be unique")
        names.add(name)
        if not operation.options:
            raise Infeasible(f"operation {name!r}, which {_written(operation)}, has no options")
        for value in operation.inputs:
            if value not in writers:
                raise LayoutError(
                    f"operation {name!r} reads value {value!r}, which nothing before it writes, and which is "
                    "not among the sources"
                )
            if not readers[value] or readers[value][-1] != index:
                readers[value].append(index)
        for place, value in enumerate(operation.outputs):
            if value in writers:
                raise LayoutError(f"operation {name!r} writes value {value!r}, which there is already")
            writers[value], readers[value] = (index, place), []
        counts = len(operation.inputs), len(operation.outputs)
        for option in operation.options:
            if (len(option.inputs), len(option.outputs)) != counts:
                raise LayoutError(
                    f"operation {name!r} has {counted(counts[0], 'input')} and "
                    f"{counted(counts[1], 'output')}, its option "
                    f"{option.name!r} formats for {len(option.inputs)} and {len(option.outputs)}"
                )
            if not math.isfinite(option.cost):
                raise LayoutError(f"operation {name!r}: the option {option.name!r} costs {option.cost}")
    for what, of in (("pinned", problem.pins), ("forced", problem.forced)):
        for value in of:
            if value not in writers:
                raise LayoutError(f"value {value!r} is {what} to {of[value]}, and there is no such value")
    return writers, readers


def _written(operation: Operation) -> str:
    if operation.outputs:
        return f"writes value {operation.outputs[0]!r}"
    return f"reads value {operation.inputs[0]!r}" if operation.inputs else "reads and writes nothing"
