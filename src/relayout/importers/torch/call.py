"""What the translation of one operator is given: its results' facts, and means to write nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from relayout.errors import Unsupported
from relayout.graph.graph import Array, Dims, Node, Value, fresh
from relayout.graph.operators.types import NUMBERS

__all__ = [
    "FLOAT32", "INT64", "Call", "Number", "Operand", "Size", "Writer", "dims_of", "promoted", "rank",
]  # fmt: skip

Number: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Value | Number"
Size: TypeAlias = "Value | int"
"""A size that is known, or the value, an int64 without axes, that holds it."""

INT64: Final = np.dtype(np.int64)
FLOAT32: Final = np.dtype(np.float32)
TYPE_NUMBERS: Final = {dtype: number for number, dtype in NUMBERS.items()}
"""ONNX's numbers of data types, which the attribute of a Cast holds."""

_MOST_NAMED = 8
"""Constants with at most so many elements are named by what they hold."""


class Writer:
    """A graph while it is written: nodes, constants, and names that are taken."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Value] = {}
        self._known: dict[tuple[object, ...], Value] = {}

    def fresh(self, name: str) -> str:
        """A name that nobody has yet: this one, or with a number behind it."""
        return fresh(name, self.taken)

    def rename(self, names: Mapping[str, str]) -> None:
        """Call values by other names, in all nodes that are written."""
        for place, node in enumerate(self.nodes):
            inputs, outputs = (tuple(names.get(n, n) for n in some) for some in (node.inputs, node.outputs))
            self.nodes[place] = replace(node, inputs=inputs, outputs=outputs)
        self.values = {
            names.get(name, name): replace(value, name=names.get(name, name))
            for name, value in self.values.items()
        }

    def constant(self, name: str, data: Array) -> Value:
        """Enter a constant; small ones that are the same are entered once."""
        key = (data.dtype, data.shape, data.tobytes()) if data.size <= _MOST_NAMED else (name,)
        if key not in self._known:
            free = self.fresh(f"{name} {data.dtype}" if name in self.taken else name)
            self.constants[free] = data
            self._known[key] = Value(free, data.shape, data.dtype)
        return self._known[key]


class Call:
    """One node of the program.

    Attributes
    ----------
    name : str
        Its name there.
    operator : str
        The operator's name in the table.
    results : tuple of Value
        Dims and data types of what it returns.
    used : tuple of bool
        Which of them somebody reads.
    contiguous : callable
        Says whether the first argument lies in memory in the order of its axes when PyTorch runs it.
    """

    def __init__(
        self,
        writer: Writer,
        name: str,
        operator: str,
        results: tuple[Value, ...],
        used: tuple[bool, ...],
        contiguous: Callable[[], bool],
    ) -> None:
        self.writer, self.name, self.operator = writer, name, operator
        self.results, self.used, self.contiguous = results, used, contiguous

    @property
    def result(self) -> Value:
        """What is known of the first result."""
        return self.results[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the first result."""
        assert self.result.dtype is not None
        return self.result.dtype

    def emit(
        self,
        operator: str,
        *inputs: Value | None,
        dims: Dims | None = None,
        dtype: np.dtype[Any] | None = None,
        **attributes: Any,
    ) -> Value:
        """Write a node with one output; dims and data type, where the translation goes on to ask for them."""
        (made,) = self.several(operator, *inputs, outputs=1, **attributes)
        return Value(made.name, dims, dtype)

    def several(
        self, operator: str, *inputs: Value | None, outputs: int | Sequence[bool], **attributes: Any
    ) -> tuple[Value, ...]:
        """Write a node with several outputs: so many, or those that are wanted; the others have no names."""
        wanted = (True,) * outputs if isinstance(outputs, int) else outputs
        names = tuple(self.writer.fresh(f"{self.name}.{operator}") if one else "" for one in wanted)
        given = ["" if one is None else one.name for one in inputs]
        while given and not given[-1]:
            given.pop()
        self.writer.nodes.append(Node(operator, tuple(given), names, attributes, self.name))
        return tuple(Value(name) for name in names)

    def constant(self, data: Any, dtype: np.dtype[Any] | None = None, role: str = "") -> Value:
        """A constant; a short one is named by what it holds."""
        with np.errstate(over="ignore", invalid="ignore"):
            array = np.array(data, dtype)
        name = f"{self.name}.{role or 'constant'}" if array.size > _MOST_NAMED else str(array.tolist())
        return self.writer.constant(name, array)

    def ints(self, *numbers: int) -> Value:
        """A vector of int64: axes, shapes, positions."""
        return self.constant(numbers, INT64)

    def known(self, value: Value) -> Array | None:
        """The data of a value, if it is a constant."""
        return self.writer.constants.get(value.name)

    def cast(self, x: Operand, dtype: np.dtype[Any] | None) -> Value:
        """An operand in a data type; a number becomes a constant without axes."""
        if not isinstance(x, Value):
            return self.constant(x, dtype)
        if dtype is None or x.dtype == dtype:
            return x
        data = self.known(x)
        if data is not None and data.size == 1:
            return self.constant(data, dtype)
        return self.emit("Cast", x, dims=x.dims, dtype=dtype, to=TYPE_NUMBERS[dtype])

    def size(self, x: Value, axis: int) -> Size:
        """The size of an axis."""
        found = dims_of(x)[axis]
        if isinstance(found, int):
            return found
        axis %= rank(x)
        one = self.emit("Shape", x, start=axis, end=axis + 1)
        return self.emit("Squeeze", one, self.ints(0), dims=(), dtype=INT64)

    def vector(self, sizes: Sequence[Size]) -> Value:
        """Sizes as a vector of int64."""
        numbers = [size for size in sizes if not isinstance(size, Value)]
        if len(numbers) == len(sizes):
            return self.ints(*numbers)
        parts = [
            self.emit("Unsqueeze", self.cast(size, INT64), self.ints(0))
            if isinstance(size, Value)
            else self.ints(size)
            for size in sizes
        ]
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=0)

    def reshape(self, x: Value, sizes: Sequence[Size], dims: Dims | None = None) -> Value:
        """The elements under other dims; ``dims`` says what is known of them where sizes don't."""
        if dims is None:
            dims = tuple(None if isinstance(n, Value) or n == -1 else n for n in sizes)
        if dims == x.dims:
            return x
        unknown = [axis for axis, n in enumerate(dims) if not isinstance(n, int)]
        target: Sequence[Size] = [-1 if axis in unknown else n for axis, n in enumerate(dims)]  # type: ignore[misc]
        if len(unknown) > 1 or (unknown and 0 in target):
            target = list(sizes)
        empty = {"allowzero": 1} if 0 in target else {}
        return self.emit("Reshape", x, self.vector(target), dims=dims, dtype=x.dtype, **empty)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """The axes in another order."""
        order = tuple(axis % len(order) for axis in order) if order else ()
        if list(order) == list(range(len(order))):
            return x
        dims = None if x.dims is None else tuple(x.dims[axis] for axis in order)
        return self.emit("Transpose", x, dims=dims, dtype=x.dtype, perm=order)

    def unsqueeze(self, x: Value, *axes: int) -> Value:
        """New axes of size 1, numbered as in the result."""
        dims = list(dims_of(x))
        axes = tuple(sorted(axis % (len(dims) + len(axes)) for axis in axes))
        for axis in axes:
            dims.insert(axis, 1)
        return self.emit("Unsqueeze", x, self.ints(*axes), dims=tuple(dims), dtype=x.dtype)

    def squeeze(self, x: Value, *axes: int) -> Value:
        """Without these axes of size 1."""
        axes = tuple(sorted(axis % rank(x) for axis in axes))
        dims = tuple(n for axis, n in enumerate(dims_of(x)) if axis not in axes)
        return self.emit("Squeeze", x, self.ints(*axes), dims=dims, dtype=x.dtype)

    def slice(self, x: Value, axis: int, start: Size, end: Size, step: int = 1) -> Value:
        """A part of an axis."""
        bounds = [self.vector([start]), self.vector([end]), self.ints(axis)]
        if step != 1:
            bounds.append(self.ints(step))
        dims = list(dims_of(x))
        length = dims[axis]
        if isinstance(length, int) and isinstance(start, int) and isinstance(end, int):
            dims[axis] = len(range(length)[start:end:step])
        else:
            dims[axis] = None
        return self.emit("Slice", x, *bounds, dims=tuple(dims), dtype=x.dtype)

    def expand(self, x: Value, sizes: Sequence[Size], dims: Dims | None = None) -> Value:
        """Repeated along axes of size 1, and along new ones in front."""
        dims = tuple(None if isinstance(n, Value) else n for n in sizes) if dims is None else dims
        if x.dims == dims and None not in dims:
            return x
        return self.emit("Expand", x, self.vector(sizes), dims=dims, dtype=x.dtype)

    def refuse(self, why: str) -> Unsupported:
        """The error for what has no translation."""
        return Unsupported(why)


