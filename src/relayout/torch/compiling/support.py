"""Which nodes of a graph of ATen Relayout may take, and why not the others.

A node is taken if its operator has a translation, if all that it reads and writes are dense tensors of known
sizes in the memory of the CPU, and if calling it once more, or earlier, makes no difference: no random
numbers, nothing that is written in place. Whether a kernel does it is known later, when it is planned; what
would run by its definition in NumPy is left to PyTorch, too (:mod:`.program`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

import torch

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.importers.torch.operators import TABLE
from relayout.importers.torch.translation import operator_of

__all__ = ["SCORES", "attends", "impure", "is_getitem", "unsupported", "values_of"]

GETITEM: Final = "_operator.getitem"

MISTOLD: Final = frozenset({"aten.reflection_pad3d.default", "aten.replication_pad3d.default"})
"""Operators that keep channels-last, while PyTorch's fake kernels say that they do not."""

QUOTIENTS: Final = frozenset({
    "aten.floor_divide.default", "aten.floor_divide.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode",
    "aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor",
})  # fmt: skip
"""Operators whose results jump: 1 // 0.1 is 9, while the floor of the rounded quotient is 10."""

SCORES: Final = 1 << 28
"""Bytes of an attention's scores, queries times keys, up to which they are computed as a whole. PyTorch works
through longer sequences in blocks, which takes no memory."""

ATTENTION: Final = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 0,
    "relayout.attention_backward.default": 1,
}
"""Attention, and the place of its queries; keys follow."""


def is_getitem(node: Any) -> bool:
    """Whether a node takes one result of several."""
    return operator_of(node) == GETITEM


def values_of(node: Any) -> tuple[Any, ...]:
    """What is known of the results of a node: fake tensors, numbers."""
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def impure(node: Any) -> bool:
    """Whether it matters when a node runs: it writes to what it reads, or draws random numbers."""
    target = node.target
    schema = getattr(target, "_schema", None)
    if schema is None:
        return node.op == "call_function" and not is_getitem(node) and not _is_plain(target)
    if schema.is_mutable:
        return True
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) and not _without_dropout(node)


def _without_dropout(node: Any) -> bool:
    """Attention, which could draw random numbers, and does not."""
    for place, one in enumerate(node.target._schema.arguments):
        if one.name == "dropout_p":
            more = node.kwargs.get(one.name, one.default_value)
            return bool((node.args[place] if place < len(node.args) else more) == 0)
    return False


def _is_plain(target: Any) -> bool:
    """Arithmetic of sizes."""
    return getattr(target, "__module__", "") in ("_operator", "math", "builtins", "torch")


def unsupported(node: Any) -> str:
    """Why Relayout leaves a node to PyTorch; empty: it takes it."""
    if operator_of(node) not in TABLE:
        return "no translation"
    if operator_of(node) in MISTOLD:
        return "its trace tells other strides than its kernel writes"
    if impure(node):
        return "it writes in place" if node.target._schema.is_mutable else "it draws random numbers"
    if operator_of(node) in ATTENTION:
        place = ATTENTION[operator_of(node)]
        if why := attends(*node.args[place : place + 2]):
            return why
    if operator_of(node) in QUOTIENTS:
        return "a rounded quotient, which PyTorch finds by the exact remainder"
    if _rounds_to_integers(node):
        return "floats to integers, where those that are out of range wrap round in PyTorch"
    for value in _written(node):
        if why := _no_result(value):
            return why
    for value in _read(node):
        if why := _not_readable(value):
            return why
    return ""


CONVERTS: Final = frozenset({
    "aten._to_copy.default", "aten.copy.default", "aten.sum.default", "aten.sum.dim_IntList",
    "aten.prod.default", "aten.prod.dim_int", "aten.cumsum.default", "relayout.convert.default",
})  # fmt: skip
"""Operators that may be asked for another data type."""


def _rounds_to_integers(node: Any) -> bool:
    """Whether floats become integers: Relayout saturates, as most processors do with vectors."""
    if operator_of(node) not in CONVERTS:
        return False
    made = node.meta.get("val")
    integer = isinstance(made, torch.Tensor) and not _is_floating(made) and made.dtype is not torch.bool
    return integer and any(map(_is_floating, _read(node)))


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def attends(query: Any, key: Any) -> str:
    """Why PyTorch does an attention of these better, as far as sizes are known; empty: it does not."""
    q, k = query.meta["val"], key.meta["val"]
    if q.dim() != 4 or k.dim() != 4 or not q.dtype.is_floating_point or q.dtype.itemsize > 4:
        return f"attention of {q.dtype} of {q.dim()} axes"
    sizes = (*q.shape[:3], k.shape[2])
    if all(type(n) is int for n in sizes) and 4 * prod(sizes) > SCORES:
        return f"the scores of {q.shape[2]} queries by {k.shape[2]} keys take {4 * prod(sizes) >> 20} MiB"
    return ""


def _written(node: Any) -> Iterator[Any]:
    """The results that somebody reads."""
    value = node.meta.get("val")
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for user in node.users:
        if is_getitem(user) and user.users:
            yield value[user.args[1]]


def _read(node: Any) -> Iterator[Any]:
    for one in node.all_input_nodes:
        if not isinstance(one.meta.get("val"), (list, tuple)):
            yield one.meta.get("val")


def _no_result(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return "it makes no tensor"
    return _not_readable(value)


def _not_readable(value: Any) -> str:
    """Why a value is none that kernels read and write."""
    if not isinstance(value, torch.Tensor):
        return "it reads what is no tensor"
    if value.device.type != "cpu":
        return f"on the device {value.device}"
    if value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return "not a dense tensor"
    if value.is_neg() or value.is_conj():
        return "negated or conjugated when it is read"
    if not all(type(n) is int for n in (*value.shape, *value.stride())):
        return "sizes that only data decide"
    if not value.numel():
        return "no elements"
    if value.dtype is not torch.bool:
        try:
            as_dtype(value.dtype)
        except LayoutError:
            return f"the data type {value.dtype}"
    return ""
