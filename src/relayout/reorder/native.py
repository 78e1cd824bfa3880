"""The native engine: kernels compiled for one problem.

It takes every reorder that has nests: moves, conversions between any two data types, scales, zero points and
accumulation. What it does not take, the NumPy engine does: layouts whose refinement has no nests or very
many, 4-bit elements that are not in pairs, and hosts that forbid machine code.

A kernel is compiled for one problem, because knowing extents and strides is what makes it fast. What
attributes are there shapes it, too, but not their values: those are packed into a block of *operands* that it
reads (:mod:`relayout.reorder.operands`). Compiling takes milliseconds, so a one-off reorder of a small tensor
is not worth it: it runs in NumPy until the same problem has come :data:`WORTH` times.

Kernels are looked for in three places, each a hundred times as slow as the one before::

    this process (a microsecond)  ->  disk (relayout.reorder.kept)  ->  plans, text, LLVM

What only the last of them needs is imported there.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from relayout.environment import settings
from relayout.forking import lock, locked
from relayout.layout.descriptor import MemoryDesc
from relayout.processors import count
from relayout.reorder import kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from relayout.jit.abi import Kernel
    from relayout.kernels.copy.plan import Plan
    from relayout.kernels.copy.problem import Move
    from relayout.reorder.attributes import Attributes
    from relayout.reorder.kept import Record, Row
    from relayout.runtime.prepared import Prepared
    from relayout.targets.machine import Machine

__all__ = ["Native", "Shape", "at_hand", "consulted", "native", "worth_compiling"]

Shape = tuple[tuple[str, int | None], ...]
"""Which attributes take part, in the order of the formula, and along which logical axis each has values."""

WORTH = 3  # calls of one small problem before it is compiled
LARGE = 1 << 18  # bytes of a destination that is worth compiling for at once
POOL = "relayout.runtime.threads"
AT_A_TIME = 8  # calls of a plan by several callers that machine code makes; further ones go another way

_seen: dict[tuple[MemoryDesc, MemoryDesc], int] = {}


class Infeasible(Exception):
    """Kernels can't do it."""


