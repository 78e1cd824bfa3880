"""Many arrays of one file, converted into another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from relayout.errors import LayoutError
from relayout.files.arrays import Given
from relayout.files.conversion import Normalise
from relayout.files.members import Opened, matching
from relayout.files.several import Job, write_all
from relayout.files.spelling import MOST_LISTED, listed, spelled
from relayout.layout.descriptor import MemoryDesc

__all__ = ["Plan", "plan"]

Destination = Callable[[MemoryDesc], MemoryDesc]


class Plan(NamedTuple):
    """Which arrays of a file are converted, and which are copied as they are."""

    source: Opened
    module: ModuleType
    """Of the kind of file that is written."""
    path: Path
    jobs: tuple[Job, ...]
    rest: tuple[str, ...]
    only: bool
    skipped: tuple[tuple[str, str], ...] = ()
    """Arrays of ``rest`` that a pattern matched, and their types, which are not converted."""

    def with_attributes(self, made: Callable[[Job], tuple[Normalise | None, Mapping[str, Any]]]) -> Plan:
        """The same plan, with mean, deviation and attributes for each array that is converted."""
        jobs = []
        for job in self.jobs:
            normalise, attributes = made(job)
            jobs.append(job._replace(normalise=normalise, attributes=attributes))
        return self._replace(jobs=tuple(jobs))

    def run(
        self,
        *,
        force: bool = False,
        threads: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write the file."""
        write_all(
            *(self.module, self.path, self.jobs, self.source, self.rest),
            force=force, only=self.only, threads=threads, progress=progress,
        )  # fmt: skip


def plan(
    source: Opened,
    module: ModuleType,
    path: Path,
    given: Given,
    names: Sequence[str] | None,
    destination: Destination,
    *,
    only: bool = False,
    changes: bool = True,
    floating: bool = False,
) -> Plan:
    """Choose the arrays and what becomes of each.

    Parameters
    ----------
    names : sequence of str or None
        Names and patterns of the arrays to convert; None: the only one, or none at all if nothing is to
        change.
    destination : callable
        Gives the descriptor that an array is converted to.
    changes : bool
        Whether anything but the kind of file is to change.
    floating : bool
        Whether a pattern means floating-point arrays only, since they become such.
    """
    single = len(source.names) == 1
    if names is None and not single and changes:
        raise LayoutError(
            f"{spelled(source.path)} holds {listed(source.names)}; name those to convert, by name or "
            "pattern: 'layer*.weight', or '*' for all of them (--name, names)"
        )
    chosen = matching(source, list(names)) if names is not None else source.names if single else []
    exact = set(chosen if names is None else names)
    jobs, skipped = [], []
    for name in chosen:
        member = source.member(name)
        try:
            if name not in exact and not member.array.is_convertible:
                skipped.append((name, member.array.kind))
                continue
            src = member.desc(given)
            if name not in exact and floating and not src.dtype.is_float:
                skipped.append((name, src.dtype.name))
                continue
            jobs.append(Job(member, given, name, src, destination(src)))
        except LayoutError as error:
            where = member.array.where
            if where in str(error) or not name:
                raise
            raise type(error)(f"{where}: {error}") from None
    if skipped and not jobs:
        told = ", ".join(f"{spelled(name)} ({kind})" for name, kind in skipped[:MOST_LISTED])
        raise LayoutError(
            f"{spelled(source.path)}: of the arrays that match, none holds floating-point numbers: {told}; "
            "an integer array is converted to a floating type by its name, or if it is scaled"
        )
    converted = {job.name for job in jobs}
    stays = {name for name, _ in skipped} if only and names is not None else set(source.names) - converted
    kept = tuple(name for name in source.names if name in stays)
    return Plan(source, module, path, tuple(jobs), kept, only, tuple(skipped))
