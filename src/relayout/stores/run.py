"""A plan that is being carried out: a destination that is not complete, its journal, and the last step.

What lies in the destination meanwhile::

    out.zarr/c/0/1/...             chunks, each whole
    out.zarr/.relayout/journal     which tasks are done (:mod:`.journal`)
    out.zarr/.relayout/plan.json   what is being made of what, for people and for messages
    out.zarr/.relayout/between/    the intermediate store of two passes
    out.zarr/zarr.json             not there before all is done

What makes an array of a folder, the metadata, is written last and by one rename. So nobody takes an
incomplete destination for complete, whoever reads it and however the conversion ended: Zarr finds no array,
and :func:`relayout.open` finds ``.relayout`` and says what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relayout.errors import LayoutError
from relayout.files.atomic import naming, sync_folder
from relayout.stores.journal import Journal, nobody_at_work, sync_files
from relayout.stores.store import SourceChanged

if TYPE_CHECKING:
    from relayout.stores.plans import Pass, Plan
    from relayout.stores.task import Done

__all__ = ["WORK", "Run", "check_complete"]

WORK: Final = ".relayout"
"""The folder in a destination that is not complete."""


class Run:
    """A plan at work; made by :meth:`relayout.stores.Plan.start`, which tells the parameters.

    It is a context: the journal is locked until the block ends. Whatever the end is, what was recorded
    stays, and ``resume`` goes on from there.

    Attributes
    ----------
    plan : Plan
        What is carried out.
    resumed : int
        How many tasks were done already when it began.
    missing : int
        How many chunks of the source were not there, so far, and were taken as the fill value.
    """

    def __init__(self, plan: Plan, *, resume: bool = False, force: bool = False) -> None:
        self.plan = plan
        self.folder = Path(plan.target.path)
        self.missing = 0
        self.complete = False
        self._check_source()
        self._prepare(resume, force)
        self._journal = Journal(self.folder / WORK / "journal", plan.key)
        try:
            self._describe()
            for one in plan.passes:
                one.target.open().begin()
        except BaseException:
            self._journal.close()
            raise
        self.resumed = len(self._journal.done)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._journal.close()

    @property
    def done(self) -> frozenset[int]:
        """The numbers of the tasks that are done."""
        return frozenset(self._journal.done)

    def pending(self, one: Pass) -> Iterator[int]:
        """The tasks of a pass that are not done, in order."""
        return (number for number in one.tasks if number not in self._journal.done)

    def record(self, several: Sequence[Done]) -> None:
        """Note tasks as done: what they wrote goes to the disk first, then their numbers to the journal.

        Raises
        ------
        OSError
            Something can't be written to the disk, or somebody removed the destination meanwhile.
        """
        self._journal.check()
        sync_files(name for done in several for name in done.files)
        self._journal.add(done.number for done in several)
        self.missing += sum(done.missing for done in several)

    def commit(self) -> None:
        """Make the destination complete: its metadata, by one rename; then the journal goes.

        Raises
        ------
        LayoutError
            Tasks are not done.
        SourceChanged
            The source was changed since the plan was made. The destination stays incomplete.
        FileNotFoundError
            Somebody removed the destination meanwhile.
        OSError
            Something can't be written.
        """
        left = self.plan.total - len(self._journal.done)
        if left:
            raise LayoutError(
                f"{left} of {self.plan.total} blocks are not done, so {self.folder} is not complete"
            )
        self._check_source()
        self._journal.check()
        self.plan.target.open().commit()
        sync_folder(self.folder)
        self.complete = True
        self._journal.close()
        with naming(self.folder):
            shutil.rmtree(self.folder / WORK)

    # -- workings ---------------------------------------------------------------------------------------

    def _check_source(self) -> None:
        found = self.plan.source.open().fingerprint()
        if found.text != self.plan.fingerprint.text:
            raise SourceChanged(
                f"{self.plan.source.spelled} is not what it was when the conversion was planned: "
                f"{_difference(self.plan.fingerprint.chunks, found.chunks)}; plan it again"
            )

    def _prepare(self, resume: bool, force: bool) -> None:
        folder, work = self.folder, self.folder / WORK
        exists = os.path.lexists(folder)
        if resume:
            if not work.is_dir():
                what = "is complete" if exists else "is not there"
                raise LayoutError(f"{folder} {what}: there is no conversion to resume")
            return
        if exists and not force:
            if work.is_dir():
                raise FileExistsError(
                    errno.EEXIST,
                    "a conversion was begun here and is not complete; go on with it (--resume), or begin "
                    "again (--force)",
                    str(folder),
                )
            if not folder.is_dir() or any(folder.iterdir()):
                raise FileExistsError(
                    errno.EEXIST, "the destination exists; use force (--force) to replace it", str(folder)
                )
        if exists and force:
            with nobody_at_work(work / "journal"):
                _remove(folder)
        with naming(folder):
            if not folder.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(folder.parent))
            folder.mkdir(exist_ok=True)
            work.mkdir()
            sync_folder(folder.parent)

    def _describe(self) -> None:
        plan = self.plan
        told = {
            "relayout": 1,
            "source": plan.source.spelled,
            "target": plan.target.spelled,
            "blocks": plan.total,
            "memory": plan.memory,
            "threads": plan.allowed,
            "key": plan.key,
        }
        part = self.folder / WORK / "plan.json.part"
        with naming(self.folder):
            part.write_text(json.dumps(told, indent=1) + "\n")
            part.replace(part.with_suffix(""))


def check_complete(folder: Path) -> None:
    """Refuse a destination whose conversion has not ended.

    Raises
    ------
    LayoutError
        It is not complete; the message says how much of it is done.
    """
    work = folder / WORK
    if not work.is_dir():
        return
    done, total = "some", "its"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        total = str(json.loads((work / "plan.json").read_text())["blocks"])
        lines = (work / "journal").read_text().split("\n")[1:-1]
        done = str(len({int(word) for line in lines for word in line.split()}))
    raise LayoutError(
        f"{folder} is not complete: {done} of {total} blocks of a conversion are done; go on with it "
        "(relayout convert ... --resume), or remove it"
    )


def _remove(folder: Path) -> None:
    """Remove a store: first what makes it one, so that it is no store from then on."""
    if folder.is_symlink() or not folder.is_dir():
        raise FileExistsError(errno.EEXIST, "this is no store that could be replaced", str(folder))
    known = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "relayout.json")
    if not any((folder / name).exists() for name in (*known, WORK)) and any(folder.iterdir()):
        raise FileExistsError(
            errno.EEXIST, "this folder holds no array, so it is not replaced; remove it yourself", str(folder)
        )
    with naming(folder):
        for name in known:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _difference(before: int, now: int) -> str:
    if before != now and before >= 0 and now >= 0:
        return f"it had {before} chunks and has {now}"
    return "its metadata, or the time or size of a chunk, have changed"
