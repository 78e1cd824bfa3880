"""Arrays in chunks: any source, any destination, the same elements; in parts, in one pass or two."""

from __future__ import annotations

import json
import pickle
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relayout as rl
from relayout import files, stores
from relayout.errors import LayoutError, TooLarge, Unsupported
from relayout.files.arrays import physical_shape
from relayout.files.descriptor import descriptor_to_json
from relayout.stores import files as store_files
from relayout.stores import planning, search, slabs
from relayout.stores.grid import Cells, Grid, chunk_layout
from relayout.stores.pieces import pieces
from relayout.stores.task import schedule
from strategies import tried

RATES = search.ASSUMED  # measuring is for people


def write_folder(path: Path, x: np.ndarray, format: str, chunks: tuple[int, ...], kind: str = "npy") -> None:
    """A folder of chunks, written by NumPy alone: the definition."""
    tensor = rl.tensor(x, format)
    shape = physical_shape(tensor.desc)
    assert shape is not None
    array = tensor.buffer.view(x.dtype).reshape(shape)
    grid = Grid(shape, chunks)
    path.mkdir()
    for chunk in grid:
        whole = np.full(chunks, 77, x.dtype)  # beyond the array may be anything
        part = array[tuple(slice(*one) for one in grid.box(chunk))]
        whole[tuple(slice(0, size) for size in part.shape)] = part
        name = path / f"{'.'.join(map(str, chunk))}.{kind}"
        np.save(name, whole) if kind == "npy" else name.write_bytes(whole.tobytes())
    told = {"relayout": 1, "descriptor": descriptor_to_json(tensor.desc), "chunks": chunks, "files": kind}
    (path / "relayout.json").write_text(json.dumps(told))


def numbers(*dims: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(dims)), dtype=np.float64).reshape(dims).astype(dtype)


def read_physical(path: Path) -> np.ndarray:
    """What lies in a folder of npy files: the physical array, without Relayout."""
    told = json.loads((path / "relayout.json").read_text())
    desc = files.descriptor_from_json(told["descriptor"])
    shape = physical_shape(desc)
    assert shape is not None
    grid = Grid(shape, told["chunks"])
    first = np.load(path / f"{'.'.join(['0'] * len(shape))}.npy")
    out = np.empty(shape, first.dtype)
    for chunk in grid:
        box = tuple(slice(*one) for one in grid.box(chunk))
        data = np.load(path / f"{'.'.join(map(str, chunk))}.npy")
        out[box] = data[tuple(slice(0, s.stop - s.start) for s in box)]
    return out


FORMATS = ["nchw", "nhwc", "chwn", "nChw4c", "nChw8c", "NChw4n2c", "OIhw4i2o2i", "cdba"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Any, ...]:
    dims = tuple(draw(st.integers(1, n)) for n in (5, 19, 7, 6))
    sides = []
    for _ in range(2):
        format = draw(st.sampled_from(FORMATS))
        shape = physical_shape(rl.MemoryDesc(dims, "f32", format))
        assert shape is not None
        sides.append((format, tuple(draw(st.integers(1, size)) for size in shape)))
    slab = draw(st.sampled_from([1 << 20, 64, 512]))
    return dims, *sides, draw(st.sampled_from([None, 1, 2])), draw(st.integers(0, 3)), slab


