"""What an audit writes down: tensors, and the operators that took and returned them. Frozen data.

A tensor is not kept, only what there is to say of it: sizes, strides, data type, and a *number*, which all
views of one memory share. So it can be told later which operator wrote what another one read.

==================  ====================================================================================
format of a tensor  what it says
==================  ====================================================================================
``channels_last``   the elements lie in that order and in no other (``channels_last_3d`` with 5 axes)
``contiguous``      the elements lie in the order of the axes, and in no other
``both``            both orders are the same bytes: C = 1, or H = W = 1
``gaps``            in the order of channels-last, with gaps: a slice of the channels
``strided``         anything else: transposed, broadcast, sliced
==================  ====================================================================================

>>> describe = lambda dims, strides: Seen(0, dims, strides, "float32", 4, "cpu", "").format
>>> describe((2, 3, 4, 5), (60, 1, 15, 3)), describe((2, 3, 1, 1), (3, 1, 1, 1)), describe((3, 4), (1, 3))
('channels_last', 'both', 'strided')
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from linecache import getline
from math import prod
from typing import NamedTuple

from relayout.pytorch import is_contiguous, suggest_memory_format
from relayout.pytorch.formats import channels_last_of_rank

__all__ = ["CHANNELS_LAST", "Operator", "Seen", "format_of", "lies_in", "order_of"]

CHANNELS_LAST = ("channels_last", "channels_last_3d")

Dims = tuple[int, ...]


@lru_cache(maxsize=1 << 16)
def format_of(dims: Dims, strides: Dims) -> str:
    """The format that the elements lie in, as the table above has it."""
    name = channels_last_of_rank(len(dims))
    contiguous = is_contiguous(dims, strides)
    if name is not None and 0 not in dims:
        if is_contiguous(dims, strides, name):
            return "both" if contiguous else name
        if not contiguous and suggest_memory_format(dims, strides) == name:
            return "gaps"
    return "contiguous" if contiguous else "strided"


lies_in = lru_cache(maxsize=1 << 16)(is_contiguous)
"""Whether elements lie in a memory format."""


@lru_cache(maxsize=1 << 16)
def taken_for(dims: Dims, strides: Dims) -> str:
    """The format that PyTorch takes the strides for."""
    return suggest_memory_format(dims, strides)


@lru_cache(maxsize=1 << 16)
def order_of(dims: Dims, strides: Dims) -> Dims:
    """The axes from slow to fast, without those that nothing steps along: size 1, or broadcast."""
    stepped = [axis for axis, size in enumerate(dims) if size > 1 and strides[axis] > 0]
    return tuple(sorted(stepped, key=lambda axis: -strides[axis]))


@lru_cache(maxsize=1 << 16)
def is_ambiguous(dims: Dims, strides: Dims) -> bool:
    """Whether the elements lie in one format and PyTorch takes the strides for the other."""
    if len(dims) not in (4, 5):
        return False
    lies = format_of(dims, strides)
    if lies in CHANNELS_LAST:
        return taken_for(dims, strides) != lies
    return lies == "contiguous" and taken_for(dims, strides) in CHANNELS_LAST


class Seen(NamedTuple):
    """A tensor as it went by."""

    number: int
    """Which memory: views of one share it."""
    dims: Dims
    strides: Dims
    dtype: str
    itemsize: int
    device: str
    role: str
    """``parameter``, ``buffer``, ``input``, or ``""``: made on the way."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.dims) * self.itemsize

    @property
    def format(self) -> str:
        """See the table of this module."""
        return format_of(self.dims, self.strides)

    @property
    def taken_for(self) -> str:
        """The format that PyTorch takes its strides for: what the next operator reads."""
        return taken_for(self.dims, self.strides)

    @property
    def order(self) -> Dims:
        """The axes from slow to fast."""
        return order_of(self.dims, self.strides)

    @property
    def ambiguous(self) -> bool:
        """Whether the elements lie in one format and PyTorch takes the strides for the other."""
        return is_ambiguous(self.dims, self.strides)

    def __str__(self) -> str:
        return f"{self.format} {'x'.join(map(str, self.dims)) or 'scalar'}"


@dataclass(frozen=True)
class Operator:
    """One call, with what PyTorch ran for it."""

    index: int
    """The how-manieth it was."""
    operator: str
    """What was called: ``softmax``; in the backward pass, what PyTorch ran."""
    kernels: tuple[str, ...]
    """What PyTorch ran: ``aten._softmax``."""
    module: str
    """Where in the model: the path of the module, ``layer1.0.conv2``; ``""`` is the model itself."""
    layer: str
    """The class of that module."""
    file: str
    line: int
    """The line of the program; 0 where there is none."""
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]
    seconds: float
    backward: bool = False
    failed: str = ""
    """What it raised."""

    @property
    def source(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}" if self.line else ""

    @property
    def text(self) -> str:
        """The line of the program."""
        return getline(self.file, self.line).strip() if self.line else ""
