"""Primitives that are called often: their checks and their steps become one function in machine code.

To call a primitive from Python takes ten microseconds: arguments are bound and checked, addresses looked up,
scratch taken, steps handed to ctypes one by one. A layer of ResNet-50 takes a hundred on two threads. So what
is called often is put together from two things that know nothing of primitives::

    relayout.codegen.builtin     x, w, y  ->  descriptors, flags, sizes, overlaps: all as they have to be?
    relayout.codegen.prepared             ->  the steps of the program, with these addresses

A :class:`Calling` counts the calls that Python does, for each number of threads, and has the function made at
call number :data:`OFTEN`. From then on it is asked first. It only says yes where the checks in Python would
have; whatever else comes (arrays, equal descriptors that it has not seen, arguments by name, errors above
all) goes the way that it went before.

Traps:

* A descriptor is known by its address, not by its value. So a tensor may have that of the primitive, or the
  one that a tensor had when the function was made. For other objects that say the same the function is made
  anew after twice as many calls, four times as many and so on; its plan is kept, since it may be in use.
* An array by itself is a logical array where it is read and physical bytes where it is written; the function
  takes neither.
* The environment may name another number of threads at any time, so a call without one looks there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.codegen import threads as sharing
from relayout.codegen.prepared import Call, Prepared, prepared
from relayout.forking import lock
from relayout.primitives.program import KEPT
from relayout.tensor import Tensor, address, aligned

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.program import Program

__all__ = ["OFTEN", "Calling"]

OFTEN = 16  # calls in Python before there is a function: the first of a process takes milliseconds to make
ROOM = 1 << 22  # bytes of scratch up to which functions have some for more than one call at a time


class Calling:
    """The calls of one primitive.

    Parameters
    ----------
    descs : mapping of str to MemoryDesc
        The descriptors of the inputs, in their order, and of ``dst``.
    spans : mapping of str to (int, int)
        The first byte of each and the one behind its last, counted from its address.
    in_place : sequence of str
        The inputs that the destination may be.
    reads_destination : bool
        Whether a call needs one.
    program : Program
        What is done.
    """

    def __init__(
        self,
        descs: Mapping[str, MemoryDesc],
        spans: Mapping[str, tuple[int, int]],
        in_place: Sequence[str],
        reads_destination: bool,
        program: Program,
    ) -> None:
        self._descs, self._spans, self._in_place, self._program = descs, spans, in_place, program
        self._dst, self._room = descs["dst"], max(descs["dst"].required_bytes, descs["dst"].nbytes)
        self._needs_out = reads_destination
        self._inputs = len(descs) - 1
        self._threads = max((step.parts for step in program.steps if step.shared), default=1)
        self._counts: dict[int, int] = {}
        self._plans: dict[int, Prepared | None] = {}
        self._functions: dict[int, Callable[..., int]] = {}

    def quick(self, given: tuple[Any, ...], out: Any, threads: Any) -> Tensor | None:
        """The result of a call, if a function has done it; None: nothing has been done."""
        number = self._number(threads)
        function = self._functions.get(number)
        if function is None or len(given) != self._inputs:
            return None
        if out is None:
            if self._needs_out:
                return None
            out = Tensor(self._dst, aligned(self._room))
        return out if function(*given, out) else None

    def count(self, given: tuple[Any, ...], out: Any, threads: Any) -> None:
        """Note a call that Python has done, and make a function if there have been many."""
        tensors = given if out is None else (*given, out)
        number = self._number(threads)
        if not number or len(given) != self._inputs or not all(type(one) is Tensor for one in tensors):
            return
        calls = self._counts[number] = self._counts.get(number, 0) + 1
        if calls >= OFTEN and calls % OFTEN == 0 and (calls // OFTEN).bit_count() == 1:
            function = self._made(number, [one.desc for one in tensors])
            if function is not None:
                self._functions[number] = function

    def _number(self, threads: Any) -> int:
        """How many threads a call can use; 0: ask the checks in Python."""
        if threads is None:
            return min(sharing.count(), self._threads) if self._threads > 1 else 1
        if type(threads) is not int or not 0 < threads <= sharing.MOST:
            return 0
        return min(threads, self._threads)

    def _made(self, number: int, seen: Sequence[MemoryDesc]) -> Callable[..., int] | None:
        """A function for the primitive's descriptors and those of some tensors; None: there can be none."""
        if any(low < 0 for low, _ in self._spans.values()):
            return None
        with lock():
            from relayout.codegen.builtin import MOST, Buffer, Holder, checked

            names = list(self._descs)
            if len(names) > MOST:
                return None
            if number not in self._plans:
                self._plans[number] = self._planned(number)
            plan = self._plans[number]
            if plan is None:
                return None
            also = dict(zip(names, seen, strict=False))
            buffers = [
                Buffer(
                    self._spans[name][1],
                    (np.dtype(np.uint8),),
                    written=name == "dst",
                    meanings=(desc, also.get(name, desc)),
                    shares=name in self._in_place,
                )
                for name, desc in self._descs.items()
            ]
            holder = Holder(Tensor, "buffer", "desc")
            return checked(
                plan.kernel, plan.operands, buffers, holder=holder, keep=plan, together=True, bare=False
            )

    def _planned(self, number: int) -> Prepared | None:
        """The steps for a number of threads, with scratch for some calls at a time."""
        program = self._program
        room = sum(program.scratch.values())
        pieces = [program.take() for _ in range(max(1, min(KEPT, ROOM // room)) if room else KEPT)]
        constants = {name: address(data) for name, data in program.constants.items()}
        images = [constants | {name: address(data) for name, data in piece.items()} for piece in pieces]
        calls = []
        for step in program.steps:
            many = min(number, step.parts) if step.shared else 1
            parts = step.parts if many > 1 else 1
            calls.append(Call(step.kernel.address, step.source, step.target, step.operands, parts, many))
        made = prepared(calls, list(self._descs), images)
        return made and made._replace(keep=(made.keep, program, pieces))
