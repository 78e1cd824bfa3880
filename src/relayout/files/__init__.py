"""Tensors in files: npy, npz, safetensors, raw bytes, png, jpeg, and checkpoints of PyTorch.

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
``.pt .pth``       checkpoints of PyTorch, which are read only: their tensors, as row-major arrays
=================  ===================================================================================

npz and safetensors files hold several arrays. One that is written into such a file replaces the array of its
name, and the others stay. :func:`info` lists what is in a file, :func:`convert_arrays` converts many arrays.

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
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError, Unsupported, checked, described
from relayout.files import checkpoint, several
from relayout.files.arrays import Given, physical_shape
from relayout.files.contents import ArrayInfo, FileInfo, describe, describe_descriptor, is_descriptor
from relayout.files.conversion import Normalise, convert_into, destination
from relayout.files.descriptor import (
    descriptor_from_json,
    descriptor_from_text,
    descriptor_to_json,
    descriptor_to_text,
)
from relayout.files.elements import by_code, by_descr, by_dtype
from relayout.files.members import matching
from relayout.files.spelling import listed, spelled
from relayout.forking import later as _later
from relayout.forking import lock
from relayout.layout.descriptor import MemoryDesc
from relayout.layout.format import Format
from relayout.tensor import Tensor

__all__ = [
    "ArrayInfo",
    "FileInfo",
    "Normalise",
    "convert",
    "convert_arrays",
    "convert_into",
    "create",
    "descriptor_from_json",
    "descriptor_from_text",
    "descriptor_to_json",
    "descriptor_to_text",
    "destination_for",
    "foreign_element",
    "info",
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
    ".pt": "pt",
    ".pth": "pt",
}
SUFFIXES: Final = tuple(_MODULES)
"""How the names of files end that can be read; all but those of PyTorch can be written, too."""

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
    return _module(path).read(_path(path), _given_to_convert(to, format, dims, dtype, name))  # type: ignore[no-any-return]


def write(
    path: AnyPath, tensor: Tensor, *, name: str | None = None, force: bool = False, only: bool = False
) -> None:
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
        Whether a file of that name may be replaced. The other arrays of an npz or safetensors file stay.
    only : bool
        Whether they go: the file holds just this array then.

    Raises
    ------
    LayoutError
        This kind of file can't hold the tensor, or its elements share places (broadcast); or the file holds
        other arrays, and there is no name that tells which one this is.
    OSError
        The file exists, or can't be written.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.safetensors")
    ...     write(path, rl.tensor(np.ones((8, 3), np.float32)), name="w")
    ...     write(path, rl.tensor(np.ones(8, np.float32)), name="b", force=True)
    ...     [array.name for array in info(path).arrays]
    ['w', 'b']
    """
    checked(tensor, Tensor, "what is written", "a Tensor (rl.tensor makes one of an array)")
    with create(path, tensor.desc, name=name, force=force, only=only) as out:
        convert_into(tensor, out, axes="position")


def create(
    path: AnyPath, desc: MemoryDesc, *, name: str | None = None, force: bool = False, only: bool = False
) -> AbstractContextManager[Tensor]:
    """Make a file for a tensor that is yet to be computed: a zeroed, writable tensor, mapped to the file.

    The file gets its name when the block ends without an error, and vanishes otherwise. The parameters are
    those of :func:`write`.

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
    module = _module_to_write(path)
    if hasattr(module, "writing"):
        return several.create(module, _path(path), desc, name, force, only)
    made: AbstractContextManager[Tensor] = module.create(_path(path), desc, name, force)
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
    only: bool = False,
    axes: str = "meaning",
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    normalise: Normalise | None = None,
    **attributes: Any,
) -> MemoryDesc:
    """Convert a file to another format, data type or kind of file, in slices: neither file has to fit into
    memory.

    One array is read and one is written; for many see :func:`convert_arrays`.

    Parameters
    ----------
    source, path : str or Path
        The file to read and the file to write.
    format : str or Format, optional
        The format to convert to; without one it stays (pictures: ``nhwc``).
    src_format, dims, src_dtype, name : optional
        What the source is, as :func:`read_to_convert` takes it. The array keeps its name.
    dtype : optional
        The data type to convert to; without one it stays (pictures: u8, which anything else than u8 must be
        asked or scaled for).
    force, only : bool
        Whether a file of that name may be replaced, and with all that is in it, as :func:`write` takes them.
    axes : str
        How axes are matched, by "meaning" or by "position", as :func:`relayout.reorder` takes it.
    threads : int, optional
        How many threads may work.
    progress : callable, optional
        Called with the elements done and the elements to do.
    normalise : Normalise, optional
        Mean and standard deviation, applied between the two scales.
    **attributes
        ``src_scale``, ``dst_scale``, ``src_zero_point``, ``dst_zero_point``, ``src_shift``, as
        :func:`relayout.reorder` takes them.

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
    scaled = normalise is not None or bool(attributes)
    desc = destination_for(path, tensor.desc, format, dtype, axes, scaled=scaled)
    with create(path, desc, name=name, force=force, only=only) as out:
        convert_into(
            *(tensor, out), axes="position", threads=threads, progress=progress, normalise=normalise,
            **attributes,
        )  # fmt: skip
    return desc


