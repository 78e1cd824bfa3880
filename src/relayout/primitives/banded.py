"""Programs whose spatial axes are sparse matrices: resampling, and gradients of it and of pooling.

The kernel (:mod:`relayout.kernels.reduce.bands`) wants what it reads and writes to have the same neighbours,
and is tried as those that combine are (:mod:`~.combining`): as everything lies, then in the order of the
source, then channels-last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout.forking import locked
from relayout.layout.dense import CHANNELS_LAST, dense_like, resized_like
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward.pooling import PoolingBackward as Gradient
from relayout.ops.functions import Function
from relayout.ops.resampling import Matrices, matrices, transposed
from relayout.primitives.combining import separable_step
from relayout.primitives.drafting import Draft, if_possible, kernel_of, kernel_step, moving_step
from relayout.primitives.program import Program, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.kernels.reduce.bands import Bands, Row
    from relayout.primitives.backward.pooling import PoolingBackward
    from relayout.primitives.pooling import Pooling

__all__ = ["banded", "in_two_steps", "picked", "rows_of_pooling", "rows_of_resampling"]


def rows_of_resampling(algorithm: str | Matrices, src: Sequence[int], dst: Sequence[int]) -> list[list[Row]]:
    """The rows of all spatial axes."""
    found = matrices(algorithm, src, dst)
    return [
        [tuple((place, float(np.float32(weight))) for place, weight in row) for row in rows] for rows in found
    ]


def rows_of_pooling(made: Pooling | PoolingBackward) -> list[list[Row]]:
    """For each window its elements, along each axis; for a gradient the windows that each element is in.

    Numbers are weights; of a maximum those of taps, counted in row-major order of the kernel.
    """
    found: list[list[Row]] = []
    backward, average = isinstance(made.operation, Gradient), made.algorithm != "max"
    for k, axis in enumerate(made.axes):
        after = prod(made.kernel[k + 1 :])
        windows: list[Row] = []
        for output in range(axis.out):
            taps = axis.taps(output)
            share = 1 / (max(1, len(taps)) if made.algorithm == "average_exclude_padding" else axis.kernel)
            numbers = [float(np.float32(share)) if average else float(tap * after) for tap in taps]
            places = [axis.place(output, tap) for tap in taps]
            windows.append(tuple(zip(places, numbers, strict=True)))
        found.append(transposed(windows, axis.size) if backward else windows)
    return found


@locked
@if_possible
def in_two_steps(
    src: MemoryDesc, dst: MemoryDesc, rows: Sequence[Sequence[Row]], functions: tuple[Function, ...] = ()
) -> Program | None:
    """The program of a linear resampling along one or two axes, one after the other.

    Parameters are those of :func:`banded`. It is in integers, and exact, where source and destination are
    bytes and weights are fractions with small denominators, and in f32 where channels are neighbours; None
    for others.
    """
    from relayout.kernels.reduce import linear, separable
    from relayout.kernels.reduce.axis import Axis
    from relayout.kernels.reduce.window import planned
    from relayout.targets.machine import host

    if len(rows) > 2:
        return None
    axes = [Axis(n, m) for n, m in zip(src.dims[2:], dst.dims[2:], strict=True)]
    window = planned("sum", "", src, dst, axes, functions)
    if window is None:
        return None
    single: Row = ((0, 1.0),)
    down, along = [[single], *rows][-2:]
    size, note = src.nbytes + dst.nbytes, "both axes in 16 bits"
    step: Step | None = None
    whole = separable.of_weights(window, down, along)
    if whole is not None:
        step = separable_step(whole, "src", "dst", size)
    real = linear.planned(window, down, along, host()) if step is None else None
    if real is not None:
        key, note = ("linear", real), "columns, then rows, in f32"
        step = kernel_step(key, linear.ENTRY, lambda m: linear.module(real, m), "src", "dst", size)
    draft = Draft()
    draft.zeros(dst, "dst")
    draft.add(step)
    return draft.program(note)


@locked
@if_possible
def picked(src: MemoryDesc, dst: MemoryDesc, rows: Sequence[Sequence[Row]]) -> Program | None:
    """The program of a resampling that only moves elements; None where there is no kernel.

    Parameters are those of :func:`banded`.
    """
    from relayout.kernels.reduce import nearest
    from relayout.targets.machine import host

    near = dst.with_layout(resized_like(src.layout, dst.dims))
    for target in (dst, near):
        made = nearest.planned(src, target, rows)
        if made is None or not nearest.suits(made, host()):
            continue
        draft = Draft()
        written = draft.write(dst, target, "dst", "dst moved")
        size, write = src.nbytes + dst.nbytes, partial(nearest.module, made)
        draft.add(moving_step(kernel_of(("nearest", made), nearest.ENTRY, write), "src", written, (), size))
        note = "rows as they are" + "".join(f", {name}" for name in draft.scratch)
        return draft.program(note)
    return None


@locked
@if_possible
def banded(
    src: MemoryDesc,
    dst: MemoryDesc,
    rows: Sequence[Sequence[Row]],
    functions: tuple[Function, ...] = (),
    aside: MemoryDesc | None = None,
    largest: bool = False,
    names: tuple[str, str, str] = ("src", "dst", "workspace"),
) -> Program | None:
    """The program; None where there is no kernel.

    Parameters
    ----------
    src, dst : MemoryDesc
        What is read and written, by the first two names.
    rows : sequence
        For each spatial axis the rows of its matrix; see :func:`~relayout.kernels.reduce.bands.planned`.
    functions : tuple of Function
        What is applied to the sums.
    aside : MemoryDesc, optional
        A workspace, by the third name.
    largest : bool
        Whether the largest element is looked for, and the workspace is written; else it is read, and sums are
        taken.
    """
    from relayout.kernels.reduce.bands import ENTRY, module, planned
    from relayout.targets.machine import host

    last = CHANNELS_LAST[len(src.dims)]
    near = dst.with_layout(resized_like(src.layout, dst.dims))
    ways: list[tuple[MemoryDesc, MemoryDesc]] = [
        (src, dst),
        (src, near),
        (MemoryDesc(src.dims, src.dtype, last), MemoryDesc(dst.dims, dst.dtype, last)),
    ]
    best: tuple[int, Bands, NDArray[np.int32], tuple[MemoryDesc, MemoryDesc, MemoryDesc | None]] | None = None
    for source, target in ways:
        if best is not None and best[0] > 1 and source is not src:
            break
        like = (target if largest else source).layout
        beside = [aside] if aside is None else [aside, aside.with_layout(dense_like(like))]
        for third in beside[source is not src and len(beside) > 1 :]:
            found = planned(source, third, target, rows, largest, functions)
            if found is not None and (best is None or found[0].lanes(host()) > 2 * best[0]):
                best = found[0].lanes(host()), *found, (source, target, third)
    if best is None:
        return None
    lanes, plan, table, used = best
    at, draft = list(names), Draft()
    for k, (given, wanted) in enumerate(zip((src, dst, aside), used, strict=True)):
        if given is not None and wanted is not None:
            written = k == 1 or (k == 2 and largest)
            at[k] = (draft.write if written else draft.read)(given, wanted, names[k], f"{names[k]} moved")
    note = f"{lanes} lanes" + "".join(f", {name}" for name in draft.scratch)
    buffer = f"{names[1]}: table"
    draft.constants[buffer] = table.view(np.uint8)
    size = src.nbytes + dst.nbytes + (aside.nbytes if aside else 0)
    operands = (buffer, at[2]) if aside is not None else (buffer,)
    key = "bands", plan
    draft.add(kernel_step(key, ENTRY, lambda m: module(plan, m), at[0], at[1], size, operands))
    return draft.program(note)
