"""Conversions of plain tensors by kernels: which are possible, when they pay, and doing them.

A *problem* is what a kernel is made for: sizes, strides, data types, the memory format asked for, and how
many threads PyTorch uses. All of it but the addresses is known from the key, so a call looks up its problem
and runs.

When a kernel is made
=====================

PyTorch can do every call, at once and slowly; a kernel takes milliseconds to plan and compile, and is two to
seven times as fast from then on. How often a problem will come nobody knows. So PyTorch does its calls until
they have taken it about as long as the next step takes: whoever rents until the rent has come to the price,
and buys then, never pays more than twice what was the best in hindsight. There are two steps:

===================  ========================================================  =====================
after so many bytes  what is done                                              which takes
===================  ========================================================  =====================
:data:`LOOK`         a look on disk, where earlier processes leave kernels     0.3 milliseconds
:data:`RENT`         the kernel is made                                        12 to 25 milliseconds
===================  ========================================================  =====================

(The first kernel that a process makes takes 150 milliseconds more, since LLVM is loaded for it.)

Which values are PyTorch's
==========================

Where the data type stays the bits are moved, whatever they mean: as integers of the same width. Conversions
between types are those of :data:`EXACT`, in which PyTorch's results and those of :mod:`relayout.convert` are
the same bits. Others differ by definition and are left to PyTorch: floating point to integers (truncated
there, rounded here), narrower integers (wrapped, saturated), f64 to 16 bits (rounded twice, once), anything
to ``float8_e4m3fn`` (saturated, NaN).

Where one of two types has 16 bits or fewer, a NaN becomes *a* NaN: PyTorch itself makes several of one, by
the kernel that converts (from f32 to bf16 0xffff in vectors and 0x7fc0 elsewhere; from f16 to f32 a quiet one
or not). Here sign and payload stay, which is what PyTorch does where it is consistent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch

from relayout import pytorch as rules
from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import count
from relayout.reorder.choice import at_hand
from relayout.reorder.conversion import Conversion
from relayout.torch.memory import large_pages

__all__ = ["EXACT", "LEAST", "RENT", "Problem", "converted", "problem"]

LEAST: Final = 1 << 15
"""Bytes of a tensor below which PyTorch is called: a kernel's call takes 3 microseconds more in Python."""

LOOK: Final = 1 << 21
"""Bytes that PyTorch moves for a problem before a kernel is looked for on disk."""

RENT: Final = 1 << 26
"""Bytes that PyTorch moves for a problem before a kernel is made for it."""

TUNED: Final = 1000
"""Calls that are more than a contest takes."""

EXACT: Final[dict[torch.dtype, tuple[torch.dtype, ...]]] = {
    torch.float64: (torch.float32,),
    torch.float32: (torch.float64, torch.float16, torch.bfloat16),
    torch.float16: (torch.float64, torch.float32, torch.bfloat16),
    torch.bfloat16: (torch.float64, torch.float32, torch.float16),
    torch.float8_e5m2: (torch.float64, torch.float32, torch.float16),
    torch.uint8: (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int16, torch.int32, torch.int64),
    ),
    torch.int8: (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int16, torch.int32, torch.int64),
    ),
    torch.int16: (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int32, torch.int64),
    ),
    torch.int32: (torch.float64, torch.float32, torch.float16, torch.int64),
    torch.int64: (torch.float64, torch.float32, torch.float16),
}
"""The conversions between data types whose results are PyTorch's, bit for bit."""

_WIDTHS = {1: as_dtype("u8"), 2: as_dtype("s16"), 4: as_dtype("s32"), 8: as_dtype("s64")}

_NAMES = {
    torch.contiguous_format: "contiguous_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
    torch.preserve_format: "preserve_format",
}


