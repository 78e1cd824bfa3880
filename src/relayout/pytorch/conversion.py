"""Which strides PyTorch's own conversions return: ``.to``, ``.contiguous``, ``clone``, ``empty_like``.

They look like one operation under four names, and they are not. Each decides by another question whether the
tensor already is what was asked for, and returns it *unchanged* if so:

=================================  ========================================  =====================
call                               returns x itself if                       otherwise
=================================  ========================================  =====================
``x.to(memory_format=f)``          :func:`suggest_memory_format` answers f   a new tensor in f
``x.contiguous(memory_format=f)``  :func:`is_contiguous` holds in f          a new tensor in f
``x.clone(memory_format=f)``       never                                     a new tensor in f
=================================  ========================================  =====================

So ``.to`` goes by the hint and keeps gaps; ``.contiguous`` goes by the elements and adds no hint:

>>> sliced = (8, 64, 7, 7), (6272, 1, 896, 128)            # half the channels of a channels-last tensor
>>> to(*sliced, "channels_last")                           # "is channels_last already": the gaps stay
(6272, 1, 896, 128)
>>> contiguous(*sliced, "channels_last")
(3136, 1, 448, 64)

>>> grey = (8, 1, 7, 7), (49, 49, 7, 1)                    # C == 1: contiguous in both formats
>>> contiguous(*grey, "channels_last")                     # "is contiguous already": no hint is written
(49, 49, 7, 1)
>>> to(*grey, "channels_last")
(49, 1, 7, 1)

Without a format, ``clone`` and ``empty_like`` *preserve*: equal strides for a dense tensor, and for any other
packed strides with the axes in the same memory order (:func:`relayout.pytorch.dense_strides_like`).

Sources: ``to_will_alias`` and ``_to_copy`` in ``TensorConversions.cpp``, ``contiguous`` in
``TensorProperties.cpp``, ``empty_like`` and ``clone`` in ``TensorFactories.cpp``, PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from relayout.pytorch.density import is_non_overlapping_and_dense
from relayout.pytorch.formats import is_contiguous, strides_for, suggest_memory_format
from relayout.pytorch.geometry import Strides, checked_format, checked_geometry
from relayout.pytorch.propagation import dense_strides_like

__all__ = ["clone", "contiguous", "contiguous_copies", "empty_like", "to", "to_copies"]


def to(dims: Iterable[int], strides: Iterable[int], memory_format: object = "preserve_format") -> Strides:
    """Return the strides of ``x.to(memory_format=...)``.

    The tensor itself, gaps and all, where :func:`~relayout.pytorch.suggest_memory_format` names the format
    already (and for ``preserve_format``); otherwise a new, packed tensor.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.
    memory_format : str
        ``"contiguous_format"``, ``"channels_last"``, ``"channels_last_3d"`` or ``"preserve_format"``.

    Raises
    ------
    LayoutError
        The format does not take this rank.

    Examples
    --------
    >>> to((2, 3, 4, 5), (60, 20, 5, 1), "channels_last")
    (60, 1, 15, 3)
    >>> to((3, 2), (1, 3), "contiguous_format")            # transposed, yet "contiguous_format": unchanged
    (1, 3)
    """
    sizes, steps = checked_geometry(dims, strides)
    return strides_for(sizes, memory_format) if to_copies(sizes, steps, memory_format) else steps


def to_copies(dims: Iterable[int], strides: Iterable[int], memory_format: object = "preserve_format") -> bool:
    """Tell whether ``x.to(memory_format=...)`` makes a new tensor; if not, it returns x itself.

    >>> to_copies((8, 64, 1, 1), (64, 1, 1, 1), "channels_last")           # only the hint is missing, and yet
    True
    """
    name = checked_format(memory_format, allow_preserve=True)
    return name != "preserve_format" and suggest_memory_format(dims, strides) != name


def contiguous(
    dims: Iterable[int], strides: Iterable[int], memory_format: object = "contiguous_format"
) -> Strides:
    """Return the strides of ``x.contiguous(memory_format=...)``.

    The tensor itself where :func:`~relayout.pytorch.is_contiguous` holds in the format, whatever the
    strides of its size-1 axes hint at; otherwise a new, packed tensor. ``preserve_format`` is refused, as
    in PyTorch, unless the tensor is in ``contiguous_format`` and is returned without a look at the format.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.
    memory_format : str
        ``"contiguous_format"``, ``"channels_last"`` or ``"channels_last_3d"``.

    Raises
    ------
    LayoutError
        The format does not take this rank.

    Examples
    --------
    >>> contiguous((2, 3, 4, 5), (60, 20, 5, 1), "channels_last")
    (60, 1, 15, 3)
    >>> contiguous((3, 2), (1, 3))
    (2, 1)
    """
    sizes, steps = checked_geometry(dims, strides)
    return strides_for(sizes, memory_format) if contiguous_copies(sizes, steps, memory_format) else steps


def contiguous_copies(
    dims: Iterable[int], strides: Iterable[int], memory_format: object = "contiguous_format"
) -> bool:
    """Tell whether ``x.contiguous(memory_format=...)`` makes a new tensor; if not, it returns x itself.

    >>> contiguous_copies((8, 64, 1, 1), (64, 1, 1, 1), "channels_last")
    False
    """
    name = checked_format(memory_format, allow_preserve=True)
    if name == "preserve_format":
        if is_contiguous(dims, strides):
            return False
        checked_format(name)  # refuses it
    return not is_contiguous(dims, strides, memory_format)


def empty_like(
    dims: Iterable[int], strides: Iterable[int], memory_format: object = "preserve_format"
) -> Strides:
    """Return the strides of ``torch.empty_like(x, memory_format=...)``; also of zeros_like, rand_like, ...

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.
    memory_format : str
        ``"preserve_format"``: the strides of x if x is dense and does not overlap, otherwise packed strides
        with the axes in the same memory order. Any other format: that format.

    Raises
    ------
    LayoutError
        The format does not take this rank.

    Examples
    --------
    >>> empty_like((2, 3, 4, 5), (60, 1, 15, 3))
    (60, 1, 15, 3)
    >>> empty_like((2, 3, 4, 5), (0, 1, 30, 6))                    # gaps and an expanded batch
    (60, 1, 15, 3)
    >>> empty_like((2, 3, 4, 5), (60, 1, 15, 3), "contiguous_format")
    (60, 20, 5, 1)
    """
    sizes, steps = checked_geometry(dims, strides)
    name = checked_format(memory_format, allow_preserve=True)
    if name != "preserve_format":
        return strides_for(sizes, name)
    return steps if is_non_overlapping_and_dense(sizes, steps) else dense_strides_like(sizes, steps)


def clone(dims: Iterable[int], strides: Iterable[int], memory_format: object = "preserve_format") -> Strides:
    """Return the strides of ``x.clone(memory_format=...)``: those of :func:`empty_like`, and filled.

    Unlike ``.to`` and ``.contiguous`` it never returns x itself, so ``x.clone(memory_format=f)`` is the one
    call that always gives packed strides in f, hint included.

    >>> clone((8, 64, 1, 1), (64, 1, 1, 1), "channels_last")
    (64, 1, 64, 64)
    """
    return empty_like(dims, strides, memory_format)
