"""From a sequence to machine words: who writes where, and what is called with which addresses.

Three steps, each of which only adds to what the one before it found:

1. *Storages.* Values are given storages: memory of the caller (inputs, outputs), of a constant, or of the
   arena. A result that may be written over an argument, which nobody reads afterwards, shares its storage::

       x  ----> conv1 ----> conv2 ----> conv3 + sum ----> relu in place
        `----------------------------------^
       storage 1    2           3          1 (x dies here)      1

   Where an argument that is written over is still needed, or belongs to the caller, it is copied first.
   A result that the caller gets is not written over a part of something larger, all of which would have to
   lie in the caller's memory.
2. *Places.* All primitives are lowered to programs. The storages of the arena and the scratch of the programs
   get offsets (:mod:`relayout.primitives.memory`); scratch lives for one layer only.
3. *Image.* The calls of all programs are written down as rows for :mod:`relayout.runtime.driver`, as a linker
   writes a program: each word is a number to which the address of something is added once that is known ::

       row       kernel      source      target      operands     parts   threads
       base      0           arena       output 0    the image    0       0
       number    its address 4096        0           1280         8       2

   So the image does not depend on where tensors are; each call of a run adds the bases anew.

A primitive without a program, one that has only a definition, is called from Python; the rows before it and
behind it are a *segment* each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_of
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relayout.dtypes import pack
from relayout.errors import LayoutError
from relayout.exchange.mapped import release
from relayout.layout.layout import Layout, plain
from relayout.ops.checks import alike
from relayout.primitives.memory import Memory, Span, arranged
from relayout.primitives.primitive import Primitive
from relayout.primitives.reorder import Reorder
from relayout.primitives.values import Node, Nodes, Value, origin
from relayout.reorder import reorder
from relayout.runtime import threads as sharing
from relayout.runtime.driver import ROW
from relayout.tensor import Tensor, address, allocate, from_buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.program import Program, Step

__all__ = ["ARENA", "IMAGE", "OTHERS", "Item", "Schedule", "Segment", "Storage", "linked", "scheduled"]

NOTHING, IMAGE, ARENA, OTHERS = range(4)
"""Numbers of bases: 0, the image itself, the arena, and from there on inputs and then outputs."""

WORD = 8  # bytes


@dataclass(eq=False)
class Storage:
    """Memory for one or more values."""

    where: str
    """arena, input, output or constant."""
    number: int = 0
    """Of the input, output or constant value; in the arena the offset."""
    size: int = 0
    """Bytes."""
    first: int = -1
    """The first item that uses it; -1: none yet."""
    last: int = -1


@dataclass
class Item:
    """One primitive that is run."""

    name: str
    primitive: Primitive
    storages: dict[str, Storage]
    """Of inputs and outputs, by name."""
    in_place: Mapping[str, str] = field_of(default_factory=dict)
    """For an output the argument that it is written over."""
    scratch: dict[str, int] = field_of(default_factory=dict)
    """Offsets in the arena."""
    rows: range = range(0)


class Segment(NamedTuple):
    """What is done without a break: the rows of some items, or one item in Python, which has none."""

    items: list[Item]
    rows: range
    in_python: bool = False


@dataclass
class Schedule:
    """A sequence, ready to be run.

    Attributes
    ----------
    inputs, outputs : list of Value
        As in the sequence.
    items : list of Item
        What is run, in order.
    constants : dict of int to ndarray
        The bytes of constant values, by their numbers.
    memory : Memory
        How the arena is used.
    bases, numbers : ndarray of int64
        The image: for each word the number of a base, and what is added to it.
    segments : list of Segment
        What is done.
    asked : int or None
        How many threads may work; None: as many as a process is told to use.
    threads : int
        The most threads that a row asks for.
    programs : list of Program or None
        Those of the items; the image has the addresses of their kernels and constants, so they are kept.
    """

    inputs: list[Value]
    outputs: list[Value]
    items: list[Item]
    constants: dict[int, NDArray[np.uint8]]
    memory: Memory
    bases: NDArray[np.int64]
    numbers: NDArray[np.int64]
    segments: list[Segment]
    asked: int | None
    threads: int
    programs: list[Program | None]


def scheduled(
    sequence: Nodes, threads: int | None, progress: Callable[[int, int, str], None] | None = None
) -> Schedule:
    """Do all three steps."""
    items = _Storages(sequence).items
    constants = _constants(sequence, items)
    return linked(list(sequence.inputs), list(sequence.outputs), items, constants, threads, progress)


def linked(
    inputs: list[Value],
    outputs: list[Value],
    items: list[Item],
    constants: dict[int, NDArray[np.uint8]],
    threads: int | None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Schedule:
    """Do the last two steps: what depends on kernels and addresses, and so is done anew in each process."""
    programs = []
    for k, item in enumerate(items):
        if progress is not None:
            progress(k, len(items), item.name)
        programs.append(item.primitive._compiled())
    memory = _places(items, programs)
    many = sharing.count(threads)
    bases, numbers, segments = _Image(items, programs, constants, len(inputs), many).made()
    if progress is not None:
        progress(len(items), len(items), "")
    return Schedule(
        inputs,
        outputs,
        items,
        constants,
        memory,
        bases,
        numbers,
        segments,
        threads,
        many,
        programs,
    )


# -- storages -----------------------------------------------------------------------------------------------


class _Storages:
    """Goes over the nodes once, and counts down who still reads what."""

    def __init__(self, sequence: Nodes) -> None:
        self.bases = sequence.bases
        self.items: list[Item] = []
        self.claims: dict[int, int] = {}  # the output that a value is
        self.storages: dict[int, Storage] = {}
        self.left: dict[int, int] = {}  # how many nodes and outputs are still to read a value
        for k, value in enumerate(sequence.inputs):
            self.storages[value.number] = Storage("input", k)
        for number in sequence.constants:
            self.storages[number] = Storage("constant", number)
        copied = []
        for k, value in enumerate(sequence.outputs):
            root = self._root(value)
            self._count(root)
            part = _bytes(value.desc) != _bytes(origin(value, self.bases).desc)
            if part or root in self.storages or root in self.claims:
                copied.append((k, value))
            else:
                self.claims[root] = k
        for node in sequence.nodes:
            for value in node.arguments.values():
                self._count(self._root(value))
        for node in sequence.nodes:
            self._node(node)
        for k, value in copied:
            self._copy(f"{value.name}.copy", value, Storage("output", k))

    def _root(self, value: Value) -> int:
        return origin(value, self.bases).number

    def _count(self, root: int) -> None:
        self.left[root] = self.left.get(root, 0) + 1

    def _node(self, node: Node) -> None:
        primitive, roots = node.primitive, {key: self._root(value) for key, value in node.arguments.items()}
        for root in roots.values():
            self.left[root] -= 1
        used = {key: self.storages[root] for key, root in roots.items() if key in primitive.inputs}
        written: dict[str, Storage] = {}
        over: dict[str, str] = {}
        for output, result in node.results.items():
            taken = (*used.values(), *written.values())
            root = self._root(result)
            if root != result.number:  # its place is in another value
                made = self.storages.setdefault(root, self._new(root))
                if output in roots:
                    over[output] = output
                    self._copy(f"{node.name}.copy", node.arguments[output], made, result.desc)
                self.storages[result.number] = written[output] = made
                continue
            room = _bytes(result.desc) if result.number in self.claims else math.inf
            if output in roots:  # what the result is added to
                made, over[output] = self.storages[roots[output]], output
                if not self._dead(roots[output]) or made.size > room or any(one is made for one in taken):
                    made = self._copy(f"{node.name}.copy", node.arguments[output], Storage("arena"))
            else:
                found = (
                    key
                    for key in primitive.in_place.get(output, ())
                    if self._may_overwrite(node, key, output)
                )
                fits = (key for key in found if used[key] not in written.values() and used[key].size <= room)
                over[output] = next(fits, "")
                made = used[over[output]] if over[output] else Storage("arena")
            if result.number in self.claims:
                made.where, made.number = "output", self.claims[result.number]
            self.storages[result.number] = written[output] = made
        over = {output: key for output, key in over.items() if key}
        self._append(Item(node.name, primitive, {**used, **written}, over))

    def _dead(self, root: int) -> bool:
        """Whether a value's storage may be written over."""
        return self.left[root] == 0 and self.storages[root].where not in ("input", "constant")

    def _may_overwrite(self, node: Node, key: str, output: str) -> bool:
        """Whether a result may be written over an argument."""
        storages = {other: self.storages[self._root(value)] for other, value in node.arguments.items()}
        if not self._dead(self._root(node.arguments[key])):
            return False
        same = [other for other, storage in storages.items() if storage is storages[key]]
        allowed, descs = node.primitive.in_place[output], node.primitive.descs
        return all(other in allowed and descs[other] == descs[output] for other in same)

    def _new(self, root: int) -> Storage:
        """Storage for a value that nobody has written to."""
        where = ("output", self.claims[root]) if root in self.claims else ("arena", 0)
        return Storage(*where)

    def _copy(self, name: str, value: Value, into: Storage, desc: MemoryDesc | None = None) -> Storage:
        """A copy of a value, in its descriptor or another one."""
        self._append(
            Item(
                name,
                Reorder(value.desc, desc or value.desc),
                {"src": self.storages[self._root(value)], "dst": into},
            )
        )
        return into

    def _append(self, item: Item) -> None:
        now = len(self.items)
        for key, storage in item.storages.items():
            storage.first = now if storage.first < 0 else storage.first
            storage.last = now
            storage.size = max(storage.size, _bytes(item.primitive.descs[key]))
        self.items.append(item)


