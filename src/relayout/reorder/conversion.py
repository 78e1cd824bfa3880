"""One conversion, planned: checks, the engine that does it, and the way around both in machine code.

Kernels are compiled when :meth:`Conversion.compile` is called; until then the NumPy engine does all calls.
While a problem's contest among schedules is held (:mod:`relayout.reorder.tuning`), calls take part in it. A
small conversion that goes on being called gets its checks in machine code (:mod:`relayout.runtime.builtin`):
they say yes to good arrays and tensors of its descriptors, and leave everything else, errors above all, to
:meth:`Conversion.__call__`.

The engines are imported where they are used: to describe tensors must not cost what it takes to move them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from operator import index as as_index
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, described
from relayout.exchange import pytorch
from relayout.forking import lock, locked
from relayout.jit.floating import Usual
from relayout.layout.descriptor import MemoryDesc
from relayout.reorder.arguments import Argument, check_apart
from relayout.reorder.attributes import Attributes
from relayout.reorder.axes import check_axes, indexed_alike
from relayout.tensor import SAMPLE, Tensor, address, aligned, as_bytes

if TYPE_CHECKING:
    from relayout.reorder.choice import Awaited
    from relayout.reorder.native import Native
    from relayout.runtime.tuning import Trial

    Engine = tuple[Native, int, NDArray[np.uint8] | None]

__all__ = ["Conversion", "check_threads"]

MAPPED = 32 << 20  # bytes from which on the C library asks the system for memory anew each time
OFTEN = 64  # native calls of a plan before its checks become machine code: the first take 2 ms to load
NONE = Attributes()
BYTES = np.dtype(np.uint8)


class Conversion:
    """A conversion between two descriptors, planned once; many threads may call it at the same time.

    Until :meth:`compile` is called the NumPy engine does it.

    It is what :class:`relayout.Reorder` does and what :func:`relayout.reorder` remembers; see the former for
    its parameters. It is pickled and copied as what it was made of.
    """

    __slots__ = (
        "_calls",
        "_engine",
        "_fills",
        "_room",
        "_source",
        "_target",
        "_trial",
        "alike",
        "attributes",
        "axes",
        "decided",
        "dst",
        "fast",
        "src",
        "threads",
    )

    # Kernels, the address of their operands, and what keeps that valid. All in one value: other threads may
    # be calling the plan while it is set.
    _engine: Engine | None

    # The contest among schedules that this plan's calls take part in; None: it is over, or there is none.
    _trial: Trial[str, Native] | Awaited | None

    # Checks source and destination and converts, or says False; it keeps what it needs.
    fast: Callable[[Any, Any], int] | None

    alike: MemoryDesc
    """The destination as the source is indexed, which is what the engines work on."""

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc,
        *,
        axes: str = "meaning",
        threads: int | None = None,
        **attributes: Any,
    ) -> None:
        check_threads(threads)
        self._prepare(src, dst, axes)
        self.threads = threads
        self.attributes = Attributes.make(src.dims, **attributes)
        if not self.attributes.is_plain:
            with Usual():
                self.attributes.check_range(src.dtype, dst.dtype)

    @classmethod
    def uncompiled(cls, src: MemoryDesc, dst: MemoryDesc, axes: str = "meaning") -> Conversion:
        """A plan without attributes that runs in NumPy until :meth:`compile` is called."""
        self = object.__new__(cls)
        self._prepare(src, dst, axes)
        return self

    def _prepare(self, src: MemoryDesc, dst: MemoryDesc, axes: str) -> None:
        check_axes(axes)
        _check_types(src, dst)
        self.alike = indexed_alike(src, dst, axes)
        _check(src, dst)
        self.src, self.dst, self.axes, self.threads, self.attributes = src, dst, axes, None, NONE
        self._engine, self.decided, self._trial = None, False, None
        self.fast, self._calls = None, 0
        self._source, self._target = Argument("reorder: src", src), Argument("reorder: dst", dst)
        self._room = max(dst.required_bytes, dst.nbytes)
        # Elements and padding, which every engine writes, fill a buffer where there are no holes.
        self._fills = prod(dst.layout.padded) * dst.dtype.bits == self._room * 8

    def with_attributes(self, attributes: Attributes) -> Conversion:
        """The same plan with attributes, not compiled."""
        with Usual():
            attributes.check_range(self.src.dtype, self.dst.dtype)
        made = object.__new__(type(self))
        for name in Conversion.__slots__:
            setattr(made, name, getattr(self, name))
        made.attributes, made._engine, made.decided, made._trial = attributes, None, False, None
        made.fast, made._calls = None, 0
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """What it was made of. Kernels are made anew, or found on disk: another process has none of these."""
        return _remade, (type(self), self.src, self.dst, self.axes, self.threads, self.attributes)

    @classmethod
    def settled(
        cls,
        src: MemoryDesc,
        dst: MemoryDesc,
        attributes: Attributes,
        threads: int | None,
        fixed: bool = False,
    ) -> Conversion:
        """A plan with attributes as they are, of which some may be neutral and take part all the same.

        A ``fixed`` one stays as it is, so that no call loads the compiler: it takes the schedule that earlier
        contests have found, or the estimate, and its checks are not made machine code.
        """
        made = cls.uncompiled(src, dst, "position").with_attributes(attributes)
        made.threads = threads
        made.compile()
        if fixed:
            made._trial, made._calls = None, OFTEN
        return made

    @property
    def kernels(self) -> Native | None:
        """The kernels; None: the NumPy engine does it."""
        return self._engine[0] if self._engine is not None else None

    @property
    def values(self) -> NDArray[np.uint8] | None:
        """The values of attributes as the kernels read them; None: there are none."""
        return self._engine[2] if self._engine is not None else None

    def compiled(self) -> Conversion:
        """The same, with its engine chosen."""
        if not self.decided:
            self.compile()
        return self

    @locked
    def compile(self) -> None:
        """Take the native engine if it takes the problem; other threads may be calling the plan already."""
        if self.attributes.is_plain:  # no values to compute with
            self._take(self.attributes)
            return
        with Usual():
            self._take(self.attributes.taking_part(self.src.dtype, self.dst.dtype))

    @locked
    def _take(self, part: Attributes) -> None:
        """Take the native engine, if it takes these attributes of the formula."""
        from relayout.reorder.choice import chosen

        kernels, trial = chosen(self.src, self.alike, part.shape, self.threads)
        if kernels is not None and kernels.fits(part):
            operands = kernels.operands(part)
            self._engine = kernels, 0 if operands is None else address(operands), operands
            self._trial = trial
        self.decided = True

    def __call__(self, src: Any, out: Any, threads: int | None = None) -> None:
        """Check both buffers and convert."""
        if pytorch.is_tensor(src) or pytorch.is_tensor(out):
            self._of_torch(src, out, threads)
            return
        (source, source_at), (target, target_at) = (
            self._source.buffer(src),
            self._target.buffer(out, writing=True),
        )
        if source_at + source.nbytes > target_at and target_at + target.nbytes > source_at:
            check_apart(
                {"src": self._source, "dst": self._target},
                {"src": source_at, "dst": target_at},
                ("dst",),
                {},
                "reorder",
            )
        self._run(source, source_at, target, target_at, threads or self.threads)

    def _of_torch(self, src: Any, out: Any, threads: int | None) -> None:
        """Convert from or to what is a ``torch.Tensor``."""
        writing = pytorch.is_tensor(out)
        source = self._source.buffer(src)[0] if pytorch.is_tensor(src) else src
        target = self._target.buffer(out, writing=True)[0] if writing else out
        fast = self.hastened(threads)
        if fast is None or not fast(source, target):
            self(source, target, threads)
        if writing:
            pytorch.written(out)

    def hastened(self, threads: int | None) -> Callable[[Any, Any], int] | None:
        """What does calls with so many threads in machine code; None: nothing yet."""
        return self.fast if threads is None or threads == self.threads else None

    def tune(self) -> None:
        """Find the fastest schedule now, by measuring, and make what many calls would have made."""
        self.compiled()
        trial = self._trial
        if trial is not None:
            src, dst = aligned(self.src.required_bytes), aligned(self._room)
            src[:] = SAMPLE  # why no zeros: :func:`relayout.tensor.sampled`
            trial.hold(lambda: self._run(src, address(src), dst, address(dst), self.threads))
            self._decide(trial)
        if self._engine is not None and self._trial is None and self._calls < OFTEN:
            self._calls = OFTEN
            self.fast = self._hastened(*self._engine)

    def checked(self, src: Any) -> Tensor:
        """A tensor or buffer as the source."""
        return Tensor(self.src, as_bytes(self._source.buffer(src)[0]))

    def made(self, src: Tensor, threads: int | None) -> NDArray[np.uint8]:
        """Convert into a new buffer."""
        fast = self.hastened(threads)
        if fast is not None:
            target = aligned(self._room, zeroed=not self._fills)
            if fast(src.buffer, target):
                return target
        source, source_at = self._source.buffer(src)
        target = aligned(self._room, zeroed=not self._fills)
        self._run(source, source_at, target, address(target), threads or self.threads, new=True)
        return target

    def _run(
        self,
        source: NDArray[Any],
        source_at: int,
        target: NDArray[Any],
        target_at: int,
        threads: int | None,
        new: bool = False,
    ) -> None:
        """Convert between buffers that have been checked; ``new``: :meth:`made` has made the target."""
        engine = self._engine
        if engine is not None:
            self._natively(engine, source_at, target_at, threads, new)
            if self._trial is None:  # what is checked in machine code stays as it is
                self._calls = calls = self._calls + 1
                if calls == OFTEN:
                    self.fast = self._hastened(*(self._engine or engine))
        else:
            reorder_numpy = _numpy_engine()
            given = as_bytes(source), as_bytes(target)
            zeroed = new and not self._fills
            with Usual():
                reorder_numpy(self.src, given[0], self.alike, given[1], self.attributes, zeroed=zeroed)

    def between(self, source_at: int, target_at: int, new: bool = False) -> bool:
        """Convert from one address to another, which the caller answers for; False: there are no kernels.

        For callers with memory of their own, who have compiled the plan. ``new``: nobody has touched the
        target yet.
        """
        engine = self._engine
        if engine is None:
            return False
        self._natively(engine, source_at, target_at, self.threads, new)
        return True

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing left to measure."""
        return self.decided and self._trial is None

    def _natively(
        self, engine: Engine, source_at: int, target_at: int, threads: int | None, new: bool
    ) -> None:
        """Convert by kernels, or by those that are on trial."""
        trial = self._trial
        fresh = new and self._room >= MAPPED
        if trial is not None and not fresh:
            words = source_at, target_at, engine[1], threads
            if threads == self.threads and trial.call(lambda kernels: kernels(*words)):
                return  # another number of threads is another problem
            engine = self._decide(trial)
        engine[0](source_at, target_at, engine[1], threads, fresh)

    def _decide(self, trial: Trial[str, Native] | Awaited) -> Engine:
        """The kernels to take from now on: the winner's, once the contest is over."""
        assert self._engine is not None
        if trial.done:
            self._trial, self._engine = None, (trial.winner or self._engine[0], *self._engine[1:])
        return self._engine

    def _hastened(
        self, kernels: Native, operands: int, keep: NDArray[np.uint8] | None
    ) -> Callable[[Any, Any], int] | None:
        """Checks in machine code, for kernels that are called as they are, whatever the destination."""
        if self._room >= MAPPED:
            return None
        with lock():
            from relayout.runtime.builtin import Buffer, Holder, checked

            source, target = (
                Buffer(desc.required_bytes, (desc.dtype.numpy, BYTES), written=side == 1, meanings=(desc,))
                for side, desc in enumerate((self.src, self.dst))
            )
            holder = Holder(Tensor, "buffer", "desc")
            kernel = kernels.alone(self.threads)
            if kernel is not None:
                return checked(kernel, operands, (source, target), holder=holder, keep=(kernels, keep))
            region = kernels.region(operands, self.threads)
            if region is None:
                return None
            plan, many = region
            whole = kernels, keep, plan
            function = checked(
                plan.kernel, plan.operands, (source, target), holder=holder, keep=whole, together=True
            )
        if function is None:
            return None
        ready, asked = kernels.wakes, self.threads
        return lambda src, out: ready(many, asked) and function(src, out)

    def moved(self) -> tuple[int, int]:
        """Bytes that are read and written at least."""
        if 0 in self.src.dims:
            return 0, 0
        elements = -(-self.src.layout.size * self.src.dtype.bits // 8)
        read = min(elements, self.src.required_bytes)  # less where it broadcasts
        return read + self.dst.nbytes * self.attributes.reads_destination, self.dst.nbytes


def _remade(
    cls: type[Conversion],
    src: MemoryDesc,
    dst: MemoryDesc,
    axes: str,
    threads: int | None,
    attributes: Attributes,
) -> Conversion:
    """A plan that was pickled or copied."""
    made = object.__new__(cls)
    made._prepare(src, dst, axes)
    made.threads, made.attributes = threads, attributes
    return made


def _check_types(src: object, dst: object) -> None:
    for side, given in (("source", src), ("destination", dst)):
        if not isinstance(given, MemoryDesc):
            raise LayoutError(
                f"a plan's {side} is a MemoryDesc, got {described(given)}; rl.tensor(x).desc is that of an "
                "array or a tensor, and rl.reorder takes formats"
            )


def _check(src: MemoryDesc, dst: MemoryDesc) -> None:
    for side, desc in (("source", src), ("destination", dst)):
        if desc.layout is None:
            raise LayoutError(
                f"the {side} {desc} has no layout; a reorder needs a format, not '{desc.format_kind}'"
            )
    if not dst.layout.is_injective():
        raise LayoutError(
            f"elements of the destination {dst} share places (broadcast or overlapping strides); "
            "it can't be written to"
        )
    if dst.layout.has_padding and not dst.layout.room().is_injective():
        raise LayoutError(
            f"padding of the destination {dst} shares places with its elements; strides leave too little "
            "room for it"
        )


def check_threads(threads: int | None) -> None:
    """Refuse what is no number of threads."""
    try:
        few = threads is not None and (isinstance(threads, bool) or as_index(threads) < 1)
    except TypeError:
        few = True
    if few:
        raise LayoutError(f"threads must be 1 or more, got {threads!r}")


@lru_cache(maxsize=1)
def _numpy_engine() -> Callable[..., None]:
    with lock():
        from relayout.reorder.engine import reorder_numpy
    return reorder_numpy
