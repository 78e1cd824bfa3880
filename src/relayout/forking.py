"""The one lock that a fork waits for.

Threads don't survive a fork, but the locks that they hold do: LLVM's, and those of modules that are being
imported. A child that finds one taken waits for ever. So everything that a child must not find half done
(planning, compiling, the imports that come with them, the making of threads) happens under one lock, and
``os.fork`` waits for it. There is only one, so that nobody can take two in the wrong order.

This module is small, so that whoever needs the lock before anything else is imported can have it.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager

__all__ = ["lock"]

_lock = threading.RLock()


def lock() -> AbstractContextManager[object]:
    """The lock; ask for it each time, since a child's is a new one."""
    return _lock


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _lock.acquire(),  # looked up when it is called
        after_in_parent=lambda: _lock.release(),
        after_in_child=_renew,
    )