@settings(max_examples=tried(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=problems())
def test_any_store_becomes_any_other(
    problem: tuple[Any, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Physical bytes, padding included, are those of ``rl.reorder`` of the whole array."""
    dims, (one, chunks), (two, others), passes, tight, slab = problem
    folder = tmp_path_factory.mktemp("stores")
    x = numbers(*dims)
    write_folder(folder / "x.chunks", x, one, chunks)
    lazy = rl.open(folder / "x.chunks")
    wanted = rl.reorder(rl.tensor(x, one), two, axes="position")
    target = Cells(wanted.desc, others)
    # From just enough for a chunk of either side on.
    memory = planning.BASE + (lazy.cells.nbytes + target.nbytes) * (4 + 8 * tight)
    options = {"chunks": others, "rates": RATES, "threads": 1, "memory": memory, "axes": "position"}
    try:
        plan = stores.plan(lazy, folder / "y.chunks", two, passes=passes, **options)
    except TooLarge:
        assert passes == 2 or tight == 0
        return
    assert plan.peak <= memory
    with patch.object(slabs, "SLAB", slab), patch.object(slabs, "LEAST", 1):
        plan.run()
    made = read_physical(folder / "y.chunks")
    assert (made.reshape(-1).view(np.uint8) == wanted.buffer).all()
    assert (rl.open(folder / "y.chunks").numpy() == x).all()
    assert not (folder / "y.chunks" / ".relayout").exists()


def test_chunks_are_digits() -> None:
    """The layout of chunks agrees with where the elements lie in them, one by one."""
    desc = rl.MemoryDesc((3, 21, 5, 4), "f32", "nChw8c")
    for chunks in [(1, 2, 5, 4, 8), (2, 1, 3, 4, 4), (3, 3, 5, 4, 8), (1, 1, 1, 1, 1)]:
        layout, outer = chunk_layout(desc, chunks)
        grid = Grid(physical_shape(desc), chunks)  # type: ignore[arg-type]
        room = int(np.prod(chunks))
        for index in product(*map(range, desc.dims)):
            place = np.unravel_index(desc.layout.offset(*index), grid.shape)
            chunk = tuple(int(p) // c for p, c in zip(place, chunks, strict=True))
            number = int(np.ravel_multi_index(chunk, grid.counts))
            inside = int(
                np.ravel_multi_index([int(p) % c for p, c in zip(place, chunks, strict=True)], chunks)
            )
            assert layout.offset(*index) == number * room + inside
        assert outer == sum(count > 1 for count in grid.counts)


@given(st.data())
@settings(max_examples=tried(60), deadline=None)
def test_pieces_cover_a_block_once(data: st.DataObject) -> None:
    dims = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 9)))
    sides = []
    for _ in range(2):
        desc = rl.MemoryDesc(
            dims, "u8", data.draw(st.sampled_from(["ab", "ba", "Ab4a", "AB16a4b", "BA2b8a"]))
        )
        shape = physical_shape(desc)
        assert shape is not None
        sides.append(Cells(desc, tuple(data.draw(st.integers(1, size)) for size in shape)))
    seen = np.zeros(dims, int)
    block = tuple((0, size) for size in dims)
    for a, b in product(sides[0].grid, sides[1].grid):
        for piece in pieces(sides[0], a, sides[1], b, block):
            seen[tuple(slice(*one) for one in piece)] += 1
    assert (seen == 1).all()
    for by_target in (True, False):
        steps = schedule(*sides, block, by_target).steps
        assert sum(what == "read" for what, *_ in steps) >= sides[0].grid.total
        assert sorted(cell for what, cell, _ in steps if what == "write") == sorted(sides[1].grid)


@given(st.integers(1, 200), st.integers(1, 30), st.integers(1, 50))
def test_touched_chunks_are_counted(size: int, s: int, b: int) -> None:
    """In closed form, as one by one."""
    counts = [len(range(k // s, -(-min(k + b, size) // s))) for k in range(0, size, b)]
    assert search._touched(size, s, b) == (sum(counts), max(counts))
    source = Cells(rl.MemoryDesc((size,), "u8", "a"), (s,))
    ((start, stop),) = search._worst(source, (b,))
    assert start % b == 0
    assert stop == min(start + b, size)
    assert counts[start // b] == max(counts)


def test_chunks_without_a_common_divisor_take_no_loop() -> None:
    """Some billions of blocks, of which no two that follow each other begin alike in their chunks."""
    size, s, b = 10**18, 10**9 + 7, 10**9 + 9
    total, most = search._touched(size, s, b)
    assert most == 3  # a block of two more than a chunk that begins with the last element of one
    blocks = -(-size // b)
    assert 2 * blocks - 1 <= total <= 3 * blocks
    ((start, stop),) = search._worst(Cells(rl.MemoryDesc((size // 10**6,), "u8", "a"), (s,)), (b,))
    assert stop - start <= b


def test_slices_are_those_of_numpy(tmp_path: Path) -> None:
    x = numbers(5, 18, 4, 3)
    write_folder(tmp_path / "x", x, "nChw8c", (2, 1, 4, 2, 8), "bin")
    lazy = rl.open(tmp_path / "x")
    for key in [
        (), 2, -1, (slice(1, 4), 3), (..., 1), (slice(None, None, -2), slice(3, 17, 5)), (None, 1, ..., None),
        (slice(4, 1),), (slice(3, None), slice(None), slice(0, 0)), (0, 1, 2, 2),
    ]:  # fmt: skip
        assert np.array_equal(lazy[key], x[key]), key
        assert lazy[key].shape == x[key].shape
    for key in [(1, 2, 3, 1, 0), 5, (0, 18), (..., ...), "a", np.array([1])]:
        with pytest.raises(IndexError):
            lazy[key]
    part = lazy.read(((1, 3), (2, 15), (0, 4), (1, 2)), "nhwc")
    assert str(part.desc) == "f32:nhwc:2x13x4x1"
    assert (part.numpy() == x[1:3, 2:15, :, 1:2]).all()
    assert np.asarray(lazy).sum() == x.sum()
    with pytest.raises(LayoutError, match="does not lie within 5x18x4x3"):
        lazy.read(((0, 6), (0, 1), (0, 1), (0, 1)))


def test_values_are_converted_on_the_way(tmp_path: Path) -> None:
    """Scales along an axis, whatever the blocks are, and in the pass that writes less."""
    x = numbers(4, 6, 8, 8, dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    scale = np.linspace(0.5, 2, 6).astype(np.float32)
    lazy = rl.open(tmp_path / "x.npy", format="nchw")
    wanted = rl.reorder(rl.tensor(x, "nchw"), "nhwc", dtype="f32", src_scale=(scale, 1)).numpy()
    for passes in (1, 2):
        out = tmp_path / f"y{passes}.chunks"
        stores.convert(
            *(lazy, out, "nhwc"),
            dtype="f32",
            src_scale=(scale, 1),
            chunks=(1, 3, 8, 4),
            passes=passes,
            rates=RATES,
        )
        assert np.array_equal(rl.open(out).numpy(), wanted)


def test_tasks_are_data(tmp_path: Path) -> None:
    """Pickled, run twice, in any order."""
    x = numbers(6, 10, 8, 8)
    write_folder(tmp_path / "x", x, "nchw", (2, 10, 8, 8))
    plan = stores.plan(
        rl.open(tmp_path / "x"), tmp_path / "y.chunks", "nChw4c", chunks=(3, 1, 8, 8, 4), rates=RATES
    )
    plan = pickle.loads(pickle.dumps(plan))
    assert len(plan) == plan.total == len(list(plan))
    with plan.start() as run:
        tasks = [pickle.loads(pickle.dumps(plan.task(n))) for n in run.pending(plan.passes[0])]
        assert max(len(pickle.dumps(task)) for task in tasks) < 8192
        done = [task.run() for task in [*reversed(tasks), *tasks]]
        run.record(done)
        assert run.done == set(range(plan.total))
        run.commit()
    assert sum(one.elements for one in done) == 2 * x.size
    assert (rl.open(tmp_path / "y.chunks").numpy() == x).all()
    with pytest.raises(LayoutError, match="no task"):
        plan.task(plan.total)


def test_two_passes_read_less(tmp_path: Path) -> None:
    """Rows to columns in memory for a few of either: one pass reads again and again, two do not."""
    source = Cells(rl.MemoryDesc((4096, 4096), "f32", "ab"), (16, 4096))
    target = Cells(rl.MemoryDesc((4096, 4096), "f32", "ab"), (4096, 16))
    most = 4 << 20
    one = search.fastest(source, target, most, 1)
    assert one is not None
    assert one.reads > 8 * source.stored.total
    middle = Cells(source.whole, search.between(source, target, most)[0])
    two = [search.fastest(a, b, most, 1) for a, b in ((source, middle), (middle, target))]
    for shape, cells in zip(two, (source, middle), strict=True):
        assert shape is not None
        assert shape.reads == cells.stored.total
        assert shape.memory <= most


def test_a_plan_says_what_it_does(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", numbers(4, 8, 8, 8), "nchw", (1, 8, 8, 8))
    plan = stores.plan(rl.open(tmp_path / "x"), tmp_path / "y.chunks", "nhwc", rates=RATES)
    assert plan.bytes_read == plan.bytes_written == 4 * 8 * 8 * 8 * 4
    done: list[Any] = []
    run = plan.run(progress=done.append)
    assert run.complete
    assert sum(one.bytes_read for one in done) == plan.bytes_read
    assert sum(one.bytes_written for one in done) == plan.bytes_written
    assert sum(one.requests for one in done) == sum(p.requests_read + p.requests_written for p in plan.passes)
    assert plan.explain().splitlines()[1] == "in one pass: 4 blocks of 1x8x8x8"


@pytest.mark.parametrize(
    ("text", "bytes_"), [("2GB", 2 * 10**9), ("512MiB", 512 << 20), ("1.5k", 1500), (7, 7), ("64 ki", 65536)]
)
def test_memory_is_written_as_people_do(text: str | int, bytes_: int) -> None:
    assert planning.as_bytes(text) == bytes_


@pytest.mark.parametrize("wrong", ["", "2XB", "-3", 0, True, "GB"])
def test_what_is_no_memory(wrong: Any) -> None:
    with pytest.raises(LayoutError, match="memory is a number of bytes"):
        planning.as_bytes(wrong)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    x = numbers(4, 8, 8, 8)
    write_folder(tmp_path / "x", x, "nchw", (1, 8, 8, 8))
    lazy = rl.open(tmp_path / "x")

    def plan(name: str = "y.chunks", format: str = "nhwc", **options: Any) -> None:
        stores.plan(lazy, tmp_path / name, format, rates=RATES, **options)

    for message, options in [
        ("an axis for each digit .n, h, w, c.", {"chunks": (4, 8)}),
        ("a size of 1 or more", {"chunks": (1, 0, 8, 8)}),
        ("too little", {"memory": "160MB"}),
        ("source and destination are the same", {"name": "x"}),
        ("lies within the source", {"name": "x/y.chunks"}),
        ("neither shards nor codecs", {"codecs": "zstd"}),
        ("written as zarr, npy or bin", {"kind": "hdf5"}),
        ("'fill' or 'error'", {"missing": "zero"}),
    ]:
        with pytest.raises(LayoutError, match=message):
            plan(**options)
    with pytest.raises(Unsupported, match="no array with an axis for each digit"):
        plan(dtype="s4")
    np.save(tmp_path / "bare.npy", x)
    with pytest.raises(LayoutError, match="nothing says what its axes mean"):
        stores.plan(tmp_path / "bare.npy", tmp_path / "z.chunks", "nhwc", rates=RATES)


def test_stores_are_found_by_what_they_hold(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rl.open(tmp_path / "nothing")
    with pytest.raises(LayoutError, match="is no store"):
        rl.open(tmp_path)
    for k in range(3):
        np.save(tmp_path / f"w{k}.npy", numbers(3, 4) * k)
    assert stores.names(tmp_path) == ["w0", "w1", "w2"]
    with pytest.raises(LayoutError, match="holds 3 arrays; say which by its name: w0, w1, w2"):
        rl.open(tmp_path)
    with pytest.raises(LayoutError, match="has no array 'w3'"):
        rl.open(tmp_path, "w3")
    assert rl.open(tmp_path, "w2")[0, 0] == 2
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(LayoutError, match="neither a folder, nor a file of the kinds"):
        rl.open(tmp_path / "x.txt")


def test_checkpoints_in_several_files(tmp_path: Path) -> None:
    w = {f"layer{k}.weight": numbers(40, 30) + k for k in range(4)}
    for k, (name, value) in enumerate(w.items()):
        files.write(tmp_path / f"model-{k % 2}.safetensors", rl.tensor(value), name=name, force=True)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {name: f"model-{k % 2}.safetensors" for k, name in enumerate(w)}})
    )
    assert stores.names(tmp_path) == stores.names(index) == sorted(w)
    for name, value in w.items():
        assert (rl.open(index, name)[3:7] == value[3:7]).all()
    stores.convert(
        rl.open(tmp_path, "layer3.weight"), tmp_path / "y.chunks", "ba", chunks=(7, 40), rates=RATES
    )
    assert (rl.open(tmp_path / "y.chunks").numpy() == w["layer3.weight"]).all()
    with pytest.raises(LayoutError, match="has no array 'layer9'"):
        rl.open(index, "layer9")
    index.write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(LayoutError, match="does not lie beside it"):
        rl.open(index, "a")
    index.write_text("[]")
    with pytest.raises(LayoutError, match="no weight_map"):
        rl.open(index, "a")


def test_files_are_read_in_runs_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = numbers(50, 7, 9)
    files.write(tmp_path / "x.safetensors", rl.tensor(x, "acb"), name="x")
    monkeypatch.setattr("relayout.stores.file.PART", 1000)
    monkeypatch.setattr("relayout.stores.file.rows.__defaults__", (1000,))
    lazy = rl.open(tmp_path / "x.safetensors")
    assert lazy.chunks == (3, 9, 7)
    assert lazy.grid.total == 17
    assert (lazy[10:20, ::2] == x[10:20, ::2]).all()


def test_descriptions_are_not_believed(tmp_path: Path) -> None:
    x = numbers(2, 3)
    write_folder(tmp_path / "x", x, "ab", (1, 3))
    where = tmp_path / "x" / "relayout.json"
    good = json.loads(where.read_text())
    for wrong, message in [
        ("{", "is no JSON"),
        ("[]", "no description"),
        (json.dumps({**good, "chunks": [0, 3]}), "whole numbers from 1 on"),
        (json.dumps({**good, "chunks": [1.5, 3]}), "whole numbers from 1 on"),
        (json.dumps({**good, "chunks": "abc"}), "whole numbers"),
        (json.dumps({**good, "descriptor": {}}), "missing"),
        (json.dumps({**good, "files": "exe"}), "no such store"),
        (json.dumps({"relayout": 1}), "no description"),
    ]:
        where.write_text(wrong)
        with pytest.raises(LayoutError, match=message):
            rl.open(tmp_path / "x")
    where.write_text(json.dumps(good))
    lazy = rl.open(tmp_path / "x")
    np.save(tmp_path / "x" / "1.0.npy", np.zeros((1, 3), np.int32))
    with pytest.raises(LayoutError, match="holds an array of shape"):
        lazy.numpy()
    (tmp_path / "x" / "1.0.npy").write_bytes(b"nonsense")
    with pytest.raises(LayoutError, match="is no npy file"):
        lazy.numpy()
    (tmp_path / "x" / "1.0.npy").unlink()
    with pytest.raises(LayoutError, match=r"chunk \[1, 0\] of .* is missing, and there is no fill value"):
        lazy.numpy()


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "bool", "complex64"])
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
def test_elements_of_files_are_moved_as_those_of_stores(suffix: str, dtype: str, tmp_path: Path) -> None:
    """One rule: what Relayout can't convert it moves, wherever it comes from."""
    x = (np.arange(24) % 5).reshape(4, 6).astype(dtype)
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, x)
    elif suffix == ".npz":
        np.savez(path, x=x)
    else:
        codes = {"uint16": "U16", "uint32": "U32", "bool": "BOOL", "complex64": "C64"}
        told = {"x": {"dtype": codes[dtype], "shape": [4, 6], "data_offsets": [0, x.nbytes]}}
        text = json.dumps(told).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + x.tobytes())
    lazy = rl.open(path)
    assert lazy.stored.element == dtype
    assert lazy.numpy().dtype == x.dtype
    assert (lazy[1:3, ::2] == x[1:3, ::2]).all()
    stores.convert(lazy, tmp_path / "y.chunks", "ba", rates=RATES)
    back = rl.open(tmp_path / "y.chunks")
    assert back.stored.element == dtype
    assert (back.numpy() == x).all()
    with pytest.raises(Unsupported, match="moves and does not convert"):
        stores.plan(lazy, tmp_path / "z.chunks", dtype="f32", rates=RATES)
    if dtype == "uint16":
        assert str(rl.open(path, dtype="bf16").dtype) == "bf16"


def test_the_memory_that_is_said_to_be_enough_is(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", numbers(8, 16, 16, 16), "nchw", (1, 16, 16, 16))
    lazy = rl.open(tmp_path / "x")
    given: dict[str, Any] = {"chunks": (2, 16, 8, 16), "rates": RATES, "base": 10**6}
    with pytest.raises(planning.TooLittle, match="are enough, and less is for smaller chunks") as caught:
        stores.plan(lazy, tmp_path / "y.chunks", "nhwc", memory=1_000_001, **given)
    least = caught.value.needed
    plan = stores.plan(lazy, tmp_path / "y.chunks", "nhwc", memory=least, **given)
    assert plan.peak <= least
    plan.run()
    assert (rl.open(tmp_path / "y.chunks").numpy() == numbers(8, 16, 16, 16)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0}, {"threads": -1}, {"threads": "2"}, {"threads": True}, {"passes": 3}, {"passes": 0},
        {"chunks": (1.5, 1)}, {"chunks": ("a", 1)},
    ],
)  # fmt: skip
def test_numbers_of_things_are_numbers(options: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 6), np.float32))
    with pytest.raises(LayoutError, match=r"threads is a|passes is a|chunks are"):
        stores.plan(tmp_path / "x.npy", tmp_path / "y.chunks", **options)


