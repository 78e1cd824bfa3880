"""Weights of a large file stay there: a message without them, and where they are.

A protobuf message holds bytes of its own. Parsed, weights would be in memory three times: as the file, in the
message, and as the copy that each access makes. So a large file is mapped, and its outermost fields are gone
through: a message is a row of fields, each with a number, a kind and, where it is long, a length ::

    ModelProto    graph = 7
    GraphProto    initializer = 5, node = 1, ...
    TensorProto   dims = 1, data_type = 2, name = 8, raw_data = 9, ...

What the parser gets is the same message without the ``raw_data`` of large initializers; their bytes are parts
of the map. A message that is not as simple as that (a field twice, a length that leads outside) is left to
the parser as a whole, and so are all errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LEAST", "Lean", "lean"]

LEAST: Final = 1024
"""Bytes of a tensor from which on they stay in the file."""

GRAPH, INITIALIZER, RAW = 7, 5, 9
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
LONGEST = 10
"""Bytes of a number."""

Bytes = NDArray[np.uint8]


class Lean(NamedTuple):
    """A message without its large tensors, and these: by their places among the initializers."""

    message: bytes
    held: dict[int, Bytes]


class _Field(NamedTuple):
    number: int
    start: int
    """Of the whole field."""
    body: int
    """Where its content begins."""
    end: int


class _NotSimple(ValueError):
    """For the parser."""


def lean(data: Bytes) -> Lean | None:
    """Take the large tensors out of a ``ModelProto``; None: the parser has to see it all.

    Parameters
    ----------
    data : ndarray of uint8
        The file, best mapped.

    Examples
    --------
    A model with one field, a graph with one initializer of 1024 bytes:

    >>> tensor = bytes([9 << 3 | 2, 0x80, 8]) + bytes(1024)
    >>> graph = bytes([5 << 3 | 2, 0x83, 8]) + tensor
    >>> model = np.frombuffer(bytes([7 << 3 | 2, 0x86, 8]) + graph, np.uint8)
    >>> found = lean(model)
    >>> found.message.hex(), found.held[0].size
    ('3a022a00', 1024)
    """
    try:
        model = list(_fields(data, 0, data.size))
        graphs = [one for one in model if one.number == GRAPH]
        if len(graphs) != 1:
            return None
        [graph] = graphs
        parts, held, count, kept = [], {}, 0, graph.body
        for one in _fields(data, graph.body, graph.end):
            if one.number != INITIALIZER:
                continue
            raw = [part for part in _fields(data, one.body, one.end) if part.number == RAW]
            if len(raw) > 1:
                return None
            if raw and raw[0].end - raw[0].body >= LEAST:
                [piece] = raw
                held[count] = data[piece.body : piece.end]
                rest = data[one.body : piece.start].tobytes() + data[piece.end : one.end].tobytes()
                parts += [data[kept : one.start].tobytes(), _long(INITIALIZER, rest)]
                kept = one.end
            count += 1
        inner = b"".join((*parts, data[kept : graph.end].tobytes()))
    except _NotSimple:
        return None
    front, back = data[: graph.start].tobytes(), data[graph.end :].tobytes()
    return Lean(front + _long(GRAPH, inner) + back, held)


def _fields(data: Bytes, at: int, end: int) -> Iterator[_Field]:
    """The fields between two places."""
    while at < end:
        start = at
        key, at = _number(data, at, end)
        kind = key & 7
        if kind == VARINT:
            body = at
            _, at = _number(data, at, end)
        elif kind == LENGTH:
            length, body = _number(data, at, end)
            at = body + length
        elif kind in (EIGHT, FOUR):
            body = at
            at += 8 if kind == EIGHT else 4
        else:
            raise _NotSimple
        if at > end:
            raise _NotSimple
        if kind != LENGTH and key >> 3 in (GRAPH, INITIALIZER, RAW):
            key &= 7  # another field than the one of this number that is looked for
        yield _Field(key >> 3, start, body, at)


def _number(data: Any, at: int, end: int) -> tuple[int, int]:
    """A number in pieces of seven bits, the lowest first; and where it ends."""
    found = 0
    for k in range(min(LONGEST, end - at)):
        byte = int(data[at + k])
        found |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return found, at + k + 1
    raise _NotSimple


def _long(number: int, body: bytes) -> bytes:
    """A field with a length."""
    found, size = [number << 3 | LENGTH], len(body)
    while size >= 0x80:
        found.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*found, size]) + body
