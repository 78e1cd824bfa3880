"""``relayout.open``: an array in a store by its path."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from relayout import files
from relayout.dtypes import DTypeLike
from relayout.dtypes import dtype as as_dtype
from relayout.errors import LayoutError
from relayout.exchange.mapped import open_regular
from relayout.files.descriptor import json_from_text
from relayout.layout.format import Format
from relayout.layout.layout import check_dims
from relayout.stores import zarr
from relayout.stores.folder import DESCRIPTION
from relayout.stores.lazy import LazyTensor
from relayout.stores.run import check_complete
from relayout.stores.store import Address

__all__ = ["is_store", "names", "open"]

AnyPath = str | os.PathLike[str]
INDEX = ".safetensors.index.json"
MOST_INDEX = 100_000_000  # bytes; some hundred for each of a hundred thousand weights are ten million


def open(
    path: AnyPath,
    name: str | None = None,
    *,
    format: str | Format | None = None,
    dims: Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> LazyTensor:
    """Open an array in a store. Nothing is read but what describes it.

    Parameters
    ----------
    path : str or Path
        A Zarr store (a folder, or a URL that the ``zarr`` package takes); a folder of npy or raw files with a
        description (:mod:`relayout.stores.folder`), or of npy files that are one array each; a checkpoint in
        several safetensors files, by its index (``model.safetensors.index.json``, or the folder that it lies
        in); or a single file that :func:`relayout.files.read` reads.
    name : str, optional
        The array in a store of several; :func:`relayout.stores.names` lists them.
    format : str or Format, optional
        The format of the array in the store, where its attributes don't say it.
    dims : sequence of int, optional
        The logical sizes, for blocked formats that nothing else says.
    dtype : optional
        The data type, where the store can't name it (bf16 stored as uint16).

    Raises
    ------
    LayoutError
        It is no store; it is not complete; it has several arrays and none was named; or what is said about it
        contradicts what it holds.
    OSError
        It can't be read.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> import relayout as rl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for k in range(2):
    ...         np.save(pathlib.Path(folder, f"layer{k}.npy"), np.full((4, 6), k, np.float32))
    ...     rl.stores.names(folder), rl.open(folder, "layer1")[0, :3]
    (['layer0', 'layer1'], array([1., 1., 1.], dtype=float32))
    """
    said = {
        "format": None if format is None else str(Format(format)),
        "dims": None if dims is None else list(check_dims(dims)),
        "dtype": None if dtype is None else as_dtype(dtype).name,
    }
    told = {key: value for key, value in said.items() if value is not None}
    return LazyTensor(_address(_spelled(path), name, json.dumps(told, sort_keys=True) if told else "").open())


def names(path: AnyPath) -> list[str]:
    """The arrays of a store, by name; ``[""]`` where it is one array.

    Raises
    ------
    LayoutError, OSError
        It is no store that can be read.
    """
    where = _spelled(path)
    folder = Path(where)
    if zarr.is_zarr(where):
        return zarr.array_names(where)
    index = _index(folder)
    if index is not None:
        return sorted(_weights(index))
    if folder.is_dir():
        check_complete(folder)
        if (folder / DESCRIPTION).is_file():
            return [""]
        inside = [
            entry.name
            for entry in folder.iterdir()
            if (entry / DESCRIPTION).is_file() or zarr.is_zarr(str(entry))
        ]
        return sorted([*inside, *(file.stem for file in folder.glob("*.npy"))])
    found = [array.name for array in files.info(where).arrays]
    return [one or "" for one in found]


def is_store(path: AnyPath) -> bool:
    """Whether a path is that of a store of several files rather than of a single file."""
    where = _spelled(path)
    return "://" in where or Path(where).is_dir() or where.endswith(INDEX)


def _spelled(path: AnyPath) -> str:
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _address(path: str, name: str | None, said: str) -> Address:
    folder = Path(path)
    if "://" not in path and not os.path.lexists(folder):
        raise FileNotFoundError(2, "there is no such store", path)
    if "://" not in path and folder.is_dir():
        check_complete(folder)
    index = _index(folder)
    if zarr.is_zarr(path):
        return Address("zarr", path, _one(path, name), said)
    if index is not None:
        weights = _weights(index)
        one = _one(path, name)
        if one not in weights:
            raise LayoutError(f"{path} has no array {one!r}; it has {_some(sorted(weights))}")
        return Address("file", str(index.parent / weights[one]), one, said)
    if not folder.is_dir():
        if folder.suffix.lower() not in files.SUFFIXES:
            raise LayoutError(
                f"{path} is no store: neither a folder, nor a file of the kinds {' '.join(files.SUFFIXES)}"
            )
        return Address("file", path, name or "", said)
    if (folder / DESCRIPTION).is_file():
        if name:
            raise LayoutError(f"{path} is one array, and none of it is called {name!r}")
        return Address("folder", path, "", said)
    one = _one(path, name)
    inner = folder / one
    if inner.is_dir():
        return _address(str(inner), None, said)
    file = folder / f"{one}.npy"
    if not one or not file.is_file():
        raise LayoutError(f"{path} has no array {one!r}; it has {_some(names(path))}")
    return Address("file", str(file), "", said)


def _one(path: str, name: str | None) -> str:
    """The name that was given, or that of the only array."""
    if name is not None:
        return name
    found = names(path)
    if len(found) == 1:
        return found[0]
    if not found:
        raise LayoutError(
            f"{path} is no store: it holds neither a Zarr array, nor {DESCRIPTION}, nor npy files, "
            "nor the index of a checkpoint"
        )
    raise LayoutError(f"{path} holds {len(found)} arrays; say which by its name: {_some(found)}")


def _index(folder: Path) -> Path | None:
    """The index of a checkpoint in several files."""
    if folder.name.endswith(INDEX):
        return folder
    if folder.is_dir():
        found = sorted(folder.glob(f"*{INDEX}"))
        if len(found) > 1:
            raise LayoutError(
                f"{folder} holds {len(found)} checkpoints; name an index: {_some([f.name for f in found])}"
            )
        return found[0] if found else None
    return None


def _weights(index: Path) -> dict[str, str]:
    """Which file has which array, as the index of a checkpoint says it."""
    try:
        with open_regular(index) as file:
            data = json_from_text(file.read(MOST_INDEX + 1), "index", MOST_INDEX)
    except LayoutError as error:
        raise LayoutError(f"{index}: {error}") from None
    found = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise LayoutError(f"{index} is no index of a checkpoint: it has no weight_map of names")
    for file in found.values():
        if set("/\\\0") & set(file) or file in ("", ".", "..") or not _is_unicode(file):
            raise LayoutError(f"{index} names the file {file!r}, which does not lie beside it")
    return found


def _is_unicode(text: str) -> bool:
    """Whether a text has no halves of characters, which JSON can spell."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _some(several: Sequence[str]) -> str:
    return ", ".join(several[:8]) + (", ..." if len(several) > 8 else "") if several else "none"
