"""The native engine: kernels compiled for one problem.

It takes every reorder that has nests: moves, conversions between any two data types, scales, zero points and
accumulation. What it does not take, the NumPy engine does: layouts whose refinement has no nests or very
many, 4-bit elements that are not in pairs, and hosts that forbid machine code.

A kernel is compiled for one problem, because knowing extents and strides is what makes it fast. What
attributes are there shapes it, too, but not their values: those are packed into a block of *operands* that it
reads. Compiling takes milliseconds, so a one-off reorder of a small tensor is not worth it: it runs in NumPy
until the same problem has come :data:`WORTH` times.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from relayout.forking import lock, locked
from relayout.jit.support import supported
from relayout.kernels.copy import ESTIMATE
from relayout.layout.descriptor import MemoryDesc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relayout.dtypes import DType
    from relayout.jit.compile import Module
    from relayout.kernels.copy.plan import Plan
    from relayout.kernels.copy.problem import Move, Table
    from relayout.reorder.attributes import Attributes
    from relayout.runtime.prepared import Prepared
    from relayout.targets.machine import Machine

__all__ = ["Native", "Shape", "native", "worth_compiling"]

Shape = tuple[tuple[str, int | None], ...]
"""Which attributes take part, in the order of the formula, and along which logical axis each has values."""

WORTH = 3  # calls of one small problem before it is compiled
MEASURED = 1 << 17  # bytes of source and destination from which on plans are measured
LARGE = 1 << 18  # bytes of a destination that is worth compiling for at once

LARGEST_DIVISOR = {"f32": 2.0**100, "f64": 2.0**1000}
"""By the type of the arithmetic: whose reciprocals are neither lost nor subnormal."""

AT_A_TIME = 8  # calls of a plan by several callers that machine code makes; further ones go another way
DIVIDES = "divides"  # what is noted of kernels that have a loop to share

_seen: dict[tuple[MemoryDesc, MemoryDesc], int] = {}


class Infeasible(Exception):
    """Kernels can't do it."""


class Native:
    """The kernels of one problem: called with addresses and a number of threads.

    Where an earlier process has left its kernels on disk, nests are not even worked out until somebody asks
    for them; and all that this takes is imported no sooner.

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
        are estimated to be fastest.

    Raises
    ------
    Infeasible
        The NumPy engine has to do it.
    """

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
        wish: str = ESTIMATE,
    ) -> None:
        from relayout.environment import LOADED
        from relayout.jit.compile import compiled, recalled
        from relayout.runtime import threads
        from relayout.runtime.sharing import SHARED, parts_of
        from relayout.runtime.thresholds import shares, streams
        from relayout.targets.machine import host

        machine = machine or host()
        self.src, self.dst, self._shape = src, dst, shape
        written = prod(dst.layout.padded) * dst.dtype.bits // 8
        self.bytes = written + src.required_bytes
        self.wish, self._machine = wish, machine
        if streaming is None:  # a small source keeps no more of the destination in the caches
            streaming = streams(machine, max(self.bytes, 2 * written))
        self._streaming = streaming
        self._found, self._decided = found, None
        if found is not None:
            ir, names, note = self._module()
            kernels = list(compiled(ir, names, machine).values())
        else:
            sides = [(desc.dtype.name, desc.layout._key()) for desc in (src, dst)]
            problem = repr((sides, shape, self._streaming, threads.count(), wish))
            kernels, note = recalled(problem, LOADED, self._module, machine)
        self._kernel, self._cached = kernels[0], kernels[-1]
        self._divides = self.bytes >= SHARED and note == DIVIDES
        self._shares = self._divides and shares(machine, self.bytes, measure=False)
        self._parts = parts_of(self.bytes, 1)
        self._threads = threads

    @locked
    def calibrate(self) -> None:
        """Find out by measuring from how many bytes on threads pay here, if nobody has yet."""
        from relayout.runtime.thresholds import shares
        from relayout.targets.machine import host

        self._shares = self._divides and shares(host(), self.bytes)

    @locked
    def _module(self) -> Module:
        """All kernels."""
        from relayout.jit.compile import Module
        from relayout.kernels.copy.module import module

        ir, names = module(self._plans, self._machine)
        return Module(ir, names, DIVIDES if any(made.extent > 1 for made in self._plans) else "")

    @locked
    def refined(self) -> tuple[Move, ...]:
        """The nests of the two descriptors, or those that were given."""
        if self._found is None:
            from relayout.kernels.copy.problem import moves

            self._found = moves(self.src, self.dst, self._shape)
        if self._found is None:
            raise Infeasible
        return self._found

    @property
    @locked
    def _plans(self) -> tuple[Plan, ...]:
        """What is decided about each nest."""
        if self._decided is None:
            from relayout.kernels.copy.candidates import lowered

            self._decided = lowered(self.refined(), self.wish, self._machine, self._streaming)
        if self._decided is None:
            raise Infeasible
        return self._decided

    @locked
    def wishes(self) -> list[str]:
        """What is worth measuring for this problem, the estimate first."""
        from relayout.kernels.copy.candidates import wishes

        return list(wishes(self.refined(), self._machine, self._streaming).values())

    @property
    def nests(self) -> tuple[Move, ...]:
        """What is moved, simplified."""
        return tuple(made.nest for made in self._plans)

    @property
    def departs(self) -> bool:
        """Whether other plans are asked for than those that are estimated to be fastest."""
        return self.wish != ESTIMATE

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kernel of each nest."""
        return tuple(made.kind for made in self._plans)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Where the kernels look for the values of attributes."""
        if not self._shape and self._found is None:
            return ()
        return next((nest.conversion.tables for nest in self.nests if nest.conversion), ())

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
            for made in lowered(found, self.wish, self._machine, self._streaming) or ():
                if made.nest != nest:
                    lines.append(f"  cut       {made.nest}")
                lines.append(f"  kernel    {made}")
        return lines

    @locked
    def fits(self, attributes: Attributes) -> bool:
        """Whether the kernels can take these values: destination scales must have reciprocals."""
        divisor = attributes.dst_scale
        if divisor is None:
            return True
        from relayout.ir.conversions import RECIPROCALS

        if all(table.name not in RECIPROCALS for table in self.tables):
            return True
        size, most = (
            np.abs(divisor.values.astype(np.float64)),
            LARGEST_DIVISOR[self._types(attributes)[0].name],
        )
        return bool((size > 1 / most).all() and (size < most).all())

    def _types(self, attributes: Attributes) -> tuple[DType, DType]:
        """The type of the arithmetic, and that of scales."""
        with lock():
            from relayout.convert import arithmetic_types

        return arithmetic_types(
            self.src.dtype,
            self.dst.dtype,
            accumulate=attributes.reads_destination,
            shifted=attributes.is_shifted,
        )

    @locked
    def operands(self, attributes: Attributes) -> NDArray[np.uint8] | None:
        """The values of attributes as the kernels read them; None: there are none."""
        if not self.tables:
            return None
        from relayout.convert import convert
        from relayout.ir.conversions import RECIPROCALS
        from relayout.kernels.copy.problem import LANES

        arithmetic, scales = self._types(attributes)
        block = np.zeros(self.tables[-1].end, np.uint8)
        for table in self.tables:
            entries = block[table.offset : table.end].view(arithmetic.numpy)[: table.entries + LANES]
            name = "dst_scale" if table.name in RECIPROCALS else table.name
            values = np.float64(attributes.beta) if name == "beta" else getattr(attributes, name).values
            if table.name in ("beta", "src_scale", "dst_scale", *RECIPROCALS):
                values = convert(values, scales)
            if table.name in RECIPROCALS:
                values = _reciprocals(convert(values, arithmetic))[RECIPROCALS.index(table.name)]
            entries[:] = np.resize(convert(values, arithmetic), entries.shape)
        return block

    def alone(self, threads: int | None) -> int | None:
        """The address of the kernel, if one of so many threads does every call with all of it; else None."""
        return self._kernel.address if not self._divides or threads == 1 else None

    @locked
    def region(self, operands: int, threads: int | None) -> tuple[Prepared, int] | None:
        """The call on several threads, written down but for its two addresses, and how many they are."""
        from relayout.runtime.prepared import Call, prepared
        from relayout.runtime.threads import count

        many = count(threads)
        if many < 2:
            return None
        call = Call(self._kernel.address, "src", "dst", "operands", many * self._parts, many)
        made = prepared([call], ("src", "dst"), [{"operands": operands}] * AT_A_TIME)
        return made and (made, many)

    def wakes(self, many: int, threads: int | None) -> bool:
        """Whether a call is shared by so many threads, where a caller asks for ``threads``."""
        pool = self._threads
        return pool.count(threads) == many and (self._shares or pool.busy())

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
        pool = self._threads
        many = pool.count(threads)
        if many > 1 and (self._shares or pool.busy()):
            pool.run(kernel.address, source, target, operands, many * self._parts, many)
        else:
            kernel(source, target, operands, 0, 1)
            pool.ended()


