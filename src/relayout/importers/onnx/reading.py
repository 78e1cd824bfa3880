"""From a file, bytes or a message to a graph."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError, type_name
from relayout.exchange.mapped import map_for_reading
from relayout.forking import lock
from relayout.graph.graph import Graph
from relayout.importers.onnx.external import Folder
from relayout.importers.onnx.lean import lean
from relayout.importers.onnx.model import graph_of

__all__ = ["read", "read_file"]

LARGEST: Final = 2**31 - 1
"""Bytes of a protobuf message, at most."""

MAPPED: Final = 16 * 2**20
"""Bytes of a file from which on weights stay there until they are packed. A smaller one is read as a whole,
and may be overwritten while its network is in use."""


def read(source: Any, folder: str | os.PathLike[str] | None = None) -> Graph:
    """The graph of an ONNX model.

    Parameters
    ----------
    source : path, bytes or onnx.ModelProto
        A file, what is in one, or the message itself.
    folder : path, optional
        Where files with external data are; a file's own folder unless something else is said.

    Returns
    -------
    Graph
        Operators in their newest meaning. Its inputs are those that have no value in the file; sizes that
        the file leaves open have the names that it gives them.

    Raises
    ------
    LayoutError
        The file is damaged or none of ONNX; nodes form a circle, read what nothing computes, or define a
        value twice; tensors have less data than they say, or data outside of the folder. The message names
        the node or the tensor.
    relayout.errors.Unsupported
        Operators that are unknown here: all of them, each with its nodes.

    Notes
    -----
    Semantics: the operators' schemas as the ``onnx`` package has them, versions 1 to 28.

    Examples
    --------
    >>> import pytest
    >>> onnx = pytest.importorskip("onnx")
    >>> print(read(onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["" : 11]>
    ...     agraph (float[N, 3] x) => (float[N, 1, 3] y) { y = Unsqueeze <axes = [1]> (x) }
    ... ''')))
    x f32 Nx3
    y = Unsqueeze(x, y:constant)
    -> y
    """
    return _read(source, folder)[0]


def read_file(path: str) -> tuple[Graph, tuple[str, ...]]:
    """The graph of a model in a file, and the paths of the files with its external data."""
    graph, folder = _read(path, None)
    return graph, folder.read


def _read(source: Any, where: str | os.PathLike[str] | None) -> tuple[Graph, Folder]:
    model, file, held = _message(source)
    folder = _folder(file, where)
    try:
        return graph_of(model, folder, held), folder
    except UnicodeDecodeError:
        raise LayoutError("the model is damaged: a name in it is not UTF-8") from None


def _folder(file: Path | None, folder: str | os.PathLike[str] | None) -> Folder:
    """Where external data may be.

    Caches of downloads have links as files: the model's leads where its data lies, too.
    """
    if folder is not None:
        return Folder(Path(folder))
    return Folder(None) if file is None else Folder(file.parent, Path(os.path.realpath(file)).parent)


def _message(source: Any) -> tuple[Any, Path | None, Mapping[int, NDArray[np.uint8]]]:
    """A ``ModelProto``, the file that it comes from, and tensors that are mapped there."""
    with lock():
        try:
            import onnx
        except ImportError:
            raise LayoutError("reading ONNX models needs the onnx package: pip install onnx") from None
    if isinstance(source, onnx.ModelProto):
        return source, None, {}
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(bytes(source), "the model"), None, {}
    if not isinstance(source, (str, os.PathLike)):
        raise LayoutError(f"a model is a path, bytes or an onnx.ModelProto, got {type_name(source)}")
    path = Path(os.fsdecode(source))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise LayoutError(f"{str(path)!r} is no regular file")
        if status.st_size > LARGEST:
            raise LayoutError(
                f"{str(path)!r} has {status.st_size} bytes; a model has at most {LARGEST}, with larger"
                " weights in files of their own (external data)"
            )
        found = lean(map_for_reading(path)) if status.st_size >= MAPPED else None
        data = path.read_bytes() if found is None else found.message
    except (OSError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        raise LayoutError(
            f"{str(path)!r} can't be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    return _parsed(data, repr(str(path))), path, {} if found is None else found.held


def _parsed(data: bytes, what: str) -> Any:
    with lock():
        import onnx
        from google.protobuf.message import DecodeError
    if not data:
        raise LayoutError(f"{what} is empty")
    try:
        return onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise LayoutError(f"{what} is no ONNX model, or damaged: {error}") from None
