"""``relayout bench``: how fast it is here.

A module for each subject; :mod:`.options` has the options that several commands share, :mod:`.shown` what
they print besides their tables. Loading a module adds its commands to the group.
"""

from relayout.cli.bench import (  # noqa: F401 - each adds its commands
    census,
    large,
    machine,
    modules,
    narrow,
    networks,
    primitives,
    reorder,
    torch,
    training,
)
from relayout.cli.bench.group import bench

__all__ = ["bench"]