class Native:
    """The kernels of one problem: called with addresses and a number of threads.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors.
    found : tuple of Move, optional
        What is to be moved; without it the nests of the two descriptors.
    machine : Machine, optional
        What to make code for; without it for this host.
    streaming : bool, optional
        Whether to write around the caches; without it where that pays.
    shape : Shape
        Attributes that take part.
    wish : str
        Words that the plans shall have (:mod:`relayout.kernels.copy.candidates`), instead of being those that
        are estimated to be fastest, which an empty wish is for.
    many : int, optional
        For how many threads they shall be fastest; without it for as many as there are.

    Attributes
    ----------
    wish : str
        The wish.
    bytes : int
        Of source and destination together.
    rows : tuple of Row
        Where the kernels look for the values of attributes.

    Raises
    ------
    Infeasible
        The NumPy engine has to do it.
    """

    wish: str
    bytes: int
    rows: tuple[Row, ...]
    _threads: Any
    _given: tuple[Machine | None, bool | None]
    _found: tuple[Move, ...] | None
    _decided: tuple[Plan, ...] | None

    @locked
    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc,
        found: tuple[Move, ...] | None = None,
        machine: Machine | None = None,
        streaming: bool | None = None,
        shape: Shape = (),
        wish: str = "",
        many: int | None = None,
    ) -> None:
        from relayout.jit.compile import compiled
        from relayout.jit.floating import Usual
        from relayout.kernels.copy import ESTIMATE
        from relayout.kernels.copy.module import module
        from relayout.runtime.sharing import SHARED
        from relayout.runtime.thresholds import shares
        from relayout.targets.machine import host

        self._prepare(src, dst, shape, wish or ESTIMATE, many)
        self._found, self._given = found, (machine, streaming)
        machine = machine or host()
        with Usual():  # constants are computed where a module is made
            kernels = compiled(*module(self._plans, machine), machine)
        divides = self.bytes >= SHARED and any(made.extent > 1 for made in self._plans)
        nests = self.nests if shape or found is not None else ()
        tables = next((nest.conversion.tables for nest in nests if nest.conversion), ())
        self._hold(list(kernels.values()), divides, divides and shares(machine, self.bytes, measure=False))
        self.rows = ()
        if tables:
            from relayout.reorder.operands import rows_of

            self.rows = rows_of(tables)

    @classmethod
    def recalled(
        cls, src: MemoryDesc, dst: MemoryDesc, shape: Shape, record: Record, many: int | None = None
    ) -> Native:
        """What another process has made; nests are only worked out for those who ask for them."""
        self = object.__new__(cls)
        self._prepare(src, dst, shape, record.wish, many)
        self._hold(record.kernels, record.divides, record.shares)
        self.rows = record.rows
        return self

    def _prepare(self, src: MemoryDesc, dst: MemoryDesc, shape: Shape, wish: str, many: int | None) -> None:
        self.src, self.dst, self._shape, self.wish, self._many = src, dst, shape, wish, many
        self.bytes = _bytes(src, dst)
        self._given, self._found, self._decided = (None, None), None, None

    def _hold(self, kernels: list[Kernel], divides: bool, shares: bool) -> None:
        self.kernels = kernels
        self._kernel, self._cached = kernels[0], kernels[-1]
        self._divides, self._shares = divides, shares
        self._threads, self._called = None, False

    @locked
    def _pool(self) -> Any:
        """Who shares calls among threads, and the parts that each thread has."""
        from relayout.runtime import threads
        from relayout.runtime.sharing import parts_of

        self._parts, self._threads = parts_of(self.bytes, 1), threads
        return threads

    @locked
    def calibrate(self) -> None:
        """Find out by measuring from how many bytes on threads pay here, if nobody has yet."""
        from relayout.runtime.thresholds import shares
        from relayout.targets.machine import host

        self._shares = self._divides and shares(host(), self.bytes)

    @property
    @locked
    def _target(self) -> tuple[Machine, bool]:
        """The processor, and whether writing around its caches is estimated to pay."""
        from relayout.runtime.thresholds import streams
        from relayout.targets.machine import host

        machine, streaming = self._given
        machine = machine or host()
        if streaming is None:
            streaming = streams(machine, _streamed(self.src, self.dst), count(self._many))
        return machine, streaming

    @locked
    def refined(self) -> tuple[Move, ...]:
        """The nests of the two descriptors, or those that were given."""
        if self._found is None:
            from relayout.ir.conversions import flushed
            from relayout.kernels.copy.problem import LANES, moves

            machine, _ = self._target
            lines = machine.vector >= 32 and machine.fuses
            self._found = moves(self.src, self.dst, self._shape, lines, flushed(machine, LANES))
        if self._found is None:
            raise Infeasible
        return self._found

    @property
    @locked
    def _plans(self) -> tuple[Plan, ...]:
        """What is decided about each nest."""
        if self._decided is None:
            from relayout.kernels.copy.candidates import lowered

            self._decided = lowered(self.refined(), self.wish, *self._target)
        if self._decided is None:
            raise Infeasible
        return self._decided

    @locked
    def wishes(self) -> list[str]:
        """What is worth measuring for this problem, the estimate first."""
        from relayout.kernels.copy.candidates import wishes
        from relayout.runtime.thresholds import streams

        machine, streaming = self._target
        tried = streaming or (self._given[1] is None and streams(machine, _streamed(self.src, self.dst)))
        return list(wishes(self.refined(), machine, streaming, tried).values())

    @property
    @locked
    def cost(self) -> float:
        """What all nests are estimated to take, to be held against other plans of the same problem."""
        from relayout.kernels.copy.candidates import cost

        return cost(self._plans)

    @property
    def nests(self) -> tuple[Move, ...]:
        """What is moved, simplified."""
        return tuple(made.nest for made in self._plans)

    @property
    @locked
    def departs(self) -> bool:
        """Whether other plans are asked for than those that are estimated to be fastest."""
        from relayout.kernels.copy import ESTIMATE

        return self.wish != ESTIMATE

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kernel of each nest."""
        return tuple(made.kind for made in self._plans)

    @locked
    def explain(self) -> list[str]:
        """What every nest looks like after each pass, and the kernels that come of it."""
        from relayout.kernels.copy.candidates import lowered
        from relayout.kernels.copy.problem import PASSES

        lines = []
        for k, nest in enumerate(self.refined()):
            lines.append(f"nest {k + 1}, bytes: extent x (source step, destination step)")
            lines.append(f"  refined   {nest}")
            for step in PASSES:
                after = step(nest)
                if after != nest:
                    lines.append(f"  {step.__name__:<8}  {after}")
                nest = after
            found = self.refined()[k : k + 1]
            for made in lowered(found, self.wish, *self._target) or ():
                if made.nest != nest:
                    lines.append(f"  cut       {made.nest}")
                lines.append(f"  kernel    {made}")
        return lines

    @locked
    def fits(self, attributes: Attributes) -> bool:
        """Whether the kernels can take these values."""
        if not self.rows:
            return True
        from relayout.reorder.operands import fit

        return fit(self.rows, attributes, self.src.dtype, self.dst.dtype)

    @locked
    def operands(self, attributes: Attributes) -> NDArray[np.uint8] | None:
        """The values of attributes as the kernels read them; None: there are none."""
        if not self.rows:
            return None
        from relayout.reorder.operands import packed

        return packed(self.rows, attributes, self.src.dtype, self.dst.dtype)

    def alone(self, threads: int | None) -> int | None:
        """The address of the kernel, if one of so many threads does every call with all of it; else None."""
        return self._kernel.address if not self._divides or threads == 1 else None

    @locked
    def region(self, operands: int, threads: int | None) -> tuple[Prepared, int] | None:
        """The call on several threads, written down but for its two addresses, and how many they are."""
        from relayout.runtime.prepared import Call, prepared

        many = count(threads)
        if many < 2:
            return None
        self._pool()
        call = Call(self._kernel.address, "src", "dst", "operands", many * self._parts, many)
        made = prepared([call], ("src", "dst"), [{"operands": operands}] * AT_A_TIME)
        return made and (made, many)

    def wakes(self, many: int, threads: int | None) -> bool:
        """Whether a call is shared by so many threads, where a caller asks for ``threads``."""
        pool = self._threads or self._pool()
        return count(threads) == many and (self._shares or pool.busy())

    def __call__(
        self, source: int, target: int, operands: int = 0, threads: int | None = None, fresh: bool = False
    ) -> None:
        """Reorder from one address to another.

        ``operands`` is the address of attribute values. ``fresh`` says that nobody has touched the
        destination yet: its lines come into the caches when the system zeroes them, so nothing is written
        around those.
        """
        kernel = self._cached if fresh else self._kernel
        if not self._divides:
            kernel(source, target, operands, 0, 1)
            return
        many = count(threads)
        if many < 2:
            kernel(source, target, operands, 0, 1)
            return
        if not (self._called or self._shares) and POOL not in sys.modules:
            self._called = True  # threads that nobody has asked for are not awake
            kernel(source, target, operands, 0, 1)
            return
        pool = self._threads or self._pool()
        if self._shares or pool.busy():
            pool.run(kernel.address, source, target, operands, many * self._parts, many)
        else:
            kernel(source, target, operands, 0, 1)
            pool.ended()


def native(
    src: MemoryDesc, dst: MemoryDesc, shape: Shape = (), wish: str = "", many: int | None = None
) -> Native | None:
    """The kernels of a reorder, or None where the NumPy engine has to do it.

    With a wish those that have all of its words; without one those that are estimated to be fastest with so
    many threads.
    """
    return None if 0 in src.dims else _native(src, dst, shape, wish, (count(many), *settings()))


def at_hand(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether an earlier process has left what :func:`native` makes."""
    name = kept.name(src, dst, (), "", (count(), *settings()))
    return 0 not in src.dims and kept.recalled(name) is not None


