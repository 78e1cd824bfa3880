"""Batches of pictures for a model, normalised and in its format, in one pass: :class:`Collate`.

A decoder gives bytes: u8, height, width, colours. A model wants floats, normalised, often in
``torch.channels_last``, which is the same order of elements. PyTorch's way there is a pass over memory for
each step, four bytes an element in most of them; here each byte is read once and each float written once::

    stack, permute, to float, / 255, - mean, / std, contiguous          seven passes
    each picture into its place of the batch                            one

What is computed
================

In f64, of the byte ``x`` and the values of its channel, each line rounded by itself::

    v = x * (scale / std)
    v = v - mean / std
    result = v in the data type of the batch: one rounding

For f32 these are the bits of ``(x.double() * a - b).float()``, where ``a`` and ``b`` are tensors of f64 with
``scale / std`` and ``mean / std`` of each channel. ``(x.float() / 255 - mean) / std``, computed in f32,
rounds three times more and is off by a few units in the last place where the mean is near; the two differ by
less than 1e-6. For f16 and bf16 PyTorch's ``.to`` rounds an f64 twice, by way of f32; here once, so one value
in many thousands is its neighbour.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from numbers import Real
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from relayout import pytorch as rules
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, counted, described
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.processors import count
from relayout.reorder.attributes import Attributes
from relayout.reorder.conversion import Conversion
from relayout.tensor import Tensor, address, as_bytes
from relayout.torch.memory import large_pages
from relayout.torch.segments import shared

__all__ = ["STACKED", "Collate"]

STACKED: Final = 1 << 14
"""Bytes of a picture below which a batch is stacked first: a call for each would take longer than that."""

COLOURS: Final = 4
"""Channels that a picture has at most where neither mean nor std says how many."""

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FORMATS = {torch.channels_last: "channels_last", torch.contiguous_format: "contiguous_format"}


class Collate:
    """A ``collate_fn`` for a ``DataLoader``: pictures become normalised batches, the rest as PyTorch does it.

    Samples are collated as ``torch.utils.data.default_collate`` collates them: tuples, lists, dictionaries
    and named tuples, in each other; numbers, strings, tensors. Only pictures are treated otherwise: tensors,
    arrays and images of Pillow of u8 with three axes, height, width and channels. Those of a batch have one
    size.

    Parameters
    ----------
    mean, std : float or sequence of float
        What is subtracted, and by what is divided, behind the scale: one for each channel, or one for all.
    dtype : torch.dtype
        Of the batch: ``torch.float32``, ``torch.float16``, ``torch.bfloat16`` or ``torch.float64``.
    memory_format : torch.memory_format
        Of the batch: ``torch.channels_last`` or ``torch.contiguous_format``.
    scale : float
        By what a byte is multiplied first.

    Raises
    ------
    LayoutError
        A parameter is none of these. When it is called: the pictures of a batch differ in size, or no sample
        has a picture.

    Notes
    -----
    The values are ``(x * scale - mean) / std``, computed in f64 and rounded once; the module's page has the
    exact rule. In a worker process the batch is made in shared memory, as ``default_collate`` makes it, so
    nothing is copied on the way to the main process. As many threads work as ``torch.get_num_threads()``
    says, which is one in a worker. Objects can be pickled, so workers may be spawned.

    Examples
    --------
    >>> import torch
    >>> import relayout as rl
    >>> collate = rl.torch.Collate(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    >>> samples = [(torch.full((2, 4, 3), 25 * n, dtype=torch.uint8), n) for n in range(5)]
    >>> pictures, labels = collate(samples)
    >>> pictures.shape, pictures.dtype, labels
    (torch.Size([5, 3, 2, 4]), torch.float32, tensor([0, 1, 2, 3, 4]))
    >>> pictures.is_contiguous(memory_format=torch.channels_last), pictures[4, :, 0, 0]
    (True, tensor([-0.4054, -0.2850, -0.0615]))

    A batch that is an array already, n, h, w, c, is taken as it is:

    >>> collate(torch.zeros(5, 2, 4, 3, dtype=torch.uint8)).stride()
    (24, 1, 12, 3)
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.channels_last,
        scale: float = 1 / 255,
    ) -> None:
        self.mean, self.std = _values(mean, "mean"), _values(std, "std")
        (self.scale,) = _values(scale, "scale", most=1)
        self.dtype, self.memory_format = dtype, memory_format
        if 0.0 in self.std:
            raise LayoutError(f"std {std} has a 0, by which nothing can be divided")
        if dtype not in _FLOATS:
            raise LayoutError(f"batches are of {', '.join(map(str, _FLOATS))}, not of {described(dtype)}")
        if memory_format not in _FORMATS:
            raise LayoutError(
                "batches are in torch.channels_last or torch.contiguous_format, not in "
                f"{described(memory_format)}"
            )
        lengths = {len(values) for values in (self.mean, self.std)} - {1}
        if len(lengths) > 1:
            raise LayoutError(
                f"mean has {counted(len(self.mean), 'value')} and std {len(self.std)}: one for each channel"
            )
        self.channels: int | None = lengths.pop() if lengths else None

    def __repr__(self) -> str:
        return (
            f"Collate(mean={list(self.mean)}, std={list(self.std)}, dtype={self.dtype}, "
            f"memory_format={self.memory_format}, scale={self.scale!r})"
        )

    def __call__(self, samples: Any) -> Any:
        """Make a batch of samples, or of one array of pictures (n, h, w, c)."""
        if isinstance(samples, (torch.Tensor, np.ndarray)) and samples.ndim == 4:
            if not self._fits(samples.shape[1:], samples.dtype):
                raise LayoutError(f"{_said(samples)} is no batch of pictures: {self._rule()}")
            return self._batch([samples], samples.shape[0], tuple(samples.shape[1:]))
        if isinstance(samples, (list, tuple)) and not samples:
            raise LayoutError("a batch is made of one sample or more, got none")
        found: list[Any] = []

        def pictures(batch: Any, *, collate_fn_map: Any = None) -> Any:
            batch = [one if isinstance(one, (torch.Tensor, np.ndarray)) else np.asarray(one) for one in batch]
            first = batch[0]
            if self._fits(first.shape, first.dtype):
                found.append(None)
                return self._collated(batch)
            found.append(_said(first))
            if isinstance(first, torch.Tensor):
                return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
            return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)

        ways = {**default_collate_fn_map, torch.Tensor: pictures, np.ndarray: pictures}
        image = getattr(sys.modules.get("PIL.Image"), "Image", None)
        if image is not None:
            ways[image] = pictures
        made = collate(samples, collate_fn_map=ways)
        if None not in found:
            there = f"; there are {', '.join(found)}" if found else ""
            raise LayoutError(f"no sample has a picture: {self._rule()}{there}")
        return made

    def _rule(self) -> str:
        channels = self.channels or f"1 to {COLOURS}"
        return f"pictures are of u8, with the axes height, width and channels, of which there are {channels}"

    def _fits(self, dims: Sequence[int], dtype: object) -> bool:
        """Whether an array of these dims is a picture."""
        if len(dims) != 3 or dtype not in (torch.uint8, np.uint8):
            return False
        return dims[2] == self.channels if self.channels else 1 <= dims[2] <= COLOURS

    def _collated(self, batch: Sequence[Any]) -> Any:
        dims = tuple(batch[0].shape)
        for k, one in enumerate(batch):
            if tuple(one.shape) != dims or not self._fits(dims, one.dtype):
                raise LayoutError(
                    f"the pictures of a batch have one size, but number {k} is {_said(one)}, and the first "
                    f"is {_said(batch[0])}"
                )
        if prod(dims) < STACKED and len(batch) > 1:
            if all(isinstance(one, torch.Tensor) for one in batch):
                return self._batch([torch.stack(tuple(batch))], len(batch), dims)
            return self._batch([np.stack([np.asarray(one) for one in batch])], len(batch), dims)
        return self._batch(batch, len(batch), dims)

    def _batch(self, parts: Sequence[Any], many: int, dims: tuple[int, ...]) -> Any:
        """The batch of pictures, one by one or all in one array."""
        height, width, channels = dims
        out, target = _empty((many, channels, height, width), self.dtype, self.memory_format)
        if not out.numel():
            return out
        n, c, h, w = out.stride()
        whole = parts[0].ndim == 4
        sizes, steps = ((many, *dims), (n, h, w, c)) if whole else (dims, (h, w, c))
        plan = _plan(sizes, steps, self.dtype, self.scale, self.mean, self.std, torch.get_num_threads())
        for part in parts:
            given = _contiguous(part)
            source = given.data_ptr() if isinstance(given, torch.Tensor) else address(given)
            if not plan.between(source, target, new=True):
                _in_numpy(plan, given, target)
            target += n * out.itemsize
        return out


