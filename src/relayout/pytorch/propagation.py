"""Which strides an element-wise operation gives its result: the rules of PyTorch's ``TensorIterator``.

``a + b``, ``relu(x)``, ``torch.where``, a comparison: every operation that works element by element
allocates its result by the same two steps. It tries to keep the memory format of its operands, and this is
how a network that was made channels-last once stays so from convolution to convolution, or loses it on the
way.

Step 1: the fast paths
======================

Only if all operands have the same dims (nothing is broadcast), and tried in this order:

1. all contiguous                                   -> ``contiguous_format``
2. all contiguous in ``channels_last`` (4 axes)     -> ``channels_last``
3. all dense, without overlap, with equal strides   -> those strides, to the letter

Path 1 comes first, so a tensor that is contiguous in both formats at once leaves as ``contiguous_format``,
and the hint in the strides of its size-1 axes is gone. There is no path of its own for
``channels_last_3d``; path 3 serves it.

Step 2: sort the axes
=====================

Otherwise the axes are sorted from fast to slow by an insertion sort that starts from the contiguous order. To
compare two axes, the operands are asked *in order*, and the first that has an opinion decides:

* a stride of 0 on either axis (a broadcast): no opinion, ask the next operand;
* different strides: the smaller stride is faster;
* equal strides: the axis of larger size is slower; if it stands so already, no opinion.

If nobody has an opinion, the axes stay as they are (the sort is stable). The result is packed in the order
found. Strides of size-1 axes take part, so here a hint does survive:

>>> x = ((8, 64, 1, 1), (64, 1, 64, 64))                   # contiguous both ways, hinted channels-last
>>> elementwise([x])                                       # -x: fast path 1 drops the hint
(64, 1, 1, 1)
>>> elementwise([x, NUMBER])                               # x + 1: dims differ, so the axes are sorted
(64, 1, 64, 64)

The first operand wins a disagreement, which makes ``a + b`` and ``b + a`` different tensors:

>>> a = ((2, 3, 4, 5), (60, 20, 5, 1))                     # contiguous_format
>>> b = ((2, 3, 4, 5), (60, 1, 15, 3))                     # channels_last
>>> elementwise([a, b]), elementwise([b, a])
((60, 20, 5, 1), (60, 1, 15, 3))

and a broadcast operand has no say along the axes that it is broadcast on:

>>> bias = ((1, 3, 1, 1), (3, 1, 1, 1))
>>> elementwise([bias, b])
(60, 1, 15, 3)

Source of the rules: ``compute_fast_setup_type`` and ``reorder_dimensions`` in ``TensorIterator.cpp``,
PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relayout.errors import LayoutError
from relayout.pytorch.density import is_non_overlapping_and_dense
from relayout.pytorch.formats import is_contiguous, packed_strides, strides_for
from relayout.pytorch.geometry import Dims, Operand, Strides, checked_geometry, checked_operand

__all__ = ["NUMBER", "broadcast_dims", "dense_strides_like", "elementwise"]

NUMBER: tuple[Dims, Strides] = ((), ())
"""The operand that a Python number is: a tensor without axes. It still counts as *other dims* in step 1."""


def elementwise(operands: Iterable[Operand]) -> Strides:
    """Return the strides of what an element-wise operation on these tensors returns.

    Parameters
    ----------
    operands : sequence of (dims, strides)
        The tensors in the order in which the operation takes them: ``torch.where(condition, x, y)`` is
        ``[condition, x, y]``. Dims are broadcast as in PyTorch. A Python number is :data:`NUMBER`, but only
        where the operation makes a tensor of it: ``x + 1``, ``x * 2`` and ``x > 0`` do, ``x ** 2`` and
        ``x.clamp(0)`` work on ``[x]`` alone.

    Returns
    -------
    tuple of int
        Strides in elements, of the broadcast dims.

    Raises
    ------
    LayoutError
        No operands, or dims that do not broadcast.

    Notes
    -----
    Where data types differ, PyTorch on the CPU first converts operands with ``.to(dtype)``, which packs
    them if they have gaps: put :func:`relayout.pytorch.empty_like` of a converted operand in its place.
    In-place operations and ``out=`` keep the strides of the tensor that they write to.

    Examples
    --------
    >>> channels_last = ((2, 3, 4, 5), (60, 1, 15, 3))
    >>> elementwise([channels_last])
    (60, 1, 15, 3)
    >>> elementwise([((4, 1), (1, 1)), ((1, 5), (5, 1))])
    (5, 1)
    """
    tensors = [checked_operand(operand) for operand in operands]
    if not tensors:
        raise LayoutError("an element-wise operation needs at least one operand, given as (dims, strides)")
    shape = broadcast_dims([dims for dims, _ in tensors])
    if all(dims == shape for dims, _ in tensors):
        strides = _fast_path(shape, [strides for _, strides in tensors])
        if strides is not None:
            return strides
    return _sorted_path(shape, [_expanded(shape, dims, strides) for dims, strides in tensors])


def dense_strides_like(dims: Iterable[int], strides: Iterable[int]) -> Strides:
    """Return packed strides with the axes in the memory order of these: PyTorch's ``infer_dense_strides``.

    Step 2 above for one tensor: what ``preserve_format`` makes of gaps, overlaps and broadcast axes.

    Parameters
    ----------
    dims, strides : sequence of int
        Sizes and strides in elements.

    Examples
    --------
    >>> dense_strides_like((2, 3, 4, 5), (240, 1, 30, 6))          # channels-last, sliced
    (60, 1, 15, 3)
    """
    sizes, steps = checked_geometry(dims, strides)
    return _sorted_path(sizes, [steps])


def broadcast_dims(shapes: Iterable[Dims]) -> Dims:
    """Return the dims to which all shapes broadcast, aligned at the last axis; LayoutError if they do not.

    >>> broadcast_dims([(2, 1, 5), (3, 1)])
    (2, 3, 5)
    >>> broadcast_dims([(2, 3), (2, 4)])
    Traceback (most recent call last):
        ...
    relayout.errors.LayoutError: dims (2, 3) and (2, 4) do not broadcast: axis 1 has size 3 and 4, ...
    """
    shape: Dims = ()
    for dims in shapes:
        rank = max(len(shape), len(dims))
        ours, theirs = (1,) * (rank - len(shape)) + shape, (1,) * (rank - len(dims)) + dims
        for axis, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a != b and 1 not in (a, b):
                raise LayoutError(
                    f"dims {shape} and {dims} do not broadcast: axis {axis} has size {a} and {b}, "
                    "and only a size of 1 is stretched"
                )
        shape = tuple(b if a == 1 else a for a, b in zip(ours, theirs, strict=True))
    return shape


def _fast_path(shape: Dims, operands: Sequence[Strides]) -> Strides | None:
    for memory_format in ("contiguous_format", "channels_last"):
        if all(is_contiguous(shape, strides, memory_format) for strides in operands):
            return strides_for(shape, memory_format)
    first = operands[0]
    if all(strides == first for strides in operands) and is_non_overlapping_and_dense(shape, first):
        return first
    return None


def _expanded(shape: Dims, dims: Dims, strides: Strides) -> Strides:
    """Strides over the broadcast shape: 0 where the operand is stretched, its own elsewhere."""
    missing = len(shape) - len(dims)
    own = zip(shape[missing:], dims, strides, strict=True)
    return (0,) * missing + tuple(0 if size == 1 != wanted else stride for wanted, size, stride in own)


def _sorted_path(shape: Dims, operands: Sequence[Strides]) -> Strides:
    order = _memory_order(shape, operands)
    if order == list(range(len(shape) - 1, -1, -1)):
        return strides_for(shape, "contiguous_format")
    return packed_strides(shape, order)


def _memory_order(shape: Dims, operands: Sequence[Strides]) -> list[int]:
    """Axes from fast to slow. The comparison is no total order, so no other sort would do."""
    order = list(range(len(shape) - 1, -1, -1))
    for place in range(1, len(order)):
        moving = place
        for below in range(place - 1, -1, -1):
            verdict = _compare(shape, operands, order[below], order[moving])
            if verdict > 0:
                order[below], order[moving] = order[moving], order[below]
                moving = below
            elif verdict < 0:
                break
    return order


def _compare(shape: Dims, operands: Sequence[Strides], faster: int, slower: int) -> int:
    """Return 1 if the two axes must change places, -1 if they stand right, 0 if no operand has an opinion."""
    for strides in operands:
        a, b = strides[faster], strides[slower]
        if a == 0 or b == 0:
            continue
        if a != b:
            return 1 if a > b else -1
        if shape[faster] > shape[slower]:
            return 1
    return 0
