"""Plans: check once, move often.

A :class:`Reorder` knows both descriptors and the attributes; calling it only needs buffers. :func:`reorder`
is the one-off form that takes tensors and arrays, and remembers what it planned: asked for the same again, it
finds the plan in two look-ups ::

    (source descriptor, "nhwc", data type)  ->  a plan without attributes: everything checked    _move
    (that plan, attributes)                 ->  the same with attributes: values packed          _with

so that values which change with every call (the scale of one picture) push no checked plan out. A remembered
plan starts in NumPy and is compiled when its problem turns out to be worth it. A small one that goes on being
called gets its checks in machine code, too (:mod:`relayout.runtime.builtin`): they say yes to good arrays and
tensors of its descriptors, and leave everything else, errors above all, to :meth:`Reorder._into`.

What makes a key needs care. Descriptors that are equal may be spelled differently (``nchw``, ``oihw``), so a
plan that was asked for by text is kept by that text: the tensor that it makes is spelled as asked. And 0.0
equals -0.0 but scales differently, so attributes are equal only if their bytes are.

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

from relayout.dtypes import DType, DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, described, type_name
from relayout.exchange import pytorch
from relayout.forking import lock, locked
from relayout.jit.floating import Usual
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import Layout, plain, spell_dims
from relayout.layout.spelling import text_of
from relayout.reorder.attributes import Attributes
from relayout.reorder.axes import asked_for, check_axes, indexed_alike
from relayout.reorder.overlap import overlap
from relayout.tensor import (
    Tensor,
    address,
    aligned,
    as_bytes,
    for_a_call,
    located,
    of_torch,
    same_bytes,
    tensor,
)

if TYPE_CHECKING:
    from relayout.kernels.copy.schedule import Schedule
    from relayout.reorder.native import Native
    from relayout.reorder.predict import Prediction
    from relayout.runtime.tuning import Trial
    from relayout.tensor import FormatLike

__all__ = ["Reorder", "check_out", "reorder"]

MAPPED = 32 << 20  # bytes from which on the C library asks the system for memory anew each time
REMEMBERED = 1 << 14  # bytes of attribute values up to which their plan is remembered
TRIALS = 1000  # calls that are more than any contest takes
OFTEN = 64  # native calls of a plan before its checks become machine code: the first take 2 ms to load
NONE = Attributes()
BYTES = np.dtype(np.uint8)


class Reorder:
    """A conversion between two descriptors, planned once; many threads may call it at the same time.

    It is pickled and copied as what it was made of, so it may go to worker processes.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of the same dims. The destination must not broadcast or overlap itself. Where both know
        what their axes mean, axes are matched by meaning, whatever the logical order of either side
        (:mod:`relayout.layout.roles` has the rules).
    axes : str
        "meaning", or "position": axis k of the source is axis k of the destination, whatever they mean.
    threads : int, optional
        How many threads may work; the NumPy engine uses one.
    **attributes
        ``src_scale``, ``dst_scale``, ``src_zero_point``, ``dst_zero_point``, ``src_shift``: a number, or
        ``(values, axis)`` along a logical axis of the source; ``beta``: how much of the old destination is
        added. See
        :mod:`relayout.reorder.attributes` for the formula. Values are copied: later changes to an array of
        them don't change the plan.

    Raises
    ------
    LayoutError
        Different dims, an undecided format, a destination in which elements share a place, or bad attributes:
        zero points that are not whole, scales that become 0 or infinity in the type that scales have.

    Examples
    --------
    >>> import numpy as np
    >>> import relayout as rl
    >>> src, dst = rl.MemoryDesc((1, 3, 1, 2), "u8", "nhwc"), rl.MemoryDesc((1, 3, 1, 2), "f32", "nchw")
    >>> plan = rl.Reorder(src, dst, src_scale=0.5)
    >>> out = np.empty(6, np.float32)
    >>> plan(np.array([0, 1, 2, 3, 4, 5], np.uint8), out)
    >>> out
    array([0. , 1.5, 0.5, 2. , 1. , 2.5], dtype=float32)

    Pictures normalised as torchvision does it, ``(x / 255 - mean) / std`` for each channel, rounded once:

    >>> mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    >>> plan = rl.Reorder(src, dst, src_scale=1 / 255, src_shift=(mean, 1), dst_scale=(std, 1))
    >>> plan(np.array([0, 1, 2, 253, 254, 255], np.uint8), out)
    >>> out
    array([-2.117904 ,  2.2146587, -2.0182073,  2.4110644, -1.7695861,
            2.64     ], dtype=float32)
    """

    __slots__ = (
        "_calls",
        "_decided",
        "_dst",
        "_engine",
        "_fast",
        "_fills",
        "_needs",
        "_room",
        "_trial",
        "attributes",
        "axes",
        "dst",
        "src",
        "threads",
    )

    # Kernels, the address of their operands, and what keeps that valid. All in one value: other threads may
    # be calling the plan while it is set.
    _engine: tuple[Native, int, NDArray[np.uint8] | None] | None

    # The contest among schedules that this plan's calls take part in; None: it is over, or there is none.
    _trial: Trial[Schedule, Native] | None

    # Checks source and destination and converts, or says False; it keeps what it needs.
    _fast: Callable[[Any, Any], int] | None

    _dst: MemoryDesc
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
        _check_threads(threads)
        self._prepare(src, dst, axes)
        self.threads = threads
        self.attributes = Attributes.make(src.dims, **attributes)
        if not self.attributes.is_plain:
            with Usual():
                self.attributes.check_range(src.dtype, dst.dtype)
        self._compile()

    @classmethod
    def _uncompiled(cls, src: MemoryDesc, dst: MemoryDesc, axes: str = "meaning") -> Reorder:
        """A plan without attributes that runs in NumPy until :meth:`_compile` is called."""
        self = object.__new__(cls)
        self._prepare(src, dst, axes)
        return self

    def _prepare(self, src: MemoryDesc, dst: MemoryDesc, axes: str) -> None:
        check_axes(axes)
        _check_types(src, dst)
        self._dst = indexed_alike(src, dst, axes)
        _check(src, dst)
        self.src, self.dst, self.axes, self.threads, self.attributes = src, dst, axes, None, NONE
        self._engine, self._decided, self._trial = None, False, None
        self._fast, self._calls = None, 0
        self._needs = src.required_bytes, dst.required_bytes
        self._room = max(self._needs[1], dst.nbytes)
        # Elements and padding, which every engine writes, fill a buffer where there are no holes.
        self._fills = prod(dst.layout.padded) * dst.dtype.bits == self._room * 8

    def _with(self, attributes: Attributes) -> Reorder:
        """The same plan with attributes, not compiled."""
        with Usual():
            attributes.check_range(self.src.dtype, self.dst.dtype)
        made = object.__new__(type(self))
        for name in Reorder.__slots__:
            setattr(made, name, getattr(self, name))
        made.attributes, made._engine, made._decided, made._trial = attributes, None, False, None
        made._fast, made._calls = None, 0
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """What it was made of. Kernels are made anew, or found on disk: another process has none of these."""
        return _remade, (type(self), self.src, self.dst, self.axes, self.threads, self.attributes)

    @classmethod
    def _settled(
        cls, src: MemoryDesc, dst: MemoryDesc, attributes: Attributes, threads: int | None
    ) -> Reorder:
        """A plan with attributes as they are, of which some may be neutral and take part all the same."""
        made = cls._uncompiled(src, dst, "position")._with(attributes)
        made.threads = threads
        made._compile()
        return made

    @property
    def _kernels(self) -> Native | None:
        return self._engine[0] if self._engine is not None else None

    @locked
    def _compile(self) -> None:
        """Take the native engine if it takes the problem; other threads may be calling the plan already."""
        from relayout.reorder.native import measurable, native

        with Usual():
            part = self.attributes
            if not part.is_plain:
                part = part.taking_part(self.src.dtype, self.dst.dtype)
            problem = self.src, self._dst, part.shape
            measured = measurable(self.src, self._dst)
            if measured:
                from relayout.reorder.tuning import best

            kernels, trial = best(*problem, self.threads) if measured else (native(*problem), None)
            if kernels is not None and kernels.fits(part):
                operands = kernels.operands(part)
                self._engine = kernels, 0 if operands is None else address(operands), operands
                self._trial = trial
            self._decided = True

    def __call__(self, src: Any, out: Any) -> None:
        """Convert the bytes of ``src`` into ``out``: buffers, or tensors of these descriptors.

        A ``torch.Tensor`` of the descriptor's dims must have its strides; any other must be a contiguous
        buffer of its size, see :func:`relayout.tensor.of_torch`. Nothing keeps the tensors after the call.

        Raises
        ------
        LayoutError
            Strides or data types differ, a buffer is too short, ``out`` can't be written to, or the two
            overlap.
        """
        fast = self._fast
        if fast is None or not fast(src, out):
            self._into(src, out, self.threads)

    def _into(self, src: Any, out: Any, threads: int | None) -> None:
        """Check both buffers and convert."""
        if pytorch.is_tensor(src) or pytorch.is_tensor(out):
            self._into_torch(src, out, threads)
            return
        _check_meaning(src, self.src, "source")
        _check_meaning(out, self.dst, "destination")
        source, source_at = _located(src, self.src, "source")
        target, target_at = _located(out, self.dst, "destination")
        if source.nbytes < self._needs[0] or target.nbytes < self._needs[1]:
            raise self._too_short(source, target)
        if not target.flags.writeable:
            raise LayoutError(f"the buffer of the destination {self.dst} is read-only")
        apart = source_at + source.nbytes <= target_at or target_at + target.nbytes <= source_at
        if not apart and overlap(self.src, source_at, self._dst, target_at):
            raise LayoutError(
                f"source {self.src} and destination {self.dst} overlap in memory; "
                "reorder into a buffer of its own"
            )
        self._run(source, source_at, target, target_at, threads)

    def _into_torch(self, src: Any, out: Any, threads: int | None) -> None:
        """Check what is a ``torch.Tensor``, and convert."""
        writing = pytorch.is_tensor(out)
        source = of_torch(src, self.src, "the plan's source").buffer if pytorch.is_tensor(src) else src
        target = of_torch(out, self.dst, "the plan's destination", writing=True).buffer if writing else out
        fast = self._fast
        if fast is None or not fast(source, target):
            self._into(source, target, threads)
        if writing:
            pytorch.written(out)

    def tune(self) -> None:
        """Find the fastest schedule now, by measuring, instead of in the first calls.

        Source and destination are buffers of its own. What is found is kept on disk for later processes
        (:mod:`relayout.runtime.tuning`); nothing is measured where it is known, where NumPy does the work, or
        for problems of less than 128 KiB.

        Examples
        --------
        >>> import relayout as rl
        >>> plan = rl.Reorder(*(rl.MemoryDesc((8, 8), "f32", format) for format in ("ab", "ba")))
        >>> plan.tune()
        """
        if self._trial is None:
            return
        src, dst = aligned(self._needs[0]), aligned(self._room)
        for _ in range(TRIALS):
            if self._trial is None:
                return
            self._run(src, address(src), dst, address(dst), self.threads)

    def _made(self, src: Tensor, threads: int | None) -> NDArray[np.uint8]:
        """Convert into a new buffer."""
        fast = self._fast
        if fast is not None:
            target = aligned(self._room, zeroed=not self._fills)
            if fast(src.buffer, target):
                return target
        source, source_at = located(src)
        if source.nbytes < self._needs[0]:
            raise self._too_short(source, None)
        target = aligned(self._room, zeroed=not self._fills)
        self._run(source, source_at, target, address(target), threads, new=True)
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
        """Convert between buffers that have been checked; ``new``: :meth:`_made` has made the target."""
        engine = self._engine
        if engine is not None:
            trial = self._trial
            if trial is not None and not (new and self._room >= MAPPED):
                words = source_at, target_at, engine[1], threads
                if threads == self.threads and trial.call(lambda kernels: kernels(*words)):
                    return  # another number of threads is another problem
                if trial.done:
                    self._trial, engine = None, (trial.winner or engine[0], *engine[1:])
                    self._engine = engine
            engine[0](source_at, target_at, engine[1], threads, new and self._room >= MAPPED)
            if self._trial is None:  # what is checked in machine code stays as it is
                self._calls = calls = self._calls + 1
                if calls == OFTEN:
                    self._fast = self._hastened(*engine)
        else:
            reorder_numpy = _numpy_engine()
            given = as_bytes(source), as_bytes(target)
            zeroed = new and not self._fills
            with Usual():
                reorder_numpy(self.src, given[0], self._dst, given[1], self.attributes, zeroed=zeroed)

    def _hastened(
        self, kernels: Native, operands: int, keep: NDArray[np.uint8] | None
    ) -> Callable[[Any, Any], int] | None:
        """Checks in machine code, for kernels that are called as they are, whatever the destination."""
        kernel = kernels.alone(self.threads)
        if kernel is None or self._room >= MAPPED:
            return None
        with lock():
            from relayout.runtime.builtin import Buffer, Holder, checked

            source, target = (
                Buffer(needs, (desc.dtype.numpy, BYTES), written=side == 1, meanings=(desc,))
                for side, (needs, desc) in enumerate(zip(self._needs, (self.src, self.dst), strict=True))
            )
            holder = Holder(Tensor, "buffer", "desc")
            return checked(kernel, operands, (source, target), holder=holder, keep=(kernels, keep))

    def _too_short(self, source: NDArray[Any], target: NDArray[Any] | None) -> LayoutError:
        side, desc, data = "source", self.src, source
        if target is not None and source.nbytes >= self._needs[0]:
            side, desc, data = "destination", self.dst, target
        return LayoutError(
            f"the {side} {desc} needs {desc.required_bytes} bytes; its buffer has {data.nbytes}"
        )

    def explain(self) -> str:
        """Say what the reorder does: both sides, their common refinement, and every pass after it.

        Examples
        --------
        >>> import relayout as rl
        >>> dims = (1, 17, 2, 2)
        >>> src, dst = rl.MemoryDesc(dims, "f32", "nchw"), rl.MemoryDesc(dims, "f32", "nChw8c")
        >>> print(rl.Reorder(src, dst).explain())
        source       f32:nchw:1x17x2x2       272 bytes
        destination  f32:nChw8c:1x17x2x2     384 bytes
        attributes   none
        engine       machine code: interleave, transpose
        predicted    272 bytes read, 384 written: about ... us at the speed of memcpy
        <BLANKLINE>
        axis  numbers  loops (extent x step: source stride, destination stride)
        a     0..0     1x1: 0, 0
        b     0..15    2x8: 32, 32; 8x1: 4, 1
              16..16   1x1: 4, 1
        c     0..1     2x1: 2, 16
        d     0..1     2x1: 1, 8
        <BLANKLINE>
        nest 1, bytes: extent x (source step, destination step)
          refined   u32 0->0: 1x(0,0)  2x(128,128)  8x(16,4)  2x(8,64)  2x(4,32)
          order     u32 0->0: 2x(128,128)  2x(8,64)  2x(4,32)  8x(16,4)
          coalesce  u32 0->0: 2x(128,128)  4x(4,32)  8x(16,4)
          kernel    interleave, 4 pixels of 8 channels, within 2x, threads share 2x
        nest 2, bytes: extent x (source step, destination step)
          refined   u32 256->256: 1x(0,0)  1x(16,4)  2x(8,64)  2x(4,32)  then 7 zeros
          order     u32 256->256: 2x(8,64)  2x(4,32)  1x(16,4)  then 7 zeros
          coalesce  u32 256->256: 4x(4,32)  1x(16,4)  then 7 zeros
          kernel    transpose, 8 rows by 4 columns
        """
        with lock():
            from relayout.loops.refine import refine

        groups = refine(self.src.layout, self._dst.layout)
        rows = []
        for group in groups:
            names = " ".join(plain(len(self.src.dims)).axis_names()[a] for a in group.axes)
            if group.pieces is None:
                rows.append((names, f"0..{group.size - 1}", "no common nest: table of offsets"))
            for k, piece in enumerate(group.pieces or ()):
                turns = [(loop.extent, *loop.steps) for loop in piece.loops]
                loops = "; ".join(f"{extent}x{step}: {src}, {dst}" for extent, step, src, dst in turns)
                last = piece.starts[0] + sum((extent - 1) * step for extent, step, _, _ in turns)
                rows.append((names if k == 0 else "", f"{piece.starts[0]}..{last}", loops))
        kernels = self._kernels
        if kernels is not None:
            how = "machine code: " + ", ".join(kernels.kinds)
        elif all(group.pieces is not None for group in groups):
            count = prod(len(group.pieces or ()) for group in groups)
            how = f"NumPy, strided copies: {count} piece{'s' * (count != 1)}"
        else:
            how = "NumPy, gather by tables of offsets"
        sides = [
            f"{side:<12} {desc!s:<23} {desc.nbytes} bytes"
            for side, desc in (("source", self.src), ("destination", self.dst))
        ]
        lines = [*sides, f"attributes   {self.attributes}", f"engine       {how}"]
        if kernels is not None and kernels.departs:
            lines.append(f"schedule     {kernels.how}, which was measured to be fastest")
        lines += [self._prediction(), ""]
        table = [("axis", "numbers", "loops (extent x step: source stride, destination stride)"), *rows]
        widths = [max(len(row[k]) for row in table) for k in range(2)]
        lines += [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}" for a, b, c in table]
        if kernels is not None:
            lines += ["", *kernels.explain()]
        return "\n".join(lines)

    @property
    def predicted(self) -> Prediction:
        """The bytes that the reorder moves, and the seconds that a copy of as many takes: its yardstick.

        A reorder reads its source and writes its destination once, so no way to do it takes much less than
        ``memcpy`` of half as many bytes, as the caches permit; kernels need 1 to 2 times as long. The copy is
        measured whenever it is asked for, since machines are shared: that takes some milliseconds, or a tenth
        of a second for tensors of 32 MiB and more.

        Examples
        --------
        >>> import relayout as rl
        >>> dims = (1, 17, 2, 2)
        >>> src, dst = rl.MemoryDesc(dims, "u8", "nchw"), rl.MemoryDesc(dims, "f32", "nChw8c")
        >>> moved = rl.Reorder(src, dst).predicted
        >>> moved.read, moved.written, moved.seconds > 0
        (68, 384, True)
        """
        with lock():
            from relayout.reorder.predict import Prediction, copy_seconds

        read, written = self._bytes()
        return Prediction(read, written, copy_seconds(read, written, self.threads) if written else 0.0)

    def _bytes(self) -> tuple[int, int]:
        """What is read and written at least."""
        if 0 in self.src.dims:
            return 0, 0
        elements = -(-self.src.layout.size * self.src.dtype.bits // 8)
        read = min(elements, self.src.required_bytes)  # less where it broadcasts
        return read + self.dst.nbytes * self.attributes.reads_destination, self.dst.nbytes

    def _prediction(self) -> str:
        """What is read and written, and how long a copy of that takes now."""
        read, written = self._bytes()
        line = f"predicted    {read} bytes read, {written} written"
        if self._kernels is None or not read:
            return line
        seconds = self.predicted.seconds
        number, unit = (seconds * 1e6, "us") if seconds < 1e-3 else (seconds * 1e3, "ms")
        return f"{line}: about {number:.3g} {unit} at the speed of memcpy"

    def __repr__(self) -> str:
        return f"Reorder({str(self.src)!r}, {str(self.dst)!r}, attributes: {self.attributes})"


def _remade(
    cls: type[Reorder],
    src: MemoryDesc,
    dst: MemoryDesc,
    axes: str,
    threads: int | None,
    attributes: Attributes,
) -> Reorder:
    """A plan that was pickled or copied."""
    made = object.__new__(cls)
    made._prepare(src, dst, axes)
    made.threads, made.attributes = threads, attributes
    made._compile()
    return made


@lru_cache(maxsize=1024)
def _move(
    src: MemoryDesc,
    src_roles: tuple[str, ...] | None,
    dst: MemoryDesc | str,
    dst_roles: tuple[str, ...] | None,
    kind: DType | None,
    axes: str,
) -> Reorder:
    """The plan without attributes to a descriptor, or to the format that a text names (None: same type).

    Roles, in which descriptors that are equal may differ, are there for the key.
    """
    check_axes(axes)
    desc = asked_for(src, Format(dst), kind, axes) if isinstance(dst, str) else dst
    return Reorder._uncompiled(src, desc, axes)


@lru_cache(maxsize=256)
def _with(move: Reorder, attributes: Attributes) -> Reorder:
    """The plan with attributes."""
    return move._with(attributes)


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


def _check_meaning(given: Any, desc: MemoryDesc, side: str) -> None:
    """A tensor must be what the plan was made for, an array of its data type; bytes are taken as they are."""
    if isinstance(given, Tensor):
        if given.desc is not desc and not same_bytes(given.desc, desc):
            raise LayoutError(f"the plan's {side} is {desc}, but it was given {given.desc}")
    elif (
        isinstance(given, np.ndarray)
        and given.dtype.kind not in "uV"
        and desc.dtype.bits >= 8
        and given.dtype != desc.dtype.numpy
    ):
        raise LayoutError(
            f"the plan's {side} is {desc}, but it was given an array of {given.dtype}; "
            f"give {desc.dtype} or bytes"
        )


def _located(given: Any, desc: MemoryDesc, side: str) -> tuple[NDArray[Any], int]:
    """Array and address of a buffer; an error says which one it is."""
    try:
        return located(given)
    except LayoutError as error:
        raise LayoutError(f"the plan's {side} is {desc}: {error}") from None


def _check_threads(threads: int | None) -> None:
    try:
        few = threads is not None and (isinstance(threads, bool) or as_index(threads) < 1)
    except TypeError:
        few = True
    if few:
        raise LayoutError(f"threads must be 1 or more, got {threads!r}")


def reorder(
    src: Any,
    dst: FormatLike | None = None,
    *,
    out: Any = None,
    dtype: DTypeLike | None = None,
    axes: str = "meaning",
    threads: int | None = None,
    src_scale: Any = None,
    dst_scale: Any = None,
    src_zero_point: Any = None,
    dst_zero_point: Any = None,
    src_shift: Any = None,
    beta: float = 0,
) -> Tensor:
    """Convert a tensor to another format, another data type, or both.

    Parameters
    ----------
    src : Tensor or array_like
        The source; arrays, and tensors of PyTorch, are taken as logical arrays, with any strides.
    dst : str, Format, Layout, MemoryDesc or torch.memory_format, optional
        The destination. Without one the format stays (dense). A format takes over the logical order of the
        source, and what its axes mean; a layout or descriptor has its own, and axes are matched by meaning.
    out : Tensor, torch.Tensor or writable buffer, optional
        Where to write; it must be of the destination's descriptor. Padding is zeroed, holes are left alone.
        It may be a view of a bigger tensor, but must not overlap the source. A ``torch.Tensor`` of the
        source's dims is filled by its own strides.
    dtype : optional
        The data type of the destination; without one that of ``dst`` if it is a descriptor, of ``out`` if it
        is a tensor, or of the source.
    axes : str
        "meaning": axes that both sides give a meaning are matched by it (:mod:`relayout.layout.roles` has the
        rules). "position": axis k of the source is axis k of the destination, whatever they mean.
    threads : int, optional
        How many threads may work; the NumPy engine uses one.
    src_scale, dst_scale, src_zero_point, dst_zero_point, src_shift : number or (values, axis), optional
        ``dst = saturate(round_half_even((src_scale * (src - src_zero_point) - src_shift + beta * dst) /
        dst_scale + dst_zero_point))``. Zero points are whole numbers; with a shift the arithmetic is in f64.
    beta : float
        How much of the old destination is added; needs ``out``.

    Returns
    -------
    Tensor
        The destination (``out`` itself, if it was a Tensor; one that shares the memory of any other ``out``,
        so that PyTorch does not resize a ``torch.Tensor`` from then on; a plan's ``out`` stays resizable).

    Raises
    ------
    LayoutError
        Something does not fit, or the axes of both sides mean different things; nothing has been written
        then.

    Examples
    --------
    Meaning counts, not position: ``NHWC4@nhwc`` is indexed n, h, w, c, and still c stays c.

    >>> import relayout as rl
    >>> x = rl.tensor([[[[1, 2]], [[3, 4]], [[5, 6]]]], "nchw")
    >>> rl.reorder(x, "NHWC4@nhwc").buffer.view("int64")
    array([1, 3, 5, 0, 2, 4, 6, 0])

    A photograph's bytes, ``nhwc``, to the floats of a network, ``nChw16c``, in one call:

    >>> import numpy as np
    >>> import relayout as rl
    >>> picture = rl.from_buffer(bytes(range(48)), rl.MemoryDesc((1, 3, 4, 4), "u8", "nhwc"))
    >>> x = rl.reorder(picture, "nChw16c", dtype="f32", src_scale=1 / 255)
    >>> x.desc, x.buffer.view(np.float32)[:4].round(4)
    (MemoryDesc('f32:nChw16c:1x3x4x4'), array([0.    , 0.0039, 0.0078, 0.    ], dtype=float32))
    """
    source = src if isinstance(src, Tensor) else for_a_call(src)
    if threads is not None:
        _check_threads(threads)
    if type(axes) is not str:
        check_axes(axes)
    foreign = None
    if out is not None and pytorch.is_tensor(out):
        foreign, out = out, _of_torch(out, source, dst, dtype, axes)
    plan, desc = _destination(source, dst, out, dtype, axes)
    none = src_scale is dst_scale is src_zero_point is dst_zero_point is src_shift is None
    if not none or type(beta) not in (int, float) or beta != 0:
        attributes = Attributes.make(
            source.dims,
            src_scale=src_scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
            src_shift=src_shift,
            beta=beta,
        )
        known = attributes.nbytes <= REMEMBERED
        plan = _with(plan, attributes) if known else plan._with(attributes)
    if not plan._decided:
        _compile_if_worth(plan)
    if out is not None:
        check_out(out, desc)
        fast = plan._fast  # descriptors have been compared, so buffers will do
        if fast is None or not fast(source.buffer, out.buffer if isinstance(out, Tensor) else out):
            plan._into(source, out, threads)
        if foreign is not None:
            pytorch.written(foreign)
        return out if isinstance(out, Tensor) else Tensor(desc, as_bytes(out))
    if plan.attributes.reads_destination:
        raise LayoutError(f"beta {beta:g} adds to the old destination, but no out was given")
    return Tensor(desc, plan._made(source, threads))


def _of_torch(out: Any, source: Tensor, dst: FormatLike | None, dtype: DTypeLike | None, axes: str) -> Tensor:
    """What a ``torch.Tensor`` is as ``out``: of the source's dims a strided tensor, else a buffer."""
    try:
        dims = pytorch.dims(out)
        if dims == source.dims:
            return tensor(pytorch.memory(out, writing=True))
    except LayoutError as error:
        raise LayoutError(f"out can't be written to: {error}") from None
    if dst is None:
        raise LayoutError(
            f"out is a {type_name(out)} of {spell_dims(dims)}, but the source is {source.desc}; "
            "without a destination's format both must have the same dims"
        )
    return of_torch(out, _destination(source, dst, None, dtype, axes)[1], "out", writing=True, lasting=True)


def _compile_if_worth(plan: Reorder) -> None:
    if _judge()(plan.src, plan._dst):
        plan._compile()


# Imported under the lock, once: whoever is past that must not wait for others who compile.


@lru_cache(maxsize=1)
def _judge() -> Callable[[MemoryDesc, MemoryDesc], bool]:
    with lock():
        from relayout.reorder.native import worth_compiling
    return worth_compiling


@lru_cache(maxsize=1)
def _numpy_engine() -> Callable[..., None]:
    with lock():
        from relayout.reorder.engine import reorder_numpy
    return reorder_numpy


def check_out(out: Any, desc: MemoryDesc) -> None:
    """An array is taken as physical bytes; refuse one that looks as if it were meant as a logical array."""
    if not isinstance(out, np.ndarray):
        return
    if out.dtype != np.uint8 and desc.dtype.bits >= 8 and out.dtype != desc.dtype.numpy:
        raise LayoutError(
            f"out is an array of {out.dtype}, but the destination is {desc}; give bytes or {desc.dtype}"
        )
    if out.ndim < 2 or out.shape != desc.dims:
        return
    if not desc.layout.same_bytes(Layout._dense(desc.dims, plain(desc.rank))):
        raise LayoutError(
            f"out has the shape of the logical array, but is filled with the physical bytes of {desc}; "
            "give out.reshape(-1) if that is meant, or rl.tensor(out) to fill the array by its own strides"
        )


def _destination(
    source: Tensor, dst: FormatLike | None, out: Any, dtype: DTypeLike | None, axes: str
) -> tuple[Reorder, MemoryDesc]:
    """The plan without attributes, and the descriptor of the result as the caller spells it."""
    given = out.desc if isinstance(out, Tensor) else None
    kind = as_dtype(dtype) if dtype is not None else None
    roles = _roles(source.desc)
    if dst is None and given is not None:
        dst = given
    dst = text_of(dst) or dst
    if isinstance(dst, MemoryDesc):
        if kind is not None and dst.dtype != kind:
            raise LayoutError(f"the destination is {dst}, but dtype {kind} was asked for")
        plan, desc = _move(source.desc, roles, dst, _roles(dst), None, axes), dst
    else:
        if kind is None and given is not None:
            kind = given.dtype
        if isinstance(dst, str):
            plan = _move(source.desc, roles, dst, None, kind, axes)
            desc = plan.dst
        else:
            if isinstance(dst, (Tensor, np.ndarray)) or pytorch.is_tensor(dst):
                raise LayoutError(
                    "a destination is a format: text, a Format, a Layout or a MemoryDesc, got "
                    f"{type_name(dst)}; to fill it, name it: rl.reorder(x, out=...)"
                )
            format = _dense(source.desc) if dst is None else dst
            if isinstance(format, Format):
                desc = asked_for(source.desc, format, kind, axes)
            else:
                dims = format.dims if isinstance(format, Layout) else source.dims
                desc = MemoryDesc(dims, kind or source.dtype, format)
            plan = _move(source.desc, roles, desc, _roles(desc), None, axes)
    if given is not None and given is not desc and not same_bytes(given, desc):
        if isinstance(dst, (str, Format)) and given.dtype == desc.dtype and given.dims == desc.dims:
            raise LayoutError(f"out is {given}, which is not {dst} as asked for")
        raise LayoutError(f"out is {given}, but the destination is {desc}")
    return plan, desc


def _roles(desc: MemoryDesc) -> tuple[str, ...] | None:
    return desc.layout.roles if desc.layout is not None else None


def _dense(desc: MemoryDesc) -> Format | Layout:
    """The format of a tensor if it has one, else row-major."""
    if desc.layout is None:
        raise LayoutError(f"the source {desc} has no layout")
    return desc.format or Layout._dense(desc.dims, plain(desc.rank).with_roles(desc.layout.roles))