def convert_arrays(
    source: AnyPath,
    path: AnyPath,
    format: str | Format | None = None,
    *,
    names: Sequence[str] | None = None,
    only: bool = False,
    src_format: str | Format | None = None,
    src_dtype: DTypeLike | None = None,
    dtype: DTypeLike | None = None,
    force: bool = False,
    axes: str = "meaning",
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    normalise: Normalise | None = None,
    **attributes: Any,
) -> FileInfo:
    """Convert many arrays of a file into one file, an npz or safetensors file; the others are copied.

    Parameters
    ----------
    source, path : str or Path
        The file to read and the file to write.
    format, dtype : optional
        What those arrays are converted to; without them both stay.
    names : sequence of str, optional
        The arrays to convert: names, and patterns of names such as ``"layer*.weight"``. May be left out if
        the file holds only one, or nothing but the kind of file is to change. An array that a pattern
        matches is copied unchanged if its type is none of Relayout's (bool, say), or if it holds integers
        and ``dtype`` is a floating type, unless ``attributes`` scale it: a counter of 100001 would be inf in
        f16. A name converts it.
    only : bool
        Leave the other arrays out: those of the source, and those of a file that is replaced.
    src_format, src_dtype : optional
        What those arrays are, as :func:`read_to_convert` takes it.
    force : bool
        Whether a file of that name may be replaced. Arrays of its own that the source does not have stay,
        unless ``only`` is set.
    axes, threads, progress, normalise, **attributes
        As in :func:`convert`, for each of the arrays that are converted.

    Returns
    -------
    FileInfo
        What was written.

    Raises
    ------
    LayoutError, OSError
        Something does not fit or can't be read or written; the destination is as it was before.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, path = (pathlib.Path(folder, name) for name in ("in.npz", "out.safetensors"))
    ...     conv = np.ones((32, 16, 3, 3), np.float32)
    ...     np.savez(source, **{"l1.weight": conv, "l2.weight": conv, "l1.bias": conv[:, 0, 0, 0]})
    ...     made = convert_arrays(source, path, "OIhw16i16o", names=["*.weight"], src_format="oihw")
    >>> [(array.name, array.dims, array.format) for array in made.arrays]  # doctest: +NORMALIZE_WHITESPACE
    [('l1.weight', (32, 16, 3, 3), 'OIhw16i16o'), ('l2.weight', (32, 16, 3, 3), 'OIhw16i16o'),
     ('l1.bias', (32,), None)]
    """
    changes = not (format is None and dtype is None and normalise is None and not attributes)
    made = plan_arrays(
        *(source, path, format), names=names, only=only, src_format=src_format, src_dtype=src_dtype,
        dtype=dtype, changes=changes, axes=axes, scaled=normalise is not None or bool(attributes),
    )  # fmt: skip
    made = made.with_attributes(lambda _: (normalise, attributes))
    made.run(force=force, threads=threads, progress=progress)
    return info(path)


