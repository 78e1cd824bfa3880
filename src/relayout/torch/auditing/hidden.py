"""Conversions that a kernel makes within itself: no mode of PyTorch sees them, but their rule is known.

A convolution brings its input and its weight into one format, channels-last if either is taken for it
(:func:`relayout.pytorch.convolution_memory_format`); its backward pass does so with the gradient, too. What
does not lie in that format is copied. Other kernels read contiguous memory only, or pack what has gaps. Tests
hold all of this against PyTorch's profiler. How long a copy takes is measured apart, on tensors like these.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from time import perf_counter
from typing import NamedTuple

import torch

from relayout.pytorch import convolution_memory_format
from relayout.torch.auditing.seen import CHANNELS_LAST, Seen, lies_in

__all__ = ["Hidden", "conversion_seconds", "hidden_in"]

FORWARD = (
    "aten.convolution",
    "aten._convolution",
    "aten.convolution_overrideable",
    "aten.mkldnn_convolution",
)
BACKWARD = ("aten.convolution_backward", "aten.convolution_backward_overrideable")
CONTIGUOUS = tuple(
    f"aten.{name}" for name in ("native_layer_norm", "_softmax", "_log_softmax", "im2col", "index_select")
)
"""Kernels that make their input contiguous, whatever its format is."""

PACKED = tuple(
    f"aten.{name}"
    for name in (
        *("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
        *("reflection_pad2d", "replication_pad2d"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
    )
)
"""Kernels that make their input contiguous in the format that it is taken for."""

CONVERTING = frozenset({*FORWARD, *BACKWARD, *CONTIGUOUS, *PACKED})

ROUNDS = 3


class Hidden(NamedTuple):
    """A tensor that a kernel brings into another format before it reads it."""

    what: str
    """Which operand: ``input``, ``weight``, ``gradient``."""
    src: Seen
    dst: str
    """The format that it is brought into."""


_convolution_format = lru_cache(maxsize=1 << 12)(convolution_memory_format)


def hidden_in(kernel: str, inputs: tuple[Seen, ...], outputs: tuple[Seen, ...] = ()) -> Iterator[Hidden]:
    """The conversions within a kernel, by the formats of what it reads.

    What it writes tells where it goes its own way, as the kernels of small 3-D convolutions do.
    """
    if kernel not in CONVERTING:
        return
    if kernel in CONTIGUOUS or kernel in PACKED:
        one = inputs[0] if inputs else None
        if one is not None and one.order and 0 not in one.dims:
            dst = one.taken_for if kernel in PACKED else "contiguous_format"
            if not lies_in(one.dims, one.strides, dst):
                yield Hidden("input", one, dst if dst in CHANNELS_LAST else "contiguous")
        return
    if kernel in FORWARD:
        operands = dict(zip(("input", "weight"), inputs, strict=False))
    else:
        operands = dict(zip(("gradient", "input", "weight"), inputs, strict=False))
    source, weight = operands.get("input"), operands.get("weight")
    if source is None or weight is None or len(source.dims) != len(weight.dims):
        return
    if 0 in source.dims or 0 in weight.dims:
        return
    rank = len(source.dims)
    dst = "contiguous_format"
    if rank in (4, 5) and not (rank == 5 and source.dtype == "float64"):
        dst = _convolution_format((source.dims, source.strides), (weight.dims, weight.strides))
        if outputs and outputs[0].format == "contiguous" and len(outputs[0].dims) == rank:
            dst = "contiguous_format"
    for what, one in operands.items():
        if len(one.dims) == rank and one.order and not lies_in(one.dims, one.strides, dst):
            yield Hidden(what, one, dst if dst in CHANNELS_LAST else "contiguous")


@cache
def _measured(
    dims: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: str, dst: str, threads: int
) -> float:
    memory_format = getattr(torch, dst if dst in CHANNELS_LAST else "contiguous_format")
    with torch.no_grad():
        x = torch.empty_strided(dims, strides, dtype=getattr(torch, dtype), device=device)
        x.zero_()
        best = float("inf")
        for _ in range(ROUNDS):
            began = perf_counter()
            x.contiguous(memory_format=memory_format)
            if device != "cpu":
                torch.accelerator.synchronize()
            best = min(best, perf_counter() - began)
    return best


def conversion_seconds(hidden: Hidden) -> float:
    """How long such a conversion takes on this machine: measured once for each shape, the best of three."""
    src = hidden.src
    if src.device == "meta":
        return 0.0
    return _measured(src.dims, src.strides, src.dtype, src.device, hidden.dst, torch.get_num_threads())