def test_a_block_is_of_use_to_one_thread(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 6), np.float32))
    made = stores.plan(tmp_path / "x.npy", tmp_path / "y.chunks", threads=10**6)
    assert (made.threads, made.allowed) == (1, 10**6)


@pytest.mark.parametrize("shards", [(10, 6), (-1, -1), (1000, 3)])
def test_shards_may_reach_beyond_the_array(shards: tuple[int, int], tmp_path: Path) -> None:
    """The last chunk does, and a shard is made of whole ones."""
    zarr = pytest.importorskip("zarr")
    np.save(tmp_path / "x.npy", numbers(7, 6))
    options = {"chunks": (5, 3), "shards": shards, "codecs": "none", "rates": RATES}
    stores.convert(tmp_path / "x.npy", tmp_path / "y.zarr", "ab", **options)
    made = zarr.open_array(tmp_path / "y.zarr", mode="r")
    assert made.shards == (10, 3 if shards[1] == 3 else 6)
    assert (made[...] == numbers(7, 6)).all()
    assert (rl.open(tmp_path / "y.zarr").numpy() == numbers(7, 6)).all()


# -- files that can't be read in parts ----------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_compressed_npz_is_unpacked_once_and_the_plan_says_so(
    on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones go to a temporary file, whose bytes are not those of the npz at the same place."""
    from relayout.files import npz
    from relayout.stores import file

    x = numbers(64, 50, 40)
    np.savez_compressed(tmp_path / "x.npz", x=x)
    monkeypatch.setattr(file, "PART", 100_000)
    monkeypatch.setattr(npz, "IN_MEMORY", 1000 if on_disk else 1 << 26)
    unpacked, real = [0], npz._unpacked

    def counted(*given: Any) -> Any:
        unpacked[0] += 1
        return real(*given)

    monkeypatch.setattr(npz, "_unpacked", counted)
    lazy = rl.open(tmp_path / "x.npz", format="abc")
    assert not lazy.stored.plain
    assert lazy.stored.held == (0 if on_disk else x.nbytes)
    assert (lazy[3:60:7, 1] == x[3:60:7, 1]).all()
    plan = stores.plan(lazy, tmp_path / "y.chunks", "cab", chunks=(7, 64, 20), rates=RATES)
    assert plan.fixed == plan.base + lazy.stored.held
    where = "unpacked to a temporary file" if on_disk else "unpacked into memory, which counts"
    told = plan.explain()
    assert "x.npz is compressed and can't be read in parts: all of it, 500.0 KiB, is unpacked" in told
    assert where in told
    plan.run()
    assert (rl.open(tmp_path / "y.chunks").numpy() == x).all()
    assert unpacked[0] == 1
    if not on_disk:
        with pytest.raises(TooLarge, match="of memory are too little"):
            stores.plan(lazy, tmp_path / "z.chunks", "cab", memory=planning.BASE + x.nbytes, rates=RATES)


def test_an_uncompressed_npz_is_read_in_parts(tmp_path: Path) -> None:
    x = numbers(64, 50, 40)
    np.savez(tmp_path / "x.npz", x=x)
    lazy = rl.open(tmp_path / "x.npz", format="abc")
    assert (lazy.stored.plain, lazy.stored.held, lazy.stored.note) == (True, 0, "")
    assert (lazy.numpy() == x).all()


# -- headers ------------------------------------------------------------------------------------------------


def test_headers_of_large_chunks_fill_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their elements can be written past the system's memory; any program reads them all the same."""
    x = numbers(4, 64, 40, 30)
    write_folder(tmp_path / "x", x, "nchw", (2, 64, 40, 30))
    past: list[bool] = []
    real = store_files._past

    def told(handle: int, on: bool) -> bool:
        found = real(handle, on)
        past.append(on)
        return found

    monkeypatch.setattr(store_files, "_past", told)
    stores.convert(tmp_path / "x", tmp_path / "y.chunks", "nhwc", chunks=(2, 40, 30, 64), rates=RATES)
    for number in (0, 1):
        path = tmp_path / "y.chunks" / f"{number}.0.0.0.npy"
        assert path.stat().st_size == 4096 + x.nbytes // 2
        assert (np.load(path) == x[2 * number : 2 * number + 2].transpose(0, 2, 3, 1)).all()
    assert past[0]  # it was tried
    assert (rl.open(tmp_path / "y.chunks").numpy() == x).all()
    stores.convert(tmp_path / "y.chunks", tmp_path / "z.chunks", "nhwc", chunks=(2, 4, 30, 64), rates=RATES)
    assert (tmp_path / "z.chunks" / "0.0.0.0.npy").stat().st_size == 128 + x.nbytes // 20


