"""Stores of Zarr: versions, codecs, shards, fill values, checksums, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayout as rl
from relayout import stores
from relayout.errors import LayoutError, Unsupported
from relayout.files.arrays import physical_shape
from relayout.stores import planning
from relayout.stores.store import SourceChanged
from test_stores import RATES, numbers

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

DIMS = (4, 20, 9, 7)


def make(path: Path, x: np.ndarray, chunks: tuple[int, ...] = (2, 8, 9, 4), **options: Any) -> Path:
    array = zarr.create_array(path, shape=x.shape, dtype=x.dtype, chunks=chunks, **options)
    array[...] = x
    return path


def convert(
    source: Path, to: str = "nChw8c", name: str = "y.zarr", format: str = "nchw", **options: Any
) -> Path:
    target = source.with_name(name)
    given = {"rates": RATES, "threads": 2} | options
    stores.convert(rl.open(source, format=format), target, to, **given)
    return target


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressors": None},
        {"compressors": [zarr.codecs.BloscCodec(cname="lz4", clevel=1)]},
        {"compressors": [zarr.codecs.GzipCodec(level=1), zarr.codecs.Crc32cCodec()]},
        {"filters": [zarr.codecs.TransposeCodec(order=(3, 2, 1, 0))]},
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
        {"shards": (4, 16, 9, 8)},
        {"zarr_format": 2},
        {"zarr_format": 2, "order": "F"},
    ],
    ids=lambda options: " ".join(options) or "plain",  # a codec prints a set, in any order
)
def test_what_zarr_wrote_and_what_it_reads(options: dict[str, Any], tmp_path: Path) -> None:
    x = numbers(*DIMS)
    source = make(tmp_path / "x.zarr", x, **options)
    lazy = rl.open(source, format="nchw")
    assert (lazy[1:3, 5:, ::2] == x[1:3, 5:, ::2]).all()
    chunk = (1,) * len(DIMS) if lazy.grid.counts[2] > 1 else (1, 1, 0, 1)
    chunk = tuple(min(k, n - 1) for k, n in zip(chunk, lazy.grid.counts, strict=True))
    fast, slow = lazy.stored.read(chunk), lazy.stored.read_slowly(chunk)  # type: ignore[attr-defined]
    inside = tuple(slice(0, b - a) for a, b in lazy.grid.box(chunk))
    assert fast is not None
    both = [data.view(np.float32).reshape(lazy.chunks)[inside] for data in (fast, slow)]
    assert np.array_equal(*both)
    made = zarr.open_array(convert(source), mode="r")
    wanted = rl.reorder(rl.tensor(x, "nchw"), "nChw8c")
    assert made.shape == physical_shape(wanted.desc)
    assert (made[...].reshape(-1) == wanted.buffer.view(np.float32)).all()
    again = rl.open(tmp_path / "y.zarr")
    assert again.desc == wanted.desc
    assert (again.numpy() == x).all()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("codecs", ["none", "zstd", "zstd:5", "gzip:1", "blosc", "zstd+crc32c"])
def test_codecs_of_the_destination(version: int, codecs: str, tmp_path: Path) -> None:
    x = numbers(*DIMS)
    source = make(tmp_path / "x.zarr", x)
    if version == 2 and "+" in codecs:
        with pytest.raises(LayoutError, match="version 2 has none"):
            convert(source, codecs=codecs, zarr_format=version)
        return
    made = zarr.open_array(convert(source, codecs=codecs, zarr_format=version), mode="r")
    assert made.metadata.zarr_format == version
    assert len(made.compressors) == (codecs != "none") + ("+" in codecs)
    assert (rl.open(tmp_path / "y.zarr").numpy() == x).all()
    if version == 3:
        assert made.metadata.dimension_names == ("n", "c//8", "h", "w", "c%8")


def test_shards_are_written_whole(tmp_path: Path) -> None:
    x = numbers(8, 16, 9, 7)
    source = make(tmp_path / "x.zarr", x)
    target = convert(source, "nhwc", chunks=(1, 3, 7, 16), shards=(4, 9, 7, 16))
    made = zarr.open_array(target, mode="r")
    assert made.shards == (4, 9, 7, 16)
    assert made.chunks == (1, 3, 7, 16)
    assert made.nchunks_initialized == made.nchunks
    assert (made[...] == x.transpose(0, 2, 3, 1)).all()
    with pytest.raises(LayoutError, match="multiples of those of a chunk"):
        convert(source, "nhwc", "z.zarr", chunks=(2, 3, 7, 16), shards=(3, 9, 7, 16))


@pytest.mark.parametrize("dtype", ["uint16", "bool", "complex64", ">f4", "int8", "float64"])
def test_elements_of_any_type_are_moved(dtype: str, tmp_path: Path) -> None:
    x = (numbers(*DIMS) % 7).astype(dtype)
    source = make(tmp_path / "x.zarr", x)
    made = zarr.open_array(convert(source, "nhwc"), mode="r")
    assert made.dtype == x.dtype.newbyteorder("=")
    assert (made[...] == x.transpose(0, 2, 3, 1)).all()
    if dtype == "uint16":
        with pytest.raises(Unsupported, match="moves and does not convert"):
            convert(source, "nhwc", "z.zarr", dtype="f32")


def test_types_that_zarr_does_not_have(tmp_path: Path) -> None:
    x = numbers(*DIMS) % 7
    target = convert(make(tmp_path / "x.zarr", x), dtype="bf16")
    assert zarr.open_array(target, mode="r").dtype == np.uint16
    lazy = rl.open(target)
    assert str(lazy.dtype) == "bf16"
    assert (lazy.numpy().astype(np.float32) == x).all()
    back = convert(target, "nchw", "z.zarr", format=None, dtype="f32")
    assert (zarr.open_array(back, mode="r")[...] == x).all()


def test_names_of_dimensions_are_a_format(tmp_path: Path) -> None:
    x = numbers(2, 5, 6, 3)
    make(tmp_path / "x.zarr", x, (1, 5, 6, 3), dimension_names=["n", "h", "w", "c"])
    lazy = rl.open(tmp_path / "x.zarr")
    assert str(lazy.desc) == "f32:nhwc:2x3x5x6"
    assert (lazy[1] == x[1].transpose(2, 0, 1)).all()
    make(tmp_path / "t.zarr", x, (1, 5, 6, 3), dimension_names=["time", "z", "lat", "lon"])
    assert str(rl.open(tmp_path / "t.zarr").desc) == "f32:abcd:2x5x6x3"


@pytest.mark.parametrize("names", [5, "nc", {"n": 1, "c": 2}, ["n", None], [["n"], ["c"]], ["n", "n"], []])
def test_names_of_dimensions_are_not_believed(names: Any, tmp_path: Path) -> None:
    attributes = {"_ARRAY_DIMENSIONS": names}
    make(tmp_path / "x.zarr", numbers(2, 5), (1, 5), zarr_format=2, attributes=attributes)
    assert str(rl.open(tmp_path / "x.zarr").desc).startswith("f32:")


@pytest.mark.parametrize("codecs", ["gzip:10", "zstd:23", "blosc:99", "none:1", "zstd:1000", "gzip:-1"])
@pytest.mark.parametrize("version", [2, 3])
def test_levels_that_codecs_do_not_have(codecs: str, version: int, tmp_path: Path) -> None:
    source = make(tmp_path / "x.zarr", numbers(2, 5), (1, 5))
    with pytest.raises(LayoutError, match="codecs "):
        stores.plan(source, tmp_path / "y.zarr", codecs=codecs, zarr_format=version)


def test_groups(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "g.zarr")
    for name in ("a", "deep/b"):
        root.create_array(name, shape=(4, 6), chunks=(2, 6), dtype="f4")[...] = numbers(4, 6)
    assert stores.names(tmp_path / "g.zarr") == ["a", "deep/b"]
    with pytest.raises(LayoutError, match="holds 2 arrays; say which by its name: a, deep/b"):
        rl.open(tmp_path / "g.zarr")
    for wrong in ("c", "deep/c", "deep/b/x"):
        with pytest.raises(LayoutError, match=r"has no array '.*'; it has a, deep/b"):
            rl.open(tmp_path / "g.zarr", wrong)
    with pytest.raises(LayoutError, match=r"g\.zarr: deep is a group of arrays; say which: a, deep/b"):
        rl.open(tmp_path / "g.zarr", "deep")
    lazy = rl.open(tmp_path / "g.zarr", "deep/b")
    assert lazy[3, 5] == 24
    stores.convert(lazy, tmp_path / "y.zarr", "ba", rates=RATES)
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == numbers(4, 6).T).all()


def test_missing_chunks_are_the_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "x.zarr", shape=(4, 6), chunks=(2, 3), dtype="f4", fill_value=7)
    array[:2, :3] = 1
    plan = stores.plan(tmp_path / "x.zarr", tmp_path / "y.zarr", "ba", rates=RATES)
    assert plan.notes == (
        f"3 of 4 chunks of {tmp_path / 'x.zarr'} are not there, and are read as its fill value",
    )
    run = plan.run()
    assert run.missing == 3
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == array[...].T).all()
    with pytest.raises(LayoutError, match="refuses that"):
        stores.plan(tmp_path / "x.zarr", tmp_path / "z.zarr", "ba", missing="error", rates=RATES)


def test_a_chunk_that_disappears_is_no_fill_value(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr", numbers(4, 6), (2, 3))
    plan = stores.plan(tmp_path / "x.zarr", tmp_path / "y.zarr", "ba", rates=RATES)
    (tmp_path / "x.zarr" / "c" / "1" / "1").unlink()
    with pytest.raises(SourceChanged, match="it had 4 chunks and has 3"):
        plan.run()
    gone = plan.task(plan.total - 1)
    with pytest.raises(SourceChanged, match="is gone"):
        gone.run()


def test_damaged_chunks(tmp_path: Path) -> None:
    checked = [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    source = make(tmp_path / "x.zarr", numbers(4, 6), (2, 3), compressors=checked)
    chunk = source / "c" / "0" / "1"
    good = chunk.read_bytes()
    for damage in (good[:-1] + bytes([good[-1] ^ 1]), good[:9], b"", b"nonsense"):
        chunk.write_bytes(damage)
        with pytest.raises(LayoutError, match=r"chunk \[0, 1\] of .* is damaged"):
            convert(source, "ba", format="ab", force=(tmp_path / "y.zarr").exists())
        with pytest.raises(LayoutError, match="not complete"):
            rl.open(tmp_path / "y.zarr")
    assert not (tmp_path / "y.zarr" / "zarr.json").exists()
    with pytest.raises(FileNotFoundError):
        zarr.open_array(tmp_path / "y.zarr", mode="r")


def test_codecs_that_nobody_knows(tmp_path: Path) -> None:
    source = make(tmp_path / "x.zarr", numbers(4, 6), (2, 3))
    told = json.loads((source / "zarr.json").read_text())
    told["codecs"][-1] = {"name": "secret.codec", "configuration": {}}
    (source / "zarr.json").write_text(json.dumps(told))
    with pytest.raises(Unsupported, match=r"secret\.codec"):
        rl.open(source)
    (source / "zarr.json").write_text("{")
    with pytest.raises(LayoutError, match="no Zarr store that can be read"):
        rl.open(source)


def test_attributes_are_not_believed(tmp_path: Path) -> None:
    for k, wrong in enumerate(
        [7, {"relayout": 1}, {"relayout": 1, "dims": [5, 5], "dtype": "f32", "format": "ab"}]
    ):
        source = make(tmp_path / f"x{k}.zarr", numbers(4, 6), (2, 3), attributes={"relayout": wrong})
        with pytest.raises(LayoutError, match="attribute relayout"):
            rl.open(source)


def test_within_a_running_event_loop(tmp_path: Path) -> None:
    """As in a notebook, whose main thread runs one."""
    import asyncio

    x = numbers(*DIMS)
    source = make(tmp_path / "x.zarr", x)

    async def work() -> None:
        lazy = rl.open(source, format="nchw")
        assert (lazy[1] == x[1]).all()
        stores.convert(lazy, tmp_path / "y.zarr", "nhwc")
        assert (rl.open(tmp_path / "y.zarr").numpy() == x).all()

    asyncio.run(work())


def test_two_passes_through_a_store_in_between(tmp_path: Path) -> None:
    x = numbers(*DIMS)
    target = convert(make(tmp_path / "x.zarr", x), "nhwc", passes=2, chunks=(4, 2, 7, 20))
    assert (zarr.open_array(target, mode="r")[...] == x.transpose(0, 2, 3, 1)).all()
    assert sorted(p.name for p in target.iterdir()) == ["c", "zarr.json"]


def test_shards_that_are_too_big_are_read_in_chunks(tmp_path: Path) -> None:
    x = numbers(64, 16, 64, 64)  # 16 MiB
    source = make(tmp_path / "x.zarr", x, (4, 16, 64, 64), shards=(64, 16, 64, 64))
    lazy = rl.open(source, format="nchw")
    assert lazy.chunks == (64, 16, 64, 64)
    plan = stores.plan(
        *(lazy, tmp_path / "y.zarr", "nhwc"),
        chunks=(4, 64, 64, 16),
        memory=planning.BASE + (16 << 20),
        threads=1,
        rates=RATES,
    )
    assert plan.passes[0].requests_read == 16
    plan.run()
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == x.transpose(0, 2, 3, 1)).all()


def test_stores_at_urls(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    x = numbers(*DIMS)
    zarr.create_array("memory://relayout-test.zarr", shape=x.shape, chunks=(2, 8, 9, 4), dtype="f4")[...] = x
    lazy = rl.open("memory://relayout-test.zarr", format="nchw")
    assert (lazy[1, 3:] == x[1, 3:]).all()
    stores.convert(lazy, tmp_path / "y.zarr", "nhwc", rates=RATES)
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == x.transpose(0, 2, 3, 1)).all()
    with pytest.raises(Unsupported, match="a destination is a folder"):
        stores.plan(lazy, "memory://other.zarr", "nhwc", rates=RATES)


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        {"chunk_key_encoding": {"name": "default", "separator": "."}},
        {"chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"shards": (4, 8)},
        {},
    ],
)
def test_other_files_are_no_chunks(options: dict[str, Any], tmp_path: Path) -> None:
    x = np.arange(96, dtype=np.float32).reshape(8, 12) + 1
    source = make(tmp_path / "x.zarr", x, (2, 4), **options)
    for name in (".DS_Store", "README", "c/.0.0cff22d826a6.part", "9.9", "c/9/9"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("no chunk")
    found = rl.open(source).stored.fingerprint()
    assert found.chunks == rl.open(source).grid.total
    assert stores.plan(source, tmp_path / "y.zarr").notes == ()


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "bool", "complex64", "V8"])
def test_elements_that_are_moved_keep_their_type_in_every_store(dtype: str, tmp_path: Path) -> None:
    x = np.frombuffer(np.random.default_rng(0).bytes(48 * np.dtype(dtype).itemsize), dtype).reshape(6, 8)
    x = x.astype("u1").view("u1") % 2 == 1 if dtype == "bool" else x
    source = make(tmp_path / "x.zarr", x, (4, 3))
    for name in ("y.zarr", "z.chunks", "back.zarr"):  # each is made of the one before
        stores.convert(source, source.with_name(name), "ba", rates=RATES)
        source = source.with_name(name)
        lazy = rl.open(source)
        assert lazy.stored.element == np.dtype(dtype).str[1:] if dtype == "V8" else dtype
        assert lazy.numpy().dtype == x.dtype
        assert lazy.numpy().tobytes() == x.tobytes()
        if dtype != "bool":
            with pytest.raises(Unsupported, match="moves and does not convert"):
                stores.plan(lazy, tmp_path / "f.zarr", dtype="f32")
    assert zarr.open_array(source, mode="r").dtype == x.dtype


def test_structures_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "x.zarr", np.zeros(6, [("a", "<i4"), ("b", "<f4")]), (4,))
    with pytest.raises(Unsupported, match="which Relayout can't move"):
        rl.open(tmp_path / "x.zarr")


@pytest.mark.parametrize("element", ["uint32", "no type", "i4,i4", None, 5, "U4", "object"])
def test_elements_of_folders_are_not_believed(element: Any, tmp_path: Path) -> None:
    make(tmp_path / "x.zarr", np.zeros((6, 8), np.uint16), (4, 3))
    stores.convert(tmp_path / "x.zarr", tmp_path / "y.chunks", rates=RATES)
    where = tmp_path / "y.chunks" / "relayout.json"
    where.write_text(json.dumps(json.loads(where.read_text()) | {"element": element}))
    with pytest.raises(LayoutError, match=r"relayout\.json: element is the name of a NumPy type of 16 bits"):
        rl.open(tmp_path / "y.chunks")


# -- zstd without the package's coroutines ------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compressors": [zarr.codecs.ZstdCodec(level=7, checksum=True)]},
        {"zarr_format": 2},
        {"zarr_format": 2, "compressors": [numcodecs.Zstd(level=3)]},
    ],
    ids=["3", "3 with a checksum", "2", "2 of level 3"],
)
def test_zstd_alone_is_what_the_package_makes_of_it(options: dict[str, Any], tmp_path: Path) -> None:
    x = numbers(*DIMS)
    stored = rl.open(make(tmp_path / "x.zarr", x, **options), format="nchw").stored
    assert stored._zstd is not None
    for chunk in stored.grid:
        path = tmp_path / "x.zarr" / stored.name(chunk)
        encoded = np.frombuffer(path.read_bytes(), np.uint8)
        found = stored.read(chunk)
        assert (found == stored._decoded(encoded, chunk)).all()
        fast, slow = (np.concatenate([np.frombuffer(part, np.uint8) for part in made])
                      for made in (stored.encode(found), stored._encoded(found)))  # fmt: skip
        assert (fast == slow).all()


def test_zstd_of_several_frames_is_left_to_the_package(tmp_path: Path) -> None:
    """And so is what is damaged."""
    x = numbers(4, 6)
    stored = rl.open(make(tmp_path / "x.zarr", x, (4, 6)), format="ab").stored
    path = tmp_path / "x.zarr" / stored.name((0, 0))
    data, zstd = x.tobytes(), numcodecs.Zstd(1)
    path.write_bytes(zstd.encode(data[:40]) + zstd.encode(data[40:]))
    assert stored.read((0, 0)).tobytes() == data
    for wrong in (zstd.encode(data[:40]), zstd.encode(data + data), zstd.encode(data)[:-9], b"", b"x" * 99):
        path.write_bytes(wrong)
        with pytest.raises(LayoutError, match=r"chunk \[0, 0\] of .* is damaged"):
            stored.read((0, 0))


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": None},
        {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
        {"filters": [zarr.codecs.TransposeCodec(order=(3, 2, 1, 0))]},
        {"serializer": zarr.codecs.BytesCodec(endian="big")},
        {"shards": (4, 16, 9, 8)},
        {"zarr_format": 2, "order": "F"},
        {"zarr_format": 2, "filters": [numcodecs.Delta("<f4")]},
    ],
    ids=lambda options: " ".join(options),
)
def test_zstd_among_others_is_not_alone(options: dict[str, Any], tmp_path: Path) -> None:
    x = numbers(*DIMS)
    lazy = rl.open(make(tmp_path / "x.zarr", x, **options), format="nchw")
    assert lazy.stored._zstd is None
    assert (lazy.numpy() == x).all()


def described(codec: Any) -> dict[str, Any]:
    """What decides which bytes a codec makes, whichever version it is of."""
    told = codec.get_config() if hasattr(codec, "get_config") else codec.to_dict()
    found = {"name": told.get("id") or told["name"], **(told.get("configuration") or told)}
    names = ("noshuffle", "shuffle", "bitshuffle")
    if isinstance(found.get("shuffle"), int):
        found["shuffle"] = names[found["shuffle"]]
    keys = ("name", "level", "checksum", "cname", "clevel", "shuffle", "blocksize")
    return {key: found.get(key) for key in keys}


@pytest.mark.parametrize(
    "codec",
    [
        numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
        numcodecs.Blosc(cname="lz4hc", clevel=7, shuffle=numcodecs.Blosc.NOSHUFFLE, blocksize=4096),
        numcodecs.Zstd(level=5, checksum=True),
        numcodecs.GZip(level=2),
    ],
    ids=lambda codec: f"{codec.codec_id} {codec.get_config().get('cname', '')}",
)
def test_codecs_are_kept_in_the_other_version(codec: Any, tmp_path: Path) -> None:
    x = numbers(*DIMS)
    source = make(tmp_path / "x.zarr", x, zarr_format=2, compressors=codec)
    three = zarr.open_array(convert(source), mode="r")
    (found,) = three.compressors
    assert described(found) == described(codec)
    if codec.codec_id == "blosc":
        assert found.typesize == 4
    back = convert(tmp_path / "y.zarr", "nchw", "z.zarr", format=None, zarr_format=2)
    two = zarr.open_array(back, mode="r")
    assert [described(one) for one in two.compressors] == [described(codec)]
    assert (two[...] == x).all()


def test_codecs_that_the_other_version_does_not_have_are_told(tmp_path: Path) -> None:
    x = numbers(*DIMS)
    options = {"rates": RATES, "threads": 1}
    given = {"compressors": numcodecs.LZ4(), "filters": [numcodecs.Delta("f4")]}
    source = make(tmp_path / "x.zarr", x, zarr_format=2, **given)
    plan = stores.plan(rl.open(source, format="nchw"), tmp_path / "y.zarr", **options)
    assert (
        "of the codecs of the source Zarr 3 does not have lz4; chunks are written with zstd (--codecs); "
        "filters of the source are left out: delta"
    ) in plan.explain()
    plan.run()
    assert (zarr.open_array(tmp_path / "y.zarr", mode="r")[...] == x).all()
    checked = [zarr.codecs.GzipCodec(level=1), zarr.codecs.Crc32cCodec()]
    source = make(tmp_path / "a.zarr", x, compressors=checked)
    plan = stores.plan(rl.open(source, format="nchw"), tmp_path / "b.zarr", zarr_format=2, **options)
    assert "Zarr 2 does not have crc32c; chunks are written with gzip" in plan.explain()
    plan.run()
    assert (zarr.open_array(tmp_path / "b.zarr", mode="r")[...] == x).all()
    kept = stores.plan(rl.open(source, format="nchw"), tmp_path / "c.zarr", **options)
    assert not kept.notes


@pytest.mark.parametrize("version", [2, 3])
def test_what_follows_a_frame_of_blosc_is_ignored_as_zarr_does(version: int, tmp_path: Path) -> None:
    """And what it claims to take and is not there is not read: the library would read beyond the buffer."""
    x = numbers(4, 600)
    codec: Any = numcodecs.Blosc() if version == 2 else [zarr.codecs.BloscCodec()]
    source = make(tmp_path / "x.zarr", x, (4, 600), zarr_format=version, compressors=codec)
    chunk = source / ("0.0" if version == 2 else "c/0/0")
    good = chunk.read_bytes()
    chunk.write_bytes(good + b"more")
    assert (zarr.open_array(source, mode="r")[...] == x).all()
    assert (rl.open(source, format="ab").numpy() == x).all()
    for damage in (good[:-1], good[:15], good[:12] + b"\xff\xff\xff\x7f" + good[16:]):
        chunk.write_bytes(damage)
        with pytest.raises(LayoutError, match=r"blosc: it (claims to take|ends within its header)"):
            rl.open(source, format="ab").numpy()


def test_elements_of_sixteen_bytes_are_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "x.zarr", numbers(4, 6, dtype=np.complex128), (2, 3))
    with pytest.raises(Unsupported, match=r"complex128, which Relayout can't move: .* of 8, 16, 32"):
        rl.open(source)