def _bytes(desc: MemoryDesc) -> int:
    return max(desc.required_bytes, desc.nbytes)


def _constants(sequence: Nodes, items: list[Item]) -> dict[int, NDArray[np.uint8]]:
    """The bytes of those constants that are used, in the descriptors that are wanted."""
    found: dict[int, NDArray[np.uint8]] = {}
    for item in items:
        for key, storage in item.storages.items():
            if storage.where == "constant" and storage.number not in found:
                desc = item.primitive.descs[key]
                given = sequence.constants[storage.number]
                found[storage.number] = _laid(given, desc, f"{item.name}: {key}")
                release(given.buffer)
    return found


def _laid(given: Tensor, desc: MemoryDesc, where: str) -> NDArray[np.uint8]:
    """The bytes of a tensor in a descriptor, in memory of their own."""
    target = Tensor(desc, allocate(desc))
    size = desc.required_bytes
    if desc.layout.is_injective() or 0 in desc.dims:
        reorder(given, desc, out=target)
    elif alike(given.desc, desc):  # elements share the same places on both sides
        target.buffer[:size] = from_buffer(given.buffer, desc).buffer[:size]
    else:
        target.buffer[:size] = _sharing_places(given, desc, where)
    return target.buffer


def _sharing_places(given: Tensor, desc: MemoryDesc, where: str) -> NDArray[np.uint8]:
    """The bytes of a tensor in a descriptor whose elements share places; those that do must agree."""
    row_major = Layout._dense(desc.dims, plain(desc.rank))
    values = given.reorder(row_major, desc.dtype).numpy()
    places = desc.layout.offsets(np.moveaxis(np.indices(desc.dims), 0, -1))
    elements = np.zeros(desc.required_bytes * 8 // desc.dtype.bits, values.dtype)
    elements[places] = values
    bits = f"u{values.itemsize}"  # as numbers, a NaN would not agree with itself
    differs = elements[places].view(bits) != np.ascontiguousarray(values).view(bits)
    if differs.any():
        index = tuple(int(i) for i in np.argwhere(differs)[0])
        raise LayoutError(
            f"{where} is wanted as {desc}, whose elements share places, but element {index} of the constant "
            f"is {values[index]} and another one in its place {elements[places[index]]}"
        )
    return pack(elements, desc.dtype)


# -- places -------------------------------------------------------------------------------------------------


def _places(items: list[Item], programs: list[Program | None]) -> Memory:
    """Give the storages of the arena and all scratch their offsets."""
    storages = list(
        dict.fromkeys(one for item in items for one in item.storages.values() if one.where == "arena")
    )
    scratch = [
        (item, name, Span(size, k, k))
        for k, (item, program) in enumerate(zip(items, programs, strict=True))
        if program is not None
        for name, size in program.scratch.items()
    ]
    spans = [Span(one.size, one.first, one.last) for one in storages]
    memory = arranged([*spans, *(span for _, _, span in scratch)])
    for one, offset in zip(storages, memory.offsets, strict=False):
        one.number = offset
    for item in items:
        item.scratch = {}
    for (item, name, _), offset in zip(scratch, memory.offsets[len(storages) :], strict=True):
        item.scratch[name] = offset
    return memory


# -- the image ----------------------------------------------------------------------------------------------


class _Word(NamedTuple):
    """A number that a base is added to."""

    base: int
    number: int


class _Image:
    """Writes rows, and behind them the lists of addresses that kernels get as operands."""

    def __init__(
        self,
        items: list[Item],
        programs: list[Program | None],
        constants: Mapping[int, NDArray[np.uint8]],
        inputs: int,
        threads: int,
    ) -> None:
        self.items, self.programs, self.constants = items, programs, constants
        self.inputs, self.threads = inputs, threads
        self.rows: list[_Word] = []
        self.lists: list[_Word] = []
        self.lists_at = WORD * ROW * sum(len(program.steps) for program in programs if program is not None)

    def made(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Segment]]:
        """The bases and the numbers of all words, and the segments."""
        segments: list[Segment] = []
        for item, program in zip(self.items, self.programs, strict=True):
            start = len(self.rows) // ROW
            if program is None:
                item.rows = range(start, start)
                segments.append(Segment([item], item.rows, True))
                continue
            known = self._known(item, program)
            for step in program.steps:
                self._row(step, known)
            item.rows = range(start, len(self.rows) // ROW)
            if not segments or segments[-1].in_python:
                segments.append(Segment([], item.rows))
            before = segments.pop()
            segments.append(Segment([*before.items, item], range(before.rows.start, item.rows.stop)))
        words = np.array([*self.rows, *self.lists], np.int64).reshape(-1, 2)
        return np.ascontiguousarray(words[:, 0]), np.ascontiguousarray(words[:, 1]), segments

    def _known(self, item: Item, program: Program) -> dict[str, _Word]:
        """Where the buffers of a program are, by name."""
        known = {name: self._place(storage) for name, storage in item.storages.items()}
        known |= {name: _Word(NOTHING, address(data)) for name, data in program.constants.items()}
        known |= {name: _Word(ARENA, offset) for name, offset in item.scratch.items()}
        return known

    def _place(self, storage: Storage) -> _Word:
        if storage.where == "arena":
            return _Word(ARENA, storage.number)
        if storage.where == "constant":
            return _Word(NOTHING, address(self.constants[storage.number]))
        first = OTHERS if storage.where == "input" else OTHERS + self.inputs
        return _Word(first + storage.number, 0)

    def _row(self, step: Step, known: Mapping[str, _Word]) -> None:
        operands = _Word(NOTHING, 0)
        if isinstance(step.operands, str):
            operands = known[step.operands]
        elif step.operands:
            operands = _Word(IMAGE, self.lists_at + WORD * len(self.lists))
            self.lists.extend(known[name] for name in step.operands)
        many = min(self.threads, step.parts) if step.shared else 1
        parts = step.parts if many > 1 else 1
        numbers = [_Word(NOTHING, number) for number in (step.kernel.address, parts, many, 0, 0)]
        self.rows += [numbers[0], known[step.source], known[step.target], operands, *numbers[1:]]