# -- what is not done before anybody needs it ---------------------------------------------------------------


def test_rates_are_measured_when_somebody_asks_for_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relayout.stores import rates

    asked, real = [0], rates.measured

    def counted(*given: Any) -> Any:
        asked[0] += 1
        return real(*given)

    monkeypatch.setattr(rates, "measured", counted)
    write_folder(tmp_path / "x", numbers(8, 6), "ab", (2, 6))
    plan = stores.plan(tmp_path / "x", tmp_path / "y.chunks", "ba")
    plan.run()
    assert asked[0] == 0
    assert plan.seconds > 0
    assert "measured on 3 chunks of the source" in plan.explain()
    assert asked[0] == 1


def test_kernels_are_made_once_and_before_workers_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from relayout.reorder.conversion import Conversion
    from relayout.stores import pieces

    made: list[tuple[str, Any]] = []
    real = Conversion.settled.__func__

    def counted(cls: Any, src: Any, dst: Any, *rest: Any, **named: Any) -> Any:
        made.append((threading.current_thread().name, (src, dst)))
        return real(cls, src, dst, *rest, **named)

    monkeypatch.setattr(Conversion, "settled", classmethod(counted))
    monkeypatch.setattr(pieces, "_CONVERSIONS", {})
    write_folder(tmp_path / "x", numbers(40, 6, 5, 7), "nchw", (2, 6, 5, 7))
    stores.convert(tmp_path / "x", tmp_path / "y.chunks", "nhwc", chunks=(4, 5, 7, 6), threads=8, rates=RATES)
    assert made
    assert {name for name, _ in made} == {threading.current_thread().name}
    assert len({key for _, key in made}) == len(made)
    assert (rl.open(tmp_path / "y.chunks").numpy() == numbers(40, 6, 5, 7)).all()
