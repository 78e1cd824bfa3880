"""Arrays in Zarr stores, of version 2 and 3, through the ``zarr`` package: its metadata, codecs and shards.

Chunks of a store in a folder are read and written here, one file each, and encoded by the package's own
codecs in the thread that asks (:mod:`.inline`). That is :meth:`Zarr.read`, beside its definition
:meth:`Zarr.read_slowly`, which asks the package for a slice; stores at URLs have only the latter.

What a chunk is, here, is what is written as one: a shard, if the array has any. A chunk that is not there
stands for the fill value. Zarr can't tell one that was never written from one that was lost; a plan says how
many there are, and can be told to refuse them.

A new array has the physical shape of its descriptor (:mod:`relayout.files.arrays`), one axis for each digit,
and keeps the descriptor among its attributes, under ``relayout``. Data types that Zarr does not have are
stored as integers of their width.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np

from relayout.dtypes import DType
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, TooLarge, Unsupported, spelled_bytes
from relayout.files.arrays import Given, StoredArray, to_desc
from relayout.files.descriptor import descriptor_from_json, descriptor_to_json
from relayout.files.elements import by_descr
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.layout.layout import MAX_ELEMENTS
from relayout.layout.roles import DATA, WEIGHTS
from relayout.stores import inline
from relayout.stores.buffers import given_back, taken
from relayout.stores.codecs import chosen
from relayout.stores.files import (
    ChunkFile,
    fingerprint,
    names_chunk,
    read_whole,
    remove_parts,
    size_of_file,
    write_whole,
)
from relayout.stores.grid import Grid, Index, digit_names, stored_shape
from relayout.stores.limits import room, zstd_size
from relayout.stores.run import check_complete
from relayout.stores.store import CARRIERS, Address, Bytes, Fingerprint, SourceChanged, digest

__all__ = ["Zarr", "array_names", "is_zarr", "new_metadata", "package"]

MOST_METADATA: Final = 100_000_000
"""Bytes of a file of metadata that are read."""

METADATA: Final = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
_WIDTHS: Final = {"bf16": "uint16", "f8_e4m3": "uint8", "f8_e5m2": "uint8"}


def package() -> Any:
    """The module ``zarr``.

    Raises
    ------
    Unsupported
        It is not installed.
    """
    try:
        with lock():
            import zarr
    except ImportError:
        raise Unsupported("Zarr stores need the package zarr, 3.0.8 or newer: pip install zarr") from None
    return zarr


def is_zarr(path: str) -> bool:
    """Whether a folder holds an array or a group of Zarr's, or a URL names a store."""
    return "://" in path or any((Path(path) / name).is_file() for name in METADATA)


def array_names(path: str) -> list[str]:
    """The arrays of a store, by their paths within it; ``[""]`` where the store is one array."""
    zarr = package()
    _check_metadata(path)
    found = _guarded(path, lambda: zarr.open(path, mode="r"))
    if isinstance(found, zarr.Array):
        return [""]
    names: list[str] = []

    def visit(group: Any, prefix: str) -> None:
        for name, member in sorted(group.members()):
            if isinstance(member, zarr.Array):
                names.append(prefix + name)
            else:
                visit(member, f"{prefix}{name}/")

    visit(found, "")
    return names


