"""Sizes, strides and memory-format names as PyTorch accepts them, checked once at the door.

PyTorch describes a dense tensor by two lists of one number an axis: its *sizes* (here ``dims``) and its
*strides*, how many elements lie between neighbours along that axis. There is no third item: a tensor does not
remember which memory format it was made in. Everything in :mod:`relayout.pytorch` is a function of these two lists.

>>> checked_geometry([2, 3], [3, 1])
((2, 3), (3, 1))
>>> checked_geometry([2, 3], [3])
Traceback (most recent call last):
    ...
relayout.errors.LayoutError: dims (2, 3) have 2 axes but strides (3,) have 1: give one stride (in elements) for each axis
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from relayout.errors import LayoutError, UnknownFormat

__all__ = [
    "MEMORY_FORMATS",
    "Dims",
    "Strides",
    "checked_dims",
    "checked_format",
    "checked_geometry",
    "checked_strides",
]

Dims = tuple[int, ...]
Strides = tuple[int, ...]

MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d")
"""The formats that say where elements lie; ``preserve_format`` is a wish (*as the source*), not a format."""

_LIMIT = 2**63  # PyTorch keeps sizes and strides as signed 64-bit integers


def _integers(values: Iterable[int], name: str) -> tuple[int, ...]:
    try:
        return tuple(map(index, values))
    except TypeError:
        raise LayoutError(f"{name} must be a sequence of integers, one for each axis, not {values!r}") from None


def _check_range(values: tuple[int, ...], axis_word: str, negative: str) -> None:
    for axis, value in enumerate(values):
        if value < 0:
            raise LayoutError(f"axis {axis} has {axis_word} {value}: {negative}")
        if value >= _LIMIT:
            raise LayoutError(f"axis {axis} has {axis_word} {value}, more than the 2**63 - 1 that PyTorch can hold")


def checked_dims(dims: Iterable[int]) -> Dims:
    """Return ``dims`` as a tuple of ints; LayoutError for what cannot be the sizes of a tensor."""
    sizes = _integers(dims, "dims")
    _check_range(sizes, "size", "sizes count elements and are 0 or more")
    return sizes


def checked_strides(strides: Iterable[int]) -> Strides:
    """Return ``strides`` (elements) as a tuple of ints; LayoutError for what PyTorch cannot hold.

    Negative strides are refused as PyTorch refuses them: where NumPy steps backwards, ``torch.flip`` copies.
    """
    steps = _integers(strides, "strides")
    _check_range(steps, "stride", "PyTorch cannot step backwards (torch.flip copies), strides are 0 or more")
    return steps


def checked_geometry(dims: Iterable[int], strides: Iterable[int]) -> tuple[Dims, Strides]:
    """Return dims and strides (elements) as tuples of equal length; LayoutError otherwise."""
    sizes, steps = checked_dims(dims), checked_strides(strides)
    if len(sizes) != len(steps):
        raise LayoutError(
            f"dims {sizes} have {len(sizes)} axes but strides {steps} have {len(steps)}: "
            "give one stride (in elements) for each axis"
        )
    return sizes, steps


def checked_format(memory_format: object, *, allow_preserve: bool = False) -> str:
    """Return the name of a memory format: ``"channels_last"`` for that text, ``"torch.channels_last"`` or the object.

    PyTorch's own constants print as ``torch.channels_last``, so they are understood without importing torch.

    Parameters
    ----------
    memory_format : str or torch.memory_format
        The format.
    allow_preserve : bool
        Whether ``preserve_format`` means anything to the caller.

    Raises
    ------
    UnknownFormat
        For any other name; the names that exist are listed.

    Examples
    --------
    >>> checked_format("torch.channels_last")
    'channels_last'
    >>> checked_format("nhwc")
    Traceback (most recent call last):
        ...
    relayout.errors.UnknownFormat: 'nhwc' is no memory format of PyTorch: write contiguous_format, channels_last or channels_last_3d
    """
    name = str(memory_format).removeprefix("torch.")
    known = (*MEMORY_FORMATS, "preserve_format") if allow_preserve else MEMORY_FORMATS
    if name in known:
        return name
    if name == "preserve_format":
        raise UnknownFormat(
            "preserve_format asks for the strides of a source and says nothing by itself: "
            f"write {', '.join(MEMORY_FORMATS[:-1])} or {MEMORY_FORMATS[-1]}"
        )
    raise UnknownFormat(
        f"{name!r} is no memory format of PyTorch: write {', '.join(known[:-1])} or {known[-1]}"
    )
