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
negated values). Each message says what makes a tensor that is taken.

Two kinds look like any other tensor until their memory is asked for. Wrappers (fake and masked tensors, those
inside of ``torch.func`` and ``torch.compile``) have none: their address is 0, or asking for it raises. And a
storage may have been made smaller than its tensors, as FSDP frees parameters; so its size is compared.

How long memory is shared
=========================

``Tensor.numpy`` marks the storage, for ever, as one that can't be resized: an array must not outlive its
memory. That is right for what lasts, and too much for a call, behind which nobody holds the memory. So
:func:`memory` makes the array of a call from the address.

Gradients do not flow through Relayout. A tensor that autograd has recorded is therefore refused while
gradients are enabled, as ``Tensor.numpy`` refuses it; parameters, which nothing has been recorded of yet, are
read as they are, so that weights can be packed. Writing to a tensor that requires a gradient is refused
likewise, as PyTorch refuses it as ``out=``. After a write :func:`written` tells autograd, so that a backward
pass that needs the old values raises an error instead of using the new ones.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.dtypes import DType, dtype
from relayout.errors import LayoutError, Unsupported, type_name
from relayout.forking import lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["dims", "is_tensor", "made", "memory", "refuse_storage", "written"]

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


def refuse_storage(value: object) -> None:
    """Refuse a storage of PyTorch, which looks like a sequence of numbers and holds bytes.

    Raises
    ------
    LayoutError
        It is one.
    """
    torch = sys.modules.get("torch")
    kinds = tuple(getattr(torch, name, type(None)) for name in ("UntypedStorage", "TypedStorage"))
    if value is not None and isinstance(value, kinds):
        raise LayoutError(
            f"{type_name(value)} holds bytes that have no dims and no data type; give the tensor, or "
            "rl.from_buffer(torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()), desc)"
        )


class _Span:
    """Memory at an address, by NumPy's array interface; the array keeps this, and this the tensor."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Any, kind: DType) -> None:
        self.owner = owner
        typestr, item = _typestr(kind)
        self.__array_interface__ = {
            "version": 3,
            "data": (owner.data_ptr(), False),
            "typestr": typestr,
            "shape": tuple(owner.shape),
            "strides": tuple([step * item for step in owner.stride()]),
        }


@lru_cache(maxsize=64)
def _typestr(kind: DType) -> tuple[str, int]:
    """What NumPy calls a data type, or the integers that carry it, and the bytes of an element."""
    item = kind.bits // 8
    return (f"u{item}" if kind.name in _CARRIED else kind.numpy.str), item


def memory(given: Any, *, writing: bool = False, lasting: bool = True) -> NDArray[Any]:
    """The elements of a ``torch.Tensor`` as an array that shares its memory and keeps it alive.

    Parameters
    ----------
    given : torch.Tensor
        The tensor.
    writing : bool
        Whether its elements are to be written; :func:`written` must be called then.
    lasting : bool
        Whether the array may outlive the call that asks for it. PyTorch then refuses to resize the tensor
        from now on; otherwise nothing of the tensor changes.

    Raises
    ------
    LayoutError
        It has no elements in memory, its data type is none of ours, or autograd would be deceived.
    """
    torch = sys.modules["torch"]
    try:
        obstacle = _obstacle(given, torch) or _of_autograd(given, torch, writing)
        if obstacle:
            raise LayoutError(f"{type_name(given)} {obstacle}")
        kind = dtype(given.dtype)
        if kind.bits < 8:
            raise LayoutError(
                f"{type_name(given)} is of {given.dtype}, with which PyTorch does not compute; make a tensor "
                f"of torch.int8 with the values, and give rl.tensor(x, dtype={kind.name!r})"
            )
        obstacle = _of_storage(given, torch)
        if obstacle:
            raise LayoutError(f"{type_name(given)} {obstacle}")
        carried = _CARRIED.get(kind.name)
        elements: NDArray[Any]
        if lasting and given.numel():  # Tensor.numpy forgets the strides of a tensor without elements
            plain = given.detach()
            elements = (plain if carried is None else plain.view(getattr(torch, carried[0]))).numpy()
        else:
            elements = np.asarray(_Span(given, kind))
    except LayoutError:
        raise
    except Exception as error:  # whatever subclasses of tensors raise
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"{type_name(given)} {_NO_MEMORY}: {_wrapped(given, torch, reason)}") from None
    return elements if carried is None else elements.view(kind.numpy)


def dims(given: Any) -> tuple[int, ...]:
    """The sizes of a ``torch.Tensor``.

    Raises
    ------
    LayoutError
        It does not say them.
    """
    try:
        return tuple(given.shape)
    except Exception as error:
        reason = str(error).partition("\n")[0]
        torch = sys.modules["torch"]
        raise LayoutError(f"{type_name(given)} {_NO_MEMORY}: {_wrapped(given, torch, reason)}") from None


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
        return f"has the layout {given.layout}, which has no strides; give x.to_dense()"
    if given.device.type == "meta":
        return (
            "is on the device meta: it has sizes, but no memory; give a tensor with values, such as "
            'torch.empty_like(x, device="cpu")'
        )
    if given.device.type != "cpu":
        return f"is on the device {given.device}; give x.cpu()"
    if given.is_quantized:
        return (
            f"is quantised ({given.dtype}): its scale and zero point are not in its memory; give "
            "x.int_repr(), and them as src_scale and src_zero_point"
        )
    return "has its negative bit set: its memory holds the negated values; give x.resolve_neg()"


_NO_MEMORY = "has no memory that could be shared"


def _of_storage(given: Any, torch: Any) -> str:
    """Why the elements are not where a tensor says that they are; empty: they are."""
    if type(given) not in (torch.Tensor, torch.nn.Parameter):
        fake = sys.modules.get("torch._subclasses.fake_tensor")
        if fake is not None and isinstance(given, fake.FakeTensor):  # PyTorch warns of its address
            return f"{_NO_MEMORY}: {_wrapped(given, torch)}"
    reach = given.numel()
    if not reach:
        return ""
    if not given.is_contiguous():
        reach = 1
        for size, step in zip(given.shape, given.stride(), strict=True):
            reach += (size - 1) * step
    needed = (given.storage_offset() + reach) * given.element_size()
    held = given.untyped_storage().nbytes()
    if held < needed:
        return (
            f"needs {needed} bytes, but its storage has {held}: it was resized, as FSDP frees parameters; "
            "give it while its storage has its full size"
        )
    return "" if given.data_ptr() else f"{_NO_MEMORY}: {_wrapped(given, torch)}"


def _wrapped(given: Any, torch: Any, reason: str = "") -> str:
    """What a tensor without an address is, and what to give instead."""
    if torch.nn.parameter.is_lazy(given):
        return "it is an uninitialised parameter; run its module once, which gives it a size and values"
    try:
        if given._is_zerotensor():
            return "it is a ZeroTensor, of zeros that are stored nowhere; give torch.zeros(x.shape)"
    except Exception:  # a subclass may refuse any question
        pass
    because = f" ({reason})" if reason else ""
    name = type(given).__name__
    if name == "MaskedTensor":
        return f"a masked tensor has no values under its mask{because}; give x.to_tensor(0)"
    if name == "FakeTensor":
        return (
            "a fake tensor has sizes and no values; call Relayout outside of FakeTensorMode and torch.compile"
        )
    return (
        f"it only stands for another tensor{because}; give the plain tensor, and call Relayout outside of "
        "torch.func (vmap, grad, functionalize) and torch.compile"
    )


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