class Zarr:
    """An array in a Zarr store; see :class:`relayout.stores.store.Stored` for what it does."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._local = "://" not in address.path
        self.folder = _within(address.path, address.name) if self._local else Path()
        details = address.details
        self._new = details.get("create")
        if self._new is None and self._local:
            check_complete(Path(address.path))
        self.array = self._created(self._new) if self._new is not None else self._existing()
        if self._new is None:
            self._bind()
        metadata = self.array.metadata
        self._shape = tuple(self.array.shape)
        inner = bool(details.get("inner")) or not self._local
        self.chunks = tuple(self.array.chunks if inner or not self.array.shards else self.array.shards)
        self.chunks = tuple(max(1, size) for size in self.chunks)
        self._inner = inner
        if not isinstance(metadata.attributes, Mapping):
            raise LayoutError(f"the attributes of {address.spelled} are no object with keys")
        self._native = np.dtype(self.array.dtype)
        self._check_sizes()
        self.desc, self.element = self._described(details)
        self.grid = Grid(self._shape, self.chunks)
        self.fill = self._fill_value(metadata.fill_value).tobytes()
        self.codecs = self._codecs()
        behind = self._behind_bytes() if self._local and not inner else None
        self.plain = behind == []
        self._zstd = self._zstd_codec() if behind == ["zstd"] else None
        self.header, self.held, self.note = b"", 0, ""
        self._nbytes = prod(self.chunks) * self._native.itemsize
        self._pipeline, self._spec, self._prototype = self._machinery()

    # -- opening ----------------------------------------------------------------------------------------

    def _existing(self) -> Any:
        zarr = package()
        path, name = self.address.path, self.address.name
        if self._local and not Path(path).exists():
            raise FileNotFoundError(2, "there is no such store", path)
        if self._local:
            _check_metadata(path, name)
        try:
            found = _guarded(path, lambda: zarr.open(path, path=name or None, mode="r"))
        except FileNotFoundError:
            if not name:
                raise
            raise LayoutError(f"{path} has no array {name!r}; it has {_some(array_names(path))}") from None
        if not isinstance(found, zarr.Array):
            raise LayoutError(
                f"{self.address.spelled} is a group of arrays; say which: {_some(array_names(path))}"
            )
        return found

    def _created(self, told: Mapping[str, Any]) -> Any:
        zarr = package()
        with lock():
            from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
            from zarr.storage import LocalStore, StorePath

        texts = {name: json.loads(text) for name, text in told.items()}
        if "zarr.json" in texts:
            metadata = ArrayV3Metadata.from_dict(texts["zarr.json"])
        else:
            metadata = ArrayV2Metadata.from_dict({**texts[".zarray"], "attributes": texts.get(".zattrs", {})})
        store = StorePath(LocalStore(self.address.path), self.address.name)
        return zarr.Array(zarr.AsyncArray(metadata, store))

    def _bind(self) -> None:
        """Decode within limits from here on."""
        with lock():
            from relayout.stores.bounded import bound
        try:
            bound(self.array)
        except LayoutError as error:
            raise type(error)(f"{self.address.spelled}: {error}") from None

    def _check_sizes(self) -> None:
        """Refuse sizes that no machine can count."""
        native = self._native
        self._little = native.newbyteorder("<") if native.byteorder == ">" else native
        for what, shape in (("an array", self._shape), ("chunks", self.chunks)):
            if prod(size or 1 for size in shape) * max(1, native.itemsize) > MAX_ELEMENTS // 8:
                raise TooLarge(
                    f"{self.address.spelled} claims to be {what} of shape {list(shape)} of {native}, which "
                    "is more than any store holds"
                )
        whole = prod(self.chunks) * native.itemsize
        # The index of a shard takes 16 bytes for each chunk in it, which may be one byte long.
        self._most = 32 * room(whole) if self.array.shards else room(whole)

    def _fill_value(self, value: Any) -> Any:
        try:
            return np.zeros((), self._little) if value is None else np.asarray(value, self._little)
        except (TypeError, ValueError, OverflowError) as error:
            raise LayoutError(
                f"{self.address.spelled} has a fill value that is no {self._native}: {error}"
            ) from error

    def _described(self, details: Mapping[str, Any]) -> tuple[MemoryDesc, str]:
        native = self._native
        known = by_descr.get(self._little.str)
        bits = native.itemsize * 8
        if native.kind not in "biufcV" or native.fields is not None or bits not in CARRIERS:
            raise Unsupported(
                f"{self.address.spelled} holds elements of type {native}, which Relayout can't move: of "
                "numbers and raw bytes it moves those of 8, 16, 32 and 64 bits"
            )
        kind = None if known is None or known.dtype is None else as_dtype(known.dtype)
        foreign = f"V{native.itemsize}" if native.kind == "V" else native.name
        said = details.get("format"), details.get("dims"), details.get("dtype")
        format = said[0] if said[0] is not None else self._format_of_names()
        described = self.array.attrs.get("relayout")
        if described is not None:
            try:
                desc = descriptor_from_json(described)
            except LayoutError as error:
                raise LayoutError(f"{self.address.spelled}: attribute relayout: {error}") from None
            carried = desc.dtype.name in _WIDTHS and self._little.name == _WIDTHS[desc.dtype.name]
            given = Given.make(*said, None)
            array = self._stored_array(desc.dtype if carried else kind, bits)
            own = carried or kind is not None
            return to_desc(array, given, desc, "its attribute relayout"), desc.dtype.name if own else foreign
        element = foreign
        asked: DType | None = None if said[2] is None else as_dtype(said[2])
        if asked is not None and asked.name in _WIDTHS and self._little.name == _WIDTHS[asked.name]:
            kind, element = asked, asked.name
        elif kind is None:
            kind = as_dtype(CARRIERS[bits])
        else:
            element = kind.name
        array = self._stored_array(kind, bits)
        return to_desc(array, Given.make(format, said[1], asked, None)), element

    def _stored_array(self, kind: DType | None, bits: int) -> StoredArray:
        nothing = np.zeros(0, np.uint8)
        nbytes = prod(self._shape) * bits // 8
        return StoredArray(
            *(self.address.spelled, lambda: nothing, nbytes, self._shape, self._little.str, bits, kind)
        )

    def _format_of_names(self) -> Format | None:
        """The plain format that the names of dimensions spell: n, h, w, c."""
        names = getattr(self.array.metadata, "dimension_names", None) or ()
        names = names or self.array.attrs.get("_ARRAY_DIMENSIONS") or ()
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            return None  # names of some axes, or what anybody may have written there
        if len(names) < 2 or not any(sorted(names) == sorted(roles) for roles in (*DATA, *WEIGHTS)):
            return None
        return Format("".join(names))

    def _machinery(self) -> tuple[Any, Any, Any]:
        with lock():
            from zarr.core.buffer import default_buffer_prototype

        prototype = default_buffer_prototype()
        under = getattr(self.array, "async_array", None) or self.array._async_array
        config = getattr(under, "config", None) or under._config
        metadata = self.array.metadata
        if metadata.zarr_format == 2:  # the order within chunks is the array's, not a matter of taste
            config = replace(config, order=metadata.order)
        spec = metadata.get_chunk_spec((0,) * len(self._shape), config, prototype)
        return under.codec_pipeline, spec, prototype

    def _codecs(self) -> str:
        found = [type(c).__name__.removesuffix("Codec").lower() for c in self.array.compressors]
        shards = f", in shards of {list(self.array.shards)}" if self.array.shards else ""
        return " ".join(found) + shards

    def _behind_bytes(self) -> list[str] | None:
        """The codecs that encode a chunk's bytes, little-endian and in C order; None: it is otherwise."""
        array = self.array
        if array.shards or array.filters or self._native != self._little:
            return None
        if array.metadata.zarr_format == 2:
            found = [codec.codec_id for codec in array.compressors]
            return found if array.metadata.order == "C" else None
        first, *others = array.metadata.codecs
        if type(first).__name__ != "BytesCodec":
            return None
        if self._native.itemsize > 1 and getattr(first.endian, "value", "") != "little":
            return None
        return [str(codec.to_dict().get("name")) for codec in others]

    def _zstd_codec(self) -> Any:
        """The codec of numcodecs that the package's own calls, which takes a buffer to decode into."""
        if self.array.metadata.zarr_format == 2:
            return self.array.compressors[0]
        with lock():
            from numcodecs import Zstd

        return Zstd.from_config(self.array.metadata.codecs[-1].to_dict()["configuration"])

    # -- chunks -----------------------------------------------------------------------------------------

    def name(self, chunk: Index) -> str:
        """The file of a chunk."""
        key: str = self.array.metadata.encode_chunk_key(chunk)
        return key

    def _path(self, chunk: Index) -> Path:
        return self.folder / self.name(chunk)

    def read(self, chunk: Index, newest: int = 0) -> Bytes | None:
        """The bytes of a chunk."""
        if self._inner or not (self.plain or inline.possible()):
            return self.read_slowly(chunk)
        path = self._path(chunk)
        usual = 0 if self._zstd is None else _room_of_zstd(self._nbytes)
        data = read_whole(path, newest, self._most, varying=not self.plain, usual=usual)
        if data is None:
            return None
        if self.plain:
            self._check_size(chunk, data.size)
            return data
        if self._zstd is not None:
            try:
                return self._inflated(data, chunk, self._zstd)
            finally:
                given_back(data)
        return self._decoded(data, chunk)

    def _inflated(self, data: Bytes, chunk: Index, codec: Any) -> Bytes:
        """Decode a chunk of zstd and nothing else into a buffer that is used again; :meth:`_decoded` is the
        same into new memory, which takes the system as long to hand out as some codecs to fill.
        """
        size = self._decoding(chunk, lambda: zstd_size(data.data, room(self._nbytes)))
        if size != self._nbytes:
            return self._decoded(data, chunk)
        out = taken(self._nbytes)
        self._decoding(chunk, lambda: codec.decode(data, out))
        return out

    def _decoded(self, data: Bytes, chunk: Index) -> Bytes:
        """Decode a chunk by the codecs of the package."""
        buffer = self._prototype.buffer.from_array_like(data)
        decoded = self._decoding(
            chunk, lambda: inline.complete(self._pipeline.decode([(buffer, self._spec)]))
        )
        return self._as_bytes(next(iter(decoded)).as_ndarray_like(), chunk)

    def read_slowly(self, chunk: Index) -> Bytes:
        """The same through a slice of the package's; what is missing is the fill value."""
        box = self.grid.box(chunk)
        found = self._decoding(chunk, lambda: self.array[tuple(slice(*part) for part in box)])
        found = np.asarray(found)
        if found.shape != self.chunks:
            whole = np.zeros(self.chunks, found.dtype)
            whole[tuple(slice(0, size) for size in found.shape)] = found
            found = whole
        return self._as_bytes(found, chunk)

    def _as_bytes(self, array: Any, chunk: Index) -> Bytes:
        array = np.ascontiguousarray(array, dtype=self._little)
        data: Bytes = array.reshape(-1).view(np.uint8)
        self._check_size(chunk, data.size)
        return data

    def _check_size(self, chunk: Index, size: int) -> None:
        if size != self._nbytes:
            raise LayoutError(
                f"chunk {list(chunk)} of {self.address.spelled} is damaged: it has {size} bytes, decoded, "
                f"and takes {self._nbytes}"
            )

    def opened(self, chunk: Index, newest: int = 0) -> ChunkFile | None:
        """The file of a chunk, where it is nothing but the chunk."""
        try:
            file = ChunkFile(self._path(chunk), newest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            self._check_size(chunk, file.size)
        except BaseException:
            file.close()
            raise
        return file

    def _decoding(self, chunk: Index, decode: Any) -> Any:
        try:
            return decode()
        except (OSError, SourceChanged):
            raise
        except MemoryError as error:
            raise TooLarge(
                f"chunk {list(chunk)} of {self.address.spelled} can't be decoded: there is no memory for it"
            ) from error
        except LayoutError as error:
            raise LayoutError(f"chunk {list(chunk)} of {self.address.spelled} is damaged: {error}") from error
        except Exception as error:  # whatever codecs raise: RuntimeError, ValueError, types of their own
            raise LayoutError(
                f"chunk {list(chunk)} of {self.address.spelled} is damaged: {type(error).__name__}: {error}"
            ) from error

    def encode(self, data: Bytes) -> Sequence[Any]:
        """A chunk as it is written."""
        if self.plain:
            return [data]
        if self._zstd is not None:
            return [self._zstd.encode(data)]
        return self._encoded(data)

    def _encoded(self, data: Bytes) -> Sequence[Any]:
        """Encode a chunk by the codecs of the package."""
        array = data.view(self._little).reshape(self.chunks)
        if self._native != self._little:
            array = array.astype(self._native)
        value = self._prototype.nd_buffer.from_ndarray_like(array)
        if not inline.possible():
            raise Unsupported("chunks can't be encoded in a thread with a running event loop")
        encoded = next(iter(inline.complete(self._pipeline.encode([(value, self._spec)]))))
        return [] if encoded is None else [encoded.as_buffer_like()]

    def write(self, chunk: Index, data: Bytes) -> str:
        """Encode a chunk and write it."""
        path, encoded = self._path(chunk), self.encode(data)
        if not encoded:  # a shard of nothing but the fill value is not written
            path.unlink(missing_ok=True)
            return ""
        write_whole(path, encoded, direct=self.plain)
        return str(path)

    def write_parts(self, chunk: Index, parts: Iterable[Bytes]) -> str:
        """Write a chunk from its parts, where a file is nothing but the chunk."""
        path = self._path(chunk)
        write_whole(path, parts, direct=True)
        return str(path)

    # -- the whole --------------------------------------------------------------------------------------

    def stored_bytes(self, chunk: Index) -> int:
        """Bytes of the file of a chunk or shard."""
        return size_of_file(self._path(chunk))

    def fingerprint(self) -> Fingerprint:
        """Metadata, and all files of chunks of a store in a folder."""
        told = json.loads(json.dumps(self.array.metadata.to_dict(), default=str))
        if not self._local:
            return Fingerprint(digest(told), 0, -1, -1)
        return fingerprint(told, self.folder, self._names_chunk())

    def _names_chunk(self) -> Callable[[str], bool]:
        metadata = self.array.metadata
        if metadata.zarr_format == 3 and metadata.chunk_key_encoding.name not in ("default", "v2"):
            return lambda name: name.rpartition("/")[2] not in METADATA  # an extension's names
        outer = Grid(self._shape, [max(1, size) for size in self.array.shards or self.array.chunks])
        return names_chunk(metadata.encode_chunk_key((0,) * len(self._shape)), outer.counts)

    def begin(self) -> None:
        """Make the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def commit(self) -> None:
        """Write the metadata; that which makes it an array, last."""
        remove_parts(self.folder)
        texts: Mapping[str, str] = self._new or {}
        for name in sorted(texts, key=lambda name: name in ("zarr.json", ".zarray")):
            write_whole(self.folder / name, [texts[name].encode()], lasting=True)

    def facts(self) -> Mapping[str, str]:
        """Version, chunks and shards, codecs, fill value."""
        array = self.array
        facts = {"store": f"Zarr, version {array.metadata.zarr_format}"}
        facts["chunks"] = "x".join(map(str, array.chunks))
        if array.shards:
            facts["shards"] = "x".join(map(str, array.shards))
        facts["codecs"] = self.codecs or "none"
        facts["fill value"] = str(array.metadata.fill_value)
        return facts


def _room_of_zstd(nbytes: int) -> int:
    """Bytes that so many take at most as zstd has them: what can't be compressed grows by a 256th, or so."""
    return nbytes + (nbytes >> 7) + 512


def new_metadata(
    desc: MemoryDesc,
    chunks: Sequence[int],
    *,
    shards: Sequence[int] | None = None,
    codecs: str = "zstd",
    like: Zarr | None = None,
    version: int = 3,
    element: str = "",
) -> dict[str, str]:
    """The metadata of a new array, as the texts of its files.

    Parameters
    ----------
    desc : MemoryDesc
        What it holds.
    chunks : sequence of int
        The sizes of a chunk of the physical array.
    shards : sequence of int, optional
        The sizes of a shard, multiples of those of a chunk; only in version 3.
    codecs : str
        ``"none"``, ``"zstd"``, ``"gzip"``, ``"blosc"``, each with a level behind a colon (``"zstd:3"``), and
        with ``+crc32c`` for a checksum; or ``"same"``: those of ``like``.
    like : Zarr, optional
        The array whose codecs are taken.
    version : int
        2 or 3.
    element : str
        NumPy's name of the type of the elements, where it is none of ours.
    """
    zarr = package()
    with lock():
        from zarr.core.buffer import default_buffer_prototype
        from zarr.storage import MemoryStore

    shape = stored_shape(desc)
    if version not in (2, 3):
        raise LayoutError(f"Zarr has the versions 2 and 3, and no {version}")
    if shards is not None and (version == 2 or any(s % c for s, c in zip(shards, chunks, strict=True))):
        raise LayoutError(
            f"shards {list(shards)} of chunks {list(chunks)}: Zarr 3 has shards, whose sizes are multiples "
            "of those of a chunk"
        )
    options: dict[str, Any] = {"dimension_names": digit_names(desc)} if version == 3 else {}
    if version == 2:
        options["chunk_key_encoding"] = {"name": "v2", "configuration": {"separator": "/"}}
    numpy_type = element or _WIDTHS.get(desc.dtype.name) or desc.dtype.numpy.name
    made = zarr.create_array(
        MemoryStore(),
        shape=shape,
        chunks=tuple(chunks),
        shards=None if shards is None else tuple(shards),
        dtype=numpy_type,
        fill_value=None if np.dtype(numpy_type).kind == "V" else 0,  # bytes have a zero of their own
        zarr_format=version,
        attributes={"relayout": descriptor_to_json(desc)},
        compressors=chosen(codecs, like and like.array, version, desc.dtype.bits // 8)[0],
        filters=None,
        **options,
    )
    texts = made.metadata.to_buffer_dict(default_buffer_prototype())
    return {name: bytes(text.to_bytes()).decode() for name, text in texts.items()}


def _within(path: str, name: str) -> Path:
    """The folder of an array in a store, which lies in that store."""
    parts = [part for part in name.split("/") if part]
    if any(part in (".", "..") or "\0" in part for part in parts):
        raise LayoutError(f"{path} has no array {name!r}: names have no parts such as ..")
    return Path(path, *parts)


def _check_metadata(path: str, name: str = "") -> None:
    """Refuse metadata that could not be read to its end: devices, pipes, files of gigabytes."""
    if "://" in path:
        return
    for folder in {Path(path), _within(path, name)}:
        for one in METADATA:
            try:
                status = os.stat(folder / one)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if not stat.S_ISREG(status.st_mode):
                raise LayoutError(f"{folder / one} is no regular file, so it is not read as metadata")
            if status.st_size > MOST_METADATA:
                raise LayoutError(
                    f"{folder / one} has {spelled_bytes(status.st_size)}; {spelled_bytes(MOST_METADATA)} are "
                    "the most that metadata may have"
                )


def _guarded(path: str, opening: Any) -> Any:
    """Open, with errors of ours."""
    try:
        return opening()
    except (OSError, LayoutError, MemoryError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".strip()
        if "codec" in what.lower():
            raise Unsupported(
                f"{path} is encoded by a codec that the zarr package here does not know: {what}; install the "
                "package that has it"
            ) from error
        raise LayoutError(f"{path} is no Zarr store that can be read: {what}") from error


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else "it holds none"