class Problem:
    """A conversion that kernels can do, from tensors of one geometry to another.

    Attributes
    ----------
    same : bool
        Whether a tensor of this geometry is what ``.to`` is asked for, which returns it then.
    """

    __slots__ = ("_left", "_looked", "_nbytes", "_pair", "_plan", "_threads", "same")

    def __init__(self, src: MemoryDesc, dst: MemoryDesc, threads: int, same: bool) -> None:
        self._pair, self._threads, self.same = (src, dst), min(threads, count()), same
        self._nbytes = max(src.nbytes, dst.nbytes)
        self._left, self._looked = min(LOOK, RENT), False
        self._plan: Conversion | None = None

    @property
    def ready(self) -> bool:
        """Whether kernels do the next call; asked once for each call, since PyTorch does it otherwise."""
        if self._plan is not None:
            return True
        self._left -= self._nbytes
        return self._left < 0 and self._step()

    @locked
    def _step(self) -> bool:
        """Take the kernel from disk, or make it, if it is time for that."""
        if not self._looked:
            self._looked = True
            self._left += RENT - LOOK
            return (at_hand(*self._pair, many=self._threads) or self._left < 0) and self.buy()
        return self.buy()

    @locked
    def buy(self) -> bool:
        """Make the kernel now; False: there is none, and PyTorch does all calls."""
        if self._plan is None:
            self._left = 1 << 62  # as long as it takes, and for ever where kernels can't do it
            plan = Conversion(*self._pair, axes="position", threads=self._threads)
            plan.compile()
            if plan.kernels is None:
                return False
            self._plan = plan
        return True

    def tune(self, source: int, target: int) -> None:
        """Make the kernel now, and hold the contest among schedules, between two addresses of the problem."""
        if self.buy() and self._plan is not None:
            for _ in range(TUNED):
                self._plan.between(source, target)
                if self._plan.is_settled:
                    break

    def made(self, x: Any, dtype: Any, memory_format: Any) -> Any:
        """The result, by the kernel that has been made."""
        assert self._plan is not None
        out = large_pages(torch.empty_like(x, dtype=dtype, memory_format=memory_format))
        self._plan.between(x.data_ptr(), out.data_ptr(), new=True)
        return out


class _Recorded(torch.autograd.Function):
    """The same with a gradient: that of the result, in the data type of the argument."""

    @staticmethod
    def forward(ctx: Any, x: Any, dtype: Any, memory_format: Any, found: Problem) -> Any:
        ctx.dtype = x.dtype
        return _profiled(found, x, dtype, memory_format)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.to(ctx.dtype), None, None, None


def _profiled(found: Problem, x: Any, dtype: Any, memory_format: Any) -> Any:
    if torch.autograd._profiler_enabled():
        with torch.profiler.record_function("relayout::convert"):
            return found.made(x, dtype, memory_format)
    return found.made(x, dtype, memory_format)


def converted(x: Any, dtype: Any, memory_format: Any, always: bool = True) -> Any:
    """A plain tensor in another data type and memory format; None: PyTorch has to do it.

    Parameters
    ----------
    x : torch.Tensor
        For which :func:`~relayout.torch.plain.is_plain` holds.
    dtype, memory_format : torch.dtype, torch.memory_format
        Of the result.
    always : bool
        Make a new tensor also where ``x.to`` would return ``x``.
    """
    found = problem(x.shape, x.stride(), x.dtype, dtype, memory_format, torch.get_num_threads())
    if found is None:
        return None
    if found.same and not always:
        return x
    if not found.ready or not x.data_ptr():
        return None
    if x.requires_grad and torch.is_grad_enabled():
        return _Recorded.apply(x, dtype, memory_format, found)
    return _profiled(found, x, dtype, memory_format)


@lru_cache(maxsize=4096)
def problem(
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    given: torch.dtype,
    asked: torch.dtype,
    memory_format: torch.memory_format,
    threads: int,
) -> Problem | None:
    """The problem of a conversion; None: PyTorch has to do it, or to say what is wrong with it."""
    name = _NAMES.get(memory_format)
    types = _types(given, asked)
    if name is None or types is None or 0 in dims:
        return None
    dims = tuple(dims)
    try:
        steps = rules.empty_like(dims, strides, name)
        same = given == asked and not rules.to_copies(dims, strides, name)
        src = MemoryDesc(dims, types[0], strides=strides)
        dst = MemoryDesc(dims, types[1], strides=steps)
        return Problem(src, dst, threads, same)
    except LayoutError:  # a format of another rank, axes that are too many, strides that are too large
        return None


def _types(given: torch.dtype, asked: torch.dtype) -> tuple[DType, DType] | None:
    """As what a kernel takes two data types; None: their results are not PyTorch's, or there are none."""
    if given == asked:
        width = _WIDTHS.get(given.itemsize)
        return (width, width) if width is not None else None
    return (as_dtype(given), as_dtype(asked)) if asked in EXACT.get(given, ()) else None
