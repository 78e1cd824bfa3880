"""What was seen of a run, judged: where channels-last is lost, what will be read wrongly, what is copied.

*Lost*: a tensor in channels-last went into an operator, and a new one in ``contiguous_format`` came out.
Views lose nothing: ``x.permute(0, 2, 3, 1)`` of such a tensor *is* contiguous, and the same bytes. Nor do
tensors that are both, after global pooling or with one channel. A tensor of another rank whose memory was
written channels-last still is, if the channels are what lies side by side: that is how the shuffle of
channels in ShuffleNet is found, five axes and all.

*Ambiguous*: the elements lie in one format, and the strides of axes of size 1 say another. ``is_contiguous``
answers yes, and the next convolution takes it for the other (PyTorch's issue 78611).

*Copies*: what moves elements only to have them in another order, and conversions within convolutions
(:mod:`~relayout.torch.auditing.hidden`). Each copy has a *cause*: the operator that lost the format which the
copy restores. It is followed through all operators in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from relayout.torch.auditing.advice import advice as written_instead
from relayout.torch.auditing.hidden import conversion_seconds, hidden_in
from relayout.torch.auditing.seen import CHANNELS_LAST, Operator, Seen, order_of
from relayout.torch.auditing.spelling import short_source
from relayout.torch.auditing.watching import Kernel

__all__ = ["Finding", "Judged", "grouped", "judged"]

COPIES = ("aten.clone", "aten.copy_", "aten._to_copy", "aten.contiguous", "aten._reshape_copy", "aten.copy")
COLUMNS = ("aten.im2col",)
"""Kernels that return three axes, the channels outermost."""

MAKERS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "new_tensor")
"""They take a tensor for its data type only."""


@dataclass(frozen=True)
class Finding:
    """Something that an audit found at an operator."""

    kind: str
    """``lost``, ``ambiguous``, ``copy`` or ``failed``."""
    at: Operator
    """Where."""
    kernel: str
    """What PyTorch ran there."""
    tensor: str
    """Which tensor: ``input``, ``weight``, ``gradient``, ``output``."""
    src: Seen
    """What came in."""
    dst: str
    """The format that it became, or that it is taken for."""
    nbytes: int
    """Bytes of the tensor."""
    seconds: float
    """How long the operator took, or the conversion where that could be told apart."""
    cause: Finding | None = None
    """What lost the format that a copy restores, or that another operand has lost; None: nothing else."""
    origin: str = ""
    """Of a copy without such a cause: where the tensor came from, ``the model's input``, ``a weight``."""

    @property
    def operator(self) -> str:
        """What was called: ``softmax``."""
        return self.at.operator

    @property
    def module(self) -> str:
        """The path of the module in the model."""
        return self.at.module

    @property
    def source(self) -> str:
        """File and line."""
        return self.at.source

    @property
    def advice(self) -> str:
        """What to write instead."""
        return written_instead(self)

    @property
    def root(self) -> Finding:
        """The finding that this one is a consequence of, or itself."""
        return self if self.cause is None else self.cause.root

    @property
    def where(self) -> str:
        """Operator, module and line, for people."""
        place = ", ".join(part for part in (self.module, short_source(self.source)) if part)
        return f"{self.operator} ({place})" if place else self.operator

    def __str__(self) -> str:
        return f"{self.where}: {self.src} -> {self.dst}"

    def plain(self) -> dict[str, Any]:
        """The finding as text and numbers."""
        return {
            "kind": self.kind,
            "operator": self.operator,
            "kernel": self.kernel,
            "index": self.at.index,
            "module": self.module,
            "layer": self.at.layer,
            "source": self.source,
            "line": self.at.text,
            "backward": self.at.backward,
            "tensor": self.tensor,
            "dims": list(self.src.dims),
            "strides": list(self.src.strides),
            "dtype": self.src.dtype,
            "from": self.src.format,
            "to": self.dst,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "cause": None if self.cause is None else self.root.at.index,
            "origin": self.origin,
            "advice": self.advice,
        }


@dataclass(frozen=True)
class Judged:
    """All findings of a run."""

    lost: tuple[Finding, ...]
    ambiguous: tuple[Finding, ...]
    copies: tuple[Finding, ...]
    failed: Finding | None


