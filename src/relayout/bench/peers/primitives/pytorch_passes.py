"""PyTorch's normalisations, pooling, softmax and activations, for :mod:`relayout.bench.passes`.

What autograd calls, forward and backward. Results are new tensors, as they are for whoever uses PyTorch. Of
blocked formats there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import Any

from relayout.bench.operands import Operands
from relayout.bench.passes import EPSILON, Pass

__all__ = ["FORMATS", "action"]

FORMATS = {"nhwc": "channels_last", "nchw": "", "abc": ""}
"""The memory format of PyTorch for a format."""


def action(work: Pass, operands: Operands) -> Callable[[], Any]:
    """The operation, whose result (or the first of several) is what is compared."""
    torch = import_module("torch")
    last = FORMATS[work.format] == "channels_last"
    made = {"memory_format": torch.channels_last} if last else {}
    src = torch.from_numpy(operands.src).contiguous(**made)
    diff = None if operands.diff is None else torch.from_numpy(operands.diff).contiguous(**made)
    vectors = [torch.from_numpy(one) for one in work.vectors()]
    return _OF[work.kind](torch.ops.aten, work, src, diff, *vectors)


def _batch(aten: Any, work: Pass, src: Any, diff: Any, scale: Any, shift: Any) -> Callable[[], Any]:
    relu = work.how == "relu"

    def forward() -> Any:
        found = aten.native_batch_norm(src, scale, shift, None, None, True, 0.1, EPSILON)
        return (aten.relu(found[0]), *found[1:]) if relu else found

    if diff is None:
        return lambda: forward()[0]
    dst, mean, factor = forward()

    def backward() -> Any:
        coming = aten.threshold_backward(diff, dst, 0) if relu else diff
        given = coming, src, scale, None, None, mean, factor
        return aten.native_batch_norm_backward(*given, True, EPSILON, [True] * 3)[0]

    return backward


def _layer(aten: Any, work: Pass, src: Any, diff: Any, scale: Any, shift: Any) -> Callable[[], Any]:
    row = [work.dims[-1]]

    def forward() -> Any:
        return aten.native_layer_norm(src, row, scale, shift, EPSILON)

    if diff is None:
        return lambda: forward()[0]
    _, mean, factor = forward()
    given = diff, src, row, mean, factor, scale, shift
    return lambda: aten.native_layer_norm_backward(*given, [True] * 3)[0]


def _group(aten: Any, work: Pass, src: Any, diff: Any, scale: Any, shift: Any) -> Callable[[], Any]:
    sizes = *work.dims[:2], prod(work.dims[2:]), work.groups

    def forward() -> Any:
        return aten.native_group_norm(src, scale, shift, *sizes, EPSILON)

    if diff is None:
        return lambda: forward()[0]
    _, mean, factor = forward()
    given = diff, src, mean, factor, scale
    return lambda: aten.native_group_norm_backward(*given, *sizes, [True] * 3)[0]


def _pooling(aten: Any, work: Pass, src: Any, diff: Any, *_: Any) -> Callable[[], Any]:
    window = [work.window] * 2, [work.stride] * 2, [work.padding] * 2
    if work.how == "max":
        if diff is None:
            return lambda: aten.max_pool2d_with_indices(src, *window)[0]
        _, places = aten.max_pool2d_with_indices(src, *window)
        return lambda: aten.max_pool2d_with_indices_backward(diff, src, *window, [1, 1], False, places)
    if diff is None:
        return lambda: aten.avg_pool2d(src, *window)
    return lambda: aten.avg_pool2d_backward(diff, src, *window, False, True, None)


def _softmax(aten: Any, work: Pass, src: Any, diff: Any, *_: Any) -> Callable[[], Any]:
    if diff is None:
        return lambda: aten._softmax(src, -1, False)
    dst = aten._softmax(src, -1, False)
    return lambda: aten._softmax_backward_data(diff, dst, -1, src.dtype)


def _eltwise(aten: Any, work: Pass, src: Any, diff: Any, *_: Any) -> Callable[[], Any]:
    if work.how == "relu":
        return (lambda: aten.relu(src)) if diff is None else lambda: aten.threshold_backward(diff, src, 0)
    return (lambda: aten.gelu(src)) if diff is None else lambda: aten.gelu_backward(diff, src)


_OF: dict[str, Callable[..., Callable[[], Any]]] = {
    "batch_normalization": _batch,
    "layer_normalization": _layer,
    "group_normalization": _group,
    "pooling": _pooling,
    "softmax": _softmax,
    "eltwise": _eltwise,
}
