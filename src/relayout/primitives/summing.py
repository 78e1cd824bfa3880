"""Sums over everything but the channels, as programs: what batch normalisation takes, forward and backward.

They are two steps, parts and then all of them together (:mod:`relayout.kernels.reduce.sums`). Where the
layouts have no neighbours in common, operands are reordered first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from relayout.forking import locked
from relayout.layout.dense import dense_like, row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import Layout
from relayout.primitives.drafting import Draft, if_possible, kernel_of, kernel_step
from relayout.primitives.program import Program, Step

if TYPE_CHECKING:
    from relayout.kernels.reduce.rows import Rows

__all__ = ["leaves", "stays", "sums"]

ENOUGH_TASKS = 4  # for threads to share
MANY_TASKS = 16  # the same for those that the L2 cache does not hold


@locked
@if_possible
def sums(
    src: MemoryDesc,
    axes: Sequence[int],
    outputs: Sequence[str],
    *,
    diff_dst: MemoryDesc | None = None,
    workspace: MemoryDesc | None = None,
    mean: tuple[str, Layout] | None = None,
    factor: tuple[str, Layout] | None = None,
    epsilon: float | None = None,
    scale: bool = False,
) -> Program | None:
    """The program that writes statistics, or the sums of a gradient; None where there is no kernel.

    Parameters
    ----------
    src : MemoryDesc
        The source, with the dims that it is seen with.
    axes : sequence of int
        Those that are added up.
    outputs : sequence of str
        The buffers that are written: mean and variance; or both sums, and with five of them coefficients
        (see :class:`relayout.kernels.reduce.sums.Merged`). Those without a name are scratch.
    diff_dst, workspace : MemoryDesc, optional
        What comes in, and which of it passed. Without ``diff_dst`` statistics are wanted.
    mean, factor : str and Layout, optional
        The buffer that is subtracted from the source, or by which differences are multiplied, and where it is
        read for each element.
    epsilon : float, optional
        That of batch normalisation, whose variance is read.
    scale : bool
        Whether there is a scale in the coefficients.
    """
    from relayout.kernels.reduce.sums import ENTRY, MERGE, Merged, merge, module, planned
    from relayout.targets.machine import host

    machine = host()
    lanes = machine.vector // 4
    plainly = row_major(src.dims)
    names = {"src": src, "diff_dst": diff_dst, "workspace": workspace}
    given = {name: desc for name, desc in names.items() if desc is not None}
    for seen in (given, _as(given, dense_like(src.layout)), _as(given, plainly)):
        tables = {"mean": mean[1] if mean else None, "factor": factor[1] if factor else None}
        found = planned(
            seen["src"],
            seen.get("diff_dst", seen["src"]),
            axes,
            lanes,
            workspace=seen.get("workspace"),
            statistics=diff_dst is None,
            **tables,
        )
        if found is not None:
            break
    if found is None:
        return None
    draft = Draft()
    at = {name: draft.read(given[name], desc, name, f"{name} in order") for name, desc in seen.items()}
    rows = prod(size for axis, size in enumerate(src.dims) if axis not in axes)
    parts = [draft.room(name, 4 * found.count * rows) for name in ("part one", "part two")]
    size = sum(desc.nbytes for desc in seen.values())
    last = at.get("diff_dst", at["src"])
    read = [
        *([at["workspace"]] if workspace is not None else []),
        *(pair[0] for pair in (mean, factor) if pair),
    ]
    key = "sums", found
    write = partial(module, found)
    draft.add(kernel_step(key, ENTRY, write, at["src"], last, size, (*read, *parts)))
    what = Merged(rows, found.parts, diff_dst is None, epsilon, scale, len(outputs) > 2)
    vectors = [*["variance"] * (epsilon is not None), *["scale"] * scale]
    targets = [name or draft.room(f"unused {k}", 4 * rows) for k, name in enumerate(outputs)]
    kernel = kernel_of(what, MERGE, partial(merge, what))
    draft.add(Step(kernel, parts[0], targets[0], (*parts, *vectors, *targets)))
    return draft.program(f"sums in {found.count} parts, {found.lanes(machine)} lanes")


@locked
def leaves(rows: Rows, size: int) -> bool:
    """Whether results are better written around the caches, ``size`` bytes with all that is read."""
    from relayout.runtime.thresholds import streams
    from relayout.targets.machine import host

    machine = host()
    return streams(machine, size) and rows.completes(machine.vector // 4)


@locked
def stays(rows: Rows, vectors: int, size: int, again: int) -> bool:
    """Whether it pays to go over the rows of a task twice before the next ones come.

    They stay in the L2 cache; or a good part of them does, since the second pass begins with what was read
    last, and there are many tasks for threads to share. Neither depends on how many threads there are, or on
    what was measured: sums of parts are not, to the bit, those of whole rows.

    Parameters
    ----------
    rows : Rows
    vectors : int
        Of neighbouring rows in a task, at most.
    size, again : int
        Bytes of all operands for an element, and of those that are read twice.
    """
    from relayout.targets.machine import host

    machine = host()
    near = rows.near(vectors, machine.vector // 4)
    tasks = sum(block.size for block in rows.blocks) // near
    whole = rows.size * near * size <= machine.l2 * 3 // 4 and tasks >= ENOUGH_TASKS
    return bool(whole or (rows.size * near * again <= 2 * machine.l2 and tasks >= MANY_TASKS))


def _as(given: dict[str, MemoryDesc], layout: Layout) -> dict[str, MemoryDesc]:
    """Descriptors in one layout; those that lie so already stay as they are."""
    return {
        name: desc if desc.layout.same_bytes(layout) else desc.with_layout(layout)
        for name, desc in given.items()
    }