def dims_of(x: Value) -> Dims:
    """The dims of a value; in a program the number of axes is always known."""
    if x.dims is None:
        raise Unsupported(f"the number of axes of {x.name!r} is not known")
    return x.dims


def rank(x: Value) -> int:
    """The number of axes."""
    return len(dims_of(x))


def promoted(*operands: Operand) -> np.dtype[Any]:
    """The data type in which PyTorch computes with these operands.

    The highest kind decides (truth values, integers, floating point); within it tensors with axes come
    before those without, and those before numbers.

    >>> import numpy as np
    >>> promoted(Value("i", (2,), np.dtype("int64")), 0.5)
    dtype('float32')
    >>> promoted(Value("h", (2,), np.dtype("float16")), Value("s", (), np.dtype("float64")))
    dtype('float16')
    """
    ranked = [
        (_kind(dtype), 0 if not isinstance(one, Value) else 2 if one.dims else 1, dtype)
        for one in operands
        for dtype in [_default(one) if not isinstance(one, Value) else one.dtype or FLOAT32]
    ]
    top = max(kind for kind, _, _ in ranked)
    place = max(place for kind, place, _ in ranked if kind == top)
    first, *more = [dtype for kind, at, dtype in ranked if (kind, at) == (top, place)]
    for dtype in more:
        if dtype != first:
            half = {first.name, dtype.name} == {"float16", "bfloat16"}
            first = FLOAT32 if half else np.promote_types(first, dtype)
    return first


def _kind(dtype: np.dtype[Any]) -> int:
    return 0 if dtype.kind == "b" else 1 if dtype.kind in "iu" else 3 if dtype.kind == "c" else 2


def _default(number: Number) -> np.dtype[Any]:
    if isinstance(number, bool):
        return np.dtype(np.bool_)
    return INT64 if isinstance(number, int) else FLOAT32
