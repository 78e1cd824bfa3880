"""What the gradients of all normalisations share: which arguments they have, and in which formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from relayout.errors import LayoutError, Unsupported
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import normalization as ops
from relayout.ops.operation import Operation
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import followed
from relayout.primitives.meaning import check_alike
from relayout.primitives.normalizing import Normalization

__all__ = ["NormalizationBackward", "RowsBackward", "gradients"]


def gradients(
    made: Backward, diff_dst: Any, diff_src: Any, read: str = "src"
) -> tuple[MemoryDesc, MemoryDesc]:
    """The descriptors of ``diff_dst`` and ``diff_src``; ``any`` is the format of what is ``read`` besides.

    Raises
    ------
    LayoutError
        Dims differ from those of the forward pass.
    Unsupported
        There is no gradient of integers.
    """
    forward, found = made.forward, []
    for name, given, like in (("diff_dst", diff_dst, "dst"), ("diff_src", diff_src, "src")):
        desc = made._like(name, given, forward.descs[like], written=name == "diff_src")
        if not desc.dtype.is_float:
            raise Unsupported(f"{made.kind}: {name} {desc} holds integers, and there is no gradient of these")
        found.append(followed(forward.descs[read], desc))
    return found[0], found[1]


class NormalizationBackward(Backward):
    """The gradients of a normalisation; see the subclasses."""

    def _decide(
        self, kind: type[Operation], given: Sequence[str], diff_dst: Any, diff_src: Any, **attributes: Any
    ) -> None:
        """Check and decide all descriptors; ``given`` are inputs that the forward pass has."""
        forward = self.forward
        diff_dst, diff_src = gradients(self, diff_dst, diff_src)
        inputs = {"src": forward.descs["src"], "diff_dst": diff_dst}
        inputs |= {name: forward.descs[name] for name in given}
        outputs = {"diff_src": diff_src}
        outputs |= {
            f"diff_{name}": forward.descs[name] for name in ("scale", "shift") if name in forward.descs
        }
        self._settle(kind, inputs, outputs, **attributes)
        check_alike(self.kind, {name: self.descs[name] for name in ("src", "diff_dst", "diff_src")})


class RowsBackward(NormalizationBackward):
    """The gradients of a normalisation of rows; see the subclasses."""

    forward: Normalization
    operation: ops.RowsBackward
    means: ClassVar[type[ops.RowsBackward]]
    """The operation of the kind."""

    def __init__(
        self,
        forward: Normalization,
        *,
        diff_dst: MemoryDesc | Any = None,
        diff_src: MemoryDesc | Any = None,
    ) -> None:
        self._made_for(forward)
        if "variance" not in forward.outputs:
            raise LayoutError(
                f"{self.kind}: the forward primitive does not write its statistics; make it with "
                "statistics=True"
            )
        given = [name for name in ("mean", "variance", "scale") if name in forward.descs]
        self._decide(self.means, given, diff_dst, diff_src, **forward.operation.attributes)
