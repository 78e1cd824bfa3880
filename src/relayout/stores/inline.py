"""Coroutines of the zarr package run to their end in the thread that calls.

Its codecs are coroutines that hand the work to threads of an executor, one hop a chunk and a codec. Here the
calling thread is a worker already, one of as many as shall work, so it does that work itself: its own event
loop has an executor whose ``submit`` runs the function at once. So there are no other threads that compete
for the processors, and memory is bound by what the workers hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["complete", "possible"]

T = TypeVar("T")


class _AtOnce(ThreadPoolExecutor):
    """An executor without threads."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        made: Future[Any] = Future()
        try:
            made.set_result(fn(*args, **kwargs))
        except BaseException as error:
            made.set_exception(error)
        return made


class _Loop:
    """An event loop that is closed with its thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_AtOnce(1))

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.loop.close()


_own = threading.local()


def possible() -> bool:
    """Whether this thread can: not while it runs an event loop, as the main thread of a notebook does."""
    return asyncio._get_running_loop() is None


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, here."""
    made = getattr(_own, "made", None)
    if made is None:
        made = _own.made = _Loop()
    result: T = made.loop.run_until_complete(coroutine)
    return result
