"""Shared memory for the batches of a worker process, used again once everybody else is through with it.

A worker of a ``DataLoader`` hands a batch over without a copy: the batch lies in a file in memory, PyTorch
sends the descriptor of that file, and the main process maps it. A new file for each batch is expensive: the
system looks for a page for each 4 KiB, fills it with zeros, and takes it back when the batch is gone, which
together takes longer than computing the batch.

So a worker keeps its files, *segments*, with their pages mapped, and writes a batch into one that is free. It
only has to know which are. PyTorch does not say when the main process drops a batch, but the system does, by
way of a lock::

    worker          opens the segment once more: an open file description that nobody has yet
                    locks that description, or finds the segment locked: it is not free
                    gives it to PyTorch, as the storage of the batch
    PyTorch         sends it; whoever receives it maps it
    main process    reads the batch, drops it: PyTorch unmaps and closes
    system          unlocks what nobody has open or mapped any more

A lock of ``flock`` belongs to the open file description, and whoever duplicates a descriptor, sends or maps
it keeps that same description open, in whatever process. So a segment is free exactly when there is neither a
tensor nor a message left of its last batch. That also holds where a process was killed, and where a batch was
sent on to a third one.

The worker writes by a mapping of its own, which stays. The one of the batch's storage is new in each batch;
the worker never touches it.

Files come from ``memfd_create``, so they don't count against the size of ``/dev/shm``, of which containers
have little. Where this can't be done (other systems, another sharing strategy of PyTorch, no memory, more
batches at a time than :data:`MOST`) the memory is PyTorch's own, new for each batch.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
from typing import Any, Final

import torch

from relayout.forking import lock
from relayout.torch.memory import POPULATE_WRITE, touched

if sys.platform == "linux":
    import fcntl

__all__ = ["MOST", "Segment", "Segments", "shared"]

MOST: Final = 6
"""Segments of a process: two batches that wait for the main process, as PyTorch prefetches them unless it is
told otherwise, one on its way, one in use, one in the pinning thread, and the one that is being written."""


class Segment:
    """A file in memory, mapped for good, that batches are written to.

    Parameters
    ----------
    size : int
        Bytes.

    Attributes
    ----------
    size : int
        Bytes, whole pages.
    address : int
        Where it is mapped.

    Raises
    ------
    OSError
        The system has no such files, no memory, or no descriptor left.

    Examples
    --------
    >>> import sys, pytest
    >>> if sys.platform != "linux":
    ...     pytest.skip("files in memory are Linux's")
    >>> segment = Segment(1000)
    >>> batch = segment.lent(1000)
    >>> batch.nbytes(), segment.lent(1000) is None
    (1000, True)
    >>> del batch
    >>> segment.lent(500).nbytes()
    500
    """

    __slots__ = ("_file", "_held", "_memory", "address", "size")

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._file = os.memfd_create("relayout", os.MFD_CLOEXEC)
        try:
            os.close(self._opened())  # some sandboxes refuse it: better known before pages are looked for
            os.ftruncate(self._file, self.size)
            self._memory = mmap.mmap(self._file, self.size)
            with contextlib.suppress(OSError):  # the system has no large pages for files
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            _populate(self._file, self._memory)
        except BaseException:
            os.close(self._file)
            self._file = -1
            raise
        self._held = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(self._held)

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def _opened(self) -> int:
        """A descriptor of an open file description that nobody has yet."""
        return os.open(f"/proc/self/fd/{self._file}", os.O_RDWR | os.O_CLOEXEC)

    def lent(self, size: int) -> Any:
        """A storage of the first bytes; None: somebody still has the last one."""
        batch = self._opened()
        try:
            fcntl.flock(batch, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return torch.UntypedStorage._new_shared_fd_cpu(batch, size)  # has a duplicate of its own
        except BlockingIOError:
            return None
        finally:
            os.close(batch)


def _populate(file: int, memory: mmap.mmap) -> None:
    """Have all pages there, or an error now: later there would be a signal that kills the process."""
    try:
        memory.madvise(POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 5.14
            raise
        os.posix_fallocate(file, 0, len(memory))


class Segments:
    """The segments of a process, at most :data:`MOST`; many threads may ask for one."""

    def __init__(self) -> None:
        self._kept: list[Segment] = []

    def lent(self, size: int) -> tuple[Any, int] | None:
        """A storage of so many bytes, and where to write them; None: there is no segment for it.

        The smallest that suffices is taken. If all that are free are too small, they make room for a new one.
        """
        with lock():
            small = []
            for segment in self._kept:  # the smallest first
                if segment.size < size:
                    small.append(segment)
                    continue
                storage = segment.lent(size)
                if storage is not None:
                    return storage, segment.address
            for segment in small:
                if segment.lent(1) is not None:
                    self._kept.remove(segment)
            if len(self._kept) >= MOST:
                return None
            made = Segment(size)
            storage = made.lent(size)
            self._kept.append(made)
            self._kept.sort(key=lambda segment: segment.size)
            return storage, made.address


_segments = Segments()


def shared(size: int) -> tuple[Any, int]:
    """Shared memory for a batch that another process is to have.

    Parameters
    ----------
    size : int
        Bytes.

    Returns
    -------
    storage : torch.UntypedStorage
        What PyTorch sends without a copy.
    address : int
        Where to write. It lasts as long as the storage does: both are the same memory, mapped twice.
    """
    if size and sys.platform == "linux" and torch.multiprocessing.get_sharing_strategy() == "file_descriptor":
        with contextlib.suppress(OSError, AttributeError):  # the last: neither function is a public interface
            lent = _segments.lent(size)
            if lent is not None:
                return lent
    storage = touched(torch.UntypedStorage._new_shared(size, device="cpu"))
    return storage, storage.data_ptr()