def _values(given: Any, what: str, most: int | None = None) -> tuple[float, ...]:
    """One number, or one for each channel."""
    if isinstance(given, (torch.Tensor, np.ndarray)):
        given = given.tolist()
    several = [given] if isinstance(given, Real) else given
    numbers = isinstance(several, (list, tuple)) and all(isinstance(value, Real) for value in several)
    if not numbers or not several or (most is not None and len(several) > most):
        wanted = "a number" if most == 1 else "a number, or one for each channel"
        raise LayoutError(f"{what} is {wanted}; got {described(given)}")
    values = tuple(float(value) for value in several)
    if not np.isfinite(values).all():
        raise LayoutError(f"{what} {list(values)} must be finite")
    return values


def _said(given: Any) -> str:
    return f"{type(given).__name__} of {str(given.dtype).removeprefix('torch.')}, {spell_dims(given.shape)}"


def _contiguous(picture: Any) -> Any:
    """The bytes in the order of the axes; decoders give them so, and crops are copied row by row."""
    if not isinstance(picture, torch.Tensor):
        return np.ascontiguousarray(picture)
    if picture.device.type != "cpu":
        raise LayoutError(f"pictures are on the CPU, but one is on the device {picture.device}")
    return picture.contiguous()


def _empty(dims: tuple[int, ...], dtype: torch.dtype, memory_format: torch.memory_format) -> tuple[Any, int]:
    """A batch, and where to write it; in a worker process in memory that the main process has, too."""
    if get_worker_info() is None:
        out = large_pages(torch.empty(dims, dtype=dtype, memory_format=memory_format, device="cpu"))
        return out, out.data_ptr()
    storage, target = shared(prod(dims) * dtype.itemsize)
    strides = rules.strides_for(dims, _FORMATS[memory_format])
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, dims, strides), target


