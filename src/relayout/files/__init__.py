"""Tensors in files: npy, npz, safetensors, raw bytes, png and jpeg.

>>> import numpy as np, tempfile, pathlib
>>> import relayout as rl
>>> from relayout import files
>>> x = rl.tensor(np.arange(68, dtype=np.float32).reshape(1, 17, 2, 2), "nChw8c")
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "x.npy")
...     files.write(path, x)
...     np.load(path).shape, files.read(path).desc, sorted(p.name for p in path.parent.iterdir())
((1, 3, 2, 2, 8), MemoryDesc('f32:nChw8c:1x17x2x2'), ['x.npy', 'x.npy.layout.json'])

What :func:`write` wrote :func:`read` reads back, format, dims and data type included, in every container:

=================  ===================================================================================
``.npy``           an array of physical shape; the descriptor lies beside it, ``x.npy.layout.json``
``.npz``           the same, one array of several; the descriptor is the member ``x.layout.json``
``.safetensors``   the same; the descriptor is in the metadata of the header
``.bin .raw``      the physical bytes; the descriptor lies beside them
``.png .jpg``      u8 pixels, which are ``nhwc`` of dims (1, C, H, W)
=================  ===================================================================================

A row-major array of a type that the container knows is an ordinary file of its kind and needs no descriptor.
What "physical shape" is, and how a file that somebody else wrote is read, is told in
:mod:`relayout.files.arrays`; what keeps files whole, in :mod:`relayout.files.atomic`; how files are converted
that are bigger than memory, in :mod:`relayout.files.conversion`.

Readers believe nothing: whatever the bytes are, the outcome is a tensor, a
:class:`~relayout.errors.LayoutError` or an :class:`OSError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Final

from relayout import forking
from relayout.dtypes import DTypeLike
from relayout.errors import LayoutError
from relayout.files.arrays import Given, physical_shape
from relayout.files.conversion import Normalise, convert_into, destination
from relayout.files.descriptor import (
    descriptor_from_json,
    descriptor_from_text,
    descriptor_to_json,
    descriptor_to_text,
)
from relayout.files.spelling import spelled
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.tensor import Tensor

__all__ = [
    "Normalise",
    "convert",
    "convert_into",
    "create",
    "descriptor_from_json",
    "descriptor_from_text",
    "descriptor_to_json",
    "descriptor_to_text",
    "destination_for",
    "physical_shape",
    "read",
    "write",
]

_MODULES: Final = {
    ".npy": "npy",
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".bin": "raw",
    ".raw": "raw",
    ".png": "image",
    ".jpg": "image",
    ".jpeg": "image",
}
SUFFIXES: Final = tuple(_MODULES)
"""How the names of files end that can be read and written."""

AnyPath = str | bytes | PathLike[str] | PathLike[bytes]


def read(
    path: AnyPath,
    format: str | Format | None = None,
    *,
    dims: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Read a tensor from a file. Its bytes are mapped where that is possible, so nothing is loaded before it
    is used.

    Parameters
    ----------
    path : str, bytes or Path
        The file; its suffix says what kind it is.
    format : str or Format, optional
        The format of the bytes. Needed where no descriptor says it, unless the file is a picture (``nhwc``)
        or the array is row-major.
    dims : sequence of int, optional
        The logical sizes. Needed where no descriptor says them and the shape in the file does not either (raw
        bytes, blocked formats).
    dtype : optional
        The data type of the elements. Needed for raw bytes, and where the file can't name it (bf16 and f8 in
        npy, 4-bit elements).
    name : str, optional
        The array in an npz or safetensors file; needed if there are several.

    Raises
    ------
    LayoutError
        The file is damaged, contradicts its descriptor or the arguments, or leaves something open.
    OSError
        It can't be read.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pixels.npy")
    ...     np.save(path, np.zeros((1, 4, 6, 3), np.uint8))
    ...     read(path, "nhwc").dims
    (1, 3, 4, 6)
    """
    return _module(path).read(_path(path), Given.make(format, dims, dtype, name))  # type: ignore[no-any-return]


