"""A plan that is being carried out: a destination that is not complete, its journal, and the last step.

What lies in the destination meanwhile::

    out.zarr/c/0/1/...             chunks, each whole
    out.zarr/.relayout/journal     which tasks are done (:mod:`.journal`)
    out.zarr/.relayout/plan.json   what is being made of what, for people and for messages
    out.zarr/.relayout/between/    the intermediate store of two passes
    out.zarr/.relayout/removing    only there while an old store is removed (``force``)
    out.zarr/.relayout/parts/      chunks that several tasks write parts of (:mod:`.collected`)
    out.zarr/zarr.json             not there before all is done

What makes an array of a folder, the metadata, is written last and by one rename. So nobody takes an
incomplete destination for complete, whoever reads it and however the conversion ended: Zarr finds no array,
and :func:`relayout.open` finds ``.relayout`` and says what is missing.

A destination lies around for days, and somebody may tidy up in it. So before it goes on, and before it is
complete, what the journal calls done is compared with the files that are there. What is gone or has another
size is done again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from relayout.errors import LayoutError
from relayout.exchange.mapped import open_regular
from relayout.files.atomic import naming, sync_folder
from relayout.stores.collected import Collected
from relayout.stores.journal import Journal, count_done, nobody_at_work, sync_files
from relayout.stores.store import SourceChanged

if TYPE_CHECKING:
    from relayout.stores.grid import Index
    from relayout.stores.plans import Pass, Plan
    from relayout.stores.task import Done

__all__ = ["WORK", "ChunksGone", "Run", "begun", "check_complete"]

WORK: Final = ".relayout"
"""The folder in a destination that is not complete."""

REMOVING: Final = "removing"
"""The file in :data:`WORK` that says that what lies around is what is left of an old store."""

MOST_TOLD: Final = 1 << 20
"""Bytes of ``plan.json`` that are read."""

_METADATA: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata", "relayout.json")
"""What makes an array of a folder, whatever kind of store it is."""


class ChunksGone(UserWarning):
    """Blocks that were done are done again, as their chunks are not there any more as they were written."""


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
    redone : int
        How many tasks had been done, too, and are done again, since their chunks are gone or have another
        size.
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
        self._journal = Journal(self.folder / WORK / "journal", plan.key, plan.total)
        self.redone = 0
        try:
            self._describe()
            for one in plan.passes:
                one.target.open().begin()
            if self._journal.done:
                self._look_again()
            last = plan.passes[-1]
            if resume and last.scatter and any(True for _ in self.pending(last)):
                Collected(last.target.open(), Path(last.scatter)).resume()
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

    def prepare(self, one: Pass) -> None:
        """Have the kernels made that the tasks of a pass need: whoever runs them finds them on the disk.

        The first and the last block tell what there is: within the array, and at its ends.
        """
        for number in sorted({one.tasks[0], one.tasks[-1]} if one.tasks else ()):
            if number not in self._journal.done:
                self.plan.task(number).prepare()

    def record(self, several: Sequence[Done]) -> None:
        """Note tasks as done: what they wrote goes to the disk first, then their numbers to the journal.

        Raises
        ------
        OSError
            Something can't be written to the disk, or somebody removed the destination meanwhile.
        """
        self._journal.check()
        sync_files(name for done in several for name in done.files)
        self._journal.add({done.number: done.stored for done in several})
        self.missing += sum(done.missing for done in several)

    def commit(self) -> None:
        """Make the destination complete: its metadata, by one rename; then the journal goes.

        Raises
        ------
        LayoutError
            Tasks are not done, or what they wrote is gone.
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
        gone = self._gone()
        if gone:
            raise LayoutError(
                f"chunks of {_blocks(gone, self.plan)} in {self.folder} are gone or have another size than "
                "when they were written, so it is not complete; go on with it (--resume), and they are "
                "written again"
            )
        target = self.plan.target.open()
        last = self.plan.passes[-1]
        if last.scatter:
            Collected(target, Path(last.scatter)).finish()
        target.commit()
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

    def _look_again(self) -> None:
        """Take back what the journal calls done, where the files do not agree."""
        gone = self._gone()
        if not gone:
            return
        warnings.warn(
            f"chunks of {_blocks(gone, self.plan)} in {self.folder} that were done are gone or have another "
            "size than when they were written; they are done again",
            ChunksGone,
            stacklevel=4,
        )
        for number in gone:
            del self._journal.done[number]
        self.redone = len(gone)

    def _gone(self) -> list[int]:
        """The tasks that are done and whose chunks are not there as they were written.

        Of a pass that is not the last this is asked only if a later one has yet to read what it wrote.
        """
        done, found = self._journal.done, list[int]()
        for one in reversed(self.plan.passes):
            known: dict[Index, int] = {}
            told = [k for k in one.tasks if done.get(k, -1) >= 0]
            gone = [k for k in told if self.plan.task(k).stored(known) != done[k]]
            found += gone
            if not gone and all(number in done for number in one.tasks):
                break
        return sorted(found)

    def _prepare(self, resume: bool, force: bool) -> None:
        folder, work = self.folder, self.folder / WORK
        exists = os.path.lexists(folder)
        if resume:
            if not work.is_dir():
                what = "is complete" if exists else "is not there"
                raise LayoutError(f"{folder} {what}: there is no conversion to resume")
            if (work / REMOVING).exists():
                raise LayoutError(
                    f"{folder} is what is left of a store whose removal was interrupted: there is no "
                    "conversion to resume; begin again (--force)"
                )
            _check_links(folder)
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
            "base": plan.base,
            "workers": plan.workers,
            "partial": plan.partial,
            "key": plan.key,
        }
        part = self.folder / WORK / "plan.json.part"
        with naming(self.folder):
            part.write_text(json.dumps(told, indent=1) + "\n")
            part.replace(part.with_suffix(""))


