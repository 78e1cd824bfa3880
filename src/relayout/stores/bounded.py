"""Codecs of the zarr package that keep to a limit of memory, whatever a chunk claims (:mod:`.limits`).

:func:`bound` puts them in the place of an array's own, in its pipeline, within shards and among the filters
of version 2. What is encoded is encoded by the package's codecs as before.

This module imports ``zarr``: it is imported when an array is opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from zarr.abc.codec import BytesBytesCodec
from zarr.codecs import ShardingCodec
from zarr.codecs._v2 import V2Codec
from zarr.core.codec_pipeline import BatchedCodecPipeline

from relayout.errors import Unsupported
from relayout.stores.limits import decoded_within, room

__all__ = ["bound"]

EXECUTED: Final = frozenset({"pickle"})
"""Codecs that run whatever a chunk tells them to run."""


def bound(array: Any) -> None:
    """Let an open array decode within limits, whoever asks it for a chunk.

    Parameters
    ----------
    array : zarr.Array
        Its pipeline is replaced; pipelines of other packages are left as they are.

    Raises
    ------
    Unsupported
        One of its codecs would run what a chunk says.
    """
    under = getattr(array, "async_array", None) or array._async_array
    pipeline = under.codec_pipeline
    if isinstance(pipeline, BatchedCodecPipeline):
        nbytes = prod(array.shards or array.chunks) * array.dtype.itemsize
        made = replace(
            pipeline,
            array_bytes_codec=_serializer(pipeline.array_bytes_codec, nbytes),
            bytes_bytes_codecs=tuple(map(_compressor, pipeline.bytes_bytes_codecs)),
        )
        object.__setattr__(under, "codec_pipeline", made)  # it is a frozen dataclass, and not yet used


def _serializer(codec: Any, nbytes: int) -> Any:
    """What makes an array of bytes: a shard has codecs of its own, and so has all of version 2."""
    if isinstance(codec, ShardingCodec):
        return replace(codec, codecs=tuple(_within(inner, nbytes) for inner in codec.codecs))
    if isinstance(codec, V2Codec):
        most = room(nbytes)
        return replace(
            codec,
            compressor=codec.compressor and _Numcodec(codec.compressor, most),
            filters=codec.filters and tuple(_Numcodec(one, most) for one in codec.filters),
        )
    return codec


def _within(codec: Any, nbytes: int) -> Any:
    return _compressor(codec) if isinstance(codec, BytesBytesCodec) else _serializer(codec, nbytes)


def _compressor(codec: Any) -> Any:
    told = codec.to_dict()
    return _Bounded(codec, _safe(told.get("name")), dict(told.get("configuration") or {}))


def _safe(name: Any) -> str:
    """The name of a codec that does nothing but decode."""
    text = str(name)
    if text.rpartition(".")[2] in EXECUTED:
        raise Unsupported(
            f"the codec {text} runs what the chunks say, so a store that has it is not opened; copy it with "
            "a program that trusts it"
        )
    return text


@dataclass(frozen=True)
class _Bounded(BytesBytesCodec):
    """A codec of Zarr 3 that refuses what decodes to more than its chunk can hold."""

    codec: Any
    name: str
    config: dict[str, Any]

    is_fixed_size = False

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        most = room(prod(chunk_spec.shape) * chunk_spec.dtype.to_native_dtype().itemsize)
        data = chunk_data.as_numpy_array().view(np.uint8).data
        made = decoded_within(self.name, data, most, self.config)
        if made is None:
            return await self.codec._decode_single(chunk_data, chunk_spec)
        return chunk_spec.prototype.buffer.from_bytes(made)

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await self.codec._encode_single(chunk_data, chunk_spec)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """As the codec itself says it."""
        size: int = self.codec.compute_encoded_size(input_byte_length, chunk_spec)
        return size

    def to_dict(self) -> dict[str, Any]:
        """As the codec itself is written."""
        told: dict[str, Any] = self.codec.to_dict()
        return told


class _Numcodec:
    """A codec of numcodecs, as Zarr 2 has them, with the same limit."""

    def __init__(self, codec: Any, most: int) -> None:
        self._codec, self._most = codec, most
        self._name = _safe(codec.codec_id)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """As the codec does, or not at all."""
        data = np.ascontiguousarray(np.asarray(buf)).reshape(-1).view(np.uint8).data
        made = decoded_within(self._name, data, self._most, self._codec.get_config())
        if made is None:
            return self._codec.decode(buf) if out is None else self._codec.decode(buf, out)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)
