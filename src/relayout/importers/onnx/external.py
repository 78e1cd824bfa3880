"""Tensor data in files beside a model: found within its folder only, and mapped into memory.

A model names such a file by a path. Models come from strangers, so the path must be relative and stay within
the model's folder. A symbolic link on the way could lead anywhere: what it leads to must lie in that folder,
or in the one that the model's own file is a link into. A map takes no memory until its pages are read, so
that weights of any size can be looked at.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relayout.errors import LayoutError
from relayout.exchange.mapped import SharedMap

__all__ = ["Folder"]


class Folder:
    """The folder of a model, and the maps of the files that were read from it.

    Parameters
    ----------
    path : path or None
        None: the model came without one, and external data is an error.
    *others : path
        Folders into which links may lead.
    """

    def __init__(self, path: Path | None, *others: Path) -> None:
        self.path = path
        self._allowed = [Path(os.path.realpath(one)) for one in (path, *others) if one is not None]
        self._maps: dict[str, NDArray[np.uint8]] = {}

    @property
    def read(self) -> tuple[str, ...]:
        """The files that were read, links not followed."""
        return tuple(str(self.path / one) for one in self._maps) if self.path is not None else ()

    def bytes(self, tensor: Any, what: str, needed: int) -> NDArray[np.uint8]:
        """The bytes of a tensor with external data, read-only.

        Raises
        ------
        LayoutError
            The place is not within the folder, there is no such file, or it is too short.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if not location:
            raise LayoutError(f"{what} has its data in another file, but does not say in which")
        offset, length = (_number(entries, key, what) for key in ("offset", "length"))
        data = self._maps.get(location)
        if data is None:
            data = self._maps[location] = _mapped(self._checked(location, what), location, what)
        offset = offset or 0
        length = needed if length is None else length
        if offset + length > data.size:
            raise LayoutError(
                f"{what} has {length} bytes at offset {offset} of {location!r}, which is only"
                f" {data.size} bytes long"
            )
        return data[offset : offset + length]

    def _checked(self, location: str, what: str) -> Path:
        if self.path is None:
            raise LayoutError(
                f"{what} has its data in {location!r}, but the model came without a folder; give the model's"
                " path, or folder="
            )
        parts = PurePosixPath(location).parts
        outside = PurePosixPath(location).is_absolute() or ".." in parts or "\0" in location
        windows = PureWindowsPath(location)
        if outside or windows.drive or windows.root or ".." in windows.parts:
            raise LayoutError(
                f"{what} has its data in {location!r}, which leads outside of the model's folder"
            )
        real = Path(os.path.realpath(self.path / location))
        if not any(real.is_relative_to(folder) for folder in self._allowed):
            raise LayoutError(
                f"{what} has its data in {location!r}: a symbolic link leads outside of the model's folder"
            )
        return real


def _number(entries: dict[str, str], key: str, what: str) -> int | None:
    text = entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise LayoutError(f"{what}: {key} of its external data must be a number of bytes, got {text!r:.40}")
    return int(text)


def _mapped(path: Path, location: str, what: str) -> NDArray[np.uint8]:
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LayoutError(f"{what} has its data in {location!r}, which can't be read: {reason}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise LayoutError(f"{what} has its data in {location!r}, which is no regular file")
        if status.st_size == 0:  # an empty map is an error
            return np.empty(0, np.uint8)
        return np.frombuffer(SharedMap(file, status.st_size, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(file)