def begun(folder: Path) -> dict[str, Any]:
    """What the conversion that was begun in a folder says of itself; empty: nothing that can be read."""
    try:
        with open_regular(folder / WORK / "plan.json") as file:
            told = json.loads(file.read(MOST_TOLD))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


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
    if (work / REMOVING).exists():
        raise LayoutError(
            f"{folder} is what is left of a store whose removal was interrupted; remove it, or replace it "
            "(relayout convert ... --force)"
        )
    blocks = begun(folder).get("blocks")
    done, total = "some", str(blocks) if isinstance(blocks, int) else "its"
    with contextlib.suppress(OSError, ValueError):
        done = str(count_done(work / "journal"))
    raise LayoutError(
        f"{folder} is not complete: {done} of {total} blocks of a conversion are done; go on with it "
        "(relayout convert ... --resume), or remove it"
    )


def _remove(folder: Path) -> None:
    """Remove a store: first what makes it one, so that it is no store from then on."""
    if folder.is_symlink() or not folder.is_dir():
        raise FileExistsError(errno.EEXIST, "this is no store that could be replaced", str(folder))
    work = folder / WORK
    if not any((folder / name).exists() for name in (*_METADATA, WORK)) and any(folder.iterdir()):
        raise FileExistsError(
            errno.EEXIST, "this folder holds no array, so it is not replaced; remove it yourself", str(folder)
        )
    if work.is_symlink():
        raise FileExistsError(errno.EEXIST, "this is a link, and not what a conversion has begun", str(work))
    with naming(folder):
        # Whoever is killed from here on leaves a folder that says what it is, and can be replaced.
        work.mkdir(exist_ok=True)
        (work / REMOVING).touch()
        sync_folder(work)
        for name in _METADATA:
            (folder / name).unlink(missing_ok=True)
        for entry in list(os.scandir(folder)):
            if entry.name == WORK:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        shutil.rmtree(work)
        folder.rmdir()


def _check_links(folder: Path) -> None:
    """Refuse to go on in a folder from which a link leads elsewhere: we never make any."""
    for where, inside, names in os.walk(folder):
        ours = Path(where) == folder / WORK or folder / WORK in Path(where).parents
        for name in (*inside, *(names if ours else ())):
            path = os.path.join(where, name)
            if os.path.islink(path):
                raise LayoutError(
                    f"{path} is a link, which no conversion has made; what is written would go elsewhere, so "
                    f"{folder} is not resumed"
                )


def _blocks(numbers: Sequence[int], plan: Plan) -> str:
    """Some blocks of a plan, for a message.

    Four of them are named, and how many there are.
    """
    named = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"{len(numbers)} of {plan.total} blocks ({named})"


def _difference(before: int, now: int) -> str:
    if before != now and before >= 0 and now >= 0:
        return f"it had {before} chunks and has {now}"
    return "its metadata, or the time or size of a chunk, have changed"
