"""Reorder: the same elements in another format, another data type, or both.

:func:`relayout.reorder` takes any tensor and remembers what it planned. :class:`Reorder` is the same for one
pair of descriptors, planned when it is made, and a primitive that may be a step among others.

>>> import relayout as rl
>>> nchw, nhwc = (rl.MemoryDesc((1, 2, 1, 3), "f32", name) for name in ("nchw", "nhwc"))
>>> made = rl.Reorder(nchw, nhwc)
>>> made(rl.tensor([[[[1, 2, 3]], [[4, 5, 6]]]], "nchw", "f32")).buffer.view("f4")
array([1., 4., 2., 5., 3., 6.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relayout.errors import LayoutError
from relayout.forking import lock, locked
from relayout.layout.roles import correspondence
from relayout.primitives.primitive import Primitive, results_by_name
from relayout.reorder.conversion import Conversion, check_threads
from relayout.tensor import Tensor

if TYPE_CHECKING:
    from relayout.layout.descriptor import MemoryDesc
    from relayout.ops import reorder as ops
    from relayout.primitives.program import Program
    from relayout.reorder.attributes import Attributes
    from relayout.reorder.predict import Prediction
    from relayout.runtime.tuning import Choice

__all__ = ["Reorder"]


class Reorder(Primitive):
    """A conversion between two descriptors, planned once; many threads may call it at the same time.

    It is a primitive as others are, with the input ``src`` and the output ``dst``, and may be a layer of a
    sequence. It is pickled and copied as what it was made of, so it may go to worker processes.

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
    src_scale, dst_scale, src_zero_point, dst_zero_point, src_shift : number or (values, axis), optional
        Along a logical axis of the source; see :mod:`relayout.reorder.attributes` for the formula. Values are
        copied: later changes to an array of them don't change the plan.
    beta : float
        How much of the old destination is added.

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

    kind = "reorder"
    inputs = ("src",)

    def __init__(
        self,
        src: MemoryDesc,
        dst: MemoryDesc,
        *,
        axes: str = "meaning",
        threads: int | None = None,
        src_scale: Any = None,
        dst_scale: Any = None,
        src_zero_point: Any = None,
        dst_zero_point: Any = None,
        src_shift: Any = None,
        beta: float = 0,
    ) -> None:
        self._plan = Conversion(
            src,
            dst,
            axes=axes,
            threads=threads,
            src_scale=src_scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
            src_shift=src_shift,
            beta=beta,
        )
        self.descs = {"src": src, "dst": dst}
        self.accumulates = ("dst",) * self.attributes.reads_destination

    @property
    def plan(self) -> Conversion:
        """What does it; compiled when it is first asked for."""
        return self._plan.compiled()

    @property
    def attributes(self) -> Attributes:
        """Scales, zero points, the shift and ``beta``."""
        return self._plan.attributes

    @property
    def threads(self) -> int | None:
        """How many threads may work; None: as many as a process is told to use."""
        return self._plan.threads

    def __call__(  # type: ignore[override]
        self, src: Any, out: Any = None, threads: int | None = None
    ) -> Any:
        """Convert the bytes of ``src`` into ``out``: buffers, or tensors of these descriptors.

        A ``torch.Tensor`` of the descriptor's dims must have its strides; any other must be a contiguous
        buffer of its size, see :func:`relayout.tensor.of_torch`. Nothing keeps the tensors after the call.
        Arrays are buffers of physical bytes on both sides.

        Returns
        -------
        Tensor or None
            ``out`` if it is a Tensor, a new one if there is none; nothing for a buffer, which is filled.

        Raises
        ------
        LayoutError
            Strides or data types differ, a buffer is too short, ``out`` can't be written to, or the two
            overlap.
        """
        plan = self._plan
        fast = plan.fast if threads is None else plan.hastened(threads)
        if fast is not None and fast(src, out):
            return out if type(out) is Tensor else None
        if threads is not None:
            check_threads(threads)
        target = out
        if isinstance(out, Mapping):
            target = results_by_name().by_name(self.kind, self.outputs, out).get("dst")
        if target is not None:
            self.plan(src, target, threads)
            return target if isinstance(target, Tensor) else None
        if self.accumulates:
            raise LayoutError("reorder adds to what dst held, but no out was given")
        return Tensor(self.dst, self.plan.made(self.plan.checked(src), threads))

    def tune(self) -> Choice | None:
        """Find the fastest schedule now, by measuring, instead of in the first calls.

        Source and destination are buffers of its own. What is found is kept on disk for later processes
        (:mod:`relayout.runtime.tuning`); nothing is measured where it is known, where NumPy does the work, or
        for problems of less than 128 KiB.

        Returns
        -------
        Choice or None
            What is known of the problem now; None where nothing is.

        Examples
        --------
        >>> import relayout as rl
        >>> plan = rl.Reorder(*(rl.MemoryDesc((8, 8), "f32", format) for format in ("ab", "ba")))
        >>> plan.tune()
        """
        self._plan.tune()
        self._lowered = False  # a program for sequences has the new kernels from here on
        return next(iter(self.choices()), None)

    @locked
    def choices(self) -> tuple[Choice, ...]:
        """What contests have found so far: one answer, or none where nobody has measured."""
        from relayout.reorder.tuning import known

        found = known(self._plan)
        return () if found is None else (found,)

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
            from relayout.reorder.explanation import explained
        return explained(self._plan)

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
            from relayout.reorder.explanation import predicted
        return predicted(self._plan)

    # -- as a primitive -------------------------------------------------------------------------------------

    @property
    @locked
    def operation(self) -> ops.Reorder:  # type: ignore[override]
        """What is computed, apart from formats; most reorders are never asked."""
        from relayout.ops import reorder as ops
        from relayout.ops.operation import specs

        places = None
        if self._plan.axes == "meaning":
            places = correspondence(self.src.layout.roles, self.dst.layout.roles)
        turned = tuple(range(self.src.rank)) if places is None else places
        src, dst = specs(self.descs)
        return ops.Reorder((src,), (dst,), values=self.attributes, axes=turned)

    def _moved_besides(self) -> int:
        return 0

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.drafting import conversion_step
        from relayout.primitives.program import Program

        kernels, values = self.plan.kernels, self.plan.values
        if kernels is None:
            return None
        constants = {} if values is None else {"values": values}
        step, note = conversion_step(kernels, "src", "dst", *constants), ", ".join(kernels.kinds)
        return Program((step,), constants=constants, note=note)

    def _often(self, program: Program) -> None:
        """Nothing: the conversion has its own."""

    def __repr__(self) -> str:
        return f"Reorder({str(self.src)!r}, {str(self.dst)!r}, attributes: {self.attributes})"
