"""The states of a trainer in a file: safetensors, row-major, under their names, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.graph.graph import Value
from relayout.graph.lowering.case import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder import reorder
from relayout.tensor import Tensor

__all__ = ["COUNT", "RATE", "read", "write"]

COUNT, RATE = "training/count", "training/rate"
"""How a file calls the number of steps and the learning rate."""

Path_ = str | PathLike[str]


@locked
def write(path: Path_, states: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Write tensors, each converted into its place in the file, and numbers.

    Raises
    ------
    LayoutError
        The file would not be one of safetensors.
    OSError
        It can't be written; what was there is still there.
    """
    from relayout.files import safetensors
    from relayout.files.outputs import converted

    path = _checked(path)
    plain = {name: row_major(one.dims, one.dtype.name) for name, one in states.items()}
    arrays = {name: np.atleast_1d(np.asarray(one)) for name, one in numbers.items()}
    outputs = [converted(name, desc, "safetensors") for name, desc in plain.items()]
    several = [
        converted(name, MemoryDesc(one.shape, one.dtype, "a"), "safetensors") for name, one in arrays.items()
    ]
    with safetensors.writing(path, [*several, *outputs], True, {}) as writer:
        for output in several:
            with writer.room(output) as room:
                room[:] = arrays[output.name].view(np.uint8)
        for output in outputs:
            with writer.room(output) as room:
                reorder(states[output.name], plain[output.name], out=Tensor(plain[output.name], room))


@locked
def read(path: Path_, wanted: Mapping[str, Value]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file, mapped, and its numbers.

    Raises
    ------
    LayoutError
        One is missing, or has other dims or another data type.
    OSError
        The file can't be read.
    """
    from relayout.files import safetensors
    from relayout.files.arrays import Given

    path = _checked(path)
    opened = safetensors.opened(path)
    found, numbers = {}, {}
    for name, value in wanted.items():
        if name not in opened.names:
            raise LayoutError(
                f"{path} has no {name!r}, which this trainer needs ({value}); it is of another network or "
                f"optimiser, with {len(opened.names)} arrays: {', '.join(opened.names[:4])}, ..."
            )
        one = opened.tensor(Given.make(None, None, None, name))
        there = Value(name, one.dims, one.numpy().dtype)
        if there != value:
            raise LayoutError(f"{path}: its {there} does not fit this trainer's {value}")
        found[name] = one
    for name in {COUNT, RATE} & {*opened.names}:
        numbers[name] = opened.tensor(Given.make(None, None, None, name)).numpy().reshape(-1)[0].item()
    if COUNT not in numbers:
        raise LayoutError(f"{path} has no {COUNT!r}: it is none that a trainer has saved")
    return found, numbers


def _checked(path: Path_) -> Path:
    if Path(path).suffix != ".safetensors":
        raise LayoutError(f"states of training are kept in .safetensors files, not in {path}")
    return Path(path)
