"""Places as a person reads them: lines of files."""

from __future__ import annotations

import os

__all__ = ["short_source"]


def short_source(source: str) -> str:
    """A file as it is seen from here, or its last two parts, and the line."""
    if not source:
        return ""
    name, _, line = source.rpartition(":")
    here = os.getcwd() + os.sep
    near = name.removeprefix(here) if name.startswith(here) else os.sep.join(name.split(os.sep)[-2:])
    return f"{near}:{line}"
