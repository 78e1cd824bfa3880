"""Relayout for programs that use Dask: arrays of chunks in a memory format, conversions on a cluster.

=============================  =============================================================================
``reorder``                    a lazy array of logical shape as a lazy array of the physical shape of a format
``logical``                    the way back
``run``                        a plan of :mod:`relayout.stores` on a cluster
``for_workers``                what to plan with for the workers of a cluster: memory, threads, how many
``worker_threads``             how many blocks a worker of a cluster has at a time
=============================  =============================================================================

The names are loaded when they are first asked for, and Dask with them: neither ``import relayout`` nor
``import relayout.dask`` imports it. No name may be that of a module of this package, since importing a
module binds its name here.

Here ``import dask`` means Dask: all imports are absolute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relayout.errors import Unsupported as _Unsupported
from relayout.forking import later as _later

if TYPE_CHECKING:
    from relayout.dask.arrays import logical as logical
    from relayout.dask.arrays import reorder as reorder
    from relayout.dask.running import for_workers as for_workers
    from relayout.dask.running import run as run
    from relayout.dask.running import worker_threads as worker_threads

_WHERE = {
    "for_workers": "running",
    "logical": "arrays",
    "reorder": "arrays",
    "run": "running",
    "worker_threads": "running",
}
"""The module that defines a name, one line each."""

__all__ = [
    "for_workers",
    "logical",
    "reorder",
    "run",
    "worker_threads",
]

if not TYPE_CHECKING:
    _find, __dir__ = _later(__name__, **_WHERE)

    def __getattr__(name: str) -> Any:
        """Import a name when it is first asked for."""
        try:
            return _find(name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
                raise
            raise _Unsupported(
                f"relayout.dask.{name} needs Dask, which can't be imported ({error}); "
                'pip install "dask[array,distributed]"'
            ) from error
