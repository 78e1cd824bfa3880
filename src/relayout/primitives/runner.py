"""A compiled sequence: called with tensors, and asked what it does and how long that takes.

One call of a :class:`Run` gives the interpreter's lock away once, for all of its layers. It may be called
from several Python threads at the same time: each call takes an arena and an image for itself, from those
that earlier calls have left, or new ones. So as much memory is used as calls were ever under way at once (at
most :data:`KEPT` are kept); and since the native threads work for one region at a time, concurrent calls do
much of their work alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.exchange import pytorch
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import whole_number
from relayout.primitives.memory import Memory
from relayout.primitives.results import by_name
from relayout.primitives.schedule import ARENA, IMAGE, OTHERS, Schedule, Segment, linked
from relayout.primitives.storages import Item, Storage
from relayout.primitives.values import Value, signature
from relayout.processors import limited
from relayout.records import dataclass, field, replace
from relayout.reorder.arguments import Argument, bound, check_apart
from relayout.runtime.driver import ROW, walk
from relayout.tensor import Tensor, address, aligned, allocate, located, on_large_pages

if TYPE_CHECKING:
    from relayout.runtime.tuning import Choice

__all__ = ["KEPT", "Layer", "Run"]

KEPT = 4  # arenas that are kept for the next calls
WORD = 8  # bytes


@dataclass(frozen=True)
class Layer:
    """One step of a run.

    Attributes
    ----------
    name, kind : str
        What it is called, and what it does.
    descs : mapping of str to MemoryDesc
        The descriptors of its inputs and outputs.
    implementation : str
        How it is done.
    flops, bytes : int
        What it computes; what it reads and writes at least.
    in_place : mapping of str to str
        For an output that is written over an argument, that argument.
    seconds : float or None
        How long it takes; None if nobody has measured.
    """

    name: str
    kind: str
    descs: Mapping[str, MemoryDesc]
    implementation: str
    flops: int
    bytes: int
    in_place: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None


class _Workplace:
    """What one call needs for itself."""

    def __init__(self, schedule: Schedule) -> None:
        (self.arena,) = on_large_pages([schedule.memory.peak])
        self.words = aligned(WORD * len(schedule.bases)).view(np.int64)
        self.image = address(self.words)
        others = len(schedule.inputs) + len(schedule.outputs)
        self.known = np.array([0] * (OTHERS + others) + schedule.addresses(), np.int64)
        self.known[IMAGE], self.known[ARENA] = self.image, address(self.arena)
        self.others: list[int] | None = None
        self.faults = [
            (self.arena[at : at + 2 * WORD].view(np.int64), schedule.items[k].name, fault)
            for k, at, fault in schedule.faults
        ]

    def check(self) -> None:
        """Look whether a layer has found something wrong."""
        for words, name, fault in self.faults:
            if words[0]:
                fault.check(int(words[0]), int(words[1]), name)

    def locate(self, schedule: Schedule, others: list[int]) -> None:
        """Finish the image for inputs and outputs at these addresses, unless it is."""
        if others != self.others:
            self.known[OTHERS : OTHERS + len(others)] = others
            np.take(self.known, schedule.bases, out=self.words, mode="clip")
            self.words += schedule.numbers
            self.others = others


class Run:
    """What :meth:`relayout.primitives.sequence.Sequence.compile` returns.

    It may be pickled and copied, constants included.

    Attributes
    ----------
    memory : Memory
        How well values share memory.
    constant_bytes : int
        Bytes of all constants.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._inputs = {value.name: Argument(value.name, value.desc) for value in schedule.inputs}
        several = len(schedule.outputs) > 1
        self._outputs = {
            f"out[{k}]" if several else "out": Argument(value.name, value.desc)
            for k, value in enumerate(schedule.outputs)
        }
        self._free: list[_Workplace] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """What it was made of. Another process, or a copy, has kernels and addresses of its own."""
        made = self._schedule
        return _again, (made.inputs, made.outputs, made.items, made.constants, made.asked)

    def __repr__(self) -> str:
        made = self._schedule
        return f"Run({signature(made.inputs, made.outputs, len(made.items))}, threads: {made.threads})"

    @property
    def memory(self) -> Memory:
        """Peak, lower bound and sum of what the arena holds."""
        return self._schedule.memory

    @property
    def constant_bytes(self) -> int:
        """Bytes of all constants, in the formats in which they are used."""
        return sum(data.nbytes for data in self._schedule.constants.values())

    def __call__(self, *given: Any, out: Any = None, **named: Any) -> Any:
        """Run all layers.

        Parameters
        ----------
        *given : Tensor or array_like
            The inputs in their order, in their descriptors; arrays are taken as logical ones.
        out : Tensor or torch.Tensor, or sequence of them, optional
            Where to write; without it new tensors.
        **named : Tensor or array_like
            Inputs by name.

        Returns
        -------
        Tensor, or tuple of Tensor
            The output, or a tuple of several.

        Raises
        ------
        LayoutError
            A tensor is missing, of another descriptor, in too short a buffer, read-only, or overlaps another
            one; nothing has been written then.
        """
        wanted = by_name("the sequence", tuple(self._outputs), out)
        inputs, outputs = self._bound(given, wanted, named)
        self._run(inputs, outputs)
        for one in wanted.values():
            if pytorch.is_tensor(one):
                pytorch.written(one)
        results = [
            wanted[name] if isinstance(wanted.get(name), Tensor) else made
            for name, made in zip(self._outputs, outputs, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    @property
    def native(self) -> bool:
        """Whether all of it is kernels, so that :meth:`at` can run it."""
        return not any(segment.in_python for segment in self._schedule.segments)

    def at(self, addresses: Several[int]) -> None:
        """Run all layers for inputs and outputs at these addresses, nothing of which is checked.

        For callers who know that each has the bytes of its descriptor, that outputs lie apart from all else,
        and that all of them stay alive meanwhile; and only where everything is :attr:`native`.

        Raises
        ------
        LayoutError
            A layer has found something wrong in the data, such as an index that names no element.
        """
        self._walk(list(addresses), (), ())

    def layers(self) -> tuple[Layer, ...]:
        """What is done, in order."""
        return tuple(
            Layer(
                item.name,
                item.primitive.kind,
                item.primitive.descs,
                item.implementation,
                item.primitive.flops,
                item.primitive.bytes,
                item.in_place,
            )
            for item in self._schedule.items
        )

    def tune(self, progress: Callable[[str, Choice | None], object] | None = None) -> None:
        """Find the fastest schedule of each layer by measuring it alone; see :meth:`.Primitive.tune`.

        The run takes what was found, and so do later runs and processes.

        Parameters
        ----------
        progress : callable, optional
            Called after each layer with its name, and what is known of its problem. A layer of several
            products has several problems, and is told of once for each.
        """
        made = self._schedule
        with limited(made.asked):
            for item in made.items:
                item.primitive.tune()
                if progress is not None:
                    for found in item.primitive.choices() or (None,):
                        progress(item.name, found)
            made = linked(made.inputs, made.outputs, made.items, made.constants, made.asked, anew=True)
        self._schedule = made
        self._free = []

    def profile(self, *given: Any, repeat: int = 3, **named: Any) -> tuple[Layer, ...]:
        """The layers with their times: medians of so many runs, after one that does not count.

        A time contains waiting for the slowest thread, and not the 50 nanoseconds of taking it.

        Raises
        ------
        LayoutError
            A tensor is not as in a call, or ``repeat`` is less than 1.
        """
        if whole_number(repeat, "profile: repeat") < 1:
            raise LayoutError(f"profile: repeat must be 1 or more, got {repeat}")
        inputs, outputs = self._bound(given, {}, named)
        samples: list[list[float]] = [[] for _ in self._schedule.items]
        for turn in range(repeat + 1):
            taken = self._run(inputs, outputs, timed=True)
            for times, seconds in zip(samples, taken, strict=True):
                if turn:
                    times.append(seconds)
        layers = zip(self.layers(), samples, strict=True)
        return tuple(replace(layer, seconds=median(times)) for layer, times in layers)

    # -- workings -------------------------------------------------------------------------------------------

    def _bound(
        self, given: Several[Any], wanted: Mapping[str, Any], named: Mapping[str, Any]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors of all inputs and outputs, checked."""
        tensors = bound([value.name for value in self._schedule.inputs], given, named, "the sequence")
        inputs = [one.read(data) for one, data in zip(self._inputs.values(), tensors, strict=True)]
        outputs = [
            one.written(wanted[name]) if name in wanted else Tensor(one.desc, allocate(one.desc))
            for name, one in self._outputs.items()
        ]
        if wanted:
            both = self._inputs | self._outputs
            places = {name: located(one)[1] for name, one in zip(both, (*inputs, *outputs), strict=True)}
            check_apart(both, places, tuple(self._outputs), {}, "the sequence")
        return inputs, outputs

    def _run(self, inputs: list[Tensor], outputs: list[Tensor], timed: bool = False) -> list[float]:
        """Run everything once; the seconds of each item, if they are wanted."""
        return self._walk([located(one)[1] for one in (*inputs, *outputs)], inputs, outputs, timed)

    def _walk(
        self, addresses: list[int], inputs: Several[Tensor], outputs: Several[Tensor], timed: bool = False
    ) -> list[float]:
        schedule = self._schedule
        try:
            place = self._free.pop()
        except IndexError:
            place = _Workplace(schedule)
        try:
            place.locate(schedule, addresses)
            seconds: list[float] = []
            for words, _, _ in place.faults:
                words[0] = 0
            for segment in schedule.segments:
                stamps = np.zeros((len(segment.rows) + 1, 2), np.int64) if timed else None
                begin = time.perf_counter()
                if segment.in_python:
                    self._in_python(segment.items[0], place, inputs, outputs)
                    seconds.append(time.perf_counter() - begin)
                    continue
                first = place.image + WORD * ROW * segment.rows.start
                walk(first, len(segment.rows), schedule.threads, stamps)
                if stamps is not None:
                    seconds += _times(segment, stamps)
            place.check()
            return seconds
        except LayoutError:  # perhaps of a definition that was given what something wrong has left
            place.check()
            raise
        finally:
            if len(self._free) < KEPT:
                self._free.append(place)

    def _in_python(
        self, item: Item, place: _Workplace, inputs: Several[Tensor], outputs: Several[Tensor]
    ) -> None:
        """Call a primitive that has no program."""

        def of(key: str, storage: Storage) -> Tensor:
            if storage.where == "arena":
                data = place.arena[storage.number : storage.number + storage.size]
            elif storage.where == "constant":
                data = self._schedule.constants[storage.number]
            else:
                data = located((inputs if storage.where == "input" else outputs)[storage.number])[0]
            return Tensor(item.primitive.descs[key], data.reshape(-1).view(np.uint8))

        tensors = {key: of(key, storage) for key, storage in item.storages.items()}
        made = item.primitive
        made(*(tensors[key] for key in made.inputs), out={key: tensors[key] for key in made.outputs})


def _again(
    inputs: list[Value],
    outputs: list[Value],
    items: list[Item],
    constants: Mapping[int, NDArray[np.uint8]],
    asked: int | None,
) -> Run:
    """A run that was pickled or copied."""
    placed = dict(zip(constants, on_large_pages([data.nbytes for data in constants.values()]), strict=True))
    for number, data in constants.items():
        placed[number][:] = data
    return Run(linked(inputs, outputs, items, placed, asked))


def _times(segment: Segment, stamps: NDArray[np.int64]) -> list[float]:
    """The seconds of the items of a segment."""
    moments = (stamps[:, 0] - stamps[0, 0]) + stamps[:, 1] / 1e9
    ends = [item.rows.stop - segment.rows.start for item in segment.items]
    return [float(seconds) for seconds in np.diff(moments[[0, *ends]])]
