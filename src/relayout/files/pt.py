"""Checkpoints of PyTorch (``.pt``, ``.pth``): read only, and nothing but tensors.

A checkpoint is a pickle, which may run any code. So it is PyTorch that reads it, with ``weights_only=True``,
which knows tensors, containers and little else; what is refused there is refused here. Its tensors are
mapped, not loaded, if the file is of the present form (a zip archive).

Tensors in dictionaries and lists within each other are called by the way to them, ``model.layer1.weight``.
They keep their strides, so weights that were saved as channels-last are read as they are.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported
from relayout.exchange.mapped import open_regular
from relayout.files.arrays import Given, StoredArray
from relayout.files.elements import by_code, by_dtype
from relayout.files.members import Member, Opened
from relayout.files.spelling import spelled
from relayout.forking import lock
from relayout.tensor import Tensor

__all__ = ["opened", "read"]

LONE: Final = "tensor"  # what the only tensor of a file without names is called
DEEPEST: Final = 32  # containers within each other
MOST: Final = 1_000_000  # tensors and other values; lists that hold each other can be far more than they take
_CODES: Final = {
    "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64", "complex64": "C64",
    "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip


def read(path: Path, given: Given) -> Tensor:
    """Map one tensor of a checkpoint."""
    return opened(path).tensor(given)


def opened(path: Path) -> Opened:
    """The tensors of a checkpoint, by name."""
    open_regular(path).close()  # the system's own errors, and no pipes
    torch = _torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mapped = zipfile.is_zipfile(path)
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # unpickling stumbles over whatever is damaged
        raise LayoutError(
            f"{spelled(path)} can't be read as a checkpoint of PyTorch that holds nothing but weights: "
            f"{_why(error)}"
        ) from None
    tensors: dict[str, Any] = {}
    for count, (name, value) in enumerate(_leaves(content, "", 0, spelled(path))):
        if count > MOST:
            raise LayoutError(f"{spelled(path)} holds more than {MOST} values")
        if isinstance(value, torch.Tensor):
            if name in tensors:
                raise LayoutError(f"{spelled(path)} holds two tensors that are called {spelled(name)}")
            tensors[name or LONE] = value
    return Opened(path, "pt", list(tensors), lambda name: _member(name, tensors[name], path, torch))


def _why(error: Exception) -> str:
    """What is wrong with a file, from what PyTorch says, whose advice is to trust the file and run it."""
    text = str(error)
    named = re.search(r"GLOBAL ([\w.]+)", text)
    if named:
        return f"it refers to {named[1][:100]}, which is no tensor; save the state_dict() of a model"
    if "TorchScript" in text:
        return "it is a TorchScript archive, which is a program; save the state_dict() of the model"
    if "Unsupported" in text:
        return "it holds other objects than tensors and containers; save the state_dict() of a model"
    return "it is damaged or truncated, or no checkpoint at all"


def _leaves(value: Any, name: str, depth: int, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        yield name, value
        return
    if depth == DEEPEST:
        raise LayoutError(f"{where} holds more than {DEEPEST} containers within each other")
    yield name, None  # an empty container counts, too
    for key, each in items:
        yield from _leaves(each, f"{name}.{key}" if name else str(key), depth + 1, where)


def _member(name: str, tensor: Any, path: Path, torch: Any) -> Member:
    where = f"{spelled(path)}: {spelled(name)}"
    called = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise Unsupported(f"{where} is sparse, quantized or without data, of which there are no plain bytes")
    try:
        known = as_dtype(called)
    except LayoutError:
        known = None
    bits = 8 * tensor.element_size()
    code = by_dtype[known.name].code if known is not None else _CODES.get(called)
    assert code is None or by_code[code].bits == bits
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    needed = 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    contiguous = tensor.is_contiguous()
    nbytes = needed * bits // 8
    load = partial(_bytes, tensor, nbytes, torch, where)
    array = StoredArray(
        where, load, nbytes, shape, code or called, bits, known, None if contiguous else strides
    )
    return Member(name, array, lambda: None, "")


def _bytes(tensor: Any, nbytes: int, torch: Any, where: str) -> NDArray[np.uint8]:
    """The bytes of a tensor from its first element to its last, in the storage that it shares."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    begin = tensor.storage_offset() * tensor.element_size()
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    data: NDArray[np.uint8] = storage[begin : begin + nbytes]
    if data.size != nbytes:
        raise LayoutError(f"{where} has {data.size} bytes where its strides reach {nbytes}")
    data.flags.writeable = False
    return data


def _torch() -> Any:
    try:
        with lock():
            import torch
    except ImportError:
        raise Unsupported(
            "checkpoints of PyTorch (.pt, .pth) are pickles, which only PyTorch can read safely; it is not "
            "installed (pip install torch). safetensors files need nothing"
        ) from None
    return torch
