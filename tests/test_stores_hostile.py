"""Stores that somebody made to do harm: an error, nothing written elsewhere, no memory without bound."""

from __future__ import annotations

import bz2
import copy
import json
import lzma
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relayout as rl
from covering import share
from relayout import files, stores
from relayout.errors import LayoutError, Unsupported
from relayout.stores import limits
from relayout.stores.limits import decoded_within, room
from test_stores import RATES, numbers, write_folder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

NASTY: list[Any] = [
    -1, 0, 1, 7, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 1.5, float("nan"), float("inf"), True,
    None, "", "x", "../../x", "/etc/passwd", "\0", "\ud800", "9" * 5000,
    [], [[]], {}, [-1], [0], [0, 0], [1.5, 2],
    [2**62, 2**62], [10**30, 1], [True, True], ["a", "b"], [None], {"name": "x"},
    {"name": "../x", "configuration": {}}, "<f4", "|O", "<U9", "float32", "../c",
]  # fmt: skip

GROWTH = 256 << 20  # bytes by which a process may grow, whatever it reads


def peak() -> int:
    """The most bytes that this process has taken; 0 where nothing says it."""
    if sys.platform != "linux":
        return 0
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) << 10


def damaged(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every place of a tree of JSON, each with every value that it should not have."""
    for value in NASTY:
        yield path, value
    keys = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield from damaged(tree[key], (*path, key))


def changed(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    made = copy.deepcopy(tree)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


def without(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The tree without each of its keys."""
    if isinstance(tree, dict):
        for key in tree:
            yield {other: value for other, value in tree.items() if other != key}
            for inner in without(tree[key]):
                yield {**tree, key: inner}


def use(source: Path, name: str | None = None, **options: Any) -> bool:
    """Open, read and convert; whether that was possible. Anything but our errors gets out."""
    target = source.parent / "out" / "y.chunks"
    target.parent.mkdir(exist_ok=True)
    try:
        stores.names(source)
        lazy = rl.open(source, name, **options)
        _ = repr(lazy), lazy.layout, lazy.stored.facts(), lazy.stored.fingerprint()
        if lazy.nbytes < 1 << 20:
            lazy.numpy()
        elif 0 not in lazy.dims:
            _ = lazy[(0,) * lazy.ndim]
        if lazy.grid.total < 1000:
            stores.plan(lazy, target, rates=RATES, threads=1, memory="300MB").run()
        return True
    except (LayoutError, OSError) as error:
        return not str(error)
    finally:
        shutil.rmtree(target, ignore_errors=True)
        assert list(target.parent.iterdir()) == []


def fuzz(source: Path, where: Path, name: str | None = None) -> None:
    """Every field of a JSON file with nasty values; half of them, others each time."""
    good = json.loads(where.read_text())
    before, outside = peak(), sorted(source.parent.iterdir())
    assert use(source, name)
    outcomes = []
    for path, value in share([*damaged(good)], random.randrange(2)):
        where.write_text(json.dumps(changed(good, path, value)))
        outcomes.append(use(source, name))
    for tree in without(good):
        where.write_text(json.dumps(tree))
        outcomes.append(use(source, name))
    text = json.dumps(good)
    for broken in ("", "{", "[" * 100_000, text[:-1], text + "}", text.replace("{", "{{"), "\xff", "nul\0"):
        where.write_bytes(broken.encode("latin-1"))
        assert not use(source, name)
    where.write_text(text)
    assert outcomes.count(False) > len(outcomes) // 3
    assert use(source, name)
    assert sorted(p for p in source.parent.iterdir() if p.name != "out") == outside
    assert peak() - before < GROWTH


def test_descriptions_of_folders(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", numbers(2, 3), "ab", (1, 3))
    fuzz(tmp_path / "x", tmp_path / "x" / "relayout.json")


@pytest.mark.turns(2)
@pytest.mark.parametrize("options", [{}, {"shards": (4, 6)}, {"zarr_format": 2}], ids=str)
def test_metadata_of_zarr(options: dict[str, Any], tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    x = numbers(4, 6)
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(2, 3), dtype="f4", **options)
    array[...] = x
    name = ".zarray" if options.get("zarr_format") == 2 else "zarr.json"
    fuzz(tmp_path / "x.zarr", tmp_path / "x.zarr" / name)


def test_attributes_of_zarr(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    stores.convert(npy(tmp_path, numbers(4, 20)), tmp_path / "x.zarr", "aB16b", rates=RATES, zarr_format=2)
    fuzz(tmp_path / "x.zarr", tmp_path / "x.zarr" / ".zattrs")


def test_indices_of_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    for k in range(2):
        files.write(folder / f"m-{k}.safetensors", rl.tensor(numbers(4, 6)), name=f"w{k}")
    index = folder / "m.safetensors.index.json"
    index.write_text(
        json.dumps(
            {"metadata": {"total_size": 192}, "weight_map": {f"w{k}": f"m-{k}.safetensors" for k in (0, 1)}}
        )
    )
    assert use(folder, "w1")
    good = json.loads(index.read_text())
    for path, value in damaged(good):
        index.write_text(json.dumps(changed(good, path, value)))
        use(folder, "w1")
    index.write_text('{"weight_map": {"w1": "m-0.safetensors", "w1": "m-1.safetensors"}}')
    with pytest.raises(LayoutError, match="a key stands twice"):
        rl.open(folder, "w1")
    for wrong in ("../m/m-1.safetensors", "/etc/passwd", "..", "m-1.safetensors\0", "\ud800", "a\\b"):
        index.write_text(json.dumps({"weight_map": {"w1": wrong}}))
        with pytest.raises(LayoutError, match="does not lie beside it"):
            rl.open(folder, "w1")


def test_headers_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    data = numbers(4, 6).tobytes()

    def write(header: Any, length: int | None = None, text: str = "") -> None:
        text = text or json.dumps(header)
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text.encode() + data)

    good = {"x": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}, "__metadata__": {"a": "b"}}
    write(good)
    assert use(path)
    for where, value in damaged(good):
        write(changed(good, where, value))
        use(path)
    for length in (0, 1, 2**31, 2**63, 2**64 - 1):
        write(good, length)
        assert not use(path)
    for text in ("[" * 50_000, '{"x": 1, "x": 2}', json.dumps(good)[:-1] + ', "x": {}}'):
        write(None, text=text)
        assert not use(path)


def test_headers_of_npy(tmp_path: Path) -> None:
    path = npy(tmp_path, numbers(4, 6))
    good = path.read_bytes()
    head, data = good[:128], good[128:]
    text = head[10:].decode()
    assert use(path)
    values = [repr(value) for value in NASTY] + [
        "9" * 5000,
        "(" * 1000,
        "__import__('os')",
        "(4, 6, -1)",
        "(24,)",
    ]
    for value in values:
        for old in ("'<f4'", "False", "(4, 6)", "4, 6", "'shape'", "'descr'"):
            broken = text.replace(old, value)
            for version in (b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\xff\xff"):
                size = struct.pack("<H" if version[0] == 1 else "<I", min(len(broken), 65535))
                path.write_bytes(b"\x93NUMPY" + version + size + broken.encode("utf-8", "replace") + data)
                use(path)
    for cut in (0, 5, 9, 20, 127, 130):
        path.write_bytes(good[:cut])
        assert not use(path)


def test_headers_of_chunks(tmp_path: Path) -> None:
    write_folder(tmp_path / "x", numbers(2, 3), "ab", (1, 3))
    chunk = tmp_path / "x" / "1.0.npy"
    good = chunk.read_bytes()
    for old in (b"'<f4'", b"False", b"(1, 3)", b"shape", b"NUMPY"):
        for value in NASTY:
            chunk.write_bytes(good.replace(old, repr(value).encode("utf-8", "replace")))
            use(tmp_path / "x")
    for wrong in (
        good[:-1],
        good + b"\0",
        good[:50],
        b"",
        good[:10],
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 5000,
    ):
        chunk.write_bytes(wrong)
        assert not use(tmp_path / "x")


def npy(folder: Path, x: np.ndarray) -> Path:
    np.save(folder / "x.npy", x)
    return folder / "x.npy"


# -- chunks -------------------------------------------------------------------------------------------------

FAR = 100 << 30


def zstd_claiming(size: int) -> bytes:
    """A frame that says how long it is."""
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, size) + b"\x01\x00\x00" + bytes(1000)


def zstd_growing(blocks: int) -> bytes:
    """A frame that does not, of blocks of the same byte 128 Ki times."""
    block = (128 << 10) << 3 | 1 << 1
    several = [struct.pack("<I", block | (k == blocks - 1))[:3] + b"\0" for k in range(blocks)]
    return struct.pack("<IBB", 0xFD2FB528, 0x00, 0x58) + b"".join(several)


BOMBS: dict[str, bytes] = {
    "zstd": zstd_claiming(FAR),
    "zstd that grows": zstd_growing(4000),
    "gzip": zlib.compress(bytes(64 << 20), 9, 31),
    "zlib": zlib.compress(bytes(64 << 20), 9),
    "bz2": bz2.compress(bytes(64 << 20)),
    "lzma": lzma.compress(bytes(64 << 20)),
    "blosc": struct.pack("<BBBBIII", 2, 1, 1, 4, 2**31 - 64, 2**20, 1016) + bytes(1000),
    "lz4": struct.pack("<i", 2**31 - 1) + bytes(1000),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("how", ["2", "3", "shards", "filter"])
def test_chunks_that_claim_to_be_huge(bomb: str, how: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    import numcodecs

    codec = bomb.split()[0]
    x = numbers(4, 6)
    if how in ("2", "filter"):
        made = numcodecs.get_codec({"id": codec})
        options: dict[str, Any] = {"zarr_format": 2, "compressors": made if how == "2" else None}
        if how == "filter":
            options["filters"] = [made]
    else:
        own = {"zstd": zarr.codecs.ZstdCodec, "gzip": zarr.codecs.GzipCodec, "blosc": zarr.codecs.BloscCodec}
        if codec not in own:
            pytest.skip("a codec of version 2")
        options = {"compressors": [own[codec]()], "shards": (4, 6) if how == "shards" else None}
    array = zarr.create_array(
        tmp_path / "x.zarr",
        shape=x.shape,
        chunks=(2, 6),
        dtype="f4",
        config={"write_empty_chunks": True},
        **options,
    )
    array[...] = x
    assert use(tmp_path / "x.zarr")
    chunk = next(
        path for path in sorted((tmp_path / "x.zarr").rglob("*")) if path.is_file() and path.name[0] in "01"
    )
    if how == "shards":
        inner, index = chunk.read_bytes()[:-36], np.frombuffer(chunk.read_bytes()[-36:-4], "<u8").copy()
        index[:2] = 0, len(BOMBS[bomb])
        index[2] = 0
        index[3] = len(BOMBS[bomb])
        import google_crc32c

        text = index.tobytes()
        chunk.write_bytes(BOMBS[bomb] + text + struct.pack("<I", google_crc32c.value(text)))
        assert inner
    else:
        chunk.write_bytes(BOMBS[bomb])
    before = peak()
    lazy = rl.open(tmp_path / "x.zarr")
    with pytest.raises(LayoutError, match=r"chunk \[0, 0\] of .* is damaged|more than the .* that a chunk"):
        lazy.numpy()
    with pytest.raises(LayoutError):
        lazy.stored.read_slowly((0, 0))  # type: ignore[attr-defined]
    assert not use(tmp_path / "x.zarr")
    assert peak() - before < 64 << 20


@pytest.mark.parametrize("codec", ["zstd", "gzip", "zlib", "bz2", "lzma", "blosc", "lz4"])
def test_what_decodes_to_its_size_is_decoded(codec: str) -> None:
    numcodecs = pytest.importorskip("numcodecs")
    data = np.random.default_rng(1).integers(0, 9, 100_000).astype("u1").tobytes()
    made = numcodecs.get_codec({"id": codec})
    encoded = memoryview(bytes(made.encode(data)))
    found = decoded_within(codec, encoded, len(data), made.get_config())
    assert found is None or found == data
    with pytest.raises(LayoutError, match=f"^{codec}: it "):
        decoded_within(codec, encoded, len(data) - 1, made.get_config())
    for cut in range(0, 60, 7):
        _tried(lambda cut=cut: decoded_within(codec, encoded[:cut], room(len(data)), made.get_config()))


def _tried(function: Callable[[], Any]) -> None:
    try:
        function()
    except LayoutError:
        return


def test_frames_of_zstd_that_say_nothing() -> None:
    """Blocks are counted, in all frames; and honest ones are decoded."""
    nothing = zstd_growing(3)
    assert decoded_within("zstd", memoryview(nothing), 3 * 128 << 10) is None
    skipped = struct.pack("<II", 0x184D2A50, 5) + b"12345"
    with pytest.raises(LayoutError, match=r"zstd: it claims to decode to 100\.0 GiB"):
        decoded_within("zstd", memoryview(skipped + zstd_claiming(FAR)), 1 << 20)
    with pytest.raises(LayoutError, match="zstd: it claims"):
        decoded_within("zstd", memoryview(skipped + zstd_growing(100) * 100), 1 << 20)


@pytest.mark.parametrize("piece", [b"\0\0\0", struct.pack("<II", 0x184D2A50, 0)])
def test_endless_pieces_of_zstd_that_hold_nothing(piece: bytes) -> None:
    """Empty blocks, and frames to be skipped: a few thousand are looked at, and not all of a million."""
    frame = struct.pack("<IBB", 0xFD2FB528, 0x20, 2)  # says that it holds two bytes
    data = memoryview((frame if len(piece) == 3 else b"") + piece * 10**6)
    looked = [0]
    real = limits._number

    def counted(*given: Any) -> int:
        looked[0] += 1
        return real(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits, "_number", counted)
        with pytest.raises(LayoutError, match="zstd: it is cut into more than 2024 frames and blocks"):
            decoded_within("zstd", data, 1 << 20)
    assert looked[0] < 5000
    few = memoryview((frame + piece * 1000 + b"\x11\0\0ab") if len(piece) == 3 else piece * 1000)
    assert decoded_within("zstd", few, 1 << 20) is None


@pytest.mark.parametrize("last", [True, False])
def test_frames_of_zstd_behind_an_honest_one(last: bool) -> None:
    """Libraries decode all of them, whatever the first one says."""
    zstd = pytest.importorskip("numcodecs").Zstd
    small, large = zstd(1).encode(b"a" * 1000), zstd(1).encode(bytes(10 << 20))
    data = memoryview(small * 3 + (large if last else b""))
    assert len(zstd().decode(data)) == 3000 + last * (10 << 20)
    if last:
        with pytest.raises(LayoutError, match=r"claims to decode to 10\.0 MiB"):
            decoded_within("zstd", data, 1 << 20)
    else:
        assert decoded_within("zstd", data, 3000) is None
        with pytest.raises(LayoutError, match=r"claims to decode to 2\.9 KiB"):
            decoded_within("zstd", data, 2999)


def test_codecs_that_run_what_they_read(tmp_path: Path) -> None:
    """The chunks of such a store are programs."""
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=(4,), chunks=(4,), dtype="f4", zarr_format=2, compressors=None
    )
    array[...] = numbers(4)
    where = tmp_path / "x.zarr" / ".zarray"
    told = json.loads(where.read_text())
    for damage in (
        {"filters": [{"id": "pickle", "protocol": 5}]},
        {"compressor": {"id": "pickle", "protocol": 5}},
    ):
        where.write_text(json.dumps({**told, **damage}))
        (tmp_path / "x.zarr" / "0").write_bytes(b"cos\nsystem\n(S'touch harm'\ntR.")
        with pytest.raises((Unsupported, LayoutError)):
            rl.open(tmp_path / "x.zarr").numpy()
        assert not Path("harm").exists()


@pytest.mark.skipif(os.name != "posix", reason="special files")
def test_chunks_that_are_no_files(tmp_path: Path) -> None:
    """A pipe would wait for ever, a device never ends, a sparse file is longer than memory."""
    write_folder(tmp_path / "x", numbers(2, 3), "ab", (1, 3))
    chunk = tmp_path / "x" / "1.0.npy"
    before = peak()
    chunk.unlink()
    os.mkfifo(chunk)
    assert not use(tmp_path / "x")
    chunk.unlink()
    chunk.symlink_to("/dev/zero")
    assert not use(tmp_path / "x")
    chunk.unlink()
    with chunk.open("wb") as file:
        file.truncate(1 << 40)
    assert not use(tmp_path / "x")
    description = tmp_path / "x" / "relayout.json"
    description.unlink()
    os.mkfifo(description)
    assert not use(tmp_path / "x")
    assert peak() - before < GROWTH


@pytest.mark.skipif(os.name != "posix", reason="special files")
@pytest.mark.parametrize("name", ["zarr.json", ".zarray", ".zattrs", ".zmetadata"])
def test_metadata_that_is_no_file(name: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", shape=(4,), chunks=(4,), dtype="f4", zarr_format=2)
    array[...] = numbers(4)
    where = tmp_path / "x.zarr" / name
    where.unlink(missing_ok=True)
    os.mkfifo(where)
    with pytest.raises(LayoutError, match="is no regular file"):
        rl.open(tmp_path / "x.zarr")
    where.unlink()
    with where.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(LayoutError, match="are the most that metadata may have"):
        rl.open(tmp_path / "x.zarr")


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_links_that_lead_in_circles(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "x.zarr", shape=(4, 4), chunks=(2, 2), dtype="f4")
    array[...] = numbers(4, 4)
    for k in range(2, 9):
        (tmp_path / "x.zarr" / "c" / str(k)).symlink_to(tmp_path / "x.zarr" / "c")
    with pytest.raises(LayoutError, match="is a link to a folder that another link leads to"):
        rl.open(tmp_path / "x.zarr").stored.fingerprint()


@pytest.mark.parametrize("name", ["../x.zarr", "a/../../x", "..", "./a", "a\0b"])
def test_names_of_arrays_stay_in_their_store(name: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    root = zarr.create_group(tmp_path / "g.zarr")
    root.create_array("a", shape=(4,), chunks=(4,), dtype="f4")[...] = numbers(4)
    with pytest.raises(LayoutError, match="has no array"):
        rl.open(tmp_path / "g.zarr", name)
    assert rl.open(tmp_path / "g.zarr", "/a")[1] == 2


def test_what_is_told_of_incomplete_destinations_is_not_believed(tmp_path: Path) -> None:
    work = tmp_path / "y.chunks" / ".relayout"
    work.mkdir(parents=True)
    for plan in (
        "",
        "[]",
        '{"blocks": []}',
        '{"blocks": 1e999}',
        "[" * 100_000,
        '{"blocks": "' + "9" * 9000 + '"}',
    ):
        for journal in (b"", b"\xff\xff\n\xff\n", b"x\n1:1 2\n", b"x\n" + b"9" * 9000 + b":1\n"):
            (work / "plan.json").write_text(plan)
            (work / "journal").write_bytes(journal)
            with pytest.raises(LayoutError, match=r"is not complete: (some of its blocks|0 of)"):
                rl.open(tmp_path / "y.chunks")


@pytest.mark.skipif(os.name != "posix", reason="special files")
def test_what_is_told_of_incomplete_destinations_may_be_no_file(tmp_path: Path) -> None:
    work = tmp_path / "y.chunks" / ".relayout"
    work.mkdir(parents=True)
    os.mkfifo(work / "plan.json")
    os.mkfifo(work / "journal")
    with pytest.raises(LayoutError, match="is not complete: some of its blocks"):
        rl.open(tmp_path / "y.chunks")


@pytest.mark.skipif(os.name != "posix", reason="paths of any length")
def test_folders_within_folders_without_end(tmp_path: Path) -> None:
    """Deeper than Python can call itself."""
    write_folder(tmp_path / "x", numbers(4, 6), "ab", (2, 6))
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path / "x")
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        os.fchdir(before)
        assert rl.open(tmp_path / "x").stored.fingerprint().chunks == 2
    finally:
        os.fchdir(before)
        os.close(before)
        subprocess.run(["rm", "-rf", str(tmp_path / "x")], check=True)  # shutil calls itself, too
