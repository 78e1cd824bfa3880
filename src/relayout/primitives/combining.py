"""From pooling, softmax and normalisations to programs: operations that combine elements along some axes.

They share more than elementwise operations and less than products do: the kernels
(:mod:`~relayout.kernels.reduce.window`, :mod:`~relayout.kernels.reduce.softmax`,
:mod:`~relayout.kernels.reduce.normalization`) want source and destination to have the same neighbours,
whatever these are, and are tried in three ways::

    src ------------ kernel ----------> dst
    src ------------ kernel -> target - reorder -> dst          dst has other neighbours than src
    src - reorder -> source - kernel -> target - reorder -> dst         nobody has neighbours
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from relayout.errors import LayoutError
from relayout.forking import lock, locked
from relayout.layout import views
from relayout.layout.dense import CHANNELS_LAST, row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.functions import Function
from relayout.primitives.drafting import Draft, if_possible, kernel_step
from relayout.primitives.lowering import before, followed
from relayout.primitives.program import Program, Step

if TYPE_CHECKING:
    from relayout.kernels.reduce.separable import Separable
    from relayout.kernels.reduce.softmax import SoftmaxPlan
    from relayout.kernels.reduce.window import Window
    from relayout.ops.post_ops import PostOp
    from relayout.primitives.normalizing import Normalization
    from relayout.primitives.pooling import Pooling
    from relayout.primitives.reduction import Reduction
    from relayout.primitives.resampling import Resampling
    from relayout.primitives.softmax import Softmax

__all__ = [
    *("by_way_of", "pooling", "reduction", "separable_step", "softmax", "window_step"),
    "with_post_ops",
]

MOST_AXES = 3  # of a window
SOFTMAX = 3.0  # about how long it takes, in times of a copy of source and destination

Functions: TypeAlias = "tuple[Function, ...]"
Followed = TypeVar("Followed", "Pooling", "Reduction", "Normalization", "Resampling")


def pooling(made: Pooling) -> Program | None:
    """The program of a pooling; None where there is no kernel.

    A destination that has other neighbours than the source is written in the order of the source first, and
    reordered. Where spatial axes are cut into digits or fused, so is the source, to channels-last. Functions
    are applied by the kernel; what follows from the first other post-op on is a pass of its own.
    """
    return with_post_ops(made, _pooled)


@locked
def _pooled(made: Pooling, dst: MemoryDesc, functions: Functions) -> Program | None:
    """A pooling to a destination, with functions behind it."""
    from relayout.kernels.reduce.window import planned
    from relayout.layout.dense import resized_like

    def plan(src: MemoryDesc, dst: MemoryDesc) -> Window | None:
        return planned(*made.operation.reduction, src, dst, made.axes, functions)

    src = made.src
    near = dst.with_layout(resized_like(src.layout, dst.dims))
    last = CHANNELS_LAST[len(src.dims)]
    far = MemoryDesc(src.dims, src.dtype, last), MemoryDesc(dst.dims, dst.dtype, last)
    ways = [(src, dst), (src, near), far]
    return by_way_of(ways, plan, window_step, _lanes)


def reduction(made: Reduction) -> Program | None:
    """The program of a reduction; None where there is no kernel.

    The axes that are reduced come last, and are one window. Where they are cut into digits the source is
    reordered first, so that they are contiguous.
    """
    return with_post_ops(made, _reduced)


@locked
def _reduced(made: Reduction, dst: MemoryDesc, functions: Functions) -> Program | None:
    """A reduction to a destination, with functions behind it."""
    from relayout.kernels.reduce.axis import Axis
    from relayout.kernels.reduce.window import planned

    src, rank, axes = made.src, len(made.src.dims), made.operation.axes
    order = (*(axis for axis in range(rank) if axis not in axes), *axes)

    def last(desc: MemoryDesc) -> MemoryDesc:
        layout = views.permute(desc.layout.with_roles(None), order)
        while layout.rank - (rank - len(axes)) > MOST_AXES:
            layout = views.merge_axes(layout, layout.rank - 2, layout.rank - 1)
        return desc.with_layout(layout)

    def plan(src: MemoryDesc, dst: MemoryDesc) -> Window | None:
        try:
            source, target = last(src), last(dst)
        except LayoutError:  # axes that don't lie as one
            return None
        windows = [Axis(size, 1, size, size) for size in source.dims[rank - len(axes) :]]
        what = made.operation
        behind = (*what.after, *functions)
        return planned(*what.reduction, source, target, windows, behind, what.before)

    contiguous = views.permute(
        row_major([src.dims[axis] for axis in order]), [order.index(k) for k in range(rank)]
    )
    far = src.with_layout(contiguous), dst
    return by_way_of([(src, dst), far], plan, window_step)


def with_post_ops(
    made: Followed, lowered: Callable[[Followed, MemoryDesc, Functions], Program | None]
) -> Program | None:
    """An operation with its post-ops: functions in the kernel, others in a pass of their own."""
    functions = _functions_of(made.post_ops)
    rest = made.post_ops[len(functions) :]
    if not rest:
        return lowered(made, made.dst, functions)
    between = before(made.dst, rest)
    program = followed(lowered(made, between, functions), between, made.dst, rest)
    if program is not None:
        program.note += f", then {', '.join(map(str, rest))}"
    return program


def _functions_of(post_ops: Sequence[PostOp]) -> tuple[Function, ...]:
    """The functions in front of the first other post-op."""
    found = []
    for op in post_ops:
        if not isinstance(op, Function):
            break
        found.append(op)
    return tuple(found)


def _lanes(window: Window) -> int:
    """How many lanes do something in a pooling."""
    with lock():
        from relayout.kernels.reduce import stacked
        from relayout.targets.machine import host

    return stacked.lanes(window, host()) or window.lanes(host())


@locked
def window_step(window: Window, source: str, target: str, size: int) -> Step:
    """The kernel of a window as a step."""
    from relayout.kernels.reduce import pixels, pixels_in_lanes, separable, sliding, stacked
    from relayout.kernels.reduce.window import ENTRY, module
    from relayout.targets.machine import host

    if stacked.suits(window, host()):
        return kernel_step(
            ("stacked", window), stacked.ENTRY, lambda m: stacked.module(window, m), source, target, size
        )
    shared = separable.of_pairs(window)
    if shared is None or not (pixels.suits(shared, host()) or pixels_in_lanes.suits(shared, host())):
        shared = separable.of_window(window)
    step = separable_step(shared, source, target, size) if shared is not None else None
    if step is not None:
        return step
    shared = separable.of_window(window, True) if host().is_avx2 else None
    if shared is not None and sliding.suits(shared, host()):
        write = sliding.module
        return kernel_step(
            ("sliding", shared), sliding.ENTRY, lambda m: write(shared, m), source, target, size
        )
    return kernel_step(("window", window), ENTRY, lambda m: module(window, m), source, target, size)


@locked
def separable_step(made: Separable, source: str, target: str, size: int) -> Step | None:
    """The kernel of bytes in two steps as a step; None where none suits them."""
    from relayout.kernels.reduce import pictures, pixels, pixels_in_lanes, planes, separable_text, sliding
    from relayout.targets.machine import host

    if pixels.suits(made, host()):
        key, entry, write = "pixels", pixels.ENTRY, pixels.module
    elif pixels_in_lanes.suits(made, host()):
        key, entry, write = "pixels in lanes", pixels_in_lanes.ENTRY, pixels_in_lanes.module
    elif pictures.suits(made, host()):
        key, entry, write = "pictures", pictures.ENTRY, pictures.module
    elif planes.suits(made, host()):
        key, entry, write = "planes", planes.ENTRY, planes.module
    elif sliding.suits(made, host()):
        key, entry, write = "sliding", sliding.ENTRY, sliding.module
    elif made.suits():
        key, entry, write = "separable", separable_text.ENTRY, separable_text.module
    else:
        return None
    return kernel_step((key, made), entry, lambda m: write(made, m), source, target, size)


@locked
def softmax(made: Softmax) -> Program | None:
    """The program of a softmax; None where there is no kernel.

    As for :func:`pooling`; what is fused with the axis makes the detour over row-major tensors.
    """
    from relayout.kernels.reduce.softmax import planned
    from relayout.layout.dense import dense_like

    what = made.operation

    def plan(src: MemoryDesc, dst: MemoryDesc) -> SoftmaxPlan | None:
        return planned(src, dst, what.axis, what.log, what.guarded)

    src, dst = made.src, made.dst
    near = dst.with_layout(dense_like(src.layout))
    plainly = row_major(src.dims)
    far = src.with_layout(plainly), dst.with_layout(plainly)
    return by_way_of([(src, dst), (src, near), far], plan, _softmax_step)


@locked
def _softmax_step(made: SoftmaxPlan, source: str, target: str, size: int) -> Step:
    from relayout.kernels.reduce.softmax import ENTRY, module

    write = partial(module, made)
    return kernel_step(("softmax", made), ENTRY, write, source, target, size, times=SOFTMAX)


@locked
@if_possible
def by_way_of(
    ways: Sequence[tuple[MemoryDesc, MemoryDesc]],
    plan: Callable[[MemoryDesc, MemoryDesc], Any],
    step_of: Callable[[Any, str, str, int], Step],
    lanes_of: Callable[[Any], int] | None = None,
) -> Program | None:
    """The program of the first way, from a source to a destination, that uses lanes well.

    The first of all is that without reorders. A later one must use twice as many as an earlier one, since it
    needs reorders around it. How many it uses a plan says, unless there is ``lanes_of``.
    """
    from relayout.targets.machine import host

    src, dst = ways[0]
    best = None
    for source, target in ways:
        if best is not None and best[0] > 1 and source is not src:
            break
        found = plan(source, target)
        if found is None:
            continue
        lanes = lanes_of(found) if lanes_of else found.lanes(host())
        if best is None or lanes > 2 * best[0]:
            best = lanes, found, source, target
    if best is None:
        return None
    lanes, found, source, target = best
    draft = Draft()
    read, written = draft.read(src, source, "src", "source"), draft.write(dst, target, "dst", "target")
    draft.add(step_of(found, read, written, src.nbytes + dst.nbytes))
    return draft.program(f"{lanes} lanes" + "".join(f", {name} reordered" for name in draft.scratch))
