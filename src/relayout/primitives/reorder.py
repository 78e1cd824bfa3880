"""A reorder as a primitive: what a sequence puts between two formats.

:func:`relayout.reorder` is what users want: it takes any tensor and remembers its plans. This is the same for
one pair of descriptors, in the form that primitives have, so that it can be a step among others.

>>> import relayout as rl
>>> from relayout.primitives import Reorder
>>> nchw, nhwc = (rl.MemoryDesc((1, 2, 1, 3), "f32", name) for name in ("nchw", "nhwc"))
>>> made = Reorder(nchw, nhwc)
>>> made(rl.tensor([[[[1, 2, 3]], [[4, 5, 6]]]], "nchw", "f32")).buffer.view("f4")
array([1., 4., 2., 5., 3., 6.], dtype=float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from relayout.errors import LayoutError
from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.layout import spell_dims
from relayout.ops.checks import check_descs, check_written
from relayout.primitives.meaning import check_alike
from relayout.primitives.primitive import Primitive
from relayout.reorder import reorder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relayout.primitives.program import Program
    from relayout.tensor import Tensor

__all__ = ["Reorder"]


class Reorder(Primitive):
    """The elements of ``src`` in the format and the data type of ``dst``.

    Parameters
    ----------
    src, dst : MemoryDesc
        Descriptors of the same dims, with a format. Equal ones make a copy.

    Raises
    ------
    LayoutError
        The dims differ, a format is not decided, or elements of ``dst`` share places.
    """

    kind = "reorder"
    inputs = ("src",)

    def __init__(self, src: MemoryDesc, dst: MemoryDesc) -> None:
        check_descs("reorder", {"src": src, "dst": dst}, {})
        if src.dims != dst.dims:
            raise LayoutError(
                f"reorder: src has the dims {spell_dims(src.dims)}, dst {spell_dims(dst.dims)}; "
                "they must be the same"
            )
        for name, desc in (("src", src), ("dst", dst)):
            if desc.layout is None:
                raise LayoutError(f"reorder: the format of {name} {desc} is not decided")
        check_alike("reorder", {"src": src, "dst": dst})
        check_written("reorder", dst)
        self.descs = {"src": src, "dst": dst}

    @property
    def flops(self) -> int:
        """None."""
        return 0

    def _definition(self, arrays: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
        return arrays["src"]

    def _moved_besides(self) -> int:
        return 0

    def _define(self, tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """Not by way of double precision, which would round s64."""
        reorder(tensors["src"], self.dst, out=targets["dst"])

    @locked
    def _lower(self) -> Program | None:
        from relayout.primitives.lowering import reorder_step
        from relayout.primitives.program import Program

        step = reorder_step(self.src, self.dst, "src", "dst")
        return None if step is None else Program((step,))