def judged(operators: Iterable[Operator], kernels: Sequence[Kernel]) -> Judged:
    """Judge what was seen."""
    return _Judge(operators).all(kernels)


def grouped(found: Iterable[Finding]) -> list[list[Finding]]:
    """Findings of the same operator on the same line together."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in found:
        groups.setdefault((one.operator, one.source or one.module), []).append(one)
    return list(groups.values())


class _Judge:
    """Goes through a run from its beginning, and knows of each memory who wrote it and why it is as it is."""

    def __init__(self, operators: Iterable[Operator]) -> None:
        self.operators = {one.index: one for one in operators}
        self.first: dict[int, Seen] = {}  # of each memory, the tensor that it was made as
        self.lost_by: dict[int, Finding] = {}
        self.lost: dict[int, Finding] = {}
        self.ambiguous: list[Finding] = []
        self.doubted: set[int] = set()
        self.copies: list[Finding] = []

    def all(self, kernels: Sequence[Kernel]) -> Judged:
        """Everything found."""
        by_call: dict[int, list[Kernel]] = {}
        for kernel in kernels:
            by_call.setdefault(kernel.call, []).append(kernel)
        failed = None
        for index in sorted(self.operators):
            at = self.operators[index]
            self._call(at, by_call.get(index, []))
            if at.failed and at.inputs:
                src = next((one for one in at.inputs if self._last(one)), None)
                if src is not None:
                    failed = Finding(
                        "failed", at, "", "input", src, at.failed.partition(":")[0], src.nbytes, at.seconds
                    )
        return Judged(tuple(self.lost.values()), tuple(self.ambiguous), tuple(self.copies), failed)

    # ---------------------------------------------------------------- formats

    def _last(self, one: Seen) -> bool:
        """Whether a tensor is in channels-last, or a view of one in some other order of axes."""
        lies = one.format
        if lies in CHANNELS_LAST or lies == "gaps":
            return True
        first = self.first.get(one.number)
        return lies == "strided" and first is not None and first.format in CHANNELS_LAST

    def _loses(self, kernel: str, src: Seen, dst: Seen) -> bool:
        """Whether an operator that made ``dst`` of ``src`` lost channels-last."""
        if dst.format != "contiguous" or not dst.order or not self._last(src):
            return False
        if src.format == "strided":  # other axes: what lies side by side tells
            return len(src.dims) == len(dst.dims) > 2 and bool(src.order) and src.order[-1] != dst.order[-1]
        return len(dst.dims) in (4, 5) or kernel in COLUMNS

    def _enter(self, tensors: Iterable[Seen]) -> None:
        for one in tensors:
            self.first.setdefault(one.number, one)

    def _origin(self, one: Seen) -> str:
        if one.role == "input":
            return "the model's input"
        if one.role in ("parameter", "buffer"):
            return f"a {one.role}"
        return ""

    # ---------------------------------------------------------------- one call

    def _call(self, at: Operator, kernels: Sequence[Kernel]) -> None:
        given, before = {one.number for one in at.inputs}, len(self.copies)
        if not at.backward:
            self._doubt(at, at.inputs, "input")
        for kernel in kernels:
            self._kernel(at, kernel)
        fresh = [one for one in at.outputs if one.number not in given]
        loss = self._loss(at, at.kernels[-1] if at.kernels else "", at.inputs, fresh, at.seconds)
        if loss is not None:
            for one in fresh:
                self.lost_by[one.number] = loss
        own = self.lost.get(at.index)
        for k in range(before, len(self.copies)):  # the copy that loses the format
            copy = self.copies[k]
            if own is not None and copy.cause is None and copy.dst not in CHANNELS_LAST:
                self.copies[k] = replace(copy, cause=own, origin="")
        if not at.backward:
            self._doubt(at, at.outputs, "output")

    def _doubt(self, at: Operator, tensors: Iterable[Seen], what: str) -> None:
        """Tensors that will be read wrongly; each memory is named once, where it first came up."""
        for one in tensors:
            if one.ambiguous and one.number not in self.doubted:
                self.doubted.add(one.number)
                if what == "input" and not one.role:
                    continue
                taken, kernel = one.taken_for.removesuffix("_format"), (*at.kernels, "")[0]
                origin = self._origin(one) if what == "input" else ""
                made = Finding("ambiguous", at, kernel, what, one, taken, one.nbytes, 0.0, origin=origin)
                self.ambiguous.append(made)

    def _kernel(self, at: Operator, kernel: Kernel) -> None:
        self._enter(kernel.inputs)
        given = {one.number for one in kernel.inputs}
        fresh = [one for one in kernel.outputs if one.number not in given]
        self._copy(at, kernel)
        for hidden in hidden_in(kernel.name, kernel.inputs, kernel.outputs):
            seconds = conversion_seconds(hidden)
            self._copied(at, kernel.name, hidden.what, hidden.src, hidden.dst, seconds)
        loss = self._loss(at, kernel.name, kernel.inputs, fresh, kernel.seconds)
        inherited = loss or self._inherited(kernel.inputs)
        self._enter(fresh)
        for one in fresh:
            self.first[one.number] = one
            if inherited is not None and one.format not in CHANNELS_LAST:
                self.lost_by[one.number] = inherited

    def _inherited(self, inputs: Iterable[Seen]) -> Finding | None:
        """The loss that tensors suffer from which are not in channels-last any more."""
        if not self.lost_by:
            return None
        found = (self.lost_by.get(one.number) for one in inputs if not self._last(one))
        return next((one for one in found if one is not None), None)

    def _loss(
        self, at: Operator, kernel: str, inputs: Iterable[Seen], fresh: Sequence[Seen], seconds: float
    ) -> Finding | None:
        if not any(one.format == "contiguous" for one in fresh):
            return None
        if at.operator in MAKERS or kernel.rpartition(".")[2] in MAKERS:
            return None
        given = [one for one in inputs if len(one.dims) > 2]
        if kernel.endswith("convolution_backward"):
            pairs = [(given[0], fresh[:1])] + [(one, fresh[1:2]) for one in given if one.role == "parameter"]
            if len(fresh) < 2:  # the gradients of weights alone
                pairs = pairs[1:]
        else:
            data = [one for one in given if one.role not in ("parameter", "buffer")]
            pairs = [(one, fresh) for one in data or given]
        for src, made in pairs:
            for dst in made:
                if self._loses(kernel, src, dst):
                    known = self.lost.get(at.index)
                    if known is None:
                        why = self._inherited(given)
                        known = Finding(
                            "lost", at, kernel, "output", src, "contiguous", dst.nbytes, seconds, why
                        )
                        self.lost[at.index] = known
                    return known
        return None

    # ---------------------------------------------------------------- copies

    def _copy(self, at: Operator, kernel: Kernel) -> None:
        if kernel.name not in COPIES or not kernel.outputs or not kernel.inputs:
            return
        if kernel.name == "aten.copy_":
            dst, src = (kernel.inputs * 2)[:2] if len(kernel.inputs) == 1 else kernel.inputs[:2]
        else:
            src, dst = kernel.inputs[0], kernel.outputs[0]
        if src.dims != dst.dims or 0 in src.dims:
            return
        stepped = set(src.order) & set(dst.order)  # a broadcast axis has no order
        orders = [[axis for axis in order_of(one.dims, one.strides) if axis in stepped] for one in (src, dst)]
        if orders[0] != orders[1]:
            to = dst.format
            if to == "strided" and dst.number in self.first:  # a part of something
                to = self.first[dst.number].format
            elif to == "both":
                to = dst.taken_for.removesuffix("_format")
            self._copied(at, kernel.name, "input", src, to, kernel.seconds)

    def _copied(self, at: Operator, kernel: str, what: str, src: Seen, dst: str, seconds: float) -> None:
        cause = None
        if not (self._last(src) and dst not in CHANNELS_LAST):  # otherwise it is the loss itself
            cause = self.lost_by.get(src.number)
        if cause is None:
            doubt = next((one for one in self.ambiguous if one.src.number == src.number), None)
            cause = doubt if src.ambiguous else None
        origin = "" if cause else self._origin(src)
        self.copies.append(Finding("copy", at, kernel, what, src, dst, src.nbytes, seconds, cause, origin))