def read_to_convert(
    path: AnyPath,
    to: str | Format | None,
    format: str | Format | None = None,
    *,
    dims: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Read a tensor that is to be converted to the format ``to``. The rest is as in :func:`read`.

    An array that nothing describes is taken as row-major, which is right as long as its axes need no names.
    A destination whose axes have a meaning asks more: whether ``[1, 4, 6, 3]`` is nchw or nhwc decides what
    nhwc of it is, and a wrong guess scrambles the data in silence. So that is refused.

    Raises
    ------
    LayoutError
        As :func:`read`; or ``to`` names the meaning of axes, and nothing says what those of the file mean.
    OSError
        The file can't be read.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pixels.npy")
    ...     np.save(path, np.zeros((1, 4, 6, 3), np.uint8))
    ...     read_to_convert(path, "nchw", "nhwc").dims
    (1, 3, 4, 6)
    """
    given = Given.make(format, dims, dtype, name)
    if to is not None and to != "any":  # "any" is no format, which the destination will say
        given = given._replace(to=Format(to))
    return _module(path).read(_path(path), given)  # type: ignore[no-any-return]


def write(path: AnyPath, tensor: Tensor, *, name: str | None = None, force: bool = False) -> None:
    """Write a tensor to a file, in its format. The file appears whole or not at all.

    A part of a bigger tensor is stored with its strides; the holes in between, which are not its own, are
    zeros in the file.

    Parameters
    ----------
    path : str or Path
        The file; its suffix says what kind it is.
    tensor : Tensor
        The tensor.
    name : str, optional
        What the array is called in an npz or safetensors file.
    force : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    LayoutError
        This kind of file can't hold the tensor, or its elements share places (broadcast).
    OSError
        The file exists, or can't be written.
    """
    with create(path, tensor.desc, name=name, force=force) as out:
        convert_into(tensor, out)


def create(
    path: AnyPath, desc: MemoryDesc, *, name: str | None = None, force: bool = False
) -> AbstractContextManager[Tensor]:
    """Make a file for a tensor that is yet to be computed: a zeroed, writable tensor, mapped to the file.

    The file gets its name when the block ends without an error, and vanishes otherwise.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "sum.npy")
    ...     with create(path, rl.MemoryDesc((2, 3), "f32", "ab")) as out:
    ...         _ = rl.reorder(np.ones((2, 3), np.float32), out=out)
    ...     np.load(path).sum()
    np.float32(6.0)
    """
    made: AbstractContextManager[Tensor] = _module(path).create(_path(path), desc, name, force)
    return made


def convert(
    source: AnyPath,
    path: AnyPath,
    format: str | Format | None = None,
    *,
    src_format: str | Format | None = None,
    dims: Sequence[int] | None = None,
    src_dtype: DTypeLike | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    normalise: Normalise | None = None,
    **attributes: Any,
) -> MemoryDesc:
    """Convert a file to another format, data type or kind of file, in slices: neither file has to fit into
    memory.

    Parameters
    ----------
    source, path : str or Path
        The file to read and the file to write.
    format : str or Format, optional
        The format to convert to; without one it stays (pictures: ``nhwc``).
    src_format, dims, src_dtype, name : optional
        What the source is, as :func:`read_to_convert` takes it. The array keeps its name.
    dtype : optional
        The data type to convert to; without one it stays (pictures: u8).
    force : bool
        Whether a file of that name may be replaced.
    threads : int, optional
        How many threads may work.
    progress : callable, optional
        Called with the elements done and the elements to do.
    normalise : Normalise, optional
        Mean and standard deviation, applied between the two scales.
    **attributes
        ``src_scale``, ``dst_scale``, ``src_zero_point``, ``dst_zero_point``, as :func:`relayout.reorder`
        takes them.

    Returns
    -------
    MemoryDesc
        What was written.

    Raises
    ------
    LayoutError, OSError
        Something does not fit or can't be read or written; the destination is as it was before.
    """
    tensor = read_to_convert(source, format, src_format, dims=dims, dtype=src_dtype, name=name)
    desc = destination_for(path, tensor.desc, format, dtype)
    with create(path, desc, name=name, force=force) as out:
        convert_into(tensor, out, threads=threads, progress=progress, normalise=normalise, **attributes)
    return desc


def destination_for(
    path: AnyPath, src: MemoryDesc, format: str | Format | None = None, dtype: DTypeLike | None = None
) -> MemoryDesc:
    """What a file will hold: what is asked for, else u8 ``nhwc`` for pictures, else what the source has."""
    if not _module(path).__name__.endswith(".image"):
        return destination(src, format, dtype)
    return destination(src, "nhwc" if format is None else format, "u8" if dtype is None else dtype)


def _path(path: AnyPath) -> Path:
    return Path(os.fsdecode(path))


def _module(path: AnyPath) -> Any:
    suffix = _path(path).suffix.lower()
    if suffix not in _MODULES:
        ending = f"ends in {spelled(suffix)!r}" if suffix else "has no suffix"
        raise LayoutError(
            f"{spelled(_path(path))} {ending}; the kinds of files are {' '.join(_MODULES)} (raw bytes: .bin)"
        )
    with forking.lock():  # a child that is forked meanwhile must not find the import half done
        return import_module(f"relayout.files.{_MODULES[suffix]}")
