"""Chunks that are read and written in parts: slab by slab, and by several tasks each."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout import stores
from relayout.errors import LayoutError
from relayout.stores import buffers, collected, planning, search, slabs
from relayout.stores.collected import Collected
from relayout.stores.files import ChunkFile
from relayout.stores.folder import Folder
from relayout.stores.grid import Cells
from relayout.stores.run import ChunksGone
from relayout.stores.scatter import regions
from relayout.stores.store import Address, SourceChanged
from relayout.stores.task import Task
from test_stores import FORMATS, RATES, numbers, read_physical, write_folder

ROWS, COLUMNS = 96, 80


@settings(deadline=None)
@given(
    format=st.sampled_from(FORMATS),
    dims=st.tuples(*[st.integers(1, 20)] * 4),
    cut=st.tuples(*[st.integers(1, 20)] * 7),
    most=st.integers(1, 2000),
)
def test_slabs_are_the_bytes_of_a_chunk_in_their_order(
    format: str, dims: tuple[int, ...], cut: tuple[int, ...], most: int
) -> None:
    desc = rl.MemoryDesc(dims, "u8", format)
    shape = [digit.extent for digit in desc.layout.digits]
    cells = Cells(desc, [min(a, b) for a, b in zip(shape, cut, strict=False)])
    if not cells.direct:
        return
    found = slabs.slabs(cells, most)
    assert [one.begin for one in found] == [0, *(one.end for one in found[:-1])]
    assert found[-1].end == cells.nbytes
    for one in found:
        assert np.prod([stop - start for start, stop in one.box]) == one.end - one.begin


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """An array in chunks of rows."""
    write_folder(tmp_path / "x", numbers(ROWS, COLUMNS), "ab", (4, COLUMNS))
    return tmp_path / "x"


def across(source: Path, name: str = "y.chunks", **options: Any) -> stores.Plan:
    """Chunks of columns, in memory for a few rows."""
    memory = planning.BASE + 6 * 4 * COLUMNS * 4
    given = {"chunks": (ROWS, 7), "memory": memory, "threads": 1, "rates": RATES} | options
    return stores.plan(source, source.with_name(name), "ab", **given)


def test_all_to_all_reads_and_writes_once(rows: Path) -> None:
    plan = across(rows)
    (one,) = plan.passes
    assert one.scatter
    assert one.requests_read == ROWS // 4
    assert one.bytes_read == ROWS * COLUMNS * 4
    assert "parts of chunks" in plan.explain()
    done: list[Any] = []
    plan.run(progress=done.append)
    assert sum(task.requests for task in done) == one.requests_read + one.requests_written
    assert sum(task.bytes_read for task in done) == one.bytes_read
    assert sum(task.elements for task in done) == ROWS * COLUMNS
    target = rows.with_name("y.chunks")
    assert (read_physical(target) == numbers(ROWS, COLUMNS)).all()
    assert sorted(path.suffix for path in target.iterdir()) == [".json"] + [".npy"] * 12
    last = np.load(target / "0.11.npy")  # 3 of its 7 columns lie within the array
    assert last.shape == (ROWS, 7)
    assert not last[:, 3:].any()


def test_parts_are_for_one_machine(rows: Path) -> None:
    plan = across(rows)
    with plan.start() as run, pytest.raises(LayoutError, match="plan with partial=False"):
        stores.batches(run, plan.passes[0])
    assert not any(one.scatter for one in across(rows, partial=False).passes)


def test_parts_are_written_again_and_in_any_order(rows: Path) -> None:
    plan = across(rows)
    with plan.start() as run:
        for number in [*reversed(plan.passes[0].tasks), 0, 1]:
            run.record([plan.task(number).run()])
        run.commit()
    assert (read_physical(rows.with_name("y.chunks")) == numbers(ROWS, COLUMNS)).all()


def test_parts_are_resumed(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = Task.run, [3]

    def run(self: Task) -> Any:
        if not left[0]:
            raise OSError(errno.EIO, "broken")
        left[0] -= 1
        return real(self)

    target = rows.with_name("y.chunks")
    with monkeypatch.context() as patched:
        patched.setattr(Task, "run", run)
        with pytest.raises(OSError, match="broken"):
            across(rows).run()
    assert not list(target.glob("*.npy"))
    with pytest.raises(LayoutError, match="is not complete: 3 of"):
        rl.open(target)
    assert across(rows).run(resume=True).resumed == 3
    assert (read_physical(target) == numbers(ROWS, COLUMNS)).all()


def test_publishing_is_resumed(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two renames: those that have their names keep them."""
    real, left = Path.replace, [5]

    def replace(self: Path, other: Any) -> Path:
        if self.suffix == ".npy":
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        return real(self, other)

    target = rows.with_name("y.chunks")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            across(rows).run()
    assert len(list(target.glob("*.npy"))) == 5
    with pytest.raises(LayoutError, match="is not complete"):
        rl.open(target)
    assert across(rows).run(resume=True).complete
    assert (read_physical(target) == numbers(ROWS, COLUMNS)).all()


