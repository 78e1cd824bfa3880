"""A node as the rules of the lowering see it.

A :class:`Case` has the facts about one node: dims and data types of what it reads and writes, which inputs
are constants, and in which formats the others may arrive. A ``relayout.Fused`` node is a case of its head,
with the rest of its chain as :attr:`Case.chain`.

Formats are descriptors without holes and without names for axes, so that two that put elements in the same
order are equal. What is really read may be a part of something larger, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from string import ascii_letters, ascii_lowercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.graph.graph import Graph, Node, Value
from relayout.graph.operators import OPERATORS
from relayout.graph.operators.fused import FUSED
from relayout.layout import views
from relayout.layout.dense import CHANNELS_LAST, dense_like
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout, plain
from relayout.records import dataclass, field

__all__ = [
    "Case",
    "Operand",
    "case_of",
    "elements_of",
    "label",
    "operand_of",
    "reshaped",
    "row_major",
    "spellings",
    "unblocked",
    "unfused",
]

KEPT = 4096  # formats that are remembered: the blocks of a network are alike
FLOATS = ("f32", "f16", "bf16")
"""Data types that kernels compute with as networks do; integers wrap around, which kernels don't."""


def elements_of(dtype: np.dtype[Any] | None) -> str | None:
    """The name of the data type that elements have in memory: truth values are bytes; None: there is none."""
    if dtype is None:
        return None
    if dtype.kind == "b":
        return "u8"
    try:
        return as_dtype(dtype).name
    except LayoutError:
        return None


def row_major(dims: Sequence[int], dtype: str) -> MemoryDesc:
    """The format of an array of NumPy."""
    return MemoryDesc(tuple(dims), dtype, Layout(tuple(dims), plain(len(dims))))


@lru_cache(maxsize=KEPT)
def label(desc: MemoryDesc) -> MemoryDesc:
    """The format that a descriptor stands for: the same order, no holes, no names.

    Where an axis of size 1 stands changes no place, so that such descriptors are equal; but a format is used
    for other dims, too. It is always spelled alike, whoever asks first.

    >>> {label(MemoryDesc((1, 8, 4, 4), "f32", format)).tag for format in ("nhwc", "hwnc", "hwcn")}
    {'acdb'}
    """
    if 0 in desc.dims or desc.layout.offset0 or desc.tag is None:
        desc = MemoryDesc(desc.dims, desc.dtype, dense_like(desc.layout))
    tag = desc.tag
    if 0 in desc.dims or tag is None:
        return desc
    rooms = zip(ascii_lowercase, desc.dims, desc.padded_dims, strict=False)
    single = {axis for axis, *sizes in rooms if sizes == [1, 1]}
    return MemoryDesc(desc.dims, desc.dtype, _spelled(tag, single) if single else tag)


def _spelled(tag: str, single: Collection[str]) -> str:
    """The usual one of the tags that differ only in where some axes stand among the outer ones.

    >>> _spelled("cdab", "a"), _spelled("Bcda16b", "a"), _spelled("abcd", "cd"), _spelled("abc", "b")
    ('acdb', 'aBcd16b', 'acdb', 'abc')
    """
    rank = len(tag) - len(tag.lstrip(ascii_letters))
    outer, inner = tag[:rank], tag[rank:]
    several = [axis for axis in outer if axis not in single]
    if not inner:
        plain = ascii_lowercase[:rank]
        last = f"a{plain[2:]}b"
        pixels = rank > 3 and not any(axis in several for axis in plain[2:])  # of one position each
        for known in (last, plain) if pixels else (plain, last):
            if [axis for axis in known if axis not in single] == several:
                return known
    for axis in sorted(single):
        place = next((k for k, other in enumerate(several) if other.lower() > axis), len(several))
        several.insert(place, axis)
    return "".join(several) + inner


def spellings(desc: MemoryDesc) -> tuple[MemoryDesc, ...]:
    """The formats whose order other dims may have: of single pixels channels-last and row-major are one.

    >>> [one.tag for one in spellings(MemoryDesc((1, 8, 1, 1), "f32", "nhwc"))]
    ['acdb', 'abcd']
    >>> [one.tag for one in spellings(MemoryDesc((1, 8, 4, 1), "f32", "nhwc"))]
    ['acdb']
    """
    rank = len(desc.dims)
    if rank not in range(4, 6) or any(n != 1 for n in desc.dims[2:]):
        return (desc,)
    both = [MemoryDesc(desc.dims, desc.dtype, CHANNELS_LAST[rank]), row_major(desc.dims, desc.dtype.name)]
    return tuple(one for one in both if one == desc) or (desc,)


