"""Gradients of PReLU, in any format: of the source, and of the slopes.

The gradient of a slope that was repeated is a sum over all its elements. It is taken in a fixed order, along
the inner axes of each image first and over the images last, whatever the number of threads.

>>> import relayout as rl
>>> from relayout.primitives import PReLU
>>> x = rl.tensor([[-4.0, 2.0], [-1.0, 3.0]], "ab", dtype="f32")
>>> slopes = rl.tensor([[0.5, 0.25]], "ab", dtype="f32")
>>> backward = PReLUBackward(PReLU(x.desc, slopes.desc))
>>> found = backward(x, slopes, rl.tensor([[1.0, 1.0], [2.0, 2.0]], "ab", dtype="f32"))
>>> found.diff_src.numpy(), found.diff_weights.numpy()
(array([[0.5, 1. ],
       [1. , 2. ]], dtype=float32), array([[-6.,  0.]], dtype=float32))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.forking import locked
from relayout.layout.descriptor import MemoryDesc
from relayout.ops.backward import prelu as ops
from relayout.ops.formats import check_source
from relayout.primitives.backward.base import Backward
from relayout.primitives.backward.following import check_gradient, followed
from relayout.primitives.drafting import Draft, if_possible, joined
from relayout.primitives.meaning import check_alike
from relayout.primitives.prelu import PReLU
from relayout.primitives.reduction import Reduction

if TYPE_CHECKING:
    from relayout.primitives.program import Program

__all__ = ["PReLUBackward"]


class PReLUBackward(Backward):
    """The gradients of a PReLU.

    Parameters
    ----------
    forward : PReLU
        The PReLU.
    diff_dst, diff_src, diff_weights, src, weights : MemoryDesc or rl.any, optional
        Without them the formats and data types of the forward pass; ``any`` is the format of ``src``, for
        weights the one that they had.

    Raises
    ------
    LayoutError
        The descriptors don't fit together.
    Unsupported
        A gradient is of integers.
    """

    kind = "prelu backward"
    hint = PReLU
    forward: PReLU
    operation: ops.PReLUBackward

    def __init__(
        self,
        forward: PReLU,
        *,
        diff_dst: Any = None,
        diff_src: Any = None,
        diff_weights: Any = None,
        src: Any = None,
        weights: Any = None,
    ) -> None:
        self._made_for(forward)
        src = followed(forward.src, self._like("src", src, forward.src))
        weights = followed(forward.weights, self._like("weights", weights, forward.weights))
        inputs = {
            "src": src,
            "weights": weights,
            "diff_dst": followed(src, self._like("diff_dst", diff_dst, forward.dst)),
        }
        outputs = {
            "diff_src": followed(src, self._like("diff_src", diff_src, forward.src, written=True)),
            "diff_weights": followed(
                weights, self._like("diff_weights", diff_weights, forward.weights, written=True)
            ),
        }
        for name, desc in (*inputs.items(), *outputs.items()):
            (check_gradient if name.startswith("diff") else check_source)(self.kind, name, desc)
        self._settle(ops.PReLUBackward, inputs, outputs)
        check_alike(self.kind, self.descs)

    @locked
    @if_possible
    def _lower(self) -> Program | None:
        from relayout.layout.dense import dense_like
        from relayout.primitives.lowering import elementwise

        what = self.operation
        given = {name: self.descs[name] for name in self.inputs}
        of_src = elementwise(self.diff_src, given, what.of_src, target="diff_src")
        del given["weights"]
        note = "two passes"
        if not what.summed:
            of_weights = elementwise(self.diff_weights, given, what.of_weights, target="diff_weights")
            return joined(of_src, of_weights, note=note)
        terms = MemoryDesc(self.src.dims, "f32", dense_like(self.src.layout))
        draft = Draft()
        draft.append(of_src)
        draft.append(elementwise(terms, given, what.of_weights, target=draft.room_for("terms", terms)))
        self._sum(draft, terms)
        return draft.program(f"{note}, sums")

    def _sum(self, draft: Draft, terms: MemoryDesc) -> None:
        """Sums along some axes: along all but the first of them, and then along that, in f32 until then."""
        axes, at, source = self.operation.summed, terms, "terms"
        outer = next((axis for axis in axes if terms.dims[axis] > 1), axes[0])
        inner = tuple(axis for axis in axes if axis != outer)
        for k, several in enumerate(filter(None, (inner, (outer,)))):
            last = several == (outer,)
            made = Reduction(at, "sum", several, self.diff_weights if last else None)
            target = "diff_weights" if last else draft.room_for("sums", made.dst)
            names = {"src": source, "dst": target, "source": f"source {k}", "target": f"target {k}"}
            draft.append(made._lower(), names)
            at, source = made.dst, target
