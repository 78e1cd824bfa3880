"""The garbage collector pauses while networks are planned."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from processes import is_done
from relayout.runtime import collection
from relayout.runtime.collection import paused


@pytest.fixture(autouse=True)
def _nothing_is_frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where nobody freezes anything; the tests themselves are frozen elsewhere, and not counted again."""
    monkeypatch.setattr(collection, "_frozen", lambda: gc.get_freeze_count() > 0)
    gc.unfreeze()
    yield
    gc.freeze()


def test_what_is_frozen_is_counted_where_no_test_has_done_so(tmp_path):
    is_done(
        tmp_path,
        """
        import gc
        from relayout.runtime.collection import paused
        gc.freeze()
        with paused():
            pass
        assert gc.get_freeze_count()
        print("done")
        """,
    )


def test_nothing_is_collected_when_a_pause_ends():
    """What was made meanwhile is old at once; a full collection still finds cycles in it."""
    seen = []

    def note(phase, about):
        if phase == "stop":
            seen.append((about["generation"], about["collected"]))

    gc.collect()
    gc.callbacks.append(note)
    try:
        with paused():
            assert not gc.isenabled()
            kept = [[number] for number in range(20_000)]
            for _ in range(1000):
                cycle = []
                cycle.append(cycle)
        assert gc.isenabled()
        assert not seen
        gc.collect()
        assert seen[-1][0] == 2
        assert seen[-1][1] >= 999
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 20_000


def test_what_others_have_switched_off_or_frozen_stays_so():
    gc.disable()
    try:
        with paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.freeze()
    try:
        with paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()