def unblocked(desc: MemoryDesc) -> MemoryDesc:
    """The row-major format instead of blocks that change nothing: those of a vector, such as pooled channels.

    Other formats may have the same bytes, too, as nChw16c and nhwc of 16 channels have. But a format stands
    here for an order, also of what lies within something larger, where these differ.

    >>> unblocked(MemoryDesc((1, 2048), "f32", "aB16b")), unblocked(MemoryDesc((1, 2044), "f32", "aB16b"))
    (MemoryDesc('f32:ab:1x2048'), MemoryDesc('f32:aB16b:1x2044'))
    """
    if desc.tag is None or not desc.inner_blocks or desc.padded_dims != desc.dims:
        return desc
    return row_major(desc.dims, desc.dtype.name) if sum(n > 1 for n in desc.dims) == 1 else desc


@lru_cache(maxsize=KEPT)
def reshaped(layout: Layout, dims: tuple[int, ...]) -> Layout:
    """The same elements under other dims, as :func:`relayout.layout.views.reshape` has it, and remembered."""
    return views.reshape(layout, dims)


def unfused(layout: Layout) -> Layout:
    """The layout; what fuses axes is none for networks, since it is copied by definition and not by a kernel.

    Raises
    ------
    LayoutError
        A digit is one of several axes together, as after 56 rows in windows of 7 are seen as windows of 8.
    """
    if any(len(term) > 1 for term in layout.terms):
        raise LayoutError(f"{layout} fuses axes")
    return layout


@dataclass(frozen=True)
class Operand:
    """What a node reads: a value that moves, or a constant."""

    name: str
    dims: tuple[int, ...]
    dtype: str
    kind: np.dtype[Any]
    """The data type that operators see; truth values are bytes in memory."""
    data: NDArray[Any] | None = field(default=None, compare=False, repr=False)
    """The constant; None: it moves."""

    @property
    def scalar(self) -> float | None:
        """The number, if it is a constant of one element."""
        return float(self.data.reshape(-1)[0]) if self.data is not None and self.data.size == 1 else None


@dataclass(frozen=True, eq=False)
class Case:
    """One node.

    Attributes
    ----------
    operator : str
        Of the node, or of the head of a fused chain.
    name : str
        For messages and profiles.
    inputs : tuple of Operand or None
        What it reads; None: left out.
    outputs : tuple of Operand
        What it writes; those without a name are not wanted.
    attributes : mapping of str
        With defaults.
    chain : tuple of (Node, operands)
        What follows element by element; None among the operands is the result of the node before.
    arrives : mapping of str to list of MemoryDesc
        The formats in which values may come.
    uses : mapping of str to int
        How many nodes read each value.
    only : str or None
        The one format that images shall have.
    guard : float or None
        What stands in the place of results that are no numbers, behind a softmax; None: they stay.
    wishes : mapping of str to list of MemoryDesc
        The formats in which values are wanted behind views, besides row-major.
    copied : set of str
        The values that nobody can write into a concatenation at once: parts of others, inputs.
    algorithm : str
        Of convolutions.
    """

    operator: str
    name: str
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    attributes: Mapping[str, Any]
    chain: tuple[tuple[Node, tuple[Operand | None, ...]], ...]
    arrives: Mapping[str, list[MemoryDesc]]
    uses: Mapping[str, int]
    only: str | None = None
    guard: float | None = None
    wishes: Mapping[str, list[MemoryDesc]] = field(default_factory=dict)
    copied: frozenset[str] = frozenset()
    algorithm: str = "direct"

    def input(self, place: int) -> Operand | None:
        """An input; None: it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def constant(self, place: int) -> NDArray[Any] | None:
        """An input that is a constant."""
        found = self.input(place)
        return None if found is None else found.data

    def formats(self, operand: Operand) -> list[MemoryDesc]:
        """The formats in which an operand may come; a constant comes row-major."""
        return self.arrives.get(operand.name) or [row_major(operand.dims, operand.dtype)]

    @cached_property
    def moving(self) -> tuple[Operand, ...]:
        """Everything that is read and is no constant, the chain's operands among it, each once."""
        return tuple({one.name: one for one in self._read if one.data is None}.values())

    @cached_property
    def _read(self) -> tuple[Operand, ...]:
        """Everything that is read, as often as it is."""
        several = [*self.inputs, *(one for _, operands in self.chain for one in operands)]
        return tuple(one for one in several if one is not None)

    def reads_last(self, operand: Operand) -> bool:
        """Whether a value is read here once, and by no other node."""
        once = sum(one.name == operand.name for one in self._read) == 1
        return once and self.uses.get(operand.name) == 1

    @property
    def out(self) -> Operand:
        """The first output."""
        return self.outputs[0]

    @property
    def floats(self) -> bool:
        """Whether all that it reads and writes are elements that kernels compute with, of one type."""
        return self.floats_of(*(one for one in (*self.inputs, self.out) if one is not None))

    def floats_of(self, *operands: Operand) -> bool:
        """Whether these are elements that kernels compute with, of one type."""
        return operands[0].dtype in FLOATS and len({one.dtype for one in operands}) == 1


