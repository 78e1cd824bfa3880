"""How much a compressed chunk decodes to, before it is decoded: a kilobyte may claim to be a terabyte.

Libraries allocate what the header of a chunk says, or go on until the data end. Whoever reads stores that
others wrote asks here first:

====================  ==================================================================================
zstd                  the header of each frame says it; if it does not, blocks are counted, of which each
                      decodes to 128 KiB at most; and of neither there may be endless numbers that are empty
blosc, lz4            the header says it
gzip, zlib,           nothing says it that could be believed: they are decoded here, and no further than
bz2, lzma             the limit
others                unknown: nothing is asked, and the codec's own package has to take care
====================  ==================================================================================

Sources: RFC 8878 (zstd), RFC 1950 and 1952 (zlib, gzip), ``README_CHUNK_FORMAT`` of `c-blosc
<https://github.com/Blosc/c-blosc>`_. An lz4 chunk is what numcodecs writes: four
bytes with the size, then a block.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

from relayout.errors import LayoutError, spelled_bytes

__all__ = ["decoded_within", "room", "zstd_size"]

FACTOR: Final = 4
"""How many times the bytes of its elements a chunk may decode to on the way: filters may widen elements."""

SPARE: Final = 1 << 20
"""Bytes beyond that: headers, checksums, indices."""

COUNTED: Final = 16
"""How many times the limit blocks of zstd may come to that say nothing but that they end at 128 KiB."""

MOST_STREAMS: Final = 1000
"""Streams one behind the other in a chunk; honest chunks have one."""

SMALLEST: Final = 1 << 10
"""Bytes that blocks of zstd decode to on average, at least, beside :data:`MOST_STREAMS` that may be empty.
Those of an honest chunk are of 128 KiB each but for the last, or of what a program writes before it flushes.
A megabyte of empty ones would be a third of a million, which take long to look at and hold nothing."""

BLOSC_HEADER: Final = 16
ZSTD_MAGIC: Final = 0xFD2FB528
ZSTD_SKIPPABLE: Final = 0x184D2A50
ZSTD_BLOCK: Final = 128 << 10


def room(nbytes: int) -> int:
    """The most bytes that a chunk of so many bytes of elements may take, encoded or half decoded.

    >>> room(1 << 20)
    5242880
    """
    return FACTOR * nbytes + SPARE


def decoded_within(
    name: str, data: memoryview, most: int, config: Mapping[str, Any] | None = None
) -> bytes | None:
    r"""Refuse what decodes to more than ``most`` bytes; decode what can't be known otherwise.

    Parameters
    ----------
    name : str
        The codec, as Zarr and numcodecs call it.
    data : memoryview
        What is to be decoded, as bytes.
    most : int
        Bytes that it may decode to.
    config : mapping, optional
        The codec's parameters (lzma has some that matter).

    Returns
    -------
    bytes or None
        The decoded bytes; None: the codec may decode it.

    Raises
    ------
    LayoutError
        It decodes to more, or is damaged.

    Examples
    --------
    >>> decoded_within("gzip", memoryview(zlib.compress(bytes(9), wbits=31)), 9)
    b'\x00\x00\x00\x00\x00\x00\x00\x00\x00'
    >>> decoded_within("zlib", memoryview(zlib.compress(bytes(9))), 8)
    Traceback (most recent call last):
    relayout.errors.LayoutError: zlib: it decodes to more than 8 B, which is more than such a chunk can hold
    """
    codec = name.rpartition(".")[2]
    if codec in _CLAIMS:
        claimed = _CLAIMS[codec](data, most)
        if claimed > most:
            raise LayoutError(
                f"{codec}: it claims to decode to {spelled_bytes(claimed)}, and such a chunk can hold "
                f"{spelled_bytes(most)} at most"
            )
        return None
    if codec not in _STREAMS:
        return None
    try:
        return _decoded(data, most, lambda: _STREAMS[codec](config or {}), codec)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, TypeError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(f"{codec}: {error}") from error


# -- what says it -------------------------------------------------------------------------------------------


def zstd_size(data: memoryview, most: int) -> int | None:
    r"""Bytes that a chunk decodes to which is one frame of zstd; None: it is several, or does not say it.

    Raises
    ------
    LayoutError
        It is cut into more blocks than a chunk of ``most`` bytes can be.

    Examples
    --------
    >>> zstd_size(memoryview(b"(\xb5/\xfd \x02\x11\x00\x00ab"), 2)
    2
    """
    said, unsaid, frames, end = _frames(data, most)
    return said if frames == 1 and not unsaid and end == len(data) else None


def _zstd(data: memoryview, most: int) -> int:
    """Bytes of all frames: those that the headers say, and of frames that say nothing the most that they may
    have, divided by COUNTED.
    """
    said, unsaid, _, _ = _frames(data, most)
    return said + unsaid // COUNTED


def _frames(data: memoryview, most: int) -> tuple[int, int, int, int]:
    """Of the frames of zstd the bytes that their headers say, and those of the others at most; how many there
    are, and where they end. It is not looked further once it is clear that they are too much.
    """
    at = claimed = counted = pieces = frames = 0
    while at + 4 <= len(data):
        magic, pieces = _number(data, at, 4), _one_more(pieces, most)
        if magic & 0xFFFFFFF0 == ZSTD_SKIPPABLE:
            at += 8 + _number(data, at + 4, 4)
            frames += 1
            continue
        if magic != ZSTD_MAGIC or at + 5 > len(data):
            break
        descriptor = data[at + 4]
        single = descriptor >> 5 & 1
        begin = at + 5 + (not single) + (0, 1, 2, 4)[descriptor & 3]
        size = (single, 2, 4, 8)[descriptor >> 6]
        claimed += _number(data, begin, size) + (256 if size == 2 else 0)
        frames += 1
        at = begin + size
        last = False
        while not last and at + 3 <= len(data):
            block, pieces = _number(data, at, 3), _one_more(pieces, most)
            last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            if not size:
                counted += ZSTD_BLOCK if kind == 2 else length
            at += 3 + (1 if kind == 1 else length)
            if counted > COUNTED * most:
                return claimed, COUNTED * counted, frames, at
        if claimed > most:
            break
        at += 4 * (descriptor >> 2 & 1)
    return claimed, counted, frames, at


def _one_more(pieces: int, most: int) -> int:
    """Count frames and blocks."""
    if pieces == MOST_STREAMS + most // SMALLEST:
        raise LayoutError(
            f"zstd: it is cut into more than {pieces} frames and blocks, and such a chunk can hold "
            f"{spelled_bytes(most)} at most, which is less than {spelled_bytes(SMALLEST)} in each"
        )
    return pieces + 1


def _number(data: memoryview, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def _blosc(data: memoryview, _: int) -> int:
    """What the header says: the library believes it, of the encoded bytes, too, and reads beyond their end.

    Bytes behind those are ignored, as the zarr package does.
    """
    if len(data) < BLOSC_HEADER:
        raise LayoutError("blosc: it ends within its header")
    said = _number(data, 12, 4)
    if said > len(data):
        raise LayoutError(f"blosc: it claims to take {said} bytes, and has {len(data)}")
    return _number(data, 4, 4)


_CLAIMS: Final[dict[str, Callable[[memoryview, int], int]]] = {
    "zstd": _zstd,
    "blosc": _blosc,
    "lz4": lambda data, _: _number(data, 0, 4),
}


# -- what has to be decoded to know it ----------------------------------------------------------------------

_STREAMS: Final[dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "gzip": lambda _: zlib.decompressobj(31),
    "zlib": lambda _: zlib.decompressobj(15),
    "bz2": lambda _: bz2.BZ2Decompressor(),
    "lzma": lambda config: _lzma(config.get("format", lzma.FORMAT_XZ), config.get("filters")),
}


def _lzma(format: int, filters: Any) -> lzma.LZMADecompressor:
    if format == lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(format, filters=filters)
    return lzma.LZMADecompressor(format, memlimit=256 << 20)


def _decoded(data: memoryview, most: int, start: Callable[[], Any], codec: str) -> bytes:
    """All streams of a chunk, one behind the other, and no more than ``most`` bytes of them."""
    parts: list[bytes] = []
    left: bytes | memoryview = data
    total = 0
    while len(left):
        stream = start()
        parts.append(stream.decompress(left, most + 1 - total))
        total += len(parts[-1])
        if total > most or len(parts) > MOST_STREAMS:
            raise LayoutError(
                f"{codec}: it decodes to more than {spelled_bytes(most)}, which is more than such a chunk "
                "can hold"
            )
        if not stream.eof:
            raise LayoutError(f"{codec}: it ends too early")
        left = stream.unused_data.lstrip(b"\0")  # gzip files may be padded
    return parts[0] if len(parts) == 1 else b"".join(parts)
