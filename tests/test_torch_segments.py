"""Shared memory of workers that is used again: never while anybody has it, and always when nobody has."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

torch = pytest.importorskip("torch")
if sys.platform != "linux":
    pytest.skip("files in memory are Linux's", allow_module_level=True)

from torch.utils.data import DataLoader, Dataset  # noqa: E402

from relayout.torch import Collate, segments  # noqa: E402
from relayout.torch.segments import MOST, Segment, Segments, shared  # noqa: E402
from strategies import tried  # noqa: E402


def filled(address: int, size: int, value: int) -> None:
    """Write bytes as kernels do, by an address."""
    import ctypes

    ctypes.memset(address, value, size)


def bytes_of(storage: Any) -> Any:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Lending(RuleBasedStateMachine):
    """Batches come and go in any order: nobody's bytes are ever those of another."""

    def __init__(self) -> None:
        super().__init__()
        self.segments, self.held, self.count = Segments(), list[tuple[Any, int]](), 0

    @rule(size=st.sampled_from([1, 4096, 4097, 20_000, 100_000]))
    def lend(self, size: int) -> None:
        found = self.segments.lent(size)
        if found is None:
            assert len(self.held) >= MOST
            return
        storage, address = found
        assert storage.nbytes() == size
        self.count += 1
        filled(address, size, self.count % 256)
        self.held.append((storage, self.count % 256))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @invariant()
    def everybody_has_what_was_written(self) -> None:
        for storage, value in self.held:
            assert bytes_of(storage).eq(value).all()
        assert len(self.segments._kept) <= MOST


Lending.TestCase.settings = settings(deadline=None, max_examples=tried(30), stateful_step_count=30)
TestLending = Lending.TestCase


def test_a_segment_is_free_when_its_batch_is_gone() -> None:
    segment = Segment(10_000)
    assert segment.size == 12_288
    batch = segment.lent(10_000)
    filled(segment.address, 10_000, 7)
    assert bytes_of(batch).eq(7).all()
    assert segment.lent(1) is None
    view = bytes_of(batch)[5:]
    del batch
    assert segment.lent(1) is None
    del view
    assert segment.lent(1) is not None


def test_another_process_has_it(tmp_path: Any) -> None:
    """What counts is what is mapped, not who has the tensor here."""
    segment = Segment(4096)
    batch = segment.lent(4096)
    (read, write), (said, say) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(say, b"1")
        os.read(read, 1)  # the mapping is inherited, and held until here
        os._exit(0)
    os.read(said, 1)
    del batch
    assert segment.lent(1) is None
    os.write(write, b"1")
    os.waitpid(child, 0)
    assert segment.lent(1) is not None
    for file in (read, write, said, say):
        os.close(file)


def test_free_ones_that_are_too_small_make_room() -> None:
    several = Segments()
    held = [several.lent(4096 * (k + 1)) for k in range(MOST)]
    assert several.lent(1) is None
    held.pop(0)
    storage, _ = several.lent(1 << 20) or (None, 0)
    assert storage.nbytes() == 1 << 20
    assert [segment.size for segment in several._kept] == [4096 * (k + 2) for k in range(MOST - 1)] + [
        1 << 20
    ]
    del storage
    held.append(several.lent(100))  # the smallest that is free
    assert several._kept[-1].lent(1) is None
    assert several.lent(100) is None


def test_files_are_closed() -> None:
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    several = Segments()
    held = [several.lent(100) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) > before
    del held, several
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def nothing_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_segments", Segments())


OTHERS = ["no memory", "no such files", "strategy", "all lent", "not public", "not opened"]


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.usefixtures("nothing_lent")
def test_otherwise_the_memory_is_of_pytorch(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(24, "Too many open files")

    if what == "no memory":
        monkeypatch.setattr(segments, "_populate", refused)
    elif what == "no such files":
        monkeypatch.delattr(os, "memfd_create")
    elif what == "strategy":
        monkeypatch.setattr(torch.multiprocessing, "get_sharing_strategy", lambda: "file_system")
    elif what == "not opened":  # no /proc, or a sandbox
        monkeypatch.setattr(os, "open", refused)
        monkeypatch.setattr(segments, "_populate", lambda *_: pytest.fail("pages for nothing"))
    elif what == "all lent":
        monkeypatch.setattr(segments, "MOST", 0)
    else:
        monkeypatch.setattr(Segment, "lent", lambda *_: torch.UntypedStorage._no_such_method)
    storage, address = shared(5000)
    assert (storage.nbytes(), address) == (5000, storage.data_ptr())
    assert storage.is_shared()
    assert not segments._segments._kept


@pytest.mark.usefixtures("nothing_lent")
def test_batches_of_no_bytes() -> None:
    assert shared(0)[0].nbytes() == 0


class Pictures(Dataset[Any]):
    def __init__(self, many: int) -> None:
        self.many = many

    def __len__(self) -> int:
        return self.many

    def __getitem__(self, index: int) -> Any:
        return torch.full((40, 30, 3), index % 256, dtype=torch.uint8)


def loaded(batches: int) -> DataLoader[Any]:
    return DataLoader(
        Pictures(3 * batches),
        batch_size=3,
        collate_fn=Collate(scale=1.0),
        num_workers=2,
        multiprocessing_context="fork",
    )


@pytest.fixture
def quiet_forks() -> Iterator[None]:
    """Forking a process with threads is what these tests are about; Python 3.12 warns of it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def file_of(batch: Any) -> int:
    return os.fstat(batch.untyped_storage()._share_fd_cpu_()[0]).st_ino


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_forks")
def test_batches_that_are_dropped_and_those_that_are_kept() -> None:
    files = set()
    for number, batch in enumerate(loaded(40)):
        expected = torch.arange(3 * number, 3 * number + 3).reshape(3, 1, 1, 1).float()
        assert batch.eq(expected).all()
        files.add(file_of(batch))
        batch.fill_(-1.0)  # its own memory
    assert len(files) <= 2 * MOST
    kept = list(loaded(40))
    for number, batch in enumerate(kept):
        assert batch.eq(torch.arange(3 * number, 3 * number + 3).reshape(3, 1, 1, 1)).all()
    assert len({file_of(batch) for batch in kept}) == 40
