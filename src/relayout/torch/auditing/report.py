"""What an audit found, as a value that prints itself: for terminals, as a page, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relayout.errors import counted, spelled_bytes, spelled_seconds
from relayout.torch.auditing.comparing import Times
from relayout.torch.auditing.gradients import Gradient
from relayout.torch.auditing.judging import Finding
from relayout.torch.auditing.page import document, fragment, page
from relayout.torch.auditing.seen import Operator
from relayout.torch.auditing.words import in_words

__all__ = ["Audit", "Cause"]


@dataclass(frozen=True)
class Cause:
    """An operator, and all copies that are there because of it."""

    finding: Finding
    """What was found at the operator: a loss, an ambiguous result, or the first of the copies."""
    copies: tuple[Finding, ...]

    @property
    def seconds(self) -> float:
        """How long the copies take together."""
        return sum(copy.seconds for copy in self.copies)

    @property
    def nbytes(self) -> int:
        """Bytes that they copy."""
        return sum(copy.nbytes for copy in self.copies)

    @property
    def figures(self) -> str:
        """Time, number and size of the copies, in words."""
        count, size = counted(len(self.copies), "copy"), spelled_bytes(self.nbytes)
        return f"{spelled_seconds(self.seconds)}, {count}, {size}"

    @property
    def title(self) -> str:
        """The operator, or what is not one: the model's input, weights."""
        if self.finding.kind == "copy" and self.finding.origin:
            if self.finding.tensor == "weight":
                return f"weights of {self.finding.operator}"
            return f"{self.finding.origin}, read by {self.finding.operator}"
        return self.finding.operator

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules in which it happens."""
        return tuple(dict.fromkeys(copy.root.module for copy in self.copies))


@dataclass(frozen=True)
class Audit:
    """What :func:`relayout.torch.audit` found.

    ``print`` it for the report, or let it be the last line of a notebook's cell.
    """

    model: str
    """The class of the model."""
    operators: tuple[Operator, ...] = field(repr=False)
    """Everything that was run, in order."""
    lost: tuple[Finding, ...]
    """Where a tensor in channels-last went in and a contiguous one came out."""
    ambiguous: tuple[Finding, ...]
    """Tensors whose elements lie in one format, and whose strides are taken for another."""
    copies: tuple[Finding, ...]
    """Copies that change the order of elements, hidden ones among them."""
    seconds: float
    """How long the run took without what the audit itself takes."""
    threads: int = 1
    """Of PyTorch."""
    failed: Finding | None = None
    """The operator that raised, if it had a tensor in channels-last."""
    train: bool = False
    """Whether a training step was run."""
    gradients: tuple[Gradient, ...] = ()
    """Parameters whose gradients have other strides than they themselves."""
    times: Times | None = None
    """The whole model in each format, if asked for."""
    error: str = ""
    """What the model raised."""
    output: Any = field(default=None, repr=False, compare=False)
    """What the model returned."""

    @property
    def copy_seconds(self) -> float:
        """How much time goes into format changes."""
        return sum(copy.seconds for copy in self.copies)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The operators that cause the copies, the most expensive first: one for each line of source."""
        groups: dict[tuple[str, ...], list[Finding]] = {}
        for copy in self.copies:
            root = copy.root
            place = root.source or root.module
            if copy.cause is None and copy.origin:  # one cause, whoever reads it
                place = ""
            groups.setdefault((root.kind, root.operator, root.tensor, root.origin, place), []).append(copy)
        found = (Cause(copies[0].root, tuple(copies)) for copies in groups.values())
        return tuple(sorted(found, key=lambda cause: -cause.seconds))

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not (self.lost or self.ambiguous or self.copies or self.gradients or self.failed)

    def json(self) -> dict[str, Any]:
        """The audit as dicts, lists, text and numbers; times in seconds, sizes in bytes."""
        return document(self)

    def html(self) -> str:
        """A page that needs nothing else: light or dark as the reader's system is."""
        return page(self)

    def _repr_html_(self) -> str:
        return fragment(self)

    def __str__(self) -> str:
        return in_words(self)