def plan_arrays(
    source: AnyPath,
    path: AnyPath,
    format: str | Format | None = None,
    *,
    names: Sequence[str] | None = None,
    only: bool = False,
    src_format: str | Format | None = None,
    dims: Sequence[int] | None = None,
    src_dtype: DTypeLike | None = None,
    dtype: DTypeLike | None = None,
    changes: bool = True,
    axes: str = "meaning",
    scaled: bool = False,
) -> checkpoint.Plan:
    """What :func:`convert_arrays` would do, to be changed and run."""
    module = _module_to_write(path)
    if not hasattr(module, "writing"):
        raise LayoutError(
            f"{spelled(_path(path))} can hold one array only; .npz and .safetensors files hold several"
        )
    given = _given_to_convert(format, src_format, dims, src_dtype, None)
    return checkpoint.plan(
        _module(source).opened(_path(source)),
        *(module, _path(path), given, names, lambda src: destination_for(path, src, format, dtype, axes)),
        only=only,
        changes=changes,
        floating=dtype is not None and as_dtype(dtype).is_float and not scaled,
    )


def check_kind(path: AnyPath, descriptors: bool = False) -> None:
    """Refuse a kind of file that is not known."""
    if not (descriptors and is_descriptor(_path(path))):
        _module(path)


def check_can_be_written(path: AnyPath) -> None:
    """Refuse a kind of file that is not known, or read only."""
    _module_to_write(path)


def one_of(path: AnyPath, names: Sequence[str]) -> str | None:
    """The name of the one array of a file that names and patterns mean; None: none were given.

    For a file that does not name its only array, a name is what the array is called where it is written.
    """
    if not names:
        return None
    module, where = _module(path), _path(path)
    if module.__name__.endswith((".npz", ".safetensors", ".pt")):
        names = matching(module.opened(where), list(names))
    if len(names) != 1:
        raise LayoutError(
            f"{spelled(where)}: {listed(list(names))} are named, but the file to write holds one; .npz and "
            ".safetensors files hold several"
        )
    return names[0]


def info(path: AnyPath) -> FileInfo:
    """List what is in a file: npy, npz, safetensors, raw, picture, checkpoint of PyTorch, or a descriptor.

    No elements are read (pictures are decoded, though), so it is quick for files of any size.

    Raises
    ------
    LayoutError
        The file is damaged, or a checkpoint that only PyTorch could read, which is not installed.
    OSError
        It can't be read.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "x.npz")
    ...     write(path, rl.tensor(np.zeros((1, 17, 2, 2), np.float32), "nChw8c"), name="x")
    ...     found = info(path)
    >>> found.kind, found.nbytes
    ('npz', 384)
    >>> found.arrays[0].to_json()  # doctest: +NORMALIZE_WHITESPACE
    {'name': 'x', 'dtype': 'f32', 'dims': [1, 17, 2, 2], 'format': 'nChw8c', 'bytes': 384,
     'descriptor': {'relayout': 1, 'dims': [1, 17, 2, 2], 'dtype': 'f32', 'format': 'nChw8c'}}
    """
    name = _path(path)
    if is_descriptor(name):
        return describe_descriptor(name)
    return describe(_module(path).opened(name))