def _reciprocals(scales: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Numbers of the scales' type that enclose 1 / scale, the one nearer to zero first; where it is exact,
    twice the same. Those of f32 are neighbours; for f64 nothing wider tells on which side the nearest lies,
    and so it is enclosed by its own two.
    """
    if scales.dtype == np.float64:
        nearest = 1 / scales
        exact = np.abs(np.frexp(scales)[0]) == 0.5
        both = (np.nextafter(nearest, end) for end in (0.0, np.copysign(np.inf, nearest)))
        below, above = (np.where(exact, nearest, end) for end in both)
        return below, above
    nearest = np.float32(1) / scales
    one = nearest.astype(np.float64) * scales  # exact, and more than 1 where the reciprocal is too large
    nearer = np.nextafter(nearest, np.float32(0))
    farther = np.nextafter(nearest, np.copysign(np.float32(np.inf), nearest))
    return np.where(one > 1, nearer, nearest), np.where(one < 1, farther, nearest)


def native(src: MemoryDesc, dst: MemoryDesc, shape: Shape = (), wish: str = ESTIMATE) -> Native | None:
    """The kernels of a reorder, or None where the NumPy engine has to do it."""
    return None if 0 in src.dims or not supported() else _compiled(src, dst, shape, wish)


def measurable(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether a call takes long enough for plans to be told apart by a clock."""
    return src.required_bytes + dst.required_bytes >= MEASURED


def worth_compiling(src: MemoryDesc, dst: MemoryDesc) -> bool:
    """Whether a one-off reorder should be compiled: it is large, or has come before."""
    if dst.nbytes >= LARGE:
        return True
    if len(_seen) > 4096:
        _seen.clear()
    count = _seen[src, dst] = _seen.get((src, dst), 0) + 1
    return count >= WORTH


@lru_cache(maxsize=512)
def _compiled(src: MemoryDesc, dst: MemoryDesc, shape: Shape, wish: str) -> Native | None:
    try:
        return Native(src, dst, shape=shape, wish=wish)
    except Infeasible:
        return None