def test_a_part_that_vanished_is_not_published(rows: Path) -> None:
    plan = across(rows)
    with plan.start() as run:
        run.record([task.run() for task in plan])
        (run.folder / ".relayout" / "parts" / "0.4.npy").unlink()
        with pytest.raises(LayoutError, match="are gone or have another size"):
            run.commit()
        with pytest.raises(FileNotFoundError, match=r"0\.4\.npy"):
            Collected(plan.target.open(), run.folder / ".relayout" / "parts").finish()
    assert not (rows.with_name("y.chunks") / "relayout.json").exists()


def test_a_disk_that_is_full_in_the_middle_of_a_part(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = os.write, [2000]

    def write(handle: int, data: Any) -> int:
        if len(data) <= 128:  # headers, lines of the journal
            return real(handle, data)
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= len(data)
        return real(handle, data[: len(data) // 2])  # a write may take less than it was given

    target = rows.with_name("y.chunks")
    with monkeypatch.context() as patched:
        patched.setattr(collected.os, "write", write)
        with pytest.raises(OSError, match="No space left on device") as caught:
            across(rows).run()
    assert str(target) in str(caught.value.filename)
    across(rows).run(resume=True)
    assert (read_physical(target) == numbers(ROWS, COLUMNS)).all()


@pytest.mark.parametrize("format", ["nhwc", "nChw4c"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_blocks_of_pictures_in_parts(format: str, dtype: str, tmp_path: Path) -> None:
    x = numbers(10, 20, 6, 9)
    write_folder(tmp_path / "x", x, "nchw", (2, 20, 6, 9))
    target = rl.MemoryDesc(x.shape, dtype, format)
    chunks = {"nhwc": (10, 4, 2, 20), "nChw4c": (10, 2, 4, 2, 4)}[format]
    source, made = Cells(rl.MemoryDesc(x.shape, "f32", "nchw"), (2, 20, 6, 9)), Cells(target, chunks, True)
    found = search.scattered(source, made, 1 << 20, 1)
    assert found is not None
    plan = stores.plan(
        *(tmp_path / "x", tmp_path / "y.chunks", format), dtype=dtype, chunks=chunks, rates=RATES,
        threads=1, memory=planning.BASE + 40_000,
    )  # fmt: skip
    assert plan.passes[0].scatter
    plan.run()
    wanted = rl.reorder(rl.tensor(x, "nchw"), format, dtype=dtype)
    assert (read_physical(tmp_path / "y.chunks").reshape(-1).view(np.uint8) == wanted.buffer).all()


def test_what_is_encoded_goes_through_files_that_are_not(rows: Path) -> None:
    zarr = pytest.importorskip("zarr")
    plan = across(rows, "y.zarr", codecs="zstd", memory=planning.BASE + 12 * 4 * COLUMNS * 4)
    first, second = plan.passes
    assert first.scatter
    assert not second.scatter
    plan.run()
    assert (zarr.open_array(rows.with_name("y.zarr"), mode="r")[...] == numbers(ROWS, COLUMNS)).all()


# -- slabs --------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of a few elements."""
    monkeypatch.setattr(slabs, "SLAB", 900)
    monkeypatch.setattr(slabs, "LEAST", 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("format", "chunks", "in_parts"),
    [("nhwc", (4, 5, 6, 7), True), ("nchw", (4, 7, 5, 6), True), ("cwhn", (7, 6, 5, 4), False)],
)
def test_chunks_that_stay_where_they_are_are_read_in_parts(
    format: str, chunks: tuple[int, ...], in_parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = numbers(10, 7, 5, 6)
    write_folder(tmp_path / "x", x, "nchw", (4, 7, 5, 6))
    read: list[int] = []
    real = ChunkFile.read

    def counted(self: ChunkFile, start: int, stop: int) -> Any:
        read.append(stop - start)
        return real(self, start, stop)

    monkeypatch.setattr(ChunkFile, "read", counted)
    run = stores.convert(
        *(tmp_path / "x", tmp_path / "y.chunks", format), chunks=chunks, rates=RATES, threads=1
    )
    assert run.complete
    wanted = rl.reorder(rl.tensor(x, "nchw"), format)
    assert (read_physical(tmp_path / "y.chunks").reshape(-1).view(np.uint8) == wanted.buffer).all()
    assert sum(read) == (x.nbytes if in_parts else 0)  # and nothing of what lies beyond the array
    assert all(size <= 840 for size in read)


@pytest.mark.usefixtures("small")
def test_a_source_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the destination, which is being written when it is read."""
    write_folder(tmp_path / "x", numbers(8, 7, 5, 6), "nchw", (4, 7, 5, 6))

    def fails(self: ChunkFile, start: int, stop: int) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))

    plan = stores.plan(
        tmp_path / "x", tmp_path / "y.chunks", "nhwc", chunks=(4, 5, 6, 7), rates=RATES, threads=1
    )
    monkeypatch.setattr(ChunkFile, "read", fails)
    with pytest.raises(OSError, match="Input/output error") as caught:
        plan.run()
    assert caught.value.filename == str(tmp_path / "x" / "0.0.0.0.npy")
    assert not list((tmp_path / "y.chunks").glob("*.part")) + list((tmp_path / "y.chunks").glob("*.npy"))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cut", [10, 200, 1000])
def test_a_file_that_is_too_short_is_damaged(cut: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", numbers(8, 7, 5, 6), "nchw", (4, 7, 5, 6))
    path = tmp_path / "x" / "1.0.0.0.npy"
    path.write_bytes(path.read_bytes()[:cut])
    plan = stores.plan(
        tmp_path / "x", tmp_path / "y.chunks", "nhwc", chunks=(4, 5, 6, 7), rates=RATES, threads=1
    )
    with pytest.raises(LayoutError, match=r"1\.0\.0\.0\.npy"):
        plan.run()
    path.unlink()
    with pytest.raises((SourceChanged, LayoutError)):
        plan.run(force=True)


@pytest.mark.usefixtures("small")
def test_missing_chunks_are_filled_slab_by_slab(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    x = numbers(8, 7, 5, 6)
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=(4, 7, 5, 6), dtype="f4", fill_value=3.5, compressors=None
    )
    made[:4] = x[:4]
    run = stores.convert(
        *(rl.open(tmp_path / "x.zarr", format="nchw"), tmp_path / "y.zarr", "nhwc"), rates=RATES, threads=1
    )
    assert run.missing == 1
    expected = np.concatenate([x[:4], np.full_like(x[4:], 3.5)]).transpose(0, 2, 3, 1)
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == expected).all()


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({"compressors": None}, True),
        ({"compressors": None, "zarr_format": 2}, True),
        ({"compressors": None, "zarr_format": 2, "order": "F"}, False),
        ({"compressors": None, "dtype": ">f4", "zarr_format": 2}, False),
        ({"compressors": None, "shards": (4, 8)}, False),
        ({}, False),
    ],
)
def test_which_zarr_stores_have_chunks_as_they_are(
    options: dict[str, Any], plain: bool, tmp_path: Path
) -> None:
    zarr = pytest.importorskip("zarr")
    x = numbers(8, 8)
    told = {"dtype": "f4"} | options
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(2, 4), **told)[...] = x
    lazy = rl.open(tmp_path / "x.zarr", format="ab")
    assert lazy.stored.plain == plain
    assert (lazy.numpy() == x).all()
    for chunk in lazy.grid if plain else ():
        with open(tmp_path / "x.zarr" / lazy.stored.name(chunk), "rb") as file:
            assert file.read() == x[tuple(slice(*one) for one in lazy.grid.box(chunk))].tobytes()


def test_a_big_endian_serializer_is_decoded(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    from zarr.codecs import BytesCodec

    x = numbers(8, 8)
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=(2, 4), dtype="f4", compressors=None,
        serializer=BytesCodec(endian="big"),
    )  # fmt: skip
    made[...] = x
    lazy = rl.open(tmp_path / "x.zarr", format="ab")
    assert json.loads((tmp_path / "x.zarr" / "zarr.json").read_text())["codecs"][0]["name"] == "bytes"
    assert not lazy.stored.plain
    assert (lazy.numpy() == x).all()


def test_what_is_compressed_leaves_no_buffers(tmp_path: Path) -> None:
    """One for each size that was ever read would be all the memory in the end."""
    zarr = pytest.importorskip("zarr")
    x = np.random.default_rng(0).integers(0, 1 << 30, (16, 100), dtype=np.int32)
    x[np.arange(100) >= 10 + 5 * np.arange(16)[:, None]] = 0
    zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(1, 100), dtype="i4")[...] = x
    stored = rl.open(tmp_path / "x.zarr", format="ab").stored
    assert len({stored.stored_bytes(chunk) for chunk in stored.grid}) > 8
    with buffers.reused():
        for chunk in stored.grid:
            data = stored.read(chunk)
            assert data is not None
            buffers.given_back(data)
        assert pool().kept <= 4096


def test_bytes_that_are_not_ours_leave_no_buffers(tmp_path: Path) -> None:
    """A checksum is cut off what was read, and the chunk is a part of that."""
    zarr = pytest.importorskip("zarr")
    from zarr.codecs import Crc32cCodec

    x = np.arange(16 * 10_000, dtype=np.uint32).astype(np.uint8).reshape(16, 10_000)
    made = zarr.create_array(
        tmp_path / "x.zarr", shape=x.shape, chunks=(1, 10_000), dtype="u1", compressors=[Crc32cCodec()]
    )
    made[...] = x
    stored = rl.open(tmp_path / "x.zarr", format="ab").stored
    with buffers.reused():
        for chunk in stored.grid:
            data = stored.read(chunk)
            assert data is not None
            buffers.given_back(data)
        assert not pool().kept


def pool() -> buffers.Pool:
    found = buffers._THREAD.pool
    assert found is not None
    return found


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20_000)), max_size=60))
def test_a_pool_has_never_more_than_it_once_held(steps: list[tuple[int, int]]) -> None:
    held: list[Any] = []
    most = 0
    with buffers.reused():
        for which, size in steps:
            if which and held:
                buffers.given_back(held.pop(which % len(held)))
            else:
                data = buffers.taken(size)
                assert data.size == size
                assert data.ctypes.data % 4096 == 0
                assert not any(np.shares_memory(data, other) for other in held)
                held.append(data)
            most = max(most, sum(data.size for data in held))
            found = pool()
            assert found.held == sum(found.out.values())
            assert found.kept == sum(len(same) * room for room, same in found.free.items())
            assert found.held + found.kept <= found.most
            # Each has room for a 64th more, and may be used for a 16th less.
            assert found.most <= most * (1 + 1 / buffers.WASTE) * (1 + 1 / buffers.MORE)


def test_threads_share_what_was_given_back() -> None:
    shared = buffers.Pool()
    found: list[Any] = []

    def work() -> None:
        with buffers.reused(shared):
            data = buffers.taken(100_000)
            found.append(data)
            buffers.given_back(data)

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert np.shares_memory(found[0], found[1])
    assert np.shares_memory(found[0], found[2])
    assert not shared.held
    assert len(shared.free) == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc")
def test_what_is_dropped_goes_back_to_the_system() -> None:
    """The C library would keep up to 64 MB of buffers of less than 32."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    with buffers.reused():
        for size in (30 << 20, 24 << 20, 19 << 20, 15 << 20, 4 << 20):
            data = buffers.taken(size)
            data[:] = 1
            buffers.given_back(data)
            del data
            assert pool().kept <= pool().most
    assert resident() < before + (16 << 20)


def test_regions_of_many_sizes_take_the_memory_of_a_block(tmp_path: Path) -> None:
    """Blocks of 64 rows meet chunks of 100 in parts of 4, 8, 12, ... rows: no buffer is kept for each."""
    x = numbers(1600, 100)
    write_folder(tmp_path / "x", x, "ab", (64, 100), "bin")
    plan = stores.plan(
        *(tmp_path / "x", tmp_path / "y.chunks", "ab"), chunks=(100, 100), rates=RATES, threads=1,
        memory=planning.BASE + 60_000,
    )  # fmt: skip
    assert plan.passes[0].scatter
    with buffers.reused(), plan.start() as run:
        for task in plan:
            run.record([task.run()])
            assert pool().held == 0
            assert pool().kept <= plan.passes[0].memory * (1 + 1 / buffers.MORE)
        run.commit()
    assert (read_physical(tmp_path / "y.chunks") == x).all()


def test_a_power_failure_may_leave_files_with_nothing_in_them(rows: Path) -> None:
    """They have their sizes, so that they look as if their headers had been written."""
    plan = across(rows)
    with plan.start() as run:
        stored, parts = plan.target.open(), run.folder / ".relayout" / "parts"
        parts.mkdir()
        for chunk in stored.grid:
            with open(parts / stored.name(chunk), "wb") as file:
                file.truncate(len(stored.header) + ROWS * 7 * 4)
    assert across(rows).run(resume=True).complete
    assert (read_physical(rows.with_name("y.chunks")) == numbers(ROWS, COLUMNS)).all()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_chunk_that_is_gone_after_it_got_its_name(which: int, tmp_path: Path) -> None:
    """Tasks that are done again write parts of chunks that are complete, and these stay complete."""
    x = numbers(300, 60)
    write_folder(tmp_path / "x", x, "ab", (20, 60))
    plan = stores.plan(
        *(tmp_path / "x", tmp_path / "y.chunks", "ab"), chunks=(110, 60), rates=RATES, threads=1,
        memory=planning.BASE + 4 * 20 * 60 * 4,
    )  # fmt: skip
    target = tmp_path / "y.chunks"
    with plan.start() as run:
        assert plan.passes[0].scatter
        run.record([task.run() for task in plan])
        Collected(plan.target.open(), target / ".relayout" / "parts").finish()  # and then it is killed
    (target / f"{which}.0.npy").unlink()
    with pytest.warns(ChunksGone):
        run = plan.run(resume=True)
    assert 0 < run.redone < plan.total
    assert (read_physical(target) == x).all()


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("resumed", [True, False])
def test_parts_are_not_written_through_links(resumed: bool, rows: Path) -> None:
    precious = rows.with_name("precious")
    precious.write_text("years of work")
    plan = across(rows)
    with plan.start() as run:
        parts = run.folder / ".relayout" / "parts"
        parts.mkdir()
        (parts / "0.3.npy").symlink_to(precious)
        if not resumed:
            with pytest.raises(OSError, match="symbolic links"):
                plan.task(0).run()
    if resumed:
        with pytest.raises(LayoutError, match="is a link, which no conversion has made"):
            plan.run(resume=True)
    assert precious.read_text() == "years of work"


@pytest.mark.usefixtures("small")
def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks of the source one of the destination is made of."""
    x = numbers(60, 7, 5, 6)
    write_folder(tmp_path / "x", x, "nchw", (1, 7, 5, 6))
    now, most = [0], [0]
    begin, end = ChunkFile.__init__, ChunkFile.close

    def opening(self: ChunkFile, *given: Any) -> None:
        begin(self, *given)
        now[0] += 1
        most[0] = max(most[0], now[0])

    def closing(self: ChunkFile) -> None:
        end(self)
        now[0] -= 1

    monkeypatch.setattr(ChunkFile, "__init__", opening)
    monkeypatch.setattr(ChunkFile, "close", closing)
    for count in (3, 60):
        target = tmp_path / f"y{count}.chunks"
        stores.convert(tmp_path / "x", target, "nhwc", chunks=(count, 5, 6, 7), rates=RATES, threads=1)
        assert (read_physical(target) == x.transpose(0, 2, 3, 1)).all()
    assert most[0] == 3
    assert now[0] == 0


@pytest.mark.usefixtures("small")
def test_missing_chunks_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill values are held no longer than what was read would be."""
    zarr = pytest.importorskip("zarr")
    from relayout.stores import task

    zarr.create_array(
        tmp_path / "x.zarr", shape=(16, 8, 100), chunks=(1, 8, 100), dtype="f4", fill_value=3.5,
        compressors=None,
    )  # fmt: skip
    plan = stores.plan(
        *(rl.open(tmp_path / "x.zarr", format="abc"), tmp_path / "y.zarr", "abc"), chunks=(1, 8, 100),
        dtype="f16", rates=RATES, threads=1,
    )  # fmt: skip
    most, real = [0], task._Work._write_slabs

    def counted(self: Any, *given: Any) -> None:
        most[0] = max(most[0], len(self.held))
        real(self, *given)

    monkeypatch.setattr(task._Work, "_write_slabs", counted)
    plan.target.open().begin()
    done = plan.task(0)._replace(block=((0, 16), (0, 8), (0, 100)), by_target=True).run()
    assert done.missing == 16
    assert most[0] == 1


# -- the life of a chunk that many write --------------------------------------------------------------------

PARTED = rl.MemoryDesc((6, 10), "u8", "ab")


def collection(folder: Path, kind: str = "npy") -> Collected:
    """Chunks of 3 x 10 of an array of 6 x 10 that are collected beside it."""
    told = {"create": Folder.create(PARTED, (3, 10), kind)}
    folder.mkdir(exist_ok=True)
    return Collected(Address("folder", str(folder), "", json.dumps(told)).open(), folder / "aside")


@settings(deadline=None)
@given(st.data())
def test_parts_in_any_order_and_number_make_the_chunk(data: st.DataObject) -> None:
    """Whatever is written twice, finished too early, resumed or finished twice."""
    x = numbers(6, 10).astype(np.uint8)
    boxes = [((a, a + 1), (b, b + 5)) for a in range(6) for b in (0, 5)]
    turns = data.draw(st.permutations(boxes)) + data.draw(st.lists(st.sampled_from(boxes), max_size=5))
    with tempfile.TemporaryDirectory() as name:
        made = collection(Path(name))
        for box in turns:
            for region in regions(Cells(PARTED, (3, 10), True), box):
                part = x[tuple(slice(*one) for one in box)].reshape(-1)
                files = made.write(region, np.ascontiguousarray(part), data.draw(st.integers(0, 3)))
                assert all(Path(file).stat().st_size == made.file_bytes for file in files)
            if data.draw(st.booleans()) and all((made.folder / f"{k}.0.npy").exists() for k in (0, 1)):
                made.finish()  # as a run that is killed afterwards would
                assert all(made.stored_bytes((k, 0)) == made.file_bytes for k in (0, 1))
                made.finish()
                made.resume()
                assert not list(Path(name).glob("*.npy"))
        made.finish()
        found = np.concatenate([np.load(Path(name, f"{k}.0.npy")) for k in (0, 1)])
    assert (found == x).all()


def test_a_chunk_is_whole_from_its_first_part_on(tmp_path: Path) -> None:
    made = collection(tmp_path, "bin")
    assert made.stored_bytes((0, 0)) == 0
    with made.opened((0, 0)) as file:
        file.write(np.full(2, 7, np.uint8), 3)
    assert made.stored_bytes((0, 0)) == made.file_bytes == 30
    assert (made.folder / "0.0.bin").read_bytes() == b"\0\0\0\7\7" + bytes(25)
    with pytest.raises(FileNotFoundError, match=r"1\.0\.bin"):
        made.finish()


def test_what_is_collected_where_it_stays_has_its_name(tmp_path: Path) -> None:
    """The intermediate store of two passes."""
    told = {"create": Folder.create(PARTED, (3, 10), "bin")}
    made = Collected(Address("folder", str(tmp_path), "", json.dumps(told)).open(), tmp_path)
    made.opened((1, 0)).__exit__()
    made.finish()
    made.resume()
    assert [path.name for path in tmp_path.iterdir()] == ["1.0.bin"]
