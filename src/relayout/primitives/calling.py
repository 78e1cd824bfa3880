"""Primitives that are called often: their checks and their steps become one function in machine code.

To call a primitive from Python takes ten microseconds: arguments are bound and checked, addresses looked up,
scratch taken, steps handed to ctypes one by one. A layer of ResNet-50 takes a hundred on two threads. So what
is called often is put together from two things that know nothing of primitives::

    relayout.runtime.builtin     x, w, y  ->  descriptors, flags, sizes, overlaps: all as they have to be?
    relayout.runtime.prepared             ->  the steps of the program, with these addresses

A :class:`Calling` counts the calls that Python does, for each number of threads, and has the function made at
call number :data:`OFTEN`. From then on it is asked first. It only says yes where the checks in Python would
have; whatever else comes (arrays, equal descriptors that it has not seen, errors above all) goes the way that
it went before.

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

from relayout.forking import lock
from relayout.primitives.program import KEPT
from relayout.primitives.results import results
from relayout.processors import MOST as MOST_THREADS
from relayout.runtime import threads as sharing
from relayout.runtime.prepared import Call, Prepared, prepared
from relayout.tensor import Tensor, address, aligned

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.primitives.program import Program
    from relayout.reorder.arguments import Argument

__all__ = ["OFTEN", "Calling"]

OFTEN = 16  # calls in Python before there is a function: the first of a process takes milliseconds to make
ROOM = 1 << 22  # bytes of scratch up to which functions have some for more than one call at a time


class Calling:
    """The calls of one primitive.

    Parameters
    ----------
    arguments : mapping of str to Argument
        The inputs, in their order, and the outputs.
    outputs : tuple of str
        The names of the outputs.
    in_place : mapping of str to sequence of str
        For an output the inputs that it may be.
    accumulates : sequence of str
        The outputs that a call must be given.
    program : Program
        What is done.
    """

    def __init__(
        self,
        arguments: Mapping[str, Argument],
        outputs: tuple[str, ...],
        in_place: Mapping[str, Sequence[str]],
        accumulates: Sequence[str],
        program: Program,
    ) -> None:
        self._arguments, self._outputs, self._program = arguments, outputs, program
        self._in_place = in_place.get(outputs[0], ()) if len(outputs) == 1 else ()
        """Of several outputs each has inputs of its own, which machine code does not tell apart."""
        self._needs_out = bool(accumulates)
        descs = [arguments[name].desc for name in outputs]
        self._new = [(desc, max(desc.required_bytes, desc.nbytes)) for desc in descs]
        self._inputs = len(arguments) - len(outputs)
        self._threads = max((step.parts for step in program.steps if step.shared), default=1)
        self._counts: dict[int, int] = {}
        self._plans: dict[int, Prepared | None] = {}
        self._functions: dict[int, Callable[..., int]] = {}

    def quick(self, given: tuple[Any, ...], out: Any, threads: Any) -> Any:
        """The result of a call, or several, if a function has done it; None: nothing has been done."""
        number = self._number(threads)
        function = self._functions.get(number)
        if function is None or len(given) != self._inputs:
            return None
        if out is None:
            if self._needs_out:
                return None
            made = tuple([Tensor(desc, aligned(room)) for desc, room in self._new])
        elif len(self._new) == 1:
            made = (out,)
        elif not isinstance(out, tuple) or len(out) != len(self._new):
            return None
        else:
            made = out
        if not function(*given, *made):
            return None
        return made[0] if len(made) == 1 else results(self._outputs, made)

    def count(self, given: tuple[Any, ...], out: dict[str, Any], threads: Any) -> None:
        """Note a call that Python has done, and make a function if there have been many."""
        tensors = [*given, *(out[name] for name in self._outputs if name in out)]
        number = self._number(threads)
        if not number or len(given) != self._inputs or not all(type(one) is Tensor for one in tensors):
            return
        calls = self._counts[number] = self._counts.get(number, 0) + 1
        if calls >= OFTEN and calls % OFTEN == 0 and (calls // OFTEN).bit_count() == 1:
            seen = dict(zip(self._arguments, given, strict=False)) | out
            function = self._made(number, {name: one.desc for name, one in seen.items()})
            if function is not None:
                self._functions[number] = function

    def _number(self, threads: Any) -> int:
        """How many threads a call can use; 0: ask the checks in Python."""
        if threads is None:
            return min(sharing.count(), self._threads) if self._threads > 1 else 1
        if type(threads) is not int or not 0 < threads <= MOST_THREADS:
            return 0
        return min(threads, self._threads)

    def _made(self, number: int, seen: Mapping[str, MemoryDesc]) -> Callable[..., int] | None:
        """A function for the primitive's descriptors and those of some tensors; None: there can be none."""
        if any(one.span[0] < 0 for one in self._arguments.values()):
            return None
        with lock():
            from relayout.runtime.builtin import MOST, Buffer, Holder, checked

            if len(self._arguments) > MOST:
                return None
            if number not in self._plans:
                self._plans[number] = self._planned(number)
            plan = self._plans[number]
            if plan is None:
                return None
            buffers = [
                Buffer(
                    one.span[1],
                    (np.dtype(np.uint8),),
                    written=name in self._outputs,
                    meanings=(one.desc, seen.get(name, one.desc)),
                    shares=name in self._in_place,
                )
                for name, one in self._arguments.items()
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
            sides = step.source, step.target
            calls.append(Call(step.kernel.address, *sides, step.operands, parts, many, step.at))
        made = prepared(calls, list(self._arguments), images)
        return made and made._replace(keep=(made.keep, program, pieces))
