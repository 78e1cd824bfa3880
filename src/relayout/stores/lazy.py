"""A tensor in a store: everything is known about it, and nothing has been read.

>>> import numpy as np, pathlib, tempfile
>>> import relayout as rl
>>> folder = tempfile.TemporaryDirectory()
>>> path = pathlib.Path(folder.name, "x.npy")
>>> np.save(path, np.arange(24, dtype=np.float32).reshape(2, 3, 4))
>>> x = rl.open(path)
>>> x.desc, x.chunks
(MemoryDesc('f32:abc:2x3x4'), (2, 3, 4))
>>> x[1, :, 2], x.read(((0, 1), (0, 3), (0, 4)), "acb").desc
(array([14., 18., 22.], dtype=float32), MemoryDesc('f32:acb:1x3x4'))
>>> folder.cleanup()
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import index as as_index
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from relayout.dtypes import DType
from relayout.errors import LayoutError, described
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.reorder.attributes import Attributes
from relayout.stores.grid import Box, Cells, Grid, Index, chunk_layout
from relayout.stores.pieces import Mover
from relayout.stores.store import Address, Bytes, Stored
from relayout.stores.task import Side, filled, read_cell
from relayout.tensor import Tensor, aligned

if TYPE_CHECKING:
    from relayout.stores.plans import Plan

__all__ = ["LazyTensor"]


class LazyTensor:
    """An array in a store, as a tensor that is read in parts.

    Made by :func:`relayout.open`. It is indexed by logical indices, whatever the store keeps: an array
    ``[N, H, W, C]`` that is known as ``nhwc`` is sliced as n, c, h, w.

    Attributes
    ----------
    desc : MemoryDesc
        Logical sizes, data type and format.
    stored : Stored
        What reads and writes its chunks.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.desc: MemoryDesc = stored.desc
        self._side = Side.of(stored)

    @property
    def address(self) -> Address:
        """Where it is, as plain data that any process can open."""
        return self.stored.address

    @property
    def dims(self) -> tuple[int, ...]:
        """The logical sizes."""
        return self.desc.dims

    @property
    def shape(self) -> tuple[int, ...]:
        """The same, as NumPy calls it."""
        return self.desc.dims

    @property
    def ndim(self) -> int:
        """The number of logical axes."""
        return self.desc.rank

    @property
    def dtype(self) -> DType:
        """The data type of the elements; that of integers of their width where the store has a type that
        Relayout moves and does not convert (uint16, bool, complex64). Slices have that of the store.
        """
        return self.desc.dtype

    @property
    def format(self) -> Format | None:
        """The format of the array in the store."""
        return self.desc.format

    @property
    def chunks(self) -> tuple[int, ...]:
        """The sizes of a chunk, of the physical array: what is read as one."""
        return self.stored.chunks

    @property
    def grid(self) -> Grid:
        """The physical array and its chunks."""
        return self._side.cells.stored

    @property
    def cells(self) -> Cells:
        """The chunks as boxes of logical indices."""
        return self._side.cells

    @property
    def layout(self) -> Layout:
        """Where every element lies if all chunks lie one behind the other: the outer digits, of which there
        are :attr:`outer_digits`, are the name of a chunk, the others the place in it.
        """
        return chunk_layout(self.desc, self.chunks)[0]

    @property
    def outer_digits(self) -> int:
        """How many of the digits of :attr:`layout` stand in the name of a chunk."""
        return chunk_layout(self.desc, self.chunks)[1]

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, and of the padding of its format, decoded."""
        return self.desc.nbytes

    def read(
        self, box: Sequence[tuple[int, int]] | None = None, format: str | Format | None = None
    ) -> Tensor:
        """Read a part, in any format. Only the chunks that it lies in are read, one at a time.

        Parameters
        ----------
        box : sequence of (int, int), optional
            The start and stop of every axis; without it, all.
        format : str or Format, optional
            The format of the result; without one the logical order, row-major.

        Raises
        ------
        LayoutError
            The box does not lie within the tensor, or a chunk is damaged.
        OSError
            A chunk can't be read.
        """
        part = tuple((0, size) for size in self.dims) if box is None else _checked(box, self.dims)
        sizes = tuple(stop - start for start, stop in part)
        roles = self.desc.layout.roles
        wanted = plain(len(sizes)).with_roles(roles) if format is None else Format(format)
        desc = MemoryDesc(sizes, self.dtype, wanted)
        out = aligned(desc.nbytes)
        if 0 in sizes:
            return Tensor(desc, out)
        cells = self._side.cells
        mover = Mover(cells, _Part(desc, part), Attributes())
        for cell in product(*cells.grid.touched(part)):
            mover.move(cell, read_cell(self._side, cell, self._chunk), (0,) * len(sizes), out, part)
        return Tensor(desc, out)

    def _chunk(self, chunk: Index) -> Bytes:
        data = self.stored.read(chunk)
        return filled(self.stored, chunk) if data is None else data

    def numpy(self) -> NDArray[Any]:
        """All of it, as a logical array."""
        return self[()]

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """A part as a logical array, as NumPy slices: numbers, slices with a step, ``...`` and ``None``."""
        numbers, rest = _split(key, self.dims)
        found = self.read(numbers).numpy()
        if self.stored.element != self.dtype.name:  # read as integers of its width
            found = found.view(self.stored.element)
        made: NDArray[Any] = found[rest]
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a tensor in a store can't be had without reading it into new memory")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __len__(self) -> int:
        if not self.dims:
            raise TypeError("a tensor without axes has no length")
        return self.dims[0]

    def plan(self, path: Any, format: str | Format | None = None, **options: Any) -> Plan:
        """Plan its conversion into another store, with the parameters of :func:`relayout.stores.plan`."""
        with lock():
            from relayout.stores.planning import plan

        return plan(self, path, format, **options)

    def __repr__(self) -> str:
        return (
            f"LazyTensor({self.address.spelled!r}, {str(self.desc)!r}, chunks={self.chunks}, "
            f"{self.grid.total} of them)"
        )


class _Part(Cells):
    """A part of a tensor as the only cell of an array of its own."""

    def __init__(self, desc: MemoryDesc, box: Box) -> None:
        shape = [max(1, digit.extent) for digit in desc.layout.digits]
        super().__init__(desc, shape)
        self._box = box
        self.desc = desc
        self.weights = ((),) * desc.rank  # counted from where the part begins, which cuts no block

    def box(self, cell: Index) -> Box:
        return self._box


def _checked(box: Sequence[tuple[int, int]], dims: tuple[int, ...]) -> Box:
    try:
        made = tuple((as_index(start), as_index(stop)) for start, stop in box)
    except (TypeError, ValueError):
        raise LayoutError(f"a box is (start, stop) for each axis, got {described(box)}") from None
    if len(made) != len(dims) or any(
        not 0 <= start <= stop <= size for (start, stop), size in zip(made, dims, strict=True)
    ):
        raise LayoutError(f"the box {list(made)} does not lie within {spell_dims(dims)}")
    return made


def _split(key: Any, dims: tuple[int, ...]) -> tuple[Box, tuple[Any, ...]]:
    """What a key needs of the array, as a box, and what is left to do with that."""
    keys = list(key) if isinstance(key, tuple) else [key]
    count = sum(1 for one in keys if one is not None and one is not Ellipsis)
    if keys.count(Ellipsis) > 1 or count > len(dims):
        raise IndexError(f"too many indices for a tensor of {len(dims)} axes: {key!r}")
    if Ellipsis not in keys:
        keys.append(Ellipsis)
    at = keys.index(Ellipsis)
    keys[at : at + 1] = [slice(None)] * (len(dims) - count)
    box: list[tuple[int, int]] = []
    rest: list[Any] = []
    for one in keys:
        if one is None:
            rest.append(None)
            continue
        size = dims[len(box)]
        if isinstance(one, slice):
            wanted = range(size)[one]
            low, high = (min(wanted), max(wanted) + 1) if wanted else (0, 0)
            box.append((low, high))
            rest.append(slice(None, None, wanted.step))  # from the first, or from the last if it is negative
            continue
        try:
            number = as_index(one)
        except TypeError:
            raise IndexError(
                f"a tensor in a store is indexed by numbers and slices, not by {one!r}"
            ) from None
        if not -size <= number < size:
            raise IndexError(f"index {number} is out of bounds for an axis of size {size}")
        box.append((number % size, number % size + 1))
        rest.append(0)
    return tuple(box), tuple(rest)
