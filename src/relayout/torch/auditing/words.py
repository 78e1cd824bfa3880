"""An audit in words, for terminals: what it costs, what causes it, what to write instead."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING

from relayout.errors import counted, spelled_bytes, spelled_seconds
from relayout.torch.auditing.judging import grouped
from relayout.torch.auditing.spelling import short_source

if TYPE_CHECKING:
    from relayout.torch.auditing.judging import Finding
    from relayout.torch.auditing.report import Audit, Cause

__all__ = ["in_words", "times_in_words"]

WIDTH = 110
MOST_CAUSES = 3
MOST_FINDINGS = 12


def in_words(audit: Audit, width: int = WIDTH) -> str:
    """The report."""
    lines = [*_summary(audit), *_causes(audit, width)]
    causes = audit.causes[:MOST_CAUSES]
    lines += _findings("Lost: channels-last in, contiguous out", audit.lost, width, causes)
    lines += _findings(
        "Ambiguous: the strides will be read as another format", audit.ambiguous, width, causes
    )
    if audit.failed is not None:
        lines += _findings("Raised", [audit.failed], width)
    lines += _gradients(audit, width)
    lines += times_in_words(audit)
    return "\n".join(lines)


def _summary(audit: Audit) -> Iterable[str]:
    kind = "a training step" if audit.train else "one run"
    took = spelled_seconds(audit.seconds)
    threads = counted(audit.threads, "thread")
    yield f"{audit.model}: {counted(len(audit.operators), 'operator')}, {took} ({kind}, {threads})"
    if audit.error:
        yield f"it raised {audit.error}"[:WIDTH]
    yield ""
    if audit.clean:
        yield "Nothing to report: no operator loses its format, and nothing is copied to change it."
        return
    share = audit.copy_seconds / audit.seconds if audit.seconds else 0.0
    moved = sum(copy.nbytes for copy in audit.copies)
    yield (
        f"format changes  {spelled_seconds(audit.copy_seconds)}, {share:.1%} of the run: "
        f"{counted(len(audit.copies), 'copy')}, {spelled_bytes(moved)}"
    )
    yield f"lost            {counted(len(audit.lost), 'operator')} in channels-last, out contiguous"
    yield f"ambiguous       {counted(len(audit.ambiguous), 'tensor')}"


def _causes(audit: Audit, width: int) -> Iterable[str]:
    causes = audit.causes
    if not causes:
        return
    yield ""
    yield "What causes the copies, the most expensive first"
    for rank, cause in enumerate(causes[:MOST_CAUSES], 1):
        yield ""
        yield from _cause(rank, cause, width)
    if len(causes) > MOST_CAUSES:
        rest = causes[MOST_CAUSES:]
        spent = spelled_seconds(sum(one.seconds for one in rest))
        yield ""
        yield f"and {counted(len(rest), 'other')}, {spent} together"


def _cause(rank: int, cause: Cause, width: int) -> Iterable[str]:
    first = cause.finding
    yield f" {rank}. {cause.title}: {cause.figures}"
    yield from _detail(first, width, several=cause.modules)


def _detail(found: Finding, width: int, several: tuple[str, ...] = ()) -> Iterable[str]:
    modules = several or ((found.module,) if found.module else ())
    more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
    where = [
        short_source(found.source),
        f"{modules[0]} ({found.at.layer}){more}" if modules and modules[0] else "",
    ]
    yield "    " + "  ".join(part for part in where if part)[: width - 4]
    if found.at.text:
        yield f"      {found.at.text}"[:width]
    taken = "taken for " if found.kind == "ambiguous" else ""
    passed = ", backward" if found.at.backward else ""
    yield f"    {found.tensor} {found.src} -> {taken}{found.dst}{passed}"
    yield from (f"    {line}" for line in wrap(f"instead: {found.advice}", width - 4, subsequent_indent="  "))


def _findings(
    title: str, found: Iterable[Finding], width: int, causes: Iterable[Cause] = ()
) -> Iterable[str]:
    groups = grouped(found)
    if not groups:
        return
    ranks = {
        (one.finding.kind, one.finding.operator, one.finding.source): k for k, one in enumerate(causes, 1)
    }
    yield ""
    yield title
    for several in groups[:MOST_FINDINGS]:
        first = several[0]
        rank = ranks.get((first.kind, first.operator, first.source))
        times = f", {len(several)} times" if len(several) > 1 else ""
        if rank is not None:
            yield f"  {first.operator}{times}: see {rank}. above"
            continue
        yield f"  {first.operator}{times}"
        yield from _detail(first, width, tuple(dict.fromkeys(one.module for one in several)))
    if len(groups) > MOST_FINDINGS:
        yield f"  and {counted(len(groups) - MOST_FINDINGS, 'other')}; .lost, .ambiguous and .json() have all"


def _gradients(audit: Audit, width: int) -> Iterable[str]:
    if not audit.gradients:
        return
    yield ""
    yield f"Gradients with other strides than their parameters: {len(audit.gradients)}"
    told = (
        "DistributedDataParallel copies each of them into its bucket in every step, and warns that grad "
        "strides do not match bucket view strides: buckets are laid out as the parameters are when the model "
        "is wrapped, and strides of axes of size 1 count."
    )
    yield from (f"  {line}" for line in wrap(told, width - 2))
    for one in audit.gradients[:MOST_CAUSES]:
        sizes = "x".join(map(str, one.dims))
        yield f"    {one.name} {sizes}: strides {one.strides}, gradient {one.gradient_strides}"
    if len(audit.gradients) > MOST_CAUSES:
        yield f"    and {len(audit.gradients) - MOST_CAUSES} more"
    yield from (f"  {line}" for line in wrap(f"instead: {audit.gradients[0].advice}", width - 2))


def times_in_words(audit: Audit) -> Iterable[str]:
    """The whole model in each format, where it was measured."""
    times = audit.times
    if times is None:
        return
    kind = "a training step" if audit.train else "the whole model"
    yield ""
    yield f"{kind}, median of {times.rounds} rounds on {counted(times.threads, 'thread')}"
    first = times.seconds["as it is"]
    for name, seconds in times.seconds.items():
        yield f"  {name:<14}{spelled_seconds(seconds):>9}   {first / seconds:.2f}x"
    for name, why in times.left_out.items():
        yield f"  {name:<14}{'':>9}   left out: {why}"[:WIDTH]
