"""The sequence of a graph whose formats are chosen.

For each node the way that was chosen is asked to append itself, at a :class:`Site`: there it finds what it
reads, in the formats that it wants. Conversions come in between where a value is not there in a format yet,
each once.

A concatenation owns a place, and whoever makes a part of it writes there at once::

    conv1 ----> [ part 0 |        |        ]
    conv2 ----> [        | part 1 |        ]      Concat: nothing is left to do
    conv3 ----> [        |        | part 2 ]

The part may be a view of what they make, such as a transpose. That may be nested. And where one concatenation
has just the first parts of another one, as in a DenseNet, it is the beginning of the other's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.graph.arrays import stored
from relayout.graph.graph import Graph
from relayout.graph.lowering.case import Case, Operand, elements_of, label, row_major, unfused
from relayout.graph.lowering.ways import Way
from relayout.graph.lowering.wishes import VIEWS, seen_back
from relayout.layout import views
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.primitives.primitive import Primitive
from relayout.primitives.reorder import Reorder
from relayout.primitives.sequence import Sequence as Steps
from relayout.primitives.values import Value, origin
from relayout.records import dataclass, field
from relayout.reorder import reorder

__all__ = ["Chosen", "Site", "emitted"]


@dataclass(frozen=True)
class Chosen:
    """A node with the way in which it is done."""

    case: Case
    way: Way


def emitted(
    graph: Graph,
    chosen: Sequence[Chosen],
    states: Mapping[str, MemoryDesc] | None = None,
    replaced: Mapping[str, str] | None = None,
) -> Steps:
    """The sequence of a graph: inputs and outputs are row-major, as arrays of NumPy are.

    Inputs that are ``states`` are in the formats that these have; the values that have ``replaced`` them, a
    state for each, are written over them. What reads a state has to stand before.
    """
    return _Emission(graph, chosen, states or {}, replaced or {}).sequence


@dataclass
class _Join:
    """A concatenation: where it lies, and its parts."""

    place: int
    """Of the node among those chosen."""
    case: Case
    way: Way
    axis: int
    whole: Value | None = None
    part_of: tuple[_Join, int] | None = None
    """The concatenation whose memory it is a part of, and from which index on."""
    starts: dict[str, int] = field(default_factory=dict)


class _Emission:
    def __init__(
        self,
        graph: Graph,
        chosen: Sequence[Chosen],
        states: Mapping[str, MemoryDesc],
        replaced: Mapping[str, str],
    ) -> None:
        self.graph, self.sequence = graph, Steps()
        self.states: dict[str, Value] = {}  # the memory of each, by the name of what is written over it
        self.values: dict[str, dict[MemoryDesc, Value]] = {}
        self.fresh: set[str] = set()  # values with memory of their own, which a sum may be written over
        self.placed: dict[str, _Join] = {}
        self.behind: dict[str, Case] = {}  # the views of values that lie where the views have their places
        self.joins: dict[int, _Join] = {}
        self._plan_places(chosen)
        inputs: dict[str, Value] = {}
        for value in graph.inputs:
            desc = states.get(value.name) or row_major(value.dims, _dtype(value.dtype))  # type: ignore[arg-type]
            inputs[value.name] = self.sequence.input(value.name, desc)
            self._note(value.name, desc, inputs[value.name])
        for (
            name,
            state,
        ) in replaced.items():  # not what is known of the state: that may be a copy in its place
            self.states[name] = inputs[state]
        for k, one in enumerate(chosen):
            self._node(k, one)
        for name in graph.results:
            self._output(name)

    def _node(self, k: int, one: Chosen) -> None:
        case, way = one.case, one.way
        made = way.make(Site(self, case, way, self.joins.get(k)))
        several = made if isinstance(made, tuple) else (made,)
        for operand, desc, value in zip(case.outputs, way.outputs, several, strict=True):
            if not operand.name:
                continue
            self._note(operand.name, desc, value)
            placed = operand.name in self.placed or operand.name in self.behind or operand.name in self.states
            if not way.view and not placed:
                self.fresh.add(operand.name)

    def _note(self, name: str, desc: MemoryDesc, value: Value) -> None:
        """Remember a value in its format; what belongs into a concatenation is copied there now."""
        piece = self.piece(name)
        self.values[name] = {desc: value}
        if piece is not None and (name in self.placed or name in self.states):
            if not self.lies_in(value, piece):
                copy = Reorder(value.desc, piece.desc)
                self.sequence.add(copy, value, into={"dst": piece}, name=f"{name}.place")
            known = {label(piece.desc): piece}
            self.values[name] = known if desc in known else {desc: value, **known}

    def _output(self, name: str) -> None:
        if name in self.graph.constants:
            data = self.graph.constants[name]
            desc = row_major(data.shape, _dtype(data.dtype))
            self.sequence.output(self.sequence.constant(stored(data), name), desc)
            return
        known = self.values[name]
        first = next(iter(known.values()))
        desc = row_major(first.desc.dims, first.desc.dtype.name)
        self.sequence.output(self.got(name, desc), desc)

    def got(self, name: str, desc: MemoryDesc) -> Value:
        """A value in a format, converted if need be."""
        known = self.values[name]
        found = known.get(desc)
        if found is None:
            found = known[desc] = self.sequence.reorder(next(iter(known.values())), desc)
        return found

    # -- places ---------------------------------------------------------------------------------------------

    def _plan_places(self, chosen: Sequence[Chosen]) -> None:
        """Decide which values are written into which concatenation: the last ones first, they are largest."""
        for k in reversed(range(len(chosen))):
            case, way = chosen[k].case, chosen[k].way
            if (
                way.view
                and case.operator in VIEWS
                and (case.out.name in self.placed.keys() | self.behind.keys())
            ):
                source = case.inputs[0]
                if source is not None and source.name not in self.placed:
                    self.behind.setdefault(source.name, case)
            if way.name != "concat":
                continue
            axis = int(case.attributes["axis"]) % len(case.out.dims)
            join = _Join(k, case, way, axis)
            self.joins[k] = join
            start = 0
            for one in case.inputs:
                assert one is not None
                join.starts[one.name] = start
                start += one.dims[axis]
            join.part_of = self._around(join)
            for one in case.inputs if join.part_of is None or case.out.name in self.placed else ():
                assert one is not None
                if one.data is None and one.name not in self.placed:
                    self.placed[one.name] = join

    def _around(self, join: _Join) -> tuple[_Join, int] | None:
        """The concatenation in whose memory all parts lie side by side, or where the result has its place."""
        out = join.case.out
        other = self.placed.get(out.name)
        if other is not None:
            return other, other.starts[out.name]
        found = [self.placed.get(one.name) for one in join.case.inputs if one is not None]
        if len(join.starts) < len(found):  # a part that comes twice lies in one place
            return None
        first = found[0]
        if first is None or any(one is not first for one in found) or first.axis != join.axis:
            return None
        begin = first.starts[next(one.name for one in join.case.inputs if one is not None)]
        same = all(first.starts[name] == begin + start for name, start in join.starts.items())
        alike = first.way.outputs[0].tag == join.way.outputs[0].tag
        return (first, begin) if same and alike else None

    def whole(self, join: _Join) -> Value:
        """The memory of a concatenation."""
        if join.whole is None:
            desc = join.way.outputs[0]
            if join.part_of is None:
                join.whole = self.sequence.place(desc, join.case.out.name)
            else:
                other, start = join.part_of
                join.whole = self._part(other, desc.dims, start, other.axis)
        return join.whole

    def _part(self, join: _Join, dims: tuple[int, ...], start: int, axis: int) -> Value:
        whole = self.whole(join)
        offsets = [start if k == axis else 0 for k in range(len(dims))]
        return self.sequence.view(whole, whole.desc.submemory(dims, offsets))

    def piece(self, name: str) -> Value | None:
        """The place of a value in a concatenation, or that of the state which it replaces."""
        state = self.states.get(name)
        if state is not None:
            return self.sequence.view(state, state.desc)
        join = self.placed.get(name)
        if join is None:
            return self._piece_behind(name)
        dims = next(one.dims for one in join.case.inputs if one is not None and one.name == name)
        return self._part(join, dims, join.starts[name], join.axis)

    def _piece_behind(self, name: str) -> Value | None:
        """The place of a value of which a view has one."""
        case = self.behind.get(name)
        piece = None if case is None else self.piece(case.out.name)
        if case is None or piece is None or case.inputs[0] is None:
            return None
        dims, desc = case.inputs[0].dims, piece.desc
        try:
            layout = unfused(seen_back(case.operator, case.attributes, desc.layout, dims))
        except LayoutError:
            return None
        return self.sequence.view(piece, MemoryDesc(dims, desc.dtype, layout))

    def lies_in(self, value: Value, piece: Value) -> bool:
        """Whether a value is this piece of memory."""
        bases = self.sequence.bases
        return origin(value, bases) is origin(piece, bases) and value.desc == piece.desc

    def overwrites(
        self, made: Primitive, given: Sequence[tuple[str, Any]], into: Mapping[str, Value]
    ) -> bool:
        """Whether a primitive would write over a state while it still reads it."""
        bases = self.sequence.bases
        states = [origin(value, bases) for value in self.states.values()]
        read = [(key, origin(one, bases)) for key, one in given if isinstance(one, Value)]
        return any(
            one is origin(place, bases) and one in states and key not in made.in_place.get(output, ())
            for output, place in into.items()
            for key, one in read
        )


class Site:
    """Where a way appends itself to the sequence."""

    def __init__(self, emission: _Emission, case: Case, way: Way, join: _Join | None) -> None:
        self._emission, self.case, self.way, self._join = emission, case, way, join
        self.sequence = emission.sequence

    def value(self, operand: Operand) -> Value:
        """What is read, in the format of the way, or as it comes where that has holes."""
        if operand.data is not None:
            return self.sequence.constant(stored(operand.data), f"{self.case.name}.constant")
        return self._emission.got(operand.name, self.way.inputs[operand.name])

    def constant(self, operand: Operand, desc: MemoryDesc) -> Value:
        """A constant that is kept in a format."""
        assert operand.data is not None
        return self.sequence.constant(reorder(stored(operand.data), desc), f"{self.case.name}.constant")

    def wide(self, operand: Operand) -> Value:
        """A dense operand in f32: as it is, or converted."""
        if operand.data is not None:
            data = stored(operand.data.astype(np.float32))
            return self.sequence.constant(data, f"{self.case.name}.constant")
        value = self.value(operand)
        return self.sequence.reorder(value, MemoryDesc(value.desc.dims, "f32", value.desc.layout))

    def ranked(self, operand: Operand, rank: int) -> Value:
        """The same with so many axes: those in front have size 1."""
        dims = (*([1] * (rank - len(operand.dims))), *operand.dims)
        if operand.data is not None:
            return self.sequence.constant(stored(operand.data.reshape(dims)), f"{self.case.name}.constant")
        return self.reshaped(self.value(operand), dims)

    def target(self, k: int, like: MemoryDesc) -> tuple[MemoryDesc, dict[str, Value] | None]:
        """The descriptor of a result in a format, and the place that it is to be written into."""
        wanted = label(like)
        piece = self._emission.piece(self.case.outputs[k].name)
        if piece is not None and label(piece.desc) == wanted and piece.desc.dtype == wanted.dtype:
            return piece.desc, {"dst": piece}
        return wanted, None

    def add(
        self, made: Primitive, *given: Any, into: Mapping[str, Value] | None = None, **named: Any
    ) -> Value:
        """Append a primitive with one result."""
        if into and self._emission.overwrites(
            made, (*zip(made.inputs, given, strict=False), *named.items()), into
        ):
            into = None
        found: Value = self.sequence.add(made, *given, into=into, name=self.case.name, **named)
        return found

    def add_several(self, made: Primitive, *given: Any, into: Any = None, **named: Any) -> tuple[Value, ...]:
        """Append a primitive with any number of results; ``into`` has places of some, by name."""
        read = (*zip(made.inputs, given, strict=False), *named.items())
        places = {
            name: place
            for name, place in (into or {}).items()
            if not self._emission.overwrites(made, read, {name: place})
        }
        found = self.sequence.add(made, *given, into=places, name=self.case.name, **named)
        return tuple(found) if len(made.outputs) > 1 else (found,)

    def place(self, desc: MemoryDesc) -> Value:
        """Memory that several steps write into."""
        return self.sequence.place(desc, self.case.name)

    def whole(self) -> tuple[Value, list[Value]]:
        """The memory of this concatenation, and the places of its parts."""
        join = self._join
        assert join is not None
        whole, parts, start = self._emission.whole(join), [], 0
        for one in self.case.inputs:
            assert one is not None
            parts.append(self._emission._part(join, one.dims, start, join.axis))
            start += one.dims[join.axis]
        return whole, parts

    def lies_in(self, operand: Operand, piece: Value) -> bool:
        """Whether what is read lies in this piece of memory, in whatever format it is read."""
        known = self._emission.values.get(operand.name, {})
        return any(self._emission.lies_in(value, piece) for value in known.values())

    def ends_here(self, operand: Operand) -> bool:
        """Whether nobody else reads a value, which has memory of its own."""
        return operand.data is None and operand.name in self._emission.fresh and self.case.reads_last(operand)

    def viewed(self, value: Value, see: Callable[[Layout], Layout]) -> Value:
        """A view; of a copy without holes, or a row-major one, where the layout can't say it."""
        copies = value.desc, label(value.desc), row_major(value.desc.dims, value.desc.dtype.name)
        for desc in copies:
            try:
                layout = unfused(see(desc.layout))
            except LayoutError:
                continue
            return self.sequence.view(
                self.sequence.reorder(value, desc), MemoryDesc(layout.dims, desc.dtype, layout)
            )
        raise LayoutError(f"{self.case.name}: {value.desc} can't be seen as is wanted")

    def reshaped(self, value: Value, dims: Sequence[int]) -> Value:
        """The same elements under other dims."""
        return self.viewed(value, lambda layout: views.reshape(layout, tuple(dims)))

    def transposed(self, value: Value, order: Sequence[int]) -> Value:
        """The same elements, axes in another order."""
        return self.viewed(value, lambda layout: views.permute(layout, order))

    def dense(self, value: Value, dims: tuple[int, ...]) -> MemoryDesc:
        """What a value is under other dims."""
        return MemoryDesc(dims, value.desc.dtype, views.reshape(value.desc.layout, dims))


def _dtype(dtype: np.dtype[Any] | None) -> str:
    found = elements_of(dtype)
    if found is None:
        raise LayoutError(f"elements of {dtype} have no memory format")
    return found