def destination_for(
    path: AnyPath,
    src: MemoryDesc,
    format: str | Format | None = None,
    dtype: DTypeLike | None = None,
    axes: str = "meaning",
    scaled: bool = False,
) -> MemoryDesc:
    """What a file will hold: what is asked for, else u8 ``nhwc`` for pictures, else what the source has.

    Raises
    ------
    LayoutError
        The format does not fit; or the file is a picture, the source is not u8, and neither ``dtype`` asks
        for u8 nor is it ``scaled`` to that: most numbers would saturate, or be rounded to 0 and 1.
    Unsupported
        NumPy does not know the data type, the file is NumPy's, and ``dtype`` does not ask for it: NumPy
        would load bf16 as ``|V2``, bytes without a meaning.
    """
    module = _module_to_write(path)
    if module.__name__.endswith(".image"):
        if dtype is None and src.dtype.name != "u8" and not scaled:
            raise LayoutError(
                f"{spelled(_path(path))} holds pixels of u8, 0 to 255, and the source is {src.dtype}; say "
                "how its numbers become pixels: --src-scale 255 for 0 to 1, --src-scale 1/257 for 16 bits "
                "(src_scale); or round and saturate them as they are: --dtype u8 (dtype='u8')"
            )
        return destination(src, "nhwc" if format is None else format, "u8" if dtype is None else dtype, axes)
    desc = destination(src, format, dtype, axes)
    if (
        dtype is None
        and module.__name__.endswith((".npy", ".npz"))
        and by_dtype.get(desc.dtype.name) not in (by_descr.values())
    ):
        kind = desc.dtype.name
        seen = (
            f"|V{desc.dtype.bits // 8}, bytes without a meaning" if desc.dtype.bits >= 8 else "bytes of two"
        )
        raise Unsupported(
            f"{spelled(_path(path))} can't say {kind}, which NumPy does not know: it would load {seen}. "
            f"Convert it (--dtype f32, dtype='f32'), write a .safetensors file, or ask for {kind} (--dtype "
            f"{kind}) if Relayout is to read it again"
        )
    return desc


def _path(path: AnyPath) -> Path:
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise LayoutError(f"a path must be text, bytes or a pathlib.Path, got {described(path)}") from None
    if "\0" in text:
        raise LayoutError(f"a path can't hold the character 0, got {text!r:.60}")
    return Path(text)


def _given_to_convert(
    to: str | Format | None,
    format: str | Format | None,
    dims: Sequence[int] | None,
    dtype: DTypeLike | None,
    name: str | None,
) -> Given:
    given = Given.make(format, dims, dtype, name)
    if to is None or to == "any":  # "any" is no format, which the destination will say
        return given
    return given._replace(to=Format(to))


def foreign_element(path: AnyPath, name: str | None = None) -> str | None:
    """What NumPy calls the elements of an array that are none of Relayout's data types, and can be moved.

    Returns
    -------
    str or None
        ``"uint16"``, ``"bool"``, ``"complex64"``, ...; None: they are of a data type of Relayout's, or NumPy
        has no name for them, or they take no 1, 2, 4 or 8 bytes.

    Raises
    ------
    LayoutError, OSError
        As :func:`read`.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(pathlib.Path(folder, "x.npy"), np.zeros(3, np.uint16))
    ...     foreign_element(pathlib.Path(folder, "x.npy"))
    'uint16'
    """
    if _path(path).suffix.lower() not in (".npy", ".npz", ".safetensors"):
        return None
    opened = _module(path).opened(_path(path))
    member = opened.member(opened.choose(name))
    array = member.array
    if array.dtype is not None or array.bits not in (8, 16, 32, 64) or member.described() is not None:
        return None
    code = by_code.get(array.type_name)
    descr = array.type_name if code is None else code.descr
    if descr is None:
        return None
    known = np.dtype(descr)
    return f"V{known.itemsize}" if known.kind == "V" else known.name if known.kind in "biufc" else None


def _module_to_write(path: AnyPath) -> ModuleType:
    module = _module(path)
    if not hasattr(module, "writing") and not hasattr(module, "create"):
        raise Unsupported(
            f"{spelled(_path(path))} can't be written: checkpoints of PyTorch are read only; write a "
            ".safetensors file, which PyTorch programs read, too"
        )
    return module


def _module(path: AnyPath) -> ModuleType:
    suffix = _path(path).suffix.lower()
    if suffix not in _MODULES:
        ending = f"ends in {spelled(suffix)!r}" if suffix else "has no suffix"
        raise LayoutError(
            f"{spelled(_path(path))} {ending}; the kinds of files are {' '.join(_MODULES)} (raw bytes: .bin)"
        )
    with lock():  # a child that is forked meanwhile must not find the import half done
        return import_module(f"relayout.files.{_MODULES[suffix]}")


if TYPE_CHECKING:
    from relayout.files import image as image
    from relayout.files import pt as pt
    from relayout.files import raw as raw
    from relayout.files import safetensors as safetensors
else:
    __getattr__, __dir__ = _later(__name__, "image", "pt", "raw", "safetensors")
