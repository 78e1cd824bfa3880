"""Sizes, strides and memory-format names as PyTorch accepts them, checked once at the door.

PyTorch describes a dense tensor by two lists of one number an axis: its *sizes* (here ``dims``) and its
*strides*, how many elements lie between neighbours along that axis. There is no third item: a tensor
does not remember which memory format it was made in. Everything in :mod:`relayout.pytorch` is a function
of these two lists.

>>> checked_geometry([2, 3], [3, 1])
((2, 3), (3, 1))
>>> checked_geometry([2, 3], [3])
Traceback (most recent call last):
    ...
relayout.errors.LayoutError: dims (2, 3) have 2 axes but strides (3,) have 1: give one stride ...
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index

from relayout.errors import LayoutError, UnknownFormat

__all__ = [
    "MEMORY_FORMATS",
    "Dims",
    "Operand",
    "Strides",
    "checked_dims",
    "checked_format",
    "checked_geometry",
    "checked_operand",
    "checked_strides",
]

Dims = tuple[int, ...]
Strides = tuple[int, ...]
Operand = tuple[Iterable[int], Iterable[int]]

MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d")
"""The formats that say where elements lie; ``preserve_format`` is a wish (*as the source*), not a format."""

_LIMIT = 2**63  # PyTorch keeps sizes and strides as signed 64-bit integers


def checked_dims(dims: Iterable[int]) -> Dims:
    """Return ``dims`` as a tuple of ints; LayoutError for what cannot be the sizes of a tensor."""
    return _checked(dims, "dims", "size", "sizes count elements and are 0 or more")


def checked_strides(strides: Iterable[int]) -> Strides:
    """Return ``strides`` (elements) as a tuple of ints; LayoutError for what PyTorch cannot hold.

    Negative strides are refused as PyTorch refuses them: where NumPy steps backwards, ``torch.flip`` copies.
    """
    return _checked(strides, "strides", "stride", "PyTorch cannot step backwards, strides are 0 or more")


def _checked(values: Iterable[int], name: str, word: str, rule: str) -> tuple[int, ...]:
    try:
        numbers = tuple(map(index, values))
    except TypeError:
        raise LayoutError(f"{name} {values!r} are no sequence of integers: give one for each axis") from None
    for axis, number in enumerate(numbers):
        if number < 0:
            raise LayoutError(f"axis {axis} has {word} {number}: {rule}")
        if number >= _LIMIT:
            raise LayoutError(f"axis {axis} has {word} {number}: PyTorch holds no more than 2**63 - 1")
    return numbers


def checked_geometry(dims: Iterable[int], strides: Iterable[int]) -> tuple[Dims, Strides]:
    """Return dims and strides (elements) as tuples of equal length; LayoutError otherwise."""
    sizes, steps = checked_dims(dims), checked_strides(strides)
    if len(sizes) != len(steps):
        raise LayoutError(
            f"dims {sizes} have {len(sizes)} axes but strides {steps} have {len(steps)}: "
            "give one stride (in elements) for each axis"
        )
    return sizes, steps


def checked_operand(operand: Operand) -> tuple[Dims, Strides]:
    """Return the (dims, strides) of one tensor among several; LayoutError for anything else.

    >>> checked_operand(2.0)
    Traceback (most recent call last):
        ...
    relayout.errors.LayoutError: operand 2.0 is not a pair (dims, strides): ...
    """
    try:
        dims, strides = operand
    except (TypeError, ValueError):
        raise LayoutError(
            f"operand {operand!r} is not a pair (dims, strides): give two sequences of ints for each tensor, "
            "and ((), ()) for a Python number"
        ) from None
    return checked_geometry(dims, strides)


def checked_format(memory_format: object, *, allow_preserve: bool = False) -> str:
    """Return the name of a memory format, given as a name or as PyTorch's own constant.

    The constants print as ``torch.channels_last`` and so on, so they are understood without importing torch.

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
    relayout.errors.UnknownFormat: 'nhwc' is no memory format of PyTorch: write contiguous_format, ...
    """
    name = str(memory_format).removeprefix("torch.")
    known = (*MEMORY_FORMATS, "preserve_format") if allow_preserve else MEMORY_FORMATS
    if name in known:
        return name
    choice = f"write {', '.join(known[:-1])} or {known[-1]}"
    if name == "preserve_format":
        raise UnknownFormat(
            f"preserve_format names no order of elements, it asks for that of a source: {choice}"
        )
    raise UnknownFormat(f"{name!r} is no memory format of PyTorch: {choice}")
