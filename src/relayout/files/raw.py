"""Raw bytes: a buffer as it was dumped, with a descriptor beside it.

``x.bin`` holds the physical bytes, padding included, and nothing else. What they mean is in
``x.bin.layout.json``, or the caller says it: format, dims and data type.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from relayout.errors import LayoutError
from relayout.exchange.mapped import flush, map_for_writing
from relayout.files.arrays import Given, StoredArray, check_agreement, described_tensor, stored_form
from relayout.files.atomic import reserve
from relayout.files.beside import description, map_described, replacing_described
from relayout.files.members import Member, Opened
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.tensor import Tensor

__all__ = ["create", "opened", "read"]

SUFFIXES: Final = (".bin", ".raw")


def read(path: Path, given: Given) -> Tensor:
    """Map a file of raw bytes."""
    data, described, described_in = map_described(path)
    where = spelled(path)
    if described is not None:
        check_agreement(where, given, described, described_in)
        return described_tensor(where, data, described)
    missing = [
        word
        for word, value in (
            ("format (--from, src_format)", given.format),
            ("dims (--dims)", given.dims),
            ("data type (--in-dtype, src_dtype)", given.dtype),
        )
        if value is None
    ]
    if given.format is None or given.dims is None or given.dtype is None:
        hint = (
            "; it looks like a zip archive: if it is a checkpoint of PyTorch, name it .pt"
            if data[:4].tobytes() == b"PK\x03\x04"
            else ""
        )
        raise LayoutError(
            f"{where} is {data.size} bytes without a descriptor ({described_in}); say its "
            f"{', '.join(missing)}{hint}"
        )
    desc = MemoryDesc(given.dims, given.dtype, given.format)
    if desc.layout is None:
        raise LayoutError(
            f"the bytes of {where} can't be in the format {given.format}; name one that has a layout"
        )
    return described_tensor(where, data, desc)


def opened(path: Path) -> Opened:
    """The one array of a file of raw bytes, without its elements; without a descriptor it is only bytes."""
    data, described, where = map_described(path)
    array = StoredArray(spelled(path), lambda: data, data.size, (data.size,), "bytes", 8, None)
    if described is not None:
        described_tensor(spelled(path), data, described)  # checks the size
    return Opened(path, "raw", [""], lambda _: Member("", array, lambda: described, where))


@contextmanager
def create(path: Path, desc: MemoryDesc, name: str | None, force: bool) -> Iterator[Tensor]:
    """Make a file of raw bytes for a tensor, to be filled; it gets its name when the block ends."""
    form = stored_form(desc)
    with replacing_described(path, force, description(form.desc)) as file:
        reserve(file, form.nbytes, path)
        data = map_for_writing(file)
        yield Tensor(form.desc, data)
        flush(data)
