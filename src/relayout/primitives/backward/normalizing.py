"""What the gradients of all normalisations share: which arguments they have, and in which formats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from relayout.errors import LayoutError, Unsupported
from relayout.forking import locked
from relayout.layout.dense import row_major
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import normalization as ops
from relayout.ops.operation import Operation
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import followed
from relayout.primitives.drafting import Draft, if_possible
from relayout.primitives.meaning import check_alike
from relayout.primitives.normalizing import Normalization, from_statistics, of_rows

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["NormalizationBackward", "RowsBackward", "gradients"]

DATA = ("src", "diff_dst", "diff_src")


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
        if "variance" not in forward.descs:
            raise LayoutError(
                f"{self.kind}: the forward primitive does not write its statistics; make it with "
                "statistics=True, or with use_global_stats=True"
            )
        given = [name for name in ("mean", "variance", "scale") if name in forward.descs]
        self._decide(self.means, given, diff_dst, diff_src, **forward.operation.attributes)

    @locked
    @if_possible
    def _lower(self) -> Program | None:
        from relayout.kernels.reduce.gradients import Gradient
        from relayout.primitives.backward.rows import row_gradient
        from relayout.primitives.lowering import elementwise
        from relayout.primitives.summing import sums

        made = self.forward
        seen = {name: self.descs[name].with_layout(made._seen(self.descs[name].layout)) for name in DATA}
        statistics, src = of_rows(made, seen["src"]), seen["src"]
        given = [name for name in ("mean", "variance") if name in self.inputs]
        scale = None
        if "scale" in self.inputs:
            scale = self.scale.with_layout(made._seen_table(self.scale.layout))
        what = Gradient("normalization", made.operation.epsilon, "mean" in given, scale is not None)
        if made.operation.use_global_stats:
            vectors = made._vectors([name for name in self.inputs if name == "scale"])
            first = from_statistics(("diff_dst", self.diff_dst), ("diff_src", self.diff_src), vectors)
        else:
            first = row_gradient(what, seen, made.axes, scale, [(name, statistics) for name in given])
        draft = Draft()
        draft.append(first)
        wanted = {"diff_scale": "diff_scale" in self.outputs, "diff_shift": "diff_shift" in self.outputs}
        if any(wanted.values()):
            dense = MemoryDesc((prod(self.variance.dims),), "f32", "a")
            factor = ops.root(made.operation.epsilon)
            draft.append(elementwise(dense, {"variance": dense}, factor, target="factor"))
            table = made._seen_table(row_major(made.operation.table))
            over = tuple(axis for axis, size in enumerate(table.dims) if size == 1)
            buffers = {"diff_shift": "sum", "diff_scale": "sum of products"}
            draft.append(
                sums(
                    src,
                    over,
                    [buffer if wanted[name] else "" for name, buffer in buffers.items()],
                    diff_dst=seen["diff_dst"],
                    mean=("mean", statistics) if "mean" in given else None,
                    factor=("factor", statistics),
                )
            )
            draft.room("factor", dense.nbytes)
            for name, buffer in buffers.items():
                if wanted[name]:
                    desc = self.descs[name]
                    near = MemoryDesc(desc.dims, "f32", row_major(desc.dims))
                    draft.reorder(near, desc, draft.room(buffer, near.nbytes), name)
        return draft.program(first.note if first is not None else "")