@lru_cache(maxsize=256)
@locked
def _plan(
    dims: tuple[int, ...],
    steps: tuple[int, ...],
    dtype: torch.dtype,
    scale: float,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    threads: int,
) -> Conversion:
    """From bytes in the order of the axes to strides; channels are the last axis of both."""
    channels = np.ones(dims[-1])
    spread = np.array(std) * channels
    attributes = Attributes.make(
        dims,
        src_scale=(scale / spread, len(dims) - 1),
        src_shift=(np.array(mean) / spread, len(dims) - 1),
    ).changed(
        settled=True
    )  # a shift of zeros takes part, so that all is computed in f64, whatever the mean is
    packed = rules.strides_for(dims, "contiguous_format")
    src = MemoryDesc(dims, "u8", strides=packed)
    dst = MemoryDesc(dims, as_dtype(dtype), strides=steps)
    return Conversion.settled(src, dst, attributes, min(threads, count()))


def _in_numpy(plan: Conversion, given: Any, target: int) -> None:
    """The same where there are no kernels."""
    source = given.numpy() if isinstance(given, torch.Tensor) else given
    size = plan.dst.required_bytes
    memory: Any = (ctypes.c_char * size).from_address(target)
    plan(Tensor(plan.src, as_bytes(source)), Tensor(plan.dst, as_bytes(memory)))
