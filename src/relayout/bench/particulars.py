"""What a figure must be read with: processor, cores, versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

__all__ = ["particulars"]


def particulars(*packages: str) -> dict[str, str | int | None]:
    """Describe this machine, and the versions of Python and of packages.

    >>> list(particulars("numpy"))
    ['processor', 'cores', 'python', 'numpy']
    """
    return {
        "processor": _processor(),
        "cores": _cores(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _processor() -> str:
    """The model's name; virtual machines tend to hide it, then with family and model numbers."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        return f"{known['model name']} (family {known['cpu family']}, model {known['model']})"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()
