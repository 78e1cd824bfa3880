"""Who writes where: the first step from a sequence to machine words.

Values are given storages: memory of the caller (inputs, outputs), of a constant, or of the arena. A result
that may be written over an argument, which nobody reads afterwards, shares its storage::

    x  ----> conv1 ----> conv2 ----> conv3 + sum ----> relu in place
      `----------------------------------^
    storage 1    2           3          1 (x dies here)      1

Where an argument that is written over is still needed, or belongs to the caller, it is copied first. A result
that the caller gets is not written over a part of something larger, all of which would have to lie in the
caller's memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from relayout.dtypes import pack
from relayout.errors import LayoutError
from relayout.exchange.mapped import release
from relayout.forking import lock
from relayout.jit.support import supported
from relayout.layout.layout import Layout, plain
from relayout.ops.checks import alike
from relayout.primitives.lent import loan
from relayout.primitives.packing import Packing, rooms
from relayout.primitives.primitive import Primitive
from relayout.primitives.reorder import Reorder
from relayout.primitives.values import Node, Nodes, Value, origin
from relayout.records import dataclass
from relayout.reorder import reorder
from relayout.reorder.conversion import Conversion
from relayout.reorder.native import Native, at_hand, native
from relayout.tensor import Tensor, address, as_bytes, check_addresses, from_buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.lent import Moved

__all__ = ["Item", "Storage", "arena_of", "laid_out", "moved_constants", "note_uses", "room_of", "stored"]

ONCE = 128 << 20
"""Bytes of constants in the same formats up to which NumPy moves them. It moves 3 to 7 GB/s where rows are
long, a kernel twice that; which is 20 milliseconds for 128 MiB, and a kernel takes 20 to 80 until it is
compiled."""

_Mover: TypeAlias = "Callable[[int, int], Callable[[], object]]"
"""Of two addresses what moves from one to the other."""

ROWS = 8 << 20
"""Bytes of constants whose rows become blocks from which on the kernel for these is made: NumPy takes as long
for a quarter of that where rows lie a power of two apart."""

LOOKED_FOR = 1 << 20
"""Bytes of a constant from which on it is worth to look on disk for a kernel."""


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


class Item:
    """One primitive that is run.

    Parameters
    ----------
    name : str
        What the layer is called.
    primitive : Primitive or callable
        What is done; or what makes it, when somebody asks: to run kernels nobody does.
    storages : dict of str to Storage
        Of inputs and outputs, by name.
    in_place : mapping of str to str
        For an output the argument that it is written over.

    Attributes
    ----------
    implementation : str
        How it is done.
    rows : range
        Its rows in the image.
    in_python : bool
        Whether it has none, since it has no program.
    """

    def __init__(
        self,
        name: str,
        primitive: Primitive | Callable[[], Primitive],
        storages: dict[str, Storage],
        in_place: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.storages, self.in_place = name, storages, in_place or {}
        self._primitive = primitive
        self.implementation = ""
        self.rows, self.in_python = range(0), False

    @property
    def primitive(self) -> Primitive:
        """What is done."""
        if not isinstance(self._primitive, Primitive):
            self._primitive = self._primitive()
        return self._primitive

    def __reduce__(self) -> tuple[Any, ...]:
        return Item, (self.name, self.primitive, self.storages, self.in_place)


def stored(sequence: Nodes) -> list[Item]:
    """The primitives of a sequence with their storages, and the copies that are needed in between."""
    return _Storages(sequence).items


def arena_of(items: list[Item]) -> list[Storage]:
    """The storages that lie in the arena, in the order in which they are used."""
    found = (one for item in items for one in item.storages.values() if one.where == "arena")
    return list(dict.fromkeys(found))


def note_uses(items: list[Item]) -> None:
    """Find out how large each storage must be, and from where to where it is used."""
    for storage in dict.fromkeys(one for item in items for one in item.storages.values()):
        storage.size, storage.first = 0, -1
    for now, item in enumerate(items):
        _note(item, now)


def _note(item: Item, now: int) -> None:
    """Note what an item uses."""
    for key, storage in item.storages.items():
        storage.first = now if storage.first < 0 else storage.first
        storage.last = now
        storage.size = max(storage.size, room_of(item.primitive.descs[key]))


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
            part = room_of(value.desc) != room_of(origin(value, self.bases).desc)
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
            room = room_of(result.desc) if result.number in self.claims else math.inf
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
        _note(item, len(self.items))
        self.items.append(item)


def room_of(desc: MemoryDesc) -> int:
    """Bytes that a tensor needs."""
    return max(desc.required_bytes, desc.nbytes)


def laid_out(
    sequence: Nodes, items: list[Item], packing: Packing
) -> tuple[dict[int, NDArray[np.uint8]], dict[int, Moved]]:
    """The bytes of those constants that are used, in the descriptors that are wanted.

    They are there when ``packing`` has ended, and not before; it is started here. Of those in memory that is
    lent (:mod:`relayout.primitives.lent`) it is told how they are moved.
    """
    wanted: dict[int, tuple[MemoryDesc, str]] = {}
    for item in items:
        for key, storage in item.storages.items():
            if storage.where == "constant" and storage.number not in wanted:
                wanted[storage.number] = item.primitive.descs[key], f"{item.name}: {key}"
    given = [(sequence.constants[number], desc, where) for number, (desc, where) in wanted.items()]
    moved: dict[int, Moved] = {}
    if (lender := loan()) is not None:
        for number, (one, desc, _) in zip(wanted, given, strict=True):
            if (how := lender.moved(one, desc)) is not None:
                moved[number] = how
    return dict(zip(wanted, moved_constants(given, packing), strict=True)), moved


def moved_constants(
    wanted: Sequence[tuple[Tensor, MemoryDesc, str]], packing: Packing
) -> list[NDArray[np.uint8]]:
    """Tensors in the descriptors that are wanted, each for the place that is named.

    What is read where it lies is not moved. The others are there when ``packing`` has ended.
    """
    lender = loan()
    stay = [lender is not None and lender.stays(given, desc) for given, desc, _ in wanted]
    together: Counter[tuple[MemoryDesc, MemoryDesc]] = Counter()
    for (given, desc, where), stays in zip(wanted, stay, strict=True):
        check_addresses(desc, where)
        if not stays:
            together[given.desc, desc] += desc.nbytes
    rows = _rows_of(together)
    left = [one for one, stays in zip(wanted, stay, strict=True) if not stays]
    made = rooms([room_of(desc) for _, desc, _ in left])
    for room, (given, desc, where) in zip(made, left, strict=True):
        sides = given.desc, desc
        move = _move(given, Tensor(desc, room), where, together[sides], rows.get(sides))
        if move is not None:
            packing.add(desc.nbytes, move)
    packing.start()
    places = iter(made)
    return [
        as_bytes(given.buffer)[: room_of(desc)] if stays else next(places)
        for (given, desc, _), stays in zip(wanted, stay, strict=True)
    ]


def _rows_of(together: Mapping[tuple[MemoryDesc, MemoryDesc], int]) -> dict[Any, _Mover]:
    """What moves constants whose rows become blocks, by their descriptors; none where these are few."""
    large = {sides for sides, size in together.items() if size >= LOOKED_FOR and sides[0] != sides[1]}
    if not large or not supported():
        return {}
    with lock():
        from relayout.primitives.blocking import blocks_of, move_of
    made = {sides: blocks_of(*sides) for sides in large}
    found: dict[Any, _Mover] = {
        sides: partial(move_of, blocks) for sides, blocks in made.items() if blocks is not None
    }
    return found if sum(together[sides] for sides in found) >= ROWS else {}


def _move(
    given: Tensor, target: Tensor, where: str, together: int, rows: _Mover | None = None
) -> Callable[[], object] | None:
    """What writes a tensor in the descriptor of another one, zeroed and its own; None: it is done already.

    ``together`` are the bytes of all constants that are laid out in the same way; ``rows`` makes what
    moves it, where that is rows into blocks.
    """
    desc = target.desc
    if rows is not None:
        return partial(_moved, rows(address(as_bytes(given.buffer)), address(target.buffer)), given)
    if given.desc.dtype != desc.dtype or desc.dtype.bits < 8 or not desc.layout.is_injective():
        _lay(given, target, where)
        release(given.buffer)
        return None
    plan = Conversion.uncompiled(given.desc, desc)
    source, whole = as_bytes(given.buffer), slice(0, desc.required_bytes)
    kernels = _worthwhile(plan, together)
    if kernels is not None:
        move = partial(kernels, address(source), address(target.buffer), threads=1, fresh=True)
    elif given.desc == desc and desc.required_bytes == desc.nbytes:
        move = partial(np.copyto, target.buffer[whole], source[whole])
    else:
        sides = plan.src, source, plan.alike, target.buffer
        move = partial(_numpy_engine(), *sides, plan.attributes, zeroed=True)
    return partial(_moved, move, given)


def _moved(move: Callable[[], object], given: Tensor) -> None:
    """Do it; what was read is not read again."""
    move()
    release(given.buffer)


def _numpy_engine() -> Callable[..., None]:
    with lock():
        from relayout.reorder.engine import reorder_numpy
    return reorder_numpy


def _lay(given: Tensor, target: Tensor, where: str) -> None:
    """Write a tensor in the descriptor of another one, zeroed and its own, whatever they are."""
    desc = target.desc
    size = desc.required_bytes
    if desc.layout.is_injective() or 0 in desc.dims:
        if given.desc.dtype == desc.dtype and desc.nbytes <= ONCE:
            Conversion.uncompiled(given.desc, desc)(given, target)
        else:
            reorder(given, desc, out=target)
    elif alike(given.desc, desc):  # elements share the same places on both sides
        target.buffer[:size] = from_buffer(given.buffer, desc).buffer[:size]
    else:
        target.buffer[:size] = _sharing_places(given, desc, where)


def _worthwhile(plan: Conversion, together: int) -> Native | None:
    """The kernels for a constant, where an earlier process has left them, or many constants need them."""
    known = plan.dst.nbytes >= LOOKED_FOR and at_hand(plan.src, plan.alike)
    return native(plan.src, plan.alike) if known or together > ONCE else None


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
