"""What a tensor's strides mean to PyTorch, gathered in one value that prints itself in words.

For the user whose network lost channels-last on the way and who wants to know where, why, and how to get it
back: print ``x.shape`` and ``x.stride()`` there and hand them to :func:`explain`.

>>> print(explain((8, 64, 1, 1), (64, 1, 1, 1)))
dims (8, 64, 1, 1), strides (64, 1, 1, 1)
<BLANKLINE>
formats       contiguous_format and channels_last at once: H and W have size 1, so both place every
              element alike.
taken for     contiguous_format. Where the elements leave it open, PyTorch goes by the strides of
              size-1 axes: they place no elements, and give no hint here; a new channels_last tensor
              has (64, 1, 64, 64). It can be mistaken for channels_last: it may be a channels_last
              tensor that lost its hint.
memory        dense: 512 elements in 512 places, without gap and without overlap.
convolution   The next convolution treats it as contiguous_format and computes in that format,
              unless its weight is taken for channels_last: either of the two is enough.
element-wise  -x has strides (64, 1, 1, 1): contiguous_format.
calls         x.to(memory_format=torch.contiguous_format) returns x itself.
              x.contiguous(memory_format=torch.contiguous_format) returns x itself.
              x.to(memory_format=torch.channels_last) copies; strides (64, 1, 64, 64).
              x.contiguous(memory_format=torch.channels_last) returns x itself.
to be sure    contiguous_format: nothing to do.
              channels_last: x.as_strided((8, 64, 1, 1), (64, 1, 64, 64)) writes the hint, without a
              copy. .contiguous does not write it, .to copies for it.

The value itself can be asked:

>>> report = explain((8, 64, 1, 1), (64, 1, 1, 1))
>>> report.memory_formats, report.suggested, report.mistakable
(('contiguous_format', 'channels_last'), 'contiguous_format', ('channels_last',))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from relayout.errors import LayoutError, described
from relayout.pytorch.conversion import contiguous_copies, to_copies
from relayout.pytorch.convolution import strides_seen_by_convolution
from relayout.pytorch.density import is_non_overlapping_and_dense, overlaps
from relayout.pytorch.formats import (
    channels_last_of_rank,
    is_contiguous,
    rank_of,
    strides_for,
    suggest_memory_format,
)
from relayout.pytorch.geometry import Dims, Strides, checked_geometry
from relayout.pytorch.propagation import NUMBER, elementwise
from relayout.pytorch.wording import in_words

__all__ = ["Conversion", "Explanation", "Remedy", "explain"]


@dataclass(frozen=True)
class Conversion:
    """What one call of PyTorch would do to the tensor."""

    call: str
    """The call, as written in Python."""
    copies: bool
    """True: a new tensor; False: the tensor itself is returned."""
    strides: Strides | None
    """Strides of the result in elements; None where PyTorch refuses the call for its number of axes."""


@dataclass(frozen=True)
class Remedy:
    """How to make sure that the tensor is in a format and that PyTorch takes it for that."""

    memory_format: str
    """The format wanted."""
    state: Literal["done", "hint missing", "gaps", "other order", "impossible"]
    """What is missing; ``impossible`` where PyTorch does not even take a new tensor of the format for it."""
    call: str
    """The cheapest call that does it, ``""`` where there is nothing to do or to be done."""
    copies: bool
    """Whether that call copies the elements."""


@dataclass(frozen=True)
class Explanation:
    """The answer of :func:`explain`; ``str()`` of it is the explanation in words."""

    dims: Dims
    """Sizes."""
    strides: Strides
    """Strides in elements."""
    memory_formats: tuple[str, ...]
    """Every format in which the tensor is contiguous: what the strides *are*."""
    suggested: str
    """The format that PyTorch takes the strides for."""
    dense: bool
    """Whether the elements fill their memory exactly once (*non-overlapping and dense*)."""
    overlapping: bool | None
    """Whether two indices share an address; None where this is too hard to tell."""
    broadcast_axes: tuple[int, ...]
    """Axes of stride 0 and size above 1: one element seen many times."""
    convolution: str | None
    """The format that the next convolution takes the tensor for; None where none takes the rank."""
    unary_strides: Strides
    """Strides of an element-wise operation on the tensor alone, such as ``-x``."""
    number_strides: Strides
    """Strides of an element-wise operation with a number, such as ``x + 1``."""
    conversions: tuple[Conversion, ...]
    """What ``.to`` and ``.contiguous`` would do, for each format that concerns this rank."""
    remedies: tuple[Remedy, ...]
    """For each format of this rank, how to have it without doubt."""

    @property
    def mistakable(self) -> tuple[str, ...]:
        """Formats that the elements are in, but that PyTorch does not take them for."""
        return tuple(name for name in self.memory_formats if name != self.suggested)

    @property
    def ambiguous(self) -> bool:
        """Whether the elements lie in the order of more than one format."""
        return len(self.memory_formats) > 1

    def __str__(self) -> str:
        return in_words(self)


def explain(dims: Any, strides: Iterable[int] | None = None) -> Explanation:
    """Explain what these strides mean to PyTorch: which formats they are, and which they are taken for.

    Parameters
    ----------
    dims : sequence of int or torch.Tensor
        The sizes; or a tensor of PyTorch, which has both.
    strides : sequence of int, optional
        Strides in elements, as ``x.stride()``; with dims only.

    Returns
    -------
    Explanation
        Print it for the explanation in words, or ask its fields.

    Raises
    ------
    LayoutError
        Dims and strides that no tensor of PyTorch can have.

    Examples
    --------
    Half of the channels, sliced from a channels-last tensor. ``.to`` believes that nothing is to be done:

    >>> report = explain((8, 64, 7, 7), (6272, 1, 896, 128))
    >>> report.memory_formats, report.suggested, report.dense
    ((), 'channels_last', False)
    >>> for conversion in report.conversions[2:]:
    ...     print(conversion.call, conversion.copies)
    x.to(memory_format=torch.channels_last) False
    x.contiguous(memory_format=torch.channels_last) True
    >>> report.remedies[1].state, report.remedies[1].call
    ('gaps', 'x.contiguous(memory_format=torch.channels_last)')
    """
    geometry = sizes, steps = checked_geometry(*_geometry_of(dims, strides))
    rank = len(sizes)
    seen = strides_seen_by_convolution(*geometry)
    channels_last = channels_last_of_rank(rank)
    formats = ("contiguous_format", *((channels_last,) if channels_last else ()))
    # An image without batch is often asked to be channels_last, so the refusal belongs to the answer.
    calls = formats if rank != 3 else (*formats, "channels_last")
    return Explanation(
        dims=sizes,
        strides=steps,
        memory_formats=tuple(name for name in formats if is_contiguous(*geometry, name)),
        suggested=suggest_memory_format(*geometry),
        dense=is_non_overlapping_and_dense(*geometry),
        overlapping=overlaps(*geometry),
        broadcast_axes=tuple(
            axis
            for axis, (size, step) in enumerate(zip(sizes, steps, strict=True))
            if step == 0 and size > 1 and 0 not in sizes
        ),
        convolution=suggest_memory_format(*seen) if seen else None,
        unary_strides=elementwise([geometry]),
        number_strides=elementwise([geometry, NUMBER]),
        conversions=tuple(conversion for name in calls for conversion in _conversions(*geometry, name)),
        remedies=tuple(_remedy(*geometry, name) for name in formats),
    )


def _geometry_of(given: Any, strides: Iterable[int] | None) -> tuple[Iterable[int], Iterable[int]]:
    if strides is not None:
        return given, strides
    if hasattr(given, "shape") and callable(getattr(given, "stride", None)):
        return tuple(given.shape), tuple(given.stride())
    raise LayoutError(
        "explain takes a torch.Tensor, or dims and strides: explain(x.shape, x.stride()); got "
        f"{described(given)}"
    )


def _conversions(dims: Dims, strides: Strides, name: str) -> tuple[Conversion, Conversion]:
    to_call, contiguous_call = (f"x.{method}(memory_format=torch.{name})" for method in ("to", "contiguous"))
    if rank_of(name) not in (None, len(dims)):
        return Conversion(to_call, False, None), Conversion(contiguous_call, False, None)
    new = strides_for(dims, name)
    to_new, contiguous_new = to_copies(dims, strides, name), contiguous_copies(dims, strides, name)
    return (
        Conversion(to_call, to_new, new if to_new else strides),
        Conversion(contiguous_call, contiguous_new, new if contiguous_new else strides),
    )


def _remedy(dims: Dims, strides: Strides, name: str) -> Remedy:
    new = strides_for(dims, name)
    placed = is_contiguous(dims, strides, name)
    hinted = suggest_memory_format(dims, strides) == name
    if placed and hinted:
        return Remedy(name, "done", "", copies=False)
    if suggest_memory_format(dims, new) != name:
        return Remedy(name, "impossible", "", copies=False)
    if placed:
        return Remedy(name, "hint missing", f"x.as_strided({dims}, {new})", copies=False)
    state: Literal["gaps", "other order"] = (
        "gaps" if hinted and name != "contiguous_format" else "other order"
    )
    return Remedy(name, state, f"x.contiguous(memory_format=torch.{name})", copies=True)
