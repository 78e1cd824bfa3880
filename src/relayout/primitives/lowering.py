"""Programs of everything that is computed element by element, and of what follows other kernels so.

An expression of any number of operands becomes one nest of loops over all of them, and post-ops follow in the
same pass. What is done about an operand depends on how it lies:

* as the destination does, or along some of its axes only: it is read in place (:func:`_repeated`);
* so that its elements would have to be gathered: it is reordered first, into room of the program's;
* one operand of 8 or 16 bits and nothing else: there are only so many values, so that a long function is
  computed once for each of them, and looked up (:func:`_by_table`). The table is made by the kernel that it
  stands in for, so its results are the same to the bit.

Where the kernel of another operation can't take post-ops in its epilogue, they are a pass of their own over
an intermediate result in f32 (:func:`before`, :func:`followed`): what is rounded is rounded once.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from relayout.forking import locked
from relayout.layout import views
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.post_ops import BinaryOp, Sum, adds, operands_of
from relayout.primitives.drafting import Draft, if_possible, kernel_of, moving_step
from relayout.primitives.program import Program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from relayout.dtypes import DType
    from relayout.ops.expressions import Expression
    from relayout.ops.post_ops import PostOp

__all__ = ["before", "elementwise", "followed"]

TABLES = 16  # of functions that are kept: the same function is often in a network many times
COMPUTING = 1.6  # times of a copy that narrow numbers by way of f32 take at least, and long expressions


@locked
@if_possible
def elementwise(
    dst: MemoryDesc,
    operands: Mapping[str, MemoryDesc],
    expression: Expression,
    numbers: Sequence[float] = (),
    post_ops: Sequence[PostOp] = (),
    target: str = "dst",
    first: int = 0,
    note: str = "",
    further: Mapping[str, MemoryDesc] | None = None,
) -> Program | None:
    """The program of an operation that works element by element; None where there are no kernels for it.

    Parameters
    ----------
    dst : MemoryDesc
        What is written: the buffer ``target``.
    operands : mapping of str to MemoryDesc
        The operands of the expression in their order, by the names of their buffers. Each has the rank of the
        destination, and 1 where it is repeated. What is laid out so that it would have to be gathered is
        reordered first.
    expression : Expression
        What is computed.
    numbers : sequence of float
        Its last operands, the same for all elements: what changes often, so that one kernel does for all.
    post_ops : sequence
        What follows.
    first : int
        The number of the first operand of these post-ops; see :func:`~.post_ops.operands_of`.
    note : str
        What the program is called.
    further : mapping of str to MemoryDesc, optional
        For each result of the expression but the first what is written, by the name of its buffer; of the
        layout of the destination.
    """
    from relayout.environment import LOADED
    from relayout.jit.compile import Module, recalled
    from relayout.kernels.elementwise.map import ENTRY, module, vectors_of
    from relayout.kernels.elementwise.runs import runs, unsuited
    from relayout.ops.expressions import followed_by
    from relayout.runtime.thresholds import streams
    from relayout.targets.machine import host

    constants = {
        f"{target}: number {k}": np.array([x], np.float32).view(np.uint8) for k, x in enumerate(numbers)
    }
    further = further or {}
    results = [dst.dtype, *(desc.dtype for desc in further.values())]
    expression = followed_by(expression, post_ops)
    if not expression.operands:
        # A nest in which nothing is read is one that writes zeros, so constants read a number, too.
        expression, constants = expression.given_one, {f"{target}: number": np.zeros(4, np.uint8)}
    # What a destination held in its padding may be anything.
    keeps_zero = expression.keeps_zero and not adds(post_ops)
    one = MemoryDesc((1,) * len(dst.dims), "f32", row_major((1,) * len(dst.dims)))
    both = [*operands.items(), *((name, one) for name in constants), *_read_by(post_ops, dst, target, first)]
    machine, draft = host(), Draft(constants=constants)
    names, given = [name for name, _ in both], [desc for _, desc in both]
    for k in unsuited(dst, [_repeated(desc, dst) for desc in given], keeps_zero):
        source, moved = _like(given[k], dst)
        name = f"{names[k]} as {target}"
        draft.reorder(source, moved, names[k], draft.room_for(name, moved))
        names[k], given[k] = name, moved
    if len(both) == 1 + len(constants) and not draft.pieces and not further:
        table = _by_table(dst, names[0], given[0], expression, numbers, keeps_zero, target, note)
        if table is not None:
            return table
    repeated = [_repeated(desc, dst) for desc in given]
    kinds = [desc.dtype for desc in given]
    # What is repeated, a value for each channel, say, stays in registers or in the L1 cache.
    moving = [desc.dtype for desc in given if prod(desc.dims) == prod(dst.dims)]
    vectors = vectors_of(machine, dst.dtype, [*moving, *results[1:]], expression.cheap)
    sides = [(desc.dtype.name, desc.layout._key()) for desc in (dst, *repeated)]
    sides += [(desc.dtype.name, ()) for desc in further.values()]
    size = sum(desc.nbytes for desc in (dst, *given, *further.values()))
    stream = streams(machine, max(size, 2 * dst.nbytes))

    def made() -> Module:
        found = runs(dst, repeated, keeps_zero, vectors)
        if found is None:
            return Module("", [])
        return Module(module(found, results, kinds, expression, vectors.lanes, machine, stream), [ENTRY])

    kernels, _ = recalled(repr(("map", sides, expression, stream)), LOADED, made, machine)
    if not kernels:
        return None
    computes = expression.kind == "f32" and min(kind.bits for kind in (*moving, dst.dtype)) < 32
    times = COMPUTING if computes or not expression.cheap else 1
    draft.add(moving_step(kernels[0], target, target, (*names, *further) or target, size, times))
    return draft.program(note)


@locked
def _by_table(
    dst: MemoryDesc,
    name: str,
    src: MemoryDesc,
    expression: Expression,
    numbers: Sequence[float],
    keeps_zero: bool,
    target: str,
    note: str,
) -> Program | None:
    """The program of a function of bytes, by a table; None where there is none, or it isn't worth making."""
    from relayout.kernels.elementwise.bytes import (
        ENTRY,
        LEAST,
        TABLE,
        by_rows,
        clamp,
        differences,
        module,
        suits,
    )
    from relayout.runtime.thresholds import streams
    from relayout.targets.machine import host
    from relayout.tensor import aligned

    machine, size = host(), dst.nbytes
    if src.dims != dst.dims or not src.layout.same_bytes(dst.layout):
        return None
    if dst.layout.offset0 or dst.required_bytes != size or (dst.layout.has_padding and not keeps_zero):
        return None
    if src.dtype.bits == 16 == dst.dtype.bits:
        return _by_words(dst, name, src.dtype, expression, numbers, target, note)
    if src.dtype.bits != 8 or dst.dtype.bits != 8 or size < LEAST or not suits(machine):
        return None
    rows = by_rows(machine)
    if rows and expression.cheap and clamp(_guessed(dst.dtype, src.dtype, expression, numbers)) is None:
        return None
    table = _results(dst.dtype, src.dtype, expression, tuple(numbers))
    if table is None:
        return None
    bounds = clamp(table.tolist()) if rows else None
    if rows and bounds is None and expression.cheap:
        return None
    if rows:
        kept = bounds.operands if bounds is not None else differences(table.tobytes())
        table = aligned(TABLE)
        table[: len(kept)] = np.frombuffer(kept, np.uint8)
    stream = streams(machine, 2 * size)
    what = ("bytes", size, stream, *(() if bounds is None else (bounds.signed,)))
    kernel = kernel_of(what, ENTRY, lambda machine: module(size, machine, stream, bounds))
    known = f"{target}: table"
    return Program((moving_step(kernel, name, target, known, 2 * size),), {}, {known: table}, note=note)