def case_of(
    node: Node,
    graph: Graph,
    arrives: Mapping[str, list[MemoryDesc]],
    uses: Mapping[str, int],
    only: str | None = None,
    wishes: Mapping[str, list[MemoryDesc]] | None = None,
    copied: frozenset[str] = frozenset(),
    algorithm: str = "direct",
) -> Case:
    """The case of a node, all of whose values are known."""
    outputs = tuple(operand_of(graph, name) or _nothing() for name in node.outputs)
    if node.operator != FUSED:
        inputs = tuple(operand_of(graph, name) for name in node.inputs)
        attributes = {**OPERATORS[node.operator].attributes, **node.attributes}
        given = node.operator, _name(node), inputs, outputs, attributes, ()
        return Case(*given, arrives, uses, only, None, wishes or {}, copied, algorithm)
    inner: Graph = node.attributes["graph"]
    known = dict(zip((value.name for value in inner.inputs), node.inputs, strict=True))
    head, *rest = inner.nodes

    def operand(name: str) -> Operand | None:
        if name in inner.constants:
            return _constant(name, inner.constants[name])
        return operand_of(graph, known.get(name, name))

    chain, before, guard = [], head.outputs[0], None
    if len(rest) > 1 and rest[0].operator == "IsNaN":  # and what chooses between a number and the result
        guard = float(inner.constants[rest[1].inputs[1]].reshape(-1)[0])
        before, rest = rest[1].outputs[0], rest[2:]
    for one in rest:
        chain.append((one, tuple(None if name == before else operand(name) for name in one.inputs)))
        before = one.outputs[0]
    attributes = {**OPERATORS[head.operator].attributes, **head.attributes}
    inputs = tuple(operand(name) for name in head.inputs)
    return Case(
        head.operator,
        _name(node),
        inputs,
        outputs,
        attributes,
        tuple(chain),
        arrives,
        uses,
        only,
        guard,
        wishes or {},
        copied,
        algorithm,
    )


def _name(node: Node) -> str:
    return node.name or next(filter(None, node.outputs), node.operator)


def operand_of(graph: Graph, name: str) -> Operand | None:
    """What is known of a value as an operand; None where the name is empty.

    Raises
    ------
    LayoutError
        Its dims are not known, or its data type has no memory format.
    """
    if not name:
        return None
    if name in graph.constants:
        return _constant(name, graph.constants[name])
    value: Value = graph.value(name)
    dtype = elements_of(value.dtype)
    if not value.known or dtype is None or value.dtype is None:
        raise LayoutError(f"value {value} has no memory format: its dims or its data type are not known")
    return Operand(name, value.dims, dtype, value.dtype)  # type: ignore[arg-type]


def _constant(name: str, data: NDArray[Any]) -> Operand:
    return Operand(name, data.shape, elements_of(data.dtype) or str(data.dtype), data.dtype, data)


def _nothing() -> Operand:
    return Operand("", (0,), "f32", np.dtype(np.float32))
