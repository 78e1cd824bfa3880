"""Weights that a compiled part only moves, so that others may take their places.

The machine code of a part reads most weights in another format than a model has them. Which one that is, and
all else that is decided, follows from sizes; so a part that an earlier process has kept is right for other
weights, too, as long as these are moved as the earlier ones were (:mod:`relayout.primitives.lent`). Of other
weights more is made than a copy: a batch normalisation is folded into filters, equal constants become one,
factors of one are left out. Then the values matter, and are compared.

A weight is *exchangeable* before anything is compiled if

* it is a parameter or buffer of floats, of :data:`LARGE` bytes or more, dense, in memory of its own;
* one operator of the part reads it, and nothing else: views of it, of which the last is the matrix, the
  filters or the table of a product, a convolution or an embedding. Passes either leave such a constant as it
  is or put a new array in its place; no other constant is made of one, and whoever compares constants leaves
  out those that are exchangeable.

And it *was moved* if, when all is compiled, the constants that lie in its memory are as large as all of it.
What was computed of it lies elsewhere. So the values of a weight don't matter if both hold.

A weight of which nothing is said here, or of which either is in doubt, is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import torch

from relayout.primitives.lent import Array, Moved

__all__ = ["LARGE", "exchangeable", "folded", "lendable", "stays", "were_moved"]

LARGE: Final = 1 << 16
"""Bytes of weights from which on it is worth to know that they are only moved."""

WEIGHTS: Final[Mapping[str, int]] = {
    "aten.convolution.default": 1,
    "aten.addmm.default": 2,
    "aten.mm.default": 1,
    "aten.bmm.default": 1,
    "aten.linear.default": 1,
    "aten.matmul.default": 1,
    "aten.embedding.default": 0,
}
"""Operators that read weights as a whole, and as which of their arguments."""

VIEWS: Final = frozenset({
    "aten.t.default", "aten.permute.default", "aten.transpose.int", "aten.view.default",
    "aten.unsqueeze.default", "aten.detach.default", "aten.alias.default",
})  # fmt: skip
"""Operators whose result is all of their argument."""

NORMALS: Final = ("aten._native_batch_norm", "aten.native_batch_norm", "aten.cudnn_batch_norm")
FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)

ROWS: Final = 8
"""Rows of a product by weights that are read as they lie, at most."""


def lendable(array: Any, stays: bool, exchangeable: bool) -> Array:
    """A weight as memory that is lent; without bytes where it is not dense."""
    order = sorted(range(array.ndim), key=lambda k: (-array.strides[k], array.shape[k]))
    whole = array.transpose(order)
    if not whole.flags.c_contiguous:
        return Array(np.empty(0, np.uint8), False, False)
    return Array(whole.reshape(-1).view(np.uint8), stays, exchangeable)


def exchangeable(
    nodes: Collection[Any], outputs: Collection[Any], fixed: Mapping[Any, tuple[str, Any]]
) -> dict[Any, Any]:
    """The weights that nothing but their one operator depends on, as far as the graph tells; and that one.

    Parameters
    ----------
    nodes : collection of torch.fx.Node
        The part.
    outputs : collection of torch.fx.Node
        Those that are read by others.
    fixed : mapping of node to (str, ndarray)
        Its weights.
    """
    inside, ends, found = set(nodes), set(outputs), {}
    for node, (_, data) in fixed.items():
        if node.op != "placeholder" or data.nbytes < LARGE or node.meta["val"].dtype not in FLOATS:
            continue
        if not lendable(data, False, False).data.size:
            continue
        reader = _reader(node, inside, ends, fixed)
        if reader is not None:
            found[node] = reader
    for node in _overlapping(fixed):
        found.pop(node, None)
    return found


def _reader(node: Any, inside: Collection[Any], ends: Collection[Any], fixed: Collection[Any]) -> Any:
    """The one operator that reads a weight, through views; None where there are several, or another one."""
    while True:
        users = [user for user in node.users if user in inside]
        if len(users) != 1 or node in ends:
            return None
        user = users[0]
        if str(user.target) in VIEWS:
            node = user
            continue
        place = WEIGHTS.get(str(user.target))
        given = [one for one in user.args if isinstance(one, torch.fx.Node)]
        alone = place is not None and user.args[place] is node and given.count(node) == 1
        return user if alone and not user.kwargs and user not in fixed else None


def _overlapping(fixed: Mapping[Any, tuple[str, Any]]) -> set[Any]:
    """Weights that share memory with others, or may."""
    spans = sorted((*_bounds(data), k) for k, (_, data) in enumerate(fixed.values()))
    nodes, found, end, last = list(fixed), set(), 0, 0
    for start, stop, k in spans:
        if start < end:
            found |= {nodes[k], nodes[last]}
        if stop > end:
            end, last = stop, k
    return found


def _bounds(array: Any) -> tuple[int, int]:
    """Where the memory of an array begins and ends."""
    if not array.size:
        return 0, 0
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    start = array.__array_interface__["data"][0] + sum(min(0, one) for one in reach)
    return start, start + sum(map(abs, reach)) + array.itemsize


def folded(readers: Mapping[Any, Any]) -> set[Any]:
    """Those weights into which a normalisation will be folded, most likely."""
    return {
        node
        for node, reader in readers.items()
        if any(str(user.target).startswith(NORMALS) for user in reader.users)
    }


def stays(readers: Mapping[Any, Any]) -> set[Any]:
    """Those weights that are read as they lie, most likely: few rows by a matrix, the rows as they come."""
    found = set()
    for node, reader in readers.items():
        if str(reader.target) not in ("aten.addmm.default", "aten.mm.default", "aten.linear.default"):
            continue
        rows = reader.args[WEIGHTS[str(reader.target)] - 1]
        few = prod(reader.meta["val"].shape[:-1]) <= ROWS
        flat = str(rows.target) in VIEWS and rows.args[0].meta["val"].dim() > 2
        if few and not flat:
            found.add(node)
    return found


def were_moved(sizes: Sequence[int], moved: Iterable[Moved]) -> list[bool]:
    """Of which arrays of these sizes all elements were moved, and each once."""
    found = Counter[int]()
    for one in moved:
        found[one.array] += prod(one.src.dims) * one.src.dtype.bits // 8
    return [found[k] == size for k, size in enumerate(sizes)]
