"""``contiguous`` and ``to`` with PyTorch's results, faster: see :func:`contiguous` and :func:`to`.

A call goes one of three ways::

    it has nothing to do                                  x itself, as PyTorch
    a plain tensor, large enough, types as in EXACT       a kernel                      .moving
    anything else                                         x.contiguous(...), x.to(...)

The last is PyTorch's own result, or its own error. While ``torch.compile`` or ``torch.export`` looks on, a
conversion is one operator of the graph, ``relayout::convert`` (:mod:`.operators`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._prims_common import suggest_memory_format

from relayout.torch.moving import LEAST, converted
from relayout.torch.operators import convert, in_graphs
from relayout.torch.plain import TYPES, is_plain, is_watched

__all__ = ["contiguous", "to"]

_PRESERVE = torch.preserve_format
_OPTIONS = frozenset({"dtype", "memory_format", "copy", "non_blocking"})


def contiguous(x: Any, memory_format: Any = torch.contiguous_format) -> Any:
    """``x.contiguous(memory_format=memory_format)``, two to seven times as fast.

    Parameters
    ----------
    x : torch.Tensor
        Any tensor. What kernels do not take (other devices, sparse and quantised tensors, subclasses, those
        inside of ``torch.func`` and under modes, small ones) is left to PyTorch.
    memory_format : torch.memory_format
        ``torch.contiguous_format``, ``torch.channels_last`` (4 axes) or ``torch.channels_last_3d`` (5 axes).

    Returns
    -------
    torch.Tensor
        Exactly PyTorch's: ``x`` itself where it is contiguous in the format already, otherwise a new tensor
        with the same bits, with the same strides, and differentiable where ``x`` is.

    Raises
    ------
    RuntimeError
        Where PyTorch does: the format takes another number of axes.

    Notes
    -----
    A kernel is made for each combination of sizes and strides once PyTorch has moved 64 MiB for it, in some
    milliseconds; later processes find it on disk, and use it from the first 2 MiB on. It uses as many threads
    as ``torch.get_num_threads()`` says.

    Examples
    --------
    >>> import torch
    >>> import relayout as rl
    >>> x = torch.arange(24.0).reshape(1, 2, 3, 4)
    >>> y = rl.torch.contiguous(x, torch.channels_last)
    >>> y.stride(), y.equal(x), rl.torch.contiguous(y, torch.channels_last) is y
    ((24, 1, 8, 2), True, True)
    """
    if torch.compiler.is_compiling():
        if not in_graphs(x) or x.is_contiguous(memory_format=memory_format):
            return x.contiguous(memory_format=memory_format)
        return convert(x, x.dtype, memory_format)
    if type(x) in TYPES and not is_watched():
        if x.is_contiguous(memory_format=memory_format):
            return x
        if x.numel() * x.itemsize >= LEAST and memory_format != _PRESERVE and is_plain(x):
            made = converted(x, x.dtype, memory_format)
            if made is not None:
                return made
    return x.contiguous(memory_format=memory_format)


def to(x: Any, *args: Any, **options: Any) -> Any:
    """``x.to(*args, **options)``: another data type, another memory format, or both in one pass.

    Parameters
    ----------
    x : torch.Tensor
        Any tensor; what kernels do not take is left to PyTorch, as by :func:`contiguous`.
    *args, **options
        Those of ``torch.Tensor.to``: ``dtype``, ``memory_format``, ``copy``, ``non_blocking``, and those that
        are PyTorch's alone, ``device`` and ``other``.

    Returns
    -------
    torch.Tensor
        Exactly PyTorch's: ``x`` itself where there is nothing to do, otherwise a new tensor with the same
        values and strides, differentiable where ``x`` is. A conversion to ``bfloat16`` gives a NaN wherever
        PyTorch gives one, but keeps its sign and leading bits.

    Raises
    ------
    RuntimeError, TypeError
        Where PyTorch does.

    Notes
    -----
    Kernels do the conversions between data types of :data:`relayout.torch.moving.EXACT`.

    Examples
    --------
    >>> import torch
    >>> import relayout as rl
    >>> x = torch.rand(1, 3, 4, 5)
    >>> y = rl.torch.to(x, torch.bfloat16, memory_format=torch.channels_last)
    >>> y.dtype, y.stride(), y.equal(x.to(torch.bfloat16))
    (torch.bfloat16, (60, 1, 15, 3), True)
    """
    if torch.compiler.is_compiling():
        return _to_in_graphs(x, args, options)
    if (
        type(x) in TYPES
        and len(args) + ("dtype" in options) <= 1
        and options.keys() <= _OPTIONS
        and x.numel() * x.itemsize >= LEAST
        and is_plain(x)
    ):
        asked = args[0] if args else options.get("dtype")
        dtype = x.dtype if asked is None else asked
        memory_format = options.get("memory_format")
        if type(dtype) is torch.dtype:
            made = converted(
                x,
                dtype,
                _PRESERVE if memory_format is None else memory_format,
                always=options.get("copy", False) is not False,
            )
            if made is not None:
                return made
    return x.to(*args, **options)


def _to_in_graphs(x: Any, args: Any, options: Any) -> Any:
    """What a graph gets for ``x.to(...)``; of data types alone compilers make better than a call."""
    memory_format = options.get("memory_format", _PRESERVE)
    asked = args[0] if args else options.get("dtype", x.dtype)
    known = len(args) + ("dtype" in options) <= 1 and options.keys() <= _OPTIONS
    if not (known and in_graphs(x) and isinstance(asked, torch.dtype)) or memory_format in (None, _PRESERVE):
        return x.to(*args, **options)
    if asked == x.dtype and not options.get("copy", False) and suggest_memory_format(x) == memory_format:
        return x
    return convert(x, asked, memory_format)