def worth_compiling(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether a one-off reorder should be compiled: it is large, or has come before."""
    if dst.nbytes >= LARGE:
        return True
    if len(_seen) > 4096:
        _seen.clear()
    count = _seen[src, dst] = _seen.get((src, dst), 0) + 1
    return count >= WORTH


@lru_cache(maxsize=512)
@locked
def _native(
    src: MemoryDesc, dst: MemoryDesc, shape: Shape, wish: str, settings: tuple[Any, ...]
) -> Native | None:
    name, many = kept.name(src, dst, shape, wish, settings), settings[0]
    record = kept.recalled(name)
    if record is not None:
        return Native.recalled(src, dst, shape, record, many)
    from relayout.jit.support import supported

    if not supported():
        return None
    said = consulted(src, dst) if name else []
    try:
        made = Native(src, dst, shape=shape, wish=wish, many=many)
    except Infeasible:
        return None
    from relayout.jit.background import afterwards

    afterwards(lambda: _settled(made, name, said))
    return made


@locked
def _settled(made: Native, name: str, said: Sequence[str]) -> None:
    """Take the kernels that were put off, and keep a record of them, if there is a name for it."""
    from relayout.jit.background import ready

    made._hold(list(map(ready, made.kernels)), made._divides, made._shares)
    if name:
        kept.keep(name, made, said)


def _bytes(src: MemoryDesc, dst: MemoryDesc) -> int:
    """Bytes of both."""
    return _written(dst) + src.required_bytes


def _streamed(src: MemoryDesc, dst: MemoryDesc) -> int:
    """What decides about writing around the caches: a small source keeps no more of the destination there."""
    return max(_bytes(src, dst), 2 * _written(dst))


def _written(dst: MemoryDesc) -> int:
    return prod(dst.layout.padded) * dst.dtype.bits // 8


def consulted(src: MemoryDesc, dst: MemoryDesc) -> list[str]:
    """What measurements say now that decide what is made (:func:`relayout.reorder.kept.consulted`)."""
    with lock():
        from relayout.runtime import thresholds
    return kept.consulted(thresholds.consulted(_streamed(src, dst), _bytes(src, dst)))
