"""PyTorch's tensors as arrays that share their memory, and back.

Who has a ``torch.Tensor`` has imported PyTorch, so it is looked up among the modules that are loaded and
never imported to recognise a tensor. Only :func:`made`, which is asked for one, imports it.

NumPy has no bf16 and no 8-bit floating point. Their bits pass as integers of the same width, and ml_dtypes'
types are put on them again: no element is touched.

What is refused, and why
========================

A tensor is taken if its elements lie in the memory of the CPU at multiples of its strides. So refused are
other devices, ``meta`` and fake tensors (no memory), sparse, nested and mkldnn layouts (no strides),
quantised types (the scale is not in the memory), and tensors with the negative bit (the memory holds the
negated values). Each message says which method makes a tensor that is taken.

Gradients do not flow through Relayout. A tensor that autograd has recorded is therefore refused while
gradients are enabled, as ``Tensor.numpy`` refuses it; parameters, which nothing has been recorded of yet, are
read as they are, so that weights can be packed. Writing to a tensor that requires a gradient is refused
likewise, as PyTorch refuses it as ``out=``. After a write :func:`written` tells autograd, so that a backward
pass that needs the old values raises an error instead of using the new ones.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError, Unsupported, type_name
from relayout.forking import lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["is_tensor", "made", "memory", "written"]

_CARRIED = {
    "bf16": ("int16", "bfloat16"),
    "f8_e4m3": ("uint8", "float8_e4m3fn"),
    "f8_e5m2": ("uint8", "float8_e5m2"),
}
"""The types that NumPy does not have: the integers that carry them, and PyTorch's name."""


def is_tensor(value: object) -> bool:
    """Whether a value is a ``torch.Tensor``, or of a subclass such as ``Parameter``."""
    cls = getattr(sys.modules.get("torch"), "Tensor", None)
    return cls is not None and isinstance(value, cls)


def memory(given: Any, *, writing: bool = False) -> NDArray[Any]:
    """The elements of a ``torch.Tensor`` as an array that shares its memory and keeps it alive.

    Parameters
    ----------
    given : torch.Tensor
        The tensor.
    writing : bool
        Whether its elements are to be written; :func:`written` must be called then.

    Raises
    ------
    LayoutError
        It has no elements in memory, its data type is none of ours, or autograd would be deceived.
    """
    torch = sys.modules["torch"]
    obstacle = _obstacle(given, torch) or _of_autograd(given, torch, writing)
    if obstacle:
        raise LayoutError(f"{type_name(given)} {obstacle}")
    kind = dtype(given.dtype)
    plain = given.detach()
    carried = _CARRIED.get(kind.name)
    try:
        if carried is None:
            elements: NDArray[Any] = plain.numpy()
            return elements
        bits: NDArray[Any] = plain.view(getattr(torch, carried[0])).numpy()
    except (RuntimeError, TypeError) as error:  # fake tensors, zero tensors, those inside of vmap, ...
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"{type_name(given)} has no memory that could be shared: {reason}") from None
    return bits.view(kind.numpy)


def written(given: Any) -> None:
    """Tell autograd that the memory of a ``torch.Tensor`` has been written to."""
    sys.modules["torch"].autograd.graph.increment_version(given)


def made(elements: NDArray[Any], kind: DType) -> Any:
    """A ``torch.Tensor`` that shares the memory of a writeable array without negative strides.

    Raises
    ------
    Unsupported
        PyTorch is not installed.
    """
    torch = _pytorch()
    carried = _CARRIED.get(kind.name)
    if carried is None:
        return torch.from_numpy(elements)
    return torch.from_numpy(elements.view(carried[0])).view(getattr(torch, carried[1]))


def _pytorch() -> Any:
    try:
        with lock():
            return import_module("torch")  # waits for another thread that is not through with it
    except ImportError as error:
        raise Unsupported(f"a torch.Tensor needs PyTorch, which can't be imported: {error}") from error


def _obstacle(given: Any, torch: Any) -> str:
    """Why the elements do not lie in the CPU's memory at multiples of strides; empty: they do."""
    usual = given.is_cpu and given.layout is torch.strided
    if usual and not (given.is_nested or given.is_quantized or given.is_neg()):
        return ""
    if given.is_nested:
        return "is nested: it is several tensors, each with a size of its own; give one of given.unbind()"
    if given.layout is not torch.strided:
        return f"has the layout {given.layout}, which is no strides; give x.to_dense()"
    if given.device.type == "meta":
        return "is on the device meta: it has sizes, but no memory"
    if given.device.type != "cpu":
        return f"is on the device {given.device}; give x.cpu()"
    if given.is_quantized:
        return (
            f"is quantised ({given.dtype}): its scale and zero point are not in its memory; give "
            "x.int_repr(), and them as src_scale and src_zero_point"
        )
    return "has its negative bit set: its memory holds the negated values; give x.resolve_neg()"


def _of_autograd(given: Any, torch: Any, writing: bool) -> str:
    """What is wrong with a tensor for autograd's sake; empty: nothing."""
    if not given.requires_grad or not torch.is_grad_enabled():
        return ""
    if writing:
        return (
            "requires a gradient, so autograd must see every write to it; give x.detach(), or write under "
            "torch.no_grad()"
        )
    if given.grad_fn is not None:
        return (
            f"was recorded by autograd ({given.grad_fn.name()}), and gradients don't flow through Relayout; "
            "give x.detach(), or read it under torch.no_grad()"
        )
    return ""