@locked
def _by_words(
    dst: MemoryDesc,
    name: str,
    src: DType,
    expression: Expression,
    numbers: Sequence[float],
    target: str,
    note: str,
) -> Program | None:
    """The same for 16 bits."""
    from relayout.kernels.elementwise.words import ENTRY, MOST_COMPUTED, module, suits
    from relayout.runtime.thresholds import streams
    from relayout.targets.machine import host

    machine, size = host(), dst.nbytes
    if size <= 2 * MOST_COMPUTED or expression.cheap or not suits(machine):
        return None
    table = _results(dst.dtype, src, expression, tuple(numbers))
    if table is None:
        return None
    stream = streams(machine, 2 * size)
    what = ("words", size // 2, stream)
    kernel = kernel_of(what, ENTRY, lambda machine: module(size // 2, machine, stream))
    known = f"{target}: table"
    step = moving_step(kernel, name, target, known, 2 * size, COMPUTING)
    return Program((step,), {}, {known: table}, note=note)


@lru_cache(maxsize=TABLES)
def _results(
    dst: DType, src: DType, expression: Expression, numbers: tuple[float, ...]
) -> NDArray[np.uint8] | None:
    """What becomes of all values of a data type, by the kernel for tensors that are not looked up."""
    from relayout.tensor import address, aligned

    count, size = 1 << src.bits, src.bits // 8
    one = row_major((count,))
    index, table = aligned(count * size), aligned(count * dst.bits // 8)
    index.view(f"u{size}")[:] = np.arange(count)
    every = MemoryDesc((count,), dst, one)
    made = elementwise(every, {"src": MemoryDesc((count,), src, one)}, expression, numbers)
    if made is None:
        return None
    made({"src": address(index), "dst": address(table)}, 1)
    return table


@locked
def _guessed(dst: DType, src: DType, expression: Expression, numbers: Sequence[float]) -> Sequence[int]:
    """What becomes of each byte, by the definition: for a guess, since a kernel may differ in a last bit."""
    from relayout.convert import convert

    every = np.arange(256, dtype=np.uint8).view(src.numpy)
    kind = expression.operands[0]
    given = convert(every, kind) if kind != "bool" else every.view(np.uint8) != 0
    found = expression.definition(given, *(np.float32(x) for x in numbers))
    return bytes(convert(np.asarray(found), dst).view(np.uint8))


def _read_by(
    post_ops: Sequence[PostOp], dst: MemoryDesc, target: str, first: int
) -> Iterator[tuple[str, MemoryDesc]]:
    """The buffers that post-ops read, in their order."""
    operands = iter(operands_of(post_ops, first).items())
    for op in post_ops:
        if isinstance(op, Sum):
            yield target, dst
        elif isinstance(op, BinaryOp):
            yield next(operands)


@locked
def before(dst: MemoryDesc, post_ops: Sequence[PostOp]) -> MemoryDesc:
    """Where to write, in f32, what post-ops in a pass of their own go on from: results are rounded once.

    It is the destination itself if that is f32 and none of them adds what it held; else a tensor like it.
    """
    from relayout.layout.dense import dense_like

    if dst.dtype.name == "f32" and not adds(post_ops):
        return dst
    return MemoryDesc(dst.dims, "f32", dense_like(dst.layout))


@locked
@if_possible
def followed(
    program: Program | None, between: MemoryDesc, dst: MemoryDesc, post_ops: Sequence[PostOp], first: int = 0
) -> Program | None:
    """A program, and then post-ops in a pass of their own; None where there is no kernel for one of both.

    Parameters
    ----------
    program : Program or None
        What writes ``between`` as the buffer ``dst``.
    between : MemoryDesc
        What :func:`before` has said for these post-ops.
    dst : MemoryDesc
        What is written in the end.
    post_ops, first
        As in :func:`elementwise`.
    """
    from relayout.ops.expressions import Expression

    where = "dst" if between is dst else "computed"
    rest = elementwise(dst, {where: between}, Expression(("f32",)), post_ops=post_ops, first=first)
    draft = Draft()
    draft.append(program, {"dst": where})
    if between is not dst:
        draft.room_for(where, between)
    draft.append(rest)
    return draft.program(program.note if program is not None else "")


def _repeated(desc: MemoryDesc, dst: MemoryDesc) -> MemoryDesc:
    """An operand with the destination's dims: it does not move along axes where it has one element."""
    if desc.dims == dst.dims:
        return desc
    return desc.with_layout(views.broadcast_to(desc.layout, dst.dims))


@locked
def _like(desc: MemoryDesc, dst: MemoryDesc) -> tuple[MemoryDesc, MemoryDesc]:
    """What to reorder from and to, so that an operand lies as the destination does.

    An axis along which it is repeated takes no room, unless the destination fuses that axis with others: then
    it is written out.
    """
    from relayout.layout.dense import dense_like

    differ = {axis for axis, (a, b) in enumerate(zip(desc.dims, dst.dims, strict=True)) if a != b}
    if any(len(term) > 1 and differ & set(term) for term in dst.layout.terms):
        desc = _repeated(desc, dst)
    return desc, desc.with_layout(dense_like(dst.layout, desc.dims))
